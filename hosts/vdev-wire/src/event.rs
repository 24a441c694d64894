//! The meaning of the numbers in a [`TraceEntry`].

use crate::file_memory::{TraceEntry, TraceKind};

/// Declares a number in trace entries, with a name for printing and filtering.
macro_rules! numbers {
    ($(#[$tdoc:meta])* $type:ident { $($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)* }) => {
        $(#[$tdoc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum $type {
            $($(#[$doc])* $name = $code,)*
        }
        impl $type {
            /// All values, ascending.
            pub const ALL: &'static [$type] = &[$($type::$name),*];

            /// The value of a number; `None` for numbers that are not defined, since guests may write any.
            #[must_use]
            pub fn from_code(code: u32) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| *value as u32 == code)
            }

            /// Its name in traces.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$name => $text,)*
                }
            }
        }
    };
}

numbers! {
    /// How the 64 bytes were submitted: [`TraceEntry::code`] of [`TraceKind::Submitted`].
    SubmitInstruction {
        /// A posted write.
        Movdir64b = 0, "movdir64b";
        /// A deferrable write.
        Enqcmd = 1, "enqcmd";
        /// write(2), for which the driver makes either write.
        Write = 2, "write";
    }
}

numbers! {
    /// How the end was reported: [`TraceEntry::answer`] of [`TraceKind::Ended`].
    ReportedTo {
        /// Not at all: no record was requested.
        NotRequested = 0, "no record";
        /// The completion record was written.
        Record = 1, "record";
        /// In the event log or SWERROR.
        Elsewhere = 2, "error log";
        /// In the event log or SWERROR, because the record could not be written.
        Unwritable = 3, "record unwritable";
        /// Not at all: a command abandoned the descriptor.
        Abandoned = 4, "abandoned";
        /// Not at all: the injection suppressed the record.
        Lost = 5, "record lost";
    }
}

numbers! {
    /// The injected fault: [`TraceEntry::code`] of [`TraceKind::Injected`].
    Injected {
        /// A page was absent; `address` is in it.
        Fault = 1, "fault";
        /// A deferrable write got Retry.
        Retry = 2, "retry";
        /// The completion was delayed.
        Delay = 3, "delay";
        /// The completion waited for a later one.
        Reorder = 4, "reorder";
        /// The descriptor ended with the injected status.
        Status = 5, "status";
        /// The record was not written.
        Lose = 6, "lose";
        /// The device halted.
        Halt = 7, "halt";
    }
}

numbers! {
    /// Misuse by a program that hardware would not report: [`TraceEntry::code`] of [`TraceKind::Misuse`].
    Misuse {
        /// The completion record is not 32-byte aligned.
        RecordMisaligned = 1, "record-misaligned";
        /// A descriptor in flight will write the same completion record.
        RecordInUse = 2, "record-in-use";
        /// The status byte of the completion record was not cleared before submission.
        RecordNotReset = 3, "record-not-reset";
        /// Bytes that the device reads changed while the descriptor was in flight.
        SourceChanged = 4, "source-changed";
        /// Bytes that the device writes changed while the descriptor was in flight.
        DestinationChanged = 5, "destination-changed";
        /// Memory of a descriptor in flight was unmapped.
        Unmapped = 6, "unmapped";
        /// A batch's descriptor list changed before the device had read it.
        ListChanged = 7, "list-changed";
        /// The descriptor reads bytes that an unordered descriptor writes.
        ReadAfterWrite = 8, "read-after-write";
        /// The descriptor writes bytes that an unordered descriptor reads.
        WriteAfterRead = 9, "write-after-read";
        /// The descriptor writes bytes that an unordered descriptor writes.
        WriteAfterWrite = 10, "write-after-write";
        /// MOVDIR64B to a shared queue, or ENQCMD to a dedicated one.
        WrongInstruction = 11, "wrong-instruction";
        /// Neither a completion record nor an interrupt reports the end of a descriptor that succeeds.
        NoRecordRequested = 12, "no-record-requested";
    }
}

