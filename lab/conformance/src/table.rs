//! The legality matrix of DSA 1.x to 3.0, typed in from the specification. Source: SPEC Tables 5-3, 5-4, 5-5 and 8-3;
//! where the tables contradict the text (CRC seeds), the text (SPEC §8.3.12) and UAPI take precedence.

use telpher_abi::registers::{DsaCap0, GenCap, IdCap};

/// Flag bits under short names; numbers as in SPEC Table 8-3.
pub(crate) mod flag {
    pub(crate) const FENCE: u32 = 1 << 0;
    pub(crate) const BOF: u32 = 1 << 1;
    pub(crate) const CRAV: u32 = 1 << 2;
    pub(crate) const RCR: u32 = 1 << 3;
    pub(crate) const RCI: u32 = 1 << 4;
    pub(crate) const CC3: u32 = 1 << 5;
    pub(crate) const CC1: u32 = 1 << 8;
    pub(crate) const TC1: u32 = 1 << 9;
    pub(crate) const TC2: u32 = 1 << 10;
    pub(crate) const TC3: u32 = 1 << 11;
    pub(crate) const CR_TC: u32 = 1 << 12;
    pub(crate) const READBACK: u32 = 1 << 14;
    pub(crate) const OP0: u32 = 1 << 16;
    pub(crate) const OP1: u32 = 1 << 17;
    pub(crate) const OP2: u32 = 1 << 18;
    pub(crate) const OP3: u32 = 1 << 19;
}

/// One operation's row.
#[derive(Debug)]
pub struct OpRow {
    /// Opcode.
    pub code: u8,
    /// Its name in the report.
    pub name: &'static str,
    /// Every flag bit that can ever be legal.
    pub mask: u32,
    /// The completion record must be requested.
    pub record_required: bool,
    /// Operation-specific flags that must be set.
    pub required: u32,
    /// Flags of which at least one must be set.
    pub one_of: u32,
    /// Bytes that must be zero, as inclusive ranges.
    pub reserved: &'static [(u8, u8)],
    /// Bits that must be zero in bytes whose other bits are used.
    pub reserved_bits: &'static [(u8, u8)],
    /// Bytes that must be zero depending on a flag: (flag, reserved when it is set, first, last).
    pub reserved_if: &'static [(u32, bool, u8, u8)],
    /// Flag bits with a requirement.
    pub gates: &'static [(u32, Gate)],
}

/// What a flag bit requires besides being in the mask.
#[derive(Clone, Copy, Debug)]
pub enum Gate {
    /// A bit of GENCAP.
    Capability(u32),
    /// A bit of IDCAP.
    IdCapability(u32),
    /// A bit of DSACAP0.
    DsaCapability(u32),
    /// Another flag.
    Flag(u32),
}

use Gate::{Capability, DsaCapability, Flag, IdCapability};
use flag::{CRAV, OP0, OP1, OP2, OP3, RCI, RCR, TC1, TC2, TC3};

const PLAIN: OpRow = OpRow {
    code: 0,
    name: "",
    mask: 0,
    record_required: false,
    required: 0,
    one_of: 0,
    reserved: &[],
    reserved_bits: &[],
    reserved_if: &[],
    gates: &[],
};

/// DIF Flags bits 7:4 (byte 42). Source: SPEC §8.3.17.
const DIF_BITS: &[(u8, u8)] = &[(42, 0xf0)];
/// The same with the destination's flags bits 2:0 (byte 41).
const DIF_DEST_BITS: &[(u8, u8)] = &[(42, 0xf0), (41, 0x07)];
/// Expected Result bits 7:1 (byte 40). Source: SPEC §8.3.6.
const EXPECTED_BITS: &[(u8, u8)] = &[(40, 0xfe)];
const CRC_GATES: &[(u32, Gate)] = &[(OP3, Capability(11)), (TC3, Flag(OP0))];
/// The handle fields of the inter-domain operations.
const HANDLES_IF: &[(u32, bool, u8, u8)] = &[(OP0, false, 60, 61), (OP1, false, 62, 63)];
const CRC_RESERVED_IF: &[(u32, bool, u8, u8)] = &[(OP0, true, 40, 47), (OP3, false, 44, 47), (OP0, false, 48, 55)];

