//! The guest: the virtual device's library inside a program.
//!
//! It is preloaded into every dynamically linked program of a run. It interposes the C library's functions that concern
//! the device's files, emulates the instructions that the processor lacks, and models the queue that the program has
//! opened: every open file has a replica of the device here, which executes descriptors in this process, in its own
//! memory.
//!
//! ```text
//! program ──open, read, stat…──► symbols ──► files ──► shadow tree, or control ──► host
//!         ──open node, mmap───► symbols ──► node ──► replica, portal
//!         ──MOVDIR64B, ENQCMD─► interpose ─► submit ──► portal ──► replica ──► memory, records
//!         ──UMWAIT, TPAUSE────► interpose ─► wait
//!         ──perf_event_open───► symbols ──► perf ──► host
//!         ──IDXD_WIN_CREATE───► symbols ──► windows ──► host ──► other processes' memory
//! ```
#![deny(unsafe_code)]
// Loom tests single files of this crate; with loom's atomics the library itself does not compile.
#![cfg(not(loom))]
#![cfg_attr(test, allow(dead_code, reason = "the symbols that use it are not compiled in tests"))]

mod control;
mod faults;
mod files;
mod fork;
mod guard;
mod memory;
mod node;
mod observe;
mod perf;
mod portal;
mod replica;
mod run;
mod shared;
mod start;
mod submit;
mod symbols;
mod sync;
mod sys;
#[cfg(test)]
mod tests;
mod user_count;
mod wait;
mod window_memory;
mod windows;

use telpher_interpose::preload::{Heap, KernelPages};

/// The allocator of this library.
#[cfg_attr(not(test), global_allocator)]
static HEAP: Heap<KernelPages> = Heap::new(KernelPages);
