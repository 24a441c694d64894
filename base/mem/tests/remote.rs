//! What is specific to another process' memory: the process can end, not exist, or share pages since a fork. The cases
//! for all spaces also run on it, in `meaning.rs` and `faults.rs`.
#![allow(clippy::cast_possible_truncation, reason = "offsets within a few pages")]

mod common;

use common::remote_fixture::{ChildCommand, RemoteFixture};
use common::{Fixture, HINTS, PAGE, fault, noise};
use telpher_mem::Remote;

#[test]
fn invalid_processes_are_refused() {
    for id in [std::process::id(), 0, u32::MAX, i32::MAX as u32] {
        assert!(Remote::new(id).is_err() && Remote::strict(id).is_err(), "{id}");
    }
}

#[test]
fn a_process_that_has_ended_has_no_memory() {
    for strict in [false, true] {
        let mut fixture = RemoteFixture::new(strict, true);
        let (base, record) = (fixture.base(), [1; 4]);
        assert_eq!(fixture.space().write(base, &[1; 100], HINTS[0]), Ok(()));
        fixture.end();
        let space = fixture.space();
        assert_eq!(space.read(base, &mut [0; 8]), Err(fault(base, false, 0)));
        assert_eq!(space.write(base, &[0; 8], HINTS[0]), Err(fault(base, true, 0)));
        assert_eq!(space.move_forward(base, base + 64, 64, HINTS[0]), Err(fault(base + 64, false, 0)));
        assert_eq!(space.move_backward(base + 64, base, 64, HINTS[0]), Err(fault(base + 63, false, 0)));
        assert_eq!(space.fill(base, [0; 2], 64, HINTS[0]), Err(fault(base, true, 0)));
        assert_eq!(space.compare(base, base + 64, 64), Err(fault(base, false, 0)));
        assert_eq!(space.compare_pattern(base, 0, 64), Err(fault(base, false, 0)));
        assert_eq!(space.flush(base, 64), Err(fault(base, false, 0)));
        assert_eq!(space.write_record(base, &record), Err(fault(base, true, 0)));
        assert!(!space.page_request(base, false) && !space.page_request(base, true));
    }
}

#[test]
fn long_moves_stop_where_a_page_is_missing_in_the_middle() {
    // Two operands of four pages, each with a hole, in all relative positions within a page.
    for strict in [false, true] {
        let fixture = RemoteFixture::new(strict, true);
        let (base, space) = (fixture.base(), fixture.space());
        let before = noise(8 * PAGE as usize, 3);
        fixture.poke(0, &before);
        fixture.command(2, ChildCommand::None);
        for skew in [0, 1, 100, 4095] {
            let len = 4 * PAGE - 64 - skew;
            let (low, high) = (skew, 4 * PAGE);
            // The hole lies in the source, then in the destination.
            let done = 2 * PAGE - skew;
            assert_eq!(
                space.move_forward(base + high, base + low, len, HINTS[0]),
                Err(fault(base + 2 * PAGE, false, done))
            );
            assert_eq!(fixture.peek(high, done as usize), fixture.peek(low, done as usize));
            assert_eq!(fixture.peek(high + done, 64), before[(high + done) as usize..][..64]);
            fixture.poke(high, &before[high as usize..]);
            let done = low + len - 3 * PAGE;
            let hole = Err(fault(base + 3 * PAGE - 1, false, done));
            assert_eq!(space.move_backward(base + high, base + low, len, HINTS[0]), hole);
            assert_eq!(fixture.peek(high + len - done, done as usize), before[3 * PAGE as usize..][..done as usize]);
            assert_eq!(fixture.peek(high + len - done - 64, 64), before[(high + len - done - 64) as usize..][..64]);
            let hole = Err(fault(base + 3 * PAGE - 1, true, done));
            assert_eq!(space.move_backward(base + low, base + high, len, HINTS[0]), hole);
            assert_eq!(fixture.peek(low, (2 * PAGE - low) as usize), before[low as usize..2 * PAGE as usize]);
            fixture.poke(3 * PAGE, &before[3 * PAGE as usize..]);
        }
    }
}

