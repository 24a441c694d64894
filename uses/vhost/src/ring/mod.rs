//! Virtqueues from the device's side: the only code that reads and writes rings in guest memory.
//!
//! A [`Ring`] takes chains that the driver made available, reports the addresses of their buffers, and returns them as
//! used. It copies nothing and does not know about packets. The guest may write anything at any time, also while we
//! read:
//!
//! - each word is read once, by one access, and checked after it was read (`area`);
//! - a chain that cannot be followed ([`Dropped`]) is taken all the same and returned with length 0, so it never stays
//!   at the head of the ring;
//! - a ring with invalid indices is broken ([`Broken`]) until it is set up again.
//!
//! Sources: VirtIO 1.2 §2.7 (split), §2.8 (packed).
#![allow(unsafe_code, reason = "reads and writes memory that the guest has, too")]

mod area;
mod burst;
mod chain;
#[cfg(any(test, feature = "test-util"))]
mod mock;
mod packed;
mod split;
#[cfg(test)]
mod tests;

pub(crate) use area::{Area, prefetch_to_write};
pub use burst::{Burst, Chain};
pub use chain::Dropped;
#[cfg(any(test, feature = "test-util"))]
pub use mock::{MockDriver, MockGuest};

use crate::layout::{Features, MOST_DESCRIPTORS};
use crate::{GuestMemory, Piece};
use packed::PackedRing;
use split::SplitRing;
use std::sync::Arc;
use telpher_mem::torn_pages;

/// The direction of a virtqueue's data. Source: VirtIO 1.2 §5.1.2 (receiveq, transmitq: the guest's view).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Direction {
    /// The guest receives: its buffers are written.
    Receive,
    /// The guest transmits: its buffers are read.
    Transmit,
}

/// The addresses of a ring's parts, in the frontend's address space. Source: vhost-user, `VHOST_USER_SET_VRING_ADDR`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingAddresses {
    /// The descriptor table.
    pub descriptors: u64,
    /// Split: the available ring. Packed: the driver's event suppression.
    pub driver: u64,
    /// Split: the used ring. Packed: the device's event suppression.
    pub device: u64,
}

/// Where a ring resumes. Source: vhost-user, `VHOST_USER_SET_VRING_BASE`, "vring state description".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Base {
    /// The next available entry: a free-running index (split), or a position with the driver's wrap counter in bit 15
    /// (packed).
    pub available: u16,
    /// The next used entry, in the same form. A split ring reads it from memory and ignores this field.
    pub used: u16,
}

/// How a ring is set up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingSetup {
    /// Descriptors: at most 2¹⁵, a power of two if the ring is split.
    pub size: u16,
    /// The negotiated features, which determine the layout.
    pub features: Features,
    /// The direction of its data.
    pub direction: Direction,
    /// The addresses of its parts.
    pub addresses: RingAddresses,
    /// Where it resumes.
    pub base: Base,
}

/// Why a ring cannot be set up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// An invalid size.
    #[error("a ring has {size} descriptors; a split ring needs a power of two, and any at most {MOST_DESCRIPTORS}")]
    Size {
        /// The requested size.
        size: u16,
    },
    /// A part has an invalid address.
    #[error(
        "the ring's {part} at the frontend's address {address:#x} are not aligned, or not inside one region of its \
         memory"
    )]
    Part {
        /// The part.
        part: &'static str,
        /// Its address.
        address: u64,
    },
    /// The base is beyond the ring.
    #[error("the ring of {size} descriptors cannot resume at {base:#06x}")]
    Base {
        /// The requested base.
        base: u16,
        /// The number of descriptors.
        size: u16,
    },
}

/// Why a ring is broken until it is set up again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// More chains are available than the ring can hold.
    #[error("the driver made {ahead} buffers available in a ring of {size}")]
    Ahead {
        /// Chains available beyond the used index.
        ahead: u16,
        /// The number of descriptors.
        size: u16,
    },
    /// A chain that starts outside the descriptor table.
    #[error("the driver made a chain available that starts at descriptor {head} of {size}")]
    Head {
        /// The index of its first descriptor.
        head: u16,
        /// The number of descriptors.
        size: u16,
    },
    /// A DMA queue holds its copies and completes none.
    #[error(
        "copies of a burst were not complete for seconds: their DMA queue reports that it works but completes nothing"
    )]
    Silent,
    /// Guest memory disappeared under the backend.
    #[error("a file of the guest's memory became shorter than announced")]
    Torn,
}

