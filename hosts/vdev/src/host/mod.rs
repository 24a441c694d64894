//! The virtual device's host: owns the driver's state, keeps its open files and answers requests.
//!
//! ```text
//! guests ──socket──► server ─┐             ┌─► kernel     the driver's state and answers
//! file system (FUSE) ────────┴──► Host ────┼─► files      open files: shared memory, the guests' sockets
//!                                          ├─► execute    write() of programs without a guest
//!                                          ├─► perf_calls, perf   events of perf_event_open()
//!                                          ├─► window_calls, windows   windows between processes
//!                                          ├─► closer     closes what untrusted processes have sent
//!                                          └─► Watcher, Listener   the shadow tree; trace and summary
//! ```
//!
//! Threads: the server's thread answers guests and detects closed files; each request about a window has its own
//! thread. If traces are written, another thread reads them from the files' shared memory. The file system has its own
//! threads. Lock order: leaving, perf, windows, kernel, files, published. No lock is held while descriptors are
//! executed.

mod closer;
mod execute;
mod files;
mod identity;
mod listener;
mod packet;
mod perf;
mod perf_calls;
mod published;
mod reply;
mod requests;
mod server;
mod share;
mod tally;
mod tracer;
mod until_killed;
mod window_calls;
mod windows;

pub use listener::{FileInfo, Listener};
pub use server::Server;

use crate::kernel::Kernel;
use crate::tree::{Caller, Entry, Errno};
use closer::Closer;
use execute::Executor;
use files::{OpenFile, QueueMemory, lock};
use identity::Identity;
use perf::PerfEvents;
use published::Publisher;
use requests::Requests;
use rustix::event::epoll;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use telpher_abi::{Descriptor, Opcode};
use telpher_model::Totals;
use telpher_portal::Offer;
use telpher_vdev_wire::message::{CHECK, Inject, Opened, Report, ReportKind, STRICT, THREADED, TRACE};
use telpher_vdev_wire::name::NodeName;
use windows::Windows;

/// How open files behave, from the options of `telpher run`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Behaviour {
    /// An access to an absent page faults when block on fault is clear.
    pub strict: bool,
    /// Engines run on a separate thread of the submitting process.
    pub threaded: bool,
    /// Every descriptor and completion record goes to the [`Listener`].
    pub trace: bool,
    /// Misuse is checked and goes to the [`Listener`].
    pub check: bool,
    /// The faults to inject.
    pub inject: Inject,
    /// Nodes have the ioctls for windows between processes.
    pub idpt: bool,
}

impl Behaviour {
    /// The bits of [`Opened::flags`] that come from the run's options, not from the driver.
    fn flags(&self) -> u32 {
        let bits = [(self.strict, STRICT), (self.threaded, THREADED), (self.trace, TRACE), (self.check, CHECK)];
        bits.iter().filter(|(on, _)| *on).fold(0, |flags, (_, bit)| flags | bit)
    }
}

/// Keeps a copy of the tree. It is notified of a change before the request that made the change is answered.
pub trait Watcher: Send + Debug {
    /// The entries of these directories (sorted) have changed; some directories may be gone.
    fn changed(&mut self, kernel: &Kernel, directories: &[String]);
}

/// The device that the run's processes share. All methods may be called by any thread.
#[derive(Debug)]
pub struct Host {
    behaviour: Behaviour,
    listener: Arc<dyn Listener>,
    kernel: Mutex<Kernel>,
    files: Mutex<Files>,
    /// Read-locked while a file is released and reported; write-locked by a caller that must wait for all such reports.
    leaving: RwLock<()>,
    watchers: Mutex<Vec<Box<dyn Watcher>>>,
    alarms: Mutex<Vec<ReportCallback>>,
    /// The index for readers in other processes, once it is published.
    published: Mutex<Option<Publisher>>,
    /// The events of the devices' PMUs.
    perf: Mutex<PerfEvents>,
    /// The windows between processes.
    windows: Mutex<Windows>,
    /// The requests about windows that are being answered.
    requests: Requests,
    closer: Closer,
    /// An epoll instance with the host's ends of the preloaded view's files; a hang-up means that the file was closed
    /// for the last time.
    ends: OwnedFd,
    /// Prefix of the socket names by which a guest recognises an inherited file.
    name: String,
}

/// A callback that makes pollers of a device's errors check again.
struct ReportCallback(Box<dyn Fn() + Send>);

impl Debug for ReportCallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReportCallback")
    }
}

