//! The guarded assembly kernels and the choice between their three widths.
//!
//! `asm/*.s` is one blob, so that its code and its fixup table are contiguous whatever the linker does. All functions
//! here take raw addresses. Once [`trap::install`](super::trap::install) has run, faults are reported in the
//! [`Outcome`]; no other handler sees their signals.
#![allow(unsafe_code, reason = "declares and calls the assembly kernels")]

use std::arch::{global_asm, is_x86_feature_detected};

global_asm!(
    include_str!("asm/head.s"),
    include_str!("asm/move.s"),
    include_str!("asm/fill.s"),
    include_str!("asm/compare.s"),
    include_str!("asm/fold.s"),
    include_str!("asm/tail.s"),
    options(raw)
);

/// The result of a kernel, in rax and rdx.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// Bytes finished before the fault; without a fault all bytes, or the offset of the first difference.
    pub(super) done: u64,
    /// 0: no fault. Vector kernels return 1; the exact kernels return the operand that faulted: 1 the second, 2 the
    /// first.
    pub(super) fault: u64,
}

/// `(first operand, second operand or low half of the pattern, length)`.
pub(super) type Kernel = unsafe extern "sysv64" fn(u64, u64, u64) -> Outcome;
/// `(source, register, length, multipliers, 256 bytes for the result)`; `done` has no meaning.
pub(super) type FoldKernel = unsafe extern "sysv64" fn(u64, u64, u64, *const [u64; 2], *mut [u8; 256]) -> Outcome;
/// `(destination, low half of the pattern, length, high half of the pattern)`.
pub(super) type FillKernel = unsafe extern "sysv64" fn(u64, u64, u64, u64) -> Outcome;

/// The kernels of one instruction set.
#[derive(Debug)]
pub(super) struct Kernels {
    pub(super) up: Kernel,
    pub(super) down: Kernel,
    /// Non-temporal; only for more than [`STREAM_MIN`] bytes.
    pub(super) stream_up: Kernel,
    /// Non-temporal; only for more than [`STREAM_MIN`] bytes.
    pub(super) stream_down: Kernel,
    pub(super) fill: FillKernel,
    /// Non-temporal; only for more than [`STREAM_MIN`] bytes.
    pub(super) fill_stream: FillKernel,
    pub(super) compare: Kernel,
    pub(super) compare_pattern: Kernel,
}

/// The non-temporal kernels handle no short lengths: 8 vectors of 64 bytes.
pub(super) const STREAM_MIN: u64 = 512;

macro_rules! kernels {
    ($table:ident: $up:ident $down:ident $stream_up:ident $stream_down:ident $fill:ident $fill_stream:ident $compare:ident
     $compare_pattern:ident) => {
        unsafe extern "sysv64" {
            fn $up(dst: u64, src: u64, len: u64) -> Outcome;
            fn $down(dst: u64, src: u64, len: u64) -> Outcome;
            fn $stream_up(dst: u64, src: u64, len: u64) -> Outcome;
            fn $stream_down(dst: u64, src: u64, len: u64) -> Outcome;
            fn $fill(dst: u64, low: u64, len: u64, high: u64) -> Outcome;
            fn $fill_stream(dst: u64, low: u64, len: u64, high: u64) -> Outcome;
            fn $compare(a: u64, b: u64, len: u64) -> Outcome;
            fn $compare_pattern(a: u64, pattern: u64, len: u64) -> Outcome;
        }
        static $table: Kernels = Kernels {
            up: $up,
            down: $down,
            stream_up: $stream_up,
            stream_down: $stream_down,
            fill: $fill,
            fill_stream: $fill_stream,
            compare: $compare,
            compare_pattern: $compare_pattern,
        };
    };
}

kernels!(SSE2: telpher_mem_move_up_sse2 telpher_mem_move_down_sse2 telpher_mem_stream_up_sse2
    telpher_mem_stream_down_sse2 telpher_mem_fill_sse2 telpher_mem_fill_stream_sse2 telpher_mem_compare_sse2
    telpher_mem_compare_pattern_sse2);
kernels!(AVX2: telpher_mem_move_up_avx2 telpher_mem_move_down_avx2 telpher_mem_stream_up_avx2
    telpher_mem_stream_down_avx2 telpher_mem_fill_avx2 telpher_mem_fill_stream_avx2 telpher_mem_compare_avx2
    telpher_mem_compare_pattern_avx2);
kernels!(AVX512: telpher_mem_move_up_avx512 telpher_mem_move_down_avx512 telpher_mem_stream_up_avx512
    telpher_mem_stream_down_avx512 telpher_mem_fill_avx512 telpher_mem_fill_stream_avx512 telpher_mem_compare_avx512
    telpher_mem_compare_pattern_avx512);

