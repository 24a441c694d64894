//! The helper thread of a connector. It waits in epoll only, and never for a single peer.

use crate::address::Address;
use crate::config::Config;
use crate::error::FabricError;
use crate::events::{ConnectionId, ConnectorCounters, ConnectorEvent, ConnectorStats, Progress};
use crate::handshake::{Hello, Packet, Verdict};
use crate::incoming::{Inbound, Incoming};
use crate::layout::Sizes;
use crate::memory::Memory;
use crate::outgoing::Outgoing;
use crate::queue::Queue;
use crate::socket::{is_of_another_process, is_of_user, process_of, socket, socket_name};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, connect, shutdown};
use rustix::time::Timespec;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The epoll tokens that belong to no connection; connections have the others.
const LISTENER: u64 = 0;
const COMMANDS: u64 = 1;
/// Connections whose Hello has not come yet. At the limit the oldest is closed: a peer sends its Hello right after it
/// connects, so only a stalled peer waits for long. Source: chosen.
const MOST_WITHOUT_HELLO: usize = 64;
/// Events that wait for the endpoint. At the limit no connections are accepted. Source: chosen.
const MOST_EVENTS: usize = 4096;
/// Sockets that are handled between two waits. Source: chosen.
const BATCH: usize = 64;
/// Packets that are taken from one socket, and connections that are accepted, before others have their turn.
/// Source: chosen.
const MOST_AT_ONCE: usize = 16;
/// Pause before the next attempt, if a peer's queue of connections is full or this process has no descriptors.
/// Source: assumed; a peer accepts within a millisecond unless it is stopped.
const RETRY: Duration = Duration::from_millis(20);

/// How long the endpoint's threads are left alone after they have asked for progress: most often they go on by
/// themselves. Source: chosen.
const PROGRESS_DELAY: Duration = Duration::from_millis(1);

/// From the endpoint to the helper thread.
#[derive(Debug)]
pub(crate) enum Command {
    Connect {
        id: ConnectionId,
        to: Address,
    },
    Close {
        id: ConnectionId,
    },
    /// Calls `Progress` after `PROGRESS_DELAY`.
    Progress,
    Stop,
}

/// What the helper thread shares with the endpoint's threads.
pub(crate) struct Shared {
    pub(crate) events: Queue<ConnectorEvent>,
    pub(crate) commands: Queue<Command>,
    /// Wakes the helper thread.
    wake: OwnedFd,
    memory_limit: u64,
    connection_limit: usize,
    /// False if no files of peers are mapped.
    maps_files: bool,
    table: Mutex<Table>,
}

