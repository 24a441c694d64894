#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! exports           the functions that libfabric and programs call: checks of pointers, conversion of structures
//!   capabilities    hints of an application ─► offer, or the reason for none
//!   domain          what the objects of a program have in common
//!   address_vector  numbers for the addresses of peers
//!   endpoint        sends and receives on an endpoint of `telpher-fabric`
//!   completion_queue, counter, event_queue
//!   bound           what these need of the endpoints that are bound to them
//! failure, log, limits, settings
//! abi               libfabric's structures and constants
//! ```
#![deny(unsafe_code)]

mod abi;
mod address_vector;
mod bound;
mod capabilities;
mod completion_queue;
mod counter;
mod domain;
mod endpoint;
mod event_queue;
mod exports;
mod failure;
mod limits;
mod log;
mod settings;

pub use exports::fi_prov_ini;

#[cfg(test)]
#[path = "../../../ci/skip.rs"]
mod skip;
