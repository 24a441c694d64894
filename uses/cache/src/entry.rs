//! A block and its copy, shared by all who use it.

use crate::effort::{Effort, Turn};
use crate::index::{Span, Spanning};
use crate::source::Source;
use crate::stats::Count;
use crate::sync::{AtomicU8, AtomicU32, Ordering};
use crate::tier::Tier;
use std::sync::Arc;
use std::task::Poll;
use telpher_mem::{Piece, Slice};
use telpher_mover::{Job, Mover, Outcome};

/// What a policy knows of an entry that nobody uses ([`Eviction::Worth`](crate::Eviction::Worth)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Resident {
    /// Address of the first byte of its source.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// How many entries came since it was last used, or came itself.
    pub age: u32,
    /// It was fetched ahead and nobody has used it yet.
    pub unread: bool,
}

/// What came of copying.
#[derive(Debug)]
pub(crate) enum Copied {
    /// The bytes lie here, too.
    Fast(Piece),
    /// They lie where they lay.
    Nowhere,
}

/// The source has changed since, or may have.
const STALE: u8 = 1;
/// Fetched ahead, and used by nobody yet.
const UNREAD: u8 = 2;

/// A block of a source. It is as long as somebody has it: the index of its tier, or a handle.
#[derive(Debug)]
pub(crate) struct Entry<S: Source> {
    /// Keeps the source's memory, so that its addresses cannot become somebody else's.
    source: S,
    span: Span,
    copy: Effort<Box<Flight<S>>, Copied>,
    marks: AtomicU8,
    /// Number of the insertion before it was last used.
    used: AtomicU32,
}

impl<S: Source> Entry<S> {
    /// One whose copy is yet to begin. `span` lies in the source.
    pub(crate) fn wanted(source: &S, span: Span, tier: &Arc<Tier<S>>, ahead: bool) -> Arc<Self> {
        let copy = Effort::new(Box::new(Flight { tier: Arc::clone(tier), leg: Leg::Wanted }));
        Arc::new(Entry {
            source: source.clone(),
            span,
            copy,
            marks: AtomicU8::new(if ahead { UNREAD } else { 0 }),
            used: AtomicU32::new(0),
        })
    }

    pub(crate) fn source(&self) -> &S {
        &self.source
    }

    pub(crate) fn copied(&self) -> Option<&Copied> {
        self.copy.result()
    }

    /// It was used after this many insertions.
    #[inline]
    pub(crate) fn touch(&self, now: u32) {
        // Relaxed (all of these): hints; whoever evicts decides by a count that says nobody has the entry. Stores only what is new, so
        // that an entry used by many stays in their caches.
        if self.used.load(Ordering::Relaxed) != now {
            self.used.store(now, Ordering::Relaxed);
        }
        if self.marks.load(Ordering::Relaxed) & UNREAD != 0 {
            self.marks.fetch_and(!UNREAD, Ordering::Relaxed);
        }
    }

    pub(crate) fn stamp(&self, now: u32) {
        self.used.store(now, Ordering::Relaxed);
    }

    pub(crate) fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn resident(&self, now: u32) -> Resident {
        Resident {
            address: self.span.start,
            len: self.span.len,
            age: now.wrapping_sub(self.used()),
            unread: self.marks.load(Ordering::Relaxed) & UNREAD != 0,
        }
    }

    pub(crate) fn make_stale(&self) {
        // Release: pairs with the Acquire in `is_stale`: who sees the mark sees what was written to the source before it.
        self.marks.fetch_or(STALE, Ordering::Release);
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.marks.load(Ordering::Acquire) & STALE != 0
    }

