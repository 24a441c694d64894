//! Starts other people's programs with a library of ours preloaded, and waits for them. `telpher run` and `telpher tier
//! run` share it.
//!
//! ```text
//! user_directory ─► image           the library's file: one per build, never removed
//!        └────────► run_directory   one per run; the sweeper removes it, however the run ends
//! program           which file is executed, and whether a library can be preloaded into it
//! sanitizer         the runtime that must be loaded before the library
//! libraries         the libraries themselves, built by build.rs and carried in the binary
//! signals, standard the program inherits the signal mask and the closed descriptors that telpher was started with
//! spawn ─► wait     the program, its descendants, and when waiting ends
//! ```
#![deny(unsafe_code)]

mod error;
mod image;
pub mod libraries;
mod preloaded;
mod program;
mod run_directory;
mod run_kind;
mod sanitizer;
mod signals;
mod spawn;
mod standard;
mod sweeper;
mod user_directory;
mod wait;

pub use error::LaunchError;
pub use image::{Image, PRELOAD, preload};
pub use preloaded::PreloadedProgram;
pub use program::Program;
pub use run_directory::RunDirectory;
pub use run_kind::RunKind;
pub use signals::Signals;
pub use spawn::{child_pid, spawn, start_error};
pub use standard::leave_closed;
pub use user_directory::{UserDirectory, VARIABLE};
pub use wait::{Ended, GRACE, ProcessTree, adopt_orphans};

#[cfg(test)]
#[path = "../../../ci/skip.rs"]
mod skip;
