//! Aggregates: a block's selected rows are sorted by group, expressions are computed step by step over all of them, and
//! each group's range is summed.
//!
//! ```text
//! bits ─► rows ─► group number of each ─► rows by group, and the start of each group ─► steps ─► sums
//!                                     ╲─► too many groups: row by row ───────────────► steps ─╱
//! ```

use super::column::{Integer, Values, each_kind};
use super::error::InputError;
use super::partial::{Groups, Partial};
use super::prepare::{Op, Query, Step};
use super::scratch::{Buffer, FEW_GROUPS, Run};
use super::selection::{BLOCK, Selection};
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
            let runs = &mut scratch.runs;
            runs.clear();
            match groups {
                Groups::One => runs.push(Run { group: 0, end: chosen.len() }),
                Groups::Direct { keys } => {
                    let slots = &mut scratch.slots[..chosen.len()];
                    if !keys.number(&block, chosen, slots) {
                        return Err(InputError::Altered);
                    }
                    if keys.are_few() {
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
            partial.add();
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

/// Computes one step over a block's selected rows. `all` means that every row is selected, in order. No result
/// overflows: that was proved from the columns' bounds when the plan became a query.
fn compute(number: usize, step: &Step, block: &[Values<'_>], chosen: &[u16], all: bool, buffers: &mut [Buffer]) {
    // A step's operands come before it.
    let (before, rest) = buffers.split_at_mut(number);
    let into = &mut rest[0];
    let len = chosen.len();
    match (step.op, into) {
        (Op::Literal(_), _) => {}
        (Op::Load(input), Buffer::Narrow(into)) => {
            each_kind!(block[input], values => load(values, chosen, all, &mut into[..len]))
        }
        (Op::Add(left, right), Buffer::Narrow(into)) => {
            narrow(&before[left], &before[right], &mut into[..len], i64::wrapping_add);
        }
        (Op::Subtract(left, right), Buffer::Narrow(into)) => {
            narrow(&before[left], &before[right], &mut into[..len], i64::wrapping_sub);
        }
        (Op::Multiply(left, right), Buffer::Narrow(into)) => {
            narrow(&before[left], &before[right], &mut into[..len], i64::wrapping_mul);
        }
        (Op::Add(left, right), Buffer::Wide(into)) => {
            wide(&before[left], &before[right], &mut into[..len], i128::wrapping_add);
        }
        (Op::Subtract(left, right), Buffer::Wide(into)) => {
            wide(&before[left], &before[right], &mut into[..len], i128::wrapping_sub);
        }
        (Op::Multiply(left, right), Buffer::Wide(into)) => {
            wide(&before[left], &before[right], &mut into[..len], i128::wrapping_mul);
        }
        (Op::Load(_), Buffer::Wide(_)) => unreachable!("a column's values have 64 bits"),
    }
}

fn load<T: Integer>(values: &[T], chosen: &[u16], all: bool, into: &mut [i64]) {
    if all {
        for (into, &value) in into.iter_mut().zip(values) {
            *into = value.into();
        }
    } else {
        for (into, &row) in into.iter_mut().zip(chosen) {
            *into = values[usize::from(row)].into();
        }
    }
}

#[inline]
fn narrow(left: &Buffer, right: &Buffer, into: &mut [i64], op: impl Fn(i64, i64) -> i64) {
    let (Buffer::Narrow(left), Buffer::Narrow(right)) = (left, right) else {
        unreachable!("a step with a wide operand is itself wide");
    };
    for ((into, &left), &right) in into.iter_mut().zip(&left[..]).zip(&right[..]) {
        *into = op(left, right);
    }
}

fn wide(left: &Buffer, right: &Buffer, into: &mut [i128], op: impl Fn(i128, i128) -> i128) {
    for (at, into) in into.iter_mut().enumerate() {
        *into = op(left.get(at), right.get(at));
    }
}
