//! A virtual DSA for unmodified programs: what `telpher run` is made of.
//!
//! ```text
//! telpher run ─► run ─► kernel      the idxd driver's state: attributes, binding, files (no I/O of its own)
//!                 ├──► host        files, leases and boards; answers guests' requests, one connection each
//!                 ├──► view/shadow     the tree for preloaded programs     (view "preload")
//!                 ├──► view/namespace  the tree as a file system (FUSE)    (view "namespace")
//!                 └──► image       the preloaded part, in a memory file ─► LD_PRELOAD
//! ```
#![deny(unsafe_code)]

pub mod hardware;
pub mod host;
pub mod image;
pub mod inject;
pub mod kernel;
pub mod run;
pub mod summary;
pub mod trace;
pub mod tree;
pub mod view;
