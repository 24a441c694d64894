//! What a namespace's file contains.
//!
//! | bytes from | what |
//! |---|---|
//! | 0 and 512 | two copies of the header |
//! | 4096 | the block map: a little-endian word for each logical block, up to the largest capacity |
//! | the next multiple of 2 MiB | the data: physical blocks |
//!
//! A header has 16 little-endian words: magic (2), version, bytes of a block, capacity (2), largest capacity (2),
//! physical blocks (2), sequence number (2), zeroes (3), and the CRC32C of the words before. The valid copy with the
//! higher sequence number counts. A server that ends while it writes one copy leaves the other.

use super::geometry::{Geometry, LEAST_RESERVE, MAP_BLOCK, MAP_WORD, to_usize};
use crate::digest::digest;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use telpher_mem::{PrivateFile, SharedError, SharedWords};

/// The first bytes of a namespace's file.
const MAGIC: [u32; 2] = [u32::from_le_bytes(*b"telp"), u32::from_le_bytes(*b"NVMe")];
/// The version of this layout.
const VERSION: u32 = 1;
/// Bytes of a block, as the header has it.
const BLOCK_BYTES: u32 = 4096;
const _: () = assert!(BLOCK_BYTES as usize == MAP_BLOCK);
/// Words of a header.
const HEADER_WORDS: usize = 16;
/// The first words of the copies.
const COPIES: [usize; 2] = [0, 128];

/// Why a file's contents are refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// No header.
    #[error("it does not begin with the magic number of a namespace")]
    Foreign,
    /// A header of another layout.
    #[error("its layout has version {version}, and this program knows version {VERSION}")]
    Version {
        /// The version.
        version: u32,
    },
    /// Both copies of the header are damaged.
    #[error("the checksums of both copies of its header do not match")]
    Checksum,
    /// A field has a value that no namespace has.
    #[error("its header says that {name} is {value}")]
    Field {
        /// The field.
        name: &'static str,
        /// Its value.
        value: u64,
    },
    /// The file is shorter than the header says.
    #[error("it has {has} bytes, and its header says {needed}")]
    Short {
        /// Bytes of the file.
        has: u64,
        /// Bytes that it must have.
        needed: u64,
    },
    /// An entry of the block map is impossible.
    #[error("its map has block {block} at place {physical}, which does not exist or is used twice")]
    Entry {
        /// The logical block.
        block: u64,
        /// The physical block.
        physical: u32,
    },
    /// The file became shorter while it was read.
    #[error("another program truncated it while it was opened")]
    Truncated,
}

/// A header's words, with its sequence number.
type Words = [u32; HEADER_WORDS];

fn encode(geometry: &Geometry, sequence: u64) -> Words {
    let halves = |value: u64| {
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
    };
    let mut words = [0; HEADER_WORDS];
    words[0..2].copy_from_slice(&MAGIC);
    words[2..4].copy_from_slice(&[VERSION, BLOCK_BYTES]);
    words[4..6].copy_from_slice(&halves(geometry.capacity));
    words[6..8].copy_from_slice(&halves(geometry.most_capacity));
    words[8..10].copy_from_slice(&halves(geometry.physical));
    words[10..12].copy_from_slice(&halves(sequence));
    words[HEADER_WORDS - 1] = checksum(&words);
    words
}

