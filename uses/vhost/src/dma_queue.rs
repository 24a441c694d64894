//! One DMA queue, shared by the virtqueues that are mapped to it.
//!
//! A [`DmaQueue`] takes copies between packets and guest memory and hands them to its queue as one batch. Any thread
//! that polls marks completed copies in their virtqueue's [`ReorderArray`]. The CPU redoes here whatever the queue
//! leaves undone, so every copy that a DMA queue took completes exactly once.
//!
//! The DMA queue keeps alive what its copies touch. For each virtqueue and each table of guest memory it has a tenant,
//! with one reference to the memory and one to the packets' pool. A tenant is removed when it is closed and its last
//! copy has completed. So the copies themselves need no reference counts.
#![allow(unsafe_code, reason = "copies memory that is known by address only")]

use crate::idle_time::IdleTime;
use crate::packets::{OwnedBuffer, PoolMemory};
use crate::reorder_array::ReorderArray;
use crate::stats::DmaQueueStats;
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::{DmaQueueError, GuestMemory};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use telpher_mem::{Local, Space, WriteHint};
use telpher_mover::{Clock, Copies, CopiesPolicy, CopyResult, Hint, SystemClock};
use telpher_portal::Portal;

/// How long a queue with copies may complete none before it is abandoned, if its portal can guarantee that it stops
/// ([`CopiesPolicy::limit`]). After as long again the DMA queue stops using it without that guarantee. Source: assumed:
/// a thousand times what a device needs for everything it can have in flight, and within what guests tolerate.
pub(crate) const LONGEST_IDLE_TIME: Duration = Duration::from_secs(2);
/// Fruitless polls between two reads of the clock. Source: as the mover's; a read of the clock costs 1 % of this many
/// pauses.
const POLLS_PER_CLOCK_READ: u32 = 64;

/// The pool of a virtqueue's packets, and the packets still in flight when the virtqueue was dropped. They return to
/// the pool when the last tenant goes.
#[derive(Debug)]
pub(crate) struct DeferredFree {
    pool: Arc<PoolMemory>,
    held: Mutex<Vec<OwnedBuffer>>,
}

impl DeferredFree {
    pub(crate) fn new(pool: &Arc<PoolMemory>) -> DeferredFree {
        DeferredFree { pool: Arc::clone(pool), held: Mutex::default() }
    }

    /// Takes over packets that still have copies in flight.
    pub(crate) fn keep(&self, packets: impl Iterator<Item = OwnedBuffer>) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).extend(packets);
    }

    /// Returns whether it took over any packet.
    pub(crate) fn has_any(&self) -> bool {
        !self.held.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

impl Drop for DeferredFree {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.pool.give_back(held.drain(..));
    }
}

/// One DMA queue and its copies in flight.
#[derive(Debug)]
pub struct DmaQueue {
    inner: Mutex<Inner>,
    contended: AtomicU64,
    /// See [`DmaQueueStats::silent`].
    silent: AtomicBool,
    name: Box<str>,
}

/// A copy: addresses, length, and the packet it belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) src: u64,
    pub(crate) dst: u64,
    pub(crate) len: u32,
    /// The packet's number.
    pub(crate) packet: u64,
    /// The packet has no other copy.
    pub(crate) only: bool,
}

/// A copy in flight and the tenant that owns it.
#[derive(Clone, Copy, Debug)]
struct InFlightCopy {
    tenant: TenantId,
    copy: Copy,
    /// The slot is in use.
    in_flight: bool,
    /// Its virtqueue has redone it, and is not notified when it completes.
    withdrawn: bool,
}

/// Identifies a tenant of a DMA queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TenantId(usize);

#[derive(Debug)]
struct Tenant {
    order: Arc<ReorderArray>,
    /// Keeps the guest's side of its copies mapped.
    _memory: Arc<GuestMemory>,
    /// Keeps the packets' buffers.
    _deferred: Arc<DeferredFree>,
    /// Copies in flight.
    in_flight: u64,
    /// No more copies will come.
    closed: bool,
}

