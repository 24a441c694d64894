//! What the library reports on standard error.

use std::fmt;
use std::io::Write;
use std::sync::OnceLock;

/// Reports that a call failed.
pub(crate) fn warn(text: fmt::Arguments<'_>) {
    let line = format!("telpher (process {}): {text}\n", std::process::id());
    // A program may have closed its standard error.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Reports what the library does, if `TELPHER_LOG` asks for it.
pub(crate) fn info(text: fmt::Arguments<'_>) {
    static IS_WANTED: OnceLock<bool> = OnceLock::new();
    let is_wanted = || matches!(std::env::var("TELPHER_LOG").as_deref(), Ok("info" | "debug" | "trace"));
    if *IS_WANTED.get_or_init(is_wanted) {
        warn(text);
    }
}
