//! Caches with one tier for tests: with a device that waits for the test's command, or with the CPU only.
#![allow(dead_code, reason = "each test file uses only a part")]

use crate::common::device::TestDevice;
use crate::common::{mover, policy};
use std::ops::Range;
use std::sync::Arc;
use telpher_cache::{Cache, Config};
use telpher_mem::{Pool, PoolOptions};
use telpher_mover::Mover;
use telpher_portal::QueueMode;

pub(crate) type Source = Arc<[u8]>;

pub(crate) const BLOCK: usize = 4096;

pub(crate) fn pool(blocks: usize) -> Pool {
    Pool::new(PoolOptions::new(blocks * BLOCK)).unwrap()
}

pub(crate) fn block(number: usize) -> Range<usize> {
    number * BLOCK..(number + 1) * BLOCK
}

/// A device that waits for the test's command, and a cache that uses it.
pub(crate) fn held_back(pool: Pool, change: impl FnOnce(&mut Config)) -> (Arc<TestDevice>, Cache<Source>) {
    let device = Arc::new(TestDevice::new(QueueMode::Shared, 64));
    device.state().manual = true;
    let mut config = Config::new([pool]);
    change(&mut config);
    let cache = Cache::new(mover(&device, policy()), config).unwrap();
    (device, cache)
}

/// A cache for which the CPU copies everything at once.
pub(crate) fn at_once(blocks: usize, change: impl FnOnce(&mut Config)) -> Cache<Source> {
    let mut config = Config::new([pool(blocks)]);
    change(&mut config);
    Cache::new(Mover::cpu(), config).unwrap()
}
