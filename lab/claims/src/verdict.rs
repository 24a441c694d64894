//! The verdict on a claim: published and simulated values, deviation, verdict.

use crate::experiments::{self, Found};
use crate::lab::Lab;
use crate::published::{About, Claim, Kind, Use, Value, claims};
use serde::Deserialize;
use std::sync::LazyLock;

/// The verdict on a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The simulation gives the published result.
    Holds,
    /// The simulation gives another result.
    Fails {
        /// The reason.
        why: String,
    },
    /// The simulation gives another result, and must: published numbers contradict each other.
    Contradicts {
        /// The contradicted claims or documents.
        whom: String,
        /// The contradiction.
        why: String,
    },
    /// The result depends on inputs that the source does not print, and the claim does not hold with all that were
    /// tried, so it neither holds nor fails.
    Underdetermined {
        /// The inputs, and whether the range that they span contains the published number.
        why: String,
    },
    /// There is nothing to simulate.
    NotSimulated {
        /// The reason.
        why: String,
    },
}

impl Verdict {
    /// The verdict in a word or two.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::Fails { .. } => "FAILS",
            Verdict::Contradicts { .. } => "contradicts",
            Verdict::Underdetermined { .. } => "underdetermined",
            Verdict::NotSimulated { .. } => "not simulated",
        }
    }

    /// The reason, if there is one.
    #[must_use]
    pub fn why(&self) -> String {
        match self {
            Verdict::Holds => String::new(),
            Verdict::Fails { why } | Verdict::Underdetermined { why } | Verdict::NotSimulated { why } => why.clone(),
            Verdict::Contradicts { whom, why } => format!("{why} [{whom}]"),
        }
    }
}

/// A claim with its verdict.
#[derive(Clone, Debug)]
pub struct Row {
    /// The claim.
    pub claim: &'static Claim,
    /// The simulated result as text; empty if nothing was simulated.
    pub simulated: String,
    /// The same, shortened.
    pub brief: String,
    /// The results of other readings of the claim as text; the verdict does not depend on them. Empty if there are
    /// none.
    pub beside: String,
    /// Deviation from the published number, as a share of it; the largest of several.
    pub deviation: Option<f64>,
    /// The verdict.
    pub verdict: Verdict,
    /// For a size from a sweep that doubles: whether the claim would hold without the tolerance of one step.
    pub holds_without_step: Option<bool>,
}

impl Row {
    /// The verdict without the tolerance of one step of a sweep, if that tolerance applies.
    #[must_use]
    pub fn without_step(&self) -> Option<&'static str> {
        let held =
            |holds: bool| if holds { Verdict::Holds.name() } else { Verdict::Fails { why: String::new() }.name() };
        self.holds_without_step.map(held)
    }

    /// The published value as text.
    #[must_use]
    pub fn published(&self) -> String {
        published(self.claim)
    }

    /// True if the claim counts as a number, not as a shape.
    #[must_use]
    pub fn is_quantitative(&self) -> bool {
        self.claim.kind != Kind::Shape
    }
}

/// A recorded reason.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reason {
    id: String,
    why: String,
    /// Published numbers that the claim contradicts.
    contradicts: Option<String>,
    /// The evidence.
    shown: Option<String>,
    /// There is no evidence.
    #[serde(default)]
    supposed: bool,
    /// What the simulator does not model, or the source does not print, in a few words.
    lacks: Option<String>,
}

