//! A connection and its socket.

use super::clock::now_ns;
use super::event::Destination;
use super::report::{QueueName, QueueReport};
use super::ring::SocketRing;
use crate::connection::{Connection, Context, Ending, Outgoing};
use crate::digest::Digests;
use crate::pdu::FatalError;
use crate::stats::LoopStats;
use crate::target::Target;
use rustix::event::epoll::EventFlags;
use rustix::net::{RecvFlags, recv};
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;

/// Slices of one writev. Source: chosen; a reply of 128 KiB in blocks of 4 KiB has 34.
const SLICES: usize = 128;
/// Data of a PDU that is still missing is read directly to its place from this size on.
const DIRECT: usize = 16 << 10;
/// Bytes that one connection may read before others get their turn.
const TURN: usize = 1 << 20;

/// Bytes of a connection's buffer for receives by io_uring. Source: chosen; with the other memory of an idle connection
/// it has less than 64 KiB.
const BUFFER: usize = 24 << 10;

/// What a connection has in an io_uring: at most one receive and one send.
#[derive(Debug, Default)]
struct Transfers {
    is_receiving: bool,
    is_sending: bool,
    /// More bytes had arrived when the last receive ended.
    has_more: bool,
    /// The data of a PDU has arrived while the connection took nothing, so the PDU is still to be read.
    is_held: bool,
    /// The buffer for receives, while there is none. It is allocated at the first one.
    buffer: Vec<u8>,
    /// Memory for the next send.
    spare: Outgoing,
}

/// A connection and its socket.
#[derive(Debug)]
pub(super) struct Client {
    socket: Arc<TcpStream>,
    peer: SocketAddr,
    pub(super) connection: Connection,
    /// The queue was reported.
    is_connected: bool,
    /// The error that ends the connection was reported.
    has_failed: bool,
    /// Bytes that were read while the connection took none.
    rest: Vec<u8>,
    /// What epoll waits for; nothing with io_uring.
    interest: EventFlags,
    is_in_ring: bool,
    transfers: Transfers,
    /// The connection is in the list of those that have something to do at the end of the pass.
    pub(super) is_touched: bool,
}

