//! telpher for C and C++: the functions behind `telpher.h`.
//!
//! ```text
//! telpher.h ──► exports ──► convert pointers to handles and operations, panics to errno
//!                  │
//!                  ├─ raw/request   an operation's ranges, checked ──► mover | batch | channel
//!                  ├─ raw/cache     a block's range, allocators and policies ──► cache
//!                  ├─ tier          heaps and arenas ──► a heap of telpher-tier
//!                  ├─ vhost         bursts of packets ──► a port's packet lists
//!                  ├─ switch        ports and options ──► a switch of telpher-switch, with its own threads
//!                  ├─ options       "threshold=64k wait=yield" ──► Policy, ChannelPolicy, OpenOptions
//!                  └─ failure       Rust's error ──► errno, kind, message of this thread
//! ```
//!
//! The contract (ownership, threads, return values) is in `include/telpher.h`, for C programmers; the functions here
//! document only what their Rust signature adds. Rust programs use `telpher-mover` directly.
//!
//! **Memory.** A mover owns the buffers of Rust programs while a device uses them. C's memory cannot be owned, so the
//! caller guarantees the rules. From the call that takes an operation until its end is reported, the ranges stay
//! mapped, no code writes the sources, and no code accesses the destinations. `raw` converts this guarantee into types.
#![deny(unsafe_code)]

mod c_structs;
mod cache;
mod channel;
mod device;
mod exports;
mod failure;
mod job;
mod options;
mod raw;
mod switch;
mod tier;
mod versioned;
mod vhost;

pub use c_structs::*;
pub use exports::*;

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
