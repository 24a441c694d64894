//! Executes an action on memory: the only part of the model that accesses bytes.
//!
//! Moves, fills and compares go straight to the space's guarded kernels, and so does the CRC of a range if the space
//! can fold it. Copies with CRC, DIF and delta work on a small buffer of the runner, filled by guarded reads, so no
//! slice ever points at memory that others write. Source: SPEC §8.3; bytes completed and partial results: SPEC §8.3 as
//! tabulated with each operation.

mod arrays;
mod copy;
mod crc;
mod delta;
mod dif;
mod domains;
mod lists;

use crate::action::Action;
use crate::engine::Outcome;
use crate::operand::Domain;
use crate::windows::Window;
pub use copy::compared_record;
pub use dif::BlockTags;
use telpher_abi::{CompletionRecord, OperandId, Status, StatusByte};
use telpher_mem::{Fault, Space, WriteHint};
use telpher_ops::crc::CrcMode;

/// Page requests without a byte of progress before the device gives up. Source: *assumed*; the architecture says only
/// "too many". An access touches at most two pages before it progresses.
const TRIES: u32 = 4;

/// Bytes of each of a runner's two buffers. Both fit a 48 KiB first-level cache beside the stack, and hold seven of the
/// largest integrity blocks.
const SCRATCH: usize = 16 << 10;

/// Two buffers that a runner lends to execution; their contents have no meaning between calls.
#[derive(Debug)]
pub struct Scratch {
    a: Box<[u8]>,
    b: Box<[u8]>,
}

impl Default for Scratch {
    fn default() -> Self {
        // Updating integrity fields can need as much space for the result as for the source, at most 1/64 more.
        Scratch { a: vec![0; SCRATCH].into(), b: vec![0; SCRATCH + SCRATCH / 32].into() }
    }
}

/// The address spaces that a descriptor's operands are in.
#[derive(Clone, Copy, Debug)]
pub struct OperandSpaces<'a> {
    /// The submitter's own.
    pub own: &'a dyn Space,
    /// Those of the two handles.
    pub alternates: [Option<Alternate<'a>>; 2],
}

/// The address space of a handle.
#[derive(Clone, Copy, Debug)]
pub struct Alternate<'a> {
    /// The memory of the entry's PASID.
    pub space: &'a dyn Space,
    /// What of it the descriptor may access.
    pub window: Window,
}

impl<'a> OperandSpaces<'a> {
    /// All operands are the submitter's own.
    #[must_use]
    #[inline]
    pub fn own(space: &'a dyn Space) -> Self {
        OperandSpaces { own: space, alternates: [None; 2] }
    }

    /// Returns access to an operand's memory.
    fn pages(&self, domain: Domain, block: bool) -> Pages<'a> {
        let alternate = match domain {
            Domain::Own => None,
            Domain::Handle1 => self.alternates[0],
            Domain::Handle2 => self.alternates[1],
        };
        let (space, window) = alternate.map_or((self.own, None), |found| (found.space, Some(found.window)));
        Pages { space, window, block, granted: 0, refused: 0 }
    }
}

