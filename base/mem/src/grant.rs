//! Memory that a process grants to others, and the file that stands for the grant.
//!
//! ```text
//! owner                                                       others
//! MemoryGrant::new ──► file: address, length, access, state ──► GrantedMemory::open
//!   writes it; the others cannot (sealed)                         the owner's memory, if it maps the file
//! MemoryGrant::revoke: state, then waits for the lock       ◄── each access: lock, state, range, permission
//! ```
//!
//! The bytes stay in the owner's private memory. Another process reaches them through `/proc/PID/mem`, which the kernel
//! binds to the address space in which it was opened: not to a process that gets the same number later, nor to a
//! program that the owner executes later. The kernel opens it only for a process that may trace the owner. So a grant
//! keeps programs that use this module to what was granted. It is no defence against a program that may trace the owner
//! and does not use this module.
#![allow(unsafe_code, reason = "declares what callers promise about the granted bytes")]

use crate::process_memory::ProcessMemory;
use crate::{MapError, PAGE_BYTES, SharedError, SharedMapping, SharedWords64};
use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::fs::{fcntl_add_seals, fcntl_get_seals, flock, fstat, ftruncate, major, memfd_create, minor, open};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use telpher_os::Lineage;

/// Begins the file of a grant: "telpher" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"telpher\x01");

/// The words of the file.
const WORDS: usize = 6;
const AT_MAGIC: usize = 0;
const AT_PROCESS: usize = 1;
const AT_ADDRESS: usize = 2;
const AT_LEN: usize = 3;
const AT_ACCESS: usize = 4;
const AT_STATE: usize = 5;

const GRANTED: u64 = 1;
const REVOKED: u64 = 2;

/// The file can no longer be shortened, or written other than through the owner's mapping.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// Time after which an access gives up if the owner neither has revoked the grant nor lets it begin. Source: chosen;
/// the owner holds the lock for some microseconds.
const LOCK_LIMIT: Duration = Duration::from_secs(1);
/// Time between two attempts to lock. Source: chosen; of the order of an access.
const LOCK_PAUSE: Duration = Duration::from_micros(50);

/// What others may do with granted memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Access {
    /// Read it.
    Read,
    /// Read and write it.
    ReadWrite,
}

impl Access {
    /// True if others may write.
    #[must_use]
    pub fn writes(self) -> bool {
        self == Access::ReadWrite
    }
}

/// Granted memory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The system refused.
    #[error("cannot {attempt}; {advice}")]
    System {
        /// What was attempted, as a verb phrase.
        attempt: &'static str,
        /// What to do.
        advice: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file does not stand for a grant of a process that still has its memory.
    #[error("the file is not a grant of memory: {why}")]
    NotAGrant {
        /// What is wrong with it.
        why: &'static str,
    },
    /// The memory is no range of this process.
    #[error("cannot grant {len} bytes at {address:#x}: the range is empty or leaves the address space")]
    Range {
        /// The address of its first byte.
        address: u64,
        /// Its length.
        len: u64,
    },
    /// The range is not in the granted memory.
    #[error("{len} bytes at offset {at} do not lie in the {size} bytes that were granted")]
    Outside {
        /// The offset of the range.
        at: u64,
        /// Its length.
        len: u64,
        /// The granted bytes.
        size: u64,
    },
    /// The memory was granted for reading only.
    #[error("the memory was granted for reading only")]
    ReadOnly,
    /// The owner has revoked the grant.
    #[error("the owner has revoked the grant")]
    Revoked,
    /// The owner has ended, executed another program, or unmapped the memory. The bytes before may have been copied.
    #[error("the owner's memory at offset {at} is gone: it has ended, or unmapped the memory")]
    Gone {
        /// The offset of the first byte that could not be accessed.
        at: u64,
    },
    /// Others still access the memory, or an opener keeps the file locked.
    #[error("the granted memory is still in use after {after:?}")]
    InUse {
        /// How long was waited.
        after: Duration,
    },
    /// The object was made before this process was forked.
    #[error("the grant was opened before this process was forked; open it again in the child")]
    Forked,
}

