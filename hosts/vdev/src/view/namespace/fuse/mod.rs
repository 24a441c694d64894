//! The tree as a file system (FUSE).
//!
//! ```text
//! kernel ──► one thread receives requests in order ──► answered at once: names, attributes, texts, open, release
//!                                                  └──► a worker thread: writes to attributes and nodes
//! ```
//!
//! One thread receives the requests because their order matters: a dedicated queue that is closed and opened again must
//! be released first, as the kernel sends it. Operations that may take long (a program's descriptors, a drain) run on
//! worker threads, so that only their program waits for them.
//!
//! The kernel caches nothing: names and attributes expire at once, texts bypass its cache.
//!
//! Differences from a kernel's own sysfs and devtmpfs:
//! 1. A node is a regular file: FUSE cannot serve a character device ([`Nodes`] has an exception). mmap(2) of a node
//!    returns ENODEV, where the driver returns EPERM to unprivileged callers. A program with the guest never asks the
//!    kernel.
//! 2. Files belong to the user who runs the program; they belong to root only if root runs it.
//! 3. Changes are visible at the next access but not announced: neither by inotify(7) nor by poll(2) of an attribute.

mod files;
mod inodes;
mod portal_advice;
mod requests;
mod shown;
mod waiters;
mod workers;

pub(super) use waiters::Waiters;

use super::plan::{Layout, parent};
use super::tree::Tree;
use crate::tree::{Caller, Entry, Errno};
use files::{File, Files, Name, Text};
use fuser::{FileAttr, FileHandle, FileType, FopenFlags, INodeNo, OpenAccMode, OpenFlags, ReplyDirectory};
use inodes::{Inodes, Type};
use portal_advice::{PortalAdvice, Programs};
use shown::Shown;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;
use workers::Workers;

/// `_IOR('t', 1, u64)`: returns an open node's number.
pub const OPEN_NUMBER: u32 = 2 << 30 | 8 << 16 | (b't' as u32) << 8 | 1;

/// Most bytes that one write(2) to an attribute accepts, and the size of attributes in a listing. Source: sysfs, a
/// page.
const PAGE: usize = 4096;
/// A node's size in a listing, without its numbers. Larger than any write(2): the kernel serialises writes beyond a
/// file's end (K612 `fs/fuse/file.c`, `fuse_dio_wr_exclusive_lock`), so one program's write would wait for another's.
const NODE_SIZE: u64 = 1 << 31;

/// A node's size. FUSE cannot serve a character device, but the guest can present the node as one. The size encodes its
/// numbers: major number in bits 30:20, minor number in bits 19:0.
fn node_size(major: u32, minor: u32) -> u64 {
    NODE_SIZE | u64::from(major & 0x7ff) << 20 | u64::from(minor & 0xf_ffff)
}

/// How queues' nodes appear to programs into which nothing can be preloaded. To other programs a node is always a
/// regular file, which the guest presents as a character device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nodes {
    /// As regular files, to which they can write().
    Writable,
    /// As character devices, which can be found but not opened: the mount has the flag `nodev`, so that open(2) returns
    /// EACCES and never reaches a driver of the kernel, whatever driver has the number. The inode has another number
    /// than the regular file; the kernel looks names up at every use, so each program gets its own.
    Findable,
}

/// A device's number as FUSE sends it. Source: K612 `include/linux/kdev_t.h`, new_encode_dev().
fn device_number(major: u32, minor: u32) -> u32 {
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// A file's mode and owner as set by chmod(2) and chown(2).
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
    shown: Shown<T>,
    /// Owner of the files.
    user: u32,
    group: u32,
    /// The time at which the view was created; the timestamp of all files.
    made: SystemTime,
    owned: RwLock<HashMap<Arc<str>, Owned>>,
    inodes: Inodes,
    files: Files,
    waiters: Arc<Waiters>,
    workers: Workers,
    programs: Programs,
    nodes: Nodes,
}

impl<T: Tree> FileSystem<T> {
    pub(super) fn new(tree: Arc<T>, layout: Layout, waiters: Arc<Waiters>, nodes: Nodes) -> Self {
        FileSystem {
            shown: Shown::new(Arc::clone(&tree), layout),
            tree,
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
            made: SystemTime::now(),
            owned: RwLock::default(),
            inodes: Inodes::default(),
            files: Files::default(),
            waiters,
            workers: Workers::default(),
            programs: Programs::default(),
            nodes,
        }
    }

