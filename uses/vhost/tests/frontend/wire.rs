//! A frontend at the other end of a socket, with message layouts defined here independently.

use super::{addresses, event, u32s, u64s};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use telpher_vhost::ring::{MockDriver, MockGuest};

/// A unique path, removed after the test.
pub(crate) struct SocketPath(pub(crate) PathBuf);

impl SocketPath {
    pub(crate) fn new(name: &str) -> SocketPath {
        let place = std::env::temp_dir().join(format!("telpher-vhost-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&place);
        SocketPath(place)
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(crate) fn message(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    [u32s(&[request, 1 | flags, u32::try_from(payload.len()).unwrap()]), payload.to_vec()].concat()
}

/// Sends bytes and files; returns false if the connection is closed.
pub(crate) fn send(stream: &UnixStream, bytes: &[u8], files: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)));
    }
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL);
    sent.is_ok_and(|sent| sent == bytes.len())
}

/// A connection on which every request gets a reply; an error means that the backend is gone.
pub(crate) struct Wire(pub(crate) UnixStream);

impl Wire {
    /// Sends a request, and checks that it succeeded.
    pub(crate) fn tell(&self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.say(request, 8, payload, files)?;
        let (answer, _) = self.answer()?;
        assert_eq!(answer, [0; 8], "request {request} was refused");
        Ok(())
    }

    /// Sends a request; returns the reply's payload and file.
    pub(crate) fn ask(&self, request: u32, payload: &[u8]) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        self.say(request, 0, payload, &[])?;
        self.answer()
    }

    fn say(&self, request: u32, flags: u32, payload: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let sent = send(&self.0, &message(request, flags, payload), files);
        if sent { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }

    fn answer(&self) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut file = None;
        let mut header = [0; 12];
        self.fill(&mut header, &mut file)?;
        let mut payload = vec![0; header[8].into()];
        self.fill(&mut payload, &mut file)?;
        Ok((payload, file))
    }

    fn fill(&self, mut bytes: &mut [u8], file: &mut Option<OwnedFd>) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let got = recvmsg(&self.0, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(mut files) = message {
                    *file = files.next().or(file.take());
                }
            }
            bytes = &mut bytes[got..];
        }
        Ok(())
    }

    /// Negotiates these features and all protocol features.
    pub(crate) fn agree(&self, features: u64) -> io::Result<()> {
        let (offered, _) = self.ask(15, &[])?;
        self.say(16, 0, &offered, &[])?;
        self.tell(3, &[], &[])?;
        self.tell(2, &u64s(&[features]), &[])
    }

    pub(crate) fn memory(&self, guest: &MockGuest) -> io::Result<()> {
        let region = guest.region();
        let table = u64s(&[1, region.guest, region.len, region.user, region.offset]);
        self.tell(5, &table, &[guest.file().as_fd()])
    }

    /// Sets up a driver's ring from its start, which is polled and never called.
    pub(crate) fn ring(&self, ring: u32, driver: &MockDriver) -> io::Result<()> {
        let setup = driver.setup();
        self.tell(8, &u32s(&[ring, setup.size.into()]), &[])?;
        self.tell(10, &u32s(&[ring, setup.base.available.into()]), &[])?;
        self.tell(9, &addresses(ring, driver, 0, 0), &[])?;
        self.tell(12, &u64s(&[ring.into()]), &[event().as_fd()])?;
        self.tell(18, &u32s(&[ring, 1]), &[])
    }
}