fn refused(attempt: &'static str, advice: &'static str) -> impl Fn(Errno) -> GrantError {
    move |source| GrantError::System { attempt, advice, source: source.into() }
}

const NO_OWNER: &str = "its owner has ended, or is in another PID namespace";
const TRACE: &str = "this process must be allowed to trace it: same user, and with Yama (kernel.yama.ptrace_scope) its \
                     ancestor or named by the owner's prctl(PR_SET_PTRACER)";
const FILES: &str = "check the limits on open files and memory";

/// Opens a file again for reading, so that its lock is this object's own.
fn reopen(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// The owner's side of granted memory. It does not keep the memory alive: that is its creator's task, until
/// [`revoke`](MemoryGrant::revoke) has succeeded; so its constructor is unsafe.
#[derive(Debug)]
pub struct MemoryGrant {
    /// What is handed to others, open for reading.
    file: OwnedFd,
    words: SharedWords64,
    /// This process' own memory.
    memory: ProcessMemory,
    made_in: Lineage,
}

impl MemoryGrant {
    /// Grants `len` bytes of this process' memory from `address` on to each process that gets
    /// [`file`](MemoryGrant::file).
    ///
    /// # Safety
    /// Other processes, and [`read`](MemoryGrant::read) and [`write`](MemoryGrant::write) here, access the bytes until
    /// [`revoke`](MemoryGrant::revoke) has succeeded. Until then:
    /// - the bytes stay mapped, and are not freed for other use, even after this value was dropped or forgotten;
    /// - no code of this process holds a reference to them, or relies on their values;
    /// - if `access` is [`Access::ReadWrite`], they are bytes that this process may write.
    ///
    /// # Errors
    /// [`GrantError::System`], or [`GrantError::Range`].
    pub unsafe fn new(address: u64, len: u64, access: Access) -> Result<MemoryGrant, GrantError> {
        if !is_range(address, len) {
            return Err(GrantError::Range { address, len });
        }
        let create = refused("create a file in memory", FILES);
        let own = memfd_create("telpher-grant", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(&create)?;
        ftruncate(&own, PAGE_BYTES).map_err(&create)?;
        let words = map(own.as_fd(), true)?;
        let contents = [MAGIC, std::process::id().into(), address, len, access.writes().into(), GRANTED];
        for (word, value) in words.iter().zip(contents) {
            // Relaxed: no other process has the file yet.
            word.store(value, Ordering::Relaxed);
        }
        let not_inherited = |error: MapError| GrantError::System {
            attempt: "keep the file's mapping from forked children",
            advice: "this needs Linux",
            source: error.source,
        };
        words.mapping().keep_from_children().map_err(not_inherited)?;
        fcntl_add_seals(&own, SEALS).map_err(refused("seal a file in memory", "this needs Linux 5.1"))?;
        let file = reopen(own.as_fd()).map_err(refused("open the file of the grant again", "/proc must be mounted"))?;
        let memory = ProcessMemory::own(access.writes()).map_err(|source| GrantError::System {
            attempt: "open /proc/self/mem",
            advice: "/proc must be mounted",
            source,
        })?;
        Ok(MemoryGrant { file, words, memory, made_in: Lineage::current() })
    }

    /// The file that stands for the grant, to hand to other processes: by fork, by a Unix socket, or by pidfd_getfd(2).
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Number of granted bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        if self.made_in.is_current() { self.word(AT_LEN) } else { 0 }
    }

    fn word(&self, at: usize) -> u64 {
        // Relaxed: only this process writes it.
        self.words[at].load(Ordering::Relaxed)
    }

    /// Reads granted bytes, which others may be writing, into `into`.
    ///
    /// # Errors
    /// [`GrantError::Outside`] and [`GrantError::Gone`].
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), GrantError> {
        let address = self.locate(at, into.len())?;
        self.memory.read(address, into).map_err(|done| GrantError::Gone { at: at + done })
    }

    /// Writes granted bytes, which others may be reading.
    ///
    /// # Errors
    /// [`GrantError::Outside`], [`GrantError::Gone`], and [`GrantError::ReadOnly`] if others may only read: then the
    /// memory may be shared with code that relies on its bytes.
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), GrantError> {
        let address = self.locate(at, from.len())?;
        if self.word(AT_ACCESS) == 0 {
            return Err(GrantError::ReadOnly);
        }
        self.memory.write(address, from).map_err(|done| GrantError::Gone { at: at + done })
    }

    fn locate(&self, at: u64, len: usize) -> Result<u64, GrantError> {
        if !self.made_in.is_current() {
            return Err(GrantError::Forked);
        }
        range(at, len as u64, self.word(AT_LEN))?;
        Ok(self.word(AT_ADDRESS) + at)
    }

    /// Ends the grant: no access begins any more. Returns when no access is in progress; then the memory is its owner's
    /// alone. May be called again if it failed.
    ///
    /// A forked child does not end the grant of its parent; for it, this does nothing.
    ///
    /// # Errors
    /// [`GrantError::InUse`] if an access does not end in time: its process is stopped, or keeps the file locked.
    pub fn revoke(&self, within: Duration) -> Result<(), GrantError> {
        if !self.made_in.is_current() {
            return Ok(());
        }
        // Release: pairs with the Acquire in `enter`. The lock's system calls order it with openers that hold the lock.
        self.words[AT_STATE].store(REVOKED, Ordering::Release);
        lock(&self.file, FlockOperation::NonBlockingLockExclusive, within, || false)?;
        // Later openers must get the lock to see that the grant is revoked.
        let _ = flock(&self.file, FlockOperation::Unlock);
        Ok(())
    }
}

