//! The sockets of a target: one thread with a loop over listeners and connections.
//!
//! ```text
//! Sockets::wait ─► accept ─► Client
//!               ─► received bytes ─► Connection::receive ─► DigestEngine ─► Connection::digest_done ─► send
//! ```
//!
//! The loop sleeps while nothing happens. Each pass takes everything that has happened, and then sends the replies of
//! each connection at once. [`SocketEngine`] chooses how:
//!
//! - epoll: one call to wait, and one for each receive and each send. Level-triggered interest is taken back from a
//!   connection that takes no input, so that a host that does not read costs no CPU.
//! - io_uring: one call hands over the receives and sends of all connections, and waits for the next ones to end.

mod client;
mod clock;
mod event;
mod handle;
mod report;
mod ring;
mod socket_engine;
mod sockets;

use crate::connection::{Context, Ending, Outgoing};
use crate::engine::{DigestEngine, FinishedJob, JobId};
use crate::loops::LoopInbox;
use crate::stats::{LoopStats, Stats};
use crate::storage::StorageResult;
use crate::target::Target;
use client::Client;
use clock::now_ms;
use event::{Destination, Event, FIRST_CONNECTION, HANDLE};
pub use handle::Handle;
use handle::{Finish, Signal};
pub use report::{LoopReport, Observer, QueueName, QueueReport, ServerEvent};
use ring::SocketRing;
use rustix::event::epoll::{self, EventData, EventFlags};
pub use socket_engine::{SocketEngine, SocketsInUse};
use sockets::Sockets;
use sockets::wait_for_epoll;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use telpher_metrics::MetricSet as _;

/// Bytes that are read from a socket at once. All connections of a loop share the buffer.
const READ_BYTES: usize = 256 << 10;
/// How long listeners rest after the kernel could not create a socket for a connection.
const ACCEPT_PAUSE_MS: u64 = 100;

/// Memory that a pass of the loop uses, and the next one again.
#[derive(Default)]
struct PassMemory {
    events: Vec<Event>,
    finished: Vec<FinishedJob>,
}

/// One loop that serves a target.
#[derive(Debug)]
pub struct Server {
    target: Arc<Target>,
    engine: Box<dyn DigestEngine>,
    listeners: Vec<TcpListener>,
    most_connections: usize,
    /// Listeners, and with [`SocketEngine::Epoll`] also connections and the handle.
    epoll: Arc<OwnedFd>,
    /// What was chosen; while the loop runs, what is used.
    socket_engine: SocketEngine,
    signal: Arc<Signal>,
    clients: HashMap<u64, Client>,
    buffer: Vec<u8>,
    /// Connections that have something to do at the end of the pass.
    touched: Vec<u64>,
    /// When time-outs have to be looked at. Time-outs of connections only move to later times.
    next_poll: Option<u64>,
    accepts_at: Option<u64>,
    /// No more commands are taken, and the loop ends.
    finish: Option<Finish>,
    has_run: bool,
    /// The loops that get the connections of the listeners, with this one.
    loops: Vec<Handle>,
    stats: LoopStats,
    /// Sums of the connections that have ended, by their subsystem.
    ended: BTreeMap<String, Stats>,
    observer: Option<Arc<dyn Observer>>,
}

impl Server {
    /// Listens at these addresses, and adds them to the target's discovery log. Several servers, each on its own
    /// thread, can serve one target.
    ///
    /// # Errors
    /// The kernel's error for the first address at which it cannot listen, or for a missing descriptor.
    pub fn bind(
        target: &Arc<Target>,
        addresses: &[SocketAddr],
        most_connections: usize,
        engine: Box<dyn DigestEngine>,
    ) -> io::Result<Server> {
        let listeners: Vec<TcpListener> = addresses.iter().map(TcpListener::bind).collect::<io::Result<_>>()?;
        Server::new(target, listeners, most_connections, engine)
    }

