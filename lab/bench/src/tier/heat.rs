//! The cost of page scanning for a program, and how well it distinguishes hot pages from cold ones.

use super::shuttle::{HOME, PAGE};
use crate::BenchError;
use crate::ffi;
use crate::goal::{Goal, Row};
use crate::measure::median;
use crate::questions::Experiment;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use telpher_mem::PageSize;
use telpher_os::{Random, TransparentHugePages};
use telpher_report::machine::Machine;
use telpher_tier::{Heap, HeapOptions, Manager, ManagerOptions, SourceKind, TierOptions};

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "heat",
    question: "What does page scanning cost random writes (GUPS) and random reads, \
               and does it distinguish hot from cold pages?",
    cores: 2,
    weight: 4.0,
    measure,
};

/// A kind of memory access, and the scanning that observes it.
struct Case {
    /// The beginning of its row names.
    name: &'static str,
    /// The sources: those that a manager uses by default without DAMON, or a single one.
    sources: &'static [SourceKind],
    pages: PageSize,
    writes: bool,
    /// Accesses to hot pages, of a thousand.
    hot_uses: usize,
    /// Bytes scanned together, in the time `per_unit`.
    unit: usize,
    per_unit: Duration,
    /// Maximum and minimum number of units.
    most: u128,
    least: u128,
    /// Whether its numbers have goals.
    has_goal: bool,
}

/// Windows track writes to small pages. Traps serve memory that is only read, in small or huge pages, and watch so few
/// pages that the memory must be small. Hence the small share of cold reads: with a tenth of the reads, each cold page
/// would be read ten thousand times a second, which is hot elsewhere.
///
/// Source of the times: measured, with the time that `ManagerOptions::share` allows each source. A window takes some 50
/// ms, a batch of 64 small pages some 30, a batch of 4 huge ones some 15 (Intel Xeon and AMD EPYC, Linux 6.18,
/// 2026-11-23).
const CASES: [Case; 3] = [
    Case {
        name: "random writes",
        sources: &[SourceKind::Windows, SourceKind::Traps],
        pages: PageSize::Small,
        writes: true,
        hot_uses: HOT_WRITES,
        unit: WINDOW,
        per_unit: Duration::from_millis(60),
        most: MOST,
        least: LEAST,
        has_goal: true,
    },
    Case {
        name: "random reads of huge pages",
        sources: &[SourceKind::Traps],
        pages: PageSize::Huge,
        writes: false,
        hot_uses: HOT_READS,
        unit: WINDOW,
        per_unit: Duration::from_millis(5),
        most: MOST,
        least: 20,
        has_goal: false,
    },
    Case {
        name: "random reads of small pages",
        sources: &[SourceKind::Traps],
        pages: PageSize::Small,
        writes: false,
        hot_uses: HOT_READS,
        unit: 64 * PAGE,
        per_unit: Duration::from_millis(30),
        most: 128,
        least: 8,
        has_goal: false,
    },
];

/// Number of threads that write.
const WRITERS: usize = 2;
/// One page in `ONE_IN` is hot; hot pages get `HOT_WRITES` of a thousand writes. Source: HeMem's GUPS with a hot set
/// (Raybuck et al., SOSP 2021).
const ONE_IN: usize = 10;
const HOT_WRITES: usize = 900;
/// The same number for reads, see [`CASES`]. Source: chosen.
const HOT_READS: usize = 999;
/// Written memory is this many times the scanned memory, as if the manager had run this many times as long. The pages
/// must behave like pages of a large memory: in a few MiB, cold pages are written a thousand times a second, which is
/// hot elsewhere. Source: chosen.
const AROUND: usize = 8;
/// Maximum number of adjacent hot pages. Source: chosen.
const LONGEST: usize = 64;
/// Bytes of a window, and the maximum (256 MiB) and minimum number of windows.
const WINDOW: usize = 2 << 20;
const MOST: u128 = 128;
const LEAST: u128 = 4;
/// Rounds over all windows before the measurement, and during it. Source: chosen; an average has eight samples.
const BEFORE: u32 = 5;
const ROUNDS: u32 = 3;
/// Turns without scanning, and as many with it. Source: chosen.
const TURNS: u32 = 9;
/// Upper limit of the cost in percent of a core, lower limit of the remaining write rate, and lower limit of the
/// precision in percent. Source: goals of the tracker.
const SHARE: f64 = 2.0;
const LEFT: f64 = 0.9;
const PRECISION: f64 = 95.0;

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    // Small pages would say nothing about huge ones; the remark at the beginning of the report says that they are left
    // out.
    let off = TransparentHugePages::setting().are_off();
    for case in CASES.iter().filter(|case| case.pages != PageSize::Huge || !off) {
        rows.extend(measure_case(case, machine, time / u32::try_from(CASES.len()).expect("some cases"))?);
    }
    Ok(rows)
}

