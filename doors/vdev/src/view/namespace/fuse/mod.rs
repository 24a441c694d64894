//! The tree as a file system (FUSE).
//!
//! ```text
//! kernel ──► one thread takes requests in their order ──► answered at once: names, attributes, texts, open, release
//!                                                    └──► a thread of their own: writes, to attributes and nodes
//! ```
//!
//! One thread, since order matters: a dedicated queue that is closed and opened again is released first, as the kernel sends it.
//! What may take its time, a program's descriptors or a drain, is done elsewhere, so that nobody waits for it but its program.
//!
//! Nothing is kept by the kernel: names and attributes expire at once, texts bypass its cache.
//!
//! How it differs from a kernel's own sysfs and devtmpfs:
//! 1. A node is a regular file: a file system of this kind cannot serve a character device. mmap(2) of one answers ENODEV where
//!    the driver answers EPERM to who may not; a program with the preloaded part never asks the kernel.
//! 2. Files belong to the user who runs the program, and to root only if that is root.
//! 3. Changes are seen by whoever looks, and told to nobody: neither inotify(7) nor poll(2) of an attribute.

mod files;
mod inodes;
mod waiters;
mod workers;

pub(super) use waiters::Waiters;

use super::plan::{Layout, parent};
use super::tree::Tree;
use crate::tree::{Caller, Entry, Errno};
use files::{File, Files, Name, Text};
use fuser::{
    FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen, ReplyPoll, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use inodes::{Inodes, Type};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use workers::Workers;

/// `_IOR('t', 1, u64)`: an open node's number.
pub const OPEN_NUMBER: u32 = 2 << 30 | 8 << 16 | (b't' as u32) << 8 | 1;

/// Names and attributes expire at once.
const NO_TIME: Duration = Duration::ZERO;
/// The one generation: numbers are never given to another file.
const GENERATION: Generation = Generation(0);
/// Bytes that one write(2) to an attribute takes, and the size attributes have in a listing. Source: sysfs, a page.
const PAGE: usize = 4096;
/// A node's size in a listing. Larger than any write(2), since writes beyond a file's end exclude each other in the kernel
/// (K612 `fs/fuse/file.c`, `fuse_dio_wr_exclusive_lock`): one program's would wait for another's.
const NODE_SIZE: u64 = 1 << 31;
/// What an attribute answers to poll(2).
const ALWAYS_READY: PollEvents =
    PollEvents::POLLIN.union(PollEvents::POLLRDNORM).union(PollEvents::POLLOUT).union(PollEvents::POLLWRNORM);

/// What chmod(2) and chown(2) have made of a file.
#[derive(Clone, Copy, Debug, Default)]
struct Owned {
    mode: Option<u16>,
    user: Option<u32>,
    group: Option<u32>,
}

/// The file system.
#[derive(Debug)]
pub(super) struct FileSystem<T> {
    tree: Arc<T>,
    layout: Layout,
    /// The machine's root; another place only in tests.
    machine: PathBuf,
    /// Whose the files are.
    user: u32,
    group: u32,
    /// When the view was made: the time of all files.
    made: SystemTime,
    owned: RwLock<HashMap<Arc<str>, Owned>>,
    inodes: Inodes,
    files: Files,
    waiters: Arc<Waiters>,
    workers: Workers,
}

impl<T: Tree> FileSystem<T> {
    pub(super) fn new(tree: Arc<T>, layout: Layout, machine: &Path, waiters: Arc<Waiters>) -> Self {
        FileSystem {
            tree,
            layout,
            machine: machine.to_owned(),
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
            made: SystemTime::now(),
            owned: RwLock::default(),
            inodes: Inodes::default(),
            files: Files::default(),
            waiters,
            workers: Workers::default(),
        }
    }

    fn path(&self, number: INodeNo) -> Result<Arc<str>, Errno> {
        self.inodes.path(number.0).ok_or(Errno::STALE)
    }

    /// What stands at a path: the driver's, a directory of the plan, or a link of the machine.
    fn entry(&self, path: &str) -> Result<Entry, Errno> {
        let answer = self.tree.entry(path);
        if answer.is_ok() {
            return answer;
        }
        if self.layout.fixed.contains(path) {
            return Ok(Entry::Directory);
        }
        if self.layout.whole.contains(parent(path))
            && let Some(text) = self.machines_link(path)
        {
            return Ok(Entry::Link(text));
        }
        answer
    }

    /// A link of the machine's own; none if its text is not one that can be passed on.
    fn machines_link(&self, path: &str) -> Option<String> {
        let text = self.machine.join(path.trim_start_matches('/')).read_link().ok()?;
        text.into_os_string().into_string().ok()
    }

    /// A directory's entries: the driver's, those of the plan, and where it is served wholly, the machine's links.
    fn list(&self, path: &str) -> Result<Vec<(String, Entry)>, Errno> {
        let mut entries = match self.tree.list(path) {
            Err(_) if self.layout.fixed.contains(path) => Vec::new(),
            answer => answer?,
        };
        let has = |entries: &[(String, Entry)], name: &str| entries.iter().any(|(other, _)| other == name);
        for below in self.layout.fixed.iter().filter(|below| parent(below) == path && *below != "/") {
            let name = super::plan::name(below);
            if !has(&entries, name) {
                entries.push((name.to_owned(), Entry::Directory));
            }
        }
        if self.layout.whole.contains(path) {
            let real = self.machine.join(path.trim_start_matches('/'));
            for entry in real.read_dir().into_iter().flatten().flatten() {
                let Ok(name) = entry.file_name().into_string() else { continue };
                if has(&entries, &name) {
                    continue;
                }
                if let Ok(text) = entry
                    .path()
                    .read_link()
                    .map_err(drop)
                    .and_then(|text| text.into_os_string().into_string().map_err(drop))
                {
                    entries.push((name, Entry::Link(text)));
                }
            }
        }
        Ok(entries)
    }

    fn attributes(&self, path: &Arc<str>, number: u64, entry: &Entry) -> FileAttr {
        let (kind, mode, size) = match entry {
            Entry::Directory => (FileType::Directory, 0o755, 0),
            Entry::Link(text) => (FileType::Symlink, 0o777, text.len() as u64),
            Entry::Attribute { mode } => (FileType::RegularFile, *mode, PAGE as u64),
            Entry::Binary { mode, size } => (FileType::RegularFile, *mode, *size),
            Entry::Node { .. } => (FileType::RegularFile, 0o600, NODE_SIZE),
        };
        // What procfs and debugfs make as one looks has no size before.
        let size = if path.starts_with("/proc/") || path.starts_with("/sys/kernel/debug/") { 0 } else { size };
        let owned = self.owned.read().unwrap_or_else(PoisonError::into_inner).get(path).copied().unwrap_or_default();
        FileAttr {
            ino: INodeNo(number),
            size,
            blocks: 0,
            atime: self.made,
            mtime: self.made,
            ctime: self.made,
            crtime: self.made,
            kind,
            perm: owned.mode.unwrap_or(mode),
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: owned.user.unwrap_or(self.user),
            gid: owned.group.unwrap_or(self.group),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn look_up(&self, directory: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let directory = self.path(directory)?;
        // No name of ours is other than UTF-8.
        let name = name.to_str().ok_or(Errno::NOENT)?;
        let path: Arc<str> = below(&directory, name).into();
        let entry = match self.entry(&path) {
            Ok(entry) => entry,
            Err(errno) => {
                // What comes again is made anew, with its own owner and mode.
                self.owned.write().unwrap_or_else(PoisonError::into_inner).remove(&path);
                return Err(errno);
            }
        };
        let number = self.inodes.learn(&path, kind(&entry));
        Ok(self.attributes(&path, number, &entry))
    }

    fn stat(&self, number: INodeNo) -> Result<FileAttr, Errno> {
        let path = self.path(number)?;
        let entry = self.entry(&path)?;
        let mut attributes = self.attributes(&path, number.0, &entry);
        // Counted only here: whoever wants to know asks anew, as nothing that was told with a name is kept.
        if entry == Entry::Directory {
            let directories = self.list(&path)?.iter().filter(|(_, entry)| *entry == Entry::Directory).count();
            // More than that are in no tree.
            attributes.nlink = attributes.nlink.saturating_add(u32::try_from(directories).unwrap_or(u32::MAX));
        }
        Ok(attributes)
    }

    /// open(2): the handle, and how the kernel shall treat the file.
    fn open_file(&self, thread: u32, number: INodeNo, flags: OpenFlags) -> Result<(u64, FopenFlags), Errno> {
        let path = self.path(number)?;
        let entry = self.entry(&path)?;
        if let Entry::Attribute { mode } | Entry::Binary { mode, .. } = entry {
            // sysfs refuses whoever may pass the mode bits too, if the driver has no such function.
            let (read, write) = (mode & 0o444 != 0, mode & 0o222 != 0);
            let allowed = match flags.acc_mode() {
                OpenAccMode::O_RDONLY => read,
                OpenAccMode::O_WRONLY => write,
                OpenAccMode::O_RDWR => read && write,
            };
            if !allowed {
                return Err(Errno::ACCESS);
            }
        }
        let direct = FopenFlags::FOPEN_DIRECT_IO;
        let (file, how) = match entry {
            Entry::Attribute { .. } => (File::Attribute { path, text: Mutex::new(Text::default()) }, direct),
            Entry::Binary { size, .. } => (File::Binary { path, size }, direct),
            Entry::Node { .. } => {
                let open = self.tree.open(&path, caller(thread))?;
                // A stream has no position, so neither threads nor processes wait for each other on its account.
                let how = direct | FopenFlags::FOPEN_STREAM | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
                (File::Node { open }, how)
            }
            Entry::Directory => return Err(Errno::ISDIR),
            Entry::Link(_) => return Err(Errno::LOOP),
        };
        Ok((self.files.insert(file), how))
    }

    fn open_directory(&self, number: INodeNo) -> Result<u64, Errno> {
        let path = self.path(number)?;
        match self.entry(&path)? {
            Entry::Directory => Ok(self.files.insert(File::Directory { path, names: Mutex::default() })),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// A directory's listing, with the two names that every directory has.
    fn names(&self, path: &str) -> Result<Vec<Name>, Errno> {
        let own = |name: &str, path: &str| Name {
            name: name.to_owned(),
            number: self.inodes.number(path, Type::Directory),
            kind: Type::Directory,
        };
        let mut names = vec![own(".", path), own("..", parent(path))];
        for (name, entry) in self.list(path)? {
            let kind = kind(&entry);
            names.push(Name { number: self.inodes.number(&below(path, &name), kind), name, kind });
        }
        Ok(names)
    }

    fn read_directory(&self, handle: FileHandle, offset: u64, reply: &mut ReplyDirectory) -> Result<(), Errno> {
        let file = self.files.get(handle.0)?;
        let File::Directory { path, names } = &*file else { return Err(Errno::NOTDIR) };
        let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
        // Opened, or rewound: as it is now.
        if offset == 0 {
            *names = self.names(path)?;
        }
        for (position, name) in (1..).zip(names.iter()).skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            let kind = match name.kind {
                Type::Directory => FileType::Directory,
                Type::Link => FileType::Symlink,
                Type::File => FileType::RegularFile,
            };
            if reply.add(INodeNo(name.number), position, kind, &name.name) {
                break;
            }
        }
        Ok(())
    }

    fn read_file(&self, handle: FileHandle, offset: u64, size: u32, reply: ReplyData) {
        let size = size as usize;
        let answer = self.files.get(handle.0).and_then(|file| match &*file {
            File::Attribute { path, text } => {
                let mut text = text.lock().unwrap_or_else(PoisonError::into_inner);
                text.read(offset, size, || self.tree.show(path)).map(<[u8]>::to_vec)
            }
            File::Binary { path, size: total } => {
                let left = usize::try_from(total.saturating_sub(offset)).unwrap_or(usize::MAX);
                let mut bytes = vec![0; size.min(left)];
                let read = self.tree.read_at(path, offset, &mut bytes)?;
                bytes.truncate(read);
                Ok(bytes)
            }
            // The driver has no read function (LINUX §7).
            File::Node { .. } => Err(Errno::INVAL),
            File::Directory { .. } => Err(Errno::ISDIR),
        });
        match answer {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(code(errno)),
        }
    }

    /// The number of an open node.
    fn node(&self, handle: FileHandle) -> Option<u64> {
        match *self.files.get(handle.0).ok()? {
            File::Node { open } => Some(open),
            _ => None,
        }
    }
}

/// A write, by whichever thread.
fn write_file(tree: &dyn Tree, file: &File, thread: u32, offset: u64, data: &[u8]) -> Result<usize, Errno> {
    match file {
        // sysfs hands the driver a page at most, whatever the offset.
        File::Attribute { path, .. } => tree.store(path, &data[..data.len().min(PAGE)]),
        File::Binary { path, size } => {
            let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
            if left == 0 {
                return Err(Errno::FBIG);
            }
            tree.write_at(path, offset, &data[..data.len().min(left)])
        }
        File::Node { open } => tree.write(*open, caller(thread), data),
        File::Directory { .. } => Err(Errno::ISDIR),
    }
}

/// Who sent a request. What comes this way has no number for its address space.
fn caller(thread: u32) -> Caller {
    Caller { process: thread, space: 0 }
}

fn below(directory: &str, name: &str) -> String {
    if directory == "/" { format!("/{name}") } else { format!("{directory}/{name}") }
}

fn kind(entry: &Entry) -> Type {
    match entry {
        Entry::Directory => Type::Directory,
        Entry::Link(_) => Type::Link,
        Entry::Attribute { .. } | Entry::Binary { .. } | Entry::Node { .. } => Type::File,
    }
}

fn code(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

impl<T: Tree> Filesystem for FileSystem<T> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wanted in [InitFlags::FUSE_ATOMIC_O_TRUNC, InitFlags::FUSE_PARALLEL_DIROPS] {
            // A kernel without them asks in more steps, or one after the other.
            let _ = config.add_capabilities(wanted);
        }
        // Releases count as background requests, and wait behind so many: an open would overtake them.
        let _ = config.set_max_background(u16::MAX);
        Ok(())
    }

    /// The last process has gone. Files that it closed by ending are released here: the kernel takes the file system away before
    /// it has sent that they are.
    fn destroy(&mut self) {
        for file in self.files.take_all() {
            if let File::Node { open } = *file {
                self.waiters.forget(open);
                self.tree.release(open);
            }
        }
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.look_up(parent, name) {
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

    /// Mode and owner are kept while the file stands; size and times are taken and mean nothing, as in sysfs.
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
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let Ok(path) = self.path(number)
            && (mode.is_some() || user.is_some() || group.is_some())
        {
            let mut owned = self.owned.write().unwrap_or_else(PoisonError::into_inner);
            let owned = owned.entry(path).or_default();
            // Twelve bits: what remains under the mask fits.
            owned.mode = mode.and_then(|mode| u16::try_from(mode & 0o7777).ok()).or(owned.mode);
            owned.user = user.or(owned.user);
            owned.group = group.or(owned.group);
        }
        match self.stat(number) {
            Ok(attributes) => reply.attr(&NO_TIME, &attributes),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        match self.path(number).and_then(|path| self.entry(&path)) {
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
        self.read_file(handle, offset, size, reply);
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
            // What waits is woken before the writer goes on: it may be the one that polls next.
            waiters.wake(&*tree);
            match answer {
                // No more than was asked for, and a request is at most 16 MiB.
                Ok(taken) => reply.written(u32::try_from(taken.min(data.len())).unwrap_or(u32::MAX)),
                Err(errno) => reply.error(code(errno)),
            }
        });
    }

    /// Nothing waits to be written; said so that the kernel asks only once.
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
            // Nothing of it is under way: the kernel sends this when the last call has returned.
            self.waiters.forget(open);
            self.tree.release(open);
        }
        self.files.remove(handle.0);
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

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.read_directory(handle, offset, &mut reply) {
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
        // First remembered, then looked at: what becomes ready in between is noticed by one of the two.
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

    // What cannot be done to the driver's directories, with the errors of sysfs.

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

    /// No extended attributes; said so that the kernel asks only once.
    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(fuser::Errno::ENOSYS);
    }
}
