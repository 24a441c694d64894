//! The times of a device as values. A simulator computes them; a modelled device imposes them on its descriptors.
//!
//! ```text
//! copy:4096:812:137+copy:8192:950:270+fill:4096:700:90+compare:4096:840:140
//! ```
//!
//! Each word of the text has an operation, the bytes of a descriptor, its latency and its interval in nanoseconds.

use std::fmt;
use std::str::FromStr;
use telpher_abi::Opcode;

/// The times of descriptors of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DescriptorTime {
    /// Bytes of the descriptor.
    pub bytes: u64,
    /// Nanoseconds from the submission until the submitter has seen the record, if the device has no other work.
    pub latency_ns: u64,
    /// Nanoseconds from the start of a descriptor to the start of the next one, if the device always has work.
    pub interval_ns: u64,
}

/// The times of a device for copies, fills and comparisons.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceTimes {
    copy: Vec<DescriptorTime>,
    fill: Vec<DescriptorTime>,
    compare: Vec<DescriptorTime>,
}

/// Why values are no times of a device.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceTimesError {
    /// An operation has no times.
    #[error("there are no times for '{0}'")]
    Missing(&'static str),
    /// The sizes of an operation are not in ascending order.
    #[error("the sizes of '{0}' are not in ascending order")]
    Order(&'static str),
    /// A word of the text is something else.
    #[error("'{0}' is not OPERATION:BYTES:LATENCY:INTERVAL")]
    Word(String),
}

impl DeviceTimes {
    /// The times of copies, fills and comparisons, each in ascending order of sizes.
    ///
    /// # Errors
    /// If an operation has no times, or its sizes are in another order.
    pub fn new(
        copy: Vec<DescriptorTime>,
        fill: Vec<DescriptorTime>,
        compare: Vec<DescriptorTime>,
    ) -> Result<Self, DeviceTimesError> {
        let times = DeviceTimes { copy, fill, compare };
        for (name, points) in times.by_name() {
            if points.is_empty() {
                return Err(DeviceTimesError::Missing(name));
            }
            if points.windows(2).any(|pair| pair[0].bytes >= pair[1].bytes) {
                return Err(DeviceTimesError::Order(name));
            }
        }
        Ok(times)
    }

    fn by_name(&self) -> [(&'static str, &[DescriptorTime]); 3] {
        [("copy", &self.copy), ("fill", &self.fill), ("compare", &self.compare)]
    }

    /// Returns the times of a descriptor; `None` for other operations. Between two sizes, times grow with the bytes;
    /// beyond the largest size, they go on growing as before it.
    #[must_use]
    pub fn of(&self, operation: Opcode, bytes: u64) -> Option<DescriptorTime> {
        let points = match operation {
            Opcode::MemoryMove => &self.copy,
            Opcode::Fill => &self.fill,
            Opcode::Compare => &self.compare,
            _ => return None,
        };
        let above = points.partition_point(|point| point.bytes < bytes);
        let [low, high] = match above {
            0 => [points[0]; 2],
            above if above < points.len() => [points[above - 1], points[above]],
            _ => [points[points.len().saturating_sub(2)], points[points.len() - 1]],
        };
        let between = |low_ns: u64, high_ns: u64| {
            if high.bytes == low.bytes {
                return low_ns;
            }
            let [from, to, x, x0, x1] = [low_ns, high_ns, bytes, low.bytes, high.bytes].map(i128::from);
            // Times beyond those of any device saturate.
            let grown = (to - from).saturating_mul(x - x0) / (x1 - x0);
            u64::try_from((from + grown).max(0)).unwrap_or(u64::MAX)
        };
        Some(DescriptorTime {
            bytes,
            latency_ns: between(low.latency_ns, high.latency_ns),
            interval_ns: between(low.interval_ns, high.interval_ns),
        })
    }
}

impl fmt::Display for DeviceTimes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, points) in self.by_name() {
            for DescriptorTime { bytes, latency_ns, interval_ns } in points {
                write!(out, "{separator}{name}:{bytes}:{latency_ns}:{interval_ns}")?;
                separator = "+";
            }
        }
        Ok(())
    }
}

impl FromStr for DeviceTimes {
    type Err = DeviceTimesError;

    fn from_str(text: &str) -> Result<Self, DeviceTimesError> {
        let [mut copy, mut fill, mut compare] = [const { Vec::new() }; 3];
        for word in text.split('+') {
            let wrong = || DeviceTimesError::Word(word.into());
            let (name, numbers) = word.split_once(':').ok_or_else(wrong)?;
            let points = match name {
                "copy" => &mut copy,
                "fill" => &mut fill,
                "compare" => &mut compare,
                _ => return Err(wrong()),
            };
            let numbers = numbers.split(':').map(str::parse).collect::<Result<Vec<u64>, _>>().map_err(|_| wrong())?;
            let [bytes, latency_ns, interval_ns] = numbers[..] else { return Err(wrong()) };
            points.push(DescriptorTime { bytes, latency_ns, interval_ns });
        }
        DeviceTimes::new(copy, fill, compare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(bytes: u64, latency_ns: u64, interval_ns: u64) -> DescriptorTime {
        DescriptorTime { bytes, latency_ns, interval_ns }
    }

    fn times() -> DeviceTimes {
        let copy = vec![point(1000, 500, 100), point(2000, 600, 300), point(4000, 1000, 700)];
        DeviceTimes::new(copy, vec![point(1, 7, 3)], vec![point(8, 9, 1)]).unwrap()
    }

    #[test]
    fn times_are_interpolated_between_sizes_and_continued_beyond_them() {
        let of = |bytes| times().of(Opcode::MemoryMove, bytes).map(|at| (at.latency_ns, at.interval_ns)).unwrap();
        assert_eq!([of(0), of(1000), of(1500), of(3000)], [(500, 100), (500, 100), (550, 200), (800, 500)]);
        assert_eq!((of(4000), of(6000)), ((1000, 700), (1400, 1100)));
        // A single size holds for all.
        assert_eq!(times().of(Opcode::Fill, 1 << 20).map(|at| at.latency_ns), Some(7));
        assert_eq!(times().of(Opcode::Nop, 1000), None);
    }

    #[test]
    fn times_are_read_as_they_were_written() {
        let text = times().to_string();
        assert!(text.starts_with("copy:1000:500:100+copy:2000:600:300+"), "{text}");
        assert_eq!(text.parse(), Ok(times()));
    }

    #[test]
    fn other_texts_are_refused_with_the_word() {
        let refused = |text: &str| text.parse::<DeviceTimes>().unwrap_err();
        for word in ["", "move:1:2:3", "copy", "copy:1:2", "copy:1:2:3:4", "copy:1:x:3"] {
            assert_eq!(refused(word), DeviceTimesError::Word(word.into()));
        }
        assert_eq!(refused("copy:1:2:3+fill:1:2:3"), DeviceTimesError::Missing("compare"));
        assert_eq!(refused("copy:2:2:3+copy:2:2:3+fill:1:2:3+compare:1:2:3"), DeviceTimesError::Order("copy"));
    }
}
