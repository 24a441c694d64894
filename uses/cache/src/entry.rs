//! A block and its copy, shared by all who use it.

use crate::effort::{Effort, Turn};
use crate::index::{Span, Spanning};
use crate::reads::Read;
use crate::schedule::Priority;
use crate::source::Source;
use crate::stats::Count;
use crate::sync::{AtomicU8, Ordering};
use crate::tier::Tier;
use std::sync::Arc;
use std::task::Poll;
use telpher_mem::{Piece, Slice, Tagged};
use telpher_mover::{Job, Outcome};

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
/// Asked for by somebody who wants it now.
const DEMANDED: u8 = 4;
/// Its copy has begun, or never will.
const BEGUN: u8 = 8;

/// A block of a source. It is as long as somebody has it: the index of its tier, or a handle.
#[derive(Debug)]
pub(crate) struct Entry<S: Source> {
    /// Keeps the source's memory, so that its addresses cannot become somebody else's.
    source: S,
    span: Span,
    /// Whose memory its copy lies in. It has this entry as long as its cache is there.
    tier: Arc<Tier<S>>,
    /// Its copy. Its word is the number of the insertion before this entry was last used; its bytes are marks, and the most urgent that it
    /// was asked for ahead.
    copy: Effort<Leg<S>, Copied>,
}

/// A block's bytes, and the mention that they are being read.
type Reading<S> = Tagged<Slice<S>, Read<Span>>;

// With its counts 88 bytes, which allocators that give multiples of 16, of which they need 8, have as 96; and its place in the index.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Entry<Arc<[u8]>>>() <= 72);

/// What copies it, until it is copied.
#[derive(Debug)]
enum Leg<S: Source> {
    /// Nobody has begun it.
    Wanted,
    /// The mover has it.
    Flying(Box<Job<(Reading<S>, Piece)>>),
    /// Given up: a step went wrong.
    Lost,
}

impl<S: Source> Entry<S> {
    /// One whose copy is yet to begin: ahead of time if it has a priority, else for somebody who wants it now. `span` lies in the source.
    pub(crate) fn wanted(source: &S, span: Span, tier: &Arc<Tier<S>>, ahead: Option<Priority>) -> Arc<Self> {
        let entry = Entry { source: source.clone(), span, tier: Arc::clone(tier), copy: Effort::new(Leg::Wanted) };
        // Relaxed: nobody else has it yet.
        entry.marks().store(if ahead.is_some() { UNREAD } else { DEMANDED }, Ordering::Relaxed);
        entry.priority().store(ahead.unwrap_or_default().0, Ordering::Relaxed);
        Arc::new(entry)
    }

