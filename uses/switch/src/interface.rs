//! TAP interfaces of this system: the requests to the kernel.
#![allow(unsafe_code, reason = "two ioctls of the TUN driver")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use telpher_os::ioctl_number;

/// Opens a queue of the TAP interface `name` (at most 15 bytes) for non-blocking reads and writes of one frame each.
/// The kernel creates the interface if it does not exist. With `many` it may have several queues (`IFF_MULTI_QUEUE`);
/// otherwise it must have one.
pub(crate) fn tap(name: &str, many: bool) -> io::Result<File> {
    let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: all zeros are a valid request: an empty name and no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero: it ends the name.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    let many = if many { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = libc::c_short::try_from(libc::IFF_TAP | libc::IFF_NO_PI | many).expect("all are below 2 to the 15th");
    request.ifr_ifru.ifru_flags = flags;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which lives; the descriptor is open.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the kernel send frames through a queue of an interface with several queues, or stops that. Writes to the queue
/// are possible in both cases.
pub(crate) fn use_tap_queue(queue: &File, used: bool) -> io::Result<()> {
    // Source of all three: UAPI linux/if_tun.h.
    const TUNSETQUEUE: libc::c_ulong = 0x4004_54d9;
    const IFF_ATTACH_QUEUE: libc::c_short = 0x0200;
    const IFF_DETACH_QUEUE: libc::c_short = 0x0400;
    // SAFETY: all zeros are a valid request: an empty name, which the kernel ignores, and no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_flags = if used { IFF_ATTACH_QUEUE } else { IFF_DETACH_QUEUE };
    // SAFETY: TUNSETQUEUE reads one `ifreq`, which lives; the descriptor is open.
    match unsafe { libc::ioctl(queue.as_raw_fd(), ioctl_number(TUNSETQUEUE), &raw mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
