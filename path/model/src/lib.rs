//! The modelled Data Streaming Accelerator: a complete DSA 1.x and the operations of 2.x as plain state and decisions.
//!
//! ```text
//!  submit()                  pick()               step()                    runner
//! portal ──► wq (ring) ──► group arbiter ──► engine: check, decide ──► Execute  ──► execute() on Spaces
//!                                                  ◄── Outcome ────────────┘
//!                                                  ──► Record, Log, Interrupt ──► memory, events
//! registers ◄──► config, command, errors, interrupt, perfmon
//!                                                  descriptors ──► observe ──► counts ──► counted_events
//! ```
//!
//! The device has no clock and no threads; a runner drives it. Three rules hold throughout:
//!
//! - *Deciding is separate from accessing memory*: an [`Engine`] returns an operation on memory ranges.
//!   [`execute`](execute()) carries it out; a simulator only accounts for it.
//! - *Shared state is plain*: a [`Device`] consists of words without pointers, so it may lie in memory shared by
//!   processes.
//! - *No unsafe code*: all memory access goes through [`telpher_mem::Space`].
//! - *Unsafe is elsewhere*: memory is reached through [`telpher_mem::Space`] alone.
#![forbid(unsafe_code)]

mod action;
mod activity;
mod arrays;
mod capabilities;
mod command;
mod config;
pub mod config_space;
mod counted_events;
mod counts;
mod device;
mod engine;
mod errors;
mod execute;
mod group;
mod in_progress;
mod interrupt;
mod legality;
mod mutation;
mod observe;
mod operand;
mod overlap;
mod perfmon;
mod registers;
mod run;
mod state;
mod submit;
mod subscription;
mod sync;
mod window_uses;
mod windows;
mod wq;

pub use action::{Action, Dif, DifKind, Range, Seed};
pub use arrays::{Arrays, BufferList, GatherReduce, ListTransfer, Transfer};
pub use capabilities::{
    Capabilities, CapabilityError, MAX_ENGINES, MAX_ENTRIES, MAX_GROUPS, MAX_WINDOWS, MAX_WQS, Preset, Tolerances,
};
pub use counted_events::{QueueCounts, events_of, is_counted};
pub use counts::{
    Clocks, Counting, DeviceCounts, ExecutionTimes, OPERATIONS, QueueTotals, STATUSES, TIME_BUCKETS, Totals,
};
pub use device::{Device, MAX_LANES, PciControl};
pub use engine::{Engine, Outcome, Step};
pub use execute::{Alternate, BlockTags, OperandSpaces, Scratch, compared_record, execute};
pub use interrupt::Interrupt;
pub use legality::{Check, Refusal};
#[cfg(feature = "mutation")]
pub use mutation::{Mutant, all_mutants, take_failed_checks, with_mutant};
pub use observe::{DispatchDecision, Job, Member, NoObserver, Observer, ReportedTo};
pub use operand::{Domain, Operand};
pub use overlap::overlaps;
pub use registers::layout;
pub use run::{AddressSpaces, Progress, run};
pub use submit::{Identity, Write};
pub use subscription::{LONGEST_NS, Subscription};
pub use windows::Window;
pub use wq::Submitter;

/// The README's examples, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
