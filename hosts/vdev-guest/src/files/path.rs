//! Paths as text of bounded length on the stack, and the first check of every path: can it lead to our files?

use crate::sys::Errno;
use std::ffi::CStr;

/// Longest path that is examined. Our paths have about 120 bytes; longer ones are not ours. Source: chosen.
pub(crate) const LONGEST: usize = 1024;
/// Space for a path in the shadow tree: a run directory before it, and the bytes that `push` may add before it refuses.
const CAPACITY: usize = LONGEST + 256;

/// An absolute path without `.`, `..`, repeated slashes, and (except for the root) a final slash.
#[derive(Clone)]
pub(crate) struct Path {
    len: usize,
    bytes: [u8; CAPACITY],
}

impl std::fmt::Debug for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl Path {
    /// `/`.
    pub(crate) const fn root() -> Self {
        let mut bytes = [0; CAPACITY];
        bytes[0] = b'/';
        Path { len: 1, bytes }
    }

    /// A path that is already normalised.
    ///
    /// # Errors
    /// ENAMETOOLONG; ENOENT if it is not absolute.
    pub(crate) fn new(text: &[u8]) -> Result<Self, Errno> {
        if text.first() != Some(&b'/') {
            return Err(Errno::NOENT);
        }
        let mut path = Path::root();
        path.len = 0;
        path.append(text)?;
        Ok(path)
    }

    /// The text.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The text for a system call.
    pub(crate) fn as_c_str(&self) -> &CStr {
        // A zero always follows the text: `append` keeps the last byte free and `truncate` writes zeros.
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }

    /// Appends a component.
    ///
    /// # Errors
    /// ENAMETOOLONG.
    pub(crate) fn push(&mut self, name: &[u8]) -> Result<(), Errno> {
        let before = self.len;
        if self.as_bytes() != b"/" {
            self.append(b"/")?;
        }
        self.append(name).inspect_err(|_| self.truncate(before))
    }

    /// Removes the last component; the root is its own parent.
    pub(crate) fn pop(&mut self) {
        let end = self.as_bytes().iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        self.truncate(end.max(1));
    }

    /// Appends text unchanged.
    ///
    /// # Errors
    /// ENAMETOOLONG.
    pub(crate) fn append(&mut self, text: &[u8]) -> Result<(), Errno> {
        let end = self.len + text.len();
        let free = self.bytes.get_mut(self.len..end).filter(|_| end < CAPACITY).ok_or(Errno::NAMETOOLONG)?;
        free.copy_from_slice(text);
        self.len = end;
        Ok(())
    }

    /// True for `directory` itself and all paths below it.
    pub(crate) fn is_within(&self, directory: &[u8]) -> bool {
        below(self.as_bytes(), directory).is_some()
    }

    fn truncate(&mut self, len: usize) {
        self.bytes[len..self.len].fill(0);
        self.len = len;
    }
}

/// The rest of a path after `directory`: empty, or from a slash on; `None` if the path is elsewhere.
pub(crate) fn below<'a>(path: &'a [u8], directory: &[u8]) -> Option<&'a [u8]> {
    path.strip_prefix(directory).filter(|rest| rest.first().is_none_or(|byte| *byte == b'/'))
}

/// True if an absolute path may lead to our files. It checks a few bytes, so that all other paths cost nothing. A path
/// that passes is resolved and may still not be ours.
pub(crate) fn concerns(path: &[u8]) -> bool {
    let Some(rest) = path.strip_prefix(b"/") else { return false };
    let directly = match rest {
        // The root leads to /sys; a second slash or a dot is unusual and left to the resolution.
        [] | [b'/' | b'.', ..] => true,
        [b's', ..] => below(rest, b"sys").is_some(),
        [b'd', ..] => below(rest, b"dev").is_some_and(device),
        [b'p', ..] => below(rest, b"proc").is_some_and(process),
        _ => false,
    };
    directly || climbs(rest)
}

