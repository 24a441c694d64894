//! The statuses of DML's interface for C, and what the statuses of a device are in it.

use telpher_abi::{CompletionRecord, Status as DeviceStatus, StatusByte};

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        /// A `dml_status_t`.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(transparent)]
        #[must_use]
        pub struct DmlStatus(/** The number. */ pub u32);

        impl DmlStatus {
            $($(#[$doc])* pub const $name: DmlStatus = DmlStatus($code);)*
        }
    };
}

statuses! {
    /// Done.
    OK = 0;
    /// Done; a checked result is not the expected one.
    FALSE_PREDICATE_OK = 1;
    /// Not done yet.
    BEING_PROCESSED = 2;
    /// A status that the interface has no name for; a batch member that was not executed.
    INTERNAL_ERROR = 3;
    /// A pointer is null.
    NULL_POINTER_ERROR = 4;
    /// Not a path.
    PATH_ERROR = 6;
    /// A member of a batch did not succeed.
    BATCH_ERROR = 9;
    /// Apply Delta: an offset is not larger than the one before.
    DELTA_ASCENDT_ERROR = 10;
    /// Apply Delta: an offset is beyond the destination.
    DELTA_OFFSET_ERROR = 11;
    /// An integrity field does not match.
    DIF_CHECK_ERROR = 12;
    /// Unknown operation, or one that the queue does not have.
    JOB_OPERATION_ERROR = 13;
    /// A flag that the device refuses.
    JOB_FLAGS_ERROR = 14;
    /// A size.
    JOB_LENGTH_ERROR = 15;
    /// The size of a delta record.
    DELTA_RECORD_SIZE_ERROR = 17;
    /// Ranges overlap.
    OVERLAPPING_BUFFER_ERROR = 18;
    /// Dualcast: the destinations differ in bits 11:0.
    DUALCAST_ALIGN_ERROR = 19;
    /// Delta operations: the alignment of an address.
    DELTA_ALIGN_ERROR = 20;
    /// Delta operations: the size of the compared range.
    DELTA_INPUT_SIZE_ERROR = 21;
    /// A job that was not initialised or not submitted.
    JOB_CORRUPTED = 23;
    /// A page fault.
    PAGE_FAULT_ERROR = 25;
    /// The index of a batch member.
    BATCH_TASK_INDEX_OVERFLOW = 28;
    /// The number of members of a batch.
    BATCH_SIZE_ERROR = 29;
    /// DIF Strip: the destination ends too close below the source.
    DIF_STRIP_ADJACENT_ERROR = 32;
    /// The system could not resolve a page fault.
    INTL_INVALID_PAGE_REQUEST = 33;
    /// A reserved field is not zero.
    INTL_INVALID_RESERVED_FIELD = 34;
    /// The list of a batch is misaligned.
    INTL_MISALIGNED_DESC_LA = 35;
    /// The interrupt handle.
    INTL_INVALID_COMPLETION_HANDLE = 36;
    /// A page fault on the completion record.
    INTL_PAGE_FAULT_ON_TRANSLATION = 37;
    /// The completion record is misaligned.
    INTL_MISALIGNED_CR_ADDRESS = 38;
    /// An address or size is misaligned.
    INTL_MISALIGNED_ADDRESS = 39;
    /// Privilege.
    INTL_PRIVILEGE_ERROR = 40;
    /// The traffic class.
    INTL_TRAFFIC_CLASS_ERROR = 41;
    /// A page fault on a readback address.
    INTL_READBACK_ADDRESS_PAGE_ERROR = 42;
    /// The device failed to read.
    INTL_HARDWARE_READBACK_TIMEOUT = 43;
    /// The device failed to write, or does not answer.
    INTL_HARDWARE_TIMEOUT = 44;
    /// Address translation failed.
    INTL_ADDRESS_TRANSLATION_ERROR = 45;
    /// No queue can be used.
    LIBACCEL_NOT_FOUND = 100;
    /// Every queue is full.
    WORK_QUEUES_NOT_AVAILABLE = 102;
}

