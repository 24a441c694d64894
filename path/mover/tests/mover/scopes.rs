//! A scope gives borrowed memory back only when no device has it.

use crate::common::device::TestDevice;
use crate::common::{mover, policy};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use telpher_mover::{Mover, Outcome, Policy};
use telpher_portal::{Portal, QueueMode};

#[test]
fn a_scope_ends_after_everything_in_it() {
    let device = Arc::new(TestDevice::new(QueueMode::Dedicated, 4));
    let mover = mover(&device, policy());
    let (src, mut dst) = (vec![7; 8000], vec![0; 8000]);
    let equal = mover.scope(|scope| {
        for (src, dst) in src.chunks(100).zip(dst.chunks_mut(100)) {
            scope.copy(src, dst);
        }
        scope.compare(&src[..4000], &src[4000..]).wait().result
    });
    assert_eq!((equal, dst == src, device.state().lost), (Ok(Outcome::Equal), true, 0));
}

#[test]
fn a_panicking_closure_still_waits() {
    let device = Arc::new(TestDevice::with(|_| {}));
    device.state().manual = true;
    let mover = Mover::new([Arc::clone(&device) as Arc<dyn Portal>], policy());
    let (src, mut dst) = (vec![7; 100], vec![0; 100]);
    let engine = std::thread::spawn({
        let device = Arc::clone(&device);
        move || {
            while device.state().taken.is_empty() {
                std::thread::yield_now();
            }
            // The closure has panicked long before the device begins.
            std::thread::sleep(Duration::from_millis(20));
            device.run(1)
        }
    });
    let result = catch_unwind(AssertUnwindSafe(|| {
        mover.scope(|scope| {
            scope.copy(&src, &mut dst);
            panic!("in the closure");
        })
    }));
    assert_eq!(dst, src, "the scope has waited");
    assert_eq!(*result.unwrap_err().downcast::<&str>().unwrap(), "in the closure");
    assert_eq!(engine.join().unwrap(), 1);
}

#[test]
fn a_forgotten_handle_is_waited_for() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = mover(&device, policy());
    let (src, mut dst) = (vec![7; 100], vec![0; 100]);
    mover.scope(|scope| {
        let _forgotten = std::mem::ManuallyDrop::new(scope.copy(&src, &mut dst));
    });
    assert_eq!(dst, src);
}

#[test]
fn threads_of_a_scope_share_it() {
    let device = Arc::new(TestDevice::new(QueueMode::Dedicated, 2));
    let mover = mover(&device, policy());
    let (src, mut dst) = (vec![7; 8000], vec![0; 8000]);
    mover.scope(|scope| {
        std::thread::scope(|threads| {
            for (src, dst) in src.chunks(2000).zip(dst.chunks_mut(2000)) {
                threads.spawn(move || {
                    for (src, dst) in src.chunks(100).zip(dst.chunks_mut(100)) {
                        assert_eq!(scope.copy(src, dst).wait().result, Ok(Outcome::Done));
                    }
                });
            }
        });
    });
    assert_eq!(dst, src);
}

#[test]
fn different_lengths_are_an_error() {
    let mover = Mover::cpu();
    let (a, mut b) = ([0; 4], [0; 5]);
    let result = mover.scope(|scope| scope.copy(&a, &mut b).wait().result);
    assert_eq!(result.unwrap_err().to_string(), "lengths of 4 and 5 bytes do not fit together");
}

#[test]
fn every_operation_works_on_borrowed_slices() {
    let device = Arc::new(TestDevice::with(|_| {}));
    for mover in [mover(&device, policy()), mover(&device, Policy::default())] {
        let mut buf: Vec<u8> = (0..100).collect();
        let (mut one, mut two) = ([0; 100], [0; 100]);
        mover.scope(|scope| {
            assert_eq!(scope.copy_within(&mut buf, 0..50, 10).wait().result, Ok(Outcome::Done));
        });
        let expected: Vec<u8> = (0..10).chain(0..50).chain(60..100).collect();
        assert_eq!(buf, expected);
        mover.scope(|scope| {
            scope.dualcast(&buf, &mut one, &mut two);
        });
        assert_eq!((&one[..], &two[..]), (&buf[..], &buf[..]));
        mover.scope(|scope| {
            scope.fill(&mut one, 0);
            let crc = scope.crc(b"123456789", 0, telpher_mover::CrcMode::default()).wait().result;
            assert_eq!(crc, Ok(Outcome::Crc(0xe306_9283)));
        });
        assert_eq!(one, [0; 100]);
    }
}
