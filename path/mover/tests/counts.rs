//! What movers count is what a program did with them. In a program of its own: all movers of a process count together.
#![cfg(not(loom))]
#![allow(unsafe_code, reason = "vouches for copies whose memory outlives them")]

#[allow(unused_imports, reason = "other tests use the rest")]
mod common;

use common::device::TestDevice;
use common::{clock, mover, policy};
use std::sync::Arc;
use std::time::{Duration, Instant};
use telpher_metrics::{Record as _, RegionReader};
use telpher_mover::{
    Channel, ChannelPolicy, Copies, CopiesPolicy, CopyResult, Mover, OnFault, Policy, Retry, Via, Work,
};
use telpher_portal::Portal;

#[test]
fn totals_equal_what_a_program_did_and_other_processes_find_them() {
    let before = Work::of_this_process();
    let device = Arc::new(TestDevice::with(|_| {}));
    let retry = Retry { attempts: 10, pause: Duration::from_micros(5) };
    let mover_of = |policy: Policy| Mover::with_clock([Arc::clone(&device) as Arc<dyn Portal>], policy, clock());
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
    let waited = |act: &mut dyn FnMut(&mut dyn FnMut())| {
        let before = Work::of_this_process().waiting;
        let begin = Instant::now();
        act(&mut || {
            device.state().retries = 1;
            let until = Instant::now() + Duration::from_millis(2);
            while Instant::now() < until {}
        });
        (Work::of_this_process().waiting - before, begin.elapsed())
    };
    let portal = || Arc::clone(&device) as Arc<dyn Portal>;
    let (by_channel, most) = waited(&mut |pause| {
        let mut channel: Channel<Vec<u8>, Vec<u8>> = Channel::new(portal(), 8, ChannelPolicy::default()).unwrap();
        channel.copy(vec![1; 100], vec![0; 100]).unwrap();
        device.state().retries = 1;
        assert_eq!(channel.submit(), 0);
        pause();
        let mut ended = Vec::new();
        while ended.is_empty() {
            channel.submit();
            channel.completed(&mut ended);
        }
    });
    assert!(Duration::from_millis(2) <= by_channel && by_channel <= most, "{by_channel:?} {most:?}");
    let (by_copies, most) = waited(&mut |pause| {
        let (src, mut dst) = ([7_u8; 100], [0_u8; 100]);
        let mut copies = Copies::new(portal(), 8, CopiesPolicy::default()).unwrap();
        // SAFETY: both stay alive, and no other code touches them, until the copy has ended.
        let _ = unsafe { copies.put(src.as_ptr().addr() as u64, dst.as_mut_ptr().addr() as u64, 100) };
        device.state().retries = 1;
        assert_eq!(copies.submit(), 0);
        pause();
        while copies.pending() > 0 {
            copies.completed(|_, result| assert_eq!(result, CopyResult::Done));
        }
    });
    assert!(Duration::from_millis(2) <= by_copies && by_copies <= most, "{by_copies:?} {most:?}");
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
