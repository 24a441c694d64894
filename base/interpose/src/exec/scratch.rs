//! Memory for a copy of an environment: on the stack, or in pages that are unmapped again.
//!
//! A child of vfork(2) shares its memory with its parent until it executes a program: pages that it maps would stay in
//! the parent for ever. So it keeps the copy on its stack, as the C library keeps its own. The process that loaded the
//! library keeps large copies in pages, because its threads' stacks may be small.
#![allow(unsafe_code, reason = "maps pages, and lends memory")]

use crate::kernel;
use std::mem::MaybeUninit;

/// The largest copy, in bytes. Source: derived: the kernel refuses arguments and environment of more than 6 MiB,
/// pointers included (Linux `fs/exec.c`, bprm_stack_limits(), since 4.13).
pub(super) const MOST: usize = 6 << 20;

/// Error: no memory for a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ScratchError {
    /// More than the kernel accepts.
    TooLarge,
    /// The kernel gives no pages.
    NoMemory,
}

/// Calls `act` with memory of `bytes` bytes, aligned for pointers. `pages`: large copies may use mapped pages.
pub(super) fn with_scratch<R>(bytes: usize, pages: bool, act: &mut dyn FnMut(*mut u8) -> R) -> Result<R, ScratchError> {
    match bytes {
        0..=0x400 => Ok(on_stack::<0x80, R>(act)),
        0x401..=0x1000 => Ok(on_stack::<0x200, R>(act)),
        0x1001..=MOST if pages => in_pages(bytes, act),
        0x1001..=0x1_0000 => Ok(on_stack::<0x2000, R>(act)),
        0x1_0001..=0x10_0000 => Ok(on_stack::<0x2_0000, R>(act)),
        0x10_0001..=MOST => Ok(on_stack::<{ MOST / 8 }, R>(act)),
        _ => Err(ScratchError::TooLarge),
    }
}

/// Uses the stack of the calling thread.
#[inline(never)]
fn on_stack<const WORDS: usize, R>(act: &mut dyn FnMut(*mut u8) -> R) -> R {
    let mut memory = MaybeUninit::<[u64; WORDS]>::uninit();
    act(memory.as_mut_ptr().cast())
}

/// Uses pages of its own, which are unmapped when `act` has returned.
pub(super) fn in_pages<R>(bytes: usize, act: &mut dyn FnMut(*mut u8) -> R) -> Result<R, ScratchError> {
    let start = kernel::map(None, bytes, libc::PROT_READ | libc::PROT_WRITE).map_err(|_| ScratchError::NoMemory)?;
    let result = act(std::ptr::with_exposed_provenance_mut(start));
    // SAFETY: mapped above; only `act` knew of them, and it has returned.
    unsafe { kernel::unmap(start, bytes) };
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the test in a thread whose stack is large enough for the largest copy.
    fn in_thread_with_large_stack(test: impl FnOnce() + Send + 'static) {
        std::thread::Builder::new().stack_size(16 << 20).spawn(test).unwrap().join().unwrap();
    }

    #[test]
    fn scratch_memory_of_every_size_is_writable() {
        in_thread_with_large_stack(|| {
            for pages in [false, true] {
                for bytes in [0, 1, 0x400, 0x401, 0x1000, 0x1001, 0x1_0000, 0x1_0001, 0x10_0000, 0x10_0001, MOST] {
                    let written = with_scratch(bytes, pages, &mut |memory| {
                        assert!(memory.addr().is_multiple_of(8));
                        // SAFETY: this many bytes were requested.
                        unsafe { memory.write_bytes(0xa5, bytes) };
                        bytes
                    });
                    assert_eq!(written, Ok(bytes));
                }
                assert_eq!(with_scratch(MOST + 1, pages, &mut |_| ()), Err(ScratchError::TooLarge));
            }
        });
    }
}
