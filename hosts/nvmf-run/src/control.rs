//! The control socket: changes a running server, and asks for its statistics.
//!
//! A client sends one line of JSON, a [`Request`], and gets one line of JSON: `{"result": …}` or `{"error": "…"}`. Then
//! the connection ends. The socket has mode 0600, and only its owner and root are answered. Each client has its own
//! thread and a deadline, so that a slow one delays no other. The number of clients and the length of a line are
//! bounded.

use crate::commands::{Request, Shared};
use crate::error::NvmfRunError;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{Value, json};
use std::fs::Permissions;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use telpher_launch::UserDirectory;
use telpher_os::spawn_unsignalled;

/// The longest request. Source: chosen; a namespace with a long path needs 5 KiB.
const LONGEST_LINE: usize = 64 << 10;
/// Clients at once.
const MOST_CLIENTS: usize = 16;
/// How long a client may take to send its request, and to read the answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// How long a client waits for the answer of a server.
const ANSWER: Duration = Duration::from_secs(30);
/// The longest answer. Source: chosen; 1024 queues have 2 MiB of statistics.
const LONGEST_ANSWER: u64 = 64 << 20;

/// The name of the socket in the user's directory for run files.
const NAME: &str = "nvmf.sock";

/// The path of the socket if none is given.
///
/// # Errors
/// If this user has no directory for run files.
pub fn default_socket() -> Result<PathBuf, NvmfRunError> {
    let directory = UserDirectory::open().map_err(|error| NvmfRunError::NoDirectory(Box::new(error)))?;
    Ok(directory.path().join(NAME))
}

