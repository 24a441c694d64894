//! Sets of metrics in shared memory, which other processes read.
//!
//! ```text
//! words   content (64 bits each, in the processor's byte order)
//! 0–7     magic, version, bytes of the table, values of a set, sets, words of a set, sequence number, zero
//! 8–      table: UTF-8, one line for each value: kind, unit, name, label, label's value, help, separated by tabs
//! …       sets, each at a multiple of 16 words:
//!           word 0      0 if the set is free, otherwise 1 + bytes of its labels
//!           words 1–15  labels: UTF-8
//!           words 16–   values, in the order of the table
//! ```
//!
//! Values are counted without a lock. Claiming and freeing a set is guarded by the [sequence](crate::seqlock) number,
//! so that a reader never attributes the values of one owner to the labels of another.

use crate::metric::{Kind, Unit};
use crate::seqlock;
use crate::set::{MetricSet, Position};
use crate::sync::{AtomicU64, Ordering};
use std::marker::PhantomData;

const MAGIC: u64 = u64::from_ne_bytes(*b"telphmtr");
const VERSION: u64 = 1;
/// Words of the header.
const HEADER: usize = 8;
/// The word of the header that is the sequence number. It is odd while a set is claimed, merged or freed. A reader that
/// copies the region compares it before and after.
pub const SEQUENCE_WORD: usize = 6;
/// Sets begin at a multiple of this, so that two of them share no cache line. Source: 128 bytes; x86 prefetches lines
/// in pairs.
const LINE: usize = 16;
/// Words before the values of a set.
const HEAD: usize = 16;
/// The most bytes of a set's labels.
const LABELS: usize = (HEAD - 1) * 8;
/// The most bytes of a table, and values of a set. Source: chosen, some ten times what a crate has today. They bound
/// what a reader allocates for a region that a hostile process wrote.
const MOST_TABLE: usize = 1 << 18;
const MOST_VALUES: usize = 1 << 12;

/// Why words are no region of metrics, or a set cannot be claimed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// There are fewer words than the region needs.
    #[error("the region has {have} words and needs {needed}")]
    Short {
        /// Its words.
        have: usize,
        /// The words that it needs.
        needed: usize,
    },
    /// It does not begin with the magic number.
    #[error("the region does not begin with the magic number of metrics")]
    Magic,
    /// Another version of the layout.
    #[error("the region has version {0} of the layout; this program reads version {VERSION}")]
    Version(u64),
    /// The header or the table contradicts the layout.
    #[error("the region's {0} is damaged")]
    Damaged(&'static str),
    /// The region has the metrics of another program, or of another version of this one.
    #[error("the region describes other metrics than this program counts")]
    OtherMetrics,
    /// The labels are longer than the room for them.
    #[error("the labels have {0} bytes; a set has room for {LABELS}")]
    Labels(usize),
    /// Every set has an owner.
    #[error("all {0} sets of the region are in use")]
    Full(usize),
    /// Another process stays in the middle of a change; it may have been killed there.
    #[error("another process stays in the middle of a change of the region")]
    Busy,
}

/// The places of a region's parts; valid for the words that it was checked with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layout {
    table_bytes: usize,
    values: usize,
    sets: usize,
}

impl Layout {
    fn of<S: MetricSet>(sets: usize) -> Layout {
        Layout { table_bytes: table::<S>().len(), values: S::WORDS, sets }
    }

    /// The first word of the first set.
    fn first(self) -> usize {
        (HEADER + self.table_bytes.div_ceil(8)).next_multiple_of(LINE)
    }

    /// Words of a set.
    fn set_words(self) -> usize {
        (HEAD + self.values).next_multiple_of(LINE)
    }

    /// Words of the region; `None` if the number is too large.
    fn words(self) -> Option<usize> {
        self.set_words().checked_mul(self.sets)?.checked_add(self.first())
    }

    fn check_len(self, have: usize) -> Result<Layout, RegionError> {
        match self.words() {
            Some(needed) if needed <= have => Ok(self),
            needed => Err(RegionError::Short { have, needed: needed.unwrap_or(usize::MAX) }),
        }
    }

