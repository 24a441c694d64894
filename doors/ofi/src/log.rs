//! What the provider reports on standard error. libfabric's own log is not used: its functions cannot be found where
//! Python loads libfabric without making its symbols known.

use std::fmt;
use std::io::Write;
use std::sync::OnceLock;

/// How important a line is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Level {
    /// The program cannot do what it asked for.
    Warn,
    /// Why something was chosen or not offered.
    Info,
}

/// Reads the level from `TELPHER_LOG`, else from libfabric's `FI_LOG_LEVEL`.
fn threshold() -> Level {
    static THRESHOLD: OnceLock<Level> = OnceLock::new();
    *THRESHOLD.get_or_init(|| {
        let value = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        value("TELPHER_LOG").or_else(|| value("FI_LOG_LEVEL")).map_or(Level::Warn, |name| level(&name))
    })
}

/// Returns the level with this name, in upper or lower case. libfabric's levels beyond `info` show more than this
/// library has.
fn level(name: &str) -> Level {
    match name.to_ascii_lowercase().as_str() {
        "info" | "debug" | "trace" => Level::Info,
        _ => Level::Warn,
    }
}

/// Writes a line if the user wants to see it.
pub(crate) fn line(level: Level, text: fmt::Arguments<'_>) {
    if level <= threshold() {
        let line = format!("telpher (process {}): {text}\n", std::process::id());
        // A program may have closed its standard error.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// Reports that the program cannot do what it asked for.
pub(crate) fn warn(text: fmt::Arguments<'_>) {
    line(Level::Warn, text);
}

/// Reports why something was chosen or not offered.
pub(crate) fn info(text: fmt::Arguments<'_>) {
    line(Level::Info, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_level_may_be_in_upper_case() {
        for name in ["info", "INFO", "Debug", "trace"] {
            assert_eq!(level(name), Level::Info, "{name}");
        }
        for name in ["warn", "WARN", "error", "none"] {
            assert_eq!(level(name), Level::Warn, "{name}");
        }
    }
}
