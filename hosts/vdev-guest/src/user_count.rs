//! Counts the users of an object that another thread may take away: enter, use, leave, without a lock.
//!
//! A user increments the count before it reads the pointer. A remover clears the pointer before it reads the count.
//! This is Dekker's pattern with a sequentially consistent fence on both sides: at least one of them sees the other.

use crate::sync::{AtomicPtr, AtomicU32, Ordering, fence};

/// A pointer to an object that many threads may use and one may remove.
#[derive(Debug)]
pub(crate) struct Gate<T> {
    inside: AtomicU32,
    object: AtomicPtr<T>,
}

/// Keeps the object alive while it exists.
#[derive(Debug)]
pub(crate) struct Inside<'a, T> {
    gate: &'a Gate<T>,
    object: *const T,
}

impl<T> Gate<T> {
    /// An empty gate.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Gate { inside: AtomicU32::new(0), object: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// An empty gate. Loom's atomics have no constant constructor.
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Gate { inside: AtomicU32::new(0), object: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Puts an object in; the former one has been [taken out](Gate::take_out).
    pub(crate) fn put_in(&self, object: *mut T) {
        // Release: pairs with the Acquire in `enter`; the object's contents are visible there.
        self.object.store(object, Ordering::Release);
    }

    /// Enters, if there is an object.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Inside<'_, T>> {
        self.inside.fetch_add(1, Ordering::Relaxed);
        // SeqCst: the count is incremented before the pointer is read; pairs with the fence in `take_out`.
        fence(Ordering::SeqCst);
        // Acquire: pairs with the Release in `put_in`.
        let object = self.object.load(Ordering::Acquire);
        // If the pointer is null, dropping this decrements the count.
        let inside = Inside { gate: self, object };
        (!object.is_null()).then_some(inside)
    }

    /// Removes the object and waits, with `pause`, until no user is inside.
    pub(crate) fn take_out(&self, mut pause: impl FnMut()) -> *mut T {
        // Acquire: pairs with the Release in `put_in`, perhaps in another thread.
        let object = self.object.swap(std::ptr::null_mut(), Ordering::Acquire);
        // SeqCst: the pointer is cleared before the count is read; pairs with the fence in `enter`.
        fence(Ordering::SeqCst);
        // Acquire: pairs with the Release in `drop`; every use has ended.
        while self.inside.load(Ordering::Acquire) != 0 {
            pause();
        }
        object
    }

    /// Empties the gate in a forked child, which has only one thread: there are no users, and the object stays in
    /// memory, unused.
    pub(crate) fn forget(&self) {
        self.object.store(std::ptr::null_mut(), Ordering::Relaxed);
        self.inside.store(0, Ordering::Relaxed);
    }
}

impl<T> Inside<'_, T> {
    /// The object; valid until this is dropped.
    #[inline]
    pub(crate) fn object(&self) -> *const T {
        self.object
    }
}

impl<T> Drop for Inside<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `take_out`; the use has ended.
        self.gate.inside.fetch_sub(1, Ordering::Release);
    }
}
