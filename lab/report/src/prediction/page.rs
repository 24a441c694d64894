//! A prediction as an HTML page.

use super::Prediction;
use super::tables::{
    MOST_SITES, against_heading, best_threshold, cold_shares, compared, compared_header, more_sites, shares_header,
    site_notes, sites, sites_header, summary, thresholds, thresholds_header, times, times_header,
};
use crate::html::{Figure, Page};
use crate::panel::{Axis, Origin, Panel, Scale, Series, Shape};
use crate::plot;
use crate::table::printable;

/// Characters of a site's name on a page.
const SITE_WIDTH: usize = 60;

/// Call sites in the chart. Source: chosen; the axis has room for twelve names.
const DRAWN_SITES: usize = 12;

/// Returns the HTML report.
#[must_use]
pub fn html(result: &Prediction) -> String {
    let remarks: Vec<String> = result.remarks.iter().map(|remark| printable(remark)).collect();
    let mut page = Page::with_facts(
        "telpher record predict",
        "What a recorded program would gain by offloading its long copies to DSA devices, on the machine that the \
         profile describes. The recorded calls were measured; everything else was simulated.",
        &facts(result),
        &remarks,
    );
    let words = summary(result);
    page.section("Result", words.iter().find(|(name, _)| *name == "Gain").map_or("", |(_, words)| words));
    let rest = words.into_iter().filter(|(name, _)| *name != "Gain");
    page.sentences(&["what", ""], rest.map(|(name, words)| vec![name.to_owned(), words]));
    page.table(&times_header(), times(result));
    page.small("A percentile is missing where too few calls were replayed: p99 needs 100, p99.999 1,000,000.");
    let sweep = "All calls from a size on go to devices, whatever their call site and their data.";
    page.section("One threshold for all call sites", &format!("{sweep} {}", best_threshold(result)));
    page.charts([figure("Gain by threshold", &sweep_panel(result))]);
    page.details("The numbers", |page| {
        page.table(&thresholds_header(), thresholds(result));
        page.small(
            "~: calls below the size of long calls are not in the trace; their part was computed from their number.",
        );
    });
    page.section(
        "Best policy for each call site",
        "A call site belongs to the device if its calls take less time there, while the other sites use the devices, \
         too. Times are means of replayed calls.",
    );
    page.charts([figure("Mean time of a call", &sites_panel(result))]);
    page.table(&sites_header(), sites(result, SITE_WIDTH));
    site_notes(result).into_iter().for_each(|note| page.small(note));
    if let Some(more) = more_sites(result) {
        page.small(&more);
    }
    if !result.cold_shares.is_empty() {
        page.section(
            "If another share of the data were cold",
            "The recorder judges by a call's time whether its data was in the caches. Here hot calls are replaced by \
             cold ones, or the reverse, and each call site gets its best policy again.",
        );
        page.charts([figure("Gain by share of cold data", &shares_panel(result))]);
        page.table(&shares_header(), cold_shares(result));
    }
    if let Some(against) = &result.against {
        page.section("Compared with another recording", &against_heading(against));
        page.table(&compared_header(), compared(against));
    }
    page.section("What was scaled", "From the recorded machine to that of the profile.");
    page.sentences(&[""], result.scaled.iter().map(|line| vec![line.clone()]));
    page.section("What is assumed", "");
    page.sentences(&[""], result.assumptions.iter().map(|line| vec![line.clone()]));
    page.finish()
}

fn facts(result: &Prediction) -> Vec<(&'static str, String)> {
    let recorded = &result.recorded;
    let mut facts = result.about.facts();
    facts[0].1 = "all times with devices; the calls were recorded".into();
    facts.insert(1, ("Program", printable(&recorded.program)));
    facts.insert(2, ("Recorded on", printable(&recorded.cpu)));
    facts
}

fn figure(caption: &str, panel: &Panel) -> Figure<'static> {
    let names = ["calls", "program", "by the CPU", "by a device"];
    let style = |name: &&'static str| {
        plot::colours(panel).into_iter().find(|(_, known)| known == name).map(|(style, _)| (style, *name))
    };
    let legend = names.iter().filter_map(style).collect();
    Figure { caption: caption.into(), svg: plot::svg(panel), legend }
}

fn series(name: &str, points: impl Iterator<Item = (f64, Option<f64>)>) -> Series {
    let points = points.filter_map(|(x, y)| Some((x, y.filter(|y| y.is_finite())?))).collect();
    Series { name: name.into(), origin: Origin::Simulated, points }
}

fn gains(x: Axis, series: Vec<Series>) -> Panel {
    let y = Axis { label: "gain".into(), unit: "", scale: Scale::Linear };
    let series = series.into_iter().filter(|series| !series.points.is_empty()).collect();
    Panel { title: String::new(), x, y, shape: Shape::Lines, series, marks: Vec::new() }
}

#[allow(clippy::cast_precision_loss, reason = "sizes up to 1 MiB")]
fn sweep_panel(result: &Prediction) -> Panel {
    let points = || result.thresholds.iter().map(|threshold| (threshold.bytes as f64, threshold));
    gains(
        Axis { label: "threshold".into(), unit: "B", scale: Scale::Binary },
        vec![
            series("calls", points().map(|(x, threshold)| (x, threshold.gain_of_calls))),
            series("program", points().map(|(x, threshold)| (x, threshold.gain_of_program))),
        ],
    )
}

fn shares_panel(result: &Prediction) -> Panel {
    // Tenths of a percent, which ticks have room for.
    let points = || result.cold_shares.iter().map(|share| ((share.cold_share * 1000.0).round() / 10.0, share));
    gains(
        Axis { label: "cold bytes".into(), unit: "%", scale: Scale::Linear },
        vec![
            series("calls", points().map(|(x, share)| (x, share.gain_of_calls))),
            series("program", points().map(|(x, share)| (x, share.gain_of_program))),
        ],
    )
}

#[allow(clippy::cast_precision_loss, reason = "a few sites")]
fn sites_panel(result: &Prediction) -> Panel {
    let shown = || result.sites.iter().take(MOST_SITES.min(DRAWN_SITES)).filter(|site| site.device_ns.is_some());
    let us = |ns: Option<f64>| ns.map(|ns| ns / 1e3);
    let points = || shown().enumerate().map(|(at, site)| (at as f64, site));
    let bars = vec![
        series("by the CPU", points().map(|(x, site)| (x, us(site.cpu_ns)))),
        series("by a device", points().map(|(x, site)| (x, us(site.device_ns)))),
    ];
    let names = result.sites.iter().take(DRAWN_SITES).enumerate();
    let names =
        names.filter(|(_, site)| site.device_ns.is_some()).map(|(number, _)| (number + 1).to_string()).collect();
    Panel {
        title: String::new(),
        x: Axis { label: "call site, as numbered in the table".into(), unit: "", scale: Scale::Names(names) },
        y: Axis { label: "time of a call".into(), unit: "µs", scale: Scale::Linear },
        shape: Shape::Bars,
        series: bars.into_iter().filter(|series| !series.points.is_empty()).collect(),
        marks: Vec::new(),
    }
}
