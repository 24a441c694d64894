//! One memory call: its pieces, in the order in which they must be done.
//!
//! ```text
//!   next piece ──submit──► window ──record──► done | difference | submitted again after a fault
//!        │ all queues full     │
//!        └──────► the CPU ◄────┴── refused, failed, stopped, or a short rest
//! ```
//!
//! The CPU's parts are done by the caller, between two steps, while no descriptor of the call is in flight. So a fault
//! of the CPU is the program's own, and the program's handler may leave the call by `siglongjmp`: nothing of this file
//! is on the stack, and the call has nothing to drop.

use crate::api::outcome::Outcome;
use crate::api::policy::OnFault;
use crate::inflight::calls::devices::{Devices, InFlight, Submitted};
use crate::inflight::recover::Next;
use crate::plan::request::Request;
use crate::report::AbortOnUnwind;
use telpher_abi::{CompletionRecord, Descriptor, Opcode, Status};

/// Most pieces of one call in flight. Source: chosen; enough to keep a queue's engine busy while one record is read,
/// and few enough for the stack of a signal handler.
const WINDOW: usize = 4;

/// Which part of a memory call was done by devices and which by the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CallResult {
    /// Bytes that devices copied, filled or compared.
    pub device_bytes: u64,
    /// Bytes that the CPU did. Bytes that the CPU repeated count here.
    pub cpu_bytes: u64,
    /// Offers that queues refused.
    pub retries: u32,
    /// Page faults that devices reported.
    pub faults: u32,
}

/// A range of a call, as offset and length.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u64,
    len: u64,
    /// Times that a part of it was submitted again after a fault.
    resubmissions: u32,
}

/// What became of a submitted piece.
#[derive(Debug)]
enum Progress {
    /// A device has it.
    InFlight(InFlight),
    /// Its record, or `None` if the queue stopped without one. Nothing touches its memory any more.
    Ended(Option<CompletionRecord>),
}

/// What is left of a piece, or of the call.
#[derive(Debug)]
enum After {
    /// Nothing.
    Done,
    /// The ranges differ at this offset of the call.
    Difference(u64),
    /// This range, which the CPU does.
    OnCpu(Piece),
}

/// What is left of a piece after its record was read.
#[derive(Debug)]
enum Left {
    /// What does not need a device.
    After(After),
    /// This range, after a page fault at which a device wanted to write, or to read.
    Fault(Piece, bool),
}

/// What happens next in a memory call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallStep {
    /// The CPU must do this range of the call: offset and length in bytes. No descriptor of the call is in flight.
    Cpu {
        /// Offset from the start of the call's ranges.
        start: usize,
        /// Length.
        len: usize,
    },
    /// The call has ended. A comparison whose last part devices did has found its first difference at this offset.
    Done(Option<usize>),
}

/// A memory call in steps: those of the devices are made by [`step`](MemoryCall::step), those of the CPU by the caller,
/// after `step` has returned. [`MemoryCalls::begin_copy`](crate::MemoryCalls::begin_copy) and its siblings begin one.
///
/// Between two steps no descriptor of the call is in flight, and the call may be left for good, for example by
/// `siglongjmp`: it has nothing to drop.
#[derive(Debug)]
pub struct MemoryCall<'a> {
    devices: &'a Devices,
    /// The operation on the whole ranges.
    request: Request,
    /// Length of the whole call.
    len: u64,
    /// Pieces are taken from the end.
    backward: bool,
    /// Longest piece.
    longest: u64,
    /// Most pieces in flight.
    depth: usize,
    /// Bytes that were given to pieces, from the end at which the call begins.
    taken: u64,
    /// Submitted pieces, oldest first, without gaps.
    window: [Option<(Piece, Progress)>; WINDOW],
    counts: CallResult,
}

