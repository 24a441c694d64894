#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! run ──► telpher-launch: the program, with telpher-offload-guest preloaded
//!          telpher-offload-guest ──► folder/PID.counters ──► processes, while the program runs and when it has ended
//! ```
#![forbid(unsafe_code)]

mod processes;
mod run;

pub use processes::{Process, processes};
pub use run::{OffloadError, RunOptions, run};
