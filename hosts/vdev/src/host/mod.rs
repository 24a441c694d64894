//! The virtual device's host: the one who knows the driver's state, keeps its open files and answers those who ask.
//!
//! ```text
//! guests ──socket──► server ─┐             ┌─► kernel     what the driver says
//! file system (FUSE) ────────┴──► Host ────┼─► files      open files: lease, board, the host's end of the guest's descriptor
//!                                          ├─► execute    write() of programs without the preloaded part
//!                                          └─► Watcher, Listener   the shadow tree; trace and summary
//! ```
//!
//! Threads: the server's answers guests and sees files closed, one takes traces out of the leases if any are written; the file
//! system has its own. Locks are taken in the order leaving, kernel, files, and none is held while descriptors are executed.

mod execute;
mod files;
mod identity;
mod packet;
mod peer;
mod server;
mod share;
mod tally;
mod tracer;
mod until_killed;

pub use server::Server;

use crate::kernel::Kernel;
use crate::tree::{Caller, Entry, Errno};
use execute::Executor;
use files::{OpenFile, QueueBoard, lock};
use identity::Identity;
use rustix::event::epoll;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use telpher_abi::{Descriptor, Opcode};
use telpher_model::Response;
use telpher_vdev_wire::lease::{Statistics, TraceEntry};
use telpher_vdev_wire::message::{CHECK, Inject, Opened, Report, ReportKind, STRICT, THREADED, TRACE};
use telpher_vdev_wire::name::NodeName;

/// How open files behave, as `telpher run` was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Behaviour {
    /// A page that is not present faults when block on fault is clear.
    pub strict: bool,
    /// Engines run on a thread of their own in the submitting process.
    pub threaded: bool,
    /// Every descriptor and record is handed to the [`Listener`].
    pub trace: bool,
    /// Misuse is looked for and handed to the [`Listener`].
    pub check: bool,
    /// What shall go wrong.
    pub inject: Inject,
}

impl Behaviour {
    /// The bits of [`Opened::flags`] that are not the driver's.
    fn flags(&self) -> u32 {
        let bits = [(self.strict, STRICT), (self.threaded, THREADED), (self.trace, TRACE), (self.check, CHECK)];
        bits.iter().filter(|(on, _)| *on).fold(0, |flags, (_, bit)| flags | bit)
    }
}

/// Which open file something is told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileInfo {
    /// Number of the open file, unique in the run.
    pub open: u64,
    /// Device, `dsaM`.
    pub device: u32,
    /// Queue, `wqM.N`.
    pub wq: u32,
    /// Process that opened it.
    pub process: u32,
    /// Its address space identifier.
    pub pasid: u32,
    /// The queue is dedicated.
    pub dedicated: bool,
}

/// Who hears what open files have done: the trace and the summary. Called by the host's threads, one file at a time.
pub trait Listener: Send + Sync + Debug {
    /// A queue was opened.
    fn opened(&self, file: &FileInfo);
    /// The next entry of a file's trace.
    fn entry(&self, file: &FileInfo, entry: &TraceEntry);
    /// The file is gone; these are its final numbers. The last call for the file.
    fn released(&self, file: &FileInfo, statistics: &Statistics);
}

/// Who keeps a copy of the tree: told of changes before whoever made them goes on.
pub trait Watcher: Send + Debug {
    /// The entries of these directories, sorted, have changed; some may be gone.
    fn changed(&mut self, kernel: &Kernel, directories: &[String]);
}

/// The device as the run's processes share it. All methods may be called by any thread.
#[derive(Debug)]
pub struct Host {
    behaviour: Behaviour,
    listener: Arc<dyn Listener>,
    kernel: Mutex<Kernel>,
    files: Mutex<Files>,
    /// Shared by those who release a file until all of it is told; alone has it who wants to have heard everything.
    leaving: RwLock<()>,
    watchers: Mutex<Vec<Box<dyn Watcher>>>,
    alarms: Mutex<Vec<Alarm>>,
    /// The host's ends of the preloaded view's files: what has hung up was closed for the last time.
    ends: OwnedFd,
    /// Prefix of the names by which a guest recognises a file that it inherited.
    name: String,
}

