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

/// All comparisons.
#[derive(Debug, Serialize)]
pub(crate) struct ValidateResult {
    /// What a reader must know of it.
    pub(crate) about: About,
    /// The machine that took the place of the published ones; nothing otherwise.
    pub(crate) elsewhere: Option<String>,
    /// Only some claims were asked for.
    pub(crate) some: bool,
    /// Claims that set no parameter.
    pub(crate) held_out: Claims,
    /// Those of them that were not seen while something was chosen.
    pub(crate) held_out_untouched: Count,
    /// Those of them that were seen.
    pub(crate) held_out_in_view: Count,
    /// Claims that set a parameter.
    pub(crate) calibration: Claims,
    /// Claims about which there is nothing to simulate.
    pub(crate) not_simulated: Vec<ClaimRow>,
    /// Raw series.
    pub(crate) series: Vec<SeriesRow>,
    /// What was to be reached; only where everything was simulated.
    pub(crate) goals: Vec<GoalRow>,
}

/// Some claims and how many of them hold.
#[derive(Debug, Serialize)]
pub(crate) struct Claims {
    #[serde(flatten)]
    pub(crate) count: Count,
    /// Each of them.
    pub(crate) rows: Vec<ClaimRow>,
}

/// How many claims hold.
#[derive(Debug, Serialize)]
pub(crate) struct Count {
    /// That were simulated.
    pub(crate) simulated: usize,
    /// That hold.
    pub(crate) hold: usize,
    /// Whose sources contradict each other.
    pub(crate) contradict: usize,
    /// Share that holds.
    pub(crate) share: f64,
    /// Numbers whose deviation is known.
    pub(crate) numbers: usize,
    /// Their mean absolute deviation, a share.
    pub(crate) mean_absolute_deviation: f64,
}

/// A claim and what came of it.
#[derive(Debug, Serialize)]
pub(crate) struct ClaimRow {
    pub(crate) id: &'static str,
    pub(crate) source: String,
    pub(crate) about: &'static str,
    pub(crate) kind: &'static str,
    /// It set no parameter, and could have been simulated if enough were printed.
    pub(crate) held_out: bool,
    pub(crate) says: &'static str,
    pub(crate) published: String,
    pub(crate) compared: &'static str,
    pub(crate) simulated: String,
    pub(crate) brief: String,
    /// What other readings of the claim give; no verdict depends on it.
    pub(crate) beside: String,
    /// A share of what was published.
    pub(crate) deviation: Option<f64>,
    pub(crate) verdict: &'static str,
    pub(crate) why: String,
    pub(crate) notes: &'static str,
    /// What was chosen while this claim, held out, was in view; empty where nothing was.
    pub(crate) in_view: &'static str,
}

/// A raw series and what came of it.
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

/// Something that was to be reached.
#[derive(Debug, Serialize)]
pub(crate) struct GoalRow {
    pub(crate) goal: &'static str,
    pub(crate) reached: String,
    /// Nothing where no line was drawn.
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
            // Another machine may not have what a series needs.
            .filter(|compared| machine.is_none() || compared.is_ok())
            .collect::<Result<Vec<_>, ScenarioError>>()?;
        // What is held out before what calibrates, devices before cores.
        all.sort_by_key(|of| (of.series.usage != Use::Validate, of.series.by != By::Device));
        all
    } else {
        Vec::new()
    };
    // They are about the published machines.
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
    fn what_is_no_claim_is_told_with_examples() {
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
