//! Shared arenas with each kind of memory: pages, reserved huge pages, files, and memory devices.
#![allow(unsafe_code, reason = "creates memory files, and checks on which node they are")]

mod common;

use common::stress::lost_writes_over;
use common::{FAST, HOME, PAGE, nodes_with_memory, skip};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use telpher_os::{Nodes, Userfault, UserfaultFeatures};
use telpher_tier::{Heap, HeapOptions, SharedArena, TierError, TierId, TierMemory, TierOptions};

/// Bytes of a unit.
const UNIT: usize = 2 << 20;
/// Units of an arena.
const UNITS: usize = 3;

/// Returns the node of each tier, if there are two with memory.
fn nodes() -> [Option<u32>; 2] {
    match nodes_with_memory()[..] {
        [first, second, ..] => [Some(second), Some(first)],
        _ => [None; 2],
    }
}

fn options(shared_memory: Vec<TierMemory>) -> HeapOptions {
    let bytes = (UNITS * UNIT) as u64;
    let tiers = nodes().map(|node| TierOptions { name: format!("{node:?}"), node, bytes });
    HeapOptions { shared_memory, ..HeapOptions::new(tiers.to_vec()) }
}

/// Creates a heap whose shared arenas use this memory; none where the kernel lacks a feature.
fn heap(test: &str, shared_memory: Vec<TierMemory>) -> Option<Heap> {
    let lacks = Userfault::open(UserfaultFeatures::PROTECT_SHARED).is_err()
        || nodes() == [None; 2] && Userfault::open(UserfaultFeatures::MOVE).is_err();
    if lacks {
        skip::skip(test, "no userfaultfd that protects files for this user on this kernel (Linux 5.19)");
        return None;
    }
    Some(Heap::new(options(shared_memory)).unwrap())
}

/// Reserves huge pages on a tier's node, or anywhere; dropping it reduces the reservation by as many.
struct Reserved(PathBuf, usize);

impl Reserved {
    fn take(tier: usize, pages: usize) -> Result<Reserved, String> {
        let machine = "/sys/kernel/mm/hugepages".to_string();
        let of_node = |node: u32| format!("/sys/devices/system/node/node{node}/hugepages");
        let file = PathBuf::from(nodes()[tier].map_or(machine, of_node)).join("hugepages-2048kB/nr_hugepages");
        let reserved = Reserved(file, pages);
        let before = reserved.count().ok_or("the kernel has no huge pages of 2 MiB")?;
        let set = std::fs::write(&reserved.0, (before + pages).to_string());
        if set.is_err() || reserved.count() != Some(before + pages) {
            return Err(format!("no {pages} huge pages can be reserved: {set:?}"));
        }
        Ok(reserved)
    }

    fn count(&self) -> Option<usize> {
        std::fs::read_to_string(&self.0).ok()?.trim().parse().ok()
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // Also if fewer pages were reserved than requested.
        if let Some(now) = self.count() {
            let _ = std::fs::write(&self.0, now.saturating_sub(self.1).to_string());
        }
    }
}

/// Lets one test at a time use resources of the whole machine.
fn exclusive() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a file in memory, with a path that is valid as long as the file is open.
fn memory_file(bytes: usize) -> (File, TierMemory) {
    // SAFETY: the name is a terminated string; the descriptor is new and owned by the File.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC)) };
    file.set_len(bytes as u64).unwrap();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
    (file, TierMemory::File(path))
}

/// Returns a memory device, if this machine has one that every user may use.
fn device() -> Option<TierMemory> {
    let path = PathBuf::from("/dev/dax0.0");
    File::options().read(true).write(true).open(&path).ok()?;
    Some(TierMemory::File(path))
}

/// Writes each page's number, plus one, into every word of it.
fn number(arena: &mut SharedArena) {
    for (word, bytes) in arena.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *bytes = (word / 512 + 1).to_ne_bytes();
    }
}

fn is_numbered(arena: &SharedArena) -> bool {
    arena.as_chunks::<8>().0.iter().enumerate().all(|(word, bytes)| *bytes == (word / 512 + 1).to_ne_bytes())
}

