//! Joins the recordings of several processes.

use crate::recording::{Alignments, Module, NotRecorded, Overlaps, Process, Recording, Site, SizeRow, Timed};
use std::collections::BTreeMap;

/// Why recordings cannot be joined.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// There is no recording.
    #[error("there is no recording to merge")]
    Empty,
    /// They are of different machines, so their times mean different things.
    #[error("the recordings are of different machines: {first}, and {other}")]
    OtherMachine {
        /// Processor and kernel of the first.
        first: String,
        /// Processor and kernel of the one that differs.
        other: String,
    },
}

/// The largest difference between two ways to learn the time between two starts. Source: chosen; the clock may have
/// been adjusted by less, and the time stamp counter of another boot differs by more.
const MOST_DIFFERENCE_NS: u64 = 1_000_000_000;

impl Recording {
    /// Joins the recordings of several processes on one machine. Times count from the start of the first process.
    ///
    /// Sites at the same place of the same module become one. [`Thread::most_in_flight`](crate::Thread::most_in_flight)
    /// and [`Event::in_flight`](crate::Event::in_flight) still count the calls of one process only.
    ///
    /// # Errors
    /// If there is no recording, or if processor or kernel differ.
    pub fn merge(mut recordings: Vec<Recording>) -> Result<Recording, MergeError> {
        let origin = |recording: &Recording| recording.processes.first().map(|first| first.start_realtime_ns);
        recordings.sort_by_key(origin);
        let mut recordings = recordings.into_iter();
        let mut merged = recordings.next().ok_or(MergeError::Empty)?;
        let mut sites = SiteIndex::of(&merged);
        for next in recordings {
            check_machine(&merged, &next)?;
            merged.add(next, &mut sites);
        }
        merged.events.sort_by_key(|event| (event.start_ns, event.thread, event.number));
        Ok(merged)
    }

    fn add(&mut self, other: Recording, index: &mut SiteIndex) {
        let offset_ns = match (self.processes.first(), other.processes.first()) {
            (Some(first), Some(later)) => time_between(first, later, self.machine.tsc_hz),
            _ => 0,
        };
        let (processes, threads) = (self.processes.len(), self.threads.len());
        self.processes.extend(other.processes.into_iter().map(|mut process| {
            process.start_ns = process.start_ns.saturating_add(offset_ns);
            process
        }));
        let modules: Vec<usize> =
            other.modules.into_iter().map(|module| index.module(&mut self.modules, module)).collect();
        let sites: Vec<usize> = other
            .sites
            .into_iter()
            .map(|mut site| {
                site.module = site.module.map(|module| modules[module]);
                index.add(&mut self.sites, site)
            })
            .collect();
        self.threads.extend(other.threads.into_iter().map(|mut thread| {
            thread.process += processes;
            thread
        }));
        self.events.extend(other.events.into_iter().map(|mut event| {
            event.start_ns = event.start_ns.saturating_add(offset_ns);
            event.thread += threads;
            event.site = event.site.map(|site| sites[site]);
            event
        }));
        add_sizes(&mut self.sizes, other.sizes);
        self.not_recorded.add(other.not_recorded);
    }
}

fn check_machine(first: &Recording, other: &Recording) -> Result<(), MergeError> {
    let (ours, theirs) = (&first.machine, &other.machine);
    // The frequency is measured by each process, so it differs a little.
    let same_frequency = ours.tsc_hz.abs_diff(theirs.tsc_hz) <= ours.tsc_hz / 1000;
    if (&ours.cpu, ours.cpu_signature, &ours.kernel) == (&theirs.cpu, theirs.cpu_signature, &theirs.kernel)
        && same_frequency
    {
        return Ok(());
    }
    let describe = |recording: &Recording| {
        let machine = &recording.machine;
        let text =
            format!("{} ({:#x}, {} Hz, Linux {})", machine.cpu, machine.cpu_signature, machine.tsc_hz, machine.kernel);
        // Another program may have written the file, and the text goes to a terminal.
        text.replace(char::is_control, "\u{fffd}")
    };
    Err(MergeError::OtherMachine { first: describe(first), other: describe(other) })
}

