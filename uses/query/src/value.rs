//! What the numbers of a column stand for, and the values of an answer.

use super::calendar;
use std::cmp::Ordering;
use std::fmt::{self, Debug, Display};
use std::sync::Arc;

/// What the integers of a column stand for: its logical type, as Parquet and Arrow call it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LogicalType {
    /// Themselves.
    Integer,
    /// 0 is false, 1 is true.
    Boolean,
    /// Decimals: units of 10^-`scale`.
    Decimal {
        /// The digits after the point, at most 38.
        scale: u8,
    },
    /// Floating-point numbers: the codes of [`Double`].
    Float {
        /// The numbers have 32 bits in the file. Literals are rounded to 32 bits before they are compared.
        single: bool,
    },
    /// Days since 1970-01-01.
    Date,
    /// Points in time: units since 1970-01-01.
    Timestamp {
        /// The units of a second: a power of ten up to a billion.
        per_second: i64,
    },
    /// Texts: their numbers in the dictionary.
    Text(Arc<Dictionary>),
}

impl LogicalType {
    /// Returns the value for which a number stands. A number that stands for nothing is returned itself.
    pub(super) fn value(&self, code: i64) -> Value {
        let number = Value::Integer(code.into());
        match self {
            LogicalType::Integer => number,
            LogicalType::Boolean => match code {
                0 => Value::Boolean(false),
                1 => Value::Boolean(true),
                _ => number,
            },
            LogicalType::Decimal { scale } => Value::Decimal { units: code.into(), scale: *scale },
            LogicalType::Float { .. } => Value::Float(Double::of_code(code)),
            LogicalType::Date => Value::Date(code),
            LogicalType::Timestamp { per_second } => Value::Timestamp { count: code, per_second: *per_second },
            LogicalType::Text(words) => words.word(code).map_or(number, |word| Value::Text(Arc::clone(word))),
        }
    }

    /// Returns what a column of the type holds, for messages.
    #[must_use]
    pub fn holds(&self) -> &'static str {
        match self {
            LogicalType::Integer => "whole numbers",
            LogicalType::Boolean => "true and false",
            LogicalType::Decimal { .. } => "decimals",
            LogicalType::Float { .. } => "floating-point numbers",
            LogicalType::Date => "dates",
            LogicalType::Timestamp { .. } => "points in time",
            LogicalType::Text(_) => "text",
        }
    }
}

/// The distinct texts of a column, sorted by their bytes, so that their numbers have the order of the texts.
#[derive(PartialEq, Eq, Debug, Default)]
pub struct Dictionary {
    words: Vec<Arc<str>>,
}

impl Dictionary {
    /// Creates a dictionary of these texts; the order of the texts and repetitions do not matter.
    pub fn new(words: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Self {
        let mut words: Vec<Arc<str>> = words.into_iter().map(Into::into).collect();
        words.sort_unstable();
        words.dedup();
        Dictionary { words }
    }

    /// Returns the texts in order.
    #[must_use]
    pub fn words(&self) -> &[Arc<str>] {
        &self.words
    }

    /// Returns the text with this number.
    #[must_use]
    pub fn word(&self, code: i64) -> Option<&Arc<str>> {
        self.words.get(usize::try_from(code).ok()?)
    }

    /// Returns the number of a text, or, as an error, the number that it would have.
    ///
    /// # Errors
    /// If the text is not in the dictionary.
    pub fn find(&self, word: &str) -> Result<usize, usize> {
        self.words.binary_search_by(|other| (**other).cmp(word))
    }
}

/// A 64-bit floating-point number in the total order of SQL: `-0` equals `0`, and NaN equals itself and is the
/// greatest. It is stored as an integer of that order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Double(i64);

impl Double {
    /// Creates it from a number.
    #[must_use]
    pub fn new(number: f64) -> Self {
        let number = if number == 0.0 {
            0.0
        } else if number.is_nan() {
            f64::NAN.copysign(1.0)
        } else {
            number
        };
        Double(swap(number.to_bits().cast_signed()))
    }

    /// Creates it from its code. Every integer is the code of some number.
    #[must_use]
    pub const fn of_code(code: i64) -> Self {
        Double(code)
    }

    /// Returns its code: an integer with the order of the numbers.
    #[must_use]
    pub const fn code(self) -> i64 {
        self.0
    }

    /// Returns the number.
    #[inline]
    #[must_use]
    pub fn get(self) -> f64 {
        f64::from_bits(swap(self.0).cast_unsigned())
    }
}

/// Converts between the bits of a number and its code: below 0, more bits mean a lesser number.
#[inline]
fn swap(bits: i64) -> i64 {
    bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed()
}

/// Digits, with an exponent for very large and very small numbers.
impl Display for Double {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.get())
    }
}

