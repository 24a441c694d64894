//! Eventfds of another process, which no thread of ours ever waits for.
//!
//! A write to an eventfd waits while its counter is full, unless its file description is non-blocking. The other
//! process shares the description, so it can fill the counter and clear O_NONBLOCK at any time, and `write` has no
//! flag for a single call (`RWF_NOWAIT` is refused for eventfds). So the kernel signals: when an asynchronous
//! request with `IOCB_FLAG_RESFD` completes, the kernel adds 1 to the eventfd as far as there is room, and does not
//! wait. The request reads no bytes, so it completes within `io_submit`. Reads take `RWF_NOWAIT`.
//! Source: K612 `fs/aio.c` (`aio_complete`), `fs/eventfd.c` (`eventfd_signal_mask`, `eventfd_write`,
//! `eventfd_read`).
#![allow(unsafe_code, reason = "io_setup, io_submit, io_getevents and io_destroy, which rustix does not have")]

use rustix::fs::{MemfdFlags, OFlags, memfd_create};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An eventfd that another process has sent.
#[derive(Debug)]
pub struct PeerEventfd(OwnedFd);

impl PeerEventfd {
    /// Takes a file; `None` if it is no eventfd. Any other file could block its writer or raise a signal.
    #[must_use]
    pub fn new(file: OwnedFd) -> Option<PeerEventfd> {
        // Source: proc(5), /proc/pid/fd.
        let name = rustix::fs::readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new());
        if !name.is_ok_and(|name| name.as_bytes() == b"anon_inode:[eventfd]") {
            return None;
        }
        // For kernels that lack asynchronous I/O, see `signal`.
        let flags = rustix::fs::fcntl_getfl(&file).unwrap_or(OFlags::RDWR);
        rustix::fs::fcntl_setfl(&file, flags | OFlags::NONBLOCK).ok()?;
        // Now, so that no signal has to open it.
        empty_file();
        Some(PeerEventfd(file))
    }

    /// Adds 1 to the counter. If the counter is full, its reader has been notified already.
    ///
    /// Never waits, whatever the other process does, if the kernel has asynchronous I/O (CONFIG_AIO, which
    /// distributions set) and the process may use it. Otherwise it is a plain write, which waits if the other process
    /// has filled the counter and cleared O_NONBLOCK.
    pub fn signal(&self) {
        if !signal_by_kernel(&self.0) {
            // Fails if the counter is full.
            let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
        }
    }

    /// Sets the counter to zero; false if it was zero already. Never waits: Linux has `RWF_NOWAIT` for eventfds from
    /// 5.8 on, and on older kernels the description is non-blocking unless the other process has changed it.
    pub fn clear(&self) -> bool {
        let mut counter = [0; 8];
        // An eventfd has no offset.
        let no_offset = u64::MAX;
        match preadv2(&self.0, &mut [IoSliceMut::new(&mut counter)], no_offset, ReadWriteFlags::NOWAIT) {
            Ok(_) => true,
            Err(Errno::OPNOTSUPP) => rustix::io::read(&self.0, &mut counter).is_ok(),
            Err(_) => false,
        }
    }
}

impl AsFd for PeerEventfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A request. Source: K612 `include/uapi/linux/aio_abi.h`, `struct iocb`, little-endian.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: i32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    signalled: i32,
}

/// A completed request. Source: as above, `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Completed {
    data: u64,
    request: u64,
    results: [i64; 2],
}

const _: () = assert!(size_of::<Request>() == 64 && size_of::<Completed>() == 32);

/// `IOCB_CMD_PREAD`.
const READ: u16 = 0;
/// `IOCB_FLAG_RESFD`: an eventfd is signalled when the request completes.
const SIGNALS: u32 = 1;

/// Requests that may be between their completion and its collection: one for each thread that signals. Source: chosen.
const REQUESTS: usize = 128;
/// Attempts while all of them are taken by other threads. Source: chosen; each collects what others have left.
const ATTEMPTS: u32 = 1000;

/// The context of this process' requests: 0 before the first, `UNAVAILABLE` if the system refuses one.
static CONTEXT: AtomicUsize = AtomicUsize::new(0);
const UNAVAILABLE: usize = usize::MAX;

/// Returns the context; replaces `unusable`, which a forked child has from its parent.
fn context(unusable: usize) -> Option<usize> {
    // Acquire: pairs with the exchange below; the context's number is all that is shared.
    let known = CONTEXT.load(Ordering::Acquire);
    if known != unusable {
        return (known != UNAVAILABLE).then_some(known);
    }
    let mut fresh = 0_usize;
    // SAFETY: the kernel writes one word to `fresh`, which outlives the call.
    let failed = unsafe { libc::syscall(libc::SYS_io_setup, REQUESTS, &raw mut fresh) } != 0;
    if failed && errno() == Errno::AGAIN {
        // Other processes have all requests that the system allows (fs.aio-max-nr): the next signal tries again.
        return None;
    }
    let fresh = if failed { UNAVAILABLE } else { fresh };
    match CONTEXT.compare_exchange(unusable, fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => (!failed).then_some(fresh),
        Err(other) => {
            if !failed {
                // SAFETY: the context was made above and has no requests; no other thread knows it.
                unsafe { libc::syscall(libc::SYS_io_destroy, fresh) };
            }
            (other != UNAVAILABLE).then_some(other)
        }
    }
}

