//! Faults are exact to the byte, and nothing past them is written.
#![allow(clippy::cast_possible_truncation, reason = "offsets within a few pages")]

mod common;

use common::{HINTS, PAGE, fault, fixtures, locals, noise};
use std::sync::atomic::{AtomicU64, Ordering};
use telpher_mem::{
    FOLDED_BYTES, Fault, Pages, Protection, STREAM_MIN_BYTES, STREAM_MOVE_BYTES, Space, Strict, WordWidth, WriteHint,
};

const FIXTURE_BYTES: usize = 8 * PAGE as usize;

/// Lengths that end in every size class of the kernels.
const LENGTHS: [u64; 17] = [1, 2, 3, 5, 8, 13, 16, 27, 33, 64, 100, 129, 200, 300, 520, 700, 1500];

/// Distances from the start of an operand to the bad page: all near both ends of the range, and some between.
fn distances(len: u64) -> impl Iterator<Item = u64> {
    (0..len).filter(move |cut| len <= 140 || *cut < 70 || *cut > len - 70 || cut % 29 == 0)
}

/// Page 3 of a fixture is the bad page: `BAD_FROM` is its first byte, `BAD_TO` the byte after it.
const BAD: usize = 3;
const BAD_FROM: u64 = 3 * PAGE;
const BAD_TO: u64 = 4 * PAGE;

#[test]
fn ascending_operations_stop_at_the_first_byte_they_cannot_access() {
    for fixture in fixtures() {
        let (base, space) = (fixture.base(), fixture.space());
        let before = noise(FIXTURE_BYTES, 7);
        fixture.poke(0, &before);
        fixture.protect(BAD, Protection::None);
        for len in LENGTHS {
            for cut in distances(len) {
                // The operand that begins here reaches the bad page after `cut` bytes.
                let at = BAD_FROM - cut;
                let good = 5 * PAGE + cut % 61;
                let name = || format!("{len} cut at {cut} on {}", fixture.name());
                let bad_read = Err(fault(base + BAD_FROM, false, cut));
                let bad_write = Err(fault(base + BAD_FROM, true, cut));

                assert_eq!(space.move_forward(base + good, base + at, len, HINTS[0]), bad_read, "read {}", name());
                assert_eq!(fixture.peek(good, cut as usize), fixture.peek(at, cut as usize), "read {}", name());
                let behind = (good + cut) as usize..(good + len) as usize + 64;
                assert_eq!(
                    fixture.peek(good + cut, (len - cut) as usize + 64),
                    before[behind.clone()],
                    "read {}",
                    name()
                );
                fixture.poke(good, &before[good as usize..behind.end]);

                assert_eq!(space.move_forward(base + at, base + good, len, HINTS[1]), bad_write, "write {}", name());
                assert_eq!(
                    fixture.peek(at, cut as usize),
                    before[good as usize..(good + cut) as usize],
                    "write {}",
                    name()
                );
                fixture.poke(at, &before[at as usize..BAD_FROM as usize]);

                let pattern = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
                assert_eq!(space.fill(base + at, pattern, len, HINTS[0]), bad_write, "fill {}", name());
                assert!(
                    fixture.peek(at, cut as usize).iter().zip(0_u64..).all(|(b, i)| u64::from(*b) == i % 16),
                    "fill {}",
                    name()
                );

                // The filled bytes also serve the comparison with a pattern. A difference before the fault is returned
                // instead of the fault.
                assert_eq!(space.fill(base + at, [7; 2], cut, HINTS[0]), Ok(()));
                let bad_compare = Err(fault(base + BAD_FROM, false, cut));
                assert_eq!(space.compare_pattern(base + at, 7, len), bad_compare, "pattern {}", name());
                fixture.poke(good, &fixture.peek(at, cut as usize));
                assert_eq!(space.compare(base + at, base + good, len), bad_compare, "compare {}", name());
                assert_eq!(space.compare(base + good, base + at, len), bad_compare, "compare {}", name());
                if cut > 0 {
                    let last = at + cut - 1;
                    fixture.poke(last, &[fixture.peek(last, 1)[0] ^ 1]);
                    assert_eq!(space.compare(base + at, base + good, len), Ok(Some(cut - 1)), "compare {}", name());
                    assert_eq!(space.compare_pattern(base + at, 7, len), Ok(Some(cut - 1)), "pattern {}", name());
                }
                fixture.poke(at, &before[at as usize..BAD_FROM as usize]);
                fixture.poke(good, &before[good as usize..behind.end]);

                assert_eq!(space.flush(base + at, len), bad_read, "flush {}", name());
                let mut buffer = vec![0xee; len as usize];
                assert_eq!(space.read(base + at, &mut buffer), bad_read, "own {}", name());
                assert_eq!(buffer[..cut as usize], before[at as usize..BAD_FROM as usize], "own {}", name());
                assert!(buffer[cut as usize..].iter().all(|&b| b == 0xee), "own {}", name());
                assert_eq!(space.write(base + at, &buffer, HINTS[1]), bad_write, "own {}", name());
            }
        }
    }
}

