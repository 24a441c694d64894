#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! options ─► VfioRun: for each machine a Server: a socket, a Function, two threads
//! session thread: Connection ─► wire ─► Session ─► ConfigSpace | Function's registers | Portals ─► submit
//! engine thread:  WorkSignal ─► a turn at the EnginePool ─► Function::execute ─► GuestSpace ─► DmaMap | MessageDma
//! interrupts:     the model's counts ─► Vectors ─► eventfds of the client
//! ```
#![deny(unsafe_code)]

pub mod commands;
mod config_space;
mod connection;
mod dma;
mod error;
mod function;
mod guest_memory;
mod interrupts;
mod messages;
mod negotiation;
mod options;
mod portals;
mod remarks;
mod run;
mod server;
mod session;
mod sync;
mod turns;
mod wire;
mod work_signal;

pub use error::VfioRunError;
pub use options::{Machine, ParseError, RunOptions};
pub use run::{MachineTotals, VfioRun};
pub use telpher_model::Preset;

/// The README's examples, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
