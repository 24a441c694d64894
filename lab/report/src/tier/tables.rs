//! The states of processes under `telpher tier run`: the final text, the live view, and the HTML page.

use super::{HeatRow, Point, ProcessState, TierState};
use crate::chart::{self, TimeLine};
use crate::csv;
use crate::html::{Figure, Page};
use crate::table::{Align, Table};
use crate::units;
use serde::Serialize;
use std::fmt::Write as _;
use telpher_os::COST_OF_NEVER;

/// The file of the setting for transparent huge pages.
const TRANSPARENT: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Bytes of a page.
const PAGE: u64 = 4096;

/// Cells of a line of the hot map. Source: a terminal's 80 columns.
const CELLS: usize = 64;

/// From cold to hot.
const SHADES: [char; 5] = ['·', '░', '▒', '▓', '█'];

/// Returns the command line on one line, shortened.
fn command(state: &ProcessState) -> String {
    let words = state.command.iter().flat_map(|word| word.split_whitespace());
    let line = words.collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(60) {
        _ if line.is_empty() => "(unknown)".into(),
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Maximum processes that are listed individually. Source: chosen.
const MOST: usize = 8;

/// Splits processes into those to list (with managed memory or an error, sorted by pages moved) and the others.
fn chosen(states: &[ProcessState]) -> (Vec<&ProcessState>, Vec<&ProcessState>) {
    let (mut some, mut others): (Vec<&ProcessState>, Vec<&ProcessState>) =
        states.iter().partition(|state| state.most_mapped_bytes > 0 || state.counts.moved > 0 || state.error.is_some());
    some.sort_by_key(|state| (state.error.is_none(), std::cmp::Reverse(state.counts.moved), state.pid));
    others.extend(some.split_off(MOST.min(some.len())));
    (some, others)
}

/// Returns one line for each tier of each process.
#[must_use]
pub fn csv(states: &[ProcessState]) -> String {
    let row = |state: &ProcessState, tier: &TierState| TierRow {
        pid: state.pid,
        command: command(state),
        seconds: state.seconds,
        tier: tier.clone(),
        moved_pages: state.counts.moved,
        promoted_pages: state.counts.promoted,
        demoted_pages: state.counts.demoted,
    };
    let rows = states.iter().flat_map(|state| state.tiers.iter().map(move |tier| row(state, tier)));
    csv::rows(&rows.collect::<Vec<_>>())
}

/// One tier of one process. The counts of pages are those of the process.
#[derive(Serialize)]
struct TierRow {
    pid: u32,
    command: String,
    seconds: f64,
    tier: TierState,
    moved_pages: u64,
    promoted_pages: u64,
    demoted_pages: u64,
}

fn pages(pages: u64) -> String {
    units::size(pages * PAGE)
}

/// Returns the lines of a state that are in every view.
fn head(out: &mut String, state: &ProcessState) {
    let _ = writeln!(out, "process {}, {:.1} s: {}", state.pid, state.seconds, command(state));
    if let Some(why) = &state.error {
        let _ = writeln!(out, "  its memory is not managed: {why}");
    }
    if let Some(tracer) = state.tracer {
        let _ = writeln!(out, "  process {tracer} traces it: no page moves until it detaches");
    }
    if state.paused {
        let _ = writeln!(out, "  paused: no page moves until `telpher tier resume {}`", state.pid);
    }
}

/// Returns each tier's pages: the peak and the average of the run, and those at the moment that `now` names.
fn tiers(state: &ProcessState, now: &'static str) -> Table {
    let columns = [
        ("tier", Align::Left),
        ("node", Align::Right),
        ("peak", Align::Right),
        ("average", Align::Right),
        (now, Align::Right),
        ("share", Align::Right),
        ("limit", Align::Right),
        ("kept free", Align::Right),
    ];
    let mut table = Table::new(&columns);
    let all = state.pages();
    for tier in &state.tiers {
        let home = if tier.name == state.home { " (home)" } else { "" };
        table.row([
            format!("{}{home}", tier.name),
            tier.node.map_or("–".into(), |node| node.to_string()),
            pages(tier.most_pages),
            pages(tier.mean_pages),
            pages(tier.pages),
            if all == 0 { "–".into() } else { format!("{:.0} %", 100.0 * tier.pages as f64 / all as f64) },
            if tier.bytes == 0 { "–".into() } else { units::size(tier.bytes) },
            pages(tier.free),
        ]);
    }
    table
}

/// Returns lines about pages moved, pages that stayed, and memory left alone.
fn counts(out: &mut String, state: &ProcessState) {
    let counts = &state.counts;
    let _ = writeln!(
        out,
        "  moved {} pages ({}): {} promoted, {} demoted; of them in huge pages {}; {} exchanges by {}",
        counts.moved,
        pages(counts.moved),
        counts.promoted,
        counts.demoted,
        counts.huge,
        counts.exchanges,
        state.mechanism
    );
    if counts.moving_seconds > 0.0 {
        let _ = writeln!(
            out,
            "  moving took {:.3} s, of which copies {:.0} %",
            counts.moving_seconds,
            100.0 * counts.copying_seconds / counts.moving_seconds
        );
    }
    let list = |words: Vec<String>| if words.is_empty() { "none".into() } else { words.join(", ") };
    let stayed = counts.stayed.iter().filter(|stayed| stayed.what != "there already");
    let _ = writeln!(
        out,
        "  stayed, in pages: {}",
        list(stayed.map(|stayed| format!("{} {}", stayed.pages, stayed.what)).collect())
    );
    let ignored = state.ignored.iter().map(|i| format!("{} {} ({})", i.mappings, i.reason, units::size(i.bytes)));
    let _ = writeln!(
        out,
        "  mappings managed: {} ({}; peak {}); left alone: {}",
        state.mappings,
        units::size(state.mapped_bytes),
        units::size(state.most_mapped_bytes),
        list(ignored.collect())
    );
    let tracking = &state.tracking;
    if !tracking.source.is_empty() {
        let _ = writeln!(
            out,
            "  heat by {}: {:.2} % of a core to look, {:.2} % to move{}",
            tracking.source,
            100.0 * tracking.core_share,
            100.0 * tracking.moving_share,
            tracking.holds.as_ref().map_or(String::new(), |why| format!("; holding back: {why}"))
        );
    }
    if tracking.faults > 0 {
        let _ = writeln!(
            out,
            "  for that {} page faults, for which threads waited {:.3} s together",
            tracking.faults, tracking.waited_seconds
        );
    }
    if tracking.lost > 0 {
        let _ = writeln!(out, "  samples of uses that were lost, as they were too many: {}", tracking.lost);
    }
    if let Some(why) = &tracking.without_damon {
        let _ = writeln!(out, "  not by DAMON: {why}");
    }
    if state.held_seconds > 0.0 {
        let _ = writeln!(
            out,
            "  held in place for {:.1} s, while another process traced it or it was paused",
            state.held_seconds
        );
    }
    let _ = writeln!(out, "  transparent huge pages: {}", huge_pages(state));
    if counts.forks > 0 || counts.dropped > 0 {
        let _ = writeln!(out, "  forks {}; discarded on their way: {} pages", counts.forks, counts.dropped);
    }
    if counts.lost > 0 {
        let _ = writeln!(out, "  LOST: {} pages. Bytes of the program are gone; please tell the authors.", counts.lost);
    }
}

/// Returns a line about the setting for transparent huge pages and its cost.
fn huge_pages(state: &ProcessState) -> String {
    let setting = &state.transparent_huge_pages;
    match setting.as_str() {
        "never" => format!("{setting}; {COST_OF_NEVER}; to allow them: echo madvise > {TRANSPARENT}"),
        "madvise" => format!("{setting}, for programs that ask for them"),
        _ => setting.clone(),
    }
}

/// Returns why no page moved in a run; `None` if pages moved, or the memory was not managed.
fn why_nothing_moved(state: &ProcessState) -> Option<String> {
    if state.counts.moved > 0 || state.error.is_some() {
        return None;
    }
    let fastest = state.tiers.first().map_or("", |tier| tier.name.as_str());
    let elsewhere = state.tiers.iter().skip(1).any(|tier| tier.most_pages > 0);
    let stayed = state.counts.stayed.iter().filter(|stayed| stayed.what != "there already").max_by_key(|it| it.pages);
    let tracking = &state.tracking;
    Some(if state.held_seconds > state.seconds / 2.0 {
        "another process traced it, or it was paused, for most of the time".into()
    } else if state.most_mapped_bytes == 0 {
        format!(
            "no mapping was managed; new ones are looked for every 50 ms, and the program ran for {:.2} s",
            state.seconds
        )
    } else if !elsewhere {
        format!("all pages that were seen were on {fastest}, the fastest tier")
    } else if let Some(stayed) = stayed {
        format!("pages were to move and stayed; most of them: {}", stayed.what)
    } else if tracking.source.is_empty() {
        format!("the program ended before any memory was moved, after {:.2} s", state.seconds)
    } else if tracking.most_known == 0 {
        format!(
            "no page's heat was known by the end, after {:.2} s; heat is found by {}",
            state.seconds, tracking.source
        )
    } else if tracking.most_hot == 0 {
        format!("of {} pages whose heat was known none was hot outside of {fastest}", tracking.most_known)
    } else if let Some(why) = &tracking.holds {
        format!("the policy held back: {why}")
    } else {
        format!("{} hot pages outside of {fastest} were not hot for long enough", tracking.most_hot)
    })
}

/// Returns the final report as text.
#[must_use]
pub fn text(states: &[ProcessState]) -> String {
    let mut out = String::new();
    let (some, others) = chosen(states);
    if states.is_empty() {
        out.push_str("telpher tier: no process reported; its programs load no library, or cleared their environment\n");
    }
    for state in some {
        out.push_str("telpher tier: ");
        head(&mut out, state);
        if !state.ended {
            let _ = writeln!(out, "  it was killed, or called _exit: these are its last reported numbers");
        }
        let table = tiers(state, "at the end").to_string();
        table.lines().for_each(|line| {
            let _ = writeln!(out, "  {line}");
        });
        if let Some(why) = why_nothing_moved(state) {
            let _ = writeln!(out, "  nothing moved: {why}");
        }
        counts(&mut out, state);
    }
    out.push_str(&of_others(&others));
    out
}

/// Returns a line with the totals of the processes that are not listed.
fn of_others(others: &[&ProcessState]) -> String {
    let moved: u64 = others.iter().map(|state| state.counts.moved).sum();
    let lost: u64 = others.iter().map(|state| state.counts.lost).sum();
    let lost = if lost > 0 { format!(", LOST {lost}") } else { String::new() };
    let longest = others.iter().max_by(|one, other| one.seconds.total_cmp(&other.seconds));
    let why = longest.filter(|_| moved == 0).and_then(|state| why_nothing_moved(state));
    let why = why.map_or(String::new(), |why| format!("; of process {}: {why}", longest.map_or(0, |state| state.pid)));
    match others.len() {
        0 => String::new(),
        1 => format!("telpher tier: another process moved {moved} pages{lost}{why}\n"),
        many => format!("telpher tier: {many} more processes moved {moved} pages{lost}{why}\n"),
    }
}

/// Returns the live view of a state.
#[must_use]
pub fn picture(states: &[ProcessState]) -> String {
    let mut out = String::new();
    for state in states {
        head(&mut out, state);
        out.push_str(&tiers(state, "now").to_string());
        if let [.., before, last] = state.points.as_slice() {
            let seconds = (last.seconds - before.seconds).max(1e-3);
            let rate = |count: u64| units::frequency(count as f64 / seconds);
            let _ = writeln!(out, "  pages promoted {}, demoted {}", rate(last.promoted), rate(last.demoted));
        }
        counts(&mut out, state);
        out.push_str(&map(state));
        out.push('\n');
    }
    out
}

/// Returns the hot map: cells of equal size, in address order, and below each its tier.
fn map(state: &ProcessState) -> String {
    if state.heat.is_empty() {
        return String::new();
    }
    let mut out = format!("  hot map, {} {} … {}\n", "cold", SHADES.iter().collect::<String>(), "hot");
    for row in cells(&state.heat).chunks(CELLS) {
        let shade = |heat: f32| {
            let hotter = SHADES.iter().zip(1_u8..).find(|(_, up_to)| heat * 5.0 < f32::from(*up_to));
            hotter.map_or(SHADES[SHADES.len() - 1], |(shade, _)| *shade)
        };
        let shades: String = row.iter().map(|cell| shade(cell.heat)).collect();
        let letter = |cell: &HeatRow| {
            let most = cell.pages.iter().enumerate().max_by_key(|(_, pages)| **pages).filter(|(_, pages)| **pages > 0);
            let name = most.and_then(|(tier, _)| state.tiers.get(tier)?.name.chars().next());
            name.unwrap_or(' ')
        };
        let letters: String = row.iter().map(letter).collect();
        let first = row.first().map_or(0, |cell| cell.start);
        let _ = writeln!(out, "  {first:>12x} {shades}\n  {:>12} {letters}", "");
    }
    out
}

/// Maximum lines of a map. Source: chosen: a screen.
const LINES: usize = 8;

/// Merges neighbouring rows of heat until they fit.
fn cells(rows: &[HeatRow]) -> Vec<HeatRow> {
    let together = rows.len().div_ceil(CELLS * LINES);
    let join = |rows: &[HeatRow]| {
        let mut cell = rows[0].clone();
        cell.end = rows[rows.len() - 1].end;
        for row in &rows[1..] {
            cell.heat = cell.heat.max(row.heat);
            cell.pages.iter_mut().zip(&row.pages).for_each(|(all, pages)| *all += pages);
        }
        cell
    };
    rows.chunks(together.max(1)).map(join).collect()
}

const MIB: f64 = 1_048_576.0;

/// Returns a line of a chart: what is counted at each point in time.
fn over_time<'a>(state: &ProcessState, style: usize, name: &'a str, count: impl Fn(&Point) -> f64) -> TimeLine<'a> {
    (style, name, state.points.iter().map(|point| (point.seconds, count(point))).collect())
}

