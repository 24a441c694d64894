//! Files whose bytes survive the process and, as far as the system and the CPU promise it, a loss of power.
//!
//! ```text
//! open ──► regular file? on a file system that survives? ours alone, locked? ──► mmap(MAP_SYNC)
//!                                                                         accepted │    │ refused
//!                                                          write back cache lines ◄┘    └► msync(2)
//! ```

use super::Mapping;
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::fs::{fallocate, flock, fstat, fstatfs, fsync, ftruncate, open};
use rustix::process::geteuid;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

/// File systems whose content ends with the system. Source: UAPI, linux/magic.h.
const VOLATILE: [i64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// A file cannot be used for durable bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DurableFileError {
    /// The system refused.
    #[error("cannot {action} {}", path.display())]
    System {
        /// What was attempted, as a verb phrase.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Its bytes would not survive.
    #[error(
        "{} is on a file system in memory (type {system:#x}), so its bytes do not survive; use a file on a disk or on \
         persistent memory", path.display()
    )]
    InMemory {
        /// The file.
        path: PathBuf,
        /// The type of its file system.
        system: i64,
    },
    /// It has no bytes, or it is no regular file.
    #[error("{} is empty or no regular file; create it with its final size", path.display())]
    NoBytes {
        /// The file.
        path: PathBuf,
    },
    /// Another process has locked it.
    #[error("{} is in use by another process; wait for its end, or use another file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Other users may write it.
    #[error(
        "{} belongs to user {owner} with permissions {mode:o}, so others than this process (user {user}) may write it; \
         change its owner, or remove the permissions (chmod go-w)", path.display()
    )]
    Writable {
        /// The file.
        path: PathBuf,
        /// The user that owns it.
        owner: u32,
        /// Its permission bits.
        mode: u32,
        /// The user of this process.
        user: u32,
    },
}

/// What makes stored bytes durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Persistence {
    /// Persistent memory, mapped without a page cache (DAX, MAP_SYNC): a cache line that was written back is durable.
    Lines,
    /// The system's page cache: msync(2) writes pages to the disk.
    Pages,
}

/// A regular file, locked and mapped, whose bytes survive once [`persist`](DurableFile::persist) has returned for them.
///
/// The permissions keep other users from changing the bytes while they are mapped, and the lock keeps out programs that
/// take it. A program of this user that ignores the lock must not change or truncate the file. A file system that is
/// stacked on one in memory (overlayfs on tmpfs) is not recognised.
#[derive(Debug)]
pub struct DurableFile {
    mapping: Mapping,
    len: usize,
    persistence: Persistence,
    path: PathBuf,
    /// Holds the lock.
    file: OwnedFd,
}

