//! The files that are mapped for execution, from /proc/self/maps.
//!
//! Makes system calls only, so it may be called from the middle of any call of the program.

use crate::scratch::Scratch;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::ffi::CStr;
use std::ops::Range;
use telpher_recording::ModuleMapping;

/// Bytes that are read at a time. The longest line has a path of 4 KiB.
const BUFFER: usize = 64 << 10;
/// Bytes of a path that are kept.
const PATH: usize = 4096;

/// Calls `found` with each mapped file of which a part can be executed. Mappings of one file in a row are one module.
pub(crate) fn each(mut found: impl FnMut(&ModuleMapping<'_>)) {
    // The build-ids are missing where this file cannot be opened.
    let memory = open(c"/proc/self/mem").ok();
    let Ok(mut notes) = Scratch::new(PATH) else { return };
    groups(|path, addresses| {
        let build_id = memory.as_ref().and_then(|memory| build_id(memory, addresses, &mut notes));
        let build_id = build_id.map_or(&[][..], |at| &notes[at]);
        found(&ModuleMapping { path, build_id, addresses: addresses.clone() });
    });
}

/// Calls `found` with the module to which an address belongs. Returns `None` if the address belongs to no file, or if
/// the system does not tell.
pub(crate) fn with_module_of<T>(address: usize, found: impl Fn(&ModuleMapping<'_>) -> T) -> Option<T> {
    let mut result = None;
    let mut notes = Scratch::new(PATH).ok()?;
    groups(|path, addresses| {
        if addresses.contains(&address) {
            let memory = open(c"/proc/self/mem").ok();
            let build_id = memory.and_then(|memory| build_id(&memory, addresses, &mut notes));
            let build_id = build_id.map_or(&[][..], |at| &notes[at]);
            result = Some(found(&ModuleMapping { path, build_id, addresses: addresses.clone() }));
        }
    });
    result
}

/// Calls `found` with the path and the addresses of each mapped file of which a part can be executed.
fn groups(found: impl FnMut(&[u8], &Range<usize>)) {
    if let Ok(maps) = open(c"/proc/self/maps") {
        groups_in(maps, found);
    }
}

/// Calls `found` for each group of lines of a file like /proc/self/maps.
fn groups_in(maps: OwnedFd, mut found: impl FnMut(&[u8], &Range<usize>)) {
    let (Ok(mut buffer), Ok(mut path)) = (Scratch::new(BUFFER), Scratch::new(PATH)) else { return };
    let mut group = Group { path: &mut path, path_len: 0, addresses: 0..0, can_execute: false };
    let mut emit = |group: &Group<'_>| {
        if group.can_execute {
            found(&group.path[..group.path_len], &group.addresses);
        }
    };
    let mut filled = 0;
    loop {
        let read = rustix::io::read(&maps, &mut buffer[filled..]).unwrap_or(0);
        filled += read;
        let mut rest = &buffer[..filled];
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            if let Some(line) = Line::parse(&rest[..end])
                && !group.join(&line)
            {
                emit(&group);
                group.begin(&line);
            }
            rest = &rest[end + 1..];
        }
        let left = rest.len();
        // Without a line's end in a full buffer, the file is not what it should be.
        if read == 0 || left == buffer.len() {
            break;
        }
        buffer.copy_within(filled - left..filled, 0);
        filled = left;
    }
    emit(&group);
}

fn open(path: &CStr) -> rustix::io::Result<OwnedFd> {
    openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// One line of the file.
#[derive(PartialEq, Eq, Debug)]
struct Line<'a> {
    addresses: Range<usize>,
    can_execute: bool,
    path: &'a [u8],
}

impl<'a> Line<'a> {
    /// Reads `7f00-8f00 r-xp 00001000 08:01 4711    /usr/bin/redis-server`.
    fn parse(line: &'a [u8]) -> Option<Line<'a>> {
        let (addresses, rest) = split(line, b' ')?;
        let (start, end) = split(addresses, b'-')?;
        let (access, rest) = split(rest, b' ')?;
        let (_offset, rest) = split(rest, b' ')?;
        let (_device, rest) = split(rest, b' ')?;
        let path = split(rest, b' ').map_or(&[][..], |(_inode, path)| path.trim_ascii_start());
        Some(Line {
            addresses: hexadecimal(start)?..hexadecimal(end)?,
            can_execute: access.get(2) == Some(&b'x'),
            path,
        })
    }
}

fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let place = text.iter().position(|byte| *byte == at)?;
    Some((&text[..place], &text[place + 1..]))
}

