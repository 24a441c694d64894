//! The tree as real directories in the run directory, for the preloaded view.
//!
//! ```text
//! /sys/bus/dsa/devices/wq0.0 ──► <run>/view/sys/bus/dsa/devices/wq0.0     a link with the same text
//! ```
//!
//! Directories and links are real, and the links lead to entries of this tree. Files are placeholders that the guest
//! recognises by their path: an attribute has its permission bits and an empty page, a queue's node has the text
//! `MAJOR:MINOR`, and a file outside /sys and /dev (/proc/cpuinfo) has its own text. A directory that the machine has
//! too contains a marker file.

use crate::host::{Host, Watcher};
use crate::kernel::Kernel;
use crate::tree::{Entry, Errno};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fchmod, ftruncate, mkdirat, openat, statat, symlinkat, unlinkat};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Name of the marker file in directories that the machine has too; the guest hides it.
const MARKER: &str = ".telpher-merged";
/// Size of an attribute in bytes: a page. Source: K612 `fs/sysfs/file.c`.
const ATTRIBUTE_BYTES: u64 = 4096;
/// Mode of directories in sysfs.
const DIRECTORY_MODE: u32 = 0o755;

/// The shadow tree, updated with every change of the driver's tree.
#[derive(Debug)]
pub struct Shadow {
    directory: PathBuf,
    root: OwnedFd,
    /// The entries that have been created, by directory.
    made: BTreeMap<String, BTreeMap<String, Entry>>,
    /// Texts of the files that are not placeholders.
    texts: BTreeMap<String, Vec<u8>>,
    /// The process's umask clears bits that must be set again.
    masked: bool,
    /// The user has been told that the tree could not be updated.
    warned: bool,
}

