//! Submit and complete for programs: jobs own their buffers; batches, fences, recovery and policies.
//!
//! ```text
//!              below the threshold? ──► cpu ──► ops
//!                     │
//!  Mover::copy ──► OwnedRequest ──► InFlight ──► Op ──► Slot ──► portal.offer ──► a device
//!  Batch::submit    │                │           │ ▲                                 │
//!  Scope::copy   buffers          buffers     Request ◄──────── record ◄─────────────┘
//!  Channel::copy + Request                       └──► cpu (the rest), touch, next chunk
//! ```
//!
//! | layer | for | what it promises |
//! |---|---|---|
//! | [`Channel`] | poll-mode programs | one thread, one queue; [`Ticket`]s; never blocks, never allocates |
//! | [`Copies`] | callers that keep the memory alive (a switch) | one thread, one queue; a few nanoseconds a copy |
//! | [`MemoryCalls`] | code that stands in for memmove, memset and memcmp | synchronous; works in signal handlers |
//! | [`Mover`] | all other programs | thread-safe; [`Job`]s are futures; [`Scope`]s borrow; [`Batch`]es have fences |
//!
//! **Nouns.** A *request* is an operation on raw addresses, of any length, and how far it has come. An *owned request*
//! holds the buffers as well. A *chunk* is the part of a request that one descriptor does. An *op* is the state machine
//! that executes one request; a long request is split into parts, which are ops of their own at the same time. A *slot*
//! is one completion record and stands for one descriptor that a device has. A *portal queue* is one queue of the
//! mover. Policies are values: [`Threshold`] and [`Learning`] (device or CPU), [`Route`] and [`Split`] (which queues),
//! [`Retry`], [`OnFault`], [`Wait`], [`Hint`], together a [`Policy`].
//!
//! **Stages.** The folders follow one copy: `api` takes the request and the buffers, `plan` chooses device or CPU,
//! queues and parts, `inflight` submits descriptors, recovers from faults and keeps the memory, `wait` waits for the
//! record, and `learn` turns measured times into the next choice.
//!
//! **Invariants.** While a device may touch a buffer, no safe code can: the buffer is in the job, in the in-flight
//! table, or borrowed by a scope that has not returned. Every job ends exactly once. Waits are state machines that get
//! the time from a [`Clock`]; only a [`Notifier`] has a thread.
//!
//! Citations: **SPEC** is Intel's *Data Streaming Accelerator Architecture Specification*, order 341204-006US.
#![deny(unsafe_code)]

mod api;
mod forks;
mod inflight;
mod learn;
mod plan;
mod reentrancy;
mod report;
mod stats;
mod sync;
mod thread_stripe;
mod wait;

pub use api::batch::{Batch, BatchDone, BatchJob, Key, TimedBatch};
pub use api::channel::{Channel, Finished, RejectReason, Rejected, Ticket};
pub use api::channel_policy::{ChannelPolicy, Order};
pub use api::dry_run::{DryRun, Expected, Parts, QueueEntry, Waiting};
pub use api::durable::StoreError;
pub use api::error::{ChannelError, Expired, JobError};
pub use api::grant::{Grant, NotGranted, StillInUse};
pub use api::job::{Done, Job, Timed};
pub use api::mover::Mover;
pub use api::notifier::{NOTIFIER_THREAD, Notifier, Prepared, Watchable, Watched};
#[cfg(feature = "device")]
pub use api::open::OpenError;
pub use api::operation::Blocks;
pub use api::outcome::{Delta, Outcome, Tags, Via};
pub use api::policy::{DEFAULT_LIMIT, DEFAULT_PATIENCE, Hint, OnFault, Policy, Retry, WindowPath};
pub use api::scope::{Scope, ScopedJob};
pub use api::setting::{Setting, SettingError};
pub use api::window::{Window, WindowDone, WindowError};
pub use inflight::{
    Buffers, CallResult, CallStep, Copies, CopiesPolicy, CopyResult, CpuCalls, MemoryCall, MemoryCalls,
    MemoryCallsPolicy,
};
pub use learn::messages::MessageTuning;
pub use learn::tuning::{Measured, TunedMachine, Tuning, TuningError};
pub use learn::{ColdBoundary, Learning};
pub use plan::route::Route;
pub use plan::split::Split;
pub use plan::threshold::{DEFAULT_THRESHOLD, Threshold};
pub use plan::topology::{SystemTopology, Topology};
pub use stats::{Stats, Work};
pub use wait::time::{Clock, ManualClock, Moment, Rest, SystemClock};
pub use wait::{DEFAULT_PAUSES, Wait};

pub use telpher_abi::{ComputeResult, ComputeType, DataType, Opcode, Rounding, SglFormat};
pub use telpher_mem::{Access, DurableFile, DurableFileError, GrantError, Persistence, StableBuf, StableBufMut};
pub use telpher_ops::crc::CrcMode;
pub use telpher_ops::dif::DifConfig;
pub use telpher_ops::{Arithmetic, E4m3Overflow};

/// The README's example runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;

/// The example in `docs/one-descriptor.md` runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/one-descriptor.md")]
struct OneDescriptorDoctest;
