//! The operation of a legal descriptor, typed: later code sees no flag bits. Source: SPEC §8.3.

use telpher_abi::{
    DIF_TUPLE_BYTES, Descriptor, DestDifFlags, DifBlock, DifFlags, Flags, OpFlags, Opcode, OperandId, SourceDifFlags,
};
use telpher_mem::WriteHint;
use telpher_ops::delta::OffsetOrder;
use telpher_ops::dif::{DifConfig, Tags};

/// One operation on memory, ready to be executed (or, in simulated time, only accounted for).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Nothing to do.
    Nop,
    /// Copy; `backward` if the destination begins inside the source.
    Move {
        /// Source.
        src: u64,
        /// Destination.
        dst: u64,
        /// Bytes.
        len: u64,
        /// Copies from the end, so that an overlapping source is read before it is overwritten.
        backward: bool,
        /// Where results are stored.
        hint: WriteHint,
    },
    /// Fill a range with 16 repeated bytes.
    Fill {
        /// Destination.
        dst: u64,
        /// Pattern; an 8-byte pattern twice.
        pattern: [u64; 2],
        /// Bytes.
        len: u64,
        /// Where results are stored.
        hint: WriteHint,
    },
    /// Compare two ranges.
    Compare {
        /// First range.
        src1: u64,
        /// Second range.
        src2: u64,
        /// Bytes.
        len: u64,
        /// The expected result, if it is checked.
        expected: Option<u8>,
    },
    /// Compare a range with a repeated pattern.
    ComparePattern {
        /// Range.
        src: u64,
        /// Pattern.
        pattern: u64,
        /// Bytes.
        len: u64,
        /// The expected result, if it is checked.
        expected: Option<u8>,
    },
    /// Record the differences of two ranges.
    CreateDelta {
        /// Original.
        src1: u64,
        /// Modified.
        src2: u64,
        /// Bytes.
        len: u64,
        /// Address of the record.
        record: u64,
        /// Space for the record, in bytes.
        room: u64,
        /// Mask of accepted results, if they are checked.
        expected_mask: Option<u8>,
    },
    /// Apply a delta record.
    ApplyDelta {
        /// The record.
        record: u64,
        /// Bytes of the record.
        record_len: u64,
        /// The range it is applied to.
        dst: u64,
        /// Bytes of that range.
        len: u64,
        /// The order of offsets that the device accepts.
        order: OffsetOrder,
    },
    /// Copy to two destinations.
    Dualcast {
        /// Source.
        src: u64,
        /// First destination.
        dst1: u64,
        /// Second destination.
        dst2: u64,
        /// Bytes.
        len: u64,
        /// Where results are stored.
        hint: WriteHint,
    },
    /// CRC32C; also copies if there is a destination.
    Crc {
        /// Source.
        src: u64,
        /// Destination, if it also copies.
        dst: Option<u64>,
        /// Bytes.
        len: u64,
        /// Seed.
        seed: Seed,
        /// Neither invert nor reflect seed and result.
        bypass_invert_reflect: bool,
        /// Do not reflect data bytes.
        bypass_data_reflect: bool,
        /// Where results are stored.
        hint: WriteHint,
    },
    /// One of the integrity field operations.
    Dif(Dif),
    /// Flush cache lines.
    Flush {
        /// First byte.
        address: u64,
        /// Bytes.
        len: u64,
    },
    /// Wait for all earlier descriptors, then read back the given addresses.
    Drain {
        /// Readback addresses.
        readback: [Option<u64>; 2],
    },
}

/// The start value of a CRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seed {
    /// This value.
    Value(u32),
    /// The four bytes at this address.
    At(u64),
}

/// The kind of integrity field operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum DifKind {
    /// Check only.
    Check,
    /// Copy and insert.
    Insert,
    /// Check, copy and remove.
    Strip,
    /// Check, copy and replace.
    Update,
}

/// An integrity field operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dif {
    /// The kind.
    pub kind: DifKind,
    /// Source.
    pub src: u64,
    /// Destination; unused by Check.
    pub dst: u64,
    /// Source bytes, whole blocks.
    pub len: u64,
    /// Block size, and the options for checking and making tuples.
    pub config: DifConfig,
    /// Source tags.
    pub source: Tags,
    /// Destination tags.
    pub dest: Tags,
    /// Where results are stored.
    pub hint: WriteHint,
}

