//! DIF Check, Insert, Strip and Update: blocks with and without their integrity tuples. Source of the meaning: SPEC
//! §8.3.17, Appendix B.
//!
//! Guards are computed for a group of blocks at once: one block's CRC is a dependency chain, and several chains
//! overlap. A group stays in the first-level cache between its check and its copy, so nothing past a bad block is
//! written.
#![forbid(unsafe_code)]

mod tuple;

use crate::dispatch::Kernels;
use telpher_abi::{DestDifFlags, DifBlock, DifFlags, DifStatus, SourceDifFlags};
use tuple::{TUPLE, Tuple};

pub use tuple::Tags;

/// The configuration of a DIF operation: the block size and the three flag bytes of its descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct DifConfig {
    /// Bytes of data in a block.
    pub block: DifBlock,
    /// How the guard is computed.
    pub flags: DifFlags,
    /// How the source's tuples are checked; without meaning for Insert.
    pub source: SourceDifFlags,
    /// How the destination's tuples are made; without meaning for Check and Strip.
    pub dest: DestDifFlags,
}

impl DifConfig {
    /// Bytes of a block without its tuple.
    const fn data(&self) -> usize {
        self.block.bytes() as usize
    }

    /// Bytes of a block with its tuple.
    const fn protected(&self) -> usize {
        self.data() + TUPLE
    }

    /// Blocks processed at once: their bytes stay in the first-level cache.
    const fn group(&self) -> usize {
        match self.block {
            DifBlock::B512 | DifBlock::B520 => GROUP,
            DifBlock::B4096 | DifBlock::B4104 => GROUP / 4,
        }
    }

    const fn guard_seed(&self) -> u16 {
        if self.flags.contains(DifFlags::INVERT_CRC_SEED) { u16::MAX } else { 0 }
    }

    /// Converts a remainder of the kernels to the guard.
    const fn guard(&self, remainder: u16) -> u16 {
        if self.flags.contains(DifFlags::INVERT_CRC_RESULT) { !remainder } else { remainder }
    }
}

/// The most blocks in a group.
const GROUP: usize = 16;

/// The progress of a checking operation.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checked {
    /// Good blocks before the first bad one, if there is one; only these were written to a destination.
    pub blocks: usize,
    /// The mismatch in the block after them; the operation stopped there.
    pub error: Option<DifStatus>,
}

/// Checks the tuples of `src`: whole blocks, each followed by its tuple.
///
/// `tags` are the tags expected in the first block; afterwards those of the block after the last good one.
///
/// # Panics
/// If `src` is not a whole number of blocks.
#[inline]
pub fn check(config: &DifConfig, src: &[u8], tags: &mut Tags) -> Checked {
    Kernels::best().dif_check(config, src, tags)
}

/// Copies the blocks of `src` to `dst` and appends a tuple to each. Returns the number of blocks.
///
/// `tags` are the tags of the first block; afterwards those of the block after the last.
///
/// # Panics
/// If `src` is not a whole number of blocks, or `dst` is not longer than it by a tuple for each block.
#[inline]
pub fn insert(config: &DifConfig, src: &[u8], dst: &mut [u8], tags: &mut Tags) -> usize {
    Kernels::best().dif_insert(config, src, dst, tags)
}

/// Writes the tuples of the blocks of `src` to `dst`, one after the other (DIX Generate of 2.x). Returns the number of
/// blocks.
///
/// `tags` are the tags of the first block; afterwards those of the block after the last.
///
/// # Panics
/// If `src` is not a whole number of blocks, or `dst` has not room for a tuple for each of them.
#[inline]
pub fn generate(config: &DifConfig, src: &[u8], dst: &mut [u8], tags: &mut Tags) -> usize {
    Kernels::best().dix_generate(config, src, dst, tags)
}

