//! The runtime of AddressSanitizer, where the program has it: what of it a preloaded library must know.
#![allow(unsafe_code, reason = "asks the dynamic linker for functions of the runtime, and calls them")]

use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::ops::Range;

/// A function of the runtime.
fn function(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Where the runtime is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linked {
    /// In a shared library.
    Dynamically,
    /// In the program, which exports none of its functions.
    Statically,
}

/// The runtime in this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Runtime {
    /// Where it is.
    pub linked: Linked,
    /// The memory that it uses in whichever thread calls a function of the C library's that it stands in front of: the shadow memory, in which it
    /// keeps what it knows of all other memory (terabytes of addresses, of which little is used), and its own variables, with the
    /// rest of the object that they are in.
    pub memory: [Range<u64>; 2],
}

/// Where the shadow begins, and for how many bytes one byte of it stands, as a power of two. Source: LLVM compiler-rt/lib/asan/asan_mapping.h, Linux
/// on x86-64.
const USUAL: (u32, u64) = (3, 0x7fff_8000);

/// The runtime, if the program has one. `mapped` tells whether the program has memory that it may read and write, from before `main`, at an address.
#[must_use]
pub fn runtime(mapped: impl Fn(u64) -> bool) -> Option<Runtime> {
    type Mapping = unsafe extern "C" fn(*mut usize, *mut usize);
    if let Some(found) = function(c"__asan_get_shadow_mapping") {
        let (mut scale, mut offset) = (0, 0);
        // SAFETY: the function has this type (LLVM compiler-rt/lib/asan/asan_debugging.cpp), and writes two numbers.
        unsafe { transmute::<*mut c_void, Mapping>(found)(&raw mut scale, &raw mut offset) };
        let shadow = shadow(u32::try_from(scale).ok()?, u64::try_from(offset).ok()?)?;
        let memory = [shadow, object_of(found.addr() as u64).unwrap_or(0..0)];
        return Some(Runtime { linked: Linked::Dynamically, memory });
    }
    // It is known by its shadow, which begins and ends where nothing else is.
    let shadow = shadow(USUAL.0, USUAL.1)?;
    let found = mapped(shadow.start) && mapped(shadow.end - 1);
    // SAFETY: asks for a number: the address of the program's headers.
    let program = unsafe { libc::getauxval(libc::AT_PHDR) };
    let memory = [shadow, object_of(program).unwrap_or(0..0)];
    found.then_some(Runtime { linked: Linked::Statically, memory })
}

/// One byte for so many of all that a program can have, as a power of two, from an address on.
fn shadow(scale: u32, offset: u64) -> Option<Range<u64>> {
    /// Behind the last address of a program. Source: Linux Documentation/arch/x86/x86_64/mm.rst.
    const END: u64 = 1 << 47;
    Some(offset..END.checked_shr(scale)?.checked_add(offset)?)
}

/// From the first to the last page of the object that an address is in.
fn object_of(address: u64) -> Option<Range<u64>> {
    const PAGE: u64 = 4096;
    struct Search {
        address: u64,
        found: Option<Range<u64>>,
    }
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> i32 {
        // SAFETY: the dynamic linker's structure, whose headers live while the object is loaded; the search is the caller's below.
        let (base, headers, search) = unsafe {
            let headers = std::slice::from_raw_parts((*info).dlpi_phdr, (*info).dlpi_phnum.into());
            ((*info).dlpi_addr, headers, &mut *search.cast::<Search>())
        };
        let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(|header| {
            let start = base.wrapping_add(header.p_vaddr);
            start / PAGE * PAGE..start.wrapping_add(header.p_memsz).div_ceil(PAGE) * PAGE
        });
        let whole = loaded.reduce(|all, part| all.start.min(part.start)..all.end.max(part.end));
        search.found = whole.filter(|whole| whole.contains(&search.address));
        i32::from(search.found.is_some())
    }
    let mut search = Search { address, found: None };
    // SAFETY: the function has the type that is asked for, and gets the search, which lives across the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

/// What this thread allocates from now on is no leak to the runtime: it does not look into memory in which a preloaded library keeps its pointers.
pub fn allow_leaks_of_this_thread() {
    call(c"__lsan_disable");
}

/// Calls `act`, in which what this thread allocates is no leak to the runtime.
pub fn allow_leaks<R>(act: impl FnOnce() -> R) -> R {
    call(c"__lsan_disable");
    let result = act();
    call(c"__lsan_enable");
    result
}

/// Source: LLVM compiler-rt/include/sanitizer/lsan_interface.h.
fn call(name: &CStr) {
    if let Some(found) = function(name) {
        // SAFETY: the function has this type, and counts for this thread.
        unsafe { transmute::<*mut c_void, unsafe extern "C" fn()>(found)() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shadow_is_where_the_runtime_has_it() {
        assert_eq!(shadow(USUAL.0, USUAL.1), Some(0x7fff_8000..0x1000_7fff_8000));
        assert_eq!((shadow(64, 0), shadow(0, u64::MAX)), (None, None));
        assert_eq!(runtime(|_| false), None, "this program has no such runtime");
        assert_eq!(runtime(|address| address == 0x7fff_8000), None);
        let by_its_shadow = runtime(|_| true).unwrap();
        assert_eq!(by_its_shadow.linked, Linked::Statically);
        static VARIABLE: u8 = 1;
        assert!(by_its_shadow.memory[1].contains(&((&raw const VARIABLE).addr() as u64)));
    }

    #[test]
    fn an_object_has_its_code_and_its_variables() {
        static VARIABLE: u8 = 1;
        let here = object_of(an_object_has_its_code_and_its_variables as fn() as usize as u64).unwrap();
        assert!(here.contains(&((&raw const VARIABLE).addr() as u64)), "{here:x?}");
        assert_eq!(object_of(0), None);
    }
}
