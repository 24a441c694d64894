//! A Unix socket at a path, on which a server listens.

use rustix::fs::{FileType, lstat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Clients that may wait while one is served. Source: assumed: one that restarts before its end was noticed, and some
/// that connect by mistake.
const BACKLOG: i32 = 8;

/// Listens at a path until it is dropped. Then it removes the socket's file, unless that was replaced by another.
#[derive(Debug)]
pub struct SocketListener {
    descriptor: OwnedFd,
    path: PathBuf,
    file: FileId,
}

impl SocketListener {
    /// Listens at `path`, and replaces a socket file that no process listens on. The descriptor does not block.
    ///
    /// # Errors
    /// The error names what was attempted. [`AddrInUse`](io::ErrorKind::AddrInUse): another process listens there.
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists): there is a file that is not a socket. Neither is touched.
    /// Otherwise the system's error: the path is too long, or not writable.
    pub fn bind(path: impl Into<PathBuf>) -> io::Result<SocketListener> {
        let path = path.into();
        let address = address_of(&path)?;
        let descriptor = stream()?;
        let refused = |error| at(&path, "listen on", error);
        match bind(&descriptor, &address) {
            Err(Errno::ADDRINUSE) => {
                remove_stale_socket(&path, &address).map_err(refused)?;
                bind(&descriptor, &address)
            }
            bound => bound,
        }
        .map_err(|error| refused(error.into()))?;
        listen(&descriptor, BACKLOG)?;
        let file = FileId::of(&path).map_err(|error| refused(error.into()))?;
        Ok(SocketListener { descriptor, path, file })
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for SocketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for SocketListener {
    fn drop(&mut self) {
        if FileId::of(&self.path) == Ok(self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes the socket at `path` if no process listens on it. Leaves anything else alone.
fn remove_stale_socket(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    let there = lstat(path)?;
    if FileType::from_raw_mode(there.st_mode) != FileType::Socket {
        // Connecting to such a file is refused as well (unix(7)), so its type has to be checked.
        let why = "there is a file that is not a socket; remove it, or give another path";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
    }
    match connect(stream()?, address) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path),
        // A process listens there, even if its backlog is full.
        Ok(()) | Err(Errno::AGAIN) => {
            let why = "another process listens there; stop it, or give another path";
            Err(io::Error::new(io::ErrorKind::AddrInUse, why))
        }
        Err(error) => Err(error.into()),
    }
}

/// Identifies the file at a path.
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

pub(crate) fn stream() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

pub(crate) fn address_of(path: &Path) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|error| at(path, "name", error.into()))
}

fn at(path: &Path, attempt: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {attempt} a socket at {}: {error}", path.display()))
}
