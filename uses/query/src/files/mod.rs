//! A user's own data: columns of Parquet and Arrow files as columns of a query.

mod messages;

use crate::{Column, ColumnError, Kind, Table, TableError};
use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use arrow_schema::{ArrowError, DataType, Schema};
pub use messages::MessageError;
use messages::Messages;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::file::metadata::ParquetMetaData;
use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use telpher_mem::{MapError, Region};
use telpher_os::{available_memory, size};

/// Why a file could not be read as columns.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system could not read the file.
    #[error("cannot read {}; name a Parquet or an Arrow file that this user may read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file has another format, or is damaged.
    #[error("cannot read {} as {format}; {do_this}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// `a Parquet file`.
        format: &'static str,
        /// Advice.
        do_this: &'static str,
        /// The reader's error.
        source: MessageError,
    },
    /// The format's reader panicked.
    #[error("cannot read {} as {format}: it is damaged; write it anew", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// `a Parquet file`.
        format: &'static str,
    },
    /// The file has no such column.
    #[error("{} has no column '{name}'; it has {known}", path.display())]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The requested column.
        name: String,
        /// The columns of the file.
        known: String,
    },
    /// The column's values are not whole numbers.
    #[error("column '{name}' of {} holds {holds}; the query computes with whole numbers: {do_this}", path.display())]
    Values {
        /// The file.
        path: PathBuf,
        /// The column.
        name: String,
        /// What the column holds.
        holds: String,
        /// Advice.
        do_this: &'static str,
    },
    /// The files are of different tables.
    #[error(
        "column '{name}' holds {first} in the first file and {other} in {}; give files of one table", path.display()
    )]
    Differ {
        /// The file that differs from the first.
        path: PathBuf,
        /// The column.
        name: String,
        /// The column's type in the first file.
        first: String,
        /// Its type in this file.
        other: String,
    },
    /// The columns are larger than the available memory.
    #[error(
        "the columns of {} take more than {} of memory, half of what is left here; name fewer of them, or cut the file",
        path.display(), size(*most as u64)
    )]
    Large {
        /// The file.
        path: PathBuf,
        /// The limit in bytes.
        most: usize,
    },
    /// The files have no rows.
    #[error("there are no rows in what --input names; give a file that has some")]
    Empty,
    /// There is no memory for a column.
    #[error("no memory for a column of {len} bytes; name fewer columns, or cut the file")]
    Memory {
        /// The requested bytes.
        len: usize,
        /// The system's error.
        source: MapError,
    },
    /// A column is invalid.
    #[error(transparent)]
    Column(#[from] ColumnError),
    /// The columns do not form one table.
    #[error(transparent)]
    Table(#[from] TableError),
}

const NULLS: &str = "leave the rows without a value out, or give them one";
const CAST: &str = "cast it, for example to decimal or integer, and write the file anew";

/// The columns read from files.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Found {
    /// The columns, in the order of the names.
    pub table: Table,
    /// Names of columns whose values are the codes of characters.
    pub letters: Vec<String>,
}

