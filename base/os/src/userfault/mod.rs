//! userfaultfd(2): page faults of this process that one of its threads handles, and page moves.
//!
//! Sources: UAPI linux/userfaultfd.h; userfaultfd(2), ioctl_userfaultfd(2); Linux
//! Documentation/admin-guide/mm/userfaultfd.rst.
#![allow(unsafe_code, reason = "ioctls on memory that is known by address")]

mod uapi;

#[cfg(test)]
mod tests;

use crate::ioctl::ioctl_number;
use rustix::io::Errno;
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use uapi::{ARGUMENT, MESSAGE_BYTES};

/// Features of a kernel's userfaultfd, beyond faults on missing pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UserfaultFeatures(u64);

impl UserfaultFeatures {
    /// Reports forks, and gives a descriptor for the child. Needs the capability `CAP_SYS_PTRACE`.
    pub const EVENT_FORK: UserfaultFeatures = UserfaultFeatures(1 << 1);
    /// Reports `mremap`.
    pub const EVENT_REMAP: UserfaultFeatures = UserfaultFeatures(1 << 2);
    /// Reports pages that are discarded.
    pub const EVENT_REMOVE: UserfaultFeatures = UserfaultFeatures(1 << 3);
    /// Reports `munmap`.
    pub const EVENT_UNMAP: UserfaultFeatures = UserfaultFeatures(1 << 6);
    /// Reports the thread that faulted; Linux 4.14.
    pub const THREAD_ID: UserfaultFeatures = UserfaultFeatures(1 << 8);
    /// Pages of files in memory can be write-protected ([`Userfault::protect`]); Linux 5.19.
    pub const PROTECT_SHARED: UserfaultFeatures = UserfaultFeatures(1 << 12);
    /// The kernel lets writes to protected pages continue at once, and records them ([`Userfault::register_tracked`]);
    /// Linux 6.7.
    pub const TRACK_WRITES: UserfaultFeatures = UserfaultFeatures(1 << 15);
    /// Pages can be moved ([`Userfault::take_pages`]); Linux 6.8.
    pub const MOVE: UserfaultFeatures = UserfaultFeatures(1 << 16);

    /// Returns the union of both sets.
    #[must_use]
    pub const fn and(self, other: UserfaultFeatures) -> UserfaultFeatures {
        UserfaultFeatures(self.0 | other.0)
    }

    /// True if it contains all features of `others`.
    #[must_use]
    pub const fn has(self, others: UserfaultFeatures) -> bool {
        self.0 & others.0 == others.0
    }
}

