//! A virtual DSA for unmodified programs: what `telpher run` is made of.
//!
//! ```text
//! telpher run ─► run ─► launch      finds, starts and watches the program; what is preloaded, the run's directory
//!                 ├──► kernel      the idxd driver's state: attributes, binding, files (no I/O of its own)
//!                 ├──► host        files, leases and boards; answers guests' requests, one connection each
//!                 ├──► view/shadow     the tree for preloaded programs     (view "preload")
//!                 ├──► view/namespace  the tree as a file system (FUSE)    (view "namespace")
//! ```
//!
//! Citations: **SPEC** is Intel's *Data Streaming Accelerator Architecture Specification*, order 341204-006US; **K612** is Linux
//! 6.12, `drivers/dma/idxd` unless a path is given; **UAPI** is `include/uapi/linux/idxd.h`; **ACCFG** is accel-config 3.5.3.
//! *Observed clients* are accel-config 3.5.3, DPDK 22.11 and DTO as packaged: read, and watched while they ran.
#![deny(unsafe_code)]

pub mod hardware;
pub mod host;
pub mod inject;
pub mod kernel;
pub mod run;
pub mod summary;
pub mod trace;
pub mod tree;
pub mod view;

#[cfg(test)]
#[path = "../../../ci/skip.rs"]
mod skip;
