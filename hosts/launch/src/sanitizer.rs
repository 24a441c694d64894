//! Programs built with AddressSanitizer: if its runtime is a shared library, that must be the first library loaded.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use telpher_interpose::exec::{Form, HEAD_BYTES, Name, examine};

/// Returns the sanitizer runtime that a binary needs; `None` for other binaries and for unreadable files. LD_PRELOAD
/// needs only the name: the dynamic linker searches for it as it does for the libraries that the binary itself needs.
pub(super) fn runtime(binary: &Path) -> Option<Name> {
    let file = File::open(binary).ok()?;
    // A read error counts as the end of the file.
    let read = |offset, into: &mut [u8]| file.read_at(into, offset).unwrap_or(0);
    match examine(&read, &mut [0; HEAD_BYTES]) {
        Form::Elf { runtime, .. } => runtime,
        Form::Script { .. } | Form::Other => None,
    }
}