#[derive(Debug)]
struct Inner {
    copies: Copies,
    /// Indexed by the copies' slots.
    slots: Box<[InFlightCopy]>,
    tenants: Vec<Option<Tenant>>,
    local: Local,
    stats: DmaQueueStats,
    stall_timer: StallTimer,
}

/// How long a queue that has copies has completed none.
#[derive(Debug)]
struct StallTimer {
    /// Polls without a completion.
    idle_polls: u32,
    idle_time: IdleTime,
}

impl StallTimer {
    /// A copy completed, or none is in flight.
    fn reset(&mut self) {
        self.idle_polls = 0;
        self.idle_time.reset();
    }

    /// Counts a poll without completion; returns true if the queue has been silent for too long.
    fn idle_poll(&mut self) -> bool {
        self.idle_polls = self.idle_polls.wrapping_add(1);
        if !self.idle_polls.is_multiple_of(POLLS_PER_CLOCK_READ) {
            return false;
        }
        self.idle_time.count() >= 2 * LONGEST_IDLE_TIME
    }
}

impl InFlightCopy {
    /// Returns whether the tenant waits for it.
    fn is_awaited_by(&self, tenant: TenantId) -> bool {
        self.tenant == tenant && self.in_flight && !self.withdrawn
    }
}

impl DmaQueue {
    /// Creates a DMA queue over a queue, for at most `room` copies in flight.
    ///
    /// The queue writes its results to the cache: the guest, or the switch, reads them at once (KUPER §6.4, guideline
    /// G3).
    ///
    /// # Errors
    /// [`DmaQueueError`]: `room` is 0 or more than a channel supports.
    pub fn new(portal: Arc<dyn Portal>, room: u32) -> Result<DmaQueue, DmaQueueError> {
        DmaQueue::with_clock(portal, room, Arc::new(SystemClock::default()))
    }

    /// Like [`DmaQueue::new`], with the given clock, which measures how long the queue is silent, also while a
    /// virtqueue with copies in flight is dropped: a simulator's clock stands still between rests.
    ///
    /// # Errors
    /// As for [`DmaQueue::new`].
    pub fn with_clock(portal: Arc<dyn Portal>, room: u32, clock: Arc<dyn Clock>) -> Result<DmaQueue, DmaQueueError> {
        let policy = CopiesPolicy { hint: Hint::Cache, limit: LONGEST_IDLE_TIME, ..CopiesPolicy::default() };
        let name = portal.info().name.to_string().into();
        let copies = Copies::with_clock(portal, room, policy, Arc::clone(&clock)).map_err(DmaQueueError)?;
        let none = Copy { src: 0, dst: 0, len: 0, packet: 0, only: false };
        let unused = InFlightCopy { tenant: TenantId(0), copy: none, in_flight: false, withdrawn: false };
        // SAFETY: it makes only copies that tenants guarantee (see `take`), between memory to which no Rust reference
        // exists: packets in flight, and guest memory. This crate replaces no signal handler.
        let local = unsafe { Local::new() };
        let inner = Inner {
            slots: vec![unused; copies.slots()].into(),
            copies,
            tenants: Vec::new(),
            local,
            stats: DmaQueueStats::default(),
            stall_timer: StallTimer { idle_polls: 0, idle_time: IdleTime::new(clock) },
        };
        let (contended, silent) = (AtomicU64::new(0), AtomicBool::new(false));
        Ok(DmaQueue { inner: Mutex::new(inner), contended, silent, name })
    }

    /// The queue's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The DMA queue's counters.
    #[must_use]
    pub fn stats(&self) -> DmaQueueStats {
        // Relaxed: a counter that publishes nothing.
        DmaQueueStats {
            contended: self.contended.load(Ordering::Relaxed),
            silent: self.is_silent(),
            ..self.lock().stats
        }
    }

