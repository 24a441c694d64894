//! The parts of AddressSanitizer's runtime that a preloaded library must know, if the program has it.
#![allow(unsafe_code, reason = "looks up functions of the runtime, and calls them")]

use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::ops::Range;

/// Looks up a function of the runtime.
fn function(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// How the runtime is linked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linked {
    /// In a shared library.
    Dynamically,
    /// Into the program, which exports none of its functions.
    Statically,
}

/// The runtime in this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Runtime {
    /// How it is linked.
    pub linked: Linked,
    /// The memory that the runtime uses in every thread that calls an intercepted function of the C library. The first
    /// range is the shadow memory, which describes all other memory (terabytes of addresses, of which little is used).
    /// The second range contains its own variables, with the rest of the object they are in.
    pub memory: [Range<u64>; 2],
}

/// The default shadow: its scale (one byte describes 2^scale bytes) and its start. Source: LLVM
/// compiler-rt/lib/asan/asan_mapping.h, Linux on x86-64.
const USUAL: (u32, u64) = (3, 0x7fff_8000);

/// Returns the runtime, if the program has one. `mapped` returns whether the program has had readable and writable
/// memory at an address since before `main`.
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
    // A static runtime is recognised by its shadow, which begins and ends at addresses that nothing else uses.
    let shadow = shadow(USUAL.0, USUAL.1)?;
    let found = mapped(shadow.start) && mapped(shadow.end - 1);
    // SAFETY: queries a number, the address of the program's headers.
    let program = unsafe { libc::getauxval(libc::AT_PHDR) };
    let memory = [shadow, object_of(program).unwrap_or(0..0)];
    found.then_some(Runtime { linked: Linked::Statically, memory })
}

/// Returns the shadow of a program's whole address space, from its scale (a power of two) and its start.
fn shadow(scale: u32, offset: u64) -> Option<Range<u64>> {
    /// The end of a program's address space. Source: Linux Documentation/arch/x86/x86_64/mm.rst.
    const END: u64 = 1 << 47;
    Some(offset..END.checked_shr(scale)?.checked_add(offset)?)
}

/// Returns the range from the first to the last page of the object that contains an address.
fn object_of(address: u64) -> Option<Range<u64>> {
    const PAGE: u64 = 4096;
    struct Search {
        address: u64,
        found: Option<Range<u64>>,
    }
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> i32 {
        // SAFETY: the dynamic linker's structure, whose headers live as long as the object is loaded; `search` is the
        // caller's, below.
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
    // SAFETY: the function has the required type, and gets the search, which lives across the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

/// Excludes later allocations of this thread from leak detection: the runtime does not scan memory in which a preloaded
/// library keeps its pointers.
pub fn allow_leaks_of_this_thread() {
    call(c"__lsan_disable");
}

/// Calls `act`, whose allocations on this thread are excluded from leak detection.
pub fn allow_leaks<R>(act: impl FnOnce() -> R) -> R {
    call(c"__lsan_disable");
    let result = act();
    call(c"__lsan_enable");
    result
}

/// Calls a function of the runtime without arguments. Source: LLVM compiler-rt/include/sanitizer/lsan_interface.h.
fn call(name: &CStr) {
    if let Some(found) = function(name) {
        // SAFETY: the function has this type, and affects this thread.
        unsafe { transmute::<*mut c_void, unsafe extern "C" fn()>(found)() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shadow_is_at_the_runtimes_address() {
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
    fn an_object_contains_its_code_and_variables() {
        static VARIABLE: u8 = 1;
        let here = object_of(an_object_contains_its_code_and_variables as fn() as usize as u64).unwrap();
        assert!(here.contains(&((&raw const VARIABLE).addr() as u64)), "{here:x?}");
        assert_eq!(object_of(0), None);
    }
}