#[test]
fn a_strict_view_faults_on_pages_never_touched_and_a_request_brings_them() {
    let fixture = RemoteFixture::new(true, false);
    let (base, space) = (fixture.base(), fixture.space());
    for write in [false, true] {
        let page = base + u64::from(write) * PAGE;
        let access =
            |len| if write { space.write(page, &vec![1; len], HINTS[0]) } else { space.read(page, &mut vec![0; len]) };
        assert_eq!(access(8), Err(fault(page, write, 0)));
        assert!(space.page_request(page + 5, write));
        assert_eq!(access(8), Ok(()));
    }
    // A page that was only read is the zero page: present for reads only.
    assert_eq!(space.write(base, &[1], HINTS[0]), Err(fault(base, true, 0)));
    fixture.command(2, ChildCommand::Look);
    assert_eq!(space.read(base + 2 * PAGE, &mut [1]), Ok(()));
    assert_eq!(space.write_record(base + 2 * PAGE + 64, &[7; 4]), Err(fault(base + 2 * PAGE + 64, true, 0)));
    assert!(space.page_request(base + 2 * PAGE, true));
    assert_eq!(fixture.peek(2 * PAGE, 8), [0; 8], "a request stores nothing");
    assert_eq!(space.write_record(base + 2 * PAGE + 64, &[7; 4]), Ok(()));
    // A discarded page is missing again.
    fixture.command(2, ChildCommand::Discard);
    assert_eq!(space.read(base + 2 * PAGE + 9, &mut [1]), Err(fault(base + 2 * PAGE + 9, false, 0)));
    let len = 2 * PAGE + 100;
    assert_eq!(space.move_forward(base + 4 * PAGE, base, len, HINTS[0]), Err(fault(base + 4 * PAGE, true, 0)));
}

#[test]
fn a_lenient_view_brings_pages_in_as_the_processor_does() {
    let fixture = RemoteFixture::new(false, false);
    let (base, space) = (fixture.base(), fixture.space());
    let mut bytes = vec![1; 2 * PAGE as usize];
    assert_eq!(space.read(base, &mut bytes), Ok(()));
    assert!(bytes.iter().all(|byte| *byte == 0));
    assert_eq!(space.fill(base + PAGE, [5; 2], 3 * PAGE, HINTS[1]), Ok(()));
    assert_eq!(fixture.peek(4 * PAGE - 8, 16), [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn page_requests_respect_what_the_mapping_allows_and_store_nothing() {
    for strict in [false, true] {
        let fixture = RemoteFixture::new(strict, true);
        let (base, space) = (fixture.base(), fixture.space());
        fixture.poke(0, &[9; 16]);
        assert!(space.page_request(base + 3, true) && space.page_request(base + 3, false));
        fixture.command(0, ChildCommand::Read);
        assert!(!space.page_request(base + 3, true) && space.page_request(base + 3, false));
        fixture.command(0, ChildCommand::None);
        assert!(!space.page_request(base + 3, true) && !space.page_request(base + 3, false));
        fixture.command(0, ChildCommand::ReadWrite);
        assert_eq!(fixture.peek(0, 16), [9; 16]);
        fixture.command(1, ChildCommand::None);
        for address in [base + PAGE, 0, 8, u64::MAX, 1 << 47, 0x8000_0000_0000_0000] {
            assert!(!space.page_request(address, true) && !space.page_request(address, false), "{address:#x}");
        }
    }
}

#[test]
fn hostile_ranges_fault_where_they_leave_the_memory() {
    for strict in [false, true] {
        let fixture = RemoteFixture::new(strict, true);
        let (base, space) = (fixture.base(), fixture.space());
        for address in [0, 1 << 47, (1 << 47) - 4096, u64::MAX, u64::MAX - 63, 0xffff_8000_0000_0000] {
            assert_eq!(space.read(address, &mut [0; 100]), Err(fault(address, false, 0)), "{address:#x}");
            assert_eq!(space.write(address, &[0; 100], HINTS[0]), Err(fault(address, true, 0)), "{address:#x}");
            assert_eq!(space.fill(address, [1; 2], u64::MAX, HINTS[0]), Err(fault(address, true, 0)), "{address:#x}");
            assert_eq!(space.compare(base, address, u64::MAX), Err(fault(address, false, 0)), "{address:#x}");
            assert_eq!(space.flush(address, u64::MAX), Err(fault(address, false, 0)), "{address:#x}");
            assert_eq!(space.move_forward(base, address, u64::MAX, HINTS[0]), Err(fault(address, false, 0)));
        }
        assert_eq!(space.move_backward(base, 1, u64::MAX, HINTS[0]), Err(fault(u64::MAX, false, 0)));
        assert_eq!(space.move_backward(base, 0, u64::MAX, HINTS[0]), Err(fault(u64::MAX, true, 0)));
        // The range starts in the eight pages and leaves them. The page after them could belong to any mapping, so the
        // last page is made inaccessible.
        fixture.command(7, ChildCommand::None);
        assert_eq!(space.fill(base, [1; 2], u64::MAX, HINTS[0]), Err(fault(base + 7 * PAGE, true, 7 * PAGE)));
        assert_eq!(space.compare_pattern(base, 1, u64::MAX), Err(fault(base + 7 * PAGE, false, 7 * PAGE)));
        assert_eq!(space.flush(base + 1, u64::MAX), Err(fault(base + 7 * PAGE, false, 7 * PAGE - 1)));
        assert_eq!(space.read(base, &mut []), Ok(()));
    }
}
