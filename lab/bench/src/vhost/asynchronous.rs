//! DPDK's asynchronous vhost as a competitor: a small backend on its public interface, compiled when the benchmark
//! runs.
//!
//! DPDK ships no suitable program: its `net_vhost` has no asynchronous copies, and its example needs a network card.

use super::super::BenchError;
use super::scene::MIB;
use crate::point::Thread;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use telpher_vhost::peers::{Terminal, Work, lacking};

const SOURCE: &str = include_str!("peer/dpdk_async.c");
/// Time limit for a program to start or to answer.
const SOON: Duration = Duration::from_secs(10);

/// Returns why the backend cannot be compiled on this machine, or `None`.
pub(super) fn missing() -> Option<String> {
    let tools = lacking(&[("cc", "gcc"), ("pkg-config", "pkg-config"), ("setpriv", "util-linux")]);
    tools.or_else(|| {
        let found = Command::new("pkg-config").args(["--exists", "libdpdk"]).status();
        (!found.is_ok_and(|status| status.success()))
            .then(|| "no DPDK to compile with (Debian package libdpdk-dev)".into())
    })
}

/// The running backend.
pub(super) struct Asynchronous {
    terminal: Terminal,
    pid: u32,
}

impl Asynchronous {
    /// Compiles it and starts it at a socket, with its own thread on one core and its DMA's thread on another. With
    /// `guest` (the arguments of a virtio device) the process contains a guest too.
    pub(super) fn start(
        folder: &Path,
        socket: &Path,
        guest: Option<&str>,
        core: usize,
        dma: usize,
    ) -> Result<Asynchronous, BenchError> {
        let program = compile(folder)?;
        let lcores = format!("0@{core},1@{dma}");
        let mib = if guest.is_some() { 2 * MIB } else { MIB };
        let mut words = vec![
            format!("RUNTIME_DIRECTORY={}", folder.display()),
            program,
            "--lcores".into(),
            lcores,
            "--in-memory".into(),
            "--single-file-segments".into(),
            "--no-pci".into(),
            "--no-telemetry".into(),
            "--iova-mode=va".into(),
            "-m".into(),
            mib.to_string(),
            format!("--file-prefix=async-{}", std::process::id()),
            "--vdev=dma_skeleton0,lcore=1".into(),
            "--".into(),
            socket.display().to_string(),
        ];
        words.extend(guest.map(str::to_owned));
        let mut terminal = Terminal::start("dpdk-async", "env", &words)?;
        terminal.until("ready\n", SOON)?;
        let pid = terminal.pid();
        Ok(Asynchronous { terminal, pid })
    }

    /// Starts a kind of work.
    pub(super) fn work(&mut self, work: Work) -> Result<(), BenchError> {
        match work {
            Work::Source(len) => self.say(&format!("source {len}")),
            // Without a guest in the process the length is not used.
            Work::Return => self.say("return 64"),
            _ => self.say("sink 64"),
        }
    }

    /// With a guest in the process: sends packets into the guest (`Source`), out of it (`Numbered`) or around
    /// (`Begin`). Any other work removes the packets on both sides.
    pub(super) fn go(&mut self, work: Work) -> Result<(), BenchError> {
        match work {
            Work::Source(len) => self.say(&format!("source {len}")),
            Work::Numbered(len) => self.say(&format!("sink {len}")),
            Work::Begin(len) => self.say(&format!("return {len}")),
            _ => self.say("drain"),
        }
    }

    /// Returns the number of packets in the guest's direction so far, and a time in nanoseconds.
    pub(super) fn count(&mut self) -> Result<(f64, f64), BenchError> {
        self.terminal.line("count")?;
        let output = self.terminal.until("done\n", SOON)?;
        let mut numbers = output.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
        let both = numbers.next().zip(numbers.next());
        both.ok_or_else(|| BenchError::NotHere(format!("DPDK's asynchronous backend counts so: {output}")))
    }

    /// Stops the work.
    pub(super) fn rest(&mut self) -> Result<(), BenchError> {
        self.say("rest")
    }

    fn say(&mut self, line: &str) -> Result<(), BenchError> {
        self.terminal.line(line)?;
        self.terminal.until("done\n", SOON)?;
        Ok(())
    }

    /// Returns the forwarding thread.
    pub(super) fn threads(&self) -> Vec<Thread> {
        vec![Thread::main_of(self.pid)]
    }
}

fn compile(folder: &Path) -> Result<String, BenchError> {
    let failed = |what: &str, reason: String| BenchError::NotHere(format!("{what} failed: {reason}"));
    let program = |what: &str| {
        let what = what.to_owned();
        move |source| BenchError::Program { what, source }
    };
    let flags = Command::new("pkg-config").args(["--cflags", "--libs", "libdpdk"]).output();
    let flags = flags.map_err(program("pkg-config"))?;
    let (source, compiled) = (folder.join("dpdk_async.c"), folder.join("dpdk_async"));
    std::fs::write(&source, SOURCE).map_err(program("writing the asynchronous peer's source"))?;
    let mut cc = Command::new("cc");
    cc.args(["-O3", "-march=native", "-DALLOW_EXPERIMENTAL_API"]).arg("-o").arg(&compiled).arg(&source);
    cc.args(String::from_utf8_lossy(&flags.stdout).split_whitespace());
    // The software DMA is a separate driver, which is loaded only if it is named.
    cc.args(["-Wl,--no-as-needed", "-lrte_dma_skeleton"]);
    let output = cc.output().map_err(program("cc"))?;
    if !output.status.success() {
        return Err(failed(
            "compiling DPDK's asynchronous backend",
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ));
    }
    Ok(compiled.display().to_string())
}
