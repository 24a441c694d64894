//! A user's own data: columns of Parquet and Arrow files as columns of a query.

mod error;
mod gather;
mod messages;

use crate::generate::Memory;
use crate::{Column, Kind, Table};
use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, DataType, Schema};
pub use error::FileError;
use gather::{CAST, Gathering, refused};
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
use telpher_os::available_memory;

/// Reads the named columns of all files, appending the rows of each file. If no column is named, as for a query that
/// only counts, the result is one column of zeros. `memory` allocates each column, given its name and size;
/// [`anywhere`](crate::generate::anywhere) takes any memory.
///
/// ```no_run
/// use std::path::PathBuf;
/// use telpher_query::{Options, Plan, files, generate, run};
///
/// let plan: Plan = "select sum(price) from t where day < '1998-09-02'".parse()?;
/// let names = plan.columns();
/// let table = files::read(&[PathBuf::from("lineitem.parquet")], &names, &mut generate::anywhere)?;
/// let report = run(&plan.on(&table)?, None, &Options::default())?;
/// println!("{:?}", report.answer.rows);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If a file cannot be read or has no such column, if the engine cannot compute with its values, if there are no rows,
/// or if there is not enough memory.
pub fn read(files: &[PathBuf], names: &[String], memory: Memory<'_>) -> Result<Table, FileError> {
    // Each column is in memory twice for a while: as gathered, and as copied.
    let most = available_memory().map_or(usize::MAX, |room| usize::try_from(room / 2).unwrap_or(usize::MAX));
    let mut gathered = Gathered { columns: Vec::new(), rows: 0, most };
    files.iter().try_for_each(|path| add(path, names, &mut gathered))?;
    if gathered.rows == 0 {
        return Err(FileError::Empty);
    }
    // For messages about all files together.
    let path = files.first().map_or(Path::new(""), PathBuf::as_path);
    let columns = gathered.columns.into_iter().map(|column| column.finish(path, &mut *memory));
    let mut columns: Vec<Column> = columns.collect::<Result<_, _>>()?;
    if columns.is_empty() {
        let region = memory(ROWS_ONLY, gathered.rows);
        let region = region.map_err(|source| FileError::Memory { len: gathered.rows, source })?;
        columns.push(Column::new(ROWS_ONLY, Kind::U8, Arc::new(region))?);
    }
    Ok(Table::new(columns)?)
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

impl Gathered {
    /// Begins a file: the first file defines the columns, and the types of later files must equal them.
    fn begin(&mut self, path: &Path, names: &[String], types: &[&DataType]) -> Result<(), FileError> {
        for (name, of) in names.iter().zip(types) {
            let Some(first) = self.columns.iter().find(|column| column.name == *name) else {
                let holds = || format!("values of the type {of}");
                let column = Gathering::begin(name, of).ok_or_else(|| refused(path, name, holds(), CAST))?;
                self.columns.push(column);
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
        let row: usize = self.columns.iter().map(Gathering::width).sum();
        self.rows = self.rows.saturating_add(batch.num_rows());
        let fits = |columns: &[Gathering], rows: usize| {
            let words = columns.iter().fold(0_usize, |sum, column| sum.saturating_add(column.bytes_of_words()));
            let len = rows.saturating_mul(row.max(1)).saturating_add(words);
            if len > self.most { Err(FileError::Large { path: path.to_owned(), most: self.most }) } else { Ok(()) }
        };
        fits(&self.columns, self.rows)?;
        for (array, column) in batch.columns().iter().zip(&mut self.columns) {
            column.take(array).map_err(|holds| refused(path, &column.name, holds, CAST))?;
        }
        fits(&self.columns, self.rows)
    }
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
    use crate::{LogicalType, Value};
    use arrow_array::types::Int32Type;
    use arrow_array::{
        ArrayRef, BooleanArray, Decimal128Array, DictionaryArray, Float64Array, Int32Array, Int64Array,
        LargeStringArray, TimestampMicrosecondArray, UInt8Array, UInt16Array, UInt64Array,
    };
    use arrow_ipc::CompressionType;
    use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
    use parquet::arrow::ArrowWriter;
    use parquet::basic::{Compression, ZstdLevel};
    use parquet::file::properties::WriterProperties;

    fn batch(rows: i32) -> RecordBatch {
        let letters = (0..rows).map(|row| if row % 2 == 0 { "A" } else { "B" });
        let some = |row: i32| (row % 5 != 0).then_some(row);
        let words = (0..rows).map(|row| some(row).map(|row| format!("word {}", row % 300)));
        let words: DictionaryArray<Int32Type> = words.collect::<Vec<_>>().iter().map(Option::as_deref).collect();
        let columns: [(&str, ArrayRef); 9] = [
            ("words", Arc::new(words)),
            (
                "share",
                Arc::new(Float64Array::from_iter((0..rows).map(|row| some(row).map(|row| f64::from(row) / 3.0)))),
            ),
            ("is", Arc::new(BooleanArray::from_iter((0..rows).map(|row| some(row).map(|row| row % 2 == 0))))),
            (
                "byte",
                Arc::new(UInt8Array::from_iter(
                    (0..rows).map(|row| some(row).map(|row| u8::try_from(255 - row % 256).unwrap())),
                )),
            ),
            ("at", Arc::new(TimestampMicrosecondArray::from_iter((0..rows).map(|row| some(row).map(i64::from))))),
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
        read(&files, &names, &mut anywhere)
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
            let LogicalType::Text(words) = table.columns()[3].logical_type() else { panic!("{number}: no text") };
            assert_eq!(words.words().iter().map(|word| &**word).collect::<Vec<_>>(), ["A", "B"]);
            for row in 0..250 {
                let value = |column: usize| table.columns()[column].value(rows / 2 + row).unwrap();
                let row = i64::try_from(row).unwrap();
                assert_eq!((value(0), value(1), value(2)), (row, row - 50, row * 7 % 1000), "{number}");
                assert_eq!(value(3), row % 2);
            }
        }
    }

    #[test]
    fn rows_without_a_value_have_the_code_after_the_greatest_value() {
        for (number, bytes) in all_formats(600).iter().enumerate() {
            let path = file(&format!("nulls-{number}"), bytes);
            let table = of(&[&path], &["words", "share", "is", "byte", "at"]).unwrap();
            let plan: crate::Plan = "select \"is\", count(*), count(byte), max(words) from t where at < \
                                     '1970-01-01 00:00:00.0006' group by \"is\""
                .parse()
                .unwrap();
            let answer = plan.on(&table).unwrap().alone(1);
            std::fs::remove_file(path).unwrap();
            let kinds: Vec<Kind> = table.columns().iter().map(Column::kind).collect();
            // 240 words and a null, and 256 bytes and a null.
            assert_eq!(kinds, [Kind::U8, Kind::I64, Kind::U8, Kind::I32, Kind::I64], "{number}");
            for column in table.columns() {
                let (null, bounds) = (column.null().unwrap(), column.bounds().unwrap());
                assert_eq!(null, bounds.1 + 1, "{number}: {}", column.name());
                let nulls = (0..600).filter(|&row| column.value(row) == Some(null)).count();
                assert_eq!(nulls, 120, "{number}: {}", column.name());
            }
            // An Arrow file has its first rows twice: null, 1 and 2.
            let again = i64::try_from(table.rows() - 600).unwrap() / 3;
            let row = |is, count: i64, word: &str| crate::Row {
                keys: vec![Value::Boolean(is)],
                values: vec![count.into(), count.into(), Value::Text(word.into())],
            };
            assert_eq!(
                answer.rows,
                [row(false, 240 + again, "word 99"), row(true, 240 + again, "word 98")],
                "{number}"
            );
        }
        let full: ArrayRef = Arc::new(Int64Array::from(vec![Some(i64::MAX), None]));
        let path = file("full", &arrow(&RecordBatch::try_from_iter([("x", full)]).unwrap()));
        let message = of(&[&path], &["x"]).unwrap_err().to_string();
        assert!(message.contains("holds nulls and the value 9223372036854775807; leave the rows"), "{message}");
        let none: ArrayRef = Arc::new(Int64Array::from(vec![None, None]));
        std::fs::write(&path, arrow(&RecordBatch::try_from_iter([("x", none)]).unwrap())).unwrap();
        let table = of(&[&path], &["x"]).unwrap();
        std::fs::remove_file(path).unwrap();
        let plan: crate::Plan =
            "select x, count(*), count(x), sum(x), avg(x), max(x) from t group by x".parse().unwrap();
        let values = [vec![4_i64.into(), 0_i64.into()], vec![Value::Null; 3]].concat();
        assert_eq!(plan.on(&table).unwrap().alone(1).rows, [crate::Row { keys: vec![Value::Null], values }]);
        for (test, count) in [("x = 0", 0), ("x <> 0", 0), ("x is null", 4), ("x is not null", 0), ("x >= 0", 0)] {
            let plan: crate::Plan = format!("select count(*) from t where {test}").parse().unwrap();
            assert_eq!(plan.on(&table).unwrap().alone(1).rows[0].values, [Value::Integer(count)], "{test}");
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
        let message = of(&[&path], &["x"]).unwrap_err().to_string();
        assert!(message.contains("the value 18446744073709551615, which takes more than 64 bits"), "{message}");
        let other: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        let another = file("another", &arrow(&RecordBatch::try_from_iter([("x", other)]).unwrap()));
        let message = of(&[&another, &path], &["x"]).unwrap_err().to_string();
        assert!(message.contains("column 'x' holds Int64 in the first file and UInt64 in"), "{message}");
        let names: Vec<ArrayRef> = (0..20).map(|_| Arc::new(Int64Array::from(vec![1])) as ArrayRef).collect();
        let wide =
            RecordBatch::try_from_iter(names.into_iter().enumerate().map(|(n, it)| (format!("c{n}"), it))).unwrap();
        std::fs::write(&path, arrow(&wide)).unwrap();
        let message = of(&[&path], &["x"]).unwrap_err().to_string();
        assert!(
            message.ends_with(
                "has no column 'x'; it has c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, \
                 and 4 more"
            ),
            "{message}"
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
        let query: crate::Plan =
            "select words, \"is\", sum(share), avg(price * share), max(day), min(flag), count(at) from t \
                                  where short <> 3 and byte in (1, 3, 5, 9) and words like '%1%' and at is not null \
                                  group by words, \"is\""
                .parse()
                .unwrap();
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
                let came = of(&[&path], &["short", "price", "day", "flag", "words", "share", "is", "byte", "at"]);
                match came {
                    // Whatever the values are, a query has an answer, or cannot be one.
                    Ok(table) => query.on(&table).map_or((), |query| drop(query.alone(1))),
                    Err(error) => {
                        refused += 1;
                        assert!(!error.to_string().is_empty());
                    }
                }
            }
        }
        std::fs::remove_file(path).unwrap();
        assert!(refused > 200, "{refused} were refused");
    }
}
