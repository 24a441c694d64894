//! The processor's time stamp counter.
#![allow(unsafe_code, reason = "one instruction that every x86-64 processor has")]

/// The time stamp counter. It counts at a constant rate, which the kernel does not report; compare it with a clock to
/// learn it.
#[inline]
#[must_use]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has RDTSC, and Linux lets programs use it unless they forbid it themselves
    // (PR_SET_TSC).
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The time stamp counter, read after all earlier loads have ended and before any later instruction begins.
///
/// A processor executes some hundred instructions ahead, so it may read the counter before a short copy of uncached
/// data has ended. Source: Intel SDM volume 2, RDTSC: "execute LFENCE immediately before RDTSC", and after it.
#[inline]
#[must_use]
pub fn ticks_in_order() -> u64 {
    use std::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: as above; every x86-64 processor has LFENCE.
    unsafe {
        _mm_lfence();
        let ticks = _rdtsc();
        _mm_lfence();
        ticks
    }
}

/// True if the counter has the same rate in all states of the processor. Source: AMD APM volume 3 and Intel SDM volume 2,
/// CPUID function 8000_0007h, EDX bit 8.
pub(crate) fn has_constant_rate() -> bool {
    use std::arch::x86_64::__cpuid;
    const EXTENDED: u32 = 0x8000_0000;
    const POWER: u32 = 0x8000_0007;
    __cpuid(EXTENDED).eax >= POWER && __cpuid(POWER).edx & 1 << 8 != 0
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_counter_does_not_run_backwards_on_one_thread() {
        let first = super::ticks();
        let second = super::ticks_in_order();
        assert!(first <= second && second <= super::ticks());
    }
}
