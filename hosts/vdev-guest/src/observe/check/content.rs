//! Checksums of memory ranges: a change is detected and located.

use telpher_mem::{Fault, Space};

/// Number of parts with separate checksums per range.
const PARTS: usize = 8;
/// The length of a part is a multiple of this many bytes. Source: chosen; a cache line.
const GRAIN: u64 = 64;
/// Bytes read at once, a multiple of the grain. Small, since the program's stack may be small.
const CHUNK: usize = 2048;

/// Checksum of a part with unknown contents: one of its pages was absent, or the part does not exist.
const UNKNOWN: u64 = 0;
/// The value of such a part while the checksums are computed.
const ABSENT: u64 = u64::MAX;

/// The program's memory, read without populating pages.
pub(crate) trait Memory: Send + Sync + std::fmt::Debug {
    /// Reads pages that are present.
    ///
    /// # Errors
    /// If a page is absent.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault>;
    /// True if the address is mapped, whether its page is present or not.
    fn is_mapped(&self, address: u64) -> bool;
}

/// The checksums of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Content {
    sums: [u64; PARTS],
    /// Length of the range in bytes.
    len: u64,
}

/// The change of a range since its checksums were computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// No change was detected.
    None,
    /// Some of these bytes changed: address and length.
    Written(u64, u64),
    /// The address is no longer mapped.
    Unmapped(u64),
}

impl Content {
    /// Computes the checksums of a range.
    pub(super) fn of(memory: &dyn Memory, address: u64, len: u64) -> Self {
        Content { sums: sums_of(memory, address, len, |_, _| ()), len }
    }

    /// Compares the range with its checksums.
    pub(super) fn change(&self, memory: &dyn Memory, address: u64) -> Change {
        let len = self.len;
        let mut absent = [None; PARTS];
        let now = sums_of(memory, address, len, |part, fault| absent[part] = absent[part].or(Some(fault)));
        let part_len = part_len(len);
        for (part, (before, now)) in self.sums.iter().zip(&now).enumerate() {
            match absent[part] {
                _ if *before == UNKNOWN || before == now => {}
                None => {
                    let at = part as u64 * part_len;
                    return Change::Written(address.wrapping_add(at), part_len.min(len - at));
                }
                Some(fault) if !memory.is_mapped(fault) => return Change::Unmapped(fault),
                // The page was freed, or only swapped out: unknown.
                Some(_) => {}
            }
        }
        Change::None
    }
}

/// Length of each part except the last.
fn part_len(len: u64) -> u64 {
    len.div_ceil(PARTS as u64).next_multiple_of(GRAIN)
}

/// The checksums of a range's parts; `absent` is called for parts with an absent page, with its address.
fn sums_of(memory: &dyn Memory, address: u64, len: u64, mut absent: impl FnMut(usize, u64)) -> [u64; PARTS] {
    let part_len = part_len(len);
    let mut sums = [UNKNOWN; PARTS];
    let mut bytes = [0; CHUNK];
    let mut done = 0;
    while done < len {
        let n = index((len - done).min(CHUNK as u64));
        bytes[n..].fill(0);
        match memory.read(address.wrapping_add(done), &mut bytes[..n]) {
            Ok(()) => {
                let grains = bytes[..n.next_multiple_of(8)].chunks(index(GRAIN));
                for (grain, at) in grains.zip((done..).step_by(index(GRAIN))) {
                    let sum = &mut sums[index(at / part_len)];
                    if *sum != ABSENT {
                        *sum = fold(*sum, grain);
                    }
                }
            }
            Err(fault) => {
                let parts = index(done / part_len)..=index((done + n as u64 - 1) / part_len);
                sums[parts.clone()].fill(ABSENT);
                parts.for_each(|part| absent(part, fault.address));
            }
        }
        done += n as u64;
    }
    sums.map(|sum| if sum == ABSENT { UNKNOWN } else { sum })
}

/// Adds bytes to a checksum: multiply and rotate, after FxHash. It detects every single change, which is enough here.
fn fold(sum: u64, bytes: &[u8]) -> u64 {
    let sum = bytes.as_chunks::<8>().0.iter().fold(sum, |sum, word| {
        (sum.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_add(1).wrapping_mul(0x517c_c1b7_2722_0a95)
    });
    // Two values are reserved.
    if sum == UNKNOWN || sum == ABSENT { 1 } else { sum }
}

/// Converts an offset within a range's buffer.
fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The memory of this process.
#[derive(Debug)]
pub(crate) struct Own {
    /// A space in which absent pages fault.
    strict: Box<dyn Space>,
}

impl Own {
    pub(crate) fn new(strict: Box<dyn Space>) -> Self {
        Own { strict }
    }
}

impl Memory for Own {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.strict.read(address, into)
    }

    fn is_mapped(&self, address: u64) -> bool {
        super::mapped::is_mapped(address)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use telpher_mem::{MockSpace, Protection};

    impl Memory for MockSpace {
        fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
            Space::read(self, address, into)
        }
        fn is_mapped(&self, address: u64) -> bool {
            // Absent pages can be populated on request, unmapped ones cannot.
            Space::page_request(self, address, false)
        }
    }

    #[test]
    fn a_changed_byte_is_located_in_its_part() {
        let space = MockSpace::new();
        space.map(0x1_0000, 2, Protection::ReadWrite);
        for len in [1, 7, 64, 65, 513, 4000] {
            let content = Content::of(&space, 0x1_0003, len);
            assert_eq!(content.change(&space, 0x1_0003), Change::None);
            for at in (0..len).step_by(13).chain([len - 1]) {
                space.poke(0x1_0003 + at, &[1]);
                let Change::Written(address, changed) = content.change(&space, 0x1_0003) else {
                    panic!("byte {at} of {len} is not noticed");
                };
                assert!((address..address + changed).contains(&(0x1_0003 + at)));
                assert!(changed <= len.div_ceil(8).next_multiple_of(64));
                space.poke(0x1_0003 + at, &[0]);
            }
        }
    }

    #[test]
    fn neighbouring_bytes_are_ignored() {
        let space = MockSpace::new();
        space.map(0x1_0000, 1, Protection::ReadWrite);
        let content = Content::of(&space, 0x1_0040, 64);
        space.poke(0x1_003f, &[1]);
        space.poke(0x1_0080, &[1]);
        assert_eq!(content.change(&space, 0x1_0040), Change::None);
    }

    #[test]
    fn absent_pages_are_not_compared_and_unmapped_ones_are_reported() {
        let space = MockSpace::new();
        space.map(0x1_0000, 16, Protection::ReadWrite);
        space.set_present(0x1_0000, false);
        let content = Content::of(&space, 0x1_0000, 0x1_0000);
        space.set_present(0x1_0000, true);
        space.poke(0x1_0000, &[1]);
        assert_eq!(content.change(&space, 0x1_0000), Change::None);
        space.unmap(0x1_8000);
        assert_eq!(content.change(&space, 0x1_0000), Change::Unmapped(0x1_8000));
    }
}
