//! Programs that write, discard, map, unmap, move mappings and fork while their pages are moved: no byte is lost, none is old.
#![allow(unsafe_code, reason = "does what programs do to their memory, by address")]

mod common;

use common::stress::{Over, lost_writes, next, soak};
use common::{FAST, HOME, PAGE, heap_with};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use telpher_mem::PageSize;
use telpher_tier::{Heap, TierId};

fn stress(heap: &Heap, pages: PageSize) {
    let mut arena = heap.arena(4 << 20, pages).unwrap();
    arena.fill(0);
    let lost = lost_writes(arena.addresses().start, 1024, &|range, to| {
        heap.migrate(range, TierId(to)).unwrap();
    });
    let stats = heap.stats();
    assert_eq!((lost, stats.lost), (0, 0), "{stats:?}");
    assert!(stats.moved.pages > 1000, "{stats:?}");
}

#[test]
fn no_write_is_lost() {
    let Some(heap) = heap_with("no_write_is_lost", 8 << 20, |options| options.batch = 64) else { return };
    stress(&heap, PageSize::Small);
}

#[test]
fn no_write_to_huge_pages_is_lost() {
    let Some(heap) = heap_with("no_write_to_huge_pages_is_lost", 8 << 20, |_| ()) else { return };
    let mut arena = heap.arena(4 << 20, PageSize::Huge).unwrap();
    arena.fill(0);
    let start = arena.addresses().start;
    let lost = lost_writes(start, 1024, &|_, to| {
        heap.migrate(start..start + (4 << 20), TierId(to)).unwrap();
    });
    let stats = heap.stats();
    assert_eq!((lost, stats.lost), (0, 0), "{stats:?}");
    assert!(stats.moved.pages > 1000, "{stats:?}");
}

/// The stress above notices what it is for: pages that are copied away and back while their owner writes.
#[test]
fn copies_under_a_writer_lose_writes_and_the_test_says_so() {
    let mut bytes = vec![0_u64; 1024 * 512 + 512];
    let start = (bytes.as_mut_ptr().expose_provenance() as u64).next_multiple_of(PAGE);
    let lost = lost_writes(start, 1024, &|range, _| {
        let (start, len) = (usize::try_from(range.start).unwrap(), usize::try_from(range.end - range.start).unwrap());
        let mut away = vec![0_u8; len];
        // SAFETY: not at all: others write there. Bytes of a vector that lives, and this is what it is to show.
        unsafe {
            let page: *mut u8 = std::ptr::with_exposed_provenance_mut(start);
            page.copy_to_nonoverlapping(away.as_mut_ptr(), len);
            std::thread::yield_now();
            page.copy_from_nonoverlapping(away.as_ptr(), len);
        }
    });
    assert!(lost > 0);
    drop(bytes);
}

