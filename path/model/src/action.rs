//! The operation of a legal descriptor, typed: later code sees no flag bits. Source: SPEC §8.3.

use crate::arrays::{self, Arrays, GatherReduce, ListTransfer, Transfer};
use crate::operand::{Domain, Operand};
use crate::windows::Window;
use telpher_abi::{
    DIF_TUPLE_BYTES, Descriptor, DestDifFlags, DifBlock, DifFlags, Flags, OpFlags, Opcode, OperandId, SourceDifFlags,
    Status,
};
use telpher_mem::{PAGE_BYTES, WriteHint};
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
    /// CRC32C or CRC64; also copies if there is a destination.
    Crc {
        /// Source.
        src: u64,
        /// Destination, if it also copies.
        dst: Option<u64>,
        /// Bytes.
        len: u64,
        /// Seed.
        seed: Seed,
        /// A CRC of 64 bits instead of 32.
        wide: bool,
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
    /// Ask for translations.
    TranslationFetch {
        /// First address.
        address: u64,
        /// Bytes of the region.
        len: u64,
        /// Distance of two requests in bytes.
        stride: u64,
    },
    /// Copy between address spaces.
    InterDomainCopy {
        /// Source.
        src: Operand,
        /// Destination.
        dst: Operand,
        /// Bytes.
        len: u64,
        /// Where results are stored.
        hint: WriteHint,
    },
    /// Fill a range of another address space with 16 repeated bytes.
    InterDomainFill {
        /// Destination.
        dst: Operand,
        /// Pattern; an 8-byte pattern twice.
        pattern: [u64; 2],
        /// Bytes.
        len: u64,
        /// Where results are stored.
        hint: WriteHint,
    },
    /// Compare ranges of two address spaces.
    InterDomainCompare {
        /// First range.
        src1: Operand,
        /// Second range.
        src2: Operand,
        /// Bytes.
        len: u64,
        /// The expected result, if it is checked.
        expected: Option<u8>,
    },
    /// Compare a range of another address space with a repeated pattern.
    InterDomainComparePattern {
        /// Range.
        src: Operand,
        /// Pattern.
        pattern: u64,
        /// Bytes.
        len: u64,
        /// The expected result, if it is checked.
        expected: Option<u8>,
    },
    /// Convert or reduce arrays of numbers.
    Arrays(Arrays),
    /// Reduce the buffers of a scatter-gather list.
    GatherReduce(GatherReduce),
    /// Copy from or to the buffers of a scatter-gather list.
    ListTransfer(ListTransfer),
    /// Wait for all earlier descriptors, then read back the given addresses.
    Drain {
        /// Readback addresses.
        readback: [Option<u64>; 2],
    },
}

/// Returns the handles of the inter-domain permissions table that a descriptor uses: those of bytes 60 and 62.
pub(crate) fn handles(d: &Descriptor) -> [Option<u16>; 2] {
    let flag = |flag: Flags, handle: u16| d.flags().contains(flag).then_some(handle);
    match d.opcode() {
        Opcode::InterDomainCopy
        | Opcode::InterDomainFill
        | Opcode::InterDomainCompare
        | Opcode::InterDomainComparePattern
        | Opcode::TypeConversion
        | Opcode::GatherCopy
        | Opcode::ScatterCopy
        | Opcode::ScatterFill => {
            [flag(OpFlags::ALTERNATE_SOURCE, d.handle_1()), flag(OpFlags::ALTERNATE_DESTINATION, d.handle_2())]
        }
        Opcode::Reduce | Opcode::ReduceDualcast => {
            let domains = arrays::selected_domains(d).unwrap_or([Domain::Own; 4]);
            let named = |domain, handle| domains.contains(&domain).then_some(handle);
            [named(Domain::Handle1, d.handle_1()), named(Domain::Handle2, d.handle_2())]
        }
        _ => [None; 2],
    }
}

/// The start value of a CRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seed {
    /// This value; the upper half of a 32-bit seed is zero.
    Value(u64),
    /// The four or eight bytes at this address.
    At(u64),
}

