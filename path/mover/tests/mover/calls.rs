//! Memory calls against the naive meaning of memmove, memset and memcmp: every size around a boundary, every overlap,
//! faults, refusals and errors at every piece, queues that stop or never answer, handlers and threads.
#![allow(unsafe_code, reason = "calls by address, a portal, and a signal handler")]
#![allow(clippy::cast_possible_truncation, reason = "cuts small numbers")]

use crate::common::cpu_calls::CPU_CALLS;
use crate::common::device::{PAGE, TestDevice};
use crate::common::{Chance, clock};
use crate::routes::Machine;
use std::cell::{Cell, RefCell};
use std::fmt::Arguments;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::Duration;
use telpher_abi::registers::GenCap;
use telpher_abi::{Descriptor, Status};
use telpher_device::{ModelDevice, ModelOptions, Preset, Runner};
use telpher_mover::{CallResult, CpuCalls, MemoryCalls, MemoryCallsPolicy, Opcode, Topology, Wait};
use telpher_portal::{Health, Offer, Portal, QueueInfo, QueueMode, Submission};

/// Longest piece of the test portals.
const LIMIT: usize = 8192;
const THRESHOLD: usize = 1024;
const MEMORY: usize = 16 * LIMIT;
const ALL_ON: u64 = 0x0040_915f_0507;

/// What a test portal does with one offer.
#[derive(Clone, Copy, Debug)]
enum Action {
    Retry,
    /// Ends the descriptor with this status.
    End(Status),
    /// Writes zeros to the first half of the destination, then ends the descriptor with this status.
    EndHalfway(Status),
    /// Executes half of the descriptor, then stops the queue.
    StopHalfway,
}

/// A test device whose offers follow a script, with a limit of its own on transfers. It checks what calls promise about
/// their descriptors.
#[derive(Debug)]
struct ScriptedPortal {
    device: TestDevice,
    /// Offers made, and what happens at which.
    script: Mutex<(usize, Vec<(usize, Action)>)>,
}

impl ScriptedPortal {
    fn new(gen_cap: u64, change: impl FnOnce(&mut QueueInfo)) -> Arc<ScriptedPortal> {
        let device = TestDevice::with(|info| {
            (info.max_transfer, info.gen_cap) = (LIMIT as u64, GenCap([gen_cap]));
            change(info);
        });
        Arc::new(ScriptedPortal { device, script: Mutex::default() })
    }

    fn set(&self, actions: Vec<(usize, Action)>) {
        *self.script.lock().unwrap() = (0, actions);
        let mut state = self.device.state();
        (state.most, state.retries, state.faulted) = (0, 0, 0);
        state.faults.clear();
        state.exact = None;
        state.taken.clear();
    }

    fn check(&self, d: &Descriptor) {
        let overlaps = d.opcode() == Opcode::MemoryMove && d.src().abs_diff(d.dst()) < u64::from(d.size());
        assert!(!overlaps || self.info().gen_cap.overlapping_copy(), "the device cannot do {d:?}");
    }
}

// SAFETY: the test device keeps the promise. A descriptor that is ended or stopped here is never executed afterwards.
unsafe impl Portal for ScriptedPortal {
    fn info(&self) -> &QueueInfo {
        self.device.info()
    }

    fn offer(&self, submission: &Submission) -> Offer {
        let d = submission.descriptor();
        self.check(d);
        let mut script = self.script.lock().unwrap();
        script.0 += 1;
        let offer = script.0 - 1;
        let action = script.1.iter().find(|(at, _)| *at == offer).map(|(_, action)| *action);
        match action {
            None => {}
            Some(Action::Retry) => return Offer::Retry,
            // Earlier descriptors are executed first, so that the status is for this one.
            Some(_) => drop(self.device.run(usize::MAX)),
        }
        match action {
            Some(Action::End(status)) => self.device.state().answers.push_back(status),
            Some(Action::EndHalfway(status)) => {
                // SAFETY: the caller vouched for the destination.
                unsafe { std::ptr::write_bytes(d.dst() as *mut u8, 0, d.size() as usize / 2) };
                self.device.state().answers.push_back(status);
            }
            _ => {}
        }
        let answer = self.device.offer(submission);
        if matches!(action, Some(Action::StopHalfway)) {
            self.device.stop_within(d.dst() + u64::from(d.size()) / 2, "it was stopped halfway");
        }
        answer
    }

    fn health(&self) -> Health {
        self.device.health()
    }

    fn drive(&self) {
        self.device.drive();
    }
}

/// What the test's `populate` does on this thread, and the calls made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Populate {
    Refuse,
    Accept,
}

thread_local! {
    static POPULATE: Cell<Populate> = const { Cell::new(Populate::Refuse) };
    static POPULATED: RefCell<Vec<(u64, u64)>> = const { RefCell::new(Vec::new()) };
}

