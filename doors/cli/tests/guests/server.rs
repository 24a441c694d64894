//! `telpher vfio` in a process of its own.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::machine::Folder;

/// A server with one socket for each guest; killed on drop.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) sockets: Vec<PathBuf>,
    /// What it says on standard error. A file, so that it never waits for a reader.
    remarks: PathBuf,
}

/// The counters of one machine, as the server prints them at its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Counters {
    pub(crate) descriptors: u64,
    pub(crate) read: u64,
    pub(crate) written: u64,
    pub(crate) faults: u64,
    pub(crate) lost: u64,
    pub(crate) interrupts: u64,
}

impl Counters {
    /// Reads the numbers of a line, which come in this order behind the socket's path.
    fn of_line(line: &str) -> Option<Counters> {
        let (_, numbers) = line.split_once(": ")?;
        let mut numbers = numbers.split(", ").map(|part| part.split(' ').next()?.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(Counters {
            descriptors: next()?,
            read: next()?,
            written: next()?,
            faults: next()?,
            lost: next()?,
            interrupts: next()?,
        })
    }
}

impl Server {
    /// Starts it and waits for its sockets.
    pub(crate) fn start(folder: &Folder, guests: usize, options: &[&str]) -> Server {
        let sockets: Vec<PathBuf> = (0..guests).map(|number| folder.file(&format!("{number}.sock"))).collect();
        let remarks = folder.file("remarks");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_telpher"), "vfio"]);
        for socket in &sockets {
            command.arg("--socket").arg(socket);
        }
        command.args(options).stdout(Stdio::piped()).stderr(File::create(&remarks).expect("a file"));
        let child = command.spawn().expect("setpriv of util-linux");
        let mut server = Server { child, sockets, remarks };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !server.sockets.iter().all(|socket| socket.exists()) {
            let runs = server.child.try_wait().is_ok_and(|status| status.is_none());
            assert!(runs && Instant::now() < deadline, "no sockets: {}", server.remarks());
            std::thread::yield_now();
        }
        server
    }

    /// What it has said so far.
    pub(crate) fn remarks(&self) -> String {
        std::fs::read_to_string(&self.remarks).unwrap_or_default()
    }

    /// Ends it with SIGINT, as Ctrl-C does, and returns the counters of each machine, and all that it said.
    pub(crate) fn end(mut self) -> (Vec<Counters>, String) {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it runs");
        let mut summary = String::new();
        self.child.stdout.take().expect("piped above").read_to_string(&mut summary).expect("text");
        let message = format!("{}{summary}", self.remarks());
        assert!(self.child.wait().expect("it was started here").success(), "{message}");
        let counters = summary.lines().map(Counters::of_line).collect::<Option<Vec<_>>>();
        (counters.unwrap_or_else(|| panic!("no counters in: {summary}")), message)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