/// The table of a connector. Its lock is never held while other code runs or a system call waits.
#[derive(Default)]
struct Table {
    last_id: u64,
    /// The sockets of open connections.
    sockets: HashMap<ConnectionId, Arc<OwnedFd>>,
    /// Bytes of the connections that this process opened or opens.
    reserved: u64,
    progress: Option<Weak<dyn Progress>>,
    counters: ConnectorCounters,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("memory_limit", &self.memory_limit).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(wake: OwnedFd, config: &Config) -> Shared {
        Shared {
            events: Queue::new(),
            commands: Queue::new(),
            wake,
            memory_limit: config.memory_bytes,
            connection_limit: config.incoming_connections,
            maps_files: config.mapped_bytes != u64::MAX,
            table: Mutex::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers a connection that needs `bytes` of memory.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<ConnectionId, FabricError> {
        let mut table = self.table();
        let limit = self.memory_limit;
        if table.reserved + bytes > limit {
            let advice = "close connections, use smaller ones, or raise `memory_bytes`";
            return Err(FabricError::Limit { what: "the memory of all connections", limit, advice });
        }
        table.reserved += bytes;
        table.last_id += 1;
        Ok(ConnectionId(table.last_id))
    }

    pub(crate) fn socket(&self, of: ConnectionId) -> Option<Arc<OwnedFd>> {
        self.table().sockets.get(&of).cloned()
    }

    pub(crate) fn set_progress(&self, progress: Weak<dyn Progress>) {
        self.table().progress = Some(progress);
    }

    pub(crate) fn stats(&self) -> ConnectorStats {
        self.table().counters.stats()
    }

    fn count(&self, count: impl FnOnce(&mut ConnectorStats)) {
        self.table().counters.count(count);
    }

    pub(crate) fn wake_helper(&self) {
        // Fails only if the counter is at its end, and then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// How far a connection is.
#[derive(Debug)]
enum State {
    /// This process wants it, but the peer's queue of connections was full.
    Waiting {
        to: Address,
    },
    /// This process has sent its Hello.
    HelloSent {
        to: Address,
        memory: Memory,
    },
    /// The peer has connected.
    HelloExpected,
    Open,
}

#[derive(Debug)]
struct Connection {
    socket: Arc<OwnedFd>,
    /// Becomes readable when the peer's process ends; `None` if the process is not visible. It is needed when a child
    /// of the peer has inherited the peer's socket and keeps it open.
    process: Option<OwnedFd>,
    state: State,
    /// True if this process opened it.
    is_outgoing: bool,
    /// For an open connection from a peer.
    inbound: Option<Arc<Inbound>>,
}

pub(crate) struct Helper {
    address: Address,
    sizes: Sizes,
    listener: OwnedFd,
    /// False while no connections are accepted, see `RETRY`.
    accepts: bool,
    epoll: OwnedFd,
    shared: Arc<Shared>,
    /// In order of creation, so that the oldest without a Hello is found first.
    connections: BTreeMap<ConnectionId, Connection>,
    /// Connections from peers whose memory this process has mapped.
    inbound_count: Arc<AtomicUsize>,
    /// True if the endpoint must make progress: there are events for it, or a peer waits.
    has_work: bool,
    /// When the endpoint must make progress because it has asked for it.
    progress_at: Option<Instant>,
    stops: bool,
}

impl Helper {
    pub(crate) fn new(address: Address, sizes: Sizes, listener: OwnedFd, shared: Arc<Shared>) -> Result<Helper, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &shared.wake, epoll::EventData::new_u64(COMMANDS), epoll::EventFlags::IN)?;
        let connections = BTreeMap::new();
        Ok(Helper {
            address,
            sizes,
            listener,
            accepts: true,
            epoll,
            shared,
            connections,
            inbound_count: Arc::default(),
            has_work: false,
            progress_at: None,
            stops: false,
        })
    }

    /// Serves the sockets until the connector is dropped.
    pub(crate) fn run(mut self) {
        let mut ready = Vec::with_capacity(BATCH);
        while !self.stops {
            ready.clear();
            let retries = !self.accepts || self.connections.values().any(Connection::waits);
            let timeout = self.timeout(retries);
            // Interrupted, or out of memory: try again.
            let _ = epoll::wait(&self.epoll, spare_capacity(&mut ready), timeout.as_ref());
            for event in &ready {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    COMMANDS => self.commands(),
                    token => self.connection(ConnectionId(token / 2), token % 2 == 1),
                }
            }
            if retries {
                self.retry();
            }
            if self.progress_at.is_some_and(|at| at <= Instant::now()) {
                (self.progress_at, self.has_work) = (None, true);
            }
            if std::mem::take(&mut self.has_work) {
                self.has_work = self.progress();
            }
        }
        for connection in self.connections.values() {
            let _ = shutdown(&*connection.socket, Shutdown::Both);
        }
        self.shared.table().sockets.clear();
    }

    /// Returns how long to wait for sockets; `None` if there is nothing else to do.
    fn timeout(&self, retries: bool) -> Option<Timespec> {
        let until_progress = match self.progress_at {
            _ if self.has_work => Some(Duration::ZERO),
            at => at.map(|at| at.saturating_duration_since(Instant::now())),
        };
        let timeout = retries.then_some(RETRY).into_iter().chain(until_progress).min();
        timeout.map(|timeout| Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() })
    }

    /// Makes the endpoint progress. True if it has more to do. No lock is held meanwhile.
    fn progress(&self) -> bool {
        let progress = self.shared.table().progress.as_ref().and_then(Weak::upgrade);
        progress.is_some_and(|progress| progress.progress())
    }

    /// Hands an event to the endpoint.
    fn report(&mut self, event: ConnectorEvent) {
        self.shared.events.push(event);
        self.has_work = true;
    }

