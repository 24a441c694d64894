#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! settings   what a process reads from its environment, to offload its calls
//! record     the same, to record them
//! verdicts   a file that says which call sites are offloaded
//! counters   what it counts, in a file that other processes read
//! statistics its calls by size, in another file, if the user asks for them
//! ```
#![forbid(unsafe_code)]

pub mod counters;
// Under loom the crate of recordings is empty.
#[cfg(not(loom))]
pub mod record;
pub mod settings;
pub mod statistics;
pub mod verdicts;

pub use counters::Counters;
#[cfg(not(loom))]
pub use record::{RECORD_VARIABLE, RecordSettings, RecordedCurves, RecordedMachine};
pub use settings::{Functions, Settings, SettingsError, VARIABLE, WaitMethod};

/// The version of the settings; it changes with every change. Settings of another version are refused.
pub const VERSION: u32 = 3;
