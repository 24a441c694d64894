//! What this process counts, in a file that `telpher offload` reads.
#![allow(unsafe_code, reason = "maps the memory of the counters")]

use rustix::fs::{CWD, Mode, OFlags, ftruncate, openat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use telpher_metrics::{Position, Region, RegionSet};
use telpher_offload_wire::counters::{self, Counters};

/// The counters of a process. A forked child shares those of its parent.
#[derive(Debug)]
pub(crate) struct ProcessCounters {
    set: RegionSet<'static, Counters>,
    /// 0 if calls may go to the device.
    switch: &'static AtomicU64,
}

impl ProcessCounters {
    /// Creates them, in the file `PID.counters` of a folder if there is one. They stay mapped for ever.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn new(folder: Option<&Path>) -> io::Result<ProcessCounters> {
        let words = shared_words(folder, "counters", counters::words())?;
        let set = Region::create(words, 1).and_then(|region| region.claim(&format!("pid=\"{}\"", std::process::id())));
        Ok(ProcessCounters { set: set.map_err(io::Error::other)?, switch: &words[counters::switch_word()] })
    }

    /// Returns whether the user has switched this process to the CPU.
    #[inline]
    pub(crate) fn is_switched_off(&self) -> bool {
        // Relaxed: the word stands alone. Calls that have begun are not affected.
        self.switch.load(Ordering::Relaxed) != 0
    }

    /// Adds to a counter.
    #[inline]
    pub(crate) fn add(&self, position: Position<Counters>, more: u64) {
        self.set.add(position, more);
    }
}

/// Creates the file `PID.kind`. If the process has executed another program before, that one's file keeps its name, and
/// this one's is `PID-1.kind` and so on.
fn create(folder: &Path, kind: &str) -> io::Result<OwnedFd> {
    let pid = std::process::id();
    let names = (0..).map(|at| if at == 0 { format!("{pid}.{kind}") } else { format!("{pid}-{at}.{kind}") });
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut results = names.map(|name| openat(CWD, folder.join(name), flags, Mode::RUSR | Mode::WUSR));
    let result = results.find(|result| !matches!(result, Err(Errno::EXIST)));
    Ok(result.expect("the names have no end")?)
}

/// Maps this many words, in the new file `PID.kind` of a folder if there is one. They are zero, and stay mapped for
/// ever.
///
/// # Errors
/// The system's error.
pub(crate) fn shared_words(folder: Option<&Path>, kind: &str, words: usize) -> io::Result<&'static [AtomicU64]> {
    let bytes = words * size_of::<AtomicU64>();
    let (shared, access) = (MapFlags::SHARED, ProtFlags::READ | ProtFlags::WRITE);
    let start = match folder {
        None => telpher_os::map_shared(bytes)?.as_ptr().cast(),
        Some(folder) => {
            let file = create(folder, kind)?;
            ftruncate(&file, bytes as u64)?;
            // SAFETY: a new mapping at an address that the kernel chooses.
            unsafe { mmap(ptr::null_mut(), bytes, access, shared, &file, 0) }?
        }
    };
    // SAFETY: the mapping has these words, is zero, is never unmapped, and is used as atomics only.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), words) })
}
