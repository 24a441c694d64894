//! A submission neither allocates nor waits: counted on a queue without a device, with the code that submits to real
//! queues.
#![allow(unsafe_code, reason = "an allocator that counts; No-ops with their records")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use telpher_abi::{Descriptor, Opcode};
use telpher_portal::{Health, Offer, Portal, RecordCell, Submission};

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

#[derive(Debug)]
struct Counting;

// SAFETY: the system's allocator, and a count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: forwarded.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: forwarded.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_submission_allocates_nothing() {
    let portal = telpher_hw::rehearsal(64).unwrap();
    let records: Vec<RecordCell> = (0..64).map(|_| RecordCell::new()).collect();
    let before = CALLS.get();
    for round in 0..1000 {
        for record in &records {
            record.clear();
            // SAFETY: a No-op accesses nothing but its record, which outlives its use in this function.
            let nop = unsafe { Submission::vouch(Descriptor::nop().with_record(record.address())) };
            assert_eq!(portal.offer(&nop), Offer::Taken, "{round}");
            assert!(record.status().is_some());
        }
    }
    assert_eq!(CALLS.get(), before);
    // Checks that the counter counts.
    drop(std::hint::black_box(Box::new(0)));
    assert_eq!(CALLS.get(), before + 2);
}

#[test]
fn a_rehearsal_takes_only_no_ops_with_a_record() {
    let portal = telpher_hw::rehearsal(64).unwrap();
    let record = RecordCell::new();
    let nop = Descriptor::nop().with_record(record.address());
    for descriptor in [
        Descriptor::nop(),
        nop.with_completion_address(record.address() + 8),
        Descriptor::new(Opcode::Drain).with_record(record.address()),
        Descriptor::fill(0, 0, 0).with_record(record.address()),
    ] {
        // SAFETY: none of them is executed.
        let submission = unsafe { Submission::vouch(descriptor) };
        assert_eq!(portal.offer(&submission), Offer::Retry, "{descriptor:?}");
    }
    assert!(record.status().is_none());
    assert_eq!(portal.health(), Health::Working);
}
