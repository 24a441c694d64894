//! Writes files for the user of a command, in directories that other users may write to as well.
//!
//! A new file is created beside the name and then renamed to it. No link is followed and no file is truncated in place;
//! a reader sees the old file or the new one. The rules depend on what exists at the name:
//!
//! | at the name | what happens |
//! |---|---|
//! | nothing, or a file | a new file takes the name; hard links keep the old bytes |
//! | a link of this user or of root | its target is treated by the same rules |
//! | a link or a pipe of another user | refused |
//! | any other pipe, a terminal, a device, an open descriptor (`/dev/stdout`) | written to directly |
//!
//! If no new file can be created in the directory (it is not writable, or the file is a mount point of its own), a file
//! that belongs to this user and has one name is written in place. The new file gets the permissions of the old one if
//! that belongs to this user.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, readlink, renameat, stat, statfs, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The most links followed, as in the kernel.
const MOST_LINKS: usize = 40;

/// `statfs` of /proc. Source: linux/magic.h.
const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// Prefix of the names of files that are not yet renamed.
const DRAFT_PREFIX: &str = ".telpher-";

/// Writes a whole file. The name shows the old bytes until all new ones are on the disk.
///
/// # Errors
/// If a link of another user exists at the name, or the system's error. The old file is unchanged, unless it had to be
/// written in place.
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_with(path, |mut file| {
        file.write_all(bytes)?;
        // After a power failure the old file or the new one exists. A pipe or a terminal cannot be synced.
        match file.sync_all() {
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(()),
            other => other,
        }
    })
    .map(drop)
}

/// Creates a new, empty file for output that is written over time. It gets its name at once, so that other programs can
/// read along.
///
/// # Errors
/// As [`write_file`].
pub fn create_file(path: &Path) -> io::Result<File> {
    write_with(path, |_| Ok(()))
}

/// Checks whether a file could be written, for commands that work for a long time before they write. An existing file
/// stays unchanged.
///
/// # Errors
/// As [`write_file`].
pub fn check_writable(path: &Path) -> io::Result<()> {
    match Target::of(path)? {
        Target::File { folder, name, existing } => match DraftFile::beside(&folder, &name, existing) {
            Ok(draft_file) => drop(draft_file),
            Err(error) => drop(in_place(&folder.join(name), existing, error)?),
        },
        // Opening a pipe or a device could block, or be noticed by its reader.
        Target::Special => {}
    }
    Ok(())
}

/// Opens the target of a path, calls `write` with it, and gives a new file the path's name.
fn write_with(path: &Path, write: impl Fn(&File) -> io::Result<()>) -> io::Result<File> {
    let (path, existing, error) = match Target::of(path)? {
        Target::Special => {
            // Appends: other programs may write to the same file.
            let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOCTTY | OFlags::CLOEXEC;
            let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
            write(&file)?;
            return Ok(file);
        }
        Target::File { folder, name, existing } => {
            let named = match DraftFile::beside(&folder, &name, existing) {
                Ok(draft_file) => {
                    write(&draft_file.file)?;
                    draft_file.rename()
                }
                Err(error) => Err(error),
            };
            match named {
                Ok(file) => return Ok(file),
                Err(error) => (folder.join(name), existing, error),
            }
        }
    };
    let file = in_place(&path, existing, error)?;
    file.set_len(0)?;
    write(&file)?;
    Ok(file)
}

/// The target of a path.
enum Target {
    /// No file yet, or a file that can be replaced.
    File {
        /// Its directory.
        folder: PathBuf,
        name: OsString,
        /// The existing file.
        existing: Option<ExistingFile>,
    },
    /// A target without bytes to replace, or an open descriptor.
    Special,
}

/// A file that already has the name.
#[derive(Clone, Copy)]
struct ExistingFile {
    owner: u32,
    permissions: u32,
}

impl ExistingFile {
    fn is_own(self) -> bool {
        self.owner == rustix::process::geteuid().as_raw()
    }
}

