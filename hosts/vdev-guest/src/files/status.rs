//! The result of stat(2) for our files: a placeholder's status, changed to look like that of a file in sysfs or
//! devtmpfs.

use crate::files::path::Path;
use crate::files::shadow::{self, Shadow};
use crate::sync::{AtomicU64, Ordering};
use rustix::fs::{AtFlags, CWD, FileType, Stat};

/// Our inode numbers start here, so that none equals one of the file system we appear in. Source: chosen.
const FIRST_INODE: u64 = 1 << 40;
/// Size of an attribute. Source: K612 fs/sysfs/file.c, sysfs_add_file_mode_ns: PAGE_SIZE.
const ATTRIBUTE_BYTES: i64 = 4096;
/// Permission bits of a queue's node. Source: K612 drivers/base/devtmpfs.c, handle_create: 0600 unless the driver says
/// otherwise.
const NODE_MODE: u32 = 0o600;

/// Inode number of an entry of ours.
pub(crate) fn inode(of_placeholder: u64) -> u64 {
    FIRST_INODE | of_placeholder
}

/// True for the node of a queue: our file in /dev.
pub(crate) fn is_node(path: &Path) -> bool {
    path.is_within(b"/dev")
}

/// True for an attribute or another file of ours in sysfs.
pub(crate) fn is_attribute(path: &Path) -> bool {
    path.is_within(b"/sys")
}

/// The status that the program sees for a placeholder, directory or link of the tree.
pub(crate) fn present(shadow: Shadow<'_>, path: &Path, placeholder: &Stat) -> Stat {
    let mut status = *placeholder;
    status.st_dev = device_of(path).unwrap_or(status.st_dev);
    status.st_ino = inode(placeholder.st_ino);
    status.st_uid = 0;
    status.st_gid = 0;
    status.st_blocks = 0;
    status.st_blksize = 4096;
    let kind = shadow::kind(placeholder);
    status.st_size = match kind {
        FileType::RegularFile if is_attribute(path) && placeholder.st_size == 0 => ATTRIBUTE_BYTES,
        // A binary attribute's placeholder has its size.
        FileType::RegularFile if is_attribute(path) => placeholder.st_size,
        _ => 0,
    };
    // An open node whose placeholder is gone is a socket.
    if matches!(kind, FileType::RegularFile | FileType::Socket) && is_node(path) {
        status.st_mode = FileType::CharacterDevice.as_raw_mode() | NODE_MODE;
        status.st_rdev = number(shadow, path).unwrap_or(0);
    }
    status
}

/// Device number of a node, from its placeholder's text `MAJOR:MINOR`.
fn number(shadow: Shadow<'_>, path: &Path) -> Option<u64> {
    let location = shadow.location(path).ok()?;
    let file = rustix::fs::open(location.as_c_str(), rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty()).ok()?;
    let mut text = [0; 32];
    let len = rustix::io::read(&file, &mut text).ok()?;
    let text = std::str::from_utf8(&text[..len]).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Device number of the file system that a path of ours appears in; it does not change while a program runs.
fn device_of(path: &Path) -> Option<u64> {
    static DEVICES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
    let mounts = [c"/sys", c"/dev", c"/proc"];
    let which = mounts.iter().position(|mount| path.is_within(mount.to_bytes()))?;
    // Relaxed: publishes nothing; two threads may compute it, with the same result.
    match DEVICES[which].load(Ordering::Relaxed) {
        0 => {
            let device = rustix::fs::statat(CWD, mounts[which], AtFlags::empty()).ok()?.st_dev;
            DEVICES[which].store(device, Ordering::Relaxed);
            Some(device)
        }
        device => Some(device),
    }
}

/// The mount that a path of ours appears in, for statfs(2).
pub(crate) fn mount_of(path: &Path) -> &'static std::ffi::CStr {
    [c"/dev", c"/proc"].into_iter().find(|mount| path.is_within(mount.to_bytes())).unwrap_or(c"/sys")
}

/// Whether access(2) finds a file of ours accessible. A program of the run counts as root: it may read and write
/// everything, and execute only files with an execute bit.
pub(crate) fn is_accessible(placeholder: &Stat, mode: i32) -> bool {
    let executable = placeholder.st_mode & 0o111 != 0 || shadow::kind(placeholder) == FileType::Directory;
    mode & libc::X_OK == 0 || executable
}
