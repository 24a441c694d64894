//! Descriptors of operations on regions of simulated memory.

use crate::places::BufferPlacement;
use crate::workload::Stream;
use telpher_abi::{ComputeType, DataType, Descriptor, Flags, Opcode, SglFormat};

/// Offset of a second destination from the first: far behind it, and at the same offset in its page.
const BESIDE: u64 = 1 << 36;

/// The smallest maximum size of a delta record. Source: SPEC §8.3.8.
const DELTA_ROOM: u32 = 80;

/// The address space of all threads. Source: chosen; any.
pub(super) const PASID: u32 = 1;

/// The handle of the window through which inter-domain operations reach the memory of another process.
pub(super) const WINDOW: u16 = 0;

/// Bytes of a block of a list, unless the whole transfer has fewer.
const BLOCK: u32 = 1024;

/// True if the operation reaches the memory of another process.
pub(super) fn is_inter_domain(op: Opcode) -> bool {
    use Opcode as Op;
    matches!(op, Op::InterDomainCopy | Op::InterDomainFill | Op::InterDomainCompare | Op::InterDomainComparePattern)
}

/// The descriptor of an operation, without a completion record. Operations with results of variable size write the
/// smallest result: comparisons find no difference. Numbers have 8 bits, so that an operation has as many elements as
/// bytes; conversions make 16 bits of them. The second source of a reduction is beside the first, and so is a list.
pub(super) fn descriptor(op: Opcode, src: u64, dst: u64, size: u32) -> Descriptor {
    match op {
        Opcode::Nop => Descriptor::nop(),
        Opcode::Drain => Descriptor::drain(),
        Opcode::Fill => Descriptor::fill(0, dst, size),
        Opcode::Compare => Descriptor::compare(src, dst, size),
        Opcode::ComparePattern => Descriptor::compare_pattern(src, 0, size),
        Opcode::CreateDelta => Descriptor::create_delta(src, dst, size, dst + BESIDE, DELTA_ROOM),
        Opcode::ApplyDelta => Descriptor::apply_delta(src, DELTA_ROOM, dst, size),
        Opcode::Dualcast => Descriptor::dualcast(src, dst, dst + BESIDE, size),
        Opcode::CrcGeneration => Descriptor::crc_generation(src, size, 0),
        Opcode::CopyCrc => Descriptor::copy_crc(src, dst, size, 0),
        // The destination address of a check is reserved.
        Opcode::DifCheck => Descriptor::dif(op, src, 0, size),
        Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate => Descriptor::dif(op, src, dst, size),
        Opcode::CacheFlush => Descriptor::cache_flush(dst, size),
        Opcode::DixGenerate => Descriptor::dif(op, src, dst, size),
        Opcode::InterDomainCopy => Descriptor::inter_domain_copy(src, None, dst, Some(WINDOW), size),
        Opcode::InterDomainFill => Descriptor::inter_domain_fill(0, dst, WINDOW, size),
        Opcode::InterDomainCompare => Descriptor::inter_domain_compare(src, None, dst, Some(WINDOW), size),
        Opcode::InterDomainComparePattern => Descriptor::inter_domain_compare_pattern(src, WINDOW, 0, size),
        Opcode::TypeConversion => typed(Descriptor::type_conversion(src, dst, size), DataType::Fp8E4M3, DataType::Bf16),
        Opcode::Reduce => {
            let work = Descriptor::reduce(ComputeType::Add, src, src + BESIDE, dst, size);
            typed(work, DataType::Int8, DataType::Int8)
        }
        Opcode::ReduceDualcast => {
            let work = Descriptor::reduce_dualcast(ComputeType::Add, src, src + BESIDE, [dst, dst + BESIDE], size);
            typed(work, DataType::Int8, DataType::Int8)
        }
        Opcode::GatherCopy => Descriptor::gather_copy(src + BESIDE, LIST, src, size.min(BLOCK), dst, size),
        Opcode::ScatterCopy => Descriptor::scatter_copy(src, src + BESIDE, LIST, dst, size.min(BLOCK), size),
        Opcode::ScatterFill => Descriptor::scatter_fill(0, src + BESIDE, LIST, dst, size.min(BLOCK), size),
        _ => Descriptor::memory_move(src, dst, size),
    }
}

