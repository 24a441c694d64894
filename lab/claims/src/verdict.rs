//! What came of a claim: published, simulated, deviation, verdict.

use crate::experiments::{self, Found};
use crate::lab::Lab;
use crate::published::{About, Claim, Kind, Use, Value, claims};
use serde::Deserialize;
use std::sync::LazyLock;

/// What came of a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The simulation gives what was published.
    Holds,
    /// It does not.
    Fails {
        /// Why.
        why: String,
    },
    /// It does not, and cannot: published numbers contradict each other.
    Contradicts {
        /// Whom.
        whom: String,
        /// How.
        why: String,
    },
    /// There is nothing to simulate.
    NotSimulated {
        /// Why.
        why: String,
    },
}

impl Verdict {
    /// In a word or two.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::Fails { .. } => "FAILS",
            Verdict::Contradicts { .. } => "contradicts",
            Verdict::NotSimulated { .. } => "not simulated",
        }
    }

    /// The reason, if there is one to tell.
    #[must_use]
    pub fn why(&self) -> String {
        match self {
            Verdict::Holds => String::new(),
            Verdict::Fails { why } | Verdict::NotSimulated { why } => why.clone(),
            Verdict::Contradicts { whom, why } => format!("{why} [{whom}]"),
        }
    }
}

/// A claim and what came of it.
#[derive(Clone, Debug)]
pub struct Row {
    /// The claim.
    pub claim: &'static Claim,
    /// What the simulation gives, for people; empty where nothing was simulated.
    pub simulated: String,
    /// The same in a few words.
    pub brief: String,
    /// What other readings of the claim give, for people; the verdict does not depend on it. Empty where there is none.
    pub beside: String,
    /// How far that is from what was published, as a share of it, where a number was printed; the farthest of several.
    pub deviation: Option<f64>,
    /// What comes of it.
    pub verdict: Verdict,
}

impl Row {
    /// What was published, for people.
    #[must_use]
    pub fn published(&self) -> String {
        published(self.claim)
    }

    /// Whether it counts as a number, not as a form.
    #[must_use]
    pub fn is_quantitative(&self) -> bool {
        self.claim.kind != Kind::Shape
    }
}

/// A reason that someone found.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reason {
    id: String,
    why: String,
    /// Published numbers that it contradicts.
    contradicts: Option<String>,
    /// By what it can be seen.
    shown: Option<String>,
    /// Nothing shows it.
    #[serde(default)]
    supposed: bool,
}

