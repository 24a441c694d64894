//! The two submission instructions, as bytes. The assemblers of the supported toolchains know them, but as bytes the
//! virtual device and disassemblers see the same form everywhere.
#![allow(unsafe_code, reason = "MOVDIR64B, ENQCMD and SFENCE")]

use crate::instructions::token;
use std::arch::asm;
use std::arch::x86_64::_mm_sfence;
use telpher_abi::{CompletionRecord, Descriptor, Flags, Opcode, Status, StatusByte};
use telpher_portal::{Offer, RecordCell};

token! {
    /// MOVDIR64B may be executed.
    Movdir64b, movdir64b
}
token! {
    /// ENQCMD may be executed.
    Enqcmd, enqcmd
}

/// Makes this thread's earlier stores visible before its submission. Both instructions are weakly ordered, and the
/// device reads memory, not this processor's store buffer. Source: SDM vol. 2, MOVDIR64B, ENQCMD.
#[inline]
fn fence() {
    // SAFETY: SFENCE is SSE, which every x86-64 has.
    unsafe { _mm_sfence() }
}

impl Movdir64b {
    /// Stores 64 bytes in one write.
    ///
    /// # Safety
    ///
    /// `slot` is a multiple of 64 and lies in a mapped portal, and the descriptor has been vouched for.
    #[inline]
    pub(crate) unsafe fn store(self, slot: *mut u8, descriptor: &Descriptor) -> Offer {
        fence();
        // movdir64b rax,[rdx]. SAFETY: the token proves that the instruction exists. It reads 64 bytes, which are
        // borrowed, and stores them to a device (no memory of this program), at an address that the caller vouches for.
        unsafe {
            asm!(".byte 0x66, 0x0f, 0x38, 0xf8, 0x02", in("rax") slot, in("rdx") descriptor, options(nostack, preserves_flags));
        }
        Offer::Taken
    }
}

impl Enqcmd {
    /// Enqueues 64 bytes, once.
    ///
    /// # Safety
    ///
    /// `slot` is a multiple of 64 and lies in a mapped portal, and the descriptor has been vouched for.
    #[inline]
    pub(crate) unsafe fn store(self, slot: *mut u8, descriptor: &Descriptor) -> Offer {
        if descriptor.0[0] & 0xffff_ffff != 0 {
            // The processor inserts PASID and privilege itself, and faults if these bits are not zero. Source: SDM vol.
            // 2, ENQCMD.
            let clean = descriptor.with_pasid(0).with_trusted_reserved(0).with_privileged(false);
            // SAFETY: the caller's promise; the low dword is zero now.
            return unsafe { self.store(slot, &clean) };
        }
        let retry: u8;
        fence();
        // enqcmd rax,[rdx]. SAFETY: as for MOVDIR64B; the low dword is zero, so it does not fault.
        unsafe {
            asm!(".byte 0xf2, 0x0f, 0x38, 0xf8, 0x02", "setz {retry}", in("rax") slot, in("rdx") descriptor,
                retry = out(reg_byte) retry, options(nostack));
        }
        if retry == 0 { Offer::Taken } else { Offer::Retry }
    }
}

/// Replaces the instructions where there is no device: the same fence, 64 bytes by ordinary stores, and the immediate
/// execution of a No-op. Any other descriptor gets Retry.
///
/// # Safety
///
/// `slot` is a multiple of 64 and points to 64 bytes of ordinary memory that no other code reads. The descriptor has
/// been vouched for.
#[inline]
pub(crate) unsafe fn simulate_submit(slot: *mut u8, descriptor: &Descriptor) -> Offer {
    let record = descriptor.completion_address();
    // Cannot lose bits: both have 64.
    let address = usize::try_from(record).expect("an address");
    let asks = descriptor.flags().contains(Flags::RECORD) && record.is_multiple_of(size_of::<RecordCell>() as u64);
    if descriptor.opcode() != Opcode::Nop || !asks {
        return Offer::Retry;
    }
    fence();
    // SAFETY: 64 aligned bytes, by the caller's promise. Volatile, so that they are really stored.
    unsafe { slot.cast::<[u64; 8]>().write_volatile(descriptor.0) };
    // SAFETY: a vouched descriptor's record is 32 bytes that its executor may write, and is aligned as checked above.
    // Other threads access it through atomics only.
    let record = unsafe { &*std::ptr::with_exposed_provenance::<RecordCell>(address) };
    record.complete(&CompletionRecord([StatusByte::new(Status::Success).0.into(), 0, 0, 0]));
    Offer::Taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip;

    /// Runs `act` in a child, and returns the child's wait(2) status.
    fn in_child(act: impl FnOnce() -> bool) -> i32 {
        // SAFETY: the child accesses memory of its own and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let held = act();
            // SAFETY: ends the child without running any code of its parent.
            unsafe { libc::_exit(i32::from(!held)) };
        }
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status
    }

    /// Ordinary memory aligned to a slot.
    #[repr(align(64))]
    struct Slots([u8; 256]);

    const DESCRIPTOR: Descriptor = Descriptor([0x1111, 2, 3, 4, 5, 6, 7, 0x8888_8888_8888_8888]);

    /// Tests the instruction itself, even if CPUID hides it (a virtual machine): in ordinary memory it is a store.
    #[test]
    fn movdir64b_stores_the_64_bytes_and_no_more() {
        let status = in_child(|| {
            let mut memory = Slots([0xee; 256]);
            // SAFETY: a child may try; a missing instruction ends it by a signal.
            let movdir64b = unsafe { Movdir64b::new_unchecked() };
            // SAFETY: an aligned slot of our own memory; nothing executes the descriptor.
            let offer = unsafe { movdir64b.store(memory.0.as_mut_ptr().wrapping_add(64), &DESCRIPTOR) };
            let memory = std::hint::black_box(&memory.0);
            offer == Offer::Taken
                && memory[..64].iter().chain(&memory[128..]).all(|byte| *byte == 0xee)
                && memory[64..128] == DESCRIPTOR.to_bytes()
        });
        if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGILL {
            return skip("movdir64b_stores_the_64_bytes_and_no_more", "the CPU has no MOVDIR64B");
        }
        assert_eq!(status, 0);
    }

    #[test]
    fn enqcmd_to_ordinary_memory_answers_retry() {
        let Some(enqcmd) = Enqcmd::new() else {
            return skip("enqcmd_to_ordinary_memory_answers_retry", "the CPU has no ENQCMD");
        };
        let status = in_child(|| {
            let mut memory = Slots([0; 256]);
            // SAFETY: an aligned slot of our own memory, which is no queue.
            unsafe { enqcmd.store(memory.0.as_mut_ptr(), &DESCRIPTOR) == Offer::Retry }
        });
        // A process without a PASID gets a fault (SDM vol. 2, ENQCMD).
        assert!(status == 0 || libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status}");
    }
}
