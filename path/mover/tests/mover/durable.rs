//! Durable copies: the flags of their descriptors, and whether a device or the CPU makes them. In `faults_process.rs` a
//! process that makes some is killed.

use crate::common::device::TestDevice;
use crate::common::{Chance, durable_file, mover, policy};
use crate::recovery::{LEN, MAXES, check_via, disturbed, splits};
use std::sync::Arc;
use telpher_abi::Flags;
use telpher_abi::registers::GenCap;
use telpher_mover::{Hint, Mover, Outcome, Policy, StoreError, Via};

/// The destination is memory, not the cache, and is read back: whatever the policy says about caches.
#[test]
fn a_device_gets_the_flags_of_a_durable_write() {
    for hint in [Hint::Cache, Hint::Memory] {
        let device = Arc::new(TestDevice::with(|_| {}));
        let mover = mover(&device, Policy { hint, ..policy() });
        let source = Chance::new(1).bytes(9000);
        let done = mover.copy_durable(source.clone(), vec![0; 9000]).wait();
        assert_eq!((done.result, done.via, done.buffers.1 == source), (Ok(Outcome::Done), Via::Device, true));
        let flags = device.state().move_flags.pop().unwrap();
        assert!(flags.contains(Flags::DESTINATION_READBACK) && !flags.contains(Flags::CACHE_CONTROL_1), "{flags:?}");
        mover.copy(source, vec![0; 9000]).wait();
        let flags = device.state().move_flags.pop().unwrap();
        assert!(!flags.contains(Flags::DESTINATION_READBACK), "{flags:?}");
        assert_eq!(flags.contains(Flags::CACHE_CONTROL_1), hint == Hint::Cache);
    }
}

#[test]
fn a_device_without_readback_leaves_durable_copies_to_the_cpu() {
    let without = |gen_cap: GenCap| gen_cap.with_destination_readback(false);
    let device = Arc::new(TestDevice::with(|info| info.gen_cap = without(info.gen_cap)));
    let mover = mover(&device, policy());
    let source = Chance::new(2).bytes(9000);
    let done = mover.copy_durable(source.clone(), vec![0; 9000]).wait();
    assert_eq!((done.result, done.via, done.buffers.1 == source), (Ok(Outcome::Done), Via::Cpu, true));
    assert!(device.state().taken.is_empty());
}

#[test]
fn a_durable_copy_resumes_at_every_page() {
    let source = Chance::new(3).bytes(LEN);
    for max in MAXES {
        for split in splits(2) {
            let (src, dst) = (source.clone(), vec![0; LEN]);
            let (mover, device) = disturbed(&split, max, &[&src, &dst]);
            let done = mover.copy_durable(src, dst).wait();
            check_via(&split, done.via, &device);
            let (result, src, dst) = done.into_parts();
            assert_eq!(result, Ok(Outcome::Done), "{split:?}");
            assert!(src == source && dst == source, "{split:?}");
            let flags = &device.state().move_flags;
            assert!(flags.iter().all(|flags| flags.contains(Flags::DESTINATION_READBACK)), "{split:?}");
        }
    }
}

#[test]
fn bytes_outside_of_the_file_are_refused() {
    let Some((path, mut file)) = durable_file("outside", 4096) else { return };
    let mover = Mover::cpu();
    for at in [4090, 4097, u64::MAX] {
        let error = mover.store(&[1; 7], &mut file, at).unwrap_err();
        assert!(matches!(error, StoreError::Outside { len: 7, file: 4096, .. }), "{error}");
    }
    assert!(file.bytes() == [0; 4096]);
    assert!(mover.store(&[1; 7], &mut file, 4089).is_ok());
    std::fs::remove_file(path).unwrap();
}
