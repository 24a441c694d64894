//! What memory holds, remembered as a few sums, so that a change is noticed and told where.

use telpher_mem::{Fault, Space};

/// Parts a range is summed in.
const PARTS: usize = 8;
/// A part is a multiple of this many bytes. Source: chosen; a line of the cache.
const GRAIN: u64 = 64;
/// Bytes read at once, a multiple of the grain. Small, since the program's stack may be.
const CHUNK: usize = 2048;

/// Sum of a part whose contents are not known: a page of it was absent, or there is no such part.
const UNKNOWN: u64 = 0;
/// The same while it is being summed.
const ABSENT: u64 = u64::MAX;

/// The program's memory, looked at without bringing pages in.
pub(crate) trait Memory: Send + Sync + std::fmt::Debug {
    /// Reads what is present.
    ///
    /// # Errors
    /// A page is absent.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault>;
    /// True if there is a mapping at the address, present or not.
    fn is_mapped(&self, address: u64) -> bool;
}

/// The sums of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Content {
    sums: [u64; PARTS],
    /// Bytes that were summed.
    len: u64,
}

/// What became of a range since it was summed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Nothing, as far as is known.
    None,
    /// These bytes changed, or some of them: address and length.
    Written(u64, u64),
    /// There is no memory here any more.
    Unmapped(u64),
}

impl Content {
    /// Sums a range.
    pub(super) fn of(memory: &dyn Memory, address: u64, len: u64) -> Self {
        Content { sums: sums_of(memory, address, len, |_, _| ()), len }
    }

    /// Compares the range with what it was.
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
                // Given back, or only swapped out: nobody can tell.
                Some(_) => {}
            }
        }
        Change::None
    }
}

/// Bytes of each part but the last.
fn part_len(len: u64) -> u64 {
    len.div_ceil(PARTS as u64).next_multiple_of(GRAIN)
}

/// The sums of a range's parts; `absent` hears of parts of which a page is not there, and where.
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

/// Adds bytes to a sum: multiply and rotate, after FxHash. It notices any single change, which is all that is asked of it.
fn fold(sum: u64, bytes: &[u8]) -> u64 {
    let sum = bytes.as_chunks::<8>().0.iter().fold(sum, |sum, word| {
        (sum.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_add(1).wrapping_mul(0x517c_c1b7_2722_0a95)
    });
    // Two values have a meaning of their own.
    if sum == UNKNOWN || sum == ABSENT { 1 } else { sum }
}

/// A number below the length of a range's buffer.
fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// This process's memory.
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
            // Absent pages are granted when they are asked for; what is not mapped never is.
            Space::page_request(self, address, false)
        }
    }

    #[test]
    fn any_byte_that_changes_is_found_in_its_part() {
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
    fn neighbours_do_not_count() {
        let space = MockSpace::new();
        space.map(0x1_0000, 1, Protection::ReadWrite);
        let content = Content::of(&space, 0x1_0040, 64);
        space.poke(0x1_003f, &[1]);
        space.poke(0x1_0080, &[1]);
        assert_eq!(content.change(&space, 0x1_0040), Change::None);
    }

    #[test]
    fn what_was_absent_is_not_compared_and_what_is_gone_is_told() {
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
