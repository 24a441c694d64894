//! The library that `telpher offload` preloads into programs: it stands in front of the C library's memory functions
//! and lets a device execute their long calls. Under `telpher record` it records all calls instead.
//!
//! ```text
//! program ──memcpy, memset, memcmp…──► entries ──► the C library       short calls: a comparison and a jump
//!                                         ├─────► calls ──► device    long calls of cold data
//!                                         │           └──► the C library
//!                                         └─────► record ──► the C library, with the call recorded in a file
//! gates     where the calls of each function go
//! start     opens the device before main, and closes the gates at the end
//! device    the device of this process
//! children  forked children open a device of their own; `opening` decides which thread does it, on `own_stack`
//! calibration  how long the CPU takes for cached data and for data in memory
//! sites     which call sites copy cold data
//! callers   libraries whose calls always stay with the CPU
//! modules, scratch   the files that are mapped for execution; memory for a moment
//! thread    whether this thread is inside a long call
//! uncancelled  the steps of a call, during which its thread is not cancelled
//! vfork     children that share memory stay with the CPU
//! traps     faults of a modelled device; the program's signal handlers wait while a device works
//! symbols   the C library's functions for signals
//! counters  what the process counts, in a file that others read
//! statistics  calls by their size, in another file, if the user asks for them
//! record    recording instead of offloading
//! refusal   processes whose calls stay with the CPU
//! exec      loads this library into executed programs as well
//! ```
// Loom tests single files of this crate; with loom's atomics the library itself does not compile.
#![cfg(not(loom))]
#![deny(unsafe_code)]
#![cfg_attr(test, allow(dead_code, reason = "the start-up code does not run under test"))]

mod calibration;
mod callers;
mod calls;
mod children;
mod counters;
mod device;
mod entries;
mod exec;
mod gates;
mod modules;
mod opening;
mod own_stack;
mod record;
mod refusal;
mod scratch;
mod sites;
mod start;
mod statistics;
mod symbols;
mod sync;
mod thread;
mod traps;
mod uncancelled;
mod vfork;

use telpher_interpose::preload::{Heap, KernelPages};

/// The allocator of this library.
#[cfg_attr(not(test), global_allocator)]
static HEAP: Heap<KernelPages> = Heap::new(KernelPages);