unsafe extern "sysv64" {
    /// The processor's string move: `(dst, src, len)`.
    pub(super) fn telpher_mem_rep_move(dst: u64, src: u64, len: u64) -> Outcome;
    /// The processor's string store `(dst, low, len, high)`; all bytes of the pattern are equal.
    pub(super) fn telpher_mem_rep_fill(dst: u64, low: u64, len: u64, high: u64) -> Outcome;
    /// Byte by byte, ascending: `(dst, src, len)`.
    pub(super) fn telpher_mem_exact_up(dst: u64, src: u64, len: u64) -> Outcome;
    /// Byte by byte, descending: `(dst, src, len)`.
    pub(super) fn telpher_mem_exact_down(dst: u64, src: u64, len: u64) -> Outcome;
    /// Byte by byte: `(a, b, len)`.
    pub(super) fn telpher_mem_exact_compare(a: u64, b: u64, len: u64) -> Outcome;
    /// `(address, word 0, word 1, word 2, word 3)`; word 0 is stored last.
    pub(super) fn telpher_mem_record(address: u64, w0: u64, w1: u64, w2: u64, w3: u64) -> Outcome;
    /// Reads one byte.
    pub(super) fn telpher_mem_probe_read(address: u64) -> Outcome;
    /// Writes one byte without changing it.
    pub(super) fn telpher_mem_probe_write(address: u64) -> Outcome;
    /// Reads one byte of each page from the first byte of a range to its last.
    pub(super) fn telpher_mem_probe_pages_read(first: u64, last: u64) -> Outcome;
    /// The same, and stores each byte again.
    pub(super) fn telpher_mem_probe_pages_write(first: u64, last: u64) -> Outcome;
    /// Loads a word; `done` is the word.
    pub(super) fn telpher_mem_load_1(address: u64) -> Outcome;
    pub(super) fn telpher_mem_load_2(address: u64) -> Outcome;
    pub(super) fn telpher_mem_load_4(address: u64) -> Outcome;
    pub(super) fn telpher_mem_load_8(address: u64) -> Outcome;
    /// `(address, expected, new)`: replaces a word if it is as expected; `done` is the word before.
    pub(super) fn telpher_mem_exchange_1(address: u64, expected: u64, new: u64) -> Outcome;
    pub(super) fn telpher_mem_exchange_2(address: u64, expected: u64, new: u64) -> Outcome;
    pub(super) fn telpher_mem_exchange_4(address: u64, expected: u64, new: u64) -> Outcome;
    pub(super) fn telpher_mem_exchange_8(address: u64, expected: u64, new: u64) -> Outcome;
    /// `(source, register, length, multipliers, 256 bytes for the result)`; the length is a multiple of 256, and not 0.
    fn telpher_mem_fold_avx512(src: u64, register: u64, len: u64, by: *const [u64; 2], into: *mut [u8; 256])
    -> Outcome;
    fn telpher_mem_clflush(line: u64, unused: u64, len: u64) -> Outcome;
    fn telpher_mem_clflushopt(line: u64, unused: u64, len: u64) -> Outcome;
}

/// Instruction sets for which kernels exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// 16-byte vectors; every x86-64 processor.
    Sse2,
    /// 32-byte vectors.
    Avx2,
    /// 64-byte vectors; needs the F, BW, DQ and VL subsets.
    Avx512,
}

impl Isa {
    /// All instruction sets, narrowest first.
    pub const ALL: [Isa; 3] = [Isa::Sse2, Isa::Avx2, Isa::Avx512];

    /// True if this processor and system can execute it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Isa::Sse2 => true,
            Isa::Avx2 => is_x86_feature_detected!("avx2"),
            Isa::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
        }
    }

    /// Returns the widest available instruction set.
    #[must_use]
    pub fn best() -> Isa {
        Self::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Sse2)
    }

    /// Returns the kernel that folds messages, if there is one for these vectors and this processor.
    pub(super) fn fold_kernel(self) -> Option<FoldKernel> {
        (self == Isa::Avx512 && is_x86_feature_detected!("vpclmulqdq")).then_some(telpher_mem_fold_avx512)
    }

    /// Returns the kernels if the processor can execute them.
    pub(super) fn kernels(self) -> Option<&'static Kernels> {
        self.is_available().then_some(match self {
            Isa::Sse2 => &SSE2,
            Isa::Avx2 => &AVX2,
            Isa::Avx512 => &AVX512,
        })
    }
}

/// Reads CPUID leaf 7, subleaf 0: EBX and EDX; zero if the processor has no such leaf.
#[allow(unused_unsafe, reason = "safe since Rust 1.94, unsafe in the oldest supported one")]
fn leaf_7() -> (u32, u32) {
    // SAFETY: every x86-64 processor has CPUID and leaf 0.
    if unsafe { std::arch::x86_64::__cpuid(0) }.eax < 7 {
        return (0, 0);
    }
    // SAFETY: leaf 0 has just reported that leaf 7 exists.
    let leaf = unsafe { std::arch::x86_64::__cpuid_count(7, 0) };
    (leaf.ebx, leaf.edx)
}

/// Returns the kernel with the best instruction to flush a range of lines.
pub(super) fn flush_kernel() -> Kernel {
    // EBX bit 23: CLFLUSHOPT, whose flushes do not wait for each other.
    if leaf_7().0 & (1 << 23) != 0 { telpher_mem_clflushopt } else { telpher_mem_clflush }
}

/// True if string moves and stores are fast: EDX bit 4, FSRM (Ice Lake, Zen 3 and later).
pub(super) fn has_fast_strings() -> bool {
    leaf_7().1 & (1 << 4) != 0
}
