//! A device for tests that executes, faults and writes false records as configured.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::cast_possible_truncation, reason = "tests cut small numbers")]

pub(crate) mod cpu_calls;
pub(crate) mod device;
pub(crate) mod naive;

use device::TestDevice;
use proptest::prelude::*;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use telpher_mover::{ManualClock, Mover, OnFault, Policy, Threshold};
use telpher_os::Random;
use telpher_portal::Portal;

/// A seeded stream of numbers.
pub(crate) struct Chance(Random);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Chance(Random::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next()
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.0.fill(&mut bytes);
        bytes
    }
}

/// A policy that sends everything to the device.
pub(crate) fn policy() -> Policy {
    Policy { threshold: Threshold::DEVICE, ..Policy::default() }
}

/// A clock that advances a microsecond at each rest.
pub(crate) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(std::time::Duration::from_micros(1)))
}

pub(crate) fn mover(device: &Arc<TestDevice>, policy: Policy) -> Mover {
    movers(&[device], policy)
}

pub(crate) fn movers(devices: &[&Arc<TestDevice>], policy: Policy) -> Mover {
    let portals = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Portal>);
    Mover::with_clock(portals.collect::<Vec<_>>(), policy, clock())
}

/// Leaked memory, cut into neighbouring slices of these lengths.
pub(crate) fn pieces(bytes: Vec<u8>, lengths: &[usize]) -> Vec<&'static mut [u8]> {
    let mut rest: &'static mut [u8] = Vec::leak(bytes);
    lengths.iter().map(|&len| rest.split_off_mut(..len).expect("the lengths add up to the bytes")).collect()
}

/// Any fault policy under which every job ends.
pub(crate) fn on_fault() -> impl Strategy<Value = OnFault> {
    prop_oneof![
        Just(OnFault::FinishOnCpu),
        (3_u32..6).prop_map(|limit| OnFault::TouchAndResubmit { limit }),
        Just(OnFault::Block)
    ]
}

/// Runs a future on this thread, polling at most `polls` times.
pub(crate) fn block_on<F: Future + Unpin>(mut future: F, polls: usize) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    (0..polls).find_map(|_| match std::pin::Pin::new(&mut future).poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    })
}

/// Runs one test, `file::name`, again in a process of its own, with `TELPHER_ALONE` set.
pub(crate) fn alone(test: &str, stderr: Stdio) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env("TELPHER_ALONE", "1").stderr(stderr).output().unwrap()
}

/// Returns true in a process that [`alone`] has started.
pub(crate) fn is_alone() -> bool {
    std::env::var_os("TELPHER_ALONE").is_some()
}

/// Creates a durable file for a test, unless the machine's target folder is in memory.
pub(crate) fn durable_file(name: &str, len: u64) -> Option<(std::path::PathBuf, telpher_mover::DurableFile)> {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("durable-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    match telpher_mover::DurableFile::create(&path, len) {
        Ok(file) => Some((path, file)),
        Err(telpher_mover::DurableFileError::InMemory { .. }) => {
            eprintln!("skipped: {} is in memory", path.display());
            None
        }
        Err(error) => panic!("{}", telpher_os::chain(&error)),
    }
}

/// A buffer that records when it is dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    bytes: Vec<u8>,
    dropped: Arc<AtomicBool>,
}

impl Watched {
    pub(crate) fn new(bytes: Vec<u8>) -> (Self, Arc<AtomicBool>) {
        let dropped = Arc::new(AtomicBool::new(false));
        (Watched { bytes, dropped: Arc::clone(&dropped) }, dropped)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
    }
}

#[allow(unsafe_code, reason = "the traits are promises; a Vec keeps them")]
mod watched {
    use super::Watched;
    use telpher_mover::{StableBuf, StableBufMut};

    // SAFETY: a Vec's block stays where it is.
    unsafe impl StableBuf for Watched {
        fn address(&self) -> u64 {
            self.bytes.address()
        }
        fn len(&self) -> usize {
            self.bytes.len()
        }
    }
    // SAFETY: as above.
    unsafe impl StableBufMut for Watched {
        fn address_mut(&mut self) -> u64 {
            self.bytes.address_mut()
        }
    }
}
