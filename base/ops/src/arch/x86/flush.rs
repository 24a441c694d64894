//! Cache-line flushes: CLFLUSHOPT and CLWB if CPUID reports them, otherwise CLFLUSH.

use super::cpuid::facts;
use core::arch::asm;
use core::arch::x86_64::{_mm_clflush, _mm_mfence};

/// Bytes of a cache line on all known x86-64 CPUs.
const LINE: usize = 64;

/// Calls `each` with an address in every line that `buf` touches.
fn for_each_line(buf: &[u8], mut each: impl FnMut(*const u8)) {
    let lead = buf.as_ptr().addr() % LINE;
    // No addition overflows: a slice's end is an address.
    let lines = if buf.is_empty() { 0 } else { (lead + buf.len()).div_ceil(LINE) };
    for line in 0..lines {
        each(buf.as_ptr().wrapping_add((line * LINE).saturating_sub(lead)));
    }
}

pub(in crate::arch) fn flush(buf: &[u8]) {
    if facts().clflushopt {
        // SAFETY: the CPU has CLFLUSHOPT; the address lies in `buf`, and a flush changes no byte.
        for_each_line(buf, |line| unsafe { asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) });
    } else {
        // SAFETY: every x86-64 CPU has CLFLUSH; the address lies in `buf`, and a flush changes no byte.
        for_each_line(buf, |line| unsafe { _mm_clflush(line) });
    }
    // SAFETY: MFENCE belongs to SSE2, which every x86-64 CPU has. Flushes are ordered by it.
    unsafe { _mm_mfence() }
}

pub(in crate::arch) fn write_back(buf: &[u8]) {
    if !facts().clwb {
        return flush(buf);
    }
    // SAFETY: the CPU has CLWB; the address lies in `buf`, and a write-back changes no byte.
    for_each_line(buf, |line| unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) });
    // SAFETY: MFENCE belongs to SSE2, which every x86-64 CPU has. Write-backs are ordered by it.
    unsafe { _mm_mfence() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_touched_lines_are_visited_once() {
        let buf = vec![0u8; 1024];
        for start in 0..130 {
            for len in 0..200 {
                let part = &buf[start..start + len];
                let mut lines = Vec::new();
                for_each_line(part, |line| {
                    assert!(part.as_ptr_range().contains(&line));
                    lines.push(line.addr() / LINE);
                });
                let mut touched: Vec<_> = part.iter().map(|byte| core::ptr::from_ref(byte).addr() / LINE).collect();
                touched.dedup();
                assert_eq!(lines, touched);
            }
        }
    }
}
