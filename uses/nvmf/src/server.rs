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
use crate::engine::{DigestEngine, FinishedJob};
use crate::target::Target;
use client::Client;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

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

/// How a handle reaches its loop.
#[derive(Debug)]
struct Signal {
    event: OwnedFd,
    is_stopping: std::sync::Mutex<bool>,
}

/// Stops a server from another thread, or tells it that its target changed.
#[derive(Clone, Debug)]
pub struct Handle {
    signal: Arc<Signal>,
}

impl Handle {
    /// Ends the loop. Connections are closed.
    pub fn stop(&self) {
        *crate::subsystem::lock(&self.signal.is_stopping) = true;
        self.target_changed();
    }

    /// Reports that namespaces, hosts or subsystems changed, so that waiting hosts are told now.
    pub fn target_changed(&self) {
        // It fails only if the counter is full, and then the loop is going to wake up anyway.
        let _ = rustix::io::write(&self.signal.event, &1_u64.to_ne_bytes());
    }
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
    start: Instant,
    /// When time-outs have to be looked at. Time-outs of connections only move to later times.
    next_poll: Option<u64>,
    accepts_at: Option<u64>,
}

impl<E: DigestEngine> Server<E> {
    /// Listens at these addresses, and makes the target's discovery log list them.
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
        target.set_listeners(bound);
        let signal = Arc::new(Signal { event, is_stopping: std::sync::Mutex::new(false) });
        Ok(Server {
            target: Arc::clone(target),
            engine,
            listeners,
            most_connections,
            events,
            signal,
            clients: HashMap::new(),
            buffer: vec![0; READ_BYTES],
            start: Instant::now(),
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

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
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
            let now = self.now();
            let mut polls_all = self.next_poll.is_some_and(|at| now >= at);
            for event in &events {
                let flags = event.flags;
                match event.data.u64() {
                    HANDLE => {
                        let _ = rustix::io::read(&self.signal.event, &mut [0_u8; 8]);
                        if *crate::subsystem::lock(&self.signal.is_stopping) {
                            return Ok(());
                        }
                        polls_all = true;
                    }
                    number if number < FIRST_CONNECTION => self.accept(number, now),
                    number => polls_all |= self.serve(number, flags, now),
                }
            }
            polls_all |= self.finish_jobs(&mut finished, now);
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
        let rest = at.saturating_sub(self.now());
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
                self.clients.insert(number, client);
            }
        }
    }

    /// Reads and writes one connection. Returns whether other connections may be affected.
    fn serve(&mut self, number: u64, flags: EventFlags, now: u64) -> bool {
        let Some(client) = self.clients.get_mut(&number) else { return false };
        let mut context = Context { engine: &mut self.engine, now };
        // Both directions are closed. epoll reports this whatever the interest is, so the socket must not stay
        // (spdk/spdk #3842: a dead socket kept a core busy).
        let is_dead = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        let may_read = flags.contains(EventFlags::IN);
        let is_open = !is_dead && (!may_read || client.read(&mut self.buffer, &mut context));
        let is_open = is_open && client.write(&mut context);
        let deadline = client.connection.next_deadline();
        self.next_poll = [self.next_poll, deadline].into_iter().flatten().min();
        // Commands of an admin queue may end or change other queues.
        let affects_others = client.is_admin();
        self.update(number, is_open) || affects_others
    }

    /// Changes the interest of a connection, or removes it. Returns whether it removed one with an admin queue, whose
    /// I/O queues then have to end.
    fn update(&mut self, number: u64, is_open: bool) -> bool {
        let Some(client) = self.clients.get_mut(&number) else { return false };
        if is_open && !client.connection.is_closed() {
            if let Some(interest) = client.changed_interest() {
                let _ = epoll::modify(&self.events, client.socket(), EventData::new_u64(number), interest);
            }
            return false;
        }
        let was_admin = client.is_admin();
        // Closing the socket takes it out of epoll.
        self.clients.remove(&number);
        was_admin
    }

    /// Returns finished jobs to their connections, and sends the replies. Returns whether other connections may be
    /// affected.
    fn finish_jobs(&mut self, finished: &mut Vec<FinishedJob>, now: u64) -> bool {
        let mut touched = Vec::new();
        let mut affects_others = false;
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
        for number in touched {
            let Some(client) = self.clients.get_mut(&number) else { continue };
            let is_open = client.write(&mut Context { engine: &mut self.engine, now });
            affects_others |= self.update(number, is_open);
        }
        affects_others
    }

    /// Looks at all time-outs, resets and events.
    fn poll_all(&mut self, now: u64) {
        let mut again = true;
        // Each further round follows the end of an admin queue, so there are not more rounds than connections.
        while std::mem::take(&mut again) {
            let numbers: Vec<u64> = self.clients.keys().copied().collect();
            for number in numbers {
                let Some(client) = self.clients.get_mut(&number) else { continue };
                client.connection.poll(now);
                let is_open = client.write(&mut Context { engine: &mut self.engine, now });
                again |= self.update(number, is_open);
            }
        }
        self.next_poll = self.clients.values().filter_map(|client| client.connection.next_deadline()).min();
    }
}
