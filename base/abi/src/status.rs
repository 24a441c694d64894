//! Status codes of completion records. Source: SPEC Tables 5-6 and 5-7; UAPI `enum dsa_completion_status`.

macro_rules! codes {
    ($(#[$tdoc:meta])* $type:ident { $($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)* }) => {
        $(#[$tdoc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
        pub enum $type {
            $($(#[$doc])* $name,)*
            /// A code without a name in this crate; its value is kept.
            Unknown(u8),
        }
        impl $type {
            /// All named codes, ascending.
            pub const ALL: &'static [$type] = &[$($type::$name),*];
            /// Decodes a code.
            #[must_use]
            #[inline]
            pub const fn from_code(code: u8) -> Self {
                match code {
                    $($code => $type::$name,)*
                    other => $type::Unknown(other),
                }
            }
            /// Returns the code byte.
            #[must_use]
            #[inline]
            pub const fn code(self) -> u8 {
                match self {
                    $($type::$name => $code,)*
                    $type::Unknown(code) => code,
                }
            }
            /// Returns its meaning as a clause.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self {
                    $($type::$name => $text,)*
                    $type::Unknown(_) => "a code unknown to this version of telpher",
                }
            }
        }
        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{} ({:#04x})", self.meaning(), self.code())
            }
        }
    };
}
pub(crate) use codes;

codes! {
    /// How a descriptor ended (bits 5:0 of byte 0 of its completion record).
    Status {
        /// Not written yet: the value that software stores before it submits.
        None = 0x00, "not completed";
        /// Done.
        Success = 0x01, "success";
        /// Done, but the checked result was not the expected one.
        SuccessPredicateFalse = 0x02, "success, but the checked result was not the expected one";
        /// Partly done: page fault with Block On Fault off.
        PageFault = 0x03, "page fault, partly completed (block on fault was off)";
        /// Partly done: the page request was refused.
        PageFaultRefused = 0x04, "page fault that the system could not resolve, partly completed";
        /// Batch: at least one member did not succeed.
        BatchFail = 0x05, "a member of the batch did not succeed";
        /// Batch: page fault on the descriptor list.
        BatchPageFault = 0x06, "page fault on the batch's descriptor list";
        /// Apply Delta Record: offsets not ascending.
        DeltaOffsetOrder = 0x07, "delta record: an offset is not larger than the one before";
        /// Apply Delta Record: offset beyond the transfer size.
        DeltaOffsetRange = 0x08, "delta record: an offset is beyond the transfer size";
        /// DIF: an integrity field does not match.
        DifError = 0x09, "an integrity field does not match its block";
        /// Operation not supported, or not allowed here.
        BadOpcode = 0x10, "operation not supported or not allowed here";
        /// A reserved, unsupported or missing flag.
        InvalidFlags = 0x11, "a flag is reserved, unsupported or missing";
        /// A reserved field is not zero.
        NonZeroReserved = 0x12, "a reserved field is not zero";
        /// Transfer size zero or too large.
        TransferSizeRange = 0x13, "transfer size is zero or too large";
        /// Descriptor count out of range.
        DescriptorCountRange = 0x14, "descriptor count is out of range";
        /// Another field's value is out of range (delta record sizes).
        FieldRange = 0x15, "a size field is out of range";
        /// Buffers overlap where this is forbidden.
        Overlap = 0x16, "buffers overlap";
        /// Dualcast destinations differ in bits 11:0.
        DualcastAlignment = 0x17, "the two destinations differ in their low 12 address bits";
        /// The descriptor list is not 64-byte aligned.
        DescriptorListAlignment = 0x18, "the descriptor list is not 64-byte aligned";
        /// Completion interrupt handle invalid.
        InterruptHandle = 0x19, "the completion interrupt handle is not valid";
        /// Page fault on the completion record address.
        CompletionRecordFault = 0x1a, "page fault on the completion record address";
        /// The completion record address is not 32-byte aligned.
        CompletionRecordAlignment = 0x1b, "the completion record address is not 32-byte aligned";
        /// A misaligned address, size or stride.
        AddressAlignment = 0x1c, "an address or size is misaligned";
        /// Supervisor privilege without permission.
        PrivilegeBad = 0x1d, "supervisor privilege without privileged mode";
        /// The traffic class is not available.
        TrafficClass = 0x1e, "the selected traffic class is not available";
        /// Page fault on a drain readback address.
        ReadbackFault = 0x1f, "page fault on a readback address";
        /// Hardware error on a read.
        HardwareReadError = 0x20, "hardware error on a read";
        /// Hardware error on a write or readback.
        HardwareWriteError = 0x21, "hardware error on a write or readback";
        /// Address translation failed.
        TranslationFailure = 0x22, "address translation failed";
        /// Drain, only in the event log: an earlier completion record may have faulted.
        DrainEventLog = 0x26, "a completion record before this drain may have faulted";
        /// Batch, only in the event log: a member's completion record may have faulted.
        BatchEventLog = 0x27, "a member's completion record may have faulted";
        /// Inter-domain operation on a queue without PASID.
        InterDomainNoPasid = 0x28, "inter-domain operation on a queue without a PASID";
        /// Inter-domain table entry not usable.
        InterDomainHandle = 0x29, "inter-domain handle not usable";
        /// Inter-domain table entry lacks the permission.
        InterDomainPermission = 0x2a, "inter-domain handle lacks the permission";
        /// Outside the inter-domain window.
        InterDomainWindow = 0x2b, "address outside the inter-domain window";
        /// Update Window: entry not updatable.
        UpdateWindowEntry = 0x2c, "window entry cannot be updated";
        /// Update Window: bad fields.
        UpdateWindowFields = 0x2d, "window fields are not valid";
        /// Inter-domain operation ended by an abort.
        InterDomainAborted = 0x2e, "inter-domain operation ended by an abort";
    }
}

codes! {
    /// Device-level errors that share the numbering but never appear in a completion record. Source: SPEC Table 5-7.
    DeviceError {
        /// Forbidden change of PCI configuration while enabled; halts the device.
        ConfigurationChange = 0x51, "PCI configuration changed while the device was not disabled";
        /// CMD written while a command was active.
        CommandActive = 0x52, "a command was written while another was active";
        /// Posted submission to a full dedicated queue.
        QueueOverflow = 0x53, "a descriptor was written to a full dedicated queue and is lost";
        /// Event log append failed.
        EventLogFailure = 0x54, "an event log entry could not be written";
    }
}

impl Status {
    /// Returns true for the codes after which work can be resumed: [`PageFault`](Status::PageFault) and
    /// [`PageFaultRefused`](Status::PageFaultRefused).
    #[must_use]
    pub const fn is_page_fault(self) -> bool {
        matches!(self, Status::PageFault | Status::PageFaultRefused)
    }

    /// Returns true if bit 7 of the status byte distinguishes read and write for this code. Source: SPEC §8.2.
    #[must_use]
    pub const fn has_direction(self) -> bool {
        matches!(
            self,
            Status::PageFault
                | Status::PageFaultRefused
                | Status::BatchPageFault
                | Status::CompletionRecordFault
                | Status::ReadbackFault
        )
    }
}

/// Byte 0 of a completion record: bits 5:0 are the code; bit 7 is set if a faulting access was a write.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct StatusByte(/** The byte on the wire. */ pub u8);

impl StatusByte {
    /// Creates the byte of a code without a direction.
    #[must_use]
    #[inline]
    pub const fn new(status: Status) -> Self {
        StatusByte(status.code())
    }

    /// Creates the byte of a fault by a read or a write.
    #[must_use]
    pub const fn fault(status: Status, write: bool) -> Self {
        StatusByte(status.code() | (write as u8) << 7)
    }

    /// Returns the code.
    #[must_use]
    #[inline]
    pub const fn status(self) -> Status {
        Status::from_code(self.0 & 0x3f)
    }

    /// Returns true if the failing access was a write; meaningful if [`Status::has_direction`].
    #[must_use]
    pub const fn is_write(self) -> bool {
        self.0 & 0x80 != 0
    }

    /// Returns true once the device has written the record.
    #[must_use]
    #[inline]
    pub const fn is_complete(self) -> bool {
        self.0 != 0
    }
}

impl core::fmt::Debug for StatusByte {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}", self.status())?;
        if self.status().has_direction() {
            f.write_str(if self.is_write() { " on a write" } else { " on a read" })?;
        }
        Ok(())
    }
}