/// Reads the named columns of all files, appending the rows of each file. If no column is named, as for a query that
/// only counts, the result is one column of zeros. `memory` allocates each column, given its name and size;
/// [`anywhere`](crate::generate::anywhere) takes any memory.
///
/// ```no_run
/// use std::path::PathBuf;
/// use telpher_query::{Options, Plan, files, generate, run};
///
/// let plan: Plan = "select sum(price) from t where day < 100".parse()?;
/// let names = plan.columns();
/// let found = files::read(&[PathBuf::from("lineitem.parquet")], &names, &mut generate::anywhere)?;
/// let report = run(&plan.on(&found.table)?, None, &Options::default())?;
/// println!("{:?}", report.answer.rows);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If a file cannot be read or has no such column, if values are not whole numbers, if there are no rows, or if there
/// is not enough memory.
pub fn read(
    files: &[PathBuf],
    names: &[String],
    memory: &mut dyn FnMut(&str, usize) -> Result<Region, MapError>,
) -> Result<Found, FileError> {
    // Each column is in memory twice for a while: as gathered, and as copied.
    let most = available_memory().map_or(usize::MAX, |room| usize::try_from(room / 2).unwrap_or(usize::MAX));
    let mut gathered = Gathered { columns: Vec::new(), rows: 0, most };
    files.iter().try_for_each(|path| add(path, names, &mut gathered))?;
    if gathered.rows == 0 {
        return Err(FileError::Empty);
    }
    let is_text = |column: &&Gathering| matches!(column.of, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let letters = gathered.columns.iter().filter(is_text).map(|column| column.name.clone()).collect();
    let mut columns = Vec::new();
    for Gathering { name, kind, parts, .. } in gathered.columns {
        // Cannot overflow: this many bytes were gathered.
        let len = gathered.rows * kind.width();
        let mut region = memory(&name, len).map_err(|source| FileError::Memory { len, source })?;
        let mut at = 0;
        for part in parts {
            region[at..at + part.len()].copy_from_slice(&part);
            at += part.len();
        }
        columns.push(Column::new(&name, kind, Arc::new(region))?);
    }
    if columns.is_empty() {
        let region = memory(ROWS_ONLY, gathered.rows);
        let region = region.map_err(|source| FileError::Memory { len: gathered.rows, source })?;
        columns.push(Column::new(ROWS_ONLY, Kind::U8, Arc::new(region))?);
    }
    Ok(Found { table: Table::new(columns)?, letters })
}

/// Name of the column of zeros in a table without other columns.
const ROWS_ONLY: &str = "rows";

/// Everything read so far, over all files.
struct Gathered {
    columns: Vec<Gathering>,
    rows: usize,
    /// The limit in bytes.
    most: usize,
}

/// A column that is being read.
struct Gathering {
    name: String,
    /// Its type in the first file.
    of: DataType,
    kind: Kind,
    /// Its values so far, one part for each batch.
    parts: Vec<Vec<u8>>,
}

impl Gathered {
    /// Begins a file: the first file defines the columns, and the types of later files must equal them.
    fn begin(&mut self, path: &Path, names: &[String], types: &[&DataType]) -> Result<(), FileError> {
        for (name, of) in names.iter().zip(types) {
            let Some(first) = self.columns.iter().find(|column| column.name == *name) else {
                let holds = || format!("values of the type {of}");
                let kind = kind(of).ok_or_else(|| refused(path, name, holds(), CAST))?;
                let of = (*of).clone();
                self.columns.push(Gathering { name: name.clone(), of, kind, parts: Vec::new() });
                continue;
            };
            if first.of != **of {
                let (first, other) = (first.of.to_string(), of.to_string());
                return Err(FileError::Differ { path: path.to_owned(), name: name.clone(), first, other });
            }
        }
        Ok(())
    }

    /// Adds a batch of rows, whose columns are in the order of `columns`.
    fn take(&mut self, path: &Path, batch: &RecordBatch) -> Result<(), FileError> {
        let row: usize = self.columns.iter().map(|column| column.kind.width()).sum();
        self.rows = self.rows.saturating_add(batch.num_rows());
        let len = self.rows.saturating_mul(row.max(1));
        if len > self.most {
            return Err(FileError::Large { path: path.to_owned(), most: self.most });
        }
        for (array, column) in batch.columns().iter().zip(&mut self.columns) {
            if array.logical_null_count() > 0 {
                return Err(refused(path, &column.name, "nulls".into(), NULLS));
            }
            let values = values(array, column.kind).map_err(|holds| refused(path, &column.name, holds, CAST))?;
            column.parts.push(values);
        }
        Ok(())
    }
}

fn refused(path: &Path, name: &str, holds: String, do_this: &'static str) -> FileError {
    FileError::Values { path: path.to_owned(), name: name.to_owned(), holds, do_this }
}

/// Returns the query's kind of column for an Arrow type; `None` if the query cannot compute with it.
fn kind(of: &DataType) -> Option<Kind> {
    use DataType::{
        Boolean, Date32, Date64, Decimal32, Decimal64, Decimal128, Duration, Int8, Int16, Int32, Int64, LargeUtf8,
        Time32, Time64, Timestamp, UInt8, UInt16, UInt32, UInt64, Utf8, Utf8View,
    };
    match of {
        Boolean | UInt8 | Utf8 | LargeUtf8 | Utf8View => Some(Kind::U8),
        Int8 | Int16 | UInt16 | Int32 | Date32 | Time32(_) | Decimal32(..) => Some(Kind::I32),
        UInt32 | Int64 | UInt64 | Date64 | Time64(_) | Timestamp(..) | Duration(_) | Decimal64(..) | Decimal128(..) => {
            Some(Kind::I64)
        }
        _ => None,
    }
}

/// Converts an array to bytes of this [`kind`]. The error names the first value that cannot be converted.
fn values(array: &dyn Array, kind: Kind) -> Result<Vec<u8>, String> {
    let data = array.to_data();
    let mut out = Vec::with_capacity(array.len() * kind.width());
    macro_rules! whole {
        ($from:ty => $to:ty) => {
            // The buffer may continue behind the array's values.
            for value in data.buffer::<$from>(0).iter().take(array.len()) {
                let whole =
                    <$to>::try_from(*value).map_err(|_| format!("the value {value}, which takes more than 64 bits"))?;
                out.extend(whole.to_ne_bytes());
            }
        };
    }
    match array.data_type() {
        DataType::Boolean => out.extend(array.as_boolean().values().iter().map(u8::from)),
        DataType::Utf8 => letters(array.as_string::<i32>().iter(), &mut out)?,
        DataType::LargeUtf8 => letters(array.as_string::<i64>().iter(), &mut out)?,
        DataType::Utf8View => letters(array.as_string_view().iter(), &mut out)?,
        DataType::UInt8 => whole!(u8 => u8),
        DataType::Int8 => whole!(i8 => i32),
        DataType::Int16 => whole!(i16 => i32),
        DataType::UInt16 => whole!(u16 => i32),
        DataType::UInt32 => whole!(u32 => i64),
        DataType::UInt64 => whole!(u64 => i64),
        DataType::Decimal128(..) => whole!(i128 => i64),
        _ if kind == Kind::I32 => whole!(i32 => i32),
        _ => whole!(i64 => i64),
    }
    Ok(out)
}

/// Converts texts of one character to their codes.
fn letters<'a>(texts: impl Iterator<Item = Option<&'a str>>, out: &mut Vec<u8>) -> Result<(), String> {
    for text in texts {
        let text = text.unwrap_or_default();
        match text.as_bytes() {
            [letter] => out.push(*letter),
            _ => {
                let begin: String = text.chars().take(20).collect();
                return Err(format!("the text '{}', which is not one character of ASCII", begin.escape_debug()));
            }
        }
    }
    Ok(())
}

