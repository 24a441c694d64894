//! Reports memory that must be leaked because a device may still write it, and ends the process where it cannot go on.

use std::fmt::Arguments;
use std::io::Write;

/// Writes a message to standard error. A failed write is ignored, because this is called in drops.
pub(crate) fn say(message: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "telpher: {message}");
}

/// Aborts the process if it is dropped, which happens when a panic unwinds past it.
pub(crate) struct AbortOnUnwind(pub(crate) &'static str);

impl AbortOnUnwind {
    /// Ends the guarded section: nothing unwound.
    pub(crate) fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for AbortOnUnwind {
    #[cold]
    fn drop(&mut self) {
        say(format_args!("{}", self.0));
        std::process::abort();
    }
}
