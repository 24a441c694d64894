//! Identifies the process at the other end of a connection, and the one that sent a packet over it.
#![allow(unsafe_code, reason = "credentials, whose process number may be 0, which rustix's type cannot represent")]

use rustix::net::sockopt::set_socket_passcred;
use std::io;
use std::mem::MaybeUninit;
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

/// Bytes of a control message with credentials, which leave no room for another message.
// SAFETY: the macro's function only computes.
#[allow(clippy::cast_possible_truncation, reason = "12 bytes")]
const CREDENTIALS: usize = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as libc::c_uint) } as usize;

/// Room for a control message with credentials.
#[repr(C, align(8))]
struct Control(MaybeUninit<[u8; CREDENTIALS]>);

/// Returns the process that has sent the packet that is next in a connection, which need not be the one that connected:
/// children inherit connections. The packet, and its descriptors, stay. The number is 0 if the process is not visible
/// in this PID namespace, or if the connection's side here did not have the option SO_PASSCRED when the packet was
/// sent; sockets that are accepted have it from their listener. Afterwards the option is off.
///
/// `None` if the peer has hung up.
///
/// # Errors
/// [`WouldBlock`](io::ErrorKind::WouldBlock) if no packet has arrived; the kernel's error.
pub fn sender(connection: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    // With the option, credentials are the first control message, and fill the room: no descriptor is received.
    set_socket_passcred(connection, true)?;
    let sender = peek_sender(connection);
    set_socket_passcred(connection, false)?;
    sender
}

fn peek_sender(connection: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let mut control = Control(MaybeUninit::uninit());
    // SAFETY: an all-zero header is a valid value: it names no buffers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = CREDENTIALS;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names the room above with its size, and outlives the call.
    if unsafe { libc::recvmsg(connection.as_raw_fd(), &raw mut message, flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled the header; the function returns null, or a header within the room, which is
    // aligned for it.
    let head = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: null, or as above; the kernel has written what the header's function has returned.
    let Some(found) = (unsafe { head.as_ref() }) else { return Ok(None) };
    let is_whole = found.cmsg_len >= size_of::<libc::cmsghdr>() + size_of::<libc::ucred>();
    if found.cmsg_level != libc::SOL_SOCKET || found.cmsg_type != libc::SCM_CREDENTIALS || !is_whole {
        return Ok(None);
    }
    // SAFETY: the message has the length of these data, which follow its header in the room above.
    let credentials = unsafe { libc::CMSG_DATA(head).cast::<libc::ucred>().read_unaligned() };
    Ok(Some(credentials.pid.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags,
        SocketType, sendmsg, socketpair,
    };
    use std::io::IoSlice;
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    /// A connection, of which the first end says which process has sent a packet.
    fn connection() -> (OwnedFd, OwnedFd) {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        set_socket_passcred(&pair.0, true).unwrap();
        pair
    }

    #[test]
    fn the_sender_of_a_packet_is_the_process_that_wrote_it() {
        let (ours, theirs) = connection();
        assert_eq!(sender(ours.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        set_socket_passcred(&ours, true).unwrap();
        let inherited = Stdio::from(theirs.try_clone().unwrap());
        let mut child = Command::new("echo").arg("x").stdout(inherited).spawn().unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(peer(ours.as_fd()).unwrap().process, std::process::id());
        assert_eq!(sender(ours.as_fd()).unwrap(), Some(child.id()), "though it has ended");
        let mut packet = [0; 4];
        assert_eq!(rustix::net::recv(&ours, &mut packet, RecvFlags::empty()).unwrap().1, 2, "the packet is left");
    }

    #[test]
    fn a_packet_without_bytes_has_a_sender_and_the_end_has_none() {
        let (ours, theirs) = connection();
        rustix::net::send(&theirs, b"", SendFlags::empty()).unwrap();
        assert_eq!(sender(ours.as_fd()).unwrap(), Some(std::process::id()));
        rustix::net::recv(&ours, &mut [0; 1], RecvFlags::empty()).unwrap();
        rustix::net::shutdown(&theirs, Shutdown::Write).unwrap();
        assert_eq!(sender(ours.as_fd()).unwrap(), None);
    }

    #[test]
    fn descriptors_of_a_packet_stay_in_it() {
        let (ours, theirs) = connection();
        let (probe, passed) = UnixStream::pair().unwrap();
        let descriptors = [passed.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(&theirs, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty()).unwrap();
        drop(passed);
        assert_eq!(sender(ours.as_fd()).unwrap(), Some(std::process::id()));
        // No copy of it is left here: it is closed with the packet.
        rustix::net::recv(&ours, &mut [0; 1], RecvFlags::empty()).unwrap();
        assert_eq!(rustix::net::recv(&probe, &mut [0; 1], RecvFlags::DONTWAIT).unwrap().1, 0);
    }

    #[test]
    fn the_peer_is_identified_by_its_process_and_its_user() {
        let (left, _right) = UnixStream::pair().unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(peer(left.as_fd()).unwrap(), Peer { process: std::process::id(), user });
        assert!(peer(std::fs::File::open("/dev/null").unwrap().as_fd()).is_err());
    }
}
