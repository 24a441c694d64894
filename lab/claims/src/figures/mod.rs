//! Every published figure about the device, redrawn in simulated time.
//!
//! ```text
//! Sheet (id, title) ──draw──► Figure { panels: axes, series, marks · facts: claims about it with their verdicts }
//!                      │ sweep: Scenario ──lab──► Outcome ──► points
//! ```
//!
//! The documents' plots are images. Their contents are known only from the prose, which is in the claims, or from
//! tables and raw series, which are drawn beside the simulated ones.

mod asplos;
mod fabric;
mod lightdsa;
mod migration;
mod nvmf;
mod offload;
mod others;
pub mod page;
mod query;
mod sweep;
mod thesis;

use crate::lab::Lab;
use crate::published::{Claim, Value, claims};
use crate::verdict::{self, Row, Verdict};
use std::sync::Mutex;
pub use telpher_report::panel::{At, Axis, Mark, Origin, Panel, Scale, Series, Shape};
use telpher_sim::{Machine, ScenarioError};

/// The note under every chart whose plot was not printed as numbers.
pub const FROM_PROSE: &str = "What the plot showed is known only from the prose.";

type Result<T> = std::result::Result<T, ScenarioError>;

/// A figure that can be drawn.
#[derive(Clone, Copy, Debug)]
pub struct Sheet {
    /// Its name in commands and files: `asplos-3`.
    pub id: &'static str,
    /// The document and its name of the figure; empty if it is in no document.
    pub source: &'static str,
    /// Its subject.
    pub title: &'static str,
    /// The simulated setup.
    pub how: &'static str,
    /// Claims about it.
    pub claims: &'static [&'static str],
    draw: fn(&Lab) -> Result<Vec<Panel>>,
}

/// A figure with its data. Series are simulated unless marked as published.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The sheet of the figure.
    pub sheet: &'static Sheet,
    /// The machines, by name and hash, ordered by name.
    pub profiles: Vec<(String, u64)>,
    /// Its charts.
    pub panels: Vec<Panel>,
    /// The reason if it has no charts: the requested machine cannot run it.
    pub cannot: Option<String>,
    /// The document's claims with their verdicts.
    pub facts: Vec<Row>,
    /// Deviations of series from published ones, as sentences.
    pub distances: Vec<String>,
    /// Series that coincide, so fewer lines are visible than there are.
    pub coincide: Vec<String>,
}

/// A claim by its name.
fn claim(id: &'static str) -> &'static Claim {
    claims().iter().find(|claim| claim.id == id).expect("a test draws every figure")
}

/// A claim's numbers; a single number is returned twice.
fn numbers(id: &'static str) -> (f64, f64) {
    match &claim(id).value {
        Value::None => (f64::NAN, f64::NAN),
        Value::One(value) => (*value, *value),
        Value::Many(values) => (values[0], values[values.len() - 1]),
    }
}

/// Marks a claim's number as a vertical value, or its range.
fn level_mark(claim: &'static str) -> Mark {
    let (low, high) = numbers(claim);
    Mark { claim, at: if low < high { At::Levels(low, high) } else { At::Level(low) } }
}

/// Marks a claim's number as a horizontal value, or its range.
fn place_mark(claim: &'static str) -> Mark {
    let (low, high) = numbers(claim);
    Mark { claim, at: if low < high { At::Places(low, high) } else { At::Place(low) } }
}

impl Figure {
    /// The claims that the simulation does not confirm.
    pub fn differs(&self) -> impl Iterator<Item = &Row> {
        self.facts.iter().filter(|row| matches!(row.verdict, Verdict::Fails { .. } | Verdict::Contradicts { .. }))
    }
}

/// Every figure, in the order of the documents; then those in no document.
pub fn sheets() -> impl Iterator<Item = &'static Sheet> {
    let documents = [
        asplos::SHEETS,
        fabric::SHEETS,
        nvmf::SHEETS,
        thesis::SHEETS,
        query::SHEETS,
        others::SHEETS,
        migration::SHEETS,
        lightdsa::SHEETS,
    ];
    documents.into_iter().flatten().chain(migration::program::SHEETS)
}