    /// One step towards its copy: begins it, or looks whether it is there. Room is made for it, even of what was fetched ahead.
    pub(crate) fn turn(&self) -> Turn<'_, Copied> {
        self.turn_with(|flight, entry| flight.step(entry))
    }

    /// The same, and whose memory and mover it is about if there is something left to do.
    pub(crate) fn turn_and_tier(&self) -> (Turn<'_, Copied>, Option<Arc<Tier<S>>>) {
        let mut tier = None;
        let turn = self.turn_with(|flight, entry| {
            let step = flight.step(entry);
            if step.is_pending() {
                tier = Some(Arc::clone(&flight.tier));
            }
            step
        });
        (turn, tier)
    }

    /// Begins the copy to memory that was obtained for it; gives it back if the copy has begun or ended meanwhile.
    pub(crate) fn begin(&self, piece: Piece) -> Option<Piece> {
        let mut piece = Some(piece);
        self.turn_with(|flight, entry| match (&flight.leg, piece.take()) {
            (Leg::Wanted, Some(room)) => flight.depart(entry, room),
            (_, room) => {
                piece = room;
                Poll::Pending
            }
        });
        piece
    }

    /// One step if the mover has it, none otherwise.
    pub(crate) fn turn_if_begun(&self) {
        self.turn_with(|flight, entry| match flight.leg {
            Leg::Wanted => Poll::Pending,
            _ => flight.step(entry),
        });
    }

    /// One step towards its end: what has not begun never does.
    pub(crate) fn wind_up(&self) -> Turn<'_, Copied> {
        self.turn_with(|flight, entry| match flight.leg {
            Leg::Wanted => Poll::Ready(Copied::Nowhere),
            _ => flight.step(entry),
        })
    }

    pub(crate) fn is_fast(&self) -> bool {
        matches!(self.copied(), Some(Copied::Fast(_)))
    }

    /// Ends it if it has not begun; whether it did.
    pub(crate) fn cancel(&self) -> bool {
        let mut cancelled = false;
        self.turn_with(|flight, _| {
            cancelled = matches!(flight.leg, Leg::Wanted);
            if cancelled { Poll::Ready(Copied::Nowhere) } else { Poll::Pending }
        });
        cancelled
    }

    fn turn_with(&self, step: impl FnOnce(&mut Flight<S>, &Self) -> Poll<Copied>) -> Turn<'_, Copied> {
        // One that stays where it is has no place in the index; its tier is known until then only.
        let mut failed = None;
        let turn = self.copy.turn(|flight| {
            let step = step(flight, self);
            match &step {
                Poll::Ready(Copied::Nowhere) => failed = Some(Arc::clone(&flight.tier)),
                Poll::Ready(Copied::Fast(_)) => {
                    let counters = &flight.tier.shared().counters;
                    counters.one(Count::Copies);
                    counters.add(Count::BytesCopied, self.span.len);
                }
                Poll::Pending => {}
            }
            step
        });
        if let Some(tier) = failed {
            tier.forget(self);
        }
        turn
    }
}

impl<S: Source> Spanning for Arc<Entry<S>> {
    #[inline]
    fn span(&self) -> Span {
        self.span
    }
}

impl<S: Source> Entry<S> {
    pub(crate) fn own_span(&self) -> Span {
        self.span
    }
}

/// A copy on its way.
#[derive(Debug)]
pub(crate) struct Flight<S: Source> {
    tier: Arc<Tier<S>>,
    leg: Leg<S>,
}

#[derive(Debug)]
enum Leg<S: Source> {
    /// Nobody has begun it.
    Wanted,
    /// The mover has it.
    Flying(Job<(Slice<S>, Piece)>),
    /// Given up: a step went wrong.
    Lost,
}

impl<S: Source> Flight<S> {
    fn step(&mut self, entry: &Entry<S>) -> Poll<Copied> {
        match &mut self.leg {
            Leg::Wanted => {
                // Cannot be longer than memory: a source has as many bytes.
                let len = usize::try_from(entry.span.len).unwrap_or(usize::MAX);
                match self.tier.room(len, true) {
                    Some(piece) => self.depart(entry, piece),
                    None => self.stays(),
                }
            }
            Leg::Flying(job) => match job.is_done() {
                true => self.arrive(),
                false => Poll::Pending,
            },
            Leg::Lost => self.stays(),
        }
    }

    fn depart(&mut self, entry: &Entry<S>, piece: Piece) -> Poll<Copied> {
        // Lost until the mover has it.
        self.leg = Leg::Lost;
        let whole = entry.source.clone();
        let start = usize::try_from(entry.span.start - whole.address()).unwrap_or(usize::MAX);
        let Ok(source) = Slice::new(whole, start..start.saturating_add(piece.len())) else { return self.stays() };
        let mut job = self.mover().copy(source, piece);
        let done = job.is_done();
        self.leg = Leg::Flying(job);
        if done { self.arrive() } else { Poll::Pending }
    }

    fn arrive(&mut self) -> Poll<Copied> {
        match std::mem::replace(&mut self.leg, Leg::Lost) {
            Leg::Flying(job) => match job.wait().into_parts() {
                (Ok(Outcome::Done), _, piece) => Poll::Ready(Copied::Fast(piece)),
                _ => self.stays(),
            },
            Leg::Wanted | Leg::Lost => self.stays(),
        }
    }

    fn stays(&self) -> Poll<Copied> {
        self.tier.shared().counters.one(Count::Fallbacks);
        Poll::Ready(Copied::Nowhere)
    }

    fn mover(&self) -> &Mover {
        &self.tier.shared().mover
    }
}
