//! Virtqueues from the device's side: the one place that reads and writes rings in guest memory.
//!
//! A [`Ring`] takes chains that the driver made available, says where their buffers are, and puts them back as used. It copies nothing
//! and knows nothing of packets. The guest may have written anything, and may write it again while we look:
//!
//! - each word is read once, by one access, and checked after it was read (`area`);
//! - a chain that cannot be followed ([`Dropped`]) is taken all the same, so that it can be put back with length 0: it never stays at the
//!   head of the ring;
//! - a ring whose indices make no sense ([`Broken`]) is at its end until it is set up again.
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

use crate::words::{Features, MOST_DESCRIPTORS};
use crate::{GuestMemory, Piece};
use packed::PackedRing;
use split::SplitRing;
use std::sync::Arc;
use telpher_mem::torn_pages;

/// Which way a virtqueue's bytes go. Source: VirtIO 1.2 §5.1.2 (receiveq, transmitq: the guest's view).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Direction {
    /// The guest receives: its buffers are written.
    Receive,
    /// The guest transmits: its buffers are read.
    Transmit,
}

/// Where a ring's parts are, in the frontend's addresses. Source: vhost-user, `VHOST_USER_SET_VRING_ADDR`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingAddresses {
    /// The descriptors.
    pub descriptors: u64,
    /// Split: the available ring. Packed: the driver's event suppression.
    pub driver: u64,
    /// Split: the used ring. Packed: the device's event suppression.
    pub device: u64,
}

/// Where a ring goes on. Source: vhost-user, `VHOST_USER_SET_VRING_BASE`, "vring state description".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Base {
    /// The next available entry: an index that counts on (split), or a place with the driver's wrap counter in bit 15 (packed).
    pub available: u16,
    /// The next used entry: the same. A split ring's is in its memory, and this is not looked at.
    pub used: u16,
}

/// What a ring is set up with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingSetup {
    /// Descriptors: at most 2¹⁵, a power of two if the ring is split.
    pub size: u16,
    /// What was agreed on; decides the layout.
    pub features: Features,
    /// Which way its bytes go.
    pub direction: Direction,
    /// Where its parts are.
    pub addresses: RingAddresses,
    /// Where it goes on.
    pub base: Base,
}

/// Why a ring cannot be set up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// Not a size that rings have.
    #[error("a ring of {size} descriptors: a split one has a power of two, and none more than {MOST_DESCRIPTORS}")]
    Size {
        /// What was asked for.
        size: u16,
    },
    /// A part is not where it can be.
    #[error(
        "the ring's {part} at the frontend's address {address:#x} are not aligned, or not whole in one region of its memory"
    )]
    Part {
        /// Which.
        part: &'static str,
        /// Where it was said to be.
        address: u64,
    },
    /// The base is beyond the ring.
    #[error("the ring of {size} descriptors cannot go on at {base:#06x}")]
    Base {
        /// Where it was to go on.
        base: u16,
        /// Descriptors.
        size: u16,
    },
}

/// Why a ring is at its end until it is set up again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// More is available than the ring has.
    #[error("the driver made {ahead} buffers available in a ring of {size}")]
    Ahead {
        /// Beyond what was used.
        ahead: u16,
        /// Descriptors.
        size: u16,
    },
    /// A chain that begins nowhere.
    #[error("the driver made a chain available that begins at descriptor {head} of {size}")]
    Head {
        /// Where.
        head: u16,
        /// Descriptors.
        size: u16,
    },
    /// The DMA queue that has its copies answers no more.
    #[error("copies of a burst have not landed for seconds: their DMA queue says that it works and finishes nothing")]
    Silent,
    /// Guest memory went away under the backend.
    #[error("a file of the guest's memory became shorter than it was announced")]
    Torn,
}

/// A chain that goes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Used {
    /// The chain's identifier.
    pub id: u16,
    /// Its descriptors in the ring.
    pub descriptors: u16,
    /// Bytes that were written to it, from its first.
    pub written: u32,
}

impl Used {
    /// A chain with so many bytes written.
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
    /// [`torn_pages`] when the memory was last found whole.
    torn_pages: usize,
}

