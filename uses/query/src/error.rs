//! The errors of tables, plans, inputs and runs.

use std::io;
use std::ops::Range;
use telpher_mem::MapError;

/// Why bytes are not a column.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ColumnError {
    /// The last value is incomplete.
    #[error("column {name}: {bytes} bytes are not whole values of {width} bytes; cut them to a multiple")]
    Torn {
        /// The column.
        name: String,
        /// The length in bytes.
        bytes: usize,
        /// Bytes of a value.
        width: usize,
    },
    /// A value stands for nothing in the column's type.
    #[error("column {name}: the value {value} is none of {holds}; give the column another type")]
    Type {
        /// The column.
        name: String,
        /// The value.
        value: i64,
        /// What the column should hold.
        holds: &'static str,
    },
    /// A value is greater than the code of nulls.
    #[error("column {name}: the value {value} is greater than {null}, the code of a null; choose a greater code")]
    Null {
        /// The column.
        name: String,
        /// The value.
        value: i64,
        /// The code.
        null: i64,
    },
    /// No memory for the column.
    #[error("column {name}: no memory")]
    Map {
        /// The column.
        name: String,
        /// The system's error.
        #[source]
        source: MapError,
    },
}

/// Why columns are not a table.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The columns have different numbers of rows.
    #[error("column {name} has {rows} rows, but {first} has {expected}; all columns of a table need the same number")]
    Uneven {
        /// The column that differs.
        name: String,
        /// Its rows.
        rows: u64,
        /// The first column.
        first: String,
        /// Its rows.
        expected: u64,
    },
    /// Two columns have the same name.
    #[error("two columns are called {name}; rename one")]
    Twice {
        /// Their name.
        name: String,
    },
}

/// Why a plan is not valid for this table.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The plan is empty.
    #[error("the plan has neither aggregates nor groups; add what it should compute")]
    Nothing,
    /// The table has no such column.
    #[error("there is no column {name}; the table has {there}")]
    NoColumn {
        /// The column named.
        name: String,
        /// The names of the existing columns.
        there: String,
    },
    /// A column is compared with a literal of another type.
    #[error("column {column} holds {holds}, and {literal} is none; write {write}")]
    Compare {
        /// The column.
        column: String,
        /// What it holds.
        holds: &'static str,
        /// The literal.
        literal: String,
        /// A comparison that is possible.
        write: String,
    },
    /// Another column than one of text is compared with a pattern.
    #[error("column {column} holds {holds}, and only text has patterns; compare it with =, <, > or between")]
    NotText {
        /// The column.
        column: String,
        /// What it holds.
        holds: &'static str,
    },
    /// The function cannot be computed of such values.
    #[error("{what} is not possible, because {of} holds {holds}; write count, min or max, or group by it")]
    NoNumber {
        /// The aggregate or expression.
        what: String,
        /// The column or literal.
        of: String,
        /// What it holds.
        holds: &'static str,
    },
    /// Floating-point numbers that have no sum.
    #[error(
        "{what} has no value, because the numbers are not finite or too large; leave these rows out, as with where \
         {column} between -1e300 and 1e300"
    )]
    NotFinite {
        /// The aggregate or expression.
        what: String,
        /// A column of it.
        column: String,
    },
    /// A value, or the sum over all rows, might not fit.
    #[error("{what} may need more than 128 bits; compute less of it at once")]
    TooLong {
        /// The value or sum.
        what: String,
    },
    /// Too many groups are possible.
    #[error("the group columns have too many combinations; group by fewer columns")]
    TooManyKeys,
    /// The expression is deeper than the stack certainly holds.
    #[error("an expression has more than {DEEPEST} levels; compute it in parts")]
    TooDeep,
}

/// The most levels of an expression. Source: assumed; far more than people write, and far fewer than a thread's stack
/// holds.
pub(crate) const DEEPEST: u32 = 100;

/// Why bytes are not valid input of a query.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// Not one input for each column.
    #[error("{given} inputs were given, but {wanted} columns are needed; give one for each, in their order")]
    Columns {
        /// The number given.
        given: usize,
        /// The number needed.
        wanted: usize,
    },
    /// A wrong length for these rows.
    #[error("column {name}: {given} bytes were given, but the rows have {wanted}")]
    Length {
        /// The column.
        name: String,
        /// The bytes given.
        given: usize,
        /// The bytes needed.
        wanted: usize,
    },
    /// The bytes are not aligned for their values.
    #[error("column {name}: its bytes are not aligned to {width}; copy blocks that begin with whole values")]
    Misaligned {
        /// The column.
        name: String,
        /// Bytes of a value.
        width: usize,
    },
    /// The rows were not scanned before.
    #[error("rows {rows:?} were not scanned; the selection has rows {scanned:?}")]
    Unscanned {
        /// The rows to aggregate.
        rows: Range<u64>,
        /// The rows of the selection.
        scanned: Range<u64>,
    },
    /// The table does not have these rows.
    #[error("rows {rows:?} are not in a table of {there} rows")]
    Rows {
        /// The rows requested.
        rows: Range<u64>,
        /// The number of rows in the table.
        there: u64,
    },
    /// A partial result of another query.
    #[error("the partial result belongs to another query; create it with this query's `partial`")]
    Foreign,
    /// A wrong copy, with values that the column does not have.
    #[error("the inputs contain values that their columns do not have; the device that copied them is not reliable")]
    Altered,
}

/// Why a text is not a valid plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a query this engine can do: at character {at}, {expected} is expected and {found} found")]
pub struct SqlError {
    /// What is valid there.
    pub(crate) expected: String,
    /// What is there.
    pub(crate) found: String,
    /// The position, in characters from 1.
    pub(crate) at: usize,
}

/// Why a query was not executed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Too many threads.
    #[error(
        "the query needs {asked} threads, but at most {most} are possible; use fewer groups, or fewer threads in each"
    )]
    Threads {
        /// The threads requested.
        asked: u64,
        /// The most threads.
        most: u32,
    },
    /// The system refused a thread.
    #[error("cannot start thread {number} of {of}; use fewer groups, or fewer threads in each")]
    Start {
        /// Its number, from 1.
        number: u32,
        /// The number of threads of the query.
        of: u32,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The threads may not run on the node.
    #[error("cannot pin the query's threads to node {node}")]
    Pin {
        /// The node named.
        node: u32,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A copy has values that its column does not have: a device wrote wrong bytes, or the columns were modified.
    #[error("a prefetched block differs from its column; run without the device that copied it")]
    Altered {
        /// What was noticed.
        #[source]
        source: InputError,
    },
}