impl Target {
    fn of(path: &Path) -> io::Result<Target> {
        let mut path = path.to_owned();
        for _ in 0..MOST_LINKS {
            let name = path.file_name().map(OsStr::to_owned).ok_or(Errno::ISDIR)?;
            let folder = match path.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
                _ => PathBuf::from("."),
            };
            let existing = match rustix::fs::lstat(&path) {
                Err(Errno::NOENT) => return Ok(Target::File { folder, name, existing: None }),
                other => other?,
            };
            match FileType::from_raw_mode(existing.st_mode) {
                FileType::RegularFile => {
                    let existing = ExistingFile { owner: existing.st_uid, permissions: existing.st_mode & 0o777 };
                    return Ok(Target::File { folder, name, existing: Some(existing) });
                }
                FileType::Directory => return Err(Errno::ISDIR.into()),
                FileType::Symlink | FileType::Fifo => {}
                _ => return Ok(Target::Special),
            }
            // A link in /proc is an open descriptor of this process; one of another process is reported as an error
            // when it is opened.
            if statfs(&folder)?.f_type == PROC_SUPER_MAGIC && !leads_to_a_directory(&path) {
                return Ok(Target::Special);
            }
            let is_pipe = FileType::from_raw_mode(existing.st_mode) == FileType::Fifo;
            if ![rustix::process::geteuid().as_raw(), 0].contains(&existing.st_uid) {
                let message = format!(
                    "{} is a {} of another user (uid {}); telpher does not write to it; remove it, or choose another \
                     file",
                    path.display(),
                    if is_pipe { "pipe" } else { "link" },
                    existing.st_uid
                );
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
            }
            if is_pipe {
                return Ok(Target::Special);
            }
            let next = OsString::from_vec(readlink(&path, Vec::new())?.into_bytes());
            path = folder.join(next);
        }
        Err(Errno::LOOP.into())
    }
}

/// True for links like `/proc/self`, which lead to a directory.
fn leads_to_a_directory(path: &Path) -> bool {
    stat(path).is_ok_and(|existing| FileType::from_raw_mode(existing.st_mode) == FileType::Directory)
}

/// Opens a file of this user that cannot be replaced. If it is not such a file, returns `why`.
fn in_place(path: &Path, existing: Option<ExistingFile>, why: io::Error) -> io::Result<File> {
    let cannot_be_replaced = [Errno::ACCESS, Errno::PERM, Errno::ROFS, Errno::BUSY];
    let fits = cannot_be_replaced.iter().any(|errno| why.raw_os_error() == Some(errno.raw_os_error()));
    if !fits || !existing.is_some_and(ExistingFile::is_own) {
        return Err(why);
    }
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file: OwnedFd = rustix::fs::open(path, flags, Mode::empty())?;
    // The file may have been replaced meanwhile.
    let found = fstat(&file)?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if !is_file || found.st_nlink != 1 || found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(why);
    }
    Ok(file.into())
}

/// A new file that does not have its final name yet. Dropping it deletes it.
struct DraftFile {
    file: File,
    folder: OwnedFd,
    /// Its temporary name.
    draft: OsString,
    /// Its final name.
    name: OsString,
}

impl DraftFile {
    fn beside(folder: &Path, name: &OsStr, existing: Option<ExistingFile>) -> io::Result<DraftFile> {
        let at = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder, at, Mode::empty())?;
        loop {
            let mut random = [0; 8];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
            let draft = OsString::from(format!("{DRAFT_PREFIX}{:016x}", u64::from_ne_bytes(random)));
            // EXCL follows no link and opens no existing file.
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = match openat(&folder, &draft, flags, Mode::from_raw_mode(0o666)) {
                Err(Errno::EXIST) => continue,
                other => other?,
            };
            let draft_file = DraftFile { file: file.into(), folder, draft, name: name.to_owned() };
            if let Some(existing) = existing.filter(|existing| existing.is_own()) {
                rustix::fs::fchmod(&draft_file.file, Mode::from_raw_mode(existing.permissions))?;
            }
            return Ok(draft_file);
        }
    }

    /// Gives the file its final name. An existing link there is replaced, not followed.
    fn rename(mut self) -> io::Result<File> {
        renameat(&self.folder, &self.draft, &self.folder, &self.name)?;
        self.draft.clear();
        self.file.try_clone()
    }
}

impl Drop for DraftFile {
    fn drop(&mut self) {
        if !self.draft.is_empty() {
            // If the file cannot be deleted, there is no further remedy.
            let _ = unlinkat(&self.folder, &self.draft, AtFlags::empty());
        }
    }
}
