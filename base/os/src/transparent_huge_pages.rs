//! The system's setting for transparent huge pages.

use std::fmt;
use std::fs::read_to_string;

/// The folder of the settings. Source: Linux, Documentation/admin-guide/mm/transhuge.rst.
const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";

/// What moving pages costs where the setting is `never`, as the end of a sentence.
///
/// Source: measured, uses/tier/README.md: 178 and 59 µs for a huge page, 0.49 and 0.37 µs for each of 512 small
/// pages, on an Intel Xeon and an AMD EPYC.
pub const COST_OF_NEVER: &str =
    "2 MiB move as 512 small pages, which takes 1.4 to 3.2 times as long as one huge page (measured on two machines)";

/// The system's setting for transparent huge pages of 2 MiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransparentHugePages {
    /// Memory gets huge pages wherever they fit.
    Always,
    /// Memory gets huge pages where the program asks for them (`MADV_HUGEPAGE`).
    Madvise,
    /// No memory gets huge pages, also where the program asks for them.
    Never,
    /// The kernel has no transparent huge pages, or does not report the setting.
    Unknown,
}

impl TransparentHugePages {
    /// Reads the current setting.
    #[must_use]
    pub fn setting() -> TransparentHugePages {
        let read = |path: &str| read_to_string(format!("{FOLDER}/{path}")).unwrap_or_default();
        TransparentHugePages::of(&read("enabled"), &read("hugepages-2048kB/enabled"))
    }

    /// Parses the texts of both files. The per-size setting takes precedence, unless it says `inherit` or its file is
    /// missing (before Linux 6.8).
    fn of(all: &str, of_size: &str) -> TransparentHugePages {
        let text = if of_size.is_empty() || of_size.contains("[inherit]") { all } else { of_size };
        let settings = [TransparentHugePages::Always, TransparentHugePages::Madvise, TransparentHugePages::Never];
        let is_chosen = |setting: &TransparentHugePages| text.contains(&format!("[{setting}]"));
        settings.into_iter().find(is_chosen).unwrap_or(TransparentHugePages::Unknown)
    }

    /// True if memory that asks for huge pages (`MADV_HUGEPAGE`) gets none.
    #[must_use]
    pub const fn are_off(self) -> bool {
        matches!(self, TransparentHugePages::Never | TransparentHugePages::Unknown)
    }
}

impl fmt::Display for TransparentHugePages {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            TransparentHugePages::Always => "always",
            TransparentHugePages::Madvise => "madvise",
            TransparentHugePages::Never => "never",
            TransparentHugePages::Unknown => "unknown",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::TransparentHugePages::{self, Always, Madvise, Never, Unknown};

    #[test]
    fn the_per_size_setting_wins_unless_it_inherits() {
        let of = TransparentHugePages::of;
        assert_eq!(of("always [madvise] never\n", ""), Madvise);
        assert_eq!(of("always madvise [never]\n", "always [inherit] madvise never\n"), Never);
        assert_eq!(of("always madvise [never]\n", "[always] inherit madvise never\n"), Always);
        assert_eq!(of("[always] madvise never\n", "always inherit madvise [never]\n"), Never);
        assert_eq!(of("", ""), Unknown);
        assert!(Never.are_off() && Unknown.are_off() && !Madvise.are_off() && !Always.are_off());
    }
}
