#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! dto       the variables of Intel's DTO, read as settings
//! variables what a program's environment needs that is started without this command
//! run ──► telpher-launch: the program, with telpher-offload-guest preloaded
//!          telpher-offload-guest ──► folder/PID.counters, PID.statistics
//!                                           └──► processes, while the program runs and when it has ended
//! ```
#![forbid(unsafe_code)]

mod dto;
mod processes;
mod run;
mod variables;

pub use dto::{DtoVariables, read_dto_variables};
pub use processes::{Process, ProcessStatistics, processes, statistics};
pub use run::{Finished, OffloadError, RunOptions, run};
pub use variables::variables;
