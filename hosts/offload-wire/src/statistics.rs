//! Calls of one process by their size, as Intel's DTO counts them: the layout of a file that the process writes and
//! other processes read.
//!
//! ```text
//! words     content (64 bits each, in the processor's byte order)
//! 0         magic; written last
//! 1         version
//! 2, 3      start: time stamp counter, nanoseconds of CLOCK_BOOTTIME
//! 4         end: nanoseconds of CLOCK_BOOTTIME; 0 while the process runs, or if it ended without its destructors
//! 5, 6      the program's name, filled up with zeros
//! 8–        buckets of 32 words: calls and ticks of each group and operation, bytes of each group, failures by reason
//! ```
//!
//! A bucket has the calls whose requested length lies in its 4096 bytes; the last one also has all longer calls.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of buckets. Source: DTO, HIST_NO_BUCKETS.
pub const BUCKETS: usize = 512;
/// Bytes that a bucket covers. Source: DTO, HIST_BUCKET_SIZE.
pub const BUCKET_BYTES: usize = 4096;

const MAGIC: u64 = u64::from_ne_bytes(*b"telphdto");
const VERSION: u64 = 1;
/// Words of the header.
const HEADER: usize = 8;
/// Words of a bucket; a multiple of a cache line, so that calls of different sizes do not share one.
const BUCKET: usize = 32;
/// Words of the calls, and of the ticks, in a bucket.
const CELLS: usize = GROUPS * OPERATIONS;
/// Number of groups.
pub const GROUPS: usize = 3;
/// Number of operations.
pub const OPERATIONS: usize = 4;
/// Number of failure reasons.
pub const FAILURES: usize = 3;
/// Words of the statistics of one process.
pub const WORDS: usize = HEADER + BUCKETS * BUCKET;

const _: () = assert!(2 * CELLS + GROUPS + FAILURES <= BUCKET);

/// The called function, in DTO's order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// `memset`.
    Set,
    /// `memcpy`, `mempcpy`.
    Copy,
    /// `memmove`, `bcopy`.
    Move,
    /// `memcmp`, `bcmp`.
    Compare,
}

/// What became of a call, or of a part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// The C library executed it.
    CLibrary,
    /// The device executed all of it.
    Device,
    /// The device executed a part of it, which may be empty; the rest is in the first group.
    DeviceFailed,
}

/// Why the device left a part of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The queues were full.
    Retry,
    /// A page was not present.
    PageFault,
    /// Anything else.
    Other,
}

/// The statistics of a process, for the process that counts.
#[derive(Clone, Copy, Debug)]
pub struct Statistics<'a>(&'a [AtomicU64]);

impl<'a> Statistics<'a> {
    /// Begins statistics in [`WORDS`] words that are zero. `None` if there are fewer.
    #[must_use]
    pub fn begin(words: &'a [AtomicU64], program: &[u8], start_ticks: u64, start_ns: u64) -> Option<Statistics<'a>> {
        let words = words.get(..WORDS)?;
        let mut name = [0; 16];
        let len = program.len().min(name.len());
        name[..len].copy_from_slice(&program[..len]);
        let (first, second) = name.split_at(8);
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        let header = [VERSION, start_ticks, start_ns, 0, word(first), word(second)];
        for (at, value) in header.into_iter().enumerate() {
            // Relaxed: published by the magic number.
            words[1 + at].store(value, Ordering::Relaxed);
        }
        // Release: a reader that sees it sees the header.
        words[0].store(MAGIC, Ordering::Release);
        Some(Statistics(words))
    }

    /// Counts a call of `requested` bytes, of which this group did `bytes` in so many ticks.
    #[inline]
    pub fn count(&self, operation: Operation, requested: usize, group: Group, bytes: u64, ticks: u64) {
        let bucket = self.bucket(requested);
        let cell = group as usize * OPERATIONS + operation as usize;
        add(&bucket[cell], 1);
        add(&bucket[CELLS + cell], ticks);
        add(&bucket[2 * CELLS + group as usize], bytes);
    }

    /// Counts the reason for which the device left a part of a call of `requested` bytes.
    #[inline]
    pub fn count_failure(&self, requested: usize, failure: Failure) {
        add(&self.bucket(requested)[2 * CELLS + GROUPS + failure as usize], 1);
    }

    /// Sets the time at which the process has ended.
    pub fn end(&self, end_ns: u64) {
        self.0[4].store(end_ns, Ordering::Relaxed);
    }

    #[inline]
    fn bucket(&self, requested: usize) -> &'a [AtomicU64] {
        let start = HEADER + (requested / BUCKET_BYTES).min(BUCKETS - 1) * BUCKET;
        &self.0[start..start + BUCKET]
    }
}

#[inline]
fn add(word: &AtomicU64, more: u64) {
    // Relaxed: a counter publishes no other data.
    word.fetch_add(more, Ordering::Relaxed);
}

