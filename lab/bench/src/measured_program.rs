//! Programs that take turns: each waits for a line with its next task.

use crate::BenchError;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The measured program in its own process.
#[derive(Debug)]
pub(crate) struct MeasuredProgram {
    what: String,
    child: Child,
    /// `None` once the pipe is closed to end the process.
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl MeasuredProgram {
    /// Starts the program of `telpher bench BENCH` under the telpher command `under`, such as `run --view preload`, or
    /// by itself if that has no words.
    pub(crate) fn start<S: AsRef<OsStr>>(what: &str, bench: &str, under: &[S]) -> Result<Self, BenchError> {
        let failed = |source| BenchError::Program { what: what.into(), source };
        let telpher = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(&telpher);
        if !under.is_empty() {
            command.args(under).arg("--").arg(&telpher);
        }
        command.args(["bench", bench, "--program"]);
        Self::spawn(what, command)
    }

    /// Starts a program that answers tasks.
    pub(crate) fn spawn(what: &str, mut command: Command) -> Result<Self, BenchError> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|source| BenchError::Program { what: what.into(), source })?;
        let questions = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("standard output is piped"));
        Ok(MeasuredProgram { what: what.into(), child, questions, answers })
    }

    /// Lets it work on a task for `time`; returns nanoseconds per operation.
    pub(crate) fn turn(&mut self, task: &str, time: Duration) -> Result<f64, BenchError> {
        self.ask(task, time.as_millis().max(1))
    }

    /// Gives it a task with a number; returns its answer.
    pub(crate) fn ask(&mut self, task: &str, number: u128) -> Result<f64, BenchError> {
        self.answer(task, number)
            .map_err(|source| BenchError::Program { what: format!("{} ({task})", self.what), source })
    }

    /// Ends the program and waits for it.
    pub(crate) fn end(mut self) -> Result<(), BenchError> {
        drop(self.questions.take());
        let ended = self
            .child
            .wait()
            .and_then(|status| if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) });
        ended.map_err(|source| BenchError::Program { what: self.what.clone(), source })
    }

    fn answer(&mut self, task: &str, number: u128) -> io::Result<f64> {
        let questions = self.questions.as_mut().expect("only dropping ends it");
        writeln!(questions, "{task} {number}")?;
        questions.flush()?;
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended without an answer"));
        }
        line.trim().parse().map_err(|_| io::Error::other(line.trim().trim_start_matches("- ").to_owned()))
    }
}

impl Drop for MeasuredProgram {
    fn drop(&mut self) {
        // The end of its input ends the process.
        drop(self.questions.take());
        // It has no more output, and an error was reported before.
        let _ = self.child.wait();
    }
}
