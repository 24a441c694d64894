//! No other code gets buffers in flight, whatever happens to the job.

use crate::common::device::TestDevice;
use crate::common::{Watched, block_on, mover, policy};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use telpher_mover::{Mover, OnFault, Outcome, Policy, Via};
use telpher_portal::QueueMode;

fn manual() -> Arc<TestDevice> {
    let device = Arc::new(TestDevice::new(QueueMode::Dedicated, 8));
    device.state().manual = true;
    device
}

#[test]
fn a_job_returns_its_buffers_whether_it_is_awaited_or_waited_for() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = mover(&device, policy());
    let done = mover.copy(vec![7; 100], vec![0; 100]).wait();
    assert_eq!(done.via, Via::Device);
    assert_eq!(done.into_parts(), (Ok(Outcome::Done), vec![7; 100], vec![7; 100]));
    let done = block_on(mover.copy(vec![8; 100], vec![0; 100]), 10).expect("the device is inline");
    assert_eq!(done.into_parts(), (Ok(Outcome::Done), vec![8; 100], vec![8; 100]));
    let (result, src, dst) = mover.copy(vec![8; 100], vec![0; 99]).wait().into_parts();
    assert_eq!(result.unwrap_err().to_string(), "lengths of 100 and 99 bytes do not fit together");
    assert_eq!((src.len(), dst.len()), (100, 99));
}

#[test]
fn drop_in_flight_keeps_the_buffer() {
    let device = manual();
    let mover = mover(&device, policy());
    let (src, src_dropped) = Watched::new(vec![7; 100]);
    let (dst, dst_dropped) = Watched::new(vec![0; 100]);
    drop(mover.copy(src, dst));
    let gone = || (src_dropped.load(Ordering::SeqCst), dst_dropped.load(Ordering::SeqCst));
    mover.drive();
    assert_eq!((gone(), mover.orphaned()), ((false, false), 1));
    // The device writes into memory that is still there …
    device.run(1);
    assert_eq!(gone(), (false, false));
    // … and only a thread that has seen the record frees it.
    while mover.orphaned() > 0 {
        mover.drive();
    }
    assert_eq!(gone(), (true, true));
}

#[test]
fn a_dropped_future_keeps_the_buffer_too() {
    let device = manual();
    let mover = mover(&device, policy());
    let (dst, dropped) = Watched::new(vec![0; 100]);
    assert!(block_on(mover.fill(dst, 1), 3).is_none());
    assert!(!dropped.load(Ordering::SeqCst));
    device.run(1);
    (0..200).for_each(|_| mover.drive());
    assert!(dropped.load(Ordering::SeqCst));
}

#[test]
fn a_forgotten_job_leaks_its_buffer() {
    let device = manual();
    let mover = mover(&device, policy());
    let (dst, dropped) = Watched::new(vec![0; 100]);
    std::mem::forget(mover.fill(dst, 1));
    device.run(1);
    (0..200).for_each(|_| mover.drive());
    drop(mover);
    assert!(!dropped.load(Ordering::SeqCst));
}

#[test]
fn an_expired_job_quarantines_its_buffer_until_the_record_is_written() {
    let device = manual();
    let mover = mover(&device, policy());
    let (dst, dropped) = Watched::new(vec![0; 100]);
    let expired = mover.fill(dst, 1).deadline(Duration::from_millis(1)).wait().unwrap_err();
    assert!(expired.buffers.is_none());
    assert_eq!(expired.to_string(), "the deadline passed before the job was done; its buffers are quarantined");
    assert_eq!((mover.quarantined(), mover.orphaned()), (1, 0));
    // Late, but it writes into memory that the mover still has.
    device.run(1);
    assert!(!dropped.load(Ordering::SeqCst));
    (0..200).for_each(|_| mover.drive());
    assert_eq!((mover.quarantined(), dropped.load(Ordering::SeqCst)), (0, true));
}

#[test]
fn a_job_that_no_device_took_returns_its_buffers_at_its_deadline() {
    let device = manual();
    device.state().retries = u64::MAX;
    let retry = telpher_mover::Retry { attempts: u32::MAX, pause: Duration::from_micros(3) };
    let mover = mover(&device, Policy { retry, ..policy() });
    let expired = mover.fill(vec![0_u8; 10], 1).deadline(Duration::from_millis(1)).wait().unwrap_err();
    assert_eq!(expired.buffers, Some((vec![0; 10],)));
    assert_eq!(mover.quarantined(), 0);
}

