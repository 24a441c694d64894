//! What processes under `telpher tier run` have done: as text, as a picture of the moment, and as a page.

use super::chart;
use super::html::{Figure, Page};
use super::table::{Align, Table};
use super::units;
use std::fmt::Write as _;
use telpher_tier_wire::{HeatRow, Point, State};

/// Bytes of a page.
const PAGE: u64 = 4096;

/// Cells of a line of the hot map. Source: a terminal's 80 columns.
const CELLS: usize = 64;

/// From cold to hot.
const SHADES: [char; 5] = ['·', '░', '▒', '▓', '█'];

/// The command line, in one line, as much of it as a reader wants.
fn command(state: &State) -> String {
    let words = state.command.iter().flat_map(|word| word.split_whitespace());
    let line = words.collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(60) {
        _ if line.is_empty() => "(unknown)".into(),
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Processes that are told of one by one. Source: chosen.
const MOST: usize = 8;

/// Those of which more is told than that they were there: with managed memory, or an error, those that moved most first; and the others.
fn chosen(states: &[State]) -> (Vec<&State>, Vec<&State>) {
    let (mut some, mut others): (Vec<&State>, Vec<&State>) =
        states.iter().partition(|state| state.mappings > 0 || state.counts.moved > 0 || state.error.is_some());
    some.sort_by_key(|state| (state.error.is_none(), std::cmp::Reverse(state.counts.moved), state.pid));
    others.extend(some.split_off(MOST.min(some.len())));
    (some, others)
}

fn pages(pages: u64) -> String {
    units::size(pages * PAGE)
}

/// The state's lines that every picture has.
fn head(out: &mut String, state: &State) {
    let _ = writeln!(out, "process {}, {:.1} s: {}", state.pid, state.seconds, command(state));
    if let Some(why) = &state.error {
        let _ = writeln!(out, "  its memory is not managed: {why}");
    }
}

fn tiers(state: &State) -> Table {
    let columns = [
        ("tier", Align::Left),
        ("node", Align::Right),
        ("here", Align::Right),
        ("share", Align::Right),
        ("at most", Align::Right),
        ("kept free", Align::Right),
    ];
    let mut table = Table::new(&columns);
    let all = state.pages().max(1);
    for tier in &state.tiers {
        let home = if tier.name == state.home { " (home)" } else { "" };
        table.row([
            format!("{}{home}", tier.name),
            tier.node.map_or("–".into(), |node| node.to_string()),
            pages(tier.pages),
            format!("{:.0} %", 100.0 * tier.pages as f64 / all as f64),
            if tier.bytes == 0 { "–".into() } else { units::size(tier.bytes) },
            pages(tier.free),
        ]);
    }
    table
}

/// Moved, stayed, left alone.
fn counts(out: &mut String, state: &State) {
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
        "  mappings managed: {} ({}); left alone: {}",
        state.mappings,
        units::size(state.mapped_bytes),
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
    if counts.forks > 0 || counts.dropped > 0 {
        let _ = writeln!(out, "  forks {}; discarded on their way: {} pages", counts.forks, counts.dropped);
    }
    if counts.lost > 0 {
        let _ = writeln!(out, "  LOST: {} pages. Bytes of the program are gone; please tell the authors.", counts.lost);
    }
}

/// The end of a run, for people.
pub(crate) fn text(states: &[State]) -> String {
    let mut out = String::new();
    let (some, others) = chosen(states);
    if states.is_empty() {
        out.push_str(
            "telpher tier: no process told of itself; its programs load no library, or cleared their environment\n",
        );
    }
    for state in some {
        out.push_str("telpher tier: ");
        head(&mut out, state);
        if !state.ended {
            let _ = writeln!(out, "  it was killed, or left by _exit: this is what it told last");
        }
        let table = tiers(state).to_string();
        table.lines().for_each(|line| {
            let _ = writeln!(out, "  {line}");
        });
        counts(&mut out, state);
    }
    out.push_str(&of_others(&others));
    out
}

/// What processes have done together of which no more is told.
fn of_others(others: &[&State]) -> String {
    let moved: u64 = others.iter().map(|state| state.counts.moved).sum();
    let lost: u64 = others.iter().map(|state| state.counts.lost).sum();
    let lost = if lost > 0 { format!(", LOST {lost}") } else { String::new() };
    match others.len() {
        0 => String::new(),
        1 => format!("telpher tier: another process moved {moved} pages{lost}\n"),
        many => format!("telpher tier: {many} more processes moved {moved} pages{lost}\n"),
    }
}

/// A moment, for people.
pub(crate) fn picture(states: &[State]) -> String {
    let mut out = String::new();
    for state in states {
        head(&mut out, state);
        out.push_str(&tiers(state).to_string());
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

/// The hot map: cells of as many bytes each, in order of addresses, and below each its tier.
fn map(state: &State) -> String {
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

/// Lines of a map. Source: chosen: a screen.
const LINES: usize = 8;

/// Rows of heat, made fewer by laying neighbours together until they fit.
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

/// The page at the end of a run.
pub(crate) fn html(states: &[State]) -> String {
    let facts = [("processes", states.len().to_string())];
    let lead = "Where a program's memory was, and what moved while it ran. Pages are of 4 KiB; a huge page counts as the 512 it is of.";
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
        let over = |style: usize, count: &dyn Fn(&Point) -> f64| -> (usize, Vec<(f64, f64)>) {
            (style, state.points.iter().map(|point| (point.seconds, count(point))).collect())
        };
        let on_tier = |tier: usize| {
            over(tier, &|point| point.pages.get(tier).map_or(0.0, |&pages| (pages * PAGE) as f64 / f64::from(1 << 20)))
        };
        let residency: Vec<_> = (0..state.tiers.len()).map(on_tier).collect();
        let moves = [over(0, &|point| point.promoted as f64), over(1, &|point| point.demoted as f64)];
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
            &["tier", "pages", "memory", "at most"].map(String::from),
            state.tiers.iter().map(|tier| {
                let most = if tier.bytes == 0 { "–".into() } else { units::size(tier.bytes) };
                vec![tier.name.clone(), tier.pages.to_string(), pages(tier.pages), most]
            }),
        );
        let mut told = String::new();
        counts(&mut told, state);
        page.listing(&told);
        if !state.heat.is_empty() {
            page.details("Hot map at the end", |page| page.listing(&map(state)));
        }
    }
    if !others.is_empty() {
        page.small(&of_others(&others));
    }
    page.finish()
}
