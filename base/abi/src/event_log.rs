//! SWERROR and event log entries: reports of errors that no completion record can report. Source: SPEC §5.9, §9.2.14
//! (SWERROR), §9.2.16.

use crate::CompletionRecord;

register! {
    /// The SWERROR register, 32 bytes at BAR0+0xC0. The first error is latched; later ones only set the overflow bit.
    SwError [4] {
        /// An error is latched (write 1 to clear).
        valid / with_valid: bool [0..0];
        /// Another error followed (write 1 to clear).
        overflow / with_overflow: bool [1..1];
        /// Batch member, operation, batch index, privilege and PASID are valid.
        descriptor_valid / with_descriptor_valid: bool [2..2];
        /// The queue index is valid.
        wq_index_valid / with_wq_index_valid: bool [3..3];
        /// The descriptor was a member of a batch.
        batch_member / with_batch_member: bool [4..4];
        /// A faulting access was a write.
        write / with_write: bool [5..5];
        /// Privilege of the descriptor.
        privileged / with_privileged: bool [6..6];
        /// Error information is valid.
        error_information_valid / with_error_information_valid: bool [7..7];
        /// The error code: a [`Status`](crate::Status) or a [`DeviceError`](crate::DeviceError).
        error_code / with_error_code: u8 [8..15];
        /// Queue index.
        wq_index / with_wq_index: u8 [16..23];
        /// Opcode.
        operation / with_operation: u8 [32..39];
        /// PASID of the descriptor.
        pasid / with_pasid: u32 [40..59];
        /// Position in the batch.
        batch_index / with_batch_index: u16 [64..79];
        /// Depends on the code: the flag mask (0x11), the handle (0x19), the operand in bits 31:29 (faults).
        error_information / with_error_information: u32 [96..127];
        /// IDPT handle of a refused operand (0x29 to 0x2c) or of a fault in another address space (0x03, 0x04).
        idpt_handle / with_idpt_handle: u16 [96..111];
        /// Faulting address.
        address / with_address: u64 [128..191];
    }
}

register! {
    /// One 64-byte event log entry (`GENCAP[14:13]` = 1). Larger entries are padded with zeros.
    EventLogEntry [8] {
        /// Batch member, operation, batch index, privilege and PASID are valid.
        descriptor_valid / with_descriptor_valid: bool [2..2];
        /// The queue index is valid.
        wq_index_valid / with_wq_index_valid: bool [3..3];
        /// The descriptor was a member of a batch.
        batch_member / with_batch_member: bool [4..4];
        /// A faulting access was a write.
        write / with_write: bool [5..5];
        /// Privilege of the descriptor.
        privileged / with_privileged: bool [6..6];
        /// Error information is valid.
        error_information_valid / with_error_information_valid: bool [7..7];
        /// The error code.
        error_code / with_error_code: u8 [8..15];
        /// Queue index.
        wq_index / with_wq_index: u8 [16..23];
        /// Identifier of the batch, for members and the Batch itself; reused after the Batch's own entry.
        batch_identifier / with_batch_identifier: u8 [24..31];
        /// Opcode.
        operation / with_operation: u8 [32..39];
        /// PASID of the descriptor.
        pasid / with_pasid: u32 [40..59];
        /// Position in the batch.
        batch_index / with_batch_index: u16 [64..79];
        /// Invalid flags for code 0x11 (the whole word).
        error_information / with_error_information: u32 [96..127];
        /// Interrupt handle (codes 0x19, 0x1a, 0x26, 0x27).
        interrupt_handle / with_interrupt_handle: u16 [96..111];
        /// IDPT handle of a refused operand (0x29 to 0x2c) or of a fault in another address space (0x03, 0x04).
        idpt_handle / with_idpt_handle: u16 [96..111];
        /// A completion interrupt must be delivered.
        interrupt_required / with_interrupt_required: bool [112..112];
        /// The portal was an IMS portal.
        ims_portal / with_ims_portal: bool [113..113];
        /// A completion record must be written: its image is in bytes 32–63.
        record_required / with_record_required: bool [114..114];
        /// First error of this batch: discard earlier state for its identifier.
        first_error_in_batch / with_first_error_in_batch: bool [115..115];
        /// Operand that faulted, an [`OperandId`](crate::OperandId) code.
        operand / with_operand: u8 [125..127];
        /// Faulting address, or the completion record's address for 0x1a, 0x26, 0x27.
        address / with_address: u64 [128..191];
    }
}

impl EventLogEntry {
    /// Returns the completion record image of bytes 32–63.
    #[must_use]
    pub fn record(&self) -> CompletionRecord {
        CompletionRecord([self.0[4], self.0[5], self.0[6], self.0[7]])
    }

    /// Replaces the completion record image.
    #[must_use]
    pub fn with_record(mut self, record: CompletionRecord) -> Self {
        self.0[4..].copy_from_slice(&record.0);
        self
    }

    /// Returns the 64 bytes in memory.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 64] {
        crate::Descriptor(self.0).to_bytes()
    }
}
