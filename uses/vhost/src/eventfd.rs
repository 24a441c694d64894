//! Eventfds that another process has sent.

use rustix::fs::OFlags;
use std::os::fd::{AsRawFd, OwnedFd};

/// Makes writes to an eventfd non-blocking and returns it; `None` if the file is not an eventfd. Any other file could
/// block the writer or raise a signal.
#[must_use]
pub fn own_eventfd(file: OwnedFd) -> Option<OwnedFd> {
    // Source: proc(5), /proc/pid/fd.
    let name = rustix::fs::readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new());
    if !name.is_ok_and(|name| name.as_bytes() == b"anon_inode:[eventfd]") {
        return None;
    }
    let flags = rustix::fs::fcntl_getfl(&file).unwrap_or(OFlags::RDWR);
    rustix::fs::fcntl_setfl(&file, flags | OFlags::NONBLOCK).ok()?;
    Some(file)
}

/// Increments an eventfd. If its counter is full, the reader has been notified already.
pub fn signal_eventfd(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}
