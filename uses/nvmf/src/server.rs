//! The sockets of a target: one thread with an epoll loop over listeners and connections.
//!
//! ```text
//! epoll ─► accept ─► Client
//!       ─► Client::read ─► Connection::receive ─► DigestEngine ─► Connection::digest_done ─► Client::write (writev)
//! ```
//!
//! The loop sleeps while nothing happens. Level-triggered interest is taken back from a connection that takes no
//! input, so that a host that does not read costs no CPU.

mod client;

use crate::connection::Context;
use crate::engine::{DigestEngine, FinishedJob, JobId};
use crate::loops::LoopInbox;
use crate::storage::StorageResult;
use crate::subsystem::lock;
use crate::target::Target;
use client::Client;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// Bytes that are read from a socket at once. All connections of a loop share the buffer.
const READ_BYTES: usize = 256 << 10;
/// Events of one call of epoll.
const EVENTS: usize = 256;
/// The epoll number of the handle's eventfd. Listeners follow, and then connections by their own number.
const HANDLE: u64 = 0;
/// The first epoll number of a connection.
const FIRST_CONNECTION: u64 = 1 << 16;
/// How long listeners rest after the kernel could not create a socket for a connection.
const ACCEPT_PAUSE_MS: u64 = 100;

/// What other threads ask of a loop.
#[derive(Debug, Default)]
struct Requests {
    is_stopping: bool,
    /// The target changed.
    is_changed: bool,
    answers: Vec<(JobId, StorageResult)>,
}

/// How other threads reach a loop.
#[derive(Debug)]
struct Signal {
    event: OwnedFd,
    requests: Mutex<Requests>,
}

impl Signal {
    fn wake(&self) {
        // It fails only if the counter is full, and then the loop is going to wake up anyway.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

impl LoopInbox for Signal {
    fn answer(&self, id: JobId, result: StorageResult) {
        let mut requests = lock(&self.requests);
        // The loop takes all answers at once, so only the first one has to wake it up.
        let is_first = requests.answers.is_empty();
        requests.answers.push((id, result));
        drop(requests);
        if is_first {
            self.wake();
        }
    }

    fn target_changed(&self) {
        if !std::mem::replace(&mut lock(&self.requests).is_changed, true) {
            self.wake();
        }
    }
}

/// Stops a server from another thread.
#[derive(Clone, Debug)]
pub struct Handle {
    signal: Arc<Signal>,
}

impl Handle {
    /// Ends the loop. Connections are closed.
    pub fn stop(&self) {
        lock(&self.signal.requests).is_stopping = true;
        self.signal.wake();
    }
}

/// Milliseconds of the monotonic clock: the same for all loops, which share the time-outs of controllers.
fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let milliseconds = now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000);
    u64::try_from(milliseconds).unwrap_or(0)
}

/// One loop that serves a target.
#[derive(Debug)]
pub struct Server<E> {
    target: Arc<Target>,
    engine: E,
    listeners: Vec<TcpListener>,
    most_connections: usize,
    events: OwnedFd,
    signal: Arc<Signal>,
    clients: HashMap<u64, Client>,
    buffer: Vec<u8>,
    /// When time-outs have to be looked at. Time-outs of connections only move to later times.
    next_poll: Option<u64>,
    accepts_at: Option<u64>,
}

