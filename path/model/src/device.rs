//! All state of one device: plain words in one struct, without pointers, so that it can lie in private memory or in
//! memory shared by a process tree. Every method takes `&self`; the protocols in `wq`, `group` and `sync` order the
//! words.

use crate::capabilities::{
    Capabilities, CapabilityError, MAX_ENGINES, MAX_ENTRIES, MAX_GROUPS, MAX_IMS, MAX_MSIX, MAX_WQS,
};
use crate::command::CommandState;
use crate::errors::ErrorState;
use crate::group::Group;
use crate::in_progress::EngineLane;
use crate::interrupt::InterruptCounts;
use crate::perfmon::Perfmon;
use crate::state::State;
use crate::sync::{CacheLine, Word, load};
use crate::windows::Windows;
use crate::wq::{Ring, Slot};
use telpher_abi::registers::{DeviceState, GenCfg, GrpCfg, WqCfg, WqState};

/// The most descriptors in progress in one engine: one for each lane that a runner drives. Source: assumed, twice the
/// depth at which published single-engine throughput is flat.
pub const MAX_LANES: usize = 32;

/// Slots of all rings together: each queue's ring is its size rounded up to a power of two.
const MAX_SLOTS: usize = 2 * MAX_ENTRIES;

/// A modelled device: registers, queues, groups, and the marks of the descriptors in progress.
///
/// It has no clock and no threads: submitters call [`submit`](Device::submit), software reads and writes registers, and
/// a runner steps [`Engine`](crate::Engine)s.
#[derive(Debug)]
#[repr(C)]
pub struct Device {
    pub(crate) capabilities: Capabilities,
    pub(crate) pci: PciWords,
    pub(crate) general: General,
    pub(crate) commands: CommandState,
    pub(crate) errors: ErrorState,
    pub(crate) perfmon: Perfmon,
    pub(crate) wqcfg: [[Word; 8]; MAX_WQS],
    pub(crate) grpcfg: [[Word; 8]; MAX_GROUPS],
    pub(crate) msix_perm: [Word; MAX_MSIX],
    pub(crate) msix_table: [[Word; 2]; MAX_MSIX],
    pub(crate) msix_pending: Word,
    pub(crate) ims: [[Word; 2]; MAX_IMS],
    pub(crate) interrupts: InterruptCounts,
    pub(crate) wqs: [Wq; MAX_WQS],
    pub(crate) groups: [CacheLine<Group>; MAX_GROUPS],
    /// By engine: its group plus one; 0 without a group. Set by Enable Device.
    pub(crate) engine_group: [Word; MAX_ENGINES],
    /// By engine: one more than the highest lane that ever asked for a descriptor. A runner's number of lanes does not
    /// change, so this never falls; if it is too high, lanes in progress are counted though none is too many.
    pub(crate) lanes_used: [Word; MAX_ENGINES],
    pub(crate) windows: Windows,
    pub(crate) lanes: [[CacheLine<EngineLane>; MAX_LANES]; MAX_ENGINES],
    slots: [Slot; MAX_SLOTS],
}

/// Registers outside of the tables.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct General {
    pub(crate) gencfg: Word,
    pub(crate) genctrl: Word,
    pub(crate) state: State,
    pub(crate) intcause: Word,
    pub(crate) cmdparam: Word,
    pub(crate) evlcfg: [Word; 2],
}

/// The bits of PCI configuration space that affect legality.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PciControl {
    /// Bus mastering is on.
    pub bus_master: bool,
    /// PASIDs are enabled.
    pub pasid: bool,
    /// Address translation service is on.
    pub ats: bool,
    /// Page request service is on.
    pub prs: bool,
    /// Page requests allocated (PRSREQALLOC).
    pub page_requests: u32,
    /// Privileged Mode Enable.
    pub privileged: bool,
}

impl PciControl {
    /// The settings of Linux for a device that it gives to users: shared virtual addressing with recoverable faults.
    /// Source: SPEC Table 9-2, first row.
    pub const SHARED_VIRTUAL_MEMORY: PciControl =
        PciControl { bus_master: true, pasid: true, ats: true, prs: true, page_requests: 0x200, privileged: false };
}

#[derive(Debug, Default)]
pub(crate) struct PciWords(Word);

