//! The interposed functions: those that the program would call without the preloaded library.
#![allow(unsafe_code, reason = "asks the dynamic linker for symbols, and keeps the C library's errno")]

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// One function of the C library, or of another library preloaded after this one; looked up at the first use.
#[derive(Debug)]
pub struct Original {
    name: &'static CStr,
    /// Its address, or that of [`missing`]; null before the first use.
    found: AtomicPtr<c_void>,
}

impl Original {
    /// Names the function.
    pub const fn new(name: &'static CStr) -> Self {
        Original { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns its address. If this C library lacks it, returns the address of a function that fails with ENOSYS.
    #[inline]
    pub fn get(&self) -> *mut c_void {
        // Relaxed: the address of code, which publishes nothing; all threads that look it up find the same.
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.look_up() } else { found }
    }

    /// Returns its address; `None` if this C library lacks it.
    pub fn find(&self) -> Option<*mut c_void> {
        Some(self.get()).filter(|found| *found != MISSING as *mut c_void)
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: the C library's errno of this thread, which the program must not see changed. The name is a string;
        // RTLD_NEXT searches after the library that contains this code.
        let mut found = unsafe {
            let errno = libc::__errno_location();
            let kept = *errno;
            let found = libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr());
            *errno = kept;
            found
        };
        if found.is_null() {
            found = MISSING as *mut c_void;
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// The address of the function that stands for every missing one.
const MISSING: extern "C" fn() -> c_int = missing;

extern "C" fn missing() -> c_int {
    // SAFETY: the C library's errno of this thread.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

/// Returns the address of the function of this name in the libraries after this one; see [`Original::get`].
#[macro_export]
macro_rules! next_function {
    ($name:ident) => {{
        static NEXT: $crate::preload::Original = $crate::preload::Original::new(
            match ::std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no zero in it"),
            },
        );
        NEXT.get()
    }};
}

/// Defines functions that interpose the C library's. The name between the bars is the interposed function, which the
/// body may call with the same or other arguments.
///
/// In tests they are ordinary functions: the test program keeps the C library's own.
#[macro_export]
macro_rules! interpose {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $out:ty { |$next:ident| $body:expr })*) => {$(
        $(#[$attribute])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(super) unsafe extern "C" fn $name($($argument: $type),*) -> $out {
            // SAFETY: this function's type is the C library's type for this name.
            let $next = unsafe {
                ::std::mem::transmute::<*mut ::std::ffi::c_void, unsafe extern "C" fn($($type),*) -> $out>(
                    $crate::next_function!($name),
                )
            };
            // SAFETY: the caller fulfils the C library's requirements for this function.
            unsafe { $body }
        }
    )*};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_function_fails_with_enosys() {
        static PRESENT: Original = Original::new(c"getpid");
        static ABSENT: Original = Original::new(c"telpher_has_no_such_function");
        assert!(PRESENT.find().is_some_and(|found| found == PRESENT.get()));
        assert_eq!(ABSENT.find(), None);
        // SAFETY: `missing` has this type.
        let call: extern "C" fn() -> c_int = unsafe { std::mem::transmute::<*mut c_void, _>(ABSENT.get()) };
        assert_eq!((call(), std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOSYS)));
    }
}