/// Draws figures on several threads; the result does not depend on their number. `instead` is a machine that replaces
/// the published ones; a figure that cannot be drawn on it has the reason.
///
/// # Errors
/// The simulator's error about a scenario.
pub fn draw(sheets: &[&'static Sheet], threads: usize, instead: Option<&Machine>) -> Result<Vec<Figure>> {
    let next = Mutex::new(sheets.iter().enumerate());
    let done = Mutex::new(Vec::new());
    let take = || next.lock().expect("no thread panics while it holds the list").next();
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, sheets.len().max(1)) {
            scope.spawn(|| {
                while let Some((number, sheet)) = take() {
                    let figure = sheet.figure(&instead.map_or_else(Lab::default, |machine| Lab::on(machine.clone())));
                    done.lock().expect("no thread panics while it holds the figures").push((number, figure));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no thread panics while it holds the figures");
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, figure)| figure).collect()
}

/// The claims that are about no figure, with their verdicts: with the figures' own they are all claims.
#[must_use]
pub fn claims_without_figure(instead: Option<&Machine>) -> Vec<Row> {
    let lab = instead.map_or_else(Lab::default, |machine| Lab::on(machine.clone()));
    verdict::all(&lab, |claim| !sheets().any(|sheet| sheet.claims.contains(&claim.id.as_str())))
}

impl Sheet {
    /// Draws the figure.
    ///
    /// # Errors
    /// The simulator's error about a scenario.
    pub fn figure(&'static self, lab: &Lab) -> Result<Figure> {
        let (panels, cannot) = match (self.draw)(lab) {
            Err(error) if lab.instead().is_some() => (Vec::new(), Some(error.to_string())),
            panels => (panels?, None),
        };
        let profiles = match lab.instead() {
            Some(machine) => vec![(machine.name.clone(), machine.hash)],
            None => lab.profiles(),
        };
        let facts = self.claims.iter().map(|id| verdict::of(lab, claim(id))).collect();
        let distances = panels.iter().flat_map(distances).collect();
        let coincide = panels.iter().flat_map(coincide).collect();
        Ok(Figure { sheet: self, profiles, panels, cannot, facts, distances, coincide })
    }
}

/// The name of a chart before a sentence about it.
fn prefix(panel: &Panel) -> String {
    if panel.title.is_empty() { String::new() } else { format!("{}, ", panel.title) }
}

/// Simulated lines of a chart that coincide within a hundredth.
fn coincide(panel: &Panel) -> Option<String> {
    let lines = || panel.series.iter().filter(|it| it.origin == Origin::Simulated && panel.shape == Shape::Lines);
    let same = |a: &Series, b: &Series| {
        let near =
            |(p, q): (&(f64, f64), &(f64, f64))| p.0 == q.0 && (p.1 - q.1).abs() <= 0.01 * p.1.abs().max(q.1.abs());
        a.points.len() == b.points.len() && a.points.iter().zip(&b.points).all(near)
    };
    let mut groups: Vec<Vec<&Series>> = Vec::new();
    for series in lines() {
        match groups.iter_mut().find(|group| same(group[0], series)) {
            Some(group) => group.push(series),
            None => groups.push(vec![series]),
        }
    }
    let named = |group: &Vec<&Series>| group.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(", ");
    let groups: Vec<String> = groups.iter().filter(|group| group.len() > 1).map(named).collect();
    (!groups.is_empty()).then(|| format!("{}these lines lie on each other: {}", prefix(panel), groups.join("; ")))
}

/// Deviations of a chart's simulated series from the published ones of the same name.
fn distances(panel: &Panel) -> Vec<String> {
    let of = |published: &Series| {
        let mut others = panel.series.iter().filter(|it| it.origin == Origin::Simulated);
        let simulated = others.find(|it| it.name == published.name)?;
        let each = published.points.iter().filter_map(|(x, y)| Some((*x, simulated.at(*x)? / y - 1.0)));
        let each: Vec<(f64, f64)> = each.collect();
        let worst = each.iter().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()))?;
        #[allow(clippy::cast_precision_loss, reason = "a few points")]
        let mean = each.iter().map(|it| it.1.abs()).sum::<f64>() / each.len() as f64;
        let at = match &panel.x.scale {
            #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "the number of a name")]
            Scale::Names(names) => names.get(worst.0 as usize).cloned().unwrap_or_default(),
            _ if panel.x.unit == "B" => verdict::quantity(worst.0, "bytes"),
            _ => worst.0.to_string(),
        };
        let title = prefix(panel);
        let (name, mean, worst) = (&published.name, mean * 100.0, worst.1 * 100.0);
        Some(format!("{title}{name}: {mean:.1} % from the published numbers on average, {worst:+.1} % at {at}"))
    };
    panel.series.iter().filter(|it| it.origin == Origin::Published).filter_map(of).collect()
}

#[cfg(test)]
mod tests;
