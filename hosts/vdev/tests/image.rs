//! The guest library as the dynamic linker sees it: the symbols that it defines, and those that it needs.

use std::collections::BTreeSet;
use telpher_launch::libraries::{TIER, VDEV};

/// Dynamic symbols of a shared object: the defined ones, and those needed from other objects.
#[derive(Debug, Default)]
struct Symbols {
    defined: BTreeSet<String>,
    needed: BTreeSet<String>,
}

fn number(bytes: &[u8], at: usize, len: usize) -> usize {
    bytes[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

fn text(bytes: &[u8], at: usize) -> String {
    let end = bytes[at..].iter().position(|byte| *byte == 0).unwrap();
    String::from_utf8(bytes[at..at + end].to_vec()).unwrap()
}

/// Reads the section of dynamic symbols. Source: System V ABI, ELF-64 object file format.
fn symbols(object: &[u8]) -> Symbols {
    const DYNAMIC_SYMBOLS: usize = 11;
    assert_eq!(&object[..4], b"\x7fELF");
    let (sections, size, count) = (number(object, 40, 8), number(object, 58, 2), number(object, 60, 2));
    let section = |index: usize| sections + index * size;
    let table =
        (0..count).map(section).find(|at| number(object, at + 4, 4) == DYNAMIC_SYMBOLS).expect("a dynamic object");
    let strings = number(object, section(number(object, table + 40, 4)) + 24, 8);
    let (begin, len) = (number(object, table + 24, 8), number(object, table + 32, 8));
    let mut found = Symbols::default();
    for symbol in (begin..begin + len).step_by(24).skip(1) {
        let name = text(object, strings + number(object, symbol, 4));
        let is_defined = number(object, symbol + 6, 2) != 0;
        if is_defined {
            found.defined.insert(name)
        } else {
            found.needed.insert(name)
        };
    }
    found
}

/// The contents of a shared object that this process has loaded.
fn loaded(name: &str) -> Vec<u8> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name} is loaded"));
    std::fs::read(&line[line.find('/').unwrap()..]).unwrap()
}

#[test]
fn every_defined_symbol_interposes_one_of_the_c_library() {
    let libc = symbols(&loaded("libc.so.6")).defined;
    let ours = symbols(&VDEV.bytes()).defined;
    let strangers: Vec<_> = ours.difference(&libc).collect();
    // Former symbols of the C library, kept for programs linked against older versions; the present symbol table does
    // not list them.
    let former = ["__lxstat", "__xstat", "__fxstat", "__fxstatat", "__xmknod", "__xmknodat", "__lxstat64", "__xstat64"];
    // Symbols since glibc 2.39.
    let later = ["pidfd_spawn", "pidfd_spawnp"];
    let known = |name: &&String| former.contains(&name.as_str()) || later.contains(&name.as_str());
    let strangers: Vec<_> = strangers.into_iter().filter(|name| !known(name)).collect();
    // Programs detect the guest by the first symbol; the library of `telpher offload` calls the second.
    assert_eq!(strangers, ["telpher_emulates", "telpher_share_signals"]);
    for name in [
        "open",
        "mmap",
        "munmap",
        "sigaction",
        "write",
        "close",
        "__register_atfork",
        "execve",
        "posix_spawn",
        "system",
    ] {
        assert!(ours.contains(name), "{name}");
    }
}

/// A program's own memory functions may submit the copy to the very device that is being emulated. In the library of
/// `telpher tier run` they may wait for the page that it is moving.
#[test]
fn it_needs_no_memory_function_that_a_program_may_define() {
    let needed = symbols(&VDEV.bytes()).needed;
    assert!(needed.contains("dlsym"), "the table is read: {needed:?}");
    for name in ["memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen", "calloc", "mmap64", "sigaction"] {
        assert!(!needed.contains(name), "{name}");
    }
    let needed = symbols(&TIER.bytes()).needed;
    assert!(needed.contains("dlsym"), "the table is read: {needed:?}");
    for name in ["memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen"] {
        assert!(!needed.contains(name), "{name}");
    }
}
