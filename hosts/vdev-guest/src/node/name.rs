//! Identifies the file of a descriptor that was not seen being opened: by the name of its socket, or by asking the file
//! system.
#![allow(unsafe_code, reason = "system calls with their structures on the stack")]

use crate::run;
use crate::sys::{call, word};
use std::mem::offset_of;
use std::os::fd::RawFd;
use telpher_vdev_wire::name::NodeName;

/// Type of every FUSE file system. Source: UAPI `linux/magic.h`.
const FUSE: rustix::fs::FsWord = 0x6573_5546;
/// `_IOR('t', 1, u64)`: the namespace view's request for the number of an open node.
const OPEN_NUMBER: usize = 0x8008_7401;

/// The name that the host has given a node's socket; `None` for every other descriptor.
pub(super) fn of_socket(fd: RawFd) -> Option<NodeName> {
    parse_socket(fd, NodeName::parse)
}

/// Parses the name that the host has given a socket, by the run's name and the socket's; `None` for every other
/// descriptor.
pub(crate) fn parse_socket<T>(fd: RawFd, parse: impl FnOnce(&[u8], &[u8]) -> Option<T>) -> Option<T> {
    // AF_UNIX is 1.
    let mut address = libc::sockaddr_un { sun_family: 1, sun_path: [0; 108] };
    let mut len = u32::try_from(size_of::<libc::sockaddr_un>()).ok()?;
    let arguments = [word(fd), (&raw mut address).addr(), (&raw mut len).addr(), 0, 0, 0];
    // SAFETY: address and length outlive the call.
    unsafe { call(libc::SYS_getsockname, arguments) }.ok()?;
    let len = (len as usize).checked_sub(offset_of!(libc::sockaddr_un, sun_path))?;
    let path = address.sun_path.map(i8::cast_unsigned);
    // A leading zero byte: the abstract namespace.
    let name = path.get(..len)?.strip_prefix(b"\0")?;
    let run = run::directory().rsplit(|byte| *byte == b'/').next()?;
    (i32::from(address.sun_family) == libc::AF_UNIX).then(|| parse(run, name))?
}

/// The file system's number of an open node; `None` for every other descriptor.
pub(super) fn of_file_system(fd: RawFd) -> Option<u64> {
    // SAFETY: the caller's descriptor, borrowed for the call.
    let status = rustix::fs::fstatfs(unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }).ok()?;
    if status.f_type != FUSE {
        return None;
    }
    let mut open = 0_u64;
    // SAFETY: the request writes eight bytes if the file is ours; other FUSE files return ENOTTY.
    unsafe { call(libc::SYS_ioctl, [word(fd), OPEN_NUMBER, (&raw mut open).addr(), 0, 0, 0]) }.ok()?;
    Some(open)
}
