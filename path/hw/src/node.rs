//! A queue's open file: closed in forked children, and released while other threads may still use its descriptor
//! number.
//!
//! When the last reference to a file goes, the driver waits for what was submitted through it, and frees a dedicated
//! queue. A child that kept a reference would delay both, and cannot submit by it. So a fork handler closes the
//! children's copies. A child of a bare clone(2) runs no handler; it closes them when it drops what it has inherited. A
//! system call on the file holds a reference, too, so calls in progress are counted.
#![allow(unsafe_code, reason = "a fork handler; closes descriptors by number")]

use crate::error_events::ErrorEvents;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use telpher_os::Lineage;

/// The most files that children close; they keep further ones. Source: chosen; eight devices have 64 queues.
const MAX_FILES: usize = 256;

/// Numbers of the open files plus one; 0 is a free entry.
static OPEN_FILES: [AtomicI32; MAX_FILES] = [const { AtomicI32::new(0) }; MAX_FILES];

/// Flag in [`Node::calls`] once the file is being released.
const CLOSING: u32 = 1 << 31;

/// An open file of a queue.
#[derive(Debug)]
pub(crate) struct Node {
    file: ManuallyDrop<File>,
    entry: Option<&'static AtomicI32>,
    opened_in: Lineage,
    /// System calls in progress; with [`CLOSING`] no further one starts.
    calls: AtomicU32,
    /// Records errors, once [`listen`](Node::listen) has been called and if the file can be polled.
    error_events: OnceLock<ErrorEvents>,
}

