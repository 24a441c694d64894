//! A space of sparse pages in safe Rust, with faults on demand. For tests.

use crate::{Fault, PAGE_BYTES, Protection, Space, WriteHint};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of one page.
const BYTES: usize = crate::map::SMALL_BYTES;

#[derive(Debug)]
struct Page {
    bytes: Box<[u8]>,
    protection: Protection,
    present: bool,
    /// Refuses page requests regardless of the page's protection.
    refuses_requests: bool,
    /// Visits left until the page is no longer present.
    vanishes_after: Option<u64>,
}

/// A page request that was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRequest {
    /// The requested address.
    pub address: u64,
    /// True if the page was requested for writing.
    pub write: bool,
    /// True if the request was granted.
    pub granted: bool,
}

#[derive(Debug, Default)]
struct State {
    pages: BTreeMap<u64, Page>,
    requests: Vec<PageRequest>,
    flushes: Vec<Range<u64>>,
}

/// Simulated memory: tests map, protect and remove pages and make them vanish.
///
/// An *access* in the sense of [`vanish_after`](MockSpace::vanish_after) is one operation's visit to one page by one
/// operand, however many bytes it touches there.
///
/// ```
/// use telpher_mem::{MockSpace, Protection, Space, WriteHint};
///
/// let space = MockSpace::new();
/// space.map(0x1000, 2, Protection::ReadWrite);
/// space.set_present(0x2000, false);
/// let fault = space.fill(0x1ff0, [0; 2], 32, WriteHint::Cache).unwrap_err();
/// assert_eq!((fault.address, fault.write, fault.done), (0x2000, true, 16));
/// assert!(space.page_request(0x2000, true));
/// assert!(space.fill(0x1ff0, [0; 2], 32, WriteHint::Cache).is_ok());
/// ```
#[derive(Debug, Default)]
pub struct MockSpace {
    state: Mutex<State>,
}

/// One operand's progress through an operation: remembers its current page to count visits.
#[derive(Default)]
struct Visit(Option<u64>);

impl State {
    /// Returns the byte at `base + offset` if an access of that kind finds it.
    fn byte(&mut self, visit: &mut Visit, base: u64, offset: u64, write: bool) -> Result<&mut u8, (u64, bool)> {
        // A byte past the end of the address space has no address; the last address represents it.
        let address = base.checked_add(offset).ok_or((u64::MAX, write))?;
        let page = self.pages.get_mut(&(address / PAGE_BYTES)).ok_or((address, write))?;
        if visit.0.replace(address / PAGE_BYTES) != Some(address / PAGE_BYTES) {
            match &mut page.vanishes_after {
                Some(0) => {
                    page.vanishes_after = None;
                    page.present = false;
                }
                Some(left) => *left -= 1,
                None => {}
            }
        }
        let allowed = match page.protection {
            Protection::None => false,
            Protection::Read => !write,
            Protection::ReadWrite => true,
        };
        if !page.present || !allowed {
            return Err((address, write));
        }
        Ok(&mut page.bytes[offset_in_page(address)])
    }

    fn page(&mut self, address: u64) -> &mut Page {
        self.pages.get_mut(&(address / PAGE_BYTES)).expect("the test mapped this page")
    }
}

fn offset_in_page(address: u64) -> usize {
    usize::try_from(address % PAGE_BYTES).expect("below a page")
}

fn fault(done: u64) -> impl Fn((u64, bool)) -> Fault {
    move |(address, write)| Fault { address, write, done }
}

