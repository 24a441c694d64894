//! The partial result of a thread, by group, and the answer of all threads.

use super::column::{Integer, Values, each_kind};
use super::error::InputError;
use super::float_sum::LIMBS;
use super::prepare::{Digit, Query};
use super::program::{Fold, Form, Output, Reading, average, rounded};
use super::scratch::{Buffer, FEW_GROUPS, Run, Scratch};
use super::value::{Double, Value};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

/// The number of possible groups up to which each has a slot from the start. Source: assumed; 1 MiB for each aggregate
/// of a thread.
const DIRECT: u128 = 1 << 16;

/// The number of possible groups up to which a block's rows are compared with each group, instead of sorted by group.
/// Source: measured; `telpher bench query` with ten possible groups takes a quarter of the time when rows are sorted.
const COMPARED: usize = 8;

/// The aggregates of the rows so far. Each thread has one; in the end they are [merged](Partial::merge).
#[derive(Clone, Debug)]
pub struct Partial {
    query: Query,
    pub(super) scratch: Scratch,
    pub(super) groups: Groups,
    /// The number of rows of each group.
    counts: Vec<u64>,
    /// The values of each group, for each fold except counts: the limbs of a sum of floating-point numbers, otherwise
    /// one.
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
    /// The groups are so few, and the folds so simple, that every row is compared with every group.
    pub(super) are_compared: bool,
}

impl Keys {
    pub(super) fn are_few(&self) -> bool {
        self.count <= FEW_GROUPS
    }

    /// Computes the group number of each row. Returns false if a value is not in its column.
    pub(super) fn number(&self, block: &[Values<'_>], rows: &[u16], all: bool, slots: &mut [u32]) -> bool {
        slots.fill(0);
        for &Digit { input, least, size, .. } in &self.digits {
            // Cannot be truncated: the product of all sizes is at most DIRECT.
            #[allow(clippy::cast_possible_truncation, reason = "at most DIRECT")]
            let size = size as u32;
            each_kind!(block[input], values => digit(values, rows, all, least, size, slots));
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
        for &Digit { input, least, size, .. } in digits {
            each_kind!(block[input], values => long_digit(values, rows, least, size, &mut self.scratch));
        }
        for (slot, &key) in slots.iter_mut().zip(&self.scratch) {
            *slot = place(&mut self.slots, &mut self.keys, key);
        }
    }
}

/// Appends a digit to each row's number. `all` means that every row is selected, in order.
#[inline]
fn digit<T: Integer>(values: &[T], rows: &[u16], all: bool, least: i64, size: u32, slots: &mut [u32]) {
    let append = |slot: &mut u32, value: T| {
        let digit: i64 = value.into();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "less than the size, or no value of the column"
        )]
        let digit = digit.wrapping_sub(least) as u32;
        *slot = slot.wrapping_mul(size).wrapping_add(digit);
    };
    if all {
        for (slot, &value) in slots.iter_mut().zip(values) {
            append(slot, value);
        }
    } else {
        for (slot, &row) in slots.iter_mut().zip(rows) {
            append(slot, values[usize::from(row)]);
        }
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
                let are_compared = count <= COMPARED && self.folds().iter().all(|fold| self.is_compared(fold));
                Groups::Direct { keys: Keys { digits: self.digits().to_vec(), count, are_compared } }
            }
            _ => Groups::Hashed(Hashed::default()),
        };
        let scratch = Scratch::new(self.steps());
        let states = vec![Vec::new(); self.folds().len()];
        let mut partial = Partial { query: self.clone(), scratch, groups, counts: Vec::new(), states };
        partial.make_room();
        partial
    }

    /// Returns whether a fold only counts rows or compares short values.
    fn is_compared(&self, fold: &Fold) -> bool {
        match *fold {
            Fold::Count => true,
            Fold::Min(step) | Fold::Max(step) => self.steps()[step].form == Form::Short,
            Fold::Sum { .. } | Fold::FloatSum { .. } => false,
        }
    }
}

/// The number of a group's values in the state of a fold.
fn width(fold: &Fold) -> usize {
    match fold {
        Fold::Count => 0,
        Fold::FloatSum { .. } => LIMBS,
        Fold::Sum { .. } | Fold::Min(_) | Fold::Max(_) => 1,
    }
}

/// The value of a group before its first row.
fn nothing(fold: &Fold) -> i128 {
    match fold {
        Fold::Count | Fold::Sum { .. } | Fold::FloatSum { .. } => 0,
        Fold::Min(_) => i128::MAX,
        Fold::Max(_) => i128::MIN,
    }
}

