//! Starts the program's process.

use crate::error::LaunchError;
use crate::program::Program;
use rustix::process::Pid;
use std::io;
use std::process::Command;

/// Starts the program.
///
/// # Errors
/// If the system does not execute the program.
pub fn spawn(mut command: Command, program: &Program) -> Result<Pid, LaunchError> {
    let child = command.spawn().map_err(|source| start_error(source, program))?;
    child_pid(child.id(), program)
}

/// The process number of a child.
pub fn child_pid(child: u32, program: &Program) -> Result<Pid, LaunchError> {
    Pid::from_raw(child.cast_signed()).ok_or(LaunchError::NotFound { program: program.path.clone() })
}

/// Builds the error for a program that the system did not execute.
pub fn start_error(source: io::Error, program: &Program) -> LaunchError {
    match source.kind() {
        io::ErrorKind::NotFound => LaunchError::NotFound { program: program.path.clone() },
        _ => LaunchError::NotExecutable { program: program.path.clone(), source },
    }
}
