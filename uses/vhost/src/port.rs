//! A port: the virtqueues of one frontend, which comes and goes.
//!
//! ```text
//! switch's threads ─ receive, transmit ─► Mutex<Slot> × n ◄─ start, stop, move, log ─ Control ◄─ requests
//! ```
//!
//! The data path locks a slot once a burst and never waits for it: while the control plane has it there is nothing to do there. The control
//! plane waits for a burst to end, and for copies in flight to land, for as long as its bound. A switch that polls a port without a
//! frontend moves nothing.

use crate::log::RingLog;
use crate::ring::{Base, Broken, Direction, RingSetup};
use crate::stats::{Drop, Stats};
use crate::sync::{AtomicU64, Ordering};
use crate::virtqueue::{QueueOptions, Virtqueue};
use crate::{GuestMemory, MOST_RINGS, Offer, PacketPool, Packets};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How a port works.
#[derive(Clone, Debug)]
pub struct PortOptions {
    /// What its frontends are offered.
    pub offer: Offer,
    /// How its virtqueues work, by ring; the last is for those that follow.
    pub rings: Vec<QueueOptions>,
    /// How long a request of the frontend's waits for copies in flight, if rings stop or memory changes. If copies into the guest have not landed by
    /// then the session ends: the guest's memory is taken away from the DMA queue, which may still write, and the frontend comes again.
    pub patience: Duration,
}

impl Default for PortOptions {
    /// One pair of queues, copied by the CPU. Half a second: assumed, a hundred times what a device needs for all it can have in flight.
    fn default() -> Self {
        let rings = vec![QueueOptions::default()];
        PortOptions { offer: Offer::of_pairs(1), rings, patience: Duration::from_millis(500) }
    }
}

/// The virtqueues of one frontend after another.
#[derive(Debug)]
pub struct Port {
    places: Box<[Place]>,
    pub(crate) pool: PacketPool,
    pub(crate) options: PortOptions,
    pub(crate) taken: Mutex<bool>,
    /// The address of a guest that has moved here and is to be announced, with [`MOVED`] above its six bytes; 0 if there is none.
    announced: AtomicU64,
}

/// There is an address below.
const MOVED: u64 = 1 << 48;

/// One ring's place.
#[derive(Debug)]
struct Place {
    slot: Mutex<Slot>,
    /// How many of the control plane wait for the slot. Who polls leaves it to them: without this, one that polls without a pause has taken it again
    /// before another has woken up.
    wanted: AtomicU64,
}

/// One ring, and whom to call.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) virtqueue: Option<Virtqueue>,
    /// It may do what is seen outside.
    pub(crate) enabled: bool,
    pub(crate) call: Option<OwnedFd>,
    pub(crate) kick: Option<Arc<OwnedFd>>,
    pub(crate) error: Option<OwnedFd>,
    /// Packets of the guest whose copies landed while it was not polled.
    pub(crate) kept: Packets,
    /// What virtqueues that were here before have done.
    pub(crate) past: Stats,
    /// Why the last of them that broke did.
    last_broken: Option<Broken>,
    /// The frontend was told that its ring is broken.
    told: bool,
}

impl Port {
    /// A port whose packets are of this pool. Nobody is connected.
    #[must_use]
    pub fn new(pool: &PacketPool, options: PortOptions) -> Arc<Port> {
        let slot = || Slot {
            virtqueue: None,
            enabled: false,
            call: None,
            kick: None,
            error: None,
            kept: pool.row(0),
            past: Stats::default(),
            last_broken: None,
            told: false,
        };
        let place = |_| Place { slot: Mutex::new(slot()), wanted: AtomicU64::new(0) };
        let places = (0..options.offer.rings.min(MOST_RINGS)).map(place).collect();
        let (taken, announced) = (Mutex::new(false), AtomicU64::new(0));
        Arc::new(Port { places, pool: pool.clone(), options, taken, announced })
    }

