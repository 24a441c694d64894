//! A thread that sees a record's status sees all of the record, and the data it announces.
//!
//! Runs every interleaving of a device that completes and a client that polls, under loom's memory model. Seen to fail:
//! weaken the store of byte 0 in `RecordCell::complete` from Release to Relaxed, or the load in `RecordCell::status`
//! from Acquire to Relaxed. Then all three tests find an execution in which the status is set and a field is old.
//!
//! Not proved here: a real device's DMA, and the model's writer, which stores by address (`Space::write_record`).
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use telpher_abi::{CompletionRecord, Status, StatusByte};
use telpher_portal::RecordCell;

/// Returns a record whose every word contains its round.
fn full_record(round: u32) -> CompletionRecord {
    CompletionRecord::new(StatusByte::new(Status::Success))
        .with_bytes_completed(round)
        .with_fault_address(round.into())
        .with_crc(round)
        .with_dest_ref_tag(round)
}

#[test]
fn a_visible_status_publishes_the_fields_and_the_data() {
    loom::model(|| {
        let shared = Arc::new((RecordCell::new(), AtomicU32::new(0)));
        let device = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (record, data) = &*shared;
                // Relaxed: the data are plain bytes; only the record orders them.
                data.store(42, Ordering::Relaxed);
                record.complete(&full_record(1));
            })
        };
        let (record, data) = &*shared;
        if record.status().is_some() {
            // Relaxed: as above.
            assert_eq!(data.load(Ordering::Relaxed), 42);
            assert_eq!(record.read(), Some(full_record(1)));
        }
        device.join().expect("the device does not panic");
        assert_eq!(record.read(), Some(full_record(1)));
    });
}

#[test]
fn a_record_is_read_whole_or_not_at_all() {
    loom::model(|| {
        let record = Arc::new(RecordCell::new());
        let device = {
            let record = Arc::clone(&record);
            thread::spawn(move || record.complete(&full_record(1)))
        };
        if let Some(seen) = record.read() {
            assert_eq!(seen, full_record(1));
        }
        device.join().expect("the device does not panic");
    });
}

#[test]
fn a_cleared_record_never_shows_the_previous_round() {
    loom::model(|| {
        let shared = Arc::new((RecordCell::new(), AtomicU32::new(0)));
        // The first round is over.
        shared.0.complete(&full_record(1));
        assert_eq!(shared.0.read(), Some(full_record(1)));
        let device = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (record, offered) = &*shared;
                // Acquire: pairs with the Release below, as taking a descriptor from a queue pairs with offering it.
                if offered.load(Ordering::Acquire) == 1 {
                    record.complete(&full_record(2));
                }
            })
        };
        let (record, offered) = &*shared;
        record.clear();
        // Release: pairs with the Acquire of the device.
        offered.store(1, Ordering::Release);
        if let Some(seen) = record.read() {
            assert_eq!(seen, full_record(2));
        }
        device.join().expect("the device does not panic");
    });
}
