//! Programs built with AddressSanitizer: the runtime, where it is a shared library, must be the first one that is loaded.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use telpher_interpose::exec::{Form, HEAD_BYTES, Name, examine};

/// The runtime that a binary asks for. Its name is all that LD_PRELOAD needs: the dynamic linker searches for it as for what the binary itself
/// asks for. None for other binaries, and for those that cannot be read.
pub(super) fn runtime(binary: &Path) -> Option<Name> {
    let file = File::open(binary).ok()?;
    // What cannot be read is not there.
    let read = |offset, into: &mut [u8]| file.read_at(into, offset).unwrap_or(0);
    match examine(&read, &mut [0; HEAD_BYTES]) {
        Form::Elf { runtime, .. } => runtime,
        Form::Script { .. } | Form::Other => None,
    }
}
