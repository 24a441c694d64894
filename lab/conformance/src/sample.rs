//! A legal sample descriptor of each operation, small and always successful, from which the cases are derived.

use crate::arena::{Arena, place};
use crate::oracle;
use crate::subject::{HANDLE, WINDOW};
use crate::table::{OpRow, flag};
use telpher_abi::{Descriptor, Opcode, WindowFlags};

/// Bytes of the plain samples.
pub(crate) const SIZE: u32 = 64;
/// The first record of a case.
pub(crate) const RECORD: u64 = place::RECORDS;
/// The record of a Batch around a sample.
pub(crate) const BATCH_RECORD: u64 = place::RECORDS + 0x40;
/// Input that is bytes 0, 1, 2, …, 255, 0, … over 64 KiB.
pub(crate) const COUNT: u64 = place::INPUT;
/// A second copy of it.
pub(crate) const COUNT2: u64 = place::INPUT + 0x1_0000;
/// Eight protected blocks of 512 bytes: data as in [`COUNT`], application tag 0, reference tags from 0.
pub(crate) const DIF: u64 = place::INPUT + 0x2_0000;
/// 64 KiB of 0xa5.
pub(crate) const SAME: u64 = place::INPUT + 0x3_0000;
/// 1 MiB of pseudorandom bytes.
pub(crate) const NOISE: u64 = place::INPUT + 0x10_0000;
/// A delta record with one entry: offset 0, eight bytes of 0x77.
pub(crate) const DELTA: u64 = place::AUX;
/// A seed of zero.
pub(crate) const SEED: u64 = place::AUX + 0x1000;
/// A scatter-gather list of the 32-bit indexes 1 and 0.
pub(crate) const LIST: u64 = place::AUX + 0x2_0000;
/// A scatter-gather list of 31 offsets, 400 bytes apart.
pub(crate) const OFFSETS: u64 = place::AUX + 0x2_0100;
/// The readback target.
pub(crate) const READBACK: u64 = place::AUX + 0x2000;
/// The output of Create Delta.
pub(crate) const DELTA_OUT: u64 = place::AUX + 0x4_0000;
/// Two no-operations without records.
pub(crate) const NOPS: u64 = place::LISTS;
/// The list of a Batch around a sample.
pub(crate) const SURROUND: u64 = place::LISTS + 0x1000;

/// Writes the inputs of the samples.
pub(crate) fn lay_out(arena: &Arena) {
    let count: Vec<u8> = (0..0x1_0000u32).map(|i| (i & 0xff) as u8).collect();
    arena.write(arena.at(COUNT), &count);
    arena.write(arena.at(COUNT2), &count);
    let block: Vec<u8> = count[..512].to_vec();
    for k in 0..8u32 {
        let at = arena.at(DIF) + 520 * u64::from(k);
        arena.write(at, &block);
        // Guard of 512 counting bytes: SPEC App. B.
        arena.write(at + 512, &[0x4f, 0x10, 0, 0]);
        arena.write(at + 516, &k.to_be_bytes());
    }
    arena.set(arena.at(SAME), 0x1_0000, 0xa5);
    arena.write(arena.at(NOISE), &oracle::noise(0x5eed, 0x10_0000));
    arena.write(arena.at(DELTA), &[0, 0, 0x77, 0x77, 0x77, 0x77, 0x77, 0x77, 0x77, 0x77]);
    arena.write(arena.at(SEED), &[0; 8]);
    arena.write(arena.at(LIST), &[1, 0, 0, 0, 0, 0, 0, 0]);
    for entry in 0..31 {
        arena.write(arena.at(OFFSETS) + 8 * entry, &(400 * entry).to_le_bytes());
    }
    arena.write_list(arena.at(NOPS), &[Descriptor::nop(); 2]);
}

