//! A measured number, its goal, and how it was measured.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use telpher_report::units;

/// A measured number with its goal.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// The name of the quantity.
    pub what: Cow<'static, str>,
    /// The number, a median.
    pub measured: f64,
    /// Its unit.
    pub unit: &'static str,
    /// Its goal, if it has one.
    pub goal: Option<Goal>,
    /// How it was measured.
    pub how: String,
    /// Whether too little was measured to decide about the goal.
    pub open: bool,
}

/// Whether a row reaches its goal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The goal is reached, or there is none.
    Reached,
    /// The goal is missed.
    Short,
    /// The goal is undecided.
    Open,
}

impl Verdict {
    /// Returns its mark in a table.
    pub fn mark(self) -> &'static str {
        match self {
            Verdict::Reached => "✓",
            Verdict::Short => "<",
            Verdict::Open => "?",
        }
    }
}

/// A goal.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
}

impl Goal {
    /// Returns true if a number reaches the goal. A number that is none (NaN) reaches no goal.
    pub fn is_reached(self, measured: f64) -> bool {
        match self {
            Goal::AtMost(most) => measured <= most,
            Goal::AtLeast(least) => measured >= least,
        }
    }
}

impl std::fmt::Display for Goal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Goal::AtMost(most) => write!(f, "≤ {}", units::trimmed(*most)),
            Goal::AtLeast(least) => write!(f, "≥ {}", units::trimmed(*least)),
        }
    }
}

impl Row {
    /// Creates a row for a table. `NaN` stands for a quantity that was not measured.
    pub fn new(
        what: impl Into<Cow<'static, str>>,
        measured: f64,
        unit: &'static str,
        goal: Option<Goal>,
        how: impl Into<String>,
    ) -> Self {
        let open = goal.is_some() && measured.is_nan();
        Row { what: what.into(), measured, unit, goal, how: how.into(), open }
    }

    /// Marks the row as open if too `little` was measured to say that the goal is reached; a missed goal stays missed.
    pub fn open_if(self, little: bool) -> Self {
        let open = self.open || (little && self.goal.is_some() && self.reached());
        Row { open, ..self }
    }

    /// Returns the verdict on the goal.
    pub fn verdict(&self) -> Verdict {
        match self.open {
            true => Verdict::Open,
            false if self.reached() => Verdict::Reached,
            false => Verdict::Short,
        }
    }

    /// Returns true if the goal is reached, or there is none. A quantity that was not measured reaches no goal.
    pub fn reached(&self) -> bool {
        self.goal.is_none_or(|goal| goal.is_reached(self.measured))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_inclusive_and_a_missing_number_reaches_none() {
        let reached = |measured, goal| Row::new("a", measured, "ns", Some(goal), "").reached();
        assert!(reached(40.0, Goal::AtMost(40.0)) && !reached(40.1, Goal::AtMost(40.0)));
        assert!(reached(0.9, Goal::AtLeast(0.9)) && !reached(0.89, Goal::AtLeast(0.9)));
        assert!(!reached(f64::NAN, Goal::AtMost(40.0)) && !reached(f64::NAN, Goal::AtLeast(0.9)));
        assert!(Row::new("a", f64::NAN, "ns", None, "").reached());
    }

    #[test]
    fn without_numbers_a_row_is_open_and_with_few_only_a_miss_is_decided() {
        let row = |measured| Row::new("a", measured, "ns", Some(Goal::AtLeast(0.9)), "");
        assert_eq!([f64::NAN, 0.8, 1.0].map(|n| row(n).verdict()), [Verdict::Open, Verdict::Short, Verdict::Reached]);
        let little = [f64::NAN, 0.8, 1.0].map(|n| row(n).open_if(true).verdict());
        assert_eq!(little, [Verdict::Open, Verdict::Short, Verdict::Open]);
        assert_eq!(row(1.0).open_if(false).verdict().mark(), "✓");
        assert_eq!(Row::new("a", 1.0, "ns", None, "").open_if(true).verdict(), Verdict::Reached);
    }
}