#[test]
fn a_job_that_ends_before_its_deadline_gives_its_result() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = mover(&device, policy());
    let timed = mover.fill(vec![0_u8; 10], 0x0101_0101_0101_0101).deadline(Duration::from_millis(1));
    assert_eq!(timed.wait().unwrap().buffers, (vec![1; 10],));
    let timed = Mover::cpu().fill(vec![0_u8; 10], 0).deadline(Duration::ZERO);
    assert_eq!(block_on(timed, 1).unwrap().unwrap().result, Ok(Outcome::Done));
}

#[test]
fn a_slot_is_used_again_after_quarantine() {
    let device = manual();
    let mover = mover(&device, Policy { capacity: 2, ..policy() });
    for round in 0..5 {
        let jobs = [(); 2].map(|()| mover.fill(vec![0_u8; 10], 1).deadline(Duration::from_micros(50)));
        for job in jobs {
            assert!(job.wait().is_err());
        }
        assert_eq!(mover.quarantined(), 2, "round {round}");
        // No slot is free: the CPU does it.
        assert_eq!(mover.fill(vec![0_u8; 10], 1).wait().via, Via::Cpu);
        device.run(2);
        (0..10).for_each(|_| mover.drive());
        assert_eq!(mover.quarantined(), 0);
    }
    assert_eq!(device.state().lost, 0);
}

#[test]
fn the_last_handle_waits_for_dropped_jobs() {
    let device = Arc::new(TestDevice::new(QueueMode::Shared, 8));
    let mover = mover(&device, policy());
    let (dst, dropped) = Watched::new(vec![0; 100]);
    device.state().manual = true;
    drop(mover.fill(dst, 1));
    device.state().manual = false;
    drop(mover);
    assert!(dropped.load(Ordering::SeqCst));
    assert_eq!(device.state().taken.len(), 1);
}

#[test]
fn the_last_handle_leaks_jobs_that_never_complete() {
    let device = manual();
    let mover = mover(&device, Policy { linger: Duration::from_millis(1), ..policy() });
    let (dst, dropped) = Watched::new(vec![0; 100]);
    drop(mover.fill(dst, 1));
    drop(mover);
    assert!(!dropped.load(Ordering::SeqCst));
    // A late write goes into memory that was leaked, not freed.
    device.run(1);
}

#[test]
fn a_job_on_a_halted_device_ends_at_its_deadline() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = mover(&device, Policy { on_fault: OnFault::FinishOnCpu, ..policy() });
    device.state().halted = true;
    let job = mover.copy(vec![1_u8; 64], vec![0_u8; 64]).deadline(Duration::from_millis(2));
    assert!(job.wait().is_err());
    device.state().halted = false;
    // The mover works again afterwards.
    assert_eq!(mover.copy(vec![1_u8; 64], vec![0_u8; 64]).wait().via, Via::Device);
    (0..200).for_each(|_| mover.drive());
    assert_eq!(mover.quarantined(), 0);
}

#[test]
fn a_wait_that_times_out_leaves_the_job_in_flight() {
    let device = manual();
    let mover = mover(&device, policy());
    let mut job = mover.fill(vec![0_u8; 10], 0x0101_0101_0101_0101);
    assert!(!job.wait_for(Duration::from_micros(50)));
    assert_eq!(mover.quarantined(), 0, "nothing was given up");
    device.run(1);
    assert!(job.wait_for(Duration::ZERO));
    assert!(job.wait_for(Duration::ZERO), "a finished job needs no wait");
    assert_eq!(job.wait().buffers, (vec![1; 10],));
}

#[test]
fn small_operations_never_reach_a_device() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = mover(&device, Policy::default());
    assert_eq!(mover.copy(vec![7; 4095], vec![0; 4095]).wait().via, Via::Cpu);
    assert_eq!(mover.fill(vec![0_u8; 4095], 1).wait().via, Via::Cpu);
    let mut dst = [0; 64];
    assert_eq!(mover.copy_slices(&[9; 64], &mut dst), Ok(Outcome::Done));
    assert_eq!((dst, device.state().taken.len()), ([9; 64], 0));
    assert_eq!(mover.copy(vec![7; 4096], vec![0; 4096]).wait().via, Via::Device);
    let (src, mut dst) = (vec![9; 5000], vec![0; 5000]);
    assert_eq!(mover.copy_slices(&src, &mut dst), Ok(Outcome::Done));
    assert_eq!((dst == src, device.state().taken.len()), (true, 2));
    assert_eq!(
        mover.copy_slices(&[1; 3], &mut [0; 4]).unwrap_err().to_string(),
        "lengths of 3 and 4 bytes do not fit together"
    );
}
