//! A device for tests: one queue, executed naively on raw memory when it is driven.
#![allow(unsafe_code, reason = "executes descriptors, as a device does, on addresses the mover vouched for")]

use super::naive;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use telpher_abi::registers::{DsaCap0, GenCap, OpCap};
use telpher_abi::{
    CompletionRecord, Descriptor, DestDifFlags, DifBlock, DifFlags, Flags, OpFlags, Opcode, SourceDifFlags, Status,
    StatusByte,
};
use telpher_mover::{CrcMode, DifConfig, Tags};
use telpher_portal::{Health, Offer, Portal, QueueInfo, QueueMode, RecordCell, Submission};

pub(crate) const PAGE: u64 = 4096;

#[derive(Debug)]
pub(crate) struct TestDevice {
    info: QueueInfo,
    /// Executes conversions, reductions, gather and scatter.
    executor: Option<Executor>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    queue: VecDeque<Descriptor>,
    /// Number of offers still to be answered with `Retry`.
    pub(crate) retries: u64,
    /// Nothing is executed.
    pub(crate) halted: bool,
    /// Executes only in calls of `run`, not when driven.
    pub(crate) manual: bool,
    /// Remaining faults of a page, and whether the system would refuse the page.
    pub(crate) faults: HashMap<u64, (u32, bool)>,
    /// A single byte, and its remaining faults.
    pub(crate) exact: Option<(u64, u32)>,
    /// It has stopped: it takes nothing, does nothing, and reports this reason in health checks.
    pub(crate) stopped: Option<String>,
    /// Number of health checks.
    pub(crate) asked: usize,
    /// Can be given up while it works.
    pub(crate) retirable: bool,
    /// Memory moves run backward even where they need not.
    pub(crate) backward: bool,
    /// Status codes to answer the next descriptors with, without executing them.
    pub(crate) answers: VecDeque<Status>,
    /// Descriptors taken.
    pub(crate) taken: Vec<Opcode>,
    /// The flags of the memory moves executed.
    pub(crate) move_flags: Vec<Flags>,
    /// Descriptors written to a full dedicated queue.
    pub(crate) lost: usize,
    /// The most descriptors in flight at once.
    pub(crate) most: usize,
    /// Faults reported.
    pub(crate) faulted: usize,
}

/// A fault: bytes done, address, write, direction of a move.
pub(crate) struct Stop {
    done: u64,
    address: u64,
    write: bool,
    result: u8,
    refused: bool,
}

impl TestDevice {
    pub(crate) fn new(mode: QueueMode, size: u32) -> Self {
        Self::with(|info| {
            info.mode = mode;
            info.size = size;
        })
    }

    pub(crate) fn with(change: impl FnOnce(&mut QueueInfo)) -> Self {
        let mut info = QueueInfo {
            name: "test0.0".into(),
            mode: QueueMode::Shared,
            size: 64,
            max_transfer: 1 << 21,
            max_batch: 32,
            block_on_fault: true,
            // Overlap, cache control, 16-byte fill.
            gen_cap: GenCap([0x0040_915f_0507]),
            // Lists of 16 entries in every format; Gather Reduce of blocks of 1 KiB.
            dsa_cap_0: DsaCap0([0x000e_0000_00a4]),
            operations: OpCap([u64::MAX; 4]),
            numa_node: None,
        };
        change(&mut info);
        TestDevice { info, executor: None, state: Mutex::default() }
    }

