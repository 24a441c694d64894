//! The mappings of a process, as reported by the kernel, and which of them can be managed.

use std::ops::Range;
use telpher_tier_wire::Ignored;

/// A mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    pub(crate) range: Range<u64>,
    pub(crate) kind: Kind,
}

/// The kind of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Private anonymous memory that may be read and written: it can be managed.
    Memory,
    /// The stack of the first thread, which the kernel extends.
    Stack,
    /// A private mapping of a file.
    File,
    /// Shared: other processes may have it, too.
    Shared,
    /// The kernel's own, or neither readable nor writable.
    Other,
}

/// Returns the mappings in the text of `/proc/PID/maps`, in order. Source: proc_pid_maps(5). Malformed lines are
/// skipped.
pub(crate) fn parse(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(mapping).collect()
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let (permissions, _offset, _device, inode) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let name = words.next().unwrap_or("").trim_start();
    let address = |text| u64::from_str_radix(text, 16).ok();
    let range = address(start)?..address(end)?;
    let kind = match (permissions.as_bytes(), inode, name) {
        ([_, _, _, b's'], ..) => Kind::Shared,
        (_, "0", "[stack]") => Kind::Stack,
        ([b'r', b'w', _, _], "0", "" | "[heap]") => Kind::Memory,
        // Named by the program (PR_SET_VMA_ANON_NAME).
        ([b'r', b'w', _, _], "0", name) if name.starts_with("[anon:") => Kind::Memory,
        ([b'r', b'w', _, _], inode, _) if inode != "0" => Kind::File,
        _ => Kind::Other,
    };
    Some(Mapping { range, kind })
}

/// Returns the ranges without the parts in `others`. Both are sorted and without overlaps.
pub(crate) fn without(ranges: impl IntoIterator<Item = Range<u64>>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut rest = Vec::new();
    for mut range in ranges {
        let first = others.partition_point(|other| other.end <= range.start);
        for other in &others[first..] {
            if other.start >= range.end {
                break;
            }
            if range.start < other.start {
                rest.push(range.start..other.start);
            }
            range.start = other.end;
        }
        if range.start < range.end {
            rest.push(range);
        }
    }
    rest
}

/// Mappings that exist before the program's `main`, which are ignored.
///
/// They include the library's own: threads' stacks, pools and tables. They also include the first pages of the loader
/// and the C library, which those threads use, too. Large mappings of the program itself are managed: uninitialised
/// arrays.
#[derive(Debug, Default)]
pub(crate) struct EarlyMappings {
    ranges: Vec<Range<u64>>,
    /// The program's mappings among these.
    of_program: Vec<Range<u64>>,
}

/// A mapping of at least this many bytes that exists before the library belongs to the program. Source: chosen, a huge
/// page.
const LARGE: u64 = 2 << 20;

impl EarlyMappings {
    /// Creates the list from the mappings before and after the library's start. A sanitizer's memory is not the
    /// program's, however large it is, because the library's threads use it, too.
    pub(crate) fn new(before: &[Mapping], after: &[Mapping], of_sanitizer: &[Range<u64>]) -> EarlyMappings {
        let is_of_sanitizer =
            |range: &Range<u64>| of_sanitizer.iter().any(|other| range.start < other.end && other.start < range.end);
        let memory = before.iter().filter(|mapping| mapping.kind == Kind::Memory).map(|mapping| mapping.range.clone());
        let (large, of_program): (Vec<_>, Vec<_>) =
            memory.partition(|range| len(range) >= LARGE && !is_of_sanitizer(range));
        EarlyMappings { ranges: without(after.iter().map(|mapping| mapping.range.clone()), &large), of_program }
    }
}

pub(crate) fn len(range: &Range<u64>) -> u64 {
    range.end - range.start
}

/// The ranges to adopt, and the mappings that are ignored.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Ranges that are not known yet.
    pub(crate) fresh: Vec<Range<u64>>,
    /// The ignored mappings, by reason.
    pub(crate) ignored: Vec<Ignored>,
}

