//! One DMA queue, shared by the virtqueues that are mapped to it.
//!
//! A lane takes copies between packets and guest memory, hands them to its queue as one batch, and marks them on their virtqueue's
//! [`Board`] when they have landed, whichever thread looks. What the queue leaves undone, the CPU redoes here, so that every copy that a
//! lane took lands exactly once.
//!
//! The lane itself keeps what its copies touch: for each virtqueue, and each table of guest memory, a tenant with a count of the
//! memory and of the packets' pool, let go when its last copy has landed and nobody will come with more. So no copy has a count.
#![allow(unsafe_code, reason = "copies between memory that is known by address only")]

use crate::board::Board;
use crate::packets::{Held, PoolMemory};
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::{GuestMemory, LaneError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use telpher_abi::Descriptor;
use telpher_mem::{Local, Space, WriteHint};
use telpher_mover::{Channel, ChannelPolicy, Clock, Finished, Hint, Moment, OnFault, Order, SystemClock};
use telpher_portal::Portal;

/// How long whoever goes waits for copies that are out, if nothing lands. Source: as [`ChannelPolicy::linger`].
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// How long a queue that has copies may finish none before its channel gives it up, if its portal can make sure that it does no more
/// ([`ChannelPolicy::limit`]); and after as long again the lane does without being sure.
/// Source: assumed: a thousand times what a device needs for all it can have in flight, and what guests sit out.
pub(crate) const SILENCE: Duration = Duration::from_secs(2);
/// What passes between two looks counts as so much silence at most: a process that stands still hears nothing.
const MOST_GAP: Duration = Duration::from_millis(250);
/// Looks in vain between two looks at the clock. Source: as the mover's, a read of the clock is 1 % of so many pauses.
const LOOKS: u32 = 64;

/// The pool of a virtqueue's packets, and those that were still in flight when it went: they are free again when its last tenant goes.
#[derive(Debug)]
pub(crate) struct Wards {
    pool: Arc<PoolMemory>,
    held: Mutex<Vec<Held>>,
}

impl Wards {
    pub(crate) fn new(pool: &Arc<PoolMemory>) -> Wards {
        Wards { pool: Arc::clone(pool), held: Mutex::default() }
    }

    /// Takes over packets that copies are still out for.
    pub(crate) fn keep(&self, packets: impl Iterator<Item = Held>) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).extend(packets);
    }

    /// True if it took over any.
    pub(crate) fn has_any(&self) -> bool {
        !self.held.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

impl Drop for Wards {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.pool.give_back(held.drain(..));
    }
}

/// What a lane has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaneStats {
    /// Copies that the queue did.
    pub copies: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Copies that the queue took and left undone, in part or whole, and that the CPU redid.
    pub redone: u64,
    /// Times somebody found the lane taken by another thread.
    pub contended: u64,
    /// Its queue said that it worked, had copies, and finished none for four seconds: it gets no more.
    pub silent: bool,
}

/// One DMA queue and its copies in flight.
#[derive(Debug)]
pub struct Lane {
    inner: Mutex<Inner>,
    contended: AtomicU64,
    /// See [`LaneStats::silent`].
    silent: AtomicBool,
    name: Box<str>,
}

/// A copy: from where, to where, how much, and whose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) src: u64,
    pub(crate) dst: u64,
    pub(crate) len: u32,
    /// The packet's number.
    pub(crate) packet: u64,
}

/// Which tenant of its lane a copy is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TenantId(usize);

#[derive(Debug)]
struct Tenant {
    board: Arc<Board>,
    /// Keeps the guest's side of its copies mapped.
    _memory: Arc<GuestMemory>,
    /// Keeps the packets' side.
    _wards: Arc<Wards>,
    /// Copies in flight.
    aloft: u64,
    /// Nobody comes with more.
    closed: bool,
}

type Nothing = Vec<u8>;

#[derive(Debug)]
struct Inner {
    channel: Channel<Nothing, Nothing>,
    /// Of each ticket in flight, by its number; a channel has no two whose numbers are a capacity apart. No bytes where none is in flight.
    owners: Box<[(TenantId, Copy)]>,
    finished: Vec<Finished<Nothing, Nothing>>,
    tenants: Vec<Option<Tenant>>,
    local: Local,
    stats: LaneStats,
    vigil: Vigil,
}

/// How long nothing has come from a queue that has something.
#[derive(Debug)]
struct Vigil {
    clock: Arc<dyn Clock>,
    /// Looks in vain.
    looks: u32,
    /// When the clock was looked at last.
    last: Option<Moment>,
    silence: Duration,
}

impl Vigil {
    /// Something came, or nothing is out.
    fn begin_again(&mut self) {
        (self.looks, self.last, self.silence) = (0, None, Duration::ZERO);
    }

