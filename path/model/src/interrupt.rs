//! Completion interrupts: whether a descriptor may request one, and how it is delivered. Source: SPEC §3.7, §5.4.
//!
//! The model has no interrupt controller. A delivered interrupt is an event: a count for its table entry, and a step of
//! the engine that the runner may forward.

use crate::capabilities::{MAX_IMS, MAX_MSIX};
use crate::device::Device;
use crate::sync::{Ordering, Word, fence, load};
use crate::wq::Submitter;
use telpher_abi::registers::{ImsEntry, MsixPerm};

/// An interrupt table entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Interrupt {
    /// Interrupt message storage (true) or MSI-X table (false).
    pub ims: bool,
    /// Entry in that table.
    pub index: u16,
}

/// Counts of deliveries by entry.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct InterruptCounts {
    msix: [Word; MAX_MSIX],
    ims: [Word; MAX_IMS],
    /// Handles in use, a bit each (only with CMDCAP's handle commands): MSI-X entries, then message storage.
    pub(crate) handles_msix: Word,
    pub(crate) handles_ims: [Word; MAX_IMS / 64],
}

impl Default for InterruptCounts {
    fn default() -> Self {
        InterruptCounts {
            msix: std::array::from_fn(|_| Word::default()),
            ims: std::array::from_fn(|_| Word::default()),
            handles_msix: Word::default(),
            handles_ims: std::array::from_fn(|_| Word::default()),
        }
    }
}

/// Mask bit of an MSI-X table entry (vector control, bit 0 of the entry's last dword).
const MSIX_MASK: u64 = 1 << 32;
/// Pending bit of a message storage entry, in its second word.
const IMS_PENDING: u64 = 1 << (97 - 64);
/// Upper 44 bits of an interrupt message's address. Source: SPEC §9.2.20.
const MESSAGE_ADDRESS: u64 = 0x0000_0000_fee0_0000;

impl InterruptCounts {
    pub(crate) fn deliver_msix(&self, device: &Device, index: usize) {
        let (Some(count), Some(entry)) = (self.msix.get(index), device.msix_table.get(index)) else { return };
        if entry[1].get() & MSIX_MASK != 0 {
            device.msix_pending.or(1 << index);
            // If the entry was unmasked meanwhile, the thread that clears the pending bit delivers.
            fence(Ordering::SeqCst);
            self.release_msix(device, index);
        } else {
            count.add(1);
        }
    }

    /// Delivers a pending interrupt of an MSI-X entry, if it is unmasked.
    fn release_msix(&self, device: &Device, index: usize) {
        let unmasked = device.msix_table[index][1].get() & MSIX_MASK == 0;
        if unmasked && device.msix_pending.and(!(1 << index)) >> index & 1 == 1 {
            self.msix[index].add(1);
        }
    }

    fn deliver_ims(&self, device: &Device, index: usize) {
        let (Some(count), Some(words)) = (self.ims.get(index), device.ims.get(index)) else { return };
        if ImsEntry(load(words)).mask() {
            words[1].or(IMS_PENDING);
            fence(Ordering::SeqCst);
            self.release_ims(device, index);
        } else {
            count.add(1);
        }
    }

    /// Delivers a pending interrupt of a message storage entry, if it is unmasked.
    fn release_ims(&self, device: &Device, index: usize) {
        let words = &device.ims[index];
        let entry = ImsEntry(load(words));
        if !entry.mask() && words[1].and(!IMS_PENDING) & IMS_PENDING != 0 && !entry.ignore() {
            self.ims[index].add(1);
        }
    }
}

impl Device {
    /// Returns how often an interrupt table entry was delivered since power-on.
    #[must_use]
    pub fn interrupts_delivered(&self, interrupt: Interrupt) -> u64 {
        let counts = if interrupt.ims { &self.interrupts.ims[..] } else { &self.interrupts.msix[..] };
        counts.get(usize::from(interrupt.index)).map_or(0, Word::get)
    }

