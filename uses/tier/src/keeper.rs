//! The thread that answers page faults and hears of what happens to the heap's mappings.
//!
//! It touches no memory of the heap's, allocates nothing while it answers, and takes no lock but the book's: any thread of the program may
//! wait for it. The thread that moves pages must touch none that are out either; should it all the same, as in a program that it knows nothing
//! of it might through the C library's tables, it is given that page back.

use crate::clock::of_this_thread;
use crate::exchange::Exchange;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Duration;
use telpher_os::{UserfaultEvent, spawn_unsignalled};

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
        // A thread that begins allocates, which it must not do once a fork may wait for it.
        let begun = Arc::new(Barrier::new(2));
        let begins = Arc::clone(&begun);
        let thread = spawn_unsignalled("telpher-tier", move || {
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
    // The time of a core that it has had until it read last; while no traps are set it is not asked for.
    let mut before = None;
    let mut reserve = reserved(stop);
    loop {
        let mut waits = [PollFd::new(&exchange.userfault, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut waits, None) {
            Ok(_) | Err(Errno::INTR) => {}
            // Descriptors of our own: nothing else can be said of them. Whoever waits would wait for ever.
            Err(_) => std::thread::yield_now(),
        }
        if waits[0].revents().contains(PollFlags::IN) {
            if matches!(hear(exchange, &mut before), Err(Errno::MFILE | Errno::NFILE)) {
                // A fork is told of by a descriptor, and until there is room for one nobody forks, and no page moves or is filled.
                drop(reserve.take());
                let _ = hear(exchange, &mut before);
                std::thread::yield_now();
            }
            reserve = reserve.or_else(|| reserved(stop));
        }
        if waits[1].revents().contains(PollFlags::IN) {
            return;
        }
    }
}

/// A descriptor that stands for room for another one.
fn reserved(stop: &OwnedFd) -> Option<OwnedFd> {
    stop.try_clone().ok()
}

/// Reads what there is, and answers.
fn hear(exchange: &Exchange, before: &mut Option<Duration>) -> Result<(), Errno> {
    let mut book = exchange.book();
    let book = &mut *book;
    let faults = book.traps.cost.faults;
    let begun = (!book.traps.are_empty()).then(|| before.unwrap_or_else(of_this_thread));
    let read = exchange.userfault.read(|event| {
        // A fault of ours in one event leaves the program without an answer to that one only; it says so by the panic's message.
        let _ = catch_unwind(AssertUnwindSafe(|| match event {
            UserfaultEvent::Fault { page, .. } if book.traps.part_of(page).is_some() => exchange.spring(book, page),
            UserfaultEvent::Fault { page, thread } => match book.mover {
                // It would wait for itself.
                Some(mover) if thread == Some(mover) && book.is_out(page) => exchange.rescue(book, page),
                _ => exchange.fill(book, page),
            },
            UserfaultEvent::Fork { child } => exchange.give_to_child(book, &child),
            UserfaultEvent::Remap { from, to, len } => {
                book.hear_remapped(from, to, len, |range| exchange.userfault.wake(range));
            }
            UserfaultEvent::Remove(range) => {
                book.removed(&range);
                exchange.userfault.wake(range);
            }
            UserfaultEvent::Unmap(range) => {
                book.hear_unmapped(&range, |range| exchange.userfault.wake(range));
            }
            _ => {}
        }));
    });
    if book.order.waits() && !exchange.userfault.is_changing() {
        book.catch_up(true, |range| exchange.userfault.wake(range));
    }
    *before = begun.map(|_| of_this_thread());
    if let (Some(begun), Some(now)) = (begun, *before) {
        // Also what it took to be woken, if the time before was spent here, too.
        let of_traps = book.traps.cost.faults > faults;
        book.traps.cost.cpu += if of_traps { now.saturating_sub(begun) } else { Duration::ZERO };
    }
    // It was readable a moment ago, and nobody else reads it: nothing is refused but a descriptor.
    read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