impl DurableFile {
    /// Creates a file of `len` zero bytes, with its blocks on the disk and its name in the folder.
    ///
    /// # Errors
    /// [`DurableFileError`], also if the file exists.
    pub fn create(path: &Path, len: u64) -> Result<DurableFile, DurableFileError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(failed("create", path))?;
        let created = ftruncate(&file, len).map_err(failed("set the size of", path)).and_then(|()| {
            let created = DurableFile::check(file, path)?;
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let folder_file = open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
            let folder_file = folder_file.map_err(failed("open", folder))?;
            fsync(&created.file).map_err(failed("write", path))?;
            fsync(&folder_file).map_err(failed("write", folder))?;
            Ok(created)
        });
        if created.is_err() {
            // The file is useless, and would be in the way of the next attempt.
            let _ = std::fs::remove_file(path);
        }
        created
    }

    /// Opens a file. It gets all its blocks now, so that no later write finds the disk full.
    ///
    /// # Errors
    /// [`DurableFileError`].
    pub fn open(path: &Path) -> Result<DurableFile, DurableFileError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        DurableFile::check(open(path, flags, Mode::empty()).map_err(failed("open", path))?, path)
    }

    fn check(file: OwnedFd, path: &Path) -> Result<DurableFile, DurableFileError> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(DurableFileError::InUse { path: path.into() }),
            Err(error) => return Err(failed("lock", path)(error)),
        }
        let about = fstat(&file).map_err(failed("examine", path))?;
        let (user, mode) = (geteuid().as_raw(), about.st_mode & 0o777);
        let len = usize::try_from(about.st_size).unwrap_or(0);
        if !rustix::fs::FileType::from_raw_mode(about.st_mode).is_file() || len == 0 {
            return Err(DurableFileError::NoBytes { path: path.into() });
        }
        if about.st_uid != user || mode & 0o022 != 0 {
            return Err(DurableFileError::Writable { path: path.into(), owner: about.st_uid, mode, user });
        }
        let system = fstatfs(&file).map_err(failed("examine", path))?.f_type;
        if VOLATILE.contains(&system) {
            return Err(DurableFileError::InMemory { path: path.into(), system });
        }
        fallocate(&file, FallocateFlags::empty(), 0, len as u64).map_err(failed("get disk space for", path))?;
        let (base, persistence) = match map(&file, len, libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC) {
            Ok(base) => (base, Persistence::Lines),
            // The usual case: no persistent memory, or a file system that does not map it directly.
            Err(_) => {
                let base = map(&file, len, libc::MAP_SHARED);
                (base.map_err(|source| system_error("map", path, source))?, Persistence::Pages)
            }
        };
        Ok(DurableFile { mapping: Mapping { base, len }, len, persistence, path: path.into(), file })
    }

    /// Returns the number of bytes; never 0.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns what makes its bytes durable.
    #[must_use]
    pub fn persistence(&self) -> Persistence {
        self.persistence
    }

    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: our own mapping of `len` bytes, readable and initialised by the kernel. `bytes_mut` needs the file
        // mutably. The permissions keep other users from changing it, and the lock other programs (see the type).
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr(), self.len) }
    }

    /// Returns the bytes to write them. They are not durable before [`persist`](DurableFile::persist).
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the mapping is writable, and this borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.as_ptr(), self.len) }
    }

    /// Makes bytes durable that were stored before. With [`Persistence::Lines`] the caller has written their cache
    /// lines back, and this does nothing; with [`Persistence::Pages`] it returns when the disk has them.
    ///
    /// # Errors
    /// [`DurableFileError::System`], for example an error of the disk; the bytes are then not known to be durable.
    ///
    /// # Panics
    /// If the range does not lie in the file.
    pub fn persist(&self, range: Range<usize>) -> Result<(), DurableFileError> {
        assert!(range.start <= range.end && range.end <= self.len, "the range lies in the file");
        if self.persistence == Persistence::Lines || range.is_empty() {
            return Ok(());
        }
        let first = range.start / super::SMALL_BYTES * super::SMALL_BYTES;
        // SAFETY: whole pages of our own mapping; no byte changes.
        let failed = unsafe { libc::msync(self.mapping.as_ptr().add(first).cast(), range.end - first, libc::MS_SYNC) };
        match failed {
            0 => Ok(()),
            _ => Err(system_error("write", &self.path, io::Error::last_os_error())),
        }
    }
}

fn map(file: &OwnedFd, len: usize, flags: i32) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: without MAP_FIXED the system picks an unused range; the file is open.
    let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(base.cast()).expect("mmap gives no null page without MAP_FIXED"))
}

fn system_error(action: &'static str, path: &Path, source: io::Error) -> DurableFileError {
    DurableFileError::System { action, path: path.into(), source }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(rustix::io::Errno) -> DurableFileError {
    move |error| system_error(action, path, error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("telpher-durable-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn bytes_are_there_when_the_file_is_opened_again() {
        let path = path("again");
        match DurableFile::create(&path, 10_000) {
            Ok(mut file) => {
                assert_eq!((file.len(), file.bytes()), (10_000, &[0; 10_000][..]));
                file.bytes_mut()[5000..5003].copy_from_slice(b"abc");
                file.persist(5000..5003).unwrap();
                assert!(matches!(DurableFile::open(&path), Err(DurableFileError::InUse { .. })));
                drop(file);
                assert_eq!(&DurableFile::open(&path).unwrap().bytes()[4999..5004], b"\0abc\0");
                std::fs::remove_file(&path).unwrap();
            }
            // The machine's temporary folder is in memory.
            Err(error) => assert!(matches!(error, DurableFileError::InMemory { .. }), "{error}"),
        }
    }

    #[test]
    fn files_that_do_not_survive_or_that_others_may_write_are_refused() {
        let memory = Path::new("/dev/shm").join(format!("telpher-durable-{}", std::process::id()));
        if Path::new("/dev/shm").is_dir() {
            let error = DurableFile::create(&memory, 4096).unwrap_err();
            assert!(matches!(error, DurableFileError::InMemory { .. }), "{error}");
            assert!(!memory.exists());
        }
        let path = path("refused");
        std::fs::write(&path, b"").unwrap();
        assert!(matches!(DurableFile::open(&path), Err(DurableFileError::NoBytes { .. })));
        std::fs::write(&path, b"x").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
        assert!(matches!(DurableFile::open(&path), Err(DurableFileError::Writable { mode: 0o666, .. })));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(DurableFile::open(&path), Err(DurableFileError::System { action: "open", .. })));
        assert!(matches!(DurableFile::open(&std::env::temp_dir()), Err(DurableFileError::System { .. })));
    }
}
