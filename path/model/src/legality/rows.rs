//! Each operation's flags and reserved bits as a table. Source: SPEC Tables 5-3 to 5-5.

use telpher_abi::{Flags, OpFlags, Opcode};

/// One operation's row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) opcode: Opcode,
    /// Every flag bit that may be set.
    pub(super) flags: u32,
    /// Flag bits that must be set.
    pub(super) required: u32,
    /// Flag bits that need a capability: (flag, GENCAP bit).
    pub(super) gates: &'static [(Flags, u32)],
    /// Bits that must be zero in every descriptor of the operation.
    pub(super) reserved: [u64; 8],
    /// Traffic class selectors 1, 2, 3 that are in use in every descriptor of the operation.
    pub(super) selectors: u32,
}

const RECORD: u32 = Flags::RECORD.bits();
const FIRST: u32 = OpFlags::ALTERNATE_SOURCE.bits();
const SECOND: u32 = OpFlags::ALTERNATE_DESTINATION.bits();
pub(super) const A1: u32 = Flags::ADDRESS_1_TC.bits();
pub(super) const A2: u32 = Flags::ADDRESS_2_TC.bits();
pub(super) const A3: u32 = Flags::ADDRESS_3_TC.bits();

/// Builds a mask of the bytes `first..=last` of each range, for reserved bits.
const fn bytes(ranges: &[(usize, usize)]) -> [u64; 8] {
    let mut words = [0; 8];
    let mut i = 0;
    while i < ranges.len() {
        let mut byte = ranges[i].0;
        while byte <= ranges[i].1 {
            words[byte / 8] |= 0xff << (8 * (byte % 8));
            byte += 1;
        }
        i += 1;
    }
    words
}

/// Adds single bits of one byte to a mask.
const fn and_bits(mut words: [u64; 8], byte: usize, bits: u8) -> [u64; 8] {
    words[byte / 8] |= (bits as u64) << (8 * (byte % 8));
    words
}

/// Adds Cache Control 3 of 3.0 to the flags of an operation with cache control. Devices before refuse it for every
/// operation ([`Check::QueueFlags`](super::Check::QueueFlags)).
const fn with_cache_control_3(flags: u32) -> u32 {
    if flags & Flags::CACHE_CONTROL_1.bits() != 0 { flags | Flags::CACHE_CONTROL_3.bits() } else { flags }
}

macro_rules! rows {
    ($($op:ident flags $flags:literal required $required:expr, gates $gates:expr, selectors $selectors:expr, reserved $reserved:expr;)*) => {
        /// All operations that the model has. Flags and required flags: SPEC Table 5-5; reserved bytes: Tables 5-3,
        /// 5-4 and, for the CRC operations, §8.3.12, which the tables contradict; reserved bits inside bytes: §8.3.6,
        /// §8.3.8, §8.3.17, §8.3.27.
        pub(crate) const ROWS: &[Row] = &[$(Row {
            opcode: Opcode::$op, flags: with_cache_control_3($flags), required: $required, gates: $gates,
            selectors: $selectors, reserved: $reserved,
        }),*];
    };
}

/// Reserved bits of Create Delta's expected-result mask, byte 56. Source: SPEC §8.3.8.
pub(super) const RESULT_MASK_RESERVED: u8 = 0xf8;
const DRAIN_GATES: &[(Flags, u32)] = &[(OpFlags::READBACK_1, 9), (OpFlags::READBACK_2, 9)];
const CRC_GATES: &[(Flags, u32)] = &[(OpFlags::CRC64, 11)];