#[test]
fn a_message_with_a_page_that_cannot_be_read_is_not_folded() {
    let pages = Pages::new(8).unwrap();
    let (by, len) = ([0; 2], 4 * FOLDED_BYTES as u64);
    for local in locals() {
        let folds = |address, len| local.fold(address, len, 0, &by, &mut [0; FOLDED_BYTES]);
        pages.protect(BAD..BAD + 1, Protection::Read).unwrap();
        let can_fold = folds(pages.address() + BAD_FROM, len);
        pages.protect(BAD..BAD + 1, Protection::None).unwrap();
        // Each vector of a block in turn reaches the bad page first.
        for before in (1..len).step_by(16) {
            assert!(!folds(pages.address() + BAD_FROM - before, len), "{before} bytes before, {local:?}");
        }
        for wild in [0, 1 << 63, u64::MAX - 1024] {
            assert!(!folds(wild, len), "{wild:#x}, {local:?}");
        }
        assert!(!folds(pages.address(), u64::MAX / 256 * 256), "{local:?}");
        assert_eq!(folds(pages.address() + BAD_FROM - len, len), can_fold, "up to the bad page, {local:?}");
    }
}

#[test]
fn descending_moves_stop_at_the_last_byte_they_cannot_access() {
    for fixture in fixtures() {
        let (base, space) = (fixture.base(), fixture.space());
        let before = noise(FIXTURE_BYTES, 8);
        fixture.poke(0, &before);
        fixture.protect(BAD, Protection::None);
        for len in LENGTHS {
            for cut in distances(len) {
                // The operand ends `cut` bytes after the bad page.
                let at = BAD_TO + cut - len;
                let name = || format!("{len} cut at {cut} on {}", fixture.name());
                let high = 6 * PAGE + cut % 61;
                assert_eq!(
                    space.move_backward(base + high, base + at, len, HINTS[0]),
                    Err(fault(base + BAD_TO - 1, false, cut)),
                    "{}",
                    name()
                );
                let kept = (len - cut) as usize;
                assert_eq!(fixture.peek(high, kept), before[high as usize..high as usize + kept], "{}", name());
                assert_eq!(
                    fixture.peek(high + len - cut, cut as usize),
                    fixture.peek(BAD_TO, cut as usize),
                    "{}",
                    name()
                );
                fixture.poke(high, &before[high as usize..(high + len) as usize]);

                let low = PAGE + cut % 61;
                assert_eq!(
                    space.move_backward(base + at, base + low, len, HINTS[1]),
                    Err(fault(base + BAD_TO - 1, true, cut)),
                    "{}",
                    name()
                );
                let end = (low + len) as usize;
                assert_eq!(fixture.peek(BAD_TO, cut as usize), before[end - cut as usize..end], "{}", name());
                fixture.poke(BAD_TO, &before[BAD_TO as usize..(BAD_TO + cut) as usize]);
            }
        }
    }
}

