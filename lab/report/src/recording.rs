//! What a program copied, as `telpher record` has recorded it: as text, CSV and a page.

use crate::chart::{self, Bar};
use crate::csv;
use crate::html::{Figure, Page};
use crate::offload::{DtoRow, DtoStatistics, dto_text};
use crate::table::{Align, Table, printable, wrapped};
use crate::units;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;
use telpher_recording::{
    Alignments, Calibration, Gap, Machine, NotRecorded, Operation, OperationShare, Overlaps, Process, Recording, Site,
    SizeRow, Summary, Timed,
};

/// A recording without its trace, with names for its sites.
#[derive(Clone, Debug, Serialize)]
pub struct CopyProfile {
    /// The version of the recording's format.
    pub format: u32,
    /// The machine.
    pub machine: Machine,
    /// What calls cost on it.
    pub calibration: Calibration,
    /// The processes, by bytes.
    pub processes: Vec<ProfiledProcess>,
    /// The number of threads that made calls.
    pub threads: usize,
    /// These threads, by bytes.
    pub calls_by_thread: Vec<ProfiledThread>,
    /// Calls of all threads by function and size, in four classes for each power of two.
    pub calls_by_size: Vec<SizeRow>,
    /// What follows from the tables.
    pub summary: Summary,
    /// The time in calls as a share of the processor time; `None` if the processor time is unknown.
    pub share_of_cpu_time: Option<f64>,
    /// An estimate of the time that recording took, in nanoseconds.
    pub recording_ns: u64,
    /// The same as a share of the processor time.
    pub recording_share: Option<f64>,
    /// The sites, by bytes.
    pub sites: Vec<NamedSite>,
    /// Where the ranges of calls of 2 KiB and more lie, and how close in time long calls follow each other.
    pub details: CallDetails,
    /// Calls that copy strings inside the C library; `None` if there were none.
    pub not_offloadable: Option<StringCopies>,
    /// What is missing.
    pub not_recorded: NotRecorded,
}

/// Where the ranges of calls with a site lie, and the times between long calls; of all sites and threads.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct CallDetails {
    /// Destinations by alignment.
    pub destinations: Alignments,
    /// Sources by alignment; memset has none.
    pub sources: Alignments,
    /// Overlapping copies to lower addresses.
    pub overlaps_down: Overlaps,
    /// Overlapping copies to higher addresses.
    pub overlaps_up: Overlaps,
    /// Calls whose page faults were counted.
    pub fault_checks: u64,
    /// Their page faults.
    pub faults: u64,
    /// Times between the end of a long call and the begin of the next of the same thread.
    pub gaps: Vec<Gap>,
}

impl CallDetails {
    fn of(recording: &Recording) -> CallDetails {
        let mut sum = CallDetails::default();
        let add = |to: &mut u64, more: u64| *to = to.saturating_add(more);
        for site in &recording.sites {
            for (to, more) in [(&mut sum.destinations, site.destinations), (&mut sum.sources, site.sources)] {
                add(&mut to.page, more.page);
                add(&mut to.line, more.line);
                add(&mut to.other, more.other);
            }
            for (to, more) in [(&mut sum.overlaps_down, site.overlaps_down), (&mut sum.overlaps_up, site.overlaps_up)] {
                add(&mut to.below_line, more.below_line);
                add(&mut to.below_page, more.below_page);
                add(&mut to.page_or_more, more.page_or_more);
                add(&mut to.bytes, more.bytes);
            }
            add(&mut sum.fault_checks, site.fault_checks);
            add(&mut sum.faults, site.faults);
        }
        let mut gaps = BTreeMap::new();
        for gap in recording.threads.iter().flat_map(|thread| &thread.gaps) {
            add(gaps.entry(gap.from_ns).or_default(), gap.count);
        }
        sum.gaps = gaps.into_iter().map(|(from_ns, count)| Gap { from_ns, count }).collect();
        sum
    }