    /// Pairs of queues that a frontend can have.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.places.len() / 2
    }

    /// The pool its packets are of.
    #[must_use]
    pub fn pool(&self) -> &PacketPool {
        &self.pool
    }

    /// Begins to copy packets to the guest, from the first of `packets` on, and appends those that it has got to `done`; see
    /// [`Virtqueue::submit_enqueue_burst`] and [`Virtqueue::poll_enqueue_completed`]. Calls the driver if it wants to be. Returns how many left
    /// `packets`. A queue that does not run, or that another thread polls, takes none.
    ///
    /// # Panics
    /// If there is no such pair, or a row is of another pool.
    pub fn receive(&self, pair: usize, packets: &mut Packets, done: &mut Packets) -> usize {
        let Some(mut slot) = self.try_slot(2 * pair) else { return 0 };
        let slot = &mut *slot;
        let Some(virtqueue) = &mut slot.virtqueue else { return 0 };
        let mut taken = 0;
        if slot.enabled {
            taken = virtqueue.submit_enqueue_burst(packets);
        }
        virtqueue.poll_enqueue_completed(done);
        slot.after_burst();
        taken
    }

    /// The first half of [`receive`](Port::receive): begins to copy packets to the guest. Returns how many left `packets`.
    ///
    /// # Panics
    /// As for [`receive`](Port::receive).
    pub fn submit_enqueue_burst(&self, pair: usize, packets: &mut Packets) -> usize {
        let Some(mut slot) = self.try_slot(2 * pair) else { return 0 };
        match &mut *slot {
            Slot { enabled: true, virtqueue: Some(virtqueue), .. } => virtqueue.submit_enqueue_burst(packets),
            _ => 0,
        }
    }

    /// The second half of [`receive`](Port::receive): appends packets that the guest has got to `done`, and calls the driver if it wants to be.
    /// Returns how many.
    ///
    /// # Panics
    /// As for [`receive`](Port::receive).
    pub fn poll_enqueue_completed(&self, pair: usize, done: &mut Packets) -> usize {
        let Some(mut slot) = self.try_slot(2 * pair) else { return 0 };
        let Some(virtqueue) = &mut slot.virtqueue else { return 0 };
        let landed = virtqueue.poll_enqueue_completed(done);
        slot.after_burst();
        landed
    }

    /// Appends packets that the guest has sent to `into`, at most `most`, copied into buffers of `spare`; see
    /// [`Virtqueue::try_dequeue_burst`]. Calls the driver if it wants to be. Returns how many. A queue that does not run, or that another thread
    /// polls, gives none; what a queue sends that is not enabled is discarded (vhost-user, "Ring states").
    ///
    /// # Panics
    /// If there is no such pair, or a row is of another pool.
    pub fn transmit(&self, pair: usize, into: &mut Packets, spare: &mut Packets, most: usize) -> usize {
        let Some(mut slot) = self.try_slot(2 * pair + 1) else { return 0 };
        let slot = &mut *slot;
        let before = into.len();
        if !slot.kept.is_empty() {
            slot.kept.move_to(most, into);
        }
        if let Some(virtqueue) = &mut slot.virtqueue {
            virtqueue.try_dequeue_burst(into, spare, most - (into.len() - before));
            if !slot.enabled {
                into.truncate(before);
            }
            slot.after_burst();
        }
        into.len() - before
    }

    /// Waits until the guest has kicked for more to take from a ring, at most for `timeout`; not at all if there is more already, copies are in flight,
    /// or the ring does not run or has no kicks. For threads that have nothing else to do.
    ///
    /// # Panics
    /// If there is no such ring.
    pub fn wait(&self, ring: usize, timeout: Duration) {
        let kick = {
            let mut slot = self.slot(ring);
            let kick = slot.kick.clone();
            match (&mut slot.virtqueue, &kick) {
                (Some(virtqueue), Some(_)) => {
                    virtqueue.want_kicks(true);
                    if virtqueue.ring().available() || virtqueue.in_flight() > 0 {
                        virtqueue.want_kicks(false);
                        return;
                    }
                }
                _ => return,
            }
            kick
        };
        if let Some(kick) = kick {
            let timeout = Timespec::try_from(timeout).ok();
            let ready = poll(&mut [PollFd::new(&*kick, PollFlags::IN)], timeout.as_ref());
            if ready.is_ok_and(|ready| ready > 0) {
                // Taken up, so that the next is heard; whether there was one does not matter.
                let _ = rustix::io::read(&*kick, &mut [0; 8]);
            }
        }
        if let Some(virtqueue) = &mut self.slot(ring).virtqueue {
            virtqueue.want_kicks(false);
        }
    }

    /// Whether a ring runs and may do what is seen outside.
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn is_running(&self, ring: usize) -> bool {
        let slot = self.slot(ring);
        slot.enabled && slot.virtqueue.is_some()
    }

    /// Whether a frontend has the port.
    #[must_use]
    pub fn has_frontend(&self) -> bool {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a ring was set up with when it began, its features among it; nothing if it stands still.
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn setup(&self, ring: usize) -> Option<RingSetup> {
        self.slot(ring).virtqueue.as_ref().map(|virtqueue| *virtqueue.ring().setup())
    }

    /// A ring's packets in flight.
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn in_flight(&self, ring: usize) -> usize {
        self.slot(ring).virtqueue.as_ref().map_or(0, Virtqueue::in_flight)
    }

    /// Why nothing is taken from a ring any more, if so.
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn broken(&self, ring: usize) -> Option<Broken> {
        self.slot(ring).virtqueue.as_ref().and_then(Virtqueue::broken)
    }

    /// Why the ring broke last, whether it was set up again since or not, over all frontends.
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn last_broken(&self, ring: usize) -> Option<Broken> {
        self.slot(ring).last_broken
    }

    /// What a ring has done, over all frontends.
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn stats(&self, ring: usize) -> Stats {
        let slot = self.slot(ring);
        let now = slot.virtqueue.as_ref().map(|virtqueue| *virtqueue.stats()).unwrap_or_default();
        slot.past + now
    }

    /// The address of a guest that has moved here and cannot announce itself, once, whoever asks: that one announces it to the others with a frame in its
    /// name (vhost-user, `SEND_RARP`). For who polls: one load as long as there is none.
    #[inline]
    #[must_use]
    pub fn take_announcement(&self) -> Option<[u8; 6]> {
        // Relaxed, as below: the word is all there is to it.
        if self.announced.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let word = self.announced.swap(0, Ordering::Relaxed);
        let [address @ .., _, _] = word.to_le_bytes();
        (word != 0).then_some(address)
    }

    /// The one before, if nobody has asked for it, was of the same frontend, which has one guest.
    pub(crate) fn announce(&self, address: [u8; 6]) {
        let [a, b, c, d, e, f] = address;
        self.announced.store(MOVED | u64::from_le_bytes([a, b, c, d, e, f, 0, 0]), Ordering::Relaxed);
    }

    pub(crate) fn slot(&self, ring: usize) -> MutexGuard<'_, Slot> {
        let place = &self.places[ring];
        // Relaxed: it says who is next, and nothing about the slot.
        place.wanted.fetch_add(1, Ordering::Relaxed);
        let slot = place.slot.lock().unwrap_or_else(PoisonError::into_inner);
        place.wanted.fetch_sub(1, Ordering::Relaxed);
        slot
    }

    #[inline]
    fn try_slot(&self, ring: usize) -> Option<MutexGuard<'_, Slot>> {
        let place = &self.places[ring];
        if place.wanted.load(Ordering::Relaxed) > 0 {
            return None;
        }
        match place.slot.try_lock() {
            Ok(slot) => Some(slot),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn queue_options(&self, ring: usize) -> QueueOptions {
        let rings = &self.options.rings;
        rings.get(ring).or(rings.last()).cloned().unwrap_or_default()
    }
}

