//! A column that is being read: Arrow's arrays become codes, and the codes a column.
//!
//! ```text
//! array ─► codes of the batch, and which rows have no value ─► at the end: texts are sorted, nulls get the code after
//!          texts are numbered as they come                     the greatest value, everything is copied to its memory
//! ```

use super::error::FileError;
use crate::generate::Memory;
use crate::{Column, Dictionary, Double, Kind, LogicalType};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, TimeUnit};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use zerocopy::IntoBytes as _;

/// A column that is being read.
pub(super) struct Gathering {
    pub(super) name: String,
    /// Its type in the first file.
    pub(super) of: DataType,
    kind: Kind,
    logical: LogicalType,
    parts: Vec<Part>,
    words: Words,
}

/// The rows of a batch.
struct Part {
    codes: Codes,
    /// A bit for each row, which is 1 if it has a value; none if all have.
    known: Option<Vec<u64>>,
}

enum Codes {
    U8(Vec<u8>),
    I32(Vec<i32>),
    I64(Vec<i64>),
}

impl Codes {
    fn len(&self) -> usize {
        match self {
            Codes::U8(codes) => codes.len(),
            Codes::I32(codes) => codes.len(),
            Codes::I64(codes) => codes.len(),
        }
    }

    fn get(&self, at: usize) -> i64 {
        match self {
            Codes::U8(codes) => codes[at].into(),
            Codes::I32(codes) => codes[at].into(),
            Codes::I64(codes) => codes[at],
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Codes::U8(codes) => codes,
            Codes::I32(codes) => codes.as_bytes(),
            Codes::I64(codes) => codes.as_bytes(),
        }
    }
}

impl Part {
    fn get(&self, at: usize) -> Option<i64> {
        let known = self.known.as_ref().is_none_or(|known| known[at / 64] >> (at % 64) & 1 == 1);
        known.then(|| self.codes.get(at))
    }
}

/// The texts of a column, numbered as they come.
#[derive(Default)]
struct Words {
    numbers: HashMap<Arc<str>, i32>,
    list: Vec<Arc<str>>,
    /// An estimate of their memory.
    bytes: usize,
}

/// Bytes of a text besides its own: its header, two pointers and a place in a hash table. Source: assumed.
const WORD: usize = 80;

impl Words {
    fn number(&mut self, word: &str) -> Result<i32, String> {
        if let Some(&number) = self.numbers.get(word) {
            return Ok(number);
        }
        // One less than could be counted: a null has a number, too.
        let number = i32::try_from(self.list.len()).ok().filter(|&number| number < i32::MAX - 1);
        let number = number.ok_or_else(|| "more than 2147483646 different texts".to_owned())?;
        let word: Arc<str> = word.into();
        self.bytes = self.bytes.saturating_add(word.len() + WORD);
        self.numbers.insert(Arc::clone(&word), number);
        self.list.push(word);
        Ok(number)
    }
}

/// Advice for values for which there is no code.
pub(super) const CAST: &str =
    "cast it, for example to a number of at most 18 digits, a date or text, and write the file anew";
const NULLS: &str = "leave the rows without a value out, or give them one";

pub(super) fn refused(path: &Path, name: &str, holds: String, do_this: &'static str) -> FileError {
    FileError::Values { path: path.to_owned(), name: name.to_owned(), holds, do_this }
}

impl Gathering {
    /// Begins a column of this type; `None` if the query cannot compute with it.
    pub(super) fn begin(name: &str, of: &DataType) -> Option<Self> {
        let (kind, logical) = types(of)?;
        let name = name.to_owned();
        Some(Gathering { name, of: of.clone(), kind, logical, parts: Vec::new(), words: Words::default() })
    }

    /// Returns the bytes of a row while it is being read.
    pub(super) fn width(&self) -> usize {
        self.kind.width()
    }

    /// Returns the bytes of its texts.
    pub(super) fn bytes_of_words(&self) -> usize {
        self.words.bytes
    }

    /// Adds the rows of an array. The error says what cannot be converted.
    pub(super) fn take(&mut self, array: &ArrayRef) -> Result<(), String> {
        let nulls = array.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        // A copy: the array's own may keep the memory of a whole message.
        let known = nulls.map(|nulls| {
            let mut words = vec![0_u64; array.len().div_ceil(64)];
            nulls.valid_indices().for_each(|at| words[at / 64] |= 1 << (at % 64));
            words
        });
        let is_known = |at: usize| known.as_ref().is_none_or(|known: &Vec<u64>| known[at / 64] >> (at % 64) & 1 == 1);
        let codes = match &self.logical {
            LogicalType::Text(_) => Codes::I32(texts(array, &is_known, &mut self.words)?),
            _ => codes(array, self.kind, &is_known)?,
        };
        self.parts.push(Part { codes, known });
        Ok(())
    }

