//! Injected page faults: memory in which some present pages appear absent to a descriptor.

use super::random::RandomStream;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};
use std::fmt;
use std::ops::Range;
use telpher_mem::{Fault, PAGE_BYTES, Space, WriteHint};

/// Pages remembered as present: those of the current operands. Source: derived; three operands with two pages each, and
/// pages that page requests have brought in.
const KNOWN: usize = 8;

/// No page has this number.
const NONE: u64 = u64::MAX;

/// A memory as one descriptor sees it: some of its pages are absent until a page request.
///
/// Whether a page is absent is decided when the descriptor first accesses it. A page that a page request has brought in
/// stays present for this descriptor.
pub(super) struct FaultySpace<'a> {
    inner: &'a dyn Space,
    rate: u32,
    /// Page numbers that are always absent.
    absent: Range<u64>,
    random: RandomStream,
    /// Number of pages decided so far.
    drawn: AtomicU64,
    known: [AtomicU64; KNOWN],
    next: AtomicUsize,
    tell: &'a (dyn Fn(u64) + Sync),
}

impl fmt::Debug for FaultySpace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultySpace").field("inner", &self.inner).field("rate", &self.rate).finish_non_exhaustive()
    }
}

/// An operand: its address, and whether it is written.
type Operand = (u64, bool);

// Relaxed throughout: one thread executes a descriptor; the atomics only make this safe without that assumption.
impl<'a> FaultySpace<'a> {
    pub(super) fn new(
        inner: &'a dyn Space,
        rate: u32,
        absent: Range<u64>,
        random: RandomStream,
        tell: &'a (dyn Fn(u64) + Sync),
    ) -> Self {
        let known = [const { AtomicU64::new(NONE) }; KNOWN];
        FaultySpace { inner, rate, absent, random, drawn: AtomicU64::new(0), known, next: AtomicUsize::new(0), tell }
    }

    fn knows(&self, page: u64) -> bool {
        self.known.iter().any(|known| known.load(Ordering::Relaxed) == page)
    }

    fn remember(&self, page: u64) {
        let place = self.next.fetch_add(1, Ordering::Relaxed) % KNOWN;
        self.known[place].store(page, Ordering::Relaxed);
    }

    /// True if the page of an address is present.
    fn finds(&self, address: u64) -> bool {
        let page = address / PAGE_BYTES;
        if self.knows(page) {
            return true;
        }
        let mut random = self.random.skip(self.drawn.fetch_add(1, Ordering::Relaxed));
        if self.absent.contains(&page) || random.hits(self.rate) {
            (self.tell)(address);
            return false;
        }
        self.remember(page);
        true
    }

    /// The number of the `len` bytes from `address` that are present without a gap.
    fn up(&self, address: u64, len: u64) -> u64 {
        let mut run = 0;
        while run < len {
            let at = address.wrapping_add(run);
            if !self.finds(at) {
                break;
            }
            run += PAGE_BYTES - at % PAGE_BYTES;
        }
        run.min(len)
    }

    /// The same downwards from the end of the range, which must not wrap.
    fn down(&self, address: u64, len: u64) -> u64 {
        let mut run = 0;
        while run < len {
            let at = address + (len - run - 1);
            if !self.finds(at) {
                break;
            }
            run += at % PAGE_BYTES + 1;
        }
        run.min(len)
    }

    /// Calls `step` for the bytes that are present in all operands, then reports the missing page.
    fn ascending<const N: usize, T>(
        &self,
        operands: [Operand; N],
        len: u64,
        step: impl FnOnce(u64) -> Result<Option<T>, Fault>,
    ) -> Result<Option<T>, Fault> {
        let (mut run, mut missing) = (len, None);
        for (address, write) in operands {
            let found = self.up(address, run);
            if found < run {
                run = found;
                missing = Some((address, write));
            }
        }
        if let Some(found) = step(run)? {
            return Ok(Some(found));
        }
        match missing {
            Some((address, write)) => Err(Fault { address: address.wrapping_add(run), write, done: run }),
            None => Ok(None),
        }
    }
}

/// Converts an offset within a slice.
fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("an offset into a slice")
}

