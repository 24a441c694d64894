//! The records that the kernel writes into a ring, each with its kind and length.
//!
//! Source: UAPI linux/perf_event.h, `struct perf_event_header` and `enum perf_event_type`.

/// `PERF_RECORD_LOST`, `_THROTTLE`, `_UNTHROTTLE`, `_SAMPLE`, `_LOST_SAMPLES`.
const LOST: u32 = 2;
const THROTTLE: u32 = 5;
const SAMPLE: u32 = 9;
const LOST_SAMPLES: u32 = 13;
/// Kind (4 bytes), misc flags (2) and length including the header (2).
const HEADER: usize = 8;

/// A sampled access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// The process id.
    pub pid: u32,
    /// The thread id.
    pub thread: u32,
    /// The time by the kernel's perf clock, in nanoseconds.
    pub time_ns: u64,
    /// The accessed address; 0 if the unit could not report it.
    pub address: u64,
}

/// A record of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {
    /// A sampled access.
    Sample(Sample),
    /// This many samples did not fit into the ring.
    Lost(u64),
    /// The kernel lowers the sample rate for a while.
    Throttle,
    /// A record of another kind.
    Other(u32),
    /// Not a valid record. Nothing follows it, because the start of the next record is unknown.
    Garbage,
}

/// An iterator over the records in a byte slice.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    bytes: &'a [u8],
}

impl<'a> Records<'a> {
    /// Creates an iterator over these bytes, in the format of a ring.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Records<'a> {
        Records { bytes }
    }
}

/// Reads `N` bytes at an offset; `None` beyond the end.
fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    word(bytes, at).map(u64::from_le_bytes)
}

fn int(bytes: &[u8], at: usize) -> Option<u32> {
    word(bytes, at).map(u32::from_le_bytes)
}

/// A sample's fields, in the order of the kernel's `PERF_SAMPLE_TID`, `_TIME` and `_ADDR`.
fn sample(body: &[u8]) -> Option<Sample> {
    Some(Sample { pid: int(body, 0)?, thread: int(body, 4)?, time_ns: long(body, 8)?, address: long(body, 16)? })
}

impl Iterator for Records<'_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        if self.bytes.is_empty() {
            return None;
        }
        let len = word(self.bytes, 6).map(|len| usize::from(u16::from_le_bytes(len)));
        let record = len.filter(|&len| len >= HEADER).and_then(|len| self.bytes.get(..len));
        let (Some(kind), Some(record)) = (int(self.bytes, 0), record) else {
            self.bytes = &[];
            return Some(Record::Garbage);
        };
        self.bytes = &self.bytes[record.len()..];
        let body = &record[HEADER..];
        Some(match kind {
            SAMPLE => sample(body).map_or(Record::Garbage, Record::Sample),
            // The event's id, then the number.
            LOST => long(body, 8).map_or(Record::Garbage, Record::Lost),
            LOST_SAMPLES => long(body, 0).map_or(Record::Garbage, Record::Lost),
            THROTTLE => Record::Throttle,
            other => Record::Other(other),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Builds a record with its header.
    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let len = u16::try_from(HEADER + body.len()).unwrap();
        [&kind.to_le_bytes()[..], &2_u16.to_le_bytes(), &len.to_le_bytes(), body].concat()
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn of(bytes: &[u8]) -> Vec<Record> {
        Records::new(bytes).collect()
    }

    #[test]
    fn records_are_read_as_they_are_laid_out() {
        let bytes = [
            record(SAMPLE, &words(&[77 | 78 << 32, 1_000_000, 0x7fff_1234_5678])),
            record(LOST, &words(&[5, 123, 0, 0])),
            record(THROTTLE, &words(&[1, 2, 3])),
            record(6, &words(&[1, 2, 3])),
            record(LOST_SAMPLES, &words(&[9])),
            // With fields after the requested ones, as with `sample_id_all`.
            record(SAMPLE, &words(&[0, 0, u64::MAX, 99])),
        ]
        .concat();
        let first = Sample { pid: 77, thread: 78, time_ns: 1_000_000, address: 0x7fff_1234_5678 };
        let last = Sample { address: u64::MAX, ..Sample::default() };
        let expected = [
            Record::Sample(first),
            Record::Lost(123),
            Record::Throttle,
            Record::Other(6),
            Record::Lost(9),
            Record::Sample(last),
        ];
        assert_eq!(of(&bytes), expected);
    }

    /// Recorded from the page-fault ring of a thread on Linux 6.18 (2026-11-23): a lost record, and the next sample. A
    /// fourth field, the period, follows the sample's three fields.
    #[test]
    fn recorded_records_are_read() {
        let recorded = [
            0x02, 0, 0, 0, 0, 0, 0x18, 0, 0x05, 0, 0, 0, 0, 0, 0, 0, 0x6f, 0x0c, 0, 0, 0, 0, 0, 0, 0x09, 0, 0, 0, 0x02,
            0, 0x28, 0, 0xc3, 0x02, 0, 0, 0xcf, 0x02, 0, 0, 0xde, 0x22, 0x8a, 0x9f, 0x29, 0x03, 0, 0, 0, 0x10, 0, 0x37,
            0x36, 0x7f, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
        ];
        let sample = Sample { pid: 707, thread: 719, time_ns: 0x0329_9f8a_22de, address: 0x7f36_3700_1000 };
        assert_eq!(of(&recorded), [Record::Lost(3183), Record::Sample(sample)]);
    }

    #[test]
    fn a_truncated_record_is_garbage() {
        let whole = record(SAMPLE, &words(&[1, 2, 3]));
        for cut in 1..whole.len() {
            assert_eq!(of(&whole[..cut]), [Record::Garbage], "{cut}");
        }
        // A length smaller than the header's could loop for ever.
        for len in 0..HEADER {
            let mut bytes = [whole.clone(), whole.clone()].concat();
            bytes[6] = u8::try_from(len).unwrap();
            assert_eq!(of(&bytes), [Record::Garbage], "{len}");
        }
        // A complete record whose body is too short is skipped.
        let bytes = [record(SAMPLE, &words(&[1, 2])), record(LOST, &[1; 8]), whole].concat();
        assert!(matches!(of(&bytes)[..], [Record::Garbage, Record::Garbage, Record::Sample(_)]));
    }

    proptest! {
        #[test]
        fn any_bytes_terminate(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            prop_assert!(Records::new(&bytes).count() <= bytes.len() / HEADER + 1);
        }

        /// Uses valid lengths, so that the test gets past the first record.
        #[test]
        fn records_are_found_one_after_the_other(
            bodies in proptest::collection::vec((0_u32..20, proptest::collection::vec(any::<u8>(), 0..80)), 0..40),
            tail in proptest::collection::vec(any::<u8>(), 0..8),
        ) {
            let mut bytes: Vec<u8> = bodies.iter().flat_map(|(kind, body)| record(*kind, body)).collect();
            let least = [(SAMPLE, 24), (LOST, 16), (LOST_SAMPLES, 8)];
            let is_whole = |kind: u32, body: &[u8]| least.iter().all(|&(of, least)| of != kind || body.len() >= least);
            let expected: Vec<bool> = bodies.iter().map(|(kind, body)| is_whole(*kind, body)).collect();
            bytes.extend(&tail);
            let mut found: Vec<bool> = of(&bytes).iter().map(|record| *record != Record::Garbage).collect();
            if !tail.is_empty() {
                prop_assert_eq!(found.pop(), Some(false));
            }
            prop_assert_eq!(found, expected);
        }
    }
}
