//! A file in memory that only this user can write, and that one process uses at a time.
//!
//! A process that can write such a file runs as this user or as root, so it could write the memory of this process as
//! well (`/proc/PID/mem`). Mapping the file therefore trusts no further party. Programs of the same user keep out by a
//! lock; a program that ignores it can damage the data.

use rustix::fs::{
    FallocateFlags, FlockOperation, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fchmod, fcntl_add_seals,
    fcntl_get_seals, flock, fstat, fstatfs, ftruncate, memfd_create, open,
};
use rustix::process::geteuid;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// File systems in memory. Source: UAPI, linux/magic.h.
const TMPFS: i64 = 0x0102_1994;
const HUGETLBFS: i64 = 0x9584_58f6;
const RAMFS: i64 = 0x8584_58f6;

/// Why a file is not used as memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivateFileError {
    /// The system refused a call.
    #[error("cannot {action} {}", path.display())]
    Call {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Another process has locked the file.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is not in memory.
    #[error(
        "{} is not in memory; choose a file on tmpfs or hugetlbfs, or the memory file of a process",
        path.display()
    )]
    NotInMemory {
        /// The file.
        path: PathBuf,
    },
    /// Another user could write the file.
    #[error(
        "{} has owner {owner} and mode {mode:03o}, so another user can write it; it must belong to user {user}, and \
         neither group nor others may write it",
        path.display()
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

/// A locked file in memory. The lock is released when the value is dropped and when the process ends.
#[derive(Debug)]
pub struct PrivateFile {
    /// Holds the lock. No other descriptor shares this open file, so a kept copy of the file keeps no lock.
    file: OwnedFd,
    path: PathBuf,
    len: u64,
    is_sealed: bool,
    is_huge: bool,
}

impl PrivateFile {
    /// Creates an unnamed file (memfd) of `len` zero bytes. No process can change its size. Returns it, and a
    /// descriptor by which another process can keep it.
    ///
    /// # Errors
    /// [`PrivateFileError`]: the system's refusal.
    pub fn create_unnamed(name: &str, len: u64) -> Result<(PrivateFile, OwnedFd), PrivateFileError> {
        let path = PathBuf::from(format!("memfd:{name}"));
        let failed = |action| failed(action, &path);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let kept = memfd_create(name, flags).map_err(failed("create"))?;
        fchmod(&kept, Mode::RUSR | Mode::WUSR).map_err(failed("set the permissions of"))?;
        ftruncate(&kept, len).map_err(failed("set the size of"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&kept, seals).map_err(failed("seal"))?;
        Ok((PrivateFile::adopt(kept.as_fd())?, kept))
    }

    /// Creates a file of `len` zero bytes on a file system in memory, with all its memory. On hugetlbfs, `len` is
    /// rounded up to whole huge pages.
    ///
    /// # Errors
    /// [`PrivateFileError`], also if the file exists.
    pub fn create(path: &Path, len: u64) -> Result<PrivateFile, PrivateFileError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(failed("create", path))?;
        let created = PrivateFile::check(file, path).and_then(|mut created| {
            let page = fstat(&created.file).map_err(failed("examine", path))?.st_blksize.cast_unsigned();
            created.len = if created.is_huge { len.next_multiple_of(page.max(1)) } else { len };
            ftruncate(&created.file, created.len).map_err(failed("set the size of", path))?;
            created.reserve().map_err(failed("get memory for", path))?;
            Ok(created)
        });
        if created.is_err() {
            // The file is useless, and would be in the way of the next attempt.
            let _ = std::fs::remove_file(path);
        }
        created
    }

    /// Opens a file on a file system in memory, or the memory file of a process (`/proc/PID/fd/N`). A file that is not
    /// sealed gets all its memory now, so that no later access finds the file system full.
    ///
    /// # Errors
    /// [`PrivateFileError`].
    pub fn open(path: &Path) -> Result<PrivateFile, PrivateFileError> {
        let file = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(failed("open", path))?;
        let opened = PrivateFile::check(file, path)?;
        if !opened.is_sealed {
            opened.reserve().map_err(failed("get memory for", path))?;
        }
        Ok(opened)
    }

