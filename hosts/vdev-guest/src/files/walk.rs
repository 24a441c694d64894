//! Resolves a path of the program: component by component, through our links and the machine's.
//!
//! The kernel cannot do this: a link of the shadow tree may lead to a directory of the machine (`subsystem` of a PCI
//! function), and a link of the machine to a merged directory (`/sys/bus/pci/devices`). It allocates nothing and needs
//! about six kilobytes of stack.

use crate::files::path::{LONGEST, Path};
use crate::files::shadow::{self, Ownership, Shadow};
use crate::sys::Errno;
use rustix::fs::{AtFlags, CWD, FileType, Stat};

/// Most links followed in one path; more count as a loop. Source: Linux fs/namei.c, MAXSYMLINKS.
const MAX_LINKS: u32 = 40;

/// The kind of file at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileKind {
    /// A directory.
    Directory,
    /// A link that was not followed.
    Link,
    /// Anything else.
    File,
    /// Nothing, in a directory that exists.
    Missing,
    /// The target of a link in /proc that only the kernel can follow; the path contains the resolved part and the rest.
    Beyond,
}

/// The result of resolving a path.
#[derive(Debug)]
pub(crate) struct Found {
    /// The path without links, `.` and `..`.
    pub(crate) path: Path,
    /// Which tree it belongs to.
    pub(crate) ownership: Ownership,
    /// The kind of file.
    pub(crate) kind: FileKind,
    /// Its status in the tree, if it is ours and exists.
    pub(crate) status: Option<Stat>,
    /// The path led through an entry of ours, so that the kernel would not find the same file.
    pub(crate) crossed: bool,
}

impl Found {
    /// True if the path is ours.
    pub(crate) fn is_ours(&self) -> bool {
        self.ownership == Ownership::Ours
    }

    fn new(path: &Path, ownership: Ownership, kind: FileKind, status: Option<Stat>, crossed: bool) -> Self {
        Found { path: path.clone(), ownership, kind, status, crossed }
    }
}

/// Resolves paths.
#[derive(Clone, Copy)]
pub(crate) struct Walk<'a> {
    /// The shadow tree.
    pub(crate) shadow: Shadow<'a>,
    /// The target of a link in /proc (`/proc/self/fd/3`, `/proc/self/cwd`), if it is ours or leads to our files.
    pub(crate) magic: &'a dyn Fn(&Path) -> Option<Path>,
}

