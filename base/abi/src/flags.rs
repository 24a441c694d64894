//! Descriptor flags. Source: SPEC §8.1.3, Table 8-3; UAPI `IDXD_OP_FLAG_*`.

bitflags::bitflags! {
    /// The 24 flag bits of a descriptor (bytes 4–6). The meaning of bits 16–23 depends on the operation: see
    /// [`OpFlags`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct Flags: u32 {
        /// Wait for all earlier members of the same batch.
        const FENCE = 1 << 0;
        /// Block On Fault: wait for the page instead of completing partially.
        const BLOCK_ON_FAULT = 1 << 1;
        /// Completion Record Address Valid.
        const COMPLETION_RECORD_ADDRESS_VALID = 1 << 2;
        /// Request Completion Record: also write a record on success.
        const REQUEST_COMPLETION_RECORD = 1 << 3;
        /// Request Completion Interrupt.
        const REQUEST_COMPLETION_INTERRUPT = 1 << 4;
        /// Completion-record steering tag of 1.x; Cache Control 3 from 3.0.
        const CACHE_CONTROL_3 = 1 << 5;
        /// Reserved on every version.
        const RESERVED_6 = 1 << 6;
        /// Check Result: report status 0x02 when the result is not the expected one.
        const CHECK_RESULT = 1 << 7;
        /// Cache Control 1: place the result in the cache.
        const CACHE_CONTROL_1 = 1 << 8;
        /// Address 1 uses traffic class B.
        const ADDRESS_1_TC = 1 << 9;
        /// Address 2 uses traffic class B.
        const ADDRESS_2_TC = 1 << 10;
        /// Address 3 uses traffic class B.
        const ADDRESS_3_TC = 1 << 11;
        /// The completion record uses traffic class B.
        const COMPLETION_RECORD_TC = 1 << 12;
        /// Strict ordering of this descriptor's data writes.
        const STRICT_ORDERING = 1 << 13;
        /// Destination readback (1.x, 2.x); Cache Control 2 from 3.0.
        const DESTINATION_READBACK = 1 << 14;
        /// Destination steering tag of 1.x; reserved from 2.0.
        const DESTINATION_STEERING_TAG = 1 << 15;
        /// Bits whose meaning depends on the operation.
        const OPERATION_SPECIFIC = 0xff << 16;
        const _ = 0x00ff_ffff;
    }
}

impl Flags {
    /// The flags of nearly every submission: the record address is valid, and a record is requested.
    pub const RECORD: Flags = Flags::COMPLETION_RECORD_ADDRESS_VALID.union(Flags::REQUEST_COMPLETION_RECORD);
}

/// Operation-specific flag bits (16–23) under the operation's own names.
#[derive(Debug)]
pub struct OpFlags;

impl OpFlags {
    /// Batch: continues a batch in which a member has already failed (needs `GENCAP[15]`).
    pub const BATCH_ERROR: Flags = Flags::from_bits_retain(1 << 16);
    /// Drain: readback address 1 is valid (needs `GENCAP[9]`).
    pub const READBACK_1: Flags = Flags::from_bits_retain(1 << 16);
    /// Drain: readback address 2 is valid (needs `GENCAP[9]`).
    pub const READBACK_2: Flags = Flags::from_bits_retain(1 << 17);
    /// Drain: no implicit readback on traffic class A.
    pub const SUPPRESS_TC_A_READBACK: Flags = Flags::from_bits_retain(1 << 18);
    /// Drain: no implicit readback on traffic class B.
    pub const SUPPRESS_TC_B_READBACK: Flags = Flags::from_bits_retain(1 << 19);
    /// Fill: the pattern has 16 bytes (needs `GENCAP[10]`).
    pub const FILL_16: Flags = Flags::from_bits_retain(1 << 18);
    /// CRC: read the seed from memory.
    pub const READ_SEED: Flags = Flags::from_bits_retain(1 << 16);
    /// CRC: neither invert nor reflect seed and result.
    pub const BYPASS_INVERT_REFLECT: Flags = Flags::from_bits_retain(1 << 17);
    /// CRC: do not reflect data bytes.
    pub const BYPASS_DATA_REFLECT: Flags = Flags::from_bits_retain(1 << 18);
    /// CRC: 64-bit CRC (2.x, needs `GENCAP[11]`).
    pub const CRC64: Flags = Flags::from_bits_retain(1 << 19);
    /// Translation Fetch: the descriptor has a stride (2.x, needs `GENCAP[7]`).
    pub const FETCH_STRIDE: Flags = Flags::from_bits_retain(1 << 16);
    /// Update Window: complete without waiting for descriptors that use the old values (2.x, needs `IDCAP[25]`).
    pub const SUPPRESS_WINDOW_DRAIN: Flags = Flags::from_bits_retain(1 << 16);
    /// The source, or source 1, is in the address space of the handle at byte 60.
    pub const ALTERNATE_SOURCE: Flags = Flags::from_bits_retain(1 << 16);
    /// The destination, or source 2, is in the address space of the handle at byte 62.
    pub const ALTERNATE_DESTINATION: Flags = Flags::from_bits_retain(1 << 17);
    /// Reduce, Reduce with Dualcast: the ID selector chooses the operands' address spaces (3.0).
    pub const USE_ID_SELECTOR: Flags = Flags::from_bits_retain(1 << 16);
    /// Reduce with Dualcast: destination 2 uses traffic class B (3.0).
    pub const DESTINATION_2_TC: Flags = Flags::from_bits_retain(1 << 17);
}

bitflags::bitflags! {
    /// Permissions and mode of a memory window: byte 61 of Update Window, and bits of an IDPT entry. Source: SPEC
    /// §8.3.27.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct WindowFlags: u8 {
        /// Submitters may read.
        const READ = 1 << 0;
        /// Submitters may write.
        const WRITE = 1 << 1;
        /// Base and size limit the accesses; otherwise the entry gives its whole address space.
        const ENABLE = 1 << 2;
        /// Operands are offsets into the window instead of addresses.
        const OFFSET_MODE = 1 << 3;
        const _ = 0xff;
    }
}
