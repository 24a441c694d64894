//! Windows to the memory of other processes: the ioctls of Intel's driver outside of Linux. Source: what its `cdev.c`,
//! Intel's dsa-perf-micros and DPDK's patches for inter-domain operations have in common.
//!
//! The kernel does not know these windows. A window is a socket from the host, which has its state; so it can be
//! duplicated, inherited, passed and closed as any descriptor. Its first bytes are the window's secret, which proves to
//! the host that a process has the descriptor.

use crate::control;
use crate::files::descriptor::{self, deliver, fetch};
use crate::files::table::{self, Kind};
use crate::node::name::parse_socket;
use crate::node::{self, Access};
use crate::run;
use crate::sync::{AtomicU32, Ordering};
use crate::sys::{self, Errno};
use std::ffi::c_int;
use std::os::fd::{AsRawFd, RawFd};
use telpher_interpose::preload::Lock;
use telpher_vdev_wire::message::{WINDOW_SECRET, WindowCreate, WindowFault};
use telpher_vdev_wire::name::WindowName;
use zerocopy::FromBytes;

/// IDXD_WIN_CREATE, `_IOWR('d', 101, 24)`: u64 base, u64 size, u32 type, u16 flags, u16 handle (set).
const CREATE: u32 = 0xc018_6465;
/// IDXD_WIN_ATTACH, `_IOR('d', 102, 6)`: u32 descriptor of the window, u16 handle (set).
const ATTACH: u32 = 0x8006_6466;
/// IDXD_WIN_FAULT, `_IOR('d', 201, 20)`: u64 offset, u64 length, u32 write.
const FAULT: u32 = 0x8014_64c9;

/// 1 once this process has made or attached a window: only then may closing a descriptor end one, or a right.
static USED: AtomicU32 = AtomicU32::new(0);

/// An ioctl for windows; `None` if it is another one, or the descriptor is not ours.
pub(crate) fn ioctl(fd: RawFd, request: u64, argument: usize) -> Option<Result<c_int, Errno>> {
    // The kernel takes 32 bits, which a program may have extended by their sign.
    let request = (request & 0xffff_ffff) as u32;
    let argument = std::ptr::with_exposed_provenance_mut::<u8>(argument);
    match request {
        CREATE | ATTACH if node::is_node(fd) && node::is_still(fd) || node::join(fd) => {
            Some(with_own_file(fd, |number| match request {
                CREATE => create(number, argument),
                _ => attach(number, argument),
            }))
        }
        FAULT if is_window(fd) => Some(fault(fd, argument)),
        _ => None,
    }
}

/// The number of the window of which this is a descriptor.
pub(crate) fn number(fd: RawFd) -> Option<u64> {
    parse_socket(fd, WindowName::parse).map(|name| name.0)
}

/// True for the descriptor of a window.
pub(crate) fn is_window(fd: RawFd) -> bool {
    number(fd).is_some()
}

/// True once this process has made or attached a window: then it waits after closing descriptors.
#[inline]
pub(crate) fn are_used() -> bool {
    // Relaxed: a window's creation is ordered before its close by the program.
    USED.load(Ordering::Relaxed) != 0
}

/// Called after a descriptor of the window with this number was closed. The first close of a window by its owner ends
/// it, and that by a submitter its right, whatever other descriptors there are. Source: Intel's driver outside of
/// Linux, the flush of its file. The host is told afterwards: before, a program with as many descriptors as it may have
/// could not connect.
///
/// # Errors
/// As for [`settle`]: the window may be open.
pub(crate) fn closed(number: u64) -> Result<(), Errno> {
    unless_gone(control::close_window(number))
}

/// Called after descriptors were closed: returns when nothing is accessed any more through a window that this ended.
///
/// # Errors
/// EIO if the host does not answer in time, EMFILE without a descriptor to reach it: then the memory may still be
/// accessed. A host that is gone accesses nothing.
pub(crate) fn settle() -> Result<(), Errno> {
    unless_gone(control::settle_windows())
}

