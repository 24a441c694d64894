//! The symbols that win over the C library's.

mod changes;
mod descriptors;
mod directories;
mod files;
mod map;
mod next;
mod process;
mod route;
mod signals;
mod start;
mod status;
pub(crate) mod stdio;