fn populate(address: *mut u8, len: usize, _write: bool) -> bool {
    POPULATED.with_borrow_mut(|ranges| ranges.push((address as u64, len as u64)));
    POPULATE.get() == Populate::Accept
}

static GAVE_UP: (Mutex<Vec<(ThreadId, String)>>, Condvar) = (Mutex::new(Vec::new()), Condvar::new());
static LATE: Mutex<Vec<String>> = Mutex::new(Vec::new());

thread_local! {
    /// The call of this thread must give up.
    static MUST_GIVE_UP: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the thread for ever, as the contract demands. Aborts if the thread must not give up.
fn give_up(message: Arguments<'_>) -> ! {
    if !MUST_GIVE_UP.get() {
        eprintln!("a call gave up: {message}");
        std::process::abort();
    }
    let mut given_up = GAVE_UP.0.lock().unwrap();
    given_up.push((std::thread::current().id(), message.to_string()));
    GAVE_UP.1.notify_all();
    drop(given_up);
    loop {
        std::thread::park();
    }
}

/// Waits until this thread gives up, and returns its message.
fn message_of(thread: ThreadId) -> String {
    let mut given_up = GAVE_UP.0.lock().unwrap();
    loop {
        if let Some((_, message)) = given_up.iter().find(|(id, _)| *id == thread) {
            return message.clone();
        }
        given_up = GAVE_UP.1.wait(given_up).unwrap();
    }
}

fn policy() -> MemoryCallsPolicy {
    MemoryCallsPolicy {
        threshold: THRESHOLD as u64,
        patience: Duration::from_millis(1),
        fatal: Duration::from_millis(20),
        populate,
        late: |queue| LATE.lock().unwrap().push(queue.into()),
        give_up,
        ..MemoryCallsPolicy::default()
    }
}

fn calls(portals: &[&Arc<ScriptedPortal>], slots: u32) -> MemoryCalls {
    let portals = portals.iter().map(|portal| Arc::clone(portal) as Arc<dyn Portal>);
    MemoryCalls::with_clock(portals, CPU_CALLS, policy(), slots, clock()).unwrap()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Copy,
    Fill,
    /// Of equal ranges.
    Compare,
}

/// Memory that begins at a page, and random bytes to fill it with.
struct Memory {
    block: Vec<u8>,
    random: Vec<u8>,
}

impl Memory {
    fn new() -> Memory {
        Memory::of(MEMORY)
    }

    fn of(len: usize) -> Memory {
        Memory { block: vec![0; len + PAGE as usize], random: Chance::new(5).bytes(len) }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let start = self.block.as_ptr().align_offset(PAGE as usize);
        &mut self.block[start..start + self.random.len()]
    }

    fn address(&mut self) -> u64 {
        self.bytes().as_ptr() as u64
    }

    /// Makes one call, and compares all memory with what naive code makes of it.
    fn check(&mut self, calls: &MemoryCalls, op: Op, dst: usize, src: usize, len: usize) -> CallResult {
        let mut expected = self.random.clone();
        match op {
            Op::Copy => expected[dst..dst + len].copy_from_slice(&self.random[src..src + len]),
            Op::Fill => expected[dst..dst + len].fill(0x5a),
            Op::Compare => expected[dst..dst + len].copy_from_slice(&self.random[src..src + len]),
        }
        let before = if op == Op::Compare { expected.clone() } else { self.random.clone() };
        let bytes = self.bytes();
        bytes.copy_from_slice(&before);
        let start = bytes.as_mut_ptr();
        // SAFETY: both ranges lie in the memory, which nothing else uses.
        let result = unsafe {
            match op {
                Op::Copy => calls.copy(start.add(dst), start.add(src), len),
                Op::Fill => calls.fill(start.add(dst), 0x5a, len),
                Op::Compare => {
                    let (difference, result) = calls.compare(start.add(src), start.add(dst), len);
                    assert_eq!(difference, None, "from {src} and {dst}, {len} bytes");
                    result
                }
            }
        };
        let wrong = bytes.iter().zip(&expected).position(|(is, expected)| is != expected);
        assert_eq!(wrong, None, "{op:?} from {src} to {dst}, {len} bytes: the first wrong byte");
        assert_eq!(result.device_bytes + result.cpu_bytes, len as u64, "{op:?} {src} {dst} {len}: {result:?}");
        result
    }
}

const SIZES: [usize; 9] = [0, 1, THRESHOLD - 1, THRESHOLD, THRESHOLD + 1, LIMIT - 1, LIMIT, LIMIT + 1, 3 * LIMIT - 1];

/// Calls `each` with destination, source and length, for each distance in both directions.
fn overlaps(len: usize, alignment: usize, mut each: impl FnMut(usize, usize)) {
    for distance in [0, 1, 63, 4095, 4096, LIMIT, len.saturating_sub(1), len] {
        let near = 4096 + alignment;
        each(near, near + distance);
        each(near + distance, near);
    }
}

#[test]
fn every_call_has_the_naive_result_for_each_size_alignment_and_overlap() {
    for gen_cap in [ALL_ON, ALL_ON & !2] {
        let portal = ScriptedPortal::new(gen_cap, |_| {});
        let (calls, mut memory) = (calls(&[&portal], 8), Memory::new());
        for len in SIZES {
            for alignment in [0, 1, 17] {
                overlaps(len, alignment, |dst, src| {
                    portal.set(Vec::new());
                    let result = memory.check(&calls, Op::Copy, dst, src, len);
                    let (distance, most) = (dst.abs_diff(src), portal.device.state().most);
                    assert!(distance >= len || most <= 1, "{most} in flight with distance {distance} of {len}");
                    let by_device = distance > 0 && (gen_cap & 2 > 0 || distance >= THRESHOLD.min(len));
                    assert_eq!(result.cpu_bytes, if by_device { 0 } else { len as u64 }, "{distance} of {len}");
                });
                for op in [Op::Fill, Op::Compare] {
                    portal.set(Vec::new());
                    let result = memory.check(&calls, op, 4096 + alignment, 8 * LIMIT + 3, len);
                    assert_eq!(result.cpu_bytes, 0);
                    assert_eq!(portal.device.state().most, len.div_ceil(LIMIT), "pieces are in flight together");
                }
            }
        }
    }
}

#[test]
fn every_call_survives_a_fault_at_each_page_whatever_populate_does() {
    let portal = ScriptedPortal::new(ALL_ON, |_| {});
    let (calls, mut memory) = (calls(&[&portal], 8), Memory::new());
    let start = memory.address();
    let len = 3 * LIMIT - 1;
    let pages = (5 * LIMIT) as u64 / PAGE;
    for (populates, times, backward) in
        [(Populate::Refuse, 1, false), (Populate::Accept, 1, true), (Populate::Accept, u32::MAX, false)]
    {
        POPULATE.set(populates);
        portal.device.state().backward = backward;
        for page in 0..pages {
            let mut check = |op, dst, src| {
                portal.set(Vec::new());
                portal.device.fault(start + page * PAGE, times);
                POPULATED.take();
                let result = memory.check(&calls, op, dst, src, len);
                let faulted = portal.device.state().faulted;
                assert_eq!(result.faults as usize, faulted, "{op:?} {src} {dst}");
                if populates == Populate::Accept && times == 1 && result.cpu_bytes > 0 && dst != src {
                    // The rest was short.
                    assert!(result.cpu_bytes < 2 * THRESHOLD as u64, "{op:?} {src} {dst}: {result:?}");
                }
                for (address, bytes) in POPULATED.take() {
                    let within = |range: usize| start + range as u64..=start + (range + len) as u64;
                    let is_within =
                        |range| within(range).contains(&address) && within(range).contains(&(address + bytes));
                    assert!(is_within(src) || is_within(dst), "populated memory that is not of the call");
                }
                // Every piece ends, also if a page faults for ever.
                assert!(faulted <= 4 * len.div_ceil(THRESHOLD));
            };
            overlaps(len, 17, |dst, src| check(Op::Copy, dst, src));
            check(Op::Fill, 4097, 0);
            check(Op::Compare, 4097, 4 * LIMIT - 5);
        }
    }
}

#[test]
fn every_call_survives_a_fault_at_each_byte() {
    let portal = ScriptedPortal::new(ALL_ON, |info| info.max_transfer = 64);
    let mut policy = policy();
    policy.threshold = 8;
    let portals = [Arc::clone(&portal) as Arc<dyn Portal>];
    let calls = MemoryCalls::with_clock(portals, CPU_CALLS, policy, 8, clock()).unwrap();
    let mut memory = Memory::of(512);
    let start = memory.address();
    for populates in [Populate::Refuse, Populate::Accept] {
        POPULATE.set(populates);
        for at in 0..191 {
            for (op, dst, src) in
                [(Op::Copy, 0, 5), (Op::Copy, 5, 0), (Op::Copy, 0, 300), (Op::Fill, 0, 0), (Op::Compare, 0, 300)]
            {
                portal.set(Vec::new());
                portal.device.fault_at(start + (dst + at) as u64, 1);
                assert_eq!(memory.check(&calls, op, dst, src, 191).faults, 1);
            }
        }
    }
}

#[test]
fn a_long_rest_is_populated_and_submitted_again_and_a_short_one_is_done_by_the_cpu() {
    let portal = ScriptedPortal::new(ALL_ON, |_| {});
    let (calls, mut memory) = (calls(&[&portal], 8), Memory::new());
    let start = memory.address();
    POPULATE.set(Populate::Accept);
    let mut check = |op, dst: usize, src, fault_at: usize, times| {
        portal.set(Vec::new());
        POPULATED.take();
        portal.device.fault_at(start + fault_at as u64, times);
        let result = memory.check(&calls, op, dst, src, LIMIT);
        let populated = POPULATED.take();
        (result.faults, result.cpu_bytes, populated.into_iter().map(|(at, len)| (at - start, len)).collect::<Vec<_>>())
    };
    let (worth, limit) = (2 * THRESHOLD as u64, LIMIT as u64);
    for op in [Op::Copy, Op::Fill] {
        let at = 100 + LIMIT - 2 * THRESHOLD;
        assert_eq!(check(op, 100, 5 * LIMIT, at, 1), (1, 0, vec![(at as u64, worth)]));
        assert_eq!(check(op, 100, 5 * LIMIT, at + 1, 1), (1, worth - 1, vec![]));
    }
    // A source is populated too, and both ranges of a comparison.
    assert_eq!(check(Op::Copy, 0, 5 * LIMIT, 5 * LIMIT, 1), (1, 0, vec![(5 * limit, limit)]));
    assert_eq!(check(Op::Compare, 0, 5 * LIMIT, 5 * LIMIT, 1), (1, 0, vec![(5 * limit, limit), (0, limit)]));
    // A copy that runs backward: the rest ends with the byte that faulted.
    assert_eq!(check(Op::Copy, 1, 0, 2 * THRESHOLD, 1), (1, 0, vec![(0, worth + 1)]));
    // A page that faults again and again: the first offer and three more.
    let (faults, cpu_bytes, populated) = check(Op::Fill, 0, 0, 0, u32::MAX);
    assert_eq!((faults, cpu_bytes, populated.len()), (4, limit, 3));
}

thread_local! {
    static DEVICE: RefCell<Option<Arc<ScriptedPortal>>> = const { RefCell::new(None) };
}

/// Copies, and checks that no descriptor was in flight meanwhile.
unsafe fn copy_alone(dst: *mut u8, src: *const u8, len: usize) {
    DEVICE.with_borrow(|portal| assert_eq!(portal.as_ref().unwrap().device.run(1), 0, "a descriptor is in flight"));
    // SAFETY: our caller's promise.
    unsafe { (CPU_CALLS.copy)(dst, src, len) }
}

#[test]
fn the_cpu_works_only_while_no_descriptor_of_the_call_is_in_flight() {
    let portal = ScriptedPortal::new(ALL_ON, |_| {});
    DEVICE.set(Some(Arc::clone(&portal)));
    POPULATE.set(Populate::Accept);
    // Both devices take pieces in turn, and only the first one executes in time.
    let cpu = CpuCalls { copy: copy_alone, ..CPU_CALLS };
    let other = ScriptedPortal::new(ALL_ON, |info| info.name = "test1.0".into());
    let portals = [Arc::clone(&other) as Arc<dyn Portal>, Arc::clone(&portal) as Arc<dyn Portal>];
    let calls = MemoryCalls::with_clock(portals, cpu, policy(), 8, clock()).unwrap();
    let mut memory = Memory::new();
    // The first piece goes to the other device, and the second one waits in this device's queue.
    other.set(vec![(0, Action::End(Status::InvalidFlags))]);
    let result = memory.check(&calls, Op::Copy, 0, 4 * LIMIT, 2 * LIMIT);
    assert_eq!((result.cpu_bytes, result.device_bytes), (LIMIT as u64, LIMIT as u64));
    assert_eq!(portal.device.state().taken.len(), 1);
}

thread_local! {
    static COPIED_BY_CPU: RefCell<Vec<(u64, u64, usize)>> = const { RefCell::new(Vec::new()) };
}

/// Only notes its arguments: the destination must not be touched.
unsafe fn note_copy(dst: *mut u8, src: *const u8, len: usize) {
    COPIED_BY_CPU.with_borrow_mut(|copied| copied.push((dst as u64, src as u64, len)));
}

#[test]
fn a_bad_address_ends_in_the_cpu_s_function_exactly_where_the_device_stopped() {
    let device = ModelDevice::start(ModelOptions::default().with_runner(Runner::Inline)).unwrap();
    let policy = MemoryCallsPolicy { threshold: 1, ..policy() };
    let cpu = CpuCalls { copy: note_copy, ..CPU_CALLS };
    let calls = MemoryCalls::new([device.portal("wq0.0").unwrap()], cpu, policy, 8).unwrap();
    let (page, len) = (PAGE as usize, 4 * PAGE as usize);
    let src = Chance::new(8).bytes(len);
    for accepts in [Populate::Refuse, Populate::Accept] {
        POPULATE.set(accepts);
        COPIED_BY_CPU.take();
        // SAFETY: a new mapping, whose third page becomes inaccessible. Only the first two pages are read.
        let result = unsafe {
            let dst = libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
            .cast::<u8>();
            std::ptr::write_bytes(dst, 0, len);
            assert_eq!(libc::mprotect(dst.add(2 * page).cast(), page, libc::PROT_NONE), 0);
            let result = calls.copy(dst, src.as_ptr(), len);
            assert_eq!(std::slice::from_raw_parts(dst, 2 * page), &src[..2 * page]);
            let rest = (dst.add(2 * page) as u64, src[2 * page..].as_ptr() as u64, 2 * page);
            assert_eq!(COPIED_BY_CPU.take(), [rest]);
            assert_eq!(libc::munmap(dst.cast(), len), 0);
            result
        };
        let faults = if accepts == Populate::Accept { 4 } else { 1 };
        assert_eq!((result.device_bytes, result.faults), (2 * PAGE, faults));
    }
}

#[test]
fn a_refused_piece_is_offered_once_more_and_then_done_by_the_cpu() {
    let portal = ScriptedPortal::new(ALL_ON, |_| {});
    let (calls, mut memory) = (calls(&[&portal], 8), Memory::new());
    let len = 3 * LIMIT - 1;
    for piece in 0..3 {
        for (op, dst, src) in [
            (Op::Copy, 0, 1),
            (Op::Copy, 1, 0),
            (Op::Copy, 0, 4 * LIMIT),
            (Op::Fill, 0, 0),
            (Op::Compare, 0, 4 * LIMIT),
        ] {
            portal.set(vec![(piece, Action::Retry)]);
            let result = memory.check(&calls, op, dst, src, len);
            assert_eq!((result.retries, result.cpu_bytes), (1, 0), "{op:?} {piece}");
            portal.set(vec![(piece, Action::Retry), (piece + 1, Action::Retry)]);
            let result = memory.check(&calls, op, dst, src, len);
            assert_eq!(result.retries, 2);
            if dst.abs_diff(src) == 1 {
                // One piece at a time: its two offers are refused, and the CPU does it.
                let bytes = if piece == 2 { LIMIT - 1 } else { LIMIT };
                assert_eq!(result.cpu_bytes, bytes as u64, "{op:?} {piece}");
            }
        }
    }
    // A queue that refuses for ever: everything by the CPU.
    portal.set((0..100).map(|at| (at, Action::Retry)).collect());
    assert_eq!(memory.check(&calls, Op::Copy, 1, 0, len).cpu_bytes, len as u64);
}

#[test]
fn a_piece_that_ends_with_an_error_is_done_by_the_cpu() {
    let portal = ScriptedPortal::new(ALL_ON, |_| {});
    let (calls, mut memory) = (calls(&[&portal], 8), Memory::new());
    let len = 3 * LIMIT - 1;
    for piece in 0..3 {
        let bytes = if piece == 2 { LIMIT - 1 } else { LIMIT } as u64;
        for (op, dst, src) in
            [(Op::Copy, 0, 4 * LIMIT), (Op::Copy, LIMIT, 0), (Op::Fill, 0, 0), (Op::Compare, 0, 4 * LIMIT)]
        {
            let failures = [
                Action::End(Status::InvalidFlags),
                Action::End(Status::Unknown(0x3e)),
                Action::EndHalfway(Status::HardwareWriteError),
                Action::EndHalfway(Status::Unknown(0x3e)),
            ];
            for failure in failures {
                if op == Op::Compare && matches!(failure, Action::EndHalfway(_)) {
                    continue;
                }
                portal.set(vec![(piece, failure)]);
                let result = memory.check(&calls, op, dst, src, len);
                assert_eq!(result.cpu_bytes, bytes, "{op:?} {piece} {failure:?}");
            }
        }
        // Refused before execution: a piece that overlaps itself is repeated too.
        portal.set(vec![(piece, Action::End(Status::InvalidFlags))]);
        assert_eq!(memory.check(&calls, Op::Copy, 44, 0, len).cpu_bytes, 8192.min(bytes));
    }
}

#[test]
fn the_first_difference_is_found_at_every_position() {
    let portal = ScriptedPortal::new(ALL_ON, |_| {});
    let calls = calls(&[&portal], 8);
    let len = 3 * LIMIT - 1;
    let a = Chance::new(9).bytes(len);
    let mut positions: Vec<usize> = vec![0, 1, len / 2, len - 2, len - 1];
    positions.extend([LIMIT, 2 * LIMIT].into_iter().flat_map(|end| end - 2..end + 2));
    for first in positions {
        let mut b = a.clone();
        b[first] ^= 1;
        // A later difference, in the same and in the last piece, must not be taken for the first.
        (first..len).step_by(1000).for_each(|at| b[at] = !a[at]);
        for fault in [None, Some(0), Some(first), Some(len - 1)] {
            portal.set(Vec::new());
            if let Some(at) = fault {
                portal.device.fault_at(b.as_ptr() as u64 + at as u64, 1);
            }
            // SAFETY: the ranges are two vectors of `len` bytes.
            let (found, _) = unsafe { calls.compare(a.as_ptr(), b.as_ptr(), len) };
            assert_eq!(found, Some(first), "with a fault at {fault:?}");
        }
    }
    for first in 0..200 {
        let mut b = a[..200].to_vec();
        b[first] = !a[first];
        // SAFETY: as above, 200 bytes.
        assert_eq!(unsafe { calls.compare(a.as_ptr(), b.as_ptr(), 200) }.0, Some(first));
    }
}

#[test]
fn a_comparison_that_ends_early_leaves_no_descriptor_in_flight() {
    let [one, other] = ["test0.0", "test1.0"].map(|name| ScriptedPortal::new(ALL_ON, |info| info.name = name.into()));
    let calls = calls(&[&one, &other], 8);
    let (a, mut b) = (vec![1_u8; 2 * LIMIT], vec![1_u8; 2 * LIMIT]);
    b[5] = 2;
    // SAFETY: the ranges are two vectors of this length.
    let (found, _) = unsafe { calls.compare(a.as_ptr(), b.as_ptr(), 2 * LIMIT) };
    // The other queue has the second piece, and executes it only when that is waited for.
    assert_eq!(found, Some(5));
    assert_eq!(other.device.state().taken.len(), 1);
    assert_eq!(other.device.run(1), 0, "the second piece is in flight");
}

#[test]
fn the_cpu_does_what_a_stopped_queue_left_undone() {
    for piece in 0..3 {
        for (op, dst, src) in [(Op::Copy, 0, 4 * LIMIT), (Op::Copy, LIMIT, 0), (Op::Fill, 0, 0)] {
            let portal = ScriptedPortal::new(ALL_ON, |_| {});
            portal.device.state().manual = false;
            let (calls, mut memory) = (calls(&[&portal], 8), Memory::new());
            portal.set(vec![(piece, Action::StopHalfway)]);
            let result = memory.check(&calls, op, dst, src, 3 * LIMIT - 1);
            assert!(result.cpu_bytes >= LIMIT as u64 - 1, "{op:?} {piece}: {result:?}");
            assert!(portal.device.state().asked > 0);
            // Later calls do not try the stopped queue.
            let offers = portal.script.lock().unwrap().0;
            assert_eq!(memory.check(&calls, op, dst, src, LIMIT).cpu_bytes, LIMIT as u64);
            assert_eq!(portal.script.lock().unwrap().0, offers);
        }
    }
}

/// Makes a call on a thread that must give up. Returns its message, or "returned" if the call returned.
fn gives_up(calls: MemoryCalls, dst: usize, src: usize, len: usize) -> (&'static MemoryCalls, String) {
    // The thread uses both for ever.
    let calls: &'static MemoryCalls = Box::leak(Box::new(calls));
    let memory: &'static mut [u8] = Vec::leak(vec![7; MEMORY]);
    let thread = std::thread::spawn(move || {
        MUST_GIVE_UP.set(true);
        let start = memory.as_mut_ptr();
        // SAFETY: both ranges lie in the leaked memory.
        unsafe { calls.copy(start.add(dst), start.add(src), len) };
        give_up(format_args!("returned"));
    });
    (calls, message_of(thread.thread().id()))
}

#[test]
fn a_half_done_copy_between_overlapping_ranges_is_given_up_and_not_repeated() {
    for failure in [Action::StopHalfway, Action::End(Status::HardwareWriteError), Action::End(Status::Unknown(0x3e))] {
        let portal = ScriptedPortal::new(ALL_ON, |_| {});
        portal.set(vec![(1, failure)]);
        let (_, message) = gives_up(calls(&[&portal], 8), 44, 0, 3 * LIMIT);
        assert!(message.contains("8192 bytes") && message.contains("cannot be repeated"), "{message}");
    }
}

#[test]
fn a_queue_that_never_answers_is_reported_late_once_and_then_given_up() {
    let portal = ScriptedPortal::new(ALL_ON, |info| info.name = "silent0.0".into());
    portal.device.state().halted = true;
    let (calls, message) = gives_up(calls(&[&portal], 1), 0, 4 * LIMIT, LIMIT);
    assert!(message.contains("silent0.0") && message.contains("20ms"), "{message}");
    assert!(portal.device.state().asked > 5, "it was asked again and again");
    assert_eq!(LATE.lock().unwrap().iter().filter(|name| *name == "silent0.0").count(), 1);
    // The only slot is in flight for ever: other calls use the CPU.
    let mut memory = Memory::new();
    assert_eq!(memory.check(calls, Op::Copy, 1, 0, LIMIT).cpu_bytes, LIMIT as u64);
    // The descriptor still has its memory.
    portal.device.state().halted = false;
    assert_eq!(portal.device.run(1), 1);
}

#[test]
fn a_queue_that_can_be_stopped_is_given_up_without_ending_the_process() {
    let device = Arc::new(TestDevice::with(|info| info.max_transfer = LIMIT as u64));
    (device.state().halted, device.state().retirable) = (true, true);
    let calls = MemoryCalls::with_clock([device as Arc<dyn Portal>], CPU_CALLS, policy(), 8, clock()).unwrap();
    assert_eq!(Memory::new().check(&calls, Op::Copy, 0, 4 * LIMIT, 3 * LIMIT).cpu_bytes, 3 * LIMIT as u64);
}

#[test]
fn calls_use_several_queues_and_never_more_entries_than_a_dedicated_queue_has() {
    let small = |name: &str| {
        ScriptedPortal::new(ALL_ON, |info| (info.name, info.mode, info.size) = (name.into(), QueueMode::Dedicated, 2))
    };
    let (one, other) = (small("test0.0"), small("test1.0"));
    let calls = calls(&[&one, &other, &one], 8);
    let mut memory = Memory::new();
    for _ in 0..50 {
        assert_eq!(memory.check(&calls, Op::Copy, 0, 8 * LIMIT, 7 * LIMIT).cpu_bytes, 0);
    }
    for portal in [&one, &other] {
        let state = portal.device.state();
        assert_eq!((state.lost, state.most), (0, 2));
    }
}

#[test]
fn calls_have_the_naive_result_on_the_model_with_every_runner_from_several_threads() {
    for preset in [Preset::Spr, Preset::Full] {
        for runner in [Runner::Inline, Runner::Threaded, Runner::Auto] {
            let device = ModelDevice::start(ModelOptions::of(preset).with_runner(runner)).unwrap();
            let queues = device.enabled_queues();
            let portals = queues.iter().map(|n| device.portal(&format!("wq0.{n}")).unwrap());
            // Other jobs use the processors too, so a late queue is not an error here.
            let policy = MemoryCallsPolicy { fatal: Duration::from_secs(60), ..policy() };
            let calls = MemoryCalls::new(portals, CPU_CALLS, policy, 4).unwrap();
            std::thread::scope(|threads| {
                for thread in 0..3 {
                    let calls = &calls;
                    threads.spawn(move || {
                        let mut memory = Memory::new();
                        let mut by_device = 0;
                        for round in 0..10 {
                            let len = 2 * LIMIT + round;
                            for (op, dst, src) in [
                                (Op::Copy, 0, 44),
                                (Op::Copy, 44 + thread, 0),
                                (Op::Fill, 9, 0),
                                (Op::Compare, 0, 5 * LIMIT),
                            ] {
                                by_device += memory.check(calls, op, dst, src, len).device_bytes;
                            }
                        }
                        assert!(by_device > 0, "{preset:?} {runner:?}");
                    });
                }
            });
        }
    }
}

static HANDLER_CALLS: AtomicPtr<MemoryCalls> = AtomicPtr::new(std::ptr::null_mut());
static HANDLED: AtomicUsize = AtomicUsize::new(0);
static WRONG: AtomicUsize = AtomicUsize::new(0);

extern "C" fn copies_in_a_handler(_: i32) {
    // SAFETY: the test stores calls that live until the last signal was handled.
    let calls = unsafe { &*HANDLER_CALLS.load(Ordering::SeqCst) };
    let mut bytes: [u8; 5000] = std::array::from_fn(|i| (i % 251) as u8);
    let start = bytes.as_mut_ptr();
    // SAFETY: both ranges lie in the array.
    unsafe { calls.copy(start.add(100), start, 4900) };
    let is_right = bytes.iter().enumerate().all(|(i, byte)| *byte == (if i < 100 { i } else { i - 100 } % 251) as u8);
    WRONG.fetch_add(usize::from(!is_right), Ordering::SeqCst);
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn a_handler_copies_while_its_thread_copies() {
    const SIGNALS: usize = 300;
    for runner in [Runner::Inline, Runner::Threaded] {
        let device = ModelDevice::start(ModelOptions::of(Preset::Full).with_runner(runner)).unwrap();
        let portal = device.portal(&format!("wq0.{}", device.enabled_queues()[0])).unwrap();
        let policy = MemoryCallsPolicy { fatal: Duration::from_secs(60), wait: Wait::Pause, ..policy() };
        let calls = MemoryCalls::new([portal], CPU_CALLS, policy, 4).unwrap();
        HANDLED.store(0, Ordering::SeqCst);
        HANDLER_CALLS.store(std::ptr::from_ref(&calls).cast_mut(), Ordering::SeqCst);
        // SAFETY: installs the handler above; no other test of this binary uses the signal.
        unsafe { libc::signal(libc::SIGUSR2, copies_in_a_handler as *const () as libc::sighandler_t) };
        // SAFETY: names this thread, which outlives the other.
        let target = unsafe { libc::pthread_self() };
        let mut memory = Memory::new();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                for n in 1..=SIGNALS {
                    // SAFETY: the target thread waits for this one.
                    unsafe { libc::pthread_kill(target, libc::SIGUSR2) };
                    while HANDLED.load(Ordering::SeqCst) < n {
                        std::thread::yield_now();
                    }
                }
            });
            while HANDLED.load(Ordering::SeqCst) < SIGNALS {
                memory.check(&calls, Op::Copy, 44, 0, 3000);
                memory.check(&calls, Op::Compare, 0, 5 * LIMIT, 3000);
            }
        });
        assert_eq!(WRONG.load(Ordering::SeqCst), 0);
    }
}

