//! What the provider reports on standard error. libfabric's own log is not used: its functions cannot be found where
//! Python loads libfabric without making its symbols known.

use std::fmt;
use telpher_os::Log;

/// The level is that of telpher, else that of libfabric.
static LOG: Log = Log::new(&["TELPHER_LOG", "FI_LOG_LEVEL"]);

/// Reports that the program cannot do what it asked for.
pub(crate) fn warn(text: fmt::Arguments<'_>) {
    LOG.warn(text);
}

/// Reports why something was chosen or not offered.
pub(crate) fn info(text: fmt::Arguments<'_>) {
    LOG.info(text);
}
