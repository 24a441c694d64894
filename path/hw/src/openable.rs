//! Checks whether a queue could be opened, without opening it: opening a dedicated queue would lock other programs out
//! meanwhile.
#![allow(unsafe_code, reason = "asks the system what this process may open: faccessat(2)")]

use crate::error::OpenError;
use crate::machine::{Device, Queue};
use crate::open::{opening, usable};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use telpher_portal::QueueMode;

/// Checks a queue as [`open`](crate::open()) would on this machine now, without opening it.
///
/// **Staleness.** Other programs open and close it meanwhile; only opening it shows the result at that time.
///
/// # Errors
///
/// The reason why opening it would fail.
pub fn look(device: &Device, queue: &Queue) -> Result<(), OpenError> {
    let info = usable(device, queue)?;
    let path = queue.node(device.kind);
    let name = CString::new(path.as_os_str().as_bytes()).expect("names of files have no zero byte");
    // SAFETY: a C string that outlives the call, which reads no other memory.
    let answer = unsafe { libc::faccessat(libc::AT_FDCWD, name.as_ptr(), libc::R_OK | libc::W_OK, libc::AT_EACCESS) };
    if answer != 0 {
        return Err(opening(path, io::Error::last_os_error()));
    }
    if info.mode == QueueMode::Dedicated && queue.clients.is_some_and(|clients| clients > 0) {
        return Err(opening(path, io::Error::from_raw_os_error(libc::EBUSY)));
    }
    Ok(())
}
