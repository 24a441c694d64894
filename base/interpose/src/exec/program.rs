//! The kind of a program file: whether a library can be preloaded into it, and which library must be loaded before.
//!
//! Pure: it reads through a function from its caller, and allocates nothing. The host examines the program it starts,
//! the preloaded library each program that the program executes.

/// The reason why a preloaded library has no effect in a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// Statically linked: there is no dynamic linker.
    Static,
    /// A Go program: the library is loaded, but bypassed.
    Go,
    /// Built for another C library.
    OtherLibrary,
    /// A 32-bit program; the library is for 64-bit programs.
    ThirtyTwoBit,
    /// The dynamic linker ignores `LD_PRELOAD`: the set-user-ID bit.
    Setuid,
    /// The dynamic linker ignores `LD_PRELOAD`: the set-group-ID bit.
    Setgid,
    /// The dynamic linker ignores `LD_PRELOAD`: file capabilities.
    Capabilities,
}

impl Obstacle {
    /// Returns the reason as a verb phrase.
    #[must_use]
    pub fn phrase(self) -> &'static str {
        match self {
            Obstacle::Static => "is statically linked",
            Obstacle::Go => "is a Go program, which makes its system calls itself",
            Obstacle::OtherLibrary => "is linked to another C library than glibc",
            Obstacle::ThirtyTwoBit => "is a 32-bit program",
            Obstacle::Setuid => "gains rights when executed (setuid)",
            Obstacle::Setgid => "gains rights when executed (setgid)",
            Obstacle::Capabilities => "gains rights when executed (capabilities)",
        }
    }

    /// True if the program gains rights that its user does not have.
    #[must_use]
    pub fn gains_rights(self) -> bool {
        matches!(self, Obstacle::Setuid | Obstacle::Setgid | Obstacle::Capabilities)
    }
}

/// The longest name of a sanitizer runtime. Source: chosen; `libclang_rt.asan-x86_64.so` has 26 bytes.
const LONGEST: usize = 40;

/// The name of a library, as the program lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Name {
    fn new(name: &[u8]) -> Option<Self> {
        let mut bytes = [0; LONGEST];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Name { bytes, len: name.len() })
    }

    /// Returns its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// True for AddressSanitizer's runtime as a shared library, which refuses to run unless it is loaded first. Source:
/// LLVM compiler-rt/lib/asan/asan_linux.cpp, `IsDynamicRTName`.
#[must_use]
pub fn is_runtime(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let contains = |part: &[u8]| name.windows(part.len()).any(|window| window == part);
    contains(b"libasan.so") || contains(b"libclang_rt.asan")
}

/// The kind of a file, by its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A script; the range of its interpreter's path in the head that was read.
    Script {
        /// First byte.
        start: usize,
        /// Index after the last byte.
        end: usize,
    },
    /// An ELF file.
    Elf {
        /// The reason why nothing can be preloaded into it, if any.
        obstacle: Option<Obstacle>,
        /// The sanitizer runtime that must be loaded first.
        runtime: Option<Name>,
    },
    /// Neither, or unreadable.
    Other,
}

/// Bytes of a file's head. Source: Linux `include/uapi/linux/binfmts.h`, BINPRM_BUF_SIZE.
pub const HEAD_BYTES: usize = 256;

/// Reads bytes at an offset; returns how many there were.
pub type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> usize;

/// Returns a little-endian number of `N` bytes; 0 past the end.
fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut whole = [0; 8];
    if let Some(part) = bytes.get(at..at + N) {
        whole[..N].copy_from_slice(part);
    }
    u64::from_le_bytes(whole)
}

/// Examines a file. `head` receives its first bytes, which contain an interpreter's path.
pub fn examine(read: Read<'_>, head: &mut [u8; HEAD_BYTES]) -> Form {
    let len = read(0, head).min(HEAD_BYTES);
    let head = &head[..len];
    if head.starts_with(b"#!") {
        return interpreter(head).unwrap_or(Form::Other);
    }
    if len < 64 || !head.starts_with(b"\x7fELF") {
        return Form::Other;
    }
    elf(read, head)
}

/// Returns the interpreter in a script's first line.
fn interpreter(head: &[u8]) -> Option<Form> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let is_end = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\0');
    let start = 2 + head[2..].iter().position(|byte| !is_blank(byte))?;
    let end = start + head[start..].iter().position(is_end)?;
    (end > start).then_some(Form::Script { start, end })
}

