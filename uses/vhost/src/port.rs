//! A port: the virtqueues of one frontend at a time.
//!
//! ```text
//! switch's threads ─ receive, transmit ─► Mutex<Slot> × n ◄─ start, stop, move, log ─ Control ◄─ requests
//! ```
//!
//! The data path locks a slot once per burst and never waits for the lock: while the control plane holds the slot, the
//! data path does nothing on that ring. The control plane waits for a burst to end, and for copies in flight to
//! complete, up to its deadline. A switch that polls a port without a frontend moves nothing.

use crate::log::RingLog;
use crate::ring::{Base, Broken, Direction, RingSetup};
use crate::stats::{DropReason, Stats};
use crate::sync::{AtomicU64, Ordering};
use crate::virtqueue::{QueueOptions, Virtqueue};
use crate::{GuestMemory, MOST_RINGS, Offer, PacketPool, Packets};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use telpher_os::PeerEventfd;

/// The options of a port.
#[derive(Clone, Debug)]
pub struct PortOptions {
    /// The features offered to frontends.
    pub offer: Offer,
    /// The options of its virtqueues, by ring; the last entry applies to all further rings.
    pub rings: Vec<QueueOptions>,
    /// How long a request of the frontend waits for copies in flight when rings stop or memory changes. If copies into
    /// the guest are still incomplete then, the session ends: the guest's memory is revoked from the DMA queue, which
    /// may still write, and the frontend reconnects.
    pub drain_timeout: Duration,
}

impl Default for PortOptions {
    /// One pair of queues, copied by the CPU. Half a second: assumed, a hundred times what a device needs for
    /// everything it can have in flight.
    fn default() -> Self {
        let rings = vec![QueueOptions::default()];
        PortOptions { offer: Offer::of_pairs(1), rings, drain_timeout: Duration::from_millis(500) }
    }
}

/// The virtqueues of one frontend after another.
#[derive(Debug)]
pub struct Port {
    ring_slots: Box<[RingSlot]>,
    pub(crate) pool: PacketPool,
    pub(crate) options: PortOptions,
    pub(crate) taken: Mutex<bool>,
    /// The MAC address of a guest that migrated here and is to be announced, with [`HAS_ADDRESS`] above its six bytes;
    /// 0 if there is none.
    announced: AtomicU64,
}

/// Set if the word contains an address.
const HAS_ADDRESS: u64 = 1 << 48;

/// One ring's slot and its waiters.
#[derive(Debug)]
struct RingSlot {
    slot: Mutex<Slot>,
    /// How many control plane threads wait for the slot. The polling thread leaves it to them. Without this, a thread
    /// that polls without a pause would take the lock again before a waiter wakes up.
    waiters: AtomicU64,
}

/// One ring and its eventfds.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) virtqueue: Option<Virtqueue>,
    /// The ring may have effects visible to the guest (vhost-user, "Ring states").
    pub(crate) enabled: bool,
    pub(crate) call: Option<PeerEventfd>,
    pub(crate) kick: Option<Arc<PeerEventfd>>,
    pub(crate) error: Option<PeerEventfd>,
    /// Packets from the guest whose copies completed while the ring was not polled.
    pub(crate) kept: Packets,
    /// The counters of virtqueues that used this slot before.
    pub(crate) past: Stats,
    /// Why the last broken virtqueue broke.
    last_broken: Option<Broken>,
    /// The frontend was notified that its ring is broken.
    error_sent: bool,
}

impl Port {
    /// Creates a port whose packets are of this pool, without a frontend.
    #[must_use]
    pub fn new(pool: &PacketPool, options: PortOptions) -> Arc<Port> {
        let slot = || Slot {
            virtqueue: None,
            enabled: false,
            call: None,
            kick: None,
            error: None,
            kept: pool.empty(0),
            past: Stats::default(),
            last_broken: None,
            error_sent: false,
        };
        let ring_slot = |_| RingSlot { slot: Mutex::new(slot()), waiters: AtomicU64::new(0) };
        let ring_slots = (0..options.offer.rings.min(MOST_RINGS)).map(ring_slot).collect();
        let (taken, announced) = (Mutex::new(false), AtomicU64::new(0));
        Arc::new(Port { ring_slots, pool: pool.clone(), options, taken, announced })
    }