    /// Returns the table entry of a descriptor's handle, if its submitter may use it. `None` is status 0x19.
    pub(crate) fn interrupt_of_handle(&self, handle: u16, submitter: Submitter) -> Option<Interrupt> {
        let index = usize::from(handle);
        let (in_range, pasid_enable, pasid) = if submitter.ims {
            let entry = ImsEntry(load(self.ims.get(index)?));
            (index < self.capabilities.ims_entries(), entry.pasid_enable(), entry.pasid())
        } else {
            let entry = MsixPerm([self.msix_perm.get(index)?.get()]);
            (index < usize::from(self.capabilities.msix_entries), entry.pasid_enable(), entry.pasid())
        };
        let issued = !self.needs_handles() || self.handle_issued(submitter.ims, index);
        let allowed = submitter.pasid == pasid_enable.then_some(pasid);
        // Entry 0 of the MSI-X table belongs to the device itself (SPEC §3.7: never for completions).
        let completions = submitter.ims || index != 0;
        (in_range && issued && allowed && completions).then_some(Interrupt { ims: submitter.ims, index: handle })
    }

    /// Delivers an interrupt; returns `false` if its entry ignores interrupts.
    pub(crate) fn deliver(&self, interrupt: Interrupt) -> bool {
        let index = usize::from(interrupt.index);
        if interrupt.ims {
            if self.ims.get(index).is_some_and(|words| ImsEntry(load(words)).ignore()) {
                return false;
            }
            self.interrupts.deliver_ims(self, index);
        } else {
            if self.msix_perm.get(index).is_some_and(|word| MsixPerm([word.get()]).ignore()) {
                return false;
            }
            self.interrupts.deliver_msix(self, index);
        }
        true
    }

    /// True if software must request interrupt handles by command 13. Source: SPEC §9.2.13, CMDCAP bit 13.
    pub(crate) fn needs_handles(&self) -> bool {
        self.capabilities.gen_cap.command_capability() && self.capabilities.cmd_cap >> 13 & 1 == 1
    }

    pub(crate) fn handle_issued(&self, ims: bool, index: usize) -> bool {
        if ims {
            self.interrupts.handles_ims.get(index / 64).is_some_and(|word| word.get() >> (index % 64) & 1 == 1)
        } else {
            index < 64 && self.interrupts.handles_msix.get() >> index & 1 == 1
        }
    }

    /// Marks a handle as issued or released; the handle of entry N is N.
    pub(crate) fn set_handle(&self, ims: bool, index: usize, issued: bool) {
        let word = if ims { self.interrupts.handles_ims.get(index / 64) } else { Some(&self.interrupts.handles_msix) };
        let Some(word) = word else { return };
        let bit = 1 << (index % 64);
        if issued {
            word.or(bit);
        } else {
            word.and(!bit);
        }
    }

    /// Writes one half of an MSI-X table entry; unmasking delivers a pending interrupt.
    pub(crate) fn write_msix_entry(&self, index: usize, half: usize, value: u64) {
        let Some(entry) = self.msix_table.get(index) else { return };
        entry[half].set(if half == 1 { value & (MSIX_MASK | 0xffff_ffff) } else { value });
        fence(Ordering::SeqCst);
        self.interrupts.release_msix(self, index);
    }

    /// Writes one half of a message storage entry; unmasking delivers a pending interrupt.
    pub(crate) fn write_ims_entry(&self, index: usize, half: usize, value: u64) {
        let Some(words) = self.ims.get(index) else { return };
        if half == 0 {
            // A message address outside the interrupt range is ignored (SPEC §9.2.20).
            if value & !0xf_ffff == MESSAGE_ADDRESS {
                words[0].set(value);
            }
            return;
        }
        // The device owns the pending bit.
        words[1].update(|word| Some(value & !IMS_PENDING | word & IMS_PENDING));
        fence(Ordering::SeqCst);
        self.interrupts.release_ims(self, index);
    }

    /// Sets the power-on values of the interrupt tables. Source: SPEC Table 9-3.
    pub(crate) fn reset_interrupt_tables(&self) {
        for entry in &self.msix_table {
            entry[0].set(0);
            entry[1].set(MSIX_MASK);
        }
        self.msix_pending.set(0);
        self.reset_message_storage();
    }

    /// Clears what Reset Device clears: permissions, message storage and handles, but not the MSI-X table.
    pub(crate) fn reset_message_storage(&self) {
        for word in &self.msix_perm {
            word.set(0);
        }
        for words in &self.ims {
            words[0].set(MESSAGE_ADDRESS);
            words[1].set(ImsEntry::default().with_mask(true).0[1]);
        }
        self.interrupts.handles_msix.set(0);
        for word in &self.interrupts.handles_ims {
            word.set(0);
        }
    }
}
