#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! settings   what a process reads from its environment, to offload its calls
//! dto        the same from the variables of Intel's DTO
//! record     the same, to record them
//! verdicts   a file that says which call sites are offloaded
//! counters   what it counts, in a file that other processes read
//! sites      what it learns about its call sites, in another file
//! statistics its calls by size, in a third one, if the user asks for them
//! ```
#![forbid(unsafe_code)]

pub mod counters;
mod dto;
// Under loom the crate of recordings is empty.
#[cfg(not(loom))]
pub mod record;
pub mod settings;
pub mod sites;
pub mod statistics;
pub mod verdicts;

pub use counters::Counters;
pub use dto::{DtoVariables, read_dto_variables};
#[cfg(not(loom))]
pub use record::{RECORD_VARIABLE, RecordSettings, RecordedCurves};
pub use settings::{Functions, Settings, SettingsError, VARIABLE, WaitMethod};

/// The version of the settings; it changes with every change. Settings of another version are refused.
pub const VERSION: u32 = 4;
