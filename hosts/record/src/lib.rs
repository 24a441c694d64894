#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! machine, calibration ──► run ──► telpher-launch: the program, with telpher-offload-guest preloaded
//!                                   telpher-offload-guest ──► folder/PID.recording ──► files ──► a Recording
//! symbols   names of its call sites
//! ```
#![forbid(unsafe_code)]

mod calibration;
mod files;
mod machine;
mod run;
mod symbols;

pub use files::{FileError, count, merge, read};
pub use run::{RecordError, RunOptions, run};
pub use symbols::{SiteNames, file_name, site_names};
