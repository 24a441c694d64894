//! Lines of a trace, as text and as JSON; both can be parsed back.
//!
//! ```text
//! 0.001234567 4242/4243 wq0.1 #17 enqcmd memory-move(src=0x1000, dst=0x2000, size=64, …) = 0x01 success <12.345us>
//! seconds     process/  queue submission,                                                  status byte, its name,
//!             thread          instruction                                                  the record's other fields;
//!                                                                                          duration
//! ```
//!
//! Members of a batch follow their batch, indented, as `#17[0]`. Lines are in the order of the descriptors' ends; their
//! times are those of the submissions.

use super::names::{self, Fields, Value};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One line of a trace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Line {
    /// A descriptor, from its submission to its end.
    Descriptor(DescriptorLine),
    /// The program misused the device.
    Misuse(MisuseLine),
    /// Events missing from the trace: there was no space for them, or their process was killed.
    Lost(LostLine),
}

/// The name and version of the schema of a line in JSON.
const SCHEMA: &str = "telpher.trace/1";

/// A line with its schema.
#[derive(Serialize)]
struct LineWithSchema<'a> {
    schema: &'static str,
    #[serde(flatten)]
    line: &'a Line,
}

/// The time and origin of a line.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Origin {
    /// Nanoseconds since the run began.
    pub time_ns: u64,
    /// Process.
    pub process: u32,
    /// Thread.
    pub thread: u32,
    /// `wqM.N`.
    pub queue: String,
}

/// Identifies a descriptor of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DescriptorNumber {
    /// Number of the submission within the open file, from 1.
    pub submission: u64,
    /// Position in the batch, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<u32>,
}

/// A descriptor and its result.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DescriptorLine {
    /// Time and origin of the submission.
    #[serde(flatten)]
    pub origin: Origin,
    /// The descriptor's number.
    #[serde(flatten)]
    pub which: DescriptorNumber,
    /// How it was submitted: `movdir64b`, `enqcmd`, `write`; `None` for members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<String>,
    /// The operation's name.
    pub operation: String,
    /// Its fields.
    #[serde(with = "map")]
    pub operands: Fields,
    /// Its flags.
    pub flags: Vec<String>,
    /// How it ended: `record`, `no record`, …; or `retry`, `lost`, `not completed`.
    pub end: String,
    /// The status byte, if it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u8>,
    /// The name of the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_name: Option<String>,
    /// The other fields of the completion record.
    #[serde(with = "map", default)]
    pub results: Fields,
    /// Nanoseconds from submission to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ns: Option<u64>,
    /// Retry answers before this submission.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retries: u64,
    /// Injected faults, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub injected: Vec<String>,
}

/// A finding of the check.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MisuseLine {
    /// Time and origin of the finding.
    #[serde(flatten)]
    pub origin: Origin,
    /// The name of the misuse.
    pub misuse: String,
    /// First byte in question.
    pub address: Value,
    /// Bytes in question.
    pub len: Value,
    /// The descriptor that was submitted last, or the only one.
    pub latest: InvolvedLine,
    /// The other descriptor, in a conflict of two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<InvolvedLine>,
}

/// One of the descriptors of a finding.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct InvolvedLine {
    /// The descriptor's number.
    #[serde(flatten)]
    pub which: DescriptorNumber,
    /// The operand's name.
    pub operand: String,
    /// The descriptor, as a call.
    pub descriptor: String,
}

/// Entries that are missing from the trace.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LostLine {
    /// The file's origin.
    #[serde(flatten)]
    pub origin: Origin,
    /// Their number.
    pub entries: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde requires a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Serialises fields as a JSON object, in order, and parses them back in the same order.
mod map {
    use super::{Fields, Value};
    use serde::de::{MapAccess, Visitor};
    use serde::ser::SerializeMap as _;
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(fields: &Fields, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(fields.len()))?;
        for (name, value) in fields {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Fields, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of numbers")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(entry) = map.next_entry::<String, Value>()? {
                    fields.push(entry);
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl Line {
    /// The time and origin of the line.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        match self {
            Line::Descriptor(story) => &story.origin,
            Line::Misuse(misuse) => &misuse.origin,
            Line::Lost(lost) => &lost.origin,
        }
    }

    /// Returns the line as JSON, as docs/schemas/trace.json describes it.
    ///
    /// # Panics
    /// Never: lines are plain data with string keys.
    #[must_use]
    pub fn json(&self) -> String {
        let line = LineWithSchema { schema: SCHEMA, line: self };
        serde_json::to_string(&line).expect("lines are plain data with string keys")
    }
}

impl fmt::Display for DescriptorNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.submission)?;
        self.member.map_or(Ok(()), |member| write!(f, "[{member}]"))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.time_ns / 1_000_000_000, self.time_ns % 1_000_000_000);
        write!(f, "{seconds}.{nanos:09} {}/{} {}", self.process, self.thread, self.queue)
    }
}

impl fmt::Display for InvolvedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of {}", self.which, self.operand, self.descriptor)
    }
}

impl fmt::Display for DescriptorLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.origin)?;
        if self.which.member.is_some() {
            f.write_str("    ")?;
        }
        write!(f, "{} ", self.which)?;
        if let Some(how) = &self.how {
            write!(f, "{how} ")?;
        }
        write!(f, "{} =", names::call(&self.operation, &self.operands, &self.flags))?;
        match (&self.status, &self.status_name) {
            (Some(status), Some(name)) => {
                write!(f, " {status:#04x} {name}")?;
                if self.end != RECORD {
                    write!(f, " ({})", self.end)?;
                }
            }
            _ => write!(f, " ({})", self.end)?,
        }
        for (name, value) in &self.results {
            write!(f, " {name}={value}")?;
        }
        if let Some(nanos) = self.duration_ns {
            write!(f, " <{}.{:03}us>", nanos / 1000, nanos % 1000)?;
        }
        if self.retries > 0 {
            write!(f, " retries={}", self.retries)?;
        }
        if !self.injected.is_empty() {
            write!(f, " injected={}", self.injected.join("|"))?;
        }
        Ok(())
    }
}

/// [`DescriptorLine::end`] of a descriptor that ended with its record.
pub(crate) const RECORD: &str = "record";

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Descriptor(story) => story.fmt(f),
            Line::Misuse(line) => {
                let MisuseLine { origin, misuse, address, len, latest, other } = line;
                write!(f, "{origin} misuse {misuse} address={address} len={len}: {latest}")?;
                other.as_ref().map_or(Ok(()), |other| write!(f, " against {other}"))
            }
            Line::Lost(LostLine { origin, entries }) => write!(f, "{origin} lost entries={entries}"),
        }
    }
}
