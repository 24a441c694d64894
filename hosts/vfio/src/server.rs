//! One virtual machine's server: its socket, its function, and their two threads.

use crate::connection::Connection;
use crate::function::{DESCRIPTOR_WORK, Function, TurnEnd};
use crate::remarks::Remarks;
use crate::session::Session;
use crate::turns::EnginePool;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use telpher_vhost::SocketListener;

/// Pause after the system had no descriptor or no memory for a client.
const RETRY: Duration = Duration::from_millis(100);
/// Pause of an engine thread whose descriptors wait for the guest's software, if nothing wakes it.
const BLOCKED: Duration = Duration::from_millis(1);

/// A virtual machine's server, until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) function: Arc<Function>,
    shared: Arc<Shared>,
    /// Where the function has its turns, and its number there.
    turns: (Arc<EnginePool>, usize),
    threads: Vec<JoinHandle<()>>,
}

/// What both ends of a server share.
#[derive(Debug)]
struct Shared {
    stop: OwnedFd,
    /// The client that is served.
    client: Mutex<Option<Arc<Connection>>>,
}

/// What a server needs besides its function.
pub(crate) struct ServerOptions {
    pub(crate) listener: SocketListener,
    pub(crate) pool: Arc<EnginePool>,
    /// Its number in the pool.
    pub(crate) member: usize,
    /// The machine's number, which its engine thread has in its name.
    pub(crate) number: usize,
    pub(crate) uses_messages: bool,
    pub(crate) remarks: Remarks,
}

impl Server {
    /// Starts to serve.
    ///
    /// # Errors
    /// The system refuses a descriptor or a thread.
    pub(crate) fn start(function: Function, options: ServerOptions) -> io::Result<Server> {
        let function = Arc::new(function);
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { stop, client: Mutex::new(None) });
        let (pool, member) = (Arc::clone(&options.pool), options.member);
        let mut server = Server {
            function: Arc::clone(&function),
            shared: Arc::clone(&shared),
            turns: (Arc::clone(&pool), member),
            threads: Vec::new(),
        };
        let engines = Arc::clone(&function);
        let named = |name: String| Builder::new().name(name);
        let name = format!("vfio-engines-{}", options.number);
        server.threads.push(named(name).spawn(move || execute(&engines, &pool, member))?);
        server.threads.push(named("vfio-user".into()).spawn(move || shared.listen(&function, &options))?);
        Ok(server)
    }
}

impl Drop for Server {
    /// Ends the session, if there is one, and both threads.
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
        if let Some(client) = &*self.shared.client.lock().unwrap_or_else(PoisonError::into_inner) {
            client.close();
        }
        self.function.work_signal.end();
        self.turns.0.lift_limit(self.turns.1);
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed its message.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn listen(&self, function: &Function, options: &ServerOptions) {
        while self.wait(&options.listener, PollFlags::IN, None) {
            match accept_with(&options.listener, SocketFlags::CLOEXEC) {
                Ok(stream) => self.session(function, stream, options),
                // The client disconnected before it was accepted.
                Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
                Err(_) => {
                    let pause = Timespec::try_from(RETRY).ok();
                    self.wait(&self.stop, PollFlags::empty(), pause.as_ref());
                }
            }
        }
    }

    /// Serves one client until it goes, or the server stops.
    fn session(&self, function: &Function, stream: OwnedFd, options: &ServerOptions) {
        let connection = Arc::new(Connection::new(stream));
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&connection));
        // A stop before the line above has not closed this connection.
        if self.wait(&self.stop, PollFlags::empty(), Some(&Timespec::default())) {
            options.remarks.add("a client has connected");
            let turns = (&*options.pool, options.member);
            let session = Session::new(function, connection, turns, options.uses_messages, &options.remarks);
            match session.serve() {
                Ok(()) => options.remarks.add("the client has gone; the device was reset"),
                Err(error) => options.remarks.add(&telpher_os::chain(&error)),
            }
        }
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Waits for a file; returns false when the server stops.
    fn wait(&self, file: impl AsFd, events: PollFlags, timeout: Option<&Timespec>) -> bool {
        let mut waited = [PollFd::new(&self.stop, PollFlags::IN), PollFd::new(&file, events)];
        // Interrupted, or out of memory: the caller tries again.
        let _ = poll(&mut waited, timeout);
        waited[0].revents().is_empty()
    }
}

/// Executes a function's descriptors until its work signal ends.
fn execute(function: &Function, pool: &EnginePool, member: usize) {
    let mut limit = None;
    while function.work_signal.wait(limit) == crate::work_signal::Woken::Work {
        let mut engines = function.engines();
        pool.take(member);
        let mut work = 0;
        limit = loop {
            let (end, done) = function.execute(&mut engines, pool, member);
            work += done;
            match end {
                TurnEnd::More if !function.work_signal.has_ended() => pool.next_turn(member, std::mem::take(&mut work)),
                TurnEnd::Blocked => break Some(BLOCKED),
                TurnEnd::Idle | TurnEnd::More => break None,
            }
        };
        // A turn costs something, also if there was nothing to execute.
        pool.leave(member, work.max(DESCRIPTOR_WORK));
    }
}