/// The kind of integrity field operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum DifKind {
    /// Check only.
    Check,
    /// Copy and insert.
    Insert,
    /// Write the fields to a buffer of their own (DIX).
    Generate,
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
    /// Returns the operation of a descriptor.
    #[must_use]
    #[inline]
    pub fn of(kind: DifKind, d: &Descriptor) -> Dif {
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
            source: Tags {
                ref_tag: d.source_ref_tag(),
                app_mask: d.source_app_tag_mask(),
                app_tag: d.source_app_tag(),
            },
            dest: Tags { ref_tag: d.dest_ref_tag(), app_mask: d.dest_app_tag_mask(), app_tag: d.dest_app_tag() },
            hint: write_hint(d),
        }
    }

    /// Returns the bytes of a block in the source.
    #[must_use]
    pub fn source_block(&self) -> u64 {
        let plain = matches!(self.kind, DifKind::Insert | DifKind::Generate);
        let tuple = if plain { 0 } else { DIF_TUPLE_BYTES };
        u64::from(self.config.block.bytes() + tuple)
    }

    /// Returns the bytes of a block in the destination; 0 for Check.
    #[must_use]
    pub fn dest_block(&self) -> u64 {
        match self.kind {
            DifKind::Check => 0,
            DifKind::Strip => self.config.block.bytes().into(),
            DifKind::Generate => DIF_TUPLE_BYTES.into(),
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

impl Action {
    /// Decodes a descriptor that passed every check and is not a Batch. A descriptor that a device would refuse is
    /// decoded from its fields. A Batch or an unknown operation decodes to `Nop`.
    #[must_use]
    #[inline]
    pub fn of(d: &Descriptor) -> Action {
        let flags = d.flags();
        let len = u64::from(d.size());
        let hint = write_hint(d);
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
                    Seed::Value(d.crc64_seed())
                },
                wide: flags.contains(OpFlags::CRC64),
                bypass_invert_reflect: flags.contains(OpFlags::BYPASS_INVERT_REFLECT),
                bypass_data_reflect: flags.contains(OpFlags::BYPASS_DATA_REFLECT),
                hint,
            },
            Opcode::DifCheck => Action::Dif(Dif::of(DifKind::Check, d)),
            Opcode::DifInsert => Action::Dif(Dif::of(DifKind::Insert, d)),
            Opcode::DifStrip => Action::Dif(Dif::of(DifKind::Strip, d)),
            Opcode::DifUpdate => Action::Dif(Dif::of(DifKind::Update, d)),
            Opcode::DixGenerate => Action::Dif(Dif::of(DifKind::Generate, d)),
            Opcode::TranslationFetch => {
                let stride = if flags.contains(OpFlags::FETCH_STRIDE) { d.region_stride().into() } else { PAGE_BYTES };
                Action::TranslationFetch { address: d.src(), len, stride }
            }
            Opcode::InterDomainCopy => {
                Action::InterDomainCopy { src: Operand::first(d), dst: Operand::second(d), len, hint }
            }
            Opcode::InterDomainFill => {
                let upper = if flags.contains(OpFlags::FILL_16) { d.pattern_upper() } else { d.src() };
                Action::InterDomainFill { dst: Operand::second(d), pattern: [d.src(), upper], len, hint }
            }
            Opcode::InterDomainCompare => {
                Action::InterDomainCompare { src1: Operand::first(d), src2: Operand::second(d), len, expected }
            }
            Opcode::InterDomainComparePattern => {
                Action::InterDomainComparePattern { src: Operand::first(d), pattern: d.dst(), len, expected }
            }
            Opcode::TypeConversion | Opcode::Reduce | Opcode::ReduceDualcast => {
                arrays::arrays(d, hint).map_or(Action::Nop, Action::Arrays)
            }
            Opcode::GatherReduce => arrays::gather_reduce(d, hint).map_or(Action::Nop, Action::GatherReduce),
            Opcode::GatherCopy | Opcode::ScatterCopy | Opcode::ScatterFill => {
                arrays::list_transfer(d, hint).map_or(Action::Nop, Action::ListTransfer)
            }
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

    /// Replaces the addresses of operands in other address spaces by those in the memory of their windows.
    ///
    /// # Errors
    /// The first operand that its window does not allow: status and handle. Operands that a scatter-gather list names
    /// are located when the list is read.
    pub fn locate(&mut self, windows: &[Option<Window>; 2]) -> Result<(), (Status, u16)> {
        let operands = match self {
            Action::InterDomainCopy { src, dst, len, .. } => [Some((src, *len, false)), Some((dst, *len, true))],
            Action::InterDomainFill { dst, len, .. } => [Some((dst, *len, true)), None],
            Action::InterDomainCompare { src1, src2, len, .. } => {
                [Some((src1, *len, false)), Some((src2, *len, false))]
            }
            Action::InterDomainComparePattern { src, len, .. } => [Some((src, *len, false)), None],
            Action::Arrays(arrays) => return arrays.locate(windows),
            Action::ListTransfer(transfer) => return transfer.locate(windows),
            _ => [None, None],
        };
        for (operand, len, write) in operands.into_iter().flatten() {
            if let Some(window) = operand.domain.window(windows) {
                operand.address =
                    window.locate(operand.address, len, write).map_err(|status| (status, window.handle))?;
            }
        }
        Ok(())
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
            Action::Crc { src, dst, len, seed, wide, .. } => [
                read(Op::Source1, src, len),
                dst.and_then(|dst| write(Op::Destination1, dst, len)),
                match seed {
                    Seed::At(address) => read(Op::Source2, address, if wide { 8 } else { 4 }),
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
            // Requests translations, and reads nothing.
            Action::TranslationFetch { .. } => [None; 4],
            Action::InterDomainCopy { src, dst, len, .. } => {
                [read(Op::Source1, src.address, len), write(Op::Destination1, dst.address, len), None, None]
            }
            Action::InterDomainFill { dst, len, .. } => [write(Op::Destination1, dst.address, len), None, None, None],
            Action::InterDomainCompare { src1, src2, len, .. } => {
                [read(Op::Source1, src1.address, len), read(Op::Source2, src2.address, len), None, None]
            }
            Action::InterDomainComparePattern { src, len, .. } => {
                [read(Op::Source1, src.address, len), None, None, None]
            }
            Action::Arrays(arrays) => {
                let [src1, src2] = arrays.sources.map(|operand| operand.map(|operand| operand.address));
                let [dst1, dst2] = arrays.destinations.map(|operand| operand.map(|operand| operand.address));
                let (source, result) = (arrays.source_bytes(), arrays.result_bytes());
                [
                    src1.and_then(|address| read(Op::Source1, address, source)),
                    src2.and_then(|address| read(Op::Source2, address, source)),
                    dst1.and_then(|address| write(Op::Destination1, address, result)),
                    dst2.and_then(|address| write(Op::Destination2, address, result)),
                ]
            }
            // The buffers are not known before the list is read; they count as if they were one after the other.
            Action::GatherReduce(gather) => {
                let list = gather.list;
                let result = gather.elements * u64::from(gather.arithmetic.output.bytes());
                [
                    read(Op::ScatterGatherList, list.address, list.bytes()),
                    read(Op::Source1, list.base, list.entries * list.buffer_bytes),
                    write(Op::Destination1, gather.dst, result),
                    None,
                ]
            }
            Action::ListTransfer(transfer) => {
                let (list, len) = (transfer.list, transfer.bytes());
                let (from, to) = match transfer.transfer {
                    Transfer::Gather(dst) => (Some(list.base), dst.address),
                    Transfer::Scatter(src) => (Some(src.address), list.base),
                    Transfer::Fill(_) => (None, list.base),
                };
                [
                    read(Op::ScatterGatherList, list.address, list.bytes()),
                    from.and_then(|address| read(Op::Source1, address, len)),
                    write(Op::Destination1, to, len),
                    None,
                ]
            }
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

/// Where a descriptor stores its results.
#[inline]
fn write_hint(d: &Descriptor) -> WriteHint {
    if d.flags().contains(Flags::CACHE_CONTROL_1) { WriteHint::Cache } else { WriteHint::Memory }
}
