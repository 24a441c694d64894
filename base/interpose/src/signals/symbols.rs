//! The symbols for signal actions and masks.

/// Exports the C library's functions for signal actions and masks, so that the program sees what it has set while the
/// preloaded library's traps stay installed. `$before` is called first in each of them. Use it once, in a module that
/// allows unsafe code. In a library that has [joined](crate::join) another one they call the next library's.
///
/// In tests they are ordinary functions: the test program keeps the C library's own.
#[macro_export]
macro_rules! signal_symbols {
    ($before:path) => {
        type Int = ::std::ffi::c_int;
        type Set = ::libc::sigset_t;
        type Record = ::libc::sigaction;

        $crate::signal_symbols! { @each $before;
            fn sigaction(signal: Int, new: *const Record, old: *mut Record) -> Int: sigaction;
            fn __sigaction(signal: Int, new: *const Record, old: *mut Record) -> Int: sigaction;
            fn signal(signal: Int, handler: usize) -> usize: signal;
            fn bsd_signal(signal: Int, handler: usize) -> usize: signal;
            fn ssignal(signal: Int, handler: usize) -> usize: signal;
            fn sysv_signal(signal: Int, handler: usize) -> usize: sysv_signal;
            fn __sysv_signal(signal: Int, handler: usize) -> usize: sysv_signal;
            fn sigset(signal: Int, handler: usize) -> usize: sigset;
            fn sighold(signal: Int) -> Int: sighold;
            fn sigrelse(signal: Int) -> Int: sigrelse;
            fn sigignore(signal: Int) -> Int: sigignore;
            fn siginterrupt(signal: Int, interrupts: Int) -> Int: siginterrupt;
            fn sigprocmask(how: Int, set: *const Set, old: *mut Set) -> Int: sigprocmask;
            fn pthread_sigmask(how: Int, set: *const Set, old: *mut Set) -> Int: pthread_sigmask;
            fn sigblock(mask: Int) -> Int: sigblock;
            fn sigsetmask(mask: Int) -> Int: sigsetmask;
            fn siggetmask() -> Int: siggetmask;
            fn sigpending(set: *mut Set) -> Int: sigpending;
        }
    };
    (@each $before:path; $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $out:ty: $to:ident;)*) => {$(
        /// Replaces the C library's function of this name.
        ///
        /// # Safety
        /// As the function of this name.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $name($($argument: $type),*) -> $out {
            $before();
            if $crate::is_joined() {
                let next = $crate::next_function!($name);
                // SAFETY: this function's type is the C library's type for this name; the caller fulfils its
                // requirements.
                return unsafe {
                    ::std::mem::transmute::<*mut ::std::ffi::c_void, unsafe extern "C" fn($($type),*) -> $out>(next)(
                        $($argument),*
                    )
                };
            }
            // SAFETY: forwarded.
            #[allow(unused_unsafe, reason = "some of them are safe")]
            unsafe { $crate::signals::functions::$to($($argument),*) }
        }
    )*};
}
