//! A frontend's memory as the backend sees it: regions of files, by guest address.
//!
//! A table never changes. When the frontend adds or removes a region the next table is made, a generation later, and shares with this
//! one the mappings of the regions that stay; a mapping goes when the last table that has it goes, that is when the last copy under it
//! has landed.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use telpher_mem::{Shared, SharedError};

/// Regions one frontend may have. Source: vhost-user, `VHOST_USER_GET_MAX_MEM_SLOTS`, what QEMU asks for at most.
pub const MOST_REGIONS: usize = 509;

/// A region as the frontend announces it. Source: vhost-user, "A region is", all in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Region {
    /// Guest address of its first byte.
    pub guest: u64,
    /// How long it is.
    pub len: u64,
    /// Address of its first byte in the frontend, by which rings are named.
    pub user: u64,
    /// Where it begins in its file.
    pub offset: u64,
}

impl Region {
    /// How far into the region a range of `len` bytes at `address` begins, if it lies in it whole; `start` is the region's own.
    fn at(&self, start: u64, address: u64, len: u64) -> Option<u64> {
        let at = address.checked_sub(start)?;
        (at <= self.len && len <= self.len - at).then_some(at)
    }
}

/// Why a region is refused.
#[derive(Debug, thiserror::Error)]
#[error("region of {} bytes at guest address {:#x}", region.len, region.guest)]
pub struct RegionError {
    /// What was announced.
    pub region: Region,
    /// What is wrong with it.
    #[source]
    pub source: MemoryError,
}

/// What can be wrong with a region.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// It ends beyond all addresses.
    #[error("it wraps around the end of the address space")]
    Wraps,
    /// It has guest addresses of another.
    #[error("it overlaps the region of {} bytes at guest address {:#x}", other.len, other.guest)]
    Overlaps {
        /// The other.
        other: Region,
    },
    /// There are too many.
    #[error("the frontend has {MOST_REGIONS} regions already; let it use larger files (DPDK: --single-file-segments)")]
    Many,
    /// It is none of the table's.
    #[error("there is no such region")]
    Unknown,
    /// Its file lies where a program may be asked for each page, which may let the thread that polls wait for ever.
    #[error(
        "its file lies on a file system of type {magic:#x}, whose pages may never come; use a memory file (memfd), or one on tmpfs, hugetlbfs, ext4, xfs or btrfs"
    )]
    FileSystem {
        /// Its number in linux/magic.h.
        magic: u64,
    },
    /// Its file cannot be mapped.
    #[error("its file cannot be mapped")]
    Map(#[from] SharedError),
}

/// File systems whose pages the kernel brings by itself: tmpfs, where memory files are as well; hugetlbfs; ramfs; ext2 to ext4; xfs; btrfs. Any user may
/// mount FUSE and answer for its pages whenever that user likes, or never. Source: UAPI, linux/magic.h, `*_SUPER_MAGIC` and `*_MAGIC`.
const FILE_SYSTEMS: [u32; 6] = [0x0102_1994, 0x9584_58f6, 0x8584_58f6, 0xef53, 0x5846_5342, 0x9123_683e];

/// Refuses a file whose pages may never come.
fn check_file_system(file: BorrowedFd<'_>) -> Result<(), MemoryError> {
    // What the system does not tell of, it does not map.
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
    /// Which file its bytes are of.
    file: Option<FileId>,
    /// Address of its first byte here.
    host: u64,
    shared: Arc<Shared>,
}

/// Which file a descriptor is of; nothing if the system does not say.
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

/// Guest memory that lies in one region. Only a [`GuestMemory`] makes them; the bytes are there as long as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Piece {
    pub(crate) host: u64,
    pub(crate) guest: u64,
    pub(crate) len: u32,
}

impl Piece {
    /// Address of its first byte in this process.
    #[must_use]
    pub fn host(&self) -> u64 {
        self.host
    }

