//! The program's files: which of its descriptors and paths are ours.
//!
//! ```text
//! path ──► path::concerns? ──no──► the C library, unchanged
//!               │ yes
//!               ▼
//!             walk ──► ours: directory, link ──► the shadow tree, by the kernel itself
//!               │            attribute ────────► attribute: a memory file, filled by the driver
//!               │            node ─────────────► crate::node
//!               └────► the machine's ──────────► the C library
//! ```
//!
//! In the namespace view the kernel serves all of these, and every function here returns at once.

pub(crate) mod attribute;
pub(crate) mod descriptor;
pub(crate) mod listing;
pub(crate) mod path;
pub(crate) mod shadow;
pub(crate) mod status;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod walk;

use crate::files::attribute::Host;
use crate::files::path::{LONGEST, Path};
use crate::files::shadow::{Ownership, Shadow};
use crate::files::table::Kind;
use crate::files::walk::{FileKind, Found, Walk};
use crate::sync::{AtomicU8, Ordering};
use crate::sys::{self, Errno};
use crate::{node, perf, run, windows};
use rustix::fs::Stat;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use telpher_vdev_wire::settings::{SHADOW, View};

/// Relative paths from the working directory can reach our files.
const NEAR: u8 = 1;
/// They cannot.
const FAR: u8 = 2;
/// [`NEAR`], [`FAR`], or 0 before the first check.
static WORKING_DIRECTORY: AtomicU8 = AtomicU8::new(0);

/// True if this library serves files.
#[inline]
pub(crate) fn are_served() -> bool {
    run::view() == Some(View::Preload)
}

/// Checks the inherited descriptors and working directory. Called once, before main.
pub(crate) fn start() {
    table::start();
    if run::view().is_none() {
        return;
    }
    working_directory_changed();
    for fd in listing::descriptors() {
        recognise(fd);
    }
}

/// Determines what a descriptor is that this library did not see being opened.
pub(crate) fn recognise(fd: RawFd) {
    if node::adopt(fd) {
        table::notice(fd);
    } else if perf::number_of(fd).is_some() {
        table::set(fd, Kind::PerfEvent);
    } else if windows::is_window(fd) {
        table::set(fd, Kind::Window);
    } else if are_served() {
        let mut text = [0; LONGEST];
        let Ok(text) = descriptor::text_of(fd, &mut text) else { return };
        if attribute::path_in_link(text).is_some() {
            table::set(fd, Kind::Attribute);
        } else if let Some(tree) = tree()
            && (tree.path_of(text).is_some() || path::is_watched(text))
        {
            table::set(fd, Kind::Watched);
        }
    }
}

/// True if relative paths from the working directory may reach our files.
#[inline]
pub(crate) fn is_near() -> bool {
    // Relaxed: a hint; threads that change each other's directory must synchronise themselves.
    are_served() && WORKING_DIRECTORY.load(Ordering::Relaxed) != FAR
}

/// Updates the hint after the working directory may have changed.
pub(crate) fn working_directory_changed() {
    let mut text = [0; LONGEST];
    let near = match descriptor::working_directory(&mut text) {
        Ok(text) => tree().is_some_and(|tree| tree.path_of(text).is_some()) || path::is_watched(text),
        Err(_) => false,
    };
    if table::belongs_here() {
        // Relaxed: as above.
        WORKING_DIRECTORY.store(if near { NEAR } else { FAR }, Ordering::Relaxed);
    }
}

/// The shadow tree of this run.
pub(crate) fn tree() -> Option<Shadow<'static>> {
    static ROOT: OnceLock<Option<Path>> = OnceLock::new();
    let root = ROOT.get_or_init(|| {
        let mut root = Path::new(run::directory()).ok()?;
        root.push(SHADOW.as_bytes()).ok()?;
        Some(root)
    });
    root.as_ref().map(|root| Shadow::new(root.as_bytes()))
}

