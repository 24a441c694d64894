//! Filters: which values of a block are in a range. Plain loops over slices, which the compiler vectorizes.

use super::codes::Codes;
use super::column::{Column, Integer, Values, each_kind};
use super::error::InputError;
use super::prepare::{Passes, Query, Test};
use super::selection::{Selection, WORD};
use std::ops::Range;

impl Query {
    /// Returns the bytes of these rows of these columns in the table.
    #[must_use]
    pub fn inputs(&self, columns: &[usize], rows: Range<u64>) -> Vec<&[u8]> {
        let column = |&at: &usize| self.table().columns().get(at).map_or(&[][..], |column| column.bytes(rows.clone()));
        columns.iter().map(column).collect()
    }

    /// Selects the rows that pass all filters. `inputs` are the rows' bytes of the columns [`scanned`](Query::scanned),
    /// in that order.
    ///
    /// # Errors
    /// [`InputError`] if the inputs are not valid; the selection is empty then.
    pub fn scan(&self, rows: Range<u64>, inputs: &[&[u8]], selection: &mut Selection) -> Result<(), InputError> {
        selection.reset(0..0, 0);
        let (len, values) = self.values(&rows, self.scanned(), inputs)?;
        let words = selection.reset(rows, len);
        let Some(tests) = self.tests() else { return Ok(()) };
        let width = |test: &Test| self.table().columns()[self.scanned()[test.input]].kind().width();
        let tests: Vec<Ready<'_>> = tests
            .iter()
            .enumerate()
            .map(|(at, test)| {
                // Another filter of the same column finds its values in the core's cache.
                let is_first = tests[..at].iter().all(|before| before.input != test.input);
                Ready { test, values: values[test.input], width: if is_first { width(test) } else { 0 } }
            })
            .collect();
        let mut read = 0;
        for (at, word) in words.iter_mut().enumerate() {
            let rows = at * WORD..((at + 1) * WORD).min(len);
            *word = u64::MAX >> (WORD - rows.len());
            for test in &tests {
                if *word == 0 {
                    break;
                }
                read += rows.len() * test.width;
                *word &= test.all(rows.clone());
            }
        }
        selection.read = read as u64;
        Ok(())
    }

    /// Returns the number of rows, and the inputs with their types.
    pub(super) fn values<'a>(
        &self,
        rows: &Range<u64>,
        columns: &[usize],
        inputs: &[&'a [u8]],
    ) -> Result<(usize, Vec<Values<'a>>), InputError> {
        let there = self.table().rows();
        if rows.start > rows.end || rows.end > there {
            return Err(InputError::Rows { rows: rows.clone(), there });
        }
        // The rows are in a table, which is in memory.
        let len = usize::try_from(rows.end - rows.start).unwrap_or(usize::MAX);
        if inputs.len() != columns.len() {
            return Err(InputError::Columns { given: inputs.len(), wanted: columns.len() });
        }
        let all = columns.iter().zip(inputs).map(|(&at, input)| typed(&self.table().columns()[at], len, input));
        Ok((len, all.collect::<Result<_, _>>()?))
    }
}

fn typed<'a>(column: &Column, len: usize, input: &'a [u8]) -> Result<Values<'a>, InputError> {
    let (name, width) = (column.name(), column.kind().width());
    // Cannot overflow: the column has at least this many rows in memory.
    if input.len() != len * width {
        return Err(InputError::Length { name: name.into(), given: input.len(), wanted: len * width });
    }
    // The length is right.
    Values::of(column.kind(), input).ok_or_else(|| InputError::Misaligned { name: name.into(), width })
}

/// A filter and its values.
#[derive(Clone, Copy, Debug)]
struct Ready<'a> {
    test: &'a Test,
    values: Values<'a>,
    /// Bytes of a value that is read from memory.
    width: usize,
}

impl Ready<'_> {
    /// Returns which of these rows pass, at most 64.
    fn all(self, rows: Range<usize>) -> u64 {
        let values = self.values.part(rows);
        match &self.test.passes {
            Passes::Ranges(ranges) => {
                ranges.iter().fold(0, |word, &range| word | within(values, range, self.test.short))
            }
            Passes::Set { first, bits } => {
                let has = |value: i64| {
                    // A value below the first one wraps to a number beyond the bits.
                    let at = value.wrapping_sub(*first).cast_unsigned();
                    let word = usize::try_from(at / WORD as u64).ok().and_then(|word| bits.get(word));
                    word.is_some_and(|word| word >> (at % WORD as u64) & 1 == 1)
                };
                each_kind!(values, values => in_set(values, has))
            }
        }
    }
}

/// Returns which values, as numbers of 64 bits, are in a set.
fn in_set<T: Integer>(values: &[T], has: impl Fn(i64) -> bool) -> u64 {
    word(values, |value| has(value.into()))
}

/// Returns which values are in a range. `short` means that all values fit in 32 bits: their lower halves are compared,
/// which takes half as long.
// Nothing is truncated: the bounds lie between values of the column.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the bounds are values of the column's kind"
)]
fn within(values: Values<'_>, (least, greatest): Codes, short: bool) -> u64 {
    match values {
        Values::U8(values) => {
            let (least, greatest) = (least as u8, greatest as u8);
            word(values, |value| (least <= value) & (value <= greatest))
        }
        Values::I32(values) => {
            let (least, greatest) = (least as i32, greatest as i32);
            word(values, |value| (least <= value) & (value <= greatest))
        }
        Values::I64(values) if short => {
            let (least, greatest) = (least as i32, greatest as i32);
            word(values, |value| {
                let value = low(value);
                (least <= value) & (value <= greatest)
            })
        }
        Values::I64(values) => word(values, |value| (least <= value) & (value <= greatest)),
    }
}

/// Returns the lower half.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the upper half only repeats the sign")]
fn low(value: i64) -> i32 {
    value as i32
}

/// Returns a bit for each value, at most 64.
#[inline]
fn word<T: Integer>(values: &[T], test: impl Fn(T) -> bool) -> u64 {
    let Ok(values) = <&[T; WORD]>::try_from(values) else {
        return values.iter().enumerate().fold(0, |word, (at, &value)| word | u64::from(test(value)) << at);
    };
    let mut flags = [0_u8; WORD];
    for (flag, &value) in flags.iter_mut().zip(values) {
        *flag = test(value).into();
    }
    let (eights, _) = flags.as_chunks::<8>();
    eights.iter().enumerate().fold(0, |word, (at, eight)| word | bits(*eight) << (8 * at))
}

/// Packs eight bytes, each 0 or 1, into the bits of one byte: the highest byte of the product is the sum of byte `n`
/// times 2^`n`.
#[inline]
fn bits(flags: [u8; 8]) -> u64 {
    u64::from_le_bytes(flags).wrapping_mul(0x0102_0408_1020_4080) >> 56
}
