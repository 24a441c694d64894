//! Columns: integers of one width, contiguous in memory that does not move.

use super::error::{ColumnError, TableError};
use super::value::LogicalType;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use telpher_mem::{PageSize, Region};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The width of a column's values. All values are integers; [`LogicalType`] says what they stand for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kind {
    /// Unsigned, 1 byte: flags, numbers of few texts.
    U8,
    /// Signed, 4 bytes, native byte order: dates, numbers of texts.
    I32,
    /// Signed, 8 bytes, native byte order: amounts, keys, codes of floating-point numbers.
    I64,
}

impl Kind {
    /// Returns the bytes of a value.
    #[inline]
    #[must_use]
    pub fn width(self) -> usize {
        match self {
            Kind::U8 => 1,
            Kind::I32 => 4,
            Kind::I64 => 8,
        }
    }
}

/// A value of a column: `u8`, `i32` or `i64`.
pub trait Integer: IntoBytes + FromBytes + Immutable + KnownLayout + Copy + Ord + Into<i64> + Send + Debug {
    /// The kind of a column of these values.
    const KIND: Kind;
}

impl Integer for u8 {
    const KIND: Kind = Kind::U8;
}

impl Integer for i32 {
    const KIND: Kind = Kind::I32;
}

impl Integer for i64 {
    const KIND: Kind = Kind::I64;
}

