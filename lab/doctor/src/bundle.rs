//! Everything that the doctor reads, as a file, so that a machine can be examined remotely.
//!
//! ```text
//! { "telpher_bundle": 1,
//!   "files": { "/sys/bus/dsa/devices":      { "names": ["dsa0", "wq0.0"] },
//!              "/sys/bus/dsa/devices/dsa0": { "link": "../../../devices/pci0000:6a/0000:6a:01.0/dsa0" },
//!              "/sys/devices/…/dsa0/state": { "text": "enabled\n" },
//!              "/boot/config-6.12.1":       { "error": 2 } },
//!   "nodes": { "/dev/dsa/wq0.0": { "open": 13, … } } }
//! ```
//!
//! A bundle contains each path once, by its real name; other spellings through links are resolved as the kernel does. A
//! path that was not read is absent; reading it from the bundle is a distinct error, never "no such file".

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use telpher_hw::Files;

/// The format that this version writes and reads.
const FORMAT: u32 = 1;
/// Maximum links in one path resolution. Source: path_resolution(7).
const MAX_LINKS: u32 = 40;
/// Largest bundle that is read, in bytes; that of a large machine has some 100 KB.
const MAX_BYTES: u64 = 64 << 20;

/// Longest path. Source: Linux include/uapi/linux/limits.h, PATH_MAX.
pub(super) const MAX_PATH: usize = 4096;
/// Maximum names in a folder; the largest machines have some thousand PCI functions.
const MAX_NAMES: usize = 8192;
/// Maximum lines of the kernel's log; the newest are kept.
pub(super) const MAX_LINES: usize = 200;

/// One machine's answers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Bundle {
    /// The format.
    #[serde(rename = "telpher_bundle")]
    pub(super) format: u32,
    /// The telpher version that wrote it.
    #[serde(default)]
    pub(super) recorded_by: String,
    /// Instructions that `telpher run` emulates; absent outside of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) emulated: Option<String>,
    /// The process whose libraries are examined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) program: Option<u32>,
    /// Answers of the nodes of enabled queues, by path.
    #[serde(default)]
    pub(super) nodes: BTreeMap<String, Node>,
    /// Lines of the kernel's log about the device or the IOMMU.
    #[serde(default)]
    pub(super) messages: Vec<String>,
    /// Answers of files, by their real path.
    #[serde(default)]
    pub(super) files: BTreeMap<String, Answer>,
}

/// The answer of one path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    /// A file's content.
    Text(String),
    /// Content that is not UTF-8, in hexadecimal digits.
    Bytes(String),
    /// The target of a link, as written.
    Link(String),
    /// Names in a directory.
    Names(Vec<String>),
    /// The system's error number.
    Error(i32),
}

/// The answers of a queue's node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Node {
    /// Error number of stat(2); if present, nothing else is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) stat: Option<i32>,
    /// True for a character device.
    #[serde(default)]
    pub(super) device: bool,
    /// Permission bits, in octal digits.
    #[serde(default)]
    pub(super) mode: String,
    /// User ID of the owner.
    #[serde(default)]
    pub(super) uid: u32,
    /// Group ID.
    #[serde(default)]
    pub(super) gid: u32,
    /// Error number of open(2) for reading and writing; absent if it worked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) open: Option<i32>,
    /// Error number of mmap(2) of the portal; absent if it worked or open(2) did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) map: Option<i32>,
}

/// Why a bundle could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// The file cannot be read.
    #[error("cannot read the bundle {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        #[source]
        /// The cause.
        source: io::Error,
    },
    /// The file is too long.
    #[error("{} is longer than the maximum of a bundle ({MAX_BYTES} bytes)", path.display())]
    Long {
        /// The file.
        path: PathBuf,
    },
    /// The file is not a bundle.
    #[error("{} is not a bundle of `telpher doctor --record`", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        #[source]
        /// The cause.
        source: serde_json::Error,
    },
    /// The file contains more than a machine can have.
    #[error("{} is not a recording of a machine: {what}", path.display())]
    Crowded {
        /// The file.
        path: PathBuf,
        /// The file.
        what: String,
    },
    /// The file has another format version.
    #[error("{} is a bundle of format {found}, but this telpher reads format {FORMAT}; use the version that wrote it \
             ({by})", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The format in the file.
        found: u32,
        /// The telpher version that wrote it.
        by: String,
    },
    /// The file cannot be written.
    #[error("cannot write the bundle to {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        #[source]
        /// The cause.
        source: io::Error,
    },
}