/// Maps the words of a grant's file.
fn map(file: BorrowedFd<'_>, writable: bool) -> Result<SharedWords64, GrantError> {
    let mapping = if writable {
        SharedMapping::map(file, 0, PAGE_BYTES)
    } else {
        SharedMapping::map_readable(file, 0, PAGE_BYTES)
    };
    let failed = |error: SharedError| match error {
        SharedError::Map(error) => {
            GrantError::System { attempt: "map the file of a grant", advice: error.advice, source: error.source }
        }
        _ => GrantError::NotAGrant { why: "it is too short" },
    };
    let mapping = Arc::new(mapping.map_err(failed)?);
    SharedWords64::new(&mapping, 0, WORDS).ok_or(GrantError::NotAGrant { why: "it is too short" })
}

/// Locks a file, in several attempts within `limit` or until `give_up`.
fn lock(file: &OwnedFd, how: FlockOperation, limit: Duration, give_up: impl Fn() -> bool) -> Result<(), GrantError> {
    let start = Instant::now();
    loop {
        match flock(file, how) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(error) => return Err(refused("lock the file of a grant", FILES)(error)),
        }
        if give_up() {
            return Err(GrantError::Revoked);
        }
        let after = start.elapsed();
        if after >= limit {
            return Err(GrantError::InUse { after });
        }
        std::thread::sleep(LOCK_PAUSE.min(limit - after));
    }
}

/// True for a range of addresses that a process can have, and that a file of memory can name.
fn is_range(address: u64, len: u64) -> bool {
    len > 0 && address.checked_add(len).is_some_and(|end| i64::try_from(end).is_ok())
}

fn range(at: u64, len: u64, size: u64) -> Result<(), GrantError> {
    if at <= size && len <= size - at { Ok(()) } else { Err(GrantError::Outside { at, len, size }) }
}

/// Memory of another process that it has granted; also of this process, for programs that are both sides.
///
/// **Assumption.** A page of the owner that has to be brought in is brought in by the kernel. An owner that answers its
/// page faults itself (userfaultfd) can delay an access, and only a signal ends it then.
#[derive(Debug)]
pub struct GrantedMemory {
    file: GrantFile,
    memory: ProcessMemory,
    /// Accesses in progress, which share one lock of the file.
    users: Mutex<u32>,
    opened_in: Lineage,
}

/// An access in progress.
struct InUse<'a>(&'a GrantedMemory);

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        let mut users = self.0.users.lock().unwrap_or_else(PoisonError::into_inner);
        *users -= 1;
        if *users == 0 {
            let _ = flock(&self.0.file.file, FlockOperation::Unlock);
        }
    }
}

