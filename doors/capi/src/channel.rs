//! The poll-mode ring: the mover's channel, and what C's side of it needs to keep.

use crate::failure::Failure;
use crate::raw::{Raw, Request, dispatch};
use crate::words::{Completion, OpResult};
use std::time::{Duration, Instant};
use telpher_mover::{Channel as MoverChannel, Finished, Rejected, Ticket};

/// One thread's way to one queue. Nothing here allocates after construction.
#[derive(Debug)]
pub struct Channel {
    inner: MoverChannel<Raw, Raw>,
    /// What the ring hands out, between two lines of `look`.
    fetched: Vec<Finished<Raw, Raw>>,
    /// Fetched from the ring and not yet by the caller, last one first. Never more than the ring has places.
    ready: Vec<Completion>,
    /// By place: what each operation is to be told with. Places are positions modulo this length, a power of two, and no
    /// two operations that are not fetched share one (`telpher_mover::Channel`, ring order).
    user_data: Box<[u64]>,
    linger: Duration,
}

impl Channel {
    pub(crate) fn new(inner: MoverChannel<Raw, Raw>, capacity: u32, linger: Duration) -> Channel {
        let places = (capacity as usize).next_power_of_two();
        let user_data = vec![0; places].into_boxed_slice();
        Channel { inner, fetched: Vec::with_capacity(places), ready: Vec::with_capacity(places), user_data, linger }
    }

    fn place(&self, ticket: Ticket) -> usize {
        // Masked to the number of places, which is a `usize`.
        usize::try_from(ticket.number() & (self.user_data.len() as u64 - 1)).unwrap_or(0)
    }

    /// The channel beneath, for descriptors that only an unsafe call takes.
    pub(crate) fn inner(&mut self) -> &mut MoverChannel<Raw, Raw> {
        &mut self.inner
    }

    /// Remembers what an operation is to be told with.
    pub(crate) fn taken(&mut self, taken: Result<Ticket, Rejected<Raw, Raw>>, user_data: u64) -> Result<u64, Failure> {
        let ticket = taken.map_err(|rejected| Failure::from(rejected.reason))?;
        let place = self.place(ticket);
        self.user_data[place] = user_data;
        Ok(ticket.number())
    }

    /// Prepares an operation.
    pub(crate) fn put(&mut self, request: Request, user_data: u64) -> Result<u64, Failure> {
        fn same<T>(taken: T) -> T {
            taken
        }
        let ring = &mut self.inner;
        let taken = dispatch!(request, ring, same, { Request::Nop => ring.nop(), Request::Drain => ring.drain() });
        self.taken(taken, user_data)
    }

    pub(crate) fn submit(&mut self) -> usize {
        self.inner.submit()
    }

    /// The next operation that has ended.
    pub(crate) fn next(&mut self) -> Option<Completion> {
        self.ready.pop()
    }

    /// Looks at the ring, unless something fetched is still here.
    pub(crate) fn look(&mut self) {
        if !self.ready.is_empty() {
            return;
        }
        self.inner.completed(&mut self.fetched);
        // At once, because a place that the ring gave up may get another operation's data.
        for finished in self.fetched.iter().rev() {
            self.ready.push(self.completion(finished));
        }
        self.fetched.clear();
    }

    fn completion(&self, finished: &Finished<Raw, Raw>) -> Completion {
        let (record, has_record) = finished.record.map_or(([0; 32], 0), |record| (record.to_bytes(), 1));
        Completion {
            ticket: finished.ticket.number(),
            user_data: self.user_data[self.place(finished.ticket)],
            result: OpResult::of(&finished.result, finished.via),
            record,
            has_record,
            reserved: 0,
        }
    }

    /// Operations whose end the caller was not told yet.
    pub(crate) fn pending(&self) -> usize {
        self.inner.pending() + self.ready.len()
    }

    /// Operations told as late whose memory the device may still write.
    pub(crate) fn quarantined(&self) -> usize {
        self.inner.quarantined()
    }

    /// Sends and fetches until no device has anything of it, at most the time it lingers; true if so. What has ended is
    /// forgotten.
    pub(crate) fn settle(&mut self) -> bool {
        let end = Instant::now() + self.linger;
        loop {
            self.inner.submit();
            self.fetched.clear();
            self.inner.completed(&mut self.fetched);
            if self.inner.pending() == 0 && self.inner.quarantined() == 0 {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            std::thread::yield_now();
        }
    }
}
