//! Sizes for people, printed and read.

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

/// Reads a number of bytes: `4096`, `64k`, `512m`, `1g` or `2t`, with binary units in either case, also as `64KiB`.
/// `None` if the text is something else, or more than a `u64`.
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &lower[digits.len()..] {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
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

    #[test]
    fn sizes_are_read_with_and_without_units() {
        for (text, bytes) in [("0", 0), ("4096", 4096), ("64k", 65536), ("1G", 1 << 30), (" 2TiB ", 2 << 40), ("7b", 7)]
        {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for text in ["", "g", "1.5g", "-1", "1x", "99999999999t"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
