//! A prediction as terminal tables and CSV, and the texts of its numbers.

use super::{CallTimes, ColdShareGain, ComparedValue, Comparison, Prediction, SitePolicy, ThresholdGain};
use crate::csv::field;
use crate::table::{Align, Table, hanging, last_characters, printable};
use crate::units;
use std::fmt::Write as _;

/// Maximum call sites in a table. Source: chosen; a few sites have nearly all bytes of the programs seen so far.
pub(super) const MOST_SITES: usize = 20;

/// Characters of a site's name in a terminal. Source: what is left of a line.
const SITE_WIDTH: usize = 20;

/// Returns the prediction for a terminal.
#[must_use]
pub fn text(result: &Prediction) -> String {
    let mut out = result.about.heading();
    for remark in &result.remarks {
        out.push_str(&hanging("", 0, &printable(remark)));
    }
    out.push('\n');
    for (name, words) in summary(result) {
        out.push_str(&hanging(name, 10, &words));
    }
    let _ = write!(out, "\n{}", table(&TIMES, times(result)));
    let best = format!("Gain with one threshold for all call sites. {}", best_threshold(result));
    let _ = write!(out, "\n{best}\n{}", table(&THRESHOLDS, thresholds(result)));
    if result.thresholds.iter().any(|threshold| threshold.partly_estimated) {
        out.push_str("  ~ partly computed from counts: shorter calls are not in the trace\n");
    }
    let _ = write!(out, "\nBest policy for each call site\n{}", table(&SITES, sites(result, SITE_WIDTH)));
    for note in site_notes(result) {
        out.push_str(&hanging("", 2, note));
    }
    out.push_str(&more_sites(result).map_or(String::new(), |more| format!("  {more}\n")));
    if !result.cold_shares.is_empty() {
        let _ = write!(
            out,
            "\nGain of calls and of the program if another share of the data were cold\n{}",
            table(&SHARES, cold_shares(result))
        );
    }
    if let Some(against) = &result.against {
        let _ = write!(out, "\n{}", hanging("", 0, &against_heading(against)));
        let _ = write!(out, "{}", table(&COMPARED, compared(against)));
    }
    for (name, lines) in [("Scaled", &result.scaled), ("Assumed", &result.assumptions)] {
        let _ = write!(out, "\n{name}\n");
        out.extend(lines.iter().map(|line| hanging("  -", 4, line)));
    }
    out
}

fn table(columns: &[(&str, Align)], rows: Vec<Vec<String>>) -> Table {
    let mut table = Table::new(columns);
    rows.into_iter().for_each(|row| table.row(row));
    table
}

