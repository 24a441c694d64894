#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! Target          subsystems and controllers, shared by all connections
//!   Subsystem     a name, the hosts allowed, and Namespaces, each on a Storage (memory, file, null)
//!   FilePool      executes the requests of files: one io_uring, or threads
//!   Controller    properties, admin commands, features, events, keep alive
//!     identify, log_pages, discovery      the data of its answers
//! Connection      one TCP connection: bytes in, bytes out, jobs for a DigestEngine
//!   Decoder       a stream of bytes to PDUs; also used by the Initiator
//!   commands      I/O commands: checks before their data, execution after it
//!   protection    guards and tags that stored blocks have, inserted and checked
//! RangeLock       keeps other commands from the blocks of one that must be alone, such as a fused Compare and Write
//! DigestEngine    computes digests and copies blocks: CpuEngine, or DeviceEngine on a channel of the mover
//! Initiator       the host's side of a connection
//! load            a load generator on Initiators
//! Server          the sockets: one thread with a loop over the connections of a target, by io_uring or epoll; reports
//! flush           flushes all backends when a server stops
//! pdu, command, status, limits, digest    layouts, numbers and limits
//! ```
#![deny(unsafe_code)]

mod aborts;
pub mod command;
pub mod commands;
pub mod connection;
pub mod controller;
pub mod decoder;
pub mod device_engine;
pub mod digest;
pub mod discovery;
pub mod engine;
pub mod file;
pub mod flush;
pub mod identify;
pub mod initiator;
pub mod limits;
pub mod load;
pub mod log_pages;
pub mod loops;
pub mod memory;
pub mod namespace;
pub mod pdu;
pub mod protection;
pub mod range_lock;
pub mod segment;
pub mod server;
pub mod stats;
pub mod status;
pub mod storage;
pub mod subsystem;
mod sync;
pub mod target;

pub use connection::{Connection, Context};
pub use device_engine::DeviceEngine;
pub use engine::{CpuEngine, DigestEngine};
pub use file::{FileOptions, FilePool, FileStorage};
pub use initiator::Initiator;
pub use limits::Limits;
pub use memory::MemoryStorage;
pub use protection::Protection;
pub use server::Server;
pub use storage::{NullStorage, Storage};
pub use target::Target;