impl Ring {
    /// The ring that the frontend described, in its memory.
    ///
    /// # Errors
    /// [`RingError`]: a size, place or base that cannot be.
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
        // Memory that went away before, or in the words just read, breaks it as well.
        ring.look_again(torn_pages());
        Ok(ring)
    }

    /// The same ring, where it stands now, in the memory of another table.
    ///
    /// # Errors
    /// [`RingError::Part`]: its parts are not in that memory.
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

    /// What it was set up with.
    #[must_use]
    pub fn setup(&self) -> &RingSetup {
        &self.setup
    }

    /// The memory its chains lie in.
    #[must_use]
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Takes up to `most` chains that the driver made available, in its order, and appends them to `burst`. Returns how many. Chains with
    /// [`Chain::dropped`] have nothing to copy and go back with the others.
    ///
    /// # Errors
    /// [`Broken`], and from then on always; chains taken before stay valid.
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
            // Zeros in the place of pages that went away may look like anything.
            let broken = if self.memory.is_whole() { broken } else { Broken::Torn };
            self.broken = Some(broken);
            // What came before goes its way.
            if burst.chains.len() == before {
                return Err(broken);
            }
        }
        Ok(burst.chains.len() - before)
    }

    /// Chains that the driver made available and nobody took; what the memory says at this moment, and at most the ring's size.
    #[must_use]
    pub fn available(&self) -> bool {
        match &self.layout {
            Layout::Split(ring) => ring.available(),
            Layout::Packed(ring) => ring.available(),
        }
    }

    /// Takes back that the last chains of `burst` from `keep` on were taken: the next [`take`](Ring::take) finds them again.
    ///
    /// # Panics
    /// If `burst` has not so many, or they are not the last that were taken.
    pub fn untake(&mut self, burst: &mut Burst, keep: usize) {
        let back = &burst.chains[keep..];
        match &mut self.layout {
            Layout::Split(ring) => ring.untake(back.len()),
            Layout::Packed(ring) => ring.untake(back),
        }
        burst.truncate(keep);
    }

    /// Writes chains into the ring as used; [`publish`](Ring::publish) shows them to the driver. A packed ring shows all but the first at once,
    /// which nobody looks at before the first.
    pub fn put(&mut self, used: &[Used]) {
        match &mut self.layout {
            Layout::Split(ring) => ring.put(used),
            Layout::Packed(ring) => ring.put(used),
        }
    }

    /// Shows the driver what was [`put`](Ring::put). True if it wants to be called.
    #[must_use]
    pub fn publish(&mut self) -> bool {
        match &mut self.layout {
            Layout::Split(ring) => ring.publish(),
            Layout::Packed(ring) => ring.publish(),
        }
    }

    /// The bytes that the last [`put`](Ring::put) and [`publish`](Ring::publish) wrote to guest memory, by the frontend's address and length; for the
    /// dirty log.
    pub fn written(&self, each: impl FnMut(u64, u64)) {
        match &self.layout {
            Layout::Split(ring) => ring.written(self.setup.addresses.device, each),
            Layout::Packed(ring) => ring.written(self.setup.addresses.descriptors, each),
        }
    }

    /// Says whether the driver shall kick when it makes chains available. A kick may come all the same. When told to, whoever waits looks
    /// once more before: what came meanwhile was not kicked for.
    pub fn want_kicks(&mut self, wanted: bool) {
        match &mut self.layout {
            Layout::Split(ring) => ring.want_kicks(wanted),
            Layout::Packed(ring) => ring.want_kicks(wanted),
        }
    }

    /// Chains taken and not put back.
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        match &self.layout {
            Layout::Split(ring) => ring.outstanding(),
            Layout::Packed(ring) => ring.outstanding(),
        }
    }

    /// A split ring's first heads are these, as many as were taken and not put back by a backend before this one; a packed ring has them in itself.
    pub(crate) fn resume(&mut self, heads: Vec<u16>) {
        if let Layout::Split(ring) = &mut self.layout {
            ring.resume(heads);
        }
    }

    /// A packed ring's place from which on the last so many descriptors were taken; 0 of a split one.
    pub(crate) fn place_before(&self, descriptors: u16) -> u16 {
        match &self.layout {
            Layout::Split(_) => 0,
            Layout::Packed(ring) => ring.place_before(descriptors),
        }
    }

    /// Writes both words of a packed ring's descriptor that is lent.
    pub(crate) fn restore_descriptor(&self, place: u16, words: [u64; 2]) {
        if let Layout::Packed(ring) = &self.layout {
            ring.restore(place, words);
        }
    }

    /// Both words of a packed ring's descriptor; zeros of a split one.
    pub(crate) fn descriptor_words(&self, place: u16) -> [u64; 2] {
        match &self.layout {
            Layout::Split(_) => [0; 2],
            Layout::Packed(ring) => ring.words(place),
        }
    }

    /// Where it goes on, for who sets it up again.
    #[must_use]
    pub fn base(&self) -> Base {
        match &self.layout {
            Layout::Split(ring) => ring.base(),
            Layout::Packed(ring) => ring.base(),
        }
    }

    /// Nothing is taken any more.
    pub(crate) fn break_off(&mut self, reason: Broken) {
        self.broken.get_or_insert(reason);
    }

    /// Why nothing is taken any more.
    #[must_use]
    pub fn broken(&self) -> Option<Broken> {
        self.broken
    }

    #[inline]
    fn check(&mut self) -> Result<(), Broken> {
        let torn_pages = torn_pages();
        if torn_pages != self.torn_pages {
            self.look_again(torn_pages);
        }
        self.broken.map_or(Ok(()), Err)
    }

    #[cold]
    fn look_again(&mut self, torn_pages: usize) {
        self.torn_pages = torn_pages;
        if !self.memory.is_whole() {
            self.broken.get_or_insert(Broken::Torn);
        }
    }
}

/// Where the pieces of a chain go.
type Pieces = Vec<Piece>;