/// The statistics of a process, as another process reads them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatisticsSnapshot {
    /// The program's name, of at most 16 bytes.
    pub program: String,
    /// The time stamp counter at the start.
    pub start_ticks: u64,
    /// The start in nanoseconds of CLOCK_BOOTTIME.
    pub start_ns: u64,
    /// The end in nanoseconds of CLOCK_BOOTTIME; `None` if the process runs, or ended without its destructors.
    pub end_ns: Option<u64>,
    /// Buckets with calls, in ascending order of their sizes.
    pub buckets: Vec<Bucket>,
}

/// The calls in a range of sizes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// Its place: it begins at this many times [`BUCKET_BYTES`].
    pub index: usize,
    /// Calls by [`Group`] and [`Operation`].
    pub calls: [[u64; OPERATIONS]; GROUPS],
    /// Time of these calls, in ticks.
    pub ticks: [[u64; OPERATIONS]; GROUPS],
    /// Bytes by [`Group`].
    pub bytes: [u64; GROUPS],
    /// Parts that the device left, by [`Failure`].
    pub failures: [u64; FAILURES],
}

impl StatisticsSnapshot {
    /// Reads words that any process may have written; `None` if they are no statistics of this version.
    #[must_use]
    pub fn read(words: &[u64]) -> Option<StatisticsSnapshot> {
        if words.len() < WORDS || words[0] != MAGIC || words[1] != VERSION {
            return None;
        }
        let name: Vec<u8> = words[5..7].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let buckets = words[HEADER..WORDS].chunks_exact(BUCKET).enumerate().map(|(index, words)| {
            let cells = |start: usize| {
                std::array::from_fn(|group| {
                    std::array::from_fn(|operation| words[start + group * OPERATIONS + operation])
                })
            };
            Bucket {
                index,
                calls: cells(0),
                ticks: cells(CELLS),
                bytes: std::array::from_fn(|group| words[2 * CELLS + group]),
                failures: std::array::from_fn(|failure| words[2 * CELLS + GROUPS + failure]),
            }
        });
        Some(StatisticsSnapshot {
            program: String::from_utf8_lossy(name).into_owned(),
            start_ticks: words[2],
            start_ns: words[3],
            end_ns: Some(words[4]).filter(|end| *end > 0),
            buckets: buckets.filter(|bucket| bucket.calls.iter().flatten().any(|calls| *calls > 0)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<AtomicU64> {
        (0..WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    fn read(words: &[AtomicU64]) -> Option<StatisticsSnapshot> {
        StatisticsSnapshot::read(&words.iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>())
    }

    #[test]
    fn calls_are_found_in_the_bucket_of_their_requested_size() {
        let words = words();
        assert_eq!(read(&words), None);
        let statistics = Statistics::begin(&words, b"redis-server", 100, 200).unwrap();
        statistics.count(Operation::Copy, 4095, Group::CLibrary, 4095, 7);
        statistics.count(Operation::Copy, 4096, Group::Device, 4096, 8);
        statistics.count(Operation::Set, BUCKETS * BUCKET_BYTES + 1, Group::DeviceFailed, 5, 9);
        statistics.count(Operation::Compare, (BUCKETS - 1) * BUCKET_BYTES, Group::CLibrary, 6, 10);
        statistics.count_failure(BUCKETS * BUCKET_BYTES + 1, Failure::PageFault);
        let found = read(&words).unwrap();
        assert_eq!((found.program.as_str(), found.start_ticks, found.start_ns), ("redis-server", 100, 200));
        let [first, second, last] = &found.buckets[..] else { panic!("{found:?}") };
        assert_eq!((first.index, first.calls, first.bytes), (0, [[0, 1, 0, 0], [0; 4], [0; 4]], [4095, 0, 0]));
        assert_eq!((second.index, second.ticks, second.bytes), (1, [[0; 4], [0, 8, 0, 0], [0; 4]], [0, 4096, 0]));
        assert_eq!((last.index, last.calls), (BUCKETS - 1, [[0, 0, 0, 1], [0; 4], [1, 0, 0, 0]]));
        assert_eq!((last.bytes, last.failures, found.end_ns), ([6, 0, 5], [0, 1, 0], None));
        statistics.end(300);
        assert_eq!(read(&words).unwrap().end_ns, Some(300));
    }

    #[test]
    fn other_words_are_no_statistics() {
        let words = words();
        Statistics::begin(&words, b"a name that is longer than sixteen bytes", 1, 1).unwrap();
        assert_eq!(read(&words).unwrap().program, "a name that is l");
        assert_eq!(read(&words[..WORDS - 1]), None);
        assert!(Statistics::begin(&words[1..], b"", 1, 1).is_none());
        words[1].store(VERSION + 1, Ordering::Relaxed);
        assert_eq!(read(&words), None);
    }
}
