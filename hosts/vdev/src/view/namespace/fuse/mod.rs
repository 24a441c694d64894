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

/// `_IOR('t', 1, u64)`: an open node's number.
pub const OPEN_NUMBER: u32 = 2 << 30 | 8 << 16 | (b't' as u32) << 8 | 1;

/// Bytes that one write(2) to an attribute takes, and the size attributes have in a listing. Source: sysfs, a page.
const PAGE: usize = 4096;
/// A node's size in a listing, but for its numbers. Larger than any write(2), since writes beyond a file's end exclude each other in the kernel
/// (K612 `fs/fuse/file.c`, `fuse_dio_wr_exclusive_lock`): one program's would wait for another's.
const NODE_SIZE: u64 = 1 << 31;

/// A node's size. A file system of this kind serves no character device, but the guest can say that it is one: the size tells
/// which, major number in bits 30:20, minor number in bits 19:0.
fn node_size(major: u32, minor: u32) -> u64 {
    NODE_SIZE | u64::from(major & 0x7ff) << 20 | u64::from(minor & 0xf_ffff)
}
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
    shown: Shown<T>,
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
    programs: Programs,
}

impl<T: Tree> FileSystem<T> {
    pub(super) fn new(tree: Arc<T>, layout: Layout, waiters: Arc<Waiters>) -> Self {
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
        }
    }

    fn path(&self, number: INodeNo) -> Result<Arc<str>, Errno> {
        self.inodes.path(number.0).ok_or(Errno::STALE)
    }

    fn attributes(&self, path: &Arc<str>, number: u64, entry: &Entry) -> FileAttr {
        let (kind, mode, size) = match entry {
            Entry::Directory => (FileType::Directory, 0o755, 0),
            Entry::Link(text) => (FileType::Symlink, 0o777, text.len() as u64),
            Entry::Attribute { mode } => (FileType::RegularFile, *mode, PAGE as u64),
            Entry::Binary { mode, size } => (FileType::RegularFile, *mode, *size),
            Entry::Node { major, minor } => (FileType::RegularFile, 0o600, node_size(*major, *minor)),
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
        let entry = match self.shown.entry(&path) {
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
        let entry = self.shown.entry(&path)?;
        let mut attributes = self.attributes(&path, number.0, &entry);
        // Counted only here: whoever wants to know asks anew, as nothing that was told with a name is kept.
        if entry == Entry::Directory {
            let directories = self.shown.list(&path)?.iter().filter(|(_, entry)| *entry == Entry::Directory).count();
            // More than that are in no tree.
            attributes.nlink = attributes.nlink.saturating_add(u32::try_from(directories).unwrap_or(u32::MAX));
        }
        Ok(attributes)
    }

    /// chmod(2) and chown(2).
    fn own(&self, number: INodeNo, mode: Option<u32>, user: Option<u32>, group: Option<u32>) {
        if mode.is_none() && user.is_none() && group.is_none() {
            return;
        }
        if let Ok(path) = self.path(number) {
            let mut owned = self.owned.write().unwrap_or_else(PoisonError::into_inner);
            let owned = owned.entry(path).or_default();
            // Twelve bits: what remains under the mask fits.
            owned.mode = mode.and_then(|mode| u16::try_from(mode & 0o7777).ok()).or(owned.mode);
            owned.user = user.or(owned.user);
            owned.group = group.or(owned.group);
        }
    }

    /// open(2): the handle, and how the kernel shall treat the file.
    fn open_file(&self, thread: u32, number: INodeNo, flags: OpenFlags) -> Result<(u64, FopenFlags), Errno> {
        let path = self.path(number)?;
        let entry = self.shown.entry(&path)?;
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
                // A portal can only be mapped from a file that is open for both.
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

    /// A directory's listing, with the two names that every directory has.
    fn names(&self, path: &str) -> Result<Vec<Name>, Errno> {
        let own = |name: &str, path: &str| Name {
            name: name.to_owned(),
            number: self.inodes.number(path, Type::Directory),
            kind: Type::Directory,
        };
        let mut names = vec![own(".", path), own("..", parent(path))];
        for (name, entry) in self.shown.list(path)? {
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

    /// A node's file is gone: tells of a program that wanted to map a portal.
    fn tell_of(&self, advice: Option<&PortalAdvice>) {
        if let Some(sentence) = advice.and_then(PortalAdvice::sentence) {
            self.tree.tell(&sentence);
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
        File::Node { open, advice } => {
            if let Some(advice) = advice {
                advice.has_written();
            }
            tree.write(*open, caller(thread), data)
        }
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
