//! This process' own memory as a [`Space`].
//!
//! An operation is one call of an assembly kernel. Nothing is checked before: an access that the processor refuses traps,
//! [`trap`] sends the kernel to its landing, and the kernel returns how far it came. Only then a slow path finds the exact
//! byte, by going on byte by byte; if the page has come back meanwhile, it simply finishes the operation.
//!
//! Deviations from the architecture, numbered:
//! 1. A vector store that the processor refuses is taken to have stored nothing. The manuals would allow a part before
//!    the page boundary; no known processor does it, and only an overlapping move could tell.
//! 2. A mapping that changes while an operation runs is met where the operation is at that moment, as with a device.
#![allow(unsafe_code, reason = "calls the guarded kernels")]

mod kernels;
pub(crate) mod trap;

pub use kernels::Isa;

use crate::{Fault, Space, WriteHint};
use kernels::{FillKernel, Kernel, Kernels};

/// Moves of at least this many bytes with [`WriteHint::Memory`] store past the caches.
/// Source: measured, where streaming meets glibc's `memcpy` (AMD Zen 5, 32 MiB L3; `examples/against_glibc.rs`).
pub const STREAM_MOVE_BYTES: u64 = 8 << 20;
/// Fills of at least this many bytes with [`WriteHint::Memory`] store past the caches.
/// Source: measured, where streaming meets glibc's `memset` (AMD Zen 5, 32 MiB L3; `examples/against_glibc.rs`).
pub const STREAM_FILL_BYTES: u64 = 16 << 20;
/// Ascending moves of at least this many bytes may use `rep movsb`; below, vectors are faster.
/// Source: measured, same machine: 240 against 155 GB/s at 16 KiB, 85 against 120 at 64 KiB.
const REP_MOVE_BYTES: u64 = 24 << 10;
/// Fills of at least this many bytes may use `rep stosb`; below, vectors are faster.
/// Source: measured, same machine: 237 against 160 GB/s at 512 KiB, 134 against 158 at 1 MiB.
const REP_FILL_BYTES: u64 = 768 << 10;
/// Overlapping moves closer than this do not use `rep movsb`, which then goes byte by byte on many processors.
const REP_DISTANCE_BYTES: u64 = 4096;
const _: () = assert!(STREAM_MOVE_BYTES > REP_MOVE_BYTES && REP_MOVE_BYTES > kernels::STREAM_MIN);
const _: () = assert!(STREAM_FILL_BYTES > REP_FILL_BYTES && REP_FILL_BYTES > kernels::STREAM_MIN);

/// Bytes the slow path does one by one before it tries a vector kernel again: the page that faulted, mostly.
const EXACT_BYTES: u64 = 4096;
/// Bytes of pattern the slow path of fills lays out at once; a multiple of 16.
const PATTERN_BYTES: usize = 512;
/// Bytes of a cache line. Source: every x86-64 processor with CLFLUSH reports 64 in CPUID leaf 1.
const LINE_BYTES: u64 = 64;

/// This process' own memory: every mapped byte, at its virtual address.
///
/// Plain data, to be copied freely. A wild, unmapped, protected or half-mapped range, and a file truncated under its
/// mapping, are a [`Fault`]; everybody else's SIGSEGV and SIGBUS go to whoever handled them before.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    kernels: &'static Kernels,
    flush: Kernel,
    isa: Isa,
    /// String moves are fast.
    strings: bool,
}

impl Local {
    /// This process' memory, through the best kernels the processor has. Installs the fault handlers at the first call.
    ///
    /// # Safety
    /// - Operations driven through it name only memory that their submitters vouched for: while an operation runs, the
    ///   bytes it reads are not written and the bytes it writes are not touched through Rust references, and writing them
    ///   breaks no promise of their owner. (Memory that is not mapped at all is always fine.)
    /// - Nobody replaces the handlers of SIGSEGV and SIGBUS later without calling the ones they replaced, and no thread
    ///   drives operations with these signals blocked.
    #[must_use]
    pub unsafe fn new() -> Local {
        let isa = Isa::best();
        // SAFETY: forwarded.
        unsafe { Self::with_isa(isa) }.expect("the best instruction set is available")
    }

    /// The same through the kernels of one instruction set; `None` if the processor lacks it.
    ///
    /// # Safety
    /// As for [`Local::new`].
    #[must_use]
    pub unsafe fn with_isa(isa: Isa) -> Option<Local> {
        let kernels = isa.kernels()?;
        trap::install();
        Some(Local { kernels, flush: kernels::flush_kernel(), isa, strings: kernels::has_fast_strings() })
    }

