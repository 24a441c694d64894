//! Totals by owner that do not shrink when a process of the owner ends.
//!
//! The sum over the processes of an owner falls when one of them ends. Prometheus would take the smaller sum for a
//! counter that began again at zero, and would count the rest twice. So the last totals of an ended process stay in its
//! owner's sum.

use std::collections::{BTreeMap, BTreeSet};

/// Owners whose processes have all ended, of which totals are kept. Source: chosen; some weeks of containers.
const MOST_ENDED: usize = 10_000;

/// The totals of processes `P`, summed by owner `O`. Each process has `N` totals.
#[derive(Debug)]
pub(super) struct Ledger<P, O> {
    last: BTreeMap<P, (O, Vec<u64>)>,
    ended: BTreeMap<O, Vec<u64>>,
}

impl<P, O> Default for Ledger<P, O> {
    fn default() -> Self {
        Ledger { last: BTreeMap::new(), ended: BTreeMap::new() }
    }
}

fn add(sum: &mut Vec<u64>, more: impl Iterator<Item = u64>) {
    for (at, more) in more.enumerate() {
        match sum.get_mut(at) {
            Some(word) => *word = word.saturating_add(more),
            None => sum.push(more),
        }
    }
}

impl<P: Ord + Clone, O: Ord + Clone> Ledger<P, O> {
    /// Takes the present totals of all processes, and returns the sums by owner. An owner without a process is kept if
    /// `is_kept` says so.
    pub(super) fn update(
        &mut self,
        now: BTreeMap<P, (O, Vec<u64>)>,
        is_kept: impl Fn(&O) -> bool,
    ) -> BTreeMap<O, Vec<u64>> {
        for (process, (owner, before)) in &self.last {
            // A process that has closed one of two files has smaller totals than before.
            let present = now.get(process).filter(|(of, _)| of == owner).map_or(&[][..], |(_, totals)| totals);
            let lost =
                before.iter().enumerate().map(|(at, word)| word.saturating_sub(present.get(at).copied().unwrap_or(0)));
            if lost.clone().any(|word| word != 0) {
                add(self.ended.entry(owner.clone()).or_default(), lost);
            }
        }
        let alive: BTreeSet<&O> = now.values().map(|(owner, _)| owner).collect();
        self.ended.retain(|owner, _| alive.contains(owner) || is_kept(owner));
        while self.ended.len() > MOST_ENDED.max(alive.len()) {
            let oldest = self.ended.keys().find(|owner| !alive.contains(owner)).cloned();
            let Some(oldest) = oldest else { break };
            self.ended.remove(&oldest);
        }
        let mut sums = self.ended.clone();
        for (owner, totals) in now.values() {
            add(sums.entry(owner.clone()).or_default(), totals.iter().copied());
        }
        self.last = now;
        sums
    }

    /// Returns the processes of the last update that fit, to be passed to the next one unchanged.
    pub(super) fn kept(&self, fits: impl Fn(&P) -> bool) -> BTreeMap<P, (O, Vec<u64>)> {
        self.last.iter().filter(|(process, _)| fits(process)).map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Returns the owner that a process had at the last update.
    pub(super) fn owner(&self, process: &P) -> Option<&O> {
        self.last.get(process).map(|(owner, _)| owner)
    }

    /// Returns the totals of ended processes by owner.
    pub(super) fn ended(&self) -> &BTreeMap<O, Vec<u64>> {
        &self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(totals: &[(u32, &'static str, u64)]) -> BTreeMap<u32, (&'static str, Vec<u64>)> {
        totals.iter().map(|(process, owner, total)| (*process, (*owner, vec![*total, 1]))).collect()
    }

    #[test]
    fn the_sum_of_an_owner_never_shrinks_while_it_is_kept() {
        let mut ledger = Ledger::default();
        let mut update = |totals: &[_], kept| ledger.update(at(totals), |_| kept);
        assert_eq!(update(&[(1, "a", 100), (2, "a", 50), (3, "b", 7)], true)["a"], [150, 2]);
        // Process 1 has ended.
        assert_eq!(update(&[(2, "a", 60), (3, "b", 7)], true)["a"], [160, 2]);
        // Its number is another process', which has done less than process 2 had.
        assert_eq!(update(&[(2, "a", 10), (3, "b", 7)], true)["a"], [160, 2]);
        assert_eq!(update(&[(2, "a", 15)], true), BTreeMap::from([("a", vec![165, 2]), ("b", vec![7, 1])]));
        assert_eq!(update(&[(2, "a", 15)], false).keys().collect::<Vec<_>>(), [&"a"]);
        assert_eq!(update(&[], false), BTreeMap::new());
    }

    #[test]
    fn hostile_totals_do_not_overflow_and_owners_are_bounded() {
        let mut ledger = Ledger::default();
        let many: BTreeMap<u32, (u32, Vec<u64>)> = (0..20_000).map(|n| (n, (n, vec![u64::MAX]))).collect();
        ledger.update(many, |_| true);
        ledger.update(BTreeMap::from([(1, (1, vec![u64::MAX]))]), |_| true);
        let sums = ledger.update(BTreeMap::from([(1, (1, vec![1]))]), |_| true);
        assert_eq!((sums[&1][0], sums.len() <= MOST_ENDED + 1), (u64::MAX, true));
    }
}