/// Adds the rows of a file. Its first bytes determine the format.
fn add(path: &Path, names: &[String], gathered: &mut Gathered) -> Result<(), FileError> {
    let format = Format::of(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    // The readers report errors of a file. A panic of a reader is also turned into an error message.
    quietly(|| format.read(path, names, gathered))
        .unwrap_or_else(|| Err(FileError::Damaged { path: path.to_owned(), format: format.named() }))
}

thread_local! {
    /// Whether panics of this thread are silent, because a caller catches and reports them.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function; returns `None` if it panics, without printing the panic.
fn quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                before(panic);
            }
        }));
    });
    QUIET.set(true);
    let came = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(false);
    came.ok()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    Parquet,
    /// Arrow's file format.
    Arrow,
    /// Arrow's stream format, which has no magic bytes.
    Stream,
}

impl Format {
    fn of(path: &Path) -> io::Result<Format> {
        let mut begin = Vec::new();
        File::open(path)?.take(6).read_to_end(&mut begin)?;
        Ok(match begin.as_slice() {
            [b'P', b'A', b'R', b'1', ..] => Format::Parquet,
            b"ARROW1" => Format::Arrow,
            _ => Format::Stream,
        })
    }

    fn named(self) -> &'static str {
        match self {
            Format::Parquet => "a Parquet file",
            Format::Arrow => "an Arrow file",
            Format::Stream => "a Parquet or an Arrow file",
        }
    }

    /// Returns advice for a file that cannot be read in this format.
    fn remedy(self) -> &'static str {
        match self {
            Format::Parquet | Format::Arrow => "write it anew",
            Format::Stream => "convert it, for example by DuckDB's copy (from 'FILE') to 'FILE.parquet'",
        }
    }

    /// Adds all rows of the named columns.
    fn read(self, path: &Path, names: &[String], gathered: &mut Gathered) -> Result<(), FileError> {
        let (format, do_this) = (self.named(), self.remedy());
        let wrong = |source| FileError::Format { path: path.to_owned(), format, do_this, source };
        let file = || File::open(path).map_err(|source| FileError::Read { path: path.to_owned(), source });
        match self {
            Format::Parquet => {
                // The embedded Arrow schema would only describe how values are encoded.
                let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
                let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(file()?, options);
                let builder = builder.map_err(|error| wrong(ArrowError::from(error).into()))?;
                within(builder.metadata(), &file()?).map_err(wrong)?;
                let chosen = Chosen::of(path, builder.schema(), names, gathered)?;
                let mask = ProjectionMask::roots(builder.parquet_schema(), chosen.read.iter().copied());
                let reader = builder.with_projection(mask).with_batch_size(ROWS).build();
                let reader = reader.map_err(|error| wrong(ArrowError::from(error).into()))?;
                chosen.gather(path, gathered, reader.map(|batch| batch.map_err(MessageError::from)), wrong)
            }
            Format::Arrow | Format::Stream => {
                let most = gathered.most as u64;
                let open = if self == Format::Arrow { Messages::of_file } else { Messages::of_stream };
                let messages = open(file()?, most).map_err(wrong)?;
                let chosen = Chosen::of(path, messages.schema(), names, gathered)?;
                let messages = messages.with_columns(chosen.read.clone());
                chosen.gather(path, gathered, messages, wrong)
            }
        }
    }
}

