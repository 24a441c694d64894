//! A block and its copy, shared by all its handles.

use crate::config::Resident;
use crate::index::{Span, Spanning};
use crate::reads::ActiveRead;
use crate::schedule::Priority;
use crate::shared_copy::{SharedCopy, Turn};
use crate::source::Source;
use crate::stats::Stats;
use crate::sync::{AtomicU8, Ordering};
use crate::tier::Tier;
use std::sync::Arc;
use std::task::Poll;
use telpher_mem::{PoolBuffer, Slice, Tagged};
use telpher_metrics::Position;
use telpher_mover::{Job, Outcome};

/// The outcome of the copy.
#[derive(Debug)]
pub(crate) enum Copied {
    /// The bytes are also here.
    Fast(PoolBuffer),
    /// The bytes are only in the source.
    Nowhere,
}

/// The source has changed since, or may have.
const STALE: u8 = 1;
/// Prefetched and not used yet.
const UNREAD: u8 = 2;
/// Requested by a thread that needs it now.
const DEMANDED: u8 = 4;
/// Its copy has begun, or will never begin.
const BEGUN: u8 = 8;

/// A block of a source. It lives as long as the index of its tier or a handle refers to it.
#[derive(Debug)]
pub(crate) struct Entry<S: Source> {
    /// Keeps the source's memory, so that its addresses are not reused.
    source: S,
    span: Span,
    /// The tier of its copy. The tier refers to this entry as long as the cache exists.
    tier: Arc<Tier<S>>,
    /// The copy. Its `word` is the number of insertions before the entry's last use. Its `bytes` are the flags and the
    /// highest prefetch priority.
    copy: SharedCopy<CopyState<S>, Copied>,
}

/// The bytes of a block, with the note that they are being read.
type Reading<S> = Tagged<Slice<S>, ActiveRead<Span>>;

// 88 bytes with its counts, which allocators with multiples of 16 and a header of 8 round up to 96; and its slot in the
// index.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Entry<Arc<[u8]>>>() <= 72);

/// The state of the copy, until it is complete.
#[derive(Debug)]
enum CopyState<S: Source> {
    /// Not begun.
    Wanted,
    /// The mover has it.
    InFlight(Box<Job<(Reading<S>, PoolBuffer)>>),
    /// Given up: a step failed.
    Failed,
}

impl<S: Source> Entry<S> {
    /// Creates an entry whose copy has not begun: a prefetch if it has a priority, otherwise an access. `span` is
    /// inside the source.
    pub(crate) fn wanted(source: &S, span: Span, tier: &Arc<Tier<S>>, ahead: Option<Priority>) -> Arc<Self> {
        let entry =
            Entry { source: source.clone(), span, tier: Arc::clone(tier), copy: SharedCopy::new(CopyState::Wanted) };
        // Relaxed: no other thread has it yet.
        entry.flags().store(if ahead.is_some() { UNREAD } else { DEMANDED }, Ordering::Relaxed);
        entry.priority().store(ahead.unwrap_or_default().0, Ordering::Relaxed);
        Arc::new(entry)
    }

    fn flags(&self) -> &AtomicU8 {
        &self.copy.bytes[0]
    }

    fn priority(&self) -> &AtomicU8 {
        &self.copy.bytes[1]
    }

    pub(crate) fn source(&self) -> &S {
        &self.source
    }

    pub(crate) fn own_span(&self) -> Span {
        self.span
    }

    pub(crate) fn tier(&self) -> &Arc<Tier<S>> {
        &self.tier
    }

    pub(crate) fn copied(&self) -> Option<&Copied> {
        self.copy.result()
    }

    pub(crate) fn is_fast(&self) -> bool {
        matches!(self.copied(), Some(Copied::Fast(_)))
    }

    // Flags, priority and use are hints, therefore Relaxed unless stated otherwise. Eviction decides by a reference
    // count, and a copy begins only within a turn.

    fn is(&self, mark: u8) -> bool {
        self.flags().load(Ordering::Relaxed) & mark != 0
    }

