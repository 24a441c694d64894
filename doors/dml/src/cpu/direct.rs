//! Operations on the memory of a descriptor without the steps of a modelled device: what a short operation costs is
//! mostly these. CRC, DIF and copies to two destinations are those of `telpher-ops`.
//!
//! A descriptor that cannot be executed so far as its end is left to the steps, which begin again and find the byte
//! that is not mapped. So an operation is direct only if its sources are not among the bytes that it writes.

use super::success;
use crate::memory::{own_memory, with_ranges};
use telpher_abi::{CompletionRecord, Descriptor, Flags, OpFlags, Opcode};
use telpher_mem::{STREAM_MOVE_BYTES, Space, WriteHint};
use telpher_model::{Action, Dif, compared_record, overlaps};
use telpher_ops::crc::{CrcMode, copy_crc32c, crc32c};
use telpher_ops::{Hint, dualcast};

/// Bytes of a source that are reached before they are used. Source: chosen; what is touched of a part stays in the
/// second-level cache until the operation comes there.
const PART: u64 = 1 << 20;
/// Integrity blocks that are reached before they are used. Source: chosen; 256 KiB of the largest blocks.
const PART_BLOCKS: u64 = 64;

/// Executes a descriptor. Returns `None` if the steps of a device must do that, from its beginning.
#[inline(never)]
pub(super) fn run(d: &Descriptor) -> Option<CompletionRecord> {
    if d.opcode() == Opcode::CrcGeneration {
        return crc(d);
    }
    match Action::of(d) {
        Action::Fill { dst, pattern, len, hint } => {
            own_memory().fill(dst, pattern, len, hint).ok()?;
            Some(success())
        }
        Action::Compare { src1, src2, len, expected } => {
            Some(compared_record(own_memory().compare(src1, src2, len).ok()?, expected))
        }
        Action::ComparePattern { src, pattern, len, expected } => {
            Some(compared_record(own_memory().compare_pattern(src, pattern, len).ok()?, expected))
        }
        Action::Dualcast { src, dst1, dst2, len, hint } => copy_twice(src, [dst1, dst2], len, hint),
        Action::Crc { dst: Some(dst), hint, .. } => copy_crc(d, dst, hint),
        Action::Dif(action) => dif(&action),
        Action::Flush { address, len } => {
            own_memory().flush(address, len).ok()?;
            Some(success())
        }
        _ => None,
    }
}

/// Copies between ranges that do not overlap. Returns false if it did not.
#[inline]
pub(super) fn copied(d: &Descriptor) -> bool {
    let (src, dst, len) = (d.src(), d.dst(), u64::from(d.size()));
    let into_cache = d.flags().contains(Flags::CACHE_CONTROL_1);
    let hint = if into_cache { WriteHint::Cache } else { WriteHint::Memory };
    !overlaps(src, len, dst, len) && own_memory().move_forward(dst, src, len, hint).is_ok()
}

fn mode(d: &Descriptor) -> CrcMode {
    CrcMode {
        bypass_invert_reflect: d.flags().contains(OpFlags::BYPASS_INVERT_REFLECT),
        bypass_data_reflect: d.flags().contains(OpFlags::BYPASS_DATA_REFLECT),
    }
}

fn crc(d: &Descriptor) -> Option<CompletionRecord> {
    let (mode, len) = (mode(d), u64::from(d.size()));
    let (mut value, mut done) = (d.crc_seed(), 0);
    while done < len {
        let part = PART.min(len - done);
        value = with_ranges((d.src().wrapping_add(done), part), [], |src, []| crc32c(value, src, mode))?;
        done += part;
    }
    Some(success().with_crc(value))
}

/// Where a long copy stores its bytes: past the caches from the length on where a plain copy does so.
fn hint(into: WriteHint, len: u64) -> Hint {
    if into == WriteHint::Memory && len >= STREAM_MOVE_BYTES { Hint::Memory } else { Hint::Cache }
}

