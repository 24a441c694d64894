//! Keeps a unit's bytes unchanged while they are copied: the unit is protected from writes, or hidden from all
//! accesses.

use crate::error::TierError;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use telpher_mem::{MemoryFile, Window};
use telpher_os::{Lineage, Userfault, UserfaultFeatures, spawn_unsignalled};

/// A unit that is protected from writes until this is dropped.
pub(super) struct Protected<'a> {
    userfault: &'a Userfault,
    unit: Range<u64>,
}

impl<'a> Protected<'a> {
    pub(super) fn new(userfault: &'a Userfault, unit: Range<u64>) -> io::Result<Protected<'a>> {
        userfault.register_writes(unit.clone())?;
        // From here on, dropping undoes the registration.
        let protected = Protected { userfault, unit };
        protected.userfault.protect(protected.unit.clone(), true)?;
        Ok(protected)
    }
}

impl Drop for Protected<'_> {
    fn drop(&mut self) {
        // If another mapping is in its place, it has neither protection nor registration; waiting threads only have to
        // fault again.
        let _ = self.userfault.protect(self.unit.clone(), false);
        let _ = self.userfault.unregister(self.unit.clone());
        self.userfault.wake(self.unit.clone());
    }
}

/// Hides units of a window. A thread reads the kernel's events, because the kernel waits for that. The thread ends when
/// this is dropped.
#[derive(Debug)]
pub(super) struct Hider {
    userfault: Arc<Userfault>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    lineage: Lineage,
    /// How long to retry to map a unit's original file again.
    retry_timeout: Duration,
}

impl Hider {
    pub(super) fn new(retry_timeout: Duration) -> Result<Hider, TierError> {
        let userfault = Arc::new(Userfault::open(UserfaultFeatures::EVENT_REMAP)?);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| TierError::Keeper(error.into()))?);
        let (reads, stopped) = (Arc::clone(&userfault), Arc::clone(&stop));
        let thread = spawn_unsignalled("telpher-hide", move || listen(&reads, &stopped));
        let thread = Some(thread.map_err(TierError::Keeper)?);
        Ok(Hider { userfault, stop, thread, lineage: Lineage::current(), retry_timeout })
    }

    /// Makes threads that touch the unit wait, until the result is dropped.
    ///
    /// # Safety
    /// The unit maps this file from this offset on, and no other code writes to that part of the file.
    pub(super) unsafe fn hide<'a>(
        &'a self,
        window: &'a Window,
        unit: Range<u64>,
        was: (&'a MemoryFile, u64),
    ) -> Result<Hidden<'a>, TierError> {
        let hidden = Hidden { hider: self, window, unit, was: Some(was) };
        // SAFETY: our own thread reads the events and uses no memory of the window. Dropping `hidden` maps the same
        // part of the file again, unless the same bytes were mapped there before.
        unsafe { window.hide(hidden.unit.clone(), &self.userfault)? };
        Ok(hidden)
    }
}

impl Drop for Hider {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // A forked child has no such thread.
        if self.lineage.is_current() {
            // The counter is far from its maximum, so this write does not block.
            let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
            let _ = thread.join();
        }
    }
}

/// Reads events and answers none: the code that hides a unit wakes the waiting threads.
fn listen(userfault: &Userfault, stop: &OwnedFd) {
    loop {
        let mut waits = [PollFd::new(userfault, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        if poll(&mut waits, None).is_err() {
            std::thread::yield_now();
        }
        if waits[1].revents().contains(PollFlags::IN) {
            return;
        }
        // An error means that this process' memory is gone.
        let _ = userfault.read(drop);
    }
}

/// A unit whose accesses wait until this is dropped.
pub(super) struct Hidden<'a> {
    hider: &'a Hider,
    window: &'a Window,
    unit: Range<u64>,
    /// The file and offset it maps; none once another part is mapped there.
    was: Option<(&'a MemoryFile, u64)>,
}

impl Hidden<'_> {
    /// Maps another part of a file there.
    ///
    /// # Safety
    /// That part has the same bytes, and no code writes to it.
    pub(super) unsafe fn show(&mut self, file: &MemoryFile, offset: u64) -> Result<(), TierError> {
        // SAFETY: the caller's promise; no thread can write to the unit.
        unsafe { self.window.show(self.unit.clone(), file, offset)? };
        self.was = None;
        Ok(())
    }
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        if let Some((file, offset)) = self.was {
            let end = Instant::now() + self.hider.retry_timeout;
            // SAFETY: the same file and offset as before, not written since.
            while let Err(error) = unsafe { self.window.show(self.unit.clone(), file, offset) } {
                if Instant::now() >= end {
                    eprintln!(
                        "telpher: memory at {:#x} stays hidden and threads that touch it wait: {error}",
                        self.unit.start
                    );
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.hider.userfault.wake(self.unit.clone());
    }
}
