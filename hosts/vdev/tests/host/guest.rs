//! A minimal guest: it only speaks the wire protocol.
#![allow(dead_code, reason = "each test file uses a part")]

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use telpher_vdev::tree::Errno;
use telpher_vdev_wire::VERSION;
use telpher_vdev_wire::message::{Kind, MAX_PAYLOAD, Opened, Reply, Report, Request};
use zerocopy::{FromBytes, IntoBytes};

/// A guest in one address space.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) socket: PathBuf,
    pub(crate) space: u64,
}

/// An open file as a guest receives it.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) opened: Opened,
    /// The file's descriptor; `None` after an attach.
    pub(crate) file: Option<OwnedFd>,
    pub(crate) lease: OwnedFd,
    pub(crate) board: OwnedFd,
    pub(crate) rows: OwnedFd,
}

impl Guest {
    pub(crate) fn connect(&self) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let patience = Some(Duration::from_secs(60));
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, patience).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.socket).unwrap()).unwrap();
        socket
    }

    /// Sends raw bytes on a new connection and receives the reply; `None` if there is none.
    pub(crate) fn raw(&self, packet: &[u8]) -> Option<(Reply, Vec<u8>, Vec<OwnedFd>)> {
        let socket = self.connect();
        rustix::net::send(&socket, packet, SendFlags::NOSIGNAL).unwrap();
        receive(&socket)
    }

    pub(crate) fn ask(
        &self,
        kind: Kind,
        open: u64,
        argument: u64,
        path: &str,
        data: &[u8],
    ) -> Result<(u64, Vec<u8>, Vec<OwnedFd>), Errno> {
        let packet = packet(self.space, kind, open, argument, path, data);
        let (reply, data, descriptors) = self.raw(&packet).expect("the host answers");
        match reply.errno {
            0 => Ok((reply.value, data, descriptors)),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }

    /// Asks with a descriptor in the request.
    pub(crate) fn ask_with(
        &self,
        kind: Kind,
        open: u64,
        data: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(u64, Vec<u8>, Vec<OwnedFd>), Errno> {
        let socket = self.connect();
        let packet = packet(self.space, kind, open, 0, "", data);
        send(&socket, &packet, descriptors).unwrap();
        let (reply, data, descriptors) = receive(&socket).expect("the host answers");
        match reply.errno {
            0 => Ok((reply.value, data, descriptors)),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }

    /// Sends a request, in a number of packets of which the last one carries descriptors, and does not wait for the
    /// reply.
    pub(crate) fn send_with(
        &self,
        kind: Kind,
        open: u64,
        data: &[u8],
        descriptors: &[BorrowedFd<'_>],
        packets: usize,
    ) -> OwnedFd {
        let socket = self.connect();
        let packet = packet(self.space, kind, open, 0, "", data);
        for number in 1..=packets {
            let descriptors = if number == packets { descriptors } else { &[] };
            // The host may have answered the first packet and closed the connection.
            let _ = send(&socket, &packet, descriptors);
        }
        socket
    }

    pub(crate) fn show(&self, path: &str) -> Result<String, Errno> {
        self.ask(Kind::Show, 0, 0, path, &[]).map(|(_, text, _)| String::from_utf8(text).unwrap())
    }

    pub(crate) fn store(&self, path: &str, text: &str) -> Result<u64, Errno> {
        self.ask(Kind::Store, 0, 0, path, text.as_bytes()).map(|(taken, ..)| taken)
    }

    pub(crate) fn open(&self, path: &str) -> Result<Opening, Errno> {
        let flags = rustix::fs::OFlags::RDWR.bits().into();
        self.ask(Kind::Open, 0, flags, path, &[]).map(|(_, data, descriptors)| opening(&data, descriptors, true))
    }

    pub(crate) fn attach(&self, open: u64) -> Result<Opening, Errno> {
        self.ask(Kind::Attach, open, 0, "", &[]).map(|(_, data, descriptors)| opening(&data, descriptors, false))
    }

    pub(crate) fn report(&self, open: u64, report: &Report) -> Result<(), Errno> {
        self.ask(Kind::Report, open, 0, "", report.as_bytes()).map(drop)
    }
}

pub(crate) fn packet(space: u64, kind: Kind, open: u64, argument: u64, path: &str, data: &[u8]) -> Vec<u8> {
    let head = Request {
        version: VERSION,
        kind: kind as u32,
        space,
        open,
        argument,
        path_len: path.len().try_into().unwrap(),
        data_len: data.len().try_into().unwrap(),
    };
    [head.as_bytes(), path.as_bytes(), data].concat()
}

fn opening(data: &[u8], descriptors: Vec<OwnedFd>, with_file: bool) -> Opening {
    let mut descriptors = descriptors.into_iter();
    let file = if with_file { Some(descriptors.next().unwrap()) } else { None };
    let [lease, board, rows] = [(); 3].map(|()| descriptors.next().unwrap());
    assert!(descriptors.next().is_none());
    Opening { opened: Opened::read_from_bytes(data).unwrap(), file, lease, board, rows }
}

pub(crate) fn receive(socket: &OwnedFd) -> Option<(Reply, Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; size_of::<Reply>() + MAX_PAYLOAD + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut bytes)];
    let message = rustix::net::recvmsg(socket, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?;
    let descriptors = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    let (reply, data) = Reply::read_from_prefix(&bytes[..message.bytes]).ok()?;
    assert_eq!((reply.version, reply.data_len as usize), (VERSION, data.len()));
    Some((reply, data.to_vec(), descriptors))
}

/// A directory that is removed when dropped.
#[derive(Debug)]
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = Path::new("/dev/shm").join(format!("test-telpher-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Maps a received file for as long as the test runs.
#[allow(unsafe_code, reason = "maps file memory as a guest does")]
pub(crate) fn map<T: Sync>(file: &OwnedFd) -> &'static T {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    // SAFETY: a new mapping at an address that the kernel picks, of a file sealed at this size, never unmapped; the
    // callers name types of atomics, for which every byte pattern is valid.
    unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let base = mmap(std::ptr::null_mut(), size_of::<T>(), protection, MapFlags::SHARED, file, 0).unwrap();
        &*base.cast::<T>()
    }
}

fn send(socket: &OwnedFd, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut ancillary, SendFlags::NOSIGNAL).map(drop)
}

/// Sends descriptors over a socket of the host, whether it takes them or not.
pub(crate) fn send_descriptors(socket: &OwnedFd, descriptors: &[BorrowedFd<'_>]) {
    let _ = send(socket, b"x", descriptors);
}