/// What the file of a grant says.
#[derive(Debug)]
pub struct GrantFile {
    /// Opened by this object, so that its lock is no other's.
    file: OwnedFd,
    words: SharedWords64,
    address: u64,
    len: u64,
    access: Access,
}

impl GrantFile {
    /// Reads the file that an owner has handed over. Whether the owner exists is not checked.
    ///
    /// # Errors
    /// [`GrantError::NotAGrant`], [`GrantError::Revoked`], or the system's refusal.
    pub fn open(file: BorrowedFd<'_>) -> Result<GrantFile, GrantError> {
        let not = |why| GrantError::NotAGrant { why };
        // Before anything is read: nothing but the owner's mapping can change or shorten such a file.
        if !fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS)) {
            return Err(not("it is not sealed"));
        }
        let file = reopen(file).map_err(refused("open the file of a grant again", "/proc must be mounted"))?;
        let words = map(file.as_fd(), false)?;
        // Relaxed: constant since before the file was handed over.
        let word = |at: usize| words[at].load(Ordering::Relaxed);
        if word(AT_MAGIC) != MAGIC {
            return Err(not("it was made by something else"));
        }
        let (address, len) = (word(AT_ADDRESS), word(AT_LEN));
        if !is_range(address, len) {
            return Err(not("its range wraps"));
        }
        let access = if word(AT_ACCESS) & 1 == 1 { Access::ReadWrite } else { Access::Read };
        let described = GrantFile { file, words, address, len, access };
        if described.is_revoked() { Err(GrantError::Revoked) } else { Ok(described) }
    }

    /// Number of granted bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The address of the first byte in its owner.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// What other processes may do with it.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// True once the owner has revoked the grant.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        // Acquire: pairs with the Release in `revoke`.
        self.words[AT_STATE].load(Ordering::Acquire) != GRANTED
    }

    /// Checks that a range lies in the granted memory and may be accessed in this way.
    ///
    /// # Errors
    /// [`GrantError::Outside`], [`GrantError::ReadOnly`], [`GrantError::Revoked`].
    pub fn check(&self, at: u64, len: u64, write: bool) -> Result<(), GrantError> {
        range(at, len, self.len)?;
        if write && !self.access.writes() {
            return Err(GrantError::ReadOnly);
        }
        if self.is_revoked() { Err(GrantError::Revoked) } else { Ok(()) }
    }
}

impl GrantedMemory {
    /// Opens granted memory by the file that its owner has handed over.
    ///
    /// # Errors
    /// [`GrantError::NotAGrant`], [`GrantError::Revoked`], or the system's refusal: usually this process may not trace
    /// the owner.
    pub fn open(file: BorrowedFd<'_>) -> Result<GrantedMemory, GrantError> {
        let file = GrantFile::open(file)?;
        let not = |why| GrantError::NotAGrant { why };
        // Relaxed: constant since before the file was handed over.
        let process = file.words[AT_PROCESS].load(Ordering::Relaxed);
        let process = u32::try_from(process).map_err(|_| not("it names no process"))?;
        // First the memory, then the mappings: if the mappings are those of the owner, so was the memory.
        let memory = ProcessMemory::of(process, file.access.writes()).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => not(NO_OWNER),
            _ => GrantError::System { attempt: "open the memory of the grant's owner", advice: TRACE, source },
        })?;
        if !is_mapped_by_owner(process, file.file.as_fd())? {
            return Err(not(NO_OWNER));
        }
        Ok(GrantedMemory { file, memory, users: Mutex::new(0), opened_in: Lineage::current() })
    }

    /// What the file of the grant says.
    #[must_use]
    pub fn file(&self) -> &GrantFile {
        &self.file
    }

    /// Begins an access; the owner's `revoke` waits for its end.
    fn enter(&self) -> Result<InUse<'_>, GrantError> {
        if !self.opened_in.is_current() {
            return Err(GrantError::Forked);
        }
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if *users == 0 {
            let revoked = || self.file.is_revoked();
            lock(&self.file.file, FlockOperation::NonBlockingLockShared, LOCK_LIMIT, revoked)?;
        }
        *users += 1;
        drop(users);
        let user = InUse(self);
        if self.file.is_revoked() { Err(GrantError::Revoked) } else { Ok(user) }
    }

    /// Reads bytes at an offset of the granted memory.
    ///
    /// # Errors
    /// [`GrantError`]; after [`GrantError::Gone`] the bytes before were read.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), GrantError> {
        self.file.check(at, into.len() as u64, false)?;
        let _user = self.enter()?;
        self.memory.read(self.file.address + at, into).map_err(|done| GrantError::Gone { at: at + done })
    }

    /// Writes bytes at an offset of the granted memory.
    ///
    /// # Errors
    /// [`GrantError`]; after [`GrantError::Gone`] the bytes before were written.
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), GrantError> {
        self.file.check(at, from.len() as u64, true)?;
        let _user = self.enter()?;
        self.memory.write(self.file.address + at, from).map_err(|done| GrantError::Gone { at: at + done })
    }
}

