//! A run with a device of eight queues, and processes that have them open.

use crate::BenchError;
use crate::folder::Folder;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The queues of the device.
pub(super) const QUEUES: usize = 8;
/// The processes, each with one queue open.
pub(super) const PROCESSES: usize = 100;
/// How long the processes live at most, in seconds, if this program is killed. Source: chosen; longer than the bench.
const LIFE: u32 = 600;

/// The run; dropping it ends it.
pub(super) struct Clients {
    child: Child,
    /// The directory of this run alone, removed at last.
    folder: Folder,
}

impl Clients {
    /// Starts the processes, and waits until each has its queue open.
    pub(super) fn start() -> Result<Clients, BenchError> {
        let failed = |source| BenchError::Program { what: format!("{PROCESSES} programs under telpher run"), source };
        let folder = Folder::new()?;
        let hardware = folder.file("queues.json");
        std::fs::write(&hardware, configuration()).map_err(failed)?;
        let opens = format!("exec 3<>/dev/dsa/wq0.$0 && echo open && exec sleep {LIFE}");
        let script = format!("for i in $(seq {PROCESSES}); do sh -c '{opens}' $((i % {QUEUES})) & done; wait");
        let mut command = Command::new(telpher()?);
        command.args(["run", "--view", "preload", "--hardware"]).arg(&hardware).args(["--", "/bin/sh", "-c", &script]);
        command.env("TELPHER_RUNTIME_DIR", folder.path()).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut clients = Clients { child: command.spawn().map_err(failed)?, folder };
        let mut lines = BufReader::new(clients.child.stdout.take().expect("standard output is piped")).lines();
        for _ in 0..PROCESSES {
            match lines.next() {
                Some(Ok(line)) if line == "open" => {}
                Some(Ok(line)) => return Err(failed(io::Error::other(line))),
                Some(Err(error)) => return Err(failed(error)),
                None => return Err(failed(io::Error::other("a program could not open its queue"))),
            }
        }
        Ok(clients)
    }

    /// Returns a telpher command that sees this run and no other one.
    pub(super) fn telpher(&self, words: &[&str]) -> Result<Command, BenchError> {
        let mut command = Command::new(telpher()?);
        command.args(words).env("TELPHER_RUNTIME_DIR", self.folder.path()).stdin(Stdio::null());
        Ok(command)
    }
}

/// Keeps all processes of the run stopped until it is dropped.
pub(super) struct Stopped<'a>(&'a Clients);

impl Clients {
    /// Stops all processes of the run: none of their threads runs an instruction.
    pub(super) fn stop(&self) -> Stopped<'_> {
        self.signal(Signal::STOP);
        Stopped(self)
    }

    fn signal(&self, signal: Signal) {
        // An error: the run has ended, which the next reading reports.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT);
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        // The run's directory is in the folder, so that nothing is left of it.
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

fn telpher() -> Result<PathBuf, BenchError> {
    std::env::current_exe().map_err(|source| BenchError::Program { what: "finding this program".into(), source })
}

/// The device in accel-config's format: eight shared queues in two groups. As text, because the order of attributes
/// matters: setting the type of a queue clears its name.
fn configuration() -> String {
    let queue = |wq: usize, group: usize| {
        format!(
            r#"{{"dev": "wq0.{wq}", "mode": "shared", "size": 8, "group_id": {group}, "priority": 10, "threshold": 8,
                "block_on_fault": 1, "max_batch_size": 64, "max_transfer_size": 2147483648, "type": "user",
                "driver_name": "user", "name": "queue{wq}"}}"#
        )
    };
    let group = |group: usize| {
        let first = group * QUEUES / 2;
        let queues: Vec<_> = (first..first + QUEUES / 2).map(|wq| queue(wq, group)).collect();
        let engine = |engine| format!(r#"{{"dev": "engine0.{engine}", "group_id": {group}}}"#);
        let engines = [engine(2 * group), engine(2 * group + 1)].join(", ");
        let queues = queues.join(", ");
        format!(r#"{{"dev": "group0.{group}", "grouped_workqueues": [{queues}], "grouped_engines": [{engines}]}}"#)
    };
    format!(r#"[{{"dev": "dsa0", "groups": [{}, {}]}}]"#, group(0), group(1))
}
