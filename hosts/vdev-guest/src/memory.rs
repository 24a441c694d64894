//! This library's own, hidden versions of the memory functions that the compiler calls.
//!
//! A program may define its own `memcpy`; one that submits copies to the device would re-enter this library in the
//! middle of an emulated instruction. They are written in assembly, so that the compiler cannot turn a loop in them
//! into a call of the same function.
#![allow(unsafe_code, reason = "assembly")]

std::arch::global_asm!(include_str!("asm/memory.s"), options(raw));

#[cfg(test)]
mod tests {
    use std::ffi::{c_char, c_int, c_void};

    unsafe extern "C" {
        fn memcpy(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void;
        fn memmove(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void;
        fn memset(to: *mut c_void, byte: c_int, len: usize) -> *mut c_void;
        fn memcmp(a: *const c_void, b: *const c_void, len: usize) -> c_int;
        fn bcmp(a: *const c_void, b: *const c_void, len: usize) -> c_int;
        fn strlen(text: *const c_char) -> usize;
    }

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
                let answer = unsafe { memmove(base.add(to).cast(), base.add(from).cast(), len) };
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
            unsafe { memcpy(to.as_mut_ptr().add(1).cast(), from.as_ptr().cast(), len) };
            assert_eq!((to[0], &to[1..=len], to[len + 1]), (0xee, &from[..len], 0xee));
            // SAFETY: as above. Only the low byte is used.
            unsafe { memset(to.as_mut_ptr().add(1).cast(), 0x1234, len) };
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
                let (order, differ) = unsafe {
                    (memcmp(a.as_ptr().cast(), b.as_ptr().cast(), len), bcmp(a.as_ptr().cast(), b.as_ptr().cast(), len))
                };
                assert_eq!(order == 0, differ == 0);
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
            assert_eq!(unsafe { strlen(text.as_ptr()) }, text.to_bytes().len());
        }
    }
}
