//! Identifies the process at the other end of a connection.
#![allow(unsafe_code, reason = "SO_PEERCRED; its process number may be 0, which rustix's type cannot represent")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The process that connected a Unix socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its number; 0 if it is not visible in this PID namespace.
    pub process: u32,
    /// Its effective user.
    pub user: u32,
}

/// Returns the process that connected.
///
/// # Errors
/// The kernel's error, such as for a descriptor that is not a socket.
pub fn peer(connection: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: 0 };
    let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or_default();
    // SAFETY: the kernel writes at most `len` bytes of the structure, and `len` itself; both outlive the call.
    let failed = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer { process: credentials.pid.unsigned_abs(), user: credentials.uid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_peer_is_identified_by_its_process_and_its_user() {
        let (left, _right) = UnixStream::pair().unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(peer(left.as_fd()).unwrap(), Peer { process: std::process::id(), user });
        assert!(peer(std::fs::File::open("/dev/null").unwrap().as_fd()).is_err());
    }
}
