//! Compares published with simulated numbers, as data and as tables.

pub mod tables;

use crate::experiments::formula::Formula;
use crate::experiments::series::{Comparison, compare};
use crate::goals::{self, Goal};
use crate::lab::Lab;
use crate::published::{self, About as Subject, ExecutedBy, Use};
use crate::verdict::{self, Row, Tally, Verdict};
use serde::Serialize;
use telpher_report::about::About;
use telpher_sim::{Machine, ScenarioError};

/// The results of all comparisons.
#[derive(Debug, Serialize)]
pub struct Validation {
    /// The header of the result.
    pub about: About,
    /// Name of the machine that replaces the published ones; `None` otherwise.
    pub elsewhere: Option<String>,
    /// Whether only some claims were requested.
    pub some: bool,
    /// Held-out claims that were not known during any choice: the headline.
    pub held_out_untouched: Count,
    /// Held-out claims that were known during some choice.
    pub held_out_in_view: Count,
    /// Held-out claims: they set no parameter.
    pub held_out: Claims,
    /// Claims that set a parameter.
    pub calibration: Claims,
    /// Held-out claims that depend on inputs which their sources do not print. They count nowhere else.
    pub underdetermined: Vec<ClaimRow>,
    /// Claims with nothing to simulate.
    pub not_simulated: Vec<ClaimRow>,
    /// Raw series.
    pub series: Vec<SeriesRow>,
    /// The goals; empty unless everything was simulated on the published machines.
    pub goals: Vec<GoalRow>,
}

/// Claims and the number of them that hold.
#[derive(Debug, Serialize)]
pub struct Claims {
    /// The counts.
    #[serde(flatten)]
    pub count: Count,
    /// The individual claims.
    pub rows: Vec<ClaimRow>,
}

/// Counts of a set of claims.
#[derive(Debug, Serialize)]
pub struct Count {
    /// Claims that were simulated.
    pub simulated: usize,
    /// Claims that hold.
    pub hold: usize,
    /// Claims that hold only with the tolerance of one step of their source's sweep.
    pub hold_by_step: usize,
    /// Claims whose sources contradict each other.
    pub contradict: usize,
    /// The share of claims that hold.
    pub share: f64,
    /// Numbers with a known deviation.
    pub numbers: usize,
    /// Mean absolute deviation of these numbers, as a share.
    pub mean_absolute_deviation: f64,
}

/// A claim and its result.
#[derive(Debug, Serialize)]
pub struct ClaimRow {
    /// Its name.
    pub id: &'static str,
    /// The document and the place in it.
    pub source: String,
    /// `device`, `host` or `application`.
    pub about: &'static str,
    /// `number` or `shape`.
    pub kind: &'static str,
    /// The claim set no parameter, and could be simulated if its source printed enough details.
    pub held_out: bool,
    /// What it says.
    pub says: &'static str,
    /// The published number.
    pub published: String,
    /// How the numbers are compared.
    pub compared: &'static str,
    /// The simulated result.
    pub simulated: String,
    /// The simulated result in few characters.
    pub brief: String,
    /// The results of other readings of the claim; they do not affect the verdict.
    pub beside: String,
    /// The difference as a share of the published number.
    pub deviation: Option<f64>,
    /// Whether it holds.
    pub verdict: &'static str,
    /// The verdict without the tolerance of one step, for a size from a sweep that doubles.
    pub verdict_without_step: Option<&'static str>,
    /// The reason if it does not hold.
    pub why: String,
    /// Remarks about the published number.
    pub notes: &'static str,
    /// Choices that were made while this held-out claim was known; empty if there were none.
    pub in_view: &'static str,
}

/// A raw series and its result.
#[derive(Debug, Serialize)]
pub struct SeriesRow {
    /// Its name.
    pub id: &'static str,
    /// What it says.
    pub says: &'static str,
    /// `device` or `core`.
    pub by: &'static str,
    /// It set no parameter.
    pub held_out: bool,
    /// Mean absolute deviation of its points, as a share.
    pub mean_absolute_deviation: f64,
    /// Several descriptors or cores compete in it, so that a formula without queues may miss something.
    pub contends: bool,
    /// A formula of three parameters, fitted to the series.
    pub formula: FormulaRow,
    /// Its points, by size.
    pub points: Vec<PointRow>,
}

/// The formula `max(overhead, size / cap + gap)`, fitted to a series.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FormulaRow {
    /// Nanoseconds that no operation falls below.
    pub overhead_ns: f64,
    /// Gigabytes a second.
    pub cap_gb_per_s: f64,
    /// Nanoseconds besides the bytes.
    pub gap_ns: f64,
    /// Mean absolute deviation of its points, as a share.
    pub mean_absolute_deviation: f64,
}

/// A point of a series.
#[derive(Debug, Serialize)]
pub struct PointRow {
    /// Bytes of a transfer.
    pub size_bytes: u32,
    /// The published throughput.
    pub published_mib_per_s: f64,
    /// The simulated throughput.
    pub simulated_mib_per_s: f64,
    /// The difference as a share of the published throughput.
    pub deviation: f64,
}

/// A goal and its result.
#[derive(Debug, Serialize)]
pub struct GoalRow {
    /// The goal.
    pub goal: &'static str,
    /// What was reached.
    pub reached: String,
    /// Whether the goal was met; `None` if it has no limit.
    pub met: Option<bool>,
}