/// Bits 3:0 of the format of a list (byte 59), and bits 7:4 of the types where there is one type (byte 56).
const LIST_BITS: &[(u8, u8)] = &[(56, 0xf0), (59, 0x0f)];
/// ID selector and both handles.
const SELECTOR_IF: &[(u32, bool, u8, u8)] = &[(OP0, false, 59, 63)];

/// The operations of DSA 1.x, 2.x and 3.0.
pub const OPERATIONS: [OpRow; 31] = [
    OpRow { code: 0x00, name: "nop", mask: 0x00_101d, reserved: &[(16, 35), (38, 63)], ..PLAIN },
    OpRow {
        code: 0x01,
        name: "batch",
        mask: 0x01_121c,
        reserved: &[(24, 31), (38, 63)],
        gates: &[(OP0, Capability(15))],
        ..PLAIN
    },
    OpRow {
        code: 0x02,
        name: "drain",
        mask: 0x0f_161c,
        reserved: &[(32, 35), (38, 63)],
        reserved_if: &[(OP0, false, 16, 23), (OP1, false, 24, 31)],
        gates: &[(OP0, Capability(9)), (OP1, Capability(9)), (TC1, Flag(OP0)), (TC2, Flag(OP1))],
        ..PLAIN
    },
    OpRow { code: 0x03, name: "memory move", mask: 0x00_771f, reserved: &[(38, 63)], ..PLAIN },
    OpRow {
        code: 0x04,
        name: "fill",
        mask: 0x04_751f,
        reserved: &[(38, 39), (48, 63)],
        reserved_if: &[(OP2, false, 40, 47)],
        gates: &[(OP2, Capability(10))],
        ..PLAIN
    },
    OpRow {
        code: 0x05,
        name: "compare",
        mask: 0x00_169f,
        record_required: true,
        reserved: &[(38, 39), (41, 63)],
        reserved_bits: EXPECTED_BITS,
        ..PLAIN
    },
    OpRow {
        code: 0x06,
        name: "compare pattern",
        mask: 0x00_129f,
        record_required: true,
        reserved: &[(38, 39), (41, 63)],
        reserved_bits: EXPECTED_BITS,
        ..PLAIN
    },
    OpRow {
        code: 0x07,
        name: "create delta",
        mask: 0x00_7f9f,
        record_required: true,
        reserved: &[(38, 39), (52, 55), (57, 63)],
        ..PLAIN
    },
    OpRow { code: 0x08, name: "apply delta", mask: 0x00_771f, reserved: &[(38, 39), (44, 63)], ..PLAIN },
    OpRow { code: 0x09, name: "dualcast", mask: 0x00_7f1f, reserved: &[(38, 39), (48, 63)], ..PLAIN },
    OpRow {
        code: 0x0a,
        name: "translation fetch",
        mask: 0x01_101f,
        reserved: &[(24, 31), (38, 47), (52, 63)],
        reserved_if: &[(OP0, false, 48, 51)],
        gates: &[(OP0, Capability(7))],
        ..PLAIN
    },
    OpRow {
        code: 0x10,
        name: "crc generation",
        mask: 0x0f_1a1f,
        record_required: true,
        reserved: &[(24, 31), (38, 39), (56, 63)],
        reserved_if: CRC_RESERVED_IF,
        gates: CRC_GATES,
        ..PLAIN
    },
    OpRow {
        code: 0x11,
        name: "copy crc",
        mask: 0x0f_7f1f,
        record_required: true,
        reserved: &[(38, 39), (56, 63)],
        reserved_if: CRC_RESERVED_IF,
        gates: CRC_GATES,
        ..PLAIN
    },
    OpRow {
        code: 0x12,
        name: "dif check",
        mask: 0x00_121f,
        record_required: true,
        reserved: &[(24, 31), (38, 39), (41, 41), (43, 47), (56, 63)],
        reserved_bits: DIF_BITS,
        ..PLAIN
    },
    OpRow {
        code: 0x13,
        name: "dif insert",
        mask: 0x00_771f,
        reserved: &[(38, 40), (43, 55)],
        reserved_bits: DIF_DEST_BITS,
        ..PLAIN
    },
    OpRow {
        code: 0x14,
        name: "dif strip",
        mask: 0x00_771f,
        reserved: &[(38, 39), (41, 41), (43, 47), (56, 63)],
        reserved_bits: DIF_BITS,
        ..PLAIN
    },
    OpRow {
        code: 0x15,
        name: "dif update",
        mask: 0x00_771f,
        reserved: &[(38, 39), (43, 47)],
        reserved_bits: DIF_DEST_BITS,
        ..PLAIN
    },
    OpRow {
        code: 0x17,
        name: "dix generate",
        mask: 0x00_771f,
        record_required: true,
        reserved: &[(38, 40), (43, 55)],
        reserved_bits: DIF_DEST_BITS,
        ..PLAIN
    },
    OpRow {
        code: 0x18,
        name: "type conversion",
        mask: 0x03_779f,
        reserved: &[(38, 55), (59, 59)],
        reserved_bits: &[(57, 0x0f)],
        reserved_if: HANDLES_IF,
        gates: &[(OP0, DsaCapability(8)), (OP1, DsaCapability(8))],
        ..PLAIN
    },
    OpRow {
        code: 0x19,
        name: "reduce",
        mask: 0x01_7f9f,
        reserved: &[(38, 39), (48, 55)],
        reserved_if: SELECTOR_IF,
        gates: &[(OP0, DsaCapability(9))],
        ..PLAIN
    },
    OpRow {
        code: 0x1a,
        name: "reduce with dualcast",
        mask: 0x03_7f9f,
        reserved: &[(38, 39)],
        reserved_if: SELECTOR_IF,
        gates: &[(OP0, DsaCapability(10))],
        ..PLAIN
    },
    OpRow {
        code: 0x1b,
        name: "gather reduce",
        mask: 0x00_7f9f,
        reserved: &[(38, 43), (46, 47), (60, 63)],
        reserved_bits: &[(59, 0x0f)],
        ..PLAIN
    },
    OpRow {
        code: 0x1c,
        name: "gather copy",
        mask: 0x03_7f1f,
        reserved: &[(38, 39), (46, 47), (57, 58)],
        reserved_bits: LIST_BITS,
        reserved_if: HANDLES_IF,
        gates: &[(OP0, DsaCapability(12)), (OP1, DsaCapability(12))],
        ..PLAIN
    },
    OpRow {
        code: 0x1d,
        name: "scatter copy",
        mask: 0x03_7f1f,
        reserved: &[(38, 39), (46, 47), (57, 58)],
        reserved_bits: LIST_BITS,
        reserved_if: HANDLES_IF,
        gates: &[(OP0, DsaCapability(13)), (OP1, DsaCapability(13))],
        ..PLAIN
    },
    OpRow {
        code: 0x1e,
        name: "scatter fill",
        mask: 0x02_7d1f,
        reserved: &[(38, 39), (46, 47), (57, 58), (60, 61)],
        reserved_bits: LIST_BITS,
        reserved_if: &[(OP1, false, 62, 63)],
        gates: &[(OP1, DsaCapability(14))],
        ..PLAIN
    },
    OpRow { code: 0x20, name: "cache flush", mask: 0x00_741f, reserved: &[(16, 23), (38, 63)], ..PLAIN },
    OpRow {
        code: 0x21,
        name: "update window",
        mask: 0x01_101c,
        reserved: &[(32, 35), (38, 60)],
        reserved_bits: &[(61, 0xf0)],
        gates: &[(OP0, IdCapability(25))],
        ..PLAIN
    },
    OpRow {
        code: 0x23,
        name: "inter-domain copy",
        mask: 0x03_771f,
        one_of: OP0 | OP1,
        reserved: &[(38, 59)],
        reserved_if: HANDLES_IF,
        ..PLAIN
    },
    OpRow {
        code: 0x24,
        name: "inter-domain fill",
        mask: 0x06_751f,
        required: OP1,
        reserved: &[(38, 39), (48, 61)],
        reserved_if: &[(OP2, false, 40, 47)],
        gates: &[(OP2, Capability(10))],
        ..PLAIN
    },
    OpRow {
        code: 0x25,
        name: "inter-domain compare",
        mask: 0x03_169f,
        record_required: true,
        one_of: OP0 | OP1,
        reserved: &[(38, 39), (41, 59)],
        reserved_bits: EXPECTED_BITS,
        reserved_if: HANDLES_IF,
        ..PLAIN
    },
    OpRow {
        code: 0x26,
        name: "inter-domain compare pattern",
        mask: 0x01_129f,
        record_required: true,
        required: OP0,
        reserved: &[(38, 39), (41, 59), (62, 63)],
        reserved_bits: EXPECTED_BITS,
        ..PLAIN
    },
];