    /// Reads and checks a header that anyone may have written.
    fn read(words: &[AtomicU64]) -> Result<Layout, RegionError> {
        if words.len() < HEADER {
            return Err(RegionError::Short { have: words.len(), needed: HEADER });
        }
        // Acquire: pairs with the Release in `create`, which writes the magic number last.
        if words[0].load(Ordering::Acquire) != MAGIC {
            return Err(RegionError::Magic);
        }
        // Relaxed: read once, and checked before use.
        let [version, table_bytes, values, sets, set_words] =
            std::array::from_fn(|at| words[1 + at].load(Ordering::Relaxed));
        if version != VERSION {
            return Err(RegionError::Version(version));
        }
        let fits = |number: u64, most| usize::try_from(number).ok().filter(|number| *number <= most);
        let damaged = RegionError::Damaged("header");
        let (Some(table_bytes), Some(values), Some(sets)) =
            (fits(table_bytes, MOST_TABLE), fits(values, MOST_VALUES), fits(sets, usize::MAX))
        else {
            return Err(damaged);
        };
        let layout = Layout { table_bytes, values, sets };
        if set_words != layout.set_words() as u64 {
            return Err(damaged);
        }
        layout.check_len(words.len())
    }

    fn table(self, words: &[AtomicU64]) -> Vec<u8> {
        bytes_of(&words[HEADER..], self.table_bytes)
    }

    fn set(self, words: &[AtomicU64], index: usize) -> (&[AtomicU64], &[AtomicU64]) {
        let start = self.first() + index * self.set_words();
        words[start..start + HEAD + self.values].split_at(HEAD)
    }
}

/// Returns the table of a set's metrics.
fn table<S: MetricSet>() -> String {
    let row = |metric: &crate::Metric| {
        let (label, value) = metric.label.unwrap_or(("", ""));
        [metric.kind.word(), metric.unit.word(), metric.name, label, value, metric.help].join("\t") + "\n"
    };
    S::METRICS.iter().map(row).collect()
}

fn put_bytes(words: &[AtomicU64], bytes: &[u8]) {
    for (word, part) in words.iter().zip(bytes.chunks(8)) {
        let mut eight = [0; 8];
        eight[..part.len()].copy_from_slice(part);
        // Relaxed: published by the magic number or the sequence lock.
        word.store(u64::from_ne_bytes(eight), Ordering::Relaxed);
    }
}

fn bytes_of(words: &[AtomicU64], len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        words.iter().take(len.div_ceil(8)).flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
    bytes.truncate(len);
    bytes
}

/// A region of shared memory with sets of the metrics `S`, for the processes that count.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a, S> {
    words: &'a [AtomicU64],
    layout: Layout,
    set: PhantomData<fn() -> S>,
}

/// A claimed set of a [`Region`]. Dropping it leaves the values in the region, so that totals do not shrink.
#[derive(Debug)]
pub struct RegionSet<'a, S> {
    words: &'a [AtomicU64],
    head: &'a [AtomicU64],
    values: &'a [AtomicU64],
    set: PhantomData<fn() -> S>,
}

impl<'a, S: MetricSet> Region<'a, S> {
    /// Returns the words that a region with this number of sets needs.
    ///
    /// # Panics
    /// If the region would be larger than the address space.
    #[must_use]
    pub fn words(sets: usize) -> usize {
        Layout::of::<S>(sets).words().expect("a region that fits in memory")
    }

    /// Creates a region in these words, which are zero or the words of an old region that no process uses.
    ///
    /// # Errors
    /// If there are too few words.
    pub fn create(words: &'a [AtomicU64], sets: usize) -> Result<Self, RegionError> {
        let layout = Layout::of::<S>(sets).check_len(words.len())?;
        // Relaxed: published by the magic number.
        words[0].store(0, Ordering::Relaxed);
        let header = [VERSION, layout.table_bytes as u64, layout.values as u64, sets as u64, layout.set_words() as u64];
        for (word, value) in words[1..HEADER].iter().zip(header.into_iter().chain([0, 0])) {
            word.store(value, Ordering::Relaxed);
        }
        put_bytes(&words[HEADER..], table::<S>().as_bytes());
        for index in 0..sets {
            let (head, values) = layout.set(words, index);
            head.iter().chain(values).for_each(|word| word.store(0, Ordering::Relaxed));
        }
        // Release: a process that sees it sees the whole region.
        words[0].store(MAGIC, Ordering::Release);
        Ok(Region { words, layout, set: PhantomData })
    }

