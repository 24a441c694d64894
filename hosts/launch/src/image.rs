//! The preloaded library's file: one per build, in the [user's directory](crate::UserDirectory), never replaced or
//! removed; or a file that the user names.
//!
//! A program that was started in a run keeps the file's path in `LD_PRELOAD` after the run has ended, and so do all
//! programs that it executes. Each of them finds the same file there until the machine is shut down.

use crate::error::LaunchError;
use crate::sanitizer;
use crate::user_directory::{UserDirectory, is_preloadable};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fchmod, fstat, linkat, openat, renameat, unlinkat};
use rustix::io::Errno;
use rustix::io::retry_on_intr;
use rustix::process::geteuid;
use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use telpher_interpose::exec::{Name, PreloadRequirements};

/// The environment variable with the libraries that the dynamic linker loads first.
pub const PRELOAD: &str = "LD_PRELOAD";

/// Every user may load the file, and it is never written again.
const IMAGE_MODE: Mode = Mode::from_raw_mode(0o555);

/// All libraries as one compressed stream. A `static`, which is in a binary once; of a `const`, each crate that uses it
/// has a copy.
static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libraries.zst"));

/// A library to preload. This binary carries it compressed.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    /// The first part of its file name, before the hash: `telpher-run`.
    pub name: &'static str,
    /// Where its contents are.
    pub(crate) place: Place,
}

/// The place of a library in the unpacked stream, and the hash of its contents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) hash: u64,
}

impl Image {
    /// Returns the contents of the shared object. Unpacking takes milliseconds.
    pub fn bytes(&self) -> Vec<u8> {
        let unpack = || -> io::Result<Vec<u8>> {
            let mut stream = zstd::Decoder::with_buffer(PACKED)?;
            io::copy(&mut stream.by_ref().take(self.place.offset), &mut io::sink())?;
            let mut bytes = Vec::with_capacity(usize::try_from(self.place.len).expect("this machine has 64 bits"));
            stream.take(self.place.len).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        unpack().expect("the build has packed this stream")
    }

    /// Returns the name of its file.
    fn file_name(&self) -> String {
        format!("{}-{:016x}.so", self.name, self.place.hash)
    }

    /// Returns the path of the library's file. Writes the file if this build has not run before.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn place(&self, user: &UserDirectory) -> Result<PathBuf, LaunchError> {
        let name = self.file_name();
        let place = || -> Result<(), Errno> {
            let directory = user.descriptor();
            if self.is_there(directory, &name)? {
                return Ok(());
            }
            match self.write(directory, &name) {
                // Another process of this user created the file first.
                Err(Errno::EXIST) if self.is_there(directory, &name)? => Ok(()),
                // The contents differ. Only this user can have changed the file. Programs that have mapped the old file
                // keep it.
                Err(Errno::EXIST) => self.replace(directory, &name),
                done => done,
            }
        };
        place().map_err(LaunchError::errno("write the preloaded library"))?;
        Ok(user.path().join(name))
    }

    /// Writes the library to a file of the user's choice, whose directory exists, and returns its absolute path.
    ///
    /// # Errors
    /// If the file cannot be written, or `LD_PRELOAD` cannot contain its path.
    pub fn write_to(&self, path: &Path) -> Result<PathBuf, LaunchError> {
        let failed = |source| LaunchError::Library { path: path.into(), source };
        let path = std::path::absolute(path).map_err(failed)?;
        if !is_preloadable(&path) {
            return Err(LaunchError::LibraryPath { path });
        }
        telpher_os::write_file(&path, &self.bytes()).map_err(failed)?;
        std::fs::set_permissions(&path, Permissions::from_mode(IMAGE_MODE.as_raw_mode())).map_err(failed)?;
        Ok(path)
    }

    /// True if the file exists, is complete and belongs to this user.
    fn is_there(&self, directory: BorrowedFd<'_>, name: &str) -> Result<bool, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match openat(directory, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP) => return Ok(false),
            Err(errno) => return Err(errno),
        };
        let status = fstat(&file)?;
        Ok(FileType::from_raw_mode(status.st_mode) == FileType::RegularFile
            && status.st_uid == geteuid().as_raw()
            && status.st_mode & 0o777 == IMAGE_MODE.as_raw_mode()
            && u64::try_from(status.st_size).is_ok_and(|size| size == self.place.len)
            && self.is_content(&file)?)
    }

    fn is_content(&self, file: &OwnedFd) -> Result<bool, Errno> {
        let mut bytes = vec![0; usize::try_from(self.place.len).expect("this machine has 64 bits")];
        let mut rest = bytes.as_mut_slice();
        while !rest.is_empty() {
            let count = retry_on_intr(|| rustix::io::read(file, &mut *rest))?;
            if count == 0 {
                return Ok(false);
            }
            rest = &mut rest[count..];
        }
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        Ok(hasher.finish() == self.place.hash)
    }

    /// Writes the whole file before it gets its name.
    fn write(&self, directory: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
        match openat(directory, ".", OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC, Mode::RWXU) {
            Ok(file) => {
                self.fill(&file)?;
                let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
                linkat(CWD, &unnamed, directory, name, AtFlags::SYMLINK_FOLLOW)
            }
            // Some file systems do not support files without a name.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                self.write_beside(directory, |beside| linkat(directory, beside, directory, name, AtFlags::empty()))
            }
            Err(errno) => Err(errno),
        }
    }

    fn replace(&self, directory: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
        self.write_beside(directory, |beside| renameat(directory, beside, directory, name))
    }

    /// Writes the file under a temporary name, calls `settle` to give it its own name, and removes the temporary name.
    fn write_beside(
        &self,
        directory: BorrowedFd<'_>,
        settle: impl FnOnce(&str) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let beside = format!(".{}-{}", self.name, std::process::id());
        // A process with the same number may have been killed and have left its temporary file.
        let _ = unlinkat(directory, &beside, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(directory, &beside, flags, Mode::RWXU)?;
        let settled = self.fill(&file).and_then(|()| settle(&beside));
        let _ = unlinkat(directory, &beside, AtFlags::empty());
        settled
    }

    fn fill(&self, file: &OwnedFd) -> Result<(), Errno> {
        let bytes = self.bytes();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            rest = &rest[retry_on_intr(|| rustix::io::write(file, rest))?..];
        }
        fchmod(file, IMAGE_MODE)
    }
}

/// Returns the value of `LD_PRELOAD` for a program with the given `binary`: our file comes before the `present`
/// entries, but after a sanitizer's runtime.
/// In a run within a run, only the inner run's file stays: a process cannot have two of the same kind.
pub fn preload(image: &Path, name: &str, binary: &Path, present: Option<&OsStr>) -> OsString {
    let of_a_run = |entry: &&[u8]| {
        let file = entry.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let hash = file.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"-"));
        hash.and_then(|rest| rest.strip_suffix(b".so")).is_some_and(|hash| hash.iter().all(u8::is_ascii_hexdigit))
    };
    let present = present.map_or(&b""[..], OsStrExt::as_bytes);
    let others = present.split(|byte| matches!(byte, b':' | b' ')).filter(|entry| !entry.is_empty());
    let others: Vec<&[u8]> = others.filter(|entry| !of_a_run(entry)).collect();
    let first = sanitizer::runtime(binary);
    let wanted = PreloadRequirements { image: image.as_os_str().as_bytes(), first: first.as_ref().map(Name::as_bytes) };
    let mut list = Vec::new();
    wanted.compose(&others.join(&b':'), &mut |part| list.extend_from_slice(part));
    OsString::from_vec(list)
}