/// Executes an action in the address spaces of its operands. The ranges of operands in other address spaces have been
/// [located](Action::locate) in their windows.
///
/// With `block_on_fault` it waits for pages of its buffers, with `page_requests` for those of a drain's readbacks.
#[inline]
pub fn execute(
    action: &Action,
    spaces: &OperandSpaces<'_>,
    block_on_fault: bool,
    page_requests: bool,
    scratch: &mut Scratch,
) -> Outcome {
    let mut pages = spaces.pages(Domain::Own, block_on_fault);
    let mut second = spaces.pages(Domain::Own, block_on_fault);
    let end = match action {
        Action::Nop => Ok(End::success()),
        Action::Move { src, dst, len, backward, hint } => {
            copy::memory_move(&mut pages, *src, *dst, *len, *backward, *hint)
        }
        Action::Fill { dst, pattern, len, hint } => copy::fill(&mut pages, *dst, *pattern, *len, *hint),
        Action::Compare { src1, src2, len, expected } => copy::compare(&mut pages, *src1, *src2, *len, *expected),
        Action::ComparePattern { src, pattern, len, expected } => {
            copy::compare_pattern(&mut pages, *src, *pattern, *len, *expected)
        }
        Action::Dualcast { src, dst1, dst2, len, hint } => {
            copy::dualcast(&mut pages, scratch, *src, [*dst1, *dst2], *len, *hint)
        }
        Action::CreateDelta { src1, src2, len, record, room, expected_mask } => {
            delta::create(&mut pages, scratch, [*src1, *src2], *len, (*record, *room), *expected_mask)
        }
        Action::ApplyDelta { record, record_len, dst, len, order } => {
            delta::apply(&mut pages, scratch, (*record, *record_len), (*dst, *len), *order)
        }
        Action::Crc { .. } => crc::crc(&mut pages, scratch, action),
        Action::Dif(dif) => dif::dif(&mut pages, scratch, dif),
        Action::Flush { address, len } => copy::flush(&mut pages, *address, *len),
        Action::TranslationFetch { address, len, stride } => {
            domains::fetch_translations(&mut pages, *address, *len, *stride)
        }
        Action::InterDomainCopy { src, dst, len, hint } => {
            pages = spaces.pages(src.domain, block_on_fault);
            second = spaces.pages(dst.domain, block_on_fault);
            domains::copy(&mut pages, &mut second, scratch, [src.address, dst.address], *len, *hint)
        }
        Action::InterDomainFill { dst, pattern, len, hint } => {
            pages = spaces.pages(dst.domain, block_on_fault);
            copy::fill(&mut pages, dst.address, *pattern, *len, *hint)
        }
        Action::InterDomainCompare { src1, src2, len, expected } => {
            pages = spaces.pages(src1.domain, block_on_fault);
            second = spaces.pages(src2.domain, block_on_fault);
            domains::compare(&mut pages, &mut second, scratch, [src1.address, src2.address], *len, *expected)
        }
        Action::InterDomainComparePattern { src, pattern, len, expected } => {
            pages = spaces.pages(src.domain, block_on_fault);
            copy::compare_pattern(&mut pages, src.address, *pattern, *len, *expected)
        }
        Action::Arrays(action) => return arrays::arrays(spaces, block_on_fault, scratch, action).into(),
        Action::GatherReduce(action) => return lists::gather_reduce(spaces, block_on_fault, scratch, action).into(),
        Action::ListTransfer(action) => return lists::transfer(spaces, block_on_fault, scratch, action).into(),
        Action::Drain { readback } => {
            pages.block = page_requests;
            drain(&mut pages, *readback)
        }
    };
    // Both variants are an end; the error only shortens the return of a fault.
    let End { record, operand } = end.unwrap_or_else(|end| end);
    Outcome {
        record,
        operand,
        pages_granted: pages.granted + second.granted,
        pages_refused: pages.refused + second.refused,
    }
}

/// Moves forward without waiting for pages; on a failure returns the outcome.
#[inline]
pub(crate) fn move_forward(space: &dyn Space, src: u64, dst: u64, len: u64, hint: WriteHint) -> Result<(), Outcome> {
    let mut pages = OperandSpaces::own(space).pages(Domain::Own, false);
    match copy::memory_move(&mut pages, src, dst, len, false, hint) {
        Ok(_) => Ok(()),
        Err(End { record, operand }) => {
            Err(Outcome { record, operand, pages_granted: 0, pages_refused: pages.refused })
        }
    }
}

/// Computes the CRC of a range without waiting for pages; on a failure returns the outcome.
#[inline]
pub(crate) fn crc_forward(
    space: &dyn Space,
    scratch: &mut Scratch,
    src: u64,
    len: u64,
    seed: u32,
) -> Result<u32, Outcome> {
    if let Some(value) = crc::of_range(space, src, len, seed, CrcMode::default()) {
        return Ok(value);
    }
    let mut pages = OperandSpaces::own(space).pages(Domain::Own, false);
    let copy = crc::Copy { src, dst: None, len, hint: WriteHint::Cache };
    crc::in_pieces(&mut pages, scratch, copy, crc::Value::Crc32(seed), CrcMode::default())
        .map(|value| value.low())
        .map_err(|End { record, operand }| Outcome { record, operand, pages_granted: 0, pages_refused: pages.refused })
}

/// The end of an execution; as an error it is a page fault's.
#[derive(Debug)]
struct End {
    record: CompletionRecord,
    operand: OperandId,
}

type Ended = Result<End, End>;

/// The end of an operation with several operands, and the page requests for all of them.
struct Counted {
    end: End,
    granted: u32,
    refused: u32,
}

