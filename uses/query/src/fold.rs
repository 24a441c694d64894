//! Aggregates: a block's selected rows are sorted by group, expressions are computed step by step over all of them, and
//! each group's range is summed.
//!
//! ```text
//! bits ─► rows ─► group number of each ─┬─► rows by group, and the start of each group ─► steps ─┬─► sums
//!                                       ├─► too many groups: row by row ───────────────► steps ─┤
//!                                       └─► very few, to be compared only: as they are ─► steps ─┘ group after group
//! ```

use super::column::{Integer, Values, each_kind};
use super::error::InputError;
use super::partial::{Groups, Partial};
use super::prepare::Query;
use super::program::{Op, Step};
use super::scratch::{Buffer, FEW_GROUPS, Run};
use super::selection::{BLOCK, Selection};
use super::value::{Double, float_power_of_ten};
use std::ops::Range;

impl Query {
    /// Aggregates the rows that were selected. `inputs` are the rows' bytes of the columns
    /// [`aggregated`](Query::aggregated), in that order: the table's own memory, or copies of it. The rows may be a
    /// part of those that were scanned.
    ///
    /// # Errors
    /// [`InputError`] if the inputs do not match. After [`InputError::Altered`], some rows were already added; after
    /// any other error, none.
    pub fn aggregate(
        &self,
        rows: Range<u64>,
        inputs: &[&[u8]],
        selection: &Selection,
        partial: &mut Partial,
    ) -> Result<(), InputError> {
        let (len, values) = self.values(&rows, self.aggregated(), inputs)?;
        let scanned = selection.rows();
        if rows.start < scanned.start || rows.end > scanned.end {
            return if len == 0 { Ok(()) } else { Err(InputError::Unscanned { rows, scanned }) };
        }
        if !partial.is_of(self) {
            return Err(InputError::Foreign);
        }
        // The scanned rows are in a table in memory, so their number fits.
        let first = usize::try_from(rows.start - scanned.start).unwrap_or(usize::MAX);
        let mut block: Vec<Values<'_>> = Vec::with_capacity(values.len());
        for at in (0..len).step_by(BLOCK) {
            let count = (len - at).min(BLOCK);
            block.clear();
            block.extend(values.iter().map(|values| values.part(at..at + count)));
            let Partial { scratch, groups, .. } = partial;
            let mut chosen = selection.chosen(first + at, count, &mut scratch.chosen);
            if chosen.is_empty() {
                continue;
            }
            let mut all = chosen.len() == count;
            let are_compared = matches!(&*groups, Groups::Direct { keys } if keys.are_compared);
            let runs = &mut scratch.runs;
            runs.clear();
            match groups {
                Groups::One => runs.push(Run { group: 0, end: chosen.len() }),
                Groups::Direct { keys } => {
                    let slots = &mut scratch.slots[..chosen.len()];
                    if !keys.number(&block, chosen, all, slots) {
                        return Err(InputError::Altered);
                    }
                    if are_compared {
                        // Every row is compared with every group later.
                    } else if keys.are_few() {
                        all = false;
                        chosen = order(slots, chosen, &mut scratch.starts, &mut scratch.ordered, runs);
                    } else {
                        each(slots, runs);
                    }
                }
                Groups::Hashed(hashed) => {
                    let slots = &mut scratch.slots[..chosen.len()];
                    hashed.number(self.digits(), &block, chosen, slots);
                    each(slots, runs);
                }
            }
            for (number, step) in self.steps().iter().enumerate() {
                compute(number, step, &block, chosen, all, &mut scratch.buffers);
            }
            let selected = chosen.len();
            if are_compared {
                partial.compare(selected);
            } else {
                partial.add();
            }
        }
        Ok(())
    }
}

/// Makes every row a run of its own, unless the next row is of the same group.
fn each(slots: &[u32], runs: &mut Vec<Run>) {
    for (at, &slot) in slots.iter().enumerate() {
        let group = slot as usize;
        match runs.last_mut() {
            Some(run) if run.group == group => run.end = at + 1,
            _ => runs.push(Run { group, end: at + 1 }),
        }
    }
}

/// Sorts rows by group: counts the rows of each group, then puts each row at the next free place of its group.
fn order<'a>(
    slots: &[u32],
    chosen: &[u16],
    starts: &mut [u16; FEW_GROUPS],
    ordered: &'a mut [u16; BLOCK],
    runs: &mut Vec<Run>,
) -> &'a [u16] {
    starts.fill(0);
    for &slot in slots {
        starts[slot as usize % FEW_GROUPS] += 1;
    }
    let mut end = 0;
    for (group, start) in starts.iter_mut().enumerate() {
        let count = *start;
        *start = end;
        end += count;
        if count > 0 {
            runs.push(Run { group, end: end.into() });
        }
    }
    for (&slot, &row) in slots.iter().zip(chosen) {
        let at = &mut starts[slot as usize % FEW_GROUPS];
        ordered[usize::from(*at) % BLOCK] = row;
        *at += 1;
    }
    &ordered[..chosen.len()]
}

