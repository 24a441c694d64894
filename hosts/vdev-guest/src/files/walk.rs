//! From a path as a program says it to what stands there: name by name, through our links and the machine's.
//!
//! The kernel cannot do this for us: a link of the shadow tree may lead to a directory of the machine (`subsystem` of a PCI
//! function), and one of the machine to a directory that gains entries (`/sys/bus/pci/devices`). No allocation, some six
//! kilobytes of stack.

use crate::files::path::{LONGEST, Path};
use crate::files::shadow::{self, Shadow, Side};
use crate::sys::Errno;
use rustix::fs::{AtFlags, CWD, FileType, Stat};

/// Links followed in one path before it counts as a loop. Source: Linux fs/namei.c, MAXSYMLINKS.
const MAX_LINKS: u32 = 40;

/// What stands at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// A directory.
    Directory,
    /// A link that was not to be followed.
    Link,
    /// Anything else.
    File,
    /// Nothing, in a directory that exists.
    Missing,
    /// Beyond a link of /proc that only the kernel can follow; the path is as far as it was walked, with the rest behind it.
    Beyond,
}

/// Where a path has led.
#[derive(Debug)]
pub(crate) struct Found {
    /// The path without links, `.` and `..`.
    pub(crate) path: Path,
    /// Whose it is.
    pub(crate) side: Side,
    /// What it is.
    pub(crate) what: What,
    /// What the tree has there, if the side is ours and something is there.
    pub(crate) status: Option<Stat>,
    /// The way led through something of ours, so that the kernel would not find the same.
    pub(crate) crossed: bool,
}

impl Found {
    /// True if the path is ours.
    pub(crate) fn is_ours(&self) -> bool {
        self.side == Side::Ours
    }

    fn new(path: &Path, side: Side, what: What, status: Option<Stat>, crossed: bool) -> Self {
        Found { path: path.clone(), side, what, status, crossed }
    }
}

/// Walks a path.
#[derive(Clone, Copy)]
pub(crate) struct Walk<'a> {
    /// The tree.
    pub(crate) shadow: Shadow<'a>,
    /// Path of what a link in /proc stands for, if it is ours or leads to us (`/proc/self/fd/3`, `/proc/self/cwd`).
    pub(crate) magic: &'a dyn Fn(&Path) -> Option<Path>,
}

impl Walk<'_> {
    /// Walks `text` from `base`, which an absolute text does not need. With `follow`, a link at its end is followed as well.
    ///
    /// # Errors
    /// What the kernel answers on the way: ENOENT, ENOTDIR, ELOOP, EACCES, ENAMETOOLONG.
    pub(crate) fn to(&self, base: &Path, text: &[u8], follow: bool) -> Result<Found, Errno> {
        if text.is_empty() {
            return Err(Errno::NOENT);
        }
        let mut rest = Rest::new(text)?;
        let mut at = if text[0] == b'/' { Path::root() } else { base.clone() };
        let mut side = self.shadow.side(&at);
        let mut crossed = side == Side::Ours;
        let mut links = 0;
        let mut buffer = [0; LONGEST];
        while let Some((range, last)) = rest.next() {
            let name = &rest.bytes[range];
            match name {
                b"." => continue,
                b".." => {
                    at.pop();
                    side = self.shadow.side(&at);
                    crossed |= side == Side::Ours;
                    continue;
                }
                _ => at.push(name)?,
            }
            // A slash behind the name asks for what a link leads to, and for a directory.
            let directory_wanted = !last || rest.ended_by_slash;
            let follows = follow || directory_wanted;
            if side == Side::Merged && self.shadow.is_known_merged(&at) {
                continue;
            }
            let ours = if side == Side::Real { None } else { self.shadow.look(&at) };
            let link = match ours {
                Some(found) => match shadow::kind(&found) {
                    FileType::Directory => {
                        side = self.shadow.side_of_directory(&at);
                        crossed |= side == Side::Ours;
                        continue;
                    }
                    FileType::Symlink if follows => {
                        crossed = true;
                        self.shadow.link(&at, &mut buffer)?
                    }
                    FileType::Symlink => return Ok(Found::new(&at, Side::Ours, What::Link, Some(found), true)),
                    _ if directory_wanted => return Err(Errno::NOTDIR),
                    _ => return Ok(Found::new(&at, Side::Ours, What::File, Some(found), true)),
                },
                None if side == Side::Ours => {
                    return match last {
                        true => Ok(Found::new(&at, side, What::Missing, None, true)),
                        false => Err(Errno::NOENT),
                    };
                }
                None => match real(&at)? {
                    None if last => return Ok(Found::new(&at, Side::Real, What::Missing, None, crossed)),
                    None => return Err(Errno::NOENT),
                    Some(FileType::Directory) => {
                        side = Side::Real;
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
                            return Ok(Found::new(&at, Side::Real, What::Beyond, None, crossed));
                        }
                    },
                    Some(FileType::Symlink) if follows => shadow::link(at.as_c_str(), &mut buffer)?,
                    Some(FileType::Symlink) => return Ok(Found::new(&at, Side::Real, What::Link, None, crossed)),
                    Some(_) if directory_wanted => return Err(Errno::NOTDIR),
                    Some(_) => return Ok(Found::new(&at, Side::Real, What::File, None, crossed)),
                },
            };
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::LOOP);
            }
            if link.first() == Some(&b'/') {
                at = Path::root();
                side = Side::Merged;
            } else {
                at.pop();
            }
            rest.prepend(link)?;
        }
        if side == Side::Merged && at.as_bytes() != b"/" && !matches!(real(&at), Ok(Some(FileType::Directory))) {
            // The machine has no such directory: the one in the tree is all there is.
            side = Side::Ours;
        }
        let status = if side == Side::Ours { self.shadow.look(&at) } else { None };
        Ok(Found::new(&at, side, What::Directory, status, crossed || side == Side::Ours))
    }
}

/// What the machine itself has at a path.
fn real(path: &Path) -> Result<Option<FileType>, Errno> {
    match rustix::fs::statat(CWD, path.as_c_str(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(status) => Ok(Some(shadow::kind(&status))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// True for the links of /proc whose text is no path: those in a process's directory.
fn is_magic(path: &Path) -> bool {
    path.is_within(b"/proc") && path.as_bytes().iter().filter(|byte| **byte == b'/').count() > 2
}

/// What is still to be walked. It lies at the end of its buffer, so that a link's text can be put in front.
struct Rest {
    bytes: [u8; 2048],
    start: usize,
    /// The whole text ends with a slash (or `/.`), asking for a directory.
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

    /// Puts a link's text in front of what is left.
    fn prepend(&mut self, link: &[u8]) -> Result<(), Errno> {
        if self.start < self.bytes.len() {
            self.put(b"/")?;
        }
        self.put(link)
    }

    /// The next name, and whether it is the last.
    fn next(&mut self) -> Option<(std::ops::Range<usize>, bool)> {
        let skipped = self.text().iter().take_while(|byte| **byte == b'/').count();
        let start = self.start + skipped;
        let len = self.bytes[start..].iter().take_while(|byte| **byte != b'/').count();
        self.start = start + len;
        (len > 0).then(|| (start..start + len, self.text().iter().all(|byte| *byte == b'/')))
    }
}