impl Bundle {
    /// Returns an empty bundle of this version.
    pub(super) fn new() -> Self {
        let recorded_by = format!("telpher {}", env!("CARGO_PKG_VERSION"));
        Bundle { format: FORMAT, recorded_by, ..Bundle::default() }
    }

    /// Reads a bundle.
    pub(super) fn load(path: &Path) -> Result<Self, BundleError> {
        let read = |source| BundleError::Read { path: path.into(), source };
        let mut text = Vec::new();
        let file = std::fs::File::open(path).map_err(read)?;
        io::Read::read_to_end(&mut io::Read::take(file, MAX_BYTES + 1), &mut text).map_err(read)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(BundleError::Long { path: path.into() });
        }
        let bundle: Bundle =
            serde_json::from_slice(&text).map_err(|source| BundleError::Parse { path: path.into(), source })?;
        if bundle.format != FORMAT {
            return Err(BundleError::Format { path: path.into(), found: bundle.format, by: bundle.recorded_by });
        }
        match bundle.crowded() {
            Some(what) => Err(BundleError::Crowded { path: path.into(), what }),
            None => Ok(bundle),
        }
    }

    /// Returns what exceeds the limits, which keep an examination short.
    fn crowded(&self) -> Option<String> {
        let is_crowd = |answer: &Answer| matches!(answer, Answer::Names(names) if names.len() > MAX_NAMES);
        if let Some((folder, _)) = self.files.iter().find(|(_, answer)| is_crowd(answer)) {
            let folder: String = folder.chars().take(80).filter(|c| !c.is_control()).collect();
            return Some(format!("{folder} has more than {MAX_NAMES} names"));
        }
        (self.messages.len() > MAX_LINES).then(|| format!("it has more than {MAX_LINES} lines of the kernel's log"))
    }

    /// Writes the bundle.
    pub(super) fn save(&self, path: &Path) -> Result<(), BundleError> {
        let text = serde_json::to_string_pretty(self).expect("a bundle is plain data with string keys") + "\n";
        telpher_os::write_file(path, text.as_bytes()).map_err(|source| BundleError::Write { path: path.into(), source })
    }

    /// Returns the number of answers.
    pub(super) fn answers(&self) -> usize {
        self.files.len() + self.nodes.len()
    }

    fn walk(&self, path: &Path, follow: bool) -> io::Result<String> {
        resolve(path, follow, |at| match self.files.get(at) {
            Some(Answer::Link(target)) => Ok(Some(target.clone())),
            _ => Ok(None),
        })
    }

    /// Returns the answer for a real path that was not recorded, from the answers of the folders above it.
    fn missing(&self, path: &str) -> io::Error {
        let (mut above, mut name) = split(path);
        loop {
            match self.files.get(above) {
                Some(Answer::Error(errno)) => return io::Error::from_raw_os_error(*errno),
                Some(Answer::Names(names)) if !names.iter().any(|known| known == name) => {
                    return io::Error::from_raw_os_error(libc::ENOENT);
                }
                Some(Answer::Text(_) | Answer::Bytes(_)) => return io::Error::from_raw_os_error(libc::ENOTDIR),
                _ if above == "/" => return io::Error::new(io::ErrorKind::Unsupported, "not recorded in this bundle"),
                _ => (above, name) = split(above),
            }
        }
    }
}

/// Splits a path into its folder and its last name.
fn split(path: &str) -> (&str, &str) {
    match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some(parts) => parts,
        None => ("/", path),
    }
}

/// Resolves a path through links, as the kernel does; `link` returns the target of a path if it is a link. With
/// `follow` a link at the end is followed too.
pub(super) fn resolve(
    path: &Path,
    follow: bool,
    mut link: impl FnMut(&str) -> io::Result<Option<String>>,
) -> io::Result<String> {
    let text = path.to_string_lossy();
    let mut waiting: Vec<String> = text.split('/').rev().map(String::from).collect();
    let (mut at, mut links) = (String::new(), 0);
    while let Some(part) = waiting.pop() {
        match part.as_str() {
            "" | "." => continue,
            ".." => {
                at.truncate(at.rfind('/').unwrap_or(0));
                continue;
            }
            _ => {}
        }
        let next = format!("{at}/{part}");
        let target = if waiting.is_empty() && !follow { None } else { link(&next)? };
        let Some(target) = target else {
            at = next;
            continue;
        };
        if target.len() >= MAX_PATH {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        if target.starts_with('/') {
            at.clear();
        }
        waiting.extend(target.split('/').rev().map(String::from));
    }
    Ok(if at.is_empty() { "/".into() } else { at })
}

/// Encodes bytes in hexadecimal.
pub(super) fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Decodes hexadecimal digits; returns no bytes if they are malformed.
fn from_hex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    pairs.collect::<Option<Vec<u8>>>().unwrap_or_default()
}

