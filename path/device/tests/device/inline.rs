//! The inline runner with several submitting threads.
#![allow(unsafe_code, reason = "the tests vouch for their own buffers")]

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use telpher_abi::registers::PortalKind;
use telpher_abi::{Descriptor, Opcode, Status};
use telpher_device::{ModelDevice, ModelOptions};
use telpher_mem::Space;
use telpher_model::{Job, Observer, Outcome};
use telpher_portal::{Offer, Portal, RecordCell, Submission};

fn offer(portal: &dyn Portal, descriptor: Descriptor) -> Offer {
    // SAFETY: the tests submit descriptors whose buffers outlive the wait for the record, or that access no memory but
    // the record.
    portal.offer(&unsafe { Submission::vouch(descriptor) })
}

/// Returns the shared queue of the default configuration, at its limited portal.
fn shared(device: &ModelDevice) -> Arc<dyn Portal> {
    let queue = device.enabled_queues().into_iter().find(|queue| {
        device.portal_as(*queue, PortalKind::LimitedMsix, None, 1).info().mode == telpher_portal::QueueMode::Shared
    });
    device.portal(&format!("wq0.{}", queue.expect("the default has a shared queue"))).unwrap()
}

/// An observer that executes the first fill while another thread submits.
#[derive(Debug, Default)]
struct SubmittingObserver {
    device: OnceLock<ModelDevice>,
    executing: AtomicBool,
    /// True once the other thread's submission has returned.
    returned: AtomicBool,
    /// The value of `returned` at the end of the fill.
    returned_meanwhile: AtomicBool,
}

impl Observer for SubmittingObserver {
    fn execute(&self, job: &Job<'_>, space: &dyn Space, act: &mut dyn FnMut(&dyn Space) -> Outcome) -> Outcome {
        if job.descriptor.opcode() == Opcode::Fill {
            self.executing.store(true, Ordering::SeqCst);
            let device = self.device.get().unwrap();
            // Waits until the other thread's descriptor is in the queue.
            while device.occupancy(u32::try_from(job.wq).unwrap()) == 0 {
                thread::yield_now();
            }
            for _ in 0..20 {
                thread::yield_now();
            }
            self.returned_meanwhile.store(self.returned.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        act(space)
    }
}

#[test]
fn a_submission_returns_when_its_descriptor_has_been_executed() {
    let busy = Arc::new(SubmittingObserver::default());
    let device = ModelDevice::start(ModelOptions::default().with_observer(Arc::clone(&busy) as _)).unwrap();
    busy.device.set(device.clone()).unwrap();
    let portal = shared(&device);
    let (filled, done, mut buffer) = (RecordCell::new(), RecordCell::new(), [0_u8; 64]);
    let fill = Descriptor::fill(7, buffer.as_mut_ptr() as u64, 64).with_record(filled.address());
    let nop = Descriptor::nop().with_record(done.address());
    thread::scope(|scope| {
        scope.spawn(|| {
            while !busy.executing.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            assert_eq!(offer(&*portal, nop), Offer::Taken);
            let record = done.read();
            busy.returned.store(true, Ordering::SeqCst);
            assert_eq!(record.expect("the record is written before the submission returns").status(), Status::Success);
        });
        assert_eq!(offer(&*portal, fill), Offer::Taken);
        assert_eq!(filled.read().expect("as for the other").status(), Status::Success);
    });
    assert!(!busy.returned_meanwhile.load(Ordering::SeqCst), "left to the thread that was executing");
}

/// Regression: threads that left their descriptors to another thread and continued filled the queue.
#[test]
fn as_many_threads_as_the_threshold_never_get_retry() {
    let device = ModelDevice::start(ModelOptions::default()).unwrap();
    let portal = shared(&device);
    let threads = 16;
    assert!(portal.info().size >= threads, "{}", portal.info().size);
    let retries = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let (source, mut target) = (vec![5_u8; 1 << 16], vec![0_u8; 1 << 16]);
                for _ in 0..300 {
                    let record = RecordCell::new();
                    let copy = Descriptor::memory_move(source.as_ptr() as u64, target.as_mut_ptr() as u64, 1 << 16);
                    if offer(&*portal, copy.with_record(record.address())) == Offer::Retry {
                        retries.fetch_add(1, Ordering::Relaxed);
                    } else {
                        assert_eq!(record.read().expect("executed").status(), Status::Success);
                    }
                }
                assert!(source == target);
            });
        }
    });
    assert_eq!(retries.into_inner(), 0);
}