/// A chain that is returned to the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Used {
    /// The chain's identifier.
    pub id: u16,
    /// The number of its descriptors in the ring.
    pub descriptors: u16,
    /// The bytes that were written to it, counted from its start.
    pub written: u32,
}

impl Used {
    /// A used chain with `written` bytes written.
    #[must_use]
    pub fn of(chain: &Chain, written: u32) -> Used {
        Used { id: chain.id, descriptors: chain.descriptors, written }
    }
}

#[derive(Debug)]
enum Layout {
    Split(SplitRing),
    Packed(PackedRing),
}

/// A virtqueue from the device's side.
#[derive(Debug)]
pub struct Ring {
    memory: Arc<GuestMemory>,
    setup: RingSetup,
    layout: Layout,
    broken: Option<Broken>,
    /// The value of [`torn_pages`] when the memory was last found intact.
    torn_pages: usize,
}

impl Ring {
    /// Creates the ring that the frontend described, in its memory.
    ///
    /// # Errors
    /// [`RingError`]: an invalid size, address or base.
    pub fn new(memory: &Arc<GuestMemory>, setup: RingSetup) -> Result<Ring, RingError> {
        if setup.size == 0 || setup.size > MOST_DESCRIPTORS {
            return Err(RingError::Size { size: setup.size });
        }
        let layout = if setup.features.contains(Features::RING_PACKED) {
            Layout::Packed(PackedRing::new(memory, &setup)?)
        } else {
            Layout::Split(SplitRing::new(memory, &setup)?)
        };
        let mut ring = Ring { memory: Arc::clone(memory), setup, layout, broken: None, torn_pages: 0 };
        // Memory that disappeared before, or while the words above were read, breaks it as well.
        ring.check_memory(torn_pages());
        Ok(ring)
    }

    /// The same ring in its current state, in the memory of another table.
    ///
    /// # Errors
    /// [`RingError::Part`]: its parts do not lie in that memory.
    pub fn moved_to(&self, memory: &Arc<GuestMemory>) -> Result<Ring, RingError> {
        let setup = RingSetup { base: self.base(), ..self.setup };
        let mut ring = Ring::new(memory, setup)?;
        match (&mut ring.layout, &self.layout) {
            (Layout::Split(new), Layout::Split(old)) => new.go_on_from(old),
            (Layout::Packed(new), Layout::Packed(old)) => new.go_on_from(old),
            _ => unreachable!("the features are the same"),
        }
        ring.broken = self.broken.or(ring.broken);
        Ok(ring)
    }

    /// The setup with which it was created.
    #[must_use]
    pub fn setup(&self) -> &RingSetup {
        &self.setup
    }

    /// The memory of its chains.
    #[must_use]
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Takes up to `most` chains that the driver made available, in order, and appends them to `burst`. Returns how
    /// many. Chains with [`Chain::dropped`] have nothing to copy and are returned like the others.
    ///
    /// # Errors
    /// [`Broken`], and from then on always; chains taken earlier stay valid.
    ///
    /// # Panics
    /// If `burst` has chains of a ring in other memory; [`clear`](Burst::clear) it first.
    #[inline]
    pub fn take(&mut self, burst: &mut Burst, most: usize) -> Result<usize, Broken> {
        self.check()?;
        burst.lie_in(&self.memory);
        let before = burst.chains.len();
        let taken = match &mut self.layout {
            Layout::Split(ring) => ring.take(&self.memory, burst, most),
            Layout::Packed(ring) => ring.take(&self.memory, burst, most),
        };
        if let Err(broken) = taken {
            // Zeros in place of pages that disappeared may look like anything.
            let broken = if self.memory.is_whole() { broken } else { Broken::Torn };
            self.broken = Some(broken);
            // Chains taken before the error are still delivered.
            if burst.chains.len() == before {
                return Err(broken);
            }
        }
        Ok(burst.chains.len() - before)
    }

    /// Returns whether chains are available that were not taken, according to the ring's memory at this moment.
    #[must_use]
    pub fn available(&self) -> bool {
        match &self.layout {
            Layout::Split(ring) => ring.available(),
            Layout::Packed(ring) => ring.available(),
        }
    }