fn copy_crc(d: &Descriptor, dst: u64, into: WriteHint) -> Option<CompletionRecord> {
    let (mode, src, len) = (mode(d), d.src(), u64::from(d.size()));
    if overlaps(src, len, dst, len) {
        return None;
    }
    let hint = hint(into, len);
    let (mut value, mut done) = (d.crc_seed(), 0);
    while done < len {
        let part = PART.min(len - done);
        let (from, to) = (src.wrapping_add(done), dst.wrapping_add(done));
        value = with_ranges((from, part), [(to, part)], |src, [dst]| copy_crc32c(src, dst, value, mode, hint))?;
        done += part;
    }
    Some(success().with_crc(value))
}

fn copy_twice(src: u64, dst: [u64; 2], len: u64, into: WriteHint) -> Option<CompletionRecord> {
    if dst.iter().any(|dst| overlaps(src, len, *dst, len)) || overlaps(dst[0], len, dst[1], len) {
        return None;
    }
    let hint = hint(into, len);
    let mut done = 0;
    while done < len {
        let part = PART.min(len - done);
        let range = |address: u64| (address.wrapping_add(done), part);
        with_ranges(range(src), dst.map(range), |src, [dst1, dst2]| dualcast(src, dst1, dst2, hint))?;
        done += part;
    }
    Some(success())
}

fn dif(dif: &Dif) -> Option<CompletionRecord> {
    let (from_block, to_block) = (dif.source_block(), dif.dest_block());
    let total = dif.len / from_block;
    if overlaps(dif.src, dif.len, dif.dst, total * to_block) {
        return None;
    }
    let mut tags = dif.first_tags();
    let mut done = 0;
    while done < total {
        let blocks = PART_BLOCKS.min(total - done);
        let src = (dif.src.wrapping_add(done * from_block), blocks * from_block);
        let dst = (dif.dst.wrapping_add(done * to_block), blocks * to_block);
        let checked = with_ranges(src, [dst], |src, [dst]| dif.blocks(&mut tags, src, dst))?;
        if let Some(error) = checked.error {
            return Some(Dif::mismatch_record(error, (done + checked.blocks as u64) * from_block));
        }
        done += blocks;
    }
    Some(dif.success_record(&tags))
}

#[cfg(test)]
mod tests {
    use super::super::run_by_steps;
    use super::*;
    use telpher_abi::{DIF_TUPLE_BYTES, DestDifFlags, DifBlock, SourceDifFlags};
    use telpher_mem::{Pages, Protection};

    /// Places of a source and of two destinations in the pages, with the same offset in a page.
    const PLACES: [u64; 3] = [24, 272 * 4096 + 24, 544 * 4096 + 24];
    const PAGES: usize = 817;
    /// The last one has two parts.
    const LENGTHS: [u32; 6] = [1, 7, 255, 4096, 70_001, (1 << 20) + 5_000];

    fn memory() -> (Pages, [u64; 3]) {
        let pages = Pages::new(PAGES).expect("memory");
        let bytes: Vec<u8> = (0..PART + 9_000).map(|at| (at * 7 + at / 251).to_le_bytes()[0]).collect();
        pages.poke(PLACES[0], &bytes);
        let base = pages.address();
        (pages, PLACES.map(|place| base + place))
    }

    /// Executes a descriptor in both ways on the same memory.
    fn is_the_same(pages: &Pages, d: &Descriptor) {
        let all = PAGES * 4096;
        let before = pages.peek(0, all);
        let record = run(d).unwrap_or_else(|| panic!("not direct: {d:?}"));
        let written = pages.peek(0, all);
        pages.poke(0, &before);
        assert_eq!(record, run_by_steps(d), "{d:?}");
        assert!(written == pages.peek(0, all), "{d:?}");
    }

