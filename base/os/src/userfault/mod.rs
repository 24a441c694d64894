//! userfaultfd(2): page faults of this process that a thread of its own answers, and pages that change their place.
//!
//! Sources: UAPI linux/userfaultfd.h; userfaultfd(2), ioctl_userfaultfd(2); Linux Documentation/admin-guide/mm/userfaultfd.rst.
#![allow(unsafe_code, reason = "ioctls on memory that is named by its address")]

mod words;

#[cfg(test)]
mod tests;

use rustix::io::Errno;
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use words::{ARGUMENT, MESSAGE_BYTES};

/// What a kernel's userfaultfd can, beyond faults of missing pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UserfaultFeatures(u64);

impl UserfaultFeatures {
    /// Tells of forks, and gives a descriptor for the child. Wants the capability `CAP_SYS_PTRACE`.
    pub const EVENT_FORK: UserfaultFeatures = UserfaultFeatures(1 << 1);
    /// Tells of `mremap`.
    pub const EVENT_REMAP: UserfaultFeatures = UserfaultFeatures(1 << 2);
    /// Tells of pages that are discarded.
    pub const EVENT_REMOVE: UserfaultFeatures = UserfaultFeatures(1 << 3);
    /// Tells of `munmap`.
    pub const EVENT_UNMAP: UserfaultFeatures = UserfaultFeatures(1 << 6);
    /// Tells whose fault it is; Linux 4.14.
    pub const THREAD_ID: UserfaultFeatures = UserfaultFeatures(1 << 8);
    /// Pages of files in memory can be protected from writes ([`Userfault::protect`]); Linux 5.19.
    pub const PROTECT_SHARED: UserfaultFeatures = UserfaultFeatures(1 << 12);
    /// The kernel lets writes to protected pages go on at once, and notes that there was one ([`Userfault::register_tracked`]); Linux 6.7.
    pub const TRACK_WRITES: UserfaultFeatures = UserfaultFeatures(1 << 15);
    /// Pages can be moved ([`Userfault::take_pages`]); Linux 6.8.
    pub const MOVE: UserfaultFeatures = UserfaultFeatures(1 << 16);

    /// Both.
    #[must_use]
    pub const fn and(self, other: UserfaultFeatures) -> UserfaultFeatures {
        UserfaultFeatures(self.0 | other.0)
    }

    /// Has all of those.
    #[must_use]
    pub const fn has(self, others: UserfaultFeatures) -> bool {
        self.0 & others.0 == others.0
    }
}

