//! The program that the user names: the Data Mover Libraries in the files that it has mapped as code.

use crate::dml_library::DmlLibrary;
use std::collections::BTreeSet;

/// A process.
#[derive(Debug)]
pub(crate) struct Program {
    /// The file that lists what it has mapped.
    pub(crate) maps: String,
    /// Whether that file was read.
    pub(crate) is_readable: bool,
    /// The libraries, with the files that contain them.
    pub(crate) libraries: Vec<(String, DmlLibrary)>,
    /// Mapped files that cannot be read, such as those that were deleted.
    pub(crate) unread: Vec<String>,
}

impl Program {
    /// Reads files with `text`.
    pub(super) fn of(text: impl Fn(&str) -> Option<String>, pid: u32) -> Program {
        let maps = format!("/proc/{pid}/maps");
        let listed = text(&maps);
        let mapped = files_of(listed.as_deref().unwrap_or_default());
        let (mut libraries, mut unread) = (Vec::new(), Vec::new());
        for path in mapped {
            // The path is one of the process, which may see other files at it than the doctor. Earlier versions
            // recorded the doctor's own.
            match text(&format!("/proc/{pid}/root{path}")).or_else(|| text(path)) {
                Some(facts) => {
                    libraries.extend(DmlLibrary::of_line(&facts).map(|library| (path.to_owned(), library)));
                }
                None => unread.push(path.to_owned()),
            }
        }
        // A process that has ended maps nothing.
        let is_readable = listed.is_some_and(|listed| !listed.is_empty());
        Program { maps, is_readable, libraries, unread }
    }
}

/// Returns the files that `/proc/PID/maps` lists as mapped as code.
pub(crate) fn files_of(maps: &str) -> BTreeSet<&str> {
    maps.lines().filter_map(file_of).collect()
}

/// Returns the file of a line of `/proc/PID/maps` if it is mapped as code. Source: proc_pid_maps(5).
fn file_of(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(' ')?;
    let is_code = rest.split(' ').next()?.contains('x');
    let at = line.find(" /")?;
    is_code.then(|| &line[at + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_mapped_as_code_are_found() {
        let line = "7f00-7f10 r-xp 00001000 fe:00 131 /usr/lib/a b.so";
        assert_eq!(file_of(line), Some("/usr/lib/a b.so"));
        assert_eq!(file_of("7f00-7f10 r--p 00001000 fe:00 131 /usr/lib/a.so"), None);
        assert_eq!(file_of("7f00-7f10 r-xp 00000000 00:00 0 [vdso]"), None);
        assert_eq!(file_of(""), None);
    }

    #[test]
    fn a_file_is_read_where_the_process_sees_it_and_else_at_its_own_path() {
        let library = |version: &str| Some(format!("Intel's Data Mover Library, version {version}"));
        let program = |has_root: bool| {
            let in_root = ["/proc/17/root", "/a.so"].concat();
            let text = |path: &str| match path {
                "/proc/17/maps" => Some("7f00-7f10 r-xp 0 0:0 1 /a.so\n7f20-7f30 r-xp 0 0:0 2 /b.so".into()),
                path if has_root && path == in_root => library("1.2.0"),
                "/a.so" => library("1.1.0"),
                _ => None,
            };
            Program::of(text, 17)
        };
        for (has_root, version) in [(true, "1.2.0"), (false, "1.1.0")] {
            let Program { libraries, unread, .. } = program(has_root);
            assert_eq!(libraries[0].0, "/a.so");
            assert_eq!((libraries[0].1.version.as_str(), libraries.len()), (version, 1));
            assert_eq!(unread, ["/b.so"]);
        }
    }
}