    /// Returns the time within which half of the long calls followed the one before; `None` without two long calls in a
    /// thread.
    fn median_gap_ns(&self) -> Option<u64> {
        let all = self.gaps.iter().fold(0_u64, |sum, gap| sum.saturating_add(gap.count));
        let mut seen = 0_u64;
        let class = self.gaps.iter().find(|gap| {
            seen = seen.saturating_add(gap.count);
            gap.count > 0 && seen >= all.div_ceil(2)
        })?;
        Some(class.from_ns.max(1).saturating_mul(2))
    }

    /// Returns what the figures mean, as sentences. `overlapping` is the share of bytes in overlapping copies.
    fn remarks(&self, overlapping: Option<f64>) -> Vec<String> {
        let mut remarks = Vec::new();
        let calls = |of: Overlaps| of.below_line.saturating_add(of.below_page).saturating_add(of.page_or_more);
        if let Some(share) = overlapping.filter(|share| *share > 0.0) {
            let (down, up) = (self.overlaps_down, self.overlaps_up);
            remarks.push(format!(
                "Source and destination overlap in {} of these bytes: {} copies to lower addresses, {} to higher ones; \
                 {} over less than 64 bytes, {} over less than 4 KiB.",
                percent(share),
                calls(down),
                calls(up),
                down.below_line.saturating_add(up.below_line),
                down.below_page.saturating_add(up.below_page),
            ));
        }
        let aligned = |of: Alignments| {
            let aligned = of.page.saturating_add(of.line);
            let all = aligned.saturating_add(of.other);
            percent_of((all > 0).then(|| aligned as f64 / all as f64))
        };
        if self.destinations != Alignments::default() {
            remarks.push(format!(
                "Multiples of 64 are {} of their destinations and {} of their sources.",
                aligned(self.destinations),
                aligned(self.sources)
            ));
        }
        if self.fault_checks > 0 {
            remarks.push(format!(
                "{} of these calls were checked, and had {} page faults.",
                self.fault_checks, self.faults
            ));
        }
        if let Some(ns) = self.median_gap_ns() {
            remarks.push(format!(
                "Half of the calls of 16 KiB and more began within {} of the end of the one before.",
                units::time(ns as f64)
            ));
        }
        remarks
    }
}

/// Calls of strcpy, strncpy, stpcpy and strdup. A device cannot execute them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct StringCopies {
    /// All calls.
    pub calls: u64,
    /// The bytes that they wrote.
    pub bytes: u64,
    /// Those calls that wrote 2 KiB or more.
    pub long_calls: u64,
    /// The bytes of these.
    pub long_bytes: u64,
}

/// Calls of this many bytes have a site, and may be worth a device. Source: `telpher_recording`'s default.
const LONG_STRING: u64 = 2 << 10;

impl StringCopies {
    fn of(recording: &Recording) -> Option<StringCopies> {
        let mut all = StringCopies::default();
        for row in recording.sizes.iter().filter(|row| row.operation == Operation::StringCopy) {
            all.calls = all.calls.saturating_add(row.calls);
            all.bytes = all.bytes.saturating_add(row.bytes);
            if row.from >= LONG_STRING {
                all.long_calls = all.long_calls.saturating_add(row.calls);
                all.long_bytes = all.long_bytes.saturating_add(row.bytes);
            }
        }
        (all.calls > 0).then_some(all)
    }

    /// Returns what the figures mean, as a sentence.
    fn remark(self) -> String {
        let [bytes, long_bytes] = [self.bytes, self.long_bytes].map(units::size);
        format!(
            "Not offloadable here: strcpy, strncpy, stpcpy and strdup wrote {bytes} in {} calls, {long_bytes} of it in \
             {} calls of 2 KiB and more. The C library copies inside these functions, where a device cannot replace \
             it.",
            self.calls, self.long_calls
        )
    }
}

/// A process with the sums of its calls.
#[derive(Clone, Debug, Serialize)]
pub struct ProfiledProcess {
    /// The process.
    #[serde(flatten)]
    pub process: Process,
    /// Its calls.
    pub calls: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A thread's calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct ProfiledThread {
    /// The number of its process.
    pub pid: u32,
    /// The kernel's number; `None` for the table that several threads shared.
    pub id: Option<u64>,
    /// Its calls.
    pub calls: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Its calls of 16 KiB and more.
    pub long_calls: u64,
    /// The most long calls in flight in the process when one of this thread began.
    pub most_in_flight: u64,
}