    /// Notes a use after this many insertions. Stores only new values, so that the cache line of a widely used entry
    /// stays shared.
    #[inline]
    pub(crate) fn touch(&self, now: u32) {
        if self.copy.word.load(Ordering::Relaxed) != now {
            self.copy.word.store(now, Ordering::Relaxed);
        }
    }

    /// Notes that it has been used.
    #[inline]
    pub(crate) fn read(&self) {
        if self.is(UNREAD) {
            self.flags().fetch_and(!UNREAD, Ordering::Relaxed);
        }
    }

    pub(crate) fn used(&self) -> u32 {
        self.copy.word.load(Ordering::Relaxed)
    }

    pub(crate) fn is_unread(&self) -> bool {
        self.is(UNREAD)
    }

    pub(crate) fn resident(&self, now: u32) -> Resident {
        let age = now.wrapping_sub(self.used());
        Resident { address: self.span.start, len: self.span.len, age, unread: self.is_unread() }
    }

    /// Returns whether its copy has begun, or will never begin.
    ///
    /// **Staleness**: it may begin at any time; once begun it stays so.
    pub(crate) fn has_begun(&self) -> bool {
        self.is(BEGUN)
    }

    /// Notes that a thread needs it now; true if this is the first such note and its copy has not begun.
    #[inline]
    pub(crate) fn demand(&self) -> bool {
        !self.is(DEMANDED | BEGUN) && self.flags().fetch_or(DEMANDED, Ordering::Relaxed) & (DEMANDED | BEGUN) == 0
    }

    /// Raises its prefetch priority; true if it was lower before and the copy has not begun.
    pub(crate) fn raise(&self, priority: Priority) -> bool {
        self.priority().fetch_max(priority.0, Ordering::Relaxed) < priority.0 && !self.is(DEMANDED | BEGUN)
    }

    pub(crate) fn make_stale(&self) {
        // Release: pairs with the Acquire in `is_stale`: a thread that sees the flag sees what was written to the
        // source before.
        self.flags().fetch_or(STALE, Ordering::Release);
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.flags().load(Ordering::Acquire) & STALE != 0
    }

