//! The words between the virtual device's host (`telpher run`) and the part of it that is preloaded into a program.
//!
//! ```text
//! guest ──connect, one Request, one Reply (with descriptors), close──► host     message
//! guest ◄─────────── memory of one open file, shared by the two ────────► host     lease: statistics, trace
//! guest ◄─────────── state of one queue, which only the host writes ─────── host    board: enabled?, files
//! guest ◄─────────── memory of one queue, shared by all its openers ─────► host     board: occupancy by file
//! ```
//!
//! Control goes by request, one connection each, so that nothing is kept open in a program that may close, fork or execute at
//! any moment. Work never crosses: a descriptor is executed by the process that submitted it, in its own memory.
#![forbid(unsafe_code)]

pub mod board;
pub mod event;
pub mod lease;
pub mod message;
pub mod name;
mod replica;
mod ring;
pub mod settings;
mod sync;

/// Changes whenever a layout here does: a guest of another version is refused.
pub const VERSION: u32 = 2;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