/// Returns the HTML page at the end of a run.
#[must_use]
pub fn html(states: &[ProcessState]) -> String {
    let facts = [("processes", states.len().to_string())];
    let lead = "Where a program's memory was, and what moved while it ran. Pages are of 4 KiB; a huge page counts as \
                the 512 it is of.";
    let mut page = Page::with_facts("telpher tier", lead, &facts, &[]);
    let (some, others) = chosen(states);
    for state in some {
        let end = if state.ended { "to its end" } else { "until it was killed or left by _exit" };
        page.section(&format!("Process {}", state.pid), &format!("{}: {:.1} s, {end}.", command(state), state.seconds));
        if let Some(why) = &state.error {
            page.small(&format!("Its memory was not managed: {why}"));
            continue;
        }
        page.legend(state.tiers.iter().enumerate().map(|(style, tier)| (style, tier.name.as_str())));
        let residency: Vec<TimeLine<'_>> = (state.tiers.iter().enumerate())
            .map(|(number, tier)| {
                let mib = |point: &Point| point.pages.get(number).map_or(0.0, |&pages| (pages * PAGE) as f64 / MIB);
                over_time(state, number, &tier.name, mib)
            })
            .collect();
        let moves = [
            over_time(state, 0, "promoted", |point| point.promoted as f64),
            over_time(state, 1, "demoted", |point| point.demoted as f64),
        ];
        page.charts([
            Figure {
                caption: "Memory on each tier".into(),
                svg: chart::over_time(&residency, "MiB", units::trimmed),
                legend: Vec::new(),
            },
            Figure {
                caption: "Pages moved between two looks".into(),
                svg: chart::over_time(&moves, "pages", units::trimmed),
                legend: vec![(0, "promoted"), (1, "demoted")],
            },
        ]);
        page.table(
            &["tier", "peak", "average", "at the end", "limit"].map(String::from),
            state.tiers.iter().map(|tier| {
                let most = if tier.bytes == 0 { "–".into() } else { units::size(tier.bytes) };
                vec![tier.name.clone(), pages(tier.most_pages), pages(tier.mean_pages), pages(tier.pages), most]
            }),
        );
        let mut output = String::new();
        if let Some(why) = why_nothing_moved(state) {
            let _ = writeln!(output, "  nothing moved: {why}");
        }
        counts(&mut output, state);
        page.listing(&output);
        if !state.heat.is_empty() {
            page.details("Hot map at the end", |page| page.listing(&map(state)));
        }
    }
    if !others.is_empty() {
        page.small(&of_others(&others));
    }
    page.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::Move;

    /// A process with memory on both of two tiers, of which 20 MiB are left.
    fn state() -> ProcessState {
        let tier = |name: &str, most_pages, mean_pages, pages| TierState {
            name: name.into(),
            most_pages,
            mean_pages,
            pages,
            ..TierState::default()
        };
        let mut state =
            ProcessState { pid: 7, seconds: 10.0, ended: true, home: "slow".into(), ..ProcessState::default() };
        state.tiers = vec![tier("fast", 0, 0, 0), tier("slow", 57_600, 25_600, 5120)];
        (state.most_mapped_bytes, state.mapped_bytes, state.mappings) = (225 << 20, 20 << 20, 1);
        state.transparent_huge_pages = "madvise".into();
        state.tracking.source = "windows".into();
        state
    }

    #[test]
    fn the_final_table_has_the_peak_and_the_average_of_the_run() {
        let output = text(&[state()]);
        let row = output.lines().find(|line| line.contains("slow (home)")).unwrap();
        let cells: Vec<&str> = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells[2..5], ["225 MiB", "100 MiB", "20 MiB"], "{output}");
        assert!(output.contains("mappings managed: 1 (20 MiB; peak 225 MiB)"), "{output}");
        let killed = text(&[ProcessState { ended: false, ..state() }]);
        assert!(killed.contains("it was killed, or called _exit: these are its last reported numbers"), "{killed}");
    }

    #[test]
    fn csv_has_a_line_for_each_tier() {
        let output = csv(&[state()]);
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(lines.len(), 3, "{output}");
        assert!(lines[0].contains("tier.name") && lines[2].contains("slow") && lines[2].contains("5120"), "{output}");
    }

    #[test]
    fn a_run_that_moved_nothing_says_why() {
        type Change = fn(&mut ProcessState);
        let cases: [(Change, &str); 8] = [
            (|state| state.held_seconds = 9.0, "another process traced it, or it was paused"),
            (|state| state.most_mapped_bytes = 0, "no mapping was managed"),
            (|state| state.tiers.swap(0, 1), "all pages that were seen were on slow, the fastest tier"),
            (
                |state| state.counts.stayed = vec![Move { what: "no room".into(), pages: 3 }],
                "pages were to move and stayed; most of them: no room",
            ),
            (|state| state.tracking.source.clear(), "ended before any memory was moved"),
            (|_| (), "no page's heat was known by the end"),
            (|state| state.tracking.most_known = 9, "of 9 pages whose heat was known none was hot outside of fast"),
            (
                |state| (state.tracking.most_known, state.tracking.most_hot) = (9, 5),
                "5 hot pages outside of fast were not hot for long enough",
            ),
        ];
        for (change, why) in cases {
            let mut state = state();
            change(&mut state);
            if state.most_mapped_bytes == 0 {
                state.mappings = 0;
            }
            let output = text(&[state]);
            assert!(output.contains(why), "{why}: {output}");
        }
        let mut state = state();
        state.counts.moved = 1;
        assert!(!text(&[state]).contains("nothing moved"));
    }

    #[test]
    fn the_setting_never_is_reported_with_its_cost_and_a_remedy() {
        let mut state = state();
        state.transparent_huge_pages = "never".into();
        let output = text(&[state]);
        let line = output.lines().find(|line| line.contains("transparent huge pages: never")).unwrap();
        assert!(line.contains("1.4 to 3.2 times") && line.contains("echo madvise > /sys/kernel/mm"), "{output}");
    }
}
