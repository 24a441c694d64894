//! The table of sites: a hash table that is read without locks and written under the lock of `sites`.

use super::jump::{JUMP, jump};
use crate::decode::Instruction;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Rows of the table. A large program has a few dozen sites.
const ROWS: usize = 2048;
/// Rows probed before a site counts as absent, or the table as full.
const PROBES: usize = 64;
/// Key of a row whose site is retired for good.
const RETIRED: usize = 1;

/// The phase of a site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(super) enum Phase {
    /// Its bytes are being changed, in either direction.
    Changing = 0,
    /// It jumps to its trampoline.
    Rewritten = 1,
    /// It contains the program's original code.
    Original = 2,
    /// As for [`Original`](Self::Original), because it cannot be changed.
    Refused = 3,
}

/// A phase, and the number of phases before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct State {
    count: u64,
    pub(super) phase: Phase,
}

/// Data that does not change once a site has its address.
#[derive(Clone, Copy, Debug)]
struct Facts {
    address: usize,
    instruction: Instruction,
    original: [u8; JUMP],
    trampoline: usize,
}

/// One site.
#[derive(Debug)]
pub(super) struct Site {
    /// Zero: free. [`RETIRED`]: cannot be found any more. Otherwise the site's address.
    key: AtomicUsize,
    /// Four times the count, plus the phase.
    state: AtomicU64,
    facts: UnsafeCell<MaybeUninit<Facts>>,
}

// SAFETY: `facts` are written once, under the lock of the module above, before `key` is released. They are read only by
// code that has acquired a key or was handed the site by such code.
unsafe impl Sync for Site {}

#[derive(Debug)]
pub(super) struct Table([Site; ROWS]);

pub(super) static SITES: Table = Table(
    [const { Site { key: AtomicUsize::new(0), state: AtomicU64::new(0), facts: UnsafeCell::new(MaybeUninit::uninit()) } };
        ROWS],
);

impl Site {
    fn facts(&self) -> &Facts {
        // SAFETY: see `Sync`: all sites come from `find`, `all` or `add`, or from a trampoline filled after `add`.
        unsafe { (*self.facts.get()).assume_init_ref() }
    }

    pub(super) fn address(&self) -> usize {
        self.facts().address
    }

    pub(super) fn instruction(&self) -> Instruction {
        self.facts().instruction
    }

    pub(super) fn original(&self) -> [u8; JUMP] {
        self.facts().original
    }

    pub(super) fn trampoline(&self) -> usize {
        self.facts().trampoline
    }

    /// Returns the first bytes of the rewritten site.
    pub(super) fn jump(&self) -> Option<[u8; JUMP]> {
        jump(self.address(), self.trampoline())
    }

    /// True if it was made for these bytes.
    pub(super) fn is(&self, instruction: Instruction, original: [u8; JUMP]) -> bool {
        self.instruction() == instruction && self.original() == original
    }

    pub(super) fn state(&self) -> State {
        // Acquire: pairs with the Release in `set`; a thread that sees the end of a change sees the bytes.
        let word = self.state.load(Ordering::Acquire);
        let phase = match word & 3 {
            0 => Phase::Changing,
            1 => Phase::Rewritten,
            2 => Phase::Original,
            _ => Phase::Refused,
        };
        State { count: word >> 2, phase }
    }

    /// Only under the lock.
    pub(super) fn set(&self, phase: Phase) {
        // Release: pairs with the Acquire in `state`.
        self.state.store((self.state().count + 1) << 2 | phase as u64, Ordering::Release);
    }

    /// Makes it unfindable. Only under the lock.
    pub(super) fn retire(&self) {
        // Release: as for the key.
        self.key.store(RETIRED, Ordering::Release);
    }
}

impl Table {
    fn rows(&self, address: usize) -> impl Iterator<Item = &Site> {
        // Fibonacci hashing: 2^64 divided by the golden ratio; the top bits are well mixed.
        let start = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - ROWS.ilog2());
        (start..start + PROBES).map(|row| &self.0[row % ROWS])
    }

    /// Returns the site at `address`.
    pub(super) fn find(&self, address: usize) -> Option<&Site> {
        for site in self.rows(address) {
            // Acquire: pairs with the Release in `add`.
            match site.key.load(Ordering::Acquire) {
                0 => return None,
                key if key == address => return Some(site),
                _ => {}
            }
        }
        None
    }

    /// Returns all sites that can be found.
    pub(super) fn all(&self) -> impl Iterator<Item = &Site> {
        // Acquire: as in `find`.
        self.0.iter().filter(|site| site.key.load(Ordering::Acquire) > RETIRED)
    }

    /// Adds an absent site, in its original state; returns `None` if the table is full. Only under the lock.
    pub(super) fn add(
        &self,
        address: usize,
        instruction: Instruction,
        original: [u8; JUMP],
        trampoline: usize,
    ) -> Option<&Site> {
        // Relaxed: keys are written under the lock only.
        let site = self.rows(address).find(|site| site.key.load(Ordering::Relaxed) == 0)?;
        // SAFETY: the row is free, and only the caller, who holds the lock, may take it.
        unsafe { (*site.facts.get()).write(Facts { address, instruction, original, trampoline }) };
        site.set(Phase::Original);
        // Release: pairs with the Acquire in `find`.
        site.key.store(address, Ordering::Release);
        Some(site)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::decode;

    fn empty() -> &'static Table {
        Box::leak(Box::new(Table(std::array::from_fn(|_| Site {
            key: AtomicUsize::new(0),
            state: AtomicU64::new(0),
            facts: UnsafeCell::new(MaybeUninit::uninit()),
        }))))
    }

    const BYTES: [u8; JUMP] = [0x66, 0x0f, 0x38, 0xf8, 0x02];

    #[test]
    fn a_site_is_found_until_retired_and_its_record_stays() {
        let (table, instruction) = (empty(), decode(&BYTES).unwrap());
        assert!(table.find(0x1000).is_none());
        let site = table.add(0x1000, instruction, BYTES, 0x9000).unwrap();
        assert!(std::ptr::eq(table.find(0x1000).unwrap(), site));
        assert_eq!(site.jump(), Some([0xe9, 0xfb, 0x7f, 0, 0]));
        site.retire();
        assert!(table.find(0x1000).is_none() && table.all().next().is_none());
        let again = table.add(0x1000, instruction, BYTES, 0xa000).unwrap();
        assert_eq!((site.trampoline(), again.trampoline()), (0x9000, 0xa000));
    }

    #[test]
    fn a_full_table_refuses_and_still_finds_its_sites() {
        let (table, instruction) = (empty(), decode(&BYTES).unwrap());
        let added: Vec<usize> = (1..=ROWS)
            .map(|i| i * 0x40)
            .filter(|&at| table.add(at, instruction, BYTES, at + 0x4000).is_some())
            .collect();
        assert!(added.len() > ROWS / 2, "{} sites fit", added.len());
        assert!(added.iter().all(|&at| table.find(at).is_some_and(|site| site.address() == at)));
    }

    #[test]
    fn every_change_of_phase_is_a_new_state() {
        let site = empty().add(0x1000, decode(&BYTES).unwrap(), BYTES, 0x9000).unwrap();
        let mut seen = vec![site.state()];
        for phase in [Phase::Changing, Phase::Rewritten, Phase::Changing, Phase::Original] {
            site.set(phase);
            assert!(!seen.contains(&site.state()) && site.state().phase == phase);
            seen.push(site.state());
        }
    }
}
