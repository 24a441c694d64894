#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! machine                 a profile's name or file ──► the simulated machine
//! options ──► run         a sweep, or a file of loads ──► scenarios ──► point: one result
//!             └─► config  a file of devices, with the lines of its errors
//! advise ──► tables       the advice for some work, as data; as text, CSV and a page
//! sharing ──► tables      tenants of the same devices: whether their bounds hold, and with what configuration
//! recording               what a recorded program would gain by offloading its copies
//! error                   why there is no prediction
//! ```
#![forbid(unsafe_code)]

pub mod advise;
mod config;
mod error;
mod machine;
mod options;
mod point;
pub mod recording;
mod run;
pub mod sharing;

pub use error::PredictError;
pub use machine::{DEFAULT_PROFILE, about_of, machine};
pub use options::SweepOptions;
pub use run::{WorkloadFile, sweep, workload};