/// The bytes of a header, for tests.
#[cfg(test)]
pub(super) fn header_bytes(geometry: &Geometry, sequence: u64) -> Vec<u8> {
    encode(geometry, sequence).iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn checksum(words: &Words) -> u32 {
    let bytes: Vec<u8> = words[..HEADER_WORDS - 1].iter().flat_map(|word| word.to_le_bytes()).collect();
    digest(&bytes)
}

fn decode(words: &Words) -> Result<(Geometry, u64), HeaderError> {
    let long = |index: usize| u64::from(words[index]) | u64::from(words[index + 1]) << 32;
    if words[0..2] != MAGIC {
        return Err(HeaderError::Foreign);
    }
    if words[2] != VERSION {
        return Err(HeaderError::Version { version: words[2] });
    }
    if words[HEADER_WORDS - 1] != checksum(words) {
        return Err(HeaderError::Checksum);
    }
    if words[3] != BLOCK_BYTES {
        return Err(HeaderError::Field { name: "the size of a block", value: words[3].into() });
    }
    Ok((Geometry { capacity: long(4), most_capacity: long(6), physical: long(8) }, long(10)))
}

/// Checks sizes that were read from a file of `file_bytes`.
fn check(geometry: &Geometry, file_bytes: u64) -> Result<(), HeaderError> {
    let least = geometry.entries().saturating_add(LEAST_RESERVE / MAP_BLOCK as u64);
    // A block number and an entry of the map fit 31 bits.
    if geometry.physical < least || geometry.physical >= 1 << 31 {
        return Err(HeaderError::Field { name: "the number of physical blocks", value: geometry.physical });
    }
    if geometry.capacity > geometry.most_capacity {
        return Err(HeaderError::Field { name: "the capacity", value: geometry.capacity });
    }
    let needed = geometry.file_bytes();
    if needed > file_bytes {
        return Err(HeaderError::Short { has: file_bytes, needed });
    }
    Ok(())
}

/// The header and the block map of a file.
#[derive(Debug)]
pub(super) struct MapFile {
    words: SharedWords,
    geometry: Geometry,
    sequence: u64,
}

impl MapFile {
    /// Writes the header of an empty namespace to a new file of zeroes.
    pub(super) fn format(file: &Arc<PrivateFile>, geometry: &Geometry) -> Result<MapFile, SharedError> {
        let words = SharedWords::map(file.as_fd(), MAP_WORD + to_usize(geometry.entries()))?;
        let mut map = MapFile { words, geometry: *geometry, sequence: 0 };
        map.set_capacity(geometry.capacity);
        Ok(map)
    }

    /// Finds the header of a file, and checks it.
    pub(super) fn load(file: &Arc<PrivateFile>) -> Result<Result<(MapFile, Geometry), HeaderError>, SharedError> {
        if file.len() < (MAP_WORD * 4) as u64 {
            return Ok(Err(HeaderError::Foreign));
        }
        let header = SharedWords::map(file.as_fd(), MAP_WORD)?;
        let copies = COPIES.map(|first| {
            let mut words = [0; HEADER_WORDS];
            for (word, shared) in words.iter_mut().zip(&header.words()[first..]) {
                *word = u32::from_le(shared.load(Ordering::Relaxed));
            }
            decode(&words)
        });
        if !header.is_whole() {
            return Ok(Err(HeaderError::Truncated));
        }
        let found = match copies {
            [Ok(first), Ok(second)] => Ok(if second.1 > first.1 { second } else { first }),
            [Ok(found), Err(_)] | [Err(_), Ok(found)] => Ok(found),
            [Err(HeaderError::Foreign), Err(error)] | [Err(error), Err(_)] => Err(error),
        };
        let checked = found.and_then(|(geometry, sequence)| {
            check(&geometry, file.len())?;
            Ok((geometry, sequence))
        });
        let (geometry, sequence) = match checked {
            Ok(found) => found,
            Err(error) => return Ok(Err(error)),
        };
        let words = SharedWords::map(file.as_fd(), MAP_WORD + to_usize(geometry.entries()))?;
        Ok(Ok((MapFile { words, geometry, sequence }, geometry)))
    }

    /// The entry of a logical block.
    pub(super) fn entry(&self, index: usize) -> u32 {
        u32::from_le(self.words.words()[MAP_WORD + index].load(Ordering::Relaxed))
    }

    /// Returns whether the file has lost no page of the header and the map, as far as they were accessed.
    pub(super) fn is_whole(&self) -> bool {
        self.words.is_whole()
    }

    /// Changes the entry of a logical block.
    pub(super) fn set_entry(&self, index: usize, entry: u32) {
        // Release: the data of the block is in the file before the entry.
        self.words.words()[MAP_WORD + index].store(entry.to_le(), Ordering::Release);
    }

    /// Writes both copies of the header, one after the other.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        self.geometry.capacity = capacity;
        for first in COPIES {
            self.sequence += 1;
            let words = encode(&self.geometry, self.sequence);
            for (shared, word) in self.words.words()[first..].iter().zip(words) {
                shared.store(word.to_le(), Ordering::Release);
            }
        }
    }
}