/// The answer of the host, or success if it is gone.
fn unless_gone(answer: Result<(), Errno>) -> Result<(), Errno> {
    if answer.is_err() && control::is_host_gone() { Ok(()) } else { answer }
}

/// Called at the start of a program: the windows of the program that this process was before end, and nothing of its
/// memory, of which other processes may share a part, is accessed any more.
pub(crate) fn start() {
    if run::has_windows() {
        // A program starts also if the host does not answer.
        let _ = control::settle_former_windows();
    }
}

/// Held from the moment when this process's memory is opened as a file until that is closed. A fork takes it, so no
/// child has the file: it would give the child its parent's memory.
pub(crate) static MEMORY: Lock<()> = Lock::new(());

/// Calls `act` with the number of an open file of this address space.
fn with_own_file(fd: RawFd, act: impl FnOnce(u64) -> Result<c_int, Errno>) -> Result<c_int, Errno> {
    // ENOTTY in a run without windows.
    control::settle_windows()?;
    let Access { number, own, .. } = node::access(fd).ok_or(Errno::BADF)?;
    let inside = if own { node::enter(number) } else { None };
    // Opened by another address space.
    let inside = inside.ok_or(Errno::PERM)?;
    act(node::replica(&inside).opened().open)
}

fn create(open: u64, argument: *mut u8) -> Result<c_int, Errno> {
    let mut bytes = [0; 24];
    fetch(argument, &mut bytes)?;
    // The same layout, but for the flags, which are followed by the handle.
    let given = WindowCreate::read_from_bytes(&bytes).map_err(|_| Errno::FAULT)?;
    let create = WindowCreate { flags: given.flags & 0xffff, ..given };
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let held = MEMORY.hold();
    // The host reaches this address space by this file and not by the process's number, which another may get.
    let memory = rustix::fs::open(c"/proc/self/mem", flags, rustix::fs::Mode::empty())?;
    let created = control::create_window(open, &create, memory.as_raw_fd());
    drop(memory);
    drop(held);
    let (handle, window) = created?;
    // Its number is the first free one.
    let fd = sys::fcntl(window.number(), libc::F_DUPFD, 0).map(sys::descriptor)?;
    // Relaxed: as in `are_used`.
    USED.store(1, Ordering::Relaxed);
    if let Err(error) = deliver(&handle.to_ne_bytes(), argument.wrapping_add(22)) {
        let _ = sys::close(fd);
        return Err(error);
    }
    table::set(fd, Kind::Window);
    Ok(fd)
}

fn attach(open: u64, argument: *mut u8) -> Result<c_int, Errno> {
    let mut bytes = [0; 4];
    fetch(argument, &mut bytes)?;
    let fd = RawFd::try_from(u32::from_ne_bytes(bytes)).map_err(|_| Errno::BADF)?;
    let handle = control::attach_window(open, &secret(fd)?)?;
    // Relaxed: as in `are_used`.
    USED.store(1, Ordering::Relaxed);
    // It may have come by pidfd_getfd(2) or SCM_RIGHTS.
    table::set(fd, Kind::Window);
    deliver(&handle.to_ne_bytes(), argument.wrapping_add(4))?;
    Ok(0)
}

fn fault(fd: RawFd, argument: *mut u8) -> Result<c_int, Errno> {
    let mut bytes = [0; 20];
    fetch(argument, &mut bytes)?;
    let ([offset, len], rest) = <[u64; 2]>::read_from_prefix(&bytes).map_err(|_| Errno::FAULT)?;
    let write = u32::read_from_bytes(rest).map_err(|_| Errno::FAULT)?;
    control::fault_window(&WindowFault { secret: secret(fd)?, offset, len, write, reserved: 0 })?;
    Ok(0)
}

/// Reads the secret of a window and leaves it in the socket.
///
/// # Errors
/// EBADF for a number that is not open, EINVAL for any other descriptor than a window's.
fn secret(fd: RawFd) -> Result<[u8; WINDOW_SECRET], Errno> {
    sys::fcntl(fd, libc::F_GETFD, 0)?;
    if !is_window(fd) {
        return Err(Errno::INVAL);
    }
    descriptor::secret(fd)
}
