//! The files in memory that a peer shows, mapped for reading.
//!
//! The helper thread maps a file when the peer's packet brings it, and lets go of it when the peer takes it back. So a
//! file does not live longer than its owner wants because this process's threads are busy. A message that is just read
//! keeps its mapping.

use crate::offered::OfferedFile;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use telpher_mem::SharedMapping;
use telpher_os::is_memory;

/// Files that one sender shows at a time. Source: chosen; a program has few files in memory with messages.
pub(crate) const MOST_FILES: usize = 8;

/// The most bytes of peers' files in this process. They use addresses, and no memory of this process until they are
/// read. Source: chosen; a hundredth of the addresses that a process has.
const MOST_MAPPED: u64 = 1 << 40;

/// Bytes of peers' files that this process has mapped.
static MAPPED: AtomicU64 = AtomicU64::new(0);

/// A part of [`MAPPED`], given back on drop.
#[derive(Debug)]
struct Share(u64);

impl Share {
    fn take(len: u64) -> Option<Share> {
        // Relaxed: only the number matters.
        let fits = |mapped: u64| mapped.checked_add(len).filter(|mapped| *mapped <= MOST_MAPPED);
        MAPPED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok().map(|_| Share(len))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        MAPPED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// A file of a peer.
#[derive(Debug)]
pub(crate) struct PeerFile {
    mapping: SharedMapping,
    _share: Share,
}

impl PeerFile {
    /// Maps a file. `None` if it is no memory, as its pages could then come from a process or a server that never
    /// answers; if it is empty; or if the system refuses.
    fn map(file: &OwnedFd) -> Option<PeerFile> {
        let len = rustix::fs::fstat(file).ok()?.st_size.cast_unsigned();
        let share = Share::take(len).filter(|_| is_memory(file))?;
        let mapping = SharedMapping::map_readable(file.as_fd(), 0, len).ok()?;
        mapping.keep_from_children().ok()?;
        Some(PeerFile { mapping, _share: share })
    }

    /// True if no page of the file was missing so far.
    pub(crate) fn is_whole(&self) -> bool {
        self.mapping.is_whole()
    }
}

/// The files by their places, with their generations.
type Places = [Option<(u32, Arc<PeerFile>)>; MOST_FILES];

/// The files that one peer shows.
#[derive(Debug, Default)]
pub(crate) struct PeerFiles {
    places: Mutex<Places>,
}

impl PeerFiles {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a file in a place, or nothing, in place of the one before. A file that cannot be mapped is missing.
    pub(crate) fn set(&self, place: u8, generation: u32, file: Option<&OwnedFd>) {
        let mapped = file.and_then(PeerFile::map).map(|file| (generation, Arc::new(file)));
        let before = match self.places().get_mut(usize::from(place)) {
            Some(known) => std::mem::replace(known, mapped),
            None => return,
        };
        // Unmapped without the lock.
        drop(before);
    }

    /// Returns the file and the address of `len` bytes that a message names; `None` if they are not there.
    pub(crate) fn get(&self, offered: &OfferedFile, len: u64) -> Option<(Arc<PeerFile>, u64)> {
        let places = self.places();
        let (generation, file) = places.get(usize::from(offered.place))?.as_ref()?;
        let end = offered.offset.checked_add(len)?;
        (*generation == offered.generation && end <= file.mapping.len() as u64)
            .then(|| (Arc::clone(file), file.mapping.address() + offered.offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn file(len: u64) -> OwnedFd {
        let file = memfd_create("telpher-fabric-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, len).unwrap();
        file
    }

    fn at(place: u8, generation: u32, offset: u64) -> OfferedFile {
        OfferedFile { place, generation, offset }
    }

    #[test]
    fn only_bytes_of_the_file_that_was_shown_are_found() {
        let files = PeerFiles::default();
        assert!(files.get(&at(0, 0, 0), 1).is_none());
        files.set(2, 7, Some(&file(8192)));
        assert!(files.get(&at(2, 7, 4096), 4096).is_some());
        for (offered, len) in [
            (at(2, 7, 4096), 4097),
            (at(2, 7, u64::MAX), 1),
            (at(2, 7, 8193), 0),
            (at(2, 6, 0), 1),
            (at(1, 7, 0), 1),
            (at(255, 7, 0), 1),
        ] {
            assert!(files.get(&offered, len).is_none(), "{offered:?} with {len} bytes");
        }
        let (kept, _) = files.get(&at(2, 7, 0), 1).unwrap();
        files.set(2, 8, Some(&file(4096)));
        assert!(files.get(&at(2, 7, 0), 1).is_none() && files.get(&at(2, 8, 0), 1).is_some() && kept.is_whole());
        files.set(2, 8, None);
        files.set(255, 1, Some(&file(4096)));
        assert!(files.get(&at(2, 8, 0), 1).is_none());
    }

    #[test]
    fn a_file_that_is_no_memory_is_empty_or_too_long_is_not_mapped() {
        let files = PeerFiles::default();
        let program: OwnedFd = std::fs::File::open("/proc/self/status").unwrap().into();
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        for file in [program, socket.into(), file(0), file(MOST_MAPPED + 4096)] {
            files.set(0, 1, Some(&file));
            assert!(files.get(&at(0, 1, 0), 0).is_none());
        }
    }
}
