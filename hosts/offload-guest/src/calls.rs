//! Long calls: the device or the CPU executes them.
//!
//! ```text
//! entries ──► a long call ──► no device, switched off, inside another one, or its site copies cached data? ──► CPU
//!                        └──► steps ──► the device's, each within `uncancelled`
//!                                └────► the CPU's between them; its time is taken now and then
//! ```
//!
//! The CPU's part is the C library's function, called on the program's stack with the program's arguments. So the
//! program gets its own faults where it expects them. A signal handler may leave that part by `siglongjmp`, and the C
//! library may unwind the thread from each instruction of it (PTHREAD_CANCEL_ASYNCHRONOUS). So the functions that call
//! it have nothing to drop, and a call is decided without anything to drop, too: what has it belongs to a step.
#![allow(unsafe_code, reason = "executes the program's calls by address, and calls the C library's functions")]

use crate::device::{self, Device};
use crate::gates::{cpu_compare, cpu_fill, cpu_move};
use crate::sites::{Site, Verdict};
use crate::statistics::ProcessStatistics;
use crate::thread::LongCall;
use crate::uncancelled::uncancelled;
use crate::{children, vfork};
use std::ffi::{c_int, c_void};
use telpher_mover::{CallResult, CallStep, MemoryCall};
use telpher_offload_wire::Counters;
use telpher_offload_wire::statistics::Operation;
use telpher_os::ticks;

/// One call.
#[derive(Clone, Copy, Debug)]
struct Call {
    operation: Operation,
    ranges: Ranges,
    len: usize,
    /// The return address.
    caller: usize,
}

/// The program's arguments.
#[derive(Clone, Copy, Debug)]
enum Ranges {
    Copy { to: *mut c_void, from: *const c_void },
    Fill { to: *mut c_void, byte: c_int },
    Compare { a: *const c_void, b: *const c_void },
}

impl Call {
    /// Returns whether it copies between overlapping ranges.
    #[inline]
    fn overlaps(&self) -> bool {
        matches!(self.ranges, Ranges::Copy { to, from } if to.addr().abs_diff(from.addr()) < self.len)
    }

    /// Has the C library's function execute a part of the call. Returns the result of a comparison, otherwise 0.
    ///
    /// # Safety
    /// As for the C library's function.
    #[inline]
    unsafe fn by_cpu(&self, start: usize, len: usize) -> c_int {
        // SAFETY: a part of the call's ranges.
        unsafe {
            match self.ranges {
                Ranges::Copy { to, from } => {
                    cpu_move(to.wrapping_byte_add(start), from.wrapping_byte_add(start), len);
                    0
                }
                Ranges::Fill { to, byte } => {
                    cpu_fill(to.wrapping_byte_add(start), byte, len);
                    0
                }
                Ranges::Compare { a, b } => cpu_compare(a.wrapping_byte_add(start), b.wrapping_byte_add(start), len),
            }
        }
    }

