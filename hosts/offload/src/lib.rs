#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! dto       the variables of Intel's DTO, read as settings
//! variables what a program's environment needs that is started without this command
//! run ──► telpher-launch: the program, with telpher-offload-guest preloaded
//!          telpher-offload-guest ──► folder/PID.counters, PID.sites, PID.statistics
//!                                           └──► processes, while the program runs and when it has ended
//!                                                    └──► learned: the verdicts of its call sites, for the next run
//! switch ──► folder/PID.counters: its calls go to the device or stay with the CPU
//! ```
#![forbid(unsafe_code)]

mod dto;
mod learned;
mod processes;
mod run;
mod switch;
mod variables;

pub use dto::{DtoVariables, read_dto_variables};
pub use learned::learned;
pub use processes::{Process, ProcessStatistics, processes, running, statistics};
pub use run::{Finished, OffloadError, RunOptions, run};
pub use switch::{SwitchError, switch};
pub use variables::variables;
