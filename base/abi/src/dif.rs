//! Data integrity fields: block sizes and the three flag bytes. Source: SPEC §8.3.17 and Appendix B.

/// Bytes of one integrity tuple: guard u16, application tag u16, reference tag u32, all big-endian.
/// Source: SPEC App. B.
pub const DIF_TUPLE_BYTES: u32 = 8;

/// Size of the data part of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum DifBlock {
    /// 512 bytes (code 0).
    B512,
    /// 520 bytes (code 1).
    B520,
    /// 4096 bytes (code 2).
    B4096,
    /// 4104 bytes (code 3).
    B4104,
}

impl DifBlock {
    /// All block sizes, by code.
    pub const ALL: [DifBlock; 4] = [DifBlock::B512, DifBlock::B520, DifBlock::B4096, DifBlock::B4104];

    /// Decodes bits 1:0 of the DIF flags; higher bits are ignored.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code & 3 {
            0 => DifBlock::B512,
            1 => DifBlock::B520,
            2 => DifBlock::B4096,
            _ => DifBlock::B4104,
        }
    }

    /// Returns bits 1:0 of the DIF flags.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the data bytes, without the tuple.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            DifBlock::B512 => 512,
            DifBlock::B520 => 520,
            DifBlock::B4096 => 4096,
            DifBlock::B4104 => 4104,
        }
    }
}

bitflags::bitflags! {
    /// DIF flags, descriptor byte 42, without the block size in bits 1:0.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct DifFlags: u8 {
        /// Start the guard CRC from 0xffff instead of 0.
        const INVERT_CRC_SEED = 1 << 2;
        /// Invert the guard CRC at the end.
        const INVERT_CRC_RESULT = 1 << 3;
        const _ = 0xff;
    }

    /// Source DIF flags, descriptor byte 40 (Check, Strip, Update).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct SourceDifFlags: u8 {
        /// Report an all-F tuple as an error (only with `ALL_F_DETECT`).
        const ALL_F_ERROR = 1 << 0;
        /// Skip a block whose tuple is all ones.
        const ALL_F_DETECT = 1 << 1;
        /// Skip a block whose application tag is 0xffff.
        const APP_F_DETECT = 1 << 2;
        /// Skip a block whose application and reference tags are all ones.
        const APP_REF_F_DETECT = 1 << 3;
        /// The application tag increments per block (0: fixed).
        const APP_TAG_INCREMENTS = 1 << 4;
        /// Do not check the guard.
        const NO_GUARD_CHECK = 1 << 5;
        /// Do not check the reference tag.
        const NO_REF_TAG_CHECK = 1 << 6;
        /// The reference tag is fixed (0: it increments). Note the opposite polarity of the application tag's bit.
        const REF_TAG_FIXED = 1 << 7;
    }

    /// Destination DIF flags, descriptor byte 41 (Insert, Update).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct DestDifFlags: u8 {
        /// Update: pass the source's application tag through. Ignored by Insert.
        const APP_TAG_PASS = 1 << 3;
        /// The application tag increments per block (0: fixed).
        const APP_TAG_INCREMENTS = 1 << 4;
        /// Update: pass the source's guard through. Ignored by Insert.
        const GUARD_PASS = 1 << 5;
        /// Update: pass the source's reference tag through. Ignored by Insert.
        const REF_TAG_PASS = 1 << 6;
        /// The reference tag is fixed (0: it increments).
        const REF_TAG_FIXED = 1 << 7;
        const _ = 0xff;
    }
}
