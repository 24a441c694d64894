//! One number, what it must reach, and how it was measured.

use serde::Serialize;
use std::borrow::Cow;

/// One number and what it may be.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Row {
    /// What is measured.
    pub(crate) what: Cow<'static, str>,
    /// The number, a median.
    pub(crate) measured: f64,
    /// Its unit.
    pub(crate) unit: &'static str,
    /// What it must reach, if it must.
    pub(crate) goal: Option<Goal>,
    /// How it was measured.
    pub(crate) how: String,
}

/// What a number must reach.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
}

impl Row {
    /// A row, ready to stand in a table.
    pub(crate) fn new(
        what: impl Into<Cow<'static, str>>,
        measured: f64,
        unit: &'static str,
        goal: Option<Goal>,
        how: impl Into<String>,
    ) -> Self {
        Row { what: what.into(), measured, unit, goal, how: how.into() }
    }

    /// True if the goal is reached, or there is none. What could not be measured reaches no goal.
    pub(crate) fn reached(&self) -> bool {
        match self.goal {
            None => true,
            Some(Goal::AtMost(most)) => self.measured <= most,
            Some(Goal::AtLeast(least)) => self.measured >= least,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_reached_at_its_edge_and_by_no_missing_number() {
        let reached = |measured, goal| Row::new("a", measured, "ns", Some(goal), "").reached();
        assert!(reached(40.0, Goal::AtMost(40.0)) && !reached(40.1, Goal::AtMost(40.0)));
        assert!(reached(0.9, Goal::AtLeast(0.9)) && !reached(0.89, Goal::AtLeast(0.9)));
        assert!(!reached(f64::NAN, Goal::AtMost(40.0)) && !reached(f64::NAN, Goal::AtLeast(0.9)));
        assert!(Row::new("a", f64::NAN, "ns", None, "").reached());
    }
}
