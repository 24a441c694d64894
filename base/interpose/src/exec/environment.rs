//! The environment of an executed program: finds what is missing of our values, and makes a copy that has them.
//!
//! Runs in children of vfork(2), in signal handlers and after fork(2) in programs with threads: nothing here allocates
//! or takes a lock. The copy is an array of pointers to the caller's own strings, except for changed strings, and is
//! written to memory from the caller.
#![allow(unsafe_code, reason = "reads the program's array of strings and writes another one")]

use super::list::PreloadRequirements;
use std::ffi::{CStr, c_char};
use std::ptr;

/// The dynamic linker's variable.
pub(super) const PRELOAD: &[u8] = b"LD_PRELOAD";

/// A variable to restore.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variable {
    /// `NAME=VALUE`.
    pub(super) text: &'static CStr,
    /// Bytes of the name.
    pub(super) name: usize,
}

impl Variable {
    fn name(&self) -> &'static [u8] {
        &self.text.to_bytes()[..self.name]
    }
}

/// An iterator over the entries of an environment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entries<'a> {
    next: *const *const c_char,
    strings: std::marker::PhantomData<&'a CStr>,
}

impl<'a> Entries<'a> {
    /// # Safety
    /// `environment` is null, which the kernel treats as empty, or an array of strings that ends with a null pointer.
    /// The array and its strings stay unchanged for `'a`.
    pub(super) unsafe fn new(environment: *const *const c_char) -> Self {
        Entries { next: environment, strings: std::marker::PhantomData }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = &'a CStr;

    fn next(&mut self) -> Option<&'a CStr> {
        if self.next.is_null() {
            return None;
        }
        // SAFETY: an element of the array; the elements before were not its end.
        let entry = unsafe { *self.next };
        if entry.is_null() {
            return None;
        }
        self.next = self.next.wrapping_add(1);
        // SAFETY: every element except the end is a string.
        Some(unsafe { CStr::from_ptr(entry) })
    }
}

/// Returns the value of an entry if it has this name.
pub(super) fn value<'a>(entry: &'a CStr, name: &[u8]) -> Option<&'a [u8]> {
    entry.to_bytes().strip_prefix(name)?.strip_prefix(b"=")
}

/// The values to restore.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restored<'a> {
    /// Our entry of `LD_PRELOAD`, and the library that must come before it.
    pub(super) wanted: PreloadRequirements<'a>,
    /// Variables; the first identifies the run.
    pub(super) variables: &'a [Variable],
}

/// The size of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Size {
    /// Pointers, including the null at the end.
    pub(super) pointers: usize,
    /// Bytes of new strings.
    pub(super) text: usize,
}

impl Size {
    /// Returns the total in bytes.
    pub(super) fn bytes(self) -> usize {
        self.pointers.saturating_mul(size_of::<*const c_char>()).saturating_add(self.text)
    }
}

/// How an entry is copied.
enum Change {
    Keep,
    Drop,
    /// Replace it by a new list of libraries.
    List,
}