fn put_together(fold: &Fold, into: &mut i128, value: i128) {
    *into = match fold {
        // Wraps only if the values were not the column's.
        Fold::Count | Fold::Sum { .. } | Fold::FloatSum { .. } => into.wrapping_add(value),
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
            state.resize(count * width(fold), nothing(fold));
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
                Fold::FloatSum { step, base } => {
                    let Buffer::Float(values) = &scratch.buffers[step] else { unreachable!("it is a float") };
                    for (group, rows) in ranges(runs) {
                        let limbs = &mut state[group * LIMBS..][..LIMBS];
                        values[rows].iter().for_each(|&value| base.add(limbs, value));
                    }
                }
                Fold::Min(step) => match &scratch.buffers[step] {
                    Buffer::Short(values) => gather(fold, runs, state, |rows| {
                        values[rows].iter().fold(i32::MAX, |least, &value| value.min(least)).into()
                    }),
                    Buffer::Narrow(values) => gather(fold, runs, state, |rows| {
                        values[rows].iter().fold(i64::MAX, |least, &value| value.min(least)).into()
                    }),
                    values => {
                        gather(fold, runs, state, |rows| rows.fold(i128::MAX, |least, at| values.get(at).min(least)))
                    }
                },
                Fold::Max(step) => match &scratch.buffers[step] {
                    Buffer::Short(values) => gather(fold, runs, state, |rows| {
                        values[rows].iter().fold(i32::MIN, |most, &value| value.max(most)).into()
                    }),
                    Buffer::Narrow(values) => gather(fold, runs, state, |rows| {
                        values[rows].iter().fold(i64::MIN, |most, &value| value.max(most)).into()
                    }),
                    values => {
                        gather(fold, runs, state, |rows| rows.fold(i128::MIN, |most, at| values.get(at).max(most)))
                    }
                },
            }
        }
    }

    /// Adds the results of a block with so many selected rows, comparing each row with each group.
    pub(super) fn compare(&mut self, selected: usize) {
        let Partial { query, scratch, counts, states, .. } = self;
        let slots = &scratch.slots[..selected];
        for (group, count) in (0_u32..).zip(counts) {
            let rows = slots.iter().fold(0_u32, |rows, &slot| rows + u32::from(slot == group));
            if rows == 0 {
                continue;
            }
            *count += u64::from(rows);
            for (fold, state) in query.folds().iter().zip(&mut *states) {
                let value = match *fold {
                    Fold::Min(step) => best(slots, short(scratch, step), group, i32::MAX, i32::min),
                    Fold::Max(step) => best(slots, short(scratch, step), group, i32::MIN, i32::max),
                    Fold::Count | Fold::Sum { .. } | Fold::FloatSum { .. } => continue,
                };
                put_together(fold, &mut state[group as usize], value.into());
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
            let width = width(fold);
            for (&at, values) in places.iter().zip(theirs.chunks_exact(width.max(1))) {
                for (mine, &value) in mine[at * width..].iter_mut().zip(values) {
                    put_together(fold, mine, value);
                }
            }
        }
        Ok(())
    }

    /// Returns the answer so far.
    #[must_use]
    pub fn answer(&self) -> Answer {
        let plan = self.query.plan();
        let there = |at: &usize| self.counts[*at] > 0 || matches!(self.groups, Groups::One);
        let mut groups: Vec<(Vec<i64>, usize)> =
            (0..self.counts.len()).filter(there).map(|at| (self.codes(at), at)).collect();
        groups.sort_unstable();
        let rows = groups.into_iter().map(|(codes, at)| self.row(&codes, at)).collect();
        let values = plan.aggregates.iter().map(ToString::to_string).collect();
        Answer { keys: plan.group_by.clone(), values, rows }
    }

    /// Returns the codes of a group's keys.
    fn codes(&self, at: usize) -> Vec<i64> {
        let mut number = match &self.groups {
            Groups::One | Groups::Direct { .. } => at as u128,
            Groups::Hashed(hashed) => hashed.keys[at],
        };
        let mut codes: Vec<i64> = self
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
        codes.reverse();
        codes
    }

    fn row(&self, codes: &[i64], at: usize) -> Row {
        let key = |(digit, &code): (&Digit, &i64)| {
            let column = &self.query.table().columns()[digit.column];
            if column.null() == Some(code) { Value::Null } else { column.logical_type().value(code) }
        };
        let keys = self.query.digits().iter().zip(codes).map(key).collect();
        Row { keys, values: self.query.outputs().iter().map(|output| self.value(output, at)).collect() }
    }

    /// Returns an aggregate of a group.
    fn value(&self, output: &Output, at: usize) -> Value {
        let count = |fold: usize| match self.query.folds()[fold] {
            Fold::Count => self.counts[at].into(),
            _ => self.states[fold][at],
        };
        let state = |fold: usize| {
            let width = width(&self.query.folds()[fold]);
            &self.states[fold][at * width..][..width]
        };
        match output {
            Output::Count(fold) => Value::Integer(count(*fold)),
            Output::State { count: values, .. } | Output::Average { count: values, .. } if count(*values) == 0 => {
                Value::Null
            }
            Output::State { fold, reading, .. } => match (reading, state(*fold)) {
                (Reading::Whole(0), state) => Value::Integer(state[0]),
                (Reading::Whole(scale), state) => Value::Decimal { units: state[0], scale: *scale },
                // Cannot be cut: it is the code of a value.
                (Reading::Code(logical), state) => logical.value(i64::try_from(state[0]).unwrap_or(i64::MAX)),
                (Reading::FloatSum(base), limbs) => Value::Float(Double::new(base.sum(limbs))),
            },
            Output::Average { fold, count: values, reading } => {
                let sum = match (reading, state(*fold)) {
                    (Reading::FloatSum(base), limbs) => base.sum(limbs),
                    (Reading::Whole(scale), state) => rounded(state[0], *scale),
                    (Reading::Code(_), _) => unreachable!("codes have no average"),
                };
                Value::Float(Double::new(average(sum, count(*values))))
            }
        }
    }
}

/// Returns the values of a step of 32 bits.
fn short(scratch: &Scratch, step: usize) -> &[i32] {
    let Buffer::Short(values) = &scratch.buffers[step] else { unreachable!("only such values are compared") };
    &values[..]
}

/// Returns the best value of a group's rows. Every row is computed, so that the compiler vectorizes it.
#[inline]
fn best(slots: &[u32], values: &[i32], group: u32, nothing: i32, better: impl Fn(i32, i32) -> i32) -> i32 {
    let values = slots.iter().zip(values).map(|(&slot, &value)| if slot == group { value } else { nothing });
    values.fold(nothing, better)
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
    pub keys: Vec<Value>,
    /// Its aggregates; [`Value::Null`] for aggregates of no values, except counts.
    pub values: Vec<Value>,
}