/// The reason why no userfaultfd could be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UserfaultError {
    /// This user may use neither the system call nor the device.
    #[error(
        "this user may not have a userfaultfd that also covers system calls: give the process CAP_SYS_PTRACE, or \
         access to /dev/userfaultfd (say by a udev rule: KERNEL==\"userfaultfd\", GROUP=\"uffd\", MODE=\"0660\")"
    )]
    Forbidden(#[source] io::Error),
    /// The kernel was built without userfaultfd, or denies it to this process (a seccomp filter).
    #[error("this kernel offers no userfaultfd")]
    None(#[source] io::Error),
    /// The kernel lacks a requested feature.
    #[error("this kernel's userfaultfd lacks a requested feature; moving pages needs Linux 6.8 or later")]
    Lacks(#[source] io::Error),
}

/// An event of a userfaultfd. The thread that caused it waits until the event has been read; after a fault it waits
/// until the page is present.
#[derive(Debug)]
#[non_exhaustive]
pub enum UserfaultEvent {
    /// A thread, or the kernel on its behalf, accessed a missing page.
    Fault {
        /// The address of the page.
        page: u64,
        /// The thread's id, with [`UserfaultFeatures::THREAD_ID`].
        thread: Option<i32>,
    },
    /// The process has forked. The child has the same registrations, and waits, too.
    Fork {
        /// The userfaultfd of the child's memory. If no thread is to handle its events, drop it: the child then
        /// continues.
        child: Userfault,
    },
    /// A mapping has moved with its pages.
    Remap {
        /// The old address.
        from: u64,
        /// The new address.
        to: u64,
        /// The length in bytes.
        len: u64,
    },
    /// Pages are about to be discarded: they read as zero afterwards.
    Remove(Range<u64>),
    /// A mapping was removed.
    Unmap(Range<u64>),
}

/// How much of a request was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes done, as reported by the kernel.
    pub bytes: u64,
    /// The error that stopped the request, if any.
    pub error: Option<Errno>,
}

/// A userfaultfd of this process.
#[derive(Debug)]
pub struct Userfault {
    fd: OwnedFd,
    features: UserfaultFeatures,
}

impl Userfault {
    /// Opens a userfaultfd that has these features and also covers faults in system calls. It uses the system call if
    /// this user may, else `/dev/userfaultfd`. The descriptor is closed on exec, and reading it never blocks.
    ///
    /// # Errors
    /// [`UserfaultError`]: the reason, and what to do.
    pub fn open(features: UserfaultFeatures) -> Result<Userfault, UserfaultError> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: a call without pointers, which returns a new descriptor or none.
        let called = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let fd = match own(called) {
            Ok(fd) => fd,
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Self::by_device(flags)?,
            Err(error) => return Err(UserfaultError::None(error)),
        };
        let mut api = uapi::Api { api: uapi::API, features: features.0, ioctls: 0 };
        // SAFETY: the kernel reads and writes this one argument, which lives for the call.
        unsafe { ioctl(fd.as_fd(), uapi::UFFDIO_API, &mut api) }.map_err(|error| match error {
            // EVENT_FORK is the only feature that needs a capability.
            Errno::PERM => UserfaultError::Forbidden(error.into()),
            _ => UserfaultError::Lacks(error.into()),
        })?;
        Ok(Userfault { fd, features })
    }

    fn by_device(flags: i32) -> Result<OwnedFd, UserfaultError> {
        use rustix::fs::{Mode, OFlags, open};
        let device = open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| UserfaultError::Forbidden(error.into()))?;
        // SAFETY: takes flags by value, and returns a new descriptor or none.
        let made = unsafe { libc::ioctl(device.as_raw_fd(), ioctl_number(uapi::NEW), flags) };
        own(made.into()).map_err(UserfaultError::Forbidden)
    }

    /// Returns the features it was opened with.
    #[must_use]
    pub fn features(&self) -> UserfaultFeatures {
        self.features
    }

    /// Registers a range: a thread that touches a missing page of it waits from now on until another thread provides
    /// the page.
    ///
    /// # Errors
    /// The system's refusal: the range maps a file, belongs to another userfaultfd, or is not mapped.
    ///
    /// # Safety
    /// As long as the range is registered, a thread that never touches the range reads [events](Userfault::read) and
    /// handles them. The pages it provides contain what the range's owner expects.
    pub unsafe fn register(&self, range: Range<u64>) -> io::Result<()> {
        self.register_for(range, uapi::REGISTER_MISSING)
    }

    /// Registers a range as [`register`](Userfault::register) does, and also for tracking writes to present pages.
    /// [`Scan::track`](crate::Scan::track) starts the tracking, and [`protect`](Userfault::protect) with false ends it.
    /// Needs [`TRACK_WRITES`](UserfaultFeatures::TRACK_WRITES).
    ///
    /// # Errors
    /// As for [`register`](Userfault::register).
    ///
    /// # Safety
    /// As for [`register`](Userfault::register).
    pub unsafe fn register_tracked(&self, range: Range<u64>) -> io::Result<()> {
        self.register_for(range, uapi::REGISTER_MISSING | uapi::REGISTER_WP)
    }

    fn register_for(&self, range: Range<u64>, mode: u64) -> io::Result<()> {
        let range = uapi::Range { start: range.start, len: range.end - range.start };
        let mut register = uapi::Register { range, mode, ioctls: 0 };
        // SAFETY: the kernel reads and writes this one argument; no page's bytes change. Callers that register missing
        // pages, so that threads may wait for them, are unsafe functions.
        Ok(unsafe { ioctl(self.fd.as_fd(), uapi::REGISTER, &mut register) }?)
    }

    /// Registers a range for write protection: a thread that writes to a [protected](Userfault::protect) page of it
    /// waits until the protection ends.
    ///
    /// # Errors
    /// The system's refusal: the mapping belongs to another userfaultfd, cannot be protected, or does not exist.
    pub fn register_writes(&self, range: Range<u64>) -> io::Result<()> {
        self.register_for(range, uapi::REGISTER_WP)
    }

    /// Protects the pages of a range from writes, or ends the protection and wakes the waiting threads. In a file the
    /// protection also covers missing pages.
    ///
    /// # Errors
    /// The system's refusal: the range is not registered for write protection.
    pub fn protect(&self, range: Range<u64>, protected: bool) -> io::Result<()> {
        let range = uapi::Range { start: range.start, len: range.end - range.start };
        let mut order = uapi::WriteProtect { range, mode: protected.into() };
        // SAFETY: the kernel reads and writes this one argument; no page's bytes change.
        Ok(unsafe { ioctl(self.fd.as_fd(), uapi::WRITEPROTECT, &mut order) }?)
    }

    /// Unregisters a range: waiting threads continue and find the same as in any memory that was never touched.
    ///
    /// # Errors
    /// The system's refusal: the range is not mapped.
    pub fn unregister(&self, range: Range<u64>) -> io::Result<()> {
        let mut range = uapi::Range { start: range.start, len: range.end - range.start };
        // SAFETY: the kernel reads this one argument; no page's bytes change.
        Ok(unsafe { ioctl(self.fd.as_fd(), uapi::UNREGISTER, &mut range) }?)
    }

    /// Wakes the threads that wait for a page of the range; they retry their access.
    pub fn wake(&self, range: Range<u64>) {
        let mut range = uapi::Range { start: range.start, len: range.end - range.start };
        // SAFETY: the kernel reads this one argument; no page's bytes change. In a range that is not registered no
        // thread waits.
        let _ = unsafe { ioctl(self.fd.as_fd(), uapi::WAKE, &mut range) };
    }

    /// Moves pages from `from` to `to`, where pages are missing (`UFFDIO_MOVE`), starting with the first. The kernel
    /// does not copy them, so they stay on their node. Threads that wait at `to` continue. The pages are missing at
    /// `from` afterwards: a touch is a fault.
    ///
    /// Linux 6.18 may return an error although it moved pages, even all of them. After an error read the page tables
    /// ([`Scan`](crate::Scan)), and [wake](Userfault::wake) the waiting threads.
    ///
    /// # Safety
    /// - `to` is registered here. Its pages are missing because they were taken away or never touched. The range's
    ///   owner expects exactly these bytes.
    /// - `from` is private anonymous memory to which no reference exists. Or it is such a registered range, whose pages
    ///   come back before its owner sees any other pages there.
    pub unsafe fn take_pages(&self, to: u64, from: u64, len: u64) -> Progress {
        // SAFETY: the caller's promise.
        unsafe { self.take(to, from, len, 0) }
    }

    /// Moves pages as [`take_pages`](Userfault::take_pages) does, but does not [wake](Userfault::wake) the waiting
    /// threads, as after a false error.
    ///
    /// # Safety
    /// As for [`take_pages`](Userfault::take_pages).
    #[cfg(any(test, feature = "test-util"))]
    pub unsafe fn take_pages_quietly(&self, to: u64, from: u64, len: u64) -> Progress {
        // SAFETY: the caller's promise.
        unsafe { self.take(to, from, len, uapi::MOVE_DONT_WAKE) }
    }

    /// # Safety
    /// As for [`take_pages`](Userfault::take_pages).
    unsafe fn take(&self, to: u64, from: u64, len: u64, mode: u64) -> Progress {
        let mut order = uapi::Move { dst: to, src: from, len, mode, moved: 0 };
        // SAFETY: the kernel reads and writes this one argument; the caller guarantees the effect on both ranges.
        let result = unsafe { ioctl(self.fd.as_fd(), uapi::MOVE, &mut order) };
        progress(result, order.moved, len)
    }

    /// Copies bytes into new pages where pages are missing (`UFFDIO_COPY`), starting with the first. Threads that wait
    /// there continue.
    ///
    /// # Safety
    /// - The range at `to` is registered here, and its owner expects exactly these bytes.
    /// - `from` is readable memory of this process, and no thread writes there meanwhile.
    pub unsafe fn put_copies(&self, to: u64, from: u64, len: u64) -> Progress {
        let mut order = uapi::Copy { dst: to, src: from, len, mode: 0, copy: 0 };
        // SAFETY: as above, and the kernel checks `from` as of any system call.
        let result = unsafe { ioctl(self.fd.as_fd(), uapi::COPY, &mut order) };
        progress(result, order.copy, len)
    }

    /// Maps zeroed pages where pages are missing (`UFFDIO_ZEROPAGE`), up to the first page that is present. Threads
    /// that wait there continue.
    ///
    /// # Safety
    /// The range is registered here, and its owner expects zeros where pages are missing.
    pub unsafe fn put_zeros(&self, range: Range<u64>) -> Progress {
        let len = range.end - range.start;
        let mut order = uapi::Zero { range: uapi::Range { start: range.start, len }, mode: 0, zeropage: 0 };
        // SAFETY: the kernel reads and writes this one argument; the caller guarantees the effect on the range.
        let result = unsafe { ioctl(self.fd.as_fd(), uapi::ZEROPAGE, &mut order) };
        progress(result, order.zeropage, len)
    }

    /// True while a thread forks or changes a registered mapping: from before the change until its event has been read
    /// and the thread continues.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        // The kernel first checks for changes, and then rejects the empty range.
        let mut order = uapi::Zero::default();
        // SAFETY: the kernel reads and writes this one argument, and changes nothing.
        let refused = unsafe { ioctl(self.fd.as_fd(), uapi::ZEROPAGE, &mut order) };
        refused == Err(Errno::AGAIN)
    }

    /// Passes all pending events to `each`, oldest first. Allocates nothing: a thread that forks keeps the allocator
    /// locked until its event has been read.
    ///
    /// # Errors
    /// The system's error.
    pub fn read(&self, mut each: impl FnMut(UserfaultEvent)) -> io::Result<()> {
        /// Messages read at once. Source: chosen.
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
            // The first word contains the flags.
            uapi::PAGEFAULT => {
                #[allow(clippy::cast_possible_truncation, reason = "a thread's id is the word's first 32 bits")]
                let thread = self.features.has(UserfaultFeatures::THREAD_ID).then_some((third as u32).cast_signed());
                Some(UserfaultEvent::Fault { page: second & !(crate::PAGE_BYTES - 1), thread })
            }
            uapi::FORK => {
                #[allow(clippy::cast_possible_truncation, reason = "a descriptor is the argument's first 32 bits")]
                let number = first as u32;
                // SAFETY: the kernel has just made this descriptor for the reader of the message, and each message is
                // read once.
                let fd = unsafe { OwnedFd::from_raw_fd(number.cast_signed()) };
                Some(UserfaultEvent::Fork { child: Userfault { fd, features: self.features } })
            }
            uapi::REMAP => Some(UserfaultEvent::Remap { from: first, to: second, len: third }),
            uapi::REMOVE => Some(UserfaultEvent::Remove(first..second)),
            uapi::UNMAP => Some(UserfaultEvent::Unmap(first..second)),
            // No other event was requested.
            _ => None,
        }
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Converts the result of a call to a new descriptor, or to the call's error.
fn own(result: i64) -> io::Result<OwnedFd> {
    match i32::try_from(result) {
        // SAFETY: the caller has just got it from the kernel, so no other code owns it.
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
/// `word` is the argument that `order` reads and writes. The caller guarantees all further effects.
unsafe fn ioctl<W>(fd: BorrowedFd<'_>, order: u64, word: &mut W) -> Result<(), Errno> {
    // SAFETY: the caller's promise; the argument lives for the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), ioctl_number(order), std::ptr::from_mut(word).cast::<c_void>()) };
    if result == 0 { Ok(()) } else { Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)) }
}