impl DmlStatus {
    /// Returns what a device's status is in the interface for C. Source: D111's answers; statuses without a name there
    /// are `INTERNAL_ERROR`.
    pub const fn of_device(status: DeviceStatus) -> DmlStatus {
        match status {
            DeviceStatus::Success => DmlStatus::OK,
            DeviceStatus::SuccessPredicateFalse => DmlStatus::FALSE_PREDICATE_OK,
            DeviceStatus::PageFault | DeviceStatus::BatchPageFault => DmlStatus::PAGE_FAULT_ERROR,
            DeviceStatus::PageFaultRefused => DmlStatus::INTL_INVALID_PAGE_REQUEST,
            DeviceStatus::BatchFail => DmlStatus::BATCH_ERROR,
            DeviceStatus::DeltaOffsetOrder => DmlStatus::DELTA_ASCENDT_ERROR,
            DeviceStatus::DeltaOffsetRange => DmlStatus::DELTA_OFFSET_ERROR,
            DeviceStatus::DifError => DmlStatus::DIF_CHECK_ERROR,
            DeviceStatus::BadOpcode => DmlStatus::JOB_OPERATION_ERROR,
            DeviceStatus::InvalidFlags => DmlStatus::JOB_FLAGS_ERROR,
            DeviceStatus::NonZeroReserved => DmlStatus::INTL_INVALID_RESERVED_FIELD,
            DeviceStatus::TransferSizeRange => DmlStatus::JOB_LENGTH_ERROR,
            DeviceStatus::DescriptorCountRange => DmlStatus::BATCH_SIZE_ERROR,
            DeviceStatus::FieldRange => DmlStatus::DELTA_INPUT_SIZE_ERROR,
            DeviceStatus::Overlap => DmlStatus::OVERLAPPING_BUFFER_ERROR,
            DeviceStatus::DualcastAlignment => DmlStatus::DUALCAST_ALIGN_ERROR,
            DeviceStatus::DescriptorListAlignment => DmlStatus::INTL_MISALIGNED_DESC_LA,
            DeviceStatus::InterruptHandle => DmlStatus::INTL_INVALID_COMPLETION_HANDLE,
            DeviceStatus::CompletionRecordFault => DmlStatus::INTL_PAGE_FAULT_ON_TRANSLATION,
            DeviceStatus::CompletionRecordAlignment => DmlStatus::INTL_MISALIGNED_CR_ADDRESS,
            DeviceStatus::AddressAlignment => DmlStatus::INTL_MISALIGNED_ADDRESS,
            DeviceStatus::PrivilegeBad => DmlStatus::INTL_PRIVILEGE_ERROR,
            DeviceStatus::TrafficClass => DmlStatus::INTL_TRAFFIC_CLASS_ERROR,
            DeviceStatus::ReadbackFault => DmlStatus::INTL_READBACK_ADDRESS_PAGE_ERROR,
            DeviceStatus::HardwareReadError => DmlStatus::INTL_HARDWARE_READBACK_TIMEOUT,
            DeviceStatus::HardwareWriteError => DmlStatus::INTL_HARDWARE_TIMEOUT,
            DeviceStatus::TranslationFailure => DmlStatus::INTL_ADDRESS_TRANSLATION_ERROR,
            _ => DmlStatus::INTERNAL_ERROR,
        }
    }

    /// Returns what a written record says.
    pub fn of_record(record: &CompletionRecord) -> DmlStatus {
        DmlStatus::of_device(record.status())
    }

    /// Returns what the first byte of a written record says.
    #[inline]
    pub(crate) fn of_byte(status: StatusByte) -> DmlStatus {
        // The usual one needs no table.
        if status == StatusByte::new(DeviceStatus::Success) {
            return DmlStatus::OK;
        }
        DmlStatus::of_device(status.status())
    }
}
