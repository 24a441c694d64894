//! The value of `LD_PRELOAD`: a list of libraries, separated by colons or blanks. Source: ld.so(8).
//!
//! A preloaded library of ours is in the list by the path it was loaded from. Only the runtime of a sanitizer may come
//! before it, because a runtime must be the first library of its program. A runtime that was added for one program is
//! separated from our entry by a blank, all other entries by a colon. So it can be recognised later, and removed for
//! programs that do not need it. A runtime that the user added stays.

use super::program::is_runtime;

/// One entry of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry<'a> {
    name: &'a [u8],
    /// True if a blank follows.
    blank: bool,
}

/// The requirements on the list for one program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PreloadRequirements<'a> {
    /// Path of our library.
    pub image: &'a [u8],
    /// The library that must come before it.
    pub first: Option<&'a [u8]>,
}

fn entries(list: &[u8]) -> impl Iterator<Item = Entry<'_>> + Clone {
    let mut rest = list;
    std::iter::from_fn(move || {
        while let [b':' | b' ', after @ ..] = rest {
            rest = after;
        }
        if rest.is_empty() {
            return None;
        }
        let end = rest.iter().position(|byte| matches!(byte, b':' | b' ')).unwrap_or(rest.len());
        let entry = Entry { name: &rest[..end], blank: rest.get(end) == Some(&b' ') };
        rest = &rest[end..];
        Some(entry)
    })
}

fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

impl PreloadRequirements<'_> {
    /// True if the entry is our own, or a runtime that was added before it for another program.
    fn is_ours(&self, list: &[u8], entry: Entry<'_>) -> bool {
        entry.name == self.image || self.placed(list) == Some(entry)
    }

    /// Returns the runtime that was added before our entry.
    fn placed<'l>(&self, list: &'l [u8]) -> Option<Entry<'l>> {
        let pairs = entries(list).zip(entries(list).skip(1));
        pairs
            .map(|(entry, next)| (entry, next.name))
            .find_map(|(entry, next)| (next == self.image && entry.blank && is_runtime(entry.name)).then_some(entry))
    }

    /// True if the list already meets the requirements.
    #[must_use]
    pub fn fits(&self, list: &[u8]) -> bool {
        let Some(at) = entries(list).position(|entry| entry.name == self.image) else { return false };
        let comes_before = |first| entries(list).take(at).any(|entry| file_name(entry.name) == file_name(first));
        self.first.is_none_or(comes_before)
            && self.placed(list).is_none_or(|placed| self.first == Some(placed.name))
            && !entries(list).skip(at).any(|entry| is_runtime(entry.name))
    }

    /// Passes a list that meets the requirements to `out`, in parts.
    pub fn compose(&self, list: &[u8], out: &mut dyn FnMut(&[u8])) {
        let others = entries(list).filter(|entry| !self.is_ours(list, *entry)).map(|entry| entry.name);
        let runtimes = others.clone().filter(|name| is_runtime(name));
        for name in runtimes.clone() {
            out(name);
            out(b":");
        }
        if let Some(first) = self.first
            && !runtimes.clone().any(|name| file_name(name) == file_name(first))
        {
            out(first);
            out(b" ");
        }
        out(self.image);
        for name in others.filter(|name| !is_runtime(name)) {
            out(b":");
            out(name);
        }
    }

    /// Returns the length of this list in bytes.
    #[must_use]
    pub fn bytes(&self, list: &[u8]) -> usize {
        let mut bytes = 0;
        self.compose(list, &mut |piece| bytes += piece.len());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn composed(list: &str, first: Option<&str>) -> String {
        let wanted = PreloadRequirements { image: b"/ours.so", first: first.map(str::as_bytes) };
        let mut out = Vec::new();
        wanted.compose(list.as_bytes(), &mut |piece| out.extend_from_slice(piece));
        assert_eq!(out.len(), wanted.bytes(list.as_bytes()));
        assert!(wanted.fits(&out), "{}", String::from_utf8_lossy(&out));
        String::from_utf8(out).unwrap()
    }

    fn fits(list: &str, first: Option<&str>) -> bool {
        PreloadRequirements { image: b"/ours.so", first: first.map(str::as_bytes) }.fits(list.as_bytes())
    }

    #[test]
    fn our_entry_comes_before_existing_entries() {
        for (list, expected) in [
            ("", "/ours.so"),
            ("a.so b.so:c.so", "/ours.so:a.so:b.so:c.so"),
            ("::  :", "/ours.so"),
            ("/lib/libasan.so.8:a.so", "/lib/libasan.so.8:/ours.so:a.so"),
        ] {
            assert_eq!(composed(list, None), expected);
        }
    }

    #[test]
    fn a_list_with_our_entry_is_left_unchanged() {
        for list in ["/ours.so", "a.so:/ours.so", "a.so /ours.so:b.so", "/lib/libasan.so.8:/ours.so"] {
            assert!(fits(list, None), "{list}");
        }
        for list in ["", "/ours.so.1", "/other/ours.so", "a.so"] {
            assert!(!fits(list, None), "{list}");
        }
    }

    #[test]
    fn a_sanitizer_runtime_precedes_our_entry_and_is_removed_when_not_needed() {
        let asan = Some("libasan.so.8");
        let for_asan = composed("/ours.so:a.so", asan);
        assert_eq!(for_asan, "libasan.so.8 /ours.so:a.so");
        assert!(fits(&for_asan, asan) && !fits(&for_asan, None));
        assert_eq!(composed(&for_asan, None), "/ours.so:a.so");
        assert_eq!(composed(&for_asan, Some("libasan.so.6")), "libasan.so.6 /ours.so:a.so");
        // A runtime that the user added is accepted, and stays.
        assert!(fits("/usr/lib/libasan.so.8:/ours.so", asan));
        assert_eq!(composed("/ours.so:/usr/lib/libasan.so.8", asan), "/usr/lib/libasan.so.8:/ours.so");
        assert!(!fits("/ours.so:/usr/lib/libasan.so.8", None));
    }

    proptest! {
        #[test]
        fn a_composed_list_fits_and_composing_again_changes_nothing(
            names in proptest::collection::vec(
                prop_oneof![Just("/ours.so"), Just("libasan.so.8"), Just("/x/libasan.so.6"), Just("a.so"), Just("b"), Just("")], 0..6),
            separators in proptest::collection::vec(prop_oneof![Just(":"), Just(" "), Just(": ")], 6),
            first in proptest::option::of(prop_oneof![Just("libasan.so.8"), Just("libasan.so.6")]),
        ) {
            let list: String = names.iter().zip(&separators).flat_map(|(name, separator)| [*name, *separator]).collect();
            let once = composed(&list, first);
            prop_assert_eq!(&composed(&once, first), &once);
            for name in names.iter().filter(|name| ["a.so", "b"].contains(*name)) {
                prop_assert!(once.contains(name));
            }
        }
    }
}
