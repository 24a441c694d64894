//! Operations that are executed directly have the results of a device.

use super::direct::{PART, copy_crc, crc, dif, run};
use super::{run_by_steps, run_operation};
use telpher_abi::{DIF_TUPLE_BYTES, DestDifFlags, DifBlock, Opcode, SourceDifFlags};
use telpher_abi::{Descriptor, Flags, OpFlags};
use telpher_mem::{Pages, Protection};
use telpher_model::Action;

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

/// True if the descriptor was executed without the steps of a device.
fn is_direct(d: &Descriptor) -> bool {
    match Action::of(d) {
        Action::Crc { dst: None, .. } => crc(d).is_some(),
        Action::Crc { .. } => copy_crc(d).is_some(),
        Action::Dif(action) => dif(&action).is_some(),
        _ => run(d).is_some(),
    }
}

/// Executes a descriptor in both ways on the same memory. Tags behind the last block have no reader.
fn is_the_same(pages: &Pages, d: &Descriptor) {
    let all = PAGES * 4096;
    let before = pages.peek(0, all);
    assert!(is_direct(d), "{d:?}");
    pages.poke(0, &before);
    let record = run_operation(d);
    let written = pages.peek(0, all);
    pages.poke(0, &before);
    let mut expected = run_by_steps(d);
    if matches!(Action::of(d), Action::Dif(_)) {
        expected.0[2..].fill(0);
    }
    assert_eq!(record, expected, "{d:?}");
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
            assert_eq!(!is_direct(d), stops && !ends, "{d:?}, {protection:?}");
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
        assert!(!is_direct(&d), "{d:?}");
    }
}
