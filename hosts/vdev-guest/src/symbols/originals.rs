//! Defines the functions that interpose the C library's.

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
                static NEXT: ::telpher_interpose::preload::Original = ::telpher_interpose::preload::Original::new(
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
