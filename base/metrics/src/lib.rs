#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cells;
mod counters;
mod metric;
mod object_cells;
mod published;
mod region;
mod seqlock;
mod set;
mod shared_cells;
mod sync;

pub use cells::Cells;
pub use counters::Counters;
pub use metric::{Kind, Metric, Unit};
pub use object_cells::{CellsOfObject, ObjectCells};
pub use published::{Published, Publisher};
pub use region::{Description, Region, RegionError, RegionReader, RegionSet, RegionSnapshot, SEQUENCE_WORD, Values};
pub use set::{MetricSet, Position, Record};
pub use shared_cells::SharedCells;
pub use sync::AtomicU64;

#[doc(hidden)]
pub mod private {
    pub use crate::set::{extend, push};
}