/// Checks that the units of an arena are on the right tier and keep their contents, before and after each move.
fn goes_and_comes_back(test: &str, memory: [TierMemory; 2]) {
    let Some(heap) = heap(test, memory.to_vec()) else { return };
    let mut arena = heap.shared_arena(UNITS * UNIT).unwrap();
    assert!(arena.iter().all(|&byte| byte == 0), "zeros at first");
    number(&mut arena);
    let (all, pages) = (arena.addresses(), (UNITS * 512) as u64);
    for to in [FAST, HOME, FAST, HOME] {
        let moved = heap.migrate(all.clone(), to).unwrap();
        assert_eq!((moved.pages, moved.left.all()), (pages, 0), "{memory:?} to {to:?}: {moved:?}");
        assert!(is_numbered(&arena), "{memory:?} to {to:?}");
        if let (Some(node), false) =
            (nodes()[usize::from(to.0)], matches!(memory[usize::from(to.0)], TierMemory::File(_)))
        {
            let pages: Vec<u64> = all.clone().step_by(4096).collect();
            let mut answers = vec![Ok(u32::MAX); pages.len()];
            Nodes::of_pages(&pages, &mut answers).unwrap();
            assert!(answers.iter().all(|answer| *answer == Ok(node)), "{memory:?} to {to:?}: {answers:?}");
        }
    }
    // Moves a part of it; the rest keeps its contents.
    assert_eq!(heap.migrate(all.start + UNIT as u64..all.end, FAST).unwrap().pages, pages - 512);
    assert_eq!(heap.residency(all.clone()).unwrap(), [pages - 512, 512]);
    assert!(is_numbered(&arena));
}

/// Checks that no write is lost while units go to and fro.
fn loses_nothing(test: &str, memory: [TierMemory; 2]) {
    let Some(heap) = heap(test, memory.to_vec()) else { return };
    let arena = heap.shared_arena(UNITS * UNIT).unwrap();
    let all = arena.addresses();
    // Moves one unit at a time: the unit of the given page.
    let lost = lost_writes_over(60, all.start, (all.end - all.start) / PAGE, &|range, to| {
        let unit = (range.start - all.start) / UNIT as u64 * UNIT as u64;
        heap.migrate(all.start + unit..all.start + unit + UNIT as u64, TierId(to)).unwrap();
    });
    let moved = heap.stats().moved;
    assert_eq!((lost, moved.left.failed), (0, 0), "{memory:?}: {moved:?}");
    assert!(moved.pages > 5 * 512, "{memory:?}: {moved:?}");
}

#[test]
fn arenas_of_pages_go_and_come_back() {
    let (test, memory) = ("arenas_of_pages_go_and_come_back", [TierMemory::Pages, TierMemory::Pages]);
    goes_and_comes_back(test, memory.clone());
    loses_nothing(test, memory);
}

#[test]
fn arenas_of_reserved_huge_pages_go_and_come_back() {
    let test = "arenas_of_reserved_huge_pages_go_and_come_back";
    let _exclusive = exclusive();
    for memory in [
        [TierMemory::HugePages, TierMemory::Pages],
        [TierMemory::Pages, TierMemory::HugePages],
        [TierMemory::HugePages, TierMemory::HugePages],
    ] {
        let of_tier = |tier: usize| if memory[tier] == TierMemory::HugePages { UNITS } else { 0 };
        match (Reserved::take(0, of_tier(0)), Reserved::take(1, of_tier(1))) {
            (Ok(_fast), Ok(_home)) => {
                goes_and_comes_back(test, memory.clone());
                if memory[1] == TierMemory::Pages {
                    loses_nothing(test, memory);
                }
            }
            (Err(why), _) | (_, Err(why)) => return skip::skip(test, &why),
        }
    }
}

#[test]
fn arenas_of_files_go_and_come_back() {
    let test = "arenas_of_files_go_and_come_back";
    let ((_open, one), (_other_open, other)) = (memory_file(UNITS * UNIT), memory_file(UNITS * UNIT));
    goes_and_comes_back(test, [one.clone(), TierMemory::Pages]);
    loses_nothing(test, [one.clone(), TierMemory::Pages]);
    goes_and_comes_back(test, [TierMemory::Pages, other.clone()]);
    goes_and_comes_back(test, [one, other]);
}