/// Nanoseconds between the starts of two processes. The time stamp counter is precise enough to order their calls; if
/// it contradicts the clock (another boot), the clock is right.
fn time_between(first: &Process, later: &Process, tsc_hz: u64) -> u64 {
    let by_clock = later.start_realtime_ns.saturating_sub(first.start_realtime_ns);
    let ticks = later.start_ticks.checked_sub(first.start_ticks);
    let by_ticks =
        ticks.and_then(|ticks| u64::try_from(u128::from(ticks) * 1_000_000_000 / u128::from(tsc_hz.max(1))).ok());
    by_ticks.filter(|ns| ns.abs_diff(by_clock) <= MOST_DIFFERENCE_NS).unwrap_or(by_clock)
}

/// Where the modules and sites of a merged recording are.
struct SiteIndex {
    modules: BTreeMap<Module, usize>,
    sites: BTreeMap<(usize, u64), usize>,
}

impl SiteIndex {
    fn of(recording: &Recording) -> SiteIndex {
        let modules = recording.modules.iter().enumerate().map(|(at, module)| (module.clone(), at)).collect();
        let site = |(at, site): (usize, &Site)| Some(((site.module?, site.offset), at));
        SiteIndex { modules, sites: recording.sites.iter().enumerate().filter_map(site).collect() }
    }

    fn module(&mut self, modules: &mut Vec<Module>, module: Module) -> usize {
        *self.modules.entry(module).or_insert_with_key(|module| {
            modules.push(module.clone());
            modules.len() - 1
        })
    }

    /// Adds a site to the one at the same place. A site without a module stays apart: its address means something else
    /// in each process.
    fn add(&mut self, sites: &mut Vec<Site>, site: Site) -> usize {
        let key = site.module.map(|module| (module, site.offset));
        match key.and_then(|key| self.sites.get(&key)) {
            Some(&at) => {
                sites[at].add(site);
                at
            }
            None => {
                let at = sites.len();
                sites.push(site);
                self.sites.extend(key.map(|key| (key, at)));
                at
            }
        }
    }
}

fn add_sizes(ours: &mut Vec<SizeRow>, theirs: Vec<SizeRow>) {
    for row in theirs {
        match ours.binary_search_by_key(&(row.operation, row.from), |our| (our.operation, our.from)) {
            Ok(at) => {
                let our = &mut ours[at];
                add(&mut our.calls, row.calls);
                add(&mut our.bytes, row.bytes);
                add(&mut our.timed_calls, row.timed_calls);
                add(&mut our.timed_ns, row.timed_ns);
            }
            Err(at) => ours.insert(at, row),
        }
    }
}

/// Adds numbers of any author.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

impl Site {
    fn add(&mut self, other: Site) {
        add(&mut self.calls, other.calls);
        add(&mut self.bytes, other.bytes);
        for theirs in other.operations {
            match self.operations.binary_search_by_key(&theirs.operation, |ours| ours.operation) {
                Ok(at) => add(&mut self.operations[at].calls, theirs.calls),
                Err(at) => self.operations.insert(at, theirs),
            }
        }
        self.hot.add(other.hot);
        self.cold.add(other.cold);
        self.fresh.add(other.fresh);
        self.destinations.add(other.destinations);
        self.sources.add(other.sources);
        self.overlaps_down.add(other.overlaps_down);
        self.overlaps_up.add(other.overlaps_up);
        add(&mut self.fault_checks, other.fault_checks);
        add(&mut self.faults, other.faults);
    }
}

impl Timed {
    pub(crate) fn add(&mut self, other: Timed) {
        add(&mut self.calls, other.calls);
        add(&mut self.bytes, other.bytes);
        add(&mut self.ns, other.ns);
    }
}

impl Alignments {
    fn add(&mut self, other: Alignments) {
        add(&mut self.page, other.page);
        add(&mut self.line, other.line);
        add(&mut self.other, other.other);
    }
}

impl Overlaps {
    pub(crate) fn add(&mut self, other: Overlaps) {
        add(&mut self.below_line, other.below_line);
        add(&mut self.below_page, other.below_page);
        add(&mut self.page_or_more, other.page_or_more);
        add(&mut self.bytes, other.bytes);
    }
}

impl NotRecorded {
    fn add(&mut self, other: NotRecorded) {
        add(&mut self.events_left_out, other.events_left_out);
        add(&mut self.events_torn, other.events_torn);
        add(&mut self.threads_without_table, other.threads_without_table);
        add(&mut self.calls_without_site, other.calls_without_site);
        add(&mut self.modules_without_entry, other.modules_without_entry);
        add(&mut self.calls_lost, other.calls_lost);
        add(&mut self.entries_damaged, other.entries_damaged);
    }
}