/// Checks the tuples of `src` as [`check`] does and copies the good blocks to `dst` without them.
///
/// # Panics
/// If `src` is not a whole number of blocks with tuples, or `dst` is not shorter than it by a tuple for each block.
#[inline]
pub fn strip(config: &DifConfig, src: &[u8], dst: &mut [u8], tags: &mut Tags) -> Checked {
    Kernels::best().dif_strip(config, src, dst, tags)
}

/// Checks the tuples of `src` as [`check`] does and copies the good blocks to `dst` with new tuples. Each field of a
/// tuple is computed or, if the destination flags say so, passed through.
///
/// `source` are the tags expected in the first block, `dest` the tags it gets.
///
/// # Panics
/// If `src` is not a whole number of blocks with tuples, or `dst` differs in length.
#[inline]
pub fn update(config: &DifConfig, src: &[u8], dst: &mut [u8], source: &mut Tags, dest: &mut Tags) -> Checked {
    Kernels::best().dif_update(config, src, dst, source, dest)
}

/// Returns the guard of `data`, of any length: CRC-16/T10-DIF, according to `flags`.
#[must_use]
#[inline]
pub fn guard(data: &[u8], flags: DifFlags) -> u16 {
    Kernels::best().dif_guard(data, flags)
}

impl Kernels {
    /// [`dif::guard`](guard) with these kernels.
    #[must_use]
    pub fn dif_guard(self, data: &[u8], flags: DifFlags) -> u16 {
        let of = |block| DifConfig { block, flags, source: SourceDifFlags::empty(), dest: DestDifFlags::empty() };
        match DifBlock::ALL.into_iter().find(|block| block.bytes() as usize == data.len()) {
            Some(block) => {
                let mut guard = [0];
                self.guards(block, of(block).guard_seed(), data, data.len(), &mut guard);
                of(block).guard(guard[0])
            }
            // Not a block's size, so speed does not matter.
            None => {
                let config = of(DifBlock::B512);
                config.guard(crate::arch::guard_of_any_length(config.guard_seed(), data))
            }
        }
    }

    /// [`dif::check`](check) with these kernels.
    ///
    /// # Panics
    /// As for [`check`].
    pub fn dif_check(self, config: &DifConfig, src: &[u8], tags: &mut Tags) -> Checked {
        self.check_groups(config, src, tags, false, |_, _, _| ())
    }

    /// [`dif::insert`](insert) with these kernels.
    ///
    /// # Panics
    /// As for [`insert`].
    pub fn dif_insert(self, config: &DifConfig, src: &[u8], dst: &mut [u8], tags: &mut Tags) -> usize {
        let (data, protected) = (config.data(), config.protected());
        let blocks = whole_blocks(src, data);
        assert_eq!(dst.len(), blocks * protected, "the destination has room for the blocks and their tuples");
        let mut guards = [0; GROUP];
        let group = config.group();
        for (src, dst) in src.chunks(group * data).zip(dst.chunks_mut(group * protected)) {
            let guards = &mut guards[..src.len() / data];
            self.guards_copy(config.block, config.guard_seed(), (src, data), (dst, protected), guards);
            for (block, remainder) in dst.chunks_exact_mut(protected).zip(guards) {
                Tuple::new(config.guard(*remainder), tags).write(block, data);
                tags.step_dest(config.dest);
            }
        }
        blocks
    }

    /// [`dif::generate`](generate) with these kernels.
    ///
    /// # Panics
    /// As for [`generate`].
    pub fn dix_generate(self, config: &DifConfig, src: &[u8], dst: &mut [u8], tags: &mut Tags) -> usize {
        let data = config.data();
        let blocks = whole_blocks(src, data);
        assert_eq!(dst.len(), blocks * TUPLE, "the destination has room for exactly the tuples");
        let mut guards = [0; GROUP];
        let group = config.group();
        for (src, dst) in src.chunks(group * data).zip(dst.chunks_mut(group * TUPLE)) {
            let guards = &mut guards[..src.len() / data];
            self.guards(config.block, config.guard_seed(), src, data, guards);
            for (tuple, remainder) in dst.chunks_exact_mut(TUPLE).zip(guards) {
                Tuple::new(config.guard(*remainder), tags).write(tuple, 0);
                tags.step_dest(config.dest);
            }
        }
        blocks
    }