/// Requests the raw series instead of claims.
pub const SERIES: &str = "series";

/// Simulates the claims whose names begin with one of `only` (all if it is empty), on the published machines or on
/// another one.
///
/// # Errors
/// If the machine cannot run a raw series of the published machines.
pub fn validate(only: &[String], machine: Option<Machine>) -> Result<Validation, ScenarioError> {
    let lab = machine.clone().map_or_else(Lab::default, Lab::on);
    let everything = only.is_empty();
    let asked = |id: &str| everything || only.iter().any(|only| id.starts_with(&only.to_uppercase()));
    let rows = verdict::all(&lab, |claim| asked(&claim.id));
    let series = if everything || only.iter().any(|only| only.eq_ignore_ascii_case(SERIES)) {
        let mut all = published::series()
            .iter()
            .map(|series| compare(&lab, series))
            // Another machine may lack what a series needs.
            .filter(|compared| machine.is_none() || compared.is_ok())
            .collect::<Result<Vec<_>, ScenarioError>>()?;
        // Held-out series come before those that calibrate, devices before cores.
        all.sort_by_key(|of| (of.series.usage != Use::Validate, of.series.by != ExecutedBy::Device));
        all
    } else {
        Vec::new()
    };
    // The goals apply to the published machines only.
    let goals = if everything && machine.is_none() { goals::all(&rows, &series) } else { Vec::new() };
    let of = |usage: Use| claims(rows.iter().filter(|row| row.claim.usage == usage && counts(row)));
    Ok(Validation {
        about: match &machine {
            Some(machine) => About::of_all(&[(machine.name.clone(), machine.hash)]),
            None => About::of_all(&lab.profiles()),
        },
        elsewhere: machine.map(|machine| machine.name),
        some: !everything,
        held_out: of(Use::Validate),
        held_out_untouched: count(rows.iter().filter(|row| row.claim.is_untouched())),
        held_out_in_view: count(rows.iter().filter(|row| !row.claim.seen.is_empty())),
        calibration: of(Use::Calibrate),
        underdetermined: rows.iter().filter(|row| is_underdetermined(row)).map(claim_row).collect(),
        not_simulated: rows.iter().filter(|row| is_not_simulated(row)).map(claim_row).collect(),
        series: series.iter().map(series_row).collect(),
        goals: goals.into_iter().map(|Goal { says, reached, met }| GoalRow { goal: says, reached, met }).collect(),
    })
}

fn is_not_simulated(row: &Row) -> bool {
    matches!(row.verdict, Verdict::NotSimulated { .. })
}

fn is_underdetermined(row: &Row) -> bool {
    matches!(row.verdict, Verdict::Underdetermined { .. })
}

/// True if a claim holds or does not hold.
fn counts(row: &Row) -> bool {
    !is_not_simulated(row) && !is_underdetermined(row)
}

fn claims<'a>(rows: impl Iterator<Item = &'a Row>) -> Claims {
    let rows: Vec<&Row> = rows.collect();
    Claims { count: count(rows.iter().copied()), rows: rows.into_iter().map(claim_row).collect() }
}

fn count<'a>(rows: impl Iterator<Item = &'a Row>) -> Count {
    let tally = Tally::of(rows);
    Count {
        simulated: tally.simulated,
        hold: tally.hold,
        hold_by_step: tally.by_step,
        contradict: tally.contradict,
        share: tally.share(),
        numbers: tally.numbers,
        mean_absolute_deviation: tally.mean,
    }
}

fn claim_row(row: &Row) -> ClaimRow {
    let claim = row.claim;
    ClaimRow {
        id: &claim.id,
        source: format!("{} {}", claim.document, claim.place),
        about: match claim.about {
            Subject::Device => "device",
            Subject::Host => "host",
            Subject::Application => "application",
        },
        kind: if row.is_quantitative() { "number" } else { "shape" },
        held_out: claim.usage == Use::Validate,
        says: &claim.says,
        published: row.published(),
        compared: &claim.check,
        simulated: row.simulated.clone(),
        brief: row.brief.clone(),
        beside: row.beside.clone(),
        deviation: row.deviation.filter(|deviation| deviation.is_finite()),
        verdict: row.verdict.name(),
        verdict_without_step: row.without_step(),
        why: row.verdict.why(),
        notes: &claim.notes,
        in_view: &claim.seen,
    }
}

fn series_row(comparison: &Comparison) -> SeriesRow {
    let series = comparison.series;
    let formula = Formula::fit(&comparison.points);
    SeriesRow {
        id: &series.id,
        says: &series.says,
        by: if series.by == ExecutedBy::Device { "device" } else { "core" },
        held_out: series.usage == Use::Validate,
        mean_absolute_deviation: comparison.mean(),
        contends: comparison.contends(),
        formula: FormulaRow {
            overhead_ns: formula.overhead,
            cap_gb_per_s: formula.cap,
            gap_ns: formula.gap,
            mean_absolute_deviation: formula.mean(&comparison.points),
        },
        points: comparison
            .points
            .iter()
            .map(|point| PointRow {
                size_bytes: point.size,
                published_mib_per_s: point.published,
                simulated_mib_per_s: point.simulated,
                deviation: point.deviation(),
            })
            .collect(),
    }
}
