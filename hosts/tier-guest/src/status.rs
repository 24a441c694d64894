//! The status that a process reports.

use crate::stress_moves::Shuffled;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use telpher_os::TransparentHugePages;
use telpher_tier::{Heap, HotRow, Manager, ManagerOptions, Mechanism, Report, SourceKind, Unmoved};
use telpher_tier_wire::{
    Counts, HeatRow, Identity, Ignored, Move, Point, Settings, State, StateFolder, TierState, Tracking, VERSION,
};

/// The most recent moments that are reported. Source: chosen, two minutes of half seconds.
const POINTS: usize = 240;

/// The run's folder. A process of another user than the run's cannot access it, and a daemon may outlive both.
#[derive(Debug)]
enum RunFolder {
    /// Open, in a table of descriptors that the program does not see.
    Open(StateFolder),
    /// Opened for each report, because the descriptor would be among the program's.
    Known(PathBuf, Identity),
    None,
}

impl RunFolder {
    fn open(path: &Path) -> RunFolder {
        StateFolder::open(path).map_or(RunFolder::None, RunFolder::Open)
    }

    /// Closes the descriptor.
    fn closed(self, path: &Path) -> RunFolder {
        match self {
            RunFolder::Open(folder) => {
                folder.identity().map_or(RunFolder::None, |identity| RunFolder::Known(path.to_owned(), identity))
            }
            other => other,
        }
    }

    fn write(&self, state: &State) -> io::Result<()> {
        match self {
            RunFolder::Open(folder) => folder.write(state),
            RunFolder::Known(path, identity) => StateFolder::open_again(path, *identity)?.write(state),
            RunFolder::None => Ok(()),
        }
    }

    /// Returns whether the process is paused; only a managed process has pages that move.
    fn is_paused(&self, pid: u32) -> bool {
        matches!(self, RunFolder::Open(folder) if folder.is_paused(pid))
    }
}

/// The status of this process, and its sources.
#[derive(Debug)]
pub(crate) struct Status {
    folder: RunFolder,
    begun: Instant,
    state: State,
    heap: Option<Heap>,
    /// None if all memory is moved to and fro.
    manager: Option<Manager>,
    /// The pages moved if all memory is moved to and fro.
    shuffled: Option<Arc<Shuffled>>,
    samples: Samples,
}

/// How much memory was on each tier over time.
#[derive(Debug)]
struct Samples {
    /// The time of the last sample, and of the next.
    last: Instant,
    due: Instant,
    /// The sum of pages times microseconds for each tier, and the microseconds.
    page_micros: Vec<u128>,
    micros: u128,
}

/// The inverse of the fraction of a core that samples may take. Source: chosen.
const SAMPLE_SHARE: u32 = 200;

impl Status {
    /// Creates the status of a process whose memory is not managed yet.
    pub(crate) fn new(settings: &Settings) -> Status {
        let words = std::fs::read("/proc/self/cmdline").unwrap_or_default();
        let words = words.split(|&byte| byte == 0).filter(|word| !word.is_empty());
        let command = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let tier = |tier: &telpher_tier_wire::Tier| TierState {
            name: tier.name.clone(),
            node: tier.node,
            bytes: tier.bytes,
            ..TierState::default()
        };
        let state = State {
            version: VERSION,
            pid: std::process::id(),
            command,
            tiers: settings.tiers.iter().map(tier).collect(),
            home: settings.tiers.get(usize::from(settings.home)).map(|tier| tier.name.clone()).unwrap_or_default(),
            transparent_huge_pages: TransparentHugePages::setting().to_string(),
            ..State::default()
        };
        let begun = Instant::now();
        let samples = Samples { last: begun, due: begun, page_micros: vec![0; settings.tiers.len()], micros: 0 };
        let folder = RunFolder::open(&settings.folder);
        Status { folder, begun, state, heap: None, manager: None, shuffled: None, samples }
    }