    /// Adds the operations of 3.0.
    pub(crate) fn with_executor(mut self, executor: Executor) -> Self {
        self.executor = Some(executor);
        self
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The page of `address` faults `times` times.
    pub(crate) fn fault(&self, address: u64, times: u32) {
        self.state().faults.insert(address / PAGE, (times, false));
    }

    /// The page of `address` faults for ever, and the system would refuse it.
    pub(crate) fn refuse(&self, address: u64) {
        self.state().faults.insert(address / PAGE, (u32::MAX, true));
    }

    /// The byte at `address` faults `times` times.
    pub(crate) fn fault_at(&self, address: u64, times: u32) {
        self.state().exact = Some((address, times));
    }

    /// Stops the device; its queued descriptors are lost.
    pub(crate) fn stop(&self, why: &str) {
        let mut state = self.state();
        state.stopped = Some(why.into());
        state.queue.clear();
    }

    /// Stops the device in the middle of the oldest descriptor (of the first member, if that is a batch), at the byte
    /// at `address`.
    pub(crate) fn stop_within(&self, address: u64, why: &str) {
        let mut d = self.take_front();
        if d.opcode() == Opcode::Batch {
            // SAFETY: the mover vouched for the list.
            d = unsafe { *(d.src() as *const Descriptor) };
        }
        self.fault_at(address, 1);
        let record = self.perform(&mut self.state(), &d);
        assert_eq!(record.status(), Status::PageFault, "the descriptor does not reach {address:#x}");
        self.stop(why);
    }

    /// Removes the oldest descriptor without executing it.
    pub(crate) fn take_front(&self) -> Descriptor {
        self.state().queue.pop_front().expect("a descriptor is queued")
    }

    /// Puts the oldest descriptor back.
    pub(crate) fn put_back(&self, descriptor: Descriptor) {
        self.state().queue.push_front(descriptor);
    }

    /// Executes only the first member of the oldest descriptor, a batch, and loses the rest.
    pub(crate) fn lose_after_first_member(&self) {
        let batch = self.take_front();
        assert_eq!(batch.opcode(), Opcode::Batch);
        // SAFETY: the mover vouched for the list.
        let member = unsafe { *(batch.src() as *const Descriptor) };
        self.execute(&mut self.state(), &member, true);
    }

    /// Executes at most `n` descriptors; returns how many were queued, up to `n`.
    pub(crate) fn run(&self, n: usize) -> usize {
        let mut state = self.state();
        for done in 0..n {
            if state.halted {
                return done;
            }
            let Some(d) = state.queue.pop_front() else { return done };
            if d.opcode() == Opcode::Batch {
                self.batch(&mut state, &d);
            } else {
                self.execute(&mut state, &d, false);
            }
        }
        n
    }

    fn batch(&self, state: &mut State, d: &Descriptor) {
        let (mut failed, mut done) = (false, 0);
        assert!((2..=self.info.max_batch).contains(&d.size()) && d.src().is_multiple_of(64), "{d:?}");
        for i in 0..u64::from(d.size()) {
            // SAFETY: the mover vouched for the list.
            let member = unsafe { *((d.src() + 64 * i) as *const Descriptor) };
            if member.flags().contains(Flags::FENCE) && failed {
                break;
            }
            failed |= self.execute(state, &member, true) != Status::Success;
            done += 1;
        }
        let status = if failed { Status::BatchFail } else { Status::Success };
        complete(d, CompletionRecord::new(StatusByte::new(status)).with_bytes_completed(done));
    }

    fn execute(&self, state: &mut State, d: &Descriptor, member: bool) -> Status {
        let record = state
            .answers
            .pop_front()
            .or_else(|| self.illegal(d, member))
            .map(|status| CompletionRecord::new(StatusByte::new(status)))
            .unwrap_or_else(|| self.perform(state, d));
        complete(d, record);
        record.status()
    }

    fn illegal(&self, d: &Descriptor, member: bool) -> Option<Status> {
        let writes = matches!(d.opcode().code(), 3 | 4 | 7 | 8 | 9 | 0x11 | 0x13..=0x1e);
        let flags = d.flags();
        let bad_flags = flags.contains(Flags::FENCE) && !member
            || flags.contains(Flags::CACHE_CONTROL_1) && !writes
            || flags.contains(Flags::BLOCK_ON_FAULT) && !self.info.block_on_fault;
        let sized = !matches!(d.opcode(), Opcode::Nop | Opcode::Drain);
        match () {
            () if !self.info.operations.contains(d.opcode()) => Some(Status::BadOpcode),
            () if bad_flags => Some(Status::InvalidFlags),
            // Their sizes count elements.
            () if self.executor.is_some() && is_array_operation(d.opcode()) => None,
            () if sized && (d.size() == 0 || u64::from(d.size()) > self.info.max_transfer) => {
                Some(Status::TransferSizeRange)
            }
            () if d.opcode() == Opcode::Dualcast && (d.dst() ^ d.dst2()) & 0xfff != 0 => {
                Some(Status::DualcastAlignment)
            }
            () => None,
        }
    }

    fn perform(&self, state: &mut State, d: &Descriptor) -> CompletionRecord {
        let n = u64::from(d.size());
        let success = CompletionRecord::new(StatusByte::new(Status::Success));
        let block = flagged(d, Flags::BLOCK_ON_FAULT);
        let mut touch = |address: u64, write: bool, done: u64| touch(state, block, address, write, done);
        let outcome = match d.opcode() {
            Opcode::Nop | Opcode::Drain => Ok(success),
            Opcode::MemoryMove => {
                state.move_flags.push(d.flags());
                let overlap = d.dst() > d.src() && d.dst() - d.src() < n;
                let backward = overlap || state.backward && d.src().abs_diff(d.dst()) >= n;
                move_bytes(state, block, d, backward).map(|()| success)
            }
            Opcode::Fill => (0..n)
                .try_for_each(|i| {
                    touch(d.dst() + i, true, i)?;
                    let at = if flagged(d, OpFlags::FILL_16) { i % 16 } else { i % 8 };
                    let word = if at < 8 { d.src() } else { d.pattern_upper() };
                    put(d.dst() + i, word.to_le_bytes()[at as usize % 8]);
                    Ok(())
                })
                .map(|()| success),
            Opcode::Compare => (0..n)
                .try_for_each(|i| {
                    touch(d.src() + i, false, i).map_err(Some)?;
                    touch(d.dst() + i, false, i).map_err(Some)?;
                    same(get(d.src() + i), get(d.dst() + i), i)
                })
                .map_or_else(|e| different(d, e), |()| Ok(checked(d, success, 0))),
            Opcode::ComparePattern => (0..n)
                .try_for_each(|i| {
                    touch(d.src() + i, false, i).map_err(Some)?;
                    // Not exact, as the architecture allows.
                    same(get(d.src() + i), d.dst().to_le_bytes()[i as usize % 8], i / 8 * 8)
                })
                .map_or_else(|e| different(d, e), |()| Ok(checked(d, success, 0))),
            Opcode::CreateDelta => create_delta(d, n, &mut touch),
            Opcode::ApplyDelta => apply_delta(d, &mut touch),
            Opcode::Dualcast => (0..n)
                .try_for_each(|i| {
                    touch(d.src() + i, false, i)?;
                    touch(d.dst() + i, true, i)?;
                    touch(d.dst2() + i, true, i)?;
                    put(d.dst() + i, get(d.src() + i));
                    put(d.dst2() + i, get(d.src() + i));
                    Ok(())
                })
                .map(|()| success),
            Opcode::CrcGeneration | Opcode::CopyCrc => crc(d, n, &mut touch),
            Opcode::DifCheck | Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate | Opcode::DixGenerate => {
                dif(d, n, &mut touch)
            }
            op if is_array_operation(op)
                && let Some(execute) = self.executor =>
            {
                execute(&self.info, d, &mut touch)
            }
            Opcode::CacheFlush => (0..n).try_for_each(|i| touch(d.dst() + i, false, i)).map(|()| success),
            _ => Ok(CompletionRecord::new(StatusByte::new(Status::BadOpcode))),
        };
        outcome.unwrap_or_else(|(stop, partial)| {
            let status = if stop.refused { Status::PageFaultRefused } else { Status::PageFault };
            partial
                .with_status_code(StatusByte::fault(status, stop.write).0)
                .with_bytes_completed(stop.done as u32)
                .with_fault_address(stop.address)
                .with_result(partial.result() | stop.result)
        })
    }
}

/// Executes one descriptor.
pub(crate) type Executor = fn(&QueueInfo, &Descriptor, Touch<'_>) -> Performed;

fn is_array_operation(op: Opcode) -> bool {
    (0x18..=0x1e).contains(&op.code())
}

pub(crate) type Touch<'a> = &'a mut dyn FnMut(u64, bool, u64) -> Result<(), Faulty>;
pub(crate) type Faulty = (Stop, CompletionRecord);
pub(crate) type Performed = Result<CompletionRecord, Faulty>;

fn flagged(d: &Descriptor, flag: Flags) -> bool {
    d.flags().contains(flag)
}

/// Makes one access; faults at a page's first byte that is reached, as often as configured.
fn touch(state: &mut State, block: bool, address: u64, write: bool, done: u64) -> Result<(), Faulty> {
    if state.faults.is_empty() && state.exact.is_none() {
        return Ok(());
    }
    if let Some((_, times)) = state.exact.as_mut().filter(|(at, times)| *at == address && *times > 0) {
        *times -= 1;
        state.faulted += 1;
        return Err((Stop { done, address, write, result: 0, refused: false }, CompletionRecord::default()));
    }
    if state.faults.is_empty() {
        return Ok(());
    }
    let page = address / PAGE;
    let Some((times, refused)) = state.faults.get_mut(&page) else { return Ok(()) };
    // A device that may block waits for the page.
    if block && !*refused {
        state.faults.remove(&page);
        return Ok(());
    }
    if *times == 0 {
        return Ok(());
    }
    let refused = *refused && block;
    if *times < u32::MAX {
        *times -= 1;
    }
    state.faulted += 1;
    let stop = Stop { done, address: page * PAGE, write, result: 0, refused };
    Err((stop, CompletionRecord::default()))
}

fn move_bytes(state: &mut State, block: bool, d: &Descriptor, backward: bool) -> Result<(), Faulty> {
    let n = u64::from(d.size());
    for done in 0..n {
        let i = if backward { n - 1 - done } else { done };
        for (address, write) in [(d.src() + i, false), (d.dst() + i, true)] {
            touch(state, block, address, write, done)
                .map_err(|(stop, partial)| (Stop { result: u8::from(backward), ..stop }, partial))?;
        }
        put(d.dst() + i, get(d.src() + i));
    }
    Ok(())
}

fn same(a: u8, b: u8, at: u64) -> Result<(), Option<Faulty>> {
    if a == b {
        Ok(())
    } else {
        Err(Some((Stop { done: at, address: 0, write: false, result: 9, refused: false }, CompletionRecord::default())))
    }
}

/// A difference (result 9 here) or a fault.
fn different(d: &Descriptor, error: Option<Faulty>) -> Performed {
    let (stop, partial) = error.expect("always there");
    if stop.result != 9 {
        return Err((stop, partial));
    }
    let record = CompletionRecord::new(StatusByte::new(Status::Success)).with_bytes_completed(stop.done as u32);
    Ok(checked(d, record.with_result(1), 1))
}

fn checked(d: &Descriptor, record: CompletionRecord, result: u8) -> CompletionRecord {
    let wrong = flagged(d, Flags::CHECK_RESULT) && d.expected_result() & 1 != result;
    if wrong { record.with_status_code(Status::SuccessPredicateFalse.code()) } else { record }
}

fn create_delta(d: &Descriptor, n: u64, touch: Touch<'_>) -> Performed {
    let mut bytes = 0;
    for i in (0..n).step_by(8) {
        let partial = CompletionRecord::default().with_delta_record_size(bytes).with_result(u8::from(bytes > 0));
        let mark = |(stop, _): Faulty| (stop, partial);
        touch(d.src() + i, false, i).map_err(mark)?;
        touch(d.dst() + i, false, i).map_err(mark)?;
        let (a, b) = (
            [0, 1, 2, 3, 4, 5, 6, 7].map(|k| get(d.src() + i + k)),
            [0, 1, 2, 3, 4, 5, 6, 7].map(|k| get(d.dst() + i + k)),
        );
        if a == b {
            continue;
        }
        if bytes + 10 > d.max_delta_size() {
            let record = CompletionRecord::new(StatusByte::new(Status::Success)).with_result(2);
            return Ok(record.with_delta_record_size(bytes).with_bytes_completed(i as u32));
        }
        let at = d.delta_address() + u64::from(bytes);
        touch(at, true, i).map_err(mark)?;
        touch(at + 9, true, i).map_err(mark)?;
        (0..2).for_each(|k| put(at + k, ((i / 8) as u16).to_le_bytes()[k as usize]));
        (0..8).for_each(|k| put(at + 2 + k, b[k as usize]));
        bytes += 10;
    }
    let record = CompletionRecord::new(StatusByte::new(Status::Success));
    Ok(record.with_result(u8::from(bytes > 0)).with_delta_record_size(bytes))
}

fn apply_delta(d: &Descriptor, touch: Touch<'_>) -> Performed {
    let mut previous = None;
    for i in (0..u64::from(d.delta_record_size())).step_by(10) {
        touch(d.src() + i, false, i)?;
        touch(d.src() + i + 9, false, i)?;
        let offset = u64::from(u16::from_le_bytes([get(d.src() + i), get(d.src() + i + 1)])) * 8;
        let bad = |status| Ok(CompletionRecord::new(StatusByte::new(status)).with_bytes_completed(i as u32));
        if previous.is_some_and(|previous| offset <= previous) {
            return bad(Status::DeltaOffsetOrder);
        }
        if offset >= u64::from(d.size()) {
            return bad(Status::DeltaOffsetRange);
        }
        previous = Some(offset);
        touch(d.dst() + offset, true, i)?;
        (0..8).for_each(|k| put(d.dst() + offset + k, get(d.src() + i + 2 + k)));
    }
    Ok(CompletionRecord::new(StatusByte::new(Status::Success)))
}

fn crc(d: &Descriptor, n: u64, touch: Touch<'_>) -> Performed {
    let mode = CrcMode {
        bypass_invert_reflect: flagged(d, OpFlags::BYPASS_INVERT_REFLECT),
        bypass_data_reflect: flagged(d, OpFlags::BYPASS_DATA_REFLECT),
    };
    let mut crc = d.crc_seed();
    for i in 0..n {
        // Undefined if nothing was done.
        let partial = CompletionRecord::default().with_crc(if i == 0 { 0xdead_beef } else { crc });
        touch(d.src() + i, false, i).map_err(|(stop, _)| (stop, partial))?;
        if d.opcode() == Opcode::CopyCrc {
            touch(d.dst() + i, true, i).map_err(|(stop, _)| (stop, partial))?;
            put(d.dst() + i, get(d.src() + i));
        }
        crc = naive::crc32c(crc, &[get(d.src() + i)], mode);
    }
    Ok(CompletionRecord::new(StatusByte::new(Status::Success)).with_crc(crc))
}

fn dif(d: &Descriptor, n: u64, touch: Touch<'_>) -> Performed {
    let config = DifConfig {
        block: DifBlock::from_code(d.dif_flags()),
        flags: DifFlags::from_bits_retain(d.dif_flags() & !3),
        source: SourceDifFlags::from_bits_retain(d.source_dif_flags()),
        dest: DestDifFlags::from_bits_retain(d.dest_dif_flags()),
    };
    let data = u64::from(config.block.bytes());
    let (from, to) = match d.opcode() {
        Opcode::DifInsert => (data, data + 8),
        Opcode::DifStrip => (data + 8, data),
        Opcode::DifUpdate => (data + 8, data + 8),
        Opcode::DixGenerate => (data, 8),
        _ => (data + 8, 0),
    };
    let mut source =
        Tags { ref_tag: d.source_ref_tag(), app_mask: d.source_app_tag_mask(), app_tag: d.source_app_tag() };
    let mut dest = Tags { ref_tag: d.dest_ref_tag(), app_mask: d.dest_app_tag_mask(), app_tag: d.dest_app_tag() };
    assert!(n.is_multiple_of(from), "whole blocks");
    for k in 0..n / from {
        let partial = tagged(CompletionRecord::default(), d.opcode(), &source, &dest);
        let mark = |(stop, _): Faulty| (stop, partial);
        let (src, dst) = (d.src() + k * from, d.dst() + k * to);
        (0..from).try_for_each(|i| touch(src + i, false, k * from)).map_err(mark)?;
        (0..to).try_for_each(|i| touch(dst + i, true, k * from)).map_err(mark)?;
        let block: Vec<u8> = (0..from).map(|i| get(src + i)).collect();
        if !matches!(d.opcode(), Opcode::DifInsert | Opcode::DixGenerate) {
            let status = naive::check(&block, &source, &config);
            if !status.is_empty() {
                let record = CompletionRecord::new(StatusByte::new(Status::DifError)).with_result(status.bits());
                return Ok(record.with_bytes_completed((k * from) as u32));
            }
            naive::step_source(&mut source, &config);
        }
        let bytes = &block[..data as usize];
        let mut out = bytes.to_vec();
        if d.opcode() == Opcode::DixGenerate {
            out.clear();
        }
        if matches!(d.opcode(), Opcode::DifInsert | Opcode::DixGenerate | Opcode::DifUpdate) {
            out.extend(naive::tuple(bytes, &dest, &config));
            naive::step_dest(&mut dest, &config);
        }
        (0..to).for_each(|i| put(dst + i, out[i as usize]));
    }
    Ok(tagged(CompletionRecord::new(StatusByte::new(Status::Success)), d.opcode(), &source, &dest))
}

fn tagged(record: CompletionRecord, op: Opcode, source: &Tags, dest: &Tags) -> CompletionRecord {
    let record = match op {
        Opcode::DifInsert | Opcode::DixGenerate => record,
        _ => record
            .with_source_ref_tag(source.ref_tag)
            .with_source_app_tag_mask(source.app_mask)
            .with_source_app_tag(source.app_tag),
    };
    match op {
        Opcode::DifInsert | Opcode::DixGenerate | Opcode::DifUpdate => {
            record.with_dest_ref_tag(dest.ref_tag).with_dest_app_tag_mask(dest.app_mask).with_dest_app_tag(dest.app_tag)
        }
        _ => record,
    }
}

pub(crate) fn get(address: u64) -> u8 {
    // SAFETY: the mover vouched for the address.
    unsafe { (address as *const u8).read_volatile() }
}

pub(crate) fn put(address: u64, byte: u8) {
    // SAFETY: the mover vouched for the address.
    unsafe { (address as *mut u8).write_volatile(byte) }
}

/// Without a request for a record, only errors are reported (SPEC §5.4).
fn complete(d: &Descriptor, record: CompletionRecord) {
    let silent = matches!(record.status(), Status::Success | Status::SuccessPredicateFalse | Status::BatchFail);
    let wanted = flagged(d, Flags::REQUEST_COMPLETION_RECORD) || !silent;
    if flagged(d, Flags::COMPLETION_RECORD_ADDRESS_VALID) && wanted {
        // SAFETY: the mover vouched for the record's address, and it is the address of a `RecordCell`.
        unsafe { &*(d.completion_address() as *const RecordCell) }.complete(&record);
    }
}

// SAFETY: a descriptor is queued once or answered `Retry`, executed once, and forgotten with its record; `Retry` and
// panics come before it is queued.
unsafe impl Portal for TestDevice {
    fn info(&self) -> &QueueInfo {
        &self.info
    }

    fn offer(&self, submission: &Submission) -> Offer {
        let mut state = self.state();
        if state.stopped.is_some() {
            // A posted write to a disabled queue is dropped without an answer.
            state.lost += usize::from(self.info.mode == QueueMode::Dedicated);
            return if self.info.mode == QueueMode::Dedicated { Offer::Taken } else { Offer::Retry };
        }
        if state.retries > 0 {
            state.retries -= 1;
            return Offer::Retry;
        }
        if state.queue.len() >= self.info.size as usize {
            if self.info.mode == QueueMode::Shared {
                return Offer::Retry;
            }
            state.lost += 1;
            return Offer::Taken;
        }
        let d = *submission.descriptor();
        state.taken.push(d.opcode());
        state.queue.push_back(d);
        state.most = state.most.max(state.queue.len());
        Offer::Taken
    }

    fn health(&self) -> Health {
        let mut state = self.state();
        state.asked += 1;
        state.stopped.clone().map_or(Health::Working, Health::Stopped)
    }

    fn retire(&self) -> Health {
        if self.state().retirable {
            self.stop("it was given up");
        }
        self.health()
    }

    fn drive(&self) {
        if !self.state().manual {
            self.run(usize::MAX);
        }
    }
}