rows! {
    Nop flags 0x00101d required 0, gates &[], selectors 0, reserved bytes(&[(16, 35), (38, 63)]);
    Batch flags 0x01121c required 0, gates &[(OpFlags::BATCH_ERROR, 15)], selectors A1,
        reserved bytes(&[(24, 31), (38, 63)]);
    Drain flags 0x0f161c required 0, gates DRAIN_GATES, selectors 0, reserved bytes(&[(32, 35), (38, 63)]);
    MemoryMove flags 0x00771f required 0, gates &[], selectors A1 | A2, reserved bytes(&[(38, 63)]);
    Fill flags 0x04751f required 0, gates &[(OpFlags::FILL_16, 10)], selectors A2,
        reserved bytes(&[(38, 39), (48, 63)]);
    Compare flags 0x00169f required RECORD, gates &[], selectors A1 | A2,
        reserved and_bits(bytes(&[(38, 39), (41, 63)]), 40, 0xfe);
    ComparePattern flags 0x00129f required RECORD, gates &[], selectors A1,
        reserved and_bits(bytes(&[(38, 39), (41, 63)]), 40, 0xfe);
    CreateDelta flags 0x007f9f required RECORD, gates &[], selectors A1 | A2 | A3,
        reserved and_bits(bytes(&[(38, 39), (52, 55), (57, 63)]), 56, RESULT_MASK_RESERVED);
    ApplyDelta flags 0x00771f required 0, gates &[], selectors A1 | A2, reserved bytes(&[(38, 39), (44, 63)]);
    Dualcast flags 0x007f1f required 0, gates &[], selectors A1 | A2 | A3, reserved bytes(&[(38, 39), (48, 63)]);
    CrcGeneration flags 0x0f1a1f required RECORD, gates CRC_GATES, selectors A1,
        reserved bytes(&[(24, 31), (38, 39), (56, 63)]);
    CopyCrc flags 0x0f7f1f required RECORD, gates CRC_GATES, selectors A1 | A2,
        reserved bytes(&[(38, 39), (56, 63)]);
    DifCheck flags 0x00121f required RECORD, gates &[], selectors A1,
        reserved and_bits(bytes(&[(24, 31), (38, 39), (41, 41), (43, 47), (56, 63)]), 42, 0xf0);
    DifInsert flags 0x00771f required 0, gates &[], selectors A1 | A2,
        reserved and_bits(and_bits(bytes(&[(38, 40), (43, 55)]), 42, 0xf0), 41, 0x07);
    DifStrip flags 0x00771f required 0, gates &[], selectors A1 | A2,
        reserved and_bits(bytes(&[(38, 39), (41, 41), (43, 47), (56, 63)]), 42, 0xf0);
    DifUpdate flags 0x00771f required 0, gates &[], selectors A1 | A2,
        reserved and_bits(and_bits(bytes(&[(38, 39), (43, 47)]), 42, 0xf0), 41, 0x07);
    CacheFlush flags 0x00741f required 0, gates &[], selectors A2, reserved bytes(&[(16, 23), (38, 63)]);
    TranslationFetch flags 0x01101f required 0, gates &[(OpFlags::FETCH_STRIDE, 7)], selectors 0,
        reserved bytes(&[(24, 31), (38, 47), (52, 63)]);
    DixGenerate flags 0x00771f required RECORD, gates &[], selectors A1 | A2,
        reserved and_bits(and_bits(bytes(&[(38, 40), (43, 55)]), 42, 0xf0), 41, 0x07);
    UpdateWindow flags 0x01101c required 0, gates &[], selectors 0,
        reserved and_bits(bytes(&[(32, 35), (38, 60)]), 61, 0xf0);
    TypeConversion flags 0x03779f required 0, gates &[], selectors A1 | A2,
        reserved and_bits(bytes(&[(38, 55), (59, 59)]), 57, 0x0f);
    Reduce flags 0x017f9f required 0, gates &[], selectors A1 | A2 | A3, reserved bytes(&[(38, 39), (48, 55)]);
    ReduceDualcast flags 0x037f9f required 0, gates &[], selectors A1 | A2 | A3, reserved bytes(&[(38, 39)]);
    GatherReduce flags 0x007f9f required 0, gates &[], selectors A1 | A2 | A3,
        reserved and_bits(bytes(&[(38, 43), (46, 47), (60, 63)]), 59, 0x0f);
    GatherCopy flags 0x037f1f required 0, gates &[], selectors A1 | A2 | A3,
        reserved and_bits(and_bits(bytes(&[(38, 39), (46, 47), (57, 58)]), 56, 0xf0), 59, 0x0f);
    ScatterCopy flags 0x037f1f required 0, gates &[], selectors A1 | A2 | A3,
        reserved and_bits(and_bits(bytes(&[(38, 39), (46, 47), (57, 58)]), 56, 0xf0), 59, 0x0f);
    ScatterFill flags 0x027d1f required 0, gates &[], selectors A2 | A3,
        reserved and_bits(and_bits(bytes(&[(38, 39), (46, 47), (57, 58), (60, 61)]), 56, 0xf0), 59, 0x0f);
    InterDomainCopy flags 0x03771f required 0, gates &[], selectors A1 | A2, reserved bytes(&[(38, 59)]);
    InterDomainFill flags 0x06751f required SECOND, gates &[(OpFlags::FILL_16, 10)], selectors A2,
        reserved bytes(&[(38, 39), (48, 61)]);
    InterDomainCompare flags 0x03169f required RECORD, gates &[], selectors A1 | A2,
        reserved and_bits(bytes(&[(38, 39), (41, 59)]), 40, 0xfe);
    InterDomainComparePattern flags 0x01129f required RECORD | FIRST, gates &[], selectors A1,
        reserved and_bits(bytes(&[(38, 39), (41, 59), (62, 63)]), 40, 0xfe);
}

/// True for the operations whose flags 16 and 17 say which of the two handles of bytes 60 to 63 are used.
pub(crate) fn uses_handles(opcode: Opcode) -> bool {
    use Opcode as O;
    matches!(
        opcode,
        O::InterDomainCopy
            | O::InterDomainFill
            | O::InterDomainCompare
            | O::InterDomainComparePattern
            | O::TypeConversion
            | O::GatherCopy
            | O::ScatterCopy
            | O::ScatterFill
    )
}

#[cfg(feature = "mutation")]
impl Row {
    pub(crate) fn flag_mask(&self) -> u32 {
        self.flags
    }

    pub(crate) fn required_mask(&self) -> u32 {
        self.required
    }

    pub(crate) fn reserved_mask(&self) -> &[u64; 8] {
        &self.reserved
    }
}

/// Index of each opcode's row plus one; 0 for none.
#[allow(clippy::cast_possible_truncation, reason = "there are fewer than 256 rows")]
const INDEX: [u8; 256] = {
    let mut index = [0; 256];
    let mut i = 0;
    while i < ROWS.len() {
        index[ROWS[i].opcode.code() as usize] = i as u8 + 1;
        i += 1;
    }
    index
};

/// Returns the row of an operation; `None` if the model does not have it.
#[inline]
pub(crate) fn row(opcode: Opcode) -> Option<&'static Row> {
    let index = INDEX[usize::from(opcode.code())];
    ROWS.get(usize::from(index).wrapping_sub(1))
}