/// True if a process has the file mapped as `MemoryGrant::new` maps it: one writable page at offset 0 that forked
/// children do not get. After the seals no process can map the file so.
///
/// A process can map a file that another one made, before that one seals it, and is then no owner of a grant; but a
/// program that maps files of others (as a vhost-user backend maps a guest's) does not keep them from its children.
fn is_mapped_by_owner(process: u32, file: BorrowedFd<'_>) -> Result<bool, GrantError> {
    let about = fstat(file).map_err(refused("examine the file of a grant", FILES))?;
    let maps = std::fs::read_to_string(format!("/proc/{process}/smaps"));
    let maps = maps.map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => GrantError::NotAGrant { why: NO_OWNER },
        _ => GrantError::System { attempt: "read the mappings of the grant's owner", advice: TRACE, source },
    })?;
    let device = format!("{:02x}:{:02x}", major(about.st_dev), minor(about.st_dev));
    Ok(is_mapped_as_by_an_owner(&maps, &device, &about.st_ino.to_string()))
}

/// As [`is_mapped_by_owner`], for the text of an smaps file. Source of its form: proc_pid_smaps(5).
fn is_mapped_as_by_an_owner(maps: &str, device: &str, inode: &str) -> bool {
    let mut is_page = false;
    maps.lines().any(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if let Some((start, end)) = words.first().and_then(|range| range.split_once('-')) {
            let address = |digits| u64::from_str_radix(digits, 16).ok();
            is_page = address(start).zip(address(end)).is_some_and(|(start, end)| end - start == PAGE_BYTES)
                && words.get(1).is_some_and(|flags| flags.starts_with("rw") && flags.ends_with('s'))
                && words.get(2).is_some_and(|offset| address(offset) == Some(0))
                && words.get(3) == Some(&device)
                && words.get(4) == Some(&inode);
        }
        is_page && words.first() == Some(&"VmFlags:") && words.contains(&"dc")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_page_that_children_do_not_get_is_that_of_an_owner() {
        let maps = |range: &str, flags: &str, offset: &str, vm_flags: &str| {
            format!(
                "{range} {flags} {offset} 00:01 77                  /memfd:telpher-grant (deleted)\nSize: 4 kB\n\
                 VmFlags: {vm_flags} \n7f00-7f01 rw-p 00000000 00:00 0 \nVmFlags: rd wr dc \n"
            )
        };
        let is = |maps: &str| is_mapped_as_by_an_owner(maps, "00:01", "77");
        let page = "7ff2b1035000-7ff2b1036000";
        assert!(is(&maps(page, "rw-s", "00000000", "rd wr sh mr mw me ms dc sd")));
        assert!(!is(&maps(page, "rw-s", "00000000", "rd wr sh mr mw me ms sd")), "forked children have it");
        assert!(!is(&maps(page, "r--s", "00000000", "rd sh dc")));
        assert!(!is(&maps(page, "rw-s", "00001000", "rd wr sh dc")));
        assert!(!is(&maps("7ff2b1035000-7ff2b1037000", "rw-s", "00000000", "rd wr sh dc")));
        assert!(!is_mapped_as_by_an_owner(&maps(page, "rw-s", "00000000", "rd wr sh dc"), "00:01", "78"));
    }
}