    /// Creates the column in the memory that `memory` allocates.
    pub(super) fn finish(mut self, path: &Path, memory: Memory<'_>) -> Result<Column, FileError> {
        let ranks = self.sorted();
        let has_nulls = self.parts.iter().any(|part| part.known.is_some());
        let (mut kind, mut null) = (self.kind, None);
        if has_nulls || !ranks.is_empty() {
            let values = self.parts.iter().flat_map(|part| (0..part.codes.len()).filter_map(|at| part.get(at)));
            let greatest = match ranks.len() {
                0 => values.max().unwrap_or(0).max(0),
                words => words as i64 - 1,
            };
            null = if has_nulls { Some(greatest.checked_add(1)) } else { None }
                .map(|null| {
                    let holds = || format!("nulls and the value {greatest}");
                    null.ok_or_else(|| refused(path, &self.name, holds(), NULLS))
                })
                .transpose()?;
            kind = least_kind(self.kind, !ranks.is_empty(), null.unwrap_or(greatest));
        }
        let rows: usize = self.parts.iter().map(|part| part.codes.len()).sum();
        // Cannot overflow: this many codes were gathered, with a width near to this.
        let len = rows.saturating_mul(kind.width());
        let mut region = memory(&self.name, len).map_err(|source| FileError::Memory { len, source })?;
        let mut at = 0;
        for part in std::mem::take(&mut self.parts) {
            let bytes = part.codes.len() * kind.width();
            let into = &mut region[at..at + bytes];
            at += bytes;
            if ranks.is_empty() && kind == self.kind && part.known.is_none() {
                into.copy_from_slice(part.codes.bytes());
                continue;
            }
            let rank = |code: i64| usize::try_from(code).ok().and_then(|at| ranks.get(at).copied()).unwrap_or(code);
            let code = |at: usize| part.get(at).map_or(null.unwrap_or_default(), rank);
            fill(into, kind, (0..part.codes.len()).map(code));
        }
        let mut column = Column::new(&self.name, kind, Arc::new(region))?;
        if let Some(null) = null {
            column = column.with_null(null)?;
        }
        Ok(column.with_type(self.logical)?)
    }

    /// Sorts the texts; returns the place in that order for each number.
    fn sorted(&mut self) -> Vec<i64> {
        let LogicalType::Text(_) = self.logical else { return Vec::new() };
        let Words { numbers, list, .. } = std::mem::take(&mut self.words);
        drop(numbers);
        let dictionary = Dictionary::new(list.iter().cloned());
        // Every text is found.
        let ranks = list.iter().map(|word| dictionary.find(word).map_or(0, |at| at as i64)).collect();
        self.logical = LogicalType::Text(Arc::new(dictionary));
        ranks
    }
}

/// Returns the kind for codes up to `greatest`: at least the one that was read, except for texts.
fn least_kind(read: Kind, is_text: bool, greatest: i64) -> Kind {
    match read {
        Kind::U8 | Kind::I32 if (is_text || read == Kind::U8) && greatest <= u8::MAX.into() => Kind::U8,
        Kind::U8 | Kind::I32 if greatest <= i32::MAX.into() => Kind::I32,
        _ => Kind::I64,
    }
}

/// Writes codes, which fit in the kind.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "they fit in the kind")]
fn fill(into: &mut [u8], kind: Kind, codes: impl Iterator<Item = i64>) {
    match kind {
        Kind::U8 => into.iter_mut().zip(codes).for_each(|(into, code)| *into = code as u8),
        Kind::I32 => {
            let (into, _) = into.as_chunks_mut::<4>();
            into.iter_mut().zip(codes).for_each(|(into, code)| *into = (code as i32).to_ne_bytes());
        }
        Kind::I64 => {
            let (into, _) = into.as_chunks_mut::<8>();
            into.iter_mut().zip(codes).for_each(|(into, code)| *into = code.to_ne_bytes());
        }
    }
}

/// Returns the kind and the logical type of a column of an Arrow type; `None` if the query cannot compute with it.
fn types(of: &DataType) -> Option<(Kind, LogicalType)> {
    use DataType::{
        Boolean, Date32, Date64, Decimal32, Decimal64, Decimal128, Duration, Float32, Float64, Int8, Int16, Int32,
        Int64, LargeUtf8, Time32, Time64, Timestamp, UInt8, UInt16, UInt32, UInt64, Utf8, Utf8View,
    };
    let decimal = |kind, scale: i8| Some((kind, LogicalType::Decimal { scale: u8::try_from(scale).ok()? }));
    match of {
        Boolean => Some((Kind::U8, LogicalType::Boolean)),
        UInt8 => Some((Kind::U8, LogicalType::Integer)),
        Int8 | Int16 | UInt16 | Int32 | Time32(_) => Some((Kind::I32, LogicalType::Integer)),
        UInt32 | Int64 | UInt64 | Time64(_) | Duration(_) => Some((Kind::I64, LogicalType::Integer)),
        Date32 => Some((Kind::I32, LogicalType::Date)),
        Date64 => Some((Kind::I64, LogicalType::Date)),
        Timestamp(unit, _) => {
            let per_second = match unit {
                TimeUnit::Second => 1,
                TimeUnit::Millisecond => 1_000,
                TimeUnit::Microsecond => 1_000_000,
                TimeUnit::Nanosecond => 1_000_000_000,
            };
            Some((Kind::I64, LogicalType::Timestamp { per_second }))
        }
        Decimal32(_, scale) => decimal(Kind::I32, *scale),
        Decimal64(_, scale) | Decimal128(_, scale) => decimal(Kind::I64, *scale),
        Float32 => Some((Kind::I64, LogicalType::Float { single: true })),
        Float64 => Some((Kind::I64, LogicalType::Float { single: false })),
        Utf8 | LargeUtf8 | Utf8View => Some((Kind::I32, LogicalType::Text(Arc::default()))),
        DataType::Dictionary(_, values) => types(values).filter(|(_, logical)| matches!(logical, LogicalType::Text(_))),
        _ => None,
    }
}

