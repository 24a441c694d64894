#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! SIGILL, SIGSEGV, SIGBUS ─► traps ── decode ──► sites (rewrites) ──┐
//!                              │                                     ▼
//!                              └────► entry ◄── trampoline ◄── a rewritten site
//!                                       │ saves registers, takes a stack
//!                                    emulate ─► guarded (operands) ─► Handler (portals)
//!                                       │ back, or
//!                                       └─► invalid opcode ─► signals::deliver (faults, handlers that were put off)
//! every other signal ─► signals ─► the program's handler, or put off
//! exec      programs that the program executes have the preloaded library, too
//! sanitizer what the runtime of AddressSanitizer wants of a preloaded library
//! thread    what one thread must remember, reachable in any of these
//! kernel    system calls, past the C library
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
mod guarded;
mod handler;
mod kernel;
pub mod registers;
pub mod sanitizer;
pub mod signals;
pub mod sites;
mod thread;
mod traps;
mod vectors;

pub use handler::{Answer, Handler, How, Monitor};
pub use kernel::Errno;
pub use traps::{Options, after_fork_child, install};

/// Bytes of stack that a [`Handler`]'s functions may use.
pub const STACK_BYTES: usize = 256 << 10;