impl Dif {
    /// Returns the bytes of a block in the source.
    #[must_use]
    pub fn source_block(&self) -> u64 {
        let tuple = if self.kind == DifKind::Insert { 0 } else { DIF_TUPLE_BYTES };
        u64::from(self.config.block.bytes() + tuple)
    }

    /// Returns the bytes of a block in the destination; 0 for Check.
    #[must_use]
    pub fn dest_block(&self) -> u64 {
        match self.kind {
            DifKind::Check => 0,
            DifKind::Strip => self.config.block.bytes().into(),
            DifKind::Insert | DifKind::Update => u64::from(self.config.block.bytes() + DIF_TUPLE_BYTES),
        }
    }
}

/// A memory range that an action accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The operand.
    pub operand: OperandId,
    /// First byte.
    pub address: u64,
    /// Bytes (the maximum if the size of a result depends on the data).
    pub len: u64,
    /// True if written, false if read.
    pub write: bool,
}

/// True if `[a, a + a_len)` and `[b, b + b_len)` share a byte.
#[must_use]
#[inline]
pub fn overlaps(a: u64, a_len: u64, b: u64, b_len: u64) -> bool {
    a_len != 0 && b_len != 0 && if a <= b { b - a < a_len } else { a - b < b_len }
}

impl Action {
    /// Decodes a descriptor that passed every check and is not a Batch. A descriptor that a device would refuse is
    /// decoded from its fields. A Batch or an unknown operation decodes to `Nop`.
    #[must_use]
    #[inline]
    pub fn of(d: &Descriptor) -> Action {
        let flags = d.flags();
        let len = u64::from(d.size());
        let hint = if flags.contains(Flags::CACHE_CONTROL_1) { WriteHint::Cache } else { WriteHint::Memory };
        let expected = flags.contains(Flags::CHECK_RESULT).then_some(d.expected_result() & 1);
        match d.opcode() {
            Opcode::MemoryMove => {
                let (src, dst) = (d.src(), d.dst());
                Action::Move { src, dst, len, backward: dst > src && dst - src < len, hint }
            }
            Opcode::Fill => {
                let upper = if flags.contains(OpFlags::FILL_16) { d.pattern_upper() } else { d.src() };
                Action::Fill { dst: d.dst(), pattern: [d.src(), upper], len, hint }
            }
            Opcode::Compare => Action::Compare { src1: d.src(), src2: d.dst(), len, expected },
            Opcode::ComparePattern => Action::ComparePattern { src: d.src(), pattern: d.dst(), len, expected },
            Opcode::CreateDelta => Action::CreateDelta {
                src1: d.src(),
                src2: d.dst(),
                len,
                record: d.delta_address(),
                room: d.max_delta_size().into(),
                expected_mask: flags.contains(Flags::CHECK_RESULT).then_some(d.expected_result_mask()),
            },
            Opcode::ApplyDelta => Action::ApplyDelta {
                record: d.src(),
                record_len: d.delta_record_size().into(),
                dst: d.dst(),
                len,
                order: OffsetOrder::Ascending,
            },
            Opcode::Dualcast => Action::Dualcast { src: d.src(), dst1: d.dst(), dst2: d.dst2(), len, hint },
            Opcode::CrcGeneration | Opcode::CopyCrc => Action::Crc {
                src: d.src(),
                dst: (d.opcode() == Opcode::CopyCrc).then_some(d.dst()),
                len,
                seed: if flags.contains(OpFlags::READ_SEED) {
                    Seed::At(d.crc_seed_address())
                } else {
                    Seed::Value(d.crc_seed())
                },
                bypass_invert_reflect: flags.contains(OpFlags::BYPASS_INVERT_REFLECT),
                bypass_data_reflect: flags.contains(OpFlags::BYPASS_DATA_REFLECT),
                hint,
            },
            Opcode::DifCheck => Action::Dif(dif(DifKind::Check, d, hint)),
            Opcode::DifInsert => Action::Dif(dif(DifKind::Insert, d, hint)),
            Opcode::DifStrip => Action::Dif(dif(DifKind::Strip, d, hint)),
            Opcode::DifUpdate => Action::Dif(dif(DifKind::Update, d, hint)),
            Opcode::CacheFlush => Action::Flush { address: d.dst(), len },
            Opcode::Drain => Action::Drain {
                readback: [
                    flags.contains(OpFlags::READBACK_1).then_some(d.src()),
                    flags.contains(OpFlags::READBACK_2).then_some(d.dst()),
                ],
            },
            // The legality check has refused every other operation.
            _ => Action::Nop,
        }
    }

