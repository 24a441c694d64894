#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! settings   what a process learns from its environment
//! state      what it tells of itself
//! folder     where it tells it
//! ```
#![forbid(unsafe_code)]

pub mod folder;
pub mod settings;
pub mod state;

pub use folder::{Identity, StateFolder};
pub use settings::{Settings, SettingsError, Tier, VARIABLE};
pub use state::{Counts, HeatRow, Ignored, Move, Point, State, TierState, Tracking};

/// Changes whenever a word here does: a part of another version is refused.
pub const VERSION: u32 = 5;