    /// Opens a file by a descriptor, which stays open and is not locked.
    ///
    /// # Errors
    /// [`PrivateFileError`].
    pub fn adopt(file: BorrowedFd<'_>) -> Result<PrivateFile, PrivateFileError> {
        // A lock belongs to an open file, which other processes may share with this descriptor: open the file anew.
        PrivateFile::open(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))
    }

    fn check(file: OwnedFd, path: &Path) -> Result<PrivateFile, PrivateFileError> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(PrivateFileError::InUse { path: path.into() }),
            Err(error) => return Err(failed("lock", path)(error)),
        }
        let about = fstat(&file).map_err(failed("examine", path))?;
        let user = geteuid().as_raw();
        let mode = about.st_mode & 0o777;
        if about.st_uid != user || mode & 0o022 != 0 {
            return Err(PrivateFileError::Writable { path: path.into(), owner: about.st_uid, mode, user });
        }
        let system = fstatfs(&file).map_err(failed("examine", path))?.f_type;
        let is_regular = rustix::fs::FileType::from_raw_mode(about.st_mode).is_file();
        if !is_regular || ![TMPFS, HUGETLBFS, RAMFS].contains(&system) {
            return Err(PrivateFileError::NotInMemory { path: path.into() });
        }
        // Only files in memory have seals; ramfs has none.
        let is_sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        let len = about.st_size.cast_unsigned();
        Ok(PrivateFile { file, path: path.into(), len, is_sealed, is_huge: system == HUGETLBFS })
    }

    /// Allocates all pages. ramfs cannot, and has no limit either.
    fn reserve(&self) -> rustix::io::Result<()> {
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, self.len.max(1)) {
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            result => result,
        }
    }

    /// The path that it was opened with.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes when it was opened.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether a seal keeps its size as it is. The memory of such a file is allocated when it is touched.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// Returns the memory of a range, which reads as zeroes afterwards.
    pub(crate) fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)?)
    }
}

impl AsFd for PrivateFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for PrivateFile {
    fn drop(&mut self) {
        // A forked child has the descriptor, too, and would keep the lock until it closes its copy; so unlock here.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(rustix::io::Errno) -> PrivateFileError {
    move |error| PrivateFileError::Call { action, path: path.into(), source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct Folder(PathBuf);

    impl Folder {
        fn on(base: &str, name: &str) -> Folder {
            let folder = Path::new(base).join(format!("telpher-{name}-{}", std::process::id()));
            std::fs::create_dir(&folder).unwrap();
            Folder(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_kept_descriptor_holds_no_lock() {
        let (file, kept) = PrivateFile::create_unnamed("test", 8192).unwrap();
        assert!(file.is_sealed() && file.len() == 8192);
        assert!(matches!(PrivateFile::adopt(kept.as_fd()), Err(PrivateFileError::InUse { .. })));
        drop(file);
        assert_eq!(PrivateFile::adopt(kept.as_fd()).unwrap().len(), 8192);
        assert!(ftruncate(&kept, 0).is_err() && ftruncate(&kept, 16384).is_err());
    }

    #[test]
    fn a_file_on_tmpfs_is_created_opened_and_locked() {
        let folder = Folder::on("/dev/shm", "private-file");
        let path = folder.0.join("file");
        let created = PrivateFile::create(&path, 10_000).unwrap();
        assert!(!created.is_sealed() && created.len() == 10_000 && created.path() == path);
        assert!(matches!(PrivateFile::open(&path), Err(PrivateFileError::InUse { .. })));
        drop(created);
        assert_eq!(PrivateFile::open(&path).unwrap().len(), 10_000);
        assert!(PrivateFile::create(&path, 10_000).is_err(), "the file exists");
    }

    #[test]
    fn a_file_that_others_can_write_is_refused() {
        let folder = Folder::on("/dev/shm", "writable-file");
        let path = folder.0.join("file");
        drop(PrivateFile::create(&path, 4096).unwrap());
        for mode in [0o620, 0o602] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = PrivateFile::open(&path).unwrap_err();
            assert!(matches!(error, PrivateFileError::Writable { mode: seen, .. } if seen == mode), "{error}");
        }
    }

    #[test]
    fn what_is_no_file_in_memory_is_refused() {
        let folder = Folder::on(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target"), "disk-file");
        let path = folder.0.join("file");
        std::fs::write(&path, [0; 4096]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        for path in [path.as_path(), Path::new("/dev/zero")] {
            let error = PrivateFile::open(path).unwrap_err();
            assert!(!matches!(error, PrivateFileError::InUse { .. } | PrivateFileError::Call { .. }), "{error}");
        }
    }
}
