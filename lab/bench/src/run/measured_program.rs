//! Programs that take turns: each waits for a line with its next task.

use super::program::Task;
use crate::BenchError;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The measured program in its own process.
#[derive(Debug)]
pub(super) struct MeasuredProgram {
    what: String,
    child: Child,
    /// `None` once the pipe is closed to end the process.
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl MeasuredProgram {
    /// Starts it, under `telpher run` with `options`, or without `telpher run` if there are none.
    pub(super) fn start(what: &str, options: Option<&[&str]>) -> Result<Self, BenchError> {
        let failed = |source| BenchError::Program { what: what.into(), source };
        let telpher = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(&telpher);
        if let Some(options) = options {
            command.arg("run").args(options).arg("--").arg(&telpher);
        }
        command.args(["bench", "run", "--program"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let questions = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("standard output is piped"));
        Ok(MeasuredProgram { what: what.into(), child, questions, answers })
    }

    /// Lets it work for `time`; returns nanoseconds per operation.
    pub(super) fn turn(&mut self, task: Task, time: Duration) -> Result<f64, BenchError> {
        self.ask(task, time)
            .map_err(|source| BenchError::Program { what: format!("{} ({})", self.what, task.word()), source })
    }

    fn ask(&mut self, task: Task, time: Duration) -> io::Result<f64> {
        let questions = self.questions.as_mut().expect("only dropping ends it");
        writeln!(questions, "{} {}", task.word(), time.as_millis().max(1))?;
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
