//! What a thread has added up so far, by group; and what all of them come to.

use super::column::{Integer, Values, each_kind};
use super::fold::{Buffer, FEW_GROUPS, Run, Scratch};
use super::kernel::InputError;
use super::prepare::{Digit, Fold, Query};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

/// Groups that may be thinkable for each to have its place from the beginning. Source: assumed; 1 MiB for each aggregate of a thread.
const DIRECT: u128 = 1 << 16;

/// Aggregates of the rows so far. A thread has one, and in the end they are [merged](Partial::merge).
#[derive(Clone, Debug)]
pub struct Partial {
    query: Query,
    pub(super) scratch: Scratch,
    pub(super) groups: Groups,
    /// Rows of each group.
    counts: Vec<u64>,
    /// For each aggregate that is not a count: its value for each group.
    states: Vec<Vec<i128>>,
}

/// Which groups there are, and where their values are.
#[derive(Clone, Debug)]
pub(super) enum Groups {
    /// All rows are one.
    One,
    /// Each that is thinkable has its place.
    Direct { keys: Keys },
    /// In the order in which they were met.
    Hashed(Hashed),
}

/// The numbers of groups: the values of their columns, less the least one, as digits.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    digits: Vec<Digit>,
    count: usize,
}

impl Keys {
    pub(super) fn are_few(&self) -> bool {
        self.count <= FEW_GROUPS
    }

    /// The group's number of each row. False if a value is none of its column's.
    pub(super) fn number(&self, block: &[Values<'_>], rows: &[u16], slots: &mut [u32]) -> bool {
        slots.fill(0);
        for &Digit { input, least, size } in &self.digits {
            // Cannot be cut off: all of them together are at most DIRECT.
            #[allow(clippy::cast_possible_truncation, reason = "at most DIRECT")]
            let size = size as u32;
            each_kind!(block[input], values => digit(values, rows, least, size, slots));
        }
        slots.iter().fold(0, |most, &slot| slot.max(most)) < u32::try_from(self.count).unwrap_or(u32::MAX)
    }
}

/// Groups by their number, of which there are too many thinkable ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Hashed {
    slots: HashMap<u128, u32>,
    /// By place.
    keys: Vec<u128>,
    scratch: Vec<u128>,
}

impl Hashed {
    /// Where each row's group is; those that are new get a place.
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

/// One more digit for each row's number.
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
            // Cannot be cut off: a plan with more groups, and rows enough for them, is refused.
            *room.insert(u32::try_from(keys.len() - 1).unwrap_or(u32::MAX))
        }
    }
}

impl Query {
    /// Nothing added up yet.
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

/// What a group has before its first row.
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
    /// It was made by this query, or a clone of it.
    pub(super) fn is_of(&self, query: &Query) -> bool {
        self.query.is(query)
    }

    /// For all groups there are by now.
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

    /// Adds what was computed of a block.
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

    /// Adds what another thread has.
    ///
    /// # Errors
    /// [`InputError::Foreign`] if that is of another query.
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

    /// What it comes to.
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
                // Cannot be cut off: a digit is the difference of two values.
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

/// Puts what each run comes to together with what its group has.
#[inline]
fn gather(fold: &Fold, runs: &[Run], state: &mut [i128], of: impl Fn(Range<usize>) -> i128) {
    for (group, rows) in ranges(runs) {
        put_together(fold, &mut state[group], of(rows));
    }
}

/// Each run's group and rows.
#[inline]
fn ranges(runs: &[Run]) -> impl Iterator<Item = (usize, Range<usize>)> {
    runs.iter().scan(0, |start, run| {
        let rows = *start..run.end;
        *start = run.end;
        Some((run.group, rows))
    })
}

/// What a query comes to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The columns of the groups.
    pub keys: Vec<String>,
    /// The aggregates' headings.
    pub values: Vec<String>,
    /// One for each group that has rows, by their keys; exactly one if nothing was grouped.
    pub rows: Vec<Row>,
}

/// A group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The values that make it.
    pub keys: Vec<i64>,
    /// Its aggregates; nothing for those of no rows that are not a count.
    pub values: Vec<Option<i128>>,
}
