//! The functions that interpose the C library's.

mod changes;
mod descriptors;
mod directories;
mod exec;
mod files;
pub(crate) mod map;
mod next;
mod polling;
mod printing;
pub(crate) mod process;
mod route;
mod signals;
mod start;
mod status;
pub(crate) mod stdio;
mod walks;
