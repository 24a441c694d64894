//! The environment of the process, without the C library's `getenv`, which a program may interpose.
#![allow(unsafe_code, reason = "reads the C library's environ, and the words that the kernel has put on the stack")]

use std::ffi::{CStr, c_char};

unsafe extern "C" {
    /// The C library's environment.
    static environ: *const *const c_char;
    /// The start of the stack when the kernel started the program: the number of arguments. Defined by the dynamic
    /// linker.
    static __libc_stack_end: *const usize;
}

/// Returns the environment of the process. A sanitizer's runtime may call this while the dynamic linker still works,
/// before the C library has set its own variable. Then the environment is where the kernel has put it, after the
/// arguments. Source: System V ABI, AMD64 supplement, 3.4.1.
fn environment() -> *const *const c_char {
    // SAFETY: both are set before any library code runs, or are null. The kernel's words stay unchanged until `main`.
    unsafe {
        if !environ.is_null() || __libc_stack_end.is_null() {
            return environ;
        }
        // The argument count itself, that many pointers, and the terminating null pointer.
        __libc_stack_end.add(1 + *__libc_stack_end + 1).cast()
    }
}

/// Returns the value of a variable.
///
/// # Safety
/// No code changes the environment during the call and while the value is used: this holds before `main`.
#[must_use]
pub unsafe fn variable(name: &str) -> Option<&'static [u8]> {
    // SAFETY: a null-terminated array of strings, which does not change by the caller's promise.
    unsafe {
        let mut entry = environment();
        while !entry.is_null() && !(*entry).is_null() {
            let text = CStr::from_ptr(*entry).to_bytes();
            if let Some(value) = text.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")) {
                return Some(value);
            }
            entry = entry.add(1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        // SAFETY: no test of this crate changes the environment.
        let found = |name: &str| unsafe { variable(name) };
        let (name, value) = std::env::vars().find(|(_, value)| !value.is_empty()).expect("cargo sets variables");
        assert_eq!(found(&name), Some(value.as_bytes()));
        assert_eq!(found(&format!("{name}=")), None);
        assert_eq!(found("NO_SUCH_VARIABLE"), None);
    }
}
