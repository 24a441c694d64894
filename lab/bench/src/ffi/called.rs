//! Memory whose pages change their place by the kernel's calls and a copy alone: a look whether they are there, out, the copy, and in. Nobody moves them
//! by these calls with less. What `telpher bench tier` shows beside a heap.

use std::io;
use std::time::{Duration, Instant};
use telpher_mem::{PageSize, Tract};
use telpher_mover::Mover;
use telpher_os::{Scan, Userfault, UserfaultFeatures};

/// The memory, and two places: one has pages, and one is empty.
pub(crate) struct Called {
    userfault: Userfault,
    scan: Scan,
    mover: Mover,
    live: Tract,
    places: [Tract; 2],
    /// Bytes that go together, and where those begin that are next.
    unit: u64,
    at: u64,
}

impl Called {
    /// So many bytes, of which so many go together: whole pages of a size.
    pub(crate) fn new(len: usize, unit: usize, pages: PageSize) -> io::Result<Called> {
        let tract = |len| Tract::new(len, pages).map_err(io::Error::other);
        let (live, places) = (tract(len)?, [tract(unit)?, tract(unit)?]);
        for tract in [&live, &places[1]] {
            tract.populate(tract.range()).map_err(io::Error::other)?;
        }
        let userfault = Userfault::open(UserfaultFeatures::MOVE).map_err(io::Error::other)?;
        for tract in [&live, &places[0], &places[1]] {
            // SAFETY: what is missing is so while `go` has it, which brings it back; nobody touches it meanwhile, or anything that was empty before.
            unsafe { userfault.register(tract.range())? };
        }
        Ok(Called { userfault, scan: Scan::open()?, mover: Mover::cpu(), live, places, unit: unit as u64, at: 0 })
    }

    /// Bytes that go together.
    pub(crate) fn unit(&self) -> u64 {
        self.unit
    }

    /// Moves the next pages. Returns how long the calls have taken: the look, out, and in.
    pub(crate) fn go(&mut self) -> io::Result<[Duration; 3]> {
        let start = self.live.start() + self.at;
        self.at = (self.at + self.unit) % (self.live.range().end - self.live.start());
        let [empty, full] = self.places.each_ref().map(Tract::start);
        let begun = Instant::now();
        let mut there = 0;
        self.scan.present(start..start + self.unit, |run| there += run.pages())?;
        let looked = begun.elapsed();
        if there * 4096 != self.unit {
            return Err(io::Error::other(format!("{there} small pages are there")));
        }
        let begun = Instant::now();
        // SAFETY: memory and places of our own that nobody has a reference to; the place is empty.
        let out = unsafe { self.userfault.take_pages(empty, start, self.unit) };
        let went = begun.elapsed();
        out.error.map_or(Ok(()), Err)?;
        let len = usize::try_from(self.unit).expect("a part of it");
        let [from, to] = [empty, full].map(|place| usize::try_from(place).expect("an address"));
        // SAFETY: both places have their pages now, and nobody else has them; the slices end before the next call.
        let (from, to) = unsafe {
            let to = std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(to), len);
            (std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(from), len), to)
        };
        self.mover.copy_slices(from, to).map_err(io::Error::other)?;
        let begun = Instant::now();
        // SAFETY: as above, the other way; the bytes are those that were there.
        let back = unsafe { self.userfault.take_pages(start, full, self.unit) };
        let came = begun.elapsed();
        back.error.map_or(Ok(()), Err)?;
        self.places.swap(0, 1);
        Ok([looked, went, came])
    }

    /// All of it.
    #[cfg(test)]
    fn words(&mut self) -> &mut [u64] {
        let words = usize::try_from((self.live.range().end - self.live.start()) / 8).expect("our own");
        let start = usize::try_from(self.live.start()).expect("an address");
        // SAFETY: our own memory, all of which is there, borrowed as `self` is.
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
