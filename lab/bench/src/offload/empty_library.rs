//! A shared library without any content, whose loading is the least that a preloaded library can cost.
//!
//! ```text
//! 0     the file's header
//! 64    three program headers: everything is loaded; the dynamic section; the stack is not executable
//! 232   the dynamic section: where symbols and strings are
//! 312   one symbol, which means none
//! 336   one string, which is empty
//! ```
//!
//! Source: System V ABI, edition 4.1, chapters 4 and 5, and its supplement for AMD64.

const HEADER: u64 = 64;
const PROGRAM_HEADER: u64 = 56;
const PROGRAM_HEADERS: u16 = 3;
const DYNAMIC: u64 = HEADER + PROGRAM_HEADER * PROGRAM_HEADERS as u64;
const DYNAMIC_ENTRIES: u64 = 5;
const SYMBOLS: u64 = DYNAMIC + DYNAMIC_ENTRIES * 16;
const SYMBOL: u64 = 24;
const STRINGS: u64 = SYMBOLS + SYMBOL;
const END: u64 = STRINGS + 1;

/// Returns the library's file.
pub(super) fn bytes() -> Vec<u8> {
    let mut file = Vec::new();
    // 64 bits, little-endian, version 1.
    file.extend(*b"\x7fELF\x02\x01\x01");
    file.extend([0; 9]);
    // A shared object for x86-64, version 1.
    file.extend([3_u16, 62].map(u16::to_le_bytes).concat());
    file.extend(1_u32.to_le_bytes());
    // No entry; the program headers follow; no sections.
    file.extend([0, HEADER, 0].map(u64::to_le_bytes).concat());
    file.extend(0_u32.to_le_bytes());
    file.extend([64, 56, PROGRAM_HEADERS, 64, 0, 0].map(u16::to_le_bytes).concat());
    let (read_write, load, dynamic, stack) = (6, 1, 2, 0x6474_e551_u32);
    for (kind, start, len, alignment) in
        [(load, 0, END, 4096), (dynamic, DYNAMIC, DYNAMIC_ENTRIES * 16, 8), (stack, 0, 0, 16)]
    {
        file.extend([kind, read_write].map(u32::to_le_bytes).concat());
        file.extend([start, start, start, len, len, alignment].map(u64::to_le_bytes).concat());
    }
    // DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_NULL.
    for (tag, value) in [(5, STRINGS), (6, SYMBOLS), (10, 1), (11, SYMBOL), (0, 0)] {
        file.extend([tag, value].map(u64::to_le_bytes).concat());
    }
    file.resize(usize::try_from(END).unwrap_or_default(), 0);
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;
    use std::process::Command;

    #[test]
    fn the_dynamic_linker_loads_it_without_a_message() {
        let folder = Folder::new().unwrap();
        let path = folder.file("empty.so");
        std::fs::write(&path, bytes()).unwrap();
        let output = Command::new("cat").arg("/proc/self/maps").env("LD_PRELOAD", &path).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).contains("/empty.so"), "the file is mapped");
    }
}
