//! Lines on standard error, for libraries in programs of others.

use std::fmt;
use std::io::Write;
use std::sync::OnceLock;

/// What a library reports. Warnings are always written; what it decides only if the user asks for it.
#[derive(Debug)]
pub struct Log {
    /// Names of environment variables with the level. The first that is not empty counts.
    variables: &'static [&'static str],
    is_info_wanted: OnceLock<bool>,
}

impl Log {
    /// A log whose level the first of these environment variables sets that is not empty.
    #[must_use]
    pub const fn new(variables: &'static [&'static str]) -> Log {
        Log { variables, is_info_wanted: OnceLock::new() }
    }

    /// Reports that something failed.
    pub fn warn(&self, text: fmt::Arguments<'_>) {
        let line = format!("telpher (process {}): {text}\n", std::process::id());
        // A program may have closed its standard error.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    /// Reports what the library decides. The environment is read by the first call.
    pub fn info(&self, text: fmt::Arguments<'_>) {
        let is_wanted = self.is_info_wanted.get_or_init(|| {
            let mut values = self.variables.iter().filter_map(|name| std::env::var(name).ok());
            values.find(|value| !value.is_empty()).is_some_and(|level| wants_info(&level))
        });
        if *is_wanted {
            self.warn(text);
        }
    }
}

/// Whether this level includes decisions. Its name may be in upper or lower case. Levels beyond `info` show no more.
fn wants_info(level: &str) -> bool {
    ["info", "debug", "trace"].iter().any(|name| level.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_level_may_be_in_upper_case() {
        for name in ["info", "INFO", "Debug", "trace"] {
            assert!(wants_info(name), "{name}");
        }
        for name in ["warn", "WARN", "error", "none", ""] {
            assert!(!wants_info(name), "{name}");
        }
    }
}
