//! Sockets between endpoints, and the processes at their other ends.

use crate::address::Address;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fmt::Display;
use std::os::fd::{AsFd, OwnedFd};
use telpher_os::peer;

/// Creates a socket that keeps packets apart.
pub(crate) fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Returns the name of an endpoint's socket, in the kernel's abstract namespace.
pub(crate) fn socket_name(of: &Address) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("telpher-fabric-{:016x}", of.number).as_bytes())
}

/// Returns whether the process at the other end has this user.
pub(crate) fn is_of_user(socket: &OwnedFd, user: u32) -> bool {
    peer(socket.as_fd()).is_ok_and(|peer| peer.user == user)
}

/// Returns whether the process at the other end is certainly not the one of this address. Numbers of processes can be
/// compared within one PID namespace only.
pub(crate) fn is_of_another_process(socket: &OwnedFd, address: &Address) -> bool {
    let Ok(peer) = peer(socket.as_fd()) else { return false };
    let namespace = |process: &dyn Display| std::fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    peer.process != 0
        && peer.process != address.process
        && namespace(&"self").is_some_and(|own| namespace(&peer.process) == Some(own))
}

/// The process at the other end has ended.
#[derive(Debug)]
pub(crate) struct Ended;

/// Returns a descriptor that becomes readable when the process at the other end ends; `None` if the process is not
/// visible from here, or if the kernel cannot tell.
///
/// If the process has ended before the call and the kernel has reused its number, the descriptor is of another process.
/// The socket reports the end in that case, unless a child keeps it open.
pub(crate) fn process_of(socket: &OwnedFd) -> Result<Option<OwnedFd>, Ended> {
    let Ok(peer) = peer(socket.as_fd()) else { return Ok(None) };
    let Some(process) = peer.process.try_into().ok().and_then(Pid::from_raw) else { return Ok(None) };
    match pidfd_open(process, PidfdFlags::empty()) {
        Ok(process) => Ok(Some(process)),
        Err(Errno::SRCH) => Err(Ended),
        Err(_) => Ok(None),
    }
}
