#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! variables what a program's environment needs that is started without this command
//! install   the library's file, for programs that are linked with it
//! run ──► telpher-launch: the program, with telpher-offload-guest preloaded
//!          telpher-offload-guest ──► folder/PID.counters, PID.sites, PID.statistics
//!                                           └──► processes, while the program runs and when it has ended
//!                                                    └──► learned: the verdicts of its call sites, for the next run
//! switch ──► folder/PID.counters: its calls go to the device or stay with the CPU
//! ```
#![forbid(unsafe_code)]

mod install;
mod learned;
mod processes;
mod run;
mod switch;
mod variables;

pub use install::install;
pub use learned::learned;
pub use processes::{Process, ProcessStatistics, processes, running, statistics};
pub use run::{Finished, OffloadError, RunOptions, run};
pub use switch::{SwitchError, switch};
pub use variables::variables;
