//! This process' own memory as a [`Space`].
//!
//! An operation is one call of an assembly kernel. Nothing is checked before. If the processor refuses an access, it
//! traps; [`trap`] continues the kernel at its landing, and the kernel returns how many bytes it has done. Then a slow
//! path finds the exact byte by continuing byte by byte. If the page is mapped again meanwhile, the slow path finishes
//! the operation.
//!
//! Deviations from the architecture, numbered:
//! 1. A vector store that the processor refuses is assumed to have stored nothing. The manuals would allow a partial
//!    store before the page boundary. No known processor does it, and only an overlapping move could show the
//!    difference.
//! 2. A change of mappings during an operation takes effect at the byte the operation has reached, as with a device.
#![allow(unsafe_code, reason = "calls the guarded kernels")]

mod kernels;
pub(crate) mod trap;

pub use kernels::Isa;

use crate::{FOLDED_BYTES, Fault, Space, WriteHint};
use kernels::{FillKernel, FoldKernel, Kernel, Kernels};
use std::io;

/// Moves of at least this many bytes with [`WriteHint::Memory`] bypass the caches.
/// Source: measured, where streaming meets glibc's `memcpy` (AMD Zen 5, 32 MiB L3; `examples/against_glibc.rs`).
pub const STREAM_MOVE_BYTES: u64 = 8 << 20;
/// Fills of at least this many bytes with [`WriteHint::Memory`] bypass the caches.
/// Source: measured, where streaming meets glibc's `memset` (AMD Zen 5, 32 MiB L3; `examples/against_glibc.rs`).
pub const STREAM_FILL_BYTES: u64 = 16 << 20;
/// Operations of more than this many bytes with [`WriteHint::Stream`] bypass the caches.
/// Source: the streaming kernels handle no shorter lengths.
pub const STREAM_MIN_BYTES: u64 = kernels::STREAM_MIN;
/// Ascending moves of at least this many bytes may use `rep movsb`; below, vectors are faster.
/// Source: measured, same machine: 240 against 155 GB/s at 16 KiB, 85 against 120 at 64 KiB.
const REP_MOVE_BYTES: u64 = 24 << 10;
/// Fills of at least this many bytes may use `rep stosb`; below, vectors are faster.
/// Source: measured, same machine: 237 against 160 GB/s at 512 KiB, 134 against 158 at 1 MiB.
const REP_FILL_BYTES: u64 = 768 << 10;
/// Overlapping moves closer than this do not use `rep movsb`, which many processors then execute byte by byte.
const REP_DISTANCE_BYTES: u64 = 4096;
const _: () = assert!(STREAM_MOVE_BYTES > REP_MOVE_BYTES && REP_MOVE_BYTES > kernels::STREAM_MIN);
const _: () = assert!(STREAM_FILL_BYTES > REP_FILL_BYTES && REP_FILL_BYTES > kernels::STREAM_MIN);

/// Bytes that the slow path does one by one before it tries a vector kernel again; usually the page that faulted.
const EXACT_BYTES: u64 = 4096;
/// Bytes of pattern that the slow path of fills prepares at once; a multiple of 16.
const PATTERN_BYTES: usize = 512;
/// Ranges that [`Local::read_process`] fills at most. Source: the segments of a message, rounded.
const MOST_READ_PARTS: usize = 8;
/// Bytes of a cache line. Source: every x86-64 processor with CLFLUSH reports 64 in CPUID leaf 1.
const LINE_BYTES: u64 = 64;

/// This process' own memory: every mapped byte, at its virtual address.
///
/// Plain data, freely copyable. An unmapped, protected or partly mapped range, and a file truncated under its mapping,
/// yield a [`Fault`]. SIGSEGV and SIGBUS from other code go to the handlers that were installed before.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    kernels: &'static Kernels,
    flush: Kernel,
    fold: Option<FoldKernel>,
    isa: Isa,
    /// True if string moves are fast.
    strings: bool,
}

/// The width of a word that one instruction accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum WordWidth {
    /// One byte.
    One,
    /// Two bytes.
    Two,
    /// Four bytes.
    Four,
    /// Eight bytes.
    Eight,
}

impl WordWidth {
    /// Returns the bytes of a word.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            WordWidth::One => 1,
            WordWidth::Two => 2,
            WordWidth::Four => 4,
            WordWidth::Eight => 8,
        }
    }
}

impl Local {
    /// Loads a word with one instruction; the bits above it are zero. It is atomic if the address is a multiple of the
    /// width.
    ///
    /// # Errors
    /// The word is not mapped.
    pub fn load(&self, address: u64, width: WordWidth) -> Result<u64, Fault> {
        let kernel = match width {
            WordWidth::One => kernels::telpher_mem_load_1,
            WordWidth::Two => kernels::telpher_mem_load_2,
            WordWidth::Four => kernels::telpher_mem_load_4,
            WordWidth::Eight => kernels::telpher_mem_load_8,
        };
        // SAFETY: reads one word; the creator of this Local allows that. Faults come back as an outcome, because a
        // Local exists only after `install`.
        let outcome = unsafe { kernel(address) };
        if outcome.fault == 0 { Ok(outcome.done) } else { Err(Fault { address, write: false, done: 0 }) }
    }

