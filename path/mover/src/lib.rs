//! Submit and complete for programs: jobs own their buffers; batches, fences, recovery and policies.
//!
//! ```text
//!              below the threshold? ──► cpu ──► ops
//!                     │
//!  Mover::copy ──► OwnedRequest ──► Op ──route──► PortalQueue ──credit──► portal.offer ──► a device
//!  Batch::submit    │               │ ▲                                                       │
//!  Scope::copy   buffers       Progress (chunks, faults) ◄──────────── record ◄───────────────┘
//!  Channel::copy + CopyRequest      └──► cpu (the rest), touch, next chunk
//! ```
//!
//! | layer | for | what it promises |
//! |---|---|---|
//! | [`Channel`] | poll-mode programs | one thread, one queue; [`Ticket`]s; never blocks, never allocates |
//! | [`Copies`] | callers that keep the memory alive, such as a switch | one thread, one queue; a few nanoseconds a copy |
//! | [`Mover`] | all other programs | thread-safe; [`Job`]s are futures; [`Scope`]s borrow; [`Batch`]es have fences |
//!
//! **Nouns.** A *request* is an operation on raw addresses, of any length. An *owned request* holds the buffers as
//! well. A *chunk* is the part of a request that one descriptor does. *Progress* is how far a request has come through
//! its chunks and faults. An *op* is the state machine that executes one request; a *split transfer* executes the parts
//! of one request as several ops at the same time. A *slot* is one completion record and stands for one descriptor that
//! a device has. A *portal queue* is one queue of the mover. Policies are values: [`Threshold`] and [`Learning`]
//! (device or CPU), [`Route`] and [`Split`] (which queues), [`Retry`], [`OnFault`], [`Wait`], [`Hint`], together a
//! [`Policy`].
//!
//! **Invariants.** While a device may touch a buffer, no safe code can: the buffer is in the job, in the in-flight
//! table, or borrowed by a scope that has not returned. Every job ends exactly once. Waits are state machines that get
//! the time from a [`Clock`]; this crate starts no thread.
//!
//! Citations: **SPEC** is Intel's *Data Streaming Accelerator Architecture Specification*, order 341204-006US.
#![deny(unsafe_code)]

mod batch;
mod channel;
mod costs;
mod cpu;
mod credit;
mod dry_run;
mod error;
mod estimate;
mod forecast;
mod forks;
mod free_list;
mod free_lists;
mod inflight;
mod job;
mod learn;
mod mover;
mod operation;
mod outcome;
mod policy;
mod queue_health;
mod recover;
mod reentrancy;
mod report;
mod request;
mod route;
mod scope;
mod setting;
mod slot;
mod split;
mod stall_timer;
mod stripe;
mod sync;
mod threshold;
mod time;
mod topology;
mod tuning;
mod verdict_bits;
mod wait;

pub use batch::{Batch, BatchDone, BatchJob, Key, TimedBatch};
pub use channel::{Channel, ChannelPolicy, Finished, Order, RejectReason, Rejected, Ticket};
pub use dry_run::{DryRun, Expected, Parts, QueueEntry, Waiting};
pub use error::{ChannelError, Expired, JobError};
pub use inflight::{Buffers, Copies, CopiesPolicy, Ended};
pub use job::{Done, Job, Timed};
pub use learn::Learning;
pub use mover::Mover;
pub use outcome::{Delta, Outcome, Tags, Via};
pub use policy::{DEFAULT_LIMIT, DEFAULT_PATIENCE, Hint, OnFault, Policy, Retry};
pub use route::Route;
pub use scope::{Scope, ScopedJob};
pub use setting::{Setting, SettingError};
pub use split::Split;
pub use threshold::{DEFAULT_THRESHOLD, Threshold};
pub use time::{Clock, ManualClock, Moment, Rest, SystemClock};
pub use topology::{SystemTopology, Topology};
pub use tuning::{Measured, TunedMachine, Tuning, TuningError};
pub use wait::{DEFAULT_PAUSES, Wait};

pub use telpher_abi::Opcode;
pub use telpher_mem::{StableBuf, StableBufMut};
pub use telpher_ops::crc::CrcMode;
pub use telpher_ops::dif::DifConfig;

/// The README's example runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;

/// The example in `docs/one-descriptor.md` runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/one-descriptor.md")]
struct OneDescriptorDoctest;