/// Has those who wait for a device's errors look again.
struct Alarm(Box<dyn Fn() + Send>);

impl Debug for Alarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Alarm")
    }
}

/// Open files by number, and a board for every queue that ever had one.
#[derive(Debug, Default)]
struct Files {
    open: BTreeMap<u64, Arc<OpenFile>>,
    boards: BTreeMap<(u32, u32), Arc<QueueBoard>>,
}

impl Host {
    /// A host for a driver. `name` is the run's, unique on this machine: each file's socket has a [`NodeName`] in the
    /// abstract namespace.
    ///
    /// # Errors
    /// For want of descriptors.
    pub fn new(
        kernel: Kernel,
        behaviour: Behaviour,
        listener: Arc<dyn Listener>,
        name: &str,
    ) -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Host {
            behaviour,
            listener,
            kernel: Mutex::new(kernel),
            files: Mutex::default(),
            leaving: RwLock::default(),
            watchers: Mutex::default(),
            alarms: Mutex::default(),
            ends: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            name: name.into(),
        }))
    }

    /// Adds somebody who keeps a copy of the tree; hears of every change from now on.
    pub fn watch(&self, watcher: Box<dyn Watcher>) {
        lock(&self.watchers).push(watcher);
    }

    /// Calls somebody whenever a device has reported something: [`poll_ready`](Host::poll_ready) may answer anew.
    pub fn on_report(&self, alarm: impl Fn() + Send + 'static) {
        lock(&self.alarms).push(Alarm(Box::new(alarm)));
    }

    /// Looks at the driver's state as a whole, with nothing changing meanwhile.
    pub fn with_kernel<T>(&self, look: impl FnOnce(&Kernel) -> T) -> T {
        look(&lock(&self.kernel))
    }

    /// What stands at an absolute path that is free of links, `.` and `..`.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR: nothing of ours.
    pub fn entry(&self, path: &str) -> Result<Entry, Errno> {
        lock(&self.kernel).entry(path)
    }

    /// Our entries of a directory, also of one that the machine has too (see [`merged`](Host::merged)).
    ///
    /// # Errors
    /// As for [`entry`](Host::entry).
    pub fn list(&self, path: &str) -> Result<Vec<(String, Entry)>, Errno> {
        lock(&self.kernel).list(path)
    }

    /// The topmost paths that are ours.
    #[must_use]
    pub fn roots(&self) -> Vec<String> {
        lock(&self.kernel).roots()
    }

    /// Directories of the machine that gain entries.
    #[must_use]
    pub fn merged(&self) -> Vec<String> {
        lock(&self.kernel).merged()
    }

    /// Changes whenever an answer of `entry` or `list` does.
    #[must_use]
    pub fn structure(&self) -> u64 {
        lock(&self.kernel).structure()
    }

    /// An attribute's text, as one read(2) from its beginning.
    ///
    /// # Errors
    /// The driver's.
    pub fn show(&self, path: &str) -> Result<Vec<u8>, Errno> {
        let mut kernel = lock(&self.kernel);
        if let Some((device, wq)) = path.strip_suffix("/occupancy").and_then(queue_of) {
            let waiting = lock(&self.files).boards.get(&(device, wq)).map_or(0, |board| board.occupancy());
            kernel.set_occupancy(device, wq, waiting);
        }
        kernel.show(path)
    }

    /// One write(2) to an attribute; returns the bytes taken.
    ///
    /// # Errors
    /// The driver's.
    pub fn store(&self, path: &str, data: &[u8]) -> Result<usize, Errno> {
        self.change(|kernel| kernel.store(path, data))
    }

    /// Bytes of a binary file; fewer than asked for at its end.
    ///
    /// # Errors
    /// The driver's.
    pub fn read_at(&self, path: &str, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let bytes = lock(&self.kernel).read_at(path, offset, into.len())?;
        let len = bytes.len().min(into.len());
        into[..len].copy_from_slice(&bytes[..len]);
        Ok(len)
    }

    /// Writes bytes of a binary file; returns how many were taken.
    ///
    /// # Errors
    /// The driver's.
    pub fn write_at(&self, path: &str, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        self.change(|kernel| kernel.write_at(path, offset, data))
    }

    /// Opens a queue's node for a process without a number for its address space: one that comes through the file system.
    /// `caller.process` may be any thread of it.
    ///
    /// # Errors
    /// The driver's: EBUSY, ENXIO, …; ESRCH if the process is not to be seen.
    pub fn open(&self, path: &str, caller: Caller) -> Result<Opened, Errno> {
        let identity = Identity::of(caller.process).ok_or(Errno::SRCH)?;
        let caller = Caller { process: identity.process, space: 0 };
        Ok(self.open_file(path, caller, Some(identity), None)?.opened)
    }

    /// The same for a guest; the second value is the file itself, whose last reference releases it.
    fn open_for_guest(&self, path: &str, caller: Caller) -> Result<(Arc<OpenFile>, OwnedFd), Errno> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let file = self.open_file(path, caller, None, Some(ours))?;
        let FileInfo { open, device, wq, .. } = file.info;
        let name = NodeName { open, device, wq }.to_text(&self.name);
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        let prepared = rustix::net::bind(&theirs, &name).and_then(|()| {
            let end = file.end.as_ref().ok_or(Errno::BADF)?;
            let interest = epoll::EventFlags::IN | epoll::EventFlags::HUP;
            epoll::add(&self.ends, end, epoll::EventData::new_u64(file.info.open), interest)
        });
        match prepared {
            Ok(()) => Ok((file, theirs)),
            Err(errno) => {
                self.release(file.info.open);
                Err(errno)
            }
        }
    }

    fn open_file(
        &self,
        path: &str,
        caller: Caller,
        identity: Option<Identity>,
        end: Option<OwnedFd>,
    ) -> Result<Arc<OpenFile>, Errno> {
        let file = self.change(|kernel| {
            let opened = kernel.open(path, caller)?;
            let open = opened.open;
            let file = self.make_file(kernel, opened, caller, identity, end);
            if file.is_err() {
                kernel.release(open);
            }
            file
        })?;
        self.listener.opened(&file.info);
        Ok(file)
    }

    fn make_file(
        &self,
        kernel: &Kernel,
        opened: Opened,
        caller: Caller,
        identity: Option<Identity>,
        end: Option<OwnedFd>,
    ) -> Result<Arc<OpenFile>, Errno> {
        let mut files = lock(&self.files);
        let key = (opened.device, opened.wq);
        let board = match files.boards.get(&key) {
            Some(board) => Arc::clone(board),
            None => {
                let enabled = kernel.queues().contains(&(key.0, key.1, true));
                let board = Arc::new(QueueBoard::new(enabled)?);
                files.boards.insert(key, Arc::clone(&board));
                board
            }
        };
        // More files than a board has rows: as when the system's table of files is full.
        let row = board.take_row().ok_or(Errno::NFILE)?;
        let flags = opened.flags | self.behaviour.flags();
        let opened = Opened { flags, row, inject: self.behaviour.inject, ..opened };
        let file = OpenFile::new(opened, caller, Arc::clone(&board), identity, end).map(Arc::new);
        match &file {
            Ok(file) => drop(files.open.insert(opened.open, Arc::clone(file))),
            Err(_) => board.give_row(row),
        }
        file
    }

    /// Joins an open file for a guest, which then maps it or writes to it.
    fn attach(&self, open: u64, caller: Caller) -> Result<Arc<OpenFile>, Errno> {
        let file = self.file(open)?;
        // Who opened it without a number is known by its memory map; what has executed another program since is another.
        if file.identity.is_some() && file.identity != Identity::of(caller.process) {
            return Err(Errno::PERM);
        }
        lock(&self.kernel).attach(open, caller)?;
        file.join(caller.space);
        Ok(file)
    }

    fn file(&self, open: u64) -> Result<Arc<OpenFile>, Errno> {
        lock(&self.files).open.get(&open).cloned().ok_or(Errno::BADF)
    }

    fn open_files(&self) -> Vec<Arc<OpenFile>> {
        lock(&self.files).open.values().cloned().collect()
    }

    /// The last reference to an open file is gone. A number that is no open file's is passed over.
    pub fn release(&self, open: u64) {
        let _leaving = self.leaving.read().unwrap_or_else(PoisonError::into_inner);
        let file = self.change(|kernel| {
            let file = lock(&self.files).open.remove(&open)?;
            if let Some(end) = &file.end {
                // Not added if its opening failed half way.
                let _ = epoll::delete(&self.ends, end);
            }
            kernel.release(open);
            file.board.give_row(file.opened.row);
            Some(file)
        });
        if let Some(file) = file {
            file.take_trace(&*self.listener, true);
            self.listener.released(&file.info, &file.lease.statistics);
        }
    }

    /// Releases all files, at the end of the run. When this returns, the listener has heard all there is: also of files that other
    /// threads are releasing, such as the file system's, which hears of a close when the process may be gone already.
    pub fn release_all(&self) {
        for file in self.open_files() {
            self.release(file.info.open);
        }
        drop(self.leaving.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Releases the preloaded view's files that were closed for the last time until now.
    ///
    /// Asked before every request: whoever closes a dedicated queue and opens it again must not meet itself.
    fn release_closed(&self) {
        let mut released = true;
        // Bounded by what hangs up: what else arrives is looked at once a round.
        while released {
            released = false;
            let mut events = Vec::with_capacity(64);
            let now = rustix::time::Timespec::default();
            let Ok(count) = epoll::wait(&self.ends, rustix::buffer::spare_capacity(&mut events), Some(&now)) else {
                return;
            };
            if count == 0 {
                return;
            }
            for event in &events {
                let (flags, open) = (event.flags, event.data.u64());
                if flags.contains(epoll::EventFlags::HUP) {
                    self.release(open);
                    released = true;
                } else if let Ok(OpenFile { end: Some(end), .. }) = self.file(open).as_deref() {
                    // Written past the guest, by somebody to whom it is no queue: taken, so that he does not block. One who
                    // has shut his side down has nothing to say any more; that he has gone is told all the same.
                    if matches!(rustix::net::recv(end, &mut [0; 4096], RecvFlags::DONTWAIT), Ok((_, 0))) {
                        let data = epoll::EventData::new_u64(open);
                        let _ = epoll::modify(&self.ends, end, data, epoll::EventFlags::empty());
                    }
                }
            }
        }
    }

    /// write(2) to an open node by a process that has no preloaded part: the descriptors are executed here, in that process's
    /// memory, before this returns. Returns the bytes submitted. `caller.process` may be any thread of the process.
    ///
    /// # Errors
    /// The driver's: EPERM, EINVAL, EAGAIN, EFAULT.
    pub fn write(&self, open: u64, caller: Caller, bytes: &[u8]) -> Result<usize, Errno> {
        let file = self.file(open)?;
        let identity = Identity::of(caller.process).ok_or(Errno::SRCH)?;
        if file.identity != Some(identity) {
            return Err(Errno::PERM);
        }
        let thread = caller.process;
        // It is the opener's address space, whatever number a guest may have given it since.
        let caller = Caller { process: identity.process, space: file.space() };
        lock(&self.kernel).may_write(open, caller, false)?;
        let descriptors = bytes.as_chunks::<64>().0;
        if descriptors.is_empty() {
            return Ok(0);
        }
        let mut executor = lock(&file.executor);
        let executor = match &mut *executor {
            Some(executor) => executor,
            none => none.insert(Executor::start(&file, caller.process)?),
        };
        executor.serve(thread);
        let mut written = 0;
        for bytes in descriptors {
            // A thread that was killed waits here for its end.
            if executor.is_killed() {
                return Err(Errno::INTR);
            }
            let descriptor = Descriptor::from_bytes(bytes);
            match self.write_one(&file, caller, executor, descriptor) {
                Ok(()) => written += bytes.len(),
                Err(errno) if written == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(written)
    }

    /// Source: K612 cdev.c, idxd_submit_user_descriptor().
    fn write_one(
        &self,
        file: &OpenFile,
        caller: Caller,
        executor: &Executor,
        descriptor: Descriptor,
    ) -> Result<(), Errno> {
        let batch = descriptor.opcode() == Opcode::Batch;
        lock(&self.kernel).may_write(file.info.open, caller, batch)?;
        if !descriptor.completion_address().is_multiple_of(32) {
            return Err(Errno::INVAL);
        }
        let tries = 1 + u64::from(file.opened.enqcmds_retries);
        let refused = (0..tries).all(|_| executor.submit(file, descriptor) == Response::Retry);
        executor.reports(|report| {
            if executor.is_killed() {
                // What ended for that reason is no error of the device.
                return;
            }
            // A file that was released meanwhile has nobody to tell.
            let _ = self.report(file.info.open, report);
        });
        if refused { Err(Errno::AGAIN) } else { Ok(()) }
    }

    /// True if poll(2) of an open node answers POLLIN: the device has latched an error.
    #[must_use]
    pub fn poll_ready(&self, open: u64) -> bool {
        self.file(open).is_ok_and(|file| lock(&self.kernel).poll_ready(file.info.device))
    }

    /// What a guest's device reports to the driver; that of a file which another address space has opened is not its
    /// own. No modelled device halts by itself: unless a halt was asked for, a guest that reports one is not believed,
    /// or one process could stop all others.
    fn report_of(&self, open: u64, space: u64, report: &Report) -> Result<(), Errno> {
        let file = self.file(open)?;
        let halt = report.kind == ReportKind::Halted as u32;
        if file.space() != space || (halt && self.behaviour.inject.halt_at == 0) {
            return Err(Errno::PERM);
        }
        self.report(open, &report.in_the_name_of(&file.opened))
    }

    /// What a device reports to the driver.
    ///
    /// # Errors
    /// The driver's.
    pub fn report(&self, open: u64, report: &Report) -> Result<(), Errno> {
        self.change(|kernel| kernel.report(open, report))?;
        // Without the driver's lock, since whoever is called asks back.
        lock(&self.alarms).iter().for_each(|Alarm(alarm)| alarm());
        Ok(())
    }

    /// Changes the driver's state, and tells everybody what has become of it before anybody goes on.
    fn change<T>(&self, change: impl FnOnce(&mut Kernel) -> T) -> T {
        let mut kernel = lock(&self.kernel);
        let result = change(&mut kernel);
        let files = lock(&self.files);
        if !files.boards.is_empty() {
            for (device, wq, enabled) in kernel.queues() {
                if let Some(board) = files.boards.get(&(device, wq)) {
                    board.set_enabled(enabled);
                }
            }
        }
        for file in files.open.values().filter(|file| kernel.poll_ready(file.info.device)) {
            file.tell_ready(kernel.alarms(file.info.device, file.info.wq));
        }
        drop(files);
        let changed = kernel.changed();
        if !changed.is_empty() {
            for watcher in lock(&self.watchers).iter_mut() {
                watcher.changed(&kernel, &changed);
            }
        }
        result
    }
}

/// Device and number of the queue that a path below /sys ends with.
fn queue_of(path: &str) -> Option<(u32, u32)> {
    let (device, wq) = path.rsplit('/').next()?.strip_prefix("wq")?.split_once('.')?;
    Some((device.parse().ok()?, wq.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_of_a_path_is_its_last_part() {
        assert_eq!(queue_of("/sys/devices/pci0000:6a/0000:6a:01.0/dsa0/wq0.12"), Some((0, 12)));
        assert_eq!(queue_of("/sys/bus/dsa/devices/wq3.1"), Some((3, 1)));
        for path in ["", "/", "/sys/wq", "/sys/wq1", "/sys/wq1.x", "/sys/dsa0"] {
            assert_eq!(queue_of(path), None, "{path}");
        }
    }
}
