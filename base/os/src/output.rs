//! Files that a command writes for its user, whose names may stand in a directory that other users write to as well.
//!
//! A new file is made beside the name and then renamed to it: no link is followed, no file is truncated in place, and a reader sees
//! the old file or the new one. The rules, by what stands at the name:
//!
//! | at the name | what happens |
//! |---|---|
//! | nothing, or a file | a new file takes the name; hard links keep the old bytes |
//! | a link of this user or of root | what it names is looked at by the same rules |
//! | a link or a pipe of another user | refused |
//! | any other pipe, a terminal, a device, an open descriptor (`/dev/stdout`) | written to as it is |
//!
//! Where the directory lets no new file in (it is not writable, or the file is a mount point of its own), a file that belongs to this
//! user and has one name is written in place. A file of this user passes its permissions on to the new one.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, readlink, renameat, stat, statfs, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Links that lead from one to the next at most, as in the kernel.
const MOST_LINKS: usize = 40;

/// `statfs` of /proc. Source: linux/magic.h.
const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// Begin of the names of files that are not yet renamed.
const FRESH: &str = ".telpher-";

/// Writes a whole file; the name shows the old bytes until all of the new ones are on the disk.
///
/// # Errors
/// If a link of another user stands at the name, or what the system says; the old file is as it was, unless it had to be written in
/// place.
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_with(path, |mut file| {
        file.write_all(bytes)?;
        // A power failure leaves the old file or the new one. A pipe or a terminal has nothing to be kept.
        match file.sync_all() {
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(()),
            other => other,
        }
    })
    .map(drop)
}

/// A new, empty file at the name, for what is written while it grows: it has its name at once, so that others can read along.
///
/// # Errors
/// As [`write_file`].
pub fn create_file(path: &Path) -> io::Result<File> {
    write_with(path, |_| Ok(()))
}

/// Finds out whether a file could be written, for commands that work long before they write. What is there stays as it is.
///
/// # Errors
/// As [`write_file`].
pub fn check_writable(path: &Path) -> io::Result<()> {
    match Target::of(path)? {
        Target::File { folder, name, there } => match Fresh::beside(&folder, &name, there) {
            Ok(fresh) => drop(fresh),
            Err(error) => drop(in_place(&folder.join(name), there, error)?),
        },
        // Opening a pipe or a device can wait, or be seen.
        Target::Special => {}
    }
    Ok(())
}

/// Opens what bytes for a path go to, writes them, and sees to it that they have the path's name.
fn write_with(path: &Path, write: impl Fn(&File) -> io::Result<()>) -> io::Result<File> {
    let (path, there, error) = match Target::of(path)? {
        Target::Special => {
            // Appends: the descriptor may be a file that others write to as well.
            let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOCTTY | OFlags::CLOEXEC;
            let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
            write(&file)?;
            return Ok(file);
        }
        Target::File { folder, name, there } => {
            let named = match Fresh::beside(&folder, &name, there) {
                Ok(fresh) => {
                    write(&fresh.file)?;
                    fresh.rename()
                }
                Err(error) => Err(error),
            };
            match named {
                Ok(file) => return Ok(file),
                Err(error) => (folder.join(name), there, error),
            }
        }
    };
    let file = in_place(&path, there, error)?;
    file.set_len(0)?;
    write(&file)?;
    Ok(file)
}

/// What a path leads to.
enum Target {
    /// Nothing yet, or a file that can be replaced.
    File {
        /// Its directory.
        folder: PathBuf,
        name: OsString,
        /// The file that is there.
        there: Option<There>,
    },
    /// Something that has no bytes to replace, or an open descriptor.
    Special,
}

/// A file that has the name already.
#[derive(Clone, Copy)]
struct There {
    owner: u32,
    permissions: u32,
}

impl There {
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
            let there = match rustix::fs::lstat(&path) {
                Err(Errno::NOENT) => return Ok(Target::File { folder, name, there: None }),
                other => other?,
            };
            match FileType::from_raw_mode(there.st_mode) {
                FileType::RegularFile => {
                    let there = There { owner: there.st_uid, permissions: there.st_mode & 0o777 };
                    return Ok(Target::File { folder, name, there: Some(there) });
                }
                FileType::Directory => return Err(Errno::ISDIR.into()),
                FileType::Symlink | FileType::Fifo => {}
                _ => return Ok(Target::Special),
            }
            // A link of /proc is an open descriptor of this process, or says that it is another's.
            if statfs(&folder)?.f_type == PROC_SUPER_MAGIC && !leads_to_a_folder(&path) {
                return Ok(Target::Special);
            }
            let is_pipe = FileType::from_raw_mode(there.st_mode) == FileType::Fifo;
            if ![rustix::process::geteuid().as_raw(), 0].contains(&there.st_uid) {
                let said = format!(
                    "{} is a {} of another user (uid {}), which is not written to; remove it, or name another file",
                    path.display(),
                    if is_pipe { "pipe" } else { "link" },
                    there.st_uid
                );
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, said));
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

/// `/proc/self` and the like.
fn leads_to_a_folder(path: &Path) -> bool {
    stat(path).is_ok_and(|there| FileType::from_raw_mode(there.st_mode) == FileType::Directory)
}

/// Opens a file of this user that cannot be replaced; where it is not one, the error that says why is the answer.
fn in_place(path: &Path, there: Option<There>, why: io::Error) -> io::Result<File> {
    let cannot_be_replaced = [Errno::ACCESS, Errno::PERM, Errno::ROFS, Errno::BUSY];
    let fits = cannot_be_replaced.iter().any(|errno| why.raw_os_error() == Some(errno.raw_os_error()));
    if !fits || !there.is_some_and(There::is_own) {
        return Err(why);
    }
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file: OwnedFd = rustix::fs::open(path, flags, Mode::empty())?;
    // It may have been replaced meanwhile.
    let found = fstat(&file)?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if !is_file || found.st_nlink != 1 || found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(why);
    }
    Ok(file.into())
}

/// A new file that has not its name yet. Dropped, it is gone.
struct Fresh {
    file: File,
    folder: OwnedFd,
    /// What it is called now.
    draft: OsString,
    /// What it will be called.
    name: OsString,
}

impl Fresh {
    fn beside(folder: &Path, name: &OsStr, there: Option<There>) -> io::Result<Fresh> {
        let at = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder, at, Mode::empty())?;
        loop {
            let mut random = [0; 8];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
            let draft = OsString::from(format!("{FRESH}{:016x}", u64::from_ne_bytes(random)));
            // EXCL follows no link, and takes no file that is there.
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = match openat(&folder, &draft, flags, Mode::from_raw_mode(0o666)) {
                Err(Errno::EXIST) => continue,
                other => other?,
            };
            let fresh = Fresh { file: file.into(), folder, draft, name: name.to_owned() };
            if let Some(there) = there.filter(|there| there.is_own()) {
                rustix::fs::fchmod(&fresh.file, Mode::from_raw_mode(there.permissions))?;
            }
            return Ok(fresh);
        }
    }

    /// Gives it its name; a link that stands there is replaced, not followed.
    fn rename(mut self) -> io::Result<File> {
        renameat(&self.folder, &self.draft, &self.folder, &self.name)?;
        self.draft.clear();
        self.file.try_clone()
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if !self.draft.is_empty() {
            // Nothing can be done about one that stays.
            let _ = unlinkat(&self.folder, &self.draft, AtFlags::empty());
        }
    }
}