impl From<telpher_model::ReportedTo> for ReportedTo {
    fn from(reported_to: telpher_model::ReportedTo) -> Self {
        match reported_to {
            telpher_model::ReportedTo::Record => ReportedTo::Record,
            telpher_model::ReportedTo::NotRequested => ReportedTo::NotRequested,
            telpher_model::ReportedTo::Elsewhere => ReportedTo::Elsewhere,
            telpher_model::ReportedTo::Unwritable(_) => ReportedTo::Unwritable,
            telpher_model::ReportedTo::Abandoned => ReportedTo::Abandoned,
        }
    }
}

/// One of the descriptors of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InvolvedDescriptor {
    /// Number of its submission.
    pub submission: u64,
    /// Position in the batch plus one; 0 if it is not a batch member.
    pub member: u32,
    /// The operand: a code of `telpher_abi::OperandId`.
    pub operand: u32,
    /// The descriptor.
    pub descriptor: [u64; 8],
}

/// A misuse, with the descriptors and bytes involved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The kind of misuse.
    pub misuse: Misuse,
    /// The descriptor that was submitted last, or the only one.
    pub latest: InvolvedDescriptor,
    /// The other descriptor; for [`Misuse::ListChanged`], the one that the device found in place of `latest`.
    pub other: Option<InvolvedDescriptor>,
    /// Address of the first byte involved.
    pub address: u64,
    /// Number of bytes involved.
    pub len: u64,
}

impl Finding {
    /// The finding as a trace entry; the caller sets time, process and thread.
    #[must_use]
    pub fn to_entry(&self) -> TraceEntry {
        let other = self.other.unwrap_or_default();
        let mut spare = [0; 10];
        spare[..8].copy_from_slice(&other.descriptor);
        spare[8] = u64::from(self.latest.operand) << 32 | u64::from(other.operand);
        spare[9] = u64::from(other.member);
        TraceEntry {
            submission: self.latest.submission,
            kind: TraceKind::Misuse as u32,
            code: self.misuse as u32,
            member: self.latest.member,
            descriptor: self.latest.descriptor,
            record: [other.submission, self.other.is_some().into(), 0, 0],
            address: self.address,
            other: self.len,
            spare,
            ..TraceEntry::EMPTY
        }
    }

    /// The finding of an entry; `None` if the entry is not a misuse.
    #[must_use]
    pub fn from_entry(entry: &TraceEntry) -> Option<Self> {
        if entry.kind != TraceKind::Misuse as u32 {
            return None;
        }
        let low = |word: u64| u32::try_from(word & 0xffff_ffff).unwrap_or_default();
        let mut descriptor = [0; 8];
        descriptor.copy_from_slice(&entry.spare[..8]);
        let other = InvolvedDescriptor {
            submission: entry.record[0],
            member: low(entry.spare[9]),
            operand: low(entry.spare[8]),
            descriptor,
        };
        Some(Finding {
            misuse: Misuse::from_code(entry.code)?,
            latest: InvolvedDescriptor {
                submission: entry.submission,
                member: entry.member,
                operand: low(entry.spare[8] >> 32),
                descriptor: entry.descriptor,
            },
            other: (entry.record[1] != 0).then_some(other),
            address: entry.address,
            len: entry.other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_survives_the_trace_entry() {
        let involved = |n: u64| InvolvedDescriptor { submission: n, member: 3, operand: 5, descriptor: [n; 8] };
        for other in [None, Some(involved(9))] {
            let finding =
                Finding { misuse: Misuse::ReadAfterWrite, latest: involved(7), other, address: 0x1000, len: 64 };
            assert_eq!(Finding::from_entry(&finding.to_entry()), Some(finding));
        }
    }

    #[test]
    fn undefined_numbers_are_rejected() {
        assert_eq!(Misuse::from_code(0), None);
        assert_eq!(ReportedTo::from_code(6), None);
        assert_eq!(Finding::from_entry(&TraceEntry::EMPTY), None);
        let entry = TraceEntry { kind: TraceKind::Misuse as u32, code: 99, ..TraceEntry::EMPTY };
        assert_eq!(Finding::from_entry(&entry), None);
    }
}
