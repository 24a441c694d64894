//! Partial completion resumes exactly: every operation, a fault at every page of every operand, every policy.
#![allow(clippy::cast_possible_truncation, reason = "tests cut small numbers")]

use crate::common::device::{PAGE, TestDevice};
use crate::common::{Chance, mover, naive, policy};
use std::sync::Arc;
use telpher_abi::{DestDifFlags, DifBlock, DifFlags, DifStatus, SourceDifFlags, Status};
use telpher_mover::{CrcMode, Delta, DifConfig, JobError, Mover, OnFault, Opcode, Outcome, Policy, Tags, Via};

/// A way to disturb an operation with faults.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Split {
    /// Index of the operand whose pages fault; all operands if the index does not exist.
    operand: usize,
    page: u64,
    times: u32,
    on_fault: OnFault,
    pub(crate) backward: bool,
}

const PAGES: u64 = 4;
const TOUCH: OnFault = OnFault::TouchAndResubmit { limit: 4 };

pub(crate) fn splits(operands: usize) -> Vec<Split> {
    let mut all = Vec::new();
    for operand in 0..=operands {
        for page in 0..PAGES {
            for times in [1, 3] {
                for on_fault in [OnFault::FinishOnCpu, TOUCH, OnFault::Block] {
                    for backward in [false, true] {
                        all.push(Split { operand, page, times, on_fault, backward });
                    }
                }
            }
        }
    }
    all
}

/// A device that faults as `split` says, with a queue that limits transfers to `max` bytes.
pub(crate) fn disturbed(split: &Split, max: u64, operands: &[&[u8]]) -> (Mover, Arc<TestDevice>) {
    let device = TestDevice::with(|info| {
        info.max_transfer = max;
        info.block_on_fault = split.times == 1;
    });
    let device = Arc::new(device.with_executor(crate::array_device::execute));
    device.state().backward = split.backward;
    for (i, operand) in operands.iter().enumerate() {
        let start = operand.as_ptr() as u64;
        let end = start + operand.len() as u64;
        let page = start / PAGE + split.page;
        if (i == split.operand || split.operand == operands.len()) && page * PAGE < end {
            device.fault(page * PAGE, split.times);
        }
    }
    let mover = mover(&device, Policy { on_fault: split.on_fault, ..policy() });
    (mover, device)
}

/// Whole transfers, and transfers cut in the middle of pages.
pub(crate) const MAXES: [u64; 2] = [1 << 21, 8192 - 512];
/// A little more than three pages.
pub(crate) const LEN: usize = 3 * 4096 + 777;

/// Checks which part a policy leaves to the CPU.
pub(crate) fn check_via(split: &Split, via: Via, device: &TestDevice) {
    match split.on_fault {
        TOUCH => assert_eq!(via, Via::Device, "{split:?}"),
        OnFault::FinishOnCpu if device.state().faulted > 0 => assert_ne!(via, Via::Device, "{split:?}"),
        _ => {}
    }
}

#[test]
fn a_copy_resumes_at_every_page_in_both_directions() {
    let source = Chance::new(1).bytes(LEN);
    for max in MAXES {
        for split in splits(2) {
            let (src, dst) = (source.clone(), vec![0; LEN]);
            let (mover, device) = disturbed(&split, max, &[&src, &dst]);
            let done = mover.copy(src, dst).wait();
            check_via(&split, done.via, &device);
            let (result, src, dst) = done.into_parts();
            assert_eq!(result, Ok(Outcome::Done), "{split:?}");
            assert!(src == source && dst == source, "{split:?}");
        }
    }
}

#[test]
fn an_overlapping_copy_resumes_at_every_page_in_both_directions() {
    let whole = Chance::new(2).bytes(LEN);
    for (from, to) in [(0, 1000), (1000, 0), (0, 1), (5000, 100), (100, 5000)] {
        let n = LEN - 5000;
        let mut expected = whole.clone();
        expected.copy_within(from..from + n, to);
        for max in MAXES {
            for split in splits(1) {
                let buf = whole.clone();
                let (mover, device) = disturbed(&split, max, &[&buf]);
                let done = mover.copy_within(buf, from..from + n, to).wait();
                check_via(&split, done.via, &device);
                let (result, buf) = done.into_parts();
                assert_eq!(result, Ok(Outcome::Done), "{split:?}");
                assert!(buf == expected, "{from} to {to}, {max}, {split:?}");
            }
        }
    }
}

