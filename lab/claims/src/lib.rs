//! What was published about the device, held against the simulator.
//!
//! ```text
//! data/*.toml (claims, series, sources) ──┐
//! setups: the published systems ──► Scenario ──simulate──► Outcome ──► verdict
//! ```
//!
//! The simulator never sees this room: nothing in it may depend on what it is to be held against.
#![forbid(unsafe_code)]

pub mod figures;
pub mod setups;

/// The README's example runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
