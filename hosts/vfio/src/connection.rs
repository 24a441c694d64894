//! One client's socket: messages with files in, replies and commands out.
//!
//! Source: unix(7), `SCM_RIGHTS`.

use crate::wire::{HEADER_BYTES, Header, MOST_FILES, WireError};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recvmsg, sendmsg,
    shutdown,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// Files kept with a message: one more than allowed, so that surplus files are noticed. The rest is closed.
const SEEN_FILES: usize = MOST_FILES + 1;

/// Why a connection ended, other than by its client's wish.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    /// The system refused to receive or to send.
    #[error("the socket failed")]
    Socket(#[from] io::Error),
    /// The client sent what no message begins with.
    #[error("the client broke the protocol")]
    Wire(#[from] WireError),
}

/// A connected client.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: OwnedFd,
    /// Held while a message is sent, so that those of two threads do not mix.
    sending: Mutex<()>,
}

impl Connection {
    /// Takes a connected socket in blocking mode.
    pub(crate) fn new(stream: OwnedFd) -> Connection {
        Connection { stream, sending: Mutex::new(()) }
    }

    /// Receives a message, its body into `body`; `None` when the client has gone, or after
    /// [`close`](Connection::close).
    pub(crate) fn receive(&self, body: &mut Vec<u8>) -> Result<Option<(Header, Vec<OwnedFd>)>, ConnectionError> {
        let mut files = Vec::new();
        let mut header = [0; HEADER_BYTES];
        if !self.fill(&mut header, &mut files)? {
            return Ok(None);
        }
        let header = Header::from_bytes(&header);
        body.resize(header.body()?, 0);
        Ok(self.fill(body, &mut files)?.then_some((header, files)))
    }

    /// Fills `bytes`, and takes the files that come with them. Returns false if the client goes first.
    fn fill(&self, bytes: &mut [u8], files: &mut Vec<OwnedFd>) -> Result<bool, ConnectionError> {
        let mut got = 0;
        while got < bytes.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SEEN_FILES))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let slices = &mut [IoSliceMut::new(&mut bytes[got..])];
            match recvmsg(&self.stream, slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) if message.bytes == 0 => return Ok(false),
                Ok(message) => got += message.bytes,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(false),
                Err(error) => return Err(io::Error::from(error).into()),
            }
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(sent) = message {
                    let room = SEEN_FILES - files.len();
                    // Files beyond the limit are closed.
                    files.extend(sent.take(room));
                }
            }
        }
        Ok(true)
    }

    /// Sends a message: a header and the parts of its body. Waits until the client has taken it.
    pub(crate) fn send(&self, header: Header, body: &[&[u8]]) -> Result<(), ConnectionError> {
        let header = header.to_bytes();
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(1 + body.len());
        slices.push(IoSlice::new(&header));
        slices.extend(body.iter().filter(|part| !part.is_empty()).map(|part| IoSlice::new(part)));
        let mut rest = &mut slices[..];
        let _one_message = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        while !rest.is_empty() {
            let mut ancillary = SendAncillaryBuffer::default();
            match sendmsg(&self.stream, rest, &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(sent) => IoSlice::advance_slices(&mut rest, sent),
                Err(Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        Ok(())
    }

    /// Ends the connection for all threads that use it.
    pub(crate) fn close(&self) {
        // Fails only if the client has gone already.
        let _ = shutdown(&self.stream, Shutdown::Both);
    }
}