impl ProfiledThread {
    fn of(recording: &Recording) -> Vec<ProfiledThread> {
        let with_calls = recording.threads.iter().filter(|thread| thread.calls > 0);
        let mut threads: Vec<ProfiledThread> = with_calls
            .map(|thread| ProfiledThread {
                pid: recording.processes.get(thread.process).map_or(0, |process| process.pid),
                id: thread.id,
                calls: thread.calls,
                bytes: thread.bytes,
                long_calls: thread.long_calls,
                most_in_flight: thread.most_in_flight,
            })
            .collect();
        threads.sort_by_key(|thread| std::cmp::Reverse(thread.bytes));
        threads
    }
}

/// A call site with its name.
#[derive(Clone, Debug, Serialize)]
pub struct NamedSite {
    /// The function, or the file, and the distance from its start.
    pub name: String,
    /// The file.
    pub file: String,
    /// What identifies the file's build, in hexadecimal digits; empty if it has no such note.
    pub build_id: String,
    /// Its calls.
    #[serde(flatten)]
    pub site: Site,
}

/// Sites of a table. Source: chosen; two to eight sites have nearly all bytes of the programs that were looked at.
const MOST_SITES: usize = 12;
/// Processes that are listed one by one.
const MOST_PROCESSES: usize = 5;
/// The longest name of a site in the table of a terminal.
const NAME: usize = 34;

impl CopyProfile {
    /// Returns the profile of a recording. `names` has a name for each site.
    #[must_use]
    pub fn new(recording: &Recording, names: Vec<String>) -> CopyProfile {
        let summary = recording.summary();
        let named = names.into_iter().zip(&recording.sites).map(|(name, site)| NamedSite {
            name: printable(&name),
            file: site.module.map(|at| printable(&recording.modules[at].path)).unwrap_or_default(),
            build_id: site.module.map(|at| printable(&recording.modules[at].build_id)).unwrap_or_default(),
            site: site.clone(),
        });
        let mut sites: Vec<NamedSite> = named.collect();
        sites.sort_by(|a, b| (b.site.bytes, &a.name).cmp(&(a.site.bytes, &b.name)));
        let mut processes: Vec<ProfiledProcess> = recording.processes.iter().map(ProfiledProcess::idle).collect();
        for thread in &recording.threads {
            if let Some(process) = processes.get_mut(thread.process) {
                process.calls = process.calls.saturating_add(thread.calls);
                process.bytes = process.bytes.saturating_add(thread.bytes);
            }
        }
        processes.sort_by_key(|process| std::cmp::Reverse(process.bytes));
        // Without the time of one process, there is no share of the time of all.
        let cpu_ns: Option<u64> = recording.processes.iter().map(Process::cpu_time_ns).sum();
        let share = |ns: u64| cpu_ns.filter(|cpu_ns| *cpu_ns > 0).map(|cpu_ns| ns as f64 / cpu_ns as f64);
        let recording_ns = recording_ns(recording, summary.calls);
        let calls_by_thread = ProfiledThread::of(recording);
        CopyProfile {
            format: telpher_recording::VERSION,
            machine: recording.machine.clone(),
            calibration: recording.calibration.clone(),
            processes,
            threads: calls_by_thread.len(),
            calls_by_thread,
            calls_by_size: recording.sizes.iter().filter(|row| row.calls > 0).copied().collect(),
            share_of_cpu_time: share(summary.time.ns),
            recording_ns,
            recording_share: share(recording_ns),
            summary,
            sites,
            details: CallDetails::of(recording),
            not_offloadable: StringCopies::of(recording),
            not_recorded: recording.not_recorded,
        }
    }

