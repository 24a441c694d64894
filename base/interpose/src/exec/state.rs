//! The values restored in the environments of executed programs: kept before `main`, in separate memory, because a
//! program may overwrite its environment.
#![allow(unsafe_code, reason = "keeps strings in pages that are never unmapped")]

use super::environment::Variable;
use crate::kernel;
use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The most variables that are restored.
const MOST_VARIABLES: usize = 4;

/// The texts of the line that is printed for a program into which nothing can be preloaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Words {
    /// The start of the line: `telpher run: `.
    pub prefix: &'static str,
    /// The consequence for the program: `it runs without the device`.
    pub consequence: &'static str,
    /// The user's remedy, unless the program gains rights.
    pub otherwise: &'static str,
}

/// The values to restore.
#[derive(Debug)]
pub struct Kept {
    pub(super) image: &'static [u8],
    variables: [Variable; MOST_VARIABLES],
    count: usize,
    pub(super) words: Option<Words>,
    /// The process that has loaded the library.
    pub(super) process: usize,
}

impl Kept {
    pub(super) fn variables(&self) -> &[Variable] {
        &self.variables[..self.count]
    }
}

static KEPT: AtomicPtr<Kept> = AtomicPtr::new(ptr::null_mut());

/// Returns the values to restore; `None` if there are none.
pub(super) fn kept() -> Option<&'static Kept> {
    // Acquire: pairs with the Release in `keep`; the values are written.
    let kept = KEPT.load(Ordering::Acquire);
    // SAFETY: null, or written once by `keep` in pages that stay.
    unsafe { kept.as_ref() }
}

/// Keeps the values; see [`start`](super::start).
pub(super) fn keep(variables: &[(&str, &[u8])], words: Option<Words>) {
    // The static is in the library of which this crate is a part.
    let Some(image) = path_of((&raw const KEPT).cast()) else { return };
    let text = |(name, value): &(&str, &[u8])| name.len() + 1 + value.len() + 1;
    let bytes = size_of::<Kept>() + image.len() + variables.iter().map(text).sum::<usize>();
    let Ok(start) = kernel::map(None, bytes, libc::PROT_READ | libc::PROT_WRITE) else { return };
    let kept: *mut Kept = ptr::with_exposed_provenance_mut(start);
    // The strings follow the structure.
    let mut at = kept.wrapping_add(1).cast::<u8>();
    let mut put = |bytes: &[u8]| {
        let start_of_string = at;
        // SAFETY: there is space for all strings, in new pages.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start_of_string, bytes.len()) };
        at = at.wrapping_add(bytes.len());
        // SAFETY: just written, and never changed; the pages stay.
        unsafe { std::slice::from_raw_parts(start_of_string, bytes.len()) }
    };
    let image = put(image);
    let mut own = [Variable { text: c"", name: 0 }; MOST_VARIABLES];
    let mut count = 0;
    for ((name, value), own) in variables.iter().zip(&mut own) {
        let start = put(name.as_bytes()).as_ptr();
        for part in [&b"="[..], value, &[0]] {
            put(part);
        }
        // SAFETY: the four parts are contiguous, and the last is a zero.
        *own = Variable { text: unsafe { CStr::from_ptr(start.cast()) }, name: name.len() };
        count += 1;
    }
    // SAFETY: the pages start with aligned space for it; no other code knows of them yet.
    unsafe { kept.write(Kept { image, variables: own, count, words, process: kernel::process() }) };
    // Release: pairs with the Acquire in `kept`.
    KEPT.store(kept, Ordering::Release);
}

/// Returns the path from which the dynamic linker has loaded the object that contains an address: for a preloaded one,
/// its entry of `LD_PRELOAD`.
fn path_of(inside: *const c_void) -> Option<&'static [u8]> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: writes to a structure that lives; any address may be queried. The dynamic linker owns the name, which
    // stays as long as the object is loaded, which is for ever.
    let name = unsafe {
        if libc::dladdr(inside, found.as_mut_ptr()) == 0 {
            return None;
        }
        found.assume_init().dli_fname
    };
    if name.is_null() {
        return None;
    }
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    (!name.is_empty() && !name.iter().any(|byte| matches!(byte, b':' | b' '))).then_some(name)
}
