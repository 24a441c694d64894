#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! exports           the functions that programs call
//!   calls           takes a call, or leaves it to the MPI
//!     communicators the group of each communicator
//!       device      what copies the chunks of a group
//!     symbols       the MPI's own functions, found in the process
//!       abi         handles and constants of the two families of MPIs
//! counters, log
//! ```
#![deny(unsafe_code)]

mod abi;
mod calls;
mod communicators;
mod counters;
mod device;
mod exports;
mod log;
mod symbols;
