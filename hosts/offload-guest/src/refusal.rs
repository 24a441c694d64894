//! Processes whose calls stay with the CPU.
#![allow(unsafe_code, reason = "asks the dynamic linker whether a sanitizer is loaded")]

use crate::callers;
use std::ffi::CStr;
use std::path::Path;

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
