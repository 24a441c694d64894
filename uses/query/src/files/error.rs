//! Why a file could not be read as columns.

use super::messages::MessageError;
use crate::{ColumnError, TableError};
use std::io;
use std::path::PathBuf;
use telpher_mem::MapError;
use telpher_os::size;

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
    /// The column has values that the query cannot compute with.
    #[error("column '{name}' of {} holds {holds}; {do_this}", path.display())]
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
