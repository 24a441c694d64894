//! Runs a program with a library preloaded into it, and no device: what `telpher tier run` needs.

use crate::error::LaunchError;
use crate::image::{Image, PRELOAD, preload};
use crate::program::Program;
use crate::signals::Signals;
use crate::spawn::spawn;
use crate::standard::leave_closed;
use crate::user_directory::UserDirectory;
use crate::wait::{Ended, Family, adopt_orphans};
use std::ffi::OsString;
use std::fmt::Arguments;
use std::io::Write as _;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// A program, and what is preloaded into it and into every dynamically linked program it starts.
#[derive(Debug)]
pub struct Preloaded<'a> {
    /// Searched in PATH.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// What is preloaded.
    pub image: Image<'a>,
    /// A variable of the program's environment.
    pub variable: (&'static str, OsString),
    /// How long to wait after the first SIGTERM; [`GRACE`](crate::GRACE) is usual.
    pub grace: Duration,
}

impl Preloaded<'_> {
    /// Runs it to its end, and until what it has left running has ended, too. Returns its exit code; 128 + N if signal N ended it.
    ///
    /// To be called by a process with one thread and no other children: signals to the process are handed on to the program, and whatever
    /// its descendants orphan becomes a child of this process.
    ///
    /// # Errors
    /// If the program cannot be run, or nothing can be preloaded into it.
    pub fn run(&self, user: &UserDirectory) -> Result<u8, LaunchError> {
        let program = Program::find(&self.program, std::env::var_os("PATH").as_deref())?;
        if let Some(why) = program.unpreloadable {
            return Err(LaunchError::Unpreloadable { program: program.path, why });
        }
        let image = self.image.place(user)?;
        let signals = Signals::take().map_err(LaunchError::system("take signals"))?;
        let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let mut command = Command::new(&program.path);
        command.arg0(&self.program).args(&self.args).env(self.variable.0, &self.variable.1);
        command.env(PRELOAD, preload(&image, self.image.name, &program.binary, std::env::var_os(PRELOAD).as_deref()));
        signals.restore_in(&mut command, limits);
        leave_closed(&mut command);
        adopt_orphans();
        let child = spawn(command, &program)?;
        let mut family = Family::new(child, &signals, self.grace);
        let ended = family.wait();
        family.wait_for_others(|left| {
            say(format_args!(
                "{} has ended; what it left running goes on: {left}; ^C ends this",
                program.path.display()
            ));
        });
        let running = family.running();
        if family.is_over() && !running.is_empty() {
            say(format_args!("{} s after SIGTERM these still run: {running}", self.grace.as_secs_f64()));
        }
        Ok(ended.map_or(Ended::STILL_RUNNING, Ended::code))
    }
}

/// A sentence for the user, beside what the program prints. Standard error may be closed; then it is lost.
fn say(sentence: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "telpher: {sentence}");
}
