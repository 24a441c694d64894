//! A process that outlives the host for a moment, to remove what the host leaves behind, also when it is killed.
//!
//! It hears of the host's end by a socket whose other end the host alone has. While it waits it removes the directories of earlier
//! runs whose sweepers were killed too (by the end of a session, of a container, of the machine's power).
#![allow(unsafe_code, reason = "fork, and what a forked child may call")]

use crate::run_directory::{OPEN, RunKind};
use rustix::fs::{AtFlags, FlockOperation, Mode, RawDir, flock, fstat, openat, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Seconds after which an unlocked directory is nobody's, whoever has its process number now. Source: chosen; its owner locks it
/// within microseconds.
const OLD_SECONDS: i64 = 60;

/// Directories within directories that are removed. Source: the shadow tree has eight.
const MAX_DEPTH: u32 = 32;

/// Tells the sweeper, when dropped, that the run has ended, and waits until it has swept.
#[derive(Debug)]
pub(super) struct Sweeper {
    socket: OwnedFd,
}

impl Sweeper {
    /// Starts one for the directory `name` in `base`.
    ///
    /// # Errors
    /// For want of descriptors or processes.
    pub(super) fn start(base: BorrowedFd<'_>, name: &CStr) -> Result<Self, Errno> {
        let (socket, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // SAFETY: the child runs `sweep` only, which makes system calls on memory and descriptors that it inherits, allocates
        // nothing, takes no lock, and does not return. (A thread that the parent may have does not exist in it.)
        let child = unsafe {
            match libc::fork() {
                0 => sweep(theirs.as_fd(), base, name),
                child => child,
            }
        };
        let child = rustix::process::Pid::from_raw(child).ok_or(Errno::AGAIN)?;
        if child.as_raw_pid() < 0 {
            return Err(Errno::AGAIN);
        }
        // It has forked again and ended, so that the sweeper is nobody's child here.
        rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()))?;
        Ok(Sweeper { socket })
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
        // The sweeper says nothing; when it has ended, so has its end of the socket.
        let _ = rustix::io::retry_on_intr(|| rustix::net::recv(&self.socket, &mut [0; 1], RecvFlags::empty()));
    }
}

/// The child's part.
///
/// # Safety
/// To be called in a child that was just forked.
unsafe fn sweep(socket: BorrowedFd<'_>, base: BorrowedFd<'_>, own: &CStr) -> ! {
    // SAFETY: system calls with numbers, and one mask on the stack. Nobody in this process uses a descriptor that is replaced
    // or closed here: `socket` and `base` are named by their new numbers from then on.
    unsafe {
        // A session of its own: neither ^C nor the end of the terminal is meant for it.
        libc::setsid();
        if libc::fork() != 0 {
            libc::_exit(0);
        }
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
        libc::prctl(libc::PR_SET_NAME, c"telpher-sweep".as_ptr());
        // Whatever else the host has open is not kept alive: least of all the terminal, pipes, and the directory's lock.
        let (low, high) =
            (libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD, 3), libc::fcntl(base.as_raw_fd(), libc::F_DUPFD, 3));
        libc::dup2(low, 0);
        libc::dup2(high, 1);
        libc::syscall(libc::SYS_close_range, 2, u32::MAX, 0);
        let (socket, base) = (BorrowedFd::borrow_raw(0), BorrowedFd::borrow_raw(1));
        remove_remains(base);
        // Nobody writes; the end is when the host has shut its side or is gone.
        while matches!(rustix::io::retry_on_intr(|| rustix::io::read(socket, &mut [0; 1])), Ok(1..)) {}
        let _ = remove(base, own, 0);
        libc::_exit(0)
    }
}

/// Calls `visit` with every entry of a directory but itself and its parent; what it removes may be met or not.
fn each(directory: BorrowedFd<'_>, mut visit: impl FnMut(&CStr)) {
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            visit(entry.file_name());
        }
    }
}

/// Removes the run directories of this user that no process has locked.
fn remove_remains(base: BorrowedFd<'_>) {
    each(base, |name| {
        let process = |kind: RunKind| name.to_bytes().strip_prefix(kind.prefix().as_bytes());
        if let Some(process) = RunKind::ALL.into_iter().find_map(process)
            && is_left(base, name, process)
        {
            let _ = remove(base, name, 0);
        }
    });
}

/// True for a directory of ours whose owner is gone; `rest` is its name behind the prefix.
fn is_left(base: BorrowedFd<'_>, name: &CStr, rest: &[u8]) -> bool {
    let Ok(directory) = openat(base, name, OPEN, Mode::empty()) else { return false };
    let Ok(status) = fstat(&directory) else { return false };
    if status.st_uid != rustix::process::geteuid().as_raw()
        || flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err()
    {
        return false;
    }
    // Unlocked, it may be one that was made this moment, by a process that still lives or cannot be seen from here.
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit());
    let process = digits.fold(0_i32, |number, digit| number.wrapping_mul(10).wrapping_add(i32::from(digit - b'0')));
    let lives = rustix::process::Pid::from_raw(process).is_some_and(|process| {
        process.as_raw_pid() > 0 && rustix::process::test_kill_process(process) != Err(Errno::SRCH)
    });
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    !lives || now.saturating_sub(status.st_mtime) > OLD_SECONDS
}

/// Removes a directory with all that is in it.
fn remove(parent: BorrowedFd<'_>, name: &CStr, depth: u32) -> Result<(), Errno> {
    let directory = openat(parent, name, OPEN, Mode::empty())?;
    // An entry may be passed over when another is removed before it, so looked through until it is empty; bounded, since
    // somebody may be making new ones.
    for _ in 0..64 {
        let mut found = false;
        each(directory.as_fd(), |name| {
            found = true;
            if unlinkat(&directory, name, AtFlags::empty()) == Err(Errno::ISDIR) && depth < MAX_DEPTH {
                let _ = remove(directory.as_fd(), name, depth + 1);
            }
        });
        if !found {
            break;
        }
        rustix::fs::seek(&directory, rustix::fs::SeekFrom::Start(0))?;
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}