/// Open files by number, and the shared memory of every queue that was ever open.
#[derive(Debug, Default)]
struct Files {
    open: BTreeMap<u64, Arc<OpenFile>>,
    boards: BTreeMap<(u32, u32), Arc<QueueMemory>>,
    /// The totals of closed files, by device, queue, and whether the queue was dedicated.
    closed: BTreeMap<(u32, u32, bool), Totals>,
}

impl Host {
    /// Creates a host for a driver. `name` is the run's name, unique on this machine: each file's socket has a
    /// [`NodeName`] in the abstract namespace.
    ///
    /// # Errors
    /// If no descriptors are available.
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
            published: Mutex::default(),
            perf: Mutex::default(),
            windows: Mutex::default(),
            requests: Requests::default(),
            closer: Closer::default(),
            ends: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            name: name.into(),
        }))
    }

    /// Adds a watcher, which is notified of every change from now on.
    pub fn watch(&self, watcher: Box<dyn Watcher>) {
        lock(&self.watchers).push(watcher);
    }

    /// Publishes devices and open files in the run's directory, for readers in other processes.
    ///
    /// # Errors
    /// If the index cannot be written.
    pub fn publish(&self, directory: &Path) -> io::Result<()> {
        let kernel = lock(&self.kernel);
        *lock(&self.published) = Some(Publisher::start(directory, kernel.published())?);
        Ok(())
    }

    /// Adds a callback for device reports: after one, [`poll_ready`](Host::poll_ready) may return another result.
    pub fn on_report(&self, alarm: impl Fn() + Send + 'static) {
        lock(&self.alarms).push(ReportCallback(Box::new(alarm)));
    }

    /// Calls `look` with the driver's state, which does not change meanwhile.
    pub fn with_kernel<T>(&self, look: impl FnOnce(&Kernel) -> T) -> T {
        look(&lock(&self.kernel))
    }

    /// The entry at an absolute path that contains no links, `.` or `..`.
    ///
    /// # Errors
    /// ENOENT or ENOTDIR if the path is not in the driver's tree.
    pub fn entry(&self, path: &str) -> Result<Entry, Errno> {
        lock(&self.kernel).entry(path)
    }

    /// The driver's entries of a directory, also of a directory that the machine has too (see
    /// [`merged`](Host::merged)).
    ///
    /// # Errors
    /// As for [`entry`](Host::entry).
    pub fn list(&self, path: &str) -> Result<Vec<(String, Entry)>, Errno> {
        lock(&self.kernel).list(path)
    }

    /// The topmost paths of the driver's tree.
    #[must_use]
    pub fn roots(&self) -> Vec<String> {
        lock(&self.kernel).roots()
    }

    /// Directories of the machine in which the driver adds entries.
    #[must_use]
    pub fn merged(&self) -> Vec<String> {
        lock(&self.kernel).merged()
    }

    /// A number that changes whenever a result of `entry` or `list` may change.
    #[must_use]
    pub fn structure(&self) -> u64 {
        lock(&self.kernel).structure()
    }

    /// The text of an attribute, as one read(2) from its start returns it.
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

    /// Does one write(2) to an attribute; returns the bytes accepted.
    ///
    /// # Errors
    /// The driver's.
    pub fn store(&self, path: &str, data: &[u8]) -> Result<usize, Errno> {
        self.change(|kernel| kernel.store(path, data))
    }

    /// Reads bytes of a binary file; returns fewer than requested at its end.
    ///
    /// # Errors
    /// The driver's.
    pub fn read_at(&self, path: &str, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let bytes = lock(&self.kernel).read_at(path, offset, into.len())?;
        let len = bytes.len().min(into.len());
        into[..len].copy_from_slice(&bytes[..len]);
        Ok(len)
    }

    /// Writes bytes of a binary file; returns how many were accepted.
    ///
    /// # Errors
    /// The driver's.
    pub fn write_at(&self, path: &str, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        self.change(|kernel| kernel.write_at(path, offset, data))
    }

    /// Opens a queue's node for a process without an address space number: one that opens it through the file system.
    /// `caller.process` may be any thread of the process.
    ///
    /// # Errors
    /// The driver's: EBUSY, ENXIO, …; ESRCH if the process is not visible.
    pub fn open(&self, path: &str, caller: Caller) -> Result<Opened, Errno> {
        let identity = Identity::of(caller.process).ok_or(Errno::SRCH)?;
        let caller = Caller { process: identity.process, space: 0 };
        Ok(self.open_file(path, caller, Some(identity), None)?.opened)
    }

    /// Opens a queue's node for a guest. The second value is the file's descriptor; closing its last copy releases the
    /// file.
    fn open_for_guest(&self, path: &str, caller: Caller) -> Result<(Arc<OpenFile>, OwnedFd), Errno> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let file = self.open_file(path, caller, None, Some(ours))?;
        let FileInfo { open, device, wq, .. } = file.info;
        let name = NodeName { open, device, wq };
        let prepared = bind(&theirs, |random| name.to_text(&self.name, random)).and_then(|()| {
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
        if let Some(published) = &mut *lock(&self.published) {
            published.opened(&file);
        }
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
                let board = Arc::new(QueueMemory::new(enabled)?);
                files.boards.insert(key, Arc::clone(&board));
                board
            }
        };
        // No slot is left for the file: the same errno as when the system's file table is full.
        let row = board.take_row().ok_or(Errno::NFILE)?;
        let flags = opened.flags | self.behaviour.flags();
        let id_cap = if self.behaviour.idpt { opened.id_cap } else { 0 };
        let opened = Opened { flags, row, id_cap, inject: self.behaviour.inject, ..opened };
        let file = OpenFile::new(opened, caller, Arc::clone(&board), identity, end).map(Arc::new);
        match &file {
            Ok(file) => drop(files.open.insert(opened.open, Arc::clone(file))),
            Err(_) => board.give_row(row),
        }
        file
    }

    /// Attaches a guest to an open file, so that it can map it or write to it.
    fn attach(&self, open: u64, caller: Caller) -> Result<Arc<OpenFile>, Errno> {
        let file = self.file(open)?;
        let is_opener = match file.identity {
            None => file.info.process == caller.process,
            // An opener without a number is identified by its memory map, which exec changes.
            identity => identity == Identity::of(caller.process),
        };
        if !is_opener {
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

    /// Releases a file whose last reference is gone. Ignores a number that is not an open file's.
    pub fn release(&self, open: u64) {
        let _leaving = self.leaving.read().unwrap_or_else(PoisonError::into_inner);
        let file = self.change(|kernel| {
            let mut files = lock(&self.files);
            let file = files.open.remove(&open)?;
            let FileInfo { device, wq, dedicated, .. } = file.info;
            files.closed.entry((device, wq, dedicated)).or_default().add(&file.lease.counts.totals());
            drop(files);
            if let Some(end) = &file.end {
                // Not registered if the opening failed half way.
                let _ = epoll::delete(&self.ends, end);
            }
            kernel.release(open);
            file.board.give_row(file.opened.row);
            Some(file)
        });
        if let Some(file) = file {
            lock(&self.windows).release_file(open);
            if let Some(published) = &mut *lock(&self.published) {
                published.released(&file);
            }
            file.take_trace(&*self.listener, true);
            self.listener.released(&file.info, &file.lease.statistics);
            // Its socket may hold descriptors.
            if file.end.as_ref().is_some_and(|end| rustix::io::ioctl_fionread(end) != Ok(0)) {
                self.closer.run(move || file);
            }
        }
    }

    /// Releases all files at the end of the run. On return, the listener has received everything, also for files that
    /// other threads are releasing, such as the file system's, which may learn of a close after the process has ended.
    pub fn release_all(&self) {
        for file in self.open_files() {
            self.release(file.info.open);
        }
        drop(self.leaving.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Releases the preloaded view's files that have been closed for the last time.
    ///
    /// Called before every request: a process that closes a dedicated queue and opens it again must not get EBUSY from
    /// its own closed file.
    fn release_closed(&self) {
        // A thread that has just sent a window has dropped its own copy then.
        drop(lock(&self.windows));
        let mut released = true;
        // Bounded by the number of hang-ups; a round without one is the last.
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
                if let Some(number) = perf::number_of(open) {
                    self.perf_release(number);
                    released = true;
                } else if let Some(number) = windows::number_of(open) {
                    lock(&self.windows).close(number);
                    released = true;
                } else if let Some(process) = windows::process_of(open) {
                    self.process_ended(process);
                } else if flags.contains(epoll::EventFlags::HUP) {
                    self.release(open);
                    released = true;
                } else if let Ok(OpenFile { end: Some(end), .. }) = self.file(open).as_deref() {
                    // A process that does not know the queue wrote to the socket directly. The host reads the bytes so
                    // that the writer does not block. After a shutdown of the other end only the hang-up matters, so
                    // readability is no longer watched, and neither is it after descriptors, which stay where they are:
                    // closing them may block.
                    let mut bytes = [0; 4096];
                    let waiting = closer::peek(end, bytes.len());
                    let readable = waiting.as_ref().filter(|waiting| waiting.bytes != 0 && !waiting.has_descriptors);
                    if let Some(waiting) = readable {
                        let _ = rustix::net::recv(end, &mut bytes[..waiting.bytes], RecvFlags::DONTWAIT);
                    } else if waiting.is_some() {
                        let data = epoll::EventData::new_u64(open);
                        let _ = epoll::modify(&self.ends, end, data, epoll::EventFlags::empty());
                    }
                }
            }
        }
    }

    /// Handles write(2) to an open node by a process without a guest: executes the descriptors here, in that process's
    /// memory, before it returns. Returns the bytes submitted. `caller.process` may be any thread of the process.
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
        // The identity check above proves that this is the opener's address space, whatever number a guest has given it
        // since.
        let caller = Caller { process: identity.process, space: file.space() };
        lock(&self.kernel).may_write(open, caller, false)?;
        let descriptors = bytes.as_chunks::<64>().0;
        if descriptors.is_empty() {
            return Ok(0);
        }
        let mut executor = lock(&file.executor);
        let executor = match &mut *executor {
            Some(executor) => executor,
            none => none.insert(Executor::start(&file.opened, file.board.memory(), &file.lease, caller.process)?),
        };
        executor.serve(thread);
        let mut written = 0;
        for bytes in descriptors {
            // A killed thread waits in write(2) for this function.
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
        let (state, slots) = (file.board.memory(), file.board.rows());
        let refused = (0..tries).all(|_| executor.submit(state, slots, descriptor) == Offer::Retry);
        executor.reports(|report| {
            if executor.is_killed() {
                // Errors caused by the kill are not errors of the device.
                return;
            }
            // If the file was released meanwhile, the report has no receiver.
            let _ = self.report(file.info.open, report);
        });
        if refused { Err(Errno::AGAIN) } else { Ok(()) }
    }

    /// True if poll(2) of an open node reports POLLIN: the device has latched an error.
    #[must_use]
    pub fn poll_ready(&self, open: u64) -> bool {
        self.file(open).is_ok_and(|file| lock(&self.kernel).poll_ready(file.info.device))
    }

    /// Handles a guest's report to the driver. A guest may report only for files that its address space opened. A
    /// modelled device never halts unless a halt was injected, so other reports of a halt are refused: otherwise one
    /// process could stop all others.
    fn report_of(&self, open: u64, caller: Caller, report: &Report) -> Result<(), Errno> {
        let file = self.file(open)?;
        let halt = report.kind == ReportKind::Halted as u32;
        // A forked child knows its parent's number.
        let is_opener = file.space() == caller.space && file.info.process == caller.process;
        if !is_opener || (halt && self.behaviour.inject.halt_at == 0) {
            return Err(Errno::PERM);
        }
        self.report(open, &report.in_the_name_of(&file.opened))
    }

    /// Handles a device's report to the driver.
    ///
    /// # Errors
    /// The driver's.
    pub fn report(&self, open: u64, report: &Report) -> Result<(), Errno> {
        self.change(|kernel| kernel.report(open, report))?;
        // The driver's lock is released first, because the callbacks call this host again.
        lock(&self.alarms).iter().for_each(|ReportCallback(alarm)| alarm());
        Ok(())
    }

    /// Changes the driver's state, and notifies files and watchers before any other request is handled.
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
            file.notify_ready(kernel.alarms(file.info.device, file.info.wq));
        }
        drop(files);
        if let Some(published) = &mut *lock(&self.published) {
            published.changed(kernel.published());
        }
        let changed = kernel.changed();
        if !changed.is_empty() {
            for watcher in lock(&self.watchers).iter_mut() {
                watcher.changed(&kernel, &changed);
            }
        }
        result
    }
}

/// Gives a socket a name in the abstract namespace, which is made of a random number.
fn bind(socket: &OwnedFd, name: impl FnOnce(u64) -> String) -> Result<(), Errno> {
    let mut random = [0; 8];
    if getrandom(&mut random, GetRandomFlags::empty())? != random.len() {
        return Err(Errno::AGAIN);
    }
    let name = name(u64::from_ne_bytes(random));
    rustix::net::bind(socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// Device and queue number from the last component of a path in sysfs.
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
