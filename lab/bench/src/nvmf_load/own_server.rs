//! A server that the bench starts as a program of its own: `telpher nvmf`, with a disk in memory.

use crate::BenchError;
use crate::folder::Folder;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

/// The servers of a bench.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ServerOptions {
    /// Bytes of the disk in memory.
    pub memory_bytes: u64,
    /// The largest number of loops.
    pub most_loops: u16,
    /// The device that computes data digests.
    pub device: String,
    /// Digests of data with fewer bytes are computed by the CPU; `None` is the server's default.
    pub threshold_bytes: Option<u64>,
}

/// A running server. Dropping it ends it, and waits for its end.
pub(super) struct OwnServer {
    what: String,
    address: SocketAddr,
    child: Child,
    /// The end of the process, once it was waited for.
    ended: Option<ExitStatus>,
    /// The server may print more.
    _output: BufReader<ChildStdout>,
    folder: Folder,
}

impl OwnServer {
    /// Starts a server with this number of loops at a free port of the loopback address.
    pub(super) fn start(options: &ServerOptions, nqn: &str, loops: u16) -> Result<OwnServer, BenchError> {
        let what = format!("the server with {loops} {}", if loops == 1 { "loop" } else { "loops" });
        let folder = Folder::new()?;
        let started = spawn(options, nqn, loops, &folder);
        let (mut child, output) = started.map_err(|source| BenchError::Program { what: what.clone(), source })?;
        let mut output = BufReader::new(output);
        match read_address(&mut output) {
            Ok(address) => Ok(OwnServer { what, address, child, ended: None, _output: output, folder }),
            Err(unread) => {
                // It has ended, or it is another program, and must end.
                let _ = kill_process(Pid::from_child(&child), Signal::TERM);
                let _ = child.wait();
                Err(BenchError::Program { what, source: last_error(&folder).unwrap_or(unread) })
            }
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Asks the server to end.
    pub(super) fn stop(&self) {
        // The process was not waited for, so its number is still its own.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }

    /// Ends the server, and waits for it.
    pub(super) fn end(mut self) -> Result<(), BenchError> {
        self.stop();
        let ended = self.child.wait().and_then(|status| {
            self.ended = Some(status);
            let failed = || last_error(&self.folder).unwrap_or_else(|| io::Error::other(status.to_string()));
            if status.success() { Ok(()) } else { Err(failed()) }
        });
        ended.map_err(|source| BenchError::Program { what: self.what.clone(), source })
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        if self.ended.is_none() {
            self.stop();
            // An error was reported before.
            let _ = self.child.wait();
        }
    }
}

fn spawn(options: &ServerOptions, nqn: &str, loops: u16, folder: &Folder) -> io::Result<(Child, ChildStdout)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["nvmf", "--listen", "127.0.0.1:0", "--nqn", nqn, "--device", &options.device]);
    command.arg("--memory").arg(options.memory_bytes.to_string());
    command.arg("--loops").arg(loops.to_string());
    command.arg("--control").arg(folder.file("control"));
    if let Some(bytes) = options.threshold_bytes {
        command.arg("--threshold").arg(bytes.to_string());
    }
    // Ctrl-C in a terminal goes to a whole process group; the bench ends the server.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
    // A file, because a full pipe would stop the server.
    let mut child = command.stderr(File::create(folder.file("errors"))?).spawn()?;
    let output = child.stdout.take().expect("standard output is piped");
    Ok((child, output))
}

/// Reads what the server prints until it names its address.
fn read_address(output: &mut impl BufRead) -> io::Result<SocketAddr> {
    for line in output.lines() {
        let line = line?;
        if let Some((address, _)) = line.strip_prefix("Listening at ").and_then(|rest| rest.split_once(". ")) {
            return address.parse().map_err(|_| io::Error::other(format!("'{address}' is not an address")));
        }
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended before it listened"))
}

/// The last line that the server wrote to standard error.
fn last_error(folder: &Folder) -> Option<io::Error> {
    let text = std::fs::read_to_string(folder.file("errors")).ok()?;
    let line = text.lines().last()?;
    Some(io::Error::other(line.strip_prefix("telpher: ").unwrap_or(line).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_what_the_server_prints() {
        let text =
            "Subsystem nqn.2026-01.io.telpher:disk, any host\nListening at 127.0.0.1:40123. On Linux, as root:\n";
        assert_eq!(read_address(&mut text.as_bytes()).unwrap(), "127.0.0.1:40123".parse().unwrap());
        let error = read_address(&mut "Subsystem\n".as_bytes()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(read_address(&mut "Listening at home. On\n".as_bytes()).unwrap_err().to_string().contains("'home'"));
    }
}