    /// Begins the call on a device.
    fn begin(&self, device: &'static Device) -> MemoryCall<'static> {
        match self.ranges {
            Ranges::Copy { to, from } => device.begin_copy(to, from, self.len),
            Ranges::Fill { to, byte } => device.begin_fill(to, byte, self.len),
            Ranges::Compare { a, b } => device.begin_compare(a, b, self.len),
        }
    }
}

/// What executes a call.
#[derive(Clone, Copy)]
enum Choice {
    /// The CPU, and the call is counted.
    Cpu,
    /// To be decided in a step.
    InStep,
    /// The device, or the CPU with its time taken, as the site's verdict says.
    By(&'static Device, Verdict, Site),
}

/// Decides a call. `IN_STEP` is true in a step; otherwise what needs one is left to it.
#[inline]
fn choose<const IN_STEP: bool>(call: &Call, mut device: &'static Device) -> Choice {
    // Shorter calls come here only to be counted.
    if call.len < device.threshold(call.operation) {
        return Choice::Cpu;
    }
    if !device.is_of_this_process() {
        if !children::may_open() {
            device.count(Counters::AT.forked, 1);
            return Choice::Cpu;
        }
        if !IN_STEP {
            return Choice::InStep;
        }
        let Some(opened) = children::device_of_child(device) else {
            device.count(Counters::AT.forked, 1);
            return Choice::Cpu;
        };
        device = opened;
    }
    if device.is_switched_off() {
        return by_cpu_because(device, Counters::AT.switched_off, call.len);
    }
    if call.overlaps() && !device.copies_overlapping() {
        return by_cpu_because(device, Counters::AT.overlapping, call.len);
    }
    let site = match device.known_site(call.caller) {
        Some(site) => site,
        None if !IN_STEP => return Choice::InStep,
        None => match device.site(call.caller) {
            Some(site) => site,
            // The table has no room for it.
            None => return by_cpu_because(device, Counters::AT.hot, call.len),
        },
    };
    let verdict = device.verdict(site);
    let counter = match verdict {
        Verdict::Device | Verdict::Timed => return Choice::By(device, verdict, site),
        Verdict::Cpu => Counters::AT.hot,
        Verdict::Absent => Counters::AT.absent,
        Verdict::Denied => Counters::AT.denied,
    };
    site.count_cpu(call.len);
    by_cpu_because(device, counter, call.len)
}

/// Counts a call of the CPU.
#[inline]
fn by_cpu_because(device: &Device, counter: telpher_metrics::Position<Counters>, len: usize) -> Choice {
    device.count(counter, 1);
    device.count(Counters::AT.cpu_bytes, len as u64);
    Choice::Cpu
}

/// Executes a call. Returns the result of a comparison, otherwise 0.
///
/// # Safety
/// As for the C library's function.
#[inline]
unsafe fn execute(call: Call) -> c_int {
    // SAFETY: the caller's promise, here and below.
    let Some(device) = device::get() else { return unsafe { call.by_cpu(0, call.len) } };
    let statistics = device.statistics().filter(|statistics| statistics.has_caller(call.caller));
    // A child of vfork must not change the state of its parent's thread, which it shares.
    let counter = if vfork::is_child() {
        Some(Counters::AT.forked)
    } else if LongCall::is_inside() {
        Some(Counters::AT.nested)
    } else {
        None
    };
    let choice = match counter {
        Some(counter) => {
            if call.len >= device.threshold(call.operation) {
                device.count(counter, 1);
            }
            Choice::Cpu
        }
        None if statistics.is_some() => Choice::InStep,
        None => choose::<false>(&call, device),
    };
    let Choice::Cpu = choice else {
        // SAFETY: as above.
        return unsafe { in_steps(call, device, choice, statistics) };
    };
    let start = if statistics.is_some() { ticks() } else { 0 };
    // SAFETY: as above.
    let value = unsafe { call.by_cpu(0, call.len) };
    if let Some(statistics) = statistics {
        statistics.count(call.operation, call.len, ticks().wrapping_sub(start), 0, None);
    }
    value
}

/// Executes a call in steps.
///
/// # Safety
/// As for the C library's function.
#[inline(never)]
unsafe fn in_steps(
    call: Call,
    device: &'static Device,
    choice: Choice,
    statistics: Option<&'static ProcessStatistics>,
) -> c_int {
    let begun = if statistics.is_some() { ticks() } else { 0 };
    let state = State::Chosen(choice);
    let mut steps = Steps { call, device, statistics, begun, state, part: None, cpu_ticks: 0, value: 0 };
    loop {
        uncancelled(step, &mut steps);
        let Some(part) = steps.part else { return steps.value };
        let start = if part.is_timed { ticks() } else { 0 };
        // SAFETY: the caller's promise.
        steps.value = unsafe { call.by_cpu(part.start, part.len) };
        if !part.is_timed && part.is_last {
            return steps.value;
        }
        if part.is_timed {
            steps.cpu_ticks += ticks().wrapping_sub(start);
        }
    }
}

const _: () = assert!(!std::mem::needs_drop::<Steps>());

/// A call in steps.
struct Steps {
    call: Call,
    device: &'static Device,
    /// Where the call is counted by its size, if the user asks for it.
    statistics: Option<&'static ProcessStatistics>,
    /// When it began, if it is counted so.
    begun: u64,
    state: State,
    /// What the CPU does next; none if the call has ended.
    part: Option<Part>,
    /// Ticks of the CPU's parts that were timed.
    cpu_ticks: u64,
    /// The result of a comparison, as far as it is known.
    value: c_int,
}

#[expect(clippy::large_enum_variant, reason = "it is on the stack once, and may not be allocated")]
enum State {
    /// Nothing was done yet.
    Chosen(Choice),
    /// The device executes it, and the CPU what is left.
    Device(MemoryCall<'static>, Site),
    /// The CPU executes all of it, and the site learns from its time.
    Timed(Site),
    /// The CPU executes all of it.
    Cpu,
}

/// A part of a call that the CPU does.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: usize,
    len: usize,
    /// Its time is taken.
    is_timed: bool,
    /// No step follows, unless its time was taken.
    is_last: bool,
}

/// Makes one step.
extern "C" fn step(steps: &mut Steps) {
    // Long calls of this library itself stay with the CPU. Without the mark they would come here again.
    let Some(_long_call) = LongCall::enter() else {
        steps.part = Some(steps.whole(false));
        return;
    };
    steps.part = steps.advance();
    if steps.part.is_some() {
        return;
    }
    let result = match &steps.state {
        State::Device(call, site) => {
            let result = call.result();
            steps.device.note(result);
            site.count_device(result.device_bytes, result.cpu_bytes, result.faults > 0);
            Some(result)
        }
        _ => None,
    };
    steps.count(result);
}

impl Steps {
    /// Goes on until the CPU must do a part, which it returns, or to the end.
    fn advance(&mut self) -> Option<Part> {
        if let State::Chosen(choice) = self.state {
            let choice = if let Choice::InStep = choice { choose::<true>(&self.call, self.device) } else { choice };
            let Choice::By(device, verdict, site) = choice else {
                self.state = State::Cpu;
                return Some(self.whole(self.statistics.is_some()));
            };
            self.device = device;
            if verdict == Verdict::Timed {
                device.count(Counters::AT.timed, 1);
                device.count(Counters::AT.cpu_bytes, self.call.len as u64);
                site.count_cpu(self.call.len);
                self.state = State::Timed(site);
                return Some(self.whole(true));
            }
            device.count(Counters::AT.by_device, 1);
            self.state = State::Device(self.call.begin(device), site);
        }
        match &mut self.state {
            // The CPU has found a difference.
            State::Device(..) if self.value != 0 => None,
            // SAFETY: the program's promise to the C library's function.
            State::Device(call, _) => match unsafe { call.step() } {
                CallStep::Cpu { start, len } => {
                    Some(Part { start, len, is_timed: self.statistics.is_some(), is_last: false })
                }
                CallStep::Done(difference) => {
                    self.value = difference.map_or(0, |at| self.sign(at));
                    None
                }
            },
            State::Timed(site) => {
                self.device.learn(*site, self.call.len, self.cpu_ticks);
                None
            }
            State::Chosen(_) | State::Cpu => None,
        }
    }

