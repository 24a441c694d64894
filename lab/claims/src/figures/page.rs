//! Figures as one HTML page, CSV and JSON.

use super::{Axis, FROM_PROSE, Figure, Origin, Scale};
use crate::published::Use;
use crate::validation::tables::summaries;
use crate::verdict::Row;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::SystemTime;
use telpher_report::html::{Figure as Drawing, Page};
use telpher_report::machine::date;
use telpher_report::plot;
use telpher_report::table::{Align, Table, hanging};

/// Shown instead of a document if no document has such a figure.
const UNSOURCED: &str = "No document has this figure";

/// Returns the notice on all output: that it is simulated, and on which machine.
fn simulated(figure: &Figure) -> String {
    format!("simulated, {}", machines(figure))
}

/// `spr-asplos (0123456789abcdef)`.
fn named(profile: &(String, u64)) -> String {
    format!("{} ({:016x})", profile.0, profile.1)
}

fn machines(figure: &Figure) -> String {
    figure.profiles.iter().map(named).collect::<Vec<_>>().join(", ")
}

/// Returns the terminal output: each figure, and its differences from the published numbers.
#[must_use]
pub fn text(figures: &[Figure]) -> String {
    let mut table = Table::new(&[("figure", Align::Left), ("claims", Align::Right), ("differ", Align::Right)]);
    let mut profiles = BTreeSet::new();
    for figure in figures {
        profiles.extend(figure.profiles.iter().map(named));
        let (claims, differ) = (figure.facts.len().to_string(), figure.differs().count().to_string());
        table.row([figure.sheet.id.into(), claims, differ]);
        table.below(figure.sheet.title);
    }
    let profiles = profiles.into_iter().collect::<Vec<_>>().join(", ");
    let mut out = format!("{}\n{table}", hanging("", 0, &format!("Simulated · profile {profiles}")));
    for figure in figures {
        for row in figure.differs() {
            let (claim, why) = (row.claim, row.verdict.why());
            let says = format!("{} {} ({}): {}", figure.sheet.id, claim.id, claim.place, claim.says);
            let numbers = format!("published {}; simulated {}", row.published(), row.simulated);
            let _ = write!(out, "\n{}{}{}", hanging("", 0, &says), hanging("", 2, &numbers), hanging("", 2, &why));
        }
        let cannot = figure.cannot.iter().map(|why| format!("cannot be drawn on this machine: {why}"));
        for sentence in cannot.chain(figure.distances.iter().cloned()) {
            let _ = write!(out, "\n{}", hanging("", 0, &format!("{} {sentence}", figure.sheet.id)));
        }
    }
    out
}

/// One line for each point.
#[must_use]
pub fn csv(figures: &[Figure]) -> String {
    let mut out = String::from("figure,panel,series,origin,profile,x_axis,x,x_name,x_unit,y_axis,y,y_unit\n");
    for figure in figures {
        let profile = machines(figure);
        for panel in &figure.panels {
            for series in &panel.series {
                let (origin, profile) = match series.origin {
                    Origin::Simulated => ("simulated", profile.as_str()),
                    Origin::Published => ("published", ""),
                };
                for (x, y) in &series.points {
                    let (x, y) = (x.to_string(), y.to_string());
                    let name = name(&x, &panel.x);
                    let fields = [
                        figure.sheet.id,
                        &panel.title,
                        &series.name,
                        origin,
                        profile,
                        &panel.x.label,
                        &x,
                        &name,
                        panel.x.unit,
                        &panel.y.label,
                        &y,
                        panel.y.unit,
                    ];
                    out.push_str(&fields.map(quoted).join(","));
                    out.push('\n');
                }
            }
        }
    }
    out
}

/// Returns the name of a position, if the axis has names.
fn name(x: &str, axis: &Axis) -> String {
    match &axis.scale {
        Scale::Names(names) => x.parse().ok().and_then(|x: usize| names.get(x)).cloned().unwrap_or_default(),
        _ => String::new(),
    }
}