    fn path(&self, number: INodeNo) -> Result<Arc<str>, Errno> {
        self.inodes.path(number.0).ok_or(Errno::STALE)
    }

    fn attributes(&self, path: &Arc<str>, number: u64, entry: &Entry) -> FileAttr {
        let device = match *entry {
            Entry::Node { major, minor } if self.inodes.is_device(number) => Some(device_number(major, minor)),
            _ => None,
        };
        let (kind, mode, size) = match entry {
            Entry::Directory => (FileType::Directory, 0o755, 0),
            Entry::Link(text) => (FileType::Symlink, 0o777, text.len() as u64),
            Entry::Attribute { mode } => (FileType::RegularFile, *mode, PAGE as u64),
            Entry::Binary { mode, size } => (FileType::RegularFile, *mode, *size),
            Entry::Node { .. } if device.is_some() => (FileType::CharDevice, 0o600, 0),
            Entry::Node { major, minor } => (FileType::RegularFile, 0o600, node_size(*major, *minor)),
        };
        // Files that procfs and debugfs generate on access have size 0.
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
            rdev: device.unwrap_or(0),
            blksize: 4096,
            flags: 0,
        }
    }

    fn look_up(&self, thread: u32, directory: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let directory = self.path(directory)?;
        // All names in the tree are UTF-8.
        let name = name.to_str().ok_or(Errno::NOENT)?;
        let path: Arc<str> = below(&directory, name).into();
        let entry = match self.shown.entry(&path) {
            Ok(entry) => entry,
            Err(errno) => {
                // A file that appears again is a new one with its own owner and mode.
                self.owned.write().unwrap_or_else(PoisonError::into_inner).remove(&path);
                return Err(errno);
            }
        };
        let number = self.inodes.learn(&path, self.kind(thread, &entry));
        Ok(self.attributes(&path, number, &entry))
    }

    fn stat(&self, number: INodeNo) -> Result<FileAttr, Errno> {
        let path = self.path(number)?;
        let entry = self.shown.entry(&path)?;
        let mut attributes = self.attributes(&path, number.0, &entry);
        // Counted only here: attributes returned by a lookup expire at once, so a program that needs the count asks
        // again.
        if entry == Entry::Directory {
            let directories = self.shown.list(&path)?.iter().filter(|(_, entry)| *entry == Entry::Directory).count();
            // Larger counts do not occur in any tree.
            attributes.nlink = attributes.nlink.saturating_add(u32::try_from(directories).unwrap_or(u32::MAX));
        }
        Ok(attributes)
    }

    /// Handles chmod(2) and chown(2).
    fn own(&self, number: INodeNo, mode: Option<u32>, user: Option<u32>, group: Option<u32>) {
        if mode.is_none() && user.is_none() && group.is_none() {
            return;
        }
        if let Ok(path) = self.path(number) {
            let mut owned = self.owned.write().unwrap_or_else(PoisonError::into_inner);
            let owned = owned.entry(path).or_default();
            // Cannot fail: the mask leaves twelve bits.
            owned.mode = mode.and_then(|mode| u16::try_from(mode & 0o7777).ok()).or(owned.mode);
            owned.user = user.or(owned.user);
            owned.group = group.or(owned.group);
        }
    }

    /// Handles open(2): returns the handle, and how the kernel treats the file.
    fn open_file(&self, thread: u32, number: INodeNo, flags: OpenFlags) -> Result<(u64, FopenFlags), Errno> {
        let path = self.path(number)?;
        let entry = self.shown.entry(&path)?;
        if let Entry::Attribute { mode } | Entry::Binary { mode, .. } = entry {
            // sysfs also refuses callers that ignore the mode bits, if the driver has no read or write function.
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
                // A stream has no file position, so threads and processes do not wait for each other because of it.
                let how = direct | FopenFlags::FOPEN_STREAM | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
                // A portal can only be mapped from a file that is open for reading and writing.
                let may_map = flags.acc_mode() == OpenAccMode::O_RDWR;
                let advice = if may_map { self.programs.opened_by(thread, &path) } else { None };
                (File::Node { open, advice }, how)
            }
            Entry::Directory => return Err(Errno::ISDIR),
            Entry::Link(_) => return Err(Errno::LOOP),
        };
        Ok((self.files.insert(file), how))
    }

    fn open_directory(&self, number: INodeNo) -> Result<u64, Errno> {
        let path = self.path(number)?;
        match self.shown.entry(&path)? {
            Entry::Directory => Ok(self.files.insert(File::Directory { path, names: Mutex::default() })),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// A directory's listing, with `.` and `..`.
    fn names(&self, thread: u32, path: &str) -> Result<Vec<Name>, Errno> {
        let own = |name: &str, path: &str| Name {
            name: name.to_owned(),
            number: self.inodes.number(path, Type::Directory),
            kind: Type::Directory,
        };
        let mut names = vec![own(".", path), own("..", parent(path))];
        for (name, entry) in self.shown.list(path)? {
            let kind = self.kind(thread, &entry);
            names.push(Name { number: self.inodes.number(&below(path, &name), kind), name, kind });
        }
        Ok(names)
    }

    fn read_directory(
        &self,
        thread: u32,
        handle: FileHandle,
        offset: u64,
        reply: &mut ReplyDirectory,
    ) -> Result<(), Errno> {
        let file = self.files.get(handle.0)?;
        let File::Directory { path, names } = &*file else { return Err(Errno::NOTDIR) };
        let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
        // Opened or rewound: list it again.
        if offset == 0 {
            *names = self.names(thread, path)?;
        }
        for (position, name) in (1..).zip(names.iter()).skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            let kind = match name.kind {
                Type::Directory => FileType::Directory,
                Type::Link => FileType::Symlink,
                Type::File => FileType::RegularFile,
                Type::Device => FileType::CharDevice,
            };
            if reply.add(INodeNo(name.number), position, kind, &name.name) {
                break;
            }
        }
        Ok(())
    }

    fn read_file(&self, handle: FileHandle, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let size = size as usize;
        match &*self.files.get(handle.0)? {
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
        }
    }

    /// A node's file was released: advises the user if the program may have wanted to map a portal.
    fn advise(&self, advice: Option<&PortalAdvice>) {
        if let Some(message) = advice.and_then(PortalAdvice::message) {
            self.tree.print(&message);
        }
    }

    /// The type of an entry for the program of a thread.
    fn kind(&self, thread: u32, entry: &Entry) -> Type {
        match entry {
            Entry::Directory => Type::Directory,
            Entry::Link(_) => Type::Link,
            Entry::Node { .. } if self.nodes == Nodes::Findable && portal_advice::obstacle(thread).is_some() => {
                Type::Device
            }
            Entry::Attribute { .. } | Entry::Binary { .. } | Entry::Node { .. } => Type::File,
        }
    }

    /// The number of an open node.
    fn node(&self, handle: FileHandle) -> Option<u64> {
        match *self.files.get(handle.0).ok()? {
            File::Node { open, .. } => Some(open),
            _ => None,
        }
    }
}

