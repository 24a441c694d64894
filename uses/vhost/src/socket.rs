//! The socket to a frontend: receives messages and files, sends replies, serves one frontend after another.
//!
//! A frontend that sends garbage or half a message, or dies, only ends its session: its rings stop, and the next
//! frontend may connect at any time. A server listens again; a client reconnects.
//!
//! Source: vhost-user, "Communication"; unix(7), `SCM_RIGHTS`.

use crate::control::Control;
use crate::error::SessionError;
use crate::layout::Features;
use crate::listener::{SocketListener, address_of, stream};
use crate::message::{HEADER_BYTES, Header, MOST_FILES, ProtocolFeatures, Reply};
use crate::port::Port;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, accept_with, connect, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Which side listens and which connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Role {
    /// This side listens; the frontend connects.
    Server,
    /// The frontend listens; this side connects, and reconnects when the connection is lost.
    Client,
}

/// Pause before the next attempt to connect to a frontend.
/// Source: assumed; a frontend that restarts takes seconds.
const RETRY: Duration = Duration::from_millis(100);
/// Files kept per message: one more than any request takes, so that surplus files are noticed. The rest is closed.
const SEEN_FILES: usize = MOST_FILES + 1;

/// The state of a socket.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SocketState {
    /// A frontend is connected.
    pub connected: bool,
    /// The number of sessions that started.
    pub sessions: u64,
    /// Refusals in all sessions: messages that violate the protocol, refused requests (whether the frontend was told or
    /// its session ended), and rings that could not start in the memory that a request set.
    pub refused: u64,
    /// Why the last session ended, or why the last request was refused.
    pub last: Option<String>,
    /// The features negotiated with the current or last frontend.
    pub features: Features,
    /// The protocol features negotiated with it.
    pub protocol: ProtocolFeatures,
}

/// A port's socket, served by its own thread until this is dropped.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    stop: Arc<OwnedFd>,
    state: Arc<Mutex<SocketState>>,
    thread: Option<JoinHandle<()>>,
}