    /// Which kernels it uses.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The kernel for an ascending move; one comparison for what is not long.
    #[inline]
    fn upward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Kernel {
        if len < REP_MOVE_BYTES { self.kernels.up } else { self.upward_long(dst, src, len, hint) }
    }

    #[inline(never)]
    fn upward_long(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Kernel {
        if hint == WriteHint::Memory && len >= STREAM_MOVE_BYTES {
            self.kernels.stream_up
        } else if self.strings && src.wrapping_sub(dst) >= REP_DISTANCE_BYTES {
            // dst > src, the disjoint case, is a huge distance modulo 2^64.
            kernels::telpher_mem_rep_move
        } else {
            self.kernels.up
        }
    }

    #[inline]
    fn filler(&self, pattern: [u64; 2], len: u64, hint: WriteHint) -> FillKernel {
        if len < REP_FILL_BYTES { self.kernels.fill } else { self.filler_long(pattern, len, hint) }
    }

    #[inline(never)]
    fn filler_long(&self, pattern: [u64; 2], len: u64, hint: WriteHint) -> FillKernel {
        if hint == WriteHint::Memory && len >= STREAM_FILL_BYTES {
            self.kernels.fill_stream
        } else if self.strings && pattern[0] == pattern[1] && pattern[0] == pattern[0].rotate_left(8) {
            kernels::telpher_mem_rep_fill
        } else {
            self.kernels.fill
        }
    }

    /// Ascending move; one of the ranges may be a slice of the caller.
    #[inline]
    fn copy_up(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        // SAFETY: the kernel reads and writes these ranges only, in this order; whoever made this Local, or the borrowed
        // slice the caller passes, allows both. Faults come back as an outcome, because a Local exists only after `install`.
        let outcome = unsafe { self.upward(dst, src, len, hint)(dst, src, len) };
        if outcome.fault == 0 { Ok(()) } else { self.finish_up(dst, src, len, outcome.done) }
    }

    /// Goes on after a fault in an ascending move, from byte `done`.
    #[cold]
    fn finish_up(&self, dst: u64, src: u64, len: u64, mut done: u64) -> Result<(), Fault> {
        loop {
            let (to, from) = (dst.wrapping_add(done), src.wrapping_add(done));
            // SAFETY: a part of the ranges of `copy_up`.
            let exact = unsafe { kernels::telpher_mem_exact_up(to, from, EXACT_BYTES.min(len - done)) };
            done += exact.done;
            match exact.fault {
                0 => {}
                1 => return Err(Fault { address: src.wrapping_add(done), write: false, done }),
                _ => return Err(Fault { address: dst.wrapping_add(done), write: true, done }),
            }
            // SAFETY: a part of the ranges of `copy_up`.
            let rest = unsafe { (self.kernels.up)(dst.wrapping_add(done), src.wrapping_add(done), len - done) };
            done += rest.done;
            if rest.fault == 0 {
                return Ok(());
            }
        }
    }

    /// Goes on after a fault in a descending move; `done` bytes at the end are finished.
    #[cold]
    fn finish_down(&self, dst: u64, src: u64, len: u64, mut done: u64) -> Result<(), Fault> {
        loop {
            let chunk = EXACT_BYTES.min(len - done);
            let below = len - done - chunk;
            // SAFETY: a part of the ranges of `move_backward`; no end of them wraps.
            let exact = unsafe { kernels::telpher_mem_exact_down(dst + below, src + below, chunk) };
            done += exact.done;
            // The next byte down; used only if one faulted, so that done < len.
            let next = (len - done).wrapping_sub(1);
            match exact.fault {
                0 => {}
                1 => return Err(Fault { address: src.wrapping_add(next), write: false, done }),
                _ => return Err(Fault { address: dst.wrapping_add(next), write: true, done }),
            }
            // SAFETY: a part of the ranges of `move_backward`.
            let rest = unsafe { (self.kernels.down)(dst, src, len - done) };
            done += rest.done;
            if rest.fault == 0 {
                return Ok(());
            }
        }
    }

    /// Goes on after a fault in a fill, from byte `done`.
    #[cold]
    fn finish_fill(&self, dst: u64, pattern: [u64; 2], len: u64, mut done: u64) -> Result<(), Fault> {
        loop {
            let laid = Laid::new(rotated(pattern, done));
            // SAFETY: writes a part of the range of `fill`, reads the laid-out pattern.
            let exact = unsafe {
                kernels::telpher_mem_exact_up(dst.wrapping_add(done), laid.address(), laid.len().min(len - done))
            };
            done += exact.done;
            if exact.fault != 0 {
                return Err(Fault { address: dst.wrapping_add(done), write: true, done });
            }
            let [low, high] = rotated(pattern, done);
            // SAFETY: writes a part of the range of `fill`.
            let rest = unsafe { (self.kernels.fill)(dst.wrapping_add(done), low, len - done, high) };
            done += rest.done;
            if rest.fault == 0 {
                return Ok(());
            }
        }
    }

    /// Goes on after a fault in a comparison; the first `done` bytes are equal.
    #[cold]
    fn finish_compare(&self, a: u64, b: u64, len: u64, mut done: u64) -> Result<Option<u64>, Fault> {
        loop {
            let chunk = EXACT_BYTES.min(len - done);
            // SAFETY: reads a part of the ranges of `compare`.
            let exact =
                unsafe { kernels::telpher_mem_exact_compare(a.wrapping_add(done), b.wrapping_add(done), chunk) };
            done += exact.done;
            match exact.fault {
                0 if exact.done < chunk => return Ok(Some(done)),
                0 => {}
                1 => return Err(Fault { address: b.wrapping_add(done), write: false, done }),
                _ => return Err(Fault { address: a.wrapping_add(done), write: false, done }),
            }
            // SAFETY: reads a part of the ranges of `compare`.
            let rest = unsafe { (self.kernels.compare)(a.wrapping_add(done), b.wrapping_add(done), len - done) };
            done += rest.done;
            if rest.fault == 0 {
                return Ok((done < len).then_some(done));
            }
        }
    }

    /// Goes on after a fault in a comparison with a pattern; the first `done` bytes are equal.
    #[cold]
    fn finish_compare_pattern(&self, a: u64, pattern: u64, len: u64, mut done: u64) -> Result<Option<u64>, Fault> {
        loop {
            let laid = Laid::new(rotated([pattern; 2], done));
            let chunk = laid.len().min(len - done);
            // SAFETY: reads a part of the range of `compare_pattern` and the laid-out pattern.
            let exact = unsafe { kernels::telpher_mem_exact_compare(a.wrapping_add(done), laid.address(), chunk) };
            done += exact.done;
            match exact.fault {
                0 if exact.done < chunk => return Ok(Some(done)),
                0 => {}
                _ => return Err(Fault { address: a.wrapping_add(done), write: false, done }),
            }
            let [low, _] = rotated([pattern; 2], done);
            // SAFETY: reads a part of the range of `compare_pattern`.
            let rest = unsafe { (self.kernels.compare_pattern)(a.wrapping_add(done), low, len - done) };
            done += rest.done;
            if rest.fault == 0 {
                return Ok((done < len).then_some(done));
            }
        }
    }
}

/// The pattern as it continues after `done` bytes of it.
fn rotated(pattern: [u64; 2], done: u64) -> [u64; 2] {
    let whole = (u128::from(pattern[1]) << 64) | u128::from(pattern[0]);
    #[allow(clippy::cast_possible_truncation, reason = "below 128, and the two halves of 128 bits")]
    {
        let turned = whole.rotate_right((done % 16) as u32 * 8);
        [turned as u64, (turned >> 64) as u64]
    }
}

/// A pattern laid out in memory, for the byte-by-byte kernels.
struct Laid([u8; PATTERN_BYTES]);

impl Laid {
    fn new([low, high]: [u64; 2]) -> Laid {
        let mut bytes = [0; PATTERN_BYTES];
        for chunk in bytes.as_chunks_mut::<16>().0 {
            chunk[..8].copy_from_slice(&low.to_le_bytes());
            chunk[8..].copy_from_slice(&high.to_le_bytes());
        }
        Laid(bytes)
    }

    fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    fn len(&self) -> u64 {
        PATTERN_BYTES as u64
    }
}

impl Space for Local {
    #[inline]
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.copy_up(into.as_mut_ptr().expose_provenance() as u64, address, into.len() as u64, WriteHint::Cache)
    }

    #[inline]
    fn write(&self, address: u64, from: &[u8], hint: WriteHint) -> Result<(), Fault> {
        self.copy_up(address, from.as_ptr().expose_provenance() as u64, from.len() as u64, hint)
    }

    #[inline]
    fn move_forward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        // A range that wraps needs no check: ascending, it meets addresses no process can access before it does.
        self.copy_up(dst, src, len, hint)
    }

    #[inline]
    fn move_backward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        // Descending, the first byte of a range that wraps could be a mapped one, so it must be caught here.
        if src.checked_add(len).is_none() || dst.checked_add(len).is_none() {
            return Err(Fault { address: u64::MAX, write: src.checked_add(len).is_some(), done: 0 });
        }
        let streams = hint == WriteHint::Memory && len >= STREAM_MOVE_BYTES;
        let kernel = if streams { self.kernels.stream_down } else { self.kernels.down };
        // SAFETY: the kernel reads and writes these ranges only; whoever made this Local vouches for them. Faults come
        // back as an outcome, because a Local exists only after `install`.
        let outcome = unsafe { kernel(dst, src, len) };
        if outcome.fault == 0 { Ok(()) } else { self.finish_down(dst, src, len, outcome.done) }
    }

    #[inline]
    fn fill(&self, dst: u64, pattern: [u64; 2], len: u64, hint: WriteHint) -> Result<(), Fault> {
        let kernel = self.filler(pattern, len, hint);
        // SAFETY: as in `move_backward`.
        let outcome = unsafe { kernel(dst, pattern[0], len, pattern[1]) };
        if outcome.fault == 0 { Ok(()) } else { self.finish_fill(dst, pattern, len, outcome.done) }
    }

    #[inline]
    fn compare(&self, a: u64, b: u64, len: u64) -> Result<Option<u64>, Fault> {
        // SAFETY: as in `move_backward`; only reads.
        let outcome = unsafe { (self.kernels.compare)(a, b, len) };
        match outcome.fault {
            0 => Ok((outcome.done < len).then_some(outcome.done)),
            _ => self.finish_compare(a, b, len, outcome.done),
        }
    }

    #[inline]
    fn compare_pattern(&self, a: u64, pattern: u64, len: u64) -> Result<Option<u64>, Fault> {
        // SAFETY: as in `move_backward`; only reads.
        let outcome = unsafe { (self.kernels.compare_pattern)(a, pattern, len) };
        match outcome.fault {
            0 => Ok((outcome.done < len).then_some(outcome.done)),
            _ => self.finish_compare_pattern(a, pattern, len, outcome.done),
        }
    }

    fn flush(&self, address: u64, len: u64) -> Result<(), Fault> {
        let first = address & !(LINE_BYTES - 1);
        // The last line may be the last of the address space: count lines, not addresses.
        let lines = u128::from(address - first) + u128::from(len);
        let bytes = if len == 0 { 0 } else { lines.div_ceil(u128::from(LINE_BYTES)) * u128::from(LINE_BYTES) };
        // A range of 2^64 bytes leaves the memory of any process long before its last line.
        let bytes = u64::try_from(bytes).unwrap_or(!(LINE_BYTES - 1));
        // SAFETY: as in `move_backward`; lines are written back, bytes do not change.
        let outcome = unsafe { (self.flush)(first, 0, bytes) };
        if outcome.fault == 0 {
            return Ok(());
        }
        let done = outcome.done.saturating_sub(address - first);
        Err(Fault { address: address.wrapping_add(done), write: false, done })
    }

    fn write_record(&self, address: u64, record: &[u64; 4]) -> Result<(), Fault> {
        let [w0, w1, w2, w3] = *record;
        if !address.is_multiple_of(32) {
            // Contrary to the contract it may lie on two pages; see that both can be written before one is.
            for done in [0, 31] {
                if !self.page_request(address.wrapping_add(done), true) {
                    let done = if done == 0 { 0 } else { crate::PAGE_BYTES - address % crate::PAGE_BYTES };
                    return Err(Fault { address: address.wrapping_add(done), write: true, done });
                }
            }
        }
        // SAFETY: as in `move_backward`; writes 32 bytes, byte 0 with the last store, which x86 keeps behind the others
        // and the readers' acquire loads pair with. Streaming stores before it were fenced by their kernels.
        let outcome = unsafe { kernels::telpher_mem_record(address, w0, w1, w2, w3) };
        if outcome.fault == 0 { Ok(()) } else { Err(Fault { address, write: true, done: 0 }) }
    }

    fn page_request(&self, address: u64, write: bool) -> bool {
        // SAFETY: as in `move_backward`; a read of one byte, or an atomic write that leaves it as it is.
        let outcome = unsafe {
            if write { kernels::telpher_mem_probe_write(address) } else { kernels::telpher_mem_probe_read(address) }
        };
        outcome.fault == 0
    }
}
