//! telpher for C and C++: the functions behind `telpher.h`.
//!
//! ```text
//! telpher.h ──► exports ──► pointers become handles and operations, panics become errno
//!                  │
//!                  ├─ raw/request   an operation's ranges, checked and promised ──► mover | batch | channel
//!                  ├─ raw/cache     a block's range, allocators and policies ──► cache
//!                  ├─ tier          heaps and arenas ──► a heap of telpher-tier
//!                  ├─ vhost         bursts of packets ──► a port's rows
//!                  ├─ options       "threshold=64k wait=yield" ──► Policy, ChannelPolicy, OpenOptions
//!                  └─ failure       Rust's error ──► errno, kind, sentence of this thread
//! ```
//!
//! The contract (ownership, threads, return values) stands in `include/telpher.h`, which is what a C programmer reads; the
//! functions here repeat only what their Rust signature adds. Rust programs use `telpher-mover` itself.
//!
//! **Memory.** A mover owns the buffers of Rust programs while a device has them. C's memory cannot be owned, so the promise is
//! the caller's: from the call that takes an operation until its end was told, the ranges stay mapped, nobody writes the
//! sources, and nobody touches the destinations. `raw` is where this promise enters the type system.
#![deny(unsafe_code)]

mod cache;
mod channel;
mod device;
mod exports;
mod failure;
mod job;
mod options;
mod raw;
mod tier;
mod vhost;
mod words;

pub use exports::*;
pub use words::*;

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