#[test]
fn overlapping_moves_that_fault_moved_the_rest_correctly() {
    for fixture in fixtures() {
        let (base, space) = (fixture.base(), fixture.space());
        let before = noise(FIXTURE_BYTES, 9);
        for len in [3, 5, 7, 9, 12, 15, 16, 20, 33, 48, 64, 100, 130, 200, 257, 400, 520, 600, 1000, 3000] {
            for distance in [1, 3, 8, 17, 40, 64, 90, 200, 700] {
                for cut in
                    [0, 1, 2, 4, 6, 8, 9, 16, 31, 63, 64, 65, 100, 127, 128, 150, 256, 300, 333, 500, 514, 640, 2500]
                {
                    if cut >= len {
                        continue;
                    }
                    let name = || format!("{len} by {distance} cut at {cut} on {}", fixture.name());
                    // Forward: the source (above the destination) reaches the bad page, or the destination reaches a
                    // read-only page.
                    for write in [false, true] {
                        fixture.protect(BAD, Protection::ReadWrite);
                        fixture.poke(0, &before);
                        let (dst, src) = if write {
                            (BAD_FROM - cut, BAD_FROM - cut + distance)
                        } else {
                            (BAD_FROM - cut - distance, BAD_FROM - cut)
                        };
                        fixture.protect(BAD, if write { Protection::Read } else { Protection::None });
                        let got = space.move_forward(base + dst, base + src, len, HINTS[0]);
                        assert_eq!(got, Err(fault(base + BAD_FROM, write, cut)), "{}", name());
                        fixture.protect(BAD, Protection::ReadWrite);
                        let mut expected = before.clone();
                        expected.copy_within(src as usize..(src + cut) as usize, dst as usize);
                        assert!(fixture.peek(0, FIXTURE_BYTES) == expected, "forward, write {write}, {}", name());

                        // Backward, mirrored.
                        fixture.poke(0, &before);
                        let (dst, src) = if write {
                            (BAD_TO + cut - len, BAD_TO + cut - len - distance)
                        } else {
                            (BAD_TO + cut - len + distance, BAD_TO + cut - len)
                        };
                        fixture.protect(BAD, if write { Protection::Read } else { Protection::None });
                        let got = space.move_backward(base + dst, base + src, len, HINTS[0]);
                        assert_eq!(got, Err(fault(base + BAD_TO - 1, write, cut)), "{}", name());
                        fixture.protect(BAD, Protection::ReadWrite);
                        let mut expected = before.clone();
                        let kept = (len - cut) as usize;
                        expected.copy_within(src as usize + kept..(src + len) as usize, dst as usize + kept);
                        assert!(fixture.peek(0, FIXTURE_BYTES) == expected, "backward, write {write}, {}", name());
                    }
                }
            }
        }
    }
}

#[test]
fn of_two_faults_the_first_is_reported_and_a_read_before_a_write() {
    for fixture in fixtures() {
        let (base, space) = (fixture.base(), fixture.space());
        fixture.poke(0, &noise(FIXTURE_BYTES, 1));
        fixture.protect(BAD, Protection::None);
        fixture.protect(5, Protection::None);
        let far = 5 * PAGE;
        for (read_at, write_at) in [(40, 40), (40, 41), (41, 40), (300, 299), (299, 300), (0, 0)] {
            let expected = if read_at <= write_at {
                fault(base + BAD_FROM, false, read_at)
            } else {
                fault(base + far, true, write_at)
            };
            let got = space.move_forward(base + far - write_at, base + BAD_FROM - read_at, 900, HINTS[0]);
            assert_eq!(got, Err(expected), "{}", fixture.name());
        }
        // Equal up to both boundaries: the fault of the first operand is reported.
        fixture.poke(BAD_FROM - 9, &fixture.peek(far - 9, 9));
        let got = space.compare(base + BAD_FROM - 9, base + far - 9, 100);
        assert_eq!(got, Err(fault(base + BAD_FROM, false, 9)), "{}", fixture.name());
        let got = space.compare(base + far - 9, base + BAD_FROM - 9, 100);
        assert_eq!(got, Err(fault(base + far, false, 9)), "{}", fixture.name());
    }
}

#[test]
fn a_range_is_reached_if_each_of_its_pages_allows_the_access() {
    let pages = Pages::new(8).unwrap();
    let (base, before) = (pages.address(), noise(FIXTURE_BYTES, 5));
    pages.poke(0, &before);
    for local in locals() {
        for protection in [Protection::None, Protection::Read, Protection::ReadWrite] {
            pages.protect(BAD..BAD + 1, protection).unwrap();
            let allowed = [protection != Protection::None, protection == Protection::ReadWrite];
            let reached = |from, to: u64| [false, true].map(|write| local.reaches(base + from, to - from, write));
            for (from, to) in [
                (0, FIXTURE_BYTES as u64),
                (BAD_FROM - 1, BAD_FROM + 1),
                (BAD_FROM - 1, BAD_TO + 1),
                (BAD_FROM, BAD_FROM + 1),
                (BAD_FROM - PAGE - 1, BAD_TO - 7),
                (BAD_TO - 1, BAD_TO + 1),
            ] {
                assert_eq!(reached(from, to), allowed, "{from:#x} to {to:#x}, {protection:?}");
            }
            for (from, to) in [(0, BAD_FROM), (BAD_FROM - 1, BAD_FROM), (BAD_TO, BAD_TO + 1), (BAD_FROM, BAD_FROM)] {
                assert_eq!(reached(from, to), [true; 2], "{from:#x} to {to:#x}, {protection:?}");
            }
        }
        for (address, len) in [(0, 1), (1 << 63, 1), (u64::MAX, 1), (u64::MAX - 5, 100), (base, u64::MAX)] {
            assert!(!local.reaches(address, len, false) && !local.reaches(address, len, true), "{address:#x} {len}");
        }
    }
    assert!(pages.peek(0, FIXTURE_BYTES) == before, "nothing changes");
}

