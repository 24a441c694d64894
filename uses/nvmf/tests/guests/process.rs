//! A server in a process of its own, so that it can be killed. The process is this test program once more.

use crate::serving::{self, Serving};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio, exit};
use std::sync::Arc;
use telpher_nvmf::memory::MemoryOptions;
use telpher_nvmf::{Limits, MemoryStorage};

/// The address of the child's server, and the path of its namespace's memory file.
const ADDRESS: &str = "TELPHER_NVMF_TEST_ADDRESS";
const FILE: &str = "TELPHER_NVMF_TEST_FILE";

/// A server that can be killed and started again, with the same namespace in a memory file.
pub(crate) struct KilledServer {
    /// The test that starts it, and that its process runs.
    test: String,
    file: File,
    pub(crate) address: SocketAddr,
    process: Option<Child>,
}

impl KilledServer {
    /// Starts it at a free port.
    pub(crate) fn start(test: &str, bytes: u64) -> KilledServer {
        let (storage, kept) = MemoryStorage::unnamed(MemoryOptions::new(bytes)).expect("a memory file");
        // Opened once more, since the storage's own file is locked until it is closed.
        let path = format!("/proc/self/fd/{}", kept.as_raw_fd());
        let file = File::options().read(true).write(true).open(path).expect("our own memory file");
        drop((storage, kept));
        let address = "127.0.0.1:0".parse().expect("an address");
        let mut server = KilledServer { test: test.to_owned(), file, address, process: None };
        server.start_again();
        server
    }

    /// Kills its process, which cannot do anything about that.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("it runs");
            process.wait().expect("it ends");
        }
    }

    /// Starts a new process, which serves the same namespace at the same address.
    pub(crate) fn start_again(&mut self) {
        let mut process = Command::new(std::env::current_exe().expect("this program has a file"))
            .args(["--exact", &self.test, "--nocapture", "--include-ignored"])
            .env(ADDRESS, self.address.to_string())
            .env(FILE, format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a second process");
        let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.split_once("serves ").map(|(_, address)| address.to_owned()));
        self.address = address.expect("the process serves").parse().expect("an address");
        self.process = Some(process);
    }
}

impl Drop for KilledServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Serves if this process is such a server, until it is killed or its parent has ended.
pub(crate) fn serve_if_asked() {
    let (Ok(address), Ok(file)) = (std::env::var(ADDRESS), std::env::var(FILE)) else { return };
    let storage = MemoryStorage::open(Path::new(&file)).expect("the parent's memory file");
    let target = serving::target(Limits::default(), &[Arc::new(storage)]);
    let serving = Serving::at(&target, address.parse().expect("an address"));
    println!("serves {}", serving.address);
    // The end of standard input is that of the parent.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    exit(1)
}