/// Some values of a column, with their type.
#[derive(Clone, Copy, Debug)]
pub(super) enum Values<'a> {
    U8(&'a [u8]),
    I32(&'a [i32]),
    I64(&'a [i64]),
}

/// Evaluates the same expression for each kind of values.
macro_rules! each_kind {
    ($values:expr, $slice:ident => $body:expr) => {
        match $values {
            $crate::column::Values::U8($slice) => $body,
            $crate::column::Values::I32($slice) => $body,
            $crate::column::Values::I64($slice) => $body,
        }
    };
}
pub(super) use each_kind;

impl<'a> Values<'a> {
    /// Returns none if the bytes are not whole values, or not aligned.
    pub(super) fn of(kind: Kind, bytes: &'a [u8]) -> Option<Self> {
        Some(match kind {
            Kind::U8 => Values::U8(bytes),
            Kind::I32 => Values::I32(<[i32]>::ref_from_bytes(bytes).ok()?),
            Kind::I64 => Values::I64(<[i64]>::ref_from_bytes(bytes).ok()?),
        })
    }

    /// # Panics
    /// Like slices.
    #[inline]
    pub(super) fn part(self, range: Range<usize>) -> Self {
        match self {
            Values::U8(values) => Values::U8(&values[range]),
            Values::I32(values) => Values::I32(&values[range]),
            Values::I64(values) => Values::I64(&values[range]),
        }
    }
}

/// A column of a table: contiguous values without gaps. Cloning is cheap and yields the same bytes.
///
/// ```
/// use telpher_query::Column;
///
/// let price = Column::of("price", &[1_999_i64, -500, 120])?;
/// assert_eq!((price.rows(), price.bounds()), (3, Some((-500, 1_999))));
/// assert_eq!(price.range(1..3), 8..24); // where in its bytes, for a cache
/// # Ok::<(), telpher_query::ColumnError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Column {
    name: Arc<str>,
    kind: Kind,
    bytes: Arc<Region>,
    /// The least and the greatest value, without nulls. Every proof that a sum cannot overflow depends on them, so only
    /// [`Column::new`] sets them.
    bounds: Option<(i64, i64)>,
    /// The code of the rows without a value: greater than every value.
    null: Option<i64>,
    logical: LogicalType,
}

impl Column {
    /// Creates a column of these bytes. Reads them once, for [`bounds`](Column::bounds).
    ///
    /// # Errors
    /// [`ColumnError::Torn`] if they are not whole values.
    pub fn new(name: &str, kind: Kind, bytes: Arc<Region>) -> Result<Self, ColumnError> {
        let torn = || ColumnError::Torn { name: name.into(), bytes: bytes.len(), width: kind.width() };
        // A region is page-aligned.
        let values = Values::of(kind, &bytes).ok_or_else(torn)?;
        let bounds = each_kind!(values, values => bounds(values));
        Ok(Column { name: name.into(), kind, bytes, bounds, null: None, logical: LogicalType::Integer })
    }

    /// Makes rows with this value rows without one. Reads the bytes again.
    ///
    /// ```
    /// use telpher_query::Column;
    ///
    /// let price = Column::of("price", &[120_i64, 121, -500])?.with_null(121)?;
    /// assert_eq!((price.bounds(), price.null()), (Some((-500, 120)), Some(121)));
    /// # Ok::<(), telpher_query::ColumnError>(())
    /// ```
    ///
    /// # Errors
    /// [`ColumnError::Null`] if another value is greater.
    pub fn with_null(mut self, null: i64) -> Result<Self, ColumnError> {
        // The bytes were whole values when the column was created.
        let bounds = match Values::of(self.kind, &self.bytes) {
            Some(values) => each_kind!(values, values => bounds_without(values, null)),
            None => None,
        };
        match bounds {
            Some((_, value)) if value > null => Err(ColumnError::Null { name: self.name.as_ref().into(), value, null }),
            _ => {
                (self.bounds, self.null) = (bounds, Some(null));
                Ok(self)
            }
        }
    }

    /// Gives the values another meaning than that of whole numbers.
    ///
    /// # Errors
    /// [`ColumnError::Type`] if a value stands for nothing.
    pub fn with_type(mut self, logical: LogicalType) -> Result<Self, ColumnError> {
        let most = match &logical {
            LogicalType::Boolean => Some(1),
            LogicalType::Text(words) => Some(i64::try_from(words.words().len()).unwrap_or(i64::MAX) - 1),
            _ => None,
        };
        if let (Some(most), Some((least, greatest))) = (most, self.bounds)
            && (least < 0 || greatest > most)
        {
            let value = if least < 0 { least } else { greatest };
            return Err(ColumnError::Type { name: self.name.as_ref().into(), value, holds: logical.holds() });
        }
        self.logical = logical;
        Ok(self)
    }

    /// Creates a column of these values, copied to its own memory.
    ///
    /// # Errors
    /// [`ColumnError::Map`] if there is no memory for it.
    pub fn of<T: Integer>(name: &str, values: &[T]) -> Result<Self, ColumnError> {
        let mut bytes = Region::new(size_of_val(values), PageSize::Small)
            .map_err(|source| ColumnError::Map { name: name.into(), source })?;
        bytes.copy_from_slice(values.as_bytes());
        Column::new(name, T::KIND, Arc::new(bytes))
    }

    /// Returns the name used in plans.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the type of its values.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the number of values.
    #[must_use]
    pub fn rows(&self) -> u64 {
        (self.bytes.len() / self.kind.width()) as u64
    }

    /// Returns what its values stand for.
    #[must_use]
    pub fn logical_type(&self) -> &LogicalType {
        &self.logical
    }

    /// Returns the code of the rows without a value, if there may be some; it is greater than every value.
    #[must_use]
    pub fn null(&self) -> Option<i64> {
        self.null
    }

    /// Returns the least and the greatest value; none if it has no values. Rows without a value do not count.
    #[must_use]
    pub fn bounds(&self) -> Option<(i64, i64)> {
        self.bounds
    }

    /// Returns its memory, for a cache.
    #[must_use]
    pub fn source(&self) -> &Arc<Region> {
        &self.bytes
    }

    /// Returns the byte range of rows in its memory. Rows that it does not have are outside of it.
    #[must_use]
    pub fn range(&self, rows: Range<u64>) -> Range<usize> {
        let at = |row: u64| usize::try_from(row).unwrap_or(usize::MAX).saturating_mul(self.kind.width());
        at(rows.start)..at(rows.end)
    }

    /// Returns the bytes of rows; an empty slice if it does not have all of them.
    #[must_use]
    pub fn bytes(&self, rows: Range<u64>) -> &[u8] {
        self.bytes.get(self.range(rows)).unwrap_or_default()
    }

    /// Returns the number in a row, if there is such a row.
    #[must_use]
    pub fn value(&self, row: u64) -> Option<i64> {
        let values = Values::of(self.kind, self.bytes(row..row.checked_add(1)?))?;
        each_kind!(values, values => first(values))
    }
}

fn first<T: Integer>(values: &[T]) -> Option<i64> {
    values.first().map(|&value| value.into())
}

fn bounds<T: Integer>(values: &[T]) -> Option<(i64, i64)> {
    let first = *values.first()?;
    let (least, greatest) = values.iter().fold((first, first), |(least, greatest), &value| {
        (if value < least { value } else { least }, if value > greatest { value } else { greatest })
    });
    Some((least.into(), greatest.into()))
}

/// Returns the least and the greatest value, except for those that are `null`.
fn bounds_without<T: Integer>(values: &[T], null: i64) -> Option<(i64, i64)> {
    let values = values.iter().map(|&value| value.into()).filter(|value| *value != null);
    values.fold(None, |ends, value| {
        let (least, greatest) = ends.unwrap_or((value, value));
        Some((value.min(least), value.max(greatest)))
    })
}

/// Columns with the same number of rows. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Arc<[Column]>,
    rows: u64,
}

