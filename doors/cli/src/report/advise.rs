//! Advice as text for a terminal and as CSV.

use super::table::{Align, Table};
use super::units;
use crate::advise::{AdviseResult, Came};
use std::fmt::Write as _;
use telpher_sim::advise::WORTH;

/// What a runner-up gives of what is advised. Of two that are as good the simpler one is advised, or the one that was found first.
fn gives(part: f64) -> String {
    if (part - 1.0).abs() < WORTH - 1.0 { "as good".into() } else { format!("{:.0} %", part * 100.0) }
}

/// What is advised, why, and what it gives.
pub(crate) fn text(result: &AdviseResult, json: &str) -> String {
    let mut out = result.about.heading();
    let what = match result.objective {
        "throughput" => "throughput",
        "per-core" => "throughput of a core",
        "latency" => "99th percentile of latency",
        _ => "use of a core's cycles",
    };
    let _ = writeln!(out, "The best {what} of {} plans that were simulated.\n", result.simulated_plans);
    let mut table = Table::new(&[
        ("what", Align::Left),
        ("advised", Align::Left),
        ("runner-up", Align::Left),
        ("it gives", Align::Right),
        ("guideline", Align::Left),
    ]);
    for choice in &result.choices {
        table.row([
            choice.what.clone(),
            choice.chosen.clone(),
            choice.runner_up.clone().unwrap_or_else(|| "–".into()),
            choice.runner_up_gives.map_or(String::new(), gives),
            choice.guideline.to_owned(),
        ]);
    }
    let _ = writeln!(out, "{table}");
    let tie = |gives: &Option<f64>| gives.is_some_and(|part| (part - 1.0).abs() < WORTH - 1.0);
    if result.choices.iter().any(|choice| tie(&choice.runner_up_gives)) {
        out.push_str("As good: within 2 %; of two such choices the simpler one is advised.\n\n");
    }
    let mut told: Vec<(&str, &str)> = Vec::new();
    for choice in &result.choices {
        if !told.contains(&(choice.guideline, choice.why)) {
            told.push((choice.guideline, choice.why));
            let _ = writeln!(out, "  {:7} {}", choice.guideline, choice.why);
        }
    }
    let mut table = Table::new(&[
        ("work", Align::Left),
        ("", Align::Left),
        ("GB/s", Align::Right),
        ("p50", Align::Right),
        ("p99", Align::Right),
        ("core, an operation", Align::Right),
        ("worth a device from", Align::Left),
    ]);
    for work in &result.works {
        let row = |came: &Came| {
            [
                units::three(came.bytes_per_s / 1e9),
                units::time(came.p50_ns),
                units::time(came.p99_ns),
                units::time(came.core_ns_per_op),
            ]
        };
        let size = |bytes: u32| units::size(bytes.into());
        let threshold = match (work.threshold, work.up_to) {
            (None, _) => "no size".into(),
            (Some(from), None) => size(from),
            (Some(from), Some(to)) => format!("{} up to {}", size(from), size(to)),
        };
        let names = [work.name.clone(), format!("as advised, by the {}", work.by)];
        table.row(names.into_iter().chain(row(&work.advised)).chain([threshold]));
        table.row([String::new(), "by its own core".into()].into_iter().chain(row(&work.by_cores)));
    }
    let _ = write!(out, "\n{table}\nGain: {} times as good as {}.\n", units::three(result.gain), result.baseline);
    if result.accel_config.is_empty() {
        out.push_str("No device need be configured.\n");
    } else {
        let _ = write!(out, "\nFor accel-config load-config -e -c FILE (--config FILE writes it):\n{json}\n");
    }
    out
}

/// One line a choice.
pub(crate) fn csv(result: &AdviseResult) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let mut out =
        String::from("simulated,profile,profile_hash,objective,what,advised,runner_up,runner_up_gives,guideline\n");
    for choice in &result.choices {
        let _ = writeln!(
            out,
            "yes,{},{},{},{},{},{},{},{}",
            quoted(&result.about.profile),
            result.about.profile_hash,
            result.objective,
            quoted(&choice.what),
            quoted(&choice.chosen),
            quoted(choice.runner_up.as_deref().unwrap_or_default()),
            choice.runner_up_gives.map_or(String::new(), |gives| format!("{gives:.4}")),
            quoted(choice.guideline),
        );
    }
    out
}
