//! What every preloaded library needs: its start and end, its settings, its heap, a lock, and the functions that it
//! interposes.
//!
//! A preloaded library runs before the program's `main` and in the middle of the program's calls. So it allocates from
//! its own [`Heap`], and its locks defer the program's signal handlers.

mod environment;
mod heap;
mod lock;
mod original;
mod own_memory;

pub use environment::variable;
pub use heap::{Heap, KernelPages, PageSource};
pub use lock::{Held, Lock};
pub use original::Original;
pub use own_memory::{own_compare, own_fill, own_length, own_move};

/// Makes the dynamic linker call one function when it loads the library and one when the program ends. Use it once, in
/// a module that allows unsafe code. Under test neither is called.
///
/// ```
/// extern "C" fn begin() {}
/// extern "C" fn end() {}
/// telpher_interpose::start_and_end!(begin, end);
/// ```
#[macro_export]
macro_rules! start_and_end {
    ($begin:path, $end:path) => {
        #[cfg(not(test))]
        #[used]
        #[unsafe(link_section = ".init_array")]
        static BEGIN: extern "C" fn() = $begin;

        #[cfg(not(test))]
        #[used]
        #[unsafe(link_section = ".fini_array")]
        static END: extern "C" fn() = $end;
    };
}