/// Resolves a path of the program, relative to a directory's descriptor or AT_FDCWD. `None` if the kernel gives the
/// same result.
///
/// # Errors
/// The kernel's errors for the path.
pub(crate) fn find(directory: RawFd, text: &[u8], follow: bool) -> Option<Result<Found, Errno>> {
    if !are_served() || text.len() > LONGEST {
        return None;
    }
    let absolute = text.first() == Some(&b'/');
    let may_concern = match directory {
        _ if absolute => path::concerns(text),
        libc::AT_FDCWD => is_near() || path::climbs(text),
        fd => table::kind(fd) == Kind::Watched || path::climbs(text),
    };
    if !may_concern || text.is_empty() {
        return None;
    }
    let base = if absolute { Path::root() } else { path_of_directory(directory)? };
    if !absolute && base.as_bytes() == b"/" && !joined_concerns(text) {
        return None;
    }
    let walk = Walk { shadow: tree()?, magic: &magic };
    match walk.to(&base, text, follow) {
        Ok(found) if found.ownership == Ownership::Real && !found.crossed && found.kind != FileKind::Directory => None,
        found => Some(found),
    }
}

/// Like [`path::concerns`], for a path relative to the root.
fn joined_concerns(text: &[u8]) -> bool {
    let mut joined = Path::root();
    joined.append(text).is_ok() && path::concerns(joined.as_bytes())
}

/// Path of the directory that a path is relative to.
fn path_of_directory(directory: RawFd) -> Option<Path> {
    match directory {
        libc::AT_FDCWD => working_directory(),
        fd => path_of_watched(fd),
    }
}

/// The working directory as the program knows it; `None` if it has no path.
pub(crate) fn working_directory() -> Option<Path> {
    let mut text = [0; LONGEST];
    as_known(descriptor::working_directory(&mut text).ok()?)
}

/// Path of a descriptor of a directory, of the machine or of the tree.
pub(crate) fn path_of_watched(fd: RawFd) -> Option<Path> {
    let mut text = [0; LONGEST];
    as_known(descriptor::text_of(fd, &mut text).ok()?)
}

/// Replaces a location in the shadow tree, as reported by the kernel, by the path it stands for.
fn as_known(text: &[u8]) -> Option<Path> {
    let text = tree().and_then(|tree| tree.path_of(text)).unwrap_or(text);
    Path::new(text).ok()
}

/// Path, as programs know it, of our file that a descriptor stands for: an attribute, a node, an entry of the tree.
pub(crate) fn path_of_descriptor(fd: RawFd) -> Option<Path> {
    if let Some((device, wq)) = node::queue(fd) {
        return node_path(device, wq);
    }
    if !are_served() {
        return None;
    }
    let mut text = [0; LONGEST];
    let text = descriptor::text_of(fd, &mut text).ok()?;
    match attribute::path_in_link(text) {
        Some(path) => Some(path),
        None => tree()?.path_of(text).and_then(|path| Path::new(path).ok()),
    }
}

/// The path of a queue's node.
pub(crate) fn node_path(device: u32, wq: u32) -> Option<Path> {
    use std::io::Write;
    let mut name = [0; 32];
    let mut rest = &mut name[..];
    write!(rest, "wq{device}.{wq}").ok()?;
    let len = 32 - rest.len();
    let mut path = Path::new(b"/dev/dsa").ok()?;
    path.push(&name[..len]).ok()?;
    Some(path)
}

/// The target of a link in a process's directory in /proc, if the process is this one and the target is ours.
fn magic(link: &Path) -> Option<Path> {
    let rest = path::below(link.as_bytes(), b"/proc")?;
    let mut names = rest.split(|byte| *byte == b'/').skip(1);
    if number(names.next()?)? != sys::process() {
        return None;
    }
    let mut name = names.next()?;
    if name == b"task" {
        name = names.nth(1)?;
    }
    match (name, names.next()) {
        (b"cwd", None) => working_directory().filter(|_| is_near()),
        (b"fd", Some(fd)) => {
            let fd = RawFd::try_from(number(fd)?).ok()?;
            path_of_descriptor(fd).or_else(|| path_of_watched(fd).filter(|path| path::is_watched(path.as_bytes())))
        }
        _ => None,
    }
}

