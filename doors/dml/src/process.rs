//! The queues of this process: opened at the first use, and opened again in a forked child.
//!
//! A child has neither its parent's address space nor its threads. So each process has an object of its own, which is
//! never freed: a lock that another thread of the parent held at the fork is a lock of the parent's object.
#![allow(unsafe_code, reason = "follows a pointer to an object that is never freed")]

use crate::queues::{Found, Queues};
use crate::sync::{AtomicPtr, AtomicU32};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use telpher_os::Lineage;

/// A process and its queues.
#[derive(Debug)]
pub(crate) struct Process {
    /// Unique among this process and its ancestors; not zero.
    pub(crate) number: u32,
    lineage: Lineage,
    /// The queues, and how they were found: a child opens the same ones without reading directories, because another
    /// thread of its parent may have held locks of the C library.
    queues: OnceLock<(Found, Queues)>,
    parent: Option<&'static Process>,
}

impl Process {
    /// Returns the object of this process.
    #[inline]
    pub(crate) fn current() -> &'static Process {
        static CURRENT: AtomicPtr<Process> = AtomicPtr::new(null_mut());
        // Acquire: pairs with the Release below; the object is initialised.
        let mut found = CURRENT.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or from `Box::leak` below and never freed or written to.
            let known = unsafe { found.as_ref::<'static>() };
            match known {
                Some(process) if process.lineage.is_current() => return process,
                parent => {
                    let made = Self::new(parent);
                    // Release: see above.
                    match CURRENT.compare_exchange(found, made, Ordering::Release, Ordering::Acquire) {
                        Ok(_) => found = made,
                        // Another thread was first; ours stays allocated, unused.
                        Err(theirs) => found = theirs,
                    }
                }
            }
        }
    }

    #[cold]
    fn new(parent: Option<&'static Process>) -> *mut Process {
        static NUMBERS: AtomicU32 = AtomicU32::new(1);
        // Relaxed: only the number matters.
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let process = Process { number, lineage: Lineage::current(), queues: OnceLock::new(), parent };
        Box::into_raw(Box::new(process))
    }

    /// Returns the queues; opens them at the first call.
    #[inline]
    pub(crate) fn queues(&self) -> &Queues {
        let (_, queues) = self.queues.get_or_init(|| {
            let inherited = self.parent.and_then(|parent| parent.queues.get());
            let found = inherited.map_or_else(Found::on_this_machine, |(found, _)| found.clone());
            let queues = found.open();
            (found, queues)
        });
        queues
    }
}
