//! Prints a finding of `--check` for the user: what happened, where, which descriptors, and what to do.

use super::line::{InvolvedLine, MisuseLine};
use std::fmt::Write as _;
use telpher_vdev_wire::event::Misuse;

/// The problem, as a sentence.
fn problem(misuse: Misuse) -> &'static str {
    match misuse {
        Misuse::RecordMisaligned => "a completion record is not aligned to 32 bytes",
        Misuse::RecordInUse => "a completion record is named by two descriptors at once",
        Misuse::RecordNotReset => "a completion record's status was not cleared before submission",
        Misuse::SourceChanged => "the source of a descriptor in flight changed before the device had read it",
        Misuse::DestinationChanged => "the destination of a descriptor in flight was changed by the program",
        Misuse::Unmapped => "memory was unmapped while the device owned it",
        Misuse::ListChanged => "a batch's descriptor list changed before the device had read it",
        Misuse::ReadAfterWrite => "a descriptor reads bytes that another one in flight may not have written yet",
        Misuse::WriteAfterRead => "a descriptor writes bytes that another one in flight may not have read yet",
        Misuse::WriteAfterWrite => "two descriptors in flight write the same bytes, in undefined order",
        Misuse::WrongInstruction => "a descriptor was submitted by the wrong instruction for the queue",
        Misuse::NoRecordRequested => "a descriptor requests no completion record, so its end is not reported",
    }
}

/// The advice. Source of the rules: SPEC §3.9, §5.4, §8.2.
fn advice(misuse: Misuse) -> &'static str {
    match misuse {
        Misuse::RecordMisaligned => {
            "allocate records with 32-byte alignment; for this one a device writes no record and only \
             reports it in SWERROR"
        }
        Misuse::RecordInUse => {
            "give every descriptor in flight its own record; a thread that waits for this one cannot tell the two apart"
        }
        Misuse::RecordNotReset => {
            "store 0 to the record's first byte before submitting; a thread that polls it now sees the previous status"
        }
        Misuse::SourceChanged => {
            "wait for the record before writing to the source, or freeing it; the device may have read old or new bytes"
        }
        Misuse::DestinationChanged => {
            "wait for the record before writing to the destination, or freeing it; the device may overwrite it at \
             any time"
        }
        Misuse::Unmapped => {
            "wait for the record before munmap() or free(); otherwise the device writes to whatever is mapped \
             there next"
        }
        Misuse::ListChanged => "do not change the list before the batch's record is written",
        Misuse::ReadAfterWrite | Misuse::WriteAfterRead | Misuse::WriteAfterWrite => {
            "wait for the first one's record before submitting the second; within a batch, set the fence flag of the \
             second"
        }
        Misuse::WrongInstruction => {
            "submit by ENQCMD to a shared queue and by MOVDIR64B to a dedicated one (its \"mode\" \
             attribute says which it is); \
             a shared queue drops a posted write silently, a dedicated one answers every ENQCMD with Retry"
        }
        Misuse::NoRecordRequested => {
            "set the flags for a valid record address and for a requested record; without both, a descriptor that \
             succeeds writes no record, and a program that polls for one waits forever"
        }
    }
}

/// The report of a finding.
pub(super) fn report(misuse: Misuse, line: &MisuseLine) -> String {
    let MisuseLine { origin, address, len, latest, other, .. } = line;
    let mut text = String::new();
    let _ = writeln!(text, "telpher: check: {} ({})", problem(misuse), misuse.name());
    let place = match misuse {
        Misuse::WrongInstruction => format!("portal address {address}; "),
        Misuse::NoRecordRequested => String::new(),
        _ => format!("{len} bytes at {address}; "),
    };
    let _ = writeln!(text, "    where: {place}{}, process {}, thread {}", origin.queue, origin.process, origin.thread);
    let operand = |line: &InvolvedLine| match misuse {
        Misuse::WrongInstruction | Misuse::NoRecordRequested => String::new(),
        Misuse::ListChanged => "list of ".to_owned(),
        _ => format!("{} of ", line.operand.replace('-', " ")),
    };
    let _ = writeln!(text, "    {}: {}{} {}", label(misuse, false), operand(latest), latest.which, latest.descriptor);
    if let Some(other) = other {
        let _ = writeln!(text, "    {}: {}{} {}", label(misuse, true), operand(other), other.which, other.descriptor);
    }
    let _ = write!(text, "    do: {}", advice(misuse));
    text
}

/// The label of a descriptor in a report.
fn label(misuse: Misuse, other: bool) -> &'static str {
    match (misuse, other) {
        (Misuse::ListChanged, false) => "was",
        (Misuse::ListChanged, true) => "became",
        (_, false) => "descriptor",
        (_, true) => "in flight",
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::{DescriptorNumber, Origin};
    use super::super::names::Value;
    use super::*;

    #[test]
    fn a_report_lists_problem_location_descriptors_and_advice() {
        let involved = |submission, operand: &str| InvolvedLine {
            which: DescriptorNumber { submission, member: Some(1) },
            operand: operand.into(),
            descriptor: "fill(dst=0x10)".into(),
        };
        let line = MisuseLine {
            origin: Origin { time_ns: 0, process: 42, thread: 43, queue: "wq0.1".into() },
            misuse: "write-after-read".into(),
            address: Value::Hex(0x10),
            len: Value::Count(64),
            latest: involved(8, "destination-1"),
            other: Some(involved(7, "source-1")),
        };
        assert_eq!(
            report(Misuse::WriteAfterRead, &line),
            "telpher: check: a descriptor writes bytes that another one in flight may not have read yet \
             (write-after-read)\n    \
             where: 64 bytes at 0x10; wq0.1, process 42, thread 43\n    \
             descriptor: destination 1 of #8[1] fill(dst=0x10)\n    \
             in flight: source 1 of #7[1] fill(dst=0x10)\n    \
             do: wait for the first one's record before submitting the second; within a batch, set the fence flag of \
             the second"
        );
    }

    #[test]
    fn a_report_of_how_a_descriptor_was_submitted_names_no_operand() {
        let line = |misuse: Misuse| MisuseLine {
            origin: Origin { time_ns: 0, process: 42, thread: 43, queue: "wq0.1".into() },
            misuse: misuse.name().into(),
            address: Value::Hex(0x7000),
            len: Value::Count(64),
            latest: InvolvedLine {
                which: DescriptorNumber { submission: 8, member: None },
                operand: "operand".into(),
                descriptor: "fill(dst=0x10)".into(),
            },
            other: None,
        };
        let report = |misuse| report(misuse, &line(misuse));
        let first_lines = |text: String| text.lines().take(3).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            first_lines(report(Misuse::WrongInstruction)),
            [
                "telpher: check: a descriptor was submitted by the wrong instruction for the queue (wrong-instruction)",
                "    where: portal address 0x7000; wq0.1, process 42, thread 43",
                "    descriptor: #8 fill(dst=0x10)",
            ]
        );
        assert_eq!(
            first_lines(report(Misuse::NoRecordRequested)),
            [
                "telpher: check: a descriptor requests no completion record, so its end is not reported \
                 (no-record-requested)",
                "    where: wq0.1, process 42, thread 43",
                "    descriptor: #8 fill(dst=0x10)",
            ]
        );
    }

    #[test]
    fn every_misuse_has_its_own_text() {
        let all = Misuse::ALL.iter().map(|misuse| problem(*misuse)).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(all.len(), Misuse::ALL.len());
    }
}
