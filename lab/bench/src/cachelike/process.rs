//! The process that has the cache: it reads a job and then commands from standard input, a line each, and answers each
//! with a line of JSON. The other end is in the process that compares.

use super::run::{Job, Load, Measured, Turn};
use super::store::Store;
use crate::BenchError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Order {
    /// Set as many keys as fit, each once.
    Fill,
    /// Execute this many operations with each thread.
    Turn(u64),
    /// Report what was measured in all turns.
    Report,
}

/// Reads the job and obeys the commands until standard input ends.
///
/// # Errors
/// If an input is invalid, or standard output is closed.
pub fn obey() -> io::Result<()> {
    let mut lines = io::stdin().lock().lines();
    let Some(job) = lines.next() else { return Ok(()) };
    let job: Job = serde_json::from_str(&job?)?;
    let bytes = usize::try_from(job.config.cache_bytes).map_err(io::Error::other)?;
    // Fresh pages of the system: they are zero, and take memory when they are written.
    let mut memory = vec![0; bytes];
    let store = Store::new(&job.config, &mut memory);
    let mut load = Load::new(&job, &store);
    let mut out = io::stdout().lock();
    for line in lines {
        let answer = match serde_json::from_str(&line?)? {
            Order::Fill => {
                load.fill();
                serde_json::to_string(&())?
            }
            Order::Turn(operations) => serde_json::to_string(&load.turn(operations))?,
            Order::Report => serde_json::to_string(&load.measured())?,
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

/// How a side's process is started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start<'a> {
    /// Options of `telpher offload`; `None` starts the process without it.
    pub(super) offload: Option<&'a [String]>,
    /// The file for the counters of `telpher offload`.
    pub(super) counters: &'a Path,
}

/// A process with a cache, as the comparing process sees it.
#[derive(Debug)]
pub(super) struct CacheProcess {
    name: String,
    child: Child,
    /// `None` once the pipe is closed to end the process.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl CacheProcess {
    /// Starts a process and gives it the job.
    pub(super) fn start(name: &str, start: Start<'_>, job: &Job) -> Result<Self, BenchError> {
        let what = format!("the process with the cache ({name})");
        let failed = |source| BenchError::Program { what: what.clone(), source };
        let telpher = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(&telpher);
        if let Some(options) = start.offload {
            command.arg("offload").args(["--format", "json", "--output"]).arg(start.counters);
            command.args(options).arg("--").arg(&telpher);
        }
        command.args(["bench", "cachelike", "--program"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let mut process = CacheProcess { name: what.clone(), child, orders, answers };
        process.say(job).map_err(failed)?;
        Ok(process)
    }

    fn say(&mut self, what: &impl Serialize) -> io::Result<()> {
        let orders = self.orders.as_mut().expect("only `end` takes it");
        writeln!(orders, "{}", serde_json::to_string(what)?)?;
        orders.flush()
    }

    fn ask<T: DeserializeOwned>(&mut self, order: Order) -> Result<T, BenchError> {
        let mut ask = || {
            self.say(&order)?;
            let mut line = String::new();
            if self.answers.read_line(&mut line)? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended without an answer"));
            }
            Ok(serde_json::from_str(&line)?)
        };
        ask().map_err(|source| BenchError::Program { what: self.name.clone(), source })
    }

    pub(super) fn fill(&mut self) -> Result<(), BenchError> {
        self.ask(Order::Fill)
    }

    pub(super) fn turn(&mut self, operations: u64) -> Result<Turn, BenchError> {
        self.ask(Order::Turn(operations))
    }

    /// Returns what was measured, and ends the process.
    pub(super) fn end(mut self) -> Result<Measured, BenchError> {
        let measured = self.ask(Order::Report)?;
        drop(self.orders.take());
        let failed = |source| BenchError::Program { what: self.name.clone(), source };
        let status = self.child.wait().map_err(failed)?;
        if !status.success() {
            return Err(failed(io::Error::other(format!("it ended with {status}"))));
        }
        Ok(measured)
    }
}

impl Drop for CacheProcess {
    fn drop(&mut self) {
        // The end of its input ends the process.
        drop(self.orders.take());
        // An error was reported before; after `end` this returns at once.
        let _ = self.child.wait();
    }
}
