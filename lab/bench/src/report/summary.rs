//! A sweep as one table for a terminal of 80 columns: the CPU, the best way over a device, and a simulated device.

use crate::crossover::{Crossover, crossover};
use crate::results::{LOAD, Point, Runner, SweepResult, VIRTUAL_REMARK};
use std::fmt::Write as _;
use telpher_report::table::{Align, Table, WIDTH, wrapped};
use telpher_report::units;

/// The sizes that are shown, if the sweep has them.
const SIZES: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];

/// Returns the summary of a sweep.
pub fn text(result: &SweepResult) -> String {
    let mut out = String::new();
    let lines = heading(result).into_iter().flat_map(|text| wrapped(&text, WIDTH)).collect::<Vec<_>>();
    for line in lines {
        let _ = writeln!(out, "{line}");
    }
    let _ = write!(out, "{}", table(result));
    for line in latency(result).into_iter().chain(verdict(result)).flat_map(|text| wrapped(&text, WIDTH)) {
        let _ = writeln!(out, "{line}");
    }
    let remarks = if result.remarks.is_empty() { "" } else { ", and all remarks" };
    let _ = writeln!(out, "Next: telpher bench --full --html bench.html    every table, charts{remarks}");
    let _ = writeln!(out, "      telpher record -- PROGRAM                 what devices would gain for a program");
    out
}

/// Returns the machine and warnings.
fn heading(result: &SweepResult) -> Vec<String> {
    let machine = &result.machine;
    let place = if machine.virtual_machine { " (virtual machine)" } else { "" };
    let mut lines = vec![format!("{}{place}, {} cores", machine.cpu, machine.cores.len())];
    lines.push(match (is_hardware(result), result.remarks.iter().any(|remark| remark == VIRTUAL_REMARK)) {
        (true, false) => "The hardware is a real DSA.".into(),
        (true, true) => "The hardware is the virtual device of telpher run: software on this CPU.".into(),
        (false, _) => "No DSA hardware was measured: the model is software on this CPU.".into(),
    });
    lines.extend(result.remarks.iter().filter(|remark| remark.starts_with(LOAD)).cloned());
    lines
}

fn is_hardware(result: &SweepResult) -> bool {
    result.points.iter().any(|point| point.route.runner == Some(Runner::Hardware))
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
    let device = if is_hardware(result) { "hardware" } else { "model" };
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
    let alone = result.points.iter().filter(|point| point.op == op && point.size == size);
    let alone = alone.filter(|point| !point.route.is_cpu() && point.route.is_sync());
    let best = alone.filter_map(|point| point.p50_ns).min_by(f64::total_cmp);
    let device = if is_hardware(result) { "hardware" } else { "model" };
    parts.extend(best.map(|ns| format!("{device} {}", units::time(ns))));
    let simulated = result.simulated.as_ref().and_then(|simulated| simulated.at(op, size));
    parts.extend(simulated.map(|point| format!("simulated DSA {}", units::time(point.latency_ns))));
    Some(format!("Latency of {op}, {}: {}.", units::size(size), parts.join(", ")))
}

/// Returns what the numbers say about the first operation.
fn verdict(result: &SweepResult) -> Option<String> {
    let op = *result.ops().first()?;
    let (small, large) = (*sizes(result).first()?, *sizes(result).last()?);
    let times = |rate: f64, size: u64| Some(units::three(rate / cpu(result, op, size)?.bytes_per_s));
    let (name, [of_large, of_small]) = if is_hardware(result) {
        let point = best(result, op, large)?;
        let rates = [large, small].map(|size| times(best(result, op, size)?.bytes_per_s, size));
        (point.route.device.clone(), rates)
    } else {
        let simulated = result.simulated.as_ref()?;
        let rates = [large, small].map(|size| times(simulated.at(op, size)?.bytes_per_s, size));
        (format!("DSA (simulated, {})", simulated.profile), rates)
    };
    let (large, small) = (units::size(large), units::size(small));
    Some(format!("{op}: {name} has {} × the CPU's speed at {large}, {} × at {small}.", of_large?, of_small?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::sample;

    #[test]
    fn the_summary_fits_a_terminal_and_ends_with_what_to_do() {
        let mut result = sample();
        result.remarks.extend([format!("{LOAD} 9 on 2 cores."), "A third remark.".into()]);
        let text = text(&result);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.lines().count() <= 25, "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for expected in [
            "the model is software on this CPU",
            "The load is 9 on 2 cores",
            // 4 KiB: 51.2 GB/s by the CPU, 68.3 by the device, 30 by the simulated one.
            "4 KiB 51.2 68.3 30.0 from 4 KiB at no size",
            "64 KiB 32.8 72.8 30.0",
            "Latency of move, 4 KiB: CPU 80.0 ns, model 60.0 ns, simulated DSA 1.00 µs.",
            "move: DSA (simulated, spr-asplos) has 0.916 × the CPU's speed at 64 KiB, 0.586 × at 4 KiB.",
            "every table, charts, and all remarks",
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
        assert!(text.contains("move: hw:wq0.0 has 2.22 × the CPU's speed at 64 KiB"), "{text}");
    }

    #[test]
    fn other_sizes_are_shown_if_the_usual_ones_were_not_measured() {
        let mut result = sample();
        for point in &mut result.points {
            point.size += 1;
        }
        assert_eq!(sizes(&result), [65, 4097, 65537]);
        result.points.clear();
        assert!(text(&result).contains("telpher bench --full --html"));
    }
}
