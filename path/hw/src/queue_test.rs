//! Tests a queue before it is handed out: posted writes to a queue that does not work are lost silently, and the driver
//! may hide that Batch works.
#![allow(unsafe_code, reason = "vouches for descriptors that access only this module's own boxes")]

use std::io;
use std::time::{Duration, Instant};
use telpher_abi::{Descriptor, Status};
use telpher_portal::{Offer, RecordCell, Submission};

/// The time limit of a test. Source: chosen. A queue full of others' longest transfers (16 of 2 MiB at 1 GB/s) finishes
/// them in 30 ms, and a queue that takes a second is slower than the processor.
pub(crate) const TRIAL_TIMEOUT: Duration = Duration::from_secs(1);

/// The result of a test.
#[derive(Debug)]
pub(crate) enum Trial {
    /// The status in the record.
    Ended(Status),
    /// Taken, but no record within [`TRIAL_TIMEOUT`].
    Silent,
    /// Not taken within [`TRIAL_TIMEOUT`]: full of others' work.
    Full,
    /// The driver refuses to submit it.
    Refused(io::Error),
}

/// A batch of two No-ops, and its record.
#[derive(Debug, Default)]
struct Memory {
    record: RecordCell,
    members: [RecordCell; 2],
    list: [Descriptor; 2],
}

/// Submits a No-op.
pub(crate) fn nop(offer: impl Fn(&Submission) -> io::Result<Offer>) -> Trial {
    let memory = Box::<Memory>::default();
    let descriptor = Descriptor::nop().with_record(memory.record.address());
    run(memory, descriptor, offer)
}

/// Submits a Batch of two No-ops.
pub(crate) fn batch(offer: impl Fn(&Submission) -> io::Result<Offer>) -> Trial {
    let mut memory = Box::<Memory>::default();
    for (member, record) in memory.list.iter_mut().zip(&memory.members) {
        *member = Descriptor::nop().with_record(record.address());
    }
    let list = std::ptr::from_ref(&memory.list) as u64;
    let descriptor = Descriptor::batch(list, 2).with_record(memory.record.address());
    run(memory, descriptor, offer)
}

fn run(memory: Box<Memory>, descriptor: Descriptor, offer: impl Fn(&Submission) -> io::Result<Offer>) -> Trial {
    // SAFETY: the descriptor uses the box's own list and records, which no other code uses. They are leaked below
    // unless the record has been seen.
    let submission = unsafe { Submission::vouch(descriptor) };
    let began = Instant::now();
    loop {
        match offer(&submission) {
            Ok(Offer::Taken | Offer::Lost) => break,
            Ok(Offer::Retry) if began.elapsed() < TRIAL_TIMEOUT => std::thread::yield_now(),
            Ok(Offer::Retry) => return Trial::Full,
            Err(error) => return Trial::Refused(error),
        }
    }
    loop {
        if let Some(status) = memory.record.status() {
            return Trial::Ended(status.status());
        }
        if began.elapsed() >= TRIAL_TIMEOUT {
            // The device may still write to it.
            Box::leak(memory);
            return Trial::Silent;
        }
        std::thread::yield_now();
    }
}
