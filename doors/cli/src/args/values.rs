//! Parsers of option values (sizes, counts, times, placements), each with a one-sentence error.

use std::str::FromStr;
use telpher_sim::NamedValue;

/// Why a value is invalid: one sentence that says what is accepted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ValueError(pub(crate) String);

const SIZE_SENTENCE: &str =
    "a size is a number of bytes with an optional k, m or g (KiB, MiB, GiB), such as 64, 4k or 1m";
const RANGE_SENTENCE: &str =
    "a list has values with commas, and ranges such as 64..64m (each 4 times the previous) or 1k..8k*2 (each twice)";

/// Largest transfer of a descriptor: its size field has 32 bits, and no 1.x device takes more than 2 GiB.
pub(crate) const MAX_SIZE: u64 = 1 << 31;

/// Parses the bytes of a transfer, written `64`, `4k`, `1m` or `2g`.
pub(crate) fn parse_size(text: &str) -> Result<u64, ValueError> {
    parse_up_to(text, MAX_SIZE, "2g")
}

/// Checks the name of a device and returns it unchanged.
pub(crate) fn parse_device(text: &str) -> Result<String, telpher_device::NameError> {
    text.parse::<telpher_device::DeviceName>().map(|_| text.to_owned())
}

/// Maximum bytes that a simulated thread goes through. Source: that of a workload file.
const MAX_FOOTPRINT: u64 = 1 << 50;

/// Parses bytes that a simulated thread goes through, as a workload file does.
pub(crate) fn parse_footprint(text: &str) -> Result<u64, ValueError> {
    parse_up_to(text, MAX_FOOTPRINT, "1048576g")
}

/// Maximum bytes of a query's columns. Source: chosen; eight times the largest documented example.
const MAX_DATA: u64 = 64 << 30;

/// Parses bytes of data, up to 64 GiB.
pub(crate) fn parse_data(text: &str) -> Result<u64, ValueError> {
    parse_up_to(text, MAX_DATA, "64g")
}

fn parse_up_to(text: &str, max: u64, named: &str) -> Result<u64, ValueError> {
    let error = || ValueError(format!("'{text}' is not a size; {SIZE_SENTENCE}"));
    let bytes = telpher_os::parse_size(text).ok_or_else(error)?;
    if bytes == 0 || bytes > max {
        return Err(ValueError(format!("'{text}' is out of range; sizes go from 1 byte to {named}")));
    }
    Ok(bytes)
}

/// Parses a whole number from 1 to `max`.
fn parse_count(text: &str, what: &str, max: u64) -> Result<u64, ValueError> {
    match text.trim().parse() {
        Ok(n) if n >= 1 && n <= max => Ok(n),
        _ => Err(ValueError(format!("'{text}' is not a {what}; it is a whole number from 1 to {max}"))),
    }
}

/// Parses values separated by commas, and geometric ranges; returns them sorted, each once.
fn parse_list(text: &str, one: impl Fn(&str) -> Result<u64, ValueError>) -> Result<Vec<u64>, ValueError> {
    let mut values = Vec::new();
    for part in text.split(',') {
        let Some((from, rest)) = part.split_once("..") else {
            values.push(one(part)?);
            continue;
        };
        let bad = || ValueError(format!("'{part}' is not a range; {RANGE_SENTENCE}"));
        let (to, factor) = match rest.split_once('*') {
            Some((to, factor)) => (to, factor.trim().parse::<u64>().map_err(|_| bad())?),
            None => (rest, 4),
        };
        let (from, to) = (one(from)?, one(to)?);
        if from > to || factor < 2 {
            return Err(bad());
        }
        let mut value = from;
        while value < to {
            values.push(value);
            // Saturation ends the loop: u64::MAX is not below `to`.
            value = value.saturating_mul(factor);
        }
        values.push(to);
    }
    values.sort_unstable();
    values.dedup();
    Ok(values)
}

/// Transfer sizes in bytes, ascending.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sizes(pub(crate) Vec<u64>);

impl FromStr for Sizes {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        parse_list(text, parse_size).map(Sizes)
    }
}

/// Numbers in flight or in a batch, ascending.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Counts(pub(crate) Vec<u32>);

impl FromStr for Counts {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let list = parse_list(text, |t| parse_count(t, "count", 1024))?;
        Ok(Counts(list.into_iter().map(|n| u32::try_from(n).expect("checked against 1024")).collect()))
    }
}

/// Maximum number of operations.
pub(crate) const MANY: u64 = 100_000_000;