    fn commands(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut count);
        let mut commands = Vec::new();
        self.shared.commands.take(&mut commands);
        for command in commands {
            match command {
                Command::Connect { id, to } => self.connect(id, to),
                Command::Close { id } => {
                    self.remove(id);
                }
                Command::Progress => {
                    self.progress_at.get_or_insert_with(|| Instant::now() + PROGRESS_DELAY);
                }
                Command::Stop => self.stops = true,
            }
        }
    }

    /// Tries again what had to wait.
    fn retry(&mut self) {
        if !self.accepts && self.listen(true) {
            self.accept();
        }
        let waiting: Vec<(ConnectionId, Address)> = (self.connections.iter())
            .filter_map(|(id, connection)| match connection.state {
                State::Waiting { to } => Some((*id, to)),
                _ => None,
            })
            .collect();
        for (id, to) in waiting {
            self.connections.remove(&id);
            self.connect(id, to);
        }
    }

    /// Starts or stops to accept connections. Returns whether that succeeded.
    fn listen(&mut self, accepts: bool) -> bool {
        let flags = if accepts { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(LISTENER);
        let is_done = epoll::modify(&self.epoll, &self.listener, data, flags).is_ok();
        if is_done {
            self.accepts = accepts;
        }
        is_done
    }

    /// Opens a connection to a peer.
    fn connect(&mut self, id: ConnectionId, to: Address) {
        if let Err(error) = self.try_connect(id, to) {
            self.refused(id, error);
        }
    }

    fn try_connect(&mut self, id: ConnectionId, to: Address) -> Result<(), FabricError> {
        let failed = |action| move |error: Errno| FabricError::System { action, source: error.into() };
        let socket = Arc::new(socket().map_err(failed("create a Unix socket"))?);
        let name = socket_name(&to).map_err(failed("name a Unix socket"))?;
        let mut connection =
            Connection { socket, process: None, state: State::Waiting { to }, is_outgoing: true, inbound: None };
        match connect(&*connection.socket, &name) {
            Ok(()) => {}
            // The peer's queue is full.
            Err(Errno::AGAIN | Errno::INTR) => {
                self.connections.insert(id, connection);
                return Ok(());
            }
            Err(Errno::CONNREFUSED | Errno::NOENT) => return Err(FabricError::Unreachable { address: to }),
            Err(error) => return Err(failed("connect a Unix socket")(error)),
        }
        if !is_of_user(&connection.socket, self.address.user) {
            return Err(FabricError::OtherUser { address: to });
        }
        // A child that was forked from a peer that has ended keeps the peer's socket open, but does not accept.
        connection.process = process_of(&connection.socket).map_err(|_| FabricError::Unreachable { address: to })?;
        let (memory, file) = Memory::create(self.sizes)?;
        let hello = Hello { sizes: self.sizes, from: self.address };
        hello.send(connection.socket.as_fd(), file.as_fd()).map_err(failed("send to a Unix socket"))?;
        connection.state = State::HelloSent { to, memory };
        self.watch(id, &connection).map_err(failed("use epoll"))?;
        self.connections.insert(id, connection);
        Ok(())
    }

    /// Watches the socket and the peer's process.
    fn watch(&self, id: ConnectionId, connection: &Connection) -> Result<(), Errno> {
        let data = |which| epoll::EventData::new_u64(id.0 * 2 + which);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        epoll::add(&self.epoll, &*connection.socket, data(0), flags)?;
        if let Some(process) = &connection.process {
            epoll::add(&self.epoll, process, data(1), epoll::EventFlags::IN)?;
        }
        Ok(())
    }

    /// Accepts some of the connections that wait.
    fn accept(&mut self) {
        for _ in 0..MOST_AT_ONCE {
            if self.shared.events.len() >= MOST_EVENTS {
                self.listen(false);
                return;
            }
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.accepted(socket),
                Err(Errno::AGAIN) => return,
                // The peer has closed it meanwhile.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                // No descriptors or no memory.
                Err(_) => {
                    self.listen(false);
                    return;
                }
            }
        }
    }

    fn accepted(&mut self, socket: OwnedFd) {
        if !is_of_user(&socket, self.address.user) {
            self.shared.count(|stats| stats.refused_users += 1);
            let _ = Verdict::OtherUser.send(socket.as_fd());
            return;
        }
        // A peer that has ended already is not served.
        let Ok(process) = process_of(&socket) else { return };
        let is_stalled =
            |(_, connection): &(&ConnectionId, &Connection)| matches!(connection.state, State::HelloExpected);
        let stalled = self.connections.iter().filter(is_stalled);
        if stalled.clone().count() >= MOST_WITHOUT_HELLO {
            let oldest = stalled.map(|(id, _)| *id).next();
            oldest.map(|id| self.remove(id));
            self.shared.count(|stats| stats.refused += 1);
        }
        let id = {
            let mut table = self.shared.table();
            table.last_id += 1;
            ConnectionId(table.last_id)
        };
        let socket = Arc::new(socket);
        let connection = Connection { socket, process, state: State::HelloExpected, is_outgoing: false, inbound: None };
        if self.watch(id, &connection).is_ok() {
            self.connections.insert(id, connection);
        }
    }

    /// Handles an event of a connection.
    fn connection(&mut self, id: ConnectionId, is_process: bool) {
        for _ in 0..MOST_AT_ONCE {
            // Removed by an earlier event of the same batch, or by its own packet.
            let Some(connection) = self.connections.get(&id) else { return };
            let packet = match Packet::receive(&*connection.socket) {
                Ok(packet) if !packet.is_empty() => packet,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) if !is_process => return,
                // The peer has closed the socket, or its process has ended while a child keeps the socket open.
                _ => {
                    self.died(id);
                    return;
                }
            };
            match &connection.state {
                State::HelloExpected => self.hello(id, packet),
                State::HelloSent { .. } => self.reply(id, &packet),
                State::Open if packet.is_wake() => {
                    let is_new =
                        connection.inbound.as_ref().is_some_and(|inbound| !inbound.waits.swap(true, Ordering::Relaxed));
                    self.shared.count(|stats| stats.woken += 1);
                    self.has_work = true;
                    if is_new {
                        self.report(ConnectorEvent::PeerWaits { id });
                    }
                }
                State::Open => match (packet.shown_file(), &connection.inbound) {
                    (Some((place, generation, file)), Some(inbound)) => {
                        inbound.files.set(place, generation, file.filter(|_| self.shared.maps_files));
                    }
                    // There are no other packets.
                    _ => self.died(id),
                },
                State::Waiting { .. } => self.died(id),
            }
        }
    }

    /// A peer has sent its first packet.
    fn hello(&mut self, id: ConnectionId, packet: Packet) {
        let opened = packet.into_hello().and_then(|(hello, file)| {
            self.address.check_reaches(&hello.from).map_err(|_| Verdict::OtherUser)?;
            if self.connections.get(&id).is_some_and(|of| is_of_another_process(&of.socket, &hello.from)) {
                return Err(Verdict::OtherProcess);
            }
            // Also those that have ended while messages in their slots are kept. This thread alone adds to the number.
            if self.inbound_count.load(Ordering::Relaxed) >= self.shared.connection_limit {
                return Err(Verdict::TooMany);
            }
            let memory = Memory::open(file.as_fd(), hello.sizes).map_err(|_| Verdict::WrongMemory)?;
            let inbound = Arc::new(Inbound::counted_by(&self.inbound_count));
            Ok((hello.from, Incoming::new(memory, Arc::clone(&inbound)), inbound))
        });
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let verdict = opened.as_ref().err().copied().unwrap_or(Verdict::Accepted);
        let is_sent = verdict.send(connection.socket.as_fd()).is_ok();
        match opened {
            Ok((from, incoming, inbound)) if is_sent => {
                connection.state = State::Open;
                connection.inbound = Some(inbound);
                let mut table = self.shared.table();
                table.sockets.insert(id, Arc::clone(&connection.socket));
                table.counters.count(|stats| stats.accepted += 1);
                drop(table);
                self.report(ConnectorEvent::Accepted { id, from, incoming });
            }
            _ => {
                self.remove(id);
                self.shared.count(|stats| stats.refused += 1);
            }
        }
    }

    /// A peer has answered the Hello of this process.
    fn reply(&mut self, id: ConnectionId, packet: &Packet) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let State::HelloSent { to, memory } = &connection.state else { return };
        let (to, memory) = (*to, memory.clone());
        match packet.verdict() {
            Verdict::Accepted => {
                connection.state = State::Open;
                let mut table = self.shared.table();
                table.sockets.insert(id, Arc::clone(&connection.socket));
                table.counters.count(|stats| stats.connected += 1);
                drop(table);
                self.report(ConnectorEvent::Connected { id, outgoing: Outgoing::new(memory) });
            }
            Verdict::OtherUser => self.refused(id, FabricError::OtherUser { address: to }),
            verdict => self.refused(id, FabricError::Refused { address: to, reason: verdict.reason() }),
        }
    }

    /// The peer of a connection is gone.
    fn died(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get(&id) else { return };
        match connection.state {
            State::Waiting { to } | State::HelloSent { to, .. } => {
                self.refused(id, FabricError::Unreachable { address: to });
            }
            State::HelloExpected => {
                self.remove(id);
                self.shared.count(|stats| stats.refused += 1);
            }
            State::Open => {
                self.remove(id);
                self.shared.count(|stats| stats.died += 1);
                self.report(ConnectorEvent::Died { id });
            }
        }
    }

    /// A connection that this process wanted is not opened.
    fn refused(&mut self, id: ConnectionId, error: FabricError) {
        if !self.remove(id) {
            // It was not in the table yet.
            self.release();
        }
        self.report(ConnectorEvent::Refused { id, error });
    }

    /// Gives back the memory that `Shared::reserve` has counted.
    fn release(&self) {
        let mut table = self.shared.table();
        table.reserved = table.reserved.saturating_sub(self.sizes.total());
    }

    /// Forgets a connection, and closes its socket for all processes that have it. Returns whether it existed.
    fn remove(&mut self, id: ConnectionId) -> bool {
        let Some(connection) = self.connections.remove(&id) else { return false };
        // Explicitly, since another holder of the socket would keep it in the epoll set.
        let _ = epoll::delete(&self.epoll, &*connection.socket);
        connection.process.as_ref().map(|process| epoll::delete(&self.epoll, process));
        let _ = shutdown(&*connection.socket, Shutdown::Both);
        self.shared.table().sockets.remove(&id);
        if connection.is_outgoing {
            self.release();
        }
        true
    }
}

impl Connection {
    fn waits(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }
}
