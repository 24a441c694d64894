//! The part of `telpher tier` inside a program: it takes the program's memory over as that comes, finds out what of it is hot, and has it on
//! the tiers where it belongs.
//!
//! Preloaded into every dynamically linked program of a run. It stands in front of the C library's functions that
//! begin a thread or a mutex, execute a program, and of `madvise` and `ioctl`, and of no other: mappings are found in `/proc/self/maps`, and
//! what happens to them is told by the kernel.
//!
//! ```text
//! before main ──► start ──► a thread ──► descriptors of its own, a heap (telpher-tier), its manager; then it is the scout
//! scout       ──► maps ──► Heap::adopt        what is new, every some ten milliseconds
//!             ──► telling ──► PID.json        what it has done, every half second, and when the program ends
//! shuffle     all memory to and fro, if that is asked for
//! threads     their tables are let go before they begin, and
//! mutexes     that the kernel writes to are let go, too; they ask for it at the
//! desk        where the scout does what the program's threads want
//! discards    what the system may take it takes at once
//! exec        programs that are executed have this library, too
//! userfaults  memory on which the program registers a userfaultfd is let go
//! heap        this library's own memory, which is never managed
//! ```
#![deny(unsafe_code)]
#![cfg_attr(test, allow(dead_code, reason = "nothing begins by itself under test"))]

mod descriptors;
mod desk;
mod discards;
mod exec;
mod heap;
mod maps;
mod mutexes;
mod next;
mod scout;
mod shuffle;
mod start;
mod sync;
mod telling;
mod threads;
mod userfaults;

/// Memory of this library.
#[cfg_attr(not(test), global_allocator)]
static HEAP: heap::Heap = heap::Heap::new();