#[test]
fn records_fault_before_any_word_is_written() {
    for fixture in fixtures() {
        let (base, space) = (fixture.base(), fixture.space());
        fixture.protect(BAD, Protection::Read);
        let record = [u64::MAX; 4];
        assert_eq!(space.write_record(base + BAD_FROM + 32, &record), Err(fault(base + BAD_FROM + 32, true, 0)));
        // Not aligned, contrary to the contract: the fault is still exact.
        assert_eq!(space.write_record(base + BAD_FROM - 8, &record), Err(fault(base + BAD_FROM, true, 8)));
        assert_eq!(space.write_record(base + BAD_TO - 8, &record), Err(fault(base + BAD_TO - 8, true, 0)));
        fixture.protect(BAD, Protection::ReadWrite);
        assert_eq!(fixture.peek(BAD_FROM - 32, 128), [0; 128], "{}", fixture.name());
        assert_eq!(fixture.peek(BAD_TO - 32, 64), [0; 64], "{}", fixture.name());
    }
}

#[test]
fn page_requests_report_what_would_succeed_and_change_nothing() {
    for fixture in fixtures() {
        let (base, space) = (fixture.base(), fixture.space());
        fixture.poke(BAD_FROM, &[0x5a]);
        for (protection, read, write) in
            [(Protection::ReadWrite, true, true), (Protection::Read, true, false), (Protection::None, false, false)]
        {
            fixture.protect(BAD, protection);
            assert_eq!(space.page_request(base + BAD_FROM, false), read, "{}", fixture.name());
            assert_eq!(space.page_request(base + BAD_FROM, true), write, "{}", fixture.name());
        }
        fixture.protect(BAD, Protection::ReadWrite);
        assert_eq!(fixture.peek(BAD_FROM, 1), [0x5a]);
    }
}

#[test]
fn page_requests_do_not_disturb_concurrent_writes() {
    const ADDS: u64 = 200_000;
    let local = common::locals()[0];
    let counter = AtomicU64::new(0);
    let address = counter.as_ptr().expose_provenance() as u64;
    std::thread::scope(|scope| {
        scope.spawn(|| (0..ADDS).for_each(|_| _ = counter.fetch_add(1, Ordering::Relaxed)));
        // The low byte, which every addition changes.
        (0..ADDS).for_each(|_| assert!(local.page_request(address, true)));
    });
    assert_eq!(counter.into_inner(), ADDS);
}

#[test]
fn a_reader_of_the_first_word_sees_the_whole_record() {
    const RECORDS: u64 = 100_000;
    #[repr(align(32))]
    struct Record([AtomicU64; 4]);
    let local = common::locals()[0];
    let record = Record([0; 4].map(AtomicU64::new));
    let address = record.0[0].as_ptr().expose_provenance() as u64;
    std::thread::scope(|scope| {
        scope.spawn(|| (1..=RECORDS).for_each(|n| local.write_record(address, &[n; 4]).unwrap()));
        let mut seen = 0;
        while seen < RECORDS {
            // Acquire: pairs with the order of the record's stores.
            seen = record.0[0].load(Ordering::Acquire);
            for word in &record.0[1..] {
                assert!(word.load(Ordering::Relaxed) >= seen);
            }
            std::hint::spin_loop();
        }
    });
}