/// The conditions that determine which flags of a descriptor are legal.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// The device's general capabilities.
    pub gen_cap: GenCap,
    /// The device's inter-domain capabilities.
    pub id_cap: IdCap,
    /// VERSION.
    pub version: u32,
    /// The device's capabilities of lists and of alternate address spaces of 3.0.
    pub dsa_cap_0: DsaCap0,
    /// True in a batch.
    pub member: bool,
    /// True if the queue allows Block On Fault.
    pub block_on_fault: bool,
    /// True if completion interrupts are allowed: by GENCFG, or because the descriptor is privileged or has no PASID.
    pub interrupts: bool,
}

/// The illegal bits of a set of flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Bits that must not be set: the Invalid Flags mask.
    pub offending: u32,
    /// Bits of the mask that the specification does not settle (missing required flags, conditions on a flag that is
    /// illegal itself).
    pub unsettled: u32,
}

impl OpRow {
    /// The illegal bits of `flags`; `None` if they are legal.
    #[must_use]
    pub fn judge(&self, context: &Context, flags: u32) -> Option<Fault> {
        let legal = self.legal(context, flags);
        let offending = flags & !legal;
        let mut missing = 0;
        if self.record_required {
            missing |= (CRAV | RCR) & !flags;
        }
        missing |= self.required & !flags;
        if self.one_of != 0 && flags & self.one_of == 0 {
            missing |= self.one_of;
        }
        // The completion of a Drain must be reported in some way.
        if self.code == 0x02 && flags & (RCR | RCI) == 0 {
            missing |= RCR | RCI;
        }
        let unsettled = self.gates.iter().fold(missing, |all, (bit, gate)| match gate {
            Flag(condition) if flags & condition != 0 && legal & condition == 0 => all | bit,
            _ => all,
        });
        (offending | missing != 0).then_some(Fault { offending, unsettled })
    }

