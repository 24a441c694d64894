//! A test client: sends any message, valid or not, with layouts defined here independently of the server.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a test waits for something that has to happen.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) const VERSION: u16 = 1;
pub(crate) const DMA_MAP: u16 = 2;
pub(crate) const DMA_UNMAP: u16 = 3;
pub(crate) const DEVICE_INFO: u16 = 4;
pub(crate) const REGION_INFO: u16 = 5;
pub(crate) const IRQ_INFO: u16 = 7;
pub(crate) const SET_IRQS: u16 = 8;
pub(crate) const REGION_READ: u16 = 9;
pub(crate) const REGION_WRITE: u16 = 10;
pub(crate) const DMA_READ: u16 = 11;
pub(crate) const DEVICE_RESET: u16 = 13;

pub(crate) const BAR0: u32 = 0;
pub(crate) const BAR2: u32 = 2;
pub(crate) const CONFIG: u32 = 7;

/// A message as it came: number, command, flags, errno, body.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) id: u16,
    pub(crate) command: u16,
    pub(crate) flags: u32,
    pub(crate) errno: u32,
    pub(crate) body: Vec<u8>,
}

/// One connection to a server.
#[derive(Debug)]
pub(crate) struct Client {
    stream: UnixStream,
    id: u16,
    /// Commands of the server that came while a reply was awaited.
    commands: VecDeque<Message>,
}

pub(crate) fn u32s(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(crate) fn u64s(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Client {
    /// Connects, without a message.
    pub(crate) fn connect(path: &Path) -> Client {
        let start = Instant::now();
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(LIMIT)).unwrap();
                    return Client { stream, id: 0, commands: VecDeque::new() };
                }
                // The server may have its backlog full for a moment.
                Err(error) if start.elapsed() > LIMIT => panic!("cannot connect: {error}"),
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// Connects and negotiates.
    pub(crate) fn new(path: &Path) -> Client {
        let mut client = Client::connect(path);
        let body = [&[0, 0, 0, 0][..], b"{\"capabilities\":{\"max_msg_fds\":8}}\0"].concat();
        let answer = client.call(VERSION, &body, &[]).expect("versions");
        assert_eq!(answer[..4], [0; 4], "version 0.0");
        client
    }

    /// Sends bytes with files.
    pub(crate) fn send_raw(&mut self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), rustix::io::Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)));
        }
        let mut sent = 0;
        while sent < bytes.len() {
            sent += sendmsg(&self.stream, &[IoSlice::new(&bytes[sent..])], &mut ancillary, SendFlags::NOSIGNAL)?;
            ancillary.clear();
        }
        Ok(())
    }

    /// Sends a message; the flags are 0 for a command.
    pub(crate) fn send(&mut self, id: u16, command: u16, flags: u32, body: &[u8], files: &[BorrowedFd<'_>]) {
        let size = 16 + body.len() as u32;
        let header = [&id.to_le_bytes()[..], &command.to_le_bytes(), &u32s(&[size, flags, 0])].concat();
        self.send_raw(&[&header, body].concat(), files).expect("the server reads");
    }

    /// Receives a message; `None` if the server has closed the connection.
    pub(crate) fn receive(&mut self) -> Option<Message> {
        let mut header = [0; 16];
        if let Err(error) = self.stream.read_exact(&mut header) {
            assert!(matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset), "{error}");
            return None;
        }
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let mut body = vec![0; word(4) as usize - 16];
        self.stream.read_exact(&mut body).expect("a whole message");
        Some(Message { id: half(0), command: half(2), flags: word(8), errno: word(12), body })
    }

    /// Sends a command and returns the body of its reply, or the error number.
    pub(crate) fn call(&mut self, command: u16, body: &[u8], files: &[BorrowedFd<'_>]) -> Result<Vec<u8>, u32> {
        self.id = self.id.wrapping_add(1);
        let id = self.id;
        self.send(id, command, 0, body, files);
        let reply = loop {
            let message = self.receive().expect("a reply");
            if message.flags & 0xf == 1 {
                break message;
            }
            self.commands.push_back(message);
        };
        assert_eq!((reply.id, reply.command, reply.flags & 0xf), (id, command, 1));
        if reply.flags & 0x20 != 0 { Err(reply.errno) } else { Ok(reply.body) }
    }

    /// Waits for a command of the server.
    pub(crate) fn command(&mut self) -> Message {
        self.commands.pop_front().unwrap_or_else(|| self.receive().expect("a command"))
    }

    pub(crate) fn read<const N: usize>(&mut self, region: u32, offset: u64) -> [u8; N] {
        let body = [u64s(&[offset]), u32s(&[region, N as u32])].concat();
        let reply = self.call(REGION_READ, &body, &[]).expect("a read");
        assert_eq!(reply[..16], body);
        reply[16..].try_into().unwrap()
    }

    pub(crate) fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let fields = [u64s(&[offset]), u32s(&[region, data.len() as u32])].concat();
        let reply = self.call(REGION_WRITE, &[&fields, data].concat(), &[]).expect("a write");
        assert_eq!(reply, fields);
    }

    pub(crate) fn register(&mut self, offset: u64) -> u32 {
        u32::from_le_bytes(self.read(BAR0, offset))
    }

    /// Reads a register until it has what the test waits for.
    pub(crate) fn wait_for_register(&mut self, offset: u64, is_reached: impl Fn(u32) -> bool) {
        let start = Instant::now();
        loop {
            let value = self.register(offset);
            if is_reached(value) {
                return;
            }
            assert!(start.elapsed() < LIMIT, "register {offset:#x} stays {value:#x}");
        }
    }

    pub(crate) fn set_register(&mut self, offset: u64, value: u32) {
        self.write(BAR0, offset, &value.to_le_bytes());
    }

    /// Maps a range of guest addresses.
    pub(crate) fn map(&mut self, address: u64, len: u64, file: Option<BorrowedFd<'_>>) -> Result<(), u32> {
        let body = [u32s(&[32, 3]), u64s(&[0, address, len])].concat();
        let files: Vec<_> = file.into_iter().collect();
        self.call(DMA_MAP, &body, &files).map(drop)
    }

    pub(crate) fn unmap(&mut self, address: u64, len: u64) -> Result<(), u32> {
        let body = [u32s(&[24, 0]), u64s(&[address, len])].concat();
        self.call(DMA_UNMAP, &body, &[]).map(|reply| assert_eq!(reply, body))
    }

    /// Sets eventfds of MSI-X vectors from `start` on.
    pub(crate) fn set_eventfds(&mut self, start: u32, eventfds: &[OwnedFd]) -> Result<(), u32> {
        let body = u32s(&[20, 0x24, 2, start, eventfds.len() as u32]);
        let files: Vec<_> = eventfds.iter().map(OwnedFd::as_fd).collect();
        self.call(SET_IRQS, &body, &files).map(drop)
    }

    pub(crate) fn disable_vectors(&mut self) {
        self.call(SET_IRQS, &u32s(&[20, 0x21, 2, 0, 0]), &[]).unwrap();
    }
}

