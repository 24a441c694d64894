//! Runs a program with a preloaded library and without a device, for `telpher tier run`.

use crate::error::LaunchError;
use crate::image::{Image, PRELOAD, preload};
use crate::program::Program;
use crate::signals::Signals;
use crate::spawn::spawn;
use crate::standard::leave_closed;
use crate::user_directory::UserDirectory;
use crate::wait::{Ended, ProcessTree, adopt_orphans};
use std::ffi::OsString;
use std::fmt::Arguments;
use std::io::Write as _;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// A program and the library that is preloaded into it and into every dynamically linked program it starts.
#[derive(Debug)]
pub struct PreloadedProgram {
    /// The program; a name without a slash is searched for in PATH.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// The library to preload.
    pub image: Image,
    /// A variable that is added to the program's environment: name and value.
    pub variable: (&'static str, OsString),
    /// What the library does with a dynamically linked Go program, of which it sees the C code only: the end of a
    /// sentence that begins with "PROGRAM is a Go program:". Without it, such a program is not run.
    pub go_notice: Option<&'static str>,
    /// How long to wait after the first SIGTERM; [`GRACE`](crate::GRACE) is usual.
    pub grace: Duration,
}

impl PreloadedProgram {
    /// Runs the program and waits until it and its descendants have ended. Returns its exit code, or 128 + N if signal
    /// N ended it.
    ///
    /// Call this from a process with one thread and no other children. Signals to the process are forwarded to the
    /// program. Orphaned descendants of the program become children of this process.
    ///
    /// # Errors
    /// If the program cannot be run, or nothing can be preloaded into it.
    pub fn run(&self, user: &UserDirectory) -> Result<u8, LaunchError> {
        let program = Program::find(&self.program, std::env::var_os("PATH").as_deref())?;
        match (program.unpreloadable, self.go_notice) {
            (Some(_), Some(notice)) if program.is_dynamic_go => {
                say(format_args!("{} is a Go program: {notice}", program.path.display()));
            }
            (Some(why), _) => return Err(LaunchError::Unpreloadable { program: program.path, why }),
            (None, _) => {}
        }
        let image = self.image.place(user)?;
        let signals = Signals::take().map_err(LaunchError::system("receive signals"))?;
        let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let mut command = Command::new(&program.path);
        command.arg0(&self.program).args(&self.args).env(self.variable.0, &self.variable.1);
        command.env(PRELOAD, preload(&image, self.image.name, &program.binary, std::env::var_os(PRELOAD).as_deref()));
        signals.restore_in(&mut command, limits);
        leave_closed(&mut command);
        adopt_orphans();
        let child = spawn(command, &program)?;
        let mut family = ProcessTree::new(child, &signals, self.grace);
        let ended = family.wait();
        family.wait_for_others(|left| {
            say(format_args!(
                "{} has ended; processes it started still run: {left}; press ^C to stop waiting",
                program.path.display()
            ));
        });
        let running = family.running();
        if family.is_over() && !running.is_empty() {
            say(format_args!("{} s after SIGTERM these processes still run: {running}", self.grace.as_secs_f64()));
        }
        Ok(ended.map_or(Ended::STILL_RUNNING, Ended::code))
    }
}

/// Prints a message for the user on standard error. If standard error is closed, the message is lost.
fn say(sentence: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "telpher: {sentence}");
}