impl PciWords {
    pub(crate) fn get(&self) -> PciControl {
        let word = self.0.get();
        PciControl {
            bus_master: word & 1 != 0,
            pasid: word & 2 != 0,
            ats: word & 4 != 0,
            prs: word & 8 != 0,
            privileged: word & 16 != 0,
            // Cannot lose bits: stored from a u32.
            page_requests: u32::try_from(word >> 32).unwrap_or_default(),
        }
    }

    fn set(&self, control: PciControl) {
        let bits = [control.bus_master, control.pasid, control.ats, control.prs, control.privileged];
        let flags = bits.iter().enumerate().fold(0, |word, (bit, on)| word | u64::from(*on) << bit);
        self.0.set(flags | u64::from(control.page_requests) << 32);
    }
}

/// One queue: its ring, and the values that Enable Device and Enable WQ compute from its configuration.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Wq {
    pub(crate) ring: Ring,
    /// First slot of the ring.
    base: Word,
    /// Slots of the ring, a power of two.
    capacity: Word,
    /// The values that submitters and the decoder read.
    pub(crate) rules: CacheLine<Rules>,
}

/// A queue's configuration in the form that the hot path needs; written by Enable WQ.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Rules {
    /// Entries.
    pub(crate) size: Word,
    /// Bit 0: dedicated.
    pub(crate) dedicated: Word,
    /// Group index.
    pub(crate) group: Word,
    /// Flag bits that configuration and capabilities allow; an operation's own mask narrows them.
    pub(crate) flags: Word,
    /// Largest transfer in bytes.
    pub(crate) max_transfer: Word,
    /// Largest batch in descriptors.
    pub(crate) max_batch: Word,
    /// Longest scatter-gather list in entries.
    pub(crate) max_sgl: Word,
    /// PASID, privilege and PASID enable of a dedicated queue, as bits 19:0, 32, 33.
    pub(crate) identity: Word,
    /// Bit 0: traffic class A is usable; bit 1: B is.
    pub(crate) classes: Word,
}

impl Device {
    /// Creates a device in its power-on state: disabled, unconfigured, with the PCI settings `pci`.
    ///
    /// # Errors
    /// If the capabilities exceed the model.
    pub fn new(capabilities: Capabilities, pci: PciControl) -> Result<Box<Self>, CapabilityError> {
        capabilities.validate()?;
        let device = Box::new(Device {
            capabilities,
            pci: PciWords::default(),
            general: General::default(),
            commands: CommandState::default(),
            errors: ErrorState::default(),
            perfmon: Perfmon::default(),
            wqcfg: std::array::from_fn(|_| Default::default()),
            grpcfg: std::array::from_fn(|_| Default::default()),
            msix_perm: std::array::from_fn(|_| Word::default()),
            msix_table: std::array::from_fn(|_| Default::default()),
            msix_pending: Word::default(),
            ims: std::array::from_fn(|_| Default::default()),
            interrupts: InterruptCounts::default(),
            wqs: std::array::from_fn(|_| Wq::default()),
            groups: std::array::from_fn(|_| CacheLine(Group::default())),
            engine_group: std::array::from_fn(|_| Word::default()),
            lanes_used: std::array::from_fn(|_| Word::default()),
            windows: Windows::default(),
            lanes: std::array::from_fn(|_| std::array::from_fn(|_| CacheLine(EngineLane::default()))),
            slots: std::array::from_fn(|_| Slot::default()),
        });
        device.pci.set(pci);
        device.reset_configuration();
        device.reset_interrupt_tables();
        device.perfmon.reset(u32::MAX);
        Ok(device)
    }

    /// Returns the device's capabilities.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Returns the PCI function's settings.
    #[must_use]
    pub fn pci(&self) -> PciControl {
        self.pci.get()
    }

    /// Changes the PCI function's settings. A change while the device is not disabled halts it (SPEC §9.1).
    pub fn set_pci(&self, control: PciControl) {
        let before = self.pci.get();
        self.pci.set(control);
        let differs = (before.bus_master, before.pasid, before.ats, before.prs)
            != (control.bus_master, control.pasid, control.ats, control.prs);
        if differs {
            self.halt(telpher_abi::DeviceError::ConfigurationChange);
        }
    }

