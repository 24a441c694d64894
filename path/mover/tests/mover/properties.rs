//! For all lengths, faults, refusals and limits, the bytes are the naive ones, and every buffer comes back.

use crate::common::device::{PAGE, TestDevice};
use crate::common::{Chance, mover, naive, on_fault, policy};
use proptest::prelude::*;
use std::sync::Arc;
use telpher_mover::{CrcMode, Mover, OnFault, Outcome, Policy, Retry, Route};
use telpher_portal::QueueMode;

#[derive(Debug, Clone)]
struct World {
    seed: u64,
    len: usize,
    max_transfer: u64,
    max_batch: u32,
    dedicated: bool,
    size: u32,
    retries: u64,
    faults: Vec<(u8, u32)>,
    on_fault: OnFault,
    backward: bool,
}

fn world() -> impl Strategy<Value = World> {
    let limits = (512_u64..20_000, 0_u32..10, any::<bool>(), 1_u32..5, 0_u64..100);
    let faults = proptest::collection::vec((0_u8..12, 1_u32..3), 0..4);
    (any::<u64>(), 0_usize..20_000, limits, faults, on_fault(), any::<bool>()).prop_map(
        |(seed, len, (max_transfer, max_batch, dedicated, size, retries), faults, on_fault, backward)| World {
            seed,
            len,
            max_transfer,
            max_batch,
            dedicated,
            size,
            retries,
            faults,
            on_fault,
            backward,
        },
    )
}

impl World {
    fn device(&self) -> Arc<TestDevice> {
        let device = Arc::new(TestDevice::with(|info| {
            info.max_transfer = self.max_transfer;
            info.max_batch = self.max_batch;
            info.mode = if self.dedicated { QueueMode::Dedicated } else { QueueMode::Shared };
            info.size = self.size;
            info.block_on_fault = self.backward;
        }));
        device.state().retries = self.retries;
        device.state().backward = self.backward;
        device
    }

    fn mover(&self, device: &Arc<TestDevice>) -> Mover {
        let retry = Retry { attempts: 20, ..Retry::default() };
        mover(device, Policy { on_fault: self.on_fault, retry, route: Route::LeastLoaded, ..policy() })
    }

    /// Makes some pages of these buffers fault some times.
    fn disturb(&self, device: &TestDevice, buffers: &[&[u8]]) {
        for &(page, times) in &self.faults {
            let buffer = buffers[usize::from(page) % buffers.len()];
            device.fault(buffer.as_ptr() as u64 + u64::from(page / 3) * PAGE, times);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_job_gives_the_naive_bytes(world in world()) {
        let device = world.device();
        let mover = world.mover(&device);
        let source = Chance::new(world.seed).bytes(world.len);
        let (src, dst) = (source.clone(), vec![0; world.len]);
        world.disturb(&device, &[&src, &dst]);
        let (result, src, dst) = mover.copy(src, dst).wait().into_parts();
        prop_assert_eq!(result, Ok(Outcome::Done));
        prop_assert!(src == source && dst == source);

        let word = world.seed;
        world.disturb(&device, &[&dst]);
        let (result, dst) = mover.fill(dst, word).wait().into_parts();
        prop_assert_eq!(result, Ok(Outcome::Done));
        prop_assert!(dst == naive::pattern(&word.to_le_bytes(), world.len));

        world.disturb(&device, &[&src, &dst]);
        let at = src.iter().zip(&dst).position(|(a, b)| a != b);
        let expected = at.map_or(Outcome::Equal, |at| Outcome::Different { at: at as u64 });
        let (result, src, dst) = mover.compare(src, dst).wait().into_parts();
        prop_assert_eq!(result, Ok(expected));

        world.disturb(&device, &[&src, &dst]);
        let (result, src, dst) = mover.copy_crc(src, dst, 3, CrcMode::default()).wait().into_parts();
        prop_assert_eq!(result, Ok(Outcome::Crc(naive::crc32c(3, &source, CrcMode::default()))));
        prop_assert!(src == dst);

        if world.len > 0 {
            let from = world.len / 3;
            let n = world.len - from.max(world.len / 5);
            let mut expected = dst.clone();
            expected.copy_within(from..from + n.min(world.len - from), world.len / 5);
            world.disturb(&device, &[&dst]);
            let (result, dst) = mover.copy_within(dst, from..from + n.min(world.len - from), world.len / 5).wait().into_parts();
            prop_assert_eq!(result, Ok(Outcome::Done));
            prop_assert!(dst == expected);
        }
        prop_assert_eq!(device.state().lost, 0);
    }

    #[test]
    fn every_batch_gives_each_member_the_naive_bytes(world in world(), fences in any::<u32>()) {
        let device = world.device();
        let mover = world.mover(&device);
        let mut chance = Chance::new(world.seed);
        let mut batch = mover.batch();
        let mut keys = Vec::new();
        for i in 0..12 {
            let n = usize::try_from(chance.below(6000)).unwrap();
            let (src, dst) = (chance.bytes(n), vec![0; n]);
            world.disturb(&device, &[&src, &dst]);
            if fences >> i & 1 == 1 {
                batch.fence();
            }
            keys.push((src.clone(), batch.copy(src, dst)));
        }
        let mut done = batch.submit().wait();
        for (source, key) in keys {
            let (result, src, dst) = done.take(key).into_parts();
            prop_assert_eq!(result, Ok(Outcome::Done));
            prop_assert!(src == source && dst == source);
        }
        prop_assert_eq!(device.state().lost, 0);
    }
}
