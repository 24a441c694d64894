//! Descriptors of operations on regions of simulated memory.

use crate::work::Stream;
use telpher_abi::{Descriptor, Flags, Opcode};

/// Where what an operation writes besides its destination begins: far enough behind it, and at the same place in its page.
const BESIDE: u64 = 1 << 36;

/// The least room a delta record may have. Source: SPEC §8.3.8.
const DELTA_ROOM: u32 = 80;

/// The descriptor of an operation; without a record. What has a result of its own size writes the least there is: what compares
/// finds no difference.
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
        Opcode::DifCheck | Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate => {
            Descriptor::dif(op, src, dst, size)
        }
        Opcode::CacheFlush => Descriptor::cache_flush(dst, size),
        _ => Descriptor::memory_move(src, dst, size),
    }
}

/// That of a stream's operation, with the flags it asks for.
pub(super) fn of(stream: &Stream, src: u64, dst: u64, size: u32) -> Descriptor {
    let work = descriptor(stream.op, src, dst, size);
    let mut flags = work.flags();
    flags.set(Flags::CACHE_CONTROL_1, stream.cache_control && writes(stream.op));
    flags.set(Flags::BLOCK_ON_FAULT, stream.block_on_fault && !matches!(stream.op, Opcode::Nop | Opcode::Drain));
    work.with_flags(flags)
}

/// An operation has a destination, which can go to the cache.
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

/// An operation says in its record what came of it, so that a batch's member needs one too.
pub(super) fn needs_record(op: Opcode) -> bool {
    !matches!(op, Opcode::MemoryMove | Opcode::Fill | Opcode::Dualcast | Opcode::CacheFlush | Opcode::Nop)
}
