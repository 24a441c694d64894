//! Runs the packet switch until it is stopped.
//!
//! ```text
//! options ──► DMA queues: device queues ──► SwitchConfig ──► Switch: ports, captures and forwarding threads
//! every second, and at the end: Snapshot ──► the caller, which prints it
//! ```
#![forbid(unsafe_code)]

mod dma_queues;
mod error;
mod options;
mod parse;
mod published;
mod run;

pub use dma_queues::DmaQueues;
pub use error::SwitchRunError;
pub use options::{Capture, RingMap, RunOptions, SocketPort};
pub use parse::{ParseError, parse_policy};
pub use run::SwitchRun;