    /// Opens a region that another process created, to count in it.
    ///
    /// # Errors
    /// If the words are no region, or a region of other metrics.
    pub fn open(words: &'a [AtomicU64]) -> Result<Self, RegionError> {
        let layout = Layout::read(words)?;
        if layout != Layout::of::<S>(layout.sets) || layout.table(words) != table::<S>().as_bytes() {
            return Err(RegionError::OtherMetrics);
        }
        Ok(Region { words, layout, set: PhantomData })
    }

    /// Claims a free set. The labels name its owner, as in Prometheus: `wq="wq0.1",pid="4711"`.
    ///
    /// # Errors
    /// If the labels are too long or all sets are in use. [`RegionError::Busy`] if a process was killed during a claim.
    pub fn claim(&self, labels: &str) -> Result<RegionSet<'a, S>, RegionError> {
        let mut sets = self.claim_many(labels, 1)?;
        sets.pop().ok_or(RegionError::Full(self.layout.sets))
    }

    /// Claims several free sets with the same labels, or none.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub(crate) fn claim_many(&self, labels: &str, count: usize) -> Result<Vec<RegionSet<'a, S>>, RegionError> {
        if labels.len() > LABELS {
            return Err(RegionError::Labels(labels.len()));
        }
        let Region { words, layout, .. } = *self;
        let claimed = seqlock::write_among_others(&words[SEQUENCE_WORD], || {
            let all = (0..layout.sets).map(|index| layout.set(words, index));
            let free: Vec<_> = all.filter(|(head, _)| is_free(head)).take(count).collect();
            if free.len() < count {
                return None;
            }
            let claim = |(head, values): (&'a [AtomicU64], &'a [AtomicU64])| {
                // Relaxed: ordered by the sequence lock.
                values.iter().for_each(|word| word.store(0, Ordering::Relaxed));
                put_bytes(&head[1..], labels.as_bytes());
                head[0].store(1 + labels.len() as u64, Ordering::Relaxed);
                RegionSet { words, head, values, set: PhantomData }
            };
            Some(free.into_iter().map(claim).collect())
        });
        claimed.ok_or(RegionError::Busy)?.ok_or(RegionError::Full(layout.sets))
    }
}

fn is_free(head: &[AtomicU64]) -> bool {
    // Relaxed: ordered by the sequence lock.
    head[0].load(Ordering::Relaxed) == 0
}

impl<S: MetricSet> RegionSet<'_, S> {
    /// Adds to a value; other threads may add at the same time.
    #[inline]
    pub fn add(&self, position: Position<S>, more: u64) {
        // Relaxed: a counter publishes no other data.
        self.values[position.index()].fetch_add(more, Ordering::Relaxed);
    }

    /// Adds to a value that only this thread changes, without an atomic addition.
    #[inline]
    pub fn add_alone(&self, position: Position<S>, more: u64) {
        let value = &self.values[position.index()];
        value.store(value.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// Returns the value of a word.
    pub(crate) fn word(&self, at: usize) -> u64 {
        // Relaxed: a counter publishes no other data.
        self.values[at].load(Ordering::Relaxed)
    }

    /// Replaces all values. For a thread that counts in a plain `S`.
    pub fn store(&self, values: &S) {
        let mut words = self.values.iter();
        values.each(&mut |value| {
            if let Some(word) = words.next() {
                word.store(value, Ordering::Relaxed);
            }
        });
    }

    /// Adds its values to another set and frees it. A reader counts them once.
    ///
    /// # Errors
    /// [`RegionError::Busy`] if a process was killed during a claim; nothing changes.
    pub fn merge_into(self, other: &RegionSet<'_, S>) -> Result<(), RegionError> {
        let moved = seqlock::write_among_others(&self.words[SEQUENCE_WORD], || {
            for (from, to) in self.values.iter().zip(other.values) {
                // Relaxed: ordered by the sequence lock; threads of the other set may add meanwhile.
                to.fetch_add(from.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            }
            self.head[0].store(0, Ordering::Relaxed);
        });
        moved.ok_or(RegionError::Busy)
    }
}

/// The description of a value as it is in a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// Its kind.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// Its name.
    pub name: String,
    /// Its label and the label's value.
    pub label: Option<(String, String)>,
    /// What it counts.
    pub help: String,
}

impl From<&crate::Metric> for Description {
    fn from(metric: &crate::Metric) -> Description {
        let crate::Metric { name, label, kind, unit, help, .. } = *metric;
        let label = label.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Description { kind, unit, name: name.to_owned(), label, help: help.to_owned() }
    }
}

impl Description {
    /// Returns the rule that the description breaks, see [`Metric::broken_rule`](crate::Metric::broken_rule). A hostile
    /// process may have written it.
    #[must_use]
    pub fn broken_rule(&self) -> Option<&'static str> {
        let label = self.label.as_ref().map(|(key, value)| (key.as_str(), value.as_str()));
        crate::metric::broken_rule(&self.name, self.kind, self.unit, label, &self.help)
    }

    fn from_row(row: &str) -> Option<Description> {
        let mut parts = row.split('\t');
        let mut part = || parts.next();
        let (kind, unit) = (Kind::from_word(part()?)?, Unit::from_word(part()?)?);
        let [name, label, value, help] = [part()?, part()?, part()?, part()?].map(str::to_owned);
        let label = (!label.is_empty()).then_some((label, value));
        (part().is_none() && !name.is_empty()).then_some(Description { kind, unit, name, label, help })
    }
}