    /// [`dif::strip`](strip) with these kernels.
    ///
    /// # Panics
    /// As for [`strip`].
    pub fn dif_strip(self, config: &DifConfig, src: &[u8], dst: &mut [u8], tags: &mut Tags) -> Checked {
        let (data, protected) = (config.data(), config.protected());
        let blocks = whole_blocks(src, protected);
        assert_eq!(dst.len(), blocks * data, "the destination has room for exactly the blocks");
        self.check_groups(config, src, tags, false, |first, good, _| {
            let dst = dst[first * data..].chunks_exact_mut(data);
            for (src, dst) in good.chunks_exact(protected).zip(dst) {
                dst.copy_from_slice(&src[..data]);
            }
        })
    }

    /// [`dif::update`](update) with these kernels.
    ///
    /// # Panics
    /// As for [`update`].
    pub fn dif_update(
        self,
        config: &DifConfig,
        src: &[u8],
        dst: &mut [u8],
        source: &mut Tags,
        dest: &mut Tags,
    ) -> Checked {
        let (data, protected) = (config.data(), config.protected());
        assert_eq!(dst.len(), src.len(), "source and destination have the same length");
        let fresh = !config.dest.contains(DestDifFlags::GUARD_PASS);
        self.check_groups(config, src, source, fresh, |first, good, guards| {
            let dst = &mut dst[first * protected..][..good.len()];
            dst.copy_from_slice(good);
            for (block, remainder) in dst.chunks_exact_mut(protected).zip(guards) {
                let old = Tuple::read(block, data);
                let mut new = Tuple::new(config.guard(*remainder), dest);
                if config.dest.contains(DestDifFlags::GUARD_PASS) {
                    new.guard = old.guard;
                }
                if config.dest.contains(DestDifFlags::APP_TAG_PASS) {
                    new.app_tag = old.app_tag;
                }
                if config.dest.contains(DestDifFlags::REF_TAG_PASS) {
                    new.ref_tag = old.ref_tag;
                }
                new.write(block, data);
                dest.step_dest(config.dest);
            }
        })
    }

    /// Checks group after group, and passes the good blocks of each to `each`: the number of blocks before them, their
    /// bytes with tuples, their remainders. `each` may use the remainders only with `fresh`.
    fn check_groups(
        self,
        config: &DifConfig,
        src: &[u8],
        tags: &mut Tags,
        fresh: bool,
        mut each: impl FnMut(usize, &[u8], &[u16]),
    ) -> Checked {
        let compute = fresh || !config.source.contains(SourceDifFlags::NO_GUARD_CHECK);
        let (data, protected) = (config.data(), config.protected());
        let blocks = whole_blocks(src, protected);
        let mut remainders = [0; GROUP];
        let mut done = 0;
        for src in src.chunks(config.group() * protected) {
            let remainders = &mut remainders[..src.len() / protected];
            if compute {
                self.guards(config.block, config.guard_seed(), src, protected, remainders);
            }
            let mut good = 0;
            let mut error = None;
            for (block, remainder) in src.chunks_exact(protected).zip(&*remainders) {
                let status = Tuple::read(block, data).check(config.source, config.guard(*remainder), tags);
                if !status.is_empty() {
                    error = Some(status);
                    break;
                }
                tags.step_source(config.source);
                good += 1;
            }
            each(done, &src[..good * protected], &remainders[..good]);
            done += good;
            if error.is_some() {
                return Checked { blocks: done, error };
            }
        }
        Checked { blocks, error: None }
    }
}

/// Returns the number of blocks of `size` bytes in `src`.
fn whole_blocks(src: &[u8], size: usize) -> usize {
    assert!(src.len().is_multiple_of(size), "the source is a whole number of blocks");
    src.len() / size
}