#[test]
fn wild_addresses_and_lengths_are_faults_at_their_first_byte() {
    let wild =
        [0, 8, 0xfff, 1 << 47, (1 << 47) + 1, 1 << 63, 0xffff_8000_0000_0000, 0xffff_ffff_8100_0000, u64::MAX - 4096];
    let lengths = [1, 7, 16, 40, 64, 100, 300, 600, 5000, 1 << 20, 1 << 40, u64::MAX];
    for fixture in fixtures() {
        let (base, space) = (fixture.base(), fixture.space());
        for address in wild {
            for len in lengths {
                let name = || format!("{address:#x} {len} on {}", fixture.name());
                let (read, write) = (Err(fault(address, false, 0)), Err(fault(address, true, 0)));
                assert_eq!(space.move_forward(base, address, len, HINTS[1]), read, "{}", name());
                assert_eq!(space.move_forward(address, base, len, HINTS[0]), write, "{}", name());
                assert_eq!(space.fill(address, [1, 2], len, HINTS[1]), write, "{}", name());
                assert_eq!(space.compare(address, base, len), Err(fault(address, false, 0)), "{}", name());
                assert_eq!(space.compare(base, address, len), Err(fault(address, false, 0)), "{}", name());
                assert_eq!(space.compare_pattern(address, 1, len), Err(fault(address, false, 0)), "{}", name());
                assert_eq!(space.flush(address, len), read, "{}", name());
                assert_eq!(space.read(address, &mut [0; 40]), read, "{}", name());
                assert_eq!(space.write(address, &[0; 40], HINTS[0]), write, "{}", name());
                let down = space.move_backward(base, address, len, HINTS[0]).unwrap_err();
                match address.checked_add(len) {
                    None => assert_eq!(down, fault(u64::MAX, false, 0), "{}", name()),
                    Some(end) if base.checked_add(len).is_some() => assert!(
                        // From the end: the wild source, or an unmapped end of the destination.
                        down.write || (down.address == end - 1 && down.done == 0),
                        "{down:?} {}",
                        name()
                    ),
                    Some(_) => assert_eq!(down, fault(u64::MAX, true, 0), "{}", name()),
                }
            }
            assert_eq!(space.write_record(address & !31, &[1; 4]).unwrap_err().address, address & !31);
            assert!(!space.page_request(address, false) && !space.page_request(address, true));
        }
        assert_eq!(space.fill(u64::MAX, [0; 2], 1, HINTS[0]), Err(fault(u64::MAX, true, 0)));
        // An empty operation accesses nothing, whatever the address.
        for address in wild {
            assert_eq!(space.move_forward(address, address, 0, HINTS[0]), Ok(()));
            assert_eq!(space.compare(address, base, 0), Ok(None));
            assert_eq!(space.flush(address, 0), Ok(()));
        }
    }
}

#[test]
fn lengths_beyond_the_mapping_fault_where_it_ends() {
    for fixture in fixtures() {
        let (base, space) = (fixture.base(), fixture.space());
        fixture.protect(7, Protection::None);
        let end = 7 * PAGE;
        for len in [end + 1, 1 << 30, 1 << 46, 1 << 63, u64::MAX] {
            let name = || format!("{len} on {}", fixture.name());
            assert_eq!(space.fill(base, [0; 2], len, HINTS[1]), Err(fault(base + end, true, end)), "{}", name());
            assert_eq!(space.flush(base, len), Err(fault(base + end, false, end)), "{}", name());
            assert_eq!(space.compare_pattern(base, 0, len), Err(fault(base + end, false, end)), "{}", name());
            let got = space.move_forward(base, base + PAGE, len, HINTS[1]);
            assert_eq!(got, Err(fault(base + end, false, end - PAGE)), "{}", name());
        }
    }
}

#[test]
fn streamed_and_string_moves_are_as_exact_as_small_ones() {
    let count = (STREAM_MOVE_BYTES / PAGE) as usize + 8;
    let (from, to) = (Pages::new(count).unwrap(), Pages::new(count).unwrap());
    let bytes = noise(from.len_bytes() as usize, 3);
    from.poke(0, &bytes);
    for local in common::locals() {
        for (hint, len) in [(WriteHint::Memory, STREAM_MOVE_BYTES + 5), (WriteHint::Cache, 200_000)] {
            let bad = (len / PAGE) as usize - 1;
            let at = bad as u64 * PAGE;
            for start in [0, 1, 77] {
                to.protect(bad..bad + 1, Protection::None).unwrap();
                let (dst, src) = (to.address() + start, from.address() + 3);
                assert_eq!(local.move_forward(dst, src, len, hint), Err(fault(to.address() + at, true, at - start)));
                assert_eq!(local.fill(dst, [5; 2], len, hint), Err(fault(to.address() + at, true, at - start)));
                let down = local.move_backward(dst, src, len, hint).unwrap_err();
                assert_eq!(down, fault(to.address() + at + PAGE - 1, true, start + len - at - PAGE));
                to.protect(bad..bad + 1, Protection::ReadWrite).unwrap();
                assert_eq!(local.move_forward(dst, src, len, hint), Ok(()));
                assert!(to.peek(start, len as usize) == bytes[3..3 + len as usize]);
            }
        }
    }
}