    /// Guest address of its first byte, for the dirty log.
    #[must_use]
    pub fn guest(&self) -> u64 {
        self.guest
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// One region's addresses, kept at hand: a guest's buffers lie mostly where the one before lay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    guest: u64,
    len: u64,
    host: u64,
}

impl Window {
    /// The host address of guest memory that lies whole in it.
    #[inline]
    pub(crate) fn host(&self, guest: u64, len: u32) -> Option<u64> {
        // An address below wraps to one far beyond.
        let at = guest.wrapping_sub(self.guest);
        (at < self.len && u64::from(len) <= self.len - at).then(|| self.host + at)
    }

    /// The same, in the window around the address if that is another.
    #[inline]
    pub(crate) fn host_or_look(&mut self, memory: &GuestMemory, guest: u64, len: u32) -> Option<u64> {
        self.host(guest, len).or_else(|| {
            *self = memory.window(guest);
            self.host(guest, len)
        })
    }
}

/// A frontend's memory at one time: what a table of regions says.
///
/// Guest memory is only ever touched by address: others write it at any time. Addresses are valid as long as the table lives.
#[derive(Clone, Debug, Default)]
pub struct GuestMemory {
    generation: u64,
    /// By guest address; they do not overlap.
    regions: Box<[Mapped]>,
}

impl GuestMemory {
    /// No memory; generation 0.
    #[must_use]
    pub fn new() -> GuestMemory {
        GuestMemory::default()
    }

    /// Which table it is; counts up.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// How many regions.
    #[must_use]
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    /// The next table, of these regions only; `SET_MEM_TABLE`. A region of the same words and file as one of this table is mapped anew:
    /// the descriptor may be of another file.
    ///
    /// # Errors
    /// [`RegionError`]; this table stays as it is.
    pub fn replaced(&self, regions: &[(Region, BorrowedFd<'_>)]) -> Result<GuestMemory, RegionError> {
        let empty = GuestMemory { generation: self.generation, regions: Box::default() };
        let mut next = regions.iter().try_fold(empty, |memory, (region, file)| memory.with(*region, *file))?;
        next.generation = self.generation + 1;
        Ok(next)
    }

    /// The next table, with one region more; `ADD_MEM_REG`.
    ///
    /// # Errors
    /// [`RegionError`]; this table stays as it is.
    pub fn with(&self, region: Region, file: BorrowedFd<'_>) -> Result<GuestMemory, RegionError> {
        let refused = |source| RegionError { region, source };
        if self.regions.len() == MOST_REGIONS {
            return Err(refused(MemoryError::Many));
        }
        let ends = [region.guest, region.user, region.offset].map(|start| start.checked_add(region.len));
        if ends.contains(&None) {
            return Err(refused(MemoryError::Wraps));
        }
        if let Some(other) = self.meeting(region) {
            return Err(refused(MemoryError::Overlaps { other: other.region }));
        }
        check_file_system(file).map_err(refused)?;
        let shared = Shared::map(file, region.offset, region.len).map_err(|error| refused(error.into()))?;
        let mapped = Mapped { region, file: FileId::of(file), host: shared.address(), shared: Arc::new(shared) };
        let place = self.regions.partition_point(|other| other.region.guest < region.guest);
        let (before, after) = self.regions.split_at(place);
        let regions = before.iter().cloned().chain([mapped]).chain(after.iter().cloned()).collect();
        Ok(GuestMemory { generation: self.generation + 1, regions })
    }

    /// Whether it has this very region already: the same words, of the same file.
    #[must_use]
    pub fn has(&self, region: Region, file: BorrowedFd<'_>) -> bool {
        let mapped = self.regions.iter().find(|mapped| mapped.region == region);
        mapped.and_then(|mapped| mapped.file).is_some_and(|known| FileId::of(file) == Some(known))
    }

    /// Whether a region has guest addresses that this table has, too.
    #[must_use]
    pub fn meets(&self, region: Region) -> bool {
        self.meeting(region).is_some()
    }

    /// The first region that has guest addresses of another.
    fn meeting(&self, region: Region) -> Option<&Mapped> {
        let ends = |region: Region| region.guest.saturating_add(region.len);
        self.regions.iter().find(|other| other.region.guest < ends(region) && region.guest < ends(other.region))
    }

    /// The next table, without one region; `REM_MEM_REG`. Its file and offset are not compared: the message does not have to name them.
    ///
    /// # Errors
    /// [`RegionError`], of [`MemoryError::Unknown`]; this table stays as it is.
    pub fn without(&self, region: Region) -> Result<GuestMemory, RegionError> {
        let words = |region: &Region| (region.guest, region.len, region.user);
        let kept: Box<[Mapped]> =
            self.regions.iter().filter(|mapped| words(&mapped.region) != words(&region)).cloned().collect();
        if kept.len() == self.regions.len() {
            return Err(RegionError { region, source: MemoryError::Unknown });
        }
        Ok(GuestMemory { generation: self.generation + 1, regions: kept })
    }

    /// The guest address behind its last region's last byte; 0 without regions.
    #[must_use]
    pub fn end(&self) -> u64 {
        // Cannot overflow: checked when it was made.
        self.regions.last().map_or(0, |mapped| mapped.region.guest + mapped.region.len)
    }

    /// The host address of guest memory that lies whole in one region; the way of nearly all buffers.
    #[inline]
    #[must_use]
    pub fn host(&self, guest: u64, len: u32) -> Option<u64> {
        let mapped = self.region_of(guest)?;
        mapped.region.at(mapped.region.guest, guest, len.into()).map(|at| mapped.host + at)
    }

    /// The window around a guest address; an empty one if it lies in no region.
    #[inline(never)]
    pub(crate) fn window(&self, guest: u64) -> Window {
        let of = |mapped: &Mapped| Window { guest: mapped.region.guest, len: mapped.region.len, host: mapped.host };
        self.region_of(guest).map(of).unwrap_or_default()
    }

    /// The pieces of guest memory that may lie across neighbouring regions, in their order; false, and perhaps some pieces given
    /// already, if a byte of it lies in none.
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
            // Cannot overflow: a region ends at most where the address space does, checked when it was made.
            guest += u64::from(here);
        }
    }