    /// Returns one line for each process, up to a few.
    fn process_lines(&self) -> Vec<String> {
        let line = |ProfiledProcess { process, bytes, .. }: &ProfiledProcess| {
            let command: Vec<&str> = process.arguments.iter().map(String::as_str).collect();
            let command = if command.is_empty() { process.program.clone() } else { command.join(" ") };
            let time = process.cpu_time_ns().map_or_else(String::new, |used| {
                let [lived, used] = [process.noted_ns, used].map(|ns| units::time(ns as f64));
                format!(", in {lived}, {used} of processor time")
            });
            let command = shortened(&printable(&command), 60);
            format!("{command} (process {}): {}{time}", process.pid, units::size(*bytes))
        };
        let mut lines: Vec<String> = self.processes.iter().take(MOST_PROCESSES).map(line).collect();
        let others = self.processes.len().saturating_sub(MOST_PROCESSES);
        if others > 0 {
            lines.push(format!("and {others} processes with fewer bytes"));
        }
        lines
    }

    /// Returns what the figures mean, as sentences.
    fn remarks(&self) -> Vec<String> {
        let summary = &self.summary;
        let mut remarks = Vec::new();
        let time = units::time(summary.time.ns as f64);
        remarks.push(match self.share_of_cpu_time {
            // Calls are timed by the clock, which goes on while a thread waits for a processor.
            Some(share) if share > 1.0 => {
                format!("Time in these calls: {time}, more than the processor time: threads waited for a processor.")
            }
            Some(share) => format!("Time in these calls: {time}, {} of the processor time.", percent(share)),
            None => format!("Time in these calls: {time}."),
        });
        let recording = units::time(self.recording_ns as f64);
        remarks.push(match self.recording_share {
            Some(share) => format!("Recording took about {recording}, {} of the processor time.", percent(share)),
            None => format!("Recording took about {recording}."),
        });
        if let Some(shares) = summary.temperature {
            remarks.push(format!(
                "Data of timed calls of 2 KiB and more: {} hot (in the caches), {} cold (in memory), {} fresh (pages \
                 that the kernel had to provide).",
                percent(shares.hot),
                percent(shares.cold),
                percent(shares.fresh)
            ));
        }
        remarks.extend(self.details.remarks(summary.overlapping.share_of_bytes));
        if summary.most_in_flight > 1 {
            remarks.push(format!("At most {} calls of 16 KiB and more ran at once.", summary.most_in_flight));
        }
        remarks.extend(self.not_offloadable.map(StringCopies::remark));
        remarks.extend(missing(&self.not_recorded));
        remarks
    }
}

impl ProfiledProcess {
    /// A process without calls.
    fn idle(process: &Process) -> ProfiledProcess {
        ProfiledProcess { process: process.clone(), calls: 0, bytes: 0 }
    }
}

/// Returns an estimate of the time that recording took. Source of the times of a call: measured on a virtual Xeon, as
/// docs/offload.md says; a long call reads the time stamp counter twice besides.
fn recording_ns(recording: &Recording, calls: u64) -> u64 {
    const SHORT: f64 = 2.0;
    const WITH_SITE: f64 = 15.0;
    const LONG: f64 = 40.0;
    let with_site = recording.sites.iter().fold(0_u64, |sum, site| sum.saturating_add(site.calls));
    let long = recording.threads.iter().fold(0_u64, |sum, thread| sum.saturating_add(thread.long_calls));
    let ns = calls.saturating_sub(with_site) as f64 * SHORT
        + with_site.saturating_sub(long) as f64 * WITH_SITE
        + long as f64 * (LONG + 2.0 * recording.calibration.timer_ns);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    let ns = ns as u64;
    ns
}

/// Returns what a recording lacks, as sentences.
fn missing(not: &NotRecorded) -> Vec<String> {
    [
        (not.events_left_out, "calls of 16 KiB and more are counted, but not in the trace"),
        (not.events_torn, "calls were being written to the trace when the process ended"),
        (not.threads_without_table, "threads share a table, because the others were used up"),
        (not.calls_without_site, "calls of 2 KiB and more have no site, because the table was full"),
        (not.modules_without_entry, "libraries have no entry, because the table was full"),
        (not.calls_lost, "calls are not counted: forked children begin to record late"),
        (not.entries_damaged, "entries make no sense: the file is damaged"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}."))
    .collect()
}

/// Returns the text, or its first characters and an ellipsis.
fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent > 0.0 && percent < 0.1 { "< 0.1 %".into() } else { format!("{percent:.1} %") }
}