impl Node {
    pub(crate) fn new(file: File) -> Node {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        let opened_in = Lineage::current();
        // SAFETY: the handler makes system calls only, and this code is never unloaded while it is registered.
        let handled =
            *REGISTERED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) } == 0);
        let mark = mark(file.as_raw_fd());
        // Relaxed, here and below: a fork orders memory by itself, and every entry has one owner.
        let free = |entry: &&AtomicI32| entry.compare_exchange(0, mark, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let entry = if handled { OPEN_FILES.iter().find(free) } else { None };
        let (calls, error_events) = (AtomicU32::new(0), OnceLock::new());
        Node { file: ManuallyDrop::new(file), entry, opened_in, calls, error_events }
    }

    /// Makes a system call on the file; returns `None` if it is released or being released.
    pub(crate) fn call<T>(&self, call: impl FnOnce(&File) -> T) -> Option<T> {
        // A single word, so that either `release` sees this call, or this call sees the release.
        let closing = self.calls.fetch_add(1, Ordering::AcqRel) & CLOSING != 0;
        let answer = (!closing).then(|| call(&self.file));
        // Release: pairs with the Acquire in `release`; a thread that sees no call in progress comes after the effects
        // of this one.
        self.calls.fetch_sub(1, Ordering::Release);
        answer
    }

    /// Records errors from now on; not those reported before.
    pub(crate) fn listen(&self) {
        if let Some(Ok(error_events)) = self.call(ErrorEvents::of) {
            let _ = self.error_events.set(error_events);
        }
    }

    /// True once the device has reported an error of this queue, or of none in particular, since
    /// [`listen`](Node::listen).
    pub(crate) fn has_new_error(&self) -> bool {
        // The check is a call on the file as well.
        self.error_events
            .get()
            .is_some_and(|error_events| self.call(|_| error_events.check()).unwrap_or_else(|| error_events.was_seen()))
    }

    /// Releases the file: the descriptor number stays in use, by a file that cannot be written. No further call on the
    /// file starts, whatever this returns.
    ///
    /// # Errors
    ///
    /// If a call is in progress, whose reference would outlive this, or if no descriptor is free for the replacement;
    /// the file is still open then.
    pub(crate) fn release(&self) -> io::Result<()> {
        // Acquire: pairs with the Release in `call`.
        if self.calls.fetch_or(CLOSING, Ordering::AcqRel) & !CLOSING != 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (reader, _) = io::pipe()?;
        // SAFETY: both descriptors are open and stay with their owners; the second is replaced in one step.
        let done = unsafe { libc::dup3(reader.as_raw_fd(), self.file.as_raw_fd(), libc::O_CLOEXEC) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            let mark = mark(self.file.as_raw_fd());
            // This comes first, so that no child closes a number that has been reused by then.
            let was_ours = entry.compare_exchange(mark, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if !was_ours && !self.opened_in.is_current() {
                // The handler has closed it, and the number may have been reused.
                return;
            }
        }
        // SAFETY: dropped once, here, and not used afterwards; it is still open, as just checked.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}

fn mark(fd: RawFd) -> i32 {
    // Cannot overflow: descriptors are below the system's limit, which is far smaller.
    fd + 1
}

extern "C" fn close_in_child() {
    for entry in &OPEN_FILES {
        let mark = entry.swap(0, Ordering::Relaxed);
        if mark > 0 {
            // SAFETY: a file of the parent that no code in this child uses: portals check their process first.
            unsafe { libc::close(mark - 1) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;

    fn pipe() -> (io::PipeReader, Node) {
        let (reader, writer) = io::pipe().unwrap();
        (reader, Node::new(File::from(OwnedFd::from(writer))))
    }

    /// Runs `look` in a child, and returns the child's id.
    fn in_child(fork: impl FnOnce() -> i32, look: impl FnOnce() -> bool) -> i32 {
        let child = fork();
        if child == 0 {
            let held = look();
            // SAFETY: ends the child without running any code of its parent.
            unsafe { libc::_exit(i32::from(!held)) };
        }
        child
    }

    fn ended_well(child: i32) -> bool {
        let mut status = 0;
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) == child && status == 0 }
    }

    fn by_library() -> i32 {
        // SAFETY: the child makes system calls and exits.
        unsafe { libc::fork() }
    }

    fn by_system_call() -> i32 {
        // SAFETY: as above; without a new stack the child continues on a copy of its parent's.
        i32::try_from(unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) }).unwrap()
    }

    #[test]
    fn a_released_file_is_closed_for_its_other_end() {
        let (mut reader, node) = pipe();
        node.release().unwrap();
        // End of file: no process can write any more. The number is still open, and cannot be written.
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        assert_eq!((&*node.file).write(&[0; 64]).unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert!(node.call(|_| ()).is_none());
    }

    #[test]
    fn a_file_is_not_released_while_it_is_written_to() {
        let (mut reader, node) = pipe();
        // More than the pipe can hold, so that the call lasts until the other end reads.
        let written = vec![7; 1 << 20];
        let (released, begun) = std::thread::scope(|scope| {
            let writing = scope.spawn(|| node.call(|mut file| file.write_all(&written)));
            reader.read_exact(&mut [0]).unwrap();
            // The call has started, and its reference would keep the driver from draining.
            let (released, begun) = (node.release(), node.call(|_| ()).is_some());
            reader.read_exact(&mut vec![0; written.len() - 1]).unwrap();
            writing.join().unwrap().expect("begun before").unwrap();
            (released, begun)
        });
        assert_eq!(released.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(!begun, "another call begins");
        node.release().unwrap();
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_surviving_child_does_not_hold_its_parents_file() {
        let (mut reader, node) = pipe();
        let (mut read_end, write_end) = io::pipe().unwrap();
        let own = write_end.as_raw_fd();
        let child = in_child(by_library, || {
            // SAFETY: a signal ends the child if the parent waits for it in vain, which `ended_well` reports.
            unsafe { libc::alarm(60) };
            // The child's own write end of this pipe would keep it from seeing that the parent has closed its end.
            // SAFETY: our own descriptor in this child, not used again.
            unsafe { libc::close(own) };
            read_end.read(&mut [0]).is_ok()
        });
        drop(node);
        // The child is still alive, and the file is closed.
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        drop(write_end);
        assert!(ended_well(child));
    }

    #[test]
    fn a_child_closes_no_number_that_it_has_reused() {
        for (fork, handled) in [(by_library as fn() -> i32, true), (by_system_call, false)] {
            let (_reader, node) = pipe();
            let number = node.file.as_raw_fd();
            let mut node = Some(node);
            let child = in_child(fork, || {
                // SAFETY: queries a number, which is free in this child exactly if the handler has run.
                let free = unsafe { libc::fcntl(number, libc::F_GETFD) } < 0;
                let (mut reader, mut writer) = io::pipe().unwrap();
                if free {
                    // SAFETY: the number is unused; from now on it refers to this child's own pipe.
                    assert_eq!(unsafe { libc::dup2(writer.as_raw_fd(), number) }, number);
                }
                drop(node.take());
                // SAFETY: queries a number.
                let kept = unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
                writer.write_all(&[7]).unwrap();
                free == handled && kept == handled && reader.read(&mut [0]).unwrap() == 1
            });
            assert!(ended_well(child), "handled: {handled}");
            // The parent's file is still open.
            assert_eq!((&*node.expect("the parent's").file).write(&[1]).unwrap(), 1);
        }
    }

    #[test]
    fn without_an_entry_a_file_is_still_closed() {
        let (mut reader, node) = pipe();
        let node = {
            let mut node = node;
            node.entry.take().expect("a place").store(0, Ordering::Relaxed);
            node
        };
        drop(node);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }
}