/// The relevant facts from the program headers.
#[derive(Default)]
struct Headers {
    has_interpreter: bool,
    is_musl: bool,
    is_go: bool,
    /// Offset and bytes of the dynamic section.
    dynamic: Option<(u64, u64)>,
}

/// One program header.
struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    bytes: u64,
}

/// Bytes of a program header. Source: ELF-64 object file format, version 1.5.
const HEADER_BYTES: usize = 56;
/// The most program headers that are examined. Source: Linux `fs/binfmt_elf.c`, load_elf_phdrs(): 64 KiB of them.
const MOST_HEADERS: u64 = 65536 / HEADER_BYTES as u64;

/// Calls `visit` with each program header until it returns false.
fn each_segment(read: Read<'_>, head: &[u8], visit: &mut dyn FnMut(&Segment) -> bool) {
    /// Headers read at once.
    const TOGETHER: usize = 4;
    let (at, count) = (number::<8>(head, 32), number::<2>(head, 56).min(MOST_HEADERS));
    let mut buffer = [0; HEADER_BYTES * TOGETHER];
    let mut done = 0;
    while done < count {
        let offset = at.saturating_add(done * HEADER_BYTES as u64);
        let len = read(offset, &mut buffer).min(buffer.len());
        let headers = buffer[..len].chunks_exact(HEADER_BYTES);
        if headers.len() == 0 {
            return;
        }
        for header in headers {
            let segment = Segment {
                kind: number::<4>(header, 0),
                offset: number::<8>(header, 8),
                address: number::<8>(header, 16),
                bytes: number::<8>(header, 32),
            };
            done += 1;
            if done > count || !visit(&segment) {
                return;
            }
        }
    }
}

/// Examines an ELF file. Source: ELF-64 object file format, version 1.5.
fn elf(read: Read<'_>, head: &[u8]) -> Form {
    const CLASS_64: u8 = 2;
    const X86_64: u64 = 62;
    const I386: u64 = 3;
    let (class, machine, size) = (head[4], number::<2>(head, 18), number::<2>(head, 54));
    if machine == I386 || (machine == X86_64 && class != CLASS_64) {
        return Form::Elf { obstacle: Some(Obstacle::ThirtyTwoBit), runtime: None };
    }
    if machine != X86_64 || size != HEADER_BYTES as u64 {
        return Form::Other;
    }
    let headers = headers(read, head);
    let dynamic = headers.dynamic.map(|dynamic| needed(read, head, dynamic)).unwrap_or_default();
    let obstacle = if !headers.has_interpreter {
        // The dynamic linker itself, run as a program, has a name of its own and does load libraries.
        (!dynamic.has_name).then_some(Obstacle::Static)
    } else if headers.is_go {
        Some(Obstacle::Go)
    } else if headers.is_musl {
        Some(Obstacle::OtherLibrary)
    } else {
        None
    };
    Form::Elf { obstacle, runtime: dynamic.runtime.filter(|_| headers.has_interpreter) }
}

fn headers(read: Read<'_>, head: &[u8]) -> Headers {
    const DYNAMIC: u64 = 2;
    const INTERPRETER: u64 = 3;
    const NOTE: u64 = 4;
    let mut found = Headers::default();
    each_segment(read, head, &mut |segment| {
        let mut content = [0; 64];
        let read_bytes = usize::try_from(segment.bytes).unwrap_or(usize::MAX).min(content.len());
        match segment.kind {
            DYNAMIC => found.dynamic = Some((segment.offset, segment.bytes)),
            INTERPRETER => {
                let len = read(segment.offset, &mut content[..read_bytes]).min(read_bytes);
                found.has_interpreter = true;
                found.is_musl = content[..len].windows(7).any(|part| part == b"ld-musl");
            }
            NOTE => {
                // A note of length 4, any description, type 4, of "Go": its build identifier.
                let len = read(segment.offset, &mut content[..read_bytes]).min(read_bytes);
                let note = &content[..len];
                found.is_go |= number::<4>(note, 0) == 4 && note.get(12..16) == Some(b"Go\0\0");
            }
            _ => {}
        }
        true
    });
    found
}