/// Quotes a CSV field.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// Returns everything about one figure.
#[must_use]
pub fn json(figure: &Figure) -> Value {
    let axis = |axis: &Axis| {
        let scale = match &axis.scale {
            Scale::Linear => json!("linear"),
            Scale::Log => json!("log10"),
            Scale::Binary => json!("log2"),
            Scale::Names(names) => json!(names),
        };
        json!({ "label": axis.label, "unit": axis.unit, "scale": scale })
    };
    let panels = figure.panels.iter().map(|panel| {
        let series = panel.series.iter().map(|series| {
            let simulated = series.origin == Origin::Simulated;
            json!({ "name": series.name, "simulated": simulated, "points": series.points })
        });
        let series: Vec<Value> = series.collect();
        json!({ "title": panel.title, "x": axis(&panel.x), "y": axis(&panel.y), "series": series })
    });
    let claims = figure.facts.iter().map(|row| {
        json!({
            "id": row.claim.id,
            "where": row.claim.place,
            "says": row.claim.says,
            "published": row.published(),
            "simulated": row.simulated,
            "verdict": row.verdict.name(),
            "why": row.verdict.why(),
            "calibrates": row.claim.usage == Use::Calibrate,
        })
    });
    let profiles = figure.profiles.iter().map(|it| json!({ "name": it.0, "hash": format!("{:016x}", it.1) }));
    json!({
        "simulated": true,
        "figure": figure.sheet.id,
        "title": figure.sheet.title,
        "source": figure.sheet.source,
        "how": figure.sheet.how,
        "profiles": profiles.collect::<Vec<_>>(),
        "panels": panels.collect::<Vec<_>>(),
        "claims": claims.collect::<Vec<_>>(),
        "cannot": figure.cannot,
        "distances": figure.distances,
        "coincide": figure.coincide,
    })
}

/// The claims of the figures and the others, each once.
fn counted(figures: &[Figure], others: &[Row]) -> Vec<Row> {
    let mut seen = BTreeSet::new();
    let rows = figures.iter().flat_map(|figure| &figure.facts).chain(others);
    rows.filter(|row| seen.insert(&row.claim.id)).cloned().collect()
}

/// The page. `others` are the claims without a figure, so that its counts are those of `telpher sim validate`; empty if
/// only some figures were requested.
#[must_use]
pub fn html(figures: &[Figure], others: &[Row], command: &str) -> String {
    let profiles: BTreeSet<String> = figures.iter().flat_map(|figure| &figure.profiles).map(named).collect();
    let of = if others.is_empty() { "about these figures" } else { "as in telpher sim validate" };
    let counts = summaries(&counted(figures, others)).join(". ");
    let facts = [
        ("Simulated", "every line and bar; nothing was measured".to_owned()),
        ("Profiles", profiles.into_iter().collect::<Vec<_>>().join(", ")),
        ("Claims", format!("{of}: {counts}. Under each figure are those about it")),
        ("Date", date(SystemTime::now())),
        ("Command", command.to_owned()),
        ("Version", format!("telpher {}", env!("CARGO_PKG_VERSION"))),
    ];
    let mut page = Page::with_facts(
        "telpher sim figures",
        "Published figures about the Data Streaming Accelerator, drawn anew in simulated time. Lines with marks and \
         filled bars are simulated; each line of a chart has a mark of its own. Dashed lines and shaded ranges are \
         published numbers, with the name of the claim they are of; open circles and outlined bars are published \
         series.",
        &facts,
        &[],
    );
    for figure in figures {
        section(&mut page, figure);
    }
    page.finish()
}

/// A figure with the document's caption.
pub fn section(page: &mut Page, figure: &Figure) {
    page.section(&format!("{}: {}", figure.sheet.id, figure.sheet.title), figure.sheet.how);
    let legends: Vec<Vec<(usize, &str)>> = figure.panels.iter().map(plot::colours).collect();
    let common = legends.windows(2).all(|pair| pair[0] == pair[1]);
    if common && let Some(legend) = legends.first() {
        page.legend(legend.iter().copied());
    }
    page.charts(figure.panels.iter().zip(&legends).map(|(panel, legend)| {
        let title = if panel.title.is_empty() { &panel.y.label } else { &panel.title };
        let legend = if common { Vec::new() } else { legend.clone() };
        Drawing { caption: title.clone(), svg: plot::svg(panel), legend }
    }));
    let published = figure.panels.iter().flat_map(|panel| &panel.series).any(|it| it.origin == Origin::Published);
    let own = figure.sheet.source.is_empty();
    let known = if published || own || figure.cannot.is_some() { "" } else { FROM_PROSE };
    let source = if own { UNSOURCED } else { figure.sheet.source };
    page.small(&format!("{source}; {}. {known}", simulated(figure)));
    if let Some(why) = &figure.cannot {
        page.small(&format!("It cannot be drawn on this machine: {why}."));
    }
    for note in figure.distances.iter().chain(&figure.coincide) {
        page.small(&format!("{note}."));
    }
    page.file(&format!("{}.csv", figure.sheet.id), "The figure's numbers as CSV");
    if !figure.facts.is_empty() {
        let header = ["claim", "what the document says", "published", "simulated", "verdict"];
        page.sentences(&header, figure.facts.iter().map(cells));
    }
}

