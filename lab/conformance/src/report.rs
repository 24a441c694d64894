//! What a run found.

use crate::case::Section;
use std::collections::BTreeMap;
use std::fmt;

/// A case that went otherwise than the specification says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The case's name.
    pub case: String,
    /// Where its expectation comes from.
    pub section: Section,
    /// What the specification says.
    pub expected: String,
    /// What came.
    pub got: String,
}

/// How many cases of a section went how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// As the specification says.
    pub passed: usize,
    /// Otherwise.
    pub failed: usize,
    /// Not put to the subject.
    pub skipped: usize,
}

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The subject's name.
    pub subject: String,
    /// Counts by section.
    pub sections: BTreeMap<Section, Tally>,
    /// Every failure, in the order of the cases.
    pub failed: Vec<Failure>,
    /// Cases skipped, with the subject's reason.
    pub skipped: Vec<(String, String)>,
}

impl Report {
    /// Cases that passed.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.sections.values().map(|t| t.passed).sum()
    }

    /// True if nothing failed and something was asked.
    #[must_use]
    pub fn is_green(&self) -> bool {
        self.failed.is_empty() && self.passed() > 0
    }

    /// Reasons for skipping, with how many cases each.
    #[must_use]
    pub fn reasons(&self) -> BTreeMap<&str, usize> {
        let mut reasons = BTreeMap::new();
        for (_, reason) in &self.skipped {
            *reasons.entry(reason.as_str()).or_default() += 1;
        }
        reasons
    }
}

/// Failures printed for one section before the rest is only counted.
const SHOWN: usize = 12;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (failed, skipped) = (self.failed.len(), self.skipped.len());
        writeln!(f, "{}: {} passed, {failed} failed, {skipped} skipped", self.subject, self.passed())?;
        for (section, tally) in &self.sections {
            let Tally { passed, failed, skipped } = tally;
            writeln!(f, "  {passed:>6} {failed:>5} {skipped:>5}  {}", section.0)?;
            for failure in self.failed.iter().filter(|x| x.section == *section).take(SHOWN) {
                writeln!(f, "    FAILED {}", failure.case)?;
                writeln!(f, "      expected {}", failure.expected)?;
                writeln!(f, "      got      {}", failure.got)?;
            }
            if *failed > SHOWN {
                writeln!(f, "    and {} more", failed - SHOWN)?;
            }
        }
        for (reason, count) in self.reasons() {
            let first = self.skipped.iter().find(|(_, r)| r == reason).map_or("", |(name, _)| name);
            writeln!(f, "  skipped {count}, {reason}: {first}{}", if count > 1 { ", and more" } else { "" })?;
        }
        Ok(())
    }
}
