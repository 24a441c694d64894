//! The descriptors that this library serves: queues' nodes and attributes.

use crate::files::attribute::{self, Host};
use crate::files::table::{self, Kind};
use crate::files::{self, descriptor};
use crate::sys::{self, Errno};
use crate::{guard, node, perf, submit, windows};
use libc::off_t;
use std::ffi::{c_int, c_void};

/// True if a descriptor is a queue's node that this library serves. Costs a system call if the table says so.
pub(super) fn is_node(fd: c_int) -> bool {
    node::is_node(fd) && files::are_served() && node::is_still(fd)
}

/// True if a descriptor is not ours.
#[inline]
pub(super) fn is_foreign(fd: c_int) -> bool {
    table::kind(fd) == Kind::Foreign && !node::is_node(fd)
}

/// True for an attribute or a node.
pub(super) fn is_ours(fd: c_int) -> bool {
    !is_foreign(fd) && (is_node(fd) || files::attribute_of(fd).is_some())
}

/// True if a descriptor is a window that this process has made. A wrong hint of the table is cleared.
fn is_window(fd: c_int) -> bool {
    let is_window = table::kind(fd) == Kind::Window && windows::is_window(fd);
    if table::kind(fd) == Kind::Window && !is_window {
        table::set(fd, Kind::Foreign);
    }
    is_window
}

/// Before a read from the beginning: requests an attribute's text again. `offset` is the read's, if it has one.
pub(super) fn before_read(fd: c_int, offset: Option<off_t>) -> Result<(), Errno> {
    if is_node(fd) {
        // The driver has no read(). Source: K612 fs/read_write.c, vfs_read, without FMODE_CAN_READ.
        return Err(Errno::INVAL);
    }
    if perf::event_of(fd).is_some() {
        // Only read() itself is served; an event has no position.
        return Err(if offset.is_some() { Errno::SPIPE } else { Errno::INVAL });
    }
    if is_window(fd) {
        return Err(if offset.is_some() { Errno::SPIPE } else { Errno::INVAL });
    }
    let Some(path) = files::attribute_of(fd) else { return Ok(()) };
    // A read at an offset generates the text up to there. Source: K612 fs/seq_file.c, seq_read_iter.
    if offset.is_some() || descriptor::seek(fd, 0, libc::SEEK_CUR)? == 0 {
        attribute::refresh(&Host, fd, &path)?;
    }
    Ok(())
}

/// A write to a descriptor that may be ours; `None` if it is not.
pub(super) fn write(fd: c_int, from: *const c_void, len: usize, offset: Option<off_t>) -> Option<Result<usize, Errno>> {
    if is_node(fd) {
        return Some(match offset {
            None => submit::write(fd, from.cast(), len),
            // A node cannot seek. Source: K612 fs/read_write.c, ksys_pwrite64, without FMODE_PWRITE.
            Some(_) => Err(Errno::SPIPE),
        });
    }
    if perf::event_of(fd).is_some() || is_window(fd) {
        return Some(Err(Errno::INVAL));
    }
    let path = files::attribute_of(fd)?;
    let Ok(offset) = offset.map(u64::try_from).transpose() else { return Some(Err(Errno::INVAL)) };
    Some(attribute::write(&Host, fd, &path, from.cast(), len, offset))
}

/// Closes a descriptor, by the function `next` if it is not a node.
pub(super) fn close(fd: c_int, next: impl FnOnce() -> c_int) -> c_int {
    if guard::is_guard(fd) {
        sys::set_errno(Errno::BADF);
        return -1;
    }
    if is_foreign(fd) || !table::belongs_here() {
        return next();
    }
    if node::is_node(fd) {
        return sys::answer_int(node::close(fd).map(|()| 0));
    }
    table::set(fd, Kind::Foreign);
    next()
}