impl Socket {
    /// Serves the port through the socket at `path`. Replaces a socket file that no process listens on.
    ///
    /// # Errors
    /// The error names what was attempted. [`AddrInUse`](io::ErrorKind::AddrInUse): another process listens there.
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists): there is a file that is not a socket. Neither is touched.
    /// Otherwise the system's error: the path is too long, or not writable.
    pub fn serve(port: &Arc<Port>, path: impl Into<PathBuf>, role: Role) -> io::Result<Socket> {
        let path = path.into();
        let listener = match role {
            Role::Server => Some(SocketListener::bind(&path)?),
            Role::Client => None,
        };
        let address = address_of(&path)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let state = Arc::default();
        let server = Server { port: Arc::clone(port), stop: Arc::clone(&stop), state: Arc::clone(&state) };
        let thread = std::thread::Builder::new().name("vhost-user".into()).spawn(move || match listener {
            Some(listener) => server.listen(&listener),
            None => server.connect(&address),
        })?;
        Ok(Socket { path, stop, state, thread: Some(thread) })
    }

    /// The socket's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The socket's current state.
    #[must_use]
    pub fn state(&self) -> SocketState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Socket {
    /// Ends the session, if there is one, and the thread, which removes the socket's file.
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The state of the socket's thread.
struct Server {
    port: Arc<Port>,
    stop: Arc<OwnedFd>,
    state: Arc<Mutex<SocketState>>,
}

impl Server {
    fn listen(&self, listener: &SocketListener) {
        while self.wait(listener, PollFlags::IN, None) {
            match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(stream) => self.session(&stream),
                // The frontend disconnected before it was accepted.
                Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
                // No descriptors or no memory; retry later.
                Err(_) => self.pause(),
            }
        }
    }

    fn connect(&self, address: &SocketAddrUnix) {
        while !self.is_stopped() {
            match stream().and_then(|stream| connect(&stream, address).map(|()| stream)) {
                Ok(stream) => self.session(&stream),
                Err(_) => self.pause(),
            }
        }
    }

    /// Serves one frontend until its session ends.
    fn session(&self, stream: &OwnedFd) {
        let Some(mut control) = Control::take(&self.port) else {
            // Another socket of the same port has a frontend.
            return self.pause();
        };
        self.update_state(|state| {
            state.connected = true;
            state.sessions += 1;
            (state.features, state.protocol) = Default::default();
        });
        let (mut refused, mut known) = (0, Default::default());
        let end = loop {
            match self.exchange(stream, &mut control) {
                Ok(true) => {}
                Ok(false) => break None,
                Err(error) => break Some(error),
            }
            let agreed = (control.session().features(), control.session().protocol());
            if agreed != known {
                known = agreed;
                self.update_state(|state| (state.features, state.protocol) = agreed);
            }
            let (count, last) = control.refused();
            if count > refused {
                let more = count - std::mem::replace(&mut refused, count);
                self.update_state(|state| {
                    state.refused += more;
                    state.last = last.map(|error| telpher_os::chain(error));
                });
            }
        };
        drop(control);
        self.update_state(|state| {
            state.connected = false;
            state.refused += u64::from(end.as_ref().is_some_and(SessionError::is_refusal));
            state.last = end.as_ref().map(|error| telpher_os::chain(error)).or(state.last.take());
        });
    }

    /// Receives one message and sends its reply. Returns false when the frontend has disconnected.
    fn exchange(&self, stream: &OwnedFd, control: &mut Control) -> Result<bool, SessionError> {
        let mut files = Vec::new();
        let mut header = Header::default();
        if !self.receive(stream, header.as_mut_bytes(), &mut files)? {
            return Ok(false);
        }
        let mut payload = vec![0; header.payload()?];
        if !self.receive(stream, &mut payload, &mut files)? {
            return Ok(false);
        }
        if let Some(reply) = control.hear(&header, &payload, files)? {
            send(stream, reply, &header)?;
        }
        Ok(true)
    }

    /// Fills `bytes`, and takes the files that come with them. Returns false if the frontend, or this side, ends first.
    fn receive(&self, stream: &OwnedFd, bytes: &mut [u8], files: &mut Vec<OwnedFd>) -> Result<bool, SessionError> {
        let mut got = 0;
        while got < bytes.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SEEN_FILES))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let slices = &mut [IoSliceMut::new(&mut bytes[got..])];
            match recvmsg(stream, slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) if message.bytes == 0 => return Ok(false),
                Ok(message) => got += message.bytes,
                Err(Errno::AGAIN) => {
                    if !self.wait(stream, PollFlags::IN, None) {
                        return Ok(false);
                    }
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(SessionError::Socket(error.into())),
            }
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(sent) = message {
                    // Files beyond the limit are closed.
                    for file in sent {
                        if files.len() < SEEN_FILES {
                            files.push(file);
                        }
                    }
                }
            }
        }
        Ok(true)
    }

    /// Waits for a file; returns false when this side is to end.
    fn wait(&self, file: impl AsFd, events: PollFlags, timeout: Option<&Timespec>) -> bool {
        let mut waited = [PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&file, events)];
        // Interrupted, or out of memory: the caller retries.
        let _ = poll(&mut waited, timeout);
        waited[0].revents().is_empty()
    }

    fn pause(&self) {
        let timeout = Timespec::try_from(RETRY).ok();
        self.wait(&*self.stop, PollFlags::empty(), timeout.as_ref());
    }

    fn is_stopped(&self) -> bool {
        !self.wait(&*self.stop, PollFlags::IN, Some(&Timespec::default()))
    }

    fn update_state(&self, change: impl FnOnce(&mut SocketState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Sends a reply, completely or not at all: a frontend without buffer space for so few bytes does not read.
fn send(stream: &OwnedFd, reply: Reply, to: &Header) -> Result<(), SessionError> {
    let (bytes, file) = reply.message(to);
    let files = file.as_ref().map(|file| [file.as_fd()]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if let Some(files) = &files {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    let sent = sendmsg(stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    match sent {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(_) => Err(SessionError::Socket(io::ErrorKind::WriteZero.into())),
        Err(error) => Err(SessionError::Socket(error.into())),
    }
}

const _: () = assert!(HEADER_BYTES == 12);
