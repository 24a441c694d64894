//! A queue's open file: closed in forked children, and let go of while others may still use its descriptor.
//!
//! The driver waits for what was submitted through a file, and gives a dedicated queue free, when the last reference to it goes. A
//! child that kept one would hold up both, and cannot submit by it. So the children's copies are closed in a fork handler; a child
//! of a bare clone(2), which runs none, closes them when it drops what it has inherited. A system call on the file holds a
//! reference too, so the calls in progress are counted.
#![allow(unsafe_code, reason = "a fork handler; closes descriptors by number")]

use crate::alarm::Alarm;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use telpher_os::Lineage;

/// Files that children close at most; further ones they keep. Source: chosen; eight devices have 64 queues.
const MOST: usize = 256;

/// Numbers of the open files plus one; 0 is a free place.
static OPEN: [AtomicI32; MOST] = [const { AtomicI32::new(0) }; MOST];

/// Set in [`Node::calls`] once the file is to be let go of.
const LEAVING: u32 = 1 << 31;

/// An open file of a queue.
#[derive(Debug)]
pub(crate) struct Node {
    file: ManuallyDrop<File>,
    place: Option<&'static AtomicI32>,
    opened_in: Lineage,
    /// System calls in progress; with [`LEAVING`] no further one begins.
    calls: AtomicU32,
    /// Rings for errors, once [`listen`](Node::listen) has been called and if the file can be polled.
    alarm: OnceLock<Alarm>,
}