    /// Replaces a word by `new` if it is `expected`, with one atomic instruction. Returns the word that it was; the
    /// bits above the width are ignored in the arguments and zero in the result. An address that is not a multiple of
    /// the width may fault.
    ///
    /// # Errors
    /// The word is not mapped, or not writable: also if it would not have been replaced.
    pub fn compare_exchange(&self, address: u64, width: WordWidth, expected: u64, new: u64) -> Result<u64, Fault> {
        let kernel = match width {
            WordWidth::One => kernels::telpher_mem_exchange_1,
            WordWidth::Two => kernels::telpher_mem_exchange_2,
            WordWidth::Four => kernels::telpher_mem_exchange_4,
            WordWidth::Eight => kernels::telpher_mem_exchange_8,
        };
        // SAFETY: as in `load`; accesses one word.
        let outcome = unsafe { kernel(address, expected, new) };
        if outcome.fault == 0 { Ok(outcome.done) } else { Err(Fault { address, write: true, done: 0 }) }
    }

    /// Returns this process' memory, accessed through the best kernels of the processor. Installs the fault handlers at
    /// the first call.
    ///
    /// # Safety
    /// - Operations access only memory that their submitters allow. While an operation runs, no code writes the bytes
    ///   it reads, and no code accesses the bytes it writes through Rust references. Writing these bytes breaks no
    ///   promise of their owner. (Memory that is not mapped at all is always allowed.)
    /// - Code that later replaces the handlers of SIGSEGV or SIGBUS calls the handlers that it replaced. No thread runs
    ///   operations with these signals blocked.
    #[must_use]
    pub unsafe fn new() -> Local {
        let isa = Isa::best();
        // SAFETY: forwarded.
        unsafe { Self::with_isa(isa) }.expect("the best instruction set is available")
    }

    /// Returns this process' memory, accessed through the kernels of one instruction set; `None` if the processor lacks
    /// it.
    ///
    /// # Safety
    /// As for [`Local::new`].
    #[must_use]
    pub unsafe fn with_isa(isa: Isa) -> Option<Local> {
        let kernels = isa.kernels()?;
        trap::install();
        let (flush, fold) = (kernels::flush_kernel(), isa.fold_kernel());
        Some(Local { kernels, flush, fold, isa, strings: kernels::has_fast_strings() })
    }

    /// Returns true if every page of a range can be read now, and with `write` also written. It reads a byte of each
    /// page, and with `write` stores it again, not atomically: no other code may access the range meanwhile. An empty
    /// range is reached, a range that wraps is not.
    #[must_use]
    #[inline]
    pub fn reaches(&self, address: u64, len: u64, write: bool) -> bool {
        let Some(behind) = len.checked_sub(1) else { return true };
        let Some(last) = address.checked_add(behind) else { return false };
        // SAFETY: accesses bytes of the range only; the creator of this Local allows that. Faults come back as an
        // outcome, because a Local exists only after `install`.
        let outcome = unsafe {
            if write {
                kernels::telpher_mem_probe_pages_write(address, last)
            } else {
                kernels::telpher_mem_probe_pages_read(address, last)
            }
        };
        outcome.fault == 0
    }

