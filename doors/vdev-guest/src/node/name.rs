//! A node's name on its socket: what a program that got the descriptor from elsewhere can still read.
//!
//! The file is one end of a pair of sockets without names. Its opener binds it to an abstract address that says which file it is;
//! the kernel keeps that with the socket, through fork, exec and passing on.
#![allow(unsafe_code, reason = "the socket calls, with their structures on the stack")]

use crate::run;
use crate::sys::{call, word};
use std::mem::offset_of;
use std::os::fd::RawFd;

/// Begins every such address, after the zero that makes it abstract.
const MARK: &[u8; 14] = b"\0telpher-node\0";
/// Bytes of numbers behind the mark: the file, the device, the queue.
const NUMBERS: usize = 16;
/// Bytes of the run's own name behind the numbers: the run directory's end, which has its random part.
const RUN: usize = 40;

/// Type of every FUSE file system. Source: UAPI `linux/magic.h`.
const FUSE: rustix::fs::FsWord = 0x6573_5546;
/// `_IOR('t', 1, u64)`: what the file-system view answers with the number of an open node.
const OPEN_NUMBER: usize = 0x8008_7401;

/// Names a node's socket. Whatever goes wrong only hides the file from later programs.
pub(super) fn give(fd: RawFd, open: u64, device: u32, wq: u32) {
    let mut address = unnamed();
    let bytes = numbers(open, device, wq);
    let text = MARK.iter().chain(&bytes).chain(run_name());
    let mut len = offset_of!(libc::sockaddr_un, sun_path);
    for (place, byte) in address.sun_path.iter_mut().zip(text) {
        *place = byte.cast_signed();
        len += 1;
    }
    // SAFETY: the address outlives the call.
    let _ = unsafe { call(libc::SYS_bind, [word(fd), (&raw const address).addr(), len, 0, 0, 0]) };
}

/// The name of a node's socket, if the descriptor is one of this run.
pub(super) fn read(fd: RawFd) -> Option<(u64, u32, u32)> {
    let mut address = unnamed();
    let mut len = u32::try_from(size_of::<libc::sockaddr_un>()).ok()?;
    let arguments = [word(fd), (&raw mut address).addr(), (&raw mut len).addr(), 0, 0, 0];
    // SAFETY: address and length outlive the call.
    unsafe { call(libc::SYS_getsockname, arguments) }.ok()?;
    let len = (len as usize).checked_sub(offset_of!(libc::sockaddr_un, sun_path))?;
    if i32::from(address.sun_family) != libc::AF_UNIX {
        return None;
    }
    let path = address.sun_path.map(i8::cast_unsigned);
    let (numbers, run) = path.get(..len)?.strip_prefix(MARK)?.split_first_chunk::<NUMBERS>()?;
    let (open, queue) = numbers.split_first_chunk::<8>()?;
    let (device, wq) = queue.split_first_chunk::<4>()?;
    let wq = u32::from_ne_bytes(wq.try_into().ok()?);
    (run == run_name()).then(|| (u64::from_ne_bytes(*open), u32::from_ne_bytes(*device), wq))
}

/// The file system's own number of an open node; `None` for every other descriptor.
pub(super) fn of_file_system(fd: RawFd) -> Option<u64> {
    // SAFETY: the caller's descriptor, borrowed for the call.
    let status = rustix::fs::fstatfs(unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }).ok()?;
    if status.f_type != FUSE {
        return None;
    }
    let mut open = 0_u64;
    // SAFETY: the request writes eight bytes, if its file is of ours; other FUSE files answer ENOTTY.
    unsafe { call(libc::SYS_ioctl, [word(fd), OPEN_NUMBER, (&raw mut open).addr(), 0, 0, 0]) }.ok()?;
    Some(open)
}

fn numbers(open: u64, device: u32, wq: u32) -> [u8; NUMBERS] {
    let mut bytes = [0; NUMBERS];
    bytes[..8].copy_from_slice(&open.to_ne_bytes());
    bytes[8..12].copy_from_slice(&device.to_ne_bytes());
    bytes[12..].copy_from_slice(&wq.to_ne_bytes());
    bytes
}

fn run_name() -> &'static [u8] {
    let directory = run::directory();
    &directory[directory.len().saturating_sub(RUN)..]
}

fn unnamed() -> libc::sockaddr_un {
    // AF_UNIX is 1.
    libc::sockaddr_un { sun_family: 1, sun_path: [0; 108] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_name_is_read_from_any_duplicate_and_from_nothing_else() {
        let (ours, hosts) = UnixStream::pair().unwrap();
        assert_eq!(read(ours.as_raw_fd()), None);
        give(ours.as_raw_fd(), 0x1234_5678_9abc, 3, 7);
        let copy = ours.try_clone().unwrap();
        assert_eq!(read(copy.as_raw_fd()), Some((0x1234_5678_9abc, 3, 7)));
        assert_eq!(read(hosts.as_raw_fd()), None);
        assert_eq!(read(std::fs::File::open("/dev/null").unwrap().as_raw_fd()), None);
        assert_eq!(read(-1), None);
    }
}
