//! The 32-byte completion record. Source: SPEC §8.2; offsets are checked against UAPI `struct dsa_completion_record`.

use crate::{Status, StatusByte};

/// The record that a device writes when a descriptor ends. Fields without meaning for an operation are zero from the
/// model and unspecified from hardware.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(C, align(32))]
pub struct CompletionRecord(/** The four little-endian words. */ pub [u64; 4]);

const _: () = assert!(size_of::<CompletionRecord>() == 32 && align_of::<CompletionRecord>() == 32);

impl CompletionRecord {
    /// Creates a record with only its status byte set.
    #[must_use]
    #[inline]
    pub const fn new(status: StatusByte) -> Self {
        CompletionRecord([status.0 as u64, 0, 0, 0])
    }

    /// Decodes 32 bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        let mut words = [0; 4];
        for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        CompletionRecord(words)
    }

    /// Returns the 32 bytes in memory.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (word, chunk) in self.0.iter().zip(bytes.as_chunks_mut::<8>().0) {
            *chunk = word.to_le_bytes();
        }
        bytes
    }

    /// Returns byte 0 with its direction bit.
    #[must_use]
    #[inline]
    pub fn status_byte(&self) -> StatusByte {
        StatusByte(self.status_code())
    }

    /// Returns the status code only.
    #[must_use]
    #[inline]
    pub fn status(&self) -> Status {
        self.status_byte().status()
    }
}

bit_fields!(CompletionRecord {
    /// The raw byte 0.
    status_code / with_status_code: u8 [0..7];
    /// Result of compare, delta, batch; for a partial Memory Move 0 = forward, 1 = backward; DIF Status for DIF
    /// (byte 1).
    result / with_result: u8 [8..15];
    /// Fault info: the address is masked (byte 2, bit 0; needs `GENCAP[12]`).
    fault_address_masked / with_fault_address_masked: bool [16..16];
    /// Fault info: the operand that faulted, an [`OperandId`] code (byte 2, bits 3:1; needs `GENCAP[12]`).
    fault_operand / with_fault_operand: u8 [17..19];
    /// Bytes completed; descriptors completed for a Batch (byte 4).
    bytes_completed / with_bytes_completed: u32 [32..63];
    /// Faulting address (byte 8); bits 11:0 may read 0 from hardware.
    fault_address / with_fault_address: u64 [64..127];
    /// Offending flag bits, with status 0x11 (byte 16).
    invalid_flags / with_invalid_flags: u32 [128..151];
    /// Create Delta: bytes written to the delta record (byte 16).
    delta_record_size / with_delta_record_size: u32 [128..159];
    /// Operations with alternate address spaces: the IDPT handle of a fault or of a refused operand (byte 16).
    fault_handle / with_fault_handle: u16 [128..143];
    /// Gather and scatter: entries of the list that are done; Gather Reduce: processed (byte 20).
    sgl_entries_done / with_sgl_entries_done: u16 [160..175];
    /// CRC32 value (byte 16).
    crc / with_crc: u32 [128..159];
    /// CRC64 value (byte 16).
    crc64 / with_crc64: u64 [128..191];
    /// DIF Check, Strip, Update: source reference tag for the next block (byte 16).
    source_ref_tag / with_source_ref_tag: u32 [128..159];
    /// DIF Check, Strip, Update: source application tag mask (byte 20).
    source_app_tag_mask / with_source_app_tag_mask: u16 [160..175];
    /// DIF Check, Strip, Update: source application tag for the next block (byte 22).
    source_app_tag / with_source_app_tag: u16 [176..191];
    /// DIF Insert, Update: destination reference tag for the next block (byte 24).
    dest_ref_tag / with_dest_ref_tag: u32 [192..223];
    /// DIF Insert, Update: destination application tag mask (byte 28).
    dest_app_tag_mask / with_dest_app_tag_mask: u16 [224..239];
    /// DIF Insert, Update: destination application tag for the next block (byte 30).
    dest_app_tag / with_dest_app_tag: u16 [240..255];
});

impl core::fmt::Debug for CompletionRecord {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CompletionRecord")
            .field("status", &self.status_byte())
            .field("result", &self.result())
            .field("bytes_completed", &self.bytes_completed())
            .field("fault_address", &format_args!("{:#x}", self.fault_address()))
            .field("specific", &format_args!("{:#x} {:#x}", self.0[2], self.0[3]))
            .finish()
    }
}

/// The operand that faulted (fault info bits 3:1). Source: SPEC §8.2.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum OperandId {
    /// Not reported.
    Unknown = 0,
    /// Source, source 1, descriptor list, delta record of Apply, first readback, Translation Fetch address.
    Source1 = 1,
    /// Source 2, CRC seed address, second readback.
    Source2 = 2,
    /// Destination, destination 1, delta record of Create.
    Destination1 = 3,
    /// Second destination.
    Destination2 = 4,
    /// Completion record.
    CompletionRecord = 5,
    /// Scatter-gather list (3.0).
    ScatterGatherList = 6,
}

bitflags::bitflags! {
    /// The mismatch for status 0x09 (byte 1). Source: SPEC §8.2.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct DifStatus: u8 {
        /// The guard.
        const GUARD = 0x01;
        /// The application tag.
        const APP_TAG = 0x02;
        /// The reference tag.
        const REF_TAG = 0x04;
        /// An all-F tuple was found and is an error here.
        const ALL_F = 0x08;
        const _ = 0xff;
    }
}