impl Files for Bundle {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let at = self.walk(path, true)?;
        match self.files.get(&at) {
            Some(Answer::Text(text)) => Ok(text.clone().into_bytes()),
            Some(Answer::Bytes(digits)) => Ok(from_hex(digits)),
            Some(Answer::Names(_)) => Err(io::Error::from_raw_os_error(libc::EISDIR)),
            Some(Answer::Error(errno)) => Err(io::Error::from_raw_os_error(*errno)),
            // A resolved path never ends at a link that is followed.
            Some(Answer::Link(_)) | None => Err(self.missing(&at)),
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let at = self.walk(path, true)?;
        match self.files.get(&at) {
            Some(Answer::Names(names)) => {
                let mut names: Vec<OsString> = names.iter().map(OsString::from).collect();
                names.sort();
                Ok(names)
            }
            Some(Answer::Error(errno)) => Err(io::Error::from_raw_os_error(*errno)),
            Some(Answer::Text(_) | Answer::Bytes(_)) => Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
            Some(Answer::Link(_)) | None => Err(self.missing(&at)),
        }
    }

    fn link(&self, path: &Path) -> io::Result<PathBuf> {
        let at = self.walk(path, false)?;
        match self.files.get(&at) {
            Some(Answer::Link(target)) => Ok(target.into()),
            Some(Answer::Error(errno)) => Err(io::Error::from_raw_os_error(*errno)),
            Some(Answer::Text(_) | Answer::Bytes(_) | Answer::Names(_)) => {
                Err(io::Error::from_raw_os_error(libc::EINVAL))
            }
            None => Err(self.missing(&at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(files: &[(&str, Answer)]) -> Bundle {
        let files = files.iter().map(|(path, answer)| ((*path).to_owned(), answer.clone())).collect();
        Bundle { files, ..Bundle::new() }
    }

    fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> Option<i32> {
        result.unwrap_err().raw_os_error()
    }

    #[test]
    fn every_spelling_of_a_path_has_the_same_answer() {
        let b = bundle(&[
            ("/bus/dsa0", Answer::Link("../devices/pci/dsa0".into())),
            ("/devices/pci/dsa0/state", Answer::Text("enabled\n".into())),
            ("/devices/pci/dsa0/driver", Answer::Link("/bus/idxd".into())),
            ("/bus/idxd", Answer::Names(vec!["bind".into()])),
        ]);
        for path in ["/bus/dsa0/state", "/devices/pci/dsa0/state", "/bus/./dsa0/../dsa0/state", "/../bus/dsa0//state"] {
            assert_eq!(b.read(Path::new(path)).unwrap(), b"enabled\n", "{path}");
        }
        assert_eq!(b.link(Path::new("/bus/dsa0/driver")).unwrap(), Path::new("/bus/idxd"));
        assert_eq!(b.list(Path::new("/bus/dsa0/driver")).unwrap(), ["bind"]);
        assert_eq!(errno(b.link(Path::new("/bus/dsa0/state"))), Some(libc::EINVAL));
    }

    #[test]
    fn missing_and_unrecorded_paths_are_distinguished() {
        let b = bundle(&[
            ("/sys/bus", Answer::Names(vec!["pci".into()])),
            ("/etc/secret", Answer::Error(libc::EACCES)),
            ("/proc/version", Answer::Text("Linux".into())),
        ]);
        assert_eq!(errno(b.read(Path::new("/sys/bus/dsa/devices"))), Some(libc::ENOENT));
        assert_eq!(errno(b.read(Path::new("/etc/secret/file"))), Some(libc::EACCES));
        assert_eq!(errno(b.list(Path::new("/proc/version/x"))), Some(libc::ENOTDIR));
        let unasked = b.read(Path::new("/sys/bus/pci/devices")).unwrap_err();
        assert_eq!((unasked.kind(), unasked.raw_os_error()), (io::ErrorKind::Unsupported, None));
    }

    #[test]
    fn cyclic_links_are_an_error() {
        let b = bundle(&[("/a", Answer::Link("b".into())), ("/b", Answer::Link("/a/c".into()))]);
        assert_eq!(errno(b.read(Path::new("/a"))), Some(libc::ELOOP));
    }

    #[test]
    fn bytes_round_trip_and_malformed_digits_are_empty() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&all)), all);
        for digits in ["0", "zz", "0011x", "äö"] {
            assert!(from_hex(digits).is_empty(), "{digits}");
        }
    }
}