fn hexadecimal(digits: &[u8]) -> Option<usize> {
    let digit = |number: usize, digit: &u8| {
        let digit = char::from(*digit).to_digit(16)?;
        number.checked_mul(16)?.checked_add(digit as usize)
    };
    (!digits.is_empty()).then(|| digits.iter().try_fold(0, digit)).flatten()
}

/// Mappings of one file in a row.
struct Group<'a> {
    path: &'a mut [u8],
    path_len: usize,
    addresses: Range<usize>,
    can_execute: bool,
}

impl Group<'_> {
    /// Adds a line that belongs to the same file; returns false if it does not.
    fn join(&mut self, line: &Line<'_>) -> bool {
        // Memory without a file in the middle of a file's mappings is its data that begins as zero.
        let belongs = line.path == &self.path[..self.path_len] && self.path_len > 0;
        if belongs {
            self.addresses.end = line.addresses.end;
            self.can_execute |= line.can_execute;
        }
        belongs || (line.path.is_empty() && !line.can_execute)
    }

    fn begin(&mut self, line: &Line<'_>) {
        self.path_len = line.path.len().min(self.path.len());
        self.path[..self.path_len].copy_from_slice(&line.path[..self.path_len]);
        self.addresses = line.addresses.clone();
        self.can_execute = line.can_execute;
    }
}

/// Reads the build-id of an ELF file mapped at these addresses. Returns where in `buffer` it is.
///
/// Source of the layout: System V ABI, chapters 4 and 5 (file header, program headers, notes); the note's name and type
/// are GNU ld's (`NT_GNU_BUILD_ID`).
fn build_id(memory: &OwnedFd, addresses: &Range<usize>, buffer: &mut [u8]) -> Option<Range<usize>> {
    const PROGRAM_HEADER: usize = 56;
    const MOST_HEADERS: usize = 32;
    const LOAD: u32 = 1;
    const NOTE: u32 = 4;
    let mut header = [0; 64];
    read_memory(memory, addresses.start as u64, &mut header)?;
    if header[..5] != *b"\x7fELF\x02" {
        return None;
    }
    let headers_at = u64_at(&header, 32)?;
    let count = usize::from(u16::from_le_bytes([header[56], header[57]])).min(MOST_HEADERS);
    let (headers, notes) = buffer.split_at_mut(PROGRAM_HEADER * MOST_HEADERS);
    let headers = &mut headers[..PROGRAM_HEADER * count];
    read_memory(memory, (addresses.start as u64).checked_add(headers_at)?, headers)?;
    let of_kind = |kind: u32| {
        let of = headers.chunks_exact(PROGRAM_HEADER).filter(move |header| u32_at(header, 0) == Some(kind));
        of.filter_map(|header| Some((u64_at(header, 16)?, u64_at(header, 40)?)))
    };
    // The file's first address, which is 0 for libraries.
    let first = of_kind(LOAD).map(|(address, _)| address).min()?;
    for (address, len) in of_kind(NOTE) {
        let len = usize::try_from(len).ok()?.min(notes.len());
        let at = (addresses.start as u64).checked_add(address.checked_sub(first)?)?;
        if read_memory(memory, at, &mut notes[..len]).is_some()
            && let Some(found) = build_id_note(&notes[..len])
        {
            let offset = PROGRAM_HEADER * MOST_HEADERS;
            return Some(found.start + offset..found.end + offset);
        }
    }
    None
}

