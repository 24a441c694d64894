//! A virtual DSA for unmodified programs: the implementation of `telpher run`.
//!
//! ```text
//! telpher run ─► run ─► launch      finds, starts and watches the program; the preloaded file, the run's directory
//!                 ├──► kernel      the idxd driver's state: attributes, binding, files (no I/O of its own)
//!                 ├──► host        open files and their shared memory; answers guests' requests, one connection each
//!                 ├──► view/shadow     the tree for preloaded programs     (view "preload")
//!                 ├──► view/namespace  the tree as a file system (FUSE)    (view "namespace")
//! ```
//!
//! Citations: **SPEC** is Intel's *Data Streaming Accelerator Architecture Specification*, order 341204-006US; **K612**
//! is Linux 6.12, `drivers/dma/idxd` unless a path is given; **UAPI** is `include/uapi/linux/idxd.h`; **ACCFG** is
//! accel-config 3.5.3.
//!
//! *Observed clients* are accel-config 3.5.3, DPDK 22.11 and DTO as packaged: their sources, and
//! their observed behaviour.
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
