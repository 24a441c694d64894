//! The partial result of a thread, by group, and the answer of all threads.

use super::column::{Integer, Values, each_kind};
use super::error::InputError;
use super::prepare::{Digit, Fold, Query};
use super::scratch::{Buffer, FEW_GROUPS, Run, Scratch};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

/// The number of possible groups up to which each has a slot from the start. Source: assumed; 1 MiB for each aggregate
/// of a thread.
const DIRECT: u128 = 1 << 16;

/// The aggregates of the rows so far. Each thread has one; in the end they are [merged](Partial::merge).
#[derive(Clone, Debug)]
pub struct Partial {
    query: Query,
    pub(super) scratch: Scratch,
    pub(super) groups: Groups,
    /// The number of rows of each group.
    counts: Vec<u64>,
    /// The value of each group, for each aggregate except counts.
    states: Vec<Vec<i128>>,
}

/// The groups, and the slots of their values.
#[derive(Clone, Debug)]
pub(super) enum Groups {
    /// All rows are one group.
    One,
    /// Each possible group has a slot.
    Direct { keys: Keys },
    /// Slots in the order in which the groups were met.
    Hashed(Hashed),
}

/// The numbers of groups: the differences of their columns' values from the least value, as digits.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    digits: Vec<Digit>,
    count: usize,
}

impl Keys {
    pub(super) fn are_few(&self) -> bool {
        self.count <= FEW_GROUPS
    }

    /// Computes the group number of each row. Returns false if a value is not in its column.
    pub(super) fn number(&self, block: &[Values<'_>], rows: &[u16], slots: &mut [u32]) -> bool {
        slots.fill(0);
        for &Digit { input, least, size } in &self.digits {
            // Cannot be truncated: the product of all sizes is at most DIRECT.
            #[allow(clippy::cast_possible_truncation, reason = "at most DIRECT")]
            let size = size as u32;
            each_kind!(block[input], values => digit(values, rows, least, size, slots));
        }
        slots.iter().fold(0, |most, &slot| slot.max(most)) < u32::try_from(self.count).unwrap_or(u32::MAX)
    }
}

/// Groups by number, if too many are possible.
#[derive(Clone, Debug, Default)]
pub(super) struct Hashed {
    slots: HashMap<u128, u32>,
    /// The number of the group in each slot.
    keys: Vec<u128>,
    scratch: Vec<u128>,
}

impl Hashed {
    /// Finds the slot of each row's group; new groups get a slot.
    pub(super) fn number(&mut self, digits: &[Digit], block: &[Values<'_>], rows: &[u16], slots: &mut [u32]) {
        self.scratch.clear();
        self.scratch.resize(rows.len(), 0);
        for &Digit { input, least, size } in digits {
            each_kind!(block[input], values => long_digit(values, rows, least, size, &mut self.scratch));
        }
        for (slot, &key) in slots.iter_mut().zip(&self.scratch) {
            *slot = place(&mut self.slots, &mut self.keys, key);
        }
    }
}

/// Appends a digit to each row's number.
fn digit<T: Integer>(values: &[T], rows: &[u16], least: i64, size: u32, slots: &mut [u32]) {
    for (slot, &row) in slots.iter_mut().zip(rows) {
        let digit: i64 = values[usize::from(row)].into();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "less than the size, or no value of the column"
        )]
        let digit = digit.wrapping_sub(least) as u32;
        *slot = slot.wrapping_mul(size).wrapping_add(digit);
    }
}

fn long_digit<T: Integer>(values: &[T], rows: &[u16], least: i64, size: u128, keys: &mut [u128]) {
    for (key, &row) in keys.iter_mut().zip(rows) {
        let digit: i64 = values[usize::from(row)].into();
        *key = key.wrapping_mul(size).wrapping_add(digit.abs_diff(least).into());
    }
}

fn place(slots: &mut HashMap<u128, u32>, keys: &mut Vec<u128>, key: u128) -> u32 {
    match slots.entry(key) {
        Entry::Occupied(there) => *there.get(),
        Entry::Vacant(room) => {
            keys.push(key);
            // Cannot be truncated: a plan with more groups, and rows enough for them, is refused.
            *room.insert(u32::try_from(keys.len() - 1).unwrap_or(u32::MAX))
        }
    }
}

impl Query {
    /// Creates an empty partial result.
    #[must_use]
    pub fn partial(&self) -> Partial {
        let groups = match self.groups() {
            _ if self.digits().is_empty() => Groups::One,
            // At most DIRECT.
            count if count <= DIRECT => {
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                Groups::Direct { keys: Keys { digits: self.digits().to_vec(), count } }
            }
            _ => Groups::Hashed(Hashed::default()),
        };
        let scratch = Scratch::new(self.steps());
        let states = vec![Vec::new(); self.folds().len()];
        let mut partial = Partial { query: self.clone(), scratch, groups, counts: Vec::new(), states };
        partial.make_room();
        partial
    }
}

/// The value of a group before its first row.
fn nothing(fold: &Fold) -> i128 {
    match fold {
        Fold::Count | Fold::Sum { .. } => 0,
        Fold::Min(_) => i128::MAX,
        Fold::Max(_) => i128::MIN,
    }
}

fn put_together(fold: &Fold, into: &mut i128, value: i128) {
    *into = match fold {
        // Wraps only if the values were not the column's.
        Fold::Count | Fold::Sum { .. } => into.wrapping_add(value),
        Fold::Min(_) => value.min(*into),
        Fold::Max(_) => value.max(*into),
    };
}

impl Partial {
    /// Returns whether it was created by this query, or a clone of it.
    pub(super) fn is_of(&self, query: &Query) -> bool {
        self.query.is(query)
    }

