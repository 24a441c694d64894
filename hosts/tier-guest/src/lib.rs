//! The part of `telpher tier` inside a program: it adopts the program's memory, finds hot pages and moves pages to the
//! right tier.
//!
//! It is preloaded into every dynamically linked program of a run. It interposes the C library's functions that start a
//! thread, initialise a mutex or execute a program, and `madvise` and `ioctl`, but no others. Mappings are found in
//! `/proc/self/maps`, and the kernel reports what happens to them.
//!
//! ```text
//! before main ──► start ──► a thread: its own descriptors, a heap (telpher-tier), a manager; then the map scanner
//! map_scanner ──► maps ──► Heap::adopt   new mappings, every 50 ms
//!             ──► status ──► PID.json    what it has done, every half second and when the program ends
//! shuffle     moves all memory to and fro, on request
//! threads     releases thread tables before a thread starts
//! mutexes     releases mutexes that the kernel writes to
//! requests    the queue through which program threads ask the map scanner for this
//! discards    discards MADV_FREE memory at once
//! exec        loads this library into executed programs as well
//! userfaults  releases memory on which the program registers a userfaultfd
//! heap        this library's own memory, which is never managed
//! ```
#![deny(unsafe_code)]
#![cfg_attr(test, allow(dead_code, reason = "the start-up code does not run under test"))]

mod descriptors;
mod discards;
mod exec;
mod heap;
mod map_scanner;
mod maps;
mod mutexes;
mod requests;
mod start;
mod status;
mod stress_moves;
mod sync;
mod threads;
mod userfaults;

use requests::{RequestQueue, State};
use std::sync::{Condvar, Mutex};

/// The queue of requests from program threads.
static REQUESTS: RequestQueue =
    RequestQueue::new(Mutex::new(()), Mutex::new(State::new()), [Condvar::new(), Condvar::new()]);
