//! Handles the kernel's requests; each is answered once.

use super::super::tree::Tree;
use super::files::File;
use super::{FileSystem, OPEN_NUMBER, caller, write_file};
use crate::tree::{Entry, Errno};
use fuser::{
    BsdFileFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen, ReplyPoll, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Names and attributes expire at once.
const NO_TIME: Duration = Duration::ZERO;
/// The only generation: an inode number is never reused for another file.
const GENERATION: Generation = Generation(0);
/// The result of poll(2) of an attribute.
const ALWAYS_READY: PollEvents =
    PollEvents::POLLIN.union(PollEvents::POLLRDNORM).union(PollEvents::POLLOUT).union(PollEvents::POLLWRNORM);

fn code(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

impl<T: Tree> Filesystem for FileSystem<T> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wanted in [InitFlags::FUSE_ATOMIC_O_TRUNC, InitFlags::FUSE_PARALLEL_DIROPS] {
            // A kernel without these sends more requests, or one after the other.
            let _ = config.add_capabilities(wanted);
        }
        // Releases count as background requests and queue up beyond this limit; an open would overtake them.
        let _ = config.set_max_background(u16::MAX);
        Ok(())
    }

    /// The last process has ended. Releases the files that it closed by ending: the kernel removes the file system
    /// before it has sent all releases.
    fn destroy(&mut self) {
        for file in self.files.take_all() {
            if let File::Node { open, advice } = &*file {
                self.waiters.forget(*open);
                self.tree.release(*open);
                self.advise(advice.as_ref());
            }
        }
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.look_up(request.pid(), parent, name) {
            Ok(attributes) => reply.entry(&NO_TIME, &attributes, GENERATION),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.inodes.forget(number.0, lookups);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.stat(number) {
            Ok(attributes) => reply.attr(&NO_TIME, &attributes),
            Err(errno) => reply.error(code(errno)),
        }
    }

    /// Mode and owner are kept while the file exists; size and times are accepted and ignored, as in sysfs.
    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.own(number, mode, user, group);
        match self.stat(number) {
            Ok(attributes) => reply.attr(&NO_TIME, &attributes),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        match self.path(number).and_then(|path| self.shown.entry(&path)) {
            Ok(Entry::Link(text)) => reply.data(text.as_bytes()),
            Ok(_) => reply.error(fuser::Errno::EINVAL),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(request.pid(), number, flags) {
            Ok((handle, how)) => reply.opened(FileHandle(handle), how),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.read_file(handle, offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn write(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let file = match self.files.get(handle.0) {
            Ok(file) => file,
            Err(errno) => return reply.error(code(errno)),
        };
        let (tree, waiters) = (Arc::clone(&self.tree), Arc::clone(&self.waiters));
        let (thread, data) = (request.pid(), data.to_vec());
        self.workers.run(move || {
            let answer = write_file(&*tree, &file, thread, offset, &data);
            // Pollers are woken before the writer continues: it may poll next.
            waiters.wake(&*tree);
            match answer {
                // Fits: at most the requested length, and a request has at most 16 MiB.
                Ok(taken) => reply.written(u32::try_from(taken.min(data.len())).unwrap_or(u32::MAX)),
                Err(errno) => reply.error(code(errno)),
            }
        });
    }

    /// There is nothing to flush; after ENOSYS the kernel does not ask again.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(open) = self.node(handle) {
            // No call of it is running: the kernel sends the release after the last call has returned.
            self.waiters.forget(open);
            self.tree.release(open);
        }
        if let Some(File::Node { advice, .. }) = self.files.remove(handle.0).as_deref() {
            self.advise(advice.as_ref());
        }
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.open_directory(number) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn readdir(&self, request: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.read_directory(request.pid(), handle, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.files.remove(handle.0);
        reply.ok();
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: IoctlFlags,
        command: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        match self.node(handle) {
            Some(open) if command == OPEN_NUMBER => reply.ioctl(0, &open.to_ne_bytes()),
            _ => reply.error(fuser::Errno::ENOTTY),
        }
    }

    fn poll(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        notifier: PollNotifier,
        _: PollEvents,
        flags: PollFlags,
        reply: ReplyPoll,
    ) {
        let Some(open) = self.node(handle) else { return reply.poll(ALWAYS_READY) };
        // The waiter is added before the state is read: an error that occurs in between is noticed by one of the two.
        if flags.contains(PollFlags::FUSE_POLL_SCHEDULE_NOTIFY) {
            self.waiters.add(open, notifier);
        }
        match self.tree.poll(open, caller(request.pid())) {
            Ok(true) => reply.poll(PollEvents::POLLIN | PollEvents::POLLRDNORM),
            Ok(false) => reply.poll(PollEvents::empty()),
            // LINUX §7.
            Err(_) => reply.poll(PollEvents::POLLNVAL),
        }
    }

    // Operations that the driver's directories refuse, with the errnos of sysfs.

    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        reply.error(fuser::Errno::EACCES);
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(fuser::Errno::EPERM);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(fuser::Errno::EPERM);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(fuser::Errno::EPERM);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(fuser::Errno::EPERM);
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        reply.error(fuser::Errno::EPERM);
    }

    fn link(&self, _: &Request, _: INodeNo, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(fuser::Errno::EPERM);
    }

    fn rename(&self, _: &Request, _: INodeNo, _: &OsStr, _: INodeNo, _: &OsStr, _: RenameFlags, reply: ReplyEmpty) {
        reply.error(fuser::Errno::EPERM);
    }

    /// No extended attributes; after ENOSYS the kernel does not ask again.
    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(fuser::Errno::ENOSYS);
    }
}
