//! What movers count is what a program did with them. In a program of its own: all movers of a process count together.
#![cfg(not(loom))]

#[allow(unused_imports, reason = "other tests use the rest")]
mod common;

use common::device::TestDevice;
use common::{clock, mover, policy};
use std::sync::Arc;
use std::time::Duration;
use telpher_metrics::{Record as _, RegionReader};
use telpher_mover::{Mover, OnFault, Policy, Retry, Via, Work};

#[test]
fn totals_equal_what_a_program_did_and_other_processes_find_them() {
    let before = Work::of_this_process();
    let device = Arc::new(TestDevice::with(|_| {}));
    let retry = Retry { attempts: 10, pause: Duration::from_micros(5) };
    let mover_of =
        |policy: Policy| Mover::with_clock([Arc::clone(&device) as Arc<dyn telpher_portal::Portal>], policy, clock());
    let patient = mover(&device, Policy { retry, ..policy() });
    for round in 0..5 {
        assert_eq!(patient.copy(vec![7; 1000 + round], vec![0; 1000 + round]).wait().via, Via::Device);
    }
    // Seven Retry answers before the queue takes it, then more than the policy bears.
    device.state().retries = 7;
    assert_eq!(patient.fill(vec![0_u8; 300], 1).wait().via, Via::Device);
    device.state().retries = 11;
    assert_eq!(patient.fill(vec![0_u8; 200], 1).wait().via, Via::Cpu);
    // A page that the CPU must reach.
    let faulting = mover_of(Policy { on_fault: OnFault::FinishOnCpu, ..policy() });
    let source = vec![3_u8; 3 * 4096];
    device.fault(source.as_ptr().addr() as u64 + 4096, 1);
    let done = faulting.copy(source, vec![0; 3 * 4096]).wait();
    assert_eq!(done.via, Via::Both);
    // Without a device nothing is a fallback.
    assert_eq!(Mover::cpu().fill(vec![0_u8; 50], 1).wait().via, Via::Cpu);
    let work = Work::of_this_process() - before;
    assert_eq!((work.by_device, work.device_bytes), (6, 1000 + 1001 + 1002 + 1003 + 1004 + 300));
    assert_eq!((work.by_cpu, work.cpu_bytes), (2, 200 + 50));
    assert_eq!((work.by_both, work.both_bytes), (1, 3 * 4096));
    assert_eq!((work.queues_full, work.no_queue, work.page_fault, work.refused), (1, 0, 1, 0));
    assert_eq!((work.retries, work.page_faults), (18, 1));
    assert!(work.waiting >= Duration::from_micros(17 * 5), "{:?}", work.waiting);
    assert_eq!(published(), Work::of_this_process().words());
}

/// Reads the counts as another process would.
fn published() -> Vec<u64> {
    let name = format!("/memfd:{} (deleted)", telpher_os::PUBLISHED);
    let is_it = |path: &std::path::PathBuf| std::fs::read_link(path).is_ok_and(|link| link.to_str() == Some(&name));
    let paths = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<_> = paths.filter(is_it).collect();
    let [path] = &found[..] else { panic!("{found:?}") };
    let words = std::fs::read(path).unwrap();
    let words: Vec<_> = words.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()).into()).collect();
    let reader = RegionReader::open(&words).unwrap();
    assert_eq!(reader.metrics().len(), Work::METRICS.len());
    let sets = reader.snapshot().sets;
    (0..Work::WORDS).map(|at| sets.iter().map(|set| set.values[at]).fold(0, u64::wrapping_add)).collect()
}
