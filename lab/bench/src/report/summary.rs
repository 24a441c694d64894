//! A sweep as one table for a terminal of 80 columns: the CPU, the best way over a device, and a simulated device.

use crate::crossover::{Crossover, crossover};
use crate::results::{Point, Runner, SweepResult};
use std::fmt::Write as _;
use telpher_report::table::{Align, Table, WIDTH, wrapped};
use telpher_report::units;

/// The sizes that are shown, if the sweep has them.
const SIZES: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];

/// Remarks that are shown; `--full` shows all.
const MOST_REMARKS: usize = 2;

/// Returns the summary of a sweep.
pub fn text(result: &SweepResult) -> String {
    let mut out = String::new();
    let heading = telpher_report::heading(&result.machine, &[]);
    let shown = result.remarks.iter().take(MOST_REMARKS).map(String::as_str);
    for line in std::iter::once(heading.as_str()).chain(shown).flat_map(|text| wrapped(text, WIDTH)) {
        let _ = writeln!(out, "{line}");
    }
    let _ = write!(out, "\n{}", table(result));
    for line in latency(result).into_iter().chain(verdict(result)).flat_map(|text| wrapped(&text, WIDTH)) {
        let _ = writeln!(out, "{line}");
    }
    let more = result.remarks.len().saturating_sub(MOST_REMARKS);
    let remarks = match more {
        0 => String::new(),
        1 => " and 1 more remark".into(),
        _ => format!(" and {more} more remarks"),
    };
    let next = format!(
        "Next: telpher bench --full shows every table{remarks}; telpher record -- PROGRAM shows what a program would \
         gain."
    );
    for line in wrapped(&next, WIDTH) {
        let _ = writeln!(out, "{line}");
    }
    out
}

/// Returns the sizes to show: the usual ones, or the smallest, the middle and the largest of the sweep.
fn sizes(result: &SweepResult) -> Vec<u64> {
    let all = result.sizes();
    let usual: Vec<u64> = SIZES.into_iter().filter(|size| all.contains(size)).collect();
    if !usual.is_empty() {
        return usual;
    }
    let mut some: Vec<u64> =
        [0, all.len() / 2, all.len().saturating_sub(1)].iter().filter_map(|at| all.get(*at)).copied().collect();
    some.dedup();
    some
}

fn cpu<'a>(result: &'a SweepResult, op: &str, size: u64) -> Option<&'a Point> {
    result.points.iter().find(|point| point.op == op && point.size == size && point.route.is_cpu())
}

/// Returns the point of the fastest way over a device: over hardware if it was measured.
fn best<'a>(result: &'a SweepResult, op: &str, size: u64) -> Option<&'a Point> {
    let is_hardware = |point: &&Point| point.route.runner == Some(Runner::Hardware);
    let of = || result.points.iter().filter(|point| point.op == op && point.size == size && !point.route.is_cpu());
    let fastest = |one: &&Point, other: &&Point| one.bytes_per_s.total_cmp(&other.bytes_per_s);
    of().filter(is_hardware).max_by(fastest).or_else(|| of().max_by(fastest))
}

/// Returns the sizes at which an alternative is faster than the CPU. It has bytes per second by size.
fn faster(result: &SweepResult, op: &str, alternative: impl Fn(u64) -> Option<f64>) -> Crossover {
    let costs = |size: u64| Some((size, 1.0 / alternative(size)?, 1.0 / cpu(result, op, size)?.bytes_per_s));
    crossover(&result.sizes().into_iter().filter_map(costs).collect::<Vec<_>>())
}

fn wins(sizes: &Crossover) -> String {
    match sizes {
        Crossover::From(size) => format!("from {}", units::size(*size)),
        Crossover::Between(one, other) if one == other => format!("at {}", units::size(*one)),
        Crossover::Between(one, other) => format!("{} – {}", units::size(*one), units::size(*other)),
        Crossover::Never => "at no size".into(),
    }
}

fn table(result: &SweepResult) -> Table {
    let is_hardware = result.points.iter().any(|point| point.route.runner == Some(Runner::Hardware));
    let device = if is_hardware { "hardware" } else { "model" };
    let mut table = Table::new(&[
        ("GB/s", Align::Left),
        ("size", Align::Right),
        ("CPU", Align::Right),
        (device, Align::Right),
        ("simulated DSA", Align::Right),
        (&format!("{device} wins"), Align::Left),
        ("DSA would win", Align::Left),
    ]);
    let rate = |bytes_per_s: Option<f64>| bytes_per_s.map_or("–".into(), |rate| units::three(rate / 1e9));
    for op in result.ops() {
        let simulated = |size| Some(result.simulated.as_ref()?.at(op, size)?.bytes_per_s);
        let device = faster(result, op, |size| Some(best(result, op, size)?.bytes_per_s));
        let real = faster(result, op, simulated);
        let [device, real] = [device, real].map(|sizes| wins(&sizes));
        for (number, size) in sizes(result).into_iter().enumerate() {
            let best = best(result, op, size);
            table.row([
                if number == 0 { op.to_owned() } else { String::new() },
                units::size(size),
                rate(cpu(result, op, size).map(|point| point.bytes_per_s)),
                rate(best.map(|point| point.bytes_per_s)),
                rate(simulated(size)),
                if number == 0 { device.clone() } else { String::new() },
                if number == 0 { real.clone() } else { String::new() },
            ]);
        }
    }
    table
}