    /// Returns the memory ranges that it accesses, at most four.
    pub fn ranges(&self) -> impl Iterator<Item = Range> + use<> {
        use OperandId as Op;
        let read = |operand, address, len| Some(Range { operand, address, len, write: false });
        let write = |operand, address, len| Some(Range { operand, address, len, write: true });
        let ranges = match *self {
            Action::Nop => [None; 4],
            Action::Move { src, dst, len, .. } => {
                [read(Op::Source1, src, len), write(Op::Destination1, dst, len), None, None]
            }
            Action::Fill { dst, len, .. } => [write(Op::Destination1, dst, len), None, None, None],
            Action::Compare { src1, src2, len, .. } => {
                [read(Op::Source1, src1, len), read(Op::Source2, src2, len), None, None]
            }
            Action::ComparePattern { src, len, .. } => [read(Op::Source1, src, len), None, None, None],
            Action::CreateDelta { src1, src2, len, record, room, .. } => [
                read(Op::Source1, src1, len),
                read(Op::Source2, src2, len),
                write(Op::Destination1, record, room),
                None,
            ],
            Action::ApplyDelta { record, record_len, dst, len, .. } => {
                [read(Op::Source1, record, record_len), write(Op::Destination1, dst, len), None, None]
            }
            Action::Dualcast { src, dst1, dst2, len, .. } => [
                read(Op::Source1, src, len),
                write(Op::Destination1, dst1, len),
                write(Op::Destination2, dst2, len),
                None,
            ],
            Action::Crc { src, dst, len, seed, .. } => [
                read(Op::Source1, src, len),
                dst.and_then(|dst| write(Op::Destination1, dst, len)),
                match seed {
                    Seed::At(address) => read(Op::Source2, address, 4),
                    Seed::Value(_) => None,
                },
                None,
            ],
            Action::Dif(dif) => {
                let written = dif.len / dif.source_block() * dif.dest_block();
                let destination = (written > 0).then_some(()).and_then(|()| write(Op::Destination1, dif.dst, written));
                [read(Op::Source1, dif.src, dif.len), destination, None, None]
            }
            Action::Flush { address, len } => [read(Op::Destination1, address, len), None, None, None],
            Action::Drain { readback } => [
                readback[0].and_then(|address| read(Op::Source1, address, 0)),
                readback[1].and_then(|address| read(Op::Source2, address, 0)),
                None,
                None,
            ],
        };
        ranges.into_iter().flatten()
    }
}

fn dif(kind: DifKind, d: &Descriptor, hint: WriteHint) -> Dif {
    Dif {
        kind,
        src: d.src(),
        dst: d.dst(),
        len: d.size().into(),
        config: DifConfig {
            block: DifBlock::from_code(d.dif_flags()),
            // Bits 1:0 are the block size; the other bits outside this mask are reserved and were checked.
            flags: DifFlags::from_bits_truncate(d.dif_flags() & 0b1100),
            source: SourceDifFlags::from_bits_retain(d.source_dif_flags()),
            dest: DestDifFlags::from_bits_retain(d.dest_dif_flags()),
        },
        source: Tags { ref_tag: d.source_ref_tag(), app_mask: d.source_app_tag_mask(), app_tag: d.source_app_tag() },
        dest: Tags { ref_tag: d.dest_ref_tag(), app_mask: d.dest_app_tag_mask(), app_tag: d.dest_app_tag() },
        hint,
    }
}