/// Memory calls over one device on each of these nodes. Returns them with their devices.
fn memory_calls(nodes: &[Option<u32>], nearest: bool) -> (MemoryCalls, Vec<Arc<TestDevice>>, Arc<Machine>) {
    let device = |(number, node): (usize, &Option<u32>)| {
        Arc::new(TestDevice::with(|info| (info.name, info.numa_node) = (format!("wq{number}.0"), *node)))
    };
    let devices: Vec<_> = nodes.iter().enumerate().map(device).collect();
    let machine = Arc::new(Machine::default());
    let portals: Vec<_> = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Portal>).collect();
    let policy = MemoryCallsPolicy { nearest, ..MemoryCallsPolicy::default() };
    let topology = Arc::clone(&machine) as Arc<dyn Topology>;
    let calls = MemoryCalls::with_topology(portals, CPU_CALLS, policy, 8, clock(), topology).unwrap();
    (calls, devices, machine)
}

/// Makes memory calls, and returns the descriptors that each device has taken.
fn taken_by(calls: &MemoryCalls, devices: &[Arc<TestDevice>], count: usize) -> Vec<usize> {
    let (from, mut to) = (vec![7_u8; 4096], vec![0_u8; 4096]);
    for _ in 0..count {
        // SAFETY: both buffers have these bytes, and nothing else uses them.
        unsafe { calls.copy(to.as_mut_ptr(), from.as_ptr(), 4096) };
    }
    assert_eq!(from, to);
    devices.iter().map(|device| std::mem::take(&mut device.state().taken).len()).collect()
}