    /// The number of queue pairs that a frontend can have.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.ring_slots.len() / 2
    }

    /// The pool of its packets.
    #[must_use]
    pub fn pool(&self) -> &PacketPool {
        &self.pool
    }

    /// Starts to copy packets to the guest, from the first of `packets` on, and appends the packets that the guest has
    /// received to `done`; see [`Virtqueue::submit_enqueue_burst`] and [`Virtqueue::poll_enqueue_completed`]. Calls the
    /// driver if it wants calls. Returns how many left `packets`. A queue that does not run, or that another thread
    /// polls, takes none.
    ///
    /// # Panics
    /// If there is no such pair, or a `Packets` is of another pool.
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

    /// The first half of [`receive`](Port::receive): starts to copy packets to the guest. Returns how many left
    /// `packets`.
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

    /// The second half of [`receive`](Port::receive): appends packets that the guest has received to `done`, and calls
    /// the driver if it wants calls. Returns how many.
    ///
    /// # Panics
    /// As for [`receive`](Port::receive).
    pub fn poll_enqueue_completed(&self, pair: usize, done: &mut Packets) -> usize {
        let Some(mut slot) = self.try_slot(2 * pair) else { return 0 };
        let Some(virtqueue) = &mut slot.virtqueue else { return 0 };
        let completed = virtqueue.poll_enqueue_completed(done);
        slot.after_burst();
        completed
    }

    /// Appends up to `most` packets that the guest has sent to `into`, copied into buffers of `spare`; see
    /// [`Virtqueue::try_dequeue_burst`]. Calls the driver if it wants calls. Returns how many. A queue that does not
    /// run, or that another thread polls, gives none. Packets from a disabled queue are discarded (vhost-user, "Ring
    /// states").
    ///
    /// # Panics
    /// If there is no such pair, or a `Packets` is of another pool.
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

    /// Waits until the guest kicks the ring, at most for `timeout`. Returns at once if chains are available, copies are
    /// in flight, the ring does not run, or it has no kick eventfd. For threads that have nothing else to do.
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
                // So that the next kick is noticed; it does not matter whether there was one.
                kick.clear();
            }
        }
        if let Some(virtqueue) = &mut self.slot(ring).virtqueue {
            virtqueue.want_kicks(false);
        }
    }

    /// Returns whether a ring runs and is enabled.
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn is_running(&self, ring: usize) -> bool {
        let slot = self.slot(ring);
        slot.enabled && slot.virtqueue.is_some()
    }

    /// Returns whether a frontend is connected to the port.
    #[must_use]
    pub fn has_frontend(&self) -> bool {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The setup with which a ring started, including its features; `None` if it does not run.
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn setup(&self, ring: usize) -> Option<RingSetup> {
        self.slot(ring).virtqueue.as_ref().map(|virtqueue| *virtqueue.ring().setup())
    }

    /// The number of a ring's packets in flight.
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn in_flight(&self, ring: usize) -> usize {
        self.slot(ring).virtqueue.as_ref().map_or(0, Virtqueue::in_flight)
    }

    /// Why nothing is taken from a ring any more; `None` if it is not broken.
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn broken(&self, ring: usize) -> Option<Broken> {
        self.slot(ring).virtqueue.as_ref().and_then(Virtqueue::broken)
    }

    /// Why the ring broke last, over all frontends, even if it was set up again since.
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn last_broken(&self, ring: usize) -> Option<Broken> {
        self.slot(ring).last_broken
    }

    /// A ring's counters, over all frontends.
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn stats(&self, ring: usize) -> Stats {
        let slot = self.slot(ring);
        let now = slot.virtqueue.as_ref().map(|virtqueue| *virtqueue.stats()).unwrap_or_default();
        slot.past + now
    }

    /// Returns, once, the MAC address of a guest that migrated here and cannot announce itself. The thread that gets it
    /// announces it to the network with a frame in the guest's name (vhost-user, `SEND_RARP`). Cheap to poll: one load
    /// while there is none.
    #[inline]
    #[must_use]
    pub fn take_announcement(&self) -> Option<[u8; 6]> {
        // Relaxed, as below: the word is the only data.
        if self.announced.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let word = self.announced.swap(0, Ordering::Relaxed);
        let [address @ .., _, _] = word.to_le_bytes();
        (word != 0).then_some(address)
    }

    /// Overwrites a previous address that was not taken: it was of the same frontend, which has one guest.
    pub(crate) fn announce(&self, address: [u8; 6]) {
        let [a, b, c, d, e, f] = address;
        self.announced.store(HAS_ADDRESS | u64::from_le_bytes([a, b, c, d, e, f, 0, 0]), Ordering::Relaxed);
    }

    pub(crate) fn slot(&self, ring: usize) -> MutexGuard<'_, Slot> {
        let ring_slot = &self.ring_slots[ring];
        // Relaxed: it only says whose turn is next, and nothing about the slot.
        ring_slot.waiters.fetch_add(1, Ordering::Relaxed);
        let slot = ring_slot.slot.lock().unwrap_or_else(PoisonError::into_inner);
        ring_slot.waiters.fetch_sub(1, Ordering::Relaxed);
        slot
    }

    #[inline]
    fn try_slot(&self, ring: usize) -> Option<MutexGuard<'_, Slot>> {
        let ring_slot = &self.ring_slots[ring];
        if ring_slot.waiters.load(Ordering::Relaxed) > 0 {
            return None;
        }
        match ring_slot.slot.try_lock() {
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

/// A ring that has stopped.
pub(crate) struct Stopped {
    /// Where it resumes: before incomplete chains, if there are any.
    pub(crate) base: Base,
    /// The memory that its copies may still write.
    pub(crate) unfinished: Option<Arc<GuestMemory>>,
}

impl Slot {
    /// Starts the ring. It is polled: its driver need not kick before a thread [waits](Port::wait).
    pub(crate) fn run(&mut self, mut virtqueue: Virtqueue) {
        virtqueue.want_kicks(false);
        self.virtqueue = Some(virtqueue);
        self.error_sent = false;
    }

    /// Waits for copies in flight, at most until `deadline`. Returns true if all are complete, or the ring does not
    /// run. Packets that the guest received go back to the pool; packets that it sent are kept for the next poll.
    pub(crate) fn drain(&mut self, deadline: Instant) -> bool {
        let Some(virtqueue) = &mut self.virtqueue else { return true };
        let completed = match virtqueue.ring().setup().direction {
            Direction::Transmit => virtqueue.drain(&mut self.kept, deadline),
            Direction::Receive => virtqueue.drain(&mut self.kept.like(), deadline),
        };
        self.after_burst();
        completed
    }

    /// Stops the ring, if it runs, by `deadline` at the latest.
    pub(crate) fn stop(&mut self, deadline: Instant) -> Option<Stopped> {
        let completed = self.drain(deadline);
        let mut virtqueue = self.virtqueue.take()?;
        virtqueue.stats.drop_some(DropReason::Silent, virtqueue.in_flight() as u64);
        self.past += *virtqueue.stats();
        let base = virtqueue.ring().base();
        // Packets from the guest only write our own buffers.
        let writes = !completed && virtqueue.ring().setup().direction == Direction::Receive;
        let unfinished = writes.then(|| Arc::clone(virtqueue.ring().memory()));
        if !completed || virtqueue.in_flight.has_redone() {
            // They end when their DMA queues are done with them; the queues keep the guest's memory mapped until then.
            // No thread waits for that here.
            let mut in_flight = virtqueue.in_flight;
            in_flight.close_tenancy();
            std::thread::spawn(move || drop(in_flight));
        }
        let available = if completed { base.available } else { base.used };
        Some(Stopped { base: Base { available, ..base }, unfinished })
    }

    /// Returns whether its log must change.
    pub(crate) fn needs_log(&self, log: Option<&RingLog>) -> bool {
        self.virtqueue.as_ref().is_some_and(|virtqueue| virtqueue.log.as_ref() != log)
    }

    /// See [`Virtqueue::set_log`].
    pub(crate) fn set_log(&mut self, log: Option<RingLog>) {
        if let Some(virtqueue) = &mut self.virtqueue {
            virtqueue.set_log(log);
        }
    }

    /// Calls the driver if it wants calls, and notifies the frontend if its ring is broken.
    #[inline]
    fn after_burst(&mut self) {
        let Some(virtqueue) = &mut self.virtqueue else { return };
        if virtqueue.wants_call()
            && let Some(call) = &self.call
        {
            call.signal();
        }
        if let Some(broken) = virtqueue.broken()
            && !self.error_sent
        {
            self.error_sent = true;
            self.last_broken = Some(broken);
            if let Some(error) = &self.error {
                error.signal();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::PoolOptions;

    #[test]
    fn the_polling_thread_yields_a_ring_to_waiting_threads() {
        let pool = PacketPool::new(PoolOptions { buffers: 64, longest: 2048 }).unwrap();
        let port = Port::new(&pool, PortOptions::default());
        for _ in 0..100 {
            let polls = port.try_slot(0).expect("no other thread holds the slot");
            let waits = std::thread::spawn({
                let port = Arc::clone(&port);
                move || port.slot(0).error_sent = true
            });
            while port.ring_slots[0].waiters.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            drop(polls);
            // The waiter has not got the slot yet, or is done with it.
            while !waits.is_finished() {
                assert!(port.try_slot(0).is_none_or(|slot| slot.error_sent));
            }
            waits.join().unwrap();
            port.slot(0).error_sent = false;
        }
    }
}
