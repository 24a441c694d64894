//! Which Data Mover Library an ELF file contains: Intel's, or telpher's replacement.
//!
//! Symbols say whose it is, and the record that `dml_get_library_version` returns says so where symbols are stripped.
//! The file comes from the examined machine, and is not trusted.

use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

/// Whose library it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Maker {
    Intel,
    Telpher,
}

/// A library that a file contains.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DmlLibrary {
    pub(crate) maker: Maker,
    /// The version of the interface; empty if the file does not contain it.
    pub(crate) version: String,
}

/// The names in the version records. Source: D111, `dml_get_library_version`; `doors/dml`.
const NAMES: [(Maker, &[u8]); 2] =
    [(Maker::Telpher, b"telpher, for Intel(R) DML\0"), (Maker::Intel, b"Intel(R) DML Software Library\0")];
/// Where the version is in the record, and its longest text. Source: D111, `dml_library_version_t`.
const VERSION: std::ops::Range<usize> = 61..81;
/// Longest section that is searched, in bytes. Source: chosen; it bounds the time for a large program.
const LONGEST: u64 = 64 << 20;
/// A function of every library with DML's interface for C.
const OF_ALL: &str = "dml_init_job";
/// A part of names that only telpher's library has.
const OF_TELPHER: &str = "telpher_dml";
/// How names begin that only Intel's library has. Source: D111, `nm libdml.a` and `nm libdmlhl.a`.
const OF_INTEL: [&str; 4] = ["dml_core_", "dml_ref_", "dml_legacy_dif_", "_ZN3dml4core"];

impl DmlLibrary {
    /// Returns the library that an ELF file contains.
    pub(crate) fn in_elf(bytes: &[u8]) -> Option<DmlLibrary> {
        let file = object::File::parse(bytes).ok()?;
        let (mut has_dml, mut has_intel, mut has_telpher) = (false, false, false);
        for symbol in file.symbols().chain(file.dynamic_symbols()).filter(|symbol| symbol.is_definition()) {
            let name = symbol.name().unwrap_or_default();
            has_dml |= name == OF_ALL;
            has_intel |= OF_INTEL.iter().any(|start| name.starts_with(start));
            has_telpher |= name.contains(OF_TELPHER);
        }
        let record = file.sections().filter(|section| section.size() <= LONGEST).find_map(|section| {
            // A compressed or cut section has no record.
            section.name().ok().filter(|name| name.starts_with(".rodata") || name.starts_with(".data"))?;
            version_record(section.data().ok()?)
        });
        let maker = match &record {
            _ if has_telpher => Maker::Telpher,
            _ if has_intel => Maker::Intel,
            Some((maker, _)) => *maker,
            None if has_dml => Maker::Intel,
            None => return None,
        };
        let version = record.map_or_else(String::new, |(_, version)| version);
        Some(DmlLibrary { maker, version })
    }

    /// Returns the library as a line of a recording.
    pub(crate) fn line(&self) -> String {
        let maker = match self.maker {
            Maker::Intel => "Intel's",
            Maker::Telpher => "telpher's",
        };
        let unknown = if self.version.is_empty() { "unknown" } else { &self.version };
        format!("{maker} Data Mover Library, version {unknown}")
    }

    /// Parses a line of a recording.
    pub(crate) fn of_line(line: &str) -> Option<DmlLibrary> {
        let (maker, version) = line.split_once(" Data Mover Library, version ")?;
        let maker = match maker {
            "Intel's" => Maker::Intel,
            "telpher's" => Maker::Telpher,
            _ => return None,
        };
        Some(DmlLibrary { maker, version: version.trim().into() })
    }
}

/// Finds a version record, and returns its maker and version.
fn version_record(data: &[u8]) -> Option<(Maker, String)> {
    for (maker, name) in NAMES {
        let places = data.windows(name.len()).enumerate().filter(|(_, window)| *window == name);
        for (at, _) in places {
            let text = data.get(at + VERSION.start..at + VERSION.end).unwrap_or_default();
            let version: String = text.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect();
            // The name alone is no record.
            if version.split('.').filter_map(|part| part.parse::<u32>().ok()).count() == 3 {
                return Some((maker, version));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str) -> Vec<u8> {
        let mut bytes = vec![0; 200];
        bytes[7..7 + name.len()].copy_from_slice(name.as_bytes());
        bytes[68..73].copy_from_slice(b"1.1.1");
        bytes
    }

    #[test]
    fn version_records_name_their_maker_and_version() {
        let of = |name| version_record(&record(name));
        assert_eq!(of("Intel(R) DML Software Library"), Some((Maker::Intel, "1.1.1".into())));
        assert_eq!(of("telpher, for Intel(R) DML"), Some((Maker::Telpher, "1.1.1".into())));
        assert_eq!(of("another library"), None);
        assert_eq!(version_record(&record("Intel(R) DML Software Library")[..40]), None, "cut off");
        // A name alone, such as that of a message, may stand before the record.
        let both = [b"Intel(R) DML Software Library\0".to_vec(), record("Intel(R) DML Software Library")].concat();
        assert_eq!(version_record(&both), Some((Maker::Intel, "1.1.1".into())));
    }

    #[test]
    fn a_line_of_a_recording_is_read_as_it_was_written() {
        for maker in [Maker::Intel, Maker::Telpher] {
            let library = DmlLibrary { maker, version: "1.2.0".into() };
            assert_eq!(DmlLibrary::of_line(&library.line()), Some(library));
        }
        assert_eq!(DmlLibrary::of_line("another's Data Mover Library, version 1"), None);
    }

    #[test]
    fn a_program_without_the_library_has_none_and_a_damaged_file_is_no_library() {
        // It has the names themselves, but in no record of a version.
        let test = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for len in [test.len(), test.len() / 2] {
            assert_eq!(DmlLibrary::in_elf(&test[..len]), None);
        }
        assert_eq!(DmlLibrary::in_elf(b"\x7fELF"), None);
    }
}
