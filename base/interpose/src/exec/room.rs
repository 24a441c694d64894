//! Room for a copy of an environment: on the stack, or in pages that are given back.
//!
//! A child of vfork(2) shares its memory with its parent until it executes a program: pages that it maps would stay in the parent for ever. So
//! it has the copy on its stack, as the C library has its own. The process that loaded the library has large copies in pages: its
//! threads' stacks may be small.
#![allow(unsafe_code, reason = "maps pages, and lends memory")]

use crate::kernel;
use std::mem::MaybeUninit;

/// The most that a copy can have, in bytes. Source: derived: the kernel refuses arguments and environment of more than 6 MiB, pointers
/// included (Linux `fs/exec.c`, bprm_stack_limits(), since 4.13).
pub(super) const MOST: usize = 6 << 20;

/// There is no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoRoom {
    /// More than the kernel takes.
    TooLarge,
    /// The kernel gives no pages.
    NoMemory,
}

/// Calls `act` with room for so many bytes, aligned for pointers. `pages`: large ones may be mapped.
pub(super) fn with_room<R>(bytes: usize, pages: bool, act: &mut dyn FnMut(*mut u8) -> R) -> Result<R, NoRoom> {
    match bytes {
        0..=0x400 => Ok(on_stack::<0x80, R>(act)),
        0x401..=0x1000 => Ok(on_stack::<0x200, R>(act)),
        0x1001..=MOST if pages => in_pages(bytes, act),
        0x1001..=0x1_0000 => Ok(on_stack::<0x2000, R>(act)),
        0x1_0001..=0x10_0000 => Ok(on_stack::<0x2_0000, R>(act)),
        0x10_0001..=MOST => Ok(on_stack::<{ MOST / 8 }, R>(act)),
        _ => Err(NoRoom::TooLarge),
    }
}

/// On the stack of the caller's thread.
#[inline(never)]
fn on_stack<const WORDS: usize, R>(act: &mut dyn FnMut(*mut u8) -> R) -> R {
    let mut room = MaybeUninit::<[u64; WORDS]>::uninit();
    act(room.as_mut_ptr().cast())
}

/// In pages of its own, which are gone when `act` has returned.
pub(super) fn in_pages<R>(bytes: usize, act: &mut dyn FnMut(*mut u8) -> R) -> Result<R, NoRoom> {
    let start = kernel::map(None, bytes, libc::PROT_READ | libc::PROT_WRITE).map_err(|_| NoRoom::NoMemory)?;
    let result = act(std::ptr::with_exposed_provenance_mut(start));
    // SAFETY: mapped above, and `act`, which alone knew of them, has returned.
    unsafe { kernel::unmap(start, bytes) };
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread, whose stack has room for the largest.
    fn in_large_thread(test: impl FnOnce() + Send + 'static) {
        std::thread::Builder::new().stack_size(16 << 20).spawn(test).unwrap().join().unwrap();
    }

    #[test]
    fn room_of_every_size_can_be_written_from_end_to_end() {
        in_large_thread(|| {
            for pages in [false, true] {
                for bytes in [0, 1, 0x400, 0x401, 0x1000, 0x1001, 0x1_0000, 0x1_0001, 0x10_0000, 0x10_0001, MOST] {
                    let written = with_room(bytes, pages, &mut |room| {
                        assert!(room.addr().is_multiple_of(8));
                        // SAFETY: so many bytes were asked for.
                        unsafe { room.write_bytes(0xa5, bytes) };
                        bytes
                    });
                    assert_eq!(written, Ok(bytes));
                }
                assert_eq!(with_room(MOST + 1, pages, &mut |_| ()), Err(NoRoom::TooLarge));
            }
        });
    }
}