fn number(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// open(2) of a resolved path.
///
/// # Errors
/// What the kernel answers.
pub(crate) fn open(found: &Found, flags: c_int, mode: u32) -> Result<RawFd, Errno> {
    let tree = tree().ok_or(Errno::IO)?;
    if !found.is_ours() {
        let fd = descriptor::open(&found.path, flags, mode)?;
        record_kind(fd, Kind::Foreign);
        record_directory(fd, found);
        return Ok(fd);
    }
    let (_, writes) = attribute::accesses(flags);
    let only_path = flags & libc::O_PATH != 0;
    let exclusive = flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL;
    let status = match (found.kind, &found.status) {
        // Neither file system creates files for programs. Source: K612 fs/namei.c, lookup_open, without ->create.
        (FileKind::Missing, _) | (_, None) => {
            return Err(if flags & libc::O_CREAT != 0 { Errno::ACCESS } else { Errno::NOENT });
        }
        _ if exclusive && !only_path => return Err(Errno::EXIST),
        (_, Some(status)) => status,
    };
    let natively = match found.kind {
        _ if only_path => true,
        FileKind::Directory if writes || flags & libc::O_CREAT != 0 => return Err(Errno::ISDIR),
        FileKind::Directory => true,
        FileKind::Link => return Err(if flags & libc::O_DIRECTORY != 0 { Errno::NOTDIR } else { Errno::LOOP }),
        _ if flags & libc::O_DIRECTORY != 0 => return Err(Errno::NOTDIR),
        _ => false,
    };
    if natively {
        let fd = descriptor::open(&tree.location(&found.path)?, flags & !(libc::O_CREAT | libc::O_TRUNC), 0)?;
        record_kind(fd, Kind::Watched);
        return Ok(fd);
    }
    if status::is_node(&found.path) {
        // The flags are a set of bits in an int.
        let fd = node::open(found.path.as_bytes(), flags.cast_unsigned())?;
        table::notice(fd);
        return Ok(fd);
    }
    if status::is_attribute(&found.path) {
        let fd = attribute::open(&Host, &found.path, status, flags)?;
        record_kind(fd, Kind::Attribute);
        return Ok(fd);
    }
    // A file whose text the host has stored in the tree: /proc/cpuinfo.
    if writes {
        return Err(Errno::ACCESS);
    }
    let fd = descriptor::open(&tree.location(&found.path)?, flags & !(libc::O_CREAT | libc::O_TRUNC), 0)?;
    record_kind(fd, Kind::Watched);
    Ok(fd)
}

/// Records the kind of a descriptor that the kernel has just returned. Its former file has been closed, perhaps without
/// being seen.
pub(crate) fn record_kind(fd: RawFd, kind: Kind) {
    if node::is_node(fd) && table::belongs_here() {
        node::forget(fd);
    }
    table::set(fd, kind);
}

/// Records a directory of the machine that the program has opened.
pub(crate) fn record_directory(fd: RawFd, found: &Found) {
    if found.kind == FileKind::Directory && path::is_watched(found.path.as_bytes()) {
        table::set(fd, Kind::Watched);
    }
}

/// The result of stat(2) for our file.
///
/// # Errors
/// ENOENT.
pub(crate) fn status(found: &Found) -> Result<Stat, Errno> {
    let tree = tree().ok_or(Errno::IO)?;
    found.status.map(|placeholder| status::present(tree, &found.path, &placeholder)).ok_or(Errno::NOENT)
}

/// The result of fstat(2) for our descriptor; `None` for others.
pub(crate) fn status_of(fd: RawFd) -> Option<Stat> {
    if !node::is_node(fd) && table::kind(fd) == Kind::Foreign {
        return None;
    }
    let path = path_of_descriptor(fd)?;
    let tree = tree()?;
    // For an entry that is gone, the descriptor that is still open supplies the status.
    let placeholder = match tree.look(&path) {
        Some(placeholder) => placeholder,
        None => {
            let mut own = descriptor::status(fd).ok()?;
            own.st_size = 0;
            own
        }
    };
    Some(status::present(tree, &path, &placeholder))
}

/// The path of the attribute behind a descriptor; a wrong hint is cleared.
pub(crate) fn attribute_of(fd: RawFd) -> Option<Path> {
    if table::kind(fd) != Kind::Attribute {
        return None;
    }
    let path = attribute::path_of(fd);
    if path.is_none() {
        table::set(fd, Kind::Foreign);
    }
    path
}
