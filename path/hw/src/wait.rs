//! Light sleeps of the processor: UMONITOR, UMWAIT, TPAUSE, as bytes. Source: SDM vol. 2, the pages of these
//! instructions.
#![allow(unsafe_code, reason = "UMONITOR, UMWAIT and TPAUSE")]

use crate::cpuid::leaf;
use crate::instructions::token;
use std::arch::asm;
use std::hint::spin_loop;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use telpher_os::ticks;
use telpher_portal::RecordCell;

/// The requested state: C0.1, the lighter one, which wakes faster. C0.2 saves more and helps a sibling thread more, but
/// costs up to a microsecond at the end of a wait. Source: SDM vol. 2, UMWAIT; the choice is assumed, nothing measured
/// yet.
const LIGHT: u32 = 1;
/// How long the clocks are compared if the processor does not report the frequency of its time stamp counter. Source:
/// chosen; an error of one per mille, once per process.
const COMPARE: Duration = Duration::from_micros(200);

token! {
    /// UMONITOR, UMWAIT and TPAUSE may be executed.
    Waitpkg, waitpkg
}

impl Waitpkg {
    /// Rests until the record's cache line is written, the time is over, or the processor wakes for another reason.
    /// Reads the record once more after the monitor is armed; otherwise a write just before would be missed.
    pub(crate) fn monitor(self, record: &RecordCell, at_most: Duration) {
        let deadline = deadline(at_most);
        // umonitor rax. SAFETY: the token proves that the instruction exists; it reads a byte of the record, which is
        // borrowed.
        unsafe {
            asm!(".byte 0xf3, 0x0f, 0xae, 0xf0", in("rax") record.address(), options(nostack, preserves_flags));
        }
        if record.status().is_some() {
            return;
        }
        // umwait ecx. SAFETY: the token proves that the instruction exists; bits 31:1 of the control are zero.
        unsafe {
            asm!(".byte 0xf2, 0x0f, 0xae, 0xf1", in("ecx") LIGHT, in("edx") high(deadline), in("eax") low(deadline),
                options(nostack));
        }
    }

    /// Rests until the time is over, or the processor wakes for another reason.
    pub(crate) fn pause(self, at_most: Duration) {
        let deadline = deadline(at_most);
        // tpause ecx. SAFETY: as for UMWAIT.
        unsafe {
            asm!(".byte 0x66, 0x0f, 0xae, 0xf1", in("ecx") LIGHT, in("edx") high(deadline), in("eax") low(deadline),
                options(nostack));
        }
    }
}

fn high(word: u64) -> u32 {
    u32::try_from(word >> 32).expect("32 bits")
}

fn low(word: u64) -> u32 {
    u32::try_from(word & 0xffff_ffff).expect("32 bits")
}

/// Returns the time stamp counter's value after a duration.
fn deadline(after: Duration) -> u64 {
    let nanos = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
    // Saturates after half a year, far beyond the longest rest that the system allows.
    ticks().saturating_add(nanos.saturating_mul(ticks_per_microsecond()) / 1000)
}

/// Returns the frequency of the time stamp counter in MHz.
fn ticks_per_microsecond() -> u64 {
    static TICKS: OnceLock<u64> = OnceLock::new();
    *TICKS.get_or_init(|| reported_frequency().unwrap_or_else(measured_frequency).max(1))
}

/// Returns the frequency that the processor reports: leaf 0x15, the ratio to a crystal and the crystal's frequency in
/// Hz. Source: SDM vol. 2, CPUID.
fn reported_frequency() -> Option<u64> {
    let leaf = leaf(0x15);
    let product = u64::from(leaf.ecx).checked_mul(leaf.ebx.into())?;
    product.checked_div(leaf.eax.into()).map(|hertz| hertz / 1_000_000).filter(|mega| *mega > 0)
}

fn measured_frequency() -> u64 {
    let (began, first) = (Instant::now(), ticks());
    while began.elapsed() < COMPARE {
        spin_loop();
    }
    let (ticks, took) = (ticks().wrapping_sub(first), began.elapsed());
    ticks.saturating_mul(1000) / u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip;
    use telpher_abi::{CompletionRecord, Status, StatusByte};

    #[test]
    fn the_counters_frequency_is_that_of_the_clock() {
        // Compares 20 ms with the result; 5 % is far more than the error of either.
        let (began, first) = (Instant::now(), ticks());
        while began.elapsed() < Duration::from_millis(20) {
            spin_loop();
        }
        let (ticks, took) = (ticks() - first, began.elapsed());
        let expected = u128::from(ticks) * 1000 / took.as_nanos();
        let found = u128::from(ticks_per_microsecond());
        assert!(found * 100 > expected * 95 && found * 100 < expected * 105, "{found} MHz, {expected} by the clock");
    }

    /// The record is written between the caller's look and the arming of the monitor. A rest that does not look again
    /// lasts until its time is over. The total of many rests is compared with that of many rests of the other kind,
    /// which always last their time.
    #[test]
    fn a_record_that_is_there_when_the_monitor_is_armed_ends_the_rest_at_once() {
        const NAME: &str = "a_record_that_is_there_when_the_monitor_is_armed_ends_the_rest_at_once";
        let Some(waitpkg) = Waitpkg::new() else { return skip(NAME, "this processor has no UMWAIT") };
        let record = RecordCell::new();
        record.complete(&CompletionRecord([u64::from(StatusByte::new(Status::Success).0), 0, 0, 0]));
        let total = |rest: &dyn Fn()| {
            let began = Instant::now();
            (0..1000).for_each(|_| rest());
            began.elapsed()
        };
        let paused = total(&|| waitpkg.pause(Duration::from_micros(50)));
        let monitored = total(&|| waitpkg.monitor(&record, Duration::from_micros(50)));
        assert!(monitored * 4 < paused, "{monitored:?}, pauses of the same length {paused:?}");
    }

    #[test]
    fn a_deadline_is_ahead_and_cannot_overflow() {
        let before = ticks();
        assert!(deadline(Duration::from_millis(1)) >= before + 900 * ticks_per_microsecond());
        assert!(deadline(Duration::MAX) > before);
        assert_eq!((high(0x1_0000_0002), low(0x1_0000_0002)), (1, 2));
    }
}