impl Restored<'_> {
    /// True if the environment belongs to another run: it has another value of the run's variable.
    pub(super) fn is_of_another_run(&self, mut entries: Entries<'_>) -> bool {
        let Some(run) = self.variables.first() else { return false };
        let found = entries.find_map(|entry| value(entry, run.name()));
        found.is_some_and(|found| !found.is_empty() && value(run.text, run.name()) != Some(found))
    }

    fn change(&self, entry: &CStr) -> Change {
        if let Some(list) = value(entry, PRELOAD) {
            return if self.wanted.fits(list) { Change::Keep } else { Change::List };
        }
        // A variable without a value would be found before the one that is added.
        let is_empty = |variable: &Variable| value(entry, variable.name()).is_some_and(<[u8]>::is_empty);
        if self.variables.iter().any(is_empty) { Change::Drop } else { Change::Keep }
    }

    /// True if the variable is missing or has no value.
    fn lacks(variable: &Variable, mut entries: Entries<'_>) -> bool {
        !entries.any(|entry| value(entry, variable.name()).is_some_and(|value| !value.is_empty()))
    }

    /// Returns the size of a copy; `None` if the environment already has all values.
    pub(super) fn measure(&self, entries: Entries<'_>) -> Option<Size> {
        let (mut count, mut text, mut changes, mut has_list) = (0_usize, 0_usize, false, false);
        for entry in entries {
            count += 1;
            has_list |= value(entry, PRELOAD).is_some();
            match self.change(entry) {
                Change::Keep => {}
                Change::Drop => changes = true,
                Change::List => {
                    changes = true;
                    text += self.list_bytes(value(entry, PRELOAD).unwrap_or_default());
                }
            }
        }
        let missing = self.variables.iter().filter(|variable| Self::lacks(variable, entries)).count();
        if !has_list {
            text += self.list_bytes(&[]);
        }
        let needed = changes || missing > 0 || !has_list;
        needed.then_some(Size { pointers: count + missing + usize::from(!has_list) + 1, text })
    }

    /// Returns the bytes of `LD_PRELOAD=…` with its terminator.
    fn list_bytes(&self, list: &[u8]) -> usize {
        PRELOAD.len() + 1 + self.wanted.bytes(list) + 1
    }

    /// Writes a copy; returns the array.
    ///
    /// # Safety
    /// `memory` is aligned for pointers and has the size that [`measure`](Restored::measure) returned for these
    /// entries.
    pub(super) unsafe fn write(&self, entries: Entries<'_>, size: Size, memory: *mut u8) -> *const *const c_char {
        let array: *mut *const c_char = memory.cast();
        let mut copy =
            Copy { array, pointers: 0, text: memory.wrapping_add(size.pointers * size_of::<*const c_char>()) };
        let mut has_list = false;
        for entry in entries {
            has_list |= value(entry, PRELOAD).is_some();
            // SAFETY: as many pointers and bytes as were counted for the same entries.
            unsafe {
                match self.change(entry) {
                    Change::Keep => copy.point_to(entry.as_ptr()),
                    Change::Drop => {}
                    Change::List => copy.add_list(&self.wanted, value(entry, PRELOAD).unwrap_or_default()),
                }
            }
        }
        // SAFETY: as before; these were counted, too, including the end.
        unsafe {
            if !has_list {
                copy.add_list(&self.wanted, &[]);
            }
            for variable in self.variables.iter().filter(|variable| Self::lacks(variable, entries)) {
                copy.point_to(variable.text.as_ptr());
            }
            copy.point_to(ptr::null());
        }
        array
    }
}

/// A copy that is being written.
struct Copy {
    array: *mut *const c_char,
    pointers: usize,
    text: *mut u8,
}

impl Copy {
    /// # Safety
    /// There is space for one more pointer.
    unsafe fn point_to(&mut self, string: *const c_char) {
        // SAFETY: the caller's promise.
        unsafe { self.array.add(self.pointers).write(string) };
        self.pointers += 1;
    }

    /// # Safety
    /// There is space for the bytes.
    unsafe fn put(&mut self, bytes: &[u8]) {
        // SAFETY: the caller's promise; the memory is new, so it overlaps nothing that is read.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.text, bytes.len()) };
        self.text = self.text.wrapping_add(bytes.len());
    }