    /// Copies bytes of another process to ranges of this one's memory, which the kernel does with one copy. `proof` is
    /// the address of a word there and its value. It is read after the bytes, so that they are those of the process
    /// that has told the word.
    ///
    /// # Errors
    /// The system's refusal, also if a byte is not mapped, or a word of another value. Any of the bytes may have been
    /// copied then.
    pub fn read_process(&self, process: u32, from: u64, into: &[(u64, u64)], proof: (u64, u64)) -> io::Result<()> {
        let part = |address: u64, len: u64| -> io::Result<libc::iovec> {
            let wrong = |_| io::Error::from(io::ErrorKind::InvalidInput);
            let address = usize::try_from(address).map_err(wrong)?;
            let iov_base = std::ptr::with_exposed_provenance_mut(address);
            Ok(libc::iovec { iov_base, iov_len: usize::try_from(len).map_err(wrong)? })
        };
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut local = [nothing; MOST_READ_PARTS + 1];
        let mut word = 0_u64;
        let len: u64 = into.iter().map(|range| range.1).sum();
        for (to, &(address, len)) in local.iter_mut().zip(into) {
            *to = part(address, len)?;
        }
        let last = local.get_mut(into.len()).ok_or(io::ErrorKind::InvalidInput)?;
        *last = part((&raw mut word).expose_provenance() as u64, 8)?;
        let remote = [part(from, len)?, part(proof.0, 8)?];
        let id = libc::pid_t::try_from(process).map_err(|_| io::ErrorKind::InvalidInput)?;
        let count = into.len() as libc::c_ulong + 1;
        // SAFETY: the kernel writes the ranges, which the creator of this Local allows, and our word. Addresses that
        // are not mapped are an error to it.
        let moved = unsafe { libc::process_vm_readv(id, local.as_ptr(), count, remote.as_ptr(), 2, 0) };
        // SAFETY: a word of this frame, which the kernel may have written.
        let word = unsafe { (&raw const word).read_volatile() };
        match u64::try_from(moved) {
            Err(_) => Err(io::Error::last_os_error()),
            Ok(moved) if moved != len + 8 => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) if word != proof.1 => Err(io::ErrorKind::InvalidData.into()),
            Ok(_) => Ok(()),
        }
    }

    /// Returns the instruction set of its kernels.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Chooses the kernel for an ascending move; one comparison for short moves.
    #[inline]
    fn upward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Kernel {
        let is_short = len < REP_MOVE_BYTES && hint != WriteHint::Stream;
        if is_short { self.kernels.up } else { self.upward_long(dst, src, len, hint) }
    }

    #[inline(never)]
    fn upward_long(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Kernel {
        if streams(len, hint, STREAM_MOVE_BYTES) {
            self.kernels.stream_up
        } else if self.strings && len >= REP_MOVE_BYTES && src.wrapping_sub(dst) >= REP_DISTANCE_BYTES {
            // If dst > src (the disjoint case), the distance is huge modulo 2^64.
            kernels::telpher_mem_rep_move
        } else {
            self.kernels.up
        }
    }

    #[inline]
    fn filler(&self, pattern: [u64; 2], len: u64, hint: WriteHint) -> FillKernel {
        let is_short = len < REP_FILL_BYTES && hint != WriteHint::Stream;
        if is_short { self.kernels.fill } else { self.filler_long(pattern, len, hint) }
    }

    #[inline(never)]
    fn filler_long(&self, pattern: [u64; 2], len: u64, hint: WriteHint) -> FillKernel {
        if streams(len, hint, STREAM_FILL_BYTES) {
            self.kernels.fill_stream
        } else if self.strings
            && len >= REP_FILL_BYTES
            && pattern[0] == pattern[1]
            && pattern[0] == pattern[0].rotate_left(8)
        {
            kernels::telpher_mem_rep_fill
        } else {
            self.kernels.fill
        }
    }

    /// Moves in ascending order; one of the ranges may be a slice of the caller.
    #[inline]
    fn copy_up(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        // SAFETY: the kernel reads and writes these ranges only, in this order. The creator of this Local, or the
        // borrowed slice that the caller passes, allows both. Faults come back as an outcome, because a Local exists
        // only after `install`.
        let outcome = unsafe { self.upward(dst, src, len, hint)(dst, src, len) };
        if outcome.fault == 0 { Ok(()) } else { self.finish_up(dst, src, len, outcome.done) }
    }

    /// Continues an ascending move after a fault, from byte `done`.
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

    /// Continues a descending move after a fault; `done` bytes at the end are finished.
    #[cold]
    fn finish_down(&self, dst: u64, src: u64, len: u64, mut done: u64) -> Result<(), Fault> {
        loop {
            let chunk = EXACT_BYTES.min(len - done);
            let below = len - done - chunk;
            // SAFETY: a part of the ranges of `move_backward`; no end of them wraps.
            let exact = unsafe { kernels::telpher_mem_exact_down(dst + below, src + below, chunk) };
            done += exact.done;
            // The next lower byte; used only after a fault, so done < len.
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

    /// Continues a fill after a fault, from byte `done`.
    #[cold]
    fn finish_fill(&self, dst: u64, pattern: [u64; 2], len: u64, mut done: u64) -> Result<(), Fault> {
        loop {
            let repeated = RepeatedPattern::new(rotated(pattern, done));
            // SAFETY: writes a part of the range of `fill` and reads the prepared pattern.
            let exact = unsafe {
                kernels::telpher_mem_exact_up(
                    dst.wrapping_add(done),
                    repeated.address(),
                    repeated.len().min(len - done),
                )
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

    /// Continues a comparison after a fault; the first `done` bytes are equal.
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

    /// Continues a comparison with a pattern after a fault; the first `done` bytes are equal.
    #[cold]
    fn finish_compare_pattern(&self, a: u64, pattern: u64, len: u64, mut done: u64) -> Result<Option<u64>, Fault> {
        loop {
            let repeated = RepeatedPattern::new(rotated([pattern; 2], done));
            let chunk = repeated.len().min(len - done);
            // SAFETY: reads a part of the range of `compare_pattern` and the prepared pattern.
            let exact = unsafe { kernels::telpher_mem_exact_compare(a.wrapping_add(done), repeated.address(), chunk) };
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

/// True if an operation of `len` bytes bypasses the caches. `threshold` is that of [`WriteHint::Memory`].
#[inline]
fn streams(len: u64, hint: WriteHint, threshold: u64) -> bool {
    match hint {
        WriteHint::Cache => false,
        WriteHint::Memory => len >= threshold,
        WriteHint::Stream => len > STREAM_MIN_BYTES,
    }
}

/// Returns the pattern rotated to continue after `done` bytes.
fn rotated(pattern: [u64; 2], done: u64) -> [u64; 2] {
    let whole = (u128::from(pattern[1]) << 64) | u128::from(pattern[0]);
    #[allow(clippy::cast_possible_truncation, reason = "below 128, and the two halves of 128 bits")]
    {
        let turned = whole.rotate_right((done % 16) as u32 * 8);
        [turned as u64, (turned >> 64) as u64]
    }
}

/// A pattern repeated in memory, for the byte-by-byte kernels.
struct RepeatedPattern([u8; PATTERN_BYTES]);

impl RepeatedPattern {
    fn new([low, high]: [u64; 2]) -> RepeatedPattern {
        let mut bytes = [0; PATTERN_BYTES];
        for chunk in bytes.as_chunks_mut::<16>().0 {
            chunk[..8].copy_from_slice(&low.to_le_bytes());
            chunk[8..].copy_from_slice(&high.to_le_bytes());
        }
        RepeatedPattern(bytes)
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
        // A range that wraps needs no check: ascending, it reaches addresses that no process can access before it
        // wraps.
        self.copy_up(dst, src, len, hint)
    }

    #[inline]
    fn move_backward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        // Descending, the first byte of a range that wraps could be mapped, so it must be checked here.
        if src.checked_add(len).is_none() || dst.checked_add(len).is_none() {
            return Err(Fault { address: u64::MAX, write: src.checked_add(len).is_some(), done: 0 });
        }
        let kernel = if streams(len, hint, STREAM_MOVE_BYTES) { self.kernels.stream_down } else { self.kernels.down };
        // SAFETY: the kernel reads and writes these ranges only; the creator of this Local allows that. Faults come
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

    #[inline]
    fn fold(&self, address: u64, len: u64, register: u32, by: &[u64; 2], into: &mut [u8; FOLDED_BYTES]) -> bool {
        let Some(kernel) = self.fold.filter(|_| len > 0 && len.is_multiple_of(FOLDED_BYTES as u64)) else {
            return false;
        };
        // SAFETY: as in `move_backward`; reads the range and the multipliers, and writes `into`. The length is as the
        // kernel expects it.
        unsafe { kernel(address, register.into(), len, by, into) }.fault == 0
    }

    fn flush(&self, address: u64, len: u64) -> Result<(), Fault> {
        let first = address & !(LINE_BYTES - 1);
        // The last line may be the last of the address space, so count lines, not addresses.
        let lines = u128::from(address - first) + u128::from(len);
        let bytes = if len == 0 { 0 } else { lines.div_ceil(u128::from(LINE_BYTES)) * u128::from(LINE_BYTES) };
        // A range of 2^64 bytes leaves the memory of any process before its last line.
        let bytes = u64::try_from(bytes).unwrap_or(!(LINE_BYTES - 1));
        // SAFETY: as in `move_backward`; the kernel writes lines back and changes no bytes.
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
            // Contrary to the contract, the record may lie on two pages. Check that both can be written before either
            // is.
            for done in [0, 31] {
                if !self.page_request(address.wrapping_add(done), true) {
                    let done = if done == 0 { 0 } else { crate::PAGE_BYTES - address % crate::PAGE_BYTES };
                    return Err(Fault { address: address.wrapping_add(done), write: true, done });
                }
            }
        }
        // SAFETY: as in `move_backward`; writes 32 bytes. Byte 0 comes with the last store: x86 keeps it after the
        // others, and the readers' acquire loads pair with it. The kernels of earlier streaming stores have fenced
        // them.
        let outcome = unsafe { kernels::telpher_mem_record(address, w0, w1, w2, w3) };
        if outcome.fault == 0 { Ok(()) } else { Err(Fault { address, write: true, done: 0 }) }
    }

    fn page_request(&self, address: u64, write: bool) -> bool {
        // SAFETY: as in `move_backward`; reads one byte, or writes it atomically with its old value.
        let outcome = unsafe {
            if write { kernels::telpher_mem_probe_write(address) } else { kernels::telpher_mem_probe_read(address) }
        };
        outcome.fault == 0
    }
}
