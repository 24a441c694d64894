#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
// Loom checks three files, which tests/loom_claims.rs includes. Its atomics have another layout than the words of a
// file.
#![cfg(not(loom))]

mod calibration;
mod claim;
mod compact;
mod event;
mod layout;
mod mapped;
mod merge;
mod operation;
mod overlay;
mod own_counter;
mod read;
mod recording;
mod sampling;
mod site_directory;
mod start;
mod summary;
mod sync;
mod thread_writer;
mod trace_slot;
mod writer;

pub use calibration::{CurvePoint, Curves};
pub use compact::{compact, lengths};
pub use layout::{Limits, MAGIC, SAMPLE_PERIOD, SMALL_LENGTHS, VERSION};
pub use merge::MergeError;
pub use operation::{Access, Call, Direction, Operation, SIZE_CLASSES, Temperature, size_class, sizes_of_class};
pub use read::ReadError;
pub use recording::{
    Alignments, Calibration, Event, Gap, Machine, Module, NotRecorded, OperationCalls, Overlaps, Process, Recording,
    Site, SizeRow, Thread, Timed,
};
pub use sampling::BLOCK;
pub use start::{CreateError, Start};
pub use summary::{OperationShare, Overlapping, SizeShare, Summary, TemperatureShares, TimeEstimate};
pub use thread_writer::{CallInProgress, SMALL_SAMPLED, ThreadWriter};
pub use writer::{ModuleMapping, Writer, bytes_needed};
