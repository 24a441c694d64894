#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! settings   what a process reads from its environment
//! state      what it reports
//! folder     where it writes its report
//! ```
#![forbid(unsafe_code)]

pub mod folder;
pub mod settings;
pub mod state;

pub use folder::{Identity, StateFolder};
pub use settings::{Settings, SettingsError, Tier, VARIABLE};
pub use state::{Counts, HeatRow, Ignored, Move, Point, State, TierState, Tracking};

/// The version of all messages; it changes with every change of a message. A part of another version is refused.
pub const VERSION: u32 = 5;
