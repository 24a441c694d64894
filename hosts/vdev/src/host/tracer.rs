//! Reads the traces from open files' shared memory while guests write them.

use super::Host;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Pause between two rounds while a file is open. Source: chosen: a ring holds 4096 entries, which a busy file fills in
/// a few milliseconds; guests wait several times this long before they lose an entry.
const ROUND: Duration = Duration::from_millis(1);
/// Pause between two rounds while no file is open.
const IDLE: Duration = Duration::from_millis(5);

/// The reading thread; dropping this ends it.
#[derive(Debug)]
pub(super) struct Tracer {
    thread: Option<JoinHandle<()>>,
    stop: Option<Sender<()>>,
}

impl Tracer {
    pub(super) fn start(host: &Arc<Host>) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let host = Arc::downgrade(host);
        let work = move || {
            let mut pause = IDLE;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let Some(next) = round(&host) else { return };
                pause = next;
            }
        };
        let thread = std::thread::Builder::new().name("telpher-trace".into()).spawn(work)?;
        Ok(Tracer { thread: Some(thread), stop: Some(stop) })
    }
}

/// Reads the traces of all open files once; `None` once the host is gone.
fn round(host: &Weak<Host>) -> Option<Duration> {
    let host = host.upgrade()?;
    let files = host.open_files();
    for file in &files {
        file.take_trace(&*host.listener, false);
    }
    Some(if files.is_empty() { IDLE } else { ROUND })
}

impl Drop for Tracer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A listener's panic has already been reported.
            let _ = thread.join();
        }
    }
}
