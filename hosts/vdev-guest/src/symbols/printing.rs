//! Formatted output to a descriptor: the C library writes it with an internal call.
#![allow(unsafe_code, reason = "replaces functions of the C library")]

use super::descriptors;
use super::served::is_ours;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use telpher_interpose::interpose;

unsafe extern "C" {
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
}

/// vdprintf to our descriptor: formats the text first, then makes one write.
unsafe fn print(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    let mut text = ptr::null_mut();
    // SAFETY: format and arguments are as the C library requires; the text comes from its malloc and has the returned
    // length.
    unsafe {
        let len = vasprintf(&raw mut text, format, arguments);
        let Ok(bytes) = usize::try_from(len) else { return -1 };
        let written = descriptors::write(fd, text.cast(), bytes);
        let kept = crate::sys::KeptErrno::new();
        libc::free(text.cast());
        drop(kept);
        c_int::try_from(written).unwrap_or(c_int::MAX)
    }
}

interpose! {
    // A va_list argument is a pointer on x86-64.
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int { |next|
        if is_ours(fd) { print(fd, format, arguments) } else { next(fd, format, arguments) }
    }
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int { |next|
        if is_ours(fd) { print(fd, format, arguments) } else { next(fd, flag, format, arguments) }
    }
}

/// Defines a variadic function that builds a va_list and passes it on. The list's first field is eight bytes per named
/// argument. Source: System V ABI, AMD64 supplement, 3.5.7.
macro_rules! variadic {
    ($name:ident, $named:literal, $list:literal, $to:ident) => {
        /// The variadic function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "sub rsp, 0xd8",
                // The registers' save area.
                "mov [rsp + 0x20], rdi",
                "mov [rsp + 0x28], rsi",
                "mov [rsp + 0x30], rdx",
                "mov [rsp + 0x38], rcx",
                "mov [rsp + 0x40], r8",
                "mov [rsp + 0x48], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 0x50], xmm0",
                "movaps [rsp + 0x60], xmm1",
                "movaps [rsp + 0x70], xmm2",
                "movaps [rsp + 0x80], xmm3",
                "movaps [rsp + 0x90], xmm4",
                "movaps [rsp + 0xa0], xmm5",
                "movaps [rsp + 0xb0], xmm6",
                "movaps [rsp + 0xc0], xmm7",
                "2:",
                // The va_list: general and vector registers used, arguments on the stack, save area.
                concat!("mov dword ptr [rsp], 8 * ", $named),
                "mov dword ptr [rsp + 4], 0x30",
                "lea rax, [rsp + 0xe0]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 0x20]",
                "mov [rsp + 0x10], rax",
                concat!("mov ", $list, ", rsp"),
                "call {to}",
                "add rsp, 0xd8",
                "ret",
                to = sym $to,
            )
        }
    };
}

variadic!(dprintf, "2", "rdx", vdprintf);
variadic!(__dprintf_chk, "3", "rcx", __vdprintf_chk);
