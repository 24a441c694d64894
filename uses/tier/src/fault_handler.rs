//! The thread that answers page faults and reads the events of the heap's mappings.
//!
//! It touches no memory of the heap, allocates nothing while it answers, and takes no lock but the page map's, because
//! any thread of the program may wait for it. The thread that moves pages must not touch pages that are out. If it does
//! (in an unmodified program this may happen through the C library's tables), it gets that page back at once.

use crate::clock::thread_cpu_time;
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

/// The thread. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct FaultHandler {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl FaultHandler {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses a descriptor or a thread.
    pub(crate) fn start(exchange: &Arc<Exchange>) -> io::Result<FaultHandler> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (exchange, stopped) = (Arc::clone(exchange), Arc::clone(&stop));
        // A starting thread allocates, which it must not do once a fork may wait for it.
        let begun = Arc::new(Barrier::new(2));
        let begins = Arc::clone(&begun);
        let thread = spawn_unsignalled("telpher-tier", move || {
            begins.wait();
            run(&exchange, &stopped);
        })?;
        begun.wait();
        Ok(FaultHandler { stop, thread: Some(thread) })
    }

    /// Called in a forked child, which has no such thread.
    pub(crate) fn forget(mut self) {
        self.thread = None;
    }
}

impl Drop for FaultHandler {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // The counter is far from its maximum, so this write does not block.
            let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
            let _ = thread.join();
        }
    }
}

fn run(exchange: &Exchange, stop: &OwnedFd) {
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
            if matches!(read_events(exchange, &mut before), Err(Errno::MFILE | Errno::NFILE)) {
                // A fork event carries a descriptor. Until there is room for one, no thread forks, and no page is moved
                // or filled.
                drop(reserve.take());
                let _ = read_events(exchange, &mut before);
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
fn read_events(exchange: &Exchange, before: &mut Option<Duration>) -> Result<(), Errno> {
    let mut map = exchange.page_map();
    let map = &mut *map;
    let faults = map.traps.cost.faults;
    let start = (!map.traps.are_empty()).then(|| before.unwrap_or_else(thread_cpu_time));
    let read = exchange.userfault.read(|event| {
        // A panic in one event leaves only that event unanswered; the panic's message reports it.
        let _ = catch_unwind(AssertUnwindSafe(|| match event {
            UserfaultEvent::Fault { page, .. } if map.traps.part_of(page).is_some() => {
                exchange.return_touched(map, page)
            }
            UserfaultEvent::Fault { page, thread } => match map.mover {
                // The moving thread would wait for itself.
                Some(mover) if thread == Some(mover) && map.is_out(page) => exchange.rescue(map, page),
                _ => exchange.fill(map, page),
            },
            UserfaultEvent::Fork { child } => exchange.give_to_child(map, &child),
            UserfaultEvent::Remap { from, to, len } => {
                map.remap_event(from, to, len, |range| exchange.userfault.wake(range));
            }
            UserfaultEvent::Remove(range) => {
                map.removed(&range);
                exchange.userfault.wake(range);
            }
            UserfaultEvent::Unmap(range) => {
                map.unmap_event(&range, |range| exchange.userfault.wake(range));
            }
            _ => {}
        }));
    });
    if map.order.waits() && !exchange.userfault.is_changing() {
        map.catch_up(true, |range| exchange.userfault.wake(range));
    }
    *before = start.map(|_| thread_cpu_time());
    if let (Some(start), Some(now)) = (start, *before) {
        // This includes the wake-up, if the previous interval was also spent here.
        let of_traps = map.traps.cost.faults > faults;
        map.traps.cost.cpu += if of_traps { now.saturating_sub(start) } else { Duration::ZERO };
    }
    // The descriptor was readable a moment ago and only this thread reads it, so the only expected error is a lack of
    // descriptors.
    read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