/// Parses a number of operations.
pub(crate) fn parse_many(text: &str) -> Result<u64, ValueError> {
    parse_count(text, "count", MANY)
}

/// A value chosen by name from a fixed list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Choice<T>(pub(crate) T);

impl<T: NamedValue> FromStr for Choice<T> {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let named = T::NAMES.iter().find(|(name, _)| *name == text);
        named.map(|(_, value)| Choice(*value)).ok_or_else(|| {
            let names: Vec<&str> = T::NAMES.iter().map(|(name, _)| *name).collect();
            ValueError(format!("'{text}' is not one of {}", names.join(", ")))
        })
    }
}

/// Parses a measuring time in seconds.
pub(crate) fn parse_seconds(text: &str) -> Result<f64, ValueError> {
    match text.trim().trim_end_matches('s').parse::<f64>() {
        Ok(s) if (0.05..=86_400.0).contains(&s) => Ok(s),
        _ => Err(ValueError(format!("'{text}' is not a time; give seconds from 0.05 to 86400, such as 0.2 or 30"))),
    }
}

/// Parses the time to wait before telpher exits, in seconds; 0 is allowed.
pub(crate) fn parse_grace(text: &str) -> Result<f64, ValueError> {
    match text.trim().trim_end_matches('s').parse::<f64>() {
        Ok(s) if (0.0..=86_400.0).contains(&s) => Ok(s),
        _ => Err(ValueError(format!("'{text}' is not a time; give seconds from 0 to 86400, such as 0.5 or 30"))),
    }
}

/// NUMA nodes of the source and the destination buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Placement {
    /// Node of the source buffers.
    pub(crate) src: u32,
    /// Node of the destination buffers.
    pub(crate) dst: u32,
}

impl FromStr for Placement {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let parse = |t: &str| t.trim().parse::<u32>().ok();
        text.split_once(',')
            .and_then(|(s, d)| Some(Placement { src: parse(s)?, dst: parse(d)? }))
            .ok_or_else(|| ValueError(format!("'{text}' is not a placement; give two NUMA nodes SRC,DST such as 0,1")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_count_in_kib() {
        for (text, bytes) in [("64", 64), ("4k", 4096), ("4K", 4096), ("1m", 1 << 20), ("2g", 1 << 31), ("4KiB", 4096)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn an_invalid_size_describes_valid_ones() {
        for text in ["", "k", "3x", "-1", "1.5k", "4kk", "99999999999999999999", "k4"] {
            let message = parse_size(text).unwrap_err().to_string();
            assert!(message.contains("64, 4k or 1m"), "{text}: {message}");
        }
        for text in ["0", "3g"] {
            assert!(parse_size(text).unwrap_err().to_string().contains("from 1 byte to 2g"), "{text}");
        }
        assert_eq!(parse_data("8g"), Ok(8 << 30));
        assert!(parse_data("65g").unwrap_err().to_string().contains("from 1 byte to 64g"));
    }

    #[test]
    fn ranges_multiply_by_four_or_by_the_number_after_the_star() {
        assert_eq!("64..4k".parse::<Sizes>().unwrap().0, [64, 256, 1024, 4096]);
        assert_eq!("1k..8k*2".parse::<Sizes>().unwrap().0, [1024, 2048, 4096, 8192]);
        assert_eq!("64..100".parse::<Sizes>().unwrap().0, [64, 100]);
        assert_eq!("4k,64,4k".parse::<Sizes>().unwrap().0, [64, 4096]);
        assert_eq!("1..64*8,3".parse::<Counts>().unwrap().0, [1, 3, 8, 64]);
    }

    #[test]
    fn bad_ranges_are_refused() {
        for text in ["4k..64", "1..8*1", "1..8*x", "..", "1.."] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }

    #[test]
    fn counts_have_a_limit() {
        assert!("0".parse::<Counts>().is_err());
        assert!("1025".parse::<Counts>().unwrap_err().to_string().contains("from 1 to 1024"));
    }

    #[test]
    fn placement_names_two_nodes() {
        assert_eq!("0,1".parse(), Ok(Placement { src: 0, dst: 1 }));
        assert!("0".parse::<Placement>().is_err());
        assert!("0,a".parse::<Placement>().is_err());
    }

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(parse_seconds("0.2"), Ok(0.2));
        assert_eq!(parse_seconds("3s"), Ok(3.0));
        assert!(parse_seconds("0").is_err());
        assert!(parse_seconds("nan").is_err());
    }
}