impl Space for FaultySpace<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let len = into.len() as u64;
        let step = |run| self.inner.read(address, &mut into[..index(run)]).map(|()| None::<()>);
        self.ascending([(address, false)], len, step).map(drop)
    }

    fn write(&self, address: u64, from: &[u8], hint: WriteHint) -> Result<(), Fault> {
        let step = |run| self.inner.write(address, &from[..index(run)], hint).map(|()| None::<()>);
        self.ascending([(address, true)], from.len() as u64, step).map(drop)
    }

    fn move_forward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        let step = |run| self.inner.move_forward(dst, src, run, hint).map(|()| None::<()>);
        self.ascending([(src, false), (dst, true)], len, step).map(drop)
    }

    fn move_backward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        if dst.checked_add(len).is_none() || src.checked_add(len).is_none() {
            // Wraps: faults before anything is accessed.
            return self.inner.move_backward(dst, src, len, hint);
        }
        let (mut run, mut missing) = (len, None);
        for (address, write) in [(src, false), (dst, true)] {
            // Only the upper `run` bytes are still relevant.
            let found = self.down(address + (len - run), run);
            if found < run {
                run = found;
                missing = Some((address, write));
            }
        }
        let at = len - run;
        self.inner.move_backward(dst + at, src + at, run, hint)?;
        match missing {
            Some((address, write)) => Err(Fault { address: address + at - 1, write, done: run }),
            None => Ok(()),
        }
    }

    fn fill(&self, dst: u64, pattern: [u64; 2], len: u64, hint: WriteHint) -> Result<(), Fault> {
        let step = |run| self.inner.fill(dst, pattern, run, hint).map(|()| None::<()>);
        self.ascending([(dst, true)], len, step).map(drop)
    }

    fn compare(&self, a: u64, b: u64, len: u64) -> Result<Option<u64>, Fault> {
        self.ascending([(a, false), (b, false)], len, |run| self.inner.compare(a, b, run))
    }

    fn compare_pattern(&self, a: u64, pattern: u64, len: u64) -> Result<Option<u64>, Fault> {
        self.ascending([(a, false)], len, |run| self.inner.compare_pattern(a, pattern, run))
    }

    fn flush(&self, address: u64, len: u64) -> Result<(), Fault> {
        let step = |run| self.inner.flush(address, run).map(|()| None::<()>);
        self.ascending([(address, false)], len, step).map(drop)
    }

    fn write_record(&self, address: u64, record: &[u64; 4]) -> Result<(), Fault> {
        self.inner.write_record(address, record)
    }

    fn page_request(&self, address: u64, write: bool) -> bool {
        let granted = self.inner.page_request(address, write);
        if granted {
            self.remember(address / PAGE_BYTES);
        }
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::Purpose;
    use super::*;
    use std::sync::Mutex;
    use telpher_mem::{MockSpace, Protection};

    /// Sixteen pages from 0x10000 with ascending bytes.
    fn memory() -> MockSpace {
        let space = MockSpace::new();
        space.map(0x1_0000, 16, Protection::ReadWrite);
        let bytes: Vec<u8> = (0..=255).cycle().take(16 * 4096).collect();
        space.poke(0x1_0000, &bytes);
        space
    }

    fn faulty_space<'a>(
        space: &'a MockSpace,
        absent: Range<u64>,
        rate: u32,
        tell: &'a (dyn Fn(u64) + Sync),
    ) -> FaultySpace<'a> {
        FaultySpace::new(space, rate, absent, RandomStream::of(1, 1, 0, Purpose::Fault), tell)
    }

    #[test]
    fn an_access_stops_at_the_first_byte_of_an_absent_page() {
        let space = memory();
        let addresses = Mutex::new(Vec::new());
        let tell = |address| addresses.lock().unwrap().push(address);
        let faulty_space = faulty_space(&space, 0x12..0x13, 0, &tell);
        let fault = faulty_space.move_forward(0x1_8001, 0x1_1800, 0x1000, WriteHint::Cache).unwrap_err();
        assert_eq!(fault, Fault { address: 0x1_2000, write: false, done: 0x800 });
        assert_eq!(space.peek(0x1_8001, 0x801), [&space.peek(0x1_1800, 0x800)[..], &[1]].concat());
        let fault = faulty_space.fill(0x1_1ff0, [0; 2], 64, WriteHint::Cache).unwrap_err();
        assert_eq!(fault, Fault { address: 0x1_2000, write: true, done: 16 });
        assert_eq!(*addresses.lock().unwrap(), [0x1_2000, 0x1_2000]);
    }

    #[test]
    fn a_backward_move_stops_at_the_last_byte_of_an_absent_page() {
        let space = memory();
        let faulty_space = faulty_space(&space, 0x12..0x13, 0, &|_| ());
        let before = space.peek(0x1_0000, 16 * 4096);
        let fault = faulty_space.move_backward(0x1_2800, 0x1_2000, 0x2000, WriteHint::Cache).unwrap_err();
        assert_eq!(fault, Fault { address: 0x1_2fff, write: false, done: 0x1000 });
        assert_eq!(space.peek(0x1_3800, 0x1000), before[0x3000..0x4000]);
        assert_eq!(space.peek(0x1_2800, 0x1000), before[0x2800..0x3800]);
    }

    #[test]
    fn a_requested_page_stays_present_for_the_descriptor() {
        let space = memory();
        let faulty_space = faulty_space(&space, 0..u64::MAX, u32::MAX, &|_| ());
        let (mut done, mut requests) = (0, 0);
        while let Err(fault) =
            faulty_space.move_forward(0x1_8010 + done, 0x1_0010 + done, 0x4000 - done, WriteHint::Cache)
        {
            done += fault.done;
            assert!(faulty_space.page_request(fault.address, fault.write));
            requests += 1;
        }
        // Five pages each.
        assert_eq!(requests, 10);
        assert_eq!(space.peek(0x1_8010, 0x4000), space.peek(0x1_0010, 0x4000));
    }

    #[test]
    fn a_difference_before_the_absent_page_wins() {
        let space = memory();
        let faulty_space = faulty_space(&space, 0x12..0x13, 0, &|_| ());
        space.poke(0x1_1f00, &[!0]);
        assert_eq!(faulty_space.compare(0x1_1000, 0x1_5000, 0x2000), Ok(Some(0xf00)));
        space.poke(0x1_1f00, &[0]);
        let fault = faulty_space.compare(0x1_1000, 0x1_5000, 0x2000).unwrap_err();
        assert_eq!((fault.address, fault.done), (0x1_2000, 0x1000));
    }

    #[test]
    fn each_page_is_decided_once_at_the_given_rate() {
        let space = MockSpace::new();
        space.map(0, 1000, Protection::ReadWrite);
        let faulty_space = faulty_space(&space, 0..0, u32::MAX / 10, &|_| ());
        let mut faults = 0;
        for page in 0..1000_u64 {
            let read = |at| faulty_space.read(page * 4096 + at, &mut [0; 8]);
            if read(0).is_err() {
                faults += 1;
            } else {
                assert!((1..20).all(|n| read(n * 100).is_ok()));
            }
        }
        // 10 % of 1000: four standard deviations are 38.
        assert!((62..=138).contains(&faults), "{faults}");
    }
}