    /// The operation's own flags without which it is refused; of several alternatives one.
    #[must_use]
    pub fn own_flags(&self) -> u32 {
        self.required | self.one_of & self.one_of.wrapping_neg()
    }

    fn legal(&self, context: &Context, flags: u32) -> u32 {
        let has = |bit: u32| context.gen_cap.0[0] >> bit & 1 == 1;
        let mut legal = self.mask;
        let mut forbid = |bits: u32, unless: bool| {
            if !unless {
                legal &= !bits;
            }
        };
        forbid(flag::FENCE, context.member);
        forbid(flag::BOF, context.block_on_fault);
        forbid(RCR | flag::CR_TC, flags & CRAV != 0);
        forbid(RCI, context.interrupts);
        forbid(flag::CC1, has(2));
        forbid(flag::READBACK, has(8));
        for (bit, gate) in self.gates {
            forbid(
                *bit,
                match gate {
                    Capability(cap) => has(*cap),
                    IdCapability(cap) => context.id_cap.0[0] >> cap & 1 == 1,
                    DsaCapability(cap) => context.dsa_cap_0.0[0] >> cap & 1 == 1,
                    Flag(condition) => flags & condition != 0,
                },
            );
        }
        // 3.0: Cache Control 3, wherever results can be placed. Of its combinations with 2 and 1, 100 needs GENCAP[5],
        // and 101 and 111 do not exist.
        let exists = flags & flag::CC1 == 0 && (flags & flag::READBACK != 0 || has(5));
        if context.version >= 0x300 && self.mask & flag::CC1 != 0 && exists {
            legal |= flag::CC3;
        }
        // 1.x: GENCAP[3] allows Cache Flush to write back without invalidating.
        if self.code == 0x20 && has(3) {
            legal |= flag::CC1;
        }
        legal
    }