pub(super) fn gain(gain: Option<f64>) -> String {
    gain.map_or("–".into(), |gain| format!("{gain:.2} ×"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or("–".into(), |share| format!("{:.1} %", share * 100.0))
}

fn deviation(share: Option<f64>) -> String {
    share.map_or("unknown".into(), |share| format!("{:+.1} %", tenths(share)))
}

/// A share in percent with one digit, and without the sign of a zero.
fn tenths(share: f64) -> f64 {
    (share * 1000.0).round() / 10.0 + 0.0
}

/// The main results, each with a name.
pub(super) fn summary(result: &Prediction) -> Vec<(&'static str, String)> {
    let recorded = &result.recorded;
    let gains = match (result.gain_of_calls, result.gain_of_program) {
        (Some(calls), program) => {
            let program =
                program.map_or(String::new(), |program| format!(", and the program {program:.2} times as fast"));
            let devices = counted(result.devices.devices, "device", "devices");
            format!(
                "The long calls become {calls:.2} times as fast{program}, with the best policy for each call site, on \
                 {devices} of {}.",
                result.about.profile
            )
        }
        (None, _) => "Unknown: no long call was replayed.".into(),
    };
    let program = format!(
        "{}, {} on {}, for {} until the last long call.",
        printable(&recorded.program),
        counted(recorded.processes, "process", "processes"),
        printable(&recorded.cpu),
        units::time(recorded.wall_ns)
    );
    let calls = format!(
        "{} of {} calls are long ({} or more), with {} of {}, in {}. They took {} of the {} of all calls, and {} of \
         the program's {}.",
        recorded.long_calls,
        recorded.calls,
        units::size(recorded.long_from),
        size(recorded.long_bytes),
        size(recorded.bytes),
        counted(recorded.threads, "thread", "threads"),
        units::time(recorded.long_ns),
        units::time(recorded.calls_ns),
        percent(recorded.long_share),
        units::time(recorded.program_ns),
    );
    let data = format!(
        "{} hot, {} cold, {} fresh, by bytes of long calls.",
        percent(recorded.hot_share),
        percent(recorded.cold_share),
        percent(recorded.fresh_share)
    );
    let check = &result.check;
    let replay = format!(
        "{} of {} long calls in {}. With offload off, their time deviates from the recorded time by {}, and that of \
         the sections by {} (goal: within 3 %). By the calibration curves alone it deviates by {}.",
        check.replayed_calls,
        recorded.long_calls,
        counted(check.sections, "section", "sections"),
        deviation(check.error),
        deviation(check.section_error),
        deviation(check.curve_error)
    );
    let devices = &result.devices;
    let work = format!(
        "{} of long calls and {} of their bytes, in {}; {} of long calls find a full queue, {} meet a missing page.",
        percent(devices.share_of_calls),
        percent(devices.share_of_bytes),
        units::time_or_none(devices.calls_ns),
        percent(devices.queue_full),
        percent(devices.faults)
    );
    vec![
        ("Gain", gains),
        ("Recorded", program),
        ("Calls", calls),
        ("Data", data),
        ("Replay", replay),
        ("Devices", work),
    ]
}

fn counted(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

const TIMES: [(&str, Align); 6] = [
    ("long calls", Align::Left),
    ("in all", Align::Right),
    ("mean", Align::Right),
    ("p50", Align::Right),
    ("p99", Align::Right),
    ("p99.999", Align::Right),
];

pub(super) fn names(columns: &[(&str, Align)]) -> Vec<String> {
    columns.iter().map(|(name, _)| (*name).to_owned()).collect()
}

pub(super) fn times_header() -> Vec<String> {
    names(&TIMES)
}

pub(super) fn times(result: &Prediction) -> Vec<Vec<String>> {
    let row = |name: String, times: &CallTimes| {
        let cells = [times.total_ns, times.mean_ns, times.p50_ns, times.p99_ns, times.p99_999_ns];
        std::iter::once(name).chain(cells.map(units::time_or_none)).collect()
    };
    vec![
        row("as recorded".into(), &result.as_recorded),
        row(format!("by the CPU of {}", last_characters(&result.about.profile, 20)), &result.by_cpu),
        row("with the best policy".into(), &result.offloaded),
    ]
}

const THRESHOLDS: [(&str, Align); 4] =
    [("from", Align::Right), ("gain of calls", Align::Right), ("of the program", Align::Right), ("", Align::Left)];

pub(super) fn thresholds_header() -> Vec<String> {
    names(&THRESHOLDS)
}

pub(super) fn thresholds(result: &Prediction) -> Vec<Vec<String>> {
    let row = |threshold: &ThresholdGain| {
        let best = if result.best_threshold == Some(threshold.bytes) { "best" } else { "" };
        let mark = if threshold.partly_estimated { "~" } else { "" };
        vec![
            units::size(threshold.bytes),
            gain(threshold.gain_of_calls),
            gain(threshold.gain_of_program),
            format!("{mark} {best}").trim().to_owned(),
        ]
    };
    result.thresholds.iter().map(row).collect()
}

pub(super) fn best_threshold(result: &Prediction) -> String {
    match result.best_threshold {
        Some(bytes) => format!("The best is {}.", units::size(bytes)),
        None => "No threshold gains.".into(),
    }
}

const SITES: [(&str, Align); 7] = [
    ("site", Align::Left),
    ("bytes", Align::Right),
    ("cold", Align::Right),
    ("by CPU", Align::Right),
    ("device", Align::Right),
    ("gain", Align::Right),
    ("best", Align::Left),
];

pub(super) fn sites_header() -> Vec<String> {
    names(&SITES)
}

/// The function's name, or the module's file name and the offset.
pub(super) fn site_name(site: &SitePolicy) -> String {
    let module = site.module.as_deref().map(|path| path.rsplit('/').next().unwrap_or(path));
    match (&site.function, module) {
        (Some(function), _) => printable(function),
        (None, Some(module)) => format!("{}+{:#x}", printable(module), site.offset),
        (None, None) => format!("{:#x}", site.offset),
    }
}

pub(super) fn sites(result: &Prediction, width: usize) -> Vec<Vec<String>> {
    let row = |(number, site): (usize, &SitePolicy)| {
        let name = format!("{} {}", number + 1, last_characters(&site_name(site), width));
        vec![
            name,
            size(site.bytes),
            percent(site.cold_share),
            units::time_or_none(site.cpu_ns),
            units::time_or_none(site.device_ns),
            gain(site.gain),
            if site.by == "device" { "device" } else { "CPU" }.into(),
        ]
    };
    result.sites.iter().take(MOST_SITES).enumerate().map(row).collect()
}

/// What must be known to read the table of sites.
pub(super) fn site_notes(result: &Prediction) -> Vec<&'static str> {
    let on_cpu = || result.sites.iter().filter(|site| site.by != "device" && site.device_ns.is_some());
    let mut notes = Vec::new();
    if on_cpu().next().is_some() {
        notes.push("device: for sites that stay on the CPU, the time without other calls there");
    }
    if on_cpu().any(|site| site.gain.is_some_and(|gain| gain > 1.0)) {
        notes.push(
            "A site with a gain stays on the CPU if many of its calls wait for page faults, if the gain is below 2 %, \
             or if other sites keep the devices busy.",
        );
    }
    notes
}

pub(super) fn more_sites(result: &Prediction) -> Option<String> {
    let left = result.sites.len().saturating_sub(MOST_SITES);
    (left > 0).then(|| format!("and {left} call sites that save less; JSON and CSV have all"))
}

const SHARES: [(&str, Align); 7] = [
    ("change", Align::Right),
    ("cold", Align::Right),
    ("by CPU", Align::Right),
    ("best policy", Align::Right),
    ("saved", Align::Right),
    ("calls", Align::Right),
    ("program", Align::Right),
];

pub(super) fn shares_header() -> Vec<String> {
    names(&SHARES)
}

pub(super) fn cold_shares(result: &Prediction) -> Vec<Vec<String>> {
    let row = |share: &ColdShareGain| {
        vec![
            if share.points == 0 { "recorded".into() } else { format!("{:+} points", share.points) },
            percent(Some(share.cold_share)),
            units::time(share.by_cpu_ns),
            units::time(share.offloaded_ns),
            units::time(share.saved_ns),
            gain(share.gain_of_calls),
            gain(share.gain_of_program),
        ]
    };
    result.cold_shares.iter().map(row).collect()
}

const COMPARED: [(&str, Align); 4] =
    [("", Align::Left), ("predicted", Align::Right), ("other recording", Align::Right), ("deviation", Align::Right)];

pub(super) fn compared_header() -> Vec<String> {
    names(&COMPARED)
}

pub(super) fn against_heading(against: &Comparison) -> String {
    let are = if against.unknown_sites == 1 { "is" } else { "are" };
    let unknown = match against.unknown_sites {
        0 => String::new(),
        sites => format!(" {sites} of its call sites {are} unknown from the first one: the CPU executes their calls."),
    };
    format!("Compared with another recording of {}. {}{unknown}", printable(&against.program), against.how)
}

pub(super) fn compared(against: &Comparison) -> Vec<Vec<String>> {
    let value = |unit: &str, value: Option<f64>| match (unit, value) {
        (_, None) => "–".into(),
        ("ns", Some(ns)) => units::time(ns),
        ("%", share) => percent(share),
        ("B", Some(bytes)) => size(whole(bytes)),
        (_, ratio) => gain(ratio),
    };
    let row = |row: &ComparedValue| {
        let deviation = match (row.deviation, row.unit) {
            (None, _) => "–".into(),
            (Some(share), "%") => format!("{:+.1} points", tenths(share)),
            (share, _) => deviation(share),
        };
        vec![row.name.to_owned(), value(row.unit, row.predicted), value(row.unit, row.other), deviation]
    };
    against.rows.iter().map(row).collect()
}

/// Formats a sum of bytes with three significant digits.
#[allow(clippy::cast_precision_loss, reason = "three digits are shown")]
fn size(bytes: u64) -> String {
    let unit = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")].into_iter().find(|(shift, _)| bytes >> shift > 0);
    let (shift, unit) = unit.unwrap_or((0, "B"));
    format!("{} {unit}", units::three(bytes as f64 / (1_u64 << shift) as f64))
}

/// A number of bytes.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float's cast saturates")]
fn whole(bytes: f64) -> u64 {
    bytes.round() as u64
}

/// One line for each number: the part of the result, the object, the quantity, its value and its unit.
#[must_use]
pub fn csv(result: &Prediction) -> String {
    let about = &result.about;
    let mut out = String::from("simulated,profile,profile_hash,part,name,quantity,value,unit\n");
    for (part, name, quantity, value, unit) in numbers(result) {
        let value = value.filter(|value| value.is_finite()).map_or_else(String::new, |value| value.to_string());
        let line = [&about.profile, &about.profile_hash, part, &name, quantity].map(field);
        let _ = writeln!(out, "yes,{},{value},{unit}", line.join(","));
    }
    out
}

type Number = (&'static str, String, &'static str, Option<f64>, &'static str);

#[allow(clippy::cast_precision_loss, reason = "counts of calls and bytes, for people")]
fn numbers(result: &Prediction) -> Vec<Number> {
    let recorded = &result.recorded;
    let mut out: Vec<Number> = Vec::new();
    let mut add = |part, name: &str, quantity, value, unit| out.push((part, name.to_owned(), quantity, value, unit));
    let program = recorded.program.as_str();
    for (quantity, value, unit) in [
        ("calls", recorded.calls as f64, ""),
        ("bytes", recorded.bytes as f64, "B"),
        ("time in calls", recorded.calls_ns, "ns"),
        ("long from", recorded.long_from as f64, "B"),
        ("long calls", recorded.long_calls as f64, ""),
        ("bytes of long calls", recorded.long_bytes as f64, "B"),
        ("time in long calls", recorded.long_ns, "ns"),
        ("interruptions of long calls", recorded.interrupted_ns, "ns"),
        ("wall time", recorded.wall_ns, "ns"),
        ("threads with long calls", recorded.threads as f64, ""),
        ("time of the program", recorded.program_ns, "ns"),
    ] {
        add("recorded", program, quantity, Some(value), unit);
    }
    for (quantity, share) in [
        ("share of long calls in the program's time", recorded.long_share),
        ("hot share of bytes", recorded.hot_share),
        ("cold share of bytes", recorded.cold_share),
        ("fresh share of bytes", recorded.fresh_share),
    ] {
        add("recorded", program, quantity, share, "");
    }
    let check = &result.check;
    for (quantity, value, unit) in [
        ("replayed calls", Some(check.replayed_calls as f64), ""),
        ("sections", Some(check.sections as f64), ""),
        ("time in long calls", check.replayed_ns, "ns"),
        ("deviation of time in long calls", check.error, ""),
        ("deviation of the sections' time", check.section_error, ""),
        ("deviation by calibration curves alone", check.curve_error, ""),
    ] {
        add("replay", program, quantity, value, unit);
    }
    for (name, times) in
        [("as recorded", &result.as_recorded), ("by CPU", &result.by_cpu), ("best policy", &result.offloaded)]
    {
        add("long calls", name, "time", times.total_ns, "ns");
        add("long calls", name, "mean", times.mean_ns, "ns");
        add("long calls", name, "p50", times.p50_ns, "ns");
        add("long calls", name, "p99", times.p99_ns, "ns");
        add("long calls", name, "p99.999", times.p99_999_ns, "ns");
    }
    let devices = &result.devices;
    for (quantity, value) in [
        ("gain of calls", result.gain_of_calls),
        ("gain of program", result.gain_of_program),
        ("devices", Some(devices.devices as f64)),
        ("calls by device", devices.calls),
        ("bytes by device", devices.bytes),
        ("time of calls by device in ns", devices.calls_ns),
        ("share of calls by device", devices.share_of_calls),
        ("share of bytes by device", devices.share_of_bytes),
        ("share of calls with a full queue", devices.queue_full),
        ("share of calls with page faults", devices.faults),
    ] {
        add("best policy", program, quantity, value, "");
    }
    for threshold in &result.thresholds {
        let name = threshold.bytes.to_string();
        add("threshold", &name, "gain of calls", threshold.gain_of_calls, "");
        add("threshold", &name, "gain of program", threshold.gain_of_program, "");
    }
    for site in &result.sites {
        let module = site.module.as_deref().unwrap_or_default();
        let name = format!("{module}+{:#x}", site.offset);
        add("site", &name, "calls", Some(site.calls as f64), "");
        add("site", &name, "bytes", Some(site.bytes as f64), "B");
        add("site", &name, "cold share of bytes", site.cold_share, "");
        add("site", &name, "mean time by CPU", site.cpu_ns, "ns");
        add("site", &name, "mean time by device", site.device_ns, "ns");
        add("site", &name, "gain of long calls on a device", site.gain, "");
        add("site", &name, "by device", Some(f64::from(u8::from(site.by == "device"))), "");
        add("site", &name, "saved", Some(site.saved_ns), "ns");
    }
    for share in &result.cold_shares {
        let name = share.points.to_string();
        add("cold share", &name, "cold share of bytes", Some(share.cold_share), "");
        add("cold share", &name, "time by CPU", Some(share.by_cpu_ns), "ns");
        add("cold share", &name, "time with best policy", Some(share.offloaded_ns), "ns");
        add("cold share", &name, "saved", Some(share.saved_ns), "ns");
        add("cold share", &name, "gain of calls", share.gain_of_calls, "");
        add("cold share", &name, "gain of program", share.gain_of_program, "");
    }
    for row in result.against.iter().flat_map(|against| &against.rows) {
        // A share is a number between 0 and 1 here, as everywhere in this file.
        let unit = if row.unit == "%" { "" } else { row.unit };
        add("against", row.name, "predicted", row.predicted, unit);
        add("against", row.name, "other recording", row.other, unit);
        add("against", row.name, "deviation", row.deviation, "");
    }
    out
}
