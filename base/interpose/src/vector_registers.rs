//! Vector registers in a signal frame.
#![allow(unsafe_code, reason = "reads the vector state that a signal frame points to")]

use libc::ucontext_t;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::atomic::{AtomicU32, Ordering};

/// Components of the state: bits of XCR0, and subleaves of CPUID with their offsets in a frame.
const SSE: u32 = 1;
const AVX: u32 = 2;
const OPMASK: u32 = 5;
const ZMM_HIGH: u32 = 6;
const ZMM_16: u32 = 7;

/// Offsets of the components in a frame; zero for components that the processor does not have.
static OFFSETS: [AtomicU32; 8] = [const { AtomicU32::new(0) }; 8];

/// Reads the offsets from the processor once, since CPUID in a virtual machine is slow.
#[allow(unused_unsafe, reason = "safe since Rust 1.94, unsafe in the oldest supported one")]
pub(crate) fn detect() {
    // SAFETY: every x86-64 processor has CPUID and leaf 0.
    if unsafe { __cpuid(0) }.eax < 0xd {
        return;
    }
    // xmm registers are at FXSAVE's offset.
    OFFSETS[SSE as usize].store(160, Ordering::Relaxed);
    for component in [AVX, OPMASK, ZMM_HIGH, ZMM_16] {
        // SAFETY: the leaf exists; absent components return zero.
        let leaf = unsafe { __cpuid_count(0xd, component) };
        // Relaxed: stored before the first trap.
        OFFSETS[component as usize].store(leaf.ebx, Ordering::Relaxed);
    }
}

/// The vector state of a frame.
struct State {
    start: *const u8,
    /// Length in bytes.
    length: usize,
    /// Components that are not in their initial state, which is zero.
    present: u64,
}

impl State {
    /// Returns `None` if the frame has no extended state.
    fn new(context: &ucontext_t) -> Option<Self> {
        /// `FP_XSTATE_MAGIC1`: an XSAVE area follows the FXSAVE image.
        const MAGIC: u32 = 0x4650_5853;
        /// Offset of the kernel's words, in the part of the image that no processor uses.
        const SOFTWARE: usize = 464;
        const PRESENT: usize = 512;
        let start: *const u8 = context.uc_mcontext.fpregs.cast();
        if start.is_null() {
            return None;
        }
        // SAFETY: the kernel's frame has at least an FXSAVE image there; its parts are aligned.
        let (magic, length) = unsafe {
            (
                start.add(SOFTWARE).cast::<u32>().read_unaligned(),
                start.add(SOFTWARE + 16).cast::<u32>().read_unaligned(),
            )
        };
        if magic != MAGIC || (length as usize) < PRESENT + 64 {
            return None;
        }
        // SAFETY: within the length that the kernel wrote.
        let present = unsafe { start.add(PRESENT).cast::<u64>().read_unaligned() };
        Some(State { start, length: length as usize, present })
    }

    /// Returns `N` bytes of a component.
    fn get<const N: usize>(&self, component: u32, offset: usize) -> Option<[u8; N]> {
        if self.present & 1 << component == 0 {
            return Some([0; N]);
        }
        // Relaxed: see `detect`.
        let at = OFFSETS[component as usize].load(Ordering::Relaxed) as usize + offset;
        if at == offset || at + N > self.length {
            return None;
        }
        // SAFETY: within the length that the kernel wrote.
        Some(unsafe { self.start.add(at).cast::<[u8; N]>().read_unaligned() })
    }
}

/// Returns a zmm register, 0 to 31; `None` if the frame does not contain it.
pub(crate) fn zmm(context: &ucontext_t, register: u8) -> Option<[u64; 8]> {
    let state = State::new(context)?;
    let register = usize::from(register);
    let mut bytes = [0; 64];
    if register < 16 {
        bytes[..16].copy_from_slice(&state.get::<16>(SSE, register * 16)?);
        bytes[16..32].copy_from_slice(&state.get::<16>(AVX, register * 16)?);
        bytes[32..].copy_from_slice(&state.get::<32>(ZMM_HIGH, register * 32)?);
    } else {
        bytes = state.get::<64>(ZMM_16, (register - 16) * 64)?;
    }
    let (words, _) = bytes.as_chunks::<8>();
    Some(std::array::from_fn(|word| u64::from_le_bytes(words[word])))
}

/// True if mask register `register` selects all of `elements`; number 0 means that there is no mask.
pub(crate) fn mask(context: &ucontext_t, register: u8, elements: u8) -> bool {
    if register == 0 {
        return true;
    }
    let all = u64::MAX >> (64 - u32::from(elements));
    let mask = State::new(context).and_then(|state| state.get::<8>(OPMASK, usize::from(register) * 8));
    mask.is_some_and(|mask| u64::from_le_bytes(mask) & all == all)
}
