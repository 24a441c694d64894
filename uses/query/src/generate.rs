//! Generated tables, the same for the same seed: the thesis' two columns, and the part of TPC-H's lineitem that its
//! queries 1 and 6 read.

use super::column::{Column, Integer, Table};
use super::error::{ColumnError, TableError};
use super::value::{Dictionary, LogicalType};
use std::sync::Arc;
use telpher_mem::{MapError, PageSize, Region};
use zerocopy::FromBytes;

/// Why a table could not be generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// More rows than an address space can hold.
    #[error("{rows} rows do not fit into the address space; request fewer")]
    TooMany {
        /// The rows requested.
        rows: u64,
    },
    /// No memory.
    #[error(transparent)]
    Column(#[from] ColumnError),
    /// Wrong names or lengths; does not occur with tables generated here.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Allocates the memory of a column, given its name and length; zeroed or not. It may choose a node.
pub type Memory<'a> = &'a mut dyn FnMut(&str, usize) -> Result<Region, MapError>;

/// Allocates memory anywhere, with huge pages if possible.
///
/// # Errors
/// The system's error.
pub fn anywhere(_name: &str, bytes: usize) -> Result<Region, MapError> {
    Region::new(bytes, PageSize::Huge)
}

/// Generates the thesis' table (Fürst, §6.1): `a` and `b`, 8 bytes each. Each value from 0 to 99 is in one hundredth of
/// `a`; `b` is at most a million.
///
/// # Errors
/// [`GenerateError`] if there is no memory for it.
pub fn two_columns(rows: u64, seed: u64, memory: Memory<'_>) -> Result<Table, GenerateError> {
    let dice = Dice(seed);
    let a = made("a", rows, memory, |row| dice.up_to(row, 0, 100))?;
    let b = made("b", rows, memory, |row| dice.up_to(row, 1, 1_000_001))?;
    Ok(Table::new(vec![a, b])?)
}

/// Generates TPC-H's lineitem (TPC-H §4.2.3), 38 bytes a row: `l_quantity`, `l_extendedprice`, `l_discount`, `l_tax` in
/// hundredths, `l_returnflag` and `l_linestatus` as ASCII, `l_shipdate` in days since 1970. Each row belongs to a
/// different order; scale factor 1 has about 6 million rows.
///
/// # Errors
/// [`GenerateError`] if there is no memory for it.
pub fn lineitem(rows: u64, seed: u64, memory: Memory<'_>) -> Result<Table, GenerateError> {
    let lines = Lines { dice: Dice(seed), parts: (rows / LINES_PER_PART).max(1) };
    Ok(Table::new(vec![
        made("l_quantity", rows, memory, |row| lines.quantity(row) * 100)?,
        made("l_extendedprice", rows, memory, |row| lines.quantity(row) * lines.retail_price(row))?,
        made("l_discount", rows, memory, |row| lines.dice.up_to(row, 2, 11))?,
        made("l_tax", rows, memory, |row| lines.dice.up_to(row, 3, 9))?,
        made("l_returnflag", rows, memory, |row| lines.return_flag(row))?,
        made("l_linestatus", rows, memory, |row| lines.line_status(row))?,
        made("l_shipdate", rows, memory, |row| lines.ship_date(row))?,
    ])?)
}

/// Generates TPC-H's lineitem with TPC-H's types: decimals, texts and dates. The bytes are those of [`lineitem`]: a
/// text's code is its ASCII character.
///
/// # Errors
/// [`GenerateError`] if there is no memory for it.
pub fn typed_lineitem(rows: u64, seed: u64, memory: Memory<'_>) -> Result<Table, GenerateError> {
    let table = lineitem(rows, seed, memory)?;
    let letters = Arc::new(Dictionary::new((0..=u8::MAX >> 1).map(|code| char::from(code).to_string())));
    let typed = table.columns().iter().map(|column| {
        column.clone().with_type(match column.name() {
            "l_returnflag" | "l_linestatus" => LogicalType::Text(Arc::clone(&letters)),
            "l_shipdate" => LogicalType::Date,
            _ => LogicalType::Decimal { scale: 2 },
        })
    });
    Ok(Table::new(typed.collect::<Result<_, _>>()?)?)
}

/// Each scale factor has 200,000 parts and about 6,000,000 lines (TPC-H §4.2.5).
const LINES_PER_PART: u64 = 30;

/// 1992-01-01, the first date (TPC-H §4.2.3), in days since 1970.
const START: i32 = 8_035;
/// Days from it to the last date, 1998-12-31, inclusive, minus the 151 days that an order may take.
const ORDER_DAYS: i64 = 2_556 - 151 + 1;
/// 1995-06-17, the current date (TPC-H §4.2.3).
const TODAY: i32 = 9_298;

/// The contents of a line (TPC-H §4.2.3); a value used by several columns is the same for all of them.
#[derive(Clone, Copy, Debug)]
struct Lines {
    dice: Dice,
    parts: u64,
}

impl Lines {
    fn quantity(self, row: u64) -> i64 {
        1 + self.dice.up_to(row, 0, 50)
    }

    /// P_RETAILPRICE, in hundredths.
    fn retail_price(self, row: u64) -> i64 {
        let part = 1 + self.dice.up_to(row, 1, i64::try_from(self.parts).unwrap_or(i64::MAX));
        90_000 + (part / 10) % 20_001 + 100 * (part % 1_000)
    }

    fn ship_date(self, row: u64) -> i32 {
        // Cannot be truncated: the dates span seven years.
        START
            + i32::try_from(self.dice.up_to(row, 4, ORDER_DAYS) + 1 + self.dice.up_to(row, 5, 121)).unwrap_or(i32::MAX)
    }

    fn return_flag(self, row: u64) -> u8 {
        let receipt = i64::from(self.ship_date(row)) + 1 + self.dice.up_to(row, 6, 30);
        match self.dice.up_to(row, 7, 2) {
            _ if receipt > TODAY.into() => b'N',
            0 => b'R',
            _ => b'A',
        }
    }

    fn line_status(self, row: u64) -> u8 {
        if self.ship_date(row) > TODAY { b'O' } else { b'F' }
    }
}

/// Random numbers: one for each row and question. Source: Steele, Lea and Flood, *Fast Splittable Pseudorandom Number
/// Generators* (OOPSLA 2014), `SplitMix64`, whose `n`th number can be computed without the previous ones.
#[derive(Clone, Copy, Debug)]
struct Dice(u64);

impl Dice {
    /// Returns a number from 0 up to, but not including, `below`, which is positive.
    fn up_to(self, row: u64, question: u64, below: i64) -> i64 {
        let stream = mix(self.0.wrapping_add(question.wrapping_mul(GAMMA)));
        let number = mix(stream.wrapping_add(row.wrapping_mul(GAMMA)));
        // Less than `below`: the fraction number / 2^64 of it.
        i64::try_from((u128::from(number) * u128::from(below.unsigned_abs())) >> 64).unwrap_or_default()
    }
}

/// `SplitMix64`'s increment.
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Generates a column whose values are a function of their rows, with all cores.
fn made<T: Integer>(
    name: &str,
    rows: u64,
    memory: Memory<'_>,
    value: impl Fn(u64) -> T + Sync,
) -> Result<Column, GenerateError> {
    let width = T::KIND.width();
    let bytes = usize::try_from(rows).ok().and_then(|rows| rows.checked_mul(width));
    let bytes = bytes.ok_or(GenerateError::TooMany { rows })?;
    let mut region = memory(name, bytes).map_err(|source| ColumnError::Map { name: name.into(), source })?;
    let torn = || ColumnError::Torn { name: name.into(), bytes, width };
    let values = <[T]>::mut_from_bytes(&mut region).map_err(|_| torn())?;
    let share = values.len().div_ceil(std::thread::available_parallelism().map_or(1, usize::from)).max(1);
    std::thread::scope(|scope| {
        for (at, values) in values.chunks_mut(share).enumerate() {
            let value = &value;
            scope.spawn(move || {
                for (row, into) in ((at * share) as u64..).zip(values) {
                    *into = value(row);
                }
            });
        }
    });
    Ok(Column::new(name, T::KIND, Arc::new(region))?)
}