impl Shadow {
    /// Creates the tree in a new directory.
    ///
    /// # Errors
    /// The system's error; in a new directory only a lack of space is likely.
    pub fn create(directory: &Path, host: &Host) -> Result<Self, Errno> {
        mkdirat(CWD, directory, Mode::from_raw_mode(DIRECTORY_MODE))?;
        let masked = statat(CWD, directory, AtFlags::empty())?.st_mode & 0o777 != DIRECTORY_MODE;
        let root = openat(CWD, directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let own_text = |path: &&String| !path.starts_with("/sys/") && !path.starts_with("/dev/");
        let texts = host
            .roots()
            .iter()
            .filter(own_text)
            .filter_map(|path| Some((path.clone(), host.show(path).ok()?)))
            .collect();
        let mut shadow =
            Shadow { directory: directory.into(), root, made: BTreeMap::new(), texts, masked, warned: false };
        host.with_kernel(|kernel| shadow.fill_all(kernel))?;
        Ok(shadow)
    }

    fn fill_all(&mut self, kernel: &Kernel) -> Result<(), Errno> {
        let merged = kernel.merged();
        let mut marked = BTreeSet::new();
        for path in &merged {
            // Every parent directory is the machine's too.
            for (end, _) in path.match_indices('/').skip(1).chain([(path.len(), "")]) {
                let path = &path[..end];
                if end > 1 && marked.insert(path) {
                    self.make_directory(self.root.as_fd(), relative(path))?;
                    self.make_file(self.root.as_fd(), &format!("{}/{MARKER}", relative(path)), 0o444, 0, b"")?;
                }
            }
        }
        merged.iter().try_for_each(|path| self.update(kernel, path))
    }

    /// Updates the entries of a directory and, recursively, of new directories in it.
    fn update(&mut self, kernel: &Kernel, path: &str) -> Result<(), Errno> {
        // A directory that no longer exists has been removed with its parent's entry.
        let Ok(wanted) = kernel.list(path) else { return Ok(()) };
        let had = self.made.remove(path).unwrap_or_default();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let here = openat(&self.root, if path == "/" { "." } else { relative(path) }, flags, Mode::empty())?;
        let mut kept = BTreeMap::new();
        let mut deeper = Vec::new();
        for (name, entry) in wanted {
            if had.get(&name) == Some(&entry) {
                kept.insert(name, entry);
                continue;
            }
            if let Some(old) = had.get(&name) {
                self.remove(here.as_fd(), path, &name, old)?;
            }
            self.make(here.as_fd(), path, &name, &entry)?;
            if entry == Entry::Directory {
                deeper.push(join(path, &name));
            }
            kept.insert(name, entry);
        }
        for (name, old) in had.iter().filter(|(name, _)| !kept.contains_key(*name)) {
            self.remove(here.as_fd(), path, name, old)?;
        }
        self.made.insert(path.into(), kept);
        deeper.iter().try_for_each(|path| self.update(kernel, path))
    }

    fn make(&self, here: BorrowedFd<'_>, path: &str, name: &str, entry: &Entry) -> Result<(), Errno> {
        match entry {
            Entry::Directory => self.make_directory(here, name),
            Entry::Link(text) => symlinkat(text.as_str(), here, name),
            Entry::Node { major, minor } => self.make_file(here, name, 0o600, 0, format!("{major}:{minor}").as_bytes()),
            Entry::Attribute { mode } | Entry::Binary { mode, .. } => {
                let size = if let Entry::Binary { size, .. } = entry { *size } else { ATTRIBUTE_BYTES };
                match self.texts.get(&join(path, name)) {
                    Some(text) => self.make_file(here, name, (*mode).into(), 0, text),
                    None => self.make_file(here, name, (*mode).into(), size, b""),
                }
            }
        }
    }

    fn make_directory(&self, here: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
        match mkdirat(here, name, Mode::from_raw_mode(DIRECTORY_MODE)) {
            // Several paths lead through this directory.
            Err(Errno::EXIST) => return Ok(()),
            made => made?,
        }
        if self.masked {
            rustix::fs::chmodat(here, name, Mode::from_raw_mode(DIRECTORY_MODE), AtFlags::empty())?;
        }
        Ok(())
    }

    fn make_file(&self, here: BorrowedFd<'_>, name: &str, mode: u32, size: u64, text: &[u8]) -> Result<(), Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(here, name, flags, Mode::from_raw_mode(mode))?;
        if self.masked {
            fchmod(&file, Mode::from_raw_mode(mode))?;
        }
        if size > 0 {
            ftruncate(&file, size)?;
        }
        let mut rest = text;
        while !rest.is_empty() {
            rest = &rest[rustix::io::write(&file, rest)?..];
        }
        Ok(())
    }

    fn remove(&mut self, here: BorrowedFd<'_>, path: &str, name: &str, entry: &Entry) -> Result<(), Errno> {
        let flags = if *entry == Entry::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        if *entry == Entry::Directory {
            let path = join(path, name);
            let inside = openat(here, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
            for (name, entry) in self.made.remove(&path).unwrap_or_default() {
                self.remove(inside.as_fd(), &path, &name, &entry)?;
            }
        }
        unlinkat(here, name, flags)
    }
}

impl Watcher for Shadow {
    fn changed(&mut self, kernel: &Kernel, directories: &[String]) {
        let result = directories.iter().try_for_each(|path| self.update(kernel, path));
        if let (Err(errno), false) = (result, self.warned) {
            self.warned = true;
            let _ = writeln!(
                std::io::stderr(),
                "telpher run: the device's files in {} cannot be kept up to date: {errno}; free space there, or \
                 set TELPHER_RUNTIME_DIR to a directory with free space",
                self.directory.display()
            );
        }
    }
}

/// An absolute path relative to the root of the tree.
fn relative(path: &str) -> &str {
    path.trim_start_matches('/')
}

fn join(path: &str, name: &str) -> String {
    if path == "/" { format!("/{name}") } else { format!("{path}/{name}") }
}
