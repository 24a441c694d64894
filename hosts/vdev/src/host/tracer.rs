//! Takes the traces out of open files' leases while they are written.

use super::Host;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two rounds while a file is open. Source: chosen: a ring holds 4096 entries, which a busy file fills in a few
/// milliseconds; guests wait for a multiple of it before they lose one.
const ROUND: Duration = Duration::from_millis(1);
/// While none is.
const IDLE: Duration = Duration::from_millis(5);

/// The thread; ends with this value.
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

/// One look at every file; `None` once the host is gone.
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
            // A listener that panicked has said so itself.
            let _ = thread.join();
        }
    }
}
