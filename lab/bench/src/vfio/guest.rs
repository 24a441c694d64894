//! A guest's side of vfio-user, as far as a driver needs it, and the server that it connects to.
//!
//! Source of the layouts: libvfio-user, `include/vfio-user.h`.

use crate::BenchError;
use crate::folder::Folder;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use telpher_abi::registers::{CommandCode, GrpCfg, Offsets, WqCfg, offset};
use telpher_abi::{Descriptor, Status};
use telpher_mem::{SharedMapping, SharedWords64};

/// Bytes of a guest's memory, at guest address 0.
const MEMORY: u64 = 16 << 20;
/// How long anything may take. Source: chosen; far longer than a busy machine needs.
const LIMIT: Duration = Duration::from_secs(60);

/// Guest addresses of what is in the memory.
pub(super) mod at {
    /// Completion records, 32 bytes each.
    pub(crate) const RECORDS: u64 = 0x1000;
    /// A batch's members, and their records.
    pub(crate) const LIST: u64 = 0x1_0000;
    /// What is copied.
    pub(crate) const SRC: u64 = 0x40_0000;
    /// Where it is copied to.
    pub(crate) const DST: u64 = 0x80_0000;
}

/// Commands of vfio-user.
const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
/// Numbers of regions.
const BAR0: u32 = 0;
const BAR2: u32 = 2;
const CONFIG: u32 = 7;
/// Bytes of a message's header.
pub(super) const HEADER: usize = 16;
/// Bytes of the fields of a region access.
pub(super) const ACCESS: usize = 16;

/// A `telpher vfio` that is ended when this is dropped.
pub(super) struct Server {
    child: Child,
    folder: Folder,
}

impl Server {
    /// Starts a server with a socket for each text, which are the options behind its path.
    pub(super) fn start(machines: &[&str], words: &[&str]) -> Result<Server, BenchError> {
        let folder = Folder::new()?;
        let telpher = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(telpher);
        command.args(["vfio", "--quiet"]).args(words).stdin(Stdio::null()).stdout(Stdio::null());
        for (number, options) in machines.iter().enumerate() {
            command.arg("--socket").arg(format!("{}{options}", socket(&folder, number).display()));
        }
        Ok(Server { child: command.spawn().map_err(failed)?, folder })
    }

    /// Connects a guest to machine `number`, with queue 0 enabled.
    pub(super) fn guest(&mut self, number: usize) -> Result<Guest, BenchError> {
        let path = socket(&self.folder, number);
        let started = Instant::now();
        loop {
            match UnixStream::connect(&path) {
                Ok(stream) => return Guest::start(stream).map_err(failed),
                Err(error) if started.elapsed() > LIMIT => return Err(failed(error)),
                // The server has not created its socket yet.
                Err(_) => match self.child.try_wait().map_err(failed)? {
                    Some(status) => return Err(failed(io::Error::other(format!("it has ended: {status}")))),
                    None => std::thread::sleep(Duration::from_millis(1)),
                },
            }
        }
    }
}

