//! The host's server: answers guests' requests and detects that their files are closed.
//!
//! One thread, which never blocks on a single connection: it reads a connection when a packet has arrived, and closes a
//! connection whose packet does not arrive in time. Requests about windows may wait for another process; each goes on
//! in its own thread.

use super::Host;
use super::closer::peek;
use super::packet::MAX_PACKET;
use super::reply::{process, reply};
use super::tracer::Tracer;
use crate::tree::Errno;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::time::Timespec;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use telpher_vdev_wire::VERSION;
use telpher_vdev_wire::message::{Kind, Request};
use zerocopy::FromBytes;

/// How long a connection may stay without a packet; a guest sends its packet at once. Source: chosen.
const PACKET_TIMEOUT: Duration = Duration::from_secs(5);
/// Most connections that may wait at once; at more, the oldest is served or closed. Source: chosen, a share of the
/// usual 1024 descriptors.
const MAX_WAITING: usize = 256;
/// Length of the listen queue.
const BACKLOG: i32 = 4096;

/// The data of an epoll event: which source it is about.
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const ENDS: u64 = 2;
/// Number of the first connection.
const CONNECTIONS: u64 = 16;

/// The server's thread; dropping this ends it and the service.
#[derive(Debug)]
pub struct Server {
    thread: Option<JoinHandle<()>>,
    stop: Arc<OwnedFd>,
    /// Present only if traces are wanted.
    _tracer: Option<Tracer>,
}

impl Host {
    /// Answers guests at a socket with this path, which must not exist yet, until the returned value is dropped.
    ///
    /// # Errors
    /// If the path exists or is too long for a socket, or if no descriptor or thread is available.
    pub fn serve(self: &Arc<Self>, socket: &Path) -> std::io::Result<Server> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(socket)?)?;
        // Connections inherit the option, with which each packet says which process has sent it.
        rustix::net::sockopt::set_socket_passcred(&listener, true)?;
        rustix::net::listen(&listener, BACKLOG)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, source) in [(LISTENER, listener.as_fd()), (STOP, stop.as_fd()), (ENDS, self.ends.as_fd())] {
            epoll::add(&events, source, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        }
        let tracer = if self.behaviour.trace || self.behaviour.check { Some(Tracer::start(self)?) } else { None };
        let service = Service {
            host: Arc::clone(self),
            listener,
            events,
            _stop: Arc::clone(&stop),
            waiting: BTreeMap::new(),
            next: CONNECTIONS,
        };
        let thread = std::thread::Builder::new().name("telpher-host".into()).spawn(move || service.run())?;
        Ok(Server { thread: Some(thread), stop, _tracer: tracer })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // The thread has already reported a panic.
            let _ = thread.join();
        }
    }
}

/// The state of the thread.
struct Service {
    host: Arc<Host>,
    listener: OwnedFd,
    events: OwnedFd,
    /// Keeps the descriptor open while epoll watches it.
    _stop: Arc<OwnedFd>,
    /// Connections without a packet, oldest first, with their time of arrival.
    waiting: BTreeMap<u64, (OwnedFd, Instant)>,
    next: u64,
}