/// Adds the types of elements.
fn typed(work: Descriptor, input: DataType, output: DataType) -> Descriptor {
    work.with_input_type_code(input.code()).with_output_type_code(output.code())
}

/// The format of lists.
const LIST: SglFormat = SglFormat::Index32;

/// True if [`descriptor`] makes the operation, and not a move in its place.
pub(crate) fn is_simulated(op: Opcode) -> bool {
    use Opcode as Op;
    !matches!(op, Op::Unknown(_) | Op::TranslationFetch | Op::UpdateWindow | Op::GatherReduce)
}

/// The descriptor of a stream's operation, with the flags that the stream requests.
pub(super) fn of(stream: &Stream, src: u64, dst: u64, size: u32) -> Descriptor {
    let work = descriptor(stream.op, src, dst, size);
    let mut flags = work.flags();
    flags.set(Flags::CACHE_CONTROL_1, stream.cache_control && writes(stream.op));
    flags.set(Flags::DESTINATION_READBACK, stream.readback && writes(stream.op));
    flags.set(Flags::BLOCK_ON_FAULT, stream.block_on_fault && !matches!(stream.op, Opcode::Nop | Opcode::Drain));
    work.with_flags(flags)
}

/// The same operation as the `number`-th of a stream whose buffers advance through untouched pages.
pub(super) fn moved(work: &Descriptor, stream: &Stream, [src, dst]: [u64; 2], number: u64) -> Descriptor {
    let step = |place: &BufferPlacement| {
        let page = place.page.max(4096);
        if place.present { 0 } else { u64::from(work.size()).next_multiple_of(page) * number % BESIDE }
    };
    let moved = of(stream, src + step(&stream.src), dst + step(&stream.dst), work.size());
    if work.completion_address() == 0 { moved } else { moved.with_record(work.completion_address()) }
}

/// The rest of an operation of which `done` bytes are done; the whole operation if it cannot be continued.
pub(super) fn rest_of(work: &Descriptor, done: u64) -> Descriptor {
    let (done, left) = match u32::try_from(done) {
        Ok(short) if short < work.size() => (done, work.size() - short),
        _ => (0, work.size()),
    };
    let (flags, record) = (work.flags(), work.completion_address());
    let rest = match work.opcode() {
        Opcode::MemoryMove => Descriptor::memory_move(work.src() + done, work.dst() + done, left),
        Opcode::Fill => Descriptor::fill(work.src(), work.dst() + done, left),
        Opcode::Compare => Descriptor::compare(work.src() + done, work.dst() + done, left),
        Opcode::ComparePattern => Descriptor::compare_pattern(work.src() + done, work.dst(), left),
        Opcode::Dualcast => Descriptor::dualcast(work.src() + done, work.dst() + done, work.dst2() + done, left),
        _ => *work,
    };
    if record == 0 { rest.with_flags(flags) } else { rest.with_record(record).with_flags(flags) }
}

/// True if the operation has a destination that can go to the cache.
fn writes(op: Opcode) -> bool {
    use Opcode as Op;
    matches!(
        op,
        Op::MemoryMove
            | Op::Fill
            | Op::Dualcast
            | Op::CopyCrc
            | Op::ApplyDelta
            | Op::DifInsert
            | Op::DifStrip
            | Op::DifUpdate
            | Op::DixGenerate
            | Op::TypeConversion
            | Op::Reduce
            | Op::ReduceDualcast
            | Op::GatherCopy
            | Op::ScatterCopy
            | Op::ScatterFill
            | Op::InterDomainCopy
            | Op::InterDomainFill
    )
}

/// True if the operation returns its result in its record, so a batch member needs a record, too.
pub(super) fn needs_record(op: Opcode) -> bool {
    !matches!(op, Opcode::MemoryMove | Opcode::Fill | Opcode::Dualcast | Opcode::CacheFlush | Opcode::Nop)
}