    /// Returns the whole call as a part.
    fn whole(&self, is_timed: bool) -> Part {
        Part { start: 0, len: self.call.len, is_timed, is_last: true }
    }

    /// Returns the result of a comparison whose first difference a device has found.
    fn sign(&self, at: usize) -> c_int {
        let Ranges::Compare { a, b } = self.call.ranges else { return 0 };
        // SAFETY: the difference lies in both ranges.
        let [a, b] = [a, b].map(|range| unsafe { c_int::from(range.cast::<u8>().wrapping_add(at).read()) });
        a - b
    }

    /// Counts the call by its size, if the user asks for that.
    fn count(&self, result: Option<CallResult>) {
        if let Some(statistics) = self.statistics {
            let took = ticks().wrapping_sub(self.begun);
            statistics.count(self.call.operation, self.call.len, took, self.cpu_ticks, result);
        }
    }
}

/// `memcpy` of a long range.
///
/// # Safety
/// As for the C library's `memmove`.
pub(crate) unsafe extern "C-unwind" fn copy_long(
    to: *mut c_void,
    from: *const c_void,
    len: usize,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { execute(Call { operation: Operation::Copy, ranges: Ranges::Copy { to, from }, len, caller }) };
    to
}

/// `memmove` of a long range.
///
/// # Safety
/// As for the C library's function.
pub(crate) unsafe extern "C-unwind" fn move_long(
    to: *mut c_void,
    from: *const c_void,
    len: usize,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { execute(Call { operation: Operation::Move, ranges: Ranges::Copy { to, from }, len, caller }) };
    to
}

/// `mempcpy` of a long range.
///
/// # Safety
/// As for the C library's function.
pub(crate) unsafe extern "C-unwind" fn copy_to_end_long(
    to: *mut c_void,
    from: *const c_void,
    len: usize,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { copy_long(to, from, len, caller) }.wrapping_byte_add(len)
}

/// `memset` of a long range.
///
/// # Safety
/// As for the C library's function.
pub(crate) unsafe extern "C-unwind" fn fill_long(
    to: *mut c_void,
    byte: c_int,
    len: usize,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { execute(Call { operation: Operation::Set, ranges: Ranges::Fill { to, byte }, len, caller }) };
    to
}

/// `memcmp` of a long range.
///
/// # Safety
/// As for the C library's function.
pub(crate) unsafe extern "C-unwind" fn compare_long(
    a: *const c_void,
    b: *const c_void,
    len: usize,
    caller: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execute(Call { operation: Operation::Compare, ranges: Ranges::Compare { a, b }, len, caller }) }
}
