//! The calls that an observer gets, and what it may do.
#![allow(unsafe_code, reason = "the tests vouch for their own buffers")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use telpher_abi::{CompletionRecord, Descriptor, Flags, Status};
use telpher_device::{ModelDevice, ModelOptions, Runner};
use telpher_mem::{Fault, Space};
use telpher_model::{DispatchDecision, Job, Observer, Outcome, ReportedTo};
use telpher_portal::{Portal, RecordCell, Submission};

/// An observer that holds fills of 64 bytes at one of its two delay points while that gate is shut.
#[derive(Debug, Default)]
struct Gate {
    before: AtomicBool,
    after: AtomicBool,
}

impl Gate {
    fn stops(gate: &AtomicBool, job: &Job<'_>) -> bool {
        gate.load(Ordering::SeqCst) && job.descriptor.size() == 64
    }
}

impl Observer for Gate {
    fn dispatched(&self, job: &Job<'_>) -> DispatchDecision {
        if Gate::stops(&self.before, job) { DispatchDecision::Wait } else { DispatchDecision::Go }
    }

    fn concluding(&self, job: &Job<'_>, _: &CompletionRecord) -> bool {
        !Gate::stops(&self.after, job)
    }
}

/// An observer that records its calls as text and interferes as configured.
#[derive(Debug, Default)]
struct RecordingObserver {
    calls: Mutex<Vec<String>>,
    /// Ends members at this position with this status.
    refuse: Option<(Option<u16>, Status)>,
    /// Discards records.
    discards_records: bool,
}

