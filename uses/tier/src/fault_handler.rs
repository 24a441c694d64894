//! The thread that answers page faults and reads the events of the heap's mappings.
//!
//! It touches no memory of the heap, allocates nothing while it answers, and takes no lock but the page map's, because
//! any thread of the program may wait for it. The thread that moves pages must not touch pages that are out. If it does
//! (in an unmodified program this may happen through the C library's tables), it gets that page back at once.

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
use telpher_mem::{UserfaultEvent, spawn_unsignalled};

/// The thread. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct Keeper {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses a descriptor or a thread.
    pub(crate) fn start(exchange: &Arc<Exchange>) -> io::Result<Keeper> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (exchange, stopped) = (Arc::clone(exchange), Arc::clone(&stop));
        // A starting thread allocates, which it must not do once a fork may wait for it.
        let begun = Arc::new(Barrier::new(2));
        let begins = Arc::clone(&begun);
        let thread = spawn_unsignalled("telpher-tier", move || {
            begins.wait();
            keep(&exchange, &stopped);
        })?;
        begun.wait();
        Ok(Keeper { stop, thread: Some(thread) })
    }

    /// Called in a forked child, which has no such thread.
    pub(crate) fn forget(mut self) {
        self.thread = None;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // The counter is far from its maximum, so this write does not block.
            let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
            let _ = thread.join();
        }
    }
}

fn keep(exchange: &Exchange, stop: &OwnedFd) {
    // The thread's CPU time after the last read; it is measured only while traps are set.
    let mut before = None;
    let mut reserve = reserved(stop);
    loop {
        let mut waits = [PollFd::new(&exchange.userfault, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut waits, None) {
            Ok(_) | Err(Errno::INTR) => {}
            // Cannot happen with these descriptors. Ending the thread would block every waiting thread for good.
            Err(_) => std::thread::yield_now(),
        }
        if waits[0].revents().contains(PollFlags::IN) {
            if matches!(hear(exchange, &mut before), Err(Errno::MFILE | Errno::NFILE)) {
                // A fork event carries a descriptor. Until there is room for one, no thread forks, and no page is moved
                // or filled.
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

/// Opens a descriptor that reserves room for another one.
fn reserved(stop: &OwnedFd) -> Option<OwnedFd> {
    stop.try_clone().ok()
}

/// Reads the pending events and answers them.
fn hear(exchange: &Exchange, before: &mut Option<Duration>) -> Result<(), Errno> {
    let mut book = exchange.book();
    let book = &mut *book;
    let faults = book.traps.cost.faults;
    let begun = (!book.traps.are_empty()).then(|| before.unwrap_or_else(of_this_thread));
    let read = exchange.userfault.read(|event| {
        // A panic in one event leaves only that event unanswered; the panic's message reports it.
        let _ = catch_unwind(AssertUnwindSafe(|| match event {
            UserfaultEvent::Fault { page, .. } if book.traps.part_of(page).is_some() => exchange.spring(book, page),
            UserfaultEvent::Fault { page, thread } => match book.mover {
                // The moving thread would wait for itself.
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
        // This includes the wake-up, if the previous interval was also spent here.
        let of_traps = book.traps.cost.faults > faults;
        book.traps.cost.cpu += if of_traps { now.saturating_sub(begun) } else { Duration::ZERO };
    }
    // The descriptor was readable a moment ago and only this thread reads it, so the only expected error is a lack of
    // descriptors.
    read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
