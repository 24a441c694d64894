//! The results of a query with prefetched columns, as data.

pub mod tables;

use crate::machine::Machine;
use serde::Serialize;

/// The results of `telpher qdp`.
#[derive(Clone, Debug, Serialize)]
pub struct QdpResult {
    /// `qdp`.
    pub kind: &'static str,
    /// The machine on which it ran.
    pub machine: Machine,
    /// Remarks for the reader.
    pub remarks: Vec<String>,
    /// The query as SQL from which other engines compute the same answer.
    pub query: String,
    /// The query as the user would type it.
    #[serde(skip)]
    pub summary: String,
    /// The data of the query.
    pub data: Data,
    /// The distribution of work over threads; `None` with `--plain`.
    pub shape: Option<Shape>,
    /// The answer.
    pub answer: Rows,
    /// The times of each configuration.
    pub runs: Vec<Run>,
}

/// The distribution of work over threads.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Shape {
    /// Groups of threads.
    pub groups: u32,
    /// Rows of a chunk.
    pub chunk_rows: u64,
    /// Threads of a group that scan.
    pub scanners: u32,
    /// Threads of a group that prefetch.
    pub fetchers: u32,
    /// Threads of a group that sum.
    pub aggregators: u32,
}

/// An answer: the columns of the keys, then the computed values; ordered by the keys.
#[derive(Clone, Debug, Serialize)]
pub struct Rows {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<Cell>>,
}

/// A value of an answer.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// An aggregate of no values, or the group of the rows without a value.
    Null,
    /// A whole number.
    Number(i128),
    /// A floating-point number.
    Float(f64),
    /// True or false.
    Boolean(bool),
    /// A text, a date, or a decimal with all its digits.
    Text(String),
}

/// One configuration of the execution.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The name of the configuration.
    pub name: &'static str,
    /// What the configuration does.
    pub how: &'static str,
    /// The time of each execution, in order.
    pub times_ns: Vec<u64>,
    /// The median of `times_ns`.
    pub median_ns: f64,
    /// Bytes of the columns per second, at the median time.
    pub bytes_per_s: f64,
    /// Median of the speedups over the baseline without prefetching, turn by turn; `None` if the baseline was not
    /// executed.
    pub speedup: Option<f64>,
    /// `1 / speedup - 1`: the additional time as a share of the baseline's; negative if this configuration was faster.
    pub overhead: Option<f64>,
    /// Share of blocks that AGGREGATE found in fast memory, over all executions; `None` if no block was requested.
    pub hit_rate: Option<f64>,
    /// The stages, as means over the executions.
    pub stages: Vec<StageTime>,
    /// The counts of blocks, over all executions.
    pub blocks: BlockCounts,
}

/// A stage of the pipeline.
#[derive(Clone, Debug, Serialize)]
pub struct StageTime {
    /// `SCAN`, `FETCH` or `AGGREGATE`.
    pub stage: &'static str,
    /// Number of its threads.
    pub threads: u32,
    /// Time at work, summed over the threads.
    pub busy_ns: f64,
    /// Time spent waiting for the other threads of a group, summed over the threads.
    pub waited_ns: f64,
}

/// Counts of the blocks to prefetch.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BlockCounts {
    /// Blocks that were requested.
    pub requested: u64,
    /// Blocks that were not requested, because they are already on the node where their copy would be.
    pub spared: u64,
    /// Blocks read from fast memory.
    pub hits: u64,
    /// Blocks read from the source, because the copy was not finished.
    pub late: u64,
    /// Blocks read from the source, because there was no copy.
    pub absent: u64,
    /// Copies made.
    pub copies: u64,
    /// Bytes of the copies.
    pub bytes_copied: u64,
    /// Copies that could not be made.
    pub fallbacks: u64,
    /// Copies evicted to make room for other copies.
    pub evictions: u64,
}

/// The description of a query's data.
#[derive(Clone, Debug, Serialize)]
pub struct Data {
    /// The source of the data: the generator and its seed, or the files.
    pub from: String,
    /// Rows of the table.
    pub rows: u64,
    /// Bytes of the columns that the query reads.
    pub bytes: u64,
    /// Bytes of the columns that are prefetched.
    pub fetched_bytes: u64,
    /// The columns that the query reads.
    pub columns: Vec<DataColumn>,
}

/// A column.
#[derive(Clone, Debug, Serialize)]
pub struct DataColumn {
    /// Its name.
    pub name: String,
    /// Bytes of a value.
    pub width: usize,
    /// Whether SCAN reads it.
    pub scanned: bool,
    /// Whether AGGREGATE reads it.
    pub aggregated: bool,
    /// Whether it is prefetched: only AGGREGATE reads it.
    pub fetched: bool,
    /// What its values stand for, such as `dates`.
    pub holds: &'static str,
}