/// A ring that stands still.
pub(crate) struct Stopped {
    /// Where it goes on: with what had not landed, if anything.
    pub(crate) base: Base,
    /// The memory that its copies may still be written to.
    pub(crate) late: Option<Arc<GuestMemory>>,
}

impl Slot {
    /// The ring runs from now on, and is polled: its driver need not kick before somebody [waits](Port::wait).
    pub(crate) fn run(&mut self, mut virtqueue: Virtqueue) {
        virtqueue.want_kicks(false);
        self.virtqueue = Some(virtqueue);
        self.told = false;
    }

    /// Lets copies in flight land, `until` then at most; true if all have, or nothing runs. What the guest received goes back to the pool, what it sent
    /// is kept for who polls next.
    pub(crate) fn drain(&mut self, until: Instant) -> bool {
        let Some(virtqueue) = &mut self.virtqueue else { return true };
        let landed = match virtqueue.ring().setup().direction {
            Direction::Transmit => virtqueue.drain(&mut self.kept, until),
            Direction::Receive => virtqueue.drain(&mut self.kept.like(), until),
        };
        self.after_burst();
        landed
    }

    /// The ring stands still, if it ran, `until` then at the latest.
    pub(crate) fn stop(&mut self, until: Instant) -> Option<Stopped> {
        let landed = self.drain(until);
        let mut virtqueue = self.virtqueue.take()?;
        virtqueue.stats.drop_some(Drop::Silent, virtqueue.in_flight() as u64);
        self.past = self.past + *virtqueue.stats();
        let base = virtqueue.ring().base();
        // Of packets out of the guest only our own buffers are written.
        let writes = !landed && virtqueue.ring().setup().direction == Direction::Receive;
        let late = writes.then(|| Arc::clone(virtqueue.ring().memory()));
        if !landed || virtqueue.flights.has_redone() {
            // They end when their lanes have done with them, which keep the guest's memory until then; nobody waits for that.
            let mut flights = virtqueue.flights;
            flights.leave();
            std::thread::spawn(move || drop(flights));
        }
        let available = if landed { base.available } else { base.used };
        Some(Stopped { base: Base { available, ..base }, late })
    }

