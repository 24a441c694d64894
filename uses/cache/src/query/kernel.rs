//! Filters: blocks of values, and which of them are in a range. Plain loops over slices that the compiler makes vector instructions of.

use super::column::{Column, Integer, Values};
use super::prepare::{Query, Test};
use super::selection::{Selection, WORD};
use std::ops::Range;

/// Rows that an aggregation works on at a time: so few that the values between its steps stay in a core's cache, so many that what is done
/// once a block does not count. Source: assumed.
pub(super) const BLOCK: usize = 1024;

/// Why bytes are not what a query wants.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// Not one for each column.
    #[error("{given} columns were given and {wanted} are wanted; give one for each, in their order")]
    Columns {
        /// So many.
        given: usize,
        /// The query's.
        wanted: usize,
    },
    /// Not the rows' values.
    #[error("column {name}: {given} bytes were given and the rows have {wanted}")]
    Length {
        /// Whose.
        name: String,
        /// Bytes.
        given: usize,
        /// Bytes.
        wanted: usize,
    },
    /// They begin at an address at which no such value can.
    #[error("column {name}: its bytes do not begin at a multiple of {width}; copy blocks that begin with whole values")]
    Misaligned {
        /// Whose.
        name: String,
        /// Bytes of a value.
        width: usize,
    },
    /// The rows were not scanned before.
    #[error("rows {rows:?} were not scanned: rows {scanned:?} were")]
    Unscanned {
        /// To be aggregated.
        rows: Range<u64>,
        /// The selection's.
        scanned: Range<u64>,
    },
    /// The table has not so many.
    #[error("rows {rows:?} are not in a table of {there} rows")]
    Rows {
        /// Asked for.
        rows: Range<u64>,
        /// The table's.
        there: u64,
    },
    /// It counts other groups.
    #[error("a partial result of another query was given; make it by this one's `partial`")]
    Foreign,
    /// A copy that is none: values the column does not have.
    #[error("the inputs have values that their columns do not have; what copied them is not to be trusted")]
    Altered,
}

impl Query {
    /// The bytes of these rows of these columns, where they lie in the table.
    #[must_use]
    pub fn inputs(&self, columns: &[usize], rows: Range<u64>) -> Vec<&[u8]> {
        let column = |&at: &usize| self.table().columns().get(at).map_or(&[][..], |column| column.bytes(rows.clone()));
        columns.iter().map(column).collect()
    }

    /// Chooses rows: those all filters let through. `inputs` are the rows' bytes of the columns [`scanned`](Query::scanned), in their order.
    ///
    /// # Errors
    /// [`InputError`] if the inputs are not that; then the selection is empty.
    pub fn scan(&self, rows: Range<u64>, inputs: &[&[u8]], selection: &mut Selection) -> Result<(), InputError> {
        selection.reset(0..0, 0);
        let (len, values) = self.values(&rows, self.scanned(), inputs)?;
        let words = selection.reset(rows, len);
        let Some(tests) = self.tests() else { return Ok(()) };
        let tests: Vec<Ready<'_>> = tests.iter().map(|test| Ready::new(test, values[test.input])).collect();
        for (at, word) in words.iter_mut().enumerate() {
            let rows = at * WORD..((at + 1) * WORD).min(len);
            *word = u64::MAX >> (WORD - rows.len());
            for test in &tests {
                if *word == 0 {
                    break;
                }
                *word &= test.all(rows.clone());
            }
        }
        Ok(())
    }

    /// The inputs as what they are, and how many rows there are.
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
        // They are in a table, which is in memory.
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
    // Cannot overflow: the column has at least so many rows, in memory.
    if input.len() != len * width {
        return Err(InputError::Length { name: name.into(), given: input.len(), wanted: len * width });
    }
    // Their length is right.
    Values::of(column.kind(), input).ok_or_else(|| InputError::Misaligned { name: name.into(), width })
}

/// A filter and the values it is about.
#[derive(Clone, Copy, Debug)]
enum Ready<'a> {
    U8(&'a [u8], u8, u8),
    I32(&'a [i32], i32, i32),
    /// All of the column's values fit in 32 bits: their lower halves are compared, which takes half as long.
    Short(&'a [i64], i32, i32),
    I64(&'a [i64], i64, i64),
}

impl<'a> Ready<'a> {
    // Nothing is cut off: the ends lie between values of the column.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the ends are values of the column's kind"
    )]
    fn new(test: &Test, values: Values<'a>) -> Self {
        let Test { least, greatest, short, .. } = *test;
        match values {
            Values::U8(values) => Ready::U8(values, least as u8, greatest as u8),
            Values::I32(values) => Ready::I32(values, least as i32, greatest as i32),
            Values::I64(values) if short => Ready::Short(values, least as i32, greatest as i32),
            Values::I64(values) => Ready::I64(values, least, greatest),
        }
    }

    /// Which of these rows, at most 64.
    fn all(self, rows: Range<usize>) -> u64 {
        match self {
            Ready::U8(values, least, greatest) => word(&values[rows], |value| (least <= value) & (value <= greatest)),
            Ready::I32(values, least, greatest) => word(&values[rows], |value| (least <= value) & (value <= greatest)),
            Ready::Short(values, least, greatest) => word(&values[rows], |value| {
                let value = low(value);
                (least <= value) & (value <= greatest)
            }),
            Ready::I64(values, least, greatest) => word(&values[rows], |value| (least <= value) & (value <= greatest)),
        }
    }
}

/// The lower half.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the upper half only repeats the sign")]
fn low(value: i64) -> i32 {
    value as i32
}

/// A bit for each value, at most 64 of them.
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

/// Eight bytes, each 0 or 1, as the bits of one: the product has byte `n`, times 2^`n`, in its highest byte.
#[inline]
fn bits(flags: [u8; 8]) -> u64 {
    u64::from_le_bytes(flags).wrapping_mul(0x0102_0408_1020_4080) >> 56
}