impl Debug for Double {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

/// A value of an answer.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Value {
    /// No value: an aggregate of no values, or the group of the rows without a value.
    Null,
    /// A whole number.
    Integer(i128),
    /// True or false.
    Boolean(bool),
    /// A decimal.
    Decimal {
        /// The number without its point.
        units: i128,
        /// The digits after the point.
        scale: u8,
    },
    /// A floating-point number.
    Float(Double),
    /// A date: days since 1970-01-01.
    Date(i64),
    /// A point in time: units since 1970-01-01.
    Timestamp {
        /// The units.
        count: i64,
        /// The units of a second.
        per_second: i64,
    },
    /// A text.
    Text(Arc<str>),
}

impl Value {
    /// Returns a whole number.
    #[must_use]
    pub fn integer(&self) -> Option<i128> {
        if let Value::Integer(number) = self { Some(*number) } else { None }
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Integer(number.into())
    }
}

impl From<i128> for Value {
    fn from(number: i128) -> Self {
        Value::Integer(number)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}

/// As DuckDB prints it; text has no quotes.
impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Integer(number) => write!(f, "{number}"),
            Value::Boolean(value) => write!(f, "{value}"),
            Value::Decimal { units, scale } => f.write_str(&decimal(*units, *scale)),
            Value::Float(number) => write!(f, "{number}"),
            Value::Date(days) => f.write_str(&calendar::date((*days).into())),
            Value::Timestamp { count, per_second } => {
                f.write_str(&calendar::time((*count).into(), (*per_second).into()))
            }
            Value::Text(text) => f.write_str(text),
        }
    }
}

/// Returns a decimal as text, such as `-0.05`.
pub(super) fn decimal(units: i128, scale: u8) -> String {
    let (sign, digits) = (if units < 0 { "-" } else { "" }, units.unsigned_abs().to_string());
    let scale = usize::from(scale);
    if scale == 0 {
        return format!("{sign}{digits}");
    }
    let digits = format!("{digits:0>width$}", width = scale + 1);
    let (whole, rest) = digits.split_at(digits.len() - scale);
    format!("{sign}{whole}.{rest}")
}

/// Returns 10 to the power of `exponent`, if it fits.
pub(super) fn power_of_ten(exponent: u8) -> Option<i128> {
    10_i128.checked_pow(exponent.into())
}

/// Returns 10 to the power of `exponent`, rounded.
pub(super) fn float_power_of_ten(exponent: u8) -> f64 {
    // Correctly rounded, unlike a chain of multiplications.
    format!("1e{exponent}").parse().unwrap_or(f64::INFINITY)
}

/// Compares a decimal with a number as SQL does: both as floating-point numbers.
#[allow(clippy::cast_precision_loss, reason = "SQL compares rounded numbers")]
pub(super) fn compare(units: i128, scale: u8, number: f64) -> Ordering {
    (units as f64 / float_power_of_ten(scale)).total_cmp(&number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn codes_have_the_order_of_the_numbers(a in any::<f64>(), b in any::<f64>()) {
            let (one, other) = (Double::new(a), Double::new(b));
            prop_assert!(one.get() == a || a.is_nan() && one.get().is_nan());
            prop_assert_eq!(Double::of_code(one.code()), one);
            if !a.is_nan() && !b.is_nan() {
                prop_assert_eq!(one.cmp(&other), a.partial_cmp(&b).unwrap());
            }
        }
    }

    #[test]
    fn zeros_are_equal_and_nan_is_the_greatest() {
        assert_eq!(Double::new(-0.0), Double::new(0.0));
        assert_eq!(Double::new(-f64::NAN), Double::new(f64::NAN));
        assert!(Double::new(f64::NAN) > Double::new(f64::INFINITY));
        assert!(Double::new(f64::NAN).code() < i64::MAX, "there is room for a null");
        assert_eq!(Double::new(0.0).code(), 0);
    }

    #[test]
    fn values_are_printed_as_in_sql() {
        for (value, text) in [
            (Value::Null, "null"),
            (Value::Decimal { units: -5, scale: 2 }, "-0.05"),
            (Value::Decimal { units: i128::MIN, scale: 0 }, "-170141183460469231731687303715884105728"),
            (Value::Decimal { units: 123_456, scale: 4 }, "12.3456"),
            (Value::Float(Double::new(0.1)), "0.1"),
            (Value::Float(Double::new(1e300)), "1e300"),
            (Value::Date(10_471), "1998-09-02"),
            (Value::Timestamp { count: 1_500, per_second: 1_000 }, "1970-01-01 00:00:01.5"),
            (Value::Text("a b".into()), "a b"),
            (LogicalType::Boolean.value(1), "true"),
            (LogicalType::Text(Arc::default()).value(7), "7"),
        ] {
            assert_eq!(value.to_string(), text);
        }
    }

    #[test]
    fn a_dictionary_is_sorted_by_bytes() {
        let words = Dictionary::new(["b", "", "ä", "B", "b"]);
        assert_eq!(words.words().iter().map(|word| &**word).collect::<Vec<_>>(), ["", "B", "b", "ä"]);
        assert_eq!((words.find("b"), words.find("a"), words.word(-1)), (Ok(2), Err(2), None));
    }
}
