//! The 8-byte integrity tuple after each block, and the tags in it.
#![forbid(unsafe_code)]

use telpher_abi::{DIF_TUPLE_BYTES, DestDifFlags, DifStatus, SourceDifFlags};

/// Bytes of a tuple.
pub(super) const TUPLE: usize = DIF_TUPLE_BYTES as usize;

/// The tags of the next block, for the source or for the destination. Every operation takes them as the block's seeds
/// and updates them for the block after the last good one, so they carry a transfer over any number of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Tags {
    /// Reference tag; incremented modulo 2³² unless the flags say that it is fixed.
    pub ref_tag: u32,
    /// A 1 bit here clears that bit of the application tag. For a source, 0xffff disables the check of the application
    /// tag.
    pub app_mask: u16,
    /// Application tag before the mask; incremented modulo 2¹⁶ if the flags say so.
    pub app_tag: u16,
}

impl Tags {
    /// Returns the application tag as stored in a tuple.
    const fn masked_app_tag(&self) -> u16 {
        self.app_tag & !self.app_mask
    }

    fn step(&mut self, ref_tag: bool, app_tag: bool) {
        self.ref_tag = self.ref_tag.wrapping_add(ref_tag.into());
        self.app_tag = self.app_tag.wrapping_add(app_tag.into());
    }

    /// Advances to the next block of a source.
    pub(super) fn step_source(&mut self, flags: SourceDifFlags) {
        let app_tag = flags.contains(SourceDifFlags::APP_TAG_INCREMENTS);
        self.step(!flags.contains(SourceDifFlags::REF_TAG_FIXED), app_tag);
    }

    /// Advances to the next block of a destination.
    pub(super) fn step_dest(&mut self, flags: DestDifFlags) {
        let app_tag = flags.contains(DestDifFlags::APP_TAG_INCREMENTS);
        self.step(!flags.contains(DestDifFlags::REF_TAG_FIXED), app_tag);
    }
}

/// A decoded tuple. In memory all three fields are big-endian. Source: SPEC App. B.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tuple {
    /// CRC-16 of the block's data.
    pub(super) guard: u16,
    /// Application tag.
    pub(super) app_tag: u16,
    /// Reference tag.
    pub(super) ref_tag: u32,
}

impl Tuple {
    /// Creates the tuple of `tags` and a computed guard.
    pub(super) const fn new(guard: u16, tags: &Tags) -> Tuple {
        Tuple { guard, app_tag: tags.masked_app_tag(), ref_tag: tags.ref_tag }
    }

    /// Reads the tuple at the end of a block of `data` bytes.
    pub(super) fn read(block: &[u8], data: usize) -> Tuple {
        let [g0, g1, a0, a1, r @ ..] = *block[data..].first_chunk::<TUPLE>().expect("a tuple follows the data");
        Tuple {
            guard: u16::from_be_bytes([g0, g1]),
            app_tag: u16::from_be_bytes([a0, a1]),
            ref_tag: u32::from_be_bytes(r),
        }
    }

    /// Writes the tuple at the end of a block of `data` bytes.
    pub(super) fn write(self, block: &mut [u8], data: usize) {
        let word = u64::from(self.guard) << 48 | u64::from(self.app_tag) << 32 | u64::from(self.ref_tag);
        block[data..][..TUPLE].copy_from_slice(&word.to_be_bytes());
    }

    /// Returns the mismatch with the computed guard and the expected tags; `None` if the block is good or one of the
    /// enabled all-ones marks exempts it.
    pub(super) fn check(self, flags: SourceDifFlags, guard: u16, tags: &Tags) -> DifStatus {
        let app_f = self.app_tag == u16::MAX;
        let app_ref_f = app_f && self.ref_tag == u32::MAX;
        let all_f = app_ref_f && self.guard == u16::MAX;
        let all_f_found = all_f && flags.contains(SourceDifFlags::ALL_F_DETECT);
        if all_f_found && flags.contains(SourceDifFlags::ALL_F_ERROR) {
            return DifStatus::ALL_F;
        }
        if all_f_found
            || app_f && flags.contains(SourceDifFlags::APP_F_DETECT)
            || app_ref_f && flags.contains(SourceDifFlags::APP_REF_F_DETECT)
        {
            return DifStatus::empty();
        }
        let mut status = DifStatus::empty();
        status.set(DifStatus::GUARD, !flags.contains(SourceDifFlags::NO_GUARD_CHECK) && self.guard != guard);
        status.set(DifStatus::APP_TAG, tags.app_mask != u16::MAX && self.app_tag != tags.masked_app_tag());
        status
            .set(DifStatus::REF_TAG, !flags.contains(SourceDifFlags::NO_REF_TAG_CHECK) && self.ref_tag != tags.ref_tag);
        status
    }
}