// A handler may leave the CPU's part by `siglongjmp`, and must not skip a drop.
const _: () = assert!(!std::mem::needs_drop::<MemoryCall<'static>>());
// Signal handlers have small stacks. Source: chosen; a third of the smallest alternate stack, 2048 bytes.
const _: () = assert!(size_of::<MemoryCall<'static>>() <= 680);

impl<'a> MemoryCall<'a> {
    /// A call that has not begun. `descriptor` has the operation and the addresses.
    pub(super) fn new(devices: &'a Devices, descriptor: Descriptor, len: u64) -> MemoryCall<'a> {
        let request = Request::new(descriptor, len);
        let (mut longest, mut depth) = (devices.longest_piece(descriptor.opcode()), WINDOW);
        if request.overlaps() {
            // A piece may write what an earlier one reads, so each begins after the one before has ended.
            depth = 1;
            let distance = descriptor.dst().abs_diff(descriptor.src());
            if !devices.can_copy_overlapping() {
                // A piece as long as the distance does not overlap itself.
                longest = if distance >= devices.policy.threshold.max(1) { longest.min(distance) } else { 0 };
            }
        }
        MemoryCall {
            backward: request.is_backward(),
            devices,
            request,
            len,
            longest,
            depth,
            taken: 0,
            window: [const { None }; WINDOW],
            counts: CallResult::default(),
        }
    }

    /// Leaves the whole call to the CPU.
    pub(super) fn leave_to_cpu(&mut self) {
        self.longest = 0;
    }

    /// Makes the next step: lets devices work until the call has ended, or until the CPU must do a range. The caller
    /// does that range before the next step. If it finds a difference there, the comparison has ended.
    ///
    /// # Safety
    ///
    /// Until this returns, the ranges are valid as the CPU's functions demand, or not mapped; no other code accesses
    /// the destination or writes the source, except as memmove allows. The call has not ended.
    pub unsafe fn step(&mut self) -> CallStep {
        // SAFETY: our caller's promise.
        let next = unsafe { self.advance() };
        // A piece that is in flight when the CPU works could write what the CPU reads, and would outlive the call if
        // the program's handler of a fault left it.
        self.drain();
        match next {
            After::OnCpu(piece) => {
                self.counts.cpu_bytes += piece.len;
                CallStep::Cpu { start: size(piece.start), len: size(piece.len) }
            }
            After::Difference(at) => CallStep::Done(Some(size(at))),
            After::Done => CallStep::Done(None),
        }
    }

    /// Returns what devices and the CPU have done so far; the CPU's part is counted before the CPU does it.
    #[must_use]
    pub fn result(&self) -> CallResult {
        self.counts
    }

    /// Returns the descriptor of the whole call: its operation and its addresses.
    pub(super) fn descriptor(&self) -> Descriptor {
        self.request.template()
    }

    /// # Safety
    ///
    /// As for [`step`](MemoryCall::step).
    unsafe fn advance(&mut self) -> After {
        loop {
            let mut no_queue = self.longest == 0;
            while self.taken < self.len && self.window[self.depth - 1].is_none() && !no_queue {
                let piece = self.next_piece();
                // SAFETY: our caller's promise; the piece overlaps no other piece in flight.
                match unsafe { self.submit(&piece) } {
                    Submitted::Taken(in_flight) => {
                        self.taken += piece.len;
                        self.push(piece, Progress::InFlight(in_flight));
                    }
                    Submitted::Full => break,
                    Submitted::NoQueue => no_queue = true,
                }
            }
            match self.pop() {
                // SAFETY: our caller's promise.
                Some((piece, progress)) => match unsafe { self.complete(piece, progress) } {
                    After::Done => {}
                    after => return after,
                },
                None if self.taken == self.len => return After::Done,
                None => {
                    if no_queue {
                        self.longest = self.len;
                    }
                    let piece = self.next_piece();
                    self.taken += piece.len;
                    return After::OnCpu(piece);
                }
            }
        }
    }

    /// Returns the next piece in the order of the call.
    fn next_piece(&self) -> Piece {
        let len = self.longest.min(self.len - self.taken);
        let start = if self.backward { self.len - self.taken - len } else { self.taken };
        Piece { start, len, resubmissions: 0 }
    }

    fn push(&mut self, piece: Piece, progress: Progress) {
        if let Some(place) = self.window.iter_mut().find(|place| place.is_none()) {
            *place = Some((piece, progress));
        }
    }

    /// Takes the oldest piece out of the window.
    fn pop(&mut self) -> Option<(Piece, Progress)> {
        let oldest = self.window[0].take();
        self.window.rotate_left(1);
        oldest
    }

    /// # Safety
    ///
    /// As for [`Devices::submit`], for the memory of the piece.
    unsafe fn submit(&mut self, piece: &Piece) -> Submitted {
        let mut request = self.request.part(piece.start, piece.len);
        // SAFETY: our caller's promise.
        unsafe { self.devices.submit(&mut request, &mut self.counts.retries) }
    }

    /// Waits for a piece, and submits what is left of it again where that is worth it. Returns what is left then.
    ///
    /// # Safety
    ///
    /// As for [`step`](MemoryCall::step); the piece was taken out of the window.
    unsafe fn complete(&mut self, piece: Piece, progress: Progress) -> After {
        let mut record = match progress {
            Progress::InFlight(in_flight) => self.devices.wait(in_flight),
            Progress::Ended(record) => record,
        };
        let mut piece = piece;
        loop {
            match self.read(piece, record.as_ref()) {
                Left::After(after) => return after,
                Left::Fault(rest, write) if self.is_worth_resubmitting(&rest) && self.populate(&rest, write) => {
                    piece = Piece { resubmissions: rest.resubmissions + 1, ..rest };
                    // SAFETY: our caller's promise. The other pieces in flight do not overlap this one.
                    match unsafe { self.submit(&piece) } {
                        Submitted::Taken(in_flight) => record = self.devices.wait(in_flight),
                        Submitted::Full | Submitted::NoQueue => return After::OnCpu(piece),
                    }
                }
                Left::Fault(rest, _) => return After::OnCpu(rest),
            }
        }
    }

    /// Reads the record of a piece: which part of it is left. Gives up if the content of the memory is lost.
    fn read(&mut self, piece: Piece, record: Option<&CompletionRecord>) -> Left {
        let mut request = self.request.part(piece.start, piece.len);
        let next = record.map(|record| (record, request.arrived_whole(record, OnFault::FinishOnCpu)));
        match next {
            Some((_, Next::Finished(Outcome::Different { at }))) => {
                self.counts.device_bytes += at;
                Left::After(After::Difference(piece.start + at))
            }
            Some((_, Next::Finished(_))) => {
                self.counts.device_bytes += piece.len;
                Left::After(After::Done)
            }
            Some((record, Next::OnCpu(status, fault))) => {
                // A move keeps its address and skips; the other operations advance.
                let skipped = request.base + request.chunk.map_or(0, |chunk| chunk.start + chunk.skip);
                let len = request.chunk.map_or(request.len(), |chunk| chunk.len);
                let rest = Piece { start: piece.start + skipped, len, ..piece };
                self.counts.device_bytes += piece.len - len;
                match (status, fault) {
                    (Status::PageFault | Status::PageFaultRefused, Some(_)) => {
                        self.counts.faults += 1;
                        Left::Fault(rest, record.status_byte().is_write())
                    }
                    _ => Left::After(After::OnCpu(rest)),
                }
            }
            // No record, or one that does not say which bytes are done: the whole piece is repeated.
            _ if !request.overlaps() => Left::After(After::OnCpu(piece)),
            _ => (self.devices.policy.give_up)(format_args!(
                "a device ended a copy of {} bytes between overlapping ranges with {}; some of its bytes may have \
                 moved, so it cannot be repeated",
                piece.len,
                record.map_or(Status::None, CompletionRecord::status),
            )),
        }
    }

    fn is_worth_resubmitting(&self, rest: &Piece) -> bool {
        let policy = &self.devices.policy;
        rest.resubmissions < policy.resubmissions && rest.len >= policy.threshold.saturating_mul(2)
    }

    /// Makes the rest of the call present, beginning with this rest of a piece.
    fn populate(&self, rest: &Piece, write: bool) -> bool {
        let (start, end) = if self.backward { (0, rest.start + rest.len) } else { (rest.start, self.len) };
        let guard = AbortOnUnwind("a panic in `populate`; a device may still write memory");
        let d = self.request.template();
        let address = |address: u64| pointer(address.wrapping_add(start));
        let populate = |address| (self.devices.policy.populate)(address, size(end - start), write);
        let populated = match d.opcode() {
            Opcode::MemoryMove if !write => populate(address(d.src())),
            // A comparison reads two ranges, and the record does not say which one faulted.
            Opcode::Compare => populate(address(d.src())) && populate(address(d.dst())),
            _ => populate(address(d.dst())),
        };
        guard.disarm();
        populated
    }

    /// Waits for everything in flight, and keeps the records.
    fn drain(&mut self) {
        for place in &mut self.window {
            *place = place.take().map(|(piece, progress)| match progress {
                Progress::InFlight(in_flight) => (piece, Progress::Ended(self.devices.wait(in_flight))),
                ended @ Progress::Ended(_) => (piece, ended),
            });
        }
    }
}

/// Returns the pointer to an address that the caller passed as a pointer.
pub(super) fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(size(address))
}

fn size(value: u64) -> usize {
    // Addresses and lengths of this process.
    usize::try_from(value).unwrap_or(usize::MAX)
}
