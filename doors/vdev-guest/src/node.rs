//! Open files of queues' nodes: what the program's descriptors stand for.

use crate::sys::Errno;
use std::os::fd::RawFd;

/// Opens a node, `/dev/dsa/wqM.N`, with open(2)'s flags; the answer is the lowest free descriptor.
///
/// # Errors
/// The driver's answer (EBUSY, ENXIO, …), or the system's for want of descriptors or memory.
pub(crate) fn open(path: &[u8], flags: u32) -> Result<RawFd, Errno> {
    crate::control::open(path, flags).map(|opening| opening.file)
}

/// True if a descriptor of the program is an open node. Costs one load.
#[inline]
pub(crate) fn is_node(_fd: RawFd) -> bool {
    false
}

/// Recognises a node among the descriptors a program got by other ways (kept across exec, received); true if it is one.
pub(crate) fn adopt(_fd: RawFd) -> bool {
    false
}

/// Closes a descriptor that is a node, and the file with its last descriptor and mapping, once its work is done.
///
/// # Errors
/// EBADF.
pub(crate) fn close(fd: RawFd) -> Result<(), Errno> {
    crate::sys::close(fd)
}

/// Says that `new` has become a duplicate of the node `old` (dup, dup2, dup3, fcntl); what `new` was before is forgotten by
/// [`forget`] first.
pub(crate) fn duplicated(_old: RawFd, _new: RawFd) {}

/// Says that a descriptor is about to be closed or replaced by other means (dup2 onto it, close_range): forgets it, without
/// closing it.
pub(crate) fn forget(_fd: RawFd) {}

/// write(2) on a node: submits the descriptors in the buffer.
///
/// # Errors
/// The driver's: EFAULT, EINVAL, EAGAIN, EPERM.
pub(crate) fn write(_fd: RawFd, _bytes: *const u8, _len: usize) -> Result<usize, Errno> {
    Err(Errno::INVAL)
}

/// True if an error of the device waits to be seen: what poll(2) answers as POLLIN | POLLRDNORM; an error (POLLNVAL) from
/// another address space than the opener's.
///
/// # Errors
/// EINVAL.
pub(crate) fn poll(_fd: RawFd) -> Result<bool, Errno> {
    Ok(false)
}

/// Which queue a node is: device and number, `wqM.N`.
pub(crate) fn queue(_fd: RawFd) -> Option<(u32, u32)> {
    None
}

/// A guard has got another number.
pub(crate) fn guard_moved(_old: RawFd, _new: RawFd) {}