impl MockSpace {
    /// Creates a space in which nothing is mapped.
    #[must_use]
    pub fn new() -> MockSpace {
        MockSpace::default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A test that panicked while it held the lock has failed already.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps `count` zeroed, present pages from the page of `address` on.
    pub fn map(&self, address: u64, count: usize, protection: Protection) {
        let mut state = self.lock();
        for number in (address / PAGE_BYTES..).take(count) {
            let bytes = vec![0; BYTES].into_boxed_slice();
            let page = Page { bytes, protection, present: true, refuses_requests: false, vanishes_after: None };
            state.pages.insert(number, page);
        }
    }

    /// Unmaps the page of `address`.
    pub fn unmap(&self, address: u64) {
        self.lock().pages.remove(&(address / PAGE_BYTES));
    }

    /// Changes the permitted accesses to the page of `address`.
    ///
    /// # Panics
    /// If the page is not mapped; this holds for all methods that change a page.
    pub fn protect(&self, address: u64, protection: Protection) {
        self.lock().page(address).protection = protection;
    }

    /// Makes the page of `address` present or not; its bytes are kept.
    ///
    /// # Panics
    /// If it is not mapped.
    pub fn set_present(&self, address: u64, present: bool) {
        self.lock().page(address).present = present;
    }

    /// Makes the page of `address` vanish after this many further accesses, until it is requested.
    ///
    /// # Panics
    /// If it is not mapped.
    pub fn vanish_after(&self, address: u64, accesses: u64) {
        self.lock().page(address).vanishes_after = Some(accesses);
    }

    /// Makes requests for the page of `address` fail, or succeed again, although it is mapped.
    ///
    /// # Panics
    /// If it is not mapped.
    pub fn refuse_requests(&self, address: u64, refuse: bool) {
        self.lock().page(address).refuses_requests = refuse;
    }

    /// Returns the bytes from `address` on, regardless of the pages' state.
    ///
    /// # Panics
    /// If one of them is not mapped.
    #[must_use]
    pub fn peek(&self, address: u64, len: usize) -> Vec<u8> {
        let mut state = self.lock();
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let at = address + bytes.len() as u64;
            let in_page = offset_in_page(at);
            let end = BYTES.min(in_page + len - bytes.len());
            bytes.extend_from_slice(&state.page(at).bytes[in_page..end]);
        }
        bytes
    }