/// Returns what to adopt of these mappings, of at least `least` bytes, apart from known ranges.
pub(crate) fn plan(mappings: &[Mapping], early: &EarlyMappings, known: &[Range<u64>], least: u64) -> Plan {
    let mut plan = Plan::default();
    let ignore = |ignored: &mut Vec<Ignored>, reason: &str, bytes| {
        let at = ignored.iter().position(|other| other.reason == reason).unwrap_or_else(|| {
            ignored.push(Ignored { reason: reason.into(), ..Ignored::default() });
            ignored.len() - 1
        });
        ignored[at].mappings += 1;
        ignored[at].bytes += bytes;
    };
    for mapping in mappings {
        let bytes = len(&mapping.range);
        let reason = match mapping.kind {
            Kind::Memory if bytes < least => "small",
            Kind::Memory => {
                let parts = without([mapping.range.clone()], &early.ranges);
                let is_counted = early.of_program.iter().any(|range| mapping.range.contains(&range.start));
                if parts.is_empty() && is_counted {
                    ignore(&mut plan.ignored, "there before main", bytes);
                }
                plan.fresh.extend(without(parts, known));
                continue;
            }
            Kind::Stack => "the first thread's stack",
            Kind::File => "of a file",
            Kind::Shared => "shared",
            Kind::Other => continue,
        };
        ignore(&mut plan.ignored, reason, bytes);
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
00400000-00402000 r-xp 00000000 08:01 131 /usr/bin/some program
00602000-00603000 rw-p 00002000 08:01 131 /usr/bin/some program
00603000-00703000 rw-p 00000000 00:00 0 
01000000-01100000 rw-p 00000000 00:00 0                                  [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 
7f0000400000-7f0000800000 ---p 00000000 00:00 0 
7f0000800000-7f0000900000 rw-s 00000000 00:01 77 /dev/zero (deleted)
7f0000900000-7f0000901000 rw-p 00000000 00:00 0                          [anon:stack_and_tls:1]
7fff00000000-7fff00021000 rw-p 00000000 00:00 0                          [stack]
7fff00100000-7fff00101000 r-xp 00000000 00:00 0                          [vdso]
nonsense
";

    fn kinds(text: &str) -> Vec<Kind> {
        parse(text).iter().map(|mapping| mapping.kind).collect()
    }

    #[test]
    fn mappings_are_parsed_as_the_kernel_writes_them() {
        use Kind::{File, Memory, Other, Shared, Stack};
        assert_eq!(kinds(MAPS), [Other, File, Memory, Memory, Memory, Other, Shared, Memory, Stack, Other]);
        assert_eq!(parse(MAPS)[3].range, 0x100_0000..0x110_0000);
        let own = std::fs::read_to_string("/proc/self/maps").unwrap();
        let (read, local) = (parse(&own), 0_u8);
        assert_eq!(read.len(), own.lines().count());
        let stack = std::ptr::from_ref(&local).addr() as u64;
        assert!(
            read.iter().any(|mapping| mapping.range.contains(&stack) && mapping.kind == Memory),
            "a thread's stack"
        );
    }

    #[test]
    fn without_removes_the_other_ranges() {
        assert_eq!(without([0..10, 20..30], &[]), [0..10, 20..30]);
        assert_eq!(without([0..10, 20..30], &[2..4, 6..7, 9..22, 40..50]), [0..2, 4..6, 7..9, 22..30]);
        assert_eq!(without([5..6, 7..8], &[0..10, 20..30]), Vec::<Range<u64>>::new());
    }

    #[test]
    fn unknown_parts_are_planned_and_ignored_mappings_counted() {
        let (mappings, early) = (parse(MAPS), EarlyMappings::default());
        let first = plan(&mappings, &early, &[], 0x10_0000);
        assert_eq!(first.fresh, [0x60_3000..0x70_3000, 0x100_0000..0x110_0000, 0x7f00_0000_0000..0x7f00_0040_0000]);
        let ignored: Vec<_> =
            first.ignored.iter().map(|ignored| (&*ignored.reason, ignored.mappings, ignored.bytes)).collect();
        assert_eq!(
            ignored,
            [
                ("of a file", 1, 4096),
                ("shared", 1, 1 << 20),
                ("small", 1, 4096),
                ("the first thread's stack", 1, 0x21000)
            ]
        );
        let known = [0x60_3000..0x70_3000, 0x100_0000..0x101_0000];
        let rest = plan(&mappings, &early, &known, 0x10_0000);
        assert_eq!(rest.fresh, [0x101_0000..0x110_0000, 0x7f00_0000_0000..0x7f00_0040_0000]);
    }

    #[test]
    fn mappings_before_main_are_ignored_unless_they_are_large() {
        // Meanwhile the library has mapped memory right behind an existing mapping.
        let before = parse(MAPS);
        let after = parse(&MAPS.replace("7f0000000000-7f0000400000", "7f0000000000-7f0000500000"));
        let early = EarlyMappings::new(&before, &after, &[]);
        let grown = parse(&MAPS.replace("01000000-01100000", "01000000-01300000"));
        let plan = plan(&grown, &early, &[], 0x10_0000);
        assert_eq!(plan.fresh, [0x110_0000..0x130_0000, 0x7f00_0000_0000..0x7f00_0040_0000]);
        assert!(plan.ignored.iter().any(|ignored| ignored.reason == "there before main" && ignored.mappings == 1));
        // A sanitizer's memory is ignored.
        let of_sanitizer = [0x1000..0x2000, 0x7f00_0000_0000..0x7f00_0040_0000];
        let early = EarlyMappings::new(&before, &after, &of_sanitizer);
        assert_eq!(super::plan(&grown, &early, &[], 0x10_0000).fresh.first(), Some(&(0x110_0000..0x130_0000)));
        assert_eq!(super::plan(&grown, &early, &[], 0x10_0000).fresh.len(), 1);
    }
}
