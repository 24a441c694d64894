//! Blocks that say where they belong, when they were written, and whether they are whole.
//!
//! ```text
//! magic 8 | run 8 | block 8 | generation 8 | CRC32C of the block without this field 4 | 4 | words that differ by block
//! ```

use crate::digest::{digest, digest_after};

/// What the first bytes of a stamped block are.
const MAGIC: [u8; 8] = *b"telphblk";
/// Where the checksum is.
const CHECKSUM: usize = 32;
/// Bytes before the words.
const HEAD: usize = 40;

/// What a block says about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The number of the run that wrote the block.
    pub run: u64,
    /// The block's number.
    pub block: u64,
    /// Counts the writes of a run.
    pub generation: u64,
}

/// What is wrong with a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StampError {
    /// The block was written in this run, and has no stamp.
    #[error("it has no stamp, but this run has written it")]
    Missing,
    /// The checksum does not match.
    #[error("its checksum does not match its bytes")]
    Checksum,
    /// It is another block, or an older one.
    #[error(
        "it says block {} of run {:x}, generation {}; expected block {}, run {:x}, generation {}",
        found.block, found.run, found.generation, expected.block, expected.run, expected.generation
    )]
    Other {
        /// What the block says.
        found: Stamp,
        /// What was written last.
        expected: Stamp,
    },
    /// The block says that it is another one.
    #[error("it says that it is block {found}")]
    Misplaced {
        /// What the block says.
        found: u64,
    },
}

fn checksum(block: &[u8]) -> u32 {
    digest_after(digest(&block[..CHECKSUM]), &block[CHECKSUM + 4..])
}

fn number(block: &[u8], offset: usize) -> u64 {
    block[offset..offset + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Stamp {
    /// Fills a block, which has at least 512 bytes.
    pub fn write(&self, block: &mut [u8]) {
        block[..8].copy_from_slice(&MAGIC);
        for (index, value) in [self.run, self.block, self.generation].into_iter().enumerate() {
            block[8 + index * 8..16 + index * 8].copy_from_slice(&value.to_le_bytes());
        }
        block[CHECKSUM..HEAD].fill(0);
        let mut word = self.block.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.generation.rotate_left(32) ^ self.run;
        for chunk in block[HEAD..].chunks_mut(8) {
            word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
        let checksum = checksum(block);
        block[CHECKSUM..CHECKSUM + 4].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Reads a block's stamp; `None` for a block without one.
    ///
    /// # Errors
    /// [`StampError::Checksum`] if the block has a stamp and is damaged.
    pub fn read(block: &[u8]) -> Result<Option<Stamp>, StampError> {
        if block.len() < HEAD || block[..8] != MAGIC {
            return Ok(None);
        }
        if block[CHECKSUM..CHECKSUM + 4] != checksum(block).to_le_bytes() {
            return Err(StampError::Checksum);
        }
        Ok(Some(Stamp { run: number(block, 8), block: number(block, 16), generation: number(block, 24) }))
    }

    /// Checks that a block has exactly this stamp.
    ///
    /// # Errors
    /// [`StampError`] if it does not.
    pub fn check(&self, block: &[u8]) -> Result<(), StampError> {
        match Stamp::read(block)? {
            Some(found) if found == *self => Ok(()),
            Some(found) => Err(StampError::Other { found, expected: *self }),
            None => Err(StampError::Missing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { run: 7, block: 1 << 33, generation: 3 };

    #[test]
    fn every_damaged_byte_is_found() {
        let mut block = vec![0; 512];
        STAMP.write(&mut block);
        assert_eq!((Stamp::read(&block), STAMP.check(&block)), (Ok(Some(STAMP)), Ok(())));
        for at in 0..block.len() {
            block[at] ^= 0x10;
            assert!(STAMP.check(&block).is_err(), "byte {at}");
            block[at] ^= 0x10;
        }
    }

    #[test]
    fn an_older_or_another_block_is_told_from_the_expected_one() {
        let mut block = vec![0; 4096];
        for found in [Stamp { generation: 2, ..STAMP }, Stamp { block: 0, ..STAMP }, Stamp { run: 8, ..STAMP }] {
            found.write(&mut block);
            assert_eq!(STAMP.check(&block), Err(StampError::Other { found, expected: STAMP }));
        }
        assert_eq!(STAMP.check(&vec![0; 4096]), Err(StampError::Missing));
        assert_eq!(Stamp::read(&vec![0; 4096]), Ok(None));
    }
}
