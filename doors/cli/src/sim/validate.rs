//! `telpher sim validate`: compares published with simulated numbers.

use super::{About, SimError, about};
use crate::args::Validate;
use serde::Serialize;
use telpher_claims::experiments::series::{Comparison, compare};
use telpher_claims::goals::{self, Goal};
use telpher_claims::lab::Lab;
use telpher_claims::published::{self, About as Subject, By, Use};
use telpher_claims::verdict::{self, Row, Tally, Verdict};
use telpher_sim::ScenarioError;

/// The results of all comparisons.
#[derive(Debug, Serialize)]
pub(crate) struct ValidateResult {
    /// The header of the result.
    pub(crate) about: About,
    /// Name of the machine that replaces the published ones; `None` otherwise.
    pub(crate) elsewhere: Option<String>,
    /// Whether only some claims were requested.
    pub(crate) some: bool,
    /// Held-out claims: they set no parameter.
    pub(crate) held_out: Claims,
    /// Held-out claims that were not known during any choice.
    pub(crate) held_out_untouched: Count,
    /// Held-out claims that were known during some choice.
    pub(crate) held_out_in_view: Count,
    /// Claims that set a parameter.
    pub(crate) calibration: Claims,
    /// Claims with nothing to simulate.
    pub(crate) not_simulated: Vec<ClaimRow>,
    /// Raw series.
    pub(crate) series: Vec<SeriesRow>,
    /// The goals; empty unless everything was simulated on the published machines.
    pub(crate) goals: Vec<GoalRow>,
}

/// Claims and the number of them that hold.
#[derive(Debug, Serialize)]
pub(crate) struct Claims {
    #[serde(flatten)]
    pub(crate) count: Count,
    /// The individual claims.
    pub(crate) rows: Vec<ClaimRow>,
}

/// Counts of a set of claims.
#[derive(Debug, Serialize)]
pub(crate) struct Count {
    /// Claims that were simulated.
    pub(crate) simulated: usize,
    /// Claims that hold.
    pub(crate) hold: usize,
    /// Claims whose sources contradict each other.
    pub(crate) contradict: usize,
    /// The share of claims that hold.
    pub(crate) share: f64,
    /// Numbers with a known deviation.
    pub(crate) numbers: usize,
    /// Mean absolute deviation of these numbers, as a share.
    pub(crate) mean_absolute_deviation: f64,
}

/// A claim and its result.
#[derive(Debug, Serialize)]
pub(crate) struct ClaimRow {
    pub(crate) id: &'static str,
    pub(crate) source: String,
    pub(crate) about: &'static str,
    pub(crate) kind: &'static str,
    /// The claim set no parameter, and could be simulated if its source printed enough details.
    pub(crate) held_out: bool,
    pub(crate) says: &'static str,
    pub(crate) published: String,
    pub(crate) compared: &'static str,
    pub(crate) simulated: String,
    pub(crate) brief: String,
    /// The results of other readings of the claim; they do not affect the verdict.
    pub(crate) beside: String,
    /// The difference as a share of the published number.
    pub(crate) deviation: Option<f64>,
    pub(crate) verdict: &'static str,
    pub(crate) why: String,
    pub(crate) notes: &'static str,
    /// Choices that were made while this held-out claim was known; empty if there were none.
    pub(crate) in_view: &'static str,
}

/// A raw series and its result.
#[derive(Debug, Serialize)]
pub(crate) struct SeriesRow {
    pub(crate) id: &'static str,
    pub(crate) says: &'static str,
    /// `device` or `core`.
    pub(crate) by: &'static str,
    pub(crate) held_out: bool,
    pub(crate) mean_absolute_deviation: f64,
    pub(crate) points: Vec<PointRow>,
}

/// A point of a series.
#[derive(Debug, Serialize)]
pub(crate) struct PointRow {
    pub(crate) size_bytes: u32,
    pub(crate) published_mib_per_s: f64,
    pub(crate) simulated_mib_per_s: f64,
    pub(crate) deviation: f64,
}