impl Walk<'_> {
    /// Resolves `text` from `base`; an absolute text ignores `base`. With `follow`, a final link is followed too.
    ///
    /// # Errors
    /// The kernel's: ENOENT, ENOTDIR, ELOOP, EACCES, ENAMETOOLONG.
    pub(crate) fn to(&self, base: &Path, text: &[u8], follow: bool) -> Result<Found, Errno> {
        if text.is_empty() {
            return Err(Errno::NOENT);
        }
        let mut rest = Rest::new(text)?;
        let mut at = if text[0] == b'/' { Path::root() } else { base.clone() };
        let mut ownership = self.shadow.ownership(&at);
        let mut crossed = ownership == Ownership::Ours;
        let mut links = 0;
        let mut buffer = [0; LONGEST];
        while let Some((range, last)) = rest.next() {
            let name = &rest.bytes[range];
            match name {
                b"." => continue,
                b".." => {
                    at.pop();
                    ownership = self.shadow.ownership(&at);
                    crossed |= ownership == Ownership::Ours;
                    continue;
                }
                _ => at.push(name)?,
            }
            // A slash after the name requests the target of a link, and a directory.
            let directory_wanted = !last || rest.ended_by_slash;
            let follows = follow || directory_wanted;
            if ownership == Ownership::Merged && self.shadow.is_known_merged(&at) {
                continue;
            }
            let ours = if ownership == Ownership::Real { None } else { self.shadow.look(&at) };
            let link = match ours {
                Some(found) => match shadow::kind(&found) {
                    FileType::Directory => {
                        ownership = self.shadow.ownership_of_directory(&at);
                        crossed |= ownership == Ownership::Ours;
                        continue;
                    }
                    FileType::Symlink if follows => {
                        crossed = true;
                        self.shadow.link(&at, &mut buffer)?
                    }
                    FileType::Symlink => {
                        return Ok(Found::new(&at, Ownership::Ours, FileKind::Link, Some(found), true));
                    }
                    _ if directory_wanted => return Err(Errno::NOTDIR),
                    _ => return Ok(Found::new(&at, Ownership::Ours, FileKind::File, Some(found), true)),
                },
                None if ownership == Ownership::Ours => {
                    return match last {
                        true => Ok(Found::new(&at, ownership, FileKind::Missing, None, true)),
                        false => Err(Errno::NOENT),
                    };
                }
                None => match real(&at)? {
                    None if last => return Ok(Found::new(&at, Ownership::Real, FileKind::Missing, None, crossed)),
                    None => return Err(Errno::NOENT),
                    Some(FileType::Directory) => {
                        ownership = Ownership::Real;
                        continue;
                    }
                    Some(FileType::Symlink) if follows && is_magic(&at) => match (self.magic)(&at) {
                        Some(path) => {
                            crossed = true;
                            let text = buffer.get_mut(..path.as_bytes().len()).ok_or(Errno::NAMETOOLONG)?;
                            text.copy_from_slice(path.as_bytes());
                            text
                        }
                        None => {
                            if !last || rest.ended_by_slash {
                                at.append(b"/")?;
                                at.append(rest.text())?;
                            }
                            return Ok(Found::new(&at, Ownership::Real, FileKind::Beyond, None, crossed));
                        }
                    },
                    Some(FileType::Symlink) if follows => shadow::link(at.as_c_str(), &mut buffer)?,
                    Some(FileType::Symlink) => {
                        return Ok(Found::new(&at, Ownership::Real, FileKind::Link, None, crossed));
                    }
                    Some(_) if directory_wanted => return Err(Errno::NOTDIR),
                    Some(_) => return Ok(Found::new(&at, Ownership::Real, FileKind::File, None, crossed)),
                },
            };
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::LOOP);
            }
            if link.first() == Some(&b'/') {
                at = Path::root();
                ownership = Ownership::Merged;
            } else {
                at.pop();
            }
            rest.prepend(link)?;
        }
        if ownership == Ownership::Merged
            && at.as_bytes() != b"/"
            && !matches!(real(&at), Ok(Some(FileType::Directory)))
        {
            // The machine has no such directory: only the tree's exists.
            ownership = Ownership::Ours;
        }
        let status = if ownership == Ownership::Ours { self.shadow.look(&at) } else { None };
        Ok(Found::new(&at, ownership, FileKind::Directory, status, crossed || ownership == Ownership::Ours))
    }
}

/// The file type of a path of the machine.
fn real(path: &Path) -> Result<Option<FileType>, Errno> {
    match rustix::fs::statat(CWD, path.as_c_str(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(status) => Ok(Some(shadow::kind(&status))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// True for the links in a process's directory in /proc, whose text is not a path.
fn is_magic(path: &Path) -> bool {
    path.is_within(b"/proc") && path.as_bytes().iter().filter(|byte| **byte == b'/').count() > 2
}

/// The unresolved rest of the path, at the end of its buffer, so that a link's text can be put before it.
struct Rest {
    bytes: [u8; 2048],
    start: usize,
    /// The whole text ends with a slash (or `/.`), which requests a directory.
    ended_by_slash: bool,
}

impl Rest {
    fn new(text: &[u8]) -> Result<Self, Errno> {
        let mut rest = Rest { bytes: [0; 2048], start: 2048, ended_by_slash: false };
        rest.put(text)?;
        rest.ended_by_slash = text.ends_with(b"/") || text.ends_with(b"/.");
        Ok(rest)
    }

    fn text(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn put(&mut self, text: &[u8]) -> Result<(), Errno> {
        let start = self.start.checked_sub(text.len()).ok_or(Errno::NAMETOOLONG)?;
        self.bytes[start..self.start].copy_from_slice(text);
        self.start = start;
        Ok(())
    }

    /// Puts a link's text before the rest.
    fn prepend(&mut self, link: &[u8]) -> Result<(), Errno> {
        if self.start < self.bytes.len() {
            self.put(b"/")?;
        }
        self.put(link)
    }

    /// The next component, and whether it is the last.
    fn next(&mut self) -> Option<(std::ops::Range<usize>, bool)> {
        let skipped = self.text().iter().take_while(|byte| **byte == b'/').count();
        let start = self.start + skipped;
        let len = self.bytes[start..].iter().take_while(|byte| **byte != b'/').count();
        self.start = start + len;
        (len > 0).then(|| (start..start + len, self.text().iter().all(|byte| *byte == b'/')))
    }
}
