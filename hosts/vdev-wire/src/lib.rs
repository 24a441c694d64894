//! The protocol between the virtual device's host (`telpher run`) and the guest, its library that is preloaded into a
//! program.
//!
//! ```text
//! guest ──connect, one Request, one Reply (with descriptors), close──► host     message
//! guest ◄────── memory of one open file, shared by guest and host ─────► host     lease: statistics, trace
//! guest ◄────── state of one queue, which only the host writes ─────────  host    board: enabled?, files
//! guest ◄────── memory of one queue, shared by all its openers ─────────► host    board: occupancy by file
//! guest ──Windows, WindowRead, WindowWrite──► host ──► another process's memory   windows: the host checks each access
//! ```
//!
//! Both sides make the same queue of the modelled device of an opened file: [`open_queue::OpenQueue`]. The guest's
//! accesses its own process's memory, the host's that of a process without a guest.
//!
//! Each request uses its own connection, so no connection stays open in a program that may close, fork or exec at any
//! moment. The host never executes a guest's work: a descriptor is executed by the process that submitted it, in its
//! own memory.
#![forbid(unsafe_code)]

pub mod event;
pub mod file_memory;
pub mod message;
pub mod name;
pub mod open_queue;
pub mod queue_state;
mod replica;
mod ring;
pub mod settings;
mod sync;

/// Changes with every change of a layout in this crate; the host refuses a guest of another version.
pub const VERSION: u32 = 9;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