    /// Undoes taking the chains of `burst` from `keep` on: the next [`take`](Ring::take) takes them again.
    ///
    /// # Panics
    /// If `burst` does not have that many, or they are not the ones taken last.
    pub fn untake(&mut self, burst: &mut Burst, keep: usize) {
        let back = &burst.chains[keep..];
        match &mut self.layout {
            Layout::Split(ring) => ring.untake(back.len()),
            Layout::Packed(ring) => ring.untake(back),
        }
        burst.truncate(keep);
    }

    /// Writes chains into the ring as used; [`publish`](Ring::publish) makes them visible to the driver. In a packed
    /// ring all but the first are visible at once, but a driver does not look at them before the first.
    pub fn put(&mut self, used: &[Used]) {
        match &mut self.layout {
            Layout::Split(ring) => ring.put(used),
            Layout::Packed(ring) => ring.put(used),
        }
    }

    /// Makes the chains that were [`put`](Ring::put) visible to the driver. Returns true if it wants a call.
    #[must_use]
    pub fn publish(&mut self) -> bool {
        match &mut self.layout {
            Layout::Split(ring) => ring.publish(),
            Layout::Packed(ring) => ring.publish(),
        }
    }

    /// Calls `each` with the frontend's address and the length of every range of guest memory that the last
    /// [`put`](Ring::put) and [`publish`](Ring::publish) wrote; for the dirty log.
    pub fn written(&self, each: impl FnMut(u64, u64)) {
        match &self.layout {
            Layout::Split(ring) => ring.written(self.setup.addresses.device, each),
            Layout::Packed(ring) => ring.written(self.setup.addresses.descriptors, each),
        }
    }

    /// Sets whether the driver should kick when it makes chains available. A kick may come in any case. After enabling
    /// kicks, the caller checks the ring once more before it waits: the driver sent no kick for earlier chains.
    pub fn want_kicks(&mut self, wanted: bool) {
        match &mut self.layout {
            Layout::Split(ring) => ring.want_kicks(wanted),
            Layout::Packed(ring) => ring.want_kicks(wanted),
        }
    }

    /// The number of chains taken and not returned.
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        match &self.layout {
            Layout::Split(ring) => ring.outstanding(),
            Layout::Packed(ring) => ring.outstanding(),
        }
    }

    /// Makes these heads the first of a split ring: the chains that a previous backend took and did not return. A
    /// packed ring holds them itself.
    pub(crate) fn resume(&mut self, heads: Vec<u16>) {
        if let Layout::Split(ring) = &mut self.layout {
            ring.resume(heads);
        }
    }

    /// The position in a packed ring at which the last `descriptors` descriptors were taken; 0 for a split ring.
    pub(crate) fn place_before(&self, descriptors: u16) -> u16 {
        match &self.layout {
            Layout::Split(_) => 0,
            Layout::Packed(ring) => ring.place_before(descriptors),
        }
    }

    /// Writes both words of a descriptor that was taken from a packed ring.
    pub(crate) fn restore_descriptor(&self, place: u16, words: [u64; 2]) {
        if let Layout::Packed(ring) = &self.layout {
            ring.restore(place, words);
        }
    }

    /// Both words of a packed ring's descriptor; zeros for a split ring.
    pub(crate) fn descriptor_words(&self, place: u16) -> [u64; 2] {
        match &self.layout {
            Layout::Split(_) => [0; 2],
            Layout::Packed(ring) => ring.words(place),
        }
    }

    /// Where the ring resumes when it is set up again.
    #[must_use]
    pub fn base(&self) -> Base {
        match &self.layout {
            Layout::Split(ring) => ring.base(),
            Layout::Packed(ring) => ring.base(),
        }
    }

    /// Breaks the ring: nothing is taken any more.
    pub(crate) fn break_off(&mut self, reason: Broken) {
        self.broken.get_or_insert(reason);
    }

    /// Why the ring is broken; `None` if it is not.
    #[must_use]
    pub fn broken(&self) -> Option<Broken> {
        self.broken
    }

    #[inline]
    fn check(&mut self) -> Result<(), Broken> {
        let torn_pages = torn_pages();
        if torn_pages != self.torn_pages {
            self.check_memory(torn_pages);
        }
        self.broken.map_or(Ok(()), Err)
    }

    #[cold]
    fn check_memory(&mut self, torn_pages: usize) {
        self.torn_pages = torn_pages;
        if !self.memory.is_whole() {
            self.broken.get_or_insert(Broken::Torn);
        }
    }
}

/// The pieces of chains.
type Pieces = Vec<Piece>;
