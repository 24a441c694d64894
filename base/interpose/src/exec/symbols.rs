//! The names of the C library's functions, for a preloaded library to define.

/// Defines replacements of the C library's functions that execute programs. Use it once, in a preloaded library, in a
/// module that allows unsafe code. Under test the functions do not have the C library's names.
#[macro_export]
macro_rules! exec_symbols {
    () => {
        type Text = *const ::std::ffi::c_char;
        type Texts = *const *const ::std::ffi::c_char;
        type Int = ::std::ffi::c_int;
        type Any = *const ::std::ffi::c_void;

        $crate::exec_symbols! { @each
            fn execve(path: Text, arguments: Texts, environment: Texts) -> Int: execute;
            fn execvpe(file: Text, arguments: Texts, environment: Texts) -> Int: execute_search;
            fn execv(path: Text, arguments: Texts) -> Int: exec_list;
            fn execvp(file: Text, arguments: Texts) -> Int: exec_list_search;
            fn execveat(directory: Int, path: Text, arguments: Texts, environment: Texts, flags: Int) -> Int: execute_at;
            fn fexecve(descriptor: Int, arguments: Texts, environment: Texts) -> Int: execute_descriptor;
            fn posix_spawn(process: *mut Int, path: Text, actions: Any, attributes: Any, arguments: Texts,
                environment: Texts) -> Int: spawn;
            fn posix_spawnp(process: *mut Int, file: Text, actions: Any, attributes: Any, arguments: Texts,
                environment: Texts) -> Int: spawn_search;
            fn pidfd_spawn(descriptor: *mut Int, path: Text, actions: Any, attributes: Any, arguments: Texts,
                environment: Texts) -> Int: spawn_descriptor;
            fn pidfd_spawnp(descriptor: *mut Int, file: Text, actions: Any, attributes: Any, arguments: Texts,
                environment: Texts) -> Int: spawn_search_descriptor;
            fn system(command: Text) -> Int: system;
            fn popen(command: Text, mode: Text) -> *mut ::libc::FILE: popen;
        }
        $crate::exec_symbols! { @list execl: exec_list }
        $crate::exec_symbols! { @list execlp: exec_list_search }
        $crate::exec_symbols! { @list execle: exec_list_environment }
    };
    (@each $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $out:ty: $to:ident;)*) => {$(
        /// Replaces the C library's function of this name; restores all values in the environment.
        ///
        /// # Safety
        /// As the function of this name.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $name($($argument: $type),*) -> $out {
            // SAFETY: forwarded.
            unsafe { $crate::exec::$to($($argument),*) }
        }
    )*};
    // The first six arguments of such a function are in registers. With the registers pushed below the others, they
    // form an array. Source: System V ABI, AMD64 supplement, 3.2.3 and 3.5.7.
    (@list $name:ident: $to:ident) => {
        /// Replaces the C library's function of this name; restores all values in the environment.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            ::std::arch::naked_asm!(
                // The return address is in the way.
                "pop r10",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push r10",
                "call {to}",
                // The call has failed: remove what is below the caller's arguments, and restore the return address.
                "pop r10",
                "add rsp, 40",
                "push r10",
                "ret",
                to = sym $crate::exec::$to,
            )
        }
    };
}
