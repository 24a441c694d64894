//! The symbols that win over the C library's.

mod map;
mod process;
mod signals;
mod start;
