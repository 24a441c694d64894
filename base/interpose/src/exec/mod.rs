//! Programs that a program executes: they have the preloaded library, too, whatever environment they are given.
//!
//! A program may replace `LD_PRELOAD` or start another one with an environment of its own. The preloaded library stands in front of
//! the functions that execute programs, and hands on an environment in which its entry and its variables are restored.
//!
//! ```text
//! execve, posix_spawn, … ─► functions ─► look at the program (program) ──► a sentence, if nothing can be preloaded into it
//!                                    └─► environment ─► list ─► a copy in room ─► the C library's function
//! system, popen          ─► functions ─► shell: the command, in a shell that has the variables
//! ```
//!
//! An environment with another value of the run's variable is of a run within this run, and is left as it is. What these functions
//! need is kept by [`start`]; without it they do what the C library's do.

mod environment;
mod functions;
mod list;
mod program;
mod room;
mod shell;
mod state;
mod symbols;

pub use functions::{
    exec_list, exec_list_environment, exec_list_search, execute, execute_at, execute_descriptor, execute_search, popen,
    spawn, spawn_descriptor, spawn_search, spawn_search_descriptor, system,
};
pub use list::Wanted;
pub use program::{Form, HEAD_BYTES, Name, Obstacle, Read, examine, is_runtime};
pub use state::{Kept, Words, start};
