//! How a unit's bytes stay what they are while they are copied: it is protected from writes, or hidden from everybody.

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

/// A unit that nobody writes to, until this goes.
pub(super) struct Protected<'a> {
    userfault: &'a Userfault,
    unit: Range<u64>,
}

impl<'a> Protected<'a> {
    pub(super) fn new(userfault: &'a Userfault, unit: Range<u64>) -> io::Result<Protected<'a>> {
        userfault.register_writes(unit.clone())?;
        // From here on it is undone.
        let protected = Protected { userfault, unit };
        protected.userfault.protect(protected.unit.clone(), true)?;
        Ok(protected)
    }
}

impl Drop for Protected<'_> {
    fn drop(&mut self) {
        // With another mapping in its place there is neither protection nor registration, and whoever waits is to look again.
        let _ = self.userfault.protect(self.unit.clone(), false);
        let _ = self.userfault.unregister(self.unit.clone());
        self.userfault.wake(self.unit.clone());
    }
}

/// Hides units of a window. A thread hears of it, which the kernel waits for; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Veils {
    userfault: Arc<Userfault>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    lineage: Lineage,
    /// How long what was seen in a unit is tried to be shown there again.
    patience: Duration,
}

impl Veils {
    pub(super) fn new(patience: Duration) -> Result<Veils, TierError> {
        let userfault = Arc::new(Userfault::open(UserfaultFeatures::EVENT_REMAP)?);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| TierError::Keeper(error.into()))?);
        let (reads, stopped) = (Arc::clone(&userfault), Arc::clone(&stop));
        let thread = spawn_unsignalled("telpher-veils", move || listen(&reads, &stopped));
        let thread = Some(thread.map_err(TierError::Keeper)?);
        Ok(Veils { userfault, stop, thread, lineage: Lineage::current(), patience })
    }

    /// Whoever touches the unit waits, until this goes.
    ///
    /// # Safety
    /// What is seen in the unit is the file's from the offset on, and nobody else writes to that.
    pub(super) unsafe fn hide<'a>(
        &'a self,
        window: &'a Window,
        unit: Range<u64>,
        was: (&'a MemoryFile, u64),
    ) -> Result<Hidden<'a>, TierError> {
        let hidden = Hidden { veils: self, window, unit, was: Some(was) };
        // SAFETY: our own thread reads events and has no memory of the window's, and what was seen is shown again when `hidden` goes, unless
        // the same bytes are before that.
        unsafe { window.hide(hidden.unit.clone(), &self.userfault)? };
        Ok(hidden)
    }
}

impl Drop for Veils {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // In a forked child there is no such thread.
        if self.lineage.is_current() {
            // A counter far from its end takes a one without waiting.
            let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
            let _ = thread.join();
        }
    }
}

/// Reads what there is to be told, and answers nothing: who waits is woken by whoever hid what he waits for.
fn listen(userfault: &Userfault, stop: &OwnedFd) {
    loop {
        let mut waits = [PollFd::new(userfault, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        if poll(&mut waits, None).is_err() {
            std::thread::yield_now();
        }
        if waits[1].revents().contains(PollFlags::IN) {
            return;
        }
        // An error is the end of this process' memory.
        let _ = userfault.read(drop);
    }
}

/// A unit that everybody waits for, until this goes.
pub(super) struct Hidden<'a> {
    veils: &'a Veils,
    window: &'a Window,
    unit: Range<u64>,
    /// What was seen in it; nothing once something else is.
    was: Option<(&'a MemoryFile, u64)>,
}

impl Hidden<'_> {
    /// Has another place seen in it.
    ///
    /// # Safety
    /// The same bytes are there, and nobody writes to them.
    pub(super) unsafe fn show(&mut self, file: &MemoryFile, offset: u64) -> Result<(), TierError> {
        // SAFETY: the caller's promise; to the unit nobody can write.
        unsafe { self.window.show(self.unit.clone(), file, offset)? };
        self.was = None;
        Ok(())
    }
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        if let Some((file, offset)) = self.was {
            let end = Instant::now() + self.veils.patience;
            // SAFETY: what was seen there before, to which nobody has written since.
            while let Err(error) = unsafe { self.window.show(self.unit.clone(), file, offset) } {
                if Instant::now() >= end {
                    eprintln!(
                        "telpher: memory at {:#x} stays hidden, and whoever touches it waits: {error}",
                        self.unit.start
                    );
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.veils.userfault.wake(self.unit.clone());
    }
}