    /// One more look in vain; true if it was for too long.
    fn look(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        if !self.looks.is_multiple_of(LOOKS) {
            return false;
        }
        let now = self.clock.now();
        let gap = self.last.replace(now).map_or(0, |last| now.nanos.saturating_sub(last.nanos));
        self.silence += Duration::from_nanos(gap).min(MOST_GAP);
        self.silence >= 2 * SILENCE
    }
}

impl Lane {
    /// A lane over a queue, with room for so many copies in flight.
    ///
    /// The queue's results go to the cache: the guest, or the switch, reads them at once (KUPER §6.4, guideline G3).
    ///
    /// # Errors
    /// [`LaneError`]: a room of 0 or beyond what a channel can have.
    pub fn new(portal: Arc<dyn Portal>, room: u32) -> Result<Lane, LaneError> {
        Lane::with_clock(portal, room, Arc::new(SystemClock::default()))
    }

    /// The same with a clock of one's own, by which it tells that its queue has been silent for too long: a simulator's stands still.
    ///
    /// # Errors
    /// As for [`Lane::new`].
    pub fn with_clock(portal: Arc<dyn Portal>, room: u32, clock: Arc<dyn Clock>) -> Result<Lane, LaneError> {
        // No deadline: a copy that was given up while its queue may still do it would write into a packet that is another's by then.
        let policy = ChannelPolicy {
            hint: Hint::Cache,
            on_fault: OnFault::FinishOnCpu,
            order: Order::Arrival,
            deadline: None,
            limit: SILENCE,
            ..ChannelPolicy::default()
        };
        let name = portal.info().name.to_string().into();
        let channel = Channel::with_clock(portal, room, policy, Arc::clone(&clock)).map_err(LaneError)?;
        let nobody = (TenantId(0), Copy { src: 0, dst: 0, len: 0, packet: 0 });
        let places = room.next_power_of_two() as usize;
        // SAFETY: it copies only what tenants vouch for (see `finish`), between memory to which no Rust reference exists: packets in
        // flight, and guest memory. This crate replaces no signal handler.
        let local = unsafe { Local::new() };
        let inner = Inner {
            channel,
            owners: vec![nobody; places].into(),
            finished: Vec::with_capacity(places),
            tenants: Vec::new(),
            local,
            stats: LaneStats::default(),
            vigil: Vigil { clock, looks: 0, last: None, silence: Duration::ZERO },
        };
        let (contended, silent) = (AtomicU64::new(0), AtomicBool::new(false));
        Ok(Lane { inner: Mutex::new(inner), contended, silent, name })
    }

