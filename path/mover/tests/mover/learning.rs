//! Device or CPU while a mover learns, with devices so good or so bad that chance does not decide.

use crate::common::device::TestDevice;
use std::sync::Arc;
use telpher_abi::Status;
use telpher_mover::{Learning, Mover, Opcode, Outcome, Policy, Threshold, Tuning, Via};
use telpher_portal::Portal;

/// A size for which the test device, which works byte by byte, takes a hundred times as long as the CPU.
const LARGE: usize = 64 << 10;

fn learner(device: &Arc<TestDevice>, threshold: Threshold) -> Mover {
    let policy = Policy { threshold, learning: Learning::On, ..Policy::default() };
    Mover::new([Arc::clone(device) as Arc<dyn Portal>], policy)
}

/// Runs 300 operations; returns how many of the last hundred a device did.
fn late_on_device(mut operation: impl FnMut() -> Via) -> usize {
    (0..300).map(|_| operation()).skip(200).filter(|via| *via == Via::Device).count()
}

#[test]
fn a_far_slower_device_loses_its_work_through_every_interface() {
    let device = Arc::new(TestDevice::with(|_| {}));
    for way in 0..4 {
        let mover = learner(&device, Threshold::DEVICE);
        let before = device.state().taken.len();
        let late = late_on_device(|| {
            let (src, mut dst) = (vec![7; LARGE], vec![0; LARGE]);
            let (via, dst) = match way {
                0 => {
                    let done = mover.copy(src, dst).wait();
                    (done.via, done.buffers.1)
                }
                1 => {
                    let mut job = mover.copy(src, dst);
                    while !job.is_done() {}
                    let done = job.wait();
                    (done.via, done.buffers.1)
                }
                2 => {
                    let mut via = Via::Both;
                    mover.scope(|scope| via = scope.copy(&src, &mut dst).wait().via);
                    (via, dst)
                }
                _ => {
                    let taken = device.state().taken.len();
                    assert_eq!(mover.copy_slices(&src, &mut dst), Ok(Outcome::Done));
                    (if device.state().taken.len() == taken { Via::Cpu } else { Via::Device }, dst)
                }
            };
            assert!(dst.iter().all(|byte| *byte == 7));
            via
        });
        assert!(late <= 3, "way {way}: {late} of the last 100 went to the device");
        assert!(device.state().taken.len() > before, "way {way}: the device was never tried");
    }
}

#[test]
fn a_far_faster_device_gets_work_below_the_threshold() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = learner(&device, Threshold::all(1 << 30));
    let (mut a, mut b) = (vec![7; 1 << 20], vec![7; 1 << 20]);
    let late = late_on_device(|| {
        // It answers *equal* without comparing.
        device.state().answers.push_back(Status::Success);
        let done = mover.compare(std::mem::take(&mut a), std::mem::take(&mut b)).wait();
        device.state().answers.clear();
        assert_eq!(done.result, Ok(Outcome::Equal));
        (a, b) = done.buffers;
        done.via
    });
    assert!(late >= 97, "{late} of the last 100 went to the device");
    assert!(mover.threshold().of(Opcode::Compare) <= 1 << 20);
    assert_eq!(mover.policy().threshold.of(Opcode::Compare), 1 << 30, "the policy is unchanged");

    // A batch uses what single operations have taught.
    let mut batch = mover.batch();
    let key = batch.compare(a, b);
    device.state().answers.push_back(Status::Success);
    assert_eq!(batch.submit().wait().take(key).via, Via::Device);
}

#[test]
fn learning_starts_from_the_costs_of_a_tuning_file() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = learner(&device, Threshold::DEVICE);
    let file = "version = 1\n[machine]\ncpu = \"x\"\ndevice = \"y\"\nin-flight = 1\n[measured]\n\
                fill = [[4096, 100, 90000], [65536, 1000, 900000], [1048576, 90000, 9000000]]\n";
    mover.load_costs(&Tuning::parse(file).unwrap());
    assert_eq!(mover.threshold().of(Opcode::MemoryMove), 0, "the file has no costs of copies");
    // Three samples are enough to start with the CPU; the device is still tried a little.
    let on_device = (0..100).filter(|_| mover.fill(vec![0_u8; LARGE], 7).wait().via == Via::Device).count();
    assert!(on_device <= 2, "{on_device}");
}

#[test]
fn never_is_a_rule_and_not_an_estimate() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = learner(&device, Threshold::CPU);
    let late = late_on_device(|| mover.fill(vec![0_u8; LARGE], 7).wait().via);
    assert_eq!((late, device.state().taken.len()), (0, 0));
}

#[test]
fn without_learning_the_threshold_decides() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let policy = Policy { threshold: Threshold::all(LARGE as u64), ..Policy::default() };
    let mover = Mover::new([Arc::clone(&device) as Arc<dyn Portal>], policy);
    assert_eq!(late_on_device(|| mover.fill(vec![0_u8; LARGE], 7).wait().via), 100);
    assert_eq!(late_on_device(|| mover.fill(vec![0_u8; LARGE - 1], 7).wait().via), 0);
    assert_eq!(mover.threshold(), policy.threshold);
}

#[test]
fn operations_without_a_size_and_empty_ones_follow_the_threshold() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = learner(&device, Threshold::default());
    assert_eq!(late_on_device(|| mover.nop().wait().via), 100);
    assert_eq!(late_on_device(|| mover.copy(Vec::<u8>::new(), Vec::<u8>::new()).wait().via), 0);
}

#[test]
fn a_timed_job_that_is_dropped_or_forgotten_teaches_nothing_and_harms_nothing() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = learner(&device, Threshold::DEVICE);
    for i in 0..50 {
        let job = mover.fill(vec![0_u8; LARGE], 7);
        if i % 2 == 0 {
            drop(job);
        } else {
            assert!(job.deadline(std::time::Duration::from_secs(100)).wait().is_ok());
        }
    }
    while mover.orphaned() > 0 {
        mover.drive();
    }
}
