//! A queue's open file: closed in forked children, and let go of while others may still use its descriptor.
//!
//! The driver waits for what was submitted through a file, and gives a dedicated queue free, when the last reference to it goes. A
//! child that kept one would hold up both, and cannot submit by it. So the children's copies are closed in a fork handler; a child
//! of a bare clone(2), which runs none, closes them when it drops what it has inherited.
#![allow(unsafe_code, reason = "a fork handler; closes descriptors by number")]

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use telpher_mem::Lineage;

/// Files that children close at most; further ones they keep. Source: chosen; eight devices have 64 queues.
const MOST: usize = 256;

/// Numbers of the open files plus one; 0 is a free place.
static OPEN: [AtomicI32; MOST] = [const { AtomicI32::new(0) }; MOST];

/// An open file of a queue.
#[derive(Debug)]
pub(crate) struct Node {
    file: ManuallyDrop<File>,
    place: Option<&'static AtomicI32>,
    opened_in: Lineage,
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
        Node { file: ManuallyDrop::new(file), place, opened_in }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Lets go of the file: the number stays taken, by something that cannot be written.
    ///
    /// # Errors
    ///
    /// If there is no descriptor for what takes its place; the file is as it was then.
    pub(crate) fn release(&self) -> io::Result<()> {
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
        assert_eq!(node.file().write(&[0; 64]).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn a_child_that_lives_on_does_not_hold_its_parents_file() {
        let (mut reader, node) = pipe();
        let (mut told, tell) = io::pipe().unwrap();
        let own = tell.as_raw_fd();
        let child = in_child(by_library, || {
            // SAFETY: a signal ends the child if the parent waits for it in vain, which `ended_well` tells.
            unsafe { libc::alarm(20) };
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
            let number = node.file().as_raw_fd();
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
            assert_eq!(node.expect("the parent's").file().write(&[1]).unwrap(), 1);
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
