//! A connection and its socket.

use super::clock::now_ns;
use super::report::{QueueName, QueueReport};
use crate::connection::{Connection, Context, Ending};
use crate::digest::Digests;
use crate::pdu::FatalError;
use crate::target::Target;
use rustix::event::epoll::EventFlags;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;

/// Slices of one writev. Source: chosen; a reply of 128 KiB in blocks of 4 KiB has 34.
const SLICES: usize = 128;
/// Data of a PDU that is still missing is read directly to its place from this size on.
const DIRECT: usize = 16 << 10;
/// Bytes that one connection may read before others get their turn.
const TURN: usize = 1 << 20;

/// A connection and its socket.
#[derive(Debug)]
pub(super) struct Client {
    socket: TcpStream,
    peer: SocketAddr,
    pub(super) connection: Connection,
    /// The queue was reported.
    is_connected: bool,
    /// The error that ends the connection was reported.
    has_failed: bool,
    /// Bytes that were read while the connection took none.
    rest: Vec<u8>,
    interest: EventFlags,
}

impl Client {
    pub(super) fn new(socket: TcpStream, target: &Arc<Target>, now: u64) -> io::Result<Client> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        // A host without a keep alive time-out may vanish without closing its connection.
        rustix::net::sockopt::set_socket_keepalive(&socket, true)?;
        let peer = socket.peer_addr()?;
        let mut connection = Connection::new(target, socket.local_addr()?, now);
        connection.measure_latency(now_ns);
        let (is_connected, has_failed) = (false, false);
        Ok(Client { socket, peer, connection, is_connected, has_failed, rest: Vec::new(), interest: EventFlags::IN })
    }

    /// The host's address.
    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn queue_name(&self) -> Option<QueueName> {
        let queue = self.connection.queue()?;
        let subsystem = queue.controller.subsystem().options().nqn.clone();
        let (host, _) = queue.controller.host();
        Some(QueueName { subsystem, host: host.into(), controller: queue.controller.id(), qid: queue.qid })
    }

    /// Its queue, the first time after the host has connected it.
    pub(super) fn newly_connected(&mut self) -> Option<(QueueName, Digests)> {
        if self.is_connected || self.connection.queue().is_none() {
            return None;
        }
        self.is_connected = true;
        Some((self.queue_name()?, self.connection.digests()))
    }

    /// The error that ends it, the first time.
    pub(super) fn newly_failed(&mut self) -> Option<(Option<QueueName>, FatalError)> {
        let Some(Ending::Fatal(error)) = self.connection.ending() else { return None };
        let is_new = !std::mem::replace(&mut self.has_failed, true);
        is_new.then(|| (self.queue_name(), error))
    }

    /// Its counters.
    pub(super) fn report(&self) -> QueueReport {
        QueueReport {
            peer: self.peer,
            queue: self.queue_name(),
            digests: self.connection.digests(),
            entries: self.connection.queue().map_or(0, |queue| queue.entries),
            open_commands: self.connection.open_commands(),
            stats: *self.connection.stats(),
        }
    }

    /// Ends the stream to the host behind the last reply. The kernel would drop replies that the host has not received
    /// if bytes from it were still unread when the socket closes.
    pub(super) fn hang_up(&mut self, buffer: &mut [u8]) {
        let _ = self.socket.shutdown(Shutdown::Write);
        // A hostile host sends without end.
        let mut rest = TURN;
        while let Ok(count @ 1..) = self.socket.read(buffer) {
            rest = rest.saturating_sub(count);
            if rest == 0 {
                break;
            }
        }
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(super) fn interest(&self) -> EventFlags {
        self.interest
    }

    /// The events that the connection waits for, if they have changed.
    pub(super) fn changed_interest(&mut self) -> Option<EventFlags> {
        let mut interest = EventFlags::empty();
        if self.connection.wants_input() && self.rest.is_empty() {
            interest |= EventFlags::IN;
        }
        if self.connection.outgoing_len() > 0 {
            interest |= EventFlags::OUT;
        }
        (std::mem::replace(&mut self.interest, interest) != interest).then_some(interest)
    }

    /// Reads what has arrived, for at most one turn. Returns whether the connection is still open.
    pub(super) fn read(&mut self, buffer: &mut [u8], context: &mut Context<'_>) -> bool {
        let mut taken = 0;
        while taken < TURN && self.rest.is_empty() && self.connection.wants_input() {
            let space = self.connection.data_space().filter(|space| space.len() >= DIRECT);
            let (result, is_direct) = match space {
                Some(space) => (self.socket.read(space), true),
                None => (self.socket.read(buffer), false),
            };
            let count = match result {
                Ok(0) => return false,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            };
            taken += count;
            if is_direct {
                self.connection.data_filled(count, context);
            } else {
                let used = self.connection.receive(&buffer[..count], context);
                self.rest.extend_from_slice(&buffer[used..count]);
            }
            if self.connection.is_closed() {
                return false;
            }
            // A short read has emptied the socket. If more has arrived since then, epoll reports it.
            if !is_direct && count < buffer.len() {
                return true;
            }
        }
        true
    }

    /// Sends what waits, as far as the socket takes it. Then the connection may take bytes again that it had refused.
    /// Returns whether the connection is still open.
    pub(super) fn write(&mut self, context: &mut Context<'_>) -> bool {
        loop {
            while self.connection.outgoing_len() > 0 {
                let mut slices = Vec::with_capacity(SLICES);
                slices.extend(self.connection.outgoing(SLICES).map(IoSlice::new));
                match self.socket.write_vectored(&slices) {
                    Ok(0) => return false,
                    Ok(count) => self.connection.sent(count),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
                }
            }
            if self.rest.is_empty() || !self.connection.wants_input() {
                return true;
            }
            let rest = std::mem::take(&mut self.rest);
            let used = self.connection.receive(&rest, context);
            self.rest.extend_from_slice(&rest[used..]);
            if used == 0 {
                return true;
            }
        }
    }
}
