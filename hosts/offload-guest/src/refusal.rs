//! Processes whose calls stay with the CPU.
#![allow(unsafe_code, reason = "asks the dynamic linker whether a sanitizer is loaded")]

use std::ffi::CStr;
use std::path::Path;

/// Why the calls of a process stay with the CPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The program copies little, and is started so often that opening a device would cost more than it gains.
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
pub(crate) fn of_this_process() -> Option<Refusal> {
    for (function, name) in SANITIZERS {
        // SAFETY: the name is a string.
        if !unsafe { libc::dlsym(libc::RTLD_DEFAULT, function.as_ptr()) }.is_null() {
            let why = format!("it is built with {name}, which checks the arguments of these functions itself");
            return Some(Refusal::Told(why));
        }
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    of(&maps, &std::fs::read_link("/proc/self/exe").unwrap_or_default())
}

/// Returns why the calls of a process with these mappings, which runs this file, stay with the CPU.
fn of(maps: &str, program: &Path) -> Option<Refusal> {
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if HELPERS.contains(&name) {
        return Some(Refusal::Helper);
    }
    if maps.contains("/vgpreload_") {
        return Some(Refusal::Told("valgrind replaces these functions itself".into()));
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
        let why = |maps: &str, program: &str| of(maps, Path::new(program));
        assert_eq!(why("", "/usr/bin/dash"), Some(Refusal::Helper));
        assert_eq!(why("", "/usr/bin/redis-server"), None);
        let valgrind = why("4a000-4b000 r-xp 0 0 0 /usr/libexec/valgrind/vgpreload_core-amd64-linux.so\n", "/bin/ls");
        assert!(matches!(valgrind, Some(Refusal::Told(why)) if why.contains("valgrind")));
        assert!(matches!(why("", "/usr/bin/qemu-system-x86_64"), Some(Refusal::Told(why)) if why.contains("qemu")));
    }
}
