#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! keys, values ─► Config (a JSON file, or a command line)
//! Config ─► NvmfRun::open: Backends, engines, listeners, Control ─► start ─► Running: a thread for each loop
//! a signal ─► Running::stop: loops finish, backends are flushed
//! ask ─► Control ─► commands::Shared ─► Target, Statistics
//! ServerEvent ─► Log ─► the caller, which prints lines
//! ```
#![forbid(unsafe_code)]

mod backend;
mod commands;
pub mod config;
mod control;
mod engines;
mod error;
mod identity;
mod keys;
mod log;
mod published;
mod run;
pub mod statistics;
pub mod values;

pub use backend::BackendError;
pub use commands::Request;
pub use config::{Config, ConfigError};
pub use control::{AskError, ask, default_socket};
pub use error::NvmfRunError;
pub use log::Level;
pub use run::{FLUSH_WITHIN, NvmfRun, Running, STOP_WITHIN};
pub use statistics::Statistics;
