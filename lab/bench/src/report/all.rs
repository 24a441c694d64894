//! The goals of all benches on this host, and on all kinds of host.

use super::rows::{MARKS, WORDS, add};
use crate::all::across::{GoalAcross, goals, newest};
use crate::all::against::{Difference, differences};
use crate::all::{HostResult, Missing, PARTS, Quantity};
use crate::goal::{Goal, Verdict};
use std::fmt::Write as _;
use telpher_report::table::{Align, Table, hanging, wrapped};
use telpher_report::units;

/// Column of the reasons for missing benches.
const REASONS: usize = 11;

/// Returns the numbers of this host, what is missing, and what differs from other hosts.
pub fn text(result: &HostResult, others: &[HostResult]) -> String {
    let mut out = format!("{}, {} cores, Linux {}\n", result.host.kind(), result.host.cores, result.host.kernel);
    for part in PARTS {
        let rows: Vec<&Quantity> = result.quantities.iter().filter(|quantity| quantity.bench == part).collect();
        if !rows.is_empty() {
            let _ = write!(out, "\ntelpher bench {part}\n{}", table(&rows));
        }
    }
    let has_numbers = |bench: &str| result.quantities.iter().any(|quantity| quantity.bench == bench);
    let (some, none): (Vec<&Missing>, _) = result.missing.iter().partition(|missing| has_numbers(&missing.bench));
    for (heading, failed) in [("Not measured", none), ("Failed in a round, so the numbers are of the others", some)] {
        if !failed.is_empty() {
            let _ = writeln!(out, "\n{heading}:");
            failed.iter().for_each(|missing| out += &hanging(&missing.bench, REASONS, &missing.why));
        }
    }
    let _ = write!(out, "\n{MARKS}\n{}\n", counts(result));
    for other in others {
        out += &differing(result, other);
    }
    out
}

fn table(rows: &[&Quantity]) -> String {
    let columns = [
        ("measured", Align::Right),
        ("rounds", Align::Right),
        ("goal", Align::Right),
        ("", Align::Left),
        ("what", Align::Left),
    ];
    let mut table = Table::new(&columns);
    for row in rows {
        let [measured, range] = numbers(row);
        let mark = row.verdict().mark().into();
        add(&mut table, [measured, range, row.goal.to_string(), mark], wrapped(&full_name(row), WORDS));
    }
    table.to_string()
}

/// Returns the name with its experiment, without which it need not be unique.
fn full_name(quantity: &Quantity) -> String {
    match quantity.experiment.as_str() {
        "" => quantity.what.clone(),
        experiment => format!("{experiment}: {}", quantity.what),
    }
}

/// Returns the median with its unit, and the range of the rounds.
fn numbers(quantity: &Quantity) -> [String; 2] {
    let [lowest, highest] = quantity.range();
    match quantity.values.len() {
        0 => ["not measured".into(), String::new()],
        1 => [format!("{} {}", units::three(quantity.median()), quantity.unit), String::new()],
        _ => [
            format!("{} {}", units::three(quantity.median()), quantity.unit),
            format!("{}–{}", units::three(lowest), units::three(highest)),
        ],
    }
}

/// Returns one sentence: how many goals are reached.
fn counts(result: &HostResult) -> String {
    let of = |verdict| result.quantities.iter().filter(|quantity| quantity.verdict() == verdict).count();
    let [reached, short, open] = [Verdict::Reached, Verdict::Short, Verdict::Open].map(of);
    format!("{reached} goals are reached, {short} are missed, {open} are undecided.")
}

fn differing(result: &HostResult, other: &HostResult) -> String {
    let found = differences(result, other);
    let name = format!("{} ({}, telpher {})", other.host.kind(), other.date, other.telpher);
    if found.is_empty() {
        return format!("\nNo number differs from {name} by more than the noise.\n");
    }
    let mut table = Table::new(&[
        ("here", Align::Right),
        ("there", Align::Right),
        ("here/there", Align::Right),
        ("noise", Align::Right),
        ("what", Align::Left),
    ]);
    for Difference { here, there, ratio, noise, .. } in &found {
        let numbers = [here, there].map(|quantity| format!("{} {}", units::three(quantity.median()), quantity.unit));
        let [first, second] = numbers;
        let percent = format!("{:.0} %", 100.0 * noise);
        let words = wrapped(&format!("{}: {}", here.bench, full_name(here)), WORDS);
        add(&mut table, [first, second, format!("{ratio:.2}"), percent], words);
    }
    format!("\nDifferent from {name}, beyond the noise of the rounds:\n{table}")
}

/// Returns one line for each number.
pub fn csv(result: &HostResult) -> String {
    let mut out = String::from("bench,experiment,what,median,lowest,highest,rounds,unit,at_most,at_least,verdict\n");
    for quantity in &result.quantities {
        let [lowest, highest] = quantity.range();
        let number = |value: f64| if value.is_finite() { format!("{value:.4}") } else { String::new() };
        let (most, least) = match quantity.goal {
            Goal::AtMost(most) => (most.to_string(), String::new()),
            Goal::AtLeast(least) => (String::new(), least.to_string()),
        };
        let Quantity { bench, experiment, what, values, unit, .. } = quantity;
        let _ = writeln!(
            out,
            "{bench},{experiment},\"{}\",{},{},{},{},{unit},{most},{least},{}",
            what.replace('"', "\"\""),
            number(quantity.median()),
            number(lowest),
            number(highest),
            values.len(),
            word(quantity.verdict()),
        );
    }
    out
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reached => "reached",
        Verdict::Short => "missed",
        Verdict::Open => "undecided",
    }
}

