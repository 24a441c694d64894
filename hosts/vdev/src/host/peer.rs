//! Identifies the process at the other end of a connection.
#![allow(unsafe_code, reason = "SO_PEERCRED; its process number may be 0, which rustix's type cannot represent")]

use std::os::fd::{AsRawFd, BorrowedFd};

/// The process that connected; 0 if it is not visible in this PID namespace, or cannot be determined.
pub(super) fn process(connection: BorrowedFd<'_>) -> u32 {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
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
    if failed == 0 { credentials.pid.unsigned_abs() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_peer_is_identified_by_its_process() {
        let (left, _right) = UnixStream::pair().unwrap();
        assert_eq!(process(left.as_fd()), std::process::id());
        assert_eq!(process(std::fs::File::open("/dev/null").unwrap().as_fd()), 0);
    }
}
