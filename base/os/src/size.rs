//! Sizes for people.

/// Formats a size: `64 B`, `4 KiB`, `1.5 MiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| bytes >= 1 << shift) {
        Some((shift, unit)) => {
            #[allow(clippy::cast_precision_loss, reason = "three digits are shown")]
            let whole = format!("{:.3}", bytes as f64 / (1u64 << shift) as f64);
            format!("{} {unit}", whole.trim_end_matches('0').trim_end_matches('.'))
        }
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary() {
        let cases = [(64, "64 B"), (4096, "4 KiB"), (1 << 20, "1 MiB"), (3 << 19, "1.5 MiB"), (1 << 31, "2 GiB")];
        for (bytes, text) in cases {
            assert_eq!(size(bytes), text);
        }
    }
}
