//! What the library reports on standard error.

use std::fmt;
use telpher_os::Log;

static LOG: Log = Log::new(&["TELPHER_LOG"]);

/// Reports that a call failed.
pub(crate) fn warn(text: fmt::Arguments<'_>) {
    LOG.warn(text);
}

/// Reports what the library does, if the user asks for it.
pub(crate) fn info(text: fmt::Arguments<'_>) {
    LOG.info(text);
}
