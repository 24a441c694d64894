//! A connection and its socket.

use crate::connection::{Connection, Context};
use crate::target::Target;
use rustix::event::epoll::EventFlags;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
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
    pub(super) connection: Connection,
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
        let connection = Connection::new(target, socket.local_addr()?, now);
        Ok(Client { socket, connection, rest: Vec::new(), interest: EventFlags::IN })
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
