//! A file that says for call sites whether the device or the CPU executes their calls.
//!
//! ```text
//! # telpher verdicts 1
//! device 3f1c…9a 0x1a2b30 /usr/bin/redis-server
//! cpu    -       0x5d0    /opt/program without a build-id
//! ```
//!
//! A site is the return address of its calls, relative to the first address at which its file is mapped. It is
//! recognised by the file's build-id; a file without one by its path.

use std::fmt::Write as _;

/// The first line of a file.
const FIRST_LINE: &str = "# telpher verdicts 1";

/// The executor of one call site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SiteVerdict {
    /// Whether the device executes the calls; otherwise the CPU.
    pub by_device: bool,
    /// The build-id of the site's file, in hexadecimal digits; empty if it has none.
    pub build_id: String,
    /// The return address, relative to the file's first mapping.
    pub offset: u64,
    /// The path of the file.
    pub path: String,
}

/// Why a text is no list of verdicts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VerdictsError {
    /// The first line is another one.
    FirstLine,
    /// A line, counted from 1, is no verdict.
    Line(usize),
}

impl std::fmt::Display for VerdictsError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            VerdictsError::FirstLine => {
                write!(out, "its first line is not `{FIRST_LINE}`: write it with `telpher record predict --verdicts`")
            }
            VerdictsError::Line(line) => {
                write!(out, "line {line} is not `device BUILD-ID OFFSET PATH` or `cpu BUILD-ID OFFSET PATH`")
            }
        }
    }
}

impl std::error::Error for VerdictsError {}

/// Returns the text of a file with these verdicts.
#[must_use]
pub fn write(verdicts: &[SiteVerdict]) -> String {
    let mut text = format!("{FIRST_LINE}\n");
    for SiteVerdict { by_device, build_id, offset, path } in verdicts {
        let executor = if *by_device { "device" } else { "cpu   " };
        let build_id = if build_id.is_empty() { "-" } else { build_id };
        // A path may have any characters but a line's end, which would begin another verdict.
        let path = path.replace(['\n', '\r'], "?");
        let _ = writeln!(text, "{executor} {build_id} {offset:#x} {path}");
    }
    text
}

/// Reads the text of a file.
///
/// # Errors
/// If a line is none of a verdict, a comment, or empty.
pub fn parse(text: &str) -> Result<Vec<SiteVerdict>, VerdictsError> {
    let mut lines = text.lines().enumerate();
    if lines.next().is_none_or(|(_, line)| line != FIRST_LINE) {
        return Err(VerdictsError::FirstLine);
    }
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines.map(|(at, line)| parse_line(line).ok_or(VerdictsError::Line(at + 1))).collect()
}

fn parse_line(line: &str) -> Option<SiteVerdict> {
    let (executor, rest) = line.split_once(' ')?;
    let by_device = match executor {
        "device" => true,
        "cpu" => false,
        _ => return None,
    };
    let (build_id, rest) = rest.trim_start().split_once(' ')?;
    let (offset, path) = rest.trim_start().split_once(' ')?;
    let offset = u64::from_str_radix(offset.strip_prefix("0x")?, 16).ok()?;
    let is_id = build_id == "-" || build_id.bytes().all(|digit| digit.is_ascii_hexdigit());
    let build_id = if build_id == "-" { String::new() } else { build_id.to_ascii_lowercase() };
    is_id.then(|| SiteVerdict { by_device, build_id, offset, path: path.trim_start().to_owned() })
}

/// Returns the verdict for a site; `None` if there is none.
#[must_use]
pub fn find(verdicts: &[SiteVerdict], path: &[u8], build_id: &[u8], offset: u64) -> Option<bool> {
    let has_id = |digits: &str| {
        let digit = |at: usize| digits.as_bytes().get(at).and_then(|digit| char::from(*digit).to_digit(16));
        let byte = |at: usize| Some(digit(2 * at)? << 4 | digit(2 * at + 1)?);
        digits.len() == 2 * build_id.len()
            && build_id.iter().enumerate().all(|(at, of_file)| byte(at) == Some(u32::from(*of_file)))
    };
    let is_site = |verdict: &&SiteVerdict| {
        let same_file = if verdict.build_id.is_empty() {
            build_id.is_empty() && verdict.path.as_bytes() == path
        } else {
            has_id(&verdict.build_id)
        };
        verdict.offset == offset && same_file
    };
    verdicts.iter().find(is_site).map(|verdict| verdict.by_device)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(by_device: bool, build_id: &str, offset: u64, path: &str) -> SiteVerdict {
        SiteVerdict { by_device, build_id: build_id.into(), offset, path: path.into() }
    }

    #[test]
    fn verdicts_are_read_as_they_were_written() {
        let all = [verdict(true, "3f1c9a", 0x1a2b30, "/usr/bin/redis"), verdict(false, "", 0x5d0, "/opt/a program")];
        assert_eq!(parse(&write(&all)).unwrap(), all);
        assert_eq!(parse(&(write(&all) + "\n# by hand\ncpu - 0x7 /x\n")).unwrap().len(), 3);
        assert_eq!(parse(&write(&[verdict(true, "", 1, "/a\ncpu - 0x2 /b")])).unwrap().len(), 1);
    }

    #[test]
    fn other_texts_are_refused_with_the_line() {
        assert_eq!(parse(""), Err(VerdictsError::FirstLine));
        assert_eq!(parse("device 3f 0x1 /x\n"), Err(VerdictsError::FirstLine));
        for line in ["device", "device 3f", "gpu 3f 0x1 /x", "device 3f 17 /x", "device zz 0x1 /x", "cpu - 0x /x"] {
            let text = format!("{FIRST_LINE}\n\n{line}\n");
            assert_eq!(parse(&text), Err(VerdictsError::Line(3)), "{line}");
        }
    }

    #[test]
    fn a_site_is_known_by_its_build_id_or_without_one_by_its_path() {
        let all = [verdict(true, "0a1b", 16, "/old/path"), verdict(false, "", 16, "/opt/program")];
        assert_eq!(find(&all, b"/new/path", &[0x0a, 0x1b], 16), Some(true));
        assert_eq!(find(&all, b"/old/path", &[0x0a, 0x1c], 16), None);
        assert_eq!(find(&all, b"/old/path", &[0x0a, 0x1b], 17), None);
        assert_eq!(find(&all, b"/opt/program", &[], 16), Some(false));
        assert_eq!(find(&all, b"/opt/program", &[1], 16), None);
    }
}
