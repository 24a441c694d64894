//! Open attributes: a memory file that contains the text and is named after the attribute's path.
//!
//! In the kernel, a read from the beginning generates an attribute's text, and every write goes to the driver
//! separately. Here the text is requested at the opening, for reads that this library does not see (the C library's
//! own, and programs without this library), and again at every visible read from the beginning. A file opened only for
//! writing is sealed: a write that this library does not see fails instead of being lost.
//!
//! All state of an open attribute is in the file itself, so its descriptor may be duplicated, inherited, kept across
//! exec and sent to other processes.

use crate::files::descriptor;
use crate::files::path::Path;
use crate::sys::{self, Errno};
use rustix::fs::{MemfdFlags, OFlags, SealFlags, Stat};
use std::ffi::{CStr, c_int};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use telpher_vdev_wire::message::MAX_PAYLOAD;

/// Prefix of the path in the memory file's name; the kernel shows the name in /proc.
const NAME: &[u8] = b"telpher:";
/// Start and end of such a file's link text in /proc.
const LINK: (&[u8], &[u8]) = (b"/memfd:telpher:", b" (deleted)");
/// Longest name of a memory file, including its final zero. Source: K612 mm/memfd.c, MFD_NAME_MAX_LEN + 1.
const NAME_BYTES: usize = 250;
/// Most bytes of one write to the driver. Source: K612 fs/kernfs/file.c, kernfs_fop_write_iter: PAGE_SIZE.
const WRITE_BYTES: usize = 4096;

/// The driver behind the attributes: the host, or a test.
pub(crate) trait Driver {
    /// The attribute's text.
    ///
    /// # Errors
    /// The driver's.
    fn show(&self, path: &[u8], into: &mut [u8]) -> Result<usize, Errno>;

    /// Handles a write; returns the bytes accepted.
    ///
    /// # Errors
    /// The driver's.
    fn store(&self, path: &[u8], offset: u64, data: &[u8]) -> Result<usize, Errno>;
}

/// The driver of this run: requests to the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host;

impl Driver for Host {
    fn show(&self, path: &[u8], into: &mut [u8]) -> Result<usize, Errno> {
        crate::control::show(path, into)
    }

    fn store(&self, path: &[u8], offset: u64, data: &[u8]) -> Result<usize, Errno> {
        crate::control::store(path, offset, data)
    }
}

/// Opens an attribute whose placeholder has this status.
///
/// # Errors
/// EACCES if the attribute cannot be read or written, also for root (K612 fs/kernfs/file.c, kernfs_fop_open); EINVAL
/// for O_DIRECT; the system's if descriptors or memory are lacking.
pub(crate) fn open(driver: &dyn Driver, path: &Path, placeholder: &Stat, flags: c_int) -> Result<RawFd, Errno> {
    let (reads, writes) = accesses(flags);
    if reads && placeholder.st_mode & 0o444 == 0 || writes && placeholder.st_mode & 0o222 == 0 {
        return Err(Errno::ACCESS);
    }
    if flags & libc::O_DIRECT != 0 {
        return Err(Errno::INVAL);
    }
    let mut memory = create(path)?;
    if reads {
        // An error is returned by the read that requests the text.
        let _ = refill(driver, path, &memory);
    } else {
        rustix::fs::fcntl_add_seals(&memory, SealFlags::WRITE)?;
    }
    // The memory file is readable, writable and close-on-exec; the program's descriptor gets the requested flags.
    let kept = libc::O_ACCMODE | libc::O_APPEND | libc::O_NONBLOCK | libc::O_SYNC | libc::O_NOATIME;
    let link = descriptor::link_of(memory.as_raw_fd())?;
    let opened = rustix::fs::open(link.as_c_str(), oflags(flags & kept) | OFlags::CLOEXEC, rustix::fs::Mode::empty())?;
    // The memory file had the lowest free number, which the program must get.
    let kept = if flags & libc::O_CLOEXEC == 0 { rustix::io::DupFlags::empty() } else { rustix::io::DupFlags::CLOEXEC };
    rustix::io::dup3(&opened, &mut memory, kept)?;
    Ok(memory.into_raw_fd())
}