/// Reads a region that any process may have written. It trusts nothing in it and never panics.
#[derive(Clone, Debug)]
pub struct RegionReader<'a> {
    words: &'a [AtomicU64],
    layout: Layout,
    metrics: Vec<Description>,
}

/// The values of one set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Values {
    /// The labels of its owner. They may have any content.
    pub labels: String,
    /// The values, in the order of [`RegionReader::metrics`].
    pub values: Vec<u64>,
}

/// The sets of a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionSnapshot {
    /// The sets in use.
    pub sets: Vec<Values>,
    /// False if a process stays in the middle of a claim or a merge, or claims all the time; it may have been killed
    /// there. A set may then be missing or have the labels of another.
    pub settled: bool,
}

impl<'a> RegionReader<'a> {
    /// Checks the header and reads the table.
    ///
    /// # Errors
    /// If the words are no region of this version.
    pub fn open(words: &'a [AtomicU64]) -> Result<Self, RegionError> {
        let layout = Layout::read(words)?;
        let table = String::from_utf8(layout.table(words)).map_err(|_| RegionError::Damaged("table"))?;
        let metrics: Option<Vec<Description>> = table.lines().map(Description::from_row).collect();
        match metrics {
            Some(metrics) if metrics.len() == layout.values => Ok(RegionReader { words, layout, metrics }),
            _ => Err(RegionError::Damaged("table")),
        }
    }

    /// The descriptions of the values.
    #[must_use]
    pub fn metrics(&self) -> &[Description] {
        &self.metrics
    }

    /// Reads all sets in use. Writers are never stopped.
    ///
    /// Each value is right for some moment during the call; two values may be of different moments. Sets and labels are
    /// those of one moment, if the snapshot is [settled](RegionSnapshot::settled).
    #[must_use]
    pub fn snapshot(&self) -> RegionSnapshot {
        let RegionReader { words, layout, .. } = self;
        let (sets, settled) = seqlock::read(&words[SEQUENCE_WORD], || {
            let sets = (0..layout.sets).map(|index| layout.set(words, index));
            let values = |(head, values): (&[AtomicU64], &[AtomicU64])| {
                // Relaxed: ordered by the sequence lock.
                let bytes = usize::try_from(head[0].load(Ordering::Relaxed).checked_sub(1)?).unwrap_or(usize::MAX);
                let labels = String::from_utf8_lossy(&bytes_of(&head[1..], bytes.min(LABELS))).into_owned();
                Some(Values { labels, values: values.iter().map(|word| word.load(Ordering::Relaxed)).collect() })
            };
            sets.filter_map(values).collect()
        });
        RegionSnapshot { sets, settled }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