    /// Makes one step of its copy: begins it, or checks whether it is complete. Makes room for it, also by evicting
    /// prefetched entries.
    pub(crate) fn turn(&self) -> Turn<'_, Copied> {
        self.turn_with(|state| match state {
            CopyState::Wanted => {
                // Dropping evicted sources and the eviction policy run user code, which may panic: the copy is then
                // given up, and the block stays where it is.
                self.mark_begun(state);
                // Cannot exceed memory: the source has as many bytes.
                let len = usize::try_from(self.span.len).unwrap_or(usize::MAX);
                match self.tier.room(len) {
                    Some(piece) => self.submit(state, piece),
                    None => self.stay_in_source(Stats::AT.no_memory),
                }
            }
            CopyState::InFlight(_) | CopyState::Failed => self.poll_copy(state),
        })
    }

    /// Begins the copy into this memory; returns the memory if the copy has begun or ended meanwhile.
    pub(crate) fn begin(&self, piece: PoolBuffer) -> Option<PoolBuffer> {
        let mut piece = Some(piece);
        self.turn_with(|state| match (&state, piece.take()) {
            (CopyState::Wanted, Some(room)) => self.submit(state, room),
            (_, room) => {
                piece = room;
                Poll::Pending
            }
        });
        piece
    }

    /// Makes one step if the mover has it, otherwise none. It does not even take the turn then, because the thread that
    /// begins the copy would find it taken.
    pub(crate) fn turn_if_begun(&self) {
        if !self.has_begun() {
            return;
        }
        self.turn_with(|state| match state {
            CopyState::Wanted => Poll::Pending,
            CopyState::InFlight(_) | CopyState::Failed => self.poll_copy(state),
        });
    }

    /// Makes one step towards its end: a copy that has not begun never begins.
    pub(crate) fn wind_up(&self) -> Turn<'_, Copied> {
        self.turn_with(|state| match state {
            CopyState::Wanted => self.end_without_copy(),
            CopyState::InFlight(_) | CopyState::Failed => self.poll_copy(state),
        })
    }

    /// Ends it if it has not begun; returns whether it did.
    pub(crate) fn cancel(&self) -> bool {
        let mut cancelled = false;
        self.turn_with(|state| match state {
            CopyState::Wanted => {
                cancelled = true;
                self.end_without_copy()
            }
            CopyState::InFlight(_) | CopyState::Failed => Poll::Pending,
        });
        cancelled
    }

    /// Ends it for lack of memory, if it has not begun.
    pub(crate) fn give_up(&self) {
        self.turn_with(|state| match state {
            CopyState::Wanted => self.stay_in_source(Stats::AT.no_memory),
            CopyState::InFlight(_) | CopyState::Failed => Poll::Pending,
        });
    }

    fn turn_with(&self, step: impl FnOnce(&mut CopyState<S>) -> Poll<Copied>) -> Turn<'_, Copied> {
        let mut nowhere = false;
        let turn = self.copy.turn(|state| {
            let step = step(state);
            match &step {
                Poll::Ready(Copied::Nowhere) => nowhere = true,
                Poll::Ready(Copied::Fast(_)) => {
                    let counters = &self.tier.shared().counters;
                    counters.one(Stats::AT.copies);
                    counters.add(Stats::AT.bytes_copied, self.span.len);
                }
                Poll::Pending => {}
            }
            step
        });
        if nowhere {
            // A block that stays in its source is not indexed.
            self.tier.forget(self);
        }
        turn
    }

    /// Marks it as begun, and as failed until the mover has it.
    fn mark_begun(&self, state: &mut CopyState<S>) {
        *state = CopyState::Failed;
        self.flags().fetch_or(BEGUN, Ordering::Relaxed);
    }

    fn submit(&self, state: &mut CopyState<S>, piece: PoolBuffer) -> Poll<Copied> {
        self.mark_begun(state);
        let whole = self.source.clone();
        let start = usize::try_from(self.span.start - whole.address()).unwrap_or(usize::MAX);
        let Ok(source) = Slice::new(whole, start..start.saturating_add(piece.len())) else {
            return self.stay_in_source(Stats::AT.failed_copies);
        };
        let shared = self.tier.shared();
        let source = Tagged::new(source, shared.reads.begin(self.span));
        let mut job = shared.mover.copy(source, piece);
        if job.is_done() {
            return self.complete(job);
        }
        *state = CopyState::InFlight(Box::new(job));
        Poll::Pending
    }

    fn poll_copy(&self, state: &mut CopyState<S>) -> Poll<Copied> {
        if let CopyState::InFlight(job) = state
            && !job.is_done()
        {
            return Poll::Pending;
        }
        match std::mem::replace(state, CopyState::Failed) {
            CopyState::InFlight(job) => self.complete(*job),
            CopyState::Wanted | CopyState::Failed => self.stay_in_source(Stats::AT.failed_copies),
        }
    }

    /// The job is done.
    fn complete(&self, job: Job<(Reading<S>, PoolBuffer)>) -> Poll<Copied> {
        match job.wait().into_parts() {
            (Ok(Outcome::Done), _, piece) => Poll::Ready(Copied::Fast(piece)),
            _ => self.stay_in_source(Stats::AT.failed_copies),
        }
    }

    /// For lack of memory, or after a failure, which `reason` counts.
    fn stay_in_source(&self, reason: Position<Stats>) -> Poll<Copied> {
        self.tier.shared().counters.one(reason);
        self.end_without_copy()
    }

    fn end_without_copy(&self) -> Poll<Copied> {
        self.flags().fetch_or(BEGUN, Ordering::Relaxed);
        Poll::Ready(Copied::Nowhere)
    }
}

impl<S: Source> Spanning for Arc<Entry<S>> {
    #[inline]
    fn span(&self) -> Span {
        self.span
    }
}
