//! Tries to map a queue's portal, as a program that submits does.
#![allow(unsafe_code, reason = "maps one page of a device node and unmaps it again")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Bytes of a portal page. Source: the architecture specification, 9.3 (each portal is one 4 KiB page).
const PORTAL: usize = 4096;

/// Maps the portal of an open queue node, and unmaps it again.
///
/// # Errors
/// What the kernel answers to the mapping.
pub(crate) fn map_portal(node: &File) -> io::Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
    // SAFETY: a new mapping at an address that the kernel chooses; it is not accessed, and unmapped at once.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), PORTAL, libc::PROT_WRITE, flags, node.as_raw_fd(), 0);
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::munmap(page, PORTAL);
    }
    Ok(())
}
