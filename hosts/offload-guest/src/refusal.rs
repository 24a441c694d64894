//! Processes whose calls stay with the CPU.
#![allow(unsafe_code, reason = "asks the dynamic linker which libraries are loaded, and in which order")]

use crate::callers;
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr;

/// Why the calls of a process stay with the CPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The program copies little, and is started so often that opening a device would cost more than it gains; or the
    /// user has named it.
    Helper,
    /// A reason that the user should know.
    Told(String),
}

/// Shells, and programs that scripts start by the hundred.
const HELPERS: [&str; 16] = [
    "sh", "dash", "bash", "zsh", "ksh", "busybox", "env", "timeout", "basename", "dirname", "true", "false", "test",
    "cat", "sed", "sleep",
];

/// Functions by which a sanitizer's runtime is recognised, and its name. It replaces the same functions to check their
/// arguments.
const SANITIZERS: [(&CStr, &str); 3] =
    [(c"__asan_init", "AddressSanitizer"), (c"__tsan_init", "ThreadSanitizer"), (c"__msan_init", "MemorySanitizer")];

/// Programs that give their memory to devices or other machines, so that a copy may touch registers of hardware.
const EMULATORS: [&str; 2] = ["qemu-system-", "cloud-hypervisor"];

/// Returns why the calls of this process stay with the CPU, if they do.
pub(crate) fn of_this_process(deny: &[String]) -> Option<Refusal> {
    let program = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    of_program(&program, deny).or_else(|| of_checkers().map(Refusal::Told))
}

/// Returns whether this process has rights that its user does not have (setuid, file capabilities): then the user's
/// environment must not choose what it does. Such a process loads this library only if its program is linked with it.
pub(crate) fn has_foreign_rights() -> bool {
    // SAFETY: reads a value that the kernel passed to the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Found by name in the first copy of this library: a program linked with one may be started with another one
/// preloaded.
#[cfg_attr(not(test), unsafe(export_name = "telpher_offloads"))]
static MARK: u8 = 1;

/// Where this library is among those of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LoadPosition {
    /// The program's calls come here.
    First,
    /// Another copy of this library is in front.
    BehindCopy,
    /// The C library is in front, because this library was loaded while the program ran, or linked behind it.
    BehindCLibrary,
}

/// Returns where this library is among those of the process.
pub(crate) fn place() -> LoadPosition {
    if is_behind_c_library() {
        return LoadPosition::BehindCLibrary;
    }
    // SAFETY: the name is a string.
    let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"telpher_offloads".as_ptr()) };
    if object_of(first) == object_of(here()) { LoadPosition::First } else { LoadPosition::BehindCopy }
}

/// Returns whether the C library comes before this library in the order in which the dynamic linker searches.
fn is_behind_c_library() -> bool {
    let mut search = Search { own: object_of(here()), is_behind: false };
    // SAFETY: the function gets this structure, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.is_behind
}

/// What [`look`] searches for.
struct Search {
    /// The start of this library.
    own: *const c_void,
    is_behind: bool,
}

/// Looks at one object; returns 1 after the first of the two libraries.
unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _: libc::size_t, search: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker's description, and the structure of `is_behind_c_library`.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<Search>()) };
    if object.dlpi_addr == search.own.addr() as u64 {
        return 1;
    }
    // SAFETY: a string, or null.
    let name = if object.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(object.dlpi_name) } };
    search.is_behind = name.to_bytes().ends_with(b"/libc.so.6");
    c_int::from(search.is_behind)
}

/// Returns an address in this library. (That of an exported name may be in another copy of it.)
fn here() -> *const c_void {
    look as *const c_void
}

/// Returns the start of the object that contains an address; null for none.
fn object_of(address: *const c_void) -> *const c_void {
    information(address).map_or(ptr::null(), |information| information.dli_fbase.cast_const())
}

/// Returns the path of this library's file.
pub(crate) fn own_path() -> Option<&'static Path> {
    use std::os::unix::ffi::OsStrExt;
    let name = information(here())?.dli_fname;
    // SAFETY: the dynamic linker's string, which stays as long as this library.
    let name = unsafe { name.as_ref().map(|name| CStr::from_ptr(name)) }?;
    Some(Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())))
}

/// Returns what the dynamic linker knows about the object that contains an address.
fn information(address: *const c_void) -> Option<libc::Dl_info> {
    let mut found = MaybeUninit::zeroed();
    // SAFETY: writes to a structure that lives; any address may be asked about. An all-zero structure is valid.
    unsafe { (libc::dladdr(address, found.as_mut_ptr()) != 0).then(|| found.assume_init()) }
}

/// Returns which tool of this process checks the arguments of memory functions, and so replaces them itself.
pub(crate) fn of_checkers() -> Option<String> {
    for (function, name) in SANITIZERS {
        // SAFETY: the name is a string.
        if !unsafe { libc::dlsym(libc::RTLD_DEFAULT, function.as_ptr()) }.is_null() {
            return Some(format!("it is built with {name}, which checks the arguments of these functions itself"));
        }
    }
    is_valgrind(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default())
        .then(|| "valgrind replaces these functions itself".into())
}

/// Returns whether a process with these mappings runs under valgrind.
fn is_valgrind(maps: &str) -> bool {
    maps.contains("/vgpreload_")
}

/// Returns why the calls of a process that runs this file stay with the CPU.
fn of_program(program: &Path, deny: &[String]) -> Option<Refusal> {
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if HELPERS.contains(&name) || callers::is_one_of(name.as_bytes(), deny) {
        return Some(Refusal::Helper);
    }
    if EMULATORS.iter().any(|emulator| name.starts_with(emulator)) {
        let why = format!("{name} maps memory of devices, which a device of its own must not copy");
        return Some(Refusal::Told(why));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shells_valgrind_and_emulators_stay_with_the_cpu() {
        let why = |program: &str| of_program(Path::new(program), &["my-program".into()]);
        assert_eq!(why("/usr/bin/dash"), Some(Refusal::Helper));
        assert_eq!(why("/opt/my-program"), Some(Refusal::Helper));
        assert_eq!(why("/usr/bin/redis-server"), None);
        assert!(matches!(why("/usr/bin/qemu-system-x86_64"), Some(Refusal::Told(why)) if why.contains("qemu")));
        assert!(is_valgrind("4a000-4b000 r-xp 0 0 0 /usr/libexec/valgrind/vgpreload_core-amd64-linux.so\n"));
    }
}