fn measure_case(case: &Case, machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let tier = |name: &str, bytes| TierOptions { name: name.into(), node: None, bytes };
    let options = HeapOptions::new(vec![tier("fast", 0), tier("home", 0)]);
    let mut manager_options = ManagerOptions::new(&Heap::new(options.clone())?);
    manager_options.sources = Some(case.sources.to_vec());
    // As many units as the time allows to scan this often; turns with scanning alternate with turns without.
    let round = (BEFORE + 2 * ROUNDS) * case.per_unit;
    let units = (time.as_nanos() / round.as_nanos()).clamp(case.least, case.most);
    let bytes = usize::try_from(units).unwrap_or(usize::MAX).saturating_mul(case.unit).next_multiple_of(WINDOW);
    // The fast tier has room for twice the hot memory.
    let fast = bytes as u64 * 2 / ONE_IN as u64;
    manager_options.policy.capacity = vec![Some(fast), None];
    manager_options.moves = false;
    let heap = Heap::new(HeapOptions { tiers: vec![tier("fast", fast), tier("home", 0)], home: HOME, ..options })?;
    let mut arena = heap.arena(bytes, case.pages)?;
    let start = arena.addresses().start;
    // Makes every page present.
    arena.fill(0);
    // The hot pages differ in each run, so that no constant can be tuned to them.
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| u64::from(time.subsec_nanos()));
    let hot = match case.pages {
        PageSize::Small => hot_pages(bytes / PAGE, seed),
        PageSize::Huge => hot_huge_pages(bytes / WINDOW, seed),
    };
    let words = ffi::atomics(&mut arena);
    let around: Vec<AtomicU64> = if case.writes { zeros((AROUND - 1) * words.len()) } else { Vec::new() };
    let all: Vec<&[AtomicU64]> = [words].into_iter().chain(around.chunks(words.len())).collect();
    let manager = Manager::start(&heap, manager_options.clone())?;
    let looked = case.per_unit * u32::try_from(units).unwrap_or(u32::MAX);
    let (stop, writes) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; WRITERS]);
    let rates = thread::scope(|scope| {
        for (number, writes) in writes.iter().enumerate() {
            let (stop, hot, all) = (&stop, &hot, &all);
            scope.spawn(move || {
                let _ = telpher_os::run_on(&[machine.core(number % machine.cores.len())]);
                if case.writes {
                    write(all, hot, case.hot_uses, number, stop, writes);
                } else {
                    read(words, hot, case.hot_uses, number, stop, writes);
                }
            });
        }
        // Relaxed, as below: counters for the report only.
        let done = || writes.iter().map(|writes| writes.load(Ordering::Relaxed)).sum::<u64>();
        let rate = |time: Duration| {
            let (begun, before) = (Instant::now(), done());
            thread::sleep(time);
            (done() - before) as f64 / begun.elapsed().as_secs_f64()
        };
        let _ = rate(looked * BEFORE);
        let turn = looked * ROUNDS / TURNS;
        let rates: Vec<[f64; 2]> = (0..TURNS)
            .map(|number| {
                let one = |looks: bool| {
                    if looks {
                        manager.resume();
                    } else {
                        manager.pause();
                    }
                    rate(turn)
                };
                // The order alternates.
                let begins = number % 2 == 1;
                let (first, second) = (one(begins), one(!begins));
                if begins { [second, first] } else { [first, second] }
            })
            .collect();
        stop.store(true, Ordering::Relaxed);
        rates
    });
    // Relaxed: all threads have been joined.
    let sum = all.iter().copied().flatten().fold(0_u64, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)));
    if case.writes && sum != writes.iter().map(|writes| writes.load(Ordering::Relaxed)).sum::<u64>() {
        return Err(BenchError::Wrong { op: "write".into(), route: EXPERIMENT.name.into() });
    }
    let found = Found::of(&manager, start, &hot);
    let report = manager.stop()?;
    let faults = report.sources.iter().map(|source| source.cost.faults).sum::<u64>();
    let waited = report.sources.iter().map(|source| source.cost.waited).sum::<Duration>();
    let mut rows = rows(case, bytes, &rates, &found, report.tracking_share());
    if faults > 0 {
        let how = format!("{faults} of them in {:.1} s that were looked at", report.awake.as_secs_f64());
        let wait = waited.as_secs_f64() * 1e6 / faults as f64;
        rows.push(Row::new(format!("{}: a fault takes", case.name), wait, "µs", None, how));
    }
    Ok(rows)
}

