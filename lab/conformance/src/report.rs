//! The results of a run.

use crate::case::Section;
use std::collections::BTreeMap;
use std::fmt;

/// A case whose result differs from the specification.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The name of the case.
    pub case: String,
    /// The section of the specification.
    pub section: Section,
    /// The expected result.
    pub expected: String,
    /// The actual result.
    pub got: String,
}

/// The number of cases of a section by result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Passed.
    pub passed: usize,
    /// Failed.
    pub failed: usize,
    /// Skipped.
    pub skipped: usize,
}

/// The results of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The subject's name.
    pub subject: String,
    /// Counts by section.
    pub sections: BTreeMap<Section, Tally>,
    /// Every failure, in the order of the cases.
    pub failed: Vec<Failure>,
    /// Skipped cases, with the subject's reason.
    pub skipped: Vec<(String, String)>,
}

impl Report {
    /// The number of passed cases.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.sections.values().map(|t| t.passed).sum()
    }

    /// True if nothing failed and at least one case ran.
    #[must_use]
    pub fn is_green(&self) -> bool {
        self.failed.is_empty() && self.passed() > 0
    }

    /// Reasons for skipping, with the number of cases each.
    #[must_use]
    pub fn reasons(&self) -> BTreeMap<&str, usize> {
        let mut reasons = BTreeMap::new();
        for (_, reason) in &self.skipped {
            *reasons.entry(reason.as_str()).or_default() += 1;
        }
        reasons
    }
}

/// Failures printed for one section; further ones are only counted.
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
