//! Expected results of descriptors.

use telpher_abi::{CompletionRecord, Status};

/// An expected completion record: the fields that the specification fixes, and those that it leaves open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ExpectedRecord {
    record: CompletionRecord,
    /// Bits that must match `record`.
    care: [u64; 4],
    /// Bits that may have any value, even if unused bytes are promised to be zero.
    open: [u64; 4],
}

impl ExpectedRecord {
    /// A status without a direction.
    pub(crate) fn status(code: u8) -> Self {
        let expected_record = ExpectedRecord {
            record: CompletionRecord::default().with_status_code(code),
            care: [0xff, 0, 0, 0],
            open: [0; 4],
        };
        // Bytes completed is undefined for descriptors that failed a check; a page fault defines it.
        if code >= 0x10 { expected_record } else { expected_record.bytes_completed(0) }
    }

    /// Status 0x01.
    pub(crate) fn success() -> Self {
        Self::status(0x01)
    }

    /// Status 0x11 with the offending bits, and bits that may or may not be among them.
    pub(crate) fn invalid_flags(offending: u32, unsettled: u32) -> Self {
        let mut expected_record = Self::status(0x11);
        expected_record.record = expected_record.record.with_invalid_flags(offending);
        expected_record.care[2] |= 0x00ff_ffff & !u64::from(unsettled);
        expected_record.open[2] |= u64::from(unsettled);
        expected_record
    }

    /// A fault of kind `code` (0x03, 0x04, 0x06, 0x1f) at an address.
    pub(crate) fn fault(code: u8, write: bool, address: u64) -> Self {
        let byte = code | if write { 0x80 } else { 0 };
        let mut expected_record = Self::status(byte);
        expected_record.record = expected_record.record.with_fault_address(address);
        // Bits 11:0 may read 0, and an operation may stop at its first whole unit in the page.
        expected_record.care[1] = !0xfff;
        expected_record.open[1] = 0xfff;
        expected_record
    }

    pub(crate) fn result(mut self, value: u8) -> Self {
        self.record = self.record.with_result(value);
        self.care[0] |= 0xff00;
        self.open[0] &= !0xff00;
        self
    }

    /// Accepts any result.
    pub(crate) fn any_result(mut self) -> Self {
        self.care[0] &= !0xff00;
        self.open[0] |= 0xff00;
        self
    }

    pub(crate) fn bytes_completed(mut self, value: u32) -> Self {
        self.record = self.record.with_bytes_completed(value);
        self.care[0] |= 0xffff_ffff_0000_0000;
        self.open[0] &= !0xffff_ffff_0000_0000;
        self
    }

    /// Accepts any number of bytes completed.
    pub(crate) fn any_bytes_completed(mut self) -> Self {
        self.care[0] &= !0xffff_ffff_0000_0000;
        self.open[0] |= 0xffff_ffff_0000_0000;
        self
    }

    /// The operand that faulted, for devices with fault information; `None` without it.
    pub(crate) fn operand(mut self, id: Option<u8>) -> Self {
        match id {
            Some(id) => {
                self.record = self.record.with_fault_operand(id);
                self.care[0] |= 0xff_0000;
                self
            }
            None => self,
        }
    }

    /// The same fault, with its address hidden; `operand` as in [`operand`](Self::operand).
    pub(crate) fn masked(mut self, operand: Option<u8>) -> Self {
        self.record = self.record.with_fault_address(0).with_fault_address_masked(operand.is_some());
        (self.care[1], self.open[1]) = (u64::MAX, 0);
        self
    }

    /// Accepts any fault information.
    pub(crate) fn open_info(mut self) -> Self {
        self.care[0] &= !0xff_0000;
        self.open[0] |= 0xff_0000;
        self
    }

    /// Sets words 2 and 3.
    pub(crate) fn specific(mut self, low: u64, high: u64) -> Self {
        self.record.0[2] = low;
        self.record.0[3] = high;
        (self.care[2], self.care[3]) = (u64::MAX, u64::MAX);
        (self.open[2], self.open[3]) = (0, 0);
        self
    }

    /// Accepts any words 2 and 3.
    pub(crate) fn any_specific(mut self) -> Self {
        (self.care[2], self.care[3]) = (0, 0);
        (self.open[2], self.open[3]) = (u64::MAX, u64::MAX);
        self
    }

    /// The status byte.
    pub(crate) fn code(&self) -> u8 {
        self.record.status_code()
    }

    /// True if the specification permits the record; `zero_unused` if unused bytes must be zero.
    pub(crate) fn matches(&self, got: &CompletionRecord, zero_unused: bool) -> bool {
        (0..4).all(|i| {
            let mask = if zero_unused { !self.open[i] } else { self.care[i] };
            (self.record.0[i] ^ got.0[i]) & mask == 0
        })
    }
}

/// A record as one line for the report.
pub(crate) fn line(record: &CompletionRecord) -> String {
    let status = Status::from_code(record.status_code() & 0x3f);
    format!(
        "status {:#04x} ({}), result {:#x}, info {:#x}, completed {:#x}, address {:#x}, specific {:#x} {:#x}",
        record.status_code(),
        status.meaning(),
        record.result(),
        record.0[0] >> 16 & 0xffff,
        record.bytes_completed(),
        record.fault_address(),
        record.0[2],
        record.0[3]
    )
}

impl std::fmt::Display for ExpectedRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&line(&self.record))?;
        if self.open.iter().any(|bits| *bits != 0) {
            write!(f, " (open: {:x?})", self.open)?;
        }
        Ok(())
    }
}

/// The expected result of a descriptor.
#[derive(Clone, Debug)]
pub(crate) enum Expect {
    /// A record. If the order of checks is not promised, one of the other statuses is accepted, too.
    Record(ExpectedRecord, Vec<u8>),
    /// No record and no error anywhere.
    Silence,
    /// No record, but an entry in SWERROR with this code, and this error information if given.
    Logged(u8, Option<Information>),
    /// A record, and an entry in SWERROR with the same code where that is promised.
    RecordAndLog(ExpectedRecord),
}

/// Error information of SWERROR: value, and bits that are open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Information {
    pub(crate) value: u32,
    pub(crate) open: u32,
}

impl From<ExpectedRecord> for Expect {
    fn from(expected_record: ExpectedRecord) -> Self {
        Expect::Record(expected_record, Vec::new())
    }
}