impl Table {
    /// Creates a table of these columns; without any, it has no rows.
    ///
    /// # Errors
    /// [`TableError`] if the numbers of rows differ, or a name occurs twice.
    pub fn new(columns: Vec<Column>) -> Result<Self, TableError> {
        let rows = columns.first().map_or(0, Column::rows);
        for (at, column) in columns.iter().enumerate() {
            if column.rows() != rows {
                return Err(TableError::Uneven {
                    name: column.name().into(),
                    rows: column.rows(),
                    first: columns[0].name().into(),
                    expected: rows,
                });
            }
            if columns[..at].iter().any(|other| other.name == column.name) {
                return Err(TableError::Twice { name: column.name().into() });
            }
        }
        Ok(Table { columns: columns.into(), rows })
    }

    /// Returns its columns.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the index of the column with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_the_minimum_and_maximum_for_each_kind() {
        assert_eq!(Column::of("a", &[200_u8, 7, 255]).unwrap().bounds(), Some((7, 255)));
        assert_eq!(
            Column::of("a", &[i32::MIN, 0, i32::MAX]).unwrap().bounds(),
            Some((i32::MIN.into(), i32::MAX.into()))
        );
        assert_eq!(Column::of("a", &[i64::MAX, i64::MIN]).unwrap().bounds(), Some((i64::MIN, i64::MAX)));
        assert_eq!(Column::of::<i64>("a", &[]).unwrap().bounds(), None);
    }

    #[test]
    fn nulls_are_no_values_and_their_code_is_the_greatest() {
        let column = Column::of("a", &[3_i32, 9, -1, 9]).unwrap();
        assert_eq!(column.clone().with_null(9).unwrap().bounds(), Some((-1, 3)));
        assert_eq!(column.clone().with_null(10).unwrap().bounds(), Some((-1, 9)));
        let refused = column.with_null(5).unwrap_err().to_string();
        assert_eq!(refused, "column a: the value 9 is greater than 5, the code of a null; choose a greater code");
        assert_eq!(Column::of("a", &[1_u8, 1]).unwrap().with_null(1).unwrap().bounds(), None);
        let two = Column::of("a", &[0_u8, 2]).unwrap();
        let refused = two.clone().with_type(LogicalType::Boolean).unwrap_err().to_string();
        assert_eq!(refused, "column a: the value 2 is none of true and false; give the column another type");
        assert!(two.with_null(2).unwrap().with_type(LogicalType::Boolean).is_ok());
    }

    #[test]
    fn rows_past_the_end_have_no_bytes() {
        let column = Column::of("a", &[1_i32, 2, 3]).unwrap();
        assert_eq!(column.bytes(1..3).len(), 8);
        assert_eq!((column.value(2), column.value(3), column.value(u64::MAX)), (Some(3), None, None));
        assert!(column.bytes(2..4).is_empty());
        assert!(column.bytes(u64::MAX - 1..u64::MAX).is_empty());
    }

    #[test]
    fn invalid_columns_and_tables_are_refused_with_a_remedy() {
        let bytes = Arc::new(Region::new(13, PageSize::Small).unwrap());
        let torn = Column::new("price", Kind::I64, bytes).unwrap_err().to_string();
        assert_eq!(torn, "column price: 13 bytes are not whole values of 8 bytes; cut them to a multiple");
        let (a, b) = (Column::of("a", &[1_u8, 2]).unwrap(), Column::of("b", &[1_i64]).unwrap());
        let uneven = Table::new(vec![a.clone(), b]).unwrap_err().to_string();
        assert_eq!(uneven, "column b has 1 rows, but a has 2; all columns of a table need the same number");
        assert_eq!(Table::new(vec![a.clone(), a]).unwrap_err(), TableError::Twice { name: "a".into() });
        assert_eq!(Table::new(Vec::new()).unwrap().rows(), 0);
    }
}