    /// Bytes that must be zero with these flags.
    pub fn reserved_bytes(&self, flags: u32) -> impl Iterator<Item = u8> {
        let everywhere = [(CRAV, false, 8, 15), (RCI, false, 36, 37)];
        self.reserved
            .iter()
            .copied()
            .chain(
                self.reserved_if
                    .iter()
                    .copied()
                    .chain(everywhere)
                    .filter(move |(flag, set, ..)| (flags & flag != 0) == *set)
                    .map(|(.., first, last)| (first, last)),
            )
            .flat_map(|(first, last)| first..=last)
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
    }
}

/// The row of an opcode.
#[must_use]
pub fn row(code: u8) -> &'static OpRow {
    OPERATIONS.iter().find(|row| row.code == code).expect("an operation of the table")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_operation_ever_allows_the_reserved_flags() {
        for row in &OPERATIONS {
            assert_eq!(row.mask & 0x8060, 0, "{}: bits 5, 6 and 15", row.name);
            assert_eq!(row.mask >> 20, 0, "{}: no operation uses bits 23 to 20", row.name);
        }
    }

    #[test]
    fn operations_that_write_no_data_take_no_write_hints() {
        for code in [0x00, 0x01, 0x02, 0x05, 0x06, 0x0a, 0x10, 0x12, 0x21, 0x25, 0x26] {
            assert_eq!(row(code).mask & 0x6100, 0, "{}", row(code).name);
        }
    }

    #[test]
    fn operations_with_a_result_require_the_record() {
        let required: Vec<u8> = OPERATIONS.iter().filter(|r| r.record_required).map(|r| r.code).collect();
        assert_eq!(required, [0x05, 0x06, 0x07, 0x10, 0x11, 0x12, 0x17, 0x25, 0x26]);
    }

    #[test]
    fn block_on_fault_and_fence_are_refused_without_data() {
        for code in [0x00, 0x01, 0x02, 0x21] {
            assert_eq!(row(code).mask & flag::BOF, 0);
        }
        for code in [0x01, 0x02, 0x21] {
            assert_eq!(row(code).mask & flag::FENCE, 0);
        }
    }

    #[test]
    fn a_plain_fill_reserves_its_upper_pattern_and_a_long_one_does_not() {
        let count = |flags| row(0x04).reserved_bytes(flags | CRAV | RCI).count();
        assert_eq!(count(0), 2 + 16 + 8);
        assert_eq!(count(OP2), 2 + 16);
    }

    #[test]
    fn record_flags_without_an_address_are_offending() {
        let context = Context {
            gen_cap: GenCap([0x40_915f_0107]),
            id_cap: IdCap::default(),
            version: 0x100,
            dsa_cap_0: DsaCap0::default(),
            member: false,
            block_on_fault: true,
            interrupts: true,
        };
        let judge = |code, flags| row(code).judge(&context, flags);
        assert_eq!(judge(0x03, RCR), Some(Fault { offending: RCR, unsettled: 0 }));
        assert_eq!(judge(0x03, CRAV | RCR), None);
        assert_eq!(judge(0x03, CRAV | RCR | flag::FENCE), Some(Fault { offending: 1, unsettled: 0 }));
        assert_eq!(judge(0x05, CRAV), Some(Fault { offending: 0, unsettled: RCR }));
        assert_eq!(judge(0x02, CRAV), Some(Fault { offending: 0, unsettled: RCR | RCI }));
        assert_eq!(judge(0x10, CRAV | RCR | TC3), Some(Fault { offending: TC3, unsettled: 0 }));
        assert_eq!(judge(0x10, CRAV | RCR | TC3 | OP0), None);
    }
}
