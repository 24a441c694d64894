//! An opened file as a queue of the modelled device: its limits, its admission and its reports to the driver.
//!
//! The preloaded library and the host use the same queue. They differ in the memory that it accesses, in its observer,
//! and in the place of its shared state.

use crate::message::{Opened, Report, WINDOW_OWN, WINDOW_USABLE, WindowEntry};
use crate::queue_state::{ENABLED, OccupancySlots, QueueState};
use crate::sync::Ordering;
use telpher_abi::WindowFlags;
use telpher_abi::registers::{IdptEntry, PortalKind};
use telpher_device::{ModelDevice, ModelOptions, StartError, WindowSpaces};
use telpher_mem::Space;
use telpher_model::{Identity, Write};
use telpher_portal::{Offer, Submission};
use zerocopy::FromBytes;

/// A queue of the modelled device, for the process that opened it.
#[derive(Debug)]
pub struct OpenQueue {
    opened: Opened,
    device: ModelDevice,
    /// The queue's generation number when it was opened.
    generation: u32,
    /// Most descriptors that may wait, of all processes together; 0 for a dedicated queue.
    threshold: u32,
}

impl OpenQueue {
    /// Starts the device that an opened file describes. It accesses `memory` as the process's address space. The
    /// options' capabilities are replaced by those of the file.
    ///
    /// # Errors
    /// If the description is not a valid device, or the system has no memory or thread.
    pub fn start(
        opened: &Opened,
        state: &QueueState,
        options: ModelOptions,
        memory: Box<dyn Space>,
    ) -> Result<Self, StartError> {
        // Acquire: pairs with the host's Release; the registers in `opened` are not older than this state.
        let generation = state.generation.load(Ordering::Acquire);
        let options = ModelOptions { capabilities: opened.capabilities(), ..options };
        let device = ModelDevice::replica(options, &opened.queue_image(), opened.pasid, memory)?;
        Ok(OpenQueue { opened: *opened, device, generation, threshold: opened.threshold() })
    }

    /// The driver's description of the queue.
    #[must_use]
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// The device that has this queue.
    #[must_use]
    pub fn device(&self) -> &ModelDevice {
        &self.device
    }

    /// Submits a descriptor by a deferrable or a posted write. The queue refuses it if the host has disabled or
    /// reconfigured the queue since it was opened, or if all processes together have filled a shared queue.
    #[inline]
    pub fn submit(
        &self,
        state: &QueueState,
        slots: &OccupancySlots,
        deferrable: bool,
        submission: &Submission,
    ) -> Offer {
        // Acquire: pairs with the host's Release of a changed state.
        let enabled = state.state.load(Ordering::Acquire) == ENABLED;
        if !enabled || state.generation.load(Ordering::Acquire) != self.generation {
            return if deferrable { Offer::Retry } else { Offer::Lost };
        }
        let write = if deferrable {
            if self.threshold != 0 && !state.has_room(slots, self.opened.row, self.occupancy(), self.threshold) {
                return Offer::Retry;
            }
            Write::Deferrable(Identity { pasid: self.opened.pasid, privileged: false })
        } else {
            Write::Posted
        };
        self.device.submit(self.opened.wq, PortalKind::LimitedMsix, write, submission)
    }

    /// Gives windows the memory that descriptors access through them; called once.
    pub fn set_window_spaces(&self, windows: Box<dyn WindowSpaces>) {
        // Cannot be false: called once.
        let _ = self.device.set_window_spaces(windows);
    }

    /// Replaces the table of windows by those that the host lists for this file: [`WindowEntry`]s, one after the other.
    pub fn show_windows(&self, listed: &[u8]) {
        let own = self.opened.pasid;
        let (listed, _) = listed.as_chunks::<{ size_of::<WindowEntry>() }>();
        self.device.replace_windows(|index| {
            let entries = listed.iter().filter_map(|bytes| WindowEntry::read_from_bytes(bytes).ok());
            let entry = entries.into_iter().find(|entry| usize::from(entry.handle) == index);
            entry.map_or_else(Default::default, |entry| (to_table(&entry, own), entry.generation))
        });
    }

    /// Number of this process's descriptors that wait in the queue.
    ///
    /// **Staleness.** Other threads submit and take descriptors meanwhile.
    #[must_use]
    #[inline]
    pub fn occupancy(&self) -> u32 {
        u32::try_from(self.device.occupancy(self.opened.wq)).unwrap_or(u32::MAX)
    }

    /// Passes on what the device has reported since the last call, and does the work of the driver's interrupt handler.
    /// One caller at a time.
    pub fn take_reports(&self, memory: &dyn Space, mut send: impl FnMut(&Report)) {
        self.device.take_reports(memory, |notice| Report::of(&notice, &mut send));
    }
}

/// A window's entry in the table of the process with the PASID `own`: as single submitter if it may use the window, and
/// open to its Update Window if the memory is its own. The access PASID of other windows is any other one, since
/// windows have [memory of their own](OpenQueue::set_window_spaces).
fn to_table(entry: &WindowEntry, own: u32) -> IdptEntry {
    let is_own = entry.relation & WINDOW_OWN != 0;
    IdptEntry::default()
        .with_usable(entry.relation & WINDOW_USABLE != 0)
        .with_allow_update(is_own)
        .with_submitter_pasid(own)
        .with_access_pasid(if is_own { own } else { own ^ 1 })
        .with_window_base(entry.base)
        .with_window_size(entry.size)
        .with_window_flags(WindowFlags::from_bits_truncate(entry.flags & 0xf))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_gives_its_user_nothing_but_its_relation() {
        let entry = WindowEntry { base: 0x1000, size: 0x2000, handle: 7, flags: 0x07, ..WindowEntry::default() };
        let of = |relation| to_table(&WindowEntry { relation, ..entry }, 5);
        let summary = |entry: IdptEntry| (entry.usable(), entry.allow_update(), entry.access_pasid() == 5);
        assert_eq!(summary(of(WINDOW_USABLE)), (true, false, false));
        assert_eq!(summary(of(WINDOW_OWN)), (false, true, true));
        assert_eq!(summary(of(WINDOW_OWN | WINDOW_USABLE)), (true, true, true));
        assert_eq!(of(0).window_flags(), WindowFlags::READ | WindowFlags::WRITE | WindowFlags::ENABLE);
    }
}
