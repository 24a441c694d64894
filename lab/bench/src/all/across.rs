//! On how many kinds of host each goal holds.

use super::host::{HostResult, Quantity};
use crate::goal::Verdict;
use std::collections::BTreeMap;

/// A goal on all kinds of host that measured it.
#[derive(Clone, Debug)]
pub struct GoalAcross<'a> {
    /// The quantity, as the newest result describes it.
    pub quantity: &'a Quantity,
    /// The quantity on each kind of host.
    pub by_kind: Vec<(String, &'a Quantity)>,
}

impl GoalAcross<'_> {
    /// Returns on how many kinds of host the verdict is this one.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.by_kind.iter().filter(|(_, quantity)| quantity.verdict() == verdict).count()
    }
}

/// Returns the newest result of each kind of host.
#[must_use]
pub fn newest(results: &[HostResult]) -> Vec<&HostResult> {
    let mut by_kind: BTreeMap<String, &HostResult> = BTreeMap::new();
    for result in results {
        let newest = by_kind.entry(result.host.kind()).or_insert(result);
        if result.date >= newest.date {
            *newest = result;
        }
    }
    by_kind.into_values().collect()
}

/// Returns each goal with its verdicts on all kinds of host, in the order of the benches.
#[must_use]
pub fn goals<'a>(newest: &[&'a HostResult]) -> Vec<GoalAcross<'a>> {
    let mut all: Vec<GoalAcross<'a>> = Vec::new();
    for &result in newest {
        for quantity in &result.quantities {
            let entry = (result.host.kind(), quantity);
            match all.iter_mut().find(|goal| goal.quantity.is_same(quantity)) {
                Some(goal) => goal.by_kind.push(entry),
                None => all.push(GoalAcross { quantity, by_kind: vec![entry] }),
            }
        }
    }
    let place = |bench: &str| super::PARTS.iter().position(|part| *part == bench);
    all.sort_by_key(|goal| place(&goal.quantity.bench));
    all
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::goal::Goal;

    #[test]
    fn the_newest_result_of_each_kind_decides() {
        let of = |cpu, date, value| sample(cpu, date, "crc", Goal::AtLeast(1.0), &[value]);
        let results = [of("A", "2026-01-01", 0.5), of("B", "2026-01-02", 0.7), of("A", "2026-03-01", 1.5)];
        let newest = newest(&results);
        assert_eq!(newest.iter().map(|result| result.date.as_str()).collect::<Vec<_>>(), ["2026-03-01", "2026-01-02"]);
        let [goal] = &goals(&newest)[..] else { panic!() };
        assert_eq!([Verdict::Reached, Verdict::Short, Verdict::Open].map(|verdict| goal.count(verdict)), [1, 1, 0]);
    }
}