impl<E: DigestEngine> Server<E> {
    /// Listens at these addresses, and adds them to the target's discovery log. Several servers, each on its own
    /// thread, can serve one target.
    ///
    /// # Errors
    /// The kernel's error for the first address at which it cannot listen, or for a missing descriptor.
    pub fn bind(
        target: &Arc<Target>,
        addresses: &[SocketAddr],
        most_connections: usize,
        engine: E,
    ) -> io::Result<Server<E>> {
        let listeners: Vec<TcpListener> = addresses.iter().map(TcpListener::bind).collect::<io::Result<_>>()?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&events, &event, EventData::new_u64(HANDLE), EventFlags::IN)?;
        let mut bound = Vec::with_capacity(listeners.len());
        for (number, listener) in (HANDLE + 1..).zip(&listeners) {
            listener.set_nonblocking(true)?;
            epoll::add(&events, listener, EventData::new_u64(number), EventFlags::IN)?;
            bound.push(listener.local_addr()?);
        }
        let known = target.subsystems().listeners();
        bound.retain(|address| !known.contains(address));
        target.set_listeners([known, bound].concat());
        let signal = Arc::new(Signal { event, requests: Mutex::default() });
        let inbox: Arc<dyn LoopInbox> = Arc::<Signal>::clone(&signal);
        target.loops().add_loop(&inbox);
        Ok(Server {
            target: Arc::clone(target),
            engine,
            listeners,
            most_connections,
            events,
            signal,
            clients: HashMap::new(),
            buffer: vec![0; READ_BYTES],
            next_poll: None,
            accepts_at: None,
        })
    }

    /// The addresses at which the server listens, with the ports that the kernel chose.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// A handle for other threads.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle { signal: Arc::clone(&self.signal) }
    }

    /// Serves until the handle stops it.
    ///
    /// # Errors
    /// The kernel's error if epoll fails.
    pub fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        let mut finished = Vec::new();
        loop {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let now = now_ms();
            let mut polls_all = self.next_poll.is_some_and(|at| now >= at);
            for event in &events {
                let flags = event.flags;
                match event.data.u64() {
                    HANDLE => {
                        let _ = rustix::io::read(&self.signal.event, &mut [0_u8; 8]);
                        let requests = std::mem::take(&mut *lock(&self.signal.requests));
                        if requests.is_stopping {
                            return Ok(());
                        }
                        polls_all |= requests.is_changed;
                        self.answered(requests.answers, now);
                    }
                    number if number < FIRST_CONNECTION => self.accept(number, now),
                    number => self.serve(number, flags, now),
                }
            }
            self.finish_jobs(&mut finished, now);
            if self.accepts_at.is_some_and(|at| now >= at) {
                self.accepts_at = None;
                self.listen(EventFlags::IN);
            }
            if polls_all {
                self.poll_all(now);
            }
        }
    }

    /// How long epoll may sleep.
    fn timeout(&self) -> Option<Timespec> {
        if self.engine.pending() > 0 {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let at = [self.next_poll, self.accepts_at].into_iter().flatten().min()?;
        let rest = at.saturating_sub(now_ms());
        let seconds = i64::try_from(rest / 1000).unwrap_or(i64::MAX);
        let nanoseconds = i64::try_from(rest % 1000).unwrap_or(0) * 1_000_000;
        Some(Timespec { tv_sec: seconds, tv_nsec: nanoseconds })
    }

    fn listen(&self, flags: EventFlags) {
        for (number, listener) in (HANDLE + 1..).zip(&self.listeners) {
            let _ = epoll::modify(&self.events, listener, EventData::new_u64(number), flags);
        }
    }

    fn accept(&mut self, number: u64, now: u64) {
        let index = usize::try_from(number - HANDLE - 1).unwrap_or(usize::MAX);
        let Some(listener) = self.listeners.get(index) else { return };
        loop {
            let socket = match listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(_) => {
                    // No descriptor is free. Without a pause, the loop would try again at once, for ever.
                    self.accepts_at = Some(now.saturating_add(ACCEPT_PAUSE_MS));
                    self.listen(EventFlags::empty());
                    return;
                }
            };
            if self.clients.len() >= self.most_connections {
                continue; // closes the socket
            }
            let Ok(client) = Client::new(socket, &self.target, now) else { continue };
            let number = client.connection.number() + FIRST_CONNECTION;
            if epoll::add(&self.events, client.socket(), EventData::new_u64(number), client.interest()).is_ok() {
                self.next_poll = [self.next_poll, client.connection.next_deadline()].into_iter().flatten().min();
                let inbox: Arc<dyn LoopInbox> = Arc::<Signal>::clone(&self.signal);
                self.target.loops().register(client.connection.number(), inbox);
                self.clients.insert(number, client);
            }
        }
    }

    /// Reads and writes one connection.
    fn serve(&mut self, number: u64, flags: EventFlags, now: u64) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let mut context = Context { engine: &mut self.engine, now };
        // Both directions are closed. epoll reports this whatever the interest is, so the socket must not stay
        // (spdk/spdk #3842: a dead socket kept a core busy).
        let is_dead = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        let may_read = flags.contains(EventFlags::IN);
        let is_open = !is_dead && (!may_read || client.read(&mut self.buffer, &mut context));
        let is_open = is_open && client.write(&mut context);
        let deadline = client.connection.next_deadline();
        self.next_poll = [self.next_poll, deadline].into_iter().flatten().min();
        self.update(number, is_open);
    }

    /// Changes the interest of a connection, or removes it.
    fn update(&mut self, number: u64, is_open: bool) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        if is_open && !client.connection.is_closed() {
            if let Some(interest) = client.changed_interest() {
                let _ = epoll::modify(&self.events, client.socket(), EventData::new_u64(number), interest);
            }
            return;
        }
        // Closing the socket takes it out of epoll.
        self.clients.remove(&number);
    }

    /// Returns finished jobs to their connections, and sends the replies.
    fn finish_jobs(&mut self, finished: &mut Vec<FinishedJob>, now: u64) {
        let mut touched = Vec::new();
        loop {
            self.engine.submit();
            self.engine.completed(finished);
            if finished.is_empty() {
                break;
            }
            for job in finished.drain(..) {
                let number = job.id.connection + FIRST_CONNECTION;
                // A job of a connection that has ended is dropped, with its buffers.
                let Some(client) = self.clients.get_mut(&number) else { continue };
                client.connection.digest_done(job, &mut Context { engine: &mut self.engine, now });
                if touched.last() != Some(&number) {
                    touched.push(number);
                }
            }
        }
        self.write_to(&touched, now);
    }

    /// Returns the backends' answers to their connections, and sends the replies.
    fn answered(&mut self, answers: Vec<(JobId, StorageResult)>, now: u64) {
        let mut touched = Vec::new();
        for (id, result) in answers {
            let number = id.connection + FIRST_CONNECTION;
            let Some(client) = self.clients.get_mut(&number) else {
                self.target.loops().release(id);
                continue;
            };
            client.connection.storage_done(id, result, &mut Context { engine: &mut self.engine, now });
            if touched.last() != Some(&number) {
                touched.push(number);
            }
        }
        self.write_to(&touched, now);
    }

    /// Sends what waits in these connections.
    fn write_to(&mut self, numbers: &[u64], now: u64) {
        for &number in numbers {
            let Some(client) = self.clients.get_mut(&number) else { continue };
            let is_open = client.write(&mut Context { engine: &mut self.engine, now });
            self.update(number, is_open);
        }
    }

    /// Looks at all time-outs, resets and events.
    fn poll_all(&mut self, now: u64) {
        let numbers: Vec<u64> = self.clients.keys().copied().collect();
        for &number in &numbers {
            if let Some(client) = self.clients.get_mut(&number) {
                client.connection.poll(now);
            }
        }
        self.write_to(&numbers, now);
        self.next_poll = self.clients.values().filter_map(|client| client.connection.next_deadline()).min();
    }
}