    /// Descriptors of every direct operation without integrity fields.
    fn operations([src, dst, dst2]: [u64; 3], len: u32) -> Vec<Descriptor> {
        let [reflect, data] = [OpFlags::BYPASS_INVERT_REFLECT, OpFlags::BYPASS_DATA_REFLECT];
        let mut all = Vec::new();
        for flags in [Flags::empty(), reflect, data, reflect | data] {
            all.push(Descriptor::crc_generation(src, len, 0x1234_5678).with_flags(flags));
            all.push(Descriptor::copy_crc(src, dst, len, 9).with_flags(flags | Flags::CACHE_CONTROL_1));
        }
        all.push(Descriptor::copy_crc(src, dst, len, u32::MAX));
        all.push(Descriptor::dualcast(src, dst, dst2, len));
        all.push(Descriptor::fill(0x0123_4567_89ab_cdef, dst, len));
        all.push(Descriptor::cache_flush(src, len));
        for expected in [0, 1] {
            let checked = Flags::CHECK_RESULT;
            all.push(Descriptor::compare(src, dst, len).with_expected_result(expected).with_flags(checked));
            let pattern = Descriptor::compare_pattern(src, 0, len).with_expected_result(expected);
            all.push(pattern.with_flags(checked));
        }
        all.push(Descriptor::compare(src, src, len));
        all
    }

    #[test]
    fn direct_operations_have_the_results_of_a_device() {
        let (pages, places) = memory();
        for len in LENGTHS {
            for d in operations(places, len) {
                is_the_same(&pages, &d);
            }
        }
    }

    #[test]
    fn direct_integrity_fields_are_those_of_a_device() {
        let (pages, [plain, protected, third]) = memory();
        for block in DifBlock::ALL {
            let (data, whole) = (block.bytes(), block.bytes() + DIF_TUPLE_BYTES);
            for blocks in [1, 3, 64, 130] {
                let dif = |opcode, src, dst, len| {
                    Descriptor::dif(opcode, src, dst, len)
                        .with_dif_flags(block.code())
                        .with_source_ref_tag(7)
                        .with_source_app_tag(3)
                        .with_source_dif_flags(SourceDifFlags::APP_TAG_INCREMENTS.bits())
                        .with_dest_ref_tag(7)
                        .with_dest_app_tag(3)
                        .with_dest_dif_flags(DestDifFlags::APP_TAG_INCREMENTS.bits())
                };
                is_the_same(&pages, &dif(Opcode::DifInsert, plain, protected, blocks * data));
                let checks = [Opcode::DifCheck, Opcode::DifStrip, Opcode::DifUpdate];
                let checks = checks.map(|opcode| dif(opcode, protected, third, blocks * whole));
                checks.iter().for_each(|d| is_the_same(&pages, d));
                // The last block does not match any more.
                let last = PLACES[1] + u64::from((blocks - 1) * whole);
                pages.poke(last, &[!pages.peek(last, 1)[0]]);
                checks.iter().for_each(|d| is_the_same(&pages, d));
            }
        }
    }

    #[test]
    fn what_stops_at_a_page_is_left_to_the_steps() {
        let (pages, places) = memory();
        let [src, dst, _] = places;
        let len = 3 * 4096;
        let direct = operations(places, len);
        for (place, protection) in [(PLACES[0], Protection::None), (PLACES[1], Protection::Read)] {
            let page = usize::try_from(place / 4096).expect("few pages") + 2;
            pages.protect(page..page + 1, protection).expect("our pages");
            for d in &direct {
                let reads = d.opcode() != Opcode::Fill;
                let writes = matches!(d.opcode(), Opcode::Fill | Opcode::CopyCrc | Opcode::Dualcast);
                let stops = if protection == Protection::None { reads } else { writes };
                // A comparison ends at the first difference, which is before the page.
                let ends = d.opcode() == Opcode::Compare && d.dst() != d.src() || d.opcode() == Opcode::ComparePattern;
                assert_eq!(run(d).is_none(), stops && !ends, "{d:?}, {protection:?}");
            }
            pages.protect(page..page + 1, Protection::ReadWrite).expect("our pages");
        }
        // Ranges that overlap, an empty one, and none.
        for d in [
            Descriptor::copy_crc(src, src + 1, len, 0),
            Descriptor::dualcast(src, dst, dst + 4096, len),
            Descriptor::dif(Opcode::DifUpdate, src, src + 8, 520),
            Descriptor::dif(Opcode::DifCheck, 0, 0, 520),
            Descriptor::crc_generation(0, len, 0),
            Descriptor::crc_generation(u64::MAX - 5, len, 0),
            Descriptor::memory_move(src, src + 1, len),
        ] {
            assert_eq!(run(&d), None, "{d:?}");
        }
    }
}