    /// Returns the state of the device (GENSTS).
    #[must_use]
    #[inline]
    pub fn state(&self) -> DeviceState {
        self.general.state.get()
    }

    /// Returns the state of a queue; `Disabled` for one that does not exist.
    #[must_use]
    pub fn wq_state(&self, wq: usize) -> WqState {
        self.wqs.get(wq).map_or(WqState::Disabled, |wq| wq.ring.state())
    }

    /// Returns the number of descriptors waiting in a queue.
    #[must_use]
    pub fn wq_occupancy(&self, wq: usize) -> u64 {
        self.wqs.get(wq).map_or(0, |wq| wq.ring.occupancy())
    }

    /// Returns two positions of a queue: of its oldest descriptor, and of the next one that it will accept.
    ///
    /// **Staleness.** Other threads take and submit descriptors meanwhile.
    #[must_use]
    #[inline]
    pub fn wq_positions(&self, wq: usize) -> (u64, u64) {
        self.wqs.get(wq).map_or((0, 0), |wq| (wq.ring.head_position(), wq.ring.tail_position()))
    }

    /// True if the oldest descriptor of a queue has arrived completely; it has its position before that.
    ///
    /// **Staleness.** Another thread may take it meanwhile.
    #[must_use]
    pub fn wq_has_arrived(&self, wq: usize) -> bool {
        self.wqs.get(wq).is_some_and(|wq| wq.ring.is_ready(self.slots_of(wq)))
    }

    /// Returns a queue's configuration as written, with its state and occupancy.
    #[must_use]
    pub fn wq_cfg(&self, wq: usize) -> WqCfg {
        let Some(words) = self.wqcfg.get(wq) else { return WqCfg::default() };
        let occupancy = u16::try_from(self.wq_occupancy(wq)).unwrap_or(u16::MAX);
        WqCfg(load(words)).with_occupancy(occupancy).with_state_code(self.wq_state(wq) as u8)
    }

    /// Returns a group's configuration as written.
    #[must_use]
    pub fn grp_cfg(&self, group: usize) -> GrpCfg {
        self.grpcfg.get(group).map_or_else(GrpCfg::default, |words| GrpCfg(load(words)))
    }

    pub(crate) fn gen_cfg(&self) -> GenCfg {
        GenCfg([self.general.gencfg.get()])
    }

    /// Returns the group of an engine, once the device is enabled.
    #[must_use]
    #[inline]
    pub fn group_of_engine(&self, engine: usize) -> Option<usize> {
        let group = usize::try_from(self.engine_group.get(engine)?.get()).ok()?.checked_sub(1)?;
        (group < MAX_GROUPS).then_some(group)
    }

    /// Returns the group of a queue; 0 until the device is enabled.
    #[must_use]
    #[inline]
    pub fn group_of_wq(&self, wq: usize) -> usize {
        self.wqs.get(wq).map_or(0, |wq| usize::try_from(wq.rules.0.group.get()).unwrap_or(0) % MAX_GROUPS)
    }

    /// Returns the number of queues that the device has, configured or not.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.capabilities.wq_cap.queues().into()
    }

    /// Returns the ring slots of a queue.
    #[inline]
    pub(crate) fn slots_of(&self, wq: &Wq) -> &[Slot] {
        // Cannot lose bits: both are below MAX_SLOTS.
        #[allow(clippy::cast_possible_truncation, reason = "both words are set below, to values below MAX_SLOTS")]
        let (base, capacity) = (wq.base.get() as usize, wq.capacity.get() as usize);
        // Corrupted shared memory can cause a failed lookup here, never a panic.
        let slots = self.slots.get(base..base.saturating_add(capacity));
        // A queue of a device that was never enabled has no slots. It gets one slot, which is never used.
        slots.filter(|slots| slots.len().is_power_of_two()).unwrap_or(&self.slots[..1])
    }

    /// Assigns slots to the rings by the queues' sizes; Enable Device calls it after the sizes were validated.
    pub(crate) fn lay_out_rings(&self) {
        let mut base = 0;
        for wq in 0..self.queues() {
            let capacity = u64::from(self.wq_cfg(wq).size()).next_power_of_two();
            let queue = &self.wqs[wq];
            queue.base.set(base);
            queue.capacity.set(capacity);
            queue.ring.relocate(self.slots_of(queue));
            base += capacity;
        }
    }
}