/// A row of the claims table under a figure.
fn cells(row: &Row) -> Vec<String> {
    let used = if row.claim.usage == Use::Calibrate { " (calibrates)" } else { "" };
    let (mut verdict, why) = (row.verdict.name().to_owned(), row.verdict.why());
    if let Some(without) = row.without_step().filter(|without| *without != verdict) {
        let _ = write!(verdict, " with one step's tolerance, {without} without");
    }
    vec![
        format!("{}, {}", row.claim.id, row.claim.place),
        format!("{}{used}", row.claim.says),
        row.published(),
        row.simulated.clone(),
        if why.is_empty() { verdict } else { format!("{verdict}: {why}") },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{draw, sheets};
    use std::sync::LazyLock;

    static SOME: LazyLock<Vec<Figure>> = LazyLock::new(|| {
        let some: Vec<_> =
            sheets().filter(|it| ["asplos-5", "asplos-10", "lightdsa-single"].contains(&it.id)).collect();
        draw(&some, 2, None).unwrap()
    });

    #[test]
    fn every_output_names_the_simulated_machine() {
        let hash = format!("{:016x}", SOME[0].profiles[0].1);
        for (what, text) in [
            ("page", html(&SOME, &[], "telpher sim figures")),
            ("CSV", csv(&SOME)),
            ("JSON", json(&SOME[0]).to_string()),
            ("text", text(&SOME)),
        ] {
            for word in ["imulated", "spr-asplos", &hash] {
                assert!(text.contains(word), "{what}: {word} is missing in {text}");
            }
        }
    }

    #[test]
    fn csv_has_a_line_for_every_point_and_equal_field_counts() {
        let csv = csv(&SOME[1..2]);
        let points: usize = SOME[1].panels.iter().flat_map(|panel| &panel.series).map(|it| it.points.len()).sum();
        assert_eq!(csv.lines().count(), points + 1);
        assert!(csv.lines().all(|line| line.split(',').count() == 12), "{csv}");
    }

    #[test]
    fn json_can_be_read_back_and_names_the_axes() {
        let text = serde_json::to_string_pretty(&json(&SOME[0])).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["panels"][0]["y"]["unit"], "µs");
        assert_eq!(read["panels"][0]["x"]["scale"][0], "core");
        assert!(read["panels"][0]["series"][1]["points"][0][1].as_f64().unwrap() > 0.0);
        assert_eq!(read["claims"][0]["id"], "K-033");
    }

    #[test]
    fn a_figure_without_a_document_has_a_note() {
        let own: Vec<_> = sheets().filter(|it| it.id == "migration-user-devices").collect();
        let page = html(&draw(&own, 1, None).unwrap(), &[], "telpher sim figures");
        assert!(page.contains(UNSOURCED) && !page.contains(FROM_PROSE), "{page}");
        assert!(!html(&SOME, &[], "telpher sim figures").contains(UNSOURCED));
    }

    #[test]
    fn a_claim_of_two_figures_counts_once_and_the_page_has_its_date() {
        let twice: Vec<Figure> = SOME.iter().chain(SOME.iter()).cloned().collect();
        let rows = counted(&twice, &[]);
        assert_eq!(rows.len(), counted(&SOME, &[]).len());
        assert!(rows.len() <= SOME.iter().map(|figure| figure.facts.len()).sum());
        let page = html(&SOME, &[], "telpher sim figures");
        assert!(page.contains("about these figures: ") && page.contains(&date(SystemTime::now())[..10]), "{page}");
        let page = html(&SOME, &rows, "telpher sim figures");
        assert!(page.contains("as in telpher sim validate: Never in view: "), "{page}");
    }

    #[test]
    fn the_page_has_every_chart_and_fetches_nothing() {
        let page = html(&SOME, &[], "telpher sim figures");
        assert_eq!(page.matches("<svg ").count(), SOME.iter().map(|figure| figure.panels.len()).sum::<usize>());
        // The links lead to the files beside the page.
        assert_eq!(page.matches("href=").count(), SOME.len());
        assert!(page.contains("href=\"asplos-5.csv\""), "{page}");
        for word in ["src=", "url(", "@import", "<script", "<link", "NaN"] {
            assert!(!page.contains(word), "{word}");
        }
        assert!(page.contains(FROM_PROSE) && page.contains("K-047") && page.contains("70.0 GB/s"));
    }
}