    /// See [`DmaQueueStats::silent`].
    #[inline]
    pub(crate) fn is_silent(&self) -> bool {
        // Relaxed: it is checked again under the lock.
        self.silent.load(Ordering::Relaxed)
    }

    /// Starts to measure how long the queue is silent, with its clock.
    pub(crate) fn idle_time(&self) -> IdleTime {
        self.lock().stall_timer.idle_time.another()
    }

    /// Asks the queue whether it still works. If it has stopped, the next poll ends its copies. For threads that stop
    /// waiting: a thread that is rarely scheduled polls too seldom to notice it otherwise.
    pub(crate) fn check_health(&self) {
        self.lock().copies.check_health();
    }

    /// The tenant's copies that are in flight and not [withdrawn](DmaQueue::withdraw).
    pub(crate) fn copies_of(&self, tenant: TenantId) -> Vec<Copy> {
        let slots = &self.lock().slots;
        slots.iter().filter(|slot| slot.is_awaited_by(tenant)).map(|slot| slot.copy).collect()
    }

    /// Withdraws a packet's copies and returns them. They are not marked from now on; the caller marks the packet
    /// instead.
    pub(crate) fn withdraw(&self, tenant: TenantId, packet: u64) -> Vec<Copy> {
        let slots = &mut self.lock().slots;
        let out = slots.iter_mut().filter(|slot| slot.is_awaited_by(tenant) && slot.copy.packet == packet);
        out.map(|slot| {
            slot.withdrawn = true;
            slot.copy
        })
        .collect()
    }

    /// The number of copies in flight.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.lock().in_flight()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the DMA queue, unless another thread holds it.
    fn try_lock(&self) -> Option<MutexGuard<'_, Inner>> {
        match self.inner.try_lock() {
            Ok(inner) => Some(inner),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                self.contended.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Registers a tenant whose copies lie in this memory and this pool, and are marked in this array.
    pub(crate) fn admit(
        &self,
        order: &Arc<ReorderArray>,
        memory: &Arc<GuestMemory>,
        deferred: &Arc<DeferredFree>,
    ) -> TenantId {
        let (order, memory, deferred) = (Arc::clone(order), Arc::clone(memory), Arc::clone(deferred));
        let tenant = Tenant { order, _memory: memory, _deferred: deferred, in_flight: 0, closed: false };
        let mut inner = self.lock();
        let free = inner.tenants.iter().position(Option::is_none);
        match free {
            Some(place) => inner.tenants[place] = Some(tenant),
            None => inner.tenants.push(Some(tenant)),
        }
        TenantId(free.unwrap_or(inner.tenants.len() - 1))
    }

    /// The tenant will send no more copies.
    pub(crate) fn close(&self, tenant: TenantId) {
        let mut inner = self.lock();
        if let Some(closing) = &mut inner.tenants[tenant.0] {
            closing.closed = true;
        }
        inner.remove_if_idle(tenant);
    }

    /// Hands copies to the queue, from the first on, as one batch if it supports batches. Returns how many it took: 0
    /// if another thread holds the DMA queue and `wait` is false. Taken copies are marked when they complete, by the
    /// thread that polls.
    ///
    /// # Safety
    /// - The tenant was [admitted](DmaQueue::admit) here and is not closed.
    /// - Each copy has one side in the memory it was admitted with, and the other in a buffer of its pool. That
    ///   buffer's [`OwnedBuffer`] stays with the caller, or goes to its [`DeferredFree`], until the copy's packet is
    ///   complete in the array. No other code touches the buffer.
    pub(crate) unsafe fn take(&self, tenant: TenantId, copies: &[Copy], wait: bool) -> usize {
        let inner = if wait { Some(self.lock()) } else { self.try_lock() };
        let Some(mut inner) = inner else { return 0 };
        if self.is_silent() {
            return 0;
        }
        let inner = &mut *inner;
        let mut taken = 0;
        for copy in copies {
            // SAFETY: both sides stay mapped until the copy ends: the tenant keeps them, and lives as long as it has
            // copies in flight. No reference to either exists: the packet belongs to the caller, which does not touch
            // it, and guest memory is accessed by address only.
            let Some(place) = (unsafe { inner.copies.put(copy.src, copy.dst, copy.len) }) else { break };
            inner.slots[place] = InFlightCopy { tenant, copy: *copy, in_flight: true, withdrawn: false };
            taken += 1;
        }
        if let Some(tenant) = &mut inner.tenants[tenant.0] {
            tenant.in_flight += taken as u64;
        }
        inner.copies.submit();
        taken
    }

    /// Marks completed copies of all tenants. Does nothing if another thread is polling, which marks ours too. Lends
    /// the queue this thread if it has none of its own.
    pub(crate) fn poll(&self) {
        if let Some(mut inner) = self.try_lock() {
            self.poll_locked(&mut inner);
        }
    }

    /// Like `poll`, but waits for a thread that is polling.
    pub(crate) fn poll_now(&self) {
        self.poll_locked(&mut self.lock());
    }

    fn poll_locked(&self, inner: &mut Inner) {
        if inner.poll() || inner.copies.pending() == 0 {
            inner.stall_timer.reset();
        } else if inner.stall_timer.idle_poll() {
            // Relaxed: see `is_silent`.
            self.silent.store(true, Ordering::Relaxed);
        }
    }
}

impl Inner {
    fn in_flight(&self) -> u64 {
        self.tenants.iter().flatten().map(|tenant| tenant.in_flight).sum()
    }