/// Returns Markdown that says on how many kinds of host each goal holds: counts by bench, then each goal that does not
/// hold everywhere.
pub fn markdown(results: &[HostResult]) -> String {
    let newest = newest(results);
    let kinds = newest.len();
    let goals = goals(&newest);
    let mut out =
        format!("{kinds} {} of host, the newest result of each:\n\n", if kinds == 1 { "kind" } else { "kinds" });
    for result in &newest {
        let _ = writeln!(
            out,
            "- {}: {} cores, Linux {}, telpher {}, {}",
            result.host.kind(),
            result.host.cores,
            result.host.kernel,
            result.telpher,
            result.date
        );
    }
    out += "\n| bench | goals | hold on every kind | on some | on none | undecided |\n|---|---|---|---|---|---|\n";
    for part in PARTS {
        let of: Vec<&GoalAcross<'_>> = goals.iter().filter(|goal| goal.quantity.bench == part).collect();
        if !of.is_empty() {
            let count = |wanted| of.iter().filter(|goal| reach(goal) == wanted).count();
            let [every, some, none, open] = [Reach::Every, Reach::Some, Reach::None, Reach::Undecided].map(count);
            let _ = writeln!(out, "| {part} | {} | {every} | {some} | {none} | {open} |", of.len());
        }
    }
    let not_everywhere: Vec<&GoalAcross<'_>> = goals.iter().filter(|goal| reach(goal) != Reach::Every).collect();
    if not_everywhere.is_empty() {
        return out + "\nEvery goal holds on every kind of host.\n";
    }
    out += "\n| bench | goal | | holds on | measured |\n|---|---|---|---|---|\n";
    for goal in not_everywhere {
        let quantity = goal.quantity;
        let measured: Vec<String> =
            goal.by_kind.iter().map(|(kind, quantity)| format!("{} ({kind})", numbers(quantity)[0])).collect();
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} of {} | {} |",
            quantity.bench,
            full_name(quantity).replace('|', "/"),
            quantity.goal,
            goal.count(Verdict::Reached),
            goal.by_kind.len(),
            measured.join("; ")
        );
    }
    out
}

/// Where a goal holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Every,
    Some,
    None,
    Undecided,
}

fn reach(goal: &GoalAcross<'_>) -> Reach {
    let [reached, short] = [Verdict::Reached, Verdict::Short].map(|verdict| goal.count(verdict));
    match (reached, short) {
        (0, 0) => Reach::Undecided,
        (_, 0) if reached == goal.by_kind.len() => Reach::Every,
        (0, _) => Reach::None,
        _ => Reach::Some,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::all::sample;

    fn two() -> Vec<HostResult> {
        let of = |cpu, values: &[f64]| sample(cpu, "2026-01-01", "crc, \"cold\"", Goal::AtLeast(1.0), values);
        vec![of("A", &[1.5, 1.6, 1.7]), of("B", &[0.7, 0.8, 0.9])]
    }

    #[test]
    fn a_host_is_shown_with_its_goals_and_what_differs_elsewhere() {
        let [first, second] = &mut two()[..] else { panic!() };
        second.missing.push(crate::all::Missing { bench: "dml".into(), why: "exit status: 1: no cc".into() });
        let shown = text(second, std::slice::from_ref(first));
        for part in ["telpher bench ops", "0.800 of its speed", "0.700–0.900", "≥ 1", "<", "dml", "no cc"] {
            assert!(shown.contains(part), "{part} is missing in\n{shown}");
        }
        assert!(shown.contains("0 goals are reached, 1 are missed, 0 are undecided."), "{shown}");
        assert!(shown.contains("Different from A, family 25 model 17") && shown.contains("0.50"), "{shown}");
        assert!(text(first, std::slice::from_ref(first)).contains("No number differs from A"));
        assert!(shown.lines().all(|line| line.chars().count() <= 130), "{shown}");
    }

    #[test]
    fn a_bench_that_failed_in_one_of_its_rounds_is_not_called_unmeasured() {
        let mut result = two().remove(0);
        result.miss("ops", "signal: 9".into());
        let shown = text(&result, &[]);
        assert!(!shown.contains("Not measured") && shown.contains("Failed in a round"), "{shown}");
        assert!(shown.contains("signal: 9"), "{shown}");
    }

    #[test]
    fn rows_name_their_experiment() {
        let mut results = two();
        results.iter_mut().for_each(|result| result.quantities[0].experiment = "cold".into());
        let all = text(&results[1], &results[..1]);
        assert!(all.contains("cold: crc, \"cold\"") && all.contains("ops: cold: crc"), "{all}");
        assert!(markdown(&results).contains("| ops | cold: crc, \"cold\" |"));
    }

    #[test]
    fn csv_has_a_line_for_each_number() {
        let lines: Vec<String> = csv(&two()[1]).lines().map(str::to_owned).collect();
        assert_eq!(lines[1], "ops,,\"crc, \"\"cold\"\"\",0.8000,0.7000,0.9000,3,of its speed,,1,missed", "{lines:?}");
    }

    #[test]
    fn markdown_counts_kinds_of_host_and_names_goals_that_hold_on_some() {
        let page = markdown(&two());
        assert!(page.starts_with("2 kinds of host"), "{page}");
        assert!(page.contains("| ops | 1 | 0 | 1 | 0 | 0 |"), "{page}");
        assert!(page.contains("| ops | crc, \"cold\" | ≥ 1 | 1 of 2 |"), "{page}");
        let page = markdown(&two()[..1]);
        assert!(page.starts_with("1 kind of host") && page.contains("Every goal holds"), "{page}");
    }
}
