//! Programs built with AddressSanitizer: the runtime, where it is a shared library, must be the first one that is loaded.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use telpher_interpose::exec::{Form, HEAD_BYTES, Name, examine};

/// Interpreters of interpreters that are followed. Source: Linux `fs/exec.c`, exec_binprm(): five.
const MOST_INTERPRETERS: usize = 5;

/// The runtime that a program, or the interpreter of a script, asks for. Its name is all that LD_PRELOAD needs: the dynamic linker searches
/// for it as for what the program itself asks for. None for other programs, and for those that cannot be read.
pub(super) fn runtime(program: &Path) -> Option<Name> {
    let mut path = PathBuf::from(program);
    for _ in 0..=MOST_INTERPRETERS {
        let file = File::open(&path).ok()?;
        // What cannot be read is not there.
        let read = |offset, into: &mut [u8]| file.read_at(into, offset).unwrap_or(0);
        let mut head = [0; HEAD_BYTES];
        match examine(&read, &mut head) {
            Form::Elf { runtime, .. } => return runtime,
            Form::Script { start, end } => path = PathBuf::from(OsStr::from_bytes(&head[start..end])),
            Form::Other => return None,
        }
    }
    None
}