impl Service {
    fn run(mut self) {
        loop {
            let mut events = Vec::with_capacity(64);
            let timeout = self.time_to_timeout().and_then(|left| Timespec::try_from(left).ok());
            match epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // Cannot fail: the arguments are valid.
                Err(_) => return,
            }
            self.host.release_closed();
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    STOP => return,
                    ENDS => {}
                    number => self.serve(number),
                }
            }
            self.close_late(|came| came.elapsed() >= PACKET_TIMEOUT);
        }
    }

    /// Time until the oldest connection times out.
    fn time_to_timeout(&self) -> Option<Duration> {
        let (_, came) = self.waiting.first_key_value()?.1;
        Some(PACKET_TIMEOUT.saturating_sub(came.elapsed()) + Duration::from_millis(1))
    }

    fn close_late(&mut self, is_late: impl Fn(&Instant) -> bool) {
        while let Some(oldest) = self.waiting.first_entry() {
            if !is_late(&oldest.get().1) {
                return;
            }
            let (connection, _) = oldest.remove();
            stop_watching(&self.events, &connection);
            self.host.closer.close(connection);
        }
    }

    fn accept(&mut self) {
        loop {
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(connection) => {
                    let number = self.next;
                    self.next += 1;
                    let data = epoll::EventData::new_u64(number);
                    if epoll::add(&self.events, &connection, data, epoll::EventFlags::IN).is_ok() {
                        self.waiting.insert(number, (connection, Instant::now()));
                    }
                    if self.waiting.len() > MAX_WAITING {
                        self.serve_oldest();
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    // No descriptor is left: the oldest waiting connection is closed. If none waits, other files must
                    // be closed first; the listener stays readable, so a short pause prevents a busy loop.
                    if !self.serve_oldest() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    return;
                }
            }
        }
    }

    /// Answers the oldest connection, or closes it if its packet has not arrived; false if there is none.
    fn serve_oldest(&mut self) -> bool {
        let oldest = self.waiting.first_key_value().map(|(number, _)| *number);
        oldest.map(|number| self.serve(number)).is_some()
    }

    /// Answers a connection whose packet has arrived, or which has hung up.
    fn serve(&mut self, number: u64) {
        let Some((connection, _)) = self.waiting.remove(&number) else { return };
        stop_watching(&self.events, &connection);
        let Ok(Some(sender)) = telpher_os::sender(connection.as_fd()) else {
            // Nothing has arrived, or it has hung up.
            self.host.closer.close(connection);
            return;
        };
        // A child inherits its parent's connections, and is not its parent.
        if sender != process(&connection) {
            self.host.closer.answer_unread(connection, Err(Errno::PERM));
            return;
        }
        if let Some((head, kind)) = request_of_windows(&connection) {
            // Windows that were closed before this request count as closed.
            self.host.release_closed();
            self.host.serve_window(connection, &head, kind);
            return;
        }
        if peek(&connection, 1).is_some_and(|waiting| waiting.has_descriptors) {
            // No other request has descriptors. They stay in the packet, which the other thread takes out: a connection
            // that is closed before reports an error instead of the reply.
            self.answer(&connection, RecvFlags::PEEK);
            self.host.closer.run(move || {
                let _ = rustix::net::recv(&connection, &mut [0; 1], RecvFlags::DONTWAIT);
                connection
            });
            return;
        }
        self.answer(&connection, RecvFlags::empty());
        self.host.closer.close(connection);
    }

    /// Answers the request that is next in a connection.
    fn answer(&self, connection: &OwnedFd, flags: RecvFlags) {
        let mut packet = [0; MAX_PACKET + 1];
        let flags = flags | RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let Ok((_, len)) = rustix::net::recv(connection, &mut packet, flags) else { return };
        if len == 0 {
            return;
        }
        // Files that were closed before this request count as closed.
        self.host.release_closed();
        let packet = packet.get(..len).filter(|_| len <= MAX_PACKET).ok_or(Errno::MSGSIZE);
        let answer = packet.and_then(|packet| self.host.answer(process(connection), packet));
        reply(connection, &answer);
    }
}

/// Takes a connection out of the epoll instance, before it is handed over: the instance keeps what another descriptor
/// refers to, and would report its events for ever.
fn stop_watching(events: &OwnedFd, connection: &OwnedFd) {
    // Cannot fail: it was added when it was accepted.
    let _ = epoll::delete(events, connection);
}

/// The head of a request about windows, which stays in the connection; `None` for other requests.
fn request_of_windows(connection: &OwnedFd) -> Option<(Request, Kind)> {
    let mut head = [0; size_of::<Request>()];
    let (_, len) = rustix::net::recv(connection, &mut head, RecvFlags::DONTWAIT | RecvFlags::PEEK).ok()?;
    let head = Request::read_from_bytes(head.get(..len)?).ok()?;
    let kind = Kind::from_code(head.kind).filter(|kind| head.version == VERSION && kind.is_of_windows())?;
    Some((head, kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::SendFlags;

    #[test]
    fn the_events_of_a_connection_that_is_handed_over_are_not_reported() {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        epoll::add(&events, &ours, epoll::EventData::new_u64(CONNECTIONS), epoll::EventFlags::IN).unwrap();
        rustix::net::send(&theirs, b"x", SendFlags::empty()).unwrap();
        let reported = || {
            let mut found = Vec::with_capacity(1);
            epoll::wait(&events, rustix::buffer::spare_capacity(&mut found), Some(&Timespec::default())).unwrap()
        };
        assert_eq!(reported(), 1);
        stop_watching(&events, &ours);
        assert_eq!(reported(), 0);
        drop(theirs);
        assert_eq!(reported(), 0);
    }
}