impl Counted {
    fn of(end: Ended, pages: &[Pages<'_>]) -> Counted {
        let count = |of: fn(&Pages<'_>) -> u32| pages.iter().map(of).sum();
        Counted {
            end: end.unwrap_or_else(|end| end),
            granted: count(|pages| pages.granted),
            refused: count(|pages| pages.refused),
        }
    }
}

impl From<Counted> for Outcome {
    fn from(Counted { end: End { record, operand }, granted, refused }: Counted) -> Outcome {
        Outcome { record, operand, pages_granted: granted, pages_refused: refused }
    }
}

impl End {
    #[inline]
    fn of(status: Status) -> Self {
        End { record: CompletionRecord::new(StatusByte::new(status)), operand: OperandId::Unknown }
    }

    #[inline]
    fn success() -> Self {
        End::of(Status::Success)
    }

    /// Success, or a false predicate if a checked result is not the expected one.
    fn checked(result: u8, as_expected: bool) -> Self {
        let end = End::of(if as_expected { Status::Success } else { Status::SuccessPredicateFalse });
        End { record: end.record.with_result(result), ..end }
    }

    fn with_bytes_completed(mut self, bytes: u64) -> Self {
        self.record = self.record.with_bytes_completed(count(bytes));
        self
    }

    fn map_record(mut self, change: impl FnOnce(CompletionRecord) -> CompletionRecord) -> Self {
        self.record = change(self.record);
        self
    }
}

/// Converts a byte count; those of one descriptor fit its 32-bit size field.
fn count(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// A page fault that ended the operation, before its progress is known.
#[derive(Clone, Copy, Debug)]
struct Stop {
    status: Status,
    fault: Fault,
    /// The window of the operand, if it is in another address space.
    window: Option<Window>,
}

impl Stop {
    /// Builds the partial completion after `bytes`. In offset mode the submitter learns no address of the owner.
    fn after(self, bytes: u64, operand: OperandId) -> End {
        let record =
            CompletionRecord::new(StatusByte::fault(self.status, self.fault.write)).with_bytes_completed(count(bytes));
        let record = match self.window {
            None => record.with_fault_address(self.fault.address),
            Some(window) if window.hides_addresses() => {
                record.with_fault_address_masked(true).with_fault_handle(window.handle)
            }
            Some(window) => record.with_fault_address(self.fault.address).with_fault_handle(window.handle),
        };
        End { record, operand }
    }
}

/// Memory access with the descriptor's fault policy.
struct Pages<'a> {
    space: &'a dyn Space,
    /// The window of the operand, if it is in another address space.
    window: Option<Window>,
    /// Wait for pages instead of stopping.
    block: bool,
    granted: u32,
    refused: u32,
}

impl Pages<'_> {
    /// Handles a fault: `Ok` to try again, else the reason why the operation stops.
    #[cold]
    fn fault(&mut self, fault: Fault, tries: u32) -> Result<(), Stop> {
        if !self.block {
            return Err(Stop { status: Status::PageFault, fault, window: self.window });
        }
        if tries <= TRIES && self.space.page_request(fault.address, fault.write) {
            self.granted += 1;
            return Ok(());
        }
        self.refused += 1;
        Err(Stop { status: Status::PageFaultRefused, fault, window: self.window })
    }

    /// Repeats `access(done)` until it has done everything or a fault stops it; an error includes the bytes done.
    #[inline]
    fn retry(&mut self, mut access: impl FnMut(&dyn Space, u64) -> Result<(), Fault>) -> Result<(), (u64, Stop)> {
        let (mut done, mut tries) = (0, 0);
        loop {
            match access(self.space, done) {
                Ok(()) => return Ok(()),
                Err(fault) => {
                    done += fault.done;
                    tries = if fault.done > 0 { 1 } else { tries + 1 };
                    self.fault(fault, tries).map_err(|stop| (done, stop))?;
                }
            }
        }
    }

    /// Reads into a buffer; an error includes how many bytes are valid.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), (usize, Stop)> {
        if into.is_empty() {
            return Ok(());
        }
        self.retry(|space, done| space.read(address.wrapping_add(done), &mut into[index(done)..]))
            .map_err(|(done, stop)| (index(done), stop))
    }

    /// Writes a buffer; an error includes how many bytes were written.
    fn write(&mut self, address: u64, from: &[u8], hint: WriteHint) -> Result<(), (usize, Stop)> {
        // An empty write accesses nothing, whatever the space says of the address.
        if from.is_empty() {
            return Ok(());
        }
        self.retry(|space, done| space.write(address.wrapping_add(done), &from[index(done)..], hint))
            .map_err(|(done, stop)| (index(done), stop))
    }
}

/// Converts an offset in one of the buffers.
fn index(done: u64) -> usize {
    usize::try_from(done).expect("offsets in a buffer fit its index")
}

/// Reads back up to two addresses; a fault has its own status. Source: SPEC §8.3.3.
fn drain(pages: &mut Pages<'_>, readback: [Option<u64>; 2]) -> Ended {
    for (address, operand) in readback.into_iter().zip([OperandId::Source1, OperandId::Source2]) {
        if let Some(address) = address {
            pages
                .read(address, &mut [0])
                .map_err(|(_, stop)| Stop { status: Status::ReadbackFault, ..stop }.after(0, operand))?;
        }
    }
    Ok(End::success())
}
