//! Follows one chain descriptor by descriptor, for both layouts.

use super::area::Area;
use super::{Direction, Pieces};
use crate::layout::{DESCRIPTOR_BYTES, DescriptorFlags, Features};
use crate::{GuestMemory, Piece};
use zerocopy::{FromBytes, IntoBytes};

/// Why a chain was not followed. It is returned with length 0, and counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, thiserror::Error)]
pub enum Dropped {
    /// A descriptor's `next` is beyond its table.
    #[error("a descriptor names a next one beyond its table")]
    Next,
    /// It has more descriptors than the ring, or more pieces than are followed: a loop, or an attempt to cost time.
    #[error("a chain goes on for longer than its ring, or in more pieces than are followed")]
    Loop,
    /// A readable buffer where the device writes, or a writable one where it reads.
    #[error("a buffer is of the wrong direction")]
    Direction,
    /// A buffer lies outside all regions, at least in part.
    #[error("a buffer is not in the guest's memory")]
    Address,
    /// Its length does not fit in 32 bits.
    #[error("a chain has more bytes than 32 bits count")]
    Length,
    /// An indirect table that was not negotiated, is nested, or is followed by a next descriptor.
    #[error("an indirect table stands where none may")]
    Indirect,
    /// An indirect table with an invalid length (zero, not a multiple of a descriptor, more than the ring) or outside
    /// memory.
    #[error("an indirect table has a length, or a place, that it cannot have")]
    Table,
}

impl Dropped {
    /// All reasons in order.
    pub const ALL: [Dropped; 7] = [
        Dropped::Next,
        Dropped::Loop,
        Dropped::Direction,
        Dropped::Address,
        Dropped::Length,
        Dropped::Indirect,
        Dropped::Table,
    ];
}

/// A descriptor's fields, in either layout.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) flags: DescriptorFlags,
}

/// The most pieces of one chain. A chain with as many descriptors as a large ring, each across many small regions,
/// would take gigabytes and seconds to follow, and could be made available many times. Source: the limits of Linux'
/// vhost (`UIO_MAXIOV`) and QEMU (`VIRTQUEUE_MAX_SIZE`), so drivers do not send more.
pub(super) const MOST_PIECES: u16 = 1024;

/// The rules for a ring's chains.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) size: u16,
    /// The most descriptors that are followed.
    pub(super) links: u16,
    /// The device writes to buffers, and does not read them.
    pub(super) writes: bool,
    indirect: bool,
}

impl Rules {
    pub(super) fn of(size: u16, features: Features, direction: Direction) -> Rules {
        let indirect = features.contains(Features::INDIRECT_DESC);
        Rules { size, links: size.min(MOST_PIECES), writes: direction == Direction::Receive, indirect }
    }

    /// The [`PLAIN`] flags of a buffer of the right direction; nearly all descriptors have them.
    pub(super) fn plain(self) -> DescriptorFlags {
        if self.writes { DescriptorFlags::WRITE } else { DescriptorFlags::empty() }
    }
}

/// The flags that determine a descriptor's kind.
pub(super) const PLAIN: DescriptorFlags = DescriptorFlags::WRITE.union(DescriptorFlags::INDIRECT);

/// Collects a chain's pieces.
pub(super) struct Gather<'a> {
    pub(super) rules: Rules,
    pub(super) memory: &'a GuestMemory,
    pub(super) pieces: &'a mut Pieces,
    /// The number of pieces of earlier chains.
    pub(super) start: usize,
    pub(super) len: u32,
}

impl Gather<'_> {
    /// Adds one buffer.
    #[inline]
    pub(super) fn buffer(&mut self, link: Link) -> Result<(), Dropped> {
        if link.flags.contains(DescriptorFlags::WRITE) != self.rules.writes {
            return Err(Dropped::Direction);
        }
        if link.len == 0 {
            // No byte is copied, so its address does not matter (CVE-2020-10725 came from looking it up).
            return Ok(());
        }
        self.len = self.len.checked_add(link.len).ok_or(Dropped::Length)?;
        if self.pieces.len() - self.start >= MOST_PIECES.into() {
            return Err(Dropped::Loop);
        }
        if let Some(host) = self.memory.host(link.address, link.len) {
            self.pieces.push(Piece { host, guest: link.address, len: link.len });
            return Ok(());
        }
        if self.memory.pieces(link.address, link.len, |piece| self.pieces.push(piece)) {
            Ok(())
        } else {
            Err(Dropped::Address)
        }
    }

    /// Adds the buffers of an indirect table: follows its descriptors in the order given by `next`, until that returns
    /// `None`.
    #[inline(never)]
    pub(super) fn table<T: FromBytes + IntoBytes + Copy>(
        &mut self,
        link: Link,
        next: impl Fn(T, usize, usize) -> (Link, Option<usize>),
    ) -> Result<(), Dropped> {
        if !self.rules.indirect || link.flags.contains(DescriptorFlags::NEXT) {
            return Err(Dropped::Indirect);
        }
        let count = link.len / DESCRIPTOR_BYTES;
        let odd = !link.len.is_multiple_of(DESCRIPTOR_BYTES);
        if count == 0 || odd || count > self.rules.links.into() {
            return Err(Dropped::Table);
        }
        let count = count as usize;
        let table = Area::<T, &GuestMemory>::of_guest(self.memory, link.address, count).ok_or(Dropped::Table)?;
        let mut index = 0;
        for _ in 0..count {
            let (link, after) = next(table.read(index), index, count);
            if link.flags.contains(DescriptorFlags::INDIRECT) {
                return Err(Dropped::Indirect);
            }
            self.buffer(link)?;
            match after {
                None => return Ok(()),
                Some(after) if after < count => index = after,
                Some(_) => return Err(Dropped::Next),
            }
        }
        Err(Dropped::Loop)
    }
}