impl Node {
    pub(crate) fn new(file: File) -> Node {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        let opened_in = Lineage::current();
        // SAFETY: the handler makes system calls only, and this code is never unloaded while it is registered.
        let handled =
            *REGISTERED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) } == 0);
        let mark = mark(file.as_raw_fd());
        // Relaxed, here and below: a fork orders itself, and every place has one owner.
        let free = |place: &&AtomicI32| place.compare_exchange(0, mark, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let place = if handled { OPEN.iter().find(free) } else { None };
        let (calls, alarm) = (AtomicU32::new(0), OnceLock::new());
        Node { file: ManuallyDrop::new(file), place, opened_in, calls, alarm }
    }

    /// A system call on the file; `None` once it is let go of, or about to be.
    pub(crate) fn call<T>(&self, call: impl FnOnce(&File) -> T) -> Option<T> {
        // One word, so that either this call is seen by `release`, or that by this.
        let leaving = self.calls.fetch_add(1, Ordering::AcqRel) & LEAVING != 0;
        let answer = (!leaving).then(|| call(&self.file));
        // Release: pairs with the Acquire in `release`; whoever sees none in progress comes after what this one did.
        self.calls.fetch_sub(1, Ordering::Release);
        answer
    }

    /// Errors are heard from here on; not those that were reported before.
    pub(crate) fn listen(&self) {
        if let Some(Ok(alarm)) = self.call(Alarm::of) {
            let _ = self.alarm.set(alarm);
        }
    }

    /// True once the device has reported an error of this queue, or of none in particular, since [`listen`](Node::listen).
    pub(crate) fn is_alarmed(&self) -> bool {
        // Asking is a call on the file as well.
        self.alarm.get().is_some_and(|alarm| self.call(|_| alarm.ask()).unwrap_or_else(|| alarm.has_rung()))
    }

    /// Lets go of the file: the number stays taken, by something that cannot be written. No call on the file begins any more,
    /// whatever comes of this.
    ///
    /// # Errors
    ///
    /// If a call is in progress, whose reference would outlive this, or if there is no descriptor for what takes the file's
    /// place; the file is still open then.
    pub(crate) fn release(&self) -> io::Result<()> {
        // Acquire: pairs with the Release in `call`.
        if self.calls.fetch_or(LEAVING, Ordering::AcqRel) & !LEAVING != 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (reader, _) = io::pipe()?;
        // SAFETY: both descriptors are open and stay with their owners; what the second means changes in one step.
        let done = unsafe { libc::dup3(reader.as_raw_fd(), self.file.as_raw_fd(), libc::O_CLOEXEC) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let mark = mark(self.file.as_raw_fd());
            // First this, so that no child closes a number that somebody else has by then.
            let was_ours = place.compare_exchange(mark, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if !was_ours && !self.opened_in.is_current() {
                // The handler has closed it, and the number may be anybody's.
                return;
            }
        }
        // SAFETY: dropped once, here, and not used afterwards; it is open still, as was just seen.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}

fn mark(fd: RawFd) -> i32 {
    // Cannot overflow: descriptors are below the system's limit, which is far below.
    fd + 1
}

extern "C" fn close_in_child() {
    for place in &OPEN {
        let mark = place.swap(0, Ordering::Relaxed);
        if mark > 0 {
            // SAFETY: a file of the parent's that nobody in this child uses: portals look at their lineage first.
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

    /// Lets a child look, and gives its number.
    fn in_child(fork: impl FnOnce() -> i32, look: impl FnOnce() -> bool) -> i32 {
        let child = fork();
        if child == 0 {
            let held = look();
            // SAFETY: ends the child without anything of its parent's being run.
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
        // SAFETY: as above; no new stack, so it goes on where its parent is.
        i32::try_from(unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) }).unwrap()
    }

    #[test]
    fn a_released_file_is_closed_for_its_other_end() {
        let (mut reader, node) = pipe();
        node.release().unwrap();
        // End of file: nobody can write any more. The number is open still, and takes nothing.
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        assert_eq!((&*node.file).write(&[0; 64]).unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert!(node.call(|_| ()).is_none());
    }

    #[test]
    fn a_file_is_not_let_go_of_while_it_is_written_to() {
        let (mut reader, node) = pipe();
        // More than the pipe has room for, so that the call lasts until somebody reads.
        let written = vec![7; 1 << 20];
        let (released, begun) = std::thread::scope(|scope| {
            let writing = scope.spawn(|| node.call(|mut file| file.write_all(&written)));
            reader.read_exact(&mut [0]).unwrap();
            // It has begun, and its reference would keep the driver from draining.
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
    fn a_child_that_lives_on_does_not_hold_its_parents_file() {
        let (mut reader, node) = pipe();
        let (mut told, tell) = io::pipe().unwrap();
        let own = tell.as_raw_fd();
        let child = in_child(by_library, || {
            // SAFETY: a signal ends the child if the parent waits for it in vain, which `ended_well` tells.
            unsafe { libc::alarm(60) };
            // The child's end of this pipe would keep it from seeing the parent's end.
            // SAFETY: our own descriptor in this child, not used again.
            unsafe { libc::close(own) };
            told.read(&mut [0]).is_ok()
        });
        drop(node);
        // The child still lives, and the file is closed.
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        drop(tell);
        assert!(ended_well(child));
    }

    #[test]
    fn a_child_closes_no_number_that_has_become_its_own() {
        for (fork, handled) in [(by_library as fn() -> i32, true), (by_system_call, false)] {
            let (_reader, node) = pipe();
            let number = node.file.as_raw_fd();
            let mut node = Some(node);
            let child = in_child(fork, || {
                // SAFETY: asks about a number, which is free in this child exactly if the handler has run.
                let free = unsafe { libc::fcntl(number, libc::F_GETFD) } < 0;
                let (mut reader, mut writer) = io::pipe().unwrap();
                if free {
                    // SAFETY: the number is nobody's; from here on it is another name of this child's own pipe.
                    assert_eq!(unsafe { libc::dup2(writer.as_raw_fd(), number) }, number);
                }
                drop(node.take());
                // SAFETY: asks about a number.
                let kept = unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
                writer.write_all(&[7]).unwrap();
                free == handled && kept == handled && reader.read(&mut [0]).unwrap() == 1
            });
            assert!(ended_well(child), "handled: {handled}");
            // The parent's is open still.
            assert_eq!((&*node.expect("the parent's").file).write(&[1]).unwrap(), 1);
        }
    }

    #[test]
    fn without_a_place_a_file_is_closed_all_the_same() {
        let (mut reader, node) = pipe();
        let node = {
            let mut node = node;
            node.place.take().expect("a place").store(0, Ordering::Relaxed);
            node
        };
        drop(node);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }
}
