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

#[cfg(test)]
mod tests {
    #[test]
    fn the_counter_does_not_run_backwards_on_one_thread() {
        let first = super::ticks();
        assert!(super::ticks() >= first);
    }
}