impl RecordingObserver {
    fn note(&self, what: &str, job: &Job<'_>, rest: &str) {
        let member = job.member.map_or(String::new(), |member| format!("[{}]", member.index));
        self.calls.lock().unwrap().push(format!("{what} {}{member}{rest}", job.descriptor.opcode()));
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

impl Observer for RecordingObserver {
    fn dispatched(&self, job: &Job<'_>) -> DispatchDecision {
        self.note("take", job, "");
        match self.refuse {
            Some((index, status)) if index == job.member.map(|member| member.index) => DispatchDecision::End(status),
            _ => DispatchDecision::Go,
        }
    }

    fn execute(&self, job: &Job<'_>, space: &dyn Space, act: &mut dyn FnMut(&dyn Space) -> Outcome) -> Outcome {
        self.note("do", job, "");
        act(space)
    }

    fn record(
        &self,
        job: &Job<'_>,
        record: &CompletionRecord,
        write: &mut dyn FnMut() -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.note("record", job, &format!(" {:#x}", record.status_code()));
        if self.discards_records { Ok(()) } else { write() }
    }

    fn ended(&self, job: &Job<'_>, record: &CompletionRecord, reported_to: ReportedTo) {
        let reported_to = match reported_to {
            ReportedTo::Unwritable(_) => "Unwritable".to_owned(),
            reported_to => format!("{reported_to:?}"),
        };
        self.note("end", job, &format!(" {:#x} {reported_to}", record.status_code()));
    }
}

struct Fixture {
    notes: Arc<RecordingObserver>,
    portal: Arc<dyn Portal>,
}

impl Fixture {
    fn new(notes: RecordingObserver) -> Self {
        let notes = Arc::new(notes);
        let options = ModelOptions::default().with_runner(Runner::Inline).with_observer(Arc::clone(&notes) as _);
        let portal = ModelDevice::start(options).unwrap().portal("wq0.0").unwrap();
        Fixture { notes, portal }
    }

    fn offer(&self, descriptor: Descriptor) -> Vec<String> {
        // SAFETY: the tests below use buffers that outlive the call, and otherwise only unmapped addresses.
        let _ = self.portal.offer(&unsafe { Submission::vouch(descriptor) });
        self.portal.drive();
        self.notes.take()
    }
}

#[test]
fn an_observer_is_called_for_a_descriptor_from_dispatch_to_end() {
    let fixture = Fixture::new(RecordingObserver::default());
    let (src, dst, record) = ([7_u8; 64], [0_u8; 64], RecordCell::new());
    let copy = Descriptor::memory_move(src.as_ptr() as u64, dst.as_ptr() as u64, 64);
    let calls = fixture.offer(copy.with_record(record.address()));
    assert_eq!(calls, ["take memory-move", "do memory-move", "record memory-move 0x1", "end memory-move 0x1 Record"]);
    assert_eq!(fixture.offer(copy).last().unwrap(), "end memory-move 0x1 NotRequested");
    assert_eq!(fixture.offer(Descriptor::nop().with_record(0x20)).last().unwrap(), "end nop 0x1 Unwritable");
    // A refused descriptor without a record is reported in SWERROR.
    let bad = Descriptor::memory_move(0, 0, 0);
    assert_eq!(fixture.offer(bad).last().unwrap(), "end memory-move 0x13 Elsewhere");
}

#[test]
fn an_observer_sees_members_with_their_position_before_the_batch_ends() {
    let fixture = Fixture::new(RecordingObserver {
        refuse: Some((Some(1), Status::HardwareReadError)),
        ..RecordingObserver::default()
    });
    let records = [const { RecordCell::new }; 3].map(|new| new());
    let member = |record: &RecordCell| Descriptor::nop().with_record(record.address());
    let list = [member(&records[0]), member(&records[1]), Descriptor::nop().and_flags(Flags::FENCE)];
    let calls = fixture.offer(Descriptor::batch(list.as_ptr() as u64, 3).with_record(records[2].address()));
    let wanted = [
        "take batch",
        "take nop[0]",
        "record nop[0] 0x1",
        "end nop[0] 0x1 Record",
        "take nop[1]",
        "record nop[1] 0x20",
        "end nop[1] 0x20 Record",
        // The fence abandons the third member, which is not reported.
        "record batch 0x5",
        "end batch 0x5 Record",
    ];
    assert_eq!(calls, wanted);
    assert_eq!(records[1].status().unwrap().status(), Status::HardwareReadError);
    assert_eq!(records[2].read().unwrap().bytes_completed(), 2);
}

#[test]
fn a_record_that_the_observer_discards_is_never_written() {
    let fixture = Fixture::new(RecordingObserver { discards_records: true, ..RecordingObserver::default() });
    let record = RecordCell::new();
    let calls = fixture.offer(Descriptor::nop().with_record(record.address()));
    assert_eq!(calls, ["take nop", "record nop 0x1", "end nop 0x1 Record"]);
    assert!(record.status().is_none());
}

#[test]
fn a_delayed_descriptor_is_overtaken_in_another_lane_but_not_by_a_drain() {
    for runner in [Runner::Inline, Runner::Threaded] {
        for after in [false, true] {
            let gate = Arc::new(Gate::default());
            let stop = if after { &gate.after } else { &gate.before };
            stop.store(true, Ordering::SeqCst);
            let options = ModelOptions { lanes: 3, ..ModelOptions::default().with_runner(runner) };
            let device = ModelDevice::start(options.with_observer(Arc::clone(&gate) as _)).unwrap();
            // In the default configuration the shared queue's group has one engine.
            let portal = device.portal("wq0.0").unwrap();
            let buffer = [0_u8; 64];
            let records = [const { RecordCell::new }; 3].map(|new| new());
            let descriptors = [
                Descriptor::fill(0x0101_0101_0101_0101, buffer.as_ptr() as u64, 64),
                Descriptor::nop(),
                Descriptor::drain(),
            ];
            for (descriptor, record) in descriptors.iter().zip(&records) {
                // SAFETY: buffer and records live until the end of this round, which waits for all descriptors.
                let _ = portal.offer(&unsafe { Submission::vouch(descriptor.with_record(record.address())) });
            }
            let wait = |record: &RecordCell| {
                while record.status().is_none() {
                    portal.drive();
                    std::thread::yield_now();
                }
            };
            wait(&records[1]);
            for _ in 0..100 {
                portal.drive();
            }
            assert!(records[0].status().is_none() && records[2].status().is_none());
            assert_eq!(std::hint::black_box(&buffer)[63], u8::from(after));
            stop.store(false, Ordering::SeqCst);
            wait(&records[0]);
            wait(&records[2]);
        }
    }
}
