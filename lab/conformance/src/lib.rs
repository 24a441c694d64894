//! A conformance test suite: the specification of the Data Streaming Accelerator as test cases for any device.
//!
//! ```text
//! run(&subject, &filter)
//!   cases ──spec──► Subject ──► Device ──portal──► 64 bytes ──► record, data, SWERROR, event log
//!     │                                                             │
//!     └── expected result: literal, or from `table` and `oracle` ──►┴──► Report
//! ```
//!
//! - [`Subject`] is the implementation under test: the modelled device under each of its runners, the real device, or a
//!   virtual one. It creates [`Device`]s for [`DeviceSpec`]es; specs that it refuses are counted as skipped, with a
//!   reason.
//! - [`table`] is the legality matrix, typed in from the specification a second time. Expected results are literals, or
//!   come from that table or from naive bit-at-a-time routines in this crate; the code under test computes none.
//! - [`run`] runs the cases on a subject and returns a [`Report`].
//!
//! All memory that descriptors name is in one arena with unmapped space behind it. So a case may use bad addresses, and
//! a faulty device does no harm outside.
#![deny(unsafe_code)]

mod arena;
mod bring_up;
mod case;
mod cases;
mod expected;
mod fixture;
mod oracle;
mod report;
mod runner;
mod sample;
mod subject;
pub mod table;

pub use bring_up::{bring_up, capabilities, command, configure, wqcfg};
pub use case::Section;
pub use report::{Failure, Report, Tally};
pub use runner::{Filter, Suite, run};
pub use subject::{
    Capabilities, Device, DeviceSpec, GroupSpec, Guarantees, HANDLE, HERE, Instruction, Interrupt, Pci, PortalSpec,
    QueueSpec, Refusal, Registers, Residency, STRANGER, Subject, WINDOW,
};

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct ReadmeDoctests;
