//! The thesis' query in simulated time: its tables and figures compared with the published ones, and alternatives.

pub mod plan;
pub mod tables;

use crate::figures::{Figure, sheets};
use crate::lab::Lab;
use crate::published::{Claim, Use, Value};
use crate::query::{self, Published, QueryVariant, VariantResult};
use serde::Serialize;
use telpher_report::about::About;
use telpher_sim::{Machine, ScenarioError};

/// Why the thesis' query cannot be simulated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// The machine lacks devices or memory of the thesis' machine.
    #[error(
        "{profile} cannot execute the thesis' query, which takes eight devices and HBM on node 8, as {THESIS} has \
         them: {why}"
    )]
    Machine {
        /// Name of the machine.
        profile: String,
        /// What it lacks.
        why: ScenarioError,
    },
    /// A figure cannot be drawn.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

/// The figures of the thesis' query, by their names in `telpher sim figures`.
const FIGURES: [&str; 2] = ["thesis-6.1", "thesis-6.2"];

/// The machine of the thesis.
const THESIS: &str = "xeon-max-9468";

/// The results of all simulations.
#[derive(Clone, Debug, Serialize)]
pub struct SimulatedResult {
    /// `qdp`.
    pub kind: &'static str,
    /// The header of the result.
    #[serde(flatten)]
    pub about: About,
    /// Further remarks for the reader.
    pub remarks: Vec<String>,
    /// The rows of Table 6.2, of which the first two are Table 6.1.
    pub published: Vec<WayRow>,
    /// Figures 6.1 and 6.2. Not serialised: the rows above have the same numbers.
    #[serde(skip)]
    pub figures: Vec<Figure>,
    /// The results of alternatives to the thesis' prefetching.
    pub questions: Vec<QuestionRows>,
}

/// A question and the configurations that answer it.
#[derive(Clone, Debug, Serialize)]
pub struct QuestionRows {
    /// Its name.
    pub name: &'static str,
    /// The question.
    pub asks: &'static str,
    /// The result of the fastest configuration, as a sentence.
    pub answer: String,
    /// The configurations.
    pub ways: Vec<Pair>,
}

/// A configuration with two placements of the columns.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    /// Its name.
    pub name: &'static str,
    /// Both columns on one node.
    pub same_node: WayRow,
    /// Each column on its own node.
    pub distributed: WayRow,
}

/// The result of one configuration.
#[derive(Clone, Debug, Serialize)]
pub struct WayRow {
    /// Its name.
    pub name: &'static str,
    /// Time of the whole query.
    pub time_ms: f64,
    /// Speedup over the configuration with all columns in DDR.
    pub speedup: f64,
    /// Percentage of blocks that AGGREGATE found prefetched: an outcome of the simulated copies. `None` without
    /// prefetching.
    pub hits_percent: Option<f64>,
    /// Time of each stage in ms, summed over all hardware threads.
    pub stages: Vec<StageMs>,
    /// Submissions that a full queue returned.
    pub sent_back: f64,
    /// The comparisons with published numbers.
    pub published: Vec<Compared>,
}

/// A stage's time.
#[derive(Clone, Debug, Serialize)]
pub struct StageMs {
    /// Its name.
    pub stage: String,
    /// Its time.
    pub ms: f64,
}

/// A published number and the simulated one.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// `time`, `speedup` or `hits`.
    pub what: &'static str,
    /// The name of the claim.
    pub claim: &'static str,
    /// The place in the thesis.
    pub place: &'static str,
    /// The simulated number.
    pub simulated: f64,
    /// The published number.
    pub published: f64,
    /// The difference as a share of the published number.
    pub deviation: Option<f64>,
    /// `held out`: the number set no parameter; `calibration`: it set one; `outcome`: a further result, not a target of
    /// the model.
    pub usage: &'static str,
    /// Choices that were made while this number was known; empty if there were none.
    pub in_view: &'static str,
    /// A further remark about the published number.
    pub note: &'static str,
}

/// Simulates the tables and the questions on a machine, of which numbers were `changed` or not.
///
/// # Errors
/// If the machine cannot execute the query.
pub fn simulate(machine: Machine, changed: bool) -> Result<SimulatedResult, SimulateError> {
    let mut remarks = Vec::new();
    if machine.name != THESIS || changed {
        remarks.push(format!(
            "The published numbers are of the machine of {THESIS}; deviations tell how another machine differs from it."
        ));
    }
    let about = About::of_all(&[(machine.name.clone(), machine.hash)]);
    let lab = Lab::on(machine);
    let cannot = |why: ScenarioError| SimulateError::Machine { profile: about.profile.clone(), why };
    let row = |way: &QueryVariant| way.run(&lab).map(|found| row_of(way, &found)).map_err(cannot);
    let rows = |ways: &[QueryVariant]| ways.iter().map(row).collect::<Result<Vec<_>, _>>();
    let published = rows(&query::published())?;
    let figures = sheets().filter(|sheet| FIGURES.contains(&sheet.id)).map(|sheet| sheet.figure(&lab));
    let figures = figures.collect::<Result<_, _>>()?;
    let mut questions = Vec::new();
    for question in query::questions() {
        let ways = question
            .ways
            .chunks_exact(2)
            .map(|ways| Ok(Pair { name: ways[0].name, same_node: row(&ways[0])?, distributed: row(&ways[1])? }));
        let ways = ways.collect::<Result<_, SimulateError>>()?;
        let answer = question.answer(&lab).map_err(cannot)?;
        questions.push(QuestionRows { name: question.id, asks: question.asks, answer, ways });
    }
    Ok(SimulatedResult { kind: "qdp", about, remarks, published, figures, questions })
}

fn row_of(way: &QueryVariant, result: &VariantResult) -> WayRow {
    WayRow {
        name: way.name,
        time_ms: result.ms,
        speedup: result.speedup,
        hits_percent: result.hits,
        stages: result.stages.iter().map(|stage| StageMs { stage: stage.name.clone(), ms: stage.value }).collect(),
        sent_back: result.sent_back,
        published: way.published.as_ref().map_or_else(Vec::new, |published| compared(published, result)),
    }
}

fn compared(published: &Published, result: &VariantResult) -> Vec<Compared> {
    let compare = |what, claim: &'static Claim, simulated: f64| {
        let Value::One(number) = claim.value else { return None };
        let usage = match claim.usage {
            Use::Validate => "held out",
            Use::Calibrate => "calibration",
            Use::Setup | Use::Context => "outcome",
        };
        Some(Compared {
            what,
            claim: &claim.id,
            place: &claim.place,
            simulated,
            published: number,
            deviation: claim.deviation(simulated),
            usage,
            in_view: &claim.seen,
            note: &claim.notes,
        })
    };
    let hits = published.hits.zip(result.hits).and_then(|(claim, hits)| compare("hits", claim, hits));
    let (time, speedup) =
        (compare("time", published.time, result.ms), compare("speedup", published.speedup, result.speedup));
    [time, speedup, hits].into_iter().flatten().collect()
}
