//! Families of what processes count themselves: movers, caches, servers.
//!
//! Their names, units and helps come from the processes, which may be hostile: a description that breaks a rule of
//! `telpher_metrics`, or contradicts another process', is left out.

use super::definitions::PROCESSES;
use super::descriptions::Descriptions;
use super::devices::seconds;
use super::family::{Definition, Families, FamilyKind, Labels, Sample};
use super::ledger::Ledger;
use super::owner::Owner;
use crate::published::{Holder, LAST_OWN_SET, ProcessMetrics};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use telpher_metrics::{Description, Kind, Unit};

/// The most values of all processes in a reading. Source: chosen; a thousand processes with fifty values.
const MOST_VALUES: usize = 50_000;
/// The most values of a process. Source: chosen; twice the descriptions that it may bring.
const MOST_OF_PROCESS: usize = 2048;
/// A region: the inode of its memory file, which forked children share with their parent; or a process, and the number
/// of a set that is in no memory file.
type Region = (Option<u32>, u64);
/// An owner, with a process if that is wanted, and the table of its values.
type SystemOwner = (Owner, Option<u32>, Vec<usize>);

/// What is remembered of processes between two readings.
#[derive(Debug, Default)]
pub(super) struct SystemMemory {
    totals: Ledger<Region, SystemOwner>,
    /// The descriptions of their values.
    descriptions: Descriptions,
    /// The process in which each region was seen last. A forked child has its parent's memory files, also when the
    /// parent has ended.
    holders: BTreeMap<Region, Holder>,
}

fn region(process: &ProcessMetrics) -> Region {
    let ProcessMetrics { pid, inode, .. } = process;
    ((*inode <= LAST_OWN_SET).then_some(*pid), *inode)
}

impl SystemMemory {
    /// Adds the families of the processes' values. Returns how many values and regions were left out.
    pub(super) fn add(
        &mut self,
        families: &mut Families,
        processes: &[ProcessMetrics],
        per_process: bool,
        proc: &Path,
        look_up: &dyn Fn(u64) -> Owner,
    ) -> u64 {
        let mut problems = 0;
        let mut owners: BTreeMap<u32, Owner> = BTreeMap::new();
        let mut counters: BTreeMap<Region, (SystemOwner, Vec<u64>)> = BTreeMap::new();
        let mut gauges: BTreeMap<SystemOwner, Vec<u64>> = BTreeMap::new();
        let mut values = 0;
        let mut values_of: BTreeMap<u32, usize> = BTreeMap::new();
        for process in processes {
            let region = region(process);
            let holder = self.holders.entry(region).or_insert_with(|| Holder::new(proc, process.pid));
            if holder.pid() != process.pid {
                *holder = Holder::new(proc, process.pid);
            }
            let known = self.totals.owner(&region).map(|(owner, ..)| owner.clone());
            let of_process = || owners.entry(process.pid).or_insert_with(|| look_up(process.pid.into())).clone();
            let owner = known.unwrap_or_else(of_process);
            let of_process = values_of.get(&process.pid).copied().unwrap_or_default() + process.values.len();
            let fits = of_process <= MOST_OF_PROCESS && values + process.values.len() <= MOST_VALUES;
            let place = |metric| self.descriptions.place(metric, process.pid);
            let places = || process.metrics.iter().map(place).collect::<Option<Vec<usize>>>();
            let Some(places) = fits.then(places).flatten() else {
                problems += 1;
                continue;
            };
            values_of.insert(process.pid, of_process);
            values += process.values.len();
            let of_kind = |kind| {
                let of_kind =
                    places.iter().zip(&process.values).filter(|(at, _)| self.descriptions.get(**at).kind == kind);
                of_kind.map(|(at, value)| (*at, *value)).unzip::<usize, u64, Vec<_>, Vec<_>>()
            };
            let pid = per_process.then_some(process.pid);
            let (places, totals) = of_kind(Kind::Counter);
            counters.insert(region, ((owner.clone(), pid, places), totals));
            let (places, present) = of_kind(Kind::Gauge);
            let sum = gauges.entry((owner, pid, places)).or_insert_with(|| vec![0; present.len()]);
            sum.iter_mut().zip(present).for_each(|(sum, more)| *sum = sum.wrapping_add(more));
        }
        let pids: BTreeSet<u32> = processes.iter().map(|process| process.pid).collect();
        families.add(&PROCESSES, Labels::new(), Sample::Whole(pids.len() as u64));
        // A region that could not be read this time, or was left out, counts as it was read last.
        let is_held = |region: &Region| self.holders.get(region).is_some_and(|holder| holder.publishes(proc, region.1));
        let is_unread = |region: &Region| !counters.contains_key(region) && is_held(region);
        let unread = self.totals.kept(is_unread);
        counters.extend(unread);
        self.holders.retain(|region, _| counters.contains_key(region));
        let counters = self.totals.update(counters, |_| false);
        let used = counters.keys().chain(gauges.keys()).flat_map(|(.., places)| places).copied().collect();
        self.descriptions.keep(&used, &self.holders.values().map(Holder::pid).collect());
        for ((owner, pid, places), values) in counters.iter().chain(&gauges) {
            for (at, value) in places.iter().zip(values) {
                if !self.add_value(families, self.descriptions.get(*at), owner, *pid, *value) {
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
