//! libdml for programs that were written for Intel's Data Mover Library: the functions behind `dml.h` and `dml.hpp`.
//!
//! ```text
//! dml.h ──► exports ──► describe: a job as a descriptor ──► validate ──► task: submit, wait
//! dml.hpp ─► (dml/detail/telpher.h)                                       │
//!                            ┌────────────────────────────────────────────┤
//!                            ├─ cpu      the CPU executes it                (software, automatic)
//!                            ├─ queues   a queue of a device takes it       (hardware, automatic)
//!                            └─ resume   the CPU finishes it after a fault  (automatic)
//! ```
//!
//! The contract is in `include/dml/dml.h`, for C programmers. A job's state is a task: 192 bytes behind the job,
//! without a pointer to anything of the library, so that programs may free a job whenever no device works on it.
#![deny(unsafe_code)]

mod cpu;
mod credits;
mod describe;
mod exports;
mod job;
mod last_error;
mod memory;
mod process;
mod queues;
mod resume;
mod status;
mod strict;
mod sync;
mod task;
mod validate;

pub use exports::*;
pub use job::{DifConfig, DmlJob, LibraryVersion};
pub use status::DmlStatus;
pub use task::Task;

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