/// A control socket that is served until it is dropped.
#[derive(Debug)]
pub(crate) struct Control {
    path: PathBuf,
    /// Device and inode of the socket: another server may have replaced it.
    file: Option<(u64, u64)>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Serves a socket at this path. A socket that no process serves any more is replaced.
    pub(crate) fn serve(path: &Path, shared: Arc<Shared>) -> Result<Control, NvmfRunError> {
        let failed = |source| NvmfRunError::Control { path: path.into(), source };
        let listener = listen(path).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
        let (stop, seen) = (Arc::new(event), std::fs::symlink_metadata(path).ok());
        let stopped = Arc::clone(&stop);
        let thread = spawn_unsignalled("nvmf-control", move || accept(&listener, &stopped, &shared)).map_err(failed)?;
        let file = seen.map(|metadata| (metadata.dev(), metadata.ino()));
        Ok(Control { path: path.into(), file, stop, thread: Some(thread) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let now = std::fs::symlink_metadata(&self.path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        if now.is_some() && now == self.file {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens at a path, with access for this user only.
fn listen(path: &Path) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(io::Error::new(ErrorKind::AlreadyExists, "the file exists and is no socket"));
        }
        Ok(_) => match connect(path) {
            // The socket is replaced below.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            // In the last case, the listener's queue is full.
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            Ok(_) | Err(_) => return Err(io::Error::new(ErrorKind::AddrInUse, "another server uses it")),
        },
        Err(_) => {}
    }
    // Until it has its mode, the socket is in a folder that only this user can enter: in a shared folder, another user
    // could put a link in its place.
    let folder = PrivateFolder::create_beside(path)?;
    let temporary = folder.0.join("socket");
    let listener = UnixListener::bind(&temporary)?;
    std::fs::set_permissions(&temporary, Permissions::from_mode(0o600))?;
    std::fs::rename(&temporary, path)?;
    Ok(listener)
}

/// A folder of mode 0700, which is removed when it is dropped.
struct PrivateFolder(PathBuf);

impl PrivateFolder {
    fn create_beside(path: &Path) -> io::Result<PrivateFolder> {
        // Other users may have taken a name.
        let names = (0..64).map(|number| path.with_extension(format!("{}.{number}.new", std::process::id())));
        let mut refusal = io::Error::from(ErrorKind::AlreadyExists);
        for name in names {
            match std::fs::DirBuilder::new().mode(0o700).create(&name) {
                Ok(()) => return Ok(PrivateFolder(name)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => refusal = error,
                Err(error) => return Err(error),
            }
        }
        Err(refusal)
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // The socket is no longer there, unless it could not be renamed.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Connects to a socket. If its listener's queue is full, this fails at once instead of waiting without bound.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Starts a thread for each client, until the eventfd is written.
fn accept(listener: &UnixListener, stop: &OwnedFd, shared: &Arc<Shared>) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let mut waited = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        if poll(&mut waited, None).is_err() {
            continue; // a signal
        }
        if !waited[1].revents().is_empty() {
            return;
        }
        let client = match listener.accept() {
            Ok((client, _)) => client,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(_) => {
                // No descriptor is free.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if !is_allowed(&client) || clients.load(Ordering::Acquire) >= MOST_CLIENTS {
            continue; // closes the connection
        }
        let counted = Counted::new(&clients);
        let shared = Arc::clone(shared);
        let started = spawn_unsignalled("nvmf-client", move || {
            let _counted = counted;
            // A client that goes away needs no answer.
            let _ = serve(&client, &shared);
        });
        // Without a thread, the connection is closed, and no longer counted.
        drop(started);
    }
}

/// A client in the count of clients, also while its thread panics.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(clients: &Arc<AtomicUsize>) -> Counted {
        clients.fetch_add(1, Ordering::AcqRel);
        Counted(Arc::clone(clients))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Only this user and root may control the server, whatever the socket's mode has become.
fn is_allowed(client: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    telpher_os::peer(client.as_fd()).is_ok_and(|peer| peer.user == own || peer.user == 0)
}

/// Serves one client.
fn serve(client: &UnixStream, shared: &Shared) -> io::Result<()> {
    let answer = match read_line(client)? {
        None => return Ok(()),
        Some(line) => match serde_json::from_slice::<Request>(&line) {
            Ok(request) => match shared.execute(&request) {
                Ok(result) => json!({ "result": result }),
                Err(error) => json!({ "error": error }),
            },
            Err(error) => json!({ "error": error.to_string() }),
        },
    };
    client.set_write_timeout(Some(DEADLINE))?;
    let mut writer = client;
    writer.write_all(format!("{answer}\n").as_bytes())
}

/// Reads a line until the deadline; `None` if the client ended without one, or sent too much.
fn read_line(client: &UnixStream) -> io::Result<Option<Vec<u8>>> {
    client.set_nonblocking(false)?;
    let until = Instant::now() + DEADLINE;
    let (mut line, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let rest = until.saturating_duration_since(Instant::now());
        if rest.is_zero() || line.len() > LONGEST_LINE {
            return Ok(None);
        }
        client.set_read_timeout(Some(rest))?;
        let mut reader = client;
        let count = match reader.read(&mut part) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        };
        line.extend_from_slice(&part[..count]);
        if let Some(end) = line.iter().position(|&byte| byte == b'\n') {
            line.truncate(end);
            return Ok(Some(line));
        }
        if count == 0 {
            return Ok(None);
        }
    }
}

/// Why a request to a running server failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// No server answers at the socket.
    #[error("no server answers at {}; start telpher nvmf, or name its socket with --control", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The exchange failed.
    #[error("the server at {} did not answer", path.display())]
    Exchange {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The server refused the request.
    #[error("{0}")]
    Refused(String),
}

/// Sends a request to a running server, and returns its result.
///
/// # Errors
/// [`AskError`].
pub fn ask(path: &Path, request: &Value) -> Result<Value, AskError> {
    let connect = |source| AskError::Connect { path: path.into(), source };
    let exchange = |source| AskError::Exchange { path: path.into(), source };
    let mut server = self::connect(path).map_err(connect)?;
    let own = rustix::process::geteuid().as_raw();
    let peer = telpher_os::peer(server.as_fd()).map_err(connect)?;
    if own != 0 && peer.user != own && peer.user != 0 {
        let text = format!("a program of user {} listens there", peer.user);
        return Err(connect(io::Error::new(ErrorKind::PermissionDenied, text)));
    }
    server.set_read_timeout(Some(ANSWER)).map_err(exchange)?;
    server.write_all(format!("{request}\n").as_bytes()).map_err(exchange)?;
    let mut answer = String::new();
    (&server).take(LONGEST_ANSWER).read_to_string(&mut answer).map_err(exchange)?;
    let answer: Value = serde_json::from_str(&answer).map_err(|error| exchange(error.into()))?;
    match (answer.get("result"), answer.get("error").and_then(Value::as_str)) {
        (Some(result), _) => Ok(result.clone()),
        (None, Some(error)) => Err(AskError::Refused(error.into())),
        (None, None) => Err(exchange(ErrorKind::InvalidData.into())),
    }
}