/// Checks that a Parquet file contains the bytes that its columns declare: its reader allocates them at once.
fn within(metadata: &ParquetMetaData, file: &File) -> Result<(), MessageError> {
    let len = file.metadata()?.len();
    for (number, group) in metadata.row_groups().iter().enumerate() {
        for column in group.columns() {
            let start = column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset());
            let end = start.checked_add(column.compressed_size()).and_then(|end| u64::try_from(end).ok());
            if start < 0 || column.compressed_size() < 0 || end.is_none_or(|end| end > len) {
                return Err(MessageError::Damaged(format!(
                    "column {} of row group {number} declares {} bytes at {start}, and the file has {len}",
                    column.column_path(),
                    column.compressed_size()
                )));
            }
        }
    }
    Ok(())
}

/// Rows read at a time. Source: assumed; a batch of one column fits the caches.
const ROWS: usize = 64 << 10;

/// The columns to read from a file.
struct Chosen {
    /// Their numbers in the file, ascending, each once: the order in which they are read.
    read: Vec<usize>,
    /// For each requested name, its position in `read`.
    order: Vec<usize>,
}

impl Chosen {
    /// Finds the named columns and begins the file.
    fn of(path: &Path, schema: &Schema, names: &[String], gathered: &mut Gathered) -> Result<Chosen, FileError> {
        let found: Vec<usize> = names.iter().map(|name| find(path, schema, name)).collect::<Result<_, _>>()?;
        let types: Vec<&DataType> = found.iter().map(|number| schema.field(*number).data_type()).collect();
        gathered.begin(path, names, &types)?;
        let mut read = found.clone();
        read.sort_unstable();
        read.dedup();
        let order = found.iter().map(|number| read.binary_search(number).unwrap_or(0)).collect();
        Ok(Chosen { read, order })
    }

