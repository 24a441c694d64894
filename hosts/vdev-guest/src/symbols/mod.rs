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
mod served;
mod signals;
pub(crate) mod standard;
mod start;
mod status;
mod stdio;
mod walks;