/// Returns the latencies of the smallest operation that is shown.
fn latency(result: &SweepResult) -> Option<String> {
    let (op, size) = (*result.ops().first()?, *sizes(result).first()?);
    let mut parts = vec![format!("CPU {}", units::time(cpu(result, op, size)?.p50_ns?))];
    let alone = result.points.iter().filter(|point| point.op == op && point.size == size && !point.route.is_cpu());
    for point in alone.filter(|point| point.route.is_sync()) {
        parts.extend(point.p50_ns.map(|ns| format!("{} {}", point.route.label(), units::time(ns))));
    }
    let real = result.simulated.as_ref().and_then(|simulated| simulated.at(op, size));
    parts.extend(real.map(|point| format!("simulated DSA {}", units::time(point.latency_ns))));
    Some(format!("Latency of {op}, {}, one at a time: {}.", units::size(size), parts.join(", ")))
}

/// Returns what the numbers say about the first operation.
fn verdict(result: &SweepResult) -> Option<String> {
    let op = *result.ops().first()?;
    let (small, large) = (*sizes(result).first()?, *sizes(result).last()?);
    let times = |rate: f64, size: u64| {
        let ratio = rate / cpu(result, op, size)?.bytes_per_s;
        Some(format!("{} × the speed of the CPU at {}", units::three(ratio), units::size(size)))
    };
    let measured = best(result, op, large).filter(|point| point.route.runner == Some(Runner::Hardware));
    if let Some(point) = measured {
        let (device, of_large) = (&point.route.device, times(point.bytes_per_s, large)?);
        let of_small = best(result, op, small).and_then(|point| times(point.bytes_per_s, small))?;
        return Some(format!("{op}: {device} has {of_large}, and {of_small}."));
    }
    let simulated = result.simulated.as_ref()?;
    let [of_large, of_small] =
        [large, small].map(|size| simulated.at(op, size).and_then(|point| times(point.bytes_per_s, size)));
    Some(format!(
        "{op}: a DSA as in {} (simulated) has {}, and {}. Short operations find their data in the CPU's caches \
         here, where a CPU is fastest.",
        simulated.profile, of_large?, of_small?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::sample;

    #[test]
    fn the_summary_fits_a_terminal_and_ends_with_what_to_do() {
        let mut result = sample();
        result.remarks.extend(["Another remark.".into(), "A third remark.".into()]);
        let text = text(&result);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.lines().count() <= 25, "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for expected in [
            "not the speed of DSA hardware",
            // 4 KiB: 51.2 GB/s by the CPU, 68.3 by the device, 30 by the simulated one.
            "4 KiB 51.2 68.3 30.0 from 4 KiB at no size",
            "64 KiB 32.8 72.8 30.0",
            "Latency of move, 4 KiB, one at a time: CPU 80.0 ns, threaded 60.0 ns, simulated DSA 1.00 µs.",
            "spr-asplos (simulated) has 0.916 × the speed of the CPU at 64 KiB, and 0.586 ×",
            "and 1 more remark;",
        ] {
            assert!(words.contains(expected), "no {expected:?} in {text}");
        }
    }

    #[test]
    fn hardware_is_preferred_to_the_model_and_the_simulation() {
        let mut result = sample();
        for point in &mut result.points {
            if point.route.runner.is_some() {
                (point.route.runner, point.route.device) = (Some(Runner::Hardware), "hw:wq0.0".into());
            }
        }
        let text = text(&result);
        assert!(text.contains("move: hw:wq0.0 has 2.22 × the speed of the CPU at 64 KiB"), "{text}");
    }

    #[test]
    fn other_sizes_are_shown_if_the_usual_ones_were_not_measured() {
        let mut result = sample();
        for point in &mut result.points {
            point.size += 1;
        }
        assert_eq!(sizes(&result), [65, 4097, 65537]);
        result.points.clear();
        assert!(text(&result).contains("Next: telpher bench --full"));
    }
}