fn percent_of(share: Option<f64>) -> String {
    share.map_or_else(|| "–".into(), percent)
}

/// Returns the shares of hot, cold and fresh bytes of a site.
fn temperatures(site: &Site) -> [String; 3] {
    let of = [site.hot, site.cold, site.fresh].map(|Timed { bytes, .. }| bytes as f64);
    let all: f64 = of.iter().sum();
    of.map(|bytes| if all > 0.0 { format!("{:.0} %", 100.0 * bytes / all) } else { "–".into() })
}

/// Returns the recording as text of at most 80 columns.
#[must_use]
pub fn text(profile: &CopyProfile) -> String {
    let mut out = String::new();
    for line in profile.process_lines() {
        out.extend(wrapped(&line, 79).iter().map(|line| format!("{line}\n")));
    }
    let machine = &profile.machine;
    let _ = writeln!(out, "{}, Linux {}\n", shortened(&printable(&machine.cpu), 50), printable(&machine.kernel));
    if profile.summary.calls == 0 {
        out.push_str(
            "No calls of memcpy, memmove, mempcpy, memset or memcmp were seen.\nStatic programs, Go, and Java's own \
             copies do not call these functions.\n",
        );
        return out;
    }
    let _ = writeln!(out, "{}\n{}\n{}", operations(profile), sizes(profile), sites(profile));
    for remark in profile.remarks() {
        out.extend(wrapped(&remark, 79).iter().map(|line| format!("{line}\n")));
    }
    out
}

/// Returns the calls in the tables of Intel's DTO, which count calls that a device could execute. Each row is a class
/// of the recording, four for each power of two; DTO's own rows are 4 KiB wide. Mean times are those of the timed
/// calls.
#[must_use]
pub fn dto(profile: &CopyProfile) -> String {
    let mut rows: BTreeMap<u64, DtoRow> = BTreeMap::new();
    let mut timed: BTreeMap<u64, [Timed; 4]> = BTreeMap::new();
    for class in &profile.calls_by_size {
        let column = match class.operation {
            Operation::Memset => 0,
            Operation::Memcpy | Operation::Mempcpy => 1,
            Operation::Memmove => 2,
            Operation::Memcmp => 3,
            // DTO does not see them.
            Operation::StringCopy => continue,
        };
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let row = rows.entry(class.from).or_insert_with(|| DtoRow {
            first: size(class.from),
            last: Some(size(class.to)),
            calls: [[0; 4]; 3],
            mean_us: [[0.0; 4]; 3],
            bytes: [0; 3],
            failures: [0; 3],
        });
        row.calls[0][column] = row.calls[0][column].saturating_add(class.calls);
        row.bytes[0] = row.bytes[0].saturating_add(class.bytes);
        let sum = &mut timed.entry(class.from).or_default()[column];
        sum.calls = sum.calls.saturating_add(class.timed_calls);
        sum.ns = sum.ns.saturating_add(class.timed_ns);
        row.mean_us[0][column] = sum.ns as f64 / sum.calls.max(1) as f64 / 1e3;
    }
    let run_ns = profile.processes.iter().map(|process| process.process.noted_ns).max().unwrap_or(0);
    dto_text(&DtoStatistics { run_time: Duration::from_nanos(run_ns), rows: rows.into_values().collect() })
}

/// Names the cells of [`operation_cells`].
const OPERATION_COLUMNS: [&str; 5] = ["function", "calls", "of calls", "bytes", "of bytes"];

fn operation_cells(row: &OperationShare) -> [String; 5] {
    [
        row.operation.name().to_owned(),
        row.calls.to_string(),
        percent_of(row.share_of_calls),
        units::size(row.bytes),
        percent_of(row.share_of_bytes),
    ]
}