/// Computes one step over a block's selected rows. `all` means that every row is selected, in order. No whole number
/// overflows: that was proved from the columns' bounds when the plan became a query.
fn compute(number: usize, step: &Step, block: &[Values<'_>], chosen: &[u16], all: bool, buffers: &mut [Buffer]) {
    // A step's operands come before it.
    let (before, rest) = buffers.split_at_mut(number);
    let into = &mut rest[0];
    let len = chosen.len();
    match (step.op, into) {
        (Op::Literal(_) | Op::FloatLiteral(_), _) => {}
        (Op::Load(input), Buffer::Short(into)) => {
            each_kind!(block[input], values => load(values, chosen, all, &mut into[..len], low));
        }
        (Op::Load(input), Buffer::Narrow(into)) => {
            each_kind!(block[input], values => load(values, chosen, all, &mut into[..len], |value| value));
        }
        (Op::LoadFloat(input), Buffer::Float(into)) => {
            let number = |code: i64| Double::of_code(code).get();
            each_kind!(block[input], values => load(values, chosen, all, &mut into[..len], number));
        }
        (Op::Known { input, null }, Buffer::Narrow(into)) => {
            let known = |value: i64| i64::from(value != null);
            let into = &mut into[..len];
            each_kind!(block[input], values => load(values, chosen, all, into, known));
        }
        (Op::Add(left, right), into) => {
            binary(&before[left], &before[right], into, len, i64::wrapping_add, i128::wrapping_add, |a, b| a + b);
        }
        (Op::Subtract(left, right), into) => {
            binary(&before[left], &before[right], into, len, i64::wrapping_sub, i128::wrapping_sub, |a, b| a - b);
        }
        (Op::Multiply(left, right), into) => {
            binary(&before[left], &before[right], into, len, i64::wrapping_mul, i128::wrapping_mul, |a, b| a * b);
        }
        (Op::ToFloat { value, scale }, Buffer::Float(into)) => to_float(&before[value], scale, &mut into[..len]),
        (Op::ToCode(value), Buffer::Narrow(into)) => {
            let Buffer::Float(values) = &before[value] else { unreachable!("only floats have codes") };
            for (into, &value) in into[..len].iter_mut().zip(&values[..]) {
                *into = Double::new(value).code();
            }
        }
        (Op::Where { known, value, otherwise }, into) => {
            let Buffer::Narrow(known) = &before[known] else { unreachable!("it is 0 or 1") };
            replace(&known[..len], &before[value], otherwise, into);
        }
        (op, into) => unreachable!("{op:?} has no {into:?}"),
    }
}

/// Returns the lower half.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the upper half only repeats the sign")]
fn low(value: i64) -> i32 {
    value as i32
}

#[inline]
fn load<T: Integer, U>(values: &[T], chosen: &[u16], all: bool, into: &mut [U], of: impl Fn(i64) -> U) {
    if all {
        for (into, &value) in into.iter_mut().zip(values) {
            *into = of(value.into());
        }
    } else {
        for (into, &row) in into.iter_mut().zip(chosen) {
            *into = of(values[usize::from(row)].into());
        }
    }
}

/// Combines two buffers with the operation for the form of the result.
#[inline]
fn binary(
    left: &Buffer,
    right: &Buffer,
    into: &mut Buffer,
    len: usize,
    narrow: impl Fn(i64, i64) -> i64,
    wide: impl Fn(i128, i128) -> i128,
    float: impl Fn(f64, f64) -> f64,
) {
    match (left, right, into) {
        (Buffer::Narrow(left), Buffer::Narrow(right), Buffer::Narrow(into)) => {
            for ((into, &left), &right) in into[..len].iter_mut().zip(&left[..]).zip(&right[..]) {
                *into = narrow(left, right);
            }
        }
        (Buffer::Float(left), Buffer::Float(right), Buffer::Float(into)) => {
            for ((into, &left), &right) in into[..len].iter_mut().zip(&left[..]).zip(&right[..]) {
                *into = float(left, right);
            }
        }
        (left, right, Buffer::Wide(into)) => {
            for (at, into) in into[..len].iter_mut().enumerate() {
                *into = wide(left.get(at), right.get(at));
            }
        }
        _ => unreachable!("the result has the form of its operands, or is wide"),
    }
}

/// Converts whole numbers or decimals to floating-point numbers.
#[allow(clippy::cast_precision_loss, reason = "this rounds, as SQL does")]
fn to_float(values: &Buffer, scale: u8, into: &mut [f64]) {
    let by = float_power_of_ten(scale);
    match values {
        Buffer::Narrow(values) => {
            for (into, &value) in into.iter_mut().zip(&values[..]) {
                *into = value as f64 / by;
            }
        }
        values => {
            for (at, into) in into.iter_mut().enumerate() {
                *into = values.get(at) as f64 / by;
            }
        }
    }
}

/// Copies the values where there are some, and something else elsewhere.
#[allow(clippy::cast_possible_truncation, reason = "it is within the bounds of the step")]
fn replace(known: &[i64], values: &Buffer, otherwise: i128, into: &mut Buffer) {
    match (values, into) {
        (Buffer::Narrow(values), Buffer::Narrow(into)) => {
            let otherwise = otherwise as i64;
            for ((into, &value), &known) in into.iter_mut().zip(&values[..]).zip(known) {
                *into = if known == 1 { value } else { otherwise };
            }
        }
        (Buffer::Float(values), Buffer::Float(into)) => {
            for ((into, &value), &known) in into.iter_mut().zip(&values[..]).zip(known) {
                *into = if known == 1 { value } else { 0.0 };
            }
        }
        (values, Buffer::Wide(into)) => {
            for (at, (into, &known)) in into.iter_mut().zip(known).enumerate() {
                *into = if known == 1 { values.get(at) } else { otherwise };
            }
        }
        _ => unreachable!("the result has the form of its values"),
    }
}