    fn marks(&self) -> &AtomicU8 {
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

    // Marks, priority and use are hints, hence Relaxed unless said otherwise: whoever evicts decides by a count that says nobody has the
    // entry, and whoever begins does so in a turn.

    fn is(&self, mark: u8) -> bool {
        self.marks().load(Ordering::Relaxed) & mark != 0
    }

    /// It was used after this many insertions. Stores only what is new, so that an entry used by many stays in their caches.
    #[inline]
    pub(crate) fn touch(&self, now: u32) {
        if self.copy.word.load(Ordering::Relaxed) != now {
            self.copy.word.store(now, Ordering::Relaxed);
        }
    }

    /// Somebody has used it.
    #[inline]
    pub(crate) fn read(&self) {
        if self.is(UNREAD) {
            self.marks().fetch_and(!UNREAD, Ordering::Relaxed);
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

    /// Its copy has begun, or never will.
    ///
    /// **Staleness**: it may begin at any time; once begun it stays so.
    pub(crate) fn has_begun(&self) -> bool {
        self.is(BEGUN)
    }

    /// Somebody wants it now; true if nobody has said so before and its copy is yet to begin.
    #[inline]
    pub(crate) fn demand(&self) -> bool {
        !self.is(DEMANDED | BEGUN) && self.marks().fetch_or(DEMANDED, Ordering::Relaxed) & (DEMANDED | BEGUN) == 0
    }

    /// Somebody wants it ahead of time; true if nobody wanted it as urgently before and its copy is yet to begin.
    pub(crate) fn raise(&self, priority: Priority) -> bool {
        self.priority().fetch_max(priority.0, Ordering::Relaxed) < priority.0 && !self.is(DEMANDED | BEGUN)
    }

    pub(crate) fn make_stale(&self) {
        // Release: pairs with the Acquire in `is_stale`: who sees the mark sees what was written to the source before it.
        self.marks().fetch_or(STALE, Ordering::Release);
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.marks().load(Ordering::Acquire) & STALE != 0
    }

    /// One step towards its copy: begins it, or looks whether it is there. Room is made for it, even of what was fetched ahead.
    pub(crate) fn turn(&self) -> Turn<'_, Copied> {
        self.turn_with(|leg| match leg {
            Leg::Wanted => {
                // What goes for it, and who says what goes, may be a user's, and panic: then it is lost, and stays where it is.
                self.leave(leg);
                // Cannot be longer than memory: a source has as many bytes.
                let len = usize::try_from(self.span.len).unwrap_or(usize::MAX);
                match self.tier.room(len) {
                    Some(piece) => self.depart(leg, piece),
                    None => self.stays(),
                }
            }
            Leg::Flying(_) | Leg::Lost => self.fly(leg),
        })
    }

    /// Begins the copy to memory that was obtained for it; gives it back if the copy has begun or ended meanwhile.
    pub(crate) fn begin(&self, piece: Piece) -> Option<Piece> {
        let mut piece = Some(piece);
        self.turn_with(|leg| match (&leg, piece.take()) {
            (Leg::Wanted, Some(room)) => self.depart(leg, room),
            (_, room) => {
                piece = room;
                Poll::Pending
            }
        });
        piece
    }

    /// One step if the mover has it, none otherwise. Not even a turn, which whoever begins it would find taken.
    pub(crate) fn turn_if_begun(&self) {
        if !self.has_begun() {
            return;
        }
        self.turn_with(|leg| match leg {
            Leg::Wanted => Poll::Pending,
            Leg::Flying(_) | Leg::Lost => self.fly(leg),
        });
    }

    /// One step towards its end: what has not begun never does.
    pub(crate) fn wind_up(&self) -> Turn<'_, Copied> {
        self.turn_with(|leg| match leg {
            Leg::Wanted => self.never(),
            Leg::Flying(_) | Leg::Lost => self.fly(leg),
        })
    }

    /// Ends it if it has not begun; whether it did.
    pub(crate) fn cancel(&self) -> bool {
        let mut cancelled = false;
        self.turn_with(|leg| match leg {
            Leg::Wanted => {
                cancelled = true;
                self.never()
            }
            Leg::Flying(_) | Leg::Lost => Poll::Pending,
        });
        cancelled
    }

    /// It stays where it is for want of memory, if it has not begun.
    pub(crate) fn give_up(&self) {
        self.turn_with(|leg| match leg {
            Leg::Wanted => self.stays(),
            Leg::Flying(_) | Leg::Lost => Poll::Pending,
        });
    }

    fn turn_with(&self, step: impl FnOnce(&mut Leg<S>) -> Poll<Copied>) -> Turn<'_, Copied> {
        let mut nowhere = false;
        let turn = self.copy.turn(|leg| {
            let step = step(leg);
            match &step {
                Poll::Ready(Copied::Nowhere) => nowhere = true,
                Poll::Ready(Copied::Fast(_)) => {
                    let counters = &self.tier.shared().counters;
                    counters.one(Count::Copies);
                    counters.add(Count::BytesCopied, self.span.len);
                }
                Poll::Pending => {}
            }
            step
        });
        if nowhere {
            // One that stays where it is has no place in the index.
            self.tier.forget(self);
        }
        turn
    }

    /// Lost until the mover has it.
    fn leave(&self, leg: &mut Leg<S>) {
        *leg = Leg::Lost;
        self.marks().fetch_or(BEGUN, Ordering::Relaxed);
    }

    fn depart(&self, leg: &mut Leg<S>, piece: Piece) -> Poll<Copied> {
        self.leave(leg);
        let whole = self.source.clone();
        let start = usize::try_from(self.span.start - whole.address()).unwrap_or(usize::MAX);
        let Ok(source) = Slice::new(whole, start..start.saturating_add(piece.len())) else { return self.stays() };
        let shared = self.tier.shared();
        let source = Tagged::new(source, shared.reads.begin(self.span));
        let mut job = shared.mover.copy(source, piece);
        if job.is_done() {
            return self.arrive(job);
        }
        *leg = Leg::Flying(Box::new(job));
        Poll::Pending
    }

    fn fly(&self, leg: &mut Leg<S>) -> Poll<Copied> {
        if let Leg::Flying(job) = leg
            && !job.is_done()
        {
            return Poll::Pending;
        }
        match std::mem::replace(leg, Leg::Lost) {
            Leg::Flying(job) => self.arrive(*job),
            Leg::Wanted | Leg::Lost => self.stays(),
        }
    }

    /// The job is done.
    fn arrive(&self, job: Job<(Reading<S>, Piece)>) -> Poll<Copied> {
        match job.wait().into_parts() {
            (Ok(Outcome::Done), _, piece) => Poll::Ready(Copied::Fast(piece)),
            _ => self.stays(),
        }
    }

    /// For want of memory, or because something went wrong.
    fn stays(&self) -> Poll<Copied> {
        self.tier.shared().counters.one(Count::Fallbacks);
        self.never()
    }

    fn never(&self) -> Poll<Copied> {
        self.marks().fetch_or(BEGUN, Ordering::Relaxed);
        Poll::Ready(Copied::Nowhere)
    }
}

impl<S: Source> Spanning for Arc<Entry<S>> {
    #[inline]
    fn span(&self) -> Span {
        self.span
    }
}
