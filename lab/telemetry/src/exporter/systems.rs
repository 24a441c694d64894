//! Families of what processes count themselves: movers, caches, servers.
//!
//! Their names, units and helps come from the processes, which may be hostile: a description that breaks a rule of
//! `telpher_metrics`, or contradicts another process', is left out.

use super::definitions::PROCESSES;
use super::devices::seconds;
use super::family::{Definition, Families, FamilyKind, Labels, Sample};
use super::ledger::Ledger;
use super::owner::Owner;
use crate::published::ProcessMetrics;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use telpher_metrics::{Description, Kind, Unit};

/// The most values of all processes in a reading. Source: chosen; a thousand processes with fifty values.
const MOST_VALUES: usize = 50_000;
/// The most different descriptions. Source: chosen; ten times those of all crates.
const MOST_DESCRIPTIONS: usize = 4096;

/// A process' region.
type Region = (u32, u64);
/// An owner, with a process if that is wanted, and the table of its values.
type SystemOwner = (Owner, Option<u32>, Vec<usize>);

/// What is remembered of processes between two readings.
#[derive(Debug, Default)]
pub(super) struct SystemMemory {
    totals: Ledger<Region, SystemOwner>,
    /// Descriptions that were seen, in their order.
    descriptions: Vec<Description>,
    /// The places of descriptions, by name and label's value.
    places: BTreeMap<(String, String), usize>,
}

impl SystemMemory {
    /// Returns the place of a description; `None` if it breaks a rule or differs from an earlier one.
    fn place(&mut self, description: &Description) -> Option<usize> {
        let value = description.label.as_ref().map(|(_, value)| value.clone()).unwrap_or_default();
        if let Some(place) = self.places.get(&(description.name.clone(), value.clone())) {
            return (self.descriptions[*place] == *description).then_some(*place);
        }
        let reserved = [
            "le",
            "quantile",
            "pid",
            "namespace",
            "pod",
            "pod_uid",
            "container",
            "container_name",
            "vm",
            "job",
            "instance",
        ];
        let is_reserved = description.label.as_ref().is_some_and(|(key, _)| reserved.contains(&key.as_str()));
        let is_valid = description.broken_rule().is_none() && !is_reserved;
        if !is_valid || self.descriptions.len() >= MOST_DESCRIPTIONS {
            return None;
        }
        self.descriptions.push(description.clone());
        self.places.insert((description.name.clone(), value), self.descriptions.len() - 1);
        Some(self.descriptions.len() - 1)
    }

    /// Adds the families of the processes' values. Returns how many values and regions were left out.
    pub(super) fn add(
        &mut self,
        families: &mut Families,
        processes: &[ProcessMetrics],
        per_process: bool,
        look_up: &dyn Fn(u64) -> Owner,
    ) -> u64 {
        let mut problems = 0;
        let mut owners: BTreeMap<u32, Owner> = BTreeMap::new();
        let mut counters: BTreeMap<Region, (SystemOwner, Vec<u64>)> = BTreeMap::new();
        let mut gauges: BTreeMap<SystemOwner, Vec<u64>> = BTreeMap::new();
        let mut values = 0;
        for process in processes {
            let known = self.totals.owner(&(process.pid, process.inode)).map(|(owner, ..)| owner.clone());
            let owner = || known.unwrap_or_else(|| look_up(process.pid.into()));
            let owner = owners.entry(process.pid).or_insert_with(owner).clone();
            let places: Option<Vec<usize>> = process.metrics.iter().map(|metric| self.place(metric)).collect();
            values += process.values.len();
            let Some(places) = places.filter(|_| values <= MOST_VALUES) else {
                problems += 1;
                continue;
            };
            let of_kind = |kind| {
                let of_kind = places.iter().zip(&process.values).filter(|(at, _)| self.descriptions[**at].kind == kind);
                of_kind.map(|(at, value)| (*at, *value)).unzip::<usize, u64, Vec<_>, Vec<_>>()
            };
            let pid = per_process.then_some(process.pid);
            let (places, totals) = of_kind(Kind::Counter);
            counters.insert((process.pid, process.inode), ((owner.clone(), pid, places), totals));
            let (places, present) = of_kind(Kind::Gauge);
            let sum = gauges.entry((owner, pid, places)).or_insert_with(|| vec![0; present.len()]);
            sum.iter_mut().zip(present).for_each(|(sum, more)| *sum = sum.wrapping_add(more));
        }
        let pids: BTreeSet<u32> = processes.iter().map(|process| process.pid).collect();
        families.add(&PROCESSES, Labels::new(), Sample::Whole(pids.len() as u64));
        let counters = self.totals.update(counters, |_| false);
        for ((owner, pid, places), values) in counters.iter().chain(&gauges) {
            for (at, value) in places.iter().zip(values) {
                if !self.add_value(families, &self.descriptions[*at], owner, *pid, *value) {
                    problems += 1;
                }
            }
        }
        problems
    }

    fn add_value(
        &self,
        families: &mut Families,
        description: &Description,
        owner: &Owner,
        pid: Option<u32>,
        value: u64,
    ) -> bool {
        let Description { kind, unit, name, label, help } = description;
        let stem = name.strip_suffix("_total").filter(|_| *kind == Kind::Counter).unwrap_or(name);
        let definition = Definition {
            stem: Cow::Owned(stem.strip_suffix(unit.suffix()).unwrap_or(stem).to_owned()),
            kind: if *kind == Kind::Counter { FamilyKind::Counter } else { FamilyKind::Gauge },
            unit: *unit,
            help: Cow::Owned(help.clone()),
        };
        let own = label.iter().map(|(key, value)| (Cow::Owned(key.clone()), value.clone()));
        let pid = pid.map(|pid| (Cow::Borrowed("pid"), pid.to_string()));
        let labels: Labels = own.chain(owner.labels()).chain(pid).collect();
        // A gauge below zero is in the middle of a change.
        let value = if *kind == Kind::Gauge && value.cast_signed() < 0 { 0 } else { value };
        match unit {
            Unit::Seconds => families.add(&definition, labels, Sample::Real(seconds(value))),
            _ => families.add(&definition, labels, Sample::Whole(value)),
        }
    }
}
