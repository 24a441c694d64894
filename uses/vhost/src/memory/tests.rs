use super::*;
use rustix::fs::MemfdFlags;
use std::os::fd::{AsFd, OwnedFd};

fn file(len: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    file
}

fn region(guest: u64, len: u64, user: u64, offset: u64) -> Region {
    Region { guest, len, user, offset }
}

/// Guest pages 1–2, 3 (adjacent, elsewhere in the file) and 5.
fn three() -> (GuestMemory, OwnedFd) {
    let file = file(0x8000);
    let table = [
        (region(0x3000, 0x1000, 0x7_0000, 0), file.as_fd()),
        (region(0x1000, 0x2000, 0x9_0000, 0x4000), file.as_fd()),
        (region(0x5000, 0x800, 0x8_0000, 0x2000), file.as_fd()),
    ];
    (GuestMemory::new().replaced(&table).unwrap(), file)
}

#[test]
fn an_address_is_found_where_its_region_is_mapped() {
    let (memory, _) = three();
    let first = memory.host(0x1000, 1).unwrap();
    assert_eq!(memory.host(0x1fff, 0x1001), Some(first + 0xfff));
    assert_eq!(memory.of_user(0x9_0fff, 0x1001), Some(first + 0xfff));
    assert_eq!(memory.guest_of_user(0x9_0fff), Some(0x1fff));
    assert_eq!(memory.host(0x57ff, 1), memory.of_user(0x8_07ff, 1));
    assert_eq!((memory.generation(), memory.regions()), (1, 3));
}

#[test]
fn a_byte_outside_all_regions_has_no_address() {
    let (memory, _) = three();
    for (guest, len) in [(0, 1), (0xfff, 1), (0xfff, 2), (0x1000, 0x2001), (0x4000, 1), (0x5800, 1), (0x57ff, 2)] {
        assert_eq!(memory.host(guest, len), None, "{len} bytes at {guest:#x}");
    }
    assert_eq!(
        (memory.host(u64::MAX, 1), memory.host(u64::MAX, u32::MAX), memory.host(0x1000, u32::MAX)),
        (None, None, None)
    );
    assert_eq!((memory.of_user(0x9_0000, 0x2001), memory.of_user(0x9_0001, u64::MAX)), (None, None));
    assert_eq!((memory.of_user(0x8_0800, 1), memory.guest_of_user(0x8_0800)), (None, None));
    assert_eq!(GuestMemory::new().host(0, 0), None);
}

/// What broke: two frontends with the most regions allowed left no mapping for a third.
#[test]
fn frontends_with_the_most_regions_leave_mappings_for_others() {
    let file = file(0x1000);
    let all = || {
        (0..MOST_REGIONS as u64).fold(GuestMemory::new(), |memory, index| {
            memory.with(region(index << 12, 0x1000, index << 12, 0), file.as_fd()).unwrap()
        })
    };
    let frontends = [all(), all(), all(), all()];
    assert!(frontends.iter().all(|memory| memory.regions() == MOST_REGIONS));
}

/// Any user can mount FUSE and make an access wait for ever, and with it the thread that polls all ports.
#[test]
fn a_file_whose_pages_another_process_supplies_is_refused() {
    // There is no FUSE here; proc is not a file system for memory either.
    let file = std::fs::File::open("/proc/self/status").unwrap();
    let refused = GuestMemory::new().with(region(0x1000, 0x1000, 0, 0), file.as_fd()).unwrap_err();
    assert!(matches!(refused.source, MemoryError::FileSystem { magic: 0x9fa0 }), "{refused:?}");
}

#[test]
fn a_range_across_adjacent_regions_is_split() {
    let (memory, _) = three();
    let mut pieces = Vec::new();
    assert!(memory.pieces(0x2f00, 0x200, |piece| pieces.push(piece)));
    let piece = |guest, len| Piece { host: memory.host(guest, len).unwrap(), guest, len };
    assert_eq!(pieces, [piece(0x2f00, 0x100), piece(0x3000, 0x100)]);
    // Page 4 belongs to no region.
    assert!(!memory.pieces(0x3f00, 0x101, |_| ()));
    assert!(!memory.pieces(0x4000, 0, |_| ()));
    pieces.clear();
    assert!(memory.pieces(0x1000, 0, |piece| pieces.push(piece)));
    assert_eq!(pieces, [piece(0x1000, 0)]);
}

