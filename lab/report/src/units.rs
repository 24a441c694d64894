//! Formats numbers: `4 KiB`, `1.25 µs`, `12.3 GB/s`.

pub use telpher_os::size;

/// Formats a time with three significant digits: `85 ns`, `1.25 µs`, `3.4 ms`.
pub fn time(ns: f64) -> String {
    match ns {
        ns if !ns.is_finite() => "–".into(),
        ns if ns < 999.5 => format!("{} ns", three(ns)),
        ns if ns < 999.5e3 => format!("{} µs", three(ns / 1e3)),
        ns if ns < 999.5e6 => format!("{} ms", three(ns / 1e6)),
        ns => format!("{} s", three(ns / 1e9)),
    }
}

/// Formats a time that may not have been measured.
pub fn time_or_none(ns: Option<f64>) -> String {
    time(ns.unwrap_or(f64::NAN))
}

/// Formats a CSV field with `digits` digits after the point; empty if the value was not measured.
pub fn field(value: Option<f64>, digits: usize) -> String {
    value.filter(|value| value.is_finite()).map_or_else(String::new, |value| format!("{value:.digits$}"))
}

/// Formats a rate: `12.3 GB/s`; GB is 10^9 bytes.
pub fn rate(bytes_per_second: f64) -> String {
    format!("{} GB/s", three(bytes_per_second / 1e9))
}

/// Formats a frequency: `4.2 M/s`, `310 k/s`.
pub fn frequency(per_second: f64) -> String {
    match per_second {
        n if n >= 999.5e3 => format!("{} M/s", three(n / 1e6)),
        n if n >= 999.5 => format!("{} k/s", three(n / 1e3)),
        n => format!("{} /s", three(n)),
    }
}

/// Formats a number with three significant digits and without an exponent; `–` if it was not measured.
pub fn three(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "–".into(),
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 => format!("{value:.2}"),
        0.0 => "0".into(),
        _ => format!("{value:.3}"),
    }
}

/// Returns the shortest text for a tick mark, without trailing zeros.
pub fn trimmed(value: f64) -> String {
    let text = match value.abs() {
        0.0 => return "0".into(),
        // With six digits, several ticks would be zero.
        v if v < 1e-5 => return format!("{value:e}"),
        v if v < 0.01 => format!("{value:.6}"),
        _ => format!("{value:.3}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_three_digits() {
        let cases =
            [(0.123, "0.123 ns"), (85.04, "85.0 ns"), (999.6, "1.00 µs"), (1250.0, "1.25 µs"), (3.4e6, "3.40 ms")];
        for (ns, text) in cases {
            assert_eq!(time(ns), text);
        }
        assert_eq!(time(f64::NAN), "–");
    }

    #[test]
    fn unmeasured_values_are_dashes_or_empty_fields() {
        assert_eq!(three(f64::NAN), "–");
        assert_eq!((time_or_none(None), time_or_none(Some(0.0))), ("–".into(), "0 ns".into()));
        assert_eq!([None, Some(f64::NAN), Some(1.25)].map(|value| field(value, 1)), ["", "", "1.2"]);
    }

    #[test]
    fn tick_marks_have_no_needless_zeros() {
        assert_eq!(
            [0.0, 1e-7, 0.0001, 0.5, 20.0, 97.65625].map(trimmed),
            ["0", "1e-7", "0.0001", "0.5", "20", "97.656"]
        );
    }

    #[test]
    fn rates_are_decimal() {
        assert_eq!(rate(12.34e9), "12.3 GB/s");
        assert_eq!(frequency(4.2e6), "4.20 M/s");
        assert_eq!(frequency(310e3), "310 k/s");
    }
}