impl Reason {
    /// The reason, and whether anything shows it.
    fn told(&self) -> String {
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

/// What is said of a claim that does not hold as long as nobody found out why.
pub const UNKNOWN: &str = "not known yet";

/// What is said of one that does not hold on a machine of which it was not published.
pub const ELSEWHERE: &str = "it was published of another machine";

/// Somebody found out why this claim does not hold.
#[must_use]
pub fn has_reason(id: &str) -> bool {
    REASONS.iter().any(|reason| reason.id == id)
}

/// Does a claim's experiment and says what came of it.
#[must_use]
pub fn of(lab: &Lab, claim: &'static Claim) -> Row {
    let elsewhere = lab.instead().is_some();
    let reason = REASONS.iter().find(|reason| reason.id == claim.id);
    let why = |otherwise: &str| reason.map_or_else(|| otherwise.to_owned(), Reason::told);
    let nothing = |why: String| Row {
        claim,
        simulated: String::new(),
        brief: String::new(),
        beside: String::new(),
        deviation: None,
        verdict: Verdict::NotSimulated { why },
    };
    match claim.usage {
        Use::Setup => return nothing(why("how it was measured")),
        Use::Context => return nothing(why("about something else")),
        Use::Calibrate | Use::Validate => {}
    }
    let Some(experiment) = experiments::of(&claim.id) else { return nothing(why("no experiment")) };
    let found = match experiment(lab) {
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
    let (simulated, deviation, holds) = judge(claim, &found);
    let verdict = match reason {
        _ if holds => Verdict::Holds,
        // Reasons are of the machines that were published.
        _ if elsewhere => Verdict::Fails { why: ELSEWHERE.to_owned() },
        Some(reason @ Reason { contradicts: Some(whom), .. }) => {
            Verdict::Contradicts { whom: whom.clone(), why: reason.told() }
        }
        _ => Verdict::Fails { why: why(UNKNOWN) },
    };
    Row { claim, simulated, brief: brief(claim, &found), beside, deviation, verdict }
}

/// Several numbers, each with what it is of.
fn listed(claim: &Claim, values: &[(String, f64)]) -> String {
    let each = values.iter().map(|(of, value)| format!("{of}: {}", quantity(*value, &claim.unit)));
    each.collect::<Vec<_>>().join("; ")
}

/// What was found, in a few words: of several numbers the least and the greatest.
fn brief(claim: &Claim, found: &Found) -> String {
    match found {
        Found::Number(value) => quantity(*value, &claim.unit),
        Found::Shape { holds, .. } => if *holds { "so it is" } else { "not so" }.into(),
        Found::Beside(found, _) => brief(claim, found),
        Found::Numbers(values) => {
            let of = |start: f64, pick: fn(f64, f64) -> f64| values.iter().map(|(_, value)| *value).fold(start, pick);
            let ends = [of(f64::INFINITY, f64::min), of(f64::NEG_INFINITY, f64::max)];
            let [least, most] = ends.map(|value| quantity(value, &claim.unit));
            if least == most { least } else { format!("{least} to {most}") }
        }
    }
}

/// All claims, or those named, and what came of them.
pub fn all(lab: &Lab, wanted: impl Fn(&Claim) -> bool) -> Vec<Row> {
    claims().iter().filter(|claim| wanted(claim)).map(|claim| of(lab, claim)).collect()
}

/// What was found, how far from what was published, and whether that holds.
fn judge(claim: &Claim, found: &Found) -> (String, Option<f64>, bool) {
    let (least, most) = claim.bounds();
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
        Found::Beside(found, _) => judge(claim, found),
    }
}

/// What was published, for people.
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

/// A number with its unit, for people: `4.1 KiB`, `30.0 GB/s`, `0.93`.
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

/// How many hold, and how far numbers are off.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Tally {
    /// Claims that were simulated.
    pub simulated: usize,
    /// Those that hold.
    pub hold: usize,
    /// Those whose sources contradict each other.
    pub contradict: usize,
    /// Numbers whose deviation is known.
    pub numbers: usize,
    /// Their mean absolute deviation, a share.
    pub mean: f64,
}

impl Tally {
    /// Over some rows.
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    pub fn of<'a>(rows: impl Iterator<Item = &'a Row>) -> Self {
        let (mut tally, mut sum) = (Tally::default(), 0.0);
        for row in rows {
            match row.verdict {
                Verdict::NotSimulated { .. } => continue,
                Verdict::Holds => tally.hold += 1,
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

    /// Share of those that hold.
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
        let (shown, deviation, holds) = judge(claim("K-035"), &found(5000.0, 9000.0));
        assert_eq!((shown.as_str(), deviation, holds), ("near: 4.88 KiB; far: 8.79 KiB", Some(0.0), true));
        let (_, deviation, holds) = judge(claim("K-035"), &found(5000.0, 20480.0));
        assert_eq!((deviation, holds), (Some(1.0), false));
    }

    #[test]
    fn a_reason_belongs_to_a_claim() {
        for reason in REASONS.iter() {
            assert!(claims().iter().any(|claim| claim.id == reason.id) && reason.why.len() > 10, "{}", reason.id);
        }
    }

    /// A contradiction, too, is shown, not supposed.
    #[test]
    fn a_reason_is_shown_or_said_to_be_supposed() {
        for reason in REASONS.iter() {
            assert!(reason.shown.is_some() != reason.supposed, "{}", reason.id);
            assert!(reason.contradicts.is_none() || reason.shown.is_some(), "{}", reason.id);
            let told = reason.told();
            assert!(told.starts_with("supposed: ") || told.contains("(shown by "), "{told}");
        }
    }

    #[test]
    fn what_is_not_simulated_does_not_count() {
        let row = |verdict| Row {
            claim: claim("K-028"),
            simulated: String::new(),
            brief: String::new(),
            beside: String::new(),
            deviation: Some(-0.05),
            verdict,
        };
        let rows = [row(Verdict::Holds), row(Verdict::Fails { why: "x".into() })];
        let with = [rows[0].clone(), rows[1].clone(), row(Verdict::NotSimulated { why: "x".into() })];
        assert_eq!(Tally::of(rows.iter()), Tally::of(with.iter()));
        let tally = Tally::of(with.iter());
        assert_eq!((tally.simulated, tally.hold, tally.share()), (2, 1, 0.5));
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