fn operations(profile: &CopyProfile) -> Table {
    let mut aligned = OPERATION_COLUMNS.map(|column| (column, Align::Right));
    aligned[0].1 = Align::Left;
    let mut table = Table::new(&aligned);
    profile.summary.by_operation.iter().for_each(|row| table.row(operation_cells(row)));
    table
}

fn sizes(profile: &CopyProfile) -> Table {
    let mut table = Table::new(&[
        ("size from", Align::Right),
        ("calls", Align::Right),
        ("of calls", Align::Right),
        ("bytes", Align::Right),
        ("of bytes", Align::Right),
    ]);
    for row in &profile.summary.by_size {
        table.row([
            units::size(row.from),
            row.calls.to_string(),
            percent_of(row.share_of_calls),
            units::size(row.bytes),
            percent_of(row.share_of_bytes),
        ]);
    }
    table
}

fn sites(profile: &CopyProfile) -> Table {
    let mut table = Table::new(&[
        ("call site, 2 KiB and more", Align::Left),
        ("calls", Align::Right),
        ("bytes", Align::Right),
        ("hot", Align::Right),
        ("cold", Align::Right),
        ("fresh", Align::Right),
    ]);
    for NamedSite { name, site, .. } in profile.sites.iter().take(MOST_SITES) {
        let [hot, cold, fresh] = temperatures(site);
        table.row([shortened(name, NAME), site.calls.to_string(), units::size(site.bytes), hot, cold, fresh]);
    }
    let others = profile.sites.get(MOST_SITES..).unwrap_or_default();
    if !others.is_empty() {
        let sum =
            |field: fn(&Site) -> u64| others.iter().fold(0_u64, |sum, other| sum.saturating_add(field(&other.site)));
        table.row([
            format!("{} other sites", others.len()),
            sum(|site| site.calls).to_string(),
            units::size(sum(|site| site.bytes)),
        ]);
    }
    table
}

/// Returns one line for each site.
#[must_use]
pub fn csv(profile: &CopyProfile) -> String {
    csv::rows(&profile.sites)
}