    /// Starts the manager of the process.
    ///
    /// # Errors
    /// Why the memory is not managed.
    pub(crate) fn begin(&mut self, heap: &Heap, settings: &Settings) -> Result<(), String> {
        // With shuffling, a requested source only observes.
        if !settings.shuffle || settings.source.is_some() {
            let mut options = ManagerOptions::new(heap);
            options.moves = !settings.shuffle;
            if let Some(name) = &settings.source {
                let named = SourceKind::ALL.into_iter().find(|kind| kind.name() == name);
                options.sources = Some(vec![named.ok_or_else(|| format!("there is no source \"{name}\""))?]);
            }
            if let Some(limit) = settings.limit {
                options.policy.bytes_per_second = limit;
            }
            self.manager = Some(Manager::start(heap, options).map_err(|error| telpher_os::chain(&error))?);
        }
        self.state.mechanism = match heap.mechanism() {
            Mechanism::Exchange => "UFFDIO_MOVE, copy, UFFDIO_MOVE".into(),
            Mechanism::MovePages => "move_pages(2)".into(),
            other => format!("{other:?}"),
        };
        self.heap = Some(heap.clone());
        Ok(())
    }

    /// Shows the pages moved to and fro from now on.
    pub(crate) fn shows(&mut self, shuffled: Arc<Shuffled>) {
        self.shuffled = Some(shuffled);
    }

    /// Called when the program ends: pauses the manager, which releases DAMON.
    pub(crate) fn end(&self) {
        if let Some(manager) = &self.manager {
            manager.pause();
        }
    }

    /// Creates the status of a process that is not managed, with the reason.
    pub(crate) fn refused(settings: &Settings, why: &str) -> Status {
        let mut status = Status::new(settings);
        status.state.error = Some(why.to_owned());
        status.folder = status.folder.closed(&settings.folder);
        status
    }

    /// Sets the mappings that the last scan ignored.
    pub(crate) fn ignored(&mut self, ignored: Vec<Ignored>) {
        self.state.ignored = ignored;
    }

    /// Samples how much memory is on each tier, if that is due.
    pub(crate) fn sample(&mut self) {
        let start = Instant::now();
        let Some(heap) = self.heap.clone().filter(|_| self.samples.due <= start) else { return };
        let ranges = heap.ranges();
        let bytes = ranges.iter().map(|range| range.end - range.start).sum();
        let pages = residency(&heap, ranges, self.state.tiers.len());
        self.note(&pages, bytes);
        self.samples.due = start + start.elapsed() * SAMPLE_SHARE;
    }

    /// Adds a sample: the pages on each tier, and the managed bytes.
    fn note(&mut self, pages: &[u64], bytes: u64) {
        let Samples { last, page_micros, micros, .. } = &mut self.samples;
        let before = std::mem::replace(last, Instant::now());
        let passed = last.saturating_duration_since(before).as_micros();
        *micros += passed;
        for ((tier, &pages), sum) in self.state.tiers.iter_mut().zip(pages).zip(page_micros) {
            *sum += u128::from(pages) * passed;
            tier.most_pages = tier.most_pages.max(pages);
            tier.mean_pages = sum.checked_div(*micros).and_then(|mean| u64::try_from(mean).ok()).unwrap_or(pages);
        }
        self.state.most_mapped_bytes = self.state.most_mapped_bytes.max(bytes);
    }

    /// Checks whether the process is traced or to be paused, and holds all pages then. A change is reported at once,
    /// after it has taken effect.
    pub(crate) fn hold(&mut self, since_last: Duration) {
        let Some(heap) = self.heap.clone() else { return };
        if self.state.tracer.is_some() || self.state.paused {
            self.state.held_seconds += since_last.as_secs_f64();
        }
        let tracer = heap.tracer();
        let paused = self.folder.is_paused(self.state.pid);
        let is_new = (tracer, paused) != (self.state.tracer, self.state.paused);
        if paused != self.state.paused && heap.hold(paused).is_err() {
            return;
        }
        (self.state.tracer, self.state.paused) = (tracer, paused);
        if is_new {
            self.report(false);
        }
    }

    /// Reports the status. This changes nothing in the program's memory.
    pub(crate) fn report(&mut self, ended: bool) {
        self.state.seconds = self.begun.elapsed().as_secs_f64();
        self.state.ended = ended;
        if let Some(heap) = self.heap.clone() {
            self.update(&heap);
        }
        // The folder is removed when the run ends, which a daemon may outlive.
        let _ = self.folder.write(&self.state);
    }

