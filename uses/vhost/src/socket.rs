//! The socket that a frontend talks through: messages and files in, answers out, one frontend after another.
//!
//! A frontend that sends garbage, half a message, or dies, is a closed session and nothing more: its rings stop, and the next may come at any
//! time. Whoever listens listens again; whoever connects tries again.
//!
//! Source: vhost-user, "Communication"; unix(7), `SCM_RIGHTS`.

use crate::control::Control;
use crate::error::SessionError;
use crate::message::{HEADER_BYTES, Header, MOST_FILES, ProtocolFeatures, Reply};
use crate::port::Port;
use crate::words::Features;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{FileType, lstat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, recvmsg, sendmsg,
    socket_with,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Who listens and who connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Role {
    /// This side listens; the frontend connects.
    Server,
    /// The frontend listens; this side connects, and again when it loses it.
    Client,
}

/// How long a frontend that is not there is left alone before it is tried again.
/// Source: assumed; a frontend that restarts takes seconds.
const RETRY: Duration = Duration::from_millis(100);
/// Files that are kept of one message: one more than any request takes, so that too many are noticed. The rest is closed.
const SEEN_FILES: usize = MOST_FILES + 1;
/// Frontends that may wait for the one that is served. Source: assumed: one that restarts before its end was noticed, and some that are wrong here.
const BACKLOG: i32 = 8;

/// What has become of a socket so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SocketState {
    /// A frontend is connected.
    pub connected: bool,
    /// Sessions that began.
    pub sessions: u64,
    /// Refusals in all sessions: messages that do not keep to the protocol, requests that were refused, whether the frontend was told or its session
    /// ended, and rings that could not start in the memory that a request gave them.
    pub refused: u64,
    /// Why the last session ended, or the last request was refused.
    pub last: Option<String>,
    /// What the frontend, or the last one, has agreed on.
    pub features: Features,
    /// What of the protocol.
    pub protocol: ProtocolFeatures,
}

/// A port's socket, served by a thread of its own until this is dropped.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    /// The file at the path, if it is this side's.
    file: Option<FileId>,
    stop: Arc<OwnedFd>,
    state: Arc<Mutex<SocketState>>,
    thread: Option<JoinHandle<()>>,
}

impl Socket {
    /// Serves the port through the socket at `path`. A socket file that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// With what was attempted: [`AddrInUse`](io::ErrorKind::AddrInUse) if somebody listens there, [`AlreadyExists`](io::ErrorKind::AlreadyExists) if
    /// a file is there that is no socket, neither of which is touched; else the system's: the path is too long, or not to be written.
    pub fn serve(port: &Arc<Port>, path: impl Into<PathBuf>, role: Role) -> io::Result<Socket> {
        let path = path.into();
        let (listener, file) = match role {
            Role::Server => listen_at(&path).map(|(listener, file)| (Some(listener), Some(file)))?,
            Role::Client => (None, None),
        };
        let address = address_of(&path)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let state = Arc::default();
        let server = Server { port: Arc::clone(port), stop: Arc::clone(&stop), state: Arc::clone(&state) };
        let thread = std::thread::Builder::new().name("vhost-user".into()).spawn(move || match listener {
            Some(listener) => server.listen(&listener),
            None => server.connect(&address),
        })?;
        Ok(Socket { path, file, stop, state, thread: Some(thread) })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What has become of it so far.
    #[must_use]
    pub fn state(&self) -> SocketState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Socket {
    /// Ends the session, if there is one, and the thread. The socket's file goes, unless another has taken its place.
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if self.file.is_some_and(|file| FileId::of(&self.path) == Ok(file)) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What the thread has.
struct Server {
    port: Arc<Port>,
    stop: Arc<OwnedFd>,
    state: Arc<Mutex<SocketState>>,
}

impl Server {
    fn listen(&self, listener: &OwnedFd) {
        while self.wait(listener, PollFlags::IN, None) {
            match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(stream) => self.session(&stream),
                // It went before it was heard.
                Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
                // No descriptors or no memory: perhaps later.
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

    /// One frontend, to its end.
    fn session(&self, stream: &OwnedFd) {
        let Some(mut control) = Control::take(&self.port) else {
            // Another socket of the same port has a frontend.
            return self.pause();
        };
        self.tell(|state| {
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
                self.tell(|state| (state.features, state.protocol) = agreed);
            }
            let (count, last) = control.refused();
            if count > refused {
                let more = count - std::mem::replace(&mut refused, count);
                self.tell(|state| {
                    state.refused += more;
                    state.last = last.map(|error| text(error));
                });
            }
        };
        drop(control);
        self.tell(|state| {
            state.connected = false;
            state.refused += u64::from(end.as_ref().is_some_and(SessionError::is_refusal));
            state.last = end.as_ref().map(|error| text(error)).or(state.last.take());
        });
    }

    /// One message and its answer. False when nobody is there any more.
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

    /// Fills `bytes`, and takes the files that come with them. False if the frontend, or this side, ends before.
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
                    // Each is closed that there is no room for.
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

    /// Waits for a file; false when this side is to end.
    fn wait(&self, file: impl AsFd, events: PollFlags, timeout: Option<&Timespec>) -> bool {
        let mut waited = [PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&file, events)];
        // Interrupted, or out of memory: whoever waits looks again.
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

    fn tell(&self, change: impl FnOnce(&mut SocketState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Sends an answer, whole or not at all: whoever leaves no room for so few bytes does not read.
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

/// A socket that listens at `path`, also where one was that nobody listens on any more; and which file that is.
fn listen_at(path: &Path) -> io::Result<(OwnedFd, FileId)> {
    let address = address_of(path)?;
    let listener = stream()?;
    let refused = |error| at(path, "listen on", error);
    match bind(&listener, &address) {
        Err(Errno::ADDRINUSE) => {
            make_way(path, &address).map_err(refused)?;
            bind(&listener, &address)
        }
        bound => bound,
    }
    .map_err(|error| refused(error.into()))?;
    listen(&listener, BACKLOG)?;
    let id = FileId::of(path).map_err(|error| refused(error.into()))?;
    Ok((listener, id))
}

/// Removes the socket at `path` if nobody listens on it any more. Anything else is somebody's.
fn make_way(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    let there = lstat(path)?;
    if FileType::from_raw_mode(there.st_mode) != FileType::Socket {
        // Whoever connects to such a file is refused as well, unix(7), so that it has to be asked what it is.
        let why = "there is a file that is no socket, and it is left as it is; remove it, or give another path";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
    }
    match connect(stream()?, address) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path),
        // Somebody who listens, whether there is room for one more or not.
        Ok(()) | Err(Errno::AGAIN) => {
            let why = "another process listens there; end it, or give another path";
            Err(io::Error::new(io::ErrorKind::AddrInUse, why))
        }
        Err(error) => Err(error.into()),
    }
}

/// Which file a path leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(path: &Path) -> rustix::io::Result<FileId> {
        lstat(path).map(|stat| FileId { device: stat.st_dev, inode: stat.st_ino })
    }
}

fn stream() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn address_of(path: &Path) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|error| at(path, "name", error.into()))
}

fn at(path: &Path, attempt: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {attempt} a socket at {}: {error}", path.display()))
}

/// An error and its sources, in one line.
fn text(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}

const _: () = assert!(HEADER_BYTES == 12);