    /// Makes room for all groups so far.
    fn make_room(&mut self) {
        let count = match &self.groups {
            Groups::One => 1,
            Groups::Direct { keys } => keys.count,
            Groups::Hashed(hashed) => hashed.keys.len(),
        };
        self.counts.resize(count, 0);
        for (fold, state) in self.query.folds().iter().zip(&mut self.states) {
            if *fold != Fold::Count {
                state.resize(count, nothing(fold));
            }
        }
    }

    /// Adds the results of a block.
    pub(super) fn add(&mut self) {
        self.make_room();
        let Partial { query, scratch, counts, states, .. } = self;
        let runs = &scratch.runs;
        for (group, rows) in ranges(runs) {
            counts[group] += rows.len() as u64;
        }
        for (fold, state) in query.folds().iter().zip(states) {
            match *fold {
                Fold::Count => {}
                Fold::Sum { step, plain } => match &scratch.buffers[step] {
                    Buffer::Narrow(values) if plain => gather(fold, runs, state, |rows| {
                        values[rows].iter().fold(0_i64, |sum, &value| sum.wrapping_add(value)).into()
                    }),
                    values => {
                        gather(fold, runs, state, |rows| rows.fold(0_i128, |sum, at| sum.wrapping_add(values.get(at))))
                    }
                },
                Fold::Min(step) => match &scratch.buffers[step] {
                    Buffer::Narrow(values) => gather(fold, runs, state, |rows| {
                        values[rows].iter().fold(i64::MAX, |least, &value| value.min(least)).into()
                    }),
                    Buffer::Wide(values) => gather(fold, runs, state, |rows| {
                        values[rows].iter().fold(i128::MAX, |least, &value| value.min(least))
                    }),
                },
                Fold::Max(step) => match &scratch.buffers[step] {
                    Buffer::Narrow(values) => gather(fold, runs, state, |rows| {
                        values[rows].iter().fold(i64::MIN, |most, &value| value.max(most)).into()
                    }),
                    Buffer::Wide(values) => gather(fold, runs, state, |rows| {
                        values[rows].iter().fold(i128::MIN, |most, &value| value.max(most))
                    }),
                },
            }
        }
    }

    /// Adds another thread's partial result.
    ///
    /// # Errors
    /// [`InputError::Foreign`] if it belongs to another query.
    pub fn merge(&mut self, other: &Partial) -> Result<(), InputError> {
        if !self.is_of(&other.query) {
            return Err(InputError::Foreign);
        }
        let mut places: Vec<usize> = (0..other.counts.len()).collect();
        if let (Groups::Hashed(mine), Groups::Hashed(theirs)) = (&mut self.groups, &other.groups) {
            for (at, &key) in places.iter_mut().zip(&theirs.keys) {
                *at = place(&mut mine.slots, &mut mine.keys, key) as usize;
            }
        }
        self.make_room();
        for (&at, count) in places.iter().zip(&other.counts) {
            self.counts[at] += count;
        }
        for (fold, (mine, theirs)) in self.query.folds().iter().zip(self.states.iter_mut().zip(&other.states)) {
            for (&at, &value) in places.iter().zip(theirs) {
                put_together(fold, &mut mine[at], value);
            }
        }
        Ok(())
    }

    /// Returns the answer so far.
    #[must_use]
    pub fn answer(&self) -> Answer {
        let plan = self.query.plan();
        let there = |at: &usize| self.counts[*at] > 0 || matches!(self.groups, Groups::One);
        let mut rows: Vec<Row> = (0..self.counts.len()).filter(there).map(|at| self.row(at)).collect();
        rows.sort_unstable_by(|one, other| one.keys.cmp(&other.keys));
        let values = plan.aggregates.iter().map(ToString::to_string).collect();
        Answer { keys: plan.group_by.clone(), values, rows }
    }

    fn row(&self, at: usize) -> Row {
        let mut number = match &self.groups {
            Groups::One | Groups::Direct { .. } => at as u128,
            Groups::Hashed(hashed) => hashed.keys[at],
        };
        let mut keys: Vec<i64> = self
            .query
            .digits()
            .iter()
            .rev()
            .map(|digit| {
                let value = number % digit.size;
                number /= digit.size;
                // Cannot be truncated: a digit is the difference of two values.
                digit.least.wrapping_add_unsigned(u64::try_from(value).unwrap_or(u64::MAX))
            })
            .collect();
        keys.reverse();
        let count = self.counts[at];
        let value = |(fold, state): (&Fold, &Vec<i128>)| match fold {
            Fold::Count => Some(count.into()),
            _ if count == 0 => None,
            _ => Some(state[at]),
        };
        Row { keys, values: self.query.folds().iter().zip(&self.states).map(value).collect() }
    }
}

/// Combines the result of each run with its group's value.
#[inline]
fn gather(fold: &Fold, runs: &[Run], state: &mut [i128], of: impl Fn(Range<usize>) -> i128) {
    for (group, rows) in ranges(runs) {
        put_together(fold, &mut state[group], of(rows));
    }
}

/// Returns the group and the rows of each run.
#[inline]
fn ranges(runs: &[Run]) -> impl Iterator<Item = (usize, Range<usize>)> {
    runs.iter().scan(0, |start, run| {
        let rows = *start..run.end;
        *start = run.end;
        Some((run.group, rows))
    })
}

/// The answer of a query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The names of the group columns.
    pub keys: Vec<String>,
    /// The headings of the aggregates.
    pub values: Vec<String>,
    /// One row for each group with rows, sorted by keys; exactly one without grouping.
    pub rows: Vec<Row>,
}

/// The result of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The values of the group columns.
    pub keys: Vec<i64>,
    /// Its aggregates; none for aggregates of no rows, except counts.
    pub values: Vec<Option<i128>>,
}