/// Milliseconds of a day.
const DAY: i64 = 86_400_000;

/// Converts an array to codes of this kind. The error names the first value that cannot be converted.
fn codes(array: &ArrayRef, kind: Kind, is_known: &dyn Fn(usize) -> bool) -> Result<Codes, String> {
    let (data, len) = (array.to_data(), array.len());
    // A row without a value may contain anything.
    macro_rules! whole {
        ($from:ty => $to:ty, $codes:path) => {{
            let mut codes = Vec::with_capacity(len);
            // The buffer may continue behind the array's values.
            for (at, value) in data.buffer::<$from>(0).iter().take(len).enumerate() {
                codes.push(match <$to>::try_from(*value) {
                    Ok(code) => code,
                    Err(_) if !is_known(at) => 0,
                    Err(_) => return Err(format!("the value {value}, which takes more than 64 bits")),
                });
            }
            $codes(codes)
        }};
    }
    macro_rules! float {
        ($from:ty) => {{
            let numbers = data.buffer::<$from>(0).iter().take(len);
            Codes::I64(numbers.map(|&number| Double::new(number.into()).code()).collect())
        }};
    }
    Ok(match array.data_type() {
        DataType::Boolean => Codes::U8(array.as_boolean().values().iter().map(u8::from).collect()),
        DataType::UInt8 => whole!(u8 => u8, Codes::U8),
        DataType::Int8 => whole!(i8 => i32, Codes::I32),
        DataType::Int16 => whole!(i16 => i32, Codes::I32),
        DataType::UInt16 => whole!(u16 => i32, Codes::I32),
        DataType::UInt32 => whole!(u32 => i64, Codes::I64),
        DataType::UInt64 => whole!(u64 => i64, Codes::I64),
        DataType::Decimal128(..) => whole!(i128 => i64, Codes::I64),
        DataType::Float32 => float!(f32),
        DataType::Float64 => float!(f64),
        DataType::Date64 => {
            let days = data.buffer::<i64>(0).iter().take(len).map(|value| value.div_euclid(DAY));
            Codes::I64(days.collect())
        }
        _ if kind == Kind::I32 => whole!(i32 => i32, Codes::I32),
        _ => whole!(i64 => i64, Codes::I64),
    })
}

/// Converts texts to their numbers.
fn texts(array: &ArrayRef, is_known: &dyn Fn(usize) -> bool, words: &mut Words) -> Result<Vec<i32>, String> {
    fn all<'a>(
        texts: impl Iterator<Item = Option<&'a str>>,
        is_known: &dyn Fn(usize) -> bool,
        words: &mut Words,
    ) -> Result<Vec<i32>, String> {
        // Neighbours are often equal.
        let mut last: Option<(&str, i32)> = None;
        let mut number = |(at, text): (usize, Option<&'a str>)| {
            let Some(text) = text.filter(|_| is_known(at)) else { return Ok(0) };
            match last {
                Some((before, number)) if before == text => Ok(number),
                _ => {
                    let number = words.number(text)?;
                    last = Some((text, number));
                    Ok(number)
                }
            }
        };
        texts.enumerate().map(&mut number).collect()
    }
    match array.data_type() {
        DataType::Utf8 => all(array.as_string::<i32>().iter(), is_known, words),
        DataType::LargeUtf8 => all(array.as_string::<i64>().iter(), is_known, words),
        DataType::Utf8View => all(array.as_string_view().iter(), is_known, words),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let values = dictionary.values();
            if values.is_empty() {
                return Ok(vec![0; array.len()]);
            }
            let is_used = {
                // A dictionary may have texts that no row uses, and they are no values of the column.
                let mut is_used = vec![false; values.len()];
                for (at, key) in dictionary.normalized_keys().into_iter().enumerate() {
                    if is_known(at) {
                        is_used[key] = true;
                    }
                }
                is_used
            };
            let numbers = texts(values, &|at| is_used[at], words)?;
            Ok(dictionary.normalized_keys().into_iter().map(|key| numbers[key]).collect())
        }
        other => Err(format!("values of the type {other}")),
    }
}