    /// Adds `LD_PRELOAD=…`.
    ///
    /// # Safety
    /// There is space for one more pointer, and for the text.
    unsafe fn add_list(&mut self, wanted: &PreloadRequirements<'_>, list: &[u8]) {
        let start = self.text;
        // SAFETY: the caller's promise.
        unsafe {
            self.put(PRELOAD);
            self.put(b"=");
            wanted.compose(list, &mut |piece| self.put(piece));
            self.put(&[0]);
            self.point_to(start.cast());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    const RUN: Variable = Variable { text: c"TELPHER_RUN=this", name: 11 };
    const OTHER: Variable = Variable { text: c"TELPHER_WORDS=a b", name: 13 };

    fn restored(first: Option<&'static [u8]>) -> Restored<'static> {
        Restored { wanted: PreloadRequirements { image: b"/ours.so", first }, variables: &[RUN, OTHER] }
    }

    /// Returns the environment that is made of another; `None` if that is left unchanged.
    fn outcome(environment: &[&str], first: Option<&'static [u8]>) -> Option<Vec<String>> {
        let strings: Vec<CString> = environment.iter().map(|entry| CString::new(*entry).unwrap()).collect();
        let mut array: Vec<*const c_char> = strings.iter().map(|entry| entry.as_ptr()).collect();
        array.push(ptr::null());
        // SAFETY: an array of strings that live as long as this function.
        let entries = unsafe { Entries::new(array.as_ptr()) };
        let restored = restored(first);
        let size = restored.measure(entries)?;
        let mut memory = vec![0_u64; size.bytes().div_ceil(8)];
        // SAFETY: the memory has the measured size; an environment was written to it.
        let copied = unsafe { Entries::new(restored.write(entries, size, memory.as_mut_ptr().cast())) };
        Some(copied.map(|entry| entry.to_str().unwrap().to_owned()).collect())
    }

    fn sorted(mut entries: Vec<String>) -> Vec<String> {
        entries.sort();
        entries
    }

    const ALL: [&str; 3] = ["LD_PRELOAD=/ours.so", "TELPHER_RUN=this", "TELPHER_WORDS=a b"];

    #[test]
    fn a_complete_environment_is_left_unchanged() {
        assert_eq!(outcome(&ALL, None), None);
        assert_eq!(outcome(&["A=1", ALL[1], "LD_PRELOAD=x:/ours.so", "TELPHER_WORDS=other"], None), None);
    }

    #[test]
    fn missing_values_are_added_and_the_rest_keeps_its_order() {
        assert_eq!(sorted(outcome(&[], None).unwrap()), ALL);
        let replaced = outcome(&["A=1", "LD_PRELOAD=x.so", "B=2", ALL[1], ALL[2]], None).unwrap();
        assert_eq!(replaced, ["A=1", "LD_PRELOAD=/ours.so:x.so", "B=2", ALL[1], ALL[2]]);
        let unset = outcome(&["A=1", ALL[0], ALL[2]], None).unwrap();
        assert_eq!(unset, ["A=1", ALL[0], ALL[2], ALL[1]]);
        // The dynamic linker uses the last of several, getenv(3) the first.
        let twice = outcome(&[ALL[1], ALL[2], "LD_PRELOAD=", "LD_PRELOAD=x.so"], None).unwrap();
        assert_eq!(twice[2..], ["LD_PRELOAD=/ours.so", "LD_PRELOAD=/ours.so:x.so"]);
        let empty = outcome(&["TELPHER_RUN=", ALL[0], ALL[2]], None).unwrap();
        assert_eq!(empty, [ALL[0], ALL[2], ALL[1]]);
    }

    #[test]
    fn a_sanitizer_runtime_is_added_and_removed_as_programs_need_it() {
        let with = outcome(&ALL, Some(b"libasan.so.8")).unwrap();
        assert_eq!(with, ["LD_PRELOAD=libasan.so.8 /ours.so", ALL[1], ALL[2]]);
        let with: Vec<&str> = with.iter().map(String::as_str).collect();
        assert_eq!(outcome(&with, Some(b"libasan.so.8")), None);
        assert_eq!(outcome(&with, None).unwrap(), ALL);
    }

    #[test]
    fn an_environment_of_another_run_is_recognised_by_its_variable() {
        let is_of_another = |entries: &[&CStr]| {
            let array: Vec<*const c_char> = entries.iter().map(|entry| entry.as_ptr()).chain([ptr::null()]).collect();
            // SAFETY: an array of strings that live.
            restored(None).is_of_another_run(unsafe { Entries::new(array.as_ptr()) })
        };
        assert!(is_of_another(&[c"A=1", c"TELPHER_RUN=that"]));
        for entries in [&[c"TELPHER_RUN=this"][..], &[c"TELPHER_RUN="], &[c"TELPHER_RUNNING=that"], &[]] {
            assert!(!is_of_another(entries), "{entries:?}");
        }
        // SAFETY: null means an empty environment.
        assert!(!restored(None).is_of_another_run(unsafe { Entries::new(ptr::null()) }));
    }
}
