//! Messages about what a command chooses, on standard error.
//!
//! `-v` prints the level `info`: devices, kernels, NUMA nodes, files. `-vv` prints `debug` too. Without `-v`, the
//! variable `TELPHER_LOG` selects the level. Warnings and errors do not use this module: they are always printed.

use std::io::Write as _;
use std::sync::atomic::{AtomicU8, Ordering};

/// The variable that selects the level without `-v`.
pub(crate) const VARIABLE: &str = "TELPHER_LOG";

/// How much is printed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Level {
    /// Warnings and errors only.
    Warn,
    /// What the command chooses.
    Info,
    /// And details of it.
    Debug,
}

impl Level {
    /// The levels by name.
    const NAMED: [(&str, Level); 3] = [("warn", Level::Warn), ("info", Level::Info), ("debug", Level::Debug)];

    /// Returns the level for a number of `-v` and the value of the variable; `None` if the variable has another value.
    fn of(verbose: u8, variable: Option<&str>) -> Option<Level> {
        match (verbose, variable) {
            (0, None | Some("")) => Some(Level::Warn),
            (0, Some(name)) => Level::NAMED.iter().find(|(known, _)| *known == name).map(|(_, level)| *level),
            (1, _) => Some(Level::Info),
            _ => Some(Level::Debug),
        }
    }
}

/// The level of this process.
static LEVEL: AtomicU8 = AtomicU8::new(Level::Warn as u8);

/// Sets the level from the number of `-v` and `TELPHER_LOG`. A wrong value of the variable is reported and ignored.
pub(crate) fn start(verbose: u8) {
    let variable = std::env::var_os(VARIABLE).map(|value| value.to_string_lossy().into_owned());
    let level = Level::of(verbose, variable.as_deref()).unwrap_or_else(|| {
        let value = variable.unwrap_or_default();
        print("warning", &format!("{VARIABLE} is '{value}' and is ignored; use warn, info or debug"));
        Level::Warn
    });
    // Relaxed: a message that another thread prints in this moment may use the old level.
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Prints a message about a choice of the command, if the level is `info` or `debug`.
pub(crate) fn info(message: impl FnOnce() -> String) {
    report(Level::Info, "info", message);
}

/// Prints a message about a detail, if the level is `debug`.
pub(crate) fn debug(message: impl FnOnce() -> String) {
    report(Level::Debug, "debug", message);
}

fn report(level: Level, name: &str, message: impl FnOnce() -> String) {
    if level as u8 <= LEVEL.load(Ordering::Relaxed) {
        print(name, &message());
    }
}

fn print(name: &str, message: &str) {
    // The command does not depend on its messages.
    let _ = writeln!(std::io::stderr(), "telpher: {name}: {message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_stronger_than_the_variable() {
        assert_eq!(Level::of(0, None), Some(Level::Warn));
        assert_eq!(Level::of(0, Some("info")), Some(Level::Info));
        assert_eq!(Level::of(0, Some("debug")), Some(Level::Debug));
        assert_eq!(Level::of(1, Some("debug")), Some(Level::Info));
        assert_eq!(Level::of(2, Some("warn")), Some(Level::Debug));
        assert_eq!(Level::of(0, Some("loud")), None);
    }
}