/// Handles a write, on any thread.
fn write_file(tree: &dyn Tree, file: &File, thread: u32, offset: u64, data: &[u8]) -> Result<usize, Errno> {
    match file {
        // sysfs passes at most a page to the driver, whatever the offset.
        File::Attribute { path, .. } => tree.store(path, &data[..data.len().min(PAGE)]),
        File::Binary { path, size } => {
            let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
            if left == 0 {
                return Err(Errno::FBIG);
            }
            tree.write_at(path, offset, &data[..data.len().min(left)])
        }
        File::Node { open, advice } => {
            if let Some(advice) = advice {
                advice.has_written();
            }
            tree.write(*open, caller(thread), data)
        }
        File::Directory { .. } => Err(Errno::ISDIR),
    }
}

/// The sender of a request. FUSE requests contain no address space number.
fn caller(thread: u32) -> Caller {
    Caller { process: thread, space: 0 }
}

fn below(directory: &str, name: &str) -> String {
    if directory == "/" { format!("/{name}") } else { format!("{directory}/{name}") }
}

#[cfg(test)]
mod tests {
    use super::device_number;

    #[test]
    fn a_device_number_has_the_kernels_bits() {
        assert_eq!(
            [(511, 1), (511, 0x12345)].map(|(major, minor)| device_number(major, minor)),
            [0x1ff01, 0x1231_ff45]
        );
    }
}
