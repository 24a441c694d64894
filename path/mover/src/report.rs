//! What happens when memory that a device may write cannot be kept from its owner in the ordinary way: people are told,
//! and the process ends where there is no way on.

use std::fmt::Arguments;
use std::io::Write;

/// Tells people on standard error. That nobody can read it is no reason to fail, least of all in a drop.
pub(crate) fn say(message: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "telpher: {message}");
}

/// Ends the process if it is dropped, so if something unwinds past it.
pub(crate) struct Bomb(pub(crate) &'static str);

impl Bomb {
    /// Nothing unwound.
    pub(crate) fn defuse(self) {
        std::mem::forget(self);
    }
}

impl Drop for Bomb {
    #[cold]
    fn drop(&mut self) {
        say(format_args!("{}", self.0));
        std::process::abort();
    }
}