    fn gather(
        &self,
        path: &Path,
        gathered: &mut Gathered,
        batches: impl Iterator<Item = Result<RecordBatch, MessageError>>,
        wrong: impl Fn(MessageError) -> FileError,
    ) -> Result<(), FileError> {
        for batch in batches {
            let batch = batch.and_then(|batch| Ok(batch.project(&self.order)?)).map_err(&wrong)?;
            gathered.take(path, &batch)?;
        }
        Ok(())
    }
}

/// Returns the position of the column with this name. Case is ignored if that leaves one column only.
fn find(path: &Path, schema: &Schema, name: &str) -> Result<usize, FileError> {
    let names = || schema.fields().iter().map(|field| field.name());
    let mut alike = names().enumerate().filter(|(_, known)| known.eq_ignore_ascii_case(name));
    let exactly = names().position(|known| known == name);
    let only = || alike.next().map(|(number, _)| number).filter(|_| alike.next().is_none());
    exactly.or_else(only).ok_or_else(|| {
        let mut known: Vec<String> = names().take(SAID).map(|known| known.escape_debug().to_string()).collect();
        match names().count().saturating_sub(SAID) {
            0 if known.is_empty() => known.push("none".into()),
            0 => {}
            more => known.push(format!("and {more} more")),
        }
        FileError::NoColumn { path: path.to_owned(), name: name.to_owned(), known: known.join(", ") }
    })
}