/// The relevant facts from the dynamic section.
#[derive(Default)]
struct Dynamic {
    has_name: bool,
    runtime: Option<Name>,
}

/// The most entries of a dynamic section that are examined. Source: chosen; large programs have some hundred.
const MOST_ENTRIES: u64 = 4096;
/// Bytes of an entry. Source: ELF-64 object file format, version 1.5.
const ENTRY_BYTES: usize = 16;

/// Calls `visit` with each entry's tag and value until it returns false.
fn each_entry(read: Read<'_>, (offset, bytes): (u64, u64), visit: &mut dyn FnMut(u64, u64) -> bool) {
    let mut buffer = [0; ENTRY_BYTES * 16];
    let count = (bytes / ENTRY_BYTES as u64).min(MOST_ENTRIES);
    let mut done = 0;
    while done < count {
        let len = read(offset.saturating_add(done * ENTRY_BYTES as u64), &mut buffer).min(buffer.len());
        let entries = buffer[..len].chunks_exact(ENTRY_BYTES);
        if entries.len() == 0 {
            return;
        }
        for entry in entries {
            done += 1;
            let tag = number::<8>(entry, 0);
            if tag == 0 || done > count || !visit(tag, number::<8>(entry, 8)) {
                return;
            }
        }
    }
}

/// Returns the facts about the libraries that a program needs.
fn needed(read: Read<'_>, head: &[u8], dynamic: (u64, u64)) -> Dynamic {
    const LOAD: u64 = 1;
    const NEEDED: u64 = 1;
    const STRINGS: u64 = 5;
    const OWN_NAME: u64 = 14;
    let mut found = Dynamic::default();
    let mut address = None;
    each_entry(read, dynamic, &mut |tag, value| {
        found.has_name |= tag == OWN_NAME;
        address = if tag == STRINGS { Some(value) } else { address };
        true
    });
    let Some(address) = address else { return found };
    let mut strings = None;
    each_segment(read, head, &mut |segment| {
        let inside = address.checked_sub(segment.address).filter(|inside| *inside < segment.bytes);
        if let (LOAD, Some(inside)) = (segment.kind, inside) {
            strings = segment.offset.checked_add(inside);
        }
        strings.is_none()
    });
    let Some(strings) = strings else { return found };
    each_entry(read, dynamic, &mut |tag, value| {
        if tag == NEEDED {
            let mut name = [0; LONGEST + 1];
            let len = read(strings.saturating_add(value), &mut name).min(name.len());
            let end = name[..len].iter().position(|byte| *byte == 0);
            found.runtime = end.map(|end| &name[..end]).filter(|name| is_runtime(name)).and_then(Name::new);
        }
        found.runtime.is_none()
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn form(file: &[u8]) -> Form {
        let read = |offset: u64, into: &mut [u8]| {
            let rest = usize::try_from(offset).ok().and_then(|offset| file.get(offset..)).unwrap_or_default();
            let len = rest.len().min(into.len());
            into[..len].copy_from_slice(&rest[..len]);
            len
        };
        examine(&read, &mut [0; HEAD_BYTES])
    }

    /// Builds an ELF file with these program headers (kind, content), followed by their content.
    fn file(segments: &[(u32, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..5].copy_from_slice(b"\x7fELF\x02");
        (bytes[18], bytes[32], bytes[54]) = (62, 64, 56);
        bytes[56] = u8::try_from(segments.len()).unwrap();
        let mut at = 64 + 56 * segments.len() as u64;
        for (kind, content) in segments {
            let mut header = [0; 56];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&at.to_le_bytes());
            // Loaded such that a file offset equals its address.
            header[16..24].copy_from_slice(&at.to_le_bytes());
            header[32..40].copy_from_slice(&(content.len() as u64).to_le_bytes());
            bytes.extend(header);
            at += content.len() as u64;
        }
        bytes.extend(segments.iter().flat_map(|(_, content)| content.clone()));
        bytes
    }

    fn linked(interpreter: &[u8], needed: &[&str], own_name: bool) -> Vec<u8> {
        let mut strings = vec![0];
        let mut entries: Vec<(u64, u64)> = Vec::new();
        for name in needed {
            entries.push((1, strings.len() as u64));
            strings.extend(name.bytes().chain([0]));
        }
        if own_name {
            entries.push((14, 0));
        }
        let dynamic_bytes = 16 * (entries.len() + 2);
        // Three headers, the interpreter, the dynamic section, the strings.
        let at = 64 + 56 * 3 + interpreter.len() + dynamic_bytes;
        entries.extend([(5, at as u64), (0, 0)]);
        let dynamic = entries.iter().flat_map(|(tag, value)| [tag.to_le_bytes(), value.to_le_bytes()].concat());
        let kind = if interpreter.is_empty() { 0 } else { 3 };
        file(&[(kind, interpreter.to_vec()), (2, dynamic.collect()), (1, strings)])
    }

    const LOADER: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";

    #[test]
    fn the_sanitizer_runtime_of_a_program_is_found() {
        let runtime = |needed: &[&str]| match form(&linked(LOADER, needed, false)) {
            Form::Elf { obstacle: None, runtime } => {
                runtime.map(|name| String::from_utf8(name.as_bytes().to_vec()).unwrap())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(runtime(&["libc.so.6"]), None);
        assert_eq!(runtime(&["libasan.so.8", "libc.so.6"]).as_deref(), Some("libasan.so.8"));
        assert_eq!(runtime(&["libm.so.6", "libasan.so.6"]).as_deref(), Some("libasan.so.6"));
        let clang = "libclang_rt.asan-x86_64.so";
        assert_eq!(runtime(&[clang]).as_deref(), Some(clang));
        let many: Vec<String> = (0..50).map(|i| format!("lib{i}.so")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).chain(["libasan.so.8"]).collect();
        assert_eq!(runtime(&many).as_deref(), Some("libasan.so.8"));
    }

    #[test]
    fn obstacles_to_preloading_are_reported() {
        let obstacle = |file: &[u8]| match form(file) {
            Form::Elf { obstacle, .. } => obstacle,
            other => panic!("{other:?}"),
        };
        assert_eq!(obstacle(&linked(LOADER, &["libc.so.6"], false)), None);
        assert_eq!(obstacle(&linked(b"/lib/ld-musl-x86_64.so.1\0", &[], false)), Some(Obstacle::OtherLibrary));
        assert_eq!(obstacle(&file(&[])), Some(Obstacle::Static));
        // A static position-independent program has a dynamic section; the dynamic linker's section also contains a
        // name.
        assert_eq!(obstacle(&linked(b"", &[], false)), Some(Obstacle::Static));
        assert_eq!(obstacle(&linked(b"", &[], true)), None);
        let note = [4, 0, 0, 0, 8, 0, 0, 0, 4, 0, 0, 0, b'G', b'o', 0, 0];
        assert_eq!(obstacle(&file(&[(4, note.to_vec()), (3, LOADER.to_vec())])), Some(Obstacle::Go));
        let mut i386 = file(&[]);
        (i386[4], i386[18]) = (1, 3);
        assert_eq!(obstacle(&i386), Some(Obstacle::ThirtyTwoBit));
        assert_eq!(form(b"exit 3\n"), Form::Other);
        assert_eq!(form(b""), Form::Other);
        assert_eq!(form(b"#!"), Form::Other);
        assert_eq!(form(b"#! /bin/sh -e\n"), Form::Script { start: 3, end: 10 });
    }

    #[test]
    fn the_programs_of_this_machine_are_classified_correctly() {
        let of = |path: &str| form(&std::fs::read(path).unwrap());
        assert_eq!(of("/bin/sh"), Form::Elf { obstacle: None, runtime: None });
        assert_eq!(of("/lib64/ld-linux-x86-64.so.2"), Form::Elf { obstacle: None, runtime: None });
    }

    proptest! {
        #[test]
        fn damaged_files_are_examined_without_harm(
            at in 0..500usize, byte: u8, cut in 0..600usize, more in proptest::collection::vec((0..300usize, any::<u8>()), 0..8)
        ) {
            let mut bytes = linked(LOADER, &["libasan.so.8", "libc.so.6"], true);
            for (at, byte) in more.into_iter().chain([(at, byte)]) {
                if let Some(slot) = bytes.get_mut(at) {
                    *slot = byte;
                }
            }
            bytes.truncate(cut.max(4));
            let _ = form(&bytes);
        }
    }
}