/// Returns a page.
#[must_use]
pub fn html(profile: &CopyProfile) -> String {
    let machine = &profile.machine;
    let facts = [
        ("processor", printable(&machine.cpu)),
        ("logical processors", machine.logical_cpus.to_string()),
        ("Linux", printable(&machine.kernel)),
        ("processes", profile.processes.len().to_string()),
        ("threads", profile.threads.to_string()),
        ("calls", profile.summary.calls.to_string()),
        ("bytes", units::size(profile.summary.bytes)),
    ];
    let opening = "What a program copied, filled and compared with the C library's functions.";
    let mut page = Page::with_facts("telpher record", opening, &facts, &[]);
    for line in profile.process_lines() {
        page.small(&line);
    }
    page.section("Calls by function and size", &profile.remarks().join(" "));
    let bars = |value: fn(&telpher_recording::SizeShare) -> f64| -> Vec<Bar> {
        profile.summary.by_size.iter().filter(|row| row.from > 0).map(|row| (row.from, vec![(0, value(row))])).collect()
    };
    page.charts([
        Figure {
            caption: "Calls by size".into(),
            svg: chart::bars(&bars(|row| 100.0 * row.share_of_calls.unwrap_or(0.0)), &[], "calls, %", units::trimmed),
            legend: Vec::new(),
        },
        Figure {
            caption: "Bytes by size".into(),
            svg: chart::bars(&bars(|row| 100.0 * row.share_of_bytes.unwrap_or(0.0)), &[], "bytes, %", units::trimmed),
            legend: Vec::new(),
        },
    ]);
    let operations = profile.summary.by_operation.iter().map(|row| operation_cells(row).into());
    page.table(&OPERATION_COLUMNS.map(String::from), operations);
    page.section(
        "Call sites",
        "Places from which calls of 2 KiB and more came. Hot, cold and fresh are shares of the bytes of timed calls: \
         data in the caches, in memory, and in pages that the kernel had to provide.",
    );
    page.table(
        &["site", "file", "functions", "calls", "bytes", "overlapping", "hot", "cold", "fresh"].map(String::from),
        profile.sites.iter().take(200).map(|NamedSite { name, file, site, .. }| {
            let functions: Vec<&str> = site.operations.iter().map(|of| Operation::name(of.operation)).collect();
            let overlapping = site.overlaps_down.bytes.saturating_add(site.overlaps_up.bytes);
            let [hot, cold, fresh] = temperatures(site);
            vec![
                name.clone(),
                file.rsplit('/').next().unwrap_or_default().to_owned(),
                functions.join(", "),
                site.calls.to_string(),
                units::size(site.bytes),
                if overlapping > 0 { units::size(overlapping) } else { "–".into() },
                hot,
                cold,
                fresh,
            ]
        }),
    );
    page.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use telpher_recording::{Call, CurvePoint, Curves, Limits, ModuleMapping, Start, Writer, bytes_needed};

    /// A program with many sites; the first has cold data and most bytes.
    fn recording(sites: usize) -> Recording {
        let limits = Limits { threads: 2, sites: 64, modules: 2, trace_blocks: 1 };
        let words: Vec<AtomicU64> = (0..bytes_needed(limits).unwrap() / 8).map(|_| AtomicU64::new(0)).collect();
        let copy = &[CurvePoint { len: 4096, hot_ps: 10, cold_ps: 100, fresh_ps: 1000 }];
        let curves = Curves { copy, ..Curves::default() };
        let start = Start {
            limits,
            pid: 4711,
            program: b"/usr/bin/program",
            arguments: b"program\0\x1b[31mred\0",
            cpu: "A processor",
            kernel: "6.1.0",
            tsc_hz: 1_000_000_000,
            curves,
            ..Start::default()
        };
        let writer = Writer::over(&words, &start).unwrap();
        writer.add_module(&ModuleMapping {
            path: b"/usr/lib/a-library-with-a-long-name.so.1",
            build_id: &[1],
            addresses: 0x1000..0x9000,
        });
        let thread = writer.thread(1);
        for site in 0..sites {
            let _ = thread.count(Operation::Memset, 7 * site);
            let _ = thread.count(Operation::StringCopy, if site == 0 { 5000 } else { 10 });
            let call = Call {
                operation: Operation::Memmove,
                destination: 0x10_0000,
                source: 0x10_0040,
                len: if site == 0 { 1 << 20 } else { 20_000 },
                return_address: 0x2000 + site,
            };
            let begun = thread.begin(&call, || 0);
            // 200 ps per byte: cold.
            thread.end(&call, begun, || call.len as u64 / 5, None);
        }
        writer.note_time(1_000_000_000, 500_000_000);
        let file: Vec<u8> = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        Recording::read(&file).unwrap()
    }

    fn profile(sites: usize) -> CopyProfile {
        let recording = recording(sites);
        let names = (0..recording.sites.len()).map(|at| format!("a_function_of_some_length_{at}+0x1c")).collect();
        CopyProfile::new(&recording, names)
    }

    #[test]
    fn a_terminal_shows_functions_sizes_and_the_largest_sites() {
        let text = text(&profile(20));
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for expected in [
            "memmove",
            "1 MiB",
            "a_function_of_some_length_0+0x1c",
            "8 other sites",
            "100.0 % cold",
            "overlap in 100.0 % of these bytes: 20 copies to lower",
            "0 to higher ones; 0",
            "20 over less than 4 KiB",
            "Multiples of 64 are 100.0 % of their destinations",
        ] {
            assert!(words.contains(expected), "no {expected:?} in {text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(!text.contains('\x1b'), "control characters of the program are not printed");
    }

    #[test]
    fn copies_of_strings_are_shown_as_not_offloadable() {
        let profile = profile(3);
        let expected = StringCopies { calls: 3, bytes: 5020, long_calls: 1, long_bytes: 5000 };
        assert_eq!(profile.not_offloadable, Some(expected));
        assert!(text(&profile).contains("Not offloadable here: strcpy"), "{}", text(&profile));
        assert_eq!(super::CopyProfile::new(&recording(0), Vec::new()).not_offloadable, None);
    }

    #[test]
    fn a_recording_without_calls_says_why_there_may_be_none() {
        assert!(text(&profile(0)).contains("Static programs, Go"));
        assert!(html(&profile(0)).contains("</html>"));
    }

    #[test]
    fn csv_and_json_have_the_names_and_the_figures() {
        let profile = profile(3);
        let csv = csv(&profile);
        assert_eq!(csv.lines().count(), 4);
        let header: Vec<&str> = csv.lines().next().unwrap_or_default().split(',').collect();
        assert!(["name", "file", "calls", "bytes", "cold.bytes"].iter().all(|column| header.contains(column)), "{csv}");
        let json = serde_json::to_value(&profile).unwrap();
        assert_eq!(json["sites"][0]["bytes"], 1 << 20);
        assert_eq!(json["sites"][0]["build_id"], "01");
        assert_eq!(
            (&json["details"]["overlaps_down"]["below_page"], &json["details"]["destinations"]["page"]),
            (&3.into(), &3.into())
        );
        let gaps = json["details"]["gaps"].as_array().unwrap().iter().map(|gap| gap["count"].as_u64().unwrap());
        assert_eq!(gaps.sum::<u64>(), 2);
        assert_eq!(json["processes"][0]["cpu_ns"], 500_000_000);
        assert!(json["share_of_cpu_time"].as_f64().unwrap() > 0.0);
        assert_eq!(json["format"], telpher_recording::VERSION);
        let thread = &json["calls_by_thread"][0];
        assert_eq!((&thread["pid"], &thread["id"], &thread["long_calls"]), (&4711.into(), &1.into(), &3.into()));
        let classes = json["calls_by_size"].as_array().unwrap();
        let moved = classes.iter().find(|class| class["operation"] == "memmove" && class["from"] == 20_480);
        assert!(moved.is_none(), "20,000 bytes are in the class before");
        let moved = classes.iter().find(|class| class["operation"] == "memmove" && class["from"] == 1 << 20).unwrap();
        assert_eq!((&moved["calls"], &moved["to"]), (&1.into(), &((5 << 18) - 1).into()));
    }

    #[test]
    fn the_tables_of_dto_have_a_row_for_each_size_class() {
        let text = dto(&profile(3));
        let row = |first: &str| text.lines().find(|line| line.trim_start().starts_with(first)).unwrap();
        let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(text.lines().next(), Some("DTO Run Time: 1000 ms"));
        assert_eq!(cells(row("1048576-"))[2..7], ["0", "0", "1", "0", "1048576"]);
        assert_eq!(cells(row("16384-"))[2..7], ["0", "0", "2", "0", "40000"]);
        // A mebibyte at 200 ps a byte, 20,000 bytes likewise.
        let times = text.split("Latency (us)").nth(1).unwrap();
        let mean = |first: &str| times.lines().find(|line| line.trim_start().starts_with(first)).unwrap();
        assert_eq!(cells(mean("1048576-"))[4], "209.72");
        assert_eq!(cells(mean("16384-"))[4], "4.00");
        assert!(!text.contains(" 5000 "), "DTO sees no copies of strings");
    }

    #[test]
    fn time_beyond_the_processor_time_is_explained() {
        let mut profile = profile(3);
        profile.share_of_cpu_time = Some(7.07);
        assert!(text(&profile).contains("threads waited"), "{}", text(&profile));
        assert!(!text(&profile).contains("707"), "{}", text(&profile));
    }

    #[test]
    fn the_page_lists_sites_and_fetches_nothing() {
        let html = html(&profile(3));
        assert!(html.contains("a_function_of_some_length_2+0x1c") && html.contains("a-library-with-a-long-name.so.1"));
        assert!(!html.contains("http://") || html.contains("http://www.w3.org"));
        assert!(!html.contains("<script"));
    }
}
