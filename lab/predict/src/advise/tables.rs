//! Advice as terminal text, CSV and an HTML page. `json` is the configuration in the format of accel-config.

use super::{AdviseResult, LoadNumbers, WorkAdvice};
use std::fmt::Write as _;
use telpher_report::html::Page;
use telpher_report::table::{Align, Table, hanging};
use telpher_report::units;
use telpher_sim::advise::WORTH;

/// Formats the runner-up's result relative to the recommended one. Of two equally good choices, the simpler or the
/// first found is recommended.
fn gives(part: f64) -> String {
    if (part - 1.0).abs() < WORTH - 1.0 {
        "equally good".into()
    } else {
        format!("{:.0} % of the advised", part * 100.0)
    }
}

/// Returns the recommendations, their reasons and their results.
#[must_use]
pub fn text(result: &AdviseResult, json: &str) -> String {
    let mut out = result.about.heading();
    for remark in &result.remarks {
        out.push_str(&hanging("", 0, remark));
    }
    let _ = writeln!(out, "{}\n", best(result));
    let mut table = Table::new(&[("what", Align::Left), ("advised", Align::Left), ("guideline", Align::Left)]);
    for choice in &result.choices {
        table.row([choice.what.clone(), choice.chosen.clone(), choice.guideline.to_owned()]);
        if let Some(other) = &choice.runner_up {
            let gives = choice.runner_up_gives.map_or(String::new(), |part| format!(" ({})", gives(part)));
            table.below(&format!("next best: {other}{gives}"));
        }
    }
    let _ = writeln!(out, "{table}");
    if let Some(ties) = ties(result) {
        let _ = writeln!(out, "{ties}\n");
    }
    for (guideline, why) in guidelines(result) {
        out.push_str(&hanging(&format!("  {guideline}"), 10, why));
    }
    let mut table = Table::new(&[
        ("work", Align::Left),
        ("", Align::Left),
        ("GB/s", Align::Right),
        ("p50", Align::Right),
        ("p99", Align::Right),
        ("core time", Align::Right),
    ]);
    for work in &result.works {
        for [name, how, rest @ ..] in came(work) {
            table.row([name, how].into_iter().chain(rest));
        }
        table.below(&worth(work));
    }
    let _ = write!(out, "\n{table}\n{}", hanging("", 0, &gain(result)));
    if !result.accel_config.is_empty() {
        let _ = write!(out, "\nFor accel-config load-config -e -c FILE (--config FILE writes it):\n{json}\n");
    }
    out
}

fn best(result: &AdviseResult) -> String {
    let what = match result.objective {
        "throughput" => "throughput",
        "per-core" => "throughput of a core",
        "latency" => "99th percentile of latency",
        _ => "use of a core's cycles",
    };
    format!("The best {what} of {} plans that were simulated.", result.simulated_plans)
}

/// Explains "equally good", if any choice is marked so.
fn ties(result: &AdviseResult) -> Option<&'static str> {
    let tie = |gives: &Option<f64>| gives.is_some_and(|part| (part - 1.0).abs() < WORTH - 1.0);
    let any = result.choices.iter().any(|choice| tie(&choice.runner_up_gives));
    any.then_some("Equally good: within 2 %. Of two such choices the simpler one is advised.")
}

/// Each guideline that was followed, and its text.
fn guidelines(result: &AdviseResult) -> Vec<(&'static str, &'static str)> {
    let mut followed = Vec::new();
    for choice in &result.choices {
        if !followed.contains(&(choice.guideline, choice.why)) {
            followed.push((choice.guideline, choice.why));
        }
    }
    followed
}

/// The rows of a load, as recommended and by its own core: name, how, throughput, percentiles, core time for each
/// operation.
fn came(work: &WorkAdvice) -> [[String; 6]; 2] {
    let row = |name: &str, how: String, came: &LoadNumbers| {
        [
            name.to_owned(),
            how,
            units::three(came.bytes_per_s / 1e9),
            units::time_or_none(came.p50_ns),
            units::time_or_none(came.p99_ns),
            units::time(came.core_ns_per_op),
        ]
    };
    [
        row(&work.name, format!("as advised, by the {}", work.by), &work.advised),
        row("", "by its core".into(), &work.by_cores),
    ]
}

/// Formats the size from which a device is worth it.
fn worth(work: &WorkAdvice) -> String {
    let size = |bytes: u32| units::size(bytes.into());
    match (work.threshold, work.up_to) {
        (None, _) => "the core is as fast at every size".into(),
        (Some(from), None) => format!("the device is faster from {}", size(from)),
        (Some(from), Some(to)) => format!("the device is faster from {} to {}", size(from), size(to)),
    }
}

fn gain(result: &AdviseResult) -> String {
    let none = if result.accel_config.is_empty() { " No device need be configured." } else { "" };
    format!("Gain: {} times as good as {}.{none}", units::three(result.gain), result.baseline)
}

/// Returns the HTML report.
#[must_use]
pub fn html(result: &AdviseResult, json: &str) -> String {
    let mut page = Page::with_facts(
        "telpher advise",
        "How to configure and use DSA for some work, on the machine that the profile describes. Every plan was \
         simulated; nothing was measured.",
        &result.about.facts(),
        &result.remarks,
    );
    page.section("Advice", &format!("{} {}", best(result), ties(result).unwrap_or_default()));
    let rows = result.choices.iter().map(|choice| {
        let (other, part) = (choice.runner_up.clone(), choice.runner_up_gives.map_or(String::new(), gives));
        let rest = [other.unwrap_or_default(), part, choice.guideline.to_owned(), choice.why.to_owned()];
        [choice.what.clone(), choice.chosen.clone()].into_iter().chain(rest).collect()
    });
    page.sentences(&["what", "advised", "next best", "its result", "guideline", "meaning"], rows);
    page.small("G1 to G6: Kuper et al., ASPLOS 2024, section 6.");
    page.section("What it gives", &gain(result));
    let header =
        ["work", "", "GB/s", "p50", "p99", "core time per operation", "the device is faster"].map(String::from);
    let rows = result.works.iter().flat_map(|work| {
        let worth = worth(work).replacen("the device is faster ", "", 1);
        let last = [worth, String::new()];
        came(work).into_iter().zip(last).map(|(cells, last)| cells.into_iter().chain([last]).collect())
    });
    page.table(&header, rows);
    if !result.accel_config.is_empty() {
        page.section("Configuration", "A file for accel-config load-config -e -c FILE.");
        page.listing(json);
    }
    page.finish()
}

/// One line for each choice.
#[must_use]
pub fn csv(result: &AdviseResult) -> String {
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
