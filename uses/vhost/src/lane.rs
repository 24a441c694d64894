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
use telpher_mem::{Local, Space, WriteHint};
use telpher_mover::{Clock, Copies, CopiesPolicy, Ended, Hint, Moment, SystemClock};
use telpher_portal::Portal;

/// How long whoever goes waits for copies that are out, if nothing lands. Source: as [`CopiesPolicy::linger`].
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// How long a queue that has copies may finish none before it is given up, if its portal can make sure that it does no more
/// ([`CopiesPolicy::limit`]); and after as long again the lane does without being sure.
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
    /// The packet has no other copy.
    pub(crate) only: bool,
}

/// Whose a copy in flight is.
#[derive(Clone, Copy, Debug)]
struct Owner {
    tenant: TenantId,
    copy: Copy,
    /// It is out.
    aloft: bool,
    /// Its virtqueue has redone it, and is not told when it lands.
    withdrawn: bool,
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

#[derive(Debug)]
struct Inner {
    copies: Copies,
    /// By the copies' places.
    owners: Box<[Owner]>,
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

impl Owner {
    /// The tenant waits for it.
    fn awaits(&self, tenant: TenantId) -> bool {
        self.tenant == tenant && self.aloft && !self.withdrawn
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
        let policy = CopiesPolicy { hint: Hint::Cache, limit: SILENCE, ..CopiesPolicy::default() };
        let name = portal.info().name.to_string().into();
        let copies = Copies::with_clock(portal, room, policy, Arc::clone(&clock)).map_err(LaneError)?;
        let none = Copy { src: 0, dst: 0, len: 0, packet: 0, only: false };
        let nobody = Owner { tenant: TenantId(0), copy: none, aloft: false, withdrawn: false };
        // SAFETY: it copies only what tenants vouch for (see `finish`), between memory to which no Rust reference exists: packets in
        // flight, and guest memory. This crate replaces no signal handler.
        let local = unsafe { Local::new() };
        let inner = Inner {
            owners: vec![nobody; copies.slots()].into(),
            copies,
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

    /// The tenant's copies that are out and that it has not [withdrawn](Lane::withdraw).
    pub(crate) fn out(&self, tenant: TenantId) -> Vec<Copy> {
        let owners = &self.lock().owners;
        owners.iter().filter(|owner| owner.awaits(tenant)).map(|owner| owner.copy).collect()
    }

    /// Those of them that are a packet's, which are not marked any more from now on: whoever asks has the packet's marks.
    pub(crate) fn withdraw(&self, tenant: TenantId, packet: u64) -> Vec<Copy> {
        let owners = &mut self.lock().owners;
        let out = owners.iter_mut().filter(|owner| owner.awaits(tenant) && owner.copy.packet == packet);
        out.map(|owner| {
            owner.withdrawn = true;
            owner.copy
        })
        .collect()
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
            // SAFETY: both sides stay mapped until it has ended: the tenant keeps them, and lives as long as it has copies aloft. No
            // reference to either exists: the packet is the caller's, who does not touch it, and guest memory is only touched by address.
            let Some(place) = (unsafe { inner.copies.put(copy.src, copy.dst, copy.len) }) else { break };
            inner.owners[place] = Owner { tenant, copy: *copy, aloft: true, withdrawn: false };
            taken += 1;
        }
        if let Some(tenant) = &mut inner.tenants[tenant.0] {
            tenant.aloft += taken as u64;
        }
        inner.copies.submit();
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
        if inner.poll() || inner.copies.pending() == 0 {
            inner.vigil.begin_again();
        } else if inner.vigil.look() {
            // Relaxed: see `is_silent`.
            self.silent.store(true, Ordering::Relaxed);
        }
    }
}

impl Inner {
    fn aloft(&self) -> u64 {
        self.tenants.iter().flatten().map(|tenant| tenant.aloft).sum()
    }

    /// True if something has landed.
    fn poll(&mut self) -> bool {
        let Inner { copies, owners, tenants, local, stats, .. } = self;
        let landed = copies.completed(|place, ended| {
            let Owner { tenant: id, copy, withdrawn, .. } = owners[place];
            owners[place].aloft = false;
            let tenant = tenants[id.0].as_mut().expect("a tenant stays while it has copies aloft");
            if ended == Ended::Done {
                stats.copies += 1;
                stats.bytes += u64::from(copy.len);
            } else {
                stats.redone += 1;
                if !withdrawn {
                    // SAFETY: the tenant keeps both sides mapped, and the copy's packet has not landed, so that nobody touches it; the queue has done
                    // with it, or stopped for good, which is what its end means.
                    unsafe { copy_now(local, copy) };
                }
            }
            if !withdrawn {
                tenant.board.mark(copy.packet, copy.only);
            }
            tenant.aloft -= 1;
            if tenant.aloft == 0 && tenant.closed {
                tenants[id.0] = None;
            }
        });
        landed > 0
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