/// The legal descriptor of an operation, its record at [`RECORD`].
pub(crate) fn of(row: &OpRow, arena: &Arena) -> Descriptor {
    let at = |offset| arena.at(offset);
    let (src, dst) = (at(COUNT), at(place::OUT1));
    let d = match row.code {
        0x00 => Descriptor::nop(),
        0x01 => Descriptor::batch(at(NOPS), 2),
        0x02 => Descriptor::drain(),
        0x03 => Descriptor::memory_move(src, dst, SIZE),
        0x04 => Descriptor::fill(0x0807_0605_0403_0201, dst, SIZE),
        0x05 => Descriptor::compare(src, at(COUNT2), SIZE),
        0x06 => Descriptor::compare_pattern(at(SAME), 0xa5a5_a5a5_a5a5_a5a5, SIZE),
        // All three outcomes satisfy Check Result.
        0x07 => Descriptor::create_delta(src, at(COUNT2), SIZE, at(DELTA_OUT), 80).with_expected_result_mask(7),
        0x08 => Descriptor::apply_delta(at(DELTA), 10, dst, SIZE),
        0x09 => Descriptor::dualcast(src, dst, at(place::OUT2), SIZE),
        0x10 => Descriptor::crc_generation(src, SIZE, 0),
        0x11 => Descriptor::copy_crc(src, dst, SIZE, 0),
        0x12 => Descriptor::dif(Opcode::DifCheck, at(DIF), 0, 520),
        0x13 => Descriptor::dif(Opcode::DifInsert, src, dst, 512),
        0x14 => Descriptor::dif(Opcode::DifStrip, at(DIF), dst, 520),
        0x15 => Descriptor::dif(Opcode::DifUpdate, at(DIF), dst, 520),
        0x0a => Descriptor::translation_fetch(src, SIZE),
        0x17 => Descriptor::dif(Opcode::DixGenerate, src, dst, 512),
        0x18 => types(Descriptor::new(Opcode::TypeConversion), 1, 2).with_src(src).with_dst(dst).with_size(SIZE / 2),
        0x19 | 0x1a => {
            let d = types(Descriptor::new(Opcode::from_code(row.code)), 2, 2).with_compute_type_code(5);
            let d = d.with_src(src).with_dst(at(COUNT2)).with_size(SIZE / 4).with_reduce_dst(dst);
            if row.code == 0x1a { d.with_reduce_dst2(at(place::OUT2)) } else { d }
        }
        0x1b => {
            let d = types(Descriptor::new(Opcode::GatherReduce), 2, 2).with_compute_type_code(4).with_src(at(LIST));
            list(d.with_dst(dst).with_size(SIZE / 4), src)
        }
        0x1c => list(transfer(0x1c), src).with_src(at(LIST)).with_dst(dst),
        0x1d => list(transfer(0x1d), dst).with_src(src).with_dst(at(LIST)),
        0x1e => list(transfer(0x1e), dst).with_src(0x0807_0605_0403_0201).with_dst(at(LIST)),
        0x20 => Descriptor::cache_flush(dst, SIZE),
        // The values that bring-up wrote.
        0x21 => Descriptor::update_window(WINDOW, 0, 0, WindowFlags::READ | WindowFlags::WRITE),
        0x23 => Descriptor::inter_domain_copy(src, None, dst, Some(WINDOW), SIZE),
        0x24 => Descriptor::inter_domain_fill(0x0807_0605_0403_0201, dst, WINDOW, SIZE),
        0x25 => Descriptor::inter_domain_compare(src, Some(WINDOW), at(COUNT2), None, SIZE),
        0x26 => Descriptor::inter_domain_compare_pattern(at(SAME), WINDOW, 0xa5a5_a5a5_a5a5_a5a5, SIZE),
        other => unreachable!("no sample of opcode {other:#x}"),
    };
    d.with_record(at(RECORD))
}

/// The descriptor with these flags; fields that the flags make valid are filled, and fields that they reserve are
/// cleared.
pub(crate) fn with_flags(row: &OpRow, d: &Descriptor, flags: u32, arena: &Arena) -> Descriptor {
    let mut d = d.with_flags(telpher_abi::Flags::from_bits_retain(flags));
    d = d.with_completion_address(if flags & flag::CRAV == 0 { 0 } else { arena.at(RECORD) });
    d = d.with_interrupt_handle(if flags & flag::RCI == 0 { 0 } else { HANDLE });
    match row.code {
        0x02 => {
            let target = |bit| if flags & bit == 0 { 0 } else { arena.at(READBACK) };
            d.with_src(target(flag::OP0)).with_dst(target(flag::OP1))
        }
        0x0a => d.with_region_stride(if flags & flag::OP0 == 0 { 0 } else { 4096 }),
        0x19 | 0x1a => {
            let (selector, handle) = if flags & flag::OP0 == 0 { (0, 0) } else { (1, WINDOW) };
            d.with_id_selector(selector).with_handle_1(handle)
        }
        0x18 | 0x1c..=0x1e | 0x23..=0x26 => {
            let handle = |bit| if flags & bit == 0 { 0 } else { WINDOW };
            d.with_handle_1(handle(flag::OP0)).with_handle_2(handle(flag::OP1))
        }
        0x10 | 0x11 if flags & flag::OP0 != 0 => d.with_crc64_seed(0).with_crc_seed_address(arena.at(SEED)),
        _ => d,
    }
}

/// Adds data types.
fn types(d: Descriptor, input: u8, output: u8) -> Descriptor {
    d.with_input_type_code(input).with_output_type_code(output)
}

/// Adds the list of two entries at [`LIST`]: 32-bit indexes 1 and 0.
fn list(d: Descriptor, base: u64) -> Descriptor {
    d.with_sgl_size(2).with_sgl_format_code(2).with_sgl_base(base)
}

/// A gather or scatter of two buffers of 32-bit integers.
fn transfer(code: u8) -> Descriptor {
    types(Descriptor::new(Opcode::from_code(code)), 2, 0).with_size(SIZE).with_element_count(SIZE / 8)
}

/// Replaces bytes of a descriptor.
pub(crate) fn with_byte(d: &Descriptor, index: u8, value: u8) -> Descriptor {
    let mut bytes = d.to_bytes();
    bytes[usize::from(index)] = value;
    Descriptor::from_bytes(&bytes)
}
