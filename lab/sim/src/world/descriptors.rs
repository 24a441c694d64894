//! Descriptors of operations on regions of simulated memory.

use crate::places::BufferPlacement;
use crate::workload::Stream;
use telpher_abi::{Descriptor, Flags, Opcode};

/// Offset of a second destination from the first: far behind it, and at the same offset in its page.
const BESIDE: u64 = 1 << 36;

/// The smallest maximum size of a delta record. Source: SPEC §8.3.8.
const DELTA_ROOM: u32 = 80;

/// The descriptor of an operation, without a completion record. Operations with results of variable size write the
/// smallest result: comparisons find no difference.
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
        _ => Descriptor::memory_move(src, dst, size),
    }
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
    )
}

/// True if the operation returns its result in its record, so a batch member needs a record, too.
pub(super) fn needs_record(op: Opcode) -> bool {
    !matches!(op, Opcode::MemoryMove | Opcode::Fill | Opcode::Dualcast | Opcode::CacheFlush | Opcode::Nop)
}
