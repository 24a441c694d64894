//! Memory functions of the preloaded libraries, independent of the C library's.
//!
//! A program may define its own `memcpy`, and before the dynamic linker has finished, the C library's may not be called
//! yet. These are written in assembly, so that the compiler cannot turn a loop in them into a call of the same
//! function.
#![allow(unsafe_code, reason = "assembly")]

use std::ffi::{c_char, c_int, c_void};

std::arch::global_asm!(include_str!("asm/own_memory.s"), options(raw));

unsafe extern "C" {
    /// `memmove` of the C library.
    ///
    /// # Safety
    /// `len` bytes at `from` can be read, and at `to` written.
    #[link_name = "telpher_own_move"]
    pub fn own_move(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void;
    /// `memset` of the C library.
    ///
    /// # Safety
    /// `len` bytes at `to` can be written.
    #[link_name = "telpher_own_fill"]
    pub fn own_fill(to: *mut c_void, byte: c_int, len: usize) -> *mut c_void;
    /// `memcmp` of the C library.
    ///
    /// # Safety
    /// `len` bytes at `a` and at `b` can be read.
    #[link_name = "telpher_own_compare"]
    pub fn own_compare(a: *const c_void, b: *const c_void, len: usize) -> c_int;
    /// `strlen` of the C library.
    ///
    /// # Safety
    /// A string that ends with a zero.
    #[link_name = "telpher_own_length"]
    pub fn own_length(text: *const c_char) -> usize;
}

/// Defines the memory functions that the compiler calls, hidden outside the library that uses this macro. Use it once,
/// in a module that allows unsafe code.
///
/// Otherwise the library would call those of the program, or of a library that was preloaded before it: they may be in
/// the middle of a call, use memory that the library is about to move, or submit to the device that it emulates.
#[macro_export]
macro_rules! hidden_memory_functions {
    () => {
        $crate::hidden_memory_functions! { @each
            memcpy: telpher_own_move, memmove: telpher_own_move, memset: telpher_own_fill,
            memcmp: telpher_own_compare, bcmp: telpher_own_compare, strlen: telpher_own_length,
        }
    };
    (@each $($name:ident: $own:ident,)*) => {$(
        ::std::arch::global_asm!(
            concat!(".section .text.telpher_hidden_", stringify!($name), ", \"ax\", @progbits"),
            concat!(".globl ", stringify!($name)),
            concat!(".hidden ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @function"),
            concat!(stringify!($name), ":"),
            concat!("jmp ", stringify!($own)),
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
            ".text",
            options(raw),
        );
    )*};
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: std::ops::Range<usize> = 0..300;

    fn numbered(len: usize) -> Vec<u8> {
        (0..len).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect()
    }

    #[test]
    fn moves_of_every_length_and_overlap_preserve_the_bytes() {
        for len in LENGTHS {
            for (to, from) in
                [(0, 0), (1, 0), (0, 1), (13, 0), (0, 13), (40, 0), (0, 40), (100, 0), (0, 100), (0, 400), (400, 0)]
            {
                let mut bytes = numbered(800);
                let mut expected = bytes.clone();
                for at in 0..len {
                    expected[to + at] = u8::try_from((from + at) * 7 % 251).unwrap();
                }
                let base = bytes.as_mut_ptr();
                // SAFETY: both ranges lie in the 800 bytes.
                let answer = unsafe { own_move(base.add(to).cast(), base.add(from).cast(), len) };
                assert_eq!(answer.addr(), base.addr() + to);
                assert_eq!(bytes, expected, "{len} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn copies_and_fills_change_only_their_range() {
        let from = numbered(LENGTHS.end);
        for len in LENGTHS {
            let mut to = vec![0xee; LENGTHS.end + 2];
            // SAFETY: the ranges lie in their vectors.
            unsafe { own_move(to.as_mut_ptr().add(1).cast(), from.as_ptr().cast(), len) };
            assert_eq!((to[0], &to[1..=len], to[len + 1]), (0xee, &from[..len], 0xee));
            // SAFETY: as above. Only the low byte is used.
            unsafe { own_fill(to.as_mut_ptr().add(1).cast(), 0x1234, len) };
            assert_eq!((to[0], to[len + 1]), (0xee, 0xee));
            assert!(to[1..=len].iter().all(|byte| *byte == 0x34));
        }
    }

    #[test]
    fn comparisons_find_the_first_difference_at_every_position() {
        for len in LENGTHS {
            let a = numbered(LENGTHS.end);
            let order = |b: &[u8]| {
                // SAFETY: both have at least `len` bytes.
                let order = unsafe { own_compare(a.as_ptr().cast(), b.as_ptr().cast(), len) };
                order.signum()
            };
            assert_eq!(order(&a), 0);
            for at in 0..len {
                let mut b = a.clone();
                b[at] = a[at].wrapping_add(1);
                b[at + 1..].fill(0);
                let expected = if a[at] < b[at] { -1 } else { 1 };
                assert_eq!(order(&b), expected, "{len} bytes, different at {at}");
            }
        }
    }

    #[test]
    fn a_text_ends_at_its_first_zero() {
        for text in [c"", c"a", c"some text"] {
            // SAFETY: a C string.
            assert_eq!(unsafe { own_length(text.as_ptr()) }, text.to_bytes().len());
        }
    }
}
