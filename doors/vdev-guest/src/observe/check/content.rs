//! What memory holds, remembered as a few sums, so that a change is noticed and told where.

use telpher_mem::{Fault, Space};

/// Parts a range is summed in.
const PARTS: usize = 8;
/// A part is a multiple of this many bytes. Source: chosen; a line of the cache.
const GRAIN: u64 = 64;
/// Bytes read at once. Small, since the program's stack may be.
const CHUNK: usize = 1024;

/// A part whose contents are not known: a page of it was absent.
const UNKNOWN: u64 = 0;

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
pub(super) struct Content([u64; PARTS]);

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
        let mut sums = [UNKNOWN; PARTS];
        for (sum, (at, len)) in sums.iter_mut().zip(parts(address, len)) {
            *sum = sum_of(memory, at, len).unwrap_or(UNKNOWN);
        }
        Content(sums)
    }

    /// Compares the range with what it was.
    pub(super) fn change(&self, memory: &dyn Memory, address: u64, len: u64) -> Change {
        for (before, (at, len)) in self.0.iter().zip(parts(address, len)) {
            if *before == UNKNOWN {
                continue;
            }
            match sum_of(memory, at, len) {
                Ok(now) if now == *before => {}
                Ok(_) => return Change::Written(at, len),
                Err(fault) if !memory.is_mapped(fault.address) => return Change::Unmapped(fault.address),
                // Given back, or only swapped out: nobody can tell.
                Err(_) => {}
            }
        }
        Change::None
    }
}

/// The parts of a range: address and length.
fn parts(address: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let part = len.div_ceil(PARTS as u64).next_multiple_of(GRAIN);
    let starts = (0..PARTS as u64).map(move |n| n * part).take_while(move |at| *at < len);
    starts.map(move |at| (address.wrapping_add(at), part.min(len - at)))
}

fn sum_of(memory: &dyn Memory, address: u64, len: u64) -> Result<u64, Fault> {
    let mut bytes = [0; CHUNK];
    let (mut sum, mut done) = (0x243f_6a88_85a3_08d3_u64, 0);
    while done < len {
        // Cannot lose bits: at most a chunk.
        let n = usize::try_from(len - done).map_or(CHUNK, |left| left.min(CHUNK));
        memory.read(address.wrapping_add(done), &mut bytes[..n])?;
        bytes[n..].fill(0);
        for word in bytes[..n.next_multiple_of(8)].as_chunks::<8>().0 {
            // Multiply and rotate, after FxHash: notices any single change, which is all that is asked of it.
            sum = (sum.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
        done += n as u64;
    }
    Ok(if sum == UNKNOWN { 1 } else { sum })
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
            assert_eq!(content.change(&space, 0x1_0003, len), Change::None);
            for at in (0..len).step_by(13).chain([len - 1]) {
                space.poke(0x1_0003 + at, &[1]);
                let Change::Written(address, changed) = content.change(&space, 0x1_0003, len) else {
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
        assert_eq!(content.change(&space, 0x1_0040, 64), Change::None);
    }

    #[test]
    fn what_was_absent_is_not_compared_and_what_is_gone_is_told() {
        let space = MockSpace::new();
        space.map(0x1_0000, 16, Protection::ReadWrite);
        space.set_present(0x1_0000, false);
        let content = Content::of(&space, 0x1_0000, 0x1_0000);
        space.set_present(0x1_0000, true);
        space.poke(0x1_0000, &[1]);
        assert_eq!(content.change(&space, 0x1_0000, 0x1_0000), Change::None);
        space.unmap(0x1_8000);
        assert_eq!(content.change(&space, 0x1_0000, 0x1_0000), Change::Unmapped(0x1_8000));
    }
}
