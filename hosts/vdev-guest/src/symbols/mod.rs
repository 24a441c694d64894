//! The functions that interpose the C library's.

mod descriptors;
mod directories;
mod exec;
mod file_changes;
mod files;
pub(crate) mod map;
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
mod system_calls;
mod walks;
