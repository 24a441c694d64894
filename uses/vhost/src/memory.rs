//! A frontend's memory as the backend sees it: regions of files, by guest address.
//!
//! A table is immutable. When the frontend adds or removes a region, the next table is created with the next generation
//! number. It shares the mappings of unchanged regions with this one. A mapping is removed when the last table that
//! contains it is dropped, which happens when the last copy under it is complete.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use telpher_mem::{SharedError, SharedMapping};

/// The most regions of one frontend. Source: vhost-user, `VHOST_USER_GET_MAX_MEM_SLOTS`; QEMU asks for no more.
pub const MOST_REGIONS: usize = 509;

/// A region as the frontend announces it; all fields in bytes. Source: vhost-user, "A region is".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Region {
    /// Guest address of its first byte.
    pub guest: u64,
    /// Its length.
    pub len: u64,
    /// The frontend's virtual address of its first byte; rings are described by these addresses.
    pub user: u64,
    /// Its offset in its file.
    pub offset: u64,
}

impl Region {
    /// Returns the offset of `address` in the region, if all `len` bytes lie in it; `start` is the region's own
    /// address.
    fn at(&self, start: u64, address: u64, len: u64) -> Option<u64> {
        let at = address.checked_sub(start)?;
        (at <= self.len && len <= self.len - at).then_some(at)
    }
}

/// Why a region was refused.
#[derive(Debug, thiserror::Error)]
#[error("region of {} bytes at guest address {:#x}", region.len, region.guest)]
pub struct RegionError {
    /// The region as announced.
    pub region: Region,
    /// What is wrong with it.
    #[source]
    pub source: MemoryError,
}

/// What can be wrong with a region.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// It ends beyond the address space.
    #[error("it wraps around the end of the address space")]
    Wraps,
    /// Its guest addresses overlap another region's.
    #[error("it overlaps the region of {} bytes at guest address {:#x}", other.len, other.guest)]
    Overlaps {
        /// The other region.
        other: Region,
    },
    /// There are too many regions.
    #[error("the frontend already has {MOST_REGIONS} regions; make it use larger files (DPDK: --single-file-segments)")]
    Many,
    /// The table has no such region.
    #[error("there is no such region")]
    Unknown,
    /// Another program may have to supply each page of its file, and could make the polling thread wait for ever.
    #[error(
        "its file is on a file system of type {magic:#x}, which may never supply its pages; use a memory file (memfd), \
         or a file on tmpfs, hugetlbfs, ext4, xfs or btrfs"
    )]
    FileSystem {
        /// The file system's number in linux/magic.h.
        magic: u64,
    },
    /// Its file cannot be mapped.
    #[error("its file cannot be mapped")]
    Map(#[from] SharedError),
}

/// File systems whose pages the kernel supplies itself: tmpfs (also used for memory files), hugetlbfs, ramfs, ext2 to
/// ext4, xfs and btrfs. Any user may mount FUSE and supply its pages late or never. Source: UAPI, linux/magic.h,
/// `*_SUPER_MAGIC` and `*_MAGIC`.
const FILE_SYSTEMS: [u32; 6] = [0x0102_1994, 0x9584_58f6, 0x8584_58f6, 0xef53, 0x5846_5342, 0x9123_683e];

/// Refuses a file whose pages another program may have to supply.
fn check_file_system(file: BorrowedFd<'_>) -> Result<(), MemoryError> {
    // A file that cannot be examined cannot be mapped either.
    let Ok(stat) = rustix::fs::fstatfs(file) else { return Ok(()) };
    // The field is signed, and as wide as a register.
    let magic = stat.f_type.cast_unsigned();
    if FILE_SYSTEMS.iter().any(|known| u64::from(*known) == magic) {
        Ok(())
    } else {
        Err(MemoryError::FileSystem { magic })
    }
}

/// One region and its bytes.
#[derive(Clone, Debug)]
struct Mapped {
    region: Region,
    /// The file that holds its bytes.
    file: Option<FileId>,
    /// The address of its first byte in this process.
    host: u64,
    shared: Arc<SharedMapping>,
}