/// The hot pages, in random runs.
struct Hot {
    is_hot: Vec<bool>,
    /// Numbers of the hot pages, and of the cold ones.
    hot: Vec<usize>,
    cold: Vec<usize>,
}

fn hot_pages(pages: usize, seed: u64) -> Hot {
    let mut random = Random::new(seed);
    let mut is_hot = vec![false; pages];
    let mut left = pages / ONE_IN;
    while left > 0 {
        let (at, len) = (below(&mut random, pages), 1 + below(&mut random, LONGEST));
        for page in is_hot[at..].iter_mut().take(len).filter(|hot| !**hot).take(left) {
            *page = true;
            left -= 1;
        }
    }
    let (hot, cold) = (0..pages).partition(|&page| is_hot[page]);
    Hot { is_hot, hot, cold }
}

/// Chooses random huge pages; all small pages in them are hot.
fn hot_huge_pages(huge: usize, seed: u64) -> Hot {
    let mut random = Random::new(seed);
    const IN_HUGE: usize = WINDOW / PAGE;
    let mut hot = vec![false; huge];
    let mut left = (huge / ONE_IN).max(1);
    while left > 0 {
        let at = below(&mut random, huge);
        left -= usize::from(!std::mem::replace(&mut hot[at], true));
    }
    let is_hot: Vec<bool> = hot.iter().flat_map(|&hot| [hot; IN_HUGE]).collect();
    let (hot, cold) = (0..is_hot.len()).partition(|&page| is_hot[page]);
    Hot { is_hot, hot, cold }
}

/// Returns a random number below `bound`.
fn below(random: &mut Random, bound: usize) -> usize {
    usize::try_from(random.below(bound as u64)).expect("less than a length")
}

/// Returns `words` words of zero.
fn zeros(words: usize) -> Vec<AtomicU64> {
    std::iter::repeat_with(AtomicU64::default).take(words).collect()
}

/// Adds to random words until `stop`, and counts the additions in `writes`. All pieces have the same hot pages.
fn write(pieces: &[&[AtomicU64]], hot: &Hot, hot_uses: usize, seed: usize, stop: &AtomicBool, writes: &AtomicU64) {
    /// Words in a page.
    const WORDS: usize = PAGE / 8;
    /// Writes between two updates of the counter.
    const TOGETHER: u64 = 256;
    let mut random = Random::new(seed as u64);
    // Relaxed, as below: the words are only counters and publish nothing.
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..TOGETHER {
            let of = if below(&mut random, 1000) < hot_uses { &hot.hot } else { &hot.cold };
            let page = of[below(&mut random, of.len())];
            let words = pieces[below(&mut random, pieces.len())];
            words[page * WORDS + below(&mut random, WORDS)].fetch_add(1, Ordering::Relaxed);
        }
        writes.fetch_add(TOGETHER, Ordering::Relaxed);
    }
}