/// Why there is no userfaultfd.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UserfaultError {
    /// Neither way to one is open to this user.
    #[error(
        "this user may not have a userfaultfd that also covers system calls: give the process CAP_SYS_PTRACE, or access to \
         /dev/userfaultfd (say by a udev rule: KERNEL==\"userfaultfd\", GROUP=\"uffd\", MODE=\"0660\")"
    )]
    Forbidden(#[source] io::Error),
    /// The kernel was built without, or keeps it from this process (a seccomp filter).
    #[error("this kernel offers no userfaultfd")]
    None(#[source] io::Error),
    /// It lacks what was asked for.
    #[error("this kernel's userfaultfd cannot do what is asked of it; moving pages wants Linux 6.8 or later")]
    Lacks(#[source] io::Error),
}

/// What a userfaultfd tells of. Whoever caused it waits until it has been read, and with a fault until its page is there.
#[derive(Debug)]
#[non_exhaustive]
pub enum UserfaultEvent {
    /// A thread, or the kernel for it, wants a page that is not there.
    Fault {
        /// The page's first byte.
        page: u64,
        /// The thread's number, with [`UserfaultFeatures::THREAD_ID`].
        thread: Option<i32>,
    },
    /// The process has forked; the child has what the parent had, and waits, too.
    Fork {
        /// For the child's memory. Without anybody to read it the child goes on when this is dropped.
        child: Userfault,
    },
    /// A mapping has moved, with its pages.
    Remap {
        /// Where it was.
        from: u64,
        /// Where it is.
        to: u64,
        /// Bytes.
        len: u64,
    },
    /// Pages are about to be discarded: what is read there afterwards is zero.
    Remove(Range<u64>),
    /// A mapping is gone.
    Unmap(Range<u64>),
}

/// How far a request came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes for which it was done, as far as the kernel says.
    pub bytes: u64,
    /// Why it was not done for more.
    pub error: Option<Errno>,
}

/// A userfaultfd of this process.
#[derive(Debug)]
pub struct Userfault {
    fd: OwnedFd,
    features: UserfaultFeatures,
}

impl Userfault {
    /// One that has these features, and covers faults of system calls, too: by the system call if this user may, else by
    /// `/dev/userfaultfd`. It is closed on exec, and reading it never waits.
    ///
    /// # Errors
    /// [`UserfaultError`]: why not, and what to do.
    pub fn open(features: UserfaultFeatures) -> Result<Userfault, UserfaultError> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: a call without pointers, which gives a new descriptor or none.
        let called = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let fd = match own(called) {
            Ok(fd) => fd,
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Self::by_device(flags)?,
            Err(error) => return Err(UserfaultError::None(error)),
        };
        let mut api = words::Api { api: words::API, features: features.0, ioctls: 0 };
        // SAFETY: the kernel reads and writes that one word, which lives for the call.
        unsafe { ioctl(fd.as_fd(), words::UFFDIO_API, &mut api) }.map_err(|error| match error {
            // The one feature that wants a capability.
            Errno::PERM => UserfaultError::Forbidden(error.into()),
            _ => UserfaultError::Lacks(error.into()),
        })?;
        Ok(Userfault { fd, features })
    }

    fn by_device(flags: i32) -> Result<OwnedFd, UserfaultError> {
        use rustix::fs::{Mode, OFlags, open};
        let device = open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| UserfaultError::Forbidden(error.into()))?;
        // SAFETY: takes flags by value, and gives a new descriptor or none.
        let made = unsafe { libc::ioctl(device.as_raw_fd(), words::NEW, flags) };
        own(made.into()).map_err(UserfaultError::Forbidden)
    }

    /// What it was opened with.
    #[must_use]
    pub fn features(&self) -> UserfaultFeatures {
        self.features
    }

    /// Whoever touches a page of the range that is not there waits from now on until somebody has put one there.
    ///
    /// # Errors
    /// The system's refusal: a mapping of a file, one that another userfaultfd has, or none.
    ///
    /// # Safety
    /// Some thread that never touches the range reads [events](Userfault::read) and answers them for as long as it is registered; what is put
    /// there is what the range's owner expects.
    pub unsafe fn register(&self, range: Range<u64>) -> io::Result<()> {
        self.register_for(range, words::REGISTER_MISSING)
    }

    /// As [`register`](Userfault::register), and writes to pages that are there can be tracked: [`Scan::track`](crate::Scan::track) begins, and
    /// [`protect`](Userfault::protect) with false ends it. Wants [`TRACK_WRITES`](UserfaultFeatures::TRACK_WRITES).
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn register_tracked(&self, range: Range<u64>) -> io::Result<()> {
        self.register_for(range, words::REGISTER_MISSING | words::REGISTER_WP)
    }

    fn register_for(&self, range: Range<u64>, mode: u64) -> io::Result<()> {
        let range = words::Range { start: range.start, len: range.end - range.start };
        let mut register = words::Register { range, mode, ioctls: 0 };
        // SAFETY: the kernel reads and writes that one word; no page's bytes change. Whoever waits for a page that is missing from then on is the
        // business of the callers, who are unsafe where that may be.
        Ok(unsafe { ioctl(self.fd.as_fd(), words::REGISTER, &mut register) }?)
    }

    /// Whoever writes to a page of the range that is [protected](Userfault::protect) waits from now on until it is not.
    ///
    /// # Errors
    /// The system's refusal: a mapping that another userfaultfd has, or of a kind that cannot be protected, or none.
    pub fn register_writes(&self, range: Range<u64>) -> io::Result<()> {
        self.register_for(range, words::REGISTER_WP)
    }

    /// Protects the pages of a range from writes, those of a file also where none are yet; or ends that, and whoever waits goes on.
    ///
    /// # Errors
    /// The system's refusal: the range is not registered for it.
    pub fn protect(&self, range: Range<u64>, protected: bool) -> io::Result<()> {
        let range = words::Range { start: range.start, len: range.end - range.start };
        let mut order = words::WriteProtect { range, mode: protected.into() };
        // SAFETY: the kernel reads and writes that one word; no page's bytes change.
        Ok(unsafe { ioctl(self.fd.as_fd(), words::WRITEPROTECT, &mut order) }?)
    }

    /// Ends that: whoever waits goes on and finds what any memory has that nobody touched.
    ///
    /// # Errors
    /// The system's refusal: there is no such mapping.
    pub fn unregister(&self, range: Range<u64>) -> io::Result<()> {
        let mut range = words::Range { start: range.start, len: range.end - range.start };
        // SAFETY: the kernel reads that one word; no page's bytes change.
        Ok(unsafe { ioctl(self.fd.as_fd(), words::UNREGISTER, &mut range) }?)
    }

    /// Has whoever waits for a page of the range look again.
    pub fn wake(&self, range: Range<u64>) {
        let mut range = words::Range { start: range.start, len: range.end - range.start };
        // SAFETY: the kernel reads that one word; no page's bytes change. A range that is not registered has nobody who waits.
        let _ = unsafe { ioctl(self.fd.as_fd(), words::WAKE, &mut range) };
    }

    /// Takes pages from where they are to where none are (`UFFDIO_MOVE`), from the first on; without copying, so that they stay on their
    /// node. Whoever waits there goes on. Where they were there is nothing: a touch is a fault.
    ///
    /// Linux 6.18 may answer with an error although pages were moved, all of them even: after an error the page tables are the truth
    /// ([`Scan`](crate::Scan)), and those who wait are to be [woken](Userfault::wake).
    ///
    /// # Safety
    /// - `to` is registered here, and pages are missing there because somebody took them away, or nobody has touched them: whoever owns the
    ///   range expects just these bytes.
    /// - `from` is private anonymous memory that nobody has a reference to, or the same kind of registered range, whose pages come back before
    ///   its owner sees any others there.
    pub unsafe fn take_pages(&self, to: u64, from: u64, len: u64) -> Progress {
        // SAFETY: the caller's promise.
        unsafe { self.take(to, from, len, 0) }
    }

    /// As [`take_pages`](Userfault::take_pages), and whoever waits there is to be [woken](Userfault::wake): as after an error that was none.
    ///
    /// # Safety
    /// As there.
    #[cfg(any(test, feature = "test-util"))]
    pub unsafe fn take_pages_quietly(&self, to: u64, from: u64, len: u64) -> Progress {
        // SAFETY: the caller's promise.
        unsafe { self.take(to, from, len, words::MOVE_DONT_WAKE) }
    }

    /// # Safety
    /// As of [`take_pages`](Userfault::take_pages).
    unsafe fn take(&self, to: u64, from: u64, len: u64, mode: u64) -> Progress {
        let mut order = words::Move { dst: to, src: from, len, mode, moved: 0 };
        // SAFETY: the kernel reads and writes that one word; what follows for both ranges is the caller's promise.
        let result = unsafe { ioctl(self.fd.as_fd(), words::MOVE, &mut order) };
        progress(result, order.moved, len)
    }

    /// Puts pages with these bytes where none are (`UFFDIO_COPY`), from the first on. Whoever waits there goes on.
    ///
    /// # Safety
    /// - The range from `to` on is registered here, and whoever owns it expects just these bytes.
    /// - `from` is readable memory of this process, and nobody writes there meanwhile.
    pub unsafe fn put_copies(&self, to: u64, from: u64, len: u64) -> Progress {
        let mut order = words::Copy { dst: to, src: from, len, mode: 0, copy: 0 };
        // SAFETY: as above, and the kernel checks `from` as of any system call.
        let result = unsafe { ioctl(self.fd.as_fd(), words::COPY, &mut order) };
        progress(result, order.copy, len)
    }

    /// Puts empty pages where none are (`UFFDIO_ZEROPAGE`), from the first on, up to the first that is there. Whoever waits there goes on.
    ///
    /// # Safety
    /// The range is registered here, and whoever owns it expects zeros where no pages are.
    pub unsafe fn put_zeros(&self, range: Range<u64>) -> Progress {
        let len = range.end - range.start;
        let mut order = words::Zero { range: words::Range { start: range.start, len }, mode: 0, zeropage: 0 };
        // SAFETY: the kernel reads and writes that one word; what follows for the range is the caller's promise.
        let result = unsafe { ioctl(self.fd.as_fd(), words::ZEROPAGE, &mut order) };
        progress(result, order.zeropage, len)
    }

    /// True while a thread changes a mapping that is registered here, or forks, from before it does so until its event has been read and it goes on.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        // The kernel looks for changes first, and then finds that the range is empty.
        let mut order = words::Zero::default();
        // SAFETY: the kernel reads and writes that one word, and does nothing.
        let refused = unsafe { ioctl(self.fd.as_fd(), words::ZEROPAGE, &mut order) };
        refused == Err(Errno::AGAIN)
    }

    /// Gives what there is to be told, oldest first, to `each`; nothing if there is nothing. Allocates nothing: a thread that forks keeps the
    /// allocator locked until its event has been read.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&self, mut each: impl FnMut(UserfaultEvent)) -> io::Result<()> {
        /// Messages at once. Source: chosen.
        const MOST: usize = 16;
        loop {
            let mut bytes = [0; MOST * MESSAGE_BYTES];
            let read = match rustix::io::read(&self.fd, &mut bytes) {
                Ok(read) => read,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let (messages, _) = bytes[..read].as_chunks::<MESSAGE_BYTES>();
            messages.iter().filter_map(|message| self.event(message)).for_each(&mut each);
            if read == 0 {
                return Ok(());
            }
        }
    }

    fn event(&self, message: &[u8; MESSAGE_BYTES]) -> Option<UserfaultEvent> {
        let [first, second, third] = ARGUMENT.map(|at| {
            let (word, _) = message[at..].split_first_chunk().expect("an argument has three words");
            u64::from_ne_bytes(*word)
        });
        match message[0] {
            // The flags are the first word.
            words::PAGEFAULT => {
                #[allow(clippy::cast_possible_truncation, reason = "a thread's number is the word's first 32 bits")]
                let thread = self.features.has(UserfaultFeatures::THREAD_ID).then_some((third as u32).cast_signed());
                Some(UserfaultEvent::Fault { page: second & !(crate::PAGE_BYTES - 1), thread })
            }
            words::FORK => {
                #[allow(clippy::cast_possible_truncation, reason = "a descriptor is the argument's first 32 bits")]
                let number = first as u32;
                // SAFETY: the kernel has just made this descriptor for whoever reads the message, which is told once.
                let fd = unsafe { OwnedFd::from_raw_fd(number.cast_signed()) };
                Some(UserfaultEvent::Fork { child: Userfault { fd, features: self.features } })
            }
            words::REMAP => Some(UserfaultEvent::Remap { from: first, to: second, len: third }),
            words::REMOVE => Some(UserfaultEvent::Remove(first..second)),
            words::UNMAP => Some(UserfaultEvent::Unmap(first..second)),
            // Nothing else was asked for.
            _ => None,
        }
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A new descriptor, or the error of the call.
fn own(result: i64) -> io::Result<OwnedFd> {
    match i32::try_from(result) {
        // SAFETY: the caller has just got it from the kernel, and nobody else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn progress(result: Result<(), Errno>, done: i64, len: u64) -> Progress {
    match result {
        Ok(()) => Progress { bytes: len, error: None },
        Err(error) => Progress { bytes: u64::try_from(done).unwrap_or(0), error: Some(error) },
    }
}

/// # Safety
/// `word` is what the order reads and writes, and what it does beyond is promised by the caller.
unsafe fn ioctl<W>(fd: BorrowedFd<'_>, order: u64, word: &mut W) -> Result<(), Errno> {
    // SAFETY: the caller's promise; the word lives for the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), order, std::ptr::from_mut(word).cast::<c_void>()) };
    if result == 0 { Ok(()) } else { Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)) }
}