#[test]
fn fills_continue_in_phase_at_every_page() {
    for start in [0, 3, 5] {
        for split in splits(1) {
            for wide in [false, true] {
                let pattern = [0x0807_0605_0403_0201_u64, 0x100f_0e0d_0c0b_0a09];
                let bytes: Vec<u8> = pattern.iter().take(1 + usize::from(wide)).flat_map(|w| w.to_le_bytes()).collect();
                let buf = vec![0; LEN - start];
                let (mover, _) = disturbed(&split, MAXES[1] + start as u64, &[&buf]);
                let job = if wide { mover.fill16(buf, pattern) } else { mover.fill(buf, pattern[0]) };
                let (result, buf) = job.wait().into_parts();
                assert_eq!(result, Ok(Outcome::Done), "{split:?}");
                assert!(buf == naive::pattern(&bytes, LEN - start), "wide {wide}, {split:?}");
            }
        }
    }
}

#[test]
fn comparisons_find_the_exact_offset_across_faults() {
    let source = Chance::new(3).bytes(LEN);
    for split in splits(2) {
        for at in [None, Some(0), Some(4095), Some(9000), Some(LEN - 1)] {
            let (a, mut b) = (source.clone(), source.clone());
            let expected = at.map_or(Outcome::Equal, |at| Outcome::Different { at: at as u64 });
            at.iter().for_each(|&at| b[at] ^= 1);
            let (mover, _) = disturbed(&split, MAXES[1], &[&a, &b]);
            assert_eq!(mover.compare(a, b).wait().result, Ok(expected), "{split:?}");

            let mut a = naive::pattern(&[1, 2, 3, 4, 5, 6, 7, 8], LEN);
            at.iter().for_each(|&at| a[at] ^= 1);
            let (mover, _) = disturbed(&split, MAXES[1], &[&a, &[]]);
            let result = mover.compare_pattern(a, 0x0807_0605_0403_0201).wait().result;
            assert_eq!(result, Ok(expected), "pattern, {split:?}");
        }
    }
}

#[test]
fn a_dualcast_resumes_at_every_page_of_three_operands() {
    let source = Chance::new(4).bytes(LEN);
    for split in splits(3) {
        // Both destinations from one allocation, a whole number of pages apart, so that a device accepts them.
        let both: &'static mut [u8] = Box::leak(vec![0; 2 * 16384].into_boxed_slice());
        let (first, second) = both.split_at_mut(16384);
        let (src, first, second) = (source.clone(), &mut first[..LEN], &mut second[..LEN]);
        let (mover, device) = disturbed(&split, MAXES[1], &[&src, first, second]);
        let done = mover.dualcast(src, first, second).wait();
        check_via(&split, done.via, &device);
        let (result, _, first, second) = done.into_parts();
        assert_eq!(result, Ok(Outcome::Done), "{split:?}");
        assert!(first == source && second == source, "{split:?}");
    }
}

#[test]
fn checksums_continue_from_the_seed_in_every_mode() {
    let source = Chance::new(5).bytes(LEN);
    for mode in CrcMode::ALL {
        let expected = Ok(Outcome::Crc(naive::crc32c(7, &source, mode)));
        for split in splits(2) {
            let (src, dst) = (source.clone(), vec![0; LEN]);
            let (mover, device) = disturbed(&split, MAXES[1], &[&src, &dst]);
            let done = mover.copy_crc(src, dst, 7, mode).wait();
            check_via(&split, done.via, &device);
            let (result, src, dst) = done.into_parts();
            assert_eq!(result, expected, "{split:?}");
            assert!(dst == source);

            let (mover, _) = disturbed(&split, MAXES[0], &[&src, &[]]);
            assert_eq!(mover.crc(src, 7, mode).wait().result, expected, "{split:?}");
        }
    }
}

