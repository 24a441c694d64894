//! A process that outlives the host briefly and removes the host's files, also if the host is killed.
//!
//! It learns of the host's end from a socket whose other end only the host has. At its start it also removes the
//! directories of earlier runs whose sweepers were killed (at the end of a session or container, or by a power loss).
#![allow(unsafe_code, reason = "fork, and async-signal-safe calls in the child")]

use crate::run_kind::{OPEN, RunKind};
use rustix::fs::{AtFlags, FlockOperation, Mode, RawDir, flock, fstat, openat, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Seconds after which an unlocked directory counts as abandoned, even if a process has its number. Source: chosen; the
/// owner locks it within microseconds.
const OLD_SECONDS: i64 = 60;

/// Deepest nesting of directories that is removed. Source: the shadow tree has eight levels.
const MAX_DEPTH: u32 = 32;

/// The host's end of the sweeper. Dropping it ends the run for the sweeper and waits until the sweeper has removed the
/// directory.
#[derive(Debug)]
pub(super) struct Sweeper {
    socket: OwnedFd,
}

impl Sweeper {
    /// Starts a sweeper for the directory `name` in `base`.
    ///
    /// # Errors
    /// If no descriptor or process is available.
    pub(super) fn start(base: BorrowedFd<'_>, name: &CStr) -> Result<Self, Errno> {
        let (socket, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // SAFETY: the child runs only `sweep`, which makes system calls on inherited memory and descriptors, allocates
        // nothing, takes no lock and does not return. (Other threads of the parent do not exist in the child.)
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
        // The child has forked again and ended, so the sweeper is not a child of this process.
        rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()))?;
        Ok(Sweeper { socket })
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
        // The sweeper sends nothing; its end of the socket closes when it ends.
        let _ = rustix::io::retry_on_intr(|| rustix::net::recv(&self.socket, &mut [0; 1], RecvFlags::empty()));
    }
}

/// Runs the sweeper in the forked child.
///
/// # Safety
/// Call this only in a newly forked child.
unsafe fn sweep(socket: BorrowedFd<'_>, base: BorrowedFd<'_>, own: &CStr) -> ! {
    // SAFETY: system calls with numbers, and one signal mask on the stack. No other code in this process uses the
    // descriptors that are replaced or closed here; afterwards `socket` and `base` are used by their new numbers.
    unsafe {
        // A new session: neither ^C nor the end of the terminal reaches the sweeper.
        libc::setsid();
        if libc::fork() != 0 {
            libc::_exit(0);
        }
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
        libc::prctl(libc::PR_SET_NAME, c"telpher-sweep".as_ptr());
        // Closes the host's other descriptors, so that the sweeper does not keep them open: the terminal, pipes and the
        // directory's lock above all.
        let (low, high) =
            (libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD, 3), libc::fcntl(base.as_raw_fd(), libc::F_DUPFD, 3));
        libc::dup2(low, 0);
        libc::dup2(high, 1);
        libc::syscall(libc::SYS_close_range, 2, u32::MAX, 0);
        let (socket, base) = (BorrowedFd::borrow_raw(0), BorrowedFd::borrow_raw(1));
        remove_leftovers(base);
        // The host never writes; the read returns 0 when the host has shut down its end or has ended.
        while matches!(rustix::io::retry_on_intr(|| rustix::io::read(socket, &mut [0; 1])), Ok(1..)) {}
        let _ = remove(base, own, 0);
        libc::_exit(0)
    }
}

/// Calls `visit` for every entry of a directory except `.` and `..`. Entries that `visit` removes may be skipped or
/// visited.
fn each(directory: BorrowedFd<'_>, mut visit: impl FnMut(&CStr)) {
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            visit(entry.file_name());
        }
    }
}

/// Removes this user's run directories that no process has locked.
fn remove_leftovers(base: BorrowedFd<'_>) {
    each(base, |name| {
        let process = |kind: RunKind| name.to_bytes().strip_prefix(kind.prefix().as_bytes());
        if let Some(process) = RunKind::ALL.into_iter().find_map(process)
            && is_abandoned(base, name, process)
        {
            let _ = remove(base, name, 0);
        }
    });
}

/// True for a directory of this user whose owner process has ended; `rest` is its name after the prefix.
fn is_abandoned(base: BorrowedFd<'_>, name: &CStr, rest: &[u8]) -> bool {
    let Ok(directory) = openat(base, name, OPEN, Mode::empty()) else { return false };
    let Ok(status) = fstat(&directory) else { return false };
    if status.st_uid != rustix::process::geteuid().as_raw()
        || flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err()
    {
        return false;
    }
    // An unlocked directory may be new: its process may be alive, possibly in a PID namespace that is invisible here.
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit());
    let process = digits.fold(0_i32, |number, digit| number.wrapping_mul(10).wrapping_add(i32::from(digit - b'0')));
    let lives = rustix::process::Pid::from_raw(process).is_some_and(|process| {
        process.as_raw_pid() > 0 && rustix::process::test_kill_process(process) != Err(Errno::SRCH)
    });
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    !lives || now.saturating_sub(status.st_mtime) > OLD_SECONDS
}

/// Removes a directory and its contents.
fn remove(parent: BorrowedFd<'_>, name: &CStr, depth: u32) -> Result<(), Errno> {
    let directory = openat(parent, name, OPEN, Mode::empty())?;
    // Removing an entry may make the listing skip another, so the listing repeats until the directory is empty. The
    // number of rounds is bounded because another process may create entries.
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