    /// Accepts connections from these listeners, and adds their addresses to the target's discovery log. Without
    /// listeners, the server gets its connections from [`Handle::adopt`].
    ///
    /// # Errors
    /// The kernel's error for a missing descriptor.
    pub fn new(
        target: &Arc<Target>,
        listeners: Vec<TcpListener>,
        most_connections: usize,
        engine: Box<dyn DigestEngine>,
    ) -> io::Result<Server> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let signal = Arc::new(Signal::new(target.loops())?);
        let mut bound = Vec::with_capacity(listeners.len());
        for (number, listener) in (HANDLE + 1..).zip(&listeners) {
            listener.set_nonblocking(true)?;
            epoll::add(&epoll, listener, EventData::new_u64(number), EventFlags::IN)?;
            bound.push(listener.local_addr()?);
        }
        let known = target.subsystems().listeners();
        bound.retain(|address| !known.contains(address));
        target.set_listeners([known, bound].concat());
        let inbox: Arc<dyn LoopInbox> = Arc::<Signal>::clone(&signal);
        target.loops().add_loop(&inbox);
        Ok(Server {
            target: Arc::clone(target),
            engine,
            listeners,
            most_connections,
            epoll,
            socket_engine: SocketEngine::default(),
            loops: vec![Handle { signal: Arc::clone(&signal) }],
            signal,
            clients: HashMap::new(),
            buffer: vec![0; READ_BYTES],
            touched: Vec::new(),
            next_poll: None,
            accepts_at: None,
            finish: None,
            has_run: false,
            stats: LoopStats::default(),
            ended: BTreeMap::new(),
            observer: None,
        })
    }

    /// Divides the connections of the listeners among this loop and `others`: each goes to the loop with the fewest
    /// connections, and stays there. The limit of connections is for all of them together.
    pub fn share_with(&mut self, others: impl IntoIterator<Item = Handle>) {
        self.loops.extend(others);
    }

    /// Chooses what moves the bytes of sockets, and returns what will.
    ///
    /// # Errors
    /// The kernel refuses the io_uring that `engine` requires.
    pub fn use_sockets(&mut self, engine: SocketEngine) -> io::Result<SocketsInUse> {
        self.socket_engine = engine;
        if engine == SocketEngine::Epoll {
            return Ok(SocketsInUse::Epoll { refusal: None });
        }
        let (signal, epoll) = (&self.signal, &self.epoll);
        // The end of an io_uring interrupts calls of the thread that has created it, so this is a thread of its own.
        let created = std::thread::scope(|scope| {
            let tried = scope.spawn(|| SocketRing::new(signal, epoll).map(drop));
            tried.join().unwrap_or_else(|_| Err(io::Error::other("the thread that tries io_uring has failed")))
        });
        match created {
            Ok(()) => Ok(SocketsInUse::Uring),
            Err(error) if engine == SocketEngine::Uring => Err(error),
            Err(error) => Ok(SocketsInUse::Epoll { refusal: Some(error) }),
        }
    }

    /// The sockets of the calling thread, which serves them from now on.
    fn sockets(&mut self) -> io::Result<Sockets> {
        if self.socket_engine != SocketEngine::Epoll {
            match SocketRing::new(&self.signal, &self.epoll) {
                Ok(ring) => {
                    self.socket_engine = SocketEngine::Uring;
                    return Ok(Sockets::Ring(Box::new(ring)));
                }
                Err(error) if self.socket_engine == SocketEngine::Uring => return Err(error),
                Err(error) => self.observe(|| ServerEvent::NoRing { error: error.to_string() }),
            }
        }
        self.socket_engine = SocketEngine::Epoll;
        epoll::add(&self.epoll, &self.signal.event, EventData::new_u64(HANDLE), EventFlags::IN)?;
        Ok(Sockets::Epoll(Arc::clone(&self.epoll)))
    }

    /// Reports what happens to connections.
    pub fn observe_by(&mut self, observer: Arc<dyn Observer>) {
        self.observer = Some(observer);
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

    /// Serves until the handle stops it, or lets it finish. A server runs once.
    ///
    /// # Errors
    /// The kernel's error if it refuses the engine that was required, or to wait; or the server has run before.
    pub fn run(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.has_run, true) {
            return Err(io::Error::other("this server has run before; create another one to serve the target again"));
        }
        let mut sockets = self.sockets()?;
        let mut memory = PassMemory::default();
        while self.pass(&mut sockets, &mut memory)? {}
        Ok(())
    }

    /// Waits until something happens, and does what is to be done then. Returns whether the loop goes on.
    ///
    /// # Errors
    /// The kernel's.
    fn pass(&mut self, sockets: &mut Sockets, memory: &mut PassMemory) -> io::Result<bool> {
        let PassMemory { events, finished } = memory;
        sockets.wait(self.timeout(), events, &mut self.stats)?;
        self.stats.wakeups += 1;
        let now = now_ms();
        let mut polls_all = self.next_poll.is_some_and(|at| now >= at);
        let mut at = 0;
        // The event of the listeners appends others.
        while at < events.len() {
            let event = std::mem::replace(&mut events[at], Event::Taken);
            at += 1;
            match event {
                Event::Handle => {
                    if let Sockets::Epoll(_) = sockets {
                        self.signal.reset();
                    }
                    let requests = self.signal.take();
                    // The answers are not lost: a namespace is kept until the backend has answered.
                    self.answered(requests.answers, now);
                    if requests.is_stopping {
                        return Ok(false);
                    }
                    polls_all |= requests.is_changed;
                    requests.sockets.into_iter().for_each(|socket| self.adopt(socket, sockets, now));
                    for reader in requests.reports {
                        // The reader may have given up.
                        let _ = reader.send(self.report());
                    }
                    if let Some(finish) = requests.finish {
                        self.begin_to_finish(finish);
                    }
                }
                Event::Listeners => {
                    wait_for_epoll(&self.epoll, Some(Duration::ZERO), events, &mut self.stats)?;
                }
                Event::Listener(number) => self.accept(number, sockets, now),
                Event::Ready { number, flags } => self.ready(number, flags, now),
                Event::Received { number, into, result, has_more } => {
                    self.received(number, into, result, has_more, now);
                }
                Event::Sent { number, outgoing, result } => self.sent(number, outgoing, result, sockets),
                Event::Room { number, outgoing } => {
                    let (Some(client), Sockets::Ring(ring)) = (self.clients.get_mut(&number), &mut *sockets) else {
                        continue;
                    };
                    let is_open = client.send(number, outgoing, ring);
                    self.go_on(number, is_open);
                }
                Event::Taken => {}
            }
        }
        events.clear();
        self.finish_jobs(finished, now);
        self.serve_touched(sockets, now);
        if self.accepts_at.is_some_and(|at| now >= at) {
            self.accepts_at = None;
            self.listen(EventFlags::IN, now);
        }
        // Before time-outs and resets: when another loop has ended, its controllers have, too, and the connections of
        // this one would be closed without hanging up.
        if self.is_finished(now) {
            self.clients.values_mut().for_each(|client| client.hang_up(&mut self.buffer));
            return Ok(false);
        }
        if polls_all {
            self.poll_all(now);
            self.serve_touched(sockets, now);
            self.next_poll = self.clients.values().filter_map(|client| client.connection.next_deadline()).min();
        }
        Ok(true)
    }

    /// Takes no more connections and commands.
    fn begin_to_finish(&mut self, finish: Finish) {
        finish.add_to(&mut self.finish);
        // Closing them takes them out of epoll. Another server can listen at their addresses.
        self.listeners.clear();
        self.accepts_at = None;
        self.clients.values_mut().for_each(|client| client.connection.finish());
    }

    /// Returns whether the loop is to end: no loop of its group has commands, or the time has come. A loop that ended
    /// earlier could take an admin queue with it, and so the commands of I/O queues that other loops serve.
    fn is_finished(&mut self, now: u64) -> bool {
        let Some(finish) = &mut self.finish else { return false };
        if self.clients.values().all(|client| client.connection.is_finished()) {
            finish.leave();
        }
        finish.is_over(now)
    }

    fn report(&self) -> LoopReport {
        let submissions = self.engine.submissions();
        let stats = LoopStats {
            connections: self.clients.len() as u64,
            device_batches: submissions.batches,
            device_operations: submissions.operations,
            ..self.stats
        };
        let queues = self.clients.values().map(Client::report).collect();
        LoopReport { stats, socket_engine: self.socket_engine, queues, ended: self.ended.clone() }
    }

    fn observe(&self, event: impl FnOnce() -> ServerEvent) {
        if let Some(observer) = &self.observer {
            observer.observe(event());
        }
    }

    /// How long the loop may sleep.
    fn timeout(&self) -> Option<Duration> {
        if self.engine.pending() > 0 || !self.touched.is_empty() {
            return Some(Duration::ZERO);
        }
        let finish_by = self.finish.as_ref().map(Finish::by);
        let at = [self.next_poll, self.accepts_at, finish_by].into_iter().flatten().min()?;
        Some(Duration::from_millis(at.saturating_sub(now_ms())))
    }

    /// Changes what epoll waits for at the listeners. If the kernel refuses that, it is tried again after a pause.
    fn listen(&mut self, flags: EventFlags, now: u64) {
        for (number, listener) in (HANDLE + 1..).zip(&self.listeners) {
            if let Err(error) = epoll::modify(&self.epoll, listener, EventData::new_u64(number), flags) {
                self.accepts_at = Some(now.saturating_add(ACCEPT_PAUSE_MS));
                self.observe(|| ServerEvent::NotAccepted { error: error.to_string() });
            }
        }
    }

    fn accept(&mut self, number: u64, sockets: &Sockets, now: u64) {
        let index = usize::try_from(number - HANDLE - 1).unwrap_or(usize::MAX);
        while let Some(listener) = self.listeners.get(index) {
            let (socket, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    // No descriptor is free. Without a pause, the loop would try again at once, for ever.
                    self.accepts_at = Some(now.saturating_add(ACCEPT_PAUSE_MS));
                    self.listen(EventFlags::empty(), now);
                    self.observe(|| ServerEvent::NotAccepted { error: error.to_string() });
                    return;
                }
            };
            if self.loops.iter().map(Handle::connections).sum::<usize>() >= self.most_connections {
                self.stats.refused += 1;
                self.observe(|| ServerEvent::TooMany { peer });
                continue; // closes the socket
            }
            let Some(least) = self.loops.iter().min_by_key(|one| one.connections()) else { return };
            if Arc::ptr_eq(&least.signal, &self.signal) {
                self.signal.count_connection();
                self.adopt(socket, sockets, now);
            } else {
                least.adopt(socket);
            }
        }
    }

    /// Serves a connection that was accepted by this loop or another one, and counted.
    fn adopt(&mut self, socket: TcpStream, sockets: &Sockets, now: u64) {
        self.stats.accepted += 1;
        let is_taken = self.finish.is_none() && self.add(socket, sockets, now).is_ok();
        if !is_taken {
            self.signal.forget_connection();
        }
    }

    fn add(&mut self, socket: TcpStream, sockets: &Sockets, now: u64) -> io::Result<()> {
        let client = Client::new(socket, &self.target, matches!(sockets, Sockets::Ring(_)), now)?;
        let number = client.connection.number() + FIRST_CONNECTION;
        if let Sockets::Epoll(epoll) = sockets {
            epoll::add(epoll, client.socket(), EventData::new_u64(number), client.interest())?;
        }
        self.next_poll = [self.next_poll, client.connection.next_deadline()].into_iter().flatten().min();
        let inbox: Arc<dyn LoopInbox> = Arc::<Signal>::clone(&self.signal);
        self.target.loops().register(client.connection.number(), inbox);
        self.clients.insert(number, client);
        self.touch(number);
        Ok(())
    }

    /// The connection has something to do at the end of the pass.
    fn touch(&mut self, number: u64) {
        if let Some(client) = self.clients.get_mut(&number)
            && !std::mem::replace(&mut client.is_touched, true)
        {
            self.touched.push(number);
        }
    }

    /// Reads a connection of which epoll has said that it is ready.
    fn ready(&mut self, number: u64, flags: EventFlags, now: u64) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let mut context = Context { engine: &mut *self.engine, now };
        // Both directions are closed. epoll reports this whatever the interest is, so the socket must not stay
        // (spdk/spdk #3842: a dead socket kept a core busy).
        let is_dead = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        let may_read = flags.contains(EventFlags::IN);
        let is_open = !is_dead && (!may_read || client.read(&mut self.buffer, &mut context, &mut self.stats));
        self.go_on(number, is_open);
    }

    /// Takes what a receive of the io_uring has brought.
    fn received(&mut self, number: u64, into: Destination, result: io::Result<usize>, has_more: bool, now: u64) {
        // The buffer of a connection that has ended is dropped.
        let Some(client) = self.clients.get_mut(&number) else { return };
        let is_open = client.received(into, result, has_more, &mut Context { engine: &mut *self.engine, now });
        self.go_on(number, is_open);
    }

    /// Goes on after a send of the io_uring.
    fn sent(&mut self, number: u64, outgoing: Outgoing, result: io::Result<usize>, sockets: &mut Sockets) {
        let (Some(client), Sockets::Ring(ring)) = (self.clients.get_mut(&number), sockets) else { return };
        let is_open = client.sent(number, outgoing, result, ring);
        self.go_on(number, is_open);
    }

    fn go_on(&mut self, number: u64, is_open: bool) {
        if is_open { self.touch(number) } else { self.update(number, false) }
    }

    /// Changes the interest of a connection and the time of the next look at time-outs, or removes the connection.
    fn update(&mut self, number: u64, is_open: bool) {
        self.notice(number);
        let Some(client) = self.clients.get_mut(&number) else { return };
        if is_open && !client.connection.is_closed() {
            if let Some(interest) = client.changed_interest() {
                let _ = epoll::modify(&self.epoll, client.socket(), EventData::new_u64(number), interest);
            }
            self.next_poll = [self.next_poll, client.connection.next_deadline()].into_iter().flatten().min();
            return;
        }
        // Closing the socket takes it out of epoll. With io_uring, it is closed when its transfers have ended.
        let Some(client) = self.clients.remove(&number) else { return };
        client.end_transfers();
        self.signal.forget_connection();
        let QueueReport { peer, queue, stats, .. } = client.report();
        let subsystem = queue.as_ref().map_or(String::new(), |queue| queue.subsystem.clone());
        let sum = self.ended.entry(subsystem).or_default();
        *sum = sum.plus(&stats);
        if let Some(queue) = queue {
            let ending = client.connection.ending();
            self.observe(|| ServerEvent::Closed { peer, queue, ending });
        }
    }

    /// Counts and reports what is new about a connection: its queue, a refused host, an error.
    fn notice(&mut self, number: u64) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let peer = client.peer();
        let refused = client.connection.take_refused_host();
        let connected = client.newly_connected();
        let failed = client.newly_failed();
        if let Some(host) = refused {
            self.stats.refused_hosts += 1;
            self.observe(|| ServerEvent::HostRefused { peer, host });
        }
        if let Some((queue, digests)) = connected {
            self.stats.queues[usize::from(queue.qid > 0)] += 1;
            self.observe(|| ServerEvent::Connected { peer, queue, digests });
        }
        if let Some((queue, error)) = failed {
            self.observe(|| ServerEvent::Failed { peer, queue, ending: Ending::Fatal(error) });
        }
    }

    /// Returns finished jobs to their connections.
    fn finish_jobs(&mut self, finished: &mut Vec<FinishedJob>, now: u64) {
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
                client.connection.digest_done(job, &mut Context { engine: &mut *self.engine, now });
                self.touch(number);
            }
        }
    }

    /// Returns the backends' answers to their connections.
    fn answered(&mut self, answers: Vec<(JobId, StorageResult)>, now: u64) {
        for (id, result) in answers {
            let number = id.connection + FIRST_CONNECTION;
            let Some(client) = self.clients.get_mut(&number) else {
                self.target.loops().release(id);
                continue;
            };
            client.connection.storage_done(id, result, &mut Context { engine: &mut *self.engine, now });
            self.touch(number);
        }
    }

    /// Sends what waits in the connections that have something to do, and prepares their next receives.
    fn serve_touched(&mut self, sockets: &mut Sockets, now: u64) {
        let mut touched = std::mem::take(&mut self.touched);
        for number in touched.drain(..) {
            let Some(client) = self.clients.get_mut(&number) else { continue };
            client.is_touched = false;
            let mut context = Context { engine: &mut *self.engine, now };
            let is_open = match sockets {
                Sockets::Epoll(_) => client.write(&mut context, &mut self.stats),
                Sockets::Ring(ring) => client.start(number, ring, &mut context),
            };
            self.update(number, is_open);
        }
        // Serving touches no connection, so the memory can be used again.
        self.touched = touched;
    }

    /// Looks at all time-outs, resets and events.
    fn poll_all(&mut self, now: u64) {
        let numbers: Vec<u64> = self.clients.keys().copied().collect();
        for number in numbers {
            if let Some(client) = self.clients.get_mut(&number) {
                client.connection.poll(now);
                self.touch(number);
            }
        }
    }
}

/// The connections of the loop end. What other threads have asked of it, or ask from now on, is dropped.
impl Drop for Server {
    fn drop(&mut self) {
        // Commands that wait for a backend keep their namespace and its blocks until the backend has answered.
        self.clients.clear();
        for (id, _) in self.signal.end().answers {
            self.target.loops().release(id);
        }
    }
}

#[cfg(test)]
mod tests;
