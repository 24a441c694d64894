#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! SIGILL, SIGSEGV, SIGBUS ─► traps ── decode ──► sites (rewrites) ──┐
//!                              │                                     ▼
//!                              └────► entry ◄── trampoline ◄── a rewritten site
//!                                       │ saves registers, switches to a stack
//!                                    emulate ─► guarded (operands) ─► Handler (portals)
//!                                       │ back, or
//!                                       └─► invalid opcode ─► signals::deliver (faults, deferred handlers)
//! every other signal ─► signals ─► the program's handler, now or deferred
//! exec      keeps the preloaded library in programs that the program executes
//! preload   what every preloaded library needs: start and end, settings, a heap, a lock, interposed functions
//! sanitizer the requirements of AddressSanitizer's runtime on a preloaded library
//! thread    the state of one thread, reachable in all of these
//! kernel    system calls that bypass the C library
//! context, vectors   registers in a signal frame
//! ```
#![deny(unsafe_code)]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("telpher-interpose is for x86-64 Linux: it decodes its instructions and edits its signal frames");

mod context;
pub mod decode;
mod emulate;
mod entry;
pub mod exec;
mod fault;
mod frame;
mod guarded_access;
mod handler;
mod joined;
mod kernel;
pub mod preload;
pub mod registers;
pub mod sanitizer;
pub mod signals;
pub mod sites;
mod thread;
mod traps;
mod vector_registers;

pub use handler::{Handler, SubmitInstruction};
pub use joined::{is_joined, pass_on_signals};
pub use kernel::Errno;
pub use telpher_abi::Offer;
pub use thread::Monitor;
pub use traps::{Fixup, Options, after_fork_child, install, join, share};

/// Bytes of stack available to a [`Handler`]'s functions.
pub const STACK_BYTES: usize = 256 << 10;