/// The path of an open attribute; `None` for other descriptors.
pub(crate) fn path_of(fd: RawFd) -> Option<Path> {
    let mut text = [0; NAME_BYTES + 32];
    path_in_link(descriptor::text_of(fd, &mut text).ok()?)
}

/// The path in the text of a descriptor's link in /proc.
pub(crate) fn path_in_link(text: &[u8]) -> Option<Path> {
    Path::new(text.strip_prefix(LINK.0)?.strip_suffix(LINK.1)?).ok()
}

/// Requests the text from the driver, before a read from the beginning.
///
/// # Errors
/// The driver's or the system's.
pub(crate) fn refresh(driver: &dyn Driver, fd: RawFd, path: &Path) -> Result<(), Errno> {
    if !accesses(flags_of(fd)?).0 {
        // The read itself returns the error.
        return Ok(());
    }
    let link = descriptor::link_of(fd)?;
    let writer = rustix::fs::open(link.as_c_str(), OFlags::WRONLY | OFlags::CLOEXEC, rustix::fs::Mode::empty())?;
    refill(driver, path, &writer)
}

/// Handles write(2), or pwrite(2) with an offset.
///
/// # Errors
/// The driver's; EBADF if the attribute is not open for writing; EFAULT.
pub(crate) fn write(
    driver: &dyn Driver,
    fd: RawFd,
    path: &Path,
    from: *const u8,
    len: usize,
    offset: Option<u64>,
) -> Result<usize, Errno> {
    if !accesses(flags_of(fd)?).1 {
        return Err(Errno::BADF);
    }
    if len == 0 {
        return Ok(0);
    }
    let mut buffer = [0; WRITE_BYTES];
    let data = &mut buffer[..len.min(WRITE_BYTES)];
    descriptor::fetch(from, data)?;
    match offset {
        Some(offset) => driver.store(path.as_bytes(), offset, data),
        None => {
            let taken = driver.store(path.as_bytes(), descriptor::seek(fd, 0, libc::SEEK_CUR)?, data)?;
            // Cannot overflow: at most a page.
            descriptor::seek(fd, i64::try_from(taken).unwrap_or(0), libc::SEEK_CUR)?;
            Ok(taken)
        }
    }
}

/// Whether open(2)'s flags request reading and writing.
pub(crate) fn accesses(flags: c_int) -> (bool, bool) {
    let access = flags & libc::O_ACCMODE;
    (access != libc::O_WRONLY, access != libc::O_RDONLY)
}

fn oflags(flags: c_int) -> OFlags {
    OFlags::from_bits_retain(flags.cast_unsigned())
}

fn flags_of(fd: RawFd) -> Result<c_int, Errno> {
    // Cannot lose bits: the kernel's flags are an int.
    sys::fcntl(fd, libc::F_GETFL, 0).map(|flags| c_int::try_from(flags).unwrap_or(0))
}

fn create(path: &Path) -> Result<OwnedFd, Errno> {
    let mut name = [0; NAME_BYTES];
    let (head, tail) = name.split_at_mut(NAME.len());
    head.copy_from_slice(NAME);
    let target = tail.get_mut(..path.as_bytes().len()).ok_or(Errno::NAMETOOLONG)?;
    target.copy_from_slice(path.as_bytes());
    let name = CStr::from_bytes_until_nul(&name).map_err(|_| Errno::NAMETOOLONG)?;
    rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
}

/// Replaces the file's contents by the driver's text.
fn refill(driver: &dyn Driver, path: &Path, memory: &OwnedFd) -> Result<(), Errno> {
    let mut text = [0; MAX_PAYLOAD];
    let len = driver.show(path.as_bytes(), &mut text)?;
    let text = &text[..len.min(MAX_PAYLOAD)];
    let mut written = 0;
    while written < text.len() {
        written += rustix::io::pwrite(memory, &text[written..], written as u64)?;
    }
    rustix::fs::ftruncate(memory, text.len() as u64)
}
