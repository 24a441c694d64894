//! Whole servers on loopback sockets.

mod client;
mod configuration;
mod control;
mod loops;
mod statistics;
mod stop;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use telpher_nvmf_run::{Config, Level, NvmfRun, NvmfRunError, Running};

const NQN: &str = "nqn.2026-01.org.example:disk";

/// A directory that is removed at the end of a test.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new() -> TestFolder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("telpher-nvmf-run-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        TestFolder(path)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server of a test.
struct Served {
    running: Option<Running>,
    address: SocketAddr,
    folder: Arc<TestFolder>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Served {
    /// Serves a configuration without listeners and control socket, which are added.
    fn new(config: &str) -> Served {
        Served::at("127.0.0.1:0".parse().unwrap(), config, Arc::new(TestFolder::new())).unwrap()
    }

    fn at(address: SocketAddr, config: &str, folder: Arc<TestFolder>) -> Result<Served, NvmfRunError> {
        let mut config = parse(&config.replace("FOLDER", folder.0.to_str().unwrap()));
        (config.listeners[0].address, config.listeners[0].port) = (address.ip(), address.port());
        config.control_socket = Some(folder.0.join("control"));
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&log);
        let print = move |level: Level, line: String| lines.lock().unwrap().push(format!("{level:?}: {line}"));
        let running = NvmfRun::open(&config, print)?.start()?;
        let address = running.addresses()[0];
        Ok(Served { running: Some(running), address, folder, log })
    }

    fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    fn socket(&self) -> &Path {
        self.running().control_socket()
    }

    fn stop(&mut self) {
        self.running.take().unwrap().stop(not_hurried).unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = running.stop(not_hurried);
        }
    }
}

/// No second signal comes.
fn not_hurried() -> bool {
    std::thread::sleep(Duration::from_millis(1));
    false
}

fn parse(text: &str) -> Config {
    Config::parse(text, Path::new("test.json")).unwrap()
}

/// A configuration with one subsystem; `namespaces` and `more` are JSON.
fn one(namespaces: &str, more: &str) -> String {
    format!(r#"{{ "subsystems": [{{ "nqn": "{NQN}", "namespaces": [{namespaces}] }}]{more} }}"#)
}