/// Returns where in these notes the build-id is.
fn build_id_note(notes: &[u8]) -> Option<Range<usize>> {
    const BUILD_ID: u32 = 3;
    let mut at = 0;
    loop {
        let [name, content, kind] = [0, 4, 8].map(|offset| u32_at(notes.get(at..)?, offset));
        let (name, content) = (name? as usize, content? as usize);
        let name_at = at + 12;
        let content_at = name_at.checked_add(name.next_multiple_of(4))?;
        let content = content_at..content_at.checked_add(content)?;
        let found = notes.get(content.clone())?;
        if kind? == BUILD_ID && notes.get(name_at..name_at + name)? == b"GNU\0" && !found.is_empty() {
            return Some(content);
        }
        at = content.end.next_multiple_of(4);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Reads this process' memory; `None` if a part of it is not mapped.
fn read_memory(memory: impl AsFd, address: u64, into: &mut [u8]) -> Option<()> {
    let read = rustix::io::pread(memory, &mut *into, address).ok()?;
    (read == into.len()).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_addresses_and_path() {
        let line = Line::parse(b"7f00-8f00 r-xp 00001000 08:01 4711                      /a path/lib.so").unwrap();
        assert_eq!(line, Line { addresses: 0x7f00..0x8f00, can_execute: true, path: b"/a path/lib.so" });
        let anonymous = Line::parse(b"1000-2000 rw-p 00000000 00:00 0 ").unwrap();
        assert_eq!((anonymous.path, anonymous.can_execute), (&b""[..], false));
        assert_eq!(Line::parse(b"no addresses here"), None);
        assert_eq!(Line::parse(b"ffffffffffffffffff-1 r-xp 0 0 0 x"), None);
    }

    #[test]
    fn a_module_reaches_from_its_first_mapping_to_its_last() {
        let maps = b"1000-2000 r-xp 00000000 08:01 10 /lib/a.so\n\
                     2000-3000 r--p 00000000 08:01 11 /lib/b.so\n\
                     3000-5000 r-xp 00001000 08:01 11 /lib/b.so\n\
                     5000-6000 rw-p 00003000 08:01 11 /lib/b.so\n\
                     6000-7000 rw-p 00000000 00:00 0\n\
                     7000-8000 r--p 00000000 08:01 12 /usr/share/data\n";
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        assert_eq!(rustix::io::write(&writer, maps).unwrap(), maps.len());
        drop(writer);
        let mut groups = Vec::new();
        groups_in(reader, |path, addresses| groups.push((path.to_vec(), addresses.clone())));
        assert_eq!(groups, [(b"/lib/a.so".to_vec(), 0x1000..0x2000), (b"/lib/b.so".to_vec(), 0x2000..0x6000)]);
    }

    #[test]
    fn this_program_is_a_module_with_its_build_id() {
        let program = std::fs::read_link("/proc/self/exe").unwrap();
        let here = this_program_is_a_module_with_its_build_id as *const () as usize;
        let mut modules = Vec::new();
        each(|module| {
            modules.push((module.path.to_vec(), module.build_id.to_vec(), module.addresses.clone()));
        });
        let (path, build_id, _) = modules.iter().find(|(.., addresses)| addresses.contains(&here)).unwrap();
        assert_eq!(path, program.as_os_str().as_encoded_bytes());
        // The linker may have written none; then the C library's must be there.
        let has_libc = modules
            .iter()
            .any(|(path, build_id, _)| path.windows(8).any(|part| part == b"libc.so.") && build_id.len() == 20);
        assert!(build_id.len() == 20 || has_libc, "{modules:x?}");
        assert!(modules.iter().all(|(path, ..)| !path.is_empty()));
    }

    #[test]
    fn a_note_of_another_kind_is_skipped() {
        let note = |kind: u8, content: &[u8]| {
            let mut note =
                [&[4, 0, 0, 0, u8::try_from(content.len()).unwrap(), 0, 0, 0, kind, 0, 0, 0][..], b"GNU\0"].concat();
            note.extend(content);
            note.resize(note.len().next_multiple_of(4), 0);
            note
        };
        let notes = [note(1, b"abi"), note(3, b"identity"), note(5, b"more")].concat();
        let found = build_id_note(&notes).unwrap();
        assert_eq!(&notes[found], b"identity");
        assert_eq!(build_id_note(&notes[..20]), None);
        assert_eq!(build_id_note(&[0xff; 64]), None);
    }
}
