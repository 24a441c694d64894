//! Runs a program with something preloaded into it, and no device: what `telpher tier run` wants.

use super::options::RunError;
use super::program::Program;
use super::signals::Signals;
use super::spawn;
use super::wait::{Family, adopt_orphans};
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A program, and what is preloaded into it and into every dynamically linked program it starts.
#[derive(Debug)]
pub struct Preloaded<'a> {
    /// Searched in PATH.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// A shared object's bytes.
    pub image: &'a [u8],
    /// What the file in memory is called, in `/proc/PID/maps` for example.
    pub name: &'static str,
    /// A variable of the program's environment.
    pub variable: (&'static str, OsString),
}

impl Preloaded<'_> {
    /// Runs it to its end, and until what it has left running has ended, too. Returns its exit code; 128 + N if signal N ended it.
    ///
    /// To be called by a process with one thread and no other children: signals to the process are handed on to the program, and whatever its
    /// descendants orphan becomes a child of this process.
    ///
    /// # Errors
    /// If the program cannot be run, or nothing can be preloaded into it.
    pub fn run(&self) -> Result<u8, RunError> {
        let program = Program::find(&self.program, std::env::var_os("PATH").as_deref())?;
        if let Some(why) = program.unpreloadable {
            return Err(RunError::Unpreloadable { program: program.path, why });
        }
        let signals = Signals::take().map_err(RunError::system("take signals"))?;
        let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let image = spawn::in_memory(self.name, self.image)
            .map_err(|errno| RunError::errno("put what is preloaded into memory", errno))?;
        let mut command = Command::new(&program.path);
        command.arg0(&self.program).args(&self.args).env(self.variable.0, &self.variable.1);
        spawn::preload_too(&mut command, &image);
        signals.restore_in(&mut command, limits);
        adopt_orphans();
        let child = spawn::spawn(command, &program)?;
        let mut family = Family::new(child, &signals);
        let ended = family.wait();
        family.wait_for_others(|left| {
            let path = program.path.display();
            // If nobody reads it, that is that.
            let _ = writeln!(
                std::io::stderr(),
                "telpher: {path} has ended; what it left running goes on: {left}; ^C ends this"
            );
        });
        Ok(ended.code())
    }
}
