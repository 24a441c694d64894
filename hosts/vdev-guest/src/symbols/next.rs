//! The definitions behind ours: what a program would have called without this library.
#![allow(unsafe_code, reason = "asks the dynamic linker for symbols")]

use crate::sync::{AtomicPtr, Ordering};
use crate::sys::{self, Errno};
use std::ffi::{CStr, c_int, c_void};

/// One function of the C library, or of another preloaded library behind this one; looked up when it is first needed.
#[derive(Debug)]
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// A function by its name.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Next { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address. Older C libraries lack some: then it is that of a function that fails with ENOSYS.
    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        // Relaxed: an address of code, which nothing is published with; all who look it up find the same.
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.look_up() } else { found }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let _kept = sys::KeptErrno::new();
        // SAFETY: the name is a string; RTLD_NEXT searches behind the library that this code is in.
        let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            found = missing as *mut c_void;
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

extern "C" fn missing() -> c_int {
    sys::set_errno(Errno::NOSYS);
    -1
}

/// Defines functions that stand in front of the C library's. Between the bars a name for the function behind, which the body may
/// call with the same arguments or with others.
///
/// Under test they are ordinary functions: the test program keeps the C library's own.
macro_rules! interpose {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $out:ty { |$next:ident| $body:expr })*) => {$(
        $(#[$attribute])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(super) unsafe extern "C" fn $name($($argument: $type),*) -> $out {
            // SAFETY: the type is the C library's for this name, which is this function's own.
            let $next = unsafe {
                static NEXT: $crate::symbols::next::Next = $crate::symbols::next::Next::new(
                    match ::std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name has no zero in it"),
                    },
                );
                ::std::mem::transmute::<*mut ::std::ffi::c_void, unsafe extern "C" fn($($type),*) -> $out>(NEXT.get())
            };
            // SAFETY: the caller keeps what the C library asks of callers of this function.
            unsafe { $body }
        }
    )*};
}
pub(crate) use interpose;
