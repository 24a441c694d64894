//! What an observer hears, and what it may do.
#![allow(unsafe_code, reason = "the tests vouch for their own buffers")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use telpher_abi::{CompletionRecord, Descriptor, Flags, Status};
use telpher_device::{ModelDevice, ModelOptions, Runner};
use telpher_mem::{Fault, Space};
use telpher_model::{Job, Observer, Outcome, Told, Verdict};
use telpher_portal::{Portal, RecordCell, Submission};

/// Keeps fills of 64 bytes in hand at one of the bends while it is shut.
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
    fn dispatched(&self, job: &Job<'_>) -> Verdict {
        if Gate::stops(&self.before, job) { Verdict::Wait } else { Verdict::Go }
    }

    fn concluding(&self, job: &Job<'_>, _: &CompletionRecord) -> bool {
        !Gate::stops(&self.after, job)
    }
}

/// Notes what it hears as words, and does what it is told.
#[derive(Debug, Default)]
struct Notes {
    heard: Mutex<Vec<String>>,
    /// Ends members at this position with this status.
    refuse: Option<(Option<u16>, Status)>,
    /// Swallows records.
    lose: bool,
}

impl Notes {
    fn note(&self, what: &str, job: &Job<'_>, rest: &str) {
        let member = job.member.map_or(String::new(), |member| format!("[{}]", member.index));
        self.heard.lock().unwrap().push(format!("{what} {}{member}{rest}", job.descriptor.opcode()));
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.heard.lock().unwrap())
    }
}

impl Observer for Notes {
    fn dispatched(&self, job: &Job<'_>) -> Verdict {
        self.note("take", job, "");
        match self.refuse {
            Some((index, status)) if index == job.member.map(|member| member.index) => Verdict::End(status),
            _ => Verdict::Go,
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
        if self.lose { Ok(()) } else { write() }
    }

    fn ended(&self, job: &Job<'_>, record: &CompletionRecord, told: Told) {
        let told = match told {
            Told::Unwritable(_) => "Unwritable".to_owned(),
            told => format!("{told:?}"),
        };
        self.note("end", job, &format!(" {:#x} {told}", record.status_code()));
    }
}

struct Stand {
    notes: Arc<Notes>,
    portal: Arc<dyn Portal>,
}

impl Stand {
    fn new(notes: Notes) -> Self {
        let notes = Arc::new(notes);
        let options = ModelOptions::default().with_runner(Runner::Inline).with_observer(Arc::clone(&notes) as _);
        let portal = ModelDevice::start(options).unwrap().portal("wq0.0").unwrap();
        Stand { notes, portal }
    }

    fn offer(&self, descriptor: Descriptor) -> Vec<String> {
        // SAFETY: the tests below name buffers that outlive the call, and nothing else that is mapped.
        let _ = self.portal.offer(&unsafe { Submission::vouch(descriptor) });
        self.portal.drive();
        self.notes.take()
    }
}

#[test]
fn an_observer_hears_a_descriptor_from_dispatch_to_end() {
    let stand = Stand::new(Notes::default());
    let (src, dst, record) = ([7_u8; 64], [0_u8; 64], RecordCell::new());
    let copy = Descriptor::memory_move(src.as_ptr() as u64, dst.as_ptr() as u64, 64);
    let heard = stand.offer(copy.with_record(record.address()));
    assert_eq!(heard, ["take memory-move", "do memory-move", "record memory-move 0x1", "end memory-move 0x1 Record"]);
    assert_eq!(stand.offer(copy).last().unwrap(), "end memory-move 0x1 Nobody");
    assert_eq!(stand.offer(Descriptor::nop().with_record(0x20)).last().unwrap(), "end nop 0x1 Unwritable");
    // A refused descriptor that names no record ends in SWERROR.
    let bad = Descriptor::memory_move(0, 0, 0);
    assert_eq!(stand.offer(bad).last().unwrap(), "end memory-move 0x13 Elsewhere");
}

#[test]
fn members_are_heard_with_their_position_before_their_batch_ends() {
    let stand = Stand::new(Notes { refuse: Some((Some(1), Status::HardwareReadError)), ..Notes::default() });
    let records = [const { RecordCell::new }; 3].map(|new| new());
    let member = |record: &RecordCell| Descriptor::nop().with_record(record.address());
    let list = [member(&records[0]), member(&records[1]), Descriptor::nop().and_flags(Flags::FENCE)];
    let heard = stand.offer(Descriptor::batch(list.as_ptr() as u64, 3).with_record(records[2].address()));
    let wanted = [
        "take batch",
        "take nop[0]",
        "record nop[0] 0x1",
        "end nop[0] 0x1 Record",
        "take nop[1]",
        "record nop[1] 0x20",
        "end nop[1] 0x20 Record",
        // The fence abandons the third: nobody hears of it.
        "record batch 0x5",
        "end batch 0x5 Record",
    ];
    assert_eq!(heard, wanted);
    assert_eq!(records[1].status().unwrap().status(), Status::HardwareReadError);
    assert_eq!(records[2].read().unwrap().bytes_completed(), 2);
}

#[test]
fn a_record_that_the_observer_keeps_is_never_written() {
    let stand = Stand::new(Notes { lose: true, ..Notes::default() });
    let record = RecordCell::new();
    let heard = stand.offer(Descriptor::nop().with_record(record.address()));
    assert_eq!(heard, ["take nop", "record nop 0x1", "end nop 0x1 Record"]);
    assert!(record.status().is_none());
}

#[test]
fn what_waits_in_one_lane_is_overtaken_in_another_but_not_by_a_drain() {
    for runner in [Runner::Inline, Runner::Threaded] {
        for after in [false, true] {
            let gate = Arc::new(Gate::default());
            let stop = if after { &gate.after } else { &gate.before };
            stop.store(true, Ordering::SeqCst);
            let options = ModelOptions { lanes: 3, ..ModelOptions::default().with_runner(runner) };
            let device = ModelDevice::start(options.with_observer(Arc::clone(&gate) as _)).unwrap();
            // The shared queue's group has one engine in the default configuration.
            let portal = device.portal("wq0.0").unwrap();
            let buffer = [0_u8; 64];
            let records = [const { RecordCell::new }; 3].map(|new| new());
            let descriptors = [
                Descriptor::fill(0x0101_0101_0101_0101, buffer.as_ptr() as u64, 64),
                Descriptor::nop(),
                Descriptor::drain(),
            ];
            for (descriptor, record) in descriptors.iter().zip(&records) {
                // SAFETY: buffer and records live to the end of this round, and all is waited for.
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
