//! A connection of the host: an [`Initiator`] and its socket.

use super::error::LoadError;
use crate::command::{Completion, Submission};
use crate::initiator::{HostEvent, HostOptions, Initiator, Transfer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Bytes that are read at once.
pub(super) const READ_BYTES: usize = 256 << 10;
/// Bytes that are read at once while a queue is set up.
const SETUP_BYTES: usize = 16 << 10;

/// An [`Initiator`] and its socket, which does not block.
#[derive(Debug)]
pub struct HostSocket {
    socket: TcpStream,
    host: Initiator,
    output: Vec<u8>,
    /// Bytes of `output` that were sent.
    sent: usize,
}

impl HostSocket {
    /// Connects, and exchanges ICReq and ICResp.
    ///
    /// # Errors
    /// [`LoadError`] if the target does not answer as the protocol says, or not within `patience`.
    pub fn connect(address: SocketAddr, options: HostOptions, patience: Duration) -> Result<HostSocket, LoadError> {
        let failed = |source| LoadError::Connect { address, source };
        let socket = TcpStream::connect_timeout(&address, patience).map_err(failed)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let mut connection = HostSocket { socket, host: Initiator::new(options), output: Vec::new(), sent: 0 };
        match connection.wait_for_event("ICReq", patience)? {
            HostEvent::Initialised { .. } => Ok(connection),
            event => Err(unexpected(&event)),
        }
    }

    /// Executes one command, and waits for it. No other command is open.
    ///
    /// # Errors
    /// [`LoadError`] if it fails or does not complete within `patience`. A status is not an error here.
    pub fn execute(
        &mut self,
        what: &'static str,
        command: Submission,
        transfer: Transfer,
        patience: Duration,
    ) -> Result<(Completion, Vec<u8>), LoadError> {
        self.host.send(command, transfer);
        match self.wait_for_event(what, patience)? {
            HostEvent::Completed { completion, data, is_intact, .. } => {
                if !completion.status().is_success() || is_intact {
                    return Ok((completion, data));
                }
                Err(LoadError::Unusable(format!("the data of {what} is incomplete or does not match its digest")))
            }
            event => Err(unexpected(&event)),
        }
    }

    /// Like [`HostSocket::execute`], but a status other than success is an error.
    ///
    /// # Errors
    /// The same, and [`LoadError::Status`].
    pub fn succeed(
        &mut self,
        what: &'static str,
        command: Submission,
        transfer: Transfer,
        patience: Duration,
    ) -> Result<(Completion, Vec<u8>), LoadError> {
        let (completion, data) = self.execute(what, command, transfer, patience)?;
        let status = completion.status();
        if status.is_success() { Ok((completion, data)) } else { Err(LoadError::Status { what, status }) }
    }

    fn wait_for_event(&mut self, what: &'static str, patience: Duration) -> Result<HostEvent, LoadError> {
        let deadline = Instant::now() + patience;
        let mut buffer = [0; SETUP_BYTES];
        loop {
            if let Some(event) = self.host.take_event() {
                return Ok(event);
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(LoadError::Late { what, patience });
            }
            let mut interest = PollFlags::IN;
            if !self.flush()? {
                interest |= PollFlags::OUT;
            }
            let seconds = i64::try_from(rest.as_secs()).unwrap_or(i64::MAX);
            let timeout = Timespec { tv_sec: seconds, tv_nsec: rest.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.socket, interest)], Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
            self.read(&mut buffer)?;
        }
    }

    /// Reads once, and passes the bytes on. Returns how many there were; 0 if none have arrived.
    ///
    /// # Errors
    /// [`LoadError`] if the connection has ended, or if the target violates the protocol.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, LoadError> {
        loop {
            match self.socket.read(buffer) {
                Ok(0) => return Err(LoadError::Closed),
                Ok(count) => {
                    self.host.receive(&buffer[..count])?;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Sends what waits, as far as the socket takes it. Returns whether nothing waits any more.
    ///
    /// # Errors
    /// [`LoadError`] if the connection has ended.
    pub fn flush(&mut self) -> Result<bool, LoadError> {
        loop {
            if self.sent == self.output.len() {
                (self.output, self.sent) = (self.host.take_output(), 0);
                if self.output.is_empty() {
                    return Ok(true);
                }
            }
            match self.socket.write(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// The state machine.
    pub fn host(&mut self) -> &mut Initiator {
        &mut self.host
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }
}

/// The error for a failed call. A target that closes a connection with unread data resets it.
fn failed(error: io::Error) -> LoadError {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => LoadError::Closed,
        _ => error.into(),
    }
}

/// The error for an event that no correct target causes here.
pub(super) fn unexpected(event: &HostEvent) -> LoadError {
    match event {
        HostEvent::Terminated { fes, fei, .. } => LoadError::Terminated { fes: *fes, fei: *fei },
        _ => LoadError::Unusable("the target answered a command that was not sent".into()),
    }
}