#[test]
fn short_streamed_operations_are_exact() {
    let (from, to) = (Pages::new(8).unwrap(), Pages::new(8).unwrap());
    let bytes = noise(from.len_bytes() as usize, 4);
    from.poke(0, &bytes);
    let lengths = [1, STREAM_MIN_BYTES, STREAM_MIN_BYTES + 1, 700, 1500, 4095, 8192];
    for local in common::locals() {
        for len in lengths {
            for cut in distances(len).filter(|cut| cut % 7 == 0 || len - cut < 70) {
                to.poke(0, &[0xee; 8 * PAGE as usize]);
                to.protect(BAD..BAD + 1, Protection::None).unwrap();
                let (start, source) = (BAD_FROM - cut, 3 + cut % 61);
                let (dst, src) = (to.address() + start, from.address() + source);
                let bad = Err(fault(to.address() + BAD_FROM, true, cut));
                assert_eq!(local.move_forward(dst, src, len, WriteHint::Stream), bad, "{len} cut at {cut}");
                let moved = &bytes[source as usize..(source + cut) as usize];
                assert!(to.peek(start, cut as usize) == moved, "{len} cut at {cut}");
                assert_eq!(local.fill(dst, [5; 2], len, WriteHint::Stream), bad, "fill of {len} cut at {cut}");
                // Downward, the last `cut` bytes lie behind the bad page.
                let dst = to.address() + BAD_TO + cut - len;
                let bad = fault(to.address() + BAD_TO - 1, true, cut);
                assert_eq!(local.move_backward(dst, src, len, WriteHint::Stream), Err(bad), "{len} cut at {cut}");
                let end = (source + len) as usize;
                assert!(to.peek(BAD_TO, cut as usize) == bytes[end - cut as usize..end], "{len} cut at {cut}");
                to.protect(BAD..BAD + 1, Protection::ReadWrite).unwrap();
                assert!(to.peek(BAD_FROM, PAGE as usize).iter().all(|&byte| byte == 0xee), "{len} cut at {cut}");
            }
            let (dst, src) = (to.address() + 77, from.address() + 3);
            assert_eq!(local.move_forward(dst, src, len, WriteHint::Stream), Ok(()));
            assert!(to.peek(77, len as usize) == bytes[3..3 + len as usize], "{len}");
        }
    }
}

#[test]
fn a_truncated_file_is_a_fault() {
    for local in common::locals() {
        let pages = Pages::of_file(4).unwrap();
        pages.poke(0, &[9; 4 * PAGE as usize]);
        pages.truncate(2);
        let (base, end) = (pages.address(), pages.address() + 2 * PAGE);
        assert_eq!(local.fill(base + 100, [1; 2], 3 * PAGE, HINTS[0]), Err(fault(end, true, 2 * PAGE - 100)));
        assert_eq!(local.read(end - 8, &mut [0; 16]), Err(fault(end, false, 8)));
        assert_eq!(local.read(end + 5, &mut [0; 40]), Err(fault(end + 5, false, 0)));
        assert!(!local.page_request(end, true));
    }
}

