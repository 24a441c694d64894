//! The result of an access: a block whose bytes are available as long as the handle exists.

use crate::entry::{Copied, Entry};
use crate::index::Span;
use crate::shared_copy::Turn;
use crate::source::{Readable, Source};
use std::fmt::{self, Debug};
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use telpher_mem::{PoolBuffer, StableBuf};

/// The present location of a block's bytes; dereferences to the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location<'a> {
    /// In the tier.
    Fast(&'a [u8]),
    /// In the source: the copy is not complete yet, or will never be.
    Source(&'a [u8]),
}

impl<'a> Location<'a> {
    /// Returns the bytes.
    #[inline]
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Location::Fast(bytes) | Location::Source(bytes) => bytes,
        }
    }

    /// Returns whether they are in the tier.
    #[inline]
    #[must_use]
    pub fn is_fast(self) -> bool {
        matches!(self, Location::Fast(_))
    }
}

impl Deref for Location<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

/// A block of a source, or a part of one. Its copy is complete, in flight, or will never be made. A clone is another
/// handle to the same block.
///
/// Waiting is optional: [`location`](Handle::location) returns valid bytes at any time, if necessary the source's. A
/// waiting thread drives the copy, whichever thread requested the block.
///
/// # On drop
///
/// The entry stays in the cache until its memory is needed. A handle may outlive its cache: it keeps the block, the
/// source and the mover.
pub struct Handle<S: Source> {
    entry: Arc<Entry<S>>,
    /// The part of the entry.
    span: Span,
}

impl<S: Source> Handle<S> {
    /// Creates a handle; `span` is inside the entry's.
    #[inline]
    pub(crate) fn new(entry: Arc<Entry<S>>, span: Span) -> Self {
        Handle { entry, span }
    }

    /// Returns the part of the copy, if it is complete.
    #[inline]
    fn fast(&self) -> Option<&[u8]> {
        let Some(Copied::Fast(piece)) = self.entry.copied() else { return None };
        let start = usize::try_from(self.span.start - self.entry.own_span().start).ok()?;
        <PoolBuffer as Deref>::deref(piece).get(start..)?.get(..self.len())
    }

    /// Returns the number of bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "no handle is empty")]
    pub fn len(&self) -> usize {
        // A part of a source, whose length is a usize.
        usize::try_from(self.span.len).unwrap_or(usize::MAX)
    }

    /// Returns the present address of the bytes, for callers whose sources cannot be read safely.
    #[inline]
    #[must_use]
    pub fn address(&self) -> u64 {
        self.fast().map_or(self.span.start, |bytes| bytes.as_ptr().expose_provenance() as u64)
    }

    /// Returns whether the bytes are in the tier.
    #[inline]
    #[must_use]
    pub fn is_fast(&self) -> bool {
        self.entry.is_fast()
    }

    /// Checks once; returns true if there is nothing left to wait for, whether the copy is complete or the bytes stay
    /// in the source. This is the thesis' *weak wait* (Fürst, §4.1.4).
    #[must_use]
    pub fn copy_has_ended(&self) -> bool {
        matches!(self.entry.turn(), Turn::Done(_))
    }

    /// Returns whether the source was reported to have changed since ([`Cache::invalidate`](crate::Cache::invalidate)):
    /// the copy may be outdated. The bytes stay valid and unchanged as long as the handle.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.entry.is_stale()
    }

    /// Waits until there is nothing left to wait for, as the mover's policy says; returns whether the copy is complete.
    pub fn wait_copy(&self) -> bool {
        if self.entry.copied().is_none() {
            let shared = self.entry.tier().shared();
            shared.mover.wait(|| self.look());
            shared.schedule.drive();
        }
        self.is_fast()
    }

    /// Like [`wait_copy`](Handle::wait_copy), for at most this time and one more check; returns whether there is
    /// nothing left to wait for. The copy continues in any case.
    pub fn wait_copy_for(&self, at_most: Duration) -> bool {
        if self.entry.copied().is_some() {
            return true;
        }
        let shared = self.entry.tier().shared();
        let has_ended = shared.mover.wait_for(at_most, || self.look()).is_some();
        shared.schedule.drive();
        has_ended
    }

    fn look(&self) -> Poll<()> {
        match self.entry.turn() {
            Turn::Done(_) => Poll::Ready(()),
            // Another thread may be making a step at this moment.
            Turn::NotYet | Turn::Another => Poll::Pending,
        }
    }

    /// Like [`wait_copy`](Handle::wait_copy), for executors. A poll makes one step and, if that was not the last, wakes
    /// its task at once, like a mover's job ([`Job`](telpher_mover::Job)).
    pub fn wait_copy_async(&self) -> WaitCopy<'_, S> {
        WaitCopy(self)
    }
}

impl<S: Readable> Handle<S> {
    /// Returns the present location of the bytes.
    #[inline]
    #[must_use]
    pub fn location(&self) -> Location<'_> {
        match self.fast() {
            Some(bytes) => Location::Fast(bytes),
            None => Location::Source(self.in_source()),
        }
    }

    fn in_source(&self) -> &[u8] {
        let source = self.entry.source();
        let start = usize::try_from(self.span.start - StableBuf::address(source)).unwrap_or(usize::MAX);
        // Cannot be out of range: it was checked when the entry was created.
        source.bytes().get(start..).and_then(|bytes| bytes.get(..self.len())).unwrap_or_default()
    }

    /// Waits, and returns the bytes: the copy's, or the source's if there is no copy.
    pub fn wait(&self) -> Location<'_> {
        self.wait_copy();
        self.location()
    }
}

impl<S: Source> Clone for Handle<S> {
    fn clone(&self) -> Self {
        Handle { entry: Arc::clone(&self.entry), span: self.span }
    }
}

impl<S: Source> Debug for Handle<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, len) = (self.span.start, self.span.len);
        let (fast, stale) = (self.is_fast(), self.is_stale());
        f.debug_struct("Handle")
            .field("start", &start)
            .field("len", &len)
            .field("fast", &fast)
            .field("stale", &stale)
            .finish()
    }
}

/// Waits for a block in an executor; yields whether its copy is complete. From [`Handle::wait_copy_async`].
#[derive(Debug)]
#[must_use = "nothing is waited for until it is awaited"]
pub struct WaitCopy<'a, S: Source>(&'a Handle<S>);

impl<S: Source> Future for WaitCopy<'_, S> {
    type Output = bool;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        match self.0.entry.turn() {
            Turn::Done(copied) => Poll::Ready(matches!(copied, Copied::Fast(_))),
            Turn::NotYet | Turn::Another => {
                self.0.entry.tier().shared().schedule.drive();
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

impl<'a, S: Readable> IntoFuture for &'a Handle<S> {
    type Output = Location<'a>;
    type IntoFuture = Arrival<'a, S>;

    /// Waits, and yields the bytes, like [`wait`](Handle::wait).
    fn into_future(self) -> Arrival<'a, S> {
        Arrival(self.wait_copy_async())
    }
}

/// Waits for a block's bytes in an executor: `(&handle).await`.
#[derive(Debug)]
#[must_use = "nothing is waited for until it is awaited"]
pub struct Arrival<'a, S: Source>(WaitCopy<'a, S>);

impl<'a, S: Readable> Future for Arrival<'a, S> {
    type Output = Location<'a>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Location<'a>> {
        Pin::new(&mut self.0).poll(context).map(|_| self.0.0.location())
    }
}