/// Identifies a file; `None` from `of` if the system does not report it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(file: BorrowedFd<'_>) -> Option<FileId> {
        rustix::fs::fstat(file).ok().map(|stat| FileId { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// Guest memory that lies in one region. Only [`GuestMemory`] creates pieces; their addresses are valid as long as it
/// lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Piece {
    pub(crate) host: u64,
    pub(crate) guest: u64,
    pub(crate) len: u32,
}

impl Piece {
    /// The address of its first byte in this process.
    #[must_use]
    pub fn host(&self) -> u64 {
        self.host
    }

    /// The guest address of its first byte, for the dirty log.
    #[must_use]
    pub fn guest(&self) -> u64 {
        self.guest
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// One region's addresses, cached: a guest's buffers mostly lie in the same region as the previous one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    guest: u64,
    len: u64,
    host: u64,
}

impl Window {
    /// The host address of guest memory that lies completely in the window.
    #[inline]
    pub(crate) fn host(&self, guest: u64, len: u32) -> Option<u64> {
        // An address below the window wraps to one far beyond it.
        let at = guest.wrapping_sub(self.guest);
        (at < self.len && u64::from(len) <= self.len - at).then(|| self.host + at)
    }

    /// Like `host`, but first moves the window to the region of the address if it lies in another one.
    #[inline]
    pub(crate) fn host_or_look(&mut self, memory: &GuestMemory, guest: u64, len: u32) -> Option<u64> {
        self.host(guest, len).or_else(|| {
            *self = memory.window(guest);
            self.host(guest, len)
        })
    }
}

/// A frontend's memory at one time: one table of regions.
///
/// Guest memory is accessed by address only, because the guest writes it at any time. Addresses are valid as long as
/// the table lives.
#[derive(Clone, Debug, Default)]
pub struct GuestMemory {
    generation: u64,
    /// Sorted by guest address; they do not overlap.
    regions: Box<[Mapped]>,
}

impl GuestMemory {
    /// Creates a table without memory, generation 0.
    #[must_use]
    pub fn new() -> GuestMemory {
        GuestMemory::default()
    }

    /// The table's generation number, which counts up.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The number of regions.
    #[must_use]
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Creates the next table, with exactly these regions (`SET_MEM_TABLE`). A region with the same fields as one of
    /// this table is mapped again: the descriptor may be of another file.
    ///
    /// # Errors
    /// [`RegionError`]; this table is unchanged.
    pub fn replaced(&self, regions: &[(Region, BorrowedFd<'_>)]) -> Result<GuestMemory, RegionError> {
        let empty = GuestMemory { generation: self.generation, regions: Box::default() };
        let mut next = regions.iter().try_fold(empty, |memory, (region, file)| memory.with(*region, *file))?;
        next.generation = self.generation + 1;
        Ok(next)
    }

    /// The next table, with one region more; `ADD_MEM_REG`.
    /// Creates the next table, with one more region (`ADD_MEM_REG`).
    /// # Errors
    /// [`RegionError`]; this table is unchanged.
    pub fn with(&self, region: Region, file: BorrowedFd<'_>) -> Result<GuestMemory, RegionError> {
        let refused = |source| RegionError { region, source };
        if self.regions.len() == MOST_REGIONS {
            return Err(refused(MemoryError::Many));
        }
        let ends = [region.guest, region.user, region.offset].map(|start| start.checked_add(region.len));
        if ends.contains(&None) {
            return Err(refused(MemoryError::Wraps));
        }
        if let Some(other) = self.overlapping(region) {
            return Err(refused(MemoryError::Overlaps { other: other.region }));
        }
        check_file_system(file).map_err(refused)?;
        let shared = SharedMapping::map(file, region.offset, region.len).map_err(|error| refused(error.into()))?;
        let mapped = Mapped { region, file: FileId::of(file), host: shared.address(), shared: Arc::new(shared) };
        let place = self.regions.partition_point(|other| other.region.guest < region.guest);
        let (before, after) = self.regions.split_at(place);
        let regions = before.iter().cloned().chain([mapped]).chain(after.iter().cloned()).collect();
        Ok(GuestMemory { generation: self.generation + 1, regions })
    }

    /// Returns whether it already has this region, with the same fields and the same file.
    #[must_use]
    pub fn has(&self, region: Region, file: BorrowedFd<'_>) -> bool {
        let mapped = self.regions.iter().find(|mapped| mapped.region == region);
        mapped.and_then(|mapped| mapped.file).is_some_and(|known| FileId::of(file) == Some(known))
    }

    /// Returns whether the region's guest addresses overlap this table's.
    #[must_use]
    pub fn meets(&self, region: Region) -> bool {
        self.overlapping(region).is_some()
    }

    /// The first region that overlaps `region`.
    fn overlapping(&self, region: Region) -> Option<&Mapped> {
        let ends = |region: Region| region.guest.saturating_add(region.len);
        self.regions.iter().find(|other| other.region.guest < ends(region) && region.guest < ends(other.region))
    }

    /// Creates the next table, without one region (`REM_MEM_REG`). File and offset are not compared: the message need
    /// not contain them.
    ///
    /// # Errors
    /// [`RegionError`] with [`MemoryError::Unknown`]; this table is unchanged.
    pub fn without(&self, region: Region) -> Result<GuestMemory, RegionError> {
        let words = |region: &Region| (region.guest, region.len, region.user);
        let kept: Box<[Mapped]> =
            self.regions.iter().filter(|mapped| words(&mapped.region) != words(&region)).cloned().collect();
        if kept.len() == self.regions.len() {
            return Err(RegionError { region, source: MemoryError::Unknown });
        }
        Ok(GuestMemory { generation: self.generation + 1, regions: kept })
    }

    /// The guest address after the last byte of its last region; 0 without regions.
    #[must_use]
    pub fn end(&self) -> u64 {
        // Cannot overflow: checked when the region was added.
        self.regions.last().map_or(0, |mapped| mapped.region.guest + mapped.region.len)
    }

    /// The host address of guest memory that lies completely in one region; the common case.
    #[inline]
    #[must_use]
    pub fn host(&self, guest: u64, len: u32) -> Option<u64> {
        let mapped = self.region_of(guest)?;
        mapped.region.at(mapped.region.guest, guest, len.into()).map(|at| mapped.host + at)
    }

    /// The window of the region that contains a guest address; an empty window if no region does.
    #[inline(never)]
    pub(crate) fn window(&self, guest: u64) -> Window {
        let of = |mapped: &Mapped| Window { guest: mapped.region.guest, len: mapped.region.len, host: mapped.host };
        self.region_of(guest).map(of).unwrap_or_default()
    }

    /// Calls `each` with the pieces of guest memory that may span adjacent regions, in order. Returns false if a byte
    /// lies in no region; some pieces may have been passed to `each` by then.
    pub fn pieces(&self, mut guest: u64, mut len: u32, mut each: impl FnMut(Piece)) -> bool {
        loop {
            let Some(mapped) = self.region_of(guest) else { return false };
            let at = guest - mapped.region.guest;
            let left = mapped.region.len - at;
            let here = u32::try_from(left).unwrap_or(u32::MAX).min(len);
            each(Piece { host: mapped.host + at, guest, len: here });
            len -= here;
            if len == 0 {
                return true;
            }
            // Cannot overflow: a region ends within the address space, checked when it was added.
            guest += u64::from(here);
        }
    }

    /// The host address of memory that the frontend names by its own virtual address, as it does for rings. The memory
    /// must lie completely in one region.
    #[must_use]
    pub fn of_user(&self, user: u64, len: u64) -> Option<u64> {
        self.regions.iter().find_map(|mapped| Some(mapped.host + mapped.region.at(mapped.region.user, user, len)?))
    }

    /// The guest address of a byte that the frontend names by its own virtual address.
    #[must_use]
    pub fn guest_of_user(&self, user: u64) -> Option<u64> {
        self.regions
            .iter()
            .find_map(|mapped| Some(mapped.region.guest + mapped.region.at(mapped.region.user, user, 1)?))
    }

    /// Returns whether no file has been found shorter than announced; see [`SharedMapping::is_whole`].
    #[inline]
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.regions.iter().all(|mapped| mapped.shared.is_whole())
    }

    /// Detaches this memory from the guest's files, mainly against a device that is late: later writes to it reach no
    /// guest. Other tables that share regions with this one lose them too.
    ///
    /// # Errors
    /// The system's error, for the first region that could not be detached.
    pub fn revoke(&self) -> Result<(), RegionError> {
        // Detach every region, even if one fails.
        let tried = self.regions.iter().map(|mapped| {
            let refused = |error: telpher_mem::MapError| MemoryError::Map(error.into());
            mapped.shared.revoke().map_err(|error| RegionError { region: mapped.region, source: refused(error) })
        });
        tried.fold(Ok(()), Result::and)
    }

    /// The region that contains this byte.
    #[inline]
    fn region_of(&self, guest: u64) -> Option<&Mapped> {
        // There are few: one for most guests, two for guests with memory above 4 GiB.
        let index = match &*self.regions {
            [only] => usize::from(only.region.guest <= guest),
            regions => regions.partition_point(|mapped| mapped.region.guest <= guest),
        };
        let mapped = &self.regions[index.checked_sub(1)?];
        (guest - mapped.region.guest < mapped.region.len).then_some(mapped)
    }
}

#[cfg(test)]
mod tests;
