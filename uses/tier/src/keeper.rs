//! The thread that answers page faults and hears of what happens to the heap's mappings.
//!
//! It touches no memory of the heap's, allocates nothing while it answers, and takes no lock but the book's: any thread of the program may
//! wait for it.

use crate::exchange::Exchange;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use telpher_mem::UserfaultEvent;

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts it.
    ///
    /// # Errors
    /// The system refuses a descriptor or a thread.
    pub(crate) fn start(exchange: &Arc<Exchange>) -> io::Result<Keeper> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (exchange, stopped) = (Arc::clone(exchange), Arc::clone(&stop));
        let name = "telpher-tier".to_string();
        // A thread that begins allocates, which it must not do once a fork may wait for it.
        let begun = Arc::new(Barrier::new(2));
        let begins = Arc::clone(&begun);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            begins.wait();
            keep(&exchange, &stopped);
        })?;
        begun.wait();
        Ok(Keeper { stop, thread: Some(thread) })
    }

    /// In a forked child: there is no such thread.
    pub(crate) fn forget(mut self) {
        self.thread = None;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A counter far from its end takes a one without waiting.
            let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
            let _ = thread.join();
        }
    }
}

fn keep(exchange: &Exchange, stop: &OwnedFd) {
    loop {
        let mut waits = [PollFd::new(&exchange.userfault, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut waits, None) {
            Ok(_) | Err(Errno::INTR) => {}
            // Descriptors of our own: nothing else can be said of them. Whoever waits would wait for ever.
            Err(_) => std::thread::yield_now(),
        }
        if waits[0].revents().contains(PollFlags::IN) {
            hear(exchange);
        }
        if waits[1].revents().contains(PollFlags::IN) {
            return;
        }
    }
}

/// Reads what there is, and answers.
fn hear(exchange: &Exchange) {
    let mut book = exchange.book();
    let book = &mut *book;
    let read = exchange.userfault.read(|event| {
        // A fault of ours in one event leaves the program without an answer to that one only; it says so by the panic's message.
        let _ = catch_unwind(AssertUnwindSafe(|| match event {
            UserfaultEvent::Fault { page } => exchange.fill(book, page),
            UserfaultEvent::Fork { child } => exchange.give_to_child(book, &child),
            UserfaultEvent::Remap { from, to, len } => {
                book.remapped(from, to, len);
                exchange.userfault.wake(from..from + len);
            }
            UserfaultEvent::Remove(range) => {
                book.removed(&range);
                exchange.userfault.wake(range);
            }
            UserfaultEvent::Unmap(range) => {
                book.unmapped(&range);
                exchange.userfault.wake(range);
            }
            _ => {}
        }));
    });
    // It was readable a moment ago, and nobody else reads it; a refusal is the end of the process' memory.
    let _ = read;
}