    /// Its queue's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> LaneStats {
        // Relaxed: a count, by which nothing is published.
        LaneStats { contended: self.contended.load(Ordering::Relaxed), silent: self.is_silent(), ..self.lock().stats }
    }

    /// See [`LaneStats::silent`].
    #[inline]
    pub(crate) fn is_silent(&self) -> bool {
        // Relaxed: what it says is looked at again under the lock.
        self.silent.load(Ordering::Relaxed)
    }

    /// The tenant's copies that are out.
    pub(crate) fn out(&self, tenant: TenantId) -> Vec<Copy> {
        let owners = &self.lock().owners;
        owners.iter().filter(|(id, copy)| *id == tenant && copy.len > 0).map(|(_, copy)| *copy).collect()
    }

    /// Copies in flight.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.lock().aloft()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lane, unless another thread has it.
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

    /// A tenant whose copies lie in this memory and this pool, marked on this board.
    pub(crate) fn admit(&self, board: &Arc<Board>, memory: &Arc<GuestMemory>, wards: &Arc<Wards>) -> TenantId {
        let (board, memory, wards) = (Arc::clone(board), Arc::clone(memory), Arc::clone(wards));
        let tenant = Tenant { board, _memory: memory, _wards: wards, aloft: 0, closed: false };
        let mut inner = self.lock();
        let free = inner.tenants.iter().position(Option::is_none);
        match free {
            Some(place) => inner.tenants[place] = Some(tenant),
            None => inner.tenants.push(Some(tenant)),
        }
        TenantId(free.unwrap_or(inner.tenants.len() - 1))
    }

    /// The tenant comes with no more copies.
    pub(crate) fn close(&self, tenant: TenantId) {
        let mut inner = self.lock();
        if let Some(closing) = &mut inner.tenants[tenant.0] {
            closing.closed = true;
        }
        inner.let_go(tenant);
    }

    /// Hands copies to the queue, from the first on, as one batch if it takes batches. Returns how many it took; 0 if another thread has the
    /// lane and `wait` is false. Those that were taken are marked when they have landed, by whoever looks.
    ///
    /// # Safety
    /// - The tenant was [admitted](Lane::admit) here and is not closed.
    /// - Each copy has one side in the memory it was admitted with, and the other in a buffer of its pool whose [`Held`] stays with the
    ///   caller, or goes to its [`Wards`], until the copy's packet has landed on the board: nobody else touches it.
    pub(crate) unsafe fn take(&self, tenant: TenantId, copies: &[Copy], wait: bool) -> usize {
        let inner = if wait { Some(self.lock()) } else { self.try_lock() };
        let Some(mut inner) = inner else { return 0 };
        if self.is_silent() {
            return 0;
        }
        let inner = &mut *inner;
        let mut taken = 0;
        for copy in copies {
            let descriptor = Descriptor::memory_move(copy.src, copy.dst, copy.len);
            // SAFETY: both sides stay mapped until its result is fetched: the tenant keeps them, and lives as long as it has copies
            // aloft. No reference to either exists: the packet is the caller's, who does not touch it, and guest memory is only touched by
            // address. The channel has no deadline, so that no result comes early.
            let Ok(ticket) = (unsafe { inner.channel.raw(descriptor) }) else { break };
            let place = inner.place(ticket.number());
            inner.owners[place] = (tenant, *copy);
            taken += 1;
        }
        if let Some(tenant) = &mut inner.tenants[tenant.0] {
            tenant.aloft += taken as u64;
        }
        inner.channel.submit();
        taken
    }

    /// Marks what has landed, of all tenants; nothing if another thread is at it, which marks ours, too. Lends the queue a thread, if it has none.
    pub(crate) fn poll(&self) {
        if let Some(mut inner) = self.try_lock() {
            self.listen(&mut inner);
        }
    }

    /// The same, after the thread that is at it.
    pub(crate) fn poll_now(&self) {
        self.listen(&mut self.lock());
    }

    fn listen(&self, inner: &mut Inner) {
        if inner.poll() || inner.channel.pending() == 0 {
            inner.vigil.begin_again();
        } else if inner.vigil.look() {
            // Relaxed: see `is_silent`.
            self.silent.store(true, Ordering::Relaxed);
        }
    }
}

impl Inner {
    fn place(&self, ticket: u64) -> usize {
        // Masked to the number of places, which is a `usize`.
        usize::try_from(ticket & (self.owners.len() as u64 - 1)).unwrap_or(0)
    }

    fn aloft(&self) -> u64 {
        self.tenants.iter().flatten().map(|tenant| tenant.aloft).sum()
    }

    /// True if something has landed.
    fn poll(&mut self) -> bool {
        let mut finished = std::mem::take(&mut self.finished);
        let heard = self.channel.completed(&mut finished) > 0;
        for done in finished.drain(..) {
            let place = self.place(done.ticket.number());
            let (id, copy) = self.owners[place];
            self.owners[place].1.len = 0;
            if done.result.is_ok() {
                self.stats.copies += 1;
                self.stats.bytes += u64::from(copy.len);
            } else {
                self.stats.redone += 1;
                // SAFETY: the tenant keeps both sides mapped, and the copy's packet has not landed, so that nobody touches it; the queue has done
                // with it, or stopped for good, which is what a result of a channel without deadline means.
                unsafe { copy_now(&self.local, copy) };
            }
            let tenant = self.tenants[id.0].as_mut().expect("a tenant stays while it has copies aloft");
            tenant.aloft -= 1;
            tenant.board.mark(copy.packet);
            self.let_go(id);
        }
        self.finished = finished;
        heard
    }

    fn let_go(&mut self, id: TenantId) {
        if self.tenants[id.0].as_ref().is_some_and(|tenant| tenant.closed && tenant.aloft == 0) {
            self.tenants[id.0] = None;
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let end = Instant::now() + LINGER;
        while self.aloft() > 0 && Instant::now() < end {
            self.poll();
            std::thread::yield_now();
        }
        // A queue that never answers may still write: what its copies touch stays mapped, and nobody gets those packets.
        self.tenants.drain(..).flatten().filter(|tenant| tenant.aloft > 0).for_each(std::mem::forget);
    }
}

/// Copies by this thread. A page that is gone is replaced under it (see [`Shared`](telpher_mem::Shared)), so that it always ends.
///
/// # Safety
/// Both sides are mapped, and no reference to either exists; nobody but a guest, or a queue that is late, touches them meanwhile.
#[inline]
pub(crate) unsafe fn copy_now(local: &Local, copy: Copy) {
    // A fault cannot be: both sides are mapped for reading and writing. If it were, the bytes would be what the guest had there before.
    let _ = local.move_forward(copy.dst, copy.src, copy.len.into(), WriteHint::Cache);
}
