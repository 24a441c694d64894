//! What was published about the device, held against the simulator.
//!
//! ```text
//! data/*.toml ──► published: claims, series ──────────────────────────┐
//! setups: the published systems ──► experiments ──lab──► what is found ──► verdict
//! ```
//!
//! The simulator never sees this room: nothing in it may depend on what it is to be held against.
#![forbid(unsafe_code)]

pub mod experiments;
pub mod figures;
pub mod goals;
pub mod lab;
pub mod published;
pub mod query;
pub mod setups;
pub mod verdict;

/// The README's example runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