#[test]
fn regions_that_overlap_wrap_or_exceed_their_file_are_refused() {
    let (memory, file) = three();
    let refused = |region| memory.with(region, file.as_fd()).unwrap_err().source;
    assert!(matches!(refused(region(0x2fff, 1, 0, 0)), MemoryError::Overlaps { other } if other.guest == 0x1000));
    assert!(matches!(refused(region(0, 0x1001, 0, 0)), MemoryError::Overlaps { .. }));
    assert!(matches!(refused(region(u64::MAX, 2, 0, 0)), MemoryError::Wraps));
    assert!(matches!(refused(region(0x9000, 2, u64::MAX, 0)), MemoryError::Wraps));
    assert!(matches!(refused(region(0x9000, 2, 0, u64::MAX)), MemoryError::Wraps));
    assert!(matches!(refused(region(0x9000, 0x8001, 0, 0)), MemoryError::Map(SharedError::Beyond { .. })));
    assert!(matches!(refused(region(0x9000, 0, 0, 0)), MemoryError::Map(SharedError::Empty)));
}

#[test]
fn the_number_of_regions_is_bounded() {
    let file = file(0x1000);
    let many: Vec<_> = (0..509).map(|n| (region(n << 12, 0x1000, n << 12, 0), file.as_fd())).collect();
    let memory = GuestMemory::new().replaced(&many).unwrap();
    assert_eq!(memory.regions(), MOST_REGIONS);
    let one_more = memory.with(region(1 << 40, 1, 0, 0), file.as_fd()).unwrap_err();
    assert!(matches!(one_more.source, MemoryError::Many));
}

#[test]
fn a_removed_region_takes_only_its_own_addresses() {
    let (memory, _) = three();
    let next = memory.without(region(0x1000, 0x2000, 0x9_0000, 0)).unwrap();
    assert_eq!((next.host(0x1000, 1), next.host(0x3000, 1)), (None, memory.host(0x3000, 1)));
    assert_eq!((next.generation(), next.regions()), (2, 2));
    let unknown = next.without(region(0x1000, 0x2000, 0x9_0000, 0)).unwrap_err();
    assert!(matches!(unknown.source, MemoryError::Unknown));
    // The old table maps it as long as it lives.
    assert!(memory.host(0x1000, 1).is_some());
}

#[test]
fn a_region_is_identified_by_its_fields_and_its_file() {
    let (memory, same) = three();
    let (other, known) = (file(0x8000), region(0x1000, 0x2000, 0x9_0000, 0x4000));
    assert!(memory.has(known, same.as_fd()) && memory.has(known, same.try_clone().unwrap().as_fd()));
    assert!(!memory.has(known, other.as_fd()));
    for unknown in [
        region(0x2000, 0x2000, 0x9_0000, 0x4000),
        region(0x1000, 0x1000, 0x9_0000, 0x4000),
        region(0x1000, 0x2000, 0xa_0000, 0x4000),
        region(0x1000, 0x2000, 0x9_0000, 0x3000),
    ] {
        assert!(!memory.has(unknown, same.as_fd()) && memory.meets(unknown));
    }
    for (guest, len, meets) in [
        (0, 0x1000, false),
        (0, 0x1001, true),
        (0x3fff, 1, true),
        (0x4000, 0x1000, false),
        (0x57ff, u64::MAX, true),
        (0x5800, u64::MAX, false),
    ] {
        assert_eq!(memory.meets(region(guest, len, 0, 0)), meets, "{len:#x} bytes at {guest:#x}");
    }
    assert!(!GuestMemory::new().has(Region::default(), same.as_fd()));
}

#[test]
fn a_shrunken_file_is_reported_by_the_tables_that_map_it() {
    let (memory, file) = three();
    rustix::fs::ftruncate(&file, 0).unwrap();
    assert!(memory.is_whole());
    // SAFETY-free touch: the kernels of a space go on over it.
    let touched = memory.host(0x5000, 1).unwrap();
    touch(touched);
    assert!(!memory.is_whole());
    let left = memory.without(region(0x5000, 0x800, 0x8_0000, 0)).unwrap();
    assert!(left.is_whole());
}

#[test]
fn revoked_memory_is_revoked_in_all_tables_that_share_it() {
    let (memory, file) = three();
    rustix::io::pwrite(&file, &[7; 0x8000], 0).unwrap();
    let next = memory.without(region(0x5000, 0x800, 0x8_0000, 0)).unwrap();
    next.revoke().unwrap();
    assert!(!memory.is_whole() && !next.is_whole());
    // The region that only the first table has is still backed by the file.
    let left = memory.without(region(0x1000, 0x2000, 0x9_0000, 0)).unwrap();
    let left = left.without(region(0x3000, 0x1000, 0x7_0000, 0)).unwrap();
    assert!(left.is_whole());
}

#[allow(unsafe_code, reason = "reads a byte of guest memory by its address")]
fn touch(address: u64) {
    let pointer = std::ptr::with_exposed_provenance::<u8>(usize::try_from(address).unwrap());
    // SAFETY: inside a live mapping; volatile, because other processes write it.
    unsafe { pointer.read_volatile() };
}