#[test]
fn strict_faults_on_pages_that_are_not_present_until_they_are_requested() {
    const FOURS: u64 = 0x0404_0404_0404_0404;
    let strict = Strict::new(common::locals()[0]);
    let pages = Pages::new(600).unwrap();
    let (base, len) = (pages.address(), pages.len_bytes());
    pages.poke(0, &vec![3; len as usize]);
    let at = |page: u64| base + page * PAGE;
    pages.discard(540..541).unwrap();
    let missing = |write, done| Err::<(), Fault>(fault(at(540), write, done));

    assert_eq!(strict.fill(base + 10, [FOURS; 2], len - 10, HINTS[0]), missing(true, 540 * PAGE - 10));
    assert_eq!(strict.read(at(539) + 5, &mut [0; 9000]), missing(false, PAGE - 5));
    assert_eq!(strict.flush(at(540) + 7, 8), Err(fault(at(540) + 7, false, 0)));
    assert_eq!(strict.compare_pattern(at(539), FOURS, 2 * PAGE), Err(fault(at(540), false, PAGE)));
    assert_eq!(strict.write_record(at(540), &[1; 4]), missing(true, 0));
    // Descending from the end: the fault is at the last byte of the missing page, which the source reaches first.
    let down = fault(at(541) - 1, false, 59 * PAGE - 40);
    assert_eq!(strict.move_backward(base + 20, base, len - 40, HINTS[0]), Err(down));

    // The same beyond the first batch of queried pages.
    assert!(strict.page_request(at(540), true));
    pages.discard(5..6).unwrap();
    let down = fault(at(6) - 1, false, len - 40 - 6 * PAGE);
    assert_eq!(strict.move_backward(base + 20, base, len - 40, HINTS[0]), Err(down));
    assert!(strict.page_request(at(5), true));
    assert_eq!(strict.move_backward(base + 20, base, len - 40, HINTS[0]), Ok(()));
    pages.discard(540..541).unwrap();

    // A page that was only read is present for reads and not for writes.
    assert!(strict.page_request(at(540), false));
    assert_eq!(strict.read(at(539) + 5, &mut [0; 9000]), Ok(()));
    assert_eq!(strict.write(at(540), &[1], HINTS[0]), missing(true, 0));
    assert!(strict.page_request(at(540), true));
    assert_eq!(strict.fill(base + 10, [FOURS; 2], len - 10, HINTS[0]), Ok(()));
    assert_eq!(strict.compare_pattern(base + 10, FOURS, len - 10), Ok(None));
}

const WIDTHS: [WordWidth; 4] = [WordWidth::One, WordWidth::Two, WordWidth::Four, WordWidth::Eight];

#[test]
fn words_are_loaded_and_exchanged_whole_or_fault() {
    let pages = Pages::new(3).unwrap();
    pages.protect(1..2, Protection::Read).unwrap();
    pages.protect(2..3, Protection::None).unwrap();
    let local = locals()[0];
    for width in WIDTHS {
        let bytes = width.bytes();
        let mask = u64::MAX >> (64 - 8 * bytes);
        let (old, new) = (0xf1e2_d3c4_b5a6_9788_u64, 0x8070_6050_4030_2010_u64);
        for at in [0, 64, PAGE - bytes] {
            pages.poke(at, &old.to_le_bytes()[..bytes as usize]);
            let address = pages.address() + at;
            assert_eq!(local.load(address, width), Ok(old & mask), "{width:?}");
            // Bits above the width do not count.
            assert_eq!(local.compare_exchange(address, width, !old, new), Ok(old & mask), "{width:?}");
            assert_eq!(local.load(address, width), Ok(old & mask), "{width:?}");
            assert_eq!(local.compare_exchange(address, width, old, new), Ok(old & mask), "{width:?}");
            assert_eq!(local.load(address, width), Ok(new & mask), "{width:?}");
        }
        let behind = pages.peek(bytes, 8);
        let address = pages.address();
        assert_eq!(local.compare_exchange(address, width, new, old), Ok(new & mask));
        assert_eq!(pages.peek(bytes, 8), behind, "only the word changes: {width:?}");
        let (readable, nothing) = (address + PAGE, address + 2 * PAGE);
        assert_eq!(local.load(readable, width), Ok(0));
        // Also if the word is not the expected one.
        for expected in [0, 1] {
            assert_eq!(local.compare_exchange(readable, width, expected, 5), Err(fault(readable, true, 0)));
        }
        assert_eq!(local.load(nothing, width), Err(fault(nothing, false, 0)));
        assert_eq!(local.compare_exchange(nothing, width, 0, 5), Err(fault(nothing, true, 0)));
    }
}

#[test]
fn exchanges_of_several_threads_lose_nothing() {
    const TURNS: u64 = 20_000;
    for width in WIDTHS {
        let pages = Pages::new(1).unwrap();
        let (local, address) = (locals()[0], pages.address() + 8);
        let mask = u64::MAX >> (64 - 8 * width.bytes());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..TURNS {
                        let mut seen = local.load(address, width).unwrap();
                        loop {
                            match local.compare_exchange(address, width, seen, seen.wrapping_add(1)).unwrap() {
                                before if before == seen => break,
                                other => seen = other,
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(local.load(address, width), Ok((2 * TURNS) & mask), "{width:?}");
    }
}