/// A goal and its result.
#[derive(Debug, Serialize)]
pub(crate) struct GoalRow {
    pub(crate) goal: &'static str,
    pub(crate) reached: String,
    /// Whether the goal was met; `None` if it has no limit.
    pub(crate) met: Option<bool>,
}

const SERIES: &str = "series";

/// Runs the experiments.
pub(crate) fn run(args: &Validate) -> Result<ValidateResult, SimError> {
    for only in &args.only {
        known(only)?;
    }
    let machine = about::elsewhere(&args.elsewhere)?;
    let lab = machine.clone().map_or_else(Lab::default, Lab::on);
    let everything = args.only.is_empty();
    let asked = |id: &str| everything || args.only.iter().any(|only| id.starts_with(&only.to_uppercase()));
    let rows = verdict::all(&lab, |claim| asked(&claim.id));
    let series = if everything || args.only.iter().any(|only| only.eq_ignore_ascii_case(SERIES)) {
        let mut all = published::series()
            .iter()
            .map(|series| compare(&lab, series))
            // Another machine may lack what a series needs.
            .filter(|compared| machine.is_none() || compared.is_ok())
            .collect::<Result<Vec<_>, ScenarioError>>()?;
        // Held-out series come before those that calibrate, devices before cores.
        all.sort_by_key(|of| (of.series.usage != Use::Validate, of.series.by != By::Device));
        all
    } else {
        Vec::new()
    };
    // The goals apply to the published machines only.
    let goals = if everything && machine.is_none() { goals::all(&rows, &series) } else { Vec::new() };
    let of = |usage: Use| claims(rows.iter().filter(|row| row.claim.usage == usage && !is_not_simulated(row)));
    Ok(ValidateResult {
        about: machine.as_ref().map_or_else(|| About::of_all(&lab.profiles()), About::of),
        elsewhere: machine.map(|machine| machine.name),
        some: !everything,
        held_out: of(Use::Validate),
        held_out_untouched: count(rows.iter().filter(|row| row.claim.is_untouched())),
        held_out_in_view: count(rows.iter().filter(|row| !row.claim.seen.is_empty())),
        calibration: of(Use::Calibrate),
        not_simulated: rows.iter().filter(|row| is_not_simulated(row)).map(claim_row).collect(),
        series: series.iter().map(series_row).collect(),
        goals: goals.into_iter().map(|Goal { says, reached, met }| GoalRow { goal: says, reached, met }).collect(),
    })
}

fn known(only: &str) -> Result<(), SimError> {
    let begins = published::claims().iter().any(|claim| claim.id.starts_with(&only.to_uppercase()));
    if !only.is_empty() && (begins || only.eq_ignore_ascii_case(SERIES)) {
        return Ok(());
    }
    let what = "is how no claim begins; claims are called K-021 (Kuper et al.), T-031 (thesis), V-024 (white paper), \
                P-010 (page migration) or A-001, and the raw series are `series`";
    Err(SimError::Not(format!("'{only}' {what}")))
}

fn is_not_simulated(row: &Row) -> bool {
    matches!(row.verdict, Verdict::NotSimulated { .. })
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
        why: row.verdict.why(),
        notes: &claim.notes,
        in_view: &claim.seen,
    }
}

fn series_row(comparison: &Comparison) -> SeriesRow {
    let series = comparison.series;
    SeriesRow {
        id: &series.id,
        says: &series.says,
        by: if series.by == By::Device { "device" } else { "core" },
        held_out: series.usage == Use::Validate,
        mean_absolute_deviation: comparison.mean(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_claim_is_refused_with_examples() {
        for only in ["K-021", "k-02", "T", "series", "SERIES"] {
            known(only).unwrap();
        }
        for only in ["", "X-1", "K-021x", "K-999"] {
            let error = known(only).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("'{only}' is how no claim begins")) && error.contains("K-021"),
                "{error}"
            );
        }
    }
}
