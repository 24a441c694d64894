//! Parses lines of a trace, in text or JSON.

use super::line::{DescriptorLine, DescriptorNumber, InvolvedLine, Line, LostLine, MisuseLine, Origin, RECORD};
use super::names::{Fields, Value};

/// Why a line is not a line of a trace.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {number} is not a line of a trace: {text}")]
pub struct ParseError {
    /// The line's number, from 1.
    pub number: u64,
    /// The line's first 80 characters.
    pub text: String,
}

impl Line {
    /// Parses a line of text or JSON.
    ///
    /// # Errors
    /// If it is neither; `number` is the line's number.
    pub fn parse(text: &str, number: u64) -> Result<Self, ParseError> {
        let line = if text.starts_with('{') { serde_json::from_str(text).ok() } else { line(text) };
        line.ok_or_else(|| ParseError { number, text: text.chars().take(80).collect() })
    }
}

fn line(text: &str) -> Option<Line> {
    let mut words = text.splitn(4, ' ');
    let (seconds, nanos) = words.next()?.split_once('.')?;
    let (process, thread) = words.next()?.split_once('/')?;
    // Nine digits, so that the fraction is in nanoseconds.
    let nanos: u64 = (nanos.len() == 9).then(|| nanos.parse().ok()).flatten()?;
    let time_ns = seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(nanos)?;
    let queue = words.next()?.to_owned();
    let origin = Origin { time_ns, process: process.parse().ok()?, thread: thread.parse().ok()?, queue };
    let rest = words.next()?.trim_start();
    if let Some(rest) = rest.strip_prefix("misuse ") {
        return misuse(origin, rest).map(Line::Misuse);
    }
    if let Some(entries) = rest.strip_prefix("lost entries=") {
        return Some(Line::Lost(LostLine { origin, entries: entries.parse().ok()? }));
    }
    story(origin, rest).map(Line::Descriptor)
}

/// Parses `#17` or `#17[0]`.
fn which(text: &str) -> Option<DescriptorNumber> {
    let number = text.strip_prefix('#')?;
    let (submission, member) = match number.strip_suffix(']') {
        Some(number) => {
            let (submission, member) = number.split_once('[')?;
            (submission, Some(member.parse().ok()?))
        }
        None => (number, None),
    };
    Some(DescriptorNumber { submission: submission.parse().ok()?, member })
}

fn story(origin: Origin, text: &str) -> Option<DescriptorLine> {
    let (call, end) = text.split_once(" = ")?;
    let (head, arguments) = call.strip_suffix(')')?.split_once('(')?;
    let mut head = head.split(' ');
    let which = which(head.next()?)?;
    let (how, operation) = match (head.next()?, head.next()) {
        (how, Some(operation)) => (Some(how.to_owned()), operation),
        (operation, None) => (None, operation),
    };
    let mut story = DescriptorLine {
        origin,
        which,
        how,
        operation: operation.to_owned(),
        end: RECORD.into(),
        ..DescriptorLine::default()
    };
    for argument in arguments.split(", ").filter(|argument| !argument.is_empty()) {
        match argument.strip_prefix("flags=") {
            Some(flags) => story.flags = flags.split('|').map(str::to_owned).collect(),
            None => story.operands.push(field(argument)?),
        }
    }
    let mut rest = end;
    let ended = ["0x", "("].iter().any(|begin| rest.starts_with(begin));
    if !ended {
        return None;
    }
    if let Some(status) = rest.strip_prefix("0x") {
        let (code, after) = status.split_once(' ')?;
        story.status = Some(u8::from_str_radix(code, 16).ok()?);
        let (name, after) = after.split_once(' ').unwrap_or((after, ""));
        story.status_name = Some(name.to_owned());
        rest = after;
    }
    if let Some(inner) = rest.strip_prefix('(') {
        let (end, after) = inner.split_once(')')?;
        story.end = end.to_owned();
        rest = after;
    }
    results(&mut story, rest)?;
    Some(story)
}

/// Parses the text after the status: fields of the record, the duration, retries and injected faults.
fn results(story: &mut DescriptorLine, text: &str) -> Option<()> {
    for word in text.split_whitespace() {
        if let Some(time) = word.strip_prefix('<') {
            let (micros, nanos) = time.strip_suffix("us>")?.split_once('.')?;
            let nanos: u64 = (nanos.len() == 3).then(|| nanos.parse().ok()).flatten()?;
            story.duration_ns = Some(micros.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(nanos)?);
        } else if let Some(retries) = word.strip_prefix("retries=") {
            story.retries = retries.parse().ok()?;
        } else if let Some(injected) = word.strip_prefix("injected=") {
            story.injected = injected.split('|').map(str::to_owned).collect();
        } else {
            story.results.push(field(word)?);
        }
    }
    Some(())
}

fn field(text: &str) -> Option<(String, Value)> {
    let (name, value) = text.split_once('=')?;
    Some((name.to_owned(), Value::parse(value)?))
}