#[test]
fn a_delta_is_created_and_applied_across_faults() {
    let len = LEN / 8 * 8;
    let old = Chance::new(6).bytes(len);
    let mut new = old.clone();
    (0..len).step_by(97).for_each(|at| new[at] ^= 0x55);
    let record = naive::delta(&old, &new);
    for split in splits(3) {
        // Allocations of this size are aligned to 8 bytes.
        let (a, b, delta) = (old.clone(), new.clone(), vec![0; record.len() + 40]);
        let (mover, device) = disturbed(&split, 1 << 21, &[&a, &b, &delta]);
        let done = mover.create_delta(a, b, delta).wait();
        check_via(&split, done.via, &device);
        let (result, a, b, delta) = done.into_parts();
        assert_eq!(result, Ok(Outcome::Delta(Delta::Complete { bytes: record.len() as u32 })), "{split:?}");
        assert!(delta[..record.len()] == record && b == new);

        let (mover, device) = disturbed(&split, 1 << 21, &[&delta, &a]);
        let done = mover.apply_delta(delta, a, record.len() as u32).wait();
        check_via(&split, done.via, &device);
        let (result, _, a) = done.into_parts();
        assert_eq!(result, Ok(Outcome::Done), "{split:?}");
        assert!(a == new, "{split:?}");
    }
}

#[test]
fn a_delta_reports_identity_and_overflow_and_rejects_bad_order() {
    let device = Arc::new(TestDevice::with(|_| {}));
    for mover in [mover(&device, policy()), Mover::cpu()] {
        let same = mover.create_delta(vec![1; 800], vec![1; 800], vec![0; 100]).wait();
        assert_eq!(same.result, Ok(Outcome::Delta(Delta::Identical)));
        let full = mover.create_delta(vec![1; 800], vec![2; 800], vec![0; 105]).wait();
        assert_eq!(full.result, Ok(Outcome::Delta(Delta::Overflow { bytes: 100, compared: 80 })));

        let mut record = naive::delta(&[0; 32], &[9; 32]);
        record.copy_within(0..2, 20);
        let bad = mover.apply_delta(record.clone(), vec![0_u8; 32], 40).wait();
        assert_eq!(bad.result, Err(JobError::BadDelta { at: 20, status: Status::DeltaOffsetOrder }));
        let beyond = mover.apply_delta(naive::delta(&[0; 32], &[9; 32]), vec![0_u8; 24], 40).wait();
        assert_eq!(beyond.result, Err(JobError::BadDelta { at: 30, status: Status::DeltaOffsetRange }));
    }
}

fn dif_configs() -> Vec<(DifConfig, Tags, Tags)> {
    let mut all = Vec::new();
    for block in DifBlock::ALL {
        let source = SourceDifFlags::APP_TAG_INCREMENTS;
        let dest = DestDifFlags::APP_TAG_INCREMENTS;
        let flags = DifFlags::INVERT_CRC_SEED;
        let tags = Tags { ref_tag: 0xffff_fffe, app_mask: 0xf000, app_tag: 0x1ffe };
        let other = Tags { ref_tag: 77, app_mask: 0, app_tag: 3 };
        all.push((DifConfig { block, flags, source, dest }, tags, other));
    }
    all
}

#[test]
fn dif_tags_continue_across_faults_and_chunks() {
    for (config, tags, other) in dif_configs() {
        let block = config.block.bytes() as usize;
        let blocks = LEN / block;
        let data = Chance::new(7).bytes(blocks * block);
        let protected = naive::insert(&data, &config, tags);
        let updated = naive::insert(&data, &config, other);
        let max = (block as u64 + 8) * 2 + 100;
        for split in splits(2) {
            if split.backward {
                continue;
            }
            let (src, dst) = (data.clone(), vec![0; protected.len()]);
            let (mover, device) = disturbed(&split, max, &[&src, &dst]);
            let done = mover.dif_insert(src, dst, config, tags).wait();
            check_via(&split, done.via, &device);
            let (result, _, dst) = done.into_parts();
            assert!(matches!(result, Ok(Outcome::Dif { .. })), "{split:?} {result:?}");
            assert!(dst == protected, "insert {block} {split:?}");

            let src = dst;
            let (mover, _) = disturbed(&split, max, &[&src, &[]]);
            let (result, src) = mover.dif_check(src, config, tags).wait().into_parts();
            let mut next = tags;
            (0..blocks).for_each(|_| naive::step_source(&mut next, &config));
            let Ok(Outcome::Dif { source, .. }) = result else { panic!("check {block} {split:?} {result:?}") };
            assert_eq!(source, next, "check {block} {split:?}");

            let dst = vec![0; data.len()];
            let (mover, _) = disturbed(&split, max, &[&src, &dst]);
            let (result, src, dst) = mover.dif_strip(src, dst, config, tags).wait().into_parts();
            assert!(matches!(result, Ok(Outcome::Dif { .. })), "{result:?}");
            assert!(dst == data, "strip {block} {split:?}");

            let dst = vec![0; src.len()];
            let (mover, _) = disturbed(&split, max, &[&src, &dst]);
            let (result, mut src, dst) = mover.dif_update(src, dst, config, tags, other).wait().into_parts();
            assert!(matches!(result, Ok(Outcome::Dif { .. })), "{result:?}");
            assert!(dst == updated, "update {block} {split:?}");

            let bad = blocks - 1;
            src[bad * (block + 8)] ^= 1;
            let (mover, _) = disturbed(&split, max, &[&src, &[]]);
            let result = mover.dif_check(src, config, tags).wait().result;
            let expected = Outcome::DifMismatch { at: (bad * (block + 8)) as u64, what: DifStatus::GUARD };
            assert_eq!(result, Ok(expected), "mismatch {block} {split:?}");
        }
    }
}

