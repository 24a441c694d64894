//! Replies to requests, and the process that a connection is from.

use super::files::OpenFile;
use crate::tree::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use telpher_vdev_wire::VERSION;
use telpher_vdev_wire::message::Reply;
use zerocopy::IntoBytes;

/// The result of a successful request.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) value: u64,
    pub(super) data: Vec<u8>,
    /// The descriptor of what the request opened.
    pub(super) end: Option<OwnedFd>,
    /// The file whose shared memory is sent with the reply.
    pub(super) file: Option<Arc<OpenFile>>,
}

impl Answer {
    /// The descriptors sent with the reply, in the order documented at [`Kind`].
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let shared =
            self.file.iter().flat_map(|file| [file.lease.file(), file.board.memory().file(), file.board.rows().file()]);
        self.end.iter().map(AsFd::as_fd).chain(shared).collect()
    }
}

/// The head of the reply to a request.
fn head(answer: &Result<Answer, Errno>) -> Reply {
    let reply = Reply { version: VERSION, ..Reply::default() };
    match answer {
        Ok(answer) => {
            Reply { value: answer.value, data_len: u32::try_from(answer.data.len()).unwrap_or_default(), ..reply }
        }
        Err(errno) => Reply { errno: errno.raw_os_error(), ..reply },
    }
}

/// Sends a reply.
pub(super) fn reply(connection: &OwnedFd, answer: &Result<Answer, Errno>) {
    let head = head(answer);
    let (data, descriptors) = match answer {
        Ok(answer) => (&answer.data[..], answer.descriptors()),
        Err(_) => (&[][..], Vec::new()),
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let parts = [IoSlice::new(head.as_bytes()), IoSlice::new(data)];
    // If the peer does not receive the reply, its descriptor is closed with it, and the host sees the file's hang-up.
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let _ = rustix::net::sendmsg(connection, &parts, &mut ancillary, flags);
}

/// The process that connected; 0 if it is not visible in this PID namespace, or cannot be determined. A connection is
/// served only if this process has sent the packet, too.
pub(super) fn process(connection: &OwnedFd) -> u32 {
    telpher_os::peer(connection.as_fd()).map_or(0, |peer| peer.process)
}
