//! Access to a block: one writer, or any number of readers, or neither.
//!
//! ```text
//! free ─take─► taken ─keep─► kept, with a number of readers ─release, and the last drop_reader─► free
//!   ▲            │ give_back
//!   └────────────┘
//! ```

use crate::sync::{AtomicU32, Ordering, fence};

/// It is free.
const FREE: u32 = 0;
/// The bit of a kept block. The other bits count its readers.
const KEPT: u32 = 1 << 31;
/// One owner writes it. It is a number of readers that is never reached.
const TAKEN: u32 = KEPT - 1;

/// What [`BlockState::release`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Released {
    /// The block is free now, and the caller is the one that makes it available.
    Free,
    /// The last reader will find it free.
    HasReaders,
    /// It was not kept.
    NotKept,
}

/// The state of a block. One caller learns that the block has become free.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct BlockState(AtomicU32);

impl BlockState {
    /// A free block.
    #[cfg(loom)]
    #[allow(dead_code, reason = "only the loom test makes single blocks")]
    pub(crate) fn new() -> BlockState {
        BlockState(AtomicU32::new(FREE))
    }

    /// Makes the caller the owner of a free block. Returns false if it is not free.
    pub(crate) fn take(&self) -> bool {
        // Acquire: the accesses of the owner and the readers before come before ours.
        self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The owner gives the block up: it is free.
    pub(crate) fn give_back(&self) {
        // Release: our writes come before the accesses of the next owner.
        self.0.store(FREE, Ordering::Release);
    }

    /// The owner gives the block up: it is kept, without readers.
    pub(crate) fn keep(&self) {
        // Release: the readers see our writes.
        self.0.store(KEPT, Ordering::Release);
    }

    /// Marks a free block as kept, because it has contents already. Returns false if it is not free.
    pub(crate) fn keep_found(&self) -> bool {
        // Relaxed: a thread that learns of the block from this thread synchronises with it.
        self.0.compare_exchange(FREE, KEPT, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Makes the caller a reader of a kept block. Returns false if it is not kept.
    pub(crate) fn share(&self) -> bool {
        let more = |state| (state & KEPT != 0 && state & !KEPT < TAKEN - 1).then_some(state + 1);
        // Acquire: the writer's bytes are seen.
        self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }

    /// A reader makes one more reader.
    pub(crate) fn share_again(&self) {
        // Relaxed: the first reader keeps the block meanwhile. Fewer than 2^31 readers fit into memory.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the keeping: the block becomes free when it has no reader any more.
    pub(crate) fn release(&self) -> Released {
        // Release: our accesses to the block come before those of its next owner. Acquire: those of its readers come
        // before, too.
        match self.0.fetch_and(!KEPT, Ordering::AcqRel) {
            KEPT => Released::Free,
            state if state & KEPT != 0 => Released::HasReaders,
            _ => Released::NotKept,
        }
    }

    /// A reader ends. Returns true if the block is free now; then the caller is the one that makes it available.
    pub(crate) fn drop_reader(&self) -> bool {
        // Release: our reads come before the writes of the next owner.
        let is_free = self.0.fetch_sub(1, Ordering::Release) == 1;
        if is_free {
            // Acquire: so do those of the other readers.
            fence(Ordering::Acquire);
        }
        is_free
    }
}