    /// The host address of memory that the frontend names by its own addresses, as it does for rings; it must lie whole in one region.
    #[must_use]
    pub fn of_user(&self, user: u64, len: u64) -> Option<u64> {
        self.regions.iter().find_map(|mapped| Some(mapped.host + mapped.region.at(mapped.region.user, user, len)?))
    }

    /// The guest address of what the frontend names by its own.
    #[must_use]
    pub fn guest_of_user(&self, user: u64) -> Option<u64> {
        self.regions
            .iter()
            .find_map(|mapped| Some(mapped.region.guest + mapped.region.at(mapped.region.user, user, 1)?))
    }

    /// No file has been found shorter than it was announced; see [`Shared::is_whole`].
    #[inline]
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.regions.iter().all(|mapped| mapped.shared.is_whole())
    }

    /// Takes the guest's files away from whoever still touches this memory, a device that is late above all: what is written there from now on
    /// reaches nobody. Neighbours in time that share regions with this table lose them, too.
    ///
    /// # Errors
    /// The system's refusal, for the first region that it kept.
    pub fn revoke(&self) -> Result<(), RegionError> {
        // All that can be, whatever becomes of one.
        let tried = self.regions.iter().map(|mapped| {
            let refused = |error: telpher_mem::MapError| MemoryError::Map(error.into());
            mapped.shared.revoke().map_err(|error| RegionError { region: mapped.region, source: refused(error) })
        });
        tried.fold(Ok(()), Result::and)
    }

    /// The region with this byte.
    #[inline]
    fn region_of(&self, guest: u64) -> Option<&Mapped> {
        // Few: one for most guests, two where there is memory above 4 GiB.
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