    fn update(&mut self, heap: &Heap) {
        let ranges = heap.ranges();
        self.state.mappings = ranges.len() as u64;
        self.state.mapped_bytes = ranges.iter().map(|range| range.end - range.start).sum();
        let report = self.manager.as_ref().and_then(|manager| manager.report().ok());
        let pages = match &report {
            Some(report) => report.tiers.iter().map(|tier| tier.pages).collect(),
            None => residency(heap, ranges, self.state.tiers.len()),
        };
        self.note(&pages, self.state.mapped_bytes);
        for ((tier, &pages), free) in self.state.tiers.iter_mut().zip(&pages).zip(heap.free()) {
            (tier.pages, tier.free) = (pages, free);
        }
        let stats = heap.stats();
        let before = (self.state.counts.promoted, self.state.counts.demoted);
        let (promoted, demoted) = match (&self.shuffled, &report) {
            (Some(shuffled), _) => shuffled.by_direction(),
            (None, Some(report)) => (report.promoted, report.demoted),
            (None, None) => before,
        };
        self.state.counts = Counts {
            moved: stats.moved.pages,
            huge: stats.moved.huge,
            stayed: stayed(&stats.moved.left),
            exchanges: stats.exchanges,
            dropped: stats.dropped,
            forks: stats.forks,
            lost: stats.lost,
            moving_seconds: stats.moving.as_secs_f64(),
            copying_seconds: stats.copying.as_secs_f64(),
            promoted,
            demoted,
        };
        if let Some(report) = report {
            self.found(&report);
        }
        let (promoted, demoted) = (promoted.saturating_sub(before.0), demoted.saturating_sub(before.1));
        let points = &mut self.state.points;
        if points.len() == POINTS {
            points.remove(0);
        }
        points.push(Point { seconds: self.state.seconds, pages, promoted, demoted });
    }

    /// Adds what the manager has found.
    fn found(&mut self, report: &Report) {
        let names: Vec<&str> = report.sources.iter().map(|source| source.name).collect();
        let failed = report.failed.iter().chain(report.sources.iter().filter_map(|source| source.failed.as_ref()));
        let resting = report.opinion.resting_until.filter(|&until| until > report.time);
        let resting = resting.map(|_| "pages came back before their moves had paid off".to_string());
        let known = report.tiers.iter().flat_map(|tier| tier.heats).sum();
        let hot = report.tiers.iter().skip(1).map(|tier| tier.hot).sum();
        self.state.tracking = Tracking {
            source: names.join(", "),
            without_damon: report.without_damon.clone(),
            lost: report.sources.iter().map(|source| source.cost.lost).sum(),
            core_share: report.tracking_share(),
            faults: report.sources.iter().map(|source| source.cost.faults).sum(),
            waited_seconds: report.sources.iter().map(|source| source.cost.waited.as_secs_f64()).sum(),
            moving_share: report.moving.cpu.as_secs_f64() / report.awake.as_secs_f64().max(1e-9),
            holds: failed.cloned().reduce(|one, other| format!("{one}; {other}")).or(resting),
            most_known: self.state.tracking.most_known.max(known),
            most_hot: self.state.tracking.most_hot.max(hot),
        };
        let row = |row: &HotRow| HeatRow {
            start: row.range.start,
            end: row.range.end,
            heat: f32::from(row.heat.unwrap_or(0)) / 255.0,
            pages: row.tiers.clone(),
        };
        self.state.heat = report.map.iter().map(row).collect();
    }
}

/// Returns the pages of these ranges on each of these tiers.
fn residency(heap: &Heap, ranges: Vec<Range<u64>>, tiers: usize) -> Vec<u64> {
    let mut pages = vec![0; tiers];
    for range in ranges {
        // Pages whose tables cannot be read count as 0.
        let on = heap.residency(range).unwrap_or_default();
        pages.iter_mut().zip(on).for_each(|(pages, on)| *pages += on);
    }
    pages
}

/// Returns the pages that stayed, by reason.
fn stayed(left: &Unmoved) -> Vec<Move> {
    let reasons = [
        ("there already", left.already),
        ("pinned, or shared with a process", left.pinned),
        ("of a mapping that cannot be moved", left.unsupported),
        ("gone meanwhile", left.gone),
        ("no room", left.no_room),
        ("copy failed", left.failed),
        ("held in place", left.held),
    ];
    let some = reasons.into_iter().filter(|(_, pages)| *pages > 0);
    some.map(|(what, pages)| Move { what: what.into(), pages }).collect()
}
