//! Compares published results about the device with the simulator.
//!
//! ```text
//! data/*.toml ──► published: claims, series ──────────────────────────┐
//! setups: the published systems ──► experiments ──lab──► simulated results ──► verdict
//! verdict ──► figures, validation, thesis_query ──► tables, CSV and pages, by telpher-report
//! ```
//!
//! The simulator does not depend on this crate: nothing in it may depend on the results that it is compared with.
#![forbid(unsafe_code)]

pub mod experiments;
pub mod figures;
pub mod goals;
pub mod lab;
pub mod published;
pub mod query;
pub mod setups;
pub mod thesis_query;
pub mod validation;
pub mod verdict;

/// The README's example runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
