//! Moves pages with the bare kernel calls and a copy: a scan for presence, UFFDIO_MOVE out, the copy, UFFDIO_MOVE in.
//! No mechanism with these calls needs less. `telpher bench tier` compares a heap with it.

use std::io;
use std::time::{Duration, Instant};
use telpher_mem::{PageSize, RawPages};
use telpher_mover::Mover;
use telpher_os::{Scan, Userfault, UserfaultFeatures};

/// The memory, and two spare ranges: one has pages, the other is empty.
pub(crate) struct Called {
    userfault: Userfault,
    scan: Scan,
    mover: Mover,
    live: RawPages,
    spares: [RawPages; 2],
    /// Bytes moved together, and the offset of the next move.
    unit: u64,
    at: u64,
}

impl Called {
    /// Creates `len` bytes of memory in pages of the given size, moved `unit` bytes at a time.
    pub(crate) fn new(len: usize, unit: usize, pages: PageSize) -> io::Result<Called> {
        let tract = |len| RawPages::new(len, pages).map_err(io::Error::other);
        let (live, spares) = (tract(len)?, [tract(unit)?, tract(unit)?]);
        for tract in [&live, &spares[1]] {
            tract.populate(tract.range()).map_err(io::Error::other)?;
        }
        let userfault = Userfault::open(UserfaultFeatures::MOVE).map_err(io::Error::other)?;
        for tract in [&live, &spares[0], &spares[1]] {
            // SAFETY: pages are missing only while `go` runs, which puts them back; nothing else accesses them
            // meanwhile, or the empty range.
            unsafe { userfault.register(tract.range())? };
        }
        Ok(Called { userfault, scan: Scan::open()?, mover: Mover::cpu(), live, spares, unit: unit as u64, at: 0 })
    }

    /// Bytes moved together.
    pub(crate) fn unit(&self) -> u64 {
        self.unit
    }

    /// Moves the next pages. Returns the duration of the calls: the scan, out, and in.
    pub(crate) fn go(&mut self) -> io::Result<[Duration; 3]> {
        let start = self.live.start() + self.at;
        self.at = (self.at + self.unit) % (self.live.range().end - self.live.start());
        let [empty, full] = self.spares.each_ref().map(RawPages::start);
        let started = Instant::now();
        let mut present = 0;
        self.scan.present(start..start + self.unit, |run| present += run.pages())?;
        let looked = started.elapsed();
        if present * 4096 != self.unit {
            return Err(io::Error::other(format!("only {present} small pages are present")));
        }
        let started = Instant::now();
        // SAFETY: our own ranges, to which there are no references; the target is empty.
        let out = unsafe { self.userfault.take_pages(empty, start, self.unit) };
        let went = started.elapsed();
        out.error.map_or(Ok(()), Err)?;
        let len = usize::try_from(self.unit).expect("a part of a range that fits usize");
        let [from, to] = [empty, full].map(|start| usize::try_from(start).expect("an address"));
        // SAFETY: both ranges have their pages now, and nothing else uses them; the slices end before the next call.
        let (from, to) = unsafe {
            let to = std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(to), len);
            (std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(from), len), to)
        };
        self.mover.copy_slices(from, to).map_err(io::Error::other)?;
        let started = Instant::now();
        // SAFETY: as above, in the other direction; the bytes are the original ones.
        let back = unsafe { self.userfault.take_pages(start, full, self.unit) };
        let came = started.elapsed();
        back.error.map_or(Ok(()), Err)?;
        self.spares.swap(0, 1);
        Ok([looked, went, came])
    }

    /// Returns all of the memory.
    #[cfg(test)]
    fn words(&mut self) -> &mut [u64] {
        let words = usize::try_from((self.live.range().end - self.live.start()) / 8).expect("a length that fits usize");
        let start = usize::try_from(self.live.start()).expect("an address");
        // SAFETY: our own memory, completely present, borrowed as `self` is.
        unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(start), words) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_keep_their_words() {
        for (unit, pages) in [(16 * 4096, PageSize::Small), (2 << 20, PageSize::Huge)] {
            let Ok(mut called) = Called::new(4 << 20, unit, pages) else { return };
            called.words().iter_mut().zip(1..).for_each(|(word, number)| *word = number);
            for _ in 0..2 * (4 << 20) / unit + 3 {
                called.go().unwrap();
            }
            assert!(called.words().iter().zip(1..).all(|(word, number)| *word == number));
        }
    }
}
