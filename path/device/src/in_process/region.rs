//! The regions of this process, and the slots that its devices have.
#![allow(unsafe_code, reason = "sees words of shared memory as a structure of atomics")]

use super::slot_state::SlotState;
use super::{Description, OF_UNSHOWN};
use crate::published::PublishedDevice;
use crate::sync::{AtomicU64, Ordering};
use std::ptr;
use std::sync::atomic::AtomicPtr;
use telpher_abi::registers::DeviceState;
use telpher_model::DeviceCounts;
use telpher_os::Lineage;

/// The most regions of a process: readers look at few descriptors of each. Source: chosen; 64 devices at a time.
const MOST_REGIONS: usize = 4;

/// A region, see the module above.
#[repr(C, align(64))]
struct Region {
    header: [AtomicU64; super::HEADER],
    slots: [Slot; super::SLOTS],
}

/// A slot of a region.
#[repr(C, align(64))]
struct Slot {
    state: SlotState,
    device_state: AtomicU64,
    _unused: [AtomicU64; super::OF_QUEUES - 2],
    queues: [AtomicU64; telpher_model::MAX_WQS],
    engines: [AtomicU64; telpher_model::MAX_ENGINES],
    _rest: [AtomicU64; super::HEADER - super::OF_ENGINES - telpher_model::MAX_ENGINES],
    earlier: DeviceCounts,
    all: DeviceCounts,
}

/// Creates a region; `None` if the system refuses it.
#[cfg(not(loom))]
fn create() -> Option<&'static Region> {
    const { assert!(size_of::<Region>() == super::REGION_WORDS * 8 && align_of::<Region>() <= 4096) };
    let words = telpher_os::published_words_as(telpher_os::PUBLISHED_DEVICES, super::REGION_WORDS).ok()?;
    // SAFETY: the words are mapped for ever and begin at a page. A region has their size and consists of 64-bit atomics
    // only, for which any bytes are valid, whatever other processes write.
    let region: &'static Region = unsafe { &*words.as_ptr().cast() };
    // Relaxed: readers are other processes, and accept any words.
    region.header[super::OF_PROCESS].store(std::process::id().into(), Ordering::Relaxed);
    region.header[super::OF_VERSION].store(super::VERSION, Ordering::Relaxed);
    Some(region)
}

/// The models of loom publish nothing: what they check is between other words.
#[cfg(loom)]
fn create() -> Option<&'static Region> {
    None
}

/// A region in the list of the process.
struct Node {
    /// The process that has created it. A forked child has regions of its own.
    made_in: Lineage,
    region: &'static Region,
    next: *const Node,
}

/// The last region that this process or an ancestor has created. Nodes are never freed. A list without a lock, because
/// a process may fork while another of its threads opens a device.
static LAST: AtomicPtr<Node> = AtomicPtr::new(ptr::null_mut());

/// Calls `take` with the slots of this process, and with those of new regions, until it takes one. `None` if there are
/// as many regions as may be, or the system refuses another one.
fn find(take: impl Fn(&'static Slot) -> bool) -> Option<&'static Slot> {
    for _ in 0..=MOST_REGIONS {
        // Acquire: pairs with the Release below; the node's content is seen.
        let last: *const Node = LAST.load(Ordering::Acquire);
        let (mut at, mut first, mut regions) = (last, None, 0);
        // SAFETY: a node in the list is complete and is never freed.
        while let Some(node) = unsafe { at.as_ref() }.filter(|node| node.made_in.is_current()) {
            if let Some(slot) = node.region.slots.iter().find(|slot| take(slot)) {
                return Some(slot);
            }
            (at, first, regions) = (node.next, Some(node.region), regions + 1);
        }
        // Threads that begin together may have added more.
        if regions >= MOST_REGIONS {
            // Relaxed: a count for readers.
            first?.header[OF_UNSHOWN].fetch_add(1, Ordering::Relaxed);
            return None;
        }
        add(create()?);
    }
    None
}

/// Adds a region to the list.
fn add(region: &'static Region) {
    let node = Box::into_raw(Box::new(Node { made_in: Lineage::current(), region, next: ptr::null() }));
    let mut last = LAST.load(Ordering::Relaxed);
    loop {
        // SAFETY: no other thread knows the node before the exchange.
        unsafe { (*node).next = last };
        // Release: pairs with the Acquire in `find`.
        match LAST.compare_exchange(last, node, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => last = other,
        }
    }
}

impl Slot {
    fn description(&self) -> Description {
        // Relaxed, here and in `describe`: the slot's state orders its words for devices, and readers accept any words.
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        Description { queues: self.queues.each_ref().map(load), engines: self.engines.each_ref().map(load) }
    }

    fn describe(&self, description: &Description, state: DeviceState) {
        let store = |(word, value): (&AtomicU64, &u64)| word.store(*value, Ordering::Relaxed);
        self.queues.iter().zip(&description.queues).for_each(store);
        self.engines.iter().zip(&description.engines).for_each(store);
        self.device_state.store(state as u64, Ordering::Relaxed);
    }

    /// Takes the slot for a device if it is free and was never used, or by devices of the same configuration.
    fn take(&self, description: &Description) -> bool {
        if !self.state.take() {
            return false;
        }
        if self.state.was_used() {
            if self.description().configuration() != description.configuration() {
                self.state.put_back();
                return false;
            }
            self.all.hand_over(&self.earlier);
        }
        self.describe(description, DeviceState::Disabled);
        self.state.open();
        true
    }
}

/// A slot that a device has until it is dropped.
pub(crate) struct SlotLease {
    slot: &'static Slot,
    /// A forked child must not free the slot of its parent's device.
    made_in: Lineage,
}

impl std::fmt::Debug for SlotLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotLease").finish_non_exhaustive()
    }
}

impl SlotLease {
    /// Takes a slot for a device; `None` if none is to be had.
    pub(crate) fn claim(device: &PublishedDevice) -> Option<SlotLease> {
        let description = Description::of(device);
        find(|slot| slot.take(&description)).map(|slot| SlotLease { slot, made_in: Lineage::current() })
    }

    /// Returns the words in which the device counts.
    pub(crate) fn counts(&self) -> &'static DeviceCounts {
        &self.slot.all
    }

    /// Has readers see this state of the device and its queues.
    pub(crate) fn describe(&self, device: &PublishedDevice, state: DeviceState) {
        if self.made_in.is_current() {
            self.slot.describe(&Description::of(device), state);
        }
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        if self.made_in.is_current() {
            self.slot.state.close();
        }
    }
}