/// Names in /dev that may be ours or lead to a descriptor of ours; the others (null, tty, shm, …) cannot.
fn device(rest: &[u8]) -> bool {
    let name = rest.strip_prefix(b"/").unwrap_or_default();
    name.is_empty()
        || [&b"/"[..], b".", b"dsa", b"iax", b"char", b"fd", b"std"].iter().any(|ours| name.starts_with(ours))
}

/// Names in /proc: the CPU information, and the links to descriptors and working directories.
fn process(rest: &[u8]) -> bool {
    let name = rest.strip_prefix(b"/").unwrap_or_default();
    if name.is_empty() || name.starts_with(b".") || name.starts_with(b"/") || below(name, b"cpuinfo").is_some() {
        return true;
    }
    let of_a_process = name.starts_with(b"self") || name.starts_with(b"thread-self") || name[0].is_ascii_digit();
    of_a_process && (contains(name, b"/fd") || contains(name, b"/cwd"))
}

/// True if a path goes up and then to one of the directories to which we add entries, or ends there.
pub(crate) fn climbs(path: &[u8]) -> bool {
    if path.ends_with(b"..") {
        return true;
    }
    let mut rest = path;
    while let Some(at) = find(rest, b"../") {
        rest = &rest[at + 3..];
        if [&b"sys"[..], b"dev", b"proc"].iter().any(|name| below(rest, name).is_some()) {
            return true;
        }
    }
    false
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    find(text, part).is_some()
}

/// Directories of the machine whose descriptors are tracked, because paths relative to them may be ours.
pub(crate) fn is_watched(path: &[u8]) -> bool {
    below(path, b"/sys").is_some()
        || [&b"/"[..], b"/dev", b"/dev/dsa", b"/dev/iax", b"/dev/char", b"/proc"].contains(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_and_pop_keep_a_path_normalised() {
        let mut path = Path::root();
        path.push(b"sys").unwrap();
        path.push(b"bus").unwrap();
        assert_eq!(path.as_bytes(), b"/sys/bus");
        path.pop();
        assert_eq!(path.as_c_str(), c"/sys");
        path.pop();
        path.pop();
        assert_eq!(path.as_c_str(), c"/");
    }

    #[test]
    fn a_component_that_does_not_fit_is_refused_and_the_path_is_unchanged() {
        let mut path = Path::root();
        while path.push(&[b'x'; 100]).is_ok() {}
        let before = path.as_bytes().to_vec();
        assert_eq!(path.push(&[b'y'; 200]), Err(Errno::NAMETOOLONG));
        assert_eq!(path.as_bytes(), before);
        assert_eq!(path.as_c_str().to_bytes(), before);
    }

    #[test]
    fn paths_that_may_lead_to_our_files_are_recognised() {
        for path in [
            "/",
            "/sys",
            "/sys/bus/dsa",
            "/dev",
            "/dev/",
            "/dev/dsa/wq0.0",
            "/dev/char/1:3",
            "/dev/stdout",
            "/dev/fd/1",
            "/proc",
            "/proc/cpuinfo",
            "/proc/self/fd/1",
            "/proc/12/cwd/state",
            "//sys",
            "/./sys/bus",
            "/usr/../sys/bus",
            "/usr/lib/../../dev/dsa",
            "/usr/..",
            "/dev/./dsa",
        ] {
            assert!(concerns(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn other_paths_are_not_recognised() {
        for path in [
            "",
            "sys",
            "/system",
            "/sysroot/sys",
            "/dev/null",
            "/dev/shm/x",
            "/dev/urandom",
            "/proc/self/maps",
            "/proc/meminfo",
            "/process",
            "/usr/lib/gcc/x86_64-linux-gnu/12/../../../../lib/crt1.o",
            "/usr/include/sys/stat.h",
            "/etc/passwd",
        ] {
            assert!(!concerns(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn below_compares_whole_components() {
        assert_eq!(below(b"/sys/bus", b"/sys"), Some(&b"/bus"[..]));
        assert_eq!(below(b"/sys", b"/sys"), Some(&b""[..]));
        assert_eq!(below(b"/sysroot", b"/sys"), None);
    }
}
