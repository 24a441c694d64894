//! Test cases and their results.

use crate::fixture::Fixture;
use crate::subject::DeviceSpec;
use std::fmt::Debug;

/// The section of the specification that defines an expected result; cases are counted by section.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Section(pub &'static str);

/// Sections by topic.
pub(crate) mod section {
    use super::Section;
    pub(crate) const OPCODES: Section = Section("SPEC Table 8-2 opcodes");
    pub(crate) const FLAGS: Section = Section("SPEC §8.1.3, Table 5-5 flags");
    pub(crate) const TRAFFIC: Section = Section("SPEC §4.2 traffic classes");
    pub(crate) const RESERVED: Section = Section("SPEC Table 5-3 reserved fields");
    pub(crate) const SIZES: Section = Section("SPEC §5.4 sizes and counts");
    pub(crate) const ALIGNMENT: Section = Section("SPEC §5.4 alignment");
    pub(crate) const OVERLAP: Section = Section("SPEC §5.4 overlap");
    pub(crate) const HANDLES: Section = Section("SPEC §3.7 interrupts");
    pub(crate) const ORDER: Section = Section("SPEC §5.4 order of checks");
    pub(crate) const RECORDS: Section = Section("SPEC §5.8.1 when a record is written");
    pub(crate) const MOVE: Section = Section("SPEC §8.3.4-5 move and fill");
    pub(crate) const COMPARE: Section = Section("SPEC §8.3.6-7 compare");
    pub(crate) const DELTA: Section = Section("SPEC §8.3.8-9 delta records");
    pub(crate) const DUALCAST: Section = Section("SPEC §8.3.10 dualcast");
    pub(crate) const CRC: Section = Section("SPEC §8.3.12, App. A CRC");
    pub(crate) const DIF: Section = Section("SPEC §8.3.17, App. B DIF");
    pub(crate) const FETCH: Section = Section("SPEC §8.3.11 translation fetch");
    pub(crate) const DOMAINS: Section = Section("SPEC §3.14, §8.3.27-31 inter-domain operations");
    pub(crate) const ARRAYS: Section = Section("SPEC §8.3.19-25 arrays and lists");
    pub(crate) const FLUSH: Section = Section("SPEC §8.3.13 cache flush");
    pub(crate) const FAULTS: Section = Section("SPEC §3.13 page faults");
    pub(crate) const RESUME: Section = Section("SPEC §8.3 resuming after a page fault");
    pub(crate) const BATCH: Section = Section("SPEC §3.8, §8.3.2 batch");
    pub(crate) const FENCE: Section = Section("SPEC §3.9 fence and ordering");
    pub(crate) const DRAIN: Section = Section("SPEC §3.12, §8.3.3 drain");
    pub(crate) const QUEUES: Section = Section("SPEC §3.3, §5.3 queues and portals");
    pub(crate) const PASID: Section = Section("SPEC §3.3 address spaces");
    pub(crate) const PRIORITY: Section = Section("SPEC §4.1 priority");
    pub(crate) const COMMANDS: Section = Section("SPEC §9.2.11 commands");
    pub(crate) const REGISTERS: Section = Section("SPEC §9.2 registers");
    pub(crate) const SWERROR: Section = Section("SPEC §5.8, §9.2.14 software error register");
    pub(crate) const EVENT_LOG: Section = Section("SPEC §5.9 event log");
    pub(crate) const PERFMON: Section = Section("SPEC ch. 6 performance monitoring");
}

/// Why a case did not pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NotPassed {
    /// The subject lacks something that the case needs.
    Skip(String),
    /// The result differs from the specification.
    Fail {
        /// The expected result.
        expected: String,
        /// The actual result.
        got: String,
    },
}

/// The result of a case.
pub(crate) type Verdict = Result<(), NotPassed>;

/// A test case.
pub(crate) struct Case {
    /// The tested property, as a sentence.
    pub(crate) name: String,
    pub(crate) section: Section,
    /// The device that the case needs.
    pub(crate) spec: DeviceSpec,
    /// The device must be new and is not used for other cases.
    pub(crate) fresh: bool,
    pub(crate) body: Box<Body>,
}

/// The code of the case.
type Body = dyn Fn(&Fixture) -> Verdict;

impl Case {
    pub(crate) fn new(
        section: Section,
        name: impl Into<String>,
        spec: &DeviceSpec,
        body: impl Fn(&Fixture) -> Verdict + 'static,
    ) -> Self {
        Case { name: name.into(), section, spec: spec.clone(), fresh: false, body: Box::new(body) }
    }

    /// The same case on a device of its own.
    pub(crate) fn fresh(mut self) -> Self {
        self.fresh = true;
        self
    }
}

/// Fails unless both are equal.
pub(crate) fn same<T: PartialEq + Debug>(what: &str, expected: T, got: T) -> Verdict {
    if expected == got {
        return Ok(());
    }
    fail(format!("{what} {expected:x?}"), format!("{got:x?}"))
}

/// Fails unless `holds`.
pub(crate) fn holds(what: impl Into<String>, holds: bool, got: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { fail(what, got()) }
}

pub(crate) fn fail<T>(expected: impl Into<String>, got: impl Into<String>) -> Result<T, NotPassed> {
    Err(NotPassed::Fail { expected: expected.into(), got: got.into() })
}

pub(crate) fn skip<T>(reason: impl Into<String>) -> Result<T, NotPassed> {
    Err(NotPassed::Skip(reason.into()))
}

/// Fails unless two buffers are equal; names the first difference.
pub(crate) fn same_bytes(what: &str, expected: &[u8], got: &[u8]) -> Verdict {
    match expected.iter().zip(got).position(|(a, b)| a != b) {
        None if expected.len() == got.len() => Ok(()),
        None => fail(format!("{what}: {} bytes", expected.len()), format!("{} bytes", got.len())),
        Some(i) => {
            fail(format!("{what}: byte {i} of {} is {:#04x}", expected.len(), expected[i]), format!("{:#04x}", got[i]))
        }
    }
}