/// Like [`write()`], but only reads.
fn read(words: &[AtomicU64], hot: &Hot, hot_uses: usize, seed: usize, stop: &AtomicBool, reads: &AtomicU64) {
    const WORDS: usize = PAGE / 8;
    const TOGETHER: u64 = 256;
    let (mut random, mut sum) = (Random::new(seed as u64), 0_u64);
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..TOGETHER {
            let of = if below(&mut random, 1000) < hot_uses { &hot.hot } else { &hot.cold };
            let page = of[below(&mut random, of.len())];
            sum = sum.wrapping_add(words[page * WORDS + below(&mut random, WORDS)].load(Ordering::Relaxed));
        }
        reads.fetch_add(TOGETHER, Ordering::Relaxed);
    }
    std::hint::black_box(sum);
}

/// How well the manager distinguished hot pages from cold ones, in percent.
struct Found {
    /// The part of the pages called hot that are hot; 0 if none was called hot.
    precision: f64,
    /// The part of the hot pages that were called hot.
    recall: f64,
    called: usize,
}

impl Found {
    fn of(manager: &Manager, start: u64, hot: &Hot) -> Found {
        let called = manager
            .hot()
            .into_iter()
            .flat_map(|range| range.step_by(PAGE))
            .map(|page| usize::try_from(page - start).expect("in the arena") / PAGE);
        let called = called.collect::<Vec<_>>();
        let right = called.iter().filter(|&&page| hot.is_hot[page]).count() as f64;
        Found {
            precision: right * 100.0 / called.len().max(1) as f64,
            recall: right * 100.0 / hot.hot.len() as f64,
            called: called.len(),
        }
    }
}

fn rows(case: &Case, bytes: usize, rates: &[[f64; 2]], found: &Found, share: f64) -> Vec<Row> {
    let of = |at: usize| median(&mut rates.iter().map(|rates| rates[at]).collect::<Vec<_>>());
    let left = median(&mut rates.iter().map(|[without, with]| with / without).collect::<Vec<_>>());
    let turns = format!("{TURNS} turns");
    let uses = if case.writes { "writes" } else { "reads" };
    let of_uses = case.hot_uses as f64 / 10.0;
    let all = if case.writes { format!(" of {}", (bytes * AROUND) >> 20) } else { String::new() };
    let how =
        format!("{}{all} MiB, {WRITERS} threads, one page in {ONE_IN} has {of_uses} % of the {uses}", bytes >> 20);
    let called = format!("{} pages were called hot", found.called);
    let named = |what: &str| format!("{}: {what}", case.name);
    let goal = |goal| case.has_goal.then_some(goal);
    vec![
        Row::new(named("nothing samples"), of(0) / 1e6, "million/s", None, how),
        Row::new(named("looked at"), of(1) / 1e6, "million/s", None, turns.clone()),
        Row::new(
            named("looked at by not"),
            left,
            "of the rate",
            goal(Goal::AtLeast(LEFT)),
            format!("median of the ratios of {turns}, by turns"),
        ),
        Row::new(
            named("the looks, of a core"),
            share * 100.0,
            "%",
            goal(Goal::AtMost(SHARE)),
            "time that looking and deciding had, by the threads' own clocks",
        ),
        Row::new(named("hot of those called so"), found.precision, "%", goal(Goal::AtLeast(PRECISION)), called),
        Row::new(named("called hot of those that are"), found.recall, "%", None, "the same pages"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_page_in_ten_is_hot_and_runs_are_short() {
        let hot = hot_pages(50_000, 0x5eed);
        assert_eq!((hot.hot.len(), hot.cold.len()), (5000, 45_000));
        assert!(hot.hot.iter().all(|&page| hot.is_hot[page]));
        let runs = hot.is_hot.chunk_by(|one, next| one == next).filter(|run| run[0]).count();
        assert!((5000 / 64..2500).contains(&runs), "{runs} runs");
    }
}