impl Client {
    /// A connection whose bytes an io_uring moves, if `is_in_ring`. Its socket blocks, so that the kernel waits for it.
    pub(super) fn new(socket: TcpStream, target: &Arc<Target>, is_in_ring: bool, now: u64) -> io::Result<Client> {
        socket.set_nonblocking(!is_in_ring)?;
        socket.set_nodelay(true)?;
        // A host without a keep alive time-out may vanish without closing its connection.
        rustix::net::sockopt::set_socket_keepalive(&socket, true)?;
        let peer = socket.peer_addr()?;
        let mut connection = Connection::new(target, socket.local_addr()?, now);
        connection.measure_latency(now_ns);
        Ok(Client {
            socket: Arc::new(socket),
            peer,
            connection,
            is_connected: false,
            has_failed: false,
            rest: Vec::new(),
            interest: if is_in_ring { EventFlags::empty() } else { EventFlags::IN },
            is_in_ring,
            transfers: Transfers::default(),
            is_touched: false,
        })
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
        while let Ok((count @ 1.., _)) = recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
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

    /// The events for which epoll is to wait, if they have changed.
    pub(super) fn changed_interest(&mut self) -> Option<EventFlags> {
        if self.is_in_ring {
            return None;
        }
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
    pub(super) fn read(&mut self, buffer: &mut [u8], context: &mut Context<'_>, stats: &mut LoopStats) -> bool {
        let mut taken = 0;
        while taken < TURN && self.rest.is_empty() && self.connection.wants_input() {
            let space = self.connection.data_space().filter(|space| space.len() >= DIRECT);
            stats.receives += 1;
            stats.system_calls += 1;
            let (result, is_direct) = match space {
                Some(space) => ((&*self.socket).read(space), true),
                None => ((&*self.socket).read(buffer), false),
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
    pub(super) fn write(&mut self, context: &mut Context<'_>, stats: &mut LoopStats) -> bool {
        loop {
            while self.connection.outgoing_len() > 0 {
                if !self.connection.check_lost() {
                    return false;
                }
                stats.sends += 1;
                stats.system_calls += 1;
                let mut slices = Vec::with_capacity(SLICES);
                slices.extend(self.connection.outgoing(SLICES).map(IoSlice::new));
                match (&*self.socket).write_vectored(&slices) {
                    Ok(0) => return false,
                    Ok(count) => self.connection.sent(count),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if is_lost(&error) && self.connection.fail_lost() => {}
                    Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
                }
            }
            if !self.take_rest(context) {
                return true;
            }
        }
    }

    /// Passes bytes on that the connection did not take when they came. Returns whether it has taken some.
    fn take_rest(&mut self, context: &mut Context<'_>) -> bool {
        if !self.connection.wants_input() {
            return false;
        }
        if std::mem::take(&mut self.transfers.is_held) {
            // The data of a PDU arrived while the connection took nothing.
            self.connection.receive(&[], context);
        }
        if self.rest.is_empty() || !self.connection.wants_input() {
            return false;
        }
        let rest = std::mem::take(&mut self.rest);
        let used = self.connection.receive(&rest, context);
        self.rest.extend_from_slice(&rest[used..]);
        used > 0
    }

    /// Starts a send of what waits and the next receive, if there is none of the kind. Returns whether the connection
    /// is still open.
    pub(super) fn start(&mut self, number: u64, ring: &mut SocketRing, context: &mut Context<'_>) -> bool {
        self.take_rest(context);
        if self.connection.is_closed() {
            return false;
        }
        if !self.transfers.is_sending && self.connection.outgoing_len() > 0 {
            let outgoing = self.connection.take_outgoing(std::mem::take(&mut self.transfers.spare));
            if !self.send(number, outgoing, ring) {
                return false;
            }
        }
        if !self.transfers.is_receiving && self.rest.is_empty() && self.connection.wants_input() {
            self.transfers.is_receiving = true;
            let mut has_more = std::mem::take(&mut self.transfers.has_more);
            let into = match self.connection.take_data_space(DIRECT) {
                Some(data) => {
                    has_more = true;
                    Destination::Data(data)
                }
                None => {
                    let mut buffer = std::mem::take(&mut self.transfers.buffer);
                    if buffer.is_empty() {
                        buffer = vec![0; BUFFER];
                    }
                    Destination::Buffer(buffer)
                }
            };
            ring.receive(number, &self.socket, into, !has_more);
        }
        true
    }

    /// Takes what a receive has brought. Returns whether the connection is still open.
    pub(super) fn received(
        &mut self,
        into: Destination,
        result: io::Result<usize>,
        has_more: bool,
        context: &mut Context<'_>,
    ) -> bool {
        (self.transfers.is_receiving, self.transfers.has_more) = (false, has_more);
        let is_retried = result.as_ref().is_err_and(is_temporary);
        let count = result.unwrap_or(0);
        match into {
            Destination::Data(data) => {
                self.transfers.is_held = !self.connection.wants_input();
                self.connection.data_received(data, count, context);
            }
            Destination::Buffer(buffer) => {
                let used = self.connection.receive(&buffer[..count], context);
                self.rest.extend_from_slice(&buffer[used..count]);
                self.transfers.buffer = buffer;
            }
        }
        (count > 0 || is_retried) && !self.connection.is_closed()
    }

    /// Goes on with a send after an operation of it has ended. Returns whether the connection is still open.
    pub(super) fn sent(
        &mut self,
        number: u64,
        mut outgoing: Outgoing,
        result: io::Result<usize>,
        ring: &mut SocketRing,
    ) -> bool {
        let count = match result {
            Ok(count @ 1..) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                ring.wait_for_room(number, &self.socket, outgoing);
                return true;
            }
            Err(error) if is_temporary(&error) => 0,
            Err(error) if is_lost(&error) && self.connection.fail_lost_of(&mut outgoing) => 0,
            Ok(0) | Err(_) => return false,
        };
        outgoing.sent(count);
        self.connection.taken_sent(count);
        if outgoing.is_empty() {
            (self.transfers.is_sending, self.transfers.spare) = (false, outgoing);
            return true;
        }
        self.send(number, outgoing, ring)
    }

    /// Starts a send after a check of its bytes. Returns whether the connection is still open.
    pub(super) fn send(&mut self, number: u64, mut outgoing: Outgoing, ring: &mut SocketRing) -> bool {
        let is_right = self.connection.check_lost_of(&mut outgoing);
        if is_right {
            self.transfers.is_sending = true;
            ring.send(number, &self.socket, outgoing);
        }
        is_right
    }

    /// Ends what the connection has in an io_uring.
    pub(super) fn end_transfers(&self) {
        if self.transfers.is_receiving || self.transfers.is_sending {
            let _ = self.socket.shutdown(Shutdown::Both);
        }
    }
}

/// The kernel could not read the bytes.
fn is_lost(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EFAULT)
}

/// The transfer can be tried again.
fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}