#[test]
fn a_flush_resumes_at_every_page() {
    for split in splits(1) {
        let buf = vec![1; LEN];
        let (mover, _) = disturbed(&split, MAXES[1], &[&buf]);
        assert_eq!(mover.flush(buf).wait().result, Ok(Outcome::Done), "{split:?}");
    }
}

#[test]
fn the_cpu_finishes_when_a_page_keeps_faulting() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = mover(&device, Policy { on_fault: TOUCH, ..policy() });
    let (src, dst) = (vec![7; LEN], vec![0; LEN]);
    let page = dst.as_ptr() as u64 / PAGE + 2;
    device.fault(page * PAGE, u32::MAX);
    let done = mover.copy(src, dst).wait();
    assert_eq!((done.result, done.via), (Ok(Outcome::Done), Via::Both));
    assert!(done.buffers.0 == done.buffers.1);
    assert_eq!(device.state().faulted, 5, "four touches");
}

#[test]
fn a_page_the_system_refuses_ends_a_blocking_job_with_its_address() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = mover(&device, Policy { on_fault: OnFault::Block, ..policy() });
    let (src, dst) = (vec![7; LEN], vec![0; LEN]);
    let page = src.as_ptr() as u64 / PAGE + 1;
    device.refuse(page * PAGE);
    let done = page * PAGE - src.as_ptr() as u64;
    let result = mover.copy(src, dst).wait().result;
    assert_eq!(result, Err(JobError::Fault { address: page * PAGE, write: false, done }));
}

#[test]
fn pages_that_fault_in_turn_do_not_loop() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = mover(&device, Policy { on_fault: TOUCH, ..policy() });
    // Every page of a delta faults for ever, so the operation never progresses.
    let (a, b, delta) = (vec![1; 4096], vec![2; 4096], vec![0; 8000]);
    device.fault(a.as_ptr() as u64, u32::MAX);
    let done = mover.create_delta(a, b, delta).wait();
    assert_eq!((done.result, done.via), (Ok(Outcome::Delta(Delta::Complete { bytes: 5120 })), Via::Cpu));
}

#[test]
fn refused_operations_are_done_by_the_cpu() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = mover(&device, policy());
    for status in [
        Status::BadOpcode,
        Status::InvalidFlags,
        Status::NonZeroReserved,
        Status::TransferSizeRange,
        Status::Overlap,
        Status::HardwareReadError,
        Status::HardwareWriteError,
        Status::TranslationFailure,
    ] {
        device.state().answers.push_back(status);
        let done = mover.copy(vec![7; 100], vec![0; 100]).wait();
        assert_eq!((done.via, done.buffers.1), (Via::Cpu, vec![7; 100]), "{status}");
    }
    // A hardware error in the middle of an overlapping move cannot be corrected: it is not known which bytes were
    // moved.
    device.state().answers.push_back(Status::HardwareWriteError);
    let result = mover.copy_within(vec![7; 100], 0..90, 10).wait().result;
    assert_eq!(result, Err(JobError::Refused { op: Opcode::MemoryMove, status: Status::HardwareWriteError }));
    device.state().answers.push_back(Status::Unknown(0x3f));
    let result = mover.copy(vec![7; 100], vec![0; 100]).wait().result;
    assert_eq!(result, Err(JobError::Refused { op: Opcode::MemoryMove, status: Status::Unknown(0x3f) }));
}
