//! The mock keeps its contract, so that tests built on it are meaningful.
#![cfg(not(loom))]
#![allow(unsafe_code, reason = "submissions are vouched for; nothing executes them")]

use telpher_abi::{CompletionRecord, Descriptor, Status, StatusByte};
use telpher_portal::mock::MockPortal;
use telpher_portal::{Offer, Portal, QueueMode, RecordCell, Submission};

/// Returns the `n`th descriptor, distinguishable by its size.
fn numbered(n: u32) -> Submission {
    // SAFETY: the mock keeps descriptors and accesses no address.
    unsafe { Submission::vouch(Descriptor::nop().with_size(n)) }
}

#[test]
fn descriptors_come_out_in_the_order_they_went_in() {
    let portal = MockPortal::new(QueueMode::Shared, 8);
    for n in 0..5 {
        assert_eq!(portal.offer(&numbered(n)), Offer::Taken);
    }
    assert_eq!(portal.waiting(), 5);
    let sizes: Vec<u32> = std::iter::from_fn(|| portal.take()).map(|d| d.size()).collect();
    assert_eq!(sizes, [0, 1, 2, 3, 4]);
    assert_eq!(portal.waiting(), 0);
}

#[test]
fn a_full_shared_queue_answers_retry_and_takes_nothing() {
    let portal = MockPortal::new(QueueMode::Shared, 2);
    let answers = [0, 1, 2].map(|n| portal.offer(&numbered(n)));
    assert_eq!(answers, [Offer::Taken, Offer::Taken, Offer::Retry]);
    assert_eq!(portal.take().map(|d| d.size()), Some(0));
    assert_eq!(portal.offer(&numbered(3)), Offer::Taken);
    let sizes: Vec<u32> = std::iter::from_fn(|| portal.take()).map(|d| d.size()).collect();
    assert_eq!(sizes, [1, 3]);
}

#[test]
fn a_full_dedicated_queue_loses_the_descriptor_silently() {
    let portal = MockPortal::new(QueueMode::Dedicated, 2);
    let answers = [0, 1, 2].map(|n| portal.offer(&numbered(n)));
    assert_eq!(answers, [Offer::Taken; 3]);
    assert_eq!(portal.waiting(), 2);
}

#[test]
fn retry_is_returned_exactly_as_often_as_requested() {
    let portal = MockPortal::new(QueueMode::Shared, 8);
    portal.retry_next(3);
    for _ in 0..3 {
        assert_eq!(portal.offer(&numbered(0)), Offer::Retry);
    }
    assert_eq!(portal.waiting(), 0);
    assert_eq!(portal.offer(&numbered(0)), Offer::Taken);
}

#[test]
fn a_portal_may_be_used_from_many_threads() {
    let portal = MockPortal::new(QueueMode::Shared, 100);
    let taken = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| (0..50).filter(|n| portal.offer(&numbered(*n)) == Offer::Taken).count()))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).sum::<usize>()
    });
    // 200 offers to 100 entries: exactly 100 are taken, whichever thread comes first.
    assert_eq!((taken, portal.waiting()), (100, 100));
}

#[test]
fn a_record_is_absent_until_written_and_again_after_clear() {
    let cell = RecordCell::new();
    assert_eq!((cell.status(), cell.read()), (None, None));
    let record = CompletionRecord::new(StatusByte::fault(Status::PageFault, true))
        .with_bytes_completed(48)
        .with_fault_address(0x1030);
    cell.complete(&record);
    assert_eq!(cell.status(), Some(StatusByte(0x83)));
    assert_eq!(cell.read(), Some(record));
    cell.clear();
    assert_eq!((cell.status(), cell.read()), (None, None));
}

#[test]
fn a_record_has_the_address_and_alignment_a_device_accepts() {
    let cells: [RecordCell; 3] = Default::default();
    assert_eq!(size_of::<RecordCell>(), 32);
    for cell in &cells {
        assert_eq!(cell.address(), std::ptr::from_ref(cell) as u64);
        assert_eq!(cell.address() % 32, 0);
    }
}

#[test]
fn a_submission_is_its_64_bytes() {
    assert_eq!(size_of::<Submission>(), 64);
    let descriptor = Descriptor::memory_move(1, 2, 3).with_record(0x40);
    // SAFETY: never offered.
    let submission = unsafe { Submission::vouch(descriptor) };
    assert_eq!(submission.descriptor(), &descriptor);
}