#[test]
fn memory_calls_go_to_the_device_of_the_node_that_the_thread_runs_on() {
    let (calls, devices, machine) = memory_calls(&[Some(0), Some(1)], true);
    for (node, expected) in [(0, [5, 0]), (1, [0, 5]), (2, [5, 0]), (3, [0, 5]), (0, [5, 0])] {
        machine.run_on(Some(node));
        assert_eq!(taken_by(&calls, &devices, 5), expected, "node {node}");
    }
    // A thread of an unknown node uses any device.
    machine.run_on(None);
    assert_eq!(taken_by(&calls, &devices, 5).iter().sum::<usize>(), 5);
}

#[test]
fn memory_calls_go_to_another_node_if_the_near_queue_has_stopped() {
    let (calls, devices, machine) = memory_calls(&[Some(0), Some(1), Some(1)], true);
    machine.run_on(Some(0));
    devices[0].stop("a test");
    let taken = taken_by(&calls, &devices, 8);
    assert_eq!((taken[0], taken[1] + taken[2]), (0, 8), "{taken:?}");
}

#[test]
fn memory_calls_ask_for_no_node_if_it_makes_no_difference_or_is_not_wanted() {
    for (nodes, nearest) in [(&[Some(1), Some(1)][..], true), (&[None, Some(1)], true), (&[Some(0), Some(1)], false)] {
        let (calls, devices, machine) = memory_calls(nodes, nearest);
        assert_eq!(taken_by(&calls, &devices, 5).iter().sum::<usize>(), 5);
        assert_eq!(*machine.asked.lock().unwrap(), 0, "{nodes:?}");
    }
}
