//! The interposed functions: those that the program would call without this library.
#![allow(unsafe_code, reason = "asks the dynamic linker for symbols")]

use crate::sync::{AtomicPtr, Ordering};
use crate::sys::{self, Errno};
use std::ffi::{CStr, c_int, c_void};

/// One function of the C library, or of another library preloaded after this one; looked up at the first use.
#[derive(Debug)]
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// The function with this name.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Next { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address. If an older C library lacks it, the address of a function that fails with ENOSYS.
    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        // Relaxed: the address of code, which publishes nothing; all threads that look it up find the same.
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.look_up() } else { found }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let _kept = sys::KeptErrno::new();
        // SAFETY: the name is a string; RTLD_NEXT searches after the library that contains this code.
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

/// Defines functions that interpose the C library's. The name between the bars is the interposed function, which the
/// body may call with the same or other arguments.
///
/// In tests they are ordinary functions: the test program keeps the C library's own.
macro_rules! interpose {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $out:ty { |$next:ident| $body:expr })*) => {$(
        $(#[$attribute])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(super) unsafe extern "C" fn $name($($argument: $type),*) -> $out {
            // SAFETY: this function's type is the C library's type for this name.
            let $next = unsafe {
                static NEXT: $crate::symbols::next::Next = $crate::symbols::next::Next::new(
                    match ::std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name has no zero in it"),
                    },
                );
                ::std::mem::transmute::<*mut ::std::ffi::c_void, unsafe extern "C" fn($($type),*) -> $out>(NEXT.get())
            };
            // SAFETY: the caller fulfils the C library's requirements for this function.
            unsafe { $body }
        }
    )*};
}
pub(crate) use interpose;