    /// Returns whether any copy completed.
    fn poll(&mut self) -> bool {
        let Inner { copies, slots, tenants, local, stats, .. } = self;
        let landed = copies.completed(|place, ended| {
            let InFlightCopy { tenant: id, copy, withdrawn, .. } = slots[place];
            slots[place].in_flight = false;
            let tenant = tenants[id.0].as_mut().expect("a tenant stays while it has copies in flight");
            if ended == CopyResult::Done {
                stats.copies += 1;
                stats.bytes += u64::from(copy.len);
            } else {
                stats.redone += 1;
                if !withdrawn {
                    // SAFETY: the tenant keeps both sides mapped. The copy's packet is not complete, so no other code
                    // touches it. The queue is done with the copy or has stopped for good; that is what its end means.
                    unsafe { copy_now(local, copy) };
                }
            }
            if !withdrawn {
                tenant.order.mark(copy.packet, copy.only);
            }
            tenant.in_flight -= 1;
            if tenant.in_flight == 0 && tenant.closed {
                tenants[id.0] = None;
            }
        });
        landed > 0
    }

    fn remove_if_idle(&mut self, id: TenantId) {
        if self.tenants[id.0].as_ref().is_some_and(|tenant| tenant.closed && tenant.in_flight == 0) {
            self.tenants[id.0] = None;
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut idle_time = self.stall_timer.idle_time.another();
        while self.in_flight() > 0 {
            if self.poll() {
                idle_time.reset();
            } else if !idle_time.linger() {
                self.copies.check_health();
                self.poll();
                break;
            }
        }
        // A queue that never completes may still write: what its copies touch stays mapped, and these packets are never
        // reused.
        self.tenants.drain(..).flatten().filter(|tenant| tenant.in_flight > 0).for_each(std::mem::forget);
    }
}

/// Makes the copy on this thread. A page that is gone is replaced under it (see
/// [`SharedMapping`](telpher_mem::SharedMapping)), so it always ends.
///
/// # Safety
/// Both sides are mapped, and no reference to either exists. Meanwhile only a guest or a stalled queue touches them.
#[inline]
pub(crate) unsafe fn copy_now(local: &Local, copy: Copy) {
    // A fault cannot occur: both sides are mapped for reading and writing. If it did, the bytes would be the guest's
    // previous ones.
    let _ = local.move_forward(copy.dst, copy.src, copy.len.into(), WriteHint::Cache);
}
