//! The poll-mode ring: the mover's channel, and the state that the C side needs.

use crate::c_structs::{Completion, OpResult};
use crate::failure::Failure;
use crate::raw::{Raw, Request, dispatch};
use std::time::{Duration, Instant};
use telpher_mover::{Channel as MoverChannel, Finished, Rejected, Ticket};

/// One thread's access to one queue. Nothing here allocates after construction.
#[derive(Debug)]
pub struct Channel {
    inner: MoverChannel<Raw, Raw>,
    /// The completions that the ring returned, between two calls of `look`.
    fetched: Vec<Finished<Raw, Raw>>,
    /// Fetched from the ring and not yet by the caller, in reverse order. Never more than the ring's capacity.
    ready: Vec<Completion>,
    /// By slot: what each completion needs. Slots are positions modulo this length, a power of two, and no two
    /// unfetched operations share one (`telpher_mover::Channel`, ring order).
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
        // Masked to the number of slots, which is a `usize`.
        usize::try_from(ticket.number() & (self.user_data.len() as u64 - 1)).unwrap_or(0)
    }

    /// The underlying channel, for descriptors that only an unsafe call accepts.
    pub(crate) fn inner(&mut self) -> &mut MoverChannel<Raw, Raw> {
        &mut self.inner
    }

    /// Stores what an operation's completion needs.
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

    /// The next completed operation.
    pub(crate) fn next(&mut self) -> Option<Completion> {
        self.ready.pop()
    }

    /// Polls the ring, unless fetched completions are left.
    pub(crate) fn look(&mut self) {
        if !self.ready.is_empty() {
            return;
        }
        self.inner.completed(&mut self.fetched);
        // At once, because a slot that the ring released may get another operation's data.
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

    /// Operations whose end the caller has not fetched yet.
    pub(crate) fn pending(&self) -> usize {
        self.inner.pending() + self.ready.len()
    }

    /// Timed-out operations whose memory the device may still write.
    pub(crate) fn quarantined(&self) -> usize {
        self.inner.quarantined()
    }

    /// Sends and fetches until no device has any of its operations, for at most its linger time; returns true if none
    /// has. Drops the completions.
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