fn misuse(origin: Origin, text: &str) -> Option<MisuseLine> {
    let (head, parties) = text.split_once(": ")?;
    let mut head = head.split(' ');
    let misuse = head.next()?.to_owned();
    let fields: Fields = head.map(field).collect::<Option<_>>()?;
    let value = |name: &str| fields.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
    let (one, other) = match parties.split_once(" against ") {
        Some((one, other)) => (one, Some(involved(other)?)),
        None => (parties, None),
    };
    Some(MisuseLine { origin, misuse, address: value("address")?, len: value("len")?, latest: involved(one)?, other })
}

fn involved(text: &str) -> Option<InvolvedLine> {
    let (name, rest) = text.split_once(' ')?;
    let (operand, descriptor) = rest.split_once(" of ")?;
    Some(InvolvedLine { which: which(name)?, operand: operand.to_owned(), descriptor: descriptor.to_owned() })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn origin() -> Origin {
        Origin { time_ns: 12_000_345_678, process: 42, thread: 43, queue: "wq0.1".into() }
    }

    /// One line of every kind.
    pub(in crate::trace) fn lines() -> Vec<Line> {
        let story = DescriptorLine {
            origin: origin(),
            which: DescriptorNumber { submission: 17, member: None },
            how: Some("enqcmd".into()),
            operation: "memory-move".into(),
            operands: vec![("src".into(), Value::Hex(0x1000)), ("size".into(), Value::Count(64))],
            flags: vec!["crav".into(), "rcr".into()],
            end: "record".into(),
            status: Some(0x83),
            status_name: Some("page-fault-write".into()),
            results: vec![("bytes".into(), Value::Count(0)), ("fault".into(), Value::Hex(u64::MAX))],
            duration_ns: Some(12_345),
            retries: 3,
            injected: vec!["fault".into(), "delay".into()],
        };
        let member = DescriptorLine {
            which: DescriptorNumber { submission: 17, member: Some(0) },
            how: None,
            operands: vec![],
            flags: vec![],
            end: "no record".into(),
            status: Some(1),
            status_name: Some("success".into()),
            results: vec![],
            retries: 0,
            injected: vec![],
            ..story.clone()
        };
        let retry = DescriptorLine {
            end: "retry".into(),
            status: None,
            status_name: None,
            duration_ns: None,
            results: vec![],
            injected: vec![],
            ..story.clone()
        };
        let involved = |member| InvolvedLine {
            which: DescriptorNumber { submission: 3, member },
            operand: "source-1".into(),
            descriptor: "fill(pattern=0x0, dst=0x10, size=5)".into(),
        };
        let misuse = |other| MisuseLine {
            origin: origin(),
            misuse: "read-after-write".into(),
            address: Value::Hex(0x10),
            len: Value::Count(5),
            latest: involved(None),
            other,
        };
        vec![
            Line::Descriptor(story),
            Line::Descriptor(member),
            Line::Descriptor(retry),
            Line::Misuse(misuse(None)),
            Line::Misuse(misuse(Some(involved(Some(2))))),
            Line::Lost(LostLine { origin: origin(), entries: 7 }),
        ]
    }

    #[test]
    fn every_line_survives_text_and_json() {
        for line in lines() {
            assert_eq!(Line::parse(&line.to_string(), 1).as_ref(), Ok(&line), "{line}");
            let json = serde_json::to_string(&line).unwrap();
            assert_eq!(Line::parse(&json, 1).as_ref(), Ok(&line), "{json}");
        }
    }

    #[test]
    fn the_text_is_as_documented() {
        let text: Vec<String> = lines().iter().map(Line::to_string).collect();
        assert_eq!(
            text[0],
            "12.000345678 42/43 wq0.1 #17 enqcmd memory-move(src=0x1000, size=64, flags=crav|rcr) = 0x83 \
             page-fault-write bytes=0 fault=0xffffffffffffffff <12.345us> retries=3 injected=fault|delay"
        );
        assert_eq!(text[1], "12.000345678 42/43 wq0.1     #17[0] memory-move() = 0x01 success (no record) <12.345us>");
        assert_eq!(
            text[2],
            "12.000345678 42/43 wq0.1 #17 enqcmd memory-move(src=0x1000, size=64, flags=crav|rcr) = (retry) retries=3"
        );
    }

    #[test]
    fn anything_else_is_refused_with_its_number() {
        let whole = lines()[0].to_string();
        // No prefix of a line up to its status is a line.
        for cut in 0..whole.find(" page-fault").unwrap() {
            assert!(Line::parse(&whole[..cut], 1).is_err(), "{}", &whole[..cut]);
        }
        for text in ["", "{}", "hello world", "1.5 1/1 wq0.0 #1 nop() = 0x01 success", "{\"event\":\"descriptor\"}"] {
            assert_eq!(Line::parse(text, 9).unwrap_err().number, 9, "{text}");
        }
    }
}