/// Maximum columns that the error for a missing column lists. Source: chosen; TPC-H's widest table has as many.
const SAID: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::anywhere;
    use arrow_array::{ArrayRef, Decimal128Array, Int32Array, Int64Array, LargeStringArray, UInt16Array, UInt64Array};
    use arrow_ipc::CompressionType;
    use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
    use parquet::arrow::ArrowWriter;
    use parquet::basic::{Compression, ZstdLevel};
    use parquet::file::properties::WriterProperties;

    fn batch(rows: i32) -> RecordBatch {
        let letters = (0..rows).map(|row| if row % 2 == 0 { "A" } else { "B" });
        let columns: [(&str, ArrayRef); 4] = [
            ("day", Arc::new(Int32Array::from_iter_values((0..rows).map(|row| row * 7 % 1000)))),
            ("Price", Arc::new(Decimal128Array::from_iter_values((0..rows).map(|row| i128::from(row) - 50)))),
            ("flag", Arc::new(LargeStringArray::from_iter_values(letters))),
            (
                "short",
                Arc::new(UInt16Array::from_iter_values((0..rows).map(|row| u16::try_from(row % 60_000).unwrap()))),
            ),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    fn parquet(batch: &RecordBatch, compression: Compression) -> Vec<u8> {
        let mut bytes = Vec::new();
        let properties =
            WriterProperties::builder().set_compression(compression).set_max_row_group_row_count(Some(100));
        let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties.build())).unwrap();
        writer.write(batch).unwrap();
        writer.close().unwrap();
        bytes
    }

    fn arrow(batch: &RecordBatch) -> Vec<u8> {
        let mut writer = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        writer.write(batch).unwrap();
        writer.write(&batch.slice(0, 3.min(batch.num_rows()))).unwrap();
        writer.into_inner().unwrap()
    }

    fn stream(batch: &RecordBatch) -> Vec<u8> {
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        writer.write(batch).unwrap();
        writer.into_inner().unwrap()
    }

    const CODECS: [CompressionType; 2] = [CompressionType::LZ4_FRAME, CompressionType::ZSTD];

    fn compressed(batch: &RecordBatch, codec: CompressionType, is_file: bool) -> Vec<u8> {
        let options = IpcWriteOptions::default().try_with_compression(Some(codec)).unwrap();
        if is_file {
            let mut writer = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
            writer.write(batch).unwrap();
            writer.into_inner().unwrap()
        } else {
            let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
            writer.write(batch).unwrap();
            writer.into_inner().unwrap()
        }
    }

    /// Writes a file with its own name for each test.
    fn file(name: &str, bytes: &[u8]) -> PathBuf {
        let path = std::env::temp_dir().join(format!("telpher-input-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn of(files: &[&Path], names: &[&str]) -> Result<Table, FileError> {
        let files: Vec<PathBuf> = files.iter().map(|path| path.to_path_buf()).collect();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        read(&files, &names, &mut anywhere).map(|found| found.table)
    }

    fn all_formats(rows: i32) -> Vec<Vec<u8>> {
        let batch = batch(rows);
        let zstd = Compression::ZSTD(ZstdLevel::default());
        let mut all: Vec<Vec<u8>> = [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::LZ4_RAW, zstd]
            .map(|compression| parquet(&batch, compression))
            .into();
        all.extend([arrow(&batch), stream(&batch)]);
        for codec in CODECS {
            all.extend([true, false].map(|is_file| compressed(&batch, codec, is_file)));
        }
        all
    }

    #[test]
    fn every_format_gives_the_requested_columns_in_any_order() {
        for (number, bytes) in all_formats(250).iter().enumerate() {
            let path = file(&format!("formats-{number}"), bytes);
            let table = of(&[&path, &path], &["short", "price", "day", "flag"]).unwrap();
            std::fs::remove_file(path).unwrap();
            let rows = table.rows();
            assert!(rows == 500 || rows == 506, "{number}: {rows}");
            let kinds: Vec<Kind> = table.columns().iter().map(Column::kind).collect();
            assert_eq!(kinds, [Kind::I32, Kind::I64, Kind::I32, Kind::U8]);
            for row in 0..250 {
                let value = |column: usize| table.columns()[column].value(rows / 2 + row).unwrap();
                let row = i64::try_from(row).unwrap();
                assert_eq!((value(0), value(1), value(2)), (row, row - 50, row * 7 % 1000), "{number}");
                assert_eq!(value(3), i64::from(if row % 2 == 0 { b'A' } else { b'B' }));
            }
        }
    }

    #[test]
    fn a_query_that_only_counts_reads_no_column() {
        for (number, bytes) in all_formats(120).iter().enumerate() {
            let path = file(&format!("counted-{number}"), bytes);
            let table = of(&[&path], &[]).unwrap();
            std::fs::remove_file(path).unwrap();
            assert!([120, 123].contains(&table.rows()), "{number}: {}", table.rows());
        }
    }

    #[test]
    fn unsuitable_values_are_named_in_the_error() {
        let large: ArrayRef = Arc::new(UInt64Array::from(vec![1, u64::MAX]));
        let path = file("large", &arrow(&RecordBatch::try_from_iter([("x", large)]).unwrap()));
        let said = of(&[&path], &["x"]).unwrap_err().to_string();
        assert!(said.contains("the value 18446744073709551615, which takes more than 64 bits"), "{said}");
        let other: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        let another = file("another", &arrow(&RecordBatch::try_from_iter([("x", other)]).unwrap()));
        let said = of(&[&another, &path], &["x"]).unwrap_err().to_string();
        assert!(said.contains("column 'x' holds Int64 in the first file and UInt64 in"), "{said}");
        let names: Vec<ArrayRef> = (0..20).map(|_| Arc::new(Int64Array::from(vec![1])) as ArrayRef).collect();
        let wide =
            RecordBatch::try_from_iter(names.into_iter().enumerate().map(|(n, it)| (format!("c{n}"), it))).unwrap();
        std::fs::write(&path, arrow(&wide)).unwrap();
        let said = of(&[&path], &["x"]).unwrap_err().to_string();
        assert!(
            said.ends_with(
                "has no column 'x'; it has c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, \
                 and 4 more"
            ),
            "{said}"
        );
        std::fs::write(&path, arrow(&wide.slice(0, 0))).unwrap();
        assert!(matches!(of(&[&path], &["c1"]), Err(FileError::Empty)));
        [path, another].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }

    #[test]
    fn the_declared_length_of_a_compressed_buffer_is_checked_before_allocation() {
        // The values repeat, so the buffer is compressed: its first word is then its length, not -1.
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values((0..512).map(|row| row % 4)));
        let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
        let path = file("declared", &[]);
        for (codec, name) in CODECS.into_iter().zip(["LZ4", "Zstandard"]) {
            for is_file in [true, false] {
                let whole = compressed(&batch, codec, is_file);
                std::fs::write(&path, &whole).unwrap();
                assert_eq!(of(&[&path], &["x"]).unwrap().rows(), 512);
                let at = whole.windows(8).position(|word| word == 4096_i64.to_le_bytes()).unwrap();
                // The last exceeds any memory. arrow-ipc's own readers allocate each of them before they read anything.
                for declared in [64_i64 << 20, 1 << 40, 6_000_000_000_000_000_000] {
                    let mut damaged = whole.clone();
                    damaged[at..at + 8].copy_from_slice(&declared.to_le_bytes());
                    std::fs::write(&path, &damaged).unwrap();
                    let error = of(&[&path], &["x"]).unwrap_err();
                    let why = std::error::Error::source(&error).unwrap().to_string();
                    let begin =
                        format!("buffer 1 of message {} declares {declared} bytes, and its ", u8::from(!is_file));
                    assert!(why.starts_with(&begin) && why.contains(&format!("of {name} hold at most ")), "{why}");
                }
                let mut damaged = whole;
                damaged[at..at + 8].copy_from_slice(&(-2_i64).to_le_bytes());
                std::fs::write(&path, &damaged).unwrap();
                assert!(of(&[&path], &["x"]).is_err());
            }
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_buffer_beyond_the_memory_limit_is_refused_with_the_limit() {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values((0..1 << 16).map(|_| 7)));
        let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
        for codec in CODECS {
            let path = file("limit", &compressed(&batch, codec, true));
            let mut few = Gathered { columns: Vec::new(), rows: 0, most: 100_000 };
            let error = add(&path, &["x".to_owned()], &mut few).unwrap_err();
            let why = std::error::Error::source(&error).unwrap().to_string();
            assert!(why.contains("declares 524288 bytes by its buffer 1, and 97.656 KiB is the limit"), "{why}");
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_panic_of_a_reader_is_caught() {
        assert_eq!(quietly(|| 7), Some(7));
        assert_eq!(quietly(|| -> u8 { panic!("a file fell over") }), None);
    }

    #[test]
    fn a_damaged_file_gives_columns_or_an_error_message() {
        let (mut random, mut refused) = (telpher_os::Random::new(0x5EED), 0);
        let mut dice = |below: usize| usize::try_from(random.below(below as u64)).unwrap();
        let path = file("damaged", &[]);
        for (number, whole) in all_formats(300).into_iter().enumerate() {
            for round in 0..150 {
                let mut bytes = whole.clone();
                let at = dice(bytes.len());
                match round % 5 {
                    0 => bytes.truncate(at),
                    // Damage the end, which describes the rest and which readers read first.
                    1 | 2 if number < 4 => {
                        let end = bytes.len();
                        bytes[end - 1 - at % (end / 2)] ^= 1 << dice(8);
                    }
                    3 => bytes[at] = 0xFF,
                    _ => bytes[at] ^= 1 << dice(8),
                }
                std::fs::write(&path, bytes).unwrap();
                let came = of(&[&path], &["short", "price", "day", "flag"]);
                if let Err(error) = came {
                    refused += 1;
                    assert!(!error.to_string().is_empty());
                }
            }
        }
        std::fs::remove_file(path).unwrap();
        assert!(refused > 200, "{refused} were refused");
    }
}