/// Guest memory: a file, of which each test maps what it wants.
#[derive(Debug)]
pub(crate) struct Memory(File);

impl Memory {
    pub(crate) fn new(len: u64) -> Memory {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, len).unwrap();
        Memory(file.into())
    }

    /// Memory in a file that exists.
    pub(crate) fn of(file: OwnedFd) -> Memory {
        Memory(file.into())
    }

    pub(crate) fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    pub(crate) fn put(&self, at: u64, bytes: &[u8]) {
        self.0.write_all_at(bytes, at).unwrap();
    }

    /// Waits until a completion record has a status, and returns it.
    pub(crate) fn status(&self, record: u64) -> u8 {
        let start = Instant::now();
        loop {
            match self.get(record, 1)[0] {
                0 if start.elapsed() > LIMIT => panic!("no record at {record:#x}"),
                0 => std::thread::yield_now(),
                status => return status,
            }
        }
    }
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(crate) fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK).unwrap()
}

/// Waits for an eventfd and takes its count.
pub(crate) fn wait_for(event: &OwnedFd) {
    let limit = Timespec::try_from(LIMIT).unwrap();
    let ready = poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&limit)).unwrap();
    assert_eq!(ready, 1, "no interrupt");
    assert!(is_signalled(event));
}

/// Takes the count of an eventfd, if there is one.
pub(crate) fn is_signalled(event: &OwnedFd) -> bool {
    rustix::io::read(event, &mut [0; 8]).is_ok()
}