impl Reason {
    /// The reason, and whether there is evidence for it.
    fn text(&self) -> String {
        match &self.shown {
            Some(by) => format!("{} (shown by {by})", self.why),
            None if self.supposed => format!("supposed: {}", self.why),
            None => self.why.clone(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reasons {
    #[serde(default)]
    reason: Vec<Reason>,
}

static REASONS: LazyLock<Vec<Reason>> = LazyLock::new(|| {
    toml::from_str::<Reasons>(include_str!("../data/reasons.toml")).expect("built in, and read by a test").reason
});

/// The text for a claim that does not hold and has no recorded reason.
pub const UNKNOWN: &str = "not known yet";

/// The text for a claim that does not hold on another machine than the published one.
pub const ELSEWHERE: &str = "it was published of another machine";

/// True if a reason is recorded for this claim.
#[must_use]
pub fn has_reason(id: &str) -> bool {
    REASONS.iter().any(|reason| reason.id == id)
}

/// What the simulator lacks for a claim to hold, in a few words; `None` if nothing is recorded.
#[must_use]
pub fn lacks(id: &str) -> Option<&'static str> {
    REASONS.iter().find(|reason| reason.id == id)?.lacks.as_deref()
}

/// Runs a claim's experiment and returns its verdict.
#[must_use]
pub fn of(lab: &Lab, claim: &'static Claim) -> Row {
    let reason = REASONS.iter().find(|reason| reason.id == claim.id);
    let why = |otherwise: &str| reason.map_or_else(|| otherwise.to_owned(), Reason::text);
    let nothing = |why: String| Row {
        claim,
        simulated: String::new(),
        brief: String::new(),
        beside: String::new(),
        deviation: None,
        verdict: Verdict::NotSimulated { why },
        holds_without_step: None,
    };
    match claim.usage {
        Use::Setup => return nothing(why("how it was measured")),
        Use::Context => return nothing(why("about something else")),
        Use::Calibrate | Use::Validate => {}
    }
    let Some(experiment) = experiments::of(&claim.id) else { return nothing(why("no experiment")) };
    let found = experiment(lab);
    let elsewhere = lab.was_elsewhere();
    let found = match found {
        Ok(found) => found,
        Err(error) if elsewhere => return nothing(format!("not on this machine: {error}")),
        Err(error) => {
            let why = format!("it cannot be simulated: {error}");
            return Row { verdict: Verdict::Fails { why }, ..nothing(String::new()) };
        }
    };
    let (found, beside) = match found {
        Found::Beside(found, others) => (*found, listed(claim, &others)),
        found => (found, String::new()),
    };
    let (simulated, deviation, holds) = judge(claim, &found, claim.bounds());
    let verdict = match reason {
        _ if let Found::Spans { ends, free, .. } = &found
            && !is_decided(claim, *ends) =>
        {
            let otherwise = if elsewhere { ELSEWHERE.to_owned() } else { why("") };
            Verdict::Underdetermined { why: spans(claim, *ends, free, &otherwise) }
        }
        _ if holds => Verdict::Holds,
        // The recorded reasons are for the published machines.
        _ if elsewhere => Verdict::Fails { why: ELSEWHERE.to_owned() },
        Some(reason @ Reason { contradicts: Some(whom), .. }) => {
            Verdict::Contradicts { whom: whom.clone(), why: reason.text() }
        }
        _ => Verdict::Fails { why: why(UNKNOWN) },
    };
    let without_step = |()| judge(claim, &found, claim.bounds_without_step()).2;
    let holds_without_step = claim.doubles.then_some(()).map(without_step);
    Row { claim, simulated, brief: brief(claim, &found), beside, deviation, verdict, holds_without_step }
}

/// True if a claim holds with every tried value of the inputs that its source does not print. Otherwise these inputs
/// decide, and the claim is underdetermined, whether or not it holds with the assumed ones.
fn is_decided(claim: &Claim, (least, most): (f64, f64)) -> bool {
    let (low, high) = claim.bounds();
    low <= least && most <= high
}

/// Why a claim is underdetermined.
fn spans(claim: &Claim, (least, most): (f64, f64), free: &str, reason: &str) -> String {
    let (low, high) = claim.bounds();
    let contains = match &claim.value {
        Value::One(_) if claim.is_bound() && least <= high && low <= most => "reaches beyond the printed bound",
        Value::One(_) if claim.is_bound() => "does not reach beyond the printed bound",
        Value::One(value) if (least..=most).contains(value) => "contains the printed number",
        Value::One(_) => "does not contain the printed number",
        _ => "is shown for comparison",
    };
    let range = format!("{} to {}", quantity(least, &claim.unit), quantity(most, &claim.unit));
    let reason = if reason.is_empty() { String::new() } else { format!("; {reason}") };
    format!("inputs are not printed ({free}); the range {range} {contains}{reason}")
}

/// Several numbers with their names.
fn listed(claim: &Claim, values: &[(String, f64)]) -> String {
    let each = values.iter().map(|(of, value)| format!("{of}: {}", quantity(*value, &claim.unit)));
    each.collect::<Vec<_>>().join("; ")
}

/// A short form of a result: of several numbers the smallest and the largest.
fn brief(claim: &Claim, found: &Found) -> String {
    match found {
        Found::Number(value) => quantity(*value, &claim.unit),
        Found::Shape { holds, .. } => if *holds { "confirmed" } else { "not confirmed" }.into(),
        Found::Beside(found, _) => brief(claim, found),
        Found::Spans { ends: (least, most), .. } => {
            format!("{} to {}", quantity(*least, &claim.unit), quantity(*most, &claim.unit))
        }
        Found::Numbers(values) => {
            let of = |start: f64, pick: fn(f64, f64) -> f64| values.iter().map(|(_, value)| *value).fold(start, pick);
            let ends = [of(f64::INFINITY, f64::min), of(f64::NEG_INFINITY, f64::max)];
            let [least, most] = ends.map(|value| quantity(value, &claim.unit));
            if least == most { least } else { format!("{least} to {most}") }
        }
    }
}

/// All claims, or the named ones, with their verdicts.
pub fn all(lab: &Lab, wanted: impl Fn(&Claim) -> bool) -> Vec<Row> {
    claims().iter().filter(|claim| wanted(claim)).map(|claim| of(lab, claim)).collect()
}

/// The result, its deviation, and whether the claim holds within these bounds.
fn judge(claim: &Claim, found: &Found, (least, most): (f64, f64)) -> (String, Option<f64>, bool) {
    let inside = |value: f64| (least..=most).contains(&value);
    match found {
        Found::Number(value) => (quantity(*value, &claim.unit), claim.deviation(*value), inside(*value)),
        Found::Numbers(values) => {
            let deviations = values.iter().filter_map(|(_, value)| claim.deviation(*value));
            let farthest = deviations.max_by(|a, b| a.abs().total_cmp(&b.abs()));
            let holds = !values.is_empty() && values.iter().all(|(_, value)| inside(*value));
            (listed(claim, values), farthest, holds)
        }
        Found::Shape { shown, holds } => (shown.clone(), None, *holds),
        Found::Spans { assumed, ends: (low, high), .. } => {
            let [assumed_text, low, high] = [*assumed, *low, *high].map(|value| quantity(value, &claim.unit));
            (format!("{assumed_text} as assumed; {low} to {high} in all"), claim.deviation(*assumed), inside(*assumed))
        }
        Found::Beside(found, _) => judge(claim, found, (least, most)),
    }
}

/// The published value as text.
fn published(claim: &Claim) -> String {
    let relation = if claim.relation.is_empty() { String::new() } else { format!("{} ", claim.relation) };
    match &claim.value {
        Value::None => claim.check.clone(),
        Value::One(value) => format!("{relation}{}", quantity(*value, &claim.unit)),
        Value::Many(values) => {
            let is_range = values.len() == 2 && values[0] < values[1] && claim.usage != Use::Setup;
            let between = if is_range { " to " } else { ", " };
            let listed: Vec<String> = values.iter().map(|value| quantity(*value, &claim.unit)).collect();
            format!("{relation}{}", listed.join(between))
        }
    }
}

/// A number with its unit as text: `4.1 KiB`, `30.0 GB/s`, `0.93`.
#[must_use]
pub fn quantity(value: f64, unit: &str) -> String {
    if !value.is_finite() {
        return "never".into();
    }
    let three = crate::experiments::measure::three;
    match unit {
        "bytes" => match value {
            v if v >= 1_048_576.0 => format!("{} MiB", trimmed(v / 1_048_576.0)),
            v if v >= 1024.0 => format!("{} KiB", trimmed(v / 1024.0)),
            v => format!("{} B", trimmed(v)),
        },
        "ratio" | "fraction" | "count" | "flag" | "enum" => trimmed(value),
        "%" | "descriptors" | "cores" | "pages" | "packets" | "entries" => format!("{} {unit}", trimmed(value)),
        unit => format!("{} {unit}", three(value)),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Statistics over claims.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Tally {
    /// Simulated claims.
    pub simulated: usize,
    /// Claims that hold.
    pub hold: usize,
    /// Claims whose sources contradict each other.
    pub contradict: usize,
    /// Claims that are underdetermined. They are not among the simulated ones.
    pub underdetermined: usize,
    /// Claims that hold by the tolerance of one step of a sweep alone.
    pub by_step: usize,
    /// Numbers with a known deviation.
    pub numbers: usize,
    /// Their mean absolute deviation, a share.
    pub mean: f64,
}

impl Tally {
    /// The statistics of some rows.
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    pub fn of<'a>(rows: impl Iterator<Item = &'a Row>) -> Self {
        let (mut tally, mut sum) = (Tally::default(), 0.0);
        for row in rows {
            match row.verdict {
                Verdict::NotSimulated { .. } => continue,
                Verdict::Underdetermined { .. } => {
                    tally.underdetermined += 1;
                    continue;
                }
                Verdict::Holds => {
                    tally.hold += 1;
                    tally.by_step += usize::from(row.holds_without_step == Some(false));
                }
                Verdict::Contradicts { .. } => tally.contradict += 1,
                Verdict::Fails { .. } => {}
            }
            tally.simulated += 1;
            if let Some(deviation) = row.deviation.filter(|deviation| deviation.is_finite()) {
                tally.numbers += 1;
                sum += deviation.abs();
            }
        }
        tally.mean = if tally.numbers == 0 { 0.0 } else { sum / tally.numbers as f64 };
        tally
    }

    /// Share of the claims that hold.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    pub fn share(&self) -> f64 {
        if self.simulated == 0 { 0.0 } else { self.hold as f64 / self.simulated as f64 }
    }
}

/// A held-out number about the device itself.
#[must_use]
pub fn is_device_number(row: &Row) -> bool {
    row.claim.usage == Use::Validate && row.claim.about == About::Device && row.is_quantitative()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(id: &str) -> &'static Claim {
        claims().iter().find(|claim| claim.id == id).unwrap()
    }

    #[test]
    fn every_one_of_several_numbers_must_hold() {
        let found = |a, b| Found::Numbers(vec![("near".into(), a), ("far".into(), b)]);
        let judged = |found| judge(claim("K-035"), &found, claim("K-035").bounds_without_step());
        let (shown, deviation, holds) = judged(found(5000.0, 9000.0));
        assert_eq!((shown.as_str(), deviation, holds), ("near: 4.88 KiB; far: 8.79 KiB", Some(0.0), true));
        let (_, deviation, holds) = judged(found(5000.0, 20480.0));
        assert_eq!((deviation, holds), (Some(1.0), false));
        assert!(judge(claim("K-035"), &found(5000.0, 20480.0), claim("K-035").bounds()).2);
    }

    #[test]
    fn an_underdetermined_claim_shows_its_range_and_counts_apart() {
        let found = |most| Found::Spans { assumed: 1.2, ends: (0.5, most), free: "devices" };
        let (shown, _, holds) = judge(claim("K-087"), &found(4.0), claim("K-087").bounds());
        assert_eq!((shown.as_str(), holds), ("1.2 as assumed; 0.5 to 4 in all", false));
        assert_eq!(brief(claim("K-087"), &found(4.0)), "0.5 to 4");
        assert!(spans(claim("K-087"), (0.5, 4.0), "devices", "").ends_with("0.5 to 4 contains the printed number"));
        let without = spans(claim("K-087"), (0.5, 3.0), "devices", "as K-084");
        assert!(without.ends_with("does not contain the printed number; as K-084"), "{without}");
        // Above 8 cores: nine at least.
        let above = |most| spans(claim("K-099"), (8.0, most), "CRC", "");
        assert!(above(11.0).ends_with("8 cores to 11 cores reaches beyond the printed bound"), "{}", above(11.0));
        assert!(above(8.0).ends_with("does not reach beyond the printed bound"), "{}", above(8.0));
    }

    #[test]
    fn inputs_that_are_not_printed_decide_unless_the_claim_holds_with_all_of_them() {
        // K-087: 3.3 within 10 %.
        assert!(is_decided(claim("K-087"), (3.0, 3.6)));
        for ends in [(1.2, 3.3), (3.3, 4.0), (0.5, 1.2)] {
            assert!(!is_decided(claim("K-087"), ends), "{ends:?}");
        }
    }

    #[test]
    fn a_reason_belongs_to_a_claim() {
        for reason in REASONS.iter() {
            assert!(claims().iter().any(|claim| claim.id == reason.id) && reason.why.len() > 10, "{}", reason.id);
        }
    }

    /// A contradiction, too, has evidence.
    #[test]
    fn a_reason_is_shown_or_said_to_be_supposed() {
        for reason in REASONS.iter() {
            assert!(reason.shown.is_some() != reason.supposed, "{}", reason.id);
            assert!(reason.contradicts.is_none() || reason.shown.is_some(), "{}", reason.id);
            let text = reason.text();
            assert!(text.starts_with("supposed: ") || text.contains("(shown by "), "{text}");
        }
    }

    #[test]
    fn claims_that_are_not_simulated_do_not_count() {
        let row = |verdict| Row {
            claim: claim("K-028"),
            simulated: String::new(),
            brief: String::new(),
            beside: String::new(),
            deviation: Some(-0.05),
            verdict,
            holds_without_step: Some(false),
        };
        let rows = [row(Verdict::Holds), row(Verdict::Fails { why: "x".into() })];
        let with = [rows[0].clone(), rows[1].clone(), row(Verdict::NotSimulated { why: "x".into() })];
        assert_eq!(Tally::of(rows.iter()), Tally::of(with.iter()));
        let tally = Tally::of(with.iter());
        assert_eq!((tally.simulated, tally.hold, tally.by_step, tally.share()), (2, 1, 1, 0.5));
        let free = [rows[0].clone(), row(Verdict::Underdetermined { why: "x".into() })];
        let tally = Tally::of(free.iter());
        assert_eq!((tally.simulated, tally.underdetermined, tally.numbers), (1, 1, 1));
    }

    #[test]
    fn quantities_read_as_people_write_them() {
        assert_eq!(quantity(4096.0, "bytes"), "4 KiB");
        assert_eq!(quantity(f64::INFINITY, "bytes"), "never");
        assert_eq!(quantity(30.0, "GB/s"), "30.0 GB/s");
        assert_eq!(quantity(0.5, "fraction"), "0.5");
        assert_eq!(quantity(8.0, "descriptors"), "8 descriptors");
    }
}
