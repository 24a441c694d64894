//! The judge: what the specification says about a Data Streaming Accelerator, as cases that can be put to any device.
//!
//! ```text
//! run(&subject, &filter)
//!   cases ──wish──► Subject ──► Device ──portal──► 64 bytes ──► record, data, SWERROR, event log
//!     │                                                             │
//!     └── expectation: literal, or from `table` and `oracle` ──────►┴──► Report
//! ```
//!
//! - [`Subject`] is what is judged: the modelled device under each of its runners, the real device, a virtual one. It
//!   makes [`Device`]s as a [`DeviceWish`] asks; what it cannot make is counted as skipped, with its reason.
//! - [`table`] is the legality matrix, typed in from the specification a second time. Expectations are literals, or come
//!   from that table or from naive bit-at-a-time routines in this crate; none is computed by the code under test.
//! - [`run`] puts the cases to a subject and returns a [`Report`].
//!
//! All memory that descriptors name lies in one arena with unmapped space behind it, so a case may name bad addresses and
//! a wrong device does no harm beyond it.
#![deny(unsafe_code)]

mod arena;
mod bring_up;
mod case;
mod cases;
mod oracle;
mod report;
mod runner;
mod specimen;
mod stand;
mod subject;
pub mod table;
mod want;

pub use bring_up::{bring_up, capabilities, command, configure, wqcfg};
pub use case::Section;
pub use report::{Failure, Report, Tally};
pub use runner::{Filter, Suite, run};
pub use subject::{
    Capabilities, Device, DeviceWish, GroupWish, HANDLE, HERE, Instruction, Interrupt, Pci, PortalWish, Promises,
    QueueWish, Refusal, Registers, Residency, STRANGER, Subject,
};

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct ReadmeDoctests;
