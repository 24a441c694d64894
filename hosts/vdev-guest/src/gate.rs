//! Who is inside, for something that is taken away while others may be using it: enter, use, leave, without a lock.
//!
//! Whoever enters counts itself in before it looks whether the thing is there; whoever takes it away makes it disappear before it
//! looks at the count. Dekker's pattern with a sequentially consistent fence on either side: one of them sees the other.

use crate::sync::{AtomicPtr, AtomicU32, Ordering, fence};

/// A pointer to something that may be used by many and taken away by one.
#[derive(Debug)]
pub(crate) struct Gate<T> {
    inside: AtomicU32,
    thing: AtomicPtr<T>,
}

/// Somebody is inside.
#[derive(Debug)]
pub(crate) struct Inside<'a, T> {
    gate: &'a Gate<T>,
    thing: *const T,
}

impl<T> Gate<T> {
    /// With nothing in it.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Gate { inside: AtomicU32::new(0), thing: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// With nothing in it. Loom's atomics have no constant constructor.
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Gate { inside: AtomicU32::new(0), thing: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Puts something in; what was there has been [taken out](Gate::take_out).
    pub(crate) fn put_in(&self, thing: *mut T) {
        // Release: pairs with the Acquire in `enter`; what the pointer stands for is seen.
        self.thing.store(thing, Ordering::Release);
    }

    /// Goes in, if there is something.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Inside<'_, T>> {
        self.inside.fetch_add(1, Ordering::Relaxed);
        // SeqCst: the count before the look at the pointer; pairs with the fence in `take_out`.
        fence(Ordering::SeqCst);
        // Acquire: pairs with the Release in `put_in`.
        let thing = self.thing.load(Ordering::Acquire);
        // Dropping it counts out.
        let inside = Inside { gate: self, thing };
        (!thing.is_null()).then_some(inside)
    }

    /// Takes the thing away and waits, with `pause`, until nobody is inside.
    pub(crate) fn take_out(&self, mut pause: impl FnMut()) -> *mut T {
        // Acquire: pairs with the Release in `put_in`, of another thread perhaps.
        let thing = self.thing.swap(std::ptr::null_mut(), Ordering::Acquire);
        // SeqCst: the pointer before the look at the count; pairs with the fence in `enter`.
        fence(Ordering::SeqCst);
        // Acquire: pairs with the Release in `drop`; every use is over.
        while self.inside.load(Ordering::Acquire) != 0 {
            pause();
        }
        thing
    }

    /// In a forked child, which has one thread only: nobody is inside, and the thing stays where it is, unused.
    pub(crate) fn forget(&self) {
        self.thing.store(std::ptr::null_mut(), Ordering::Relaxed);
        self.inside.store(0, Ordering::Relaxed);
    }
}

impl<T> Inside<'_, T> {
    /// The thing; good until this is dropped.
    #[inline]
    pub(crate) fn thing(&self) -> *const T {
        self.thing
    }
}

impl<T> Drop for Inside<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `take_out`; the use is over.
        self.gate.inside.fetch_sub(1, Ordering::Release);
    }
}