    /// Sets bytes from `address` on, regardless of the pages' state.
    ///
    /// # Panics
    /// If one of them is not mapped.
    pub fn poke(&self, address: u64, bytes: &[u8]) {
        let mut state = self.lock();
        let mut done = 0;
        while done < bytes.len() {
            let at = address + done as u64;
            let in_page = offset_in_page(at);
            let count = (BYTES - in_page).min(bytes.len() - done);
            state.page(at).bytes[in_page..in_page + count].copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
    }

    /// Returns the page requests made so far.
    #[must_use]
    pub fn requests(&self) -> Vec<PageRequest> {
        self.lock().requests.clone()
    }

    /// Returns the ranges flushed so far, each up to its fault if it had one.
    #[must_use]
    pub fn flushes(&self) -> Vec<Range<u64>> {
        self.lock().flushes.clone()
    }
}

impl Space for MockSpace {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let (mut state, mut visit) = (self.lock(), Visit::default());
        for (at, byte) in (0..).zip(into) {
            *byte = *state.byte(&mut visit, address, at, false).map_err(fault(at))?;
        }
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8], _: WriteHint) -> Result<(), Fault> {
        let (mut state, mut visit) = (self.lock(), Visit::default());
        for (at, &byte) in (0..).zip(from) {
            *state.byte(&mut visit, address, at, true).map_err(fault(at))? = byte;
        }
        Ok(())
    }

    fn move_forward(&self, dst: u64, src: u64, len: u64, _: WriteHint) -> Result<(), Fault> {
        let (mut state, mut from, mut to) = (self.lock(), Visit::default(), Visit::default());
        for at in 0..len {
            let byte = *state.byte(&mut from, src, at, false).map_err(fault(at))?;
            *state.byte(&mut to, dst, at, true).map_err(fault(at))? = byte;
        }
        Ok(())
    }

    fn move_backward(&self, dst: u64, src: u64, len: u64, _: WriteHint) -> Result<(), Fault> {
        // Descending, a range that wraps would start at the wrong end.
        if src.checked_add(len).is_none() || dst.checked_add(len).is_none() {
            return Err(Fault { address: u64::MAX, write: src.checked_add(len).is_some(), done: 0 });
        }
        let (mut state, mut from, mut to) = (self.lock(), Visit::default(), Visit::default());
        for done in 0..len {
            let at = len - 1 - done;
            let byte = *state.byte(&mut from, src, at, false).map_err(fault(done))?;
            *state.byte(&mut to, dst, at, true).map_err(fault(done))? = byte;
        }
        Ok(())
    }

    fn fill(&self, dst: u64, [low, high]: [u64; 2], len: u64, _: WriteHint) -> Result<(), Fault> {
        let (mut state, mut visit) = (self.lock(), Visit::default());
        let pattern = low.to_le_bytes().into_iter().chain(high.to_le_bytes()).cycle();
        for (at, byte) in (0..len).zip(pattern) {
            *state.byte(&mut visit, dst, at, true).map_err(fault(at))? = byte;
        }
        Ok(())
    }

    fn compare(&self, a: u64, b: u64, len: u64) -> Result<Option<u64>, Fault> {
        let (mut state, mut left, mut right) = (self.lock(), Visit::default(), Visit::default());
        for at in 0..len {
            let byte = *state.byte(&mut left, a, at, false).map_err(fault(at))?;
            if *state.byte(&mut right, b, at, false).map_err(fault(at))? != byte {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    fn compare_pattern(&self, a: u64, pattern: u64, len: u64) -> Result<Option<u64>, Fault> {
        let (mut state, mut visit) = (self.lock(), Visit::default());
        for (at, byte) in (0..len).zip(pattern.to_le_bytes().into_iter().cycle()) {
            if *state.byte(&mut visit, a, at, false).map_err(fault(at))? != byte {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    fn flush(&self, address: u64, len: u64) -> Result<(), Fault> {
        let (mut state, mut visit) = (self.lock(), Visit::default());
        let refused = (0..len).find_map(|at| state.byte(&mut visit, address, at, false).err().map(fault(at)));
        let done = refused.map_or(len, |fault| fault.done);
        state.flushes.push(address..address.saturating_add(done));
        refused.map_or(Ok(()), Err)
    }

    fn write_record(&self, address: u64, record: &[u64; 4]) -> Result<(), Fault> {
        let (mut state, mut visit) = (self.lock(), Visit::default());
        for at in 0..32 {
            state.byte(&mut visit, address, at, true).map_err(fault(at))?;
        }
        for (at, byte) in (0..).zip(record.iter().flat_map(|word| word.to_le_bytes())) {
            *state.byte(&mut visit, address, at, true).map_err(fault(at))? = byte;
        }
        Ok(())
    }

    fn page_request(&self, address: u64, write: bool) -> bool {
        let mut state = self.lock();
        let granted = state.pages.get_mut(&(address / PAGE_BYTES)).is_some_and(|page| {
            let allowed = match page.protection {
                Protection::None => false,
                Protection::Read => !write,
                Protection::ReadWrite => true,
            };
            let granted = allowed && !page.refuses_requests;
            page.present |= granted;
            granted
        });
        state.requests.push(PageRequest { address, write, granted });
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_vanishes_after_the_given_accesses() {
        let space = MockSpace::new();
        space.map(0x1000, 2, Protection::ReadWrite);
        space.vanish_after(0x2000, 1);
        let mut byte = [0; 4];
        assert!(space.read(0x2010, &mut byte).is_ok());
        assert_eq!(space.read(0x1ffe, &mut byte), Err(Fault { address: 0x2000, write: false, done: 2 }));
        assert!(space.page_request(0x2000, false));
        assert!(space.read(0x1ffe, &mut byte).is_ok());
    }

    #[test]
    fn a_refusing_page_stays_missing_and_the_request_is_recorded() {
        let space = MockSpace::new();
        space.map(0x1000, 1, Protection::ReadWrite);
        space.set_present(0x1000, false);
        space.refuse_requests(0x1000, true);
        assert!(!space.page_request(0x1008, true));
        assert_eq!(space.requests(), [PageRequest { address: 0x1008, write: true, granted: false }]);
        assert!(space.read(0x1000, &mut [0]).is_err());
    }

    #[test]
    fn a_range_past_the_end_faults_where_it_leaves() {
        let space = MockSpace::new();
        space.map(0u64.wrapping_sub(4096), 1, Protection::ReadWrite);
        space.map(0, 1, Protection::ReadWrite);
        let fault = space.fill(u64::MAX - 7, [0; 2], 16, WriteHint::Cache).unwrap_err();
        assert_eq!((fault.address, fault.done), (u64::MAX, 8));
        assert!(space.move_backward(u64::MAX - 7, 0, 16, WriteHint::Cache).is_err());
    }

    #[test]
    fn flushes_are_recorded_up_to_the_fault() {
        let space = MockSpace::new();
        space.map(0x1000, 1, Protection::Read);
        assert!(space.flush(0x1000, 100).is_ok());
        assert_eq!(space.flush(0x1f00, 0x200), Err(Fault { address: 0x2000, write: false, done: 0x100 }));
        assert_eq!(space.flushes(), [0x1000..0x1064, 0x1f00..0x2000]);
    }
}
