//! `telpher offload off` and `on`: switches a running process to the CPU and back.

use crate::processes::{files, running};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use telpher_offload_wire::counters::switch_word;

/// Why a process was not switched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// The process has no device, or does not exist.
    #[error(
        "process {0} has no device under `telpher offload` as this user; `telpher offload top` shows those that have"
    )]
    None(u32),
    /// The file of the process cannot be written.
    #[error("cannot tell process {pid}")]
    File {
        /// The process.
        pid: u32,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// Lets the long calls of a process go to the device, or keeps them all on the CPU. It applies to calls that begin
/// after this returns; others end where they began.
///
/// # Errors
/// If the process has no device, or its file cannot be written.
pub fn switch(pid: u32, to_device: bool) -> Result<(), SwitchError> {
    let found = running().into_iter().find(|(_, process)| process.pid == pid);
    let (folder, _) = found.ok_or(SwitchError::None(pid))?;
    let write = || {
        // Those of programs that the process executed before have no effect.
        for (_, path) in files(&folder, "counters")?.into_iter().filter(|(of, _)| *of == pid) {
            let file = File::options().write(true).open(path)?;
            // The process maps the file. It reads a whole word, which the kernel writes at once because it is aligned.
            file.write_all_at(&u64::from(!to_device).to_ne_bytes(), switch_word() as u64 * 8)?;
        }
        Ok(())
    };
    write().map_err(|source| SwitchError::File { pid, source })
}