impl Server {
    /// How long the engine thread of machine `number` has been ready to run without a processor. Source:
    /// Documentation/scheduler/sched-stats.rst, `/proc/<pid>/schedstat`.
    pub(super) fn waited_for_processor(&self, number: usize) -> Result<Duration, BenchError> {
        let name = format!("vfio-engines-{number}");
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).map_err(failed)?;
        let its = |task: &fs::DirEntry| {
            fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        let missing = || failed(io::Error::other(format!("it has no thread {name}")));
        let task = tasks.filter_map(Result::ok).find(its).ok_or_else(missing)?;
        let text = fs::read_to_string(task.path().join("schedstat")).map_err(failed)?;
        let waited = text.split(' ').nth(1).and_then(|waited| waited.parse().ok());
        let unknown = || failed(io::Error::other(format!("schedstat of {name} has '{}'", text.trim())));
        waited.map(Duration::from_nanos).ok_or_else(unknown)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn socket(folder: &Folder, number: usize) -> PathBuf {
    folder.file(&format!("machine{number}"))
}

pub(super) fn failed(source: io::Error) -> BenchError {
    BenchError::Program { what: "telpher vfio".into(), source }
}

/// A connected guest with one dedicated queue of 32 entries and one engine.
pub(super) struct Guest {
    stream: UnixStream,
    words: SharedWords64,
    slot: u64,
    reply: Vec<u8>,
    /// Keeps the memory's file open.
    _memory: OwnedFd,
}

/// The entries of a guest's queue.
pub(super) const ENTRIES: u64 = 32;

impl Guest {
    fn start(stream: UnixStream) -> io::Result<Guest> {
        stream.set_read_timeout(Some(LIMIT))?;
        let memory = memfd_create("telpher-bench-guest", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, MEMORY)?;
        let mapping = SharedMapping::map(memory.as_fd(), 0, MEMORY).map_err(io::Error::other)?;
        let count = usize::try_from(MEMORY / 8).unwrap_or_default();
        let words = SharedWords64::new(&Arc::new(mapping), 0, count).ok_or(io::ErrorKind::InvalidInput)?;
        let file = memory.try_clone()?;
        let mut guest = Guest { stream, words, slot: 0, reply: Vec::new(), _memory: memory };
        guest.call(VERSION, &[&[0; 4]], &[])?;
        let map = [u32s(&[32, 3]), u64s(&[0, 0, MEMORY])].concat();
        guest.call(DMA_MAP, &[&map], &[file.as_fd()])?;
        // Memory space and bus master.
        guest.write(CONFIG, 4, &[6, 0])?;
        guest.configure()?;
        Ok(guest)
    }

    fn configure(&mut self) -> io::Result<()> {
        let offsets = Offsets([self.register(offset::OFFSETS)?, 0]);
        let queue = WqCfg::default()
            .with_size(u16::try_from(ENTRIES).unwrap_or(u16::MAX))
            .with_dedicated(true)
            .with_priority(10)
            .with_max_transfer_shift(21)
            .with_max_batch_shift(5);
        let group = GrpCfg::default().with_wqs(1).with_engines(1).with_read_buffers_allowed(96);
        for (table, words) in [(offsets.wqcfg(), &queue.0[..4]), (offsets.grpcfg(), &group.0[..])] {
            for (at, word) in (u64::from(table) * 0x100..).step_by(8).zip(words) {
                self.write(BAR0, at, &word.to_le_bytes())?;
            }
        }
        for code in [CommandCode::EnableDevice, CommandCode::EnableWq] {
            self.write(BAR0, offset::CMD, &(u32::from(code.code()) << 20).to_le_bytes())?;
            let status = self.register(offset::CMDSTATUS)?;
            if status & 0xffff_ffff != 0 {
                return Err(io::Error::other(format!("{} failed: {status:#x}", code.meaning())));
            }
        }
        Ok(())
    }

    fn call(&mut self, command: u16, body: &[&[u8]], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let len = body.iter().map(|part| part.len()).sum::<usize>() + HEADER;
        let mut message = Vec::with_capacity(len);
        message.extend([1, 0]);
        message.extend(command.to_le_bytes());
        message.extend(u32s(&[u32::try_from(len).unwrap_or(u32::MAX), 0, 0]));
        body.iter().for_each(|part| message.extend(*part));
        if files.is_empty() {
            self.stream.write_all(&message)?;
        } else {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(files));
            // Shorter than any socket's buffer, so it is sent completely.
            sendmsg(&self.stream, &[IoSlice::new(&message)], &mut ancillary, SendFlags::NOSIGNAL)?;
        }
        let mut header = [0; HEADER];
        self.stream.read_exact(&mut header)?;
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        self.reply.resize(usize::try_from(word(4)).unwrap_or_default().saturating_sub(HEADER), 0);
        self.stream.read_exact(&mut self.reply)?;
        match word(12) {
            0 => Ok(()),
            errno => Err(io::Error::other(format!("the server refused command {command}: error {errno}"))),
        }
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let fields = [u64s(&[offset]), u32s(&[region, count])].concat();
        self.call(REGION_WRITE, &[&fields, data], &[])
    }

    fn register(&mut self, offset: u64) -> io::Result<u64> {
        self.call(REGION_READ, &[&u64s(&[offset]), &u32s(&[BAR0, 8])], &[])?;
        let value = self.reply.get(ACCESS..).and_then(|data| data.try_into().ok());
        Ok(u64::from_le_bytes(value.ok_or(io::ErrorKind::InvalidData)?))
    }

    /// Submits a descriptor with one store of 64 bytes, and waits for the reply to the store.
    pub(super) fn submit(&mut self, descriptor: &Descriptor) -> io::Result<()> {
        let at = 0x1000 + self.slot;
        self.slot = (self.slot + 64) % 0x1000;
        self.write(BAR2, at, &descriptor.to_bytes())
    }

    /// Clears a completion record.
    pub(super) fn clear(&self, record: u64) {
        self.words[index(record)].store(0, Ordering::Relaxed);
    }

    /// Returns the status of a completion record, 0 while it is not written.
    pub(super) fn status(&self, record: u64) -> u8 {
        // Acquire: the device writes the status last.
        self.words[index(record)].load(Ordering::Acquire).to_le_bytes()[0]
    }

    /// Waits for a record that `pause` is called until, and checks its status.
    pub(super) fn wait(&self, record: u64, mut pause: impl FnMut()) -> io::Result<()> {
        let start = Instant::now();
        loop {
            match self.status(record) {
                0 if start.elapsed() > LIMIT => return Err(io::ErrorKind::TimedOut.into()),
                0 => pause(),
                status if status & 0x3f == Status::Success.code() => return Ok(()),
                status => return Err(io::Error::other(format!("a descriptor ended with status {status:#x}"))),
            }
        }
    }

    /// Writes a list of copies of `size` bytes each, and returns the Batch of it.
    pub(super) fn batch(&self, members: u32, size: u32) -> Descriptor {
        for n in 0..u64::from(members) {
            let copy = Descriptor::memory_move(at::SRC, at::DST, size);
            let first = index(at::LIST + n * 64);
            self.words[first..first + 8].iter().zip(copy.0).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        }
        Descriptor::batch(at::LIST, members)
    }

    /// Fills the source, and clears the destination.
    pub(super) fn prepare(&self, size: u32) {
        for n in 0..u64::from(size / 8) {
            self.words[index(at::SRC + n * 8)].store(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), Ordering::Relaxed);
            self.words[index(at::DST + n * 8)].store(0, Ordering::Relaxed);
        }
    }

    /// Checks that the destination has the source's bytes.
    pub(super) fn check(&self, size: u32) -> Result<(), BenchError> {
        let word = |at: u64| self.words[index(at)].load(Ordering::Relaxed);
        match (0..u64::from(size / 8)).find(|n| word(at::SRC + n * 8) != word(at::DST + n * 8)) {
            None => Ok(()),
            Some(n) => {
                let (op, route) = ("move".into(), "telpher vfio".into());
                Err(BenchError::Mismatch { op, route, size: size.into(), offset: n * 8 })
            }
        }
    }
}

/// The word at a guest address.
fn index(address: u64) -> usize {
    usize::try_from(address / 8).unwrap_or(usize::MAX)
}

fn u32s(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn u64s(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