    /// Whether it is logged otherwise than it shall be.
    pub(crate) fn needs_log(&self, log: Option<&RingLog>) -> bool {
        self.virtqueue.as_ref().is_some_and(|virtqueue| virtqueue.log.as_ref() != log)
    }

    /// See [`Virtqueue::set_log`].
    pub(crate) fn set_log(&mut self, log: Option<RingLog>) {
        if let Some(virtqueue) = &mut self.virtqueue {
            virtqueue.set_log(log);
        }
    }

    /// Calls the driver if it wants to be, and tells the frontend if its ring is broken.
    #[inline]
    fn after_burst(&mut self) {
        let Some(virtqueue) = &mut self.virtqueue else { return };
        if virtqueue.wants_call()
            && let Some(call) = &self.call
        {
            ring_bell(call);
        }
        if let Some(broken) = virtqueue.broken()
            && !self.told
        {
            self.told = true;
            self.last_broken = Some(broken);
            if let Some(error) = &self.error {
                ring_bell(error);
            }
        }
    }
}

/// Counts an event up. What cannot be counted up was heard of already.
pub(crate) fn ring_bell(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::PoolOptions;

    #[test]
    fn who_polls_leaves_a_ring_to_who_waits_for_it() {
        let pool = PacketPool::new(PoolOptions { buffers: 64, longest: 2048 }).unwrap();
        let port = Port::new(&pool, PortOptions::default());
        for _ in 0..100 {
            let polls = port.try_slot(0).expect("nobody else is there");
            let waits = std::thread::spawn({
                let port = Arc::clone(&port);
                move || port.slot(0).told = true
            });
            while port.places[0].wanted.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            drop(polls);
            // It has not got it yet, or has had it.
            while !waits.is_finished() {
                assert!(port.try_slot(0).is_none_or(|slot| slot.told));
            }
            waits.join().unwrap();
            port.slot(0).told = false;
        }
    }
}
