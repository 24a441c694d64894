//! Programs that a program executes: keeps the preloaded library in them, whatever environment they are given.
//!
//! A program may replace `LD_PRELOAD` or start another program with an environment of its own. The preloaded library
//! replaces the functions that execute programs, and passes on an environment in which its entry and its variables are
//! restored.
//!
//! ```text
//! execve, posix_spawn, … ─► functions ─► examine the program (program) ──► a message, if nothing can be preloaded into
//! it
//!                                    └─► environment ─► list ─► a copy in `scratch` ─► the C library's function
//! system, popen          ─► functions ─► shell: the command, in a shell that has the variables
//! ```
//!
//! An environment with another value of the run's variable belongs to a run within this run, and is left unchanged.
//! [`start`] keeps the data that these functions need; without it they behave like the C library's.

mod environment;
mod functions;
mod list;
mod program;
mod scratch;
mod shell;
mod state;
mod symbols;
mod target;

pub use functions::{
    exec_list, exec_list_environment, exec_list_search, execute, execute_at, execute_descriptor, execute_search, popen,
    spawn, spawn_descriptor, spawn_search, spawn_search_descriptor, system,
};
pub use list::PreloadRequirements;
pub use program::{Form, HEAD_BYTES, Name, Obstacle, Read, examine, is_runtime};
pub use state::{Kept, Words};

/// From now on, restores these variables and the library's entry of `LD_PRELOAD` in the environments of executed
/// programs. The first variable identifies the run: an environment with another
/// value of it is left alone. Call it once, before `main`. Without memory, or for a library without a path, nothing is
/// restored.
pub fn start(variables: &[(&str, &[u8])], words: Option<Words>) {
    functions::look_up();
    state::keep(variables, words);
}