/// Returns what the requests read: a file of this process without bytes.
fn empty_file() -> Option<&'static OwnedFd> {
    static EMPTY: OnceLock<Option<OwnedFd>> = OnceLock::new();
    EMPTY.get_or_init(|| memfd_create("telpher-eventfd", MemfdFlags::CLOEXEC).ok()).as_ref()
}

/// Has the kernel signal an eventfd; false if it cannot.
fn signal_by_kernel(eventfd: &OwnedFd) -> bool {
    let Some(empty) = empty_file() else { return false };
    let mut request = Request {
        opcode: READ,
        file: empty.as_raw_fd(),
        flags: SIGNALS,
        signalled: eventfd.as_raw_fd(),
        ..Request::default()
    };
    let Some(mut context) = context(0) else { return false };
    let mut replaced = false;
    for _ in 0..ATTEMPTS {
        match submit(context, &mut request) {
            Ok(()) => {
                collect(context);
                return true;
            }
            Err(Errno::AGAIN) => collect(context),
            // The context is the parent's of a forked process.
            Err(Errno::INVAL) if !replaced => {
                replaced = true;
                let Some(other) = self::context(context) else { return false };
                context = other;
            }
            Err(_) => return false,
        }
    }
    false
}

/// Submits a request, which is complete afterwards.
fn submit(context: usize, request: &mut Request) -> Result<(), Errno> {
    let mut requests = [&raw mut *request];
    // SAFETY: the kernel reads one pointer and the request behind it, whose `key` it writes; both outlive the call. The
    // request itself reads no bytes into memory.
    let submitted = unsafe { libc::syscall(libc::SYS_io_submit, context, 1_usize, requests.as_mut_ptr()) };
    if submitted == 1 { Ok(()) } else { Err(errno()) }
}

/// Frees what completed requests occupy, of this and of other threads.
fn collect(context: usize) {
    let mut completed = [Completed::default(); 8];
    let no_wait = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes at most as many events as `completed` has, and reads the timeout; both outlive the
    // call.
    unsafe {
        libc::syscall(
            libc::SYS_io_getevents,
            context,
            0_usize,
            completed.len(),
            completed.as_mut_ptr(),
            &raw const no_wait,
        );
    }
}

fn errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::{read, write};

    /// An eventfd, and the other process' descriptor of it.
    fn shared() -> (PeerEventfd, OwnedFd) {
        let file = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        (PeerEventfd::new(file.try_clone().unwrap()).unwrap(), file)
    }

    fn counter(file: &OwnedFd) -> u64 {
        let mut counter = [0; 8];
        read(file, &mut counter).unwrap();
        u64::from_ne_bytes(counter)
    }

    fn make_blocking(file: &OwnedFd) {
        rustix::fs::fcntl_setfl(file, OFlags::RDWR).unwrap();
    }

    #[test]
    fn signals_add_up_and_are_cleared_once() {
        let (ours, theirs) = shared();
        for _ in 0..1000 {
            ours.signal();
        }
        assert_eq!(counter(&theirs), 1000);
        ours.signal();
        assert!(ours.clear());
        assert!(!ours.clear());
    }

    #[test]
    fn a_full_blocking_eventfd_does_not_block_the_thread_that_signals() {
        let (ours, theirs) = shared();
        make_blocking(&theirs);
        write(&theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        // Would wait for ever if it were a write.
        (0..3).for_each(|_| ours.signal());
        assert_eq!(counter(&theirs), u64::MAX);
        ours.signal();
        assert_eq!(counter(&theirs), 1);
    }

    #[test]
    fn an_empty_blocking_eventfd_does_not_block_the_thread_that_clears() {
        let (ours, theirs) = shared();
        make_blocking(&theirs);
        assert!(!ours.clear());
        ours.signal();
        assert!(ours.clear());
    }

    #[test]
    fn many_threads_signal_at_the_same_time() {
        let (ours, theirs) = shared();
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| (0..200).for_each(|_| ours.signal()));
            }
        });
        assert_eq!(counter(&theirs), 16 * 200);
    }

    #[test]
    fn a_context_of_another_process_is_replaced() {
        let (ours, theirs) = shared();
        ours.signal();
        // A forked child finds a number that the kernel does not know.
        CONTEXT.store(4096, Ordering::Release);
        ours.signal();
        assert_ne!(CONTEXT.load(Ordering::Acquire), 4096);
        assert_eq!(counter(&theirs), 2);
    }

    #[test]
    fn other_files_are_refused() {
        let (one, _other) = std::io::pipe().unwrap();
        assert!(PeerEventfd::new(one.into()).is_none());
        assert!(PeerEventfd::new(memfd_create("file", MemfdFlags::CLOEXEC).unwrap()).is_none());
    }
}