#[test]
fn arenas_of_devices_go_and_come_back() {
    let test = "arenas_of_devices_go_and_come_back";
    let _exclusive = exclusive();
    let Some(device) = device() else { return skip::skip(test, "this machine has no memory device (device-DAX)") };
    goes_and_comes_back(test, [TierMemory::Pages, device.clone()]);
    goes_and_comes_back(test, [device.clone(), TierMemory::Pages]);
    let (_open, file) = memory_file(UNITS * UNIT);
    goes_and_comes_back(test, [file, device.clone()]);
    match Reserved::take(1, UNITS) {
        Ok(_home) => {
            let memory = [device, TierMemory::HugePages];
            goes_and_comes_back(test, memory.clone());
            loses_nothing(test, memory);
        }
        Err(why) => skip::skip(test, &why),
    }
}

#[test]
fn one_arena_at_a_time_uses_a_file_within_its_size() {
    let test = "one_arena_at_a_time_uses_a_file_within_its_size";
    let (open, file) = memory_file(2 * UNIT + 4096);
    let Some(heap) = heap(test, vec![file.clone()]) else { return };
    let mut arena = heap.shared_arena(UNITS * UNIT).unwrap();
    let second = heap.shared_arena(UNIT).unwrap_err();
    assert!(matches!(&second, TierError::File(why) if why.to_string().contains("another process uses it")), "{second}");
    number(&mut arena);
    let moved = heap.migrate(arena.addresses(), FAST).unwrap();
    assert_eq!((moved.pages, moved.left.no_room), (2 * 512, 512), "{moved:?}");
    assert!(is_numbered(&arena));
    drop(arena);
    // A new arena reads as zeros whatever the file contained, also if the file is the home tier.
    drop(heap.shared_arena(UNIT).unwrap());
    let mut home = HeapOptions::new(heap.options().tiers.clone());
    (home.home, home.shared_memory) = (FAST, vec![file]);
    let heap = Heap::new(home).unwrap();
    assert!(heap.shared_arena(UNIT).unwrap().iter().all(|&byte| byte == 0));
    let short = heap.shared_arena(UNITS * UNIT).unwrap_err();
    assert!(matches!(short, TierError::HomeTooSmall { needed, has } if (needed, has) == (6 << 20, 4 << 20)), "{short}");
    drop(open);
}

#[test]
fn a_file_that_is_no_memory_is_refused_with_a_reason() {
    let test = "a_file_that_is_no_memory_is_refused_with_a_reason";
    let (_open, short) = memory_file(UNIT - 4096);
    let named = |path: &str| TierMemory::File(path.into());
    for (memory, says) in [
        (named("/no/such/file"), "read and write"),
        (named("/proc/self/mem"), "less than 2 MiB"),
        (named("/dev/null"), "not a memory device"),
        (named("/"), "read and write"),
        (short, "less than 2 MiB"),
    ] {
        let Some(heap) = heap(test, vec![memory.clone()]) else { return };
        let refused = heap.shared_arena(UNIT).unwrap_err();
        assert!(matches!(&refused, TierError::File(why) if why.to_string().contains(says)), "{memory:?}: {refused:?}");
    }
    let refused = Heap::new(options(vec![TierMemory::Pages; 3])).unwrap_err();
    assert!(matches!(refused, TierError::SharedMemory { given: 3, tiers: 2 }), "{refused}");
}

#[test]
fn unreserved_huge_pages_are_not_available() {
    let _exclusive = exclusive();
    let test = "unreserved_huge_pages_are_not_available";
    let Some(heap) = heap(test, vec![TierMemory::HugePages; 2]) else { return };
    // More than any test machine has reserved.
    let most = UNIT * 100_000;
    let refused = heap.shared_arena(most).unwrap_err();
    assert!(matches!(&refused, TierError::Map(why) if why.to_string().contains("vm.nr_hugepages")), "{refused:?}");
}
