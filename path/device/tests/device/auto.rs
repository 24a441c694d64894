//! The automatic runner: when it has threads, and that the caller sees the same results with and without them.
#![allow(unsafe_code, reason = "submissions are vouched for here, by the buffers each test owns")]

use std::process::Command;
use std::sync::{Arc, Mutex};
use telpher_abi::{Descriptor, Status};
use telpher_device::{ModelDevice, ModelOptions, Preset, Runner, StartError};
use telpher_model::{DispatchDecision, Job, Observer};
use telpher_os::{allowed_cpus, run_on};
use telpher_portal::{Offer, Portal, RecordCell, Submission};

/// A length that the runner executes in the submitting thread, and one that it leaves to an engine thread.
const SHORT: usize = 4 << 10;
const LONG: usize = 1 << 20;

fn start(runner: Runner) -> ModelDevice {
    ModelDevice::start(ModelOptions::of(Preset::Spr).with_runner(runner)).unwrap()
}

/// True if the device's engines have no thread of their own.
fn is_inline(device: &ModelDevice) -> bool {
    device.step_engine(0).is_some()
}

fn offer(portal: &dyn Portal, descriptor: Descriptor) {
    // SAFETY: each test keeps buffers and records until it has seen the record.
    let submission = unsafe { Submission::vouch(descriptor) };
    while portal.offer(&submission) == Offer::Retry {
        std::thread::yield_now();
    }
}

/// Copies `len` bytes, and waits without `drive` if `drives` is false.
fn copy(portal: &dyn Portal, len: usize, drives: bool) {
    let source: Vec<u8> = (0..=250).cycle().take(len).collect();
    let mut target = vec![0_u8; len];
    let record = RecordCell::new();
    let bytes = u32::try_from(len).unwrap();
    let copy = Descriptor::memory_move(source.as_ptr() as u64, target.as_mut_ptr() as u64, bytes);
    offer(portal, copy.with_record(record.address()));
    while record.status().is_none() {
        if drives {
            portal.drive();
        }
        std::thread::yield_now();
    }
    assert_eq!(record.read().unwrap().status(), Status::Success);
    assert!(std::hint::black_box(&target) == &source, "{len} bytes");
}

#[test]
fn on_a_single_core_it_is_inline() {
    let first = allowed_cpus().unwrap()[0];
    // The thread ends with the test, so no other test runs on a single core.
    let on_one_core = std::thread::spawn(move || {
        run_on(&[first]).unwrap();
        let device = start(Runner::Auto);
        assert!(is_inline(&device));
        let portal = device.portal("wq0.0").unwrap();
        [SHORT, LONG].into_iter().for_each(|len| copy(&*portal, len, false));
    });
    on_one_core.join().unwrap();
}

/// The child process of `without_a_thread_it_is_inline`.
const CHILD: &str = "TELPHER_DEVICE_TEST_CHILD";

/// Threads with a stack of the whole address space cannot be started. The setting is read once, so it needs a process.
#[test]
fn without_a_thread_it_is_inline() {
    if std::env::var_os(CHILD).is_none() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        // With one test thread, the test runs on the first thread of the process.
        child.args(["--exact", "auto::without_a_thread_it_is_inline", "--test-threads", "1", "--nocapture"]);
        let output = child.env(CHILD, "1").env("RUST_MIN_STACK", (1_u64 << 47).to_string()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
        return;
    }
    let refused = ModelDevice::start(ModelOptions::of(Preset::Spr).with_runner(Runner::Threaded));
    assert!(matches!(refused, Err(StartError::Thread(_))), "the system starts threads all the same: {refused:?}");
    let device = start(Runner::Auto);
    assert!(is_inline(&device));
    let portal = device.portal("wq0.0").unwrap();
    [SHORT, LONG].into_iter().for_each(|len| copy(&*portal, len, false));
}

#[test]
fn on_several_cores_it_has_threads_and_completes_with_and_without_drive() {
    let device = start(Runner::Auto);
    assert_eq!(is_inline(&device), std::thread::available_parallelism().unwrap().get() == 1);
    let portal = device.portal("wq0.0").unwrap();
    for round in 0..200 {
        for len in [SHORT, LONG, 64, 256 << 10, (256 << 10) + 1] {
            copy(&*portal, len, round % 2 == 0);
        }
    }
}

/// Short and long copies depend on each other, and only the order of their records keeps them apart.
#[test]
fn the_bytes_are_those_of_the_inline_runner() {
    let results = [Runner::Inline, Runner::Auto].map(|runner| {
        let device = start(runner);
        let portal = device.portal("wq0.0").unwrap();
        let mut bytes = vec![0_u8; 2 * LONG];
        let mut records = Vec::new();
        for (step, len) in [64, LONG, SHORT, 300_000, 17, LONG, 256 << 10, 1].into_iter().cycle().take(64).enumerate() {
            let record = RecordCell::new();
            let base = bytes.as_mut_ptr() as u64;
            let step = step as u64;
            let length = u32::try_from(len).unwrap();
            let descriptor = match step % 3 {
                0 => Descriptor::fill(step, base + step * 1000, length),
                1 => Descriptor::memory_move(base + step * 1000, base + LONG as u64 - step * 7, length),
                _ => Descriptor::crc_generation(base + step * 77, length, 0),
            };
            offer(&*portal, descriptor.with_record(record.address()));
            while record.status().is_none() {
                portal.drive();
            }
            records.push(record.read().unwrap().to_bytes());
        }
        (bytes, records)
    });
    assert_eq!(results[0].1, results[1].1);
    assert!(results[0].0 == results[1].0, "the bytes differ");
}

/// Several threads submit short and long copies to the same engines, so that each finds them taken by another.
#[test]
fn threads_that_submit_short_and_long_copies_all_get_their_bytes() {
    let device = start(Runner::Auto);
    let portal = device.portal("wq0.0").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let portal = &portal;
            scope.spawn(move || {
                for round in 0..100 {
                    copy(&**portal, if (round + thread) % 4 == 0 { LONG } else { SHORT }, round % 2 == 0);
                }
            });
        }
    });
}

/// An observer that notes which threads execute.
#[derive(Debug, Default)]
struct ThreadNames(Mutex<Vec<Option<String>>>);

impl Observer for ThreadNames {
    fn dispatched(&self, _: &Job<'_>) -> DispatchDecision {
        self.0.lock().unwrap().push(std::thread::current().name().map(str::to_owned));
        DispatchDecision::Go
    }
}

#[test]
fn with_an_observer_only_the_engines_threads_execute() {
    let names = Arc::new(ThreadNames::default());
    let options = ModelOptions::of(Preset::Spr).with_runner(Runner::Auto).with_observer(names.clone());
    let device = ModelDevice::start(options).unwrap();
    if is_inline(&device) {
        return;
    }
    let portal = device.portal("wq0.0").unwrap();
    [SHORT, LONG].into_iter().for_each(|len| copy(&*portal, len, true));
    let names = names.0.lock().unwrap();
    let is_engine = |name: &Option<String>| name.as_deref().is_some_and(|name| name.starts_with("telpher-engine-"));
    assert!(names.len() == 2 && names.iter().all(is_engine), "{names:?}");
}