/// Discards, mappings that move and go, and forks, each over memory whose pages say which they are, or are empty.
#[test]
fn what_programs_do_to_their_mappings_is_followed() {
    let Some(heap) = heap_with("what_programs_do_to_their_mappings_is_followed", 8 << 20, |options| options.batch = 64)
    else {
        return;
    };
    const PAGES: u64 = 512;
    // Two arenas: one's mapping moves about in the other's room, and back.
    let arenas = [0, 1].map(|_| heap.arena(2 << 20, PageSize::Small).unwrap());
    let starts = [0, 1].map(|at: usize| arenas[at].addresses().start);
    let (over, forks) = (AtomicBool::new(false), AtomicU64::new(0));
    let (lower, upper) = (starts[0].min(starts[1]), starts[0].max(starts[1]) + PAGES * PAGE);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = 5;
            while !over.load(Ordering::Relaxed) {
                let start = starts[usize::try_from(next(&mut state) % 2).unwrap()];
                let (first, len) = (next(&mut state) % PAGES, 1 + next(&mut state) % 64);
                let range = start + first * PAGE..(start + (first + len) * PAGE).min(upper).max(lower);
                heap.migrate(range, if next(&mut state).is_multiple_of(2) { FAST } else { HOME }).unwrap();
            }
        });
        let _over = Over(&over);
        // What a page should say, by its place in either arena; nothing where it is empty.
        let mut says = [vec![0_u64; 512], vec![0_u64; 512]];
        let (end, mut state, mut number) = (Instant::now() + soak(), 77, 0);
        let word = |arena: usize, page: u64| {
            let address = usize::try_from(starts[arena] + page * PAGE).unwrap();
            // SAFETY: a word of an arena, whose mapping is there whenever this is called; only this thread has it.
            unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(address) }
        };
        while Instant::now() < end || heap.stats().moved.pages <= 1000 || forks.load(Ordering::Relaxed) == 0 {
            let (arena, page) = (usize::try_from(next(&mut state) % 2).unwrap(), next(&mut state) % PAGES);
            let len = (1 + next(&mut state) % 32).min(PAGES - page);
            let at = |arena: usize, page: u64| -> *mut libc::c_void {
                std::ptr::with_exposed_provenance_mut(usize::try_from(starts[arena] + page * PAGE).unwrap())
            };
            let bytes = usize::try_from(len * PAGE).unwrap();
            let places = usize::try_from(page).unwrap()..usize::try_from(page + len).unwrap();
            match next(&mut state) % 64 {
                0 => {
                    // SAFETY: whole pages of an arena.
                    assert_eq!(unsafe { libc::madvise(at(arena, page), bytes, libc::MADV_DONTNEED) }, 0);
                    says[arena][places].fill(0);
                }
                1 => {
                    // Blocks of eight, so that none is ever of two mappings, which cannot move at once.
                    let (page, bytes) = (page / 8 * 8, 8 * 4096);
                    let places = usize::try_from(page).unwrap()..usize::try_from(page + 8).unwrap();
                    // Over what the other has in the same place, and what was here is new memory, which is the heap's no more.
                    // SAFETY: both ranges are whole pages of arenas, which keep their mappings.
                    unsafe {
                        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                        let moved = libc::mremap(at(arena, page), bytes, bytes, flags, at(1 - arena, page));
                        assert_eq!(moved, at(1 - arena, page), "{}", std::io::Error::last_os_error());
                        let protection = libc::PROT_READ | libc::PROT_WRITE;
                        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
                        let fresh = libc::mmap(at(arena, page), bytes, protection, flags, -1, 0);
                        assert_eq!(fresh, at(arena, page), "{}", std::io::Error::last_os_error());
                    }
                    let [a, b] = &mut says;
                    let (from, to) = if arena == 0 { (a, b) } else { (b, a) };
                    to[places.clone()].copy_from_slice(&from[places.clone()]);
                    from[places].fill(0);
                }
                2 if forks.load(Ordering::Relaxed) < 200 => {
                    // SAFETY: the child looks at its memory and exits.
                    let child = unsafe { libc::fork() };
                    if child == 0 {
                        let same = (0..2).all(|arena| {
                            (0..PAGES).all(|page| {
                                word(arena, page).load(Ordering::Relaxed) == says[arena][usize::try_from(page).unwrap()]
                            })
                        });
                        // SAFETY: ends the child without anything of the parent's being run.
                        unsafe { libc::_exit(i32::from(!same)) };
                    }
                    let mut status = 0;
                    // SAFETY: our own child, a place of our own for its status.
                    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                    assert_eq!(status, 0, "a child has what its parent had, after {forks:?} forks");
                    forks.fetch_add(1, Ordering::Relaxed);
                }
                _ => {
                    number += 1;
                    let place = usize::try_from(page).unwrap();
                    assert_eq!(
                        word(arena, page).swap(number, Ordering::Relaxed),
                        says[arena][place],
                        "page {page} of {arena}"
                    );
                    says[arena][place] = number;
                }
            }
        }
        for (arena, says) in says.iter().enumerate() {
            for (page, &says) in (0..).zip(says) {
                assert_eq!(word(arena, page).load(Ordering::Relaxed), says, "page {page} of {arena}");
            }
        }
    });
    let stats = heap.stats();
    assert_eq!(stats.lost, 0, "{stats:?}");
    assert!(stats.moved.pages > 500 && stats.forks == forks.load(Ordering::Relaxed) && stats.forks > 0, "{stats:?}");
}
