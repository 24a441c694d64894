//! What programs do while their pages are out; these tests keep the pages out until it is done.
#![allow(unsafe_code, reason = "does what programs do to their mappings")]

use super::*;
use crate::mechanism::{TrapCandidate, Trapping};
use crate::stress::Places;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

impl Tested {
    /// Moves pages and runs `act` while they are out.
    fn while_out<T>(&self, range: Range<u64>, to: TierId, act: impl FnOnce() -> T) -> (Moved, T) {
        let faults = &self.mechanism.exchange.faults;
        let ((sender, out), (go, waits)) = (channel(), channel());
        *faults.pause.lock().unwrap() = Some((sender, waits));
        std::thread::scope(|scope| {
            let mover = scope.spawn(|| {
                let moved = self.migrate(range, to).unwrap();
                // If nothing went out, the pause is still pending.
                faults.pause.lock().unwrap().take();
                moved
            });
            // However `act` ends, the mover continues.
            let go = go;
            out.recv().expect("pages go out");
            let done = act();
            drop(go);
            (mover.join().unwrap(), done)
        })
    }
}

fn has_no_huge_pages() -> bool {
    TransparentHugePages::setting().are_off()
}

#[test]
fn a_child_forked_while_pages_are_out_gets_them() {
    if !stress::is_alone("a_child_forked_while_pages_are_out_gets_them") {
        return;
    }
    for pages in [PageSize::Small, PageSize::Huge] {
        let Some(heap) = heap(512) else { return };
        let mut arena = heap.arena(2 << 20, pages).unwrap();
        number(&mut arena);
        for (at, to) in [FAST, HOME, FAST].into_iter().enumerate() {
            let has = || stress::is_so_in_child(stress::fork, || is_whole(&arena));
            let (moved, has) = heap.while_out(arena.addresses(), to, has);
            assert!(has, "{pages:?}: the child has the pages of its parent");
            let stats = heap.stats();
            assert_eq!(
                (stats.copied_to_children, stats.forks, stats.lost),
                (512 * (at as u64 + 1), at as u64 + 1, 0),
                "{stats:?}"
            );
            assert_eq!((moved.pages, wrong(&arena)), (512, vec![]), "{pages:?}: {moved:?}");
            assert!(moved.huge == 512 || pages == PageSize::Small || has_no_huge_pages(), "{moved:?}");
            assert_settled(&heap);
        }
    }
}

/// Parts of the arena are protected or locked while they are out: the kernel moves no page to such a mapping.
#[test]
fn pages_locked_or_protected_while_out_come_back_as_copies() {
    if !stress::is_alone("pages_locked_or_protected_while_out_come_back_as_copies") {
        return;
    }
    let Some(heap) = heap(64) else { return };
    let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
    number(&mut arena);
    let at = |page: u64| -> *mut libc::c_void {
        std::ptr::with_exposed_provenance_mut(usize::try_from(arena.addresses().start + page * PAGE).unwrap())
    };
    std::thread::scope(|scope| {
        let (moved, locker) = heap.while_out(part(&arena, 0..16), FAST, || {
            // SAFETY: whole pages of the arena, which are made writable again below.
            unsafe { assert_eq!(libc::mprotect(at(4), 4 * 4096, libc::PROT_READ), 0) };
            let start = at(12).expose_provenance();
            // `mlock` waits for the pages; they must come back as copies.
            let locker = scope.spawn(move || {
                // SAFETY: whole pages of the arena, which are unlocked below.
                unsafe { libc::mlock(std::ptr::with_exposed_provenance(start), 4 * 4096) }
            });
            let is_locked = || {
                let status = std::fs::read_to_string("/proc/self/status").unwrap();
                let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
                line.trim() == "16 kB"
            };
            while !is_locked() {
                std::thread::yield_now();
            }
            assert!(!locker.is_finished(), "the kernel waits for pages that are out");
            locker
        });
        assert_eq!(locker.join().unwrap(), 0);
        assert_eq!((moved.pages, moved.left.failed, moved.left.all()), (8, 8, 8), "{moved:?}");
    });
    let stats = heap.stats();
    assert_eq!((wrong(&arena), stats.copied_back, stats.lost, stats.dropped), (vec![], 8, 0, 0), "{stats:?}");
    let on = |pages| heap.residency(part(&arena, pages)).unwrap();
    assert_eq!([on(0..4), on(4..8), on(8..12), on(12..16)], [[4, 0], [0, 4], [4, 0], [0, 4]]);
    assert_settled(&heap);
    // SAFETY: as above.
    unsafe {
        assert_eq!(libc::mprotect(at(4), 4 * 4096, libc::PROT_READ | libc::PROT_WRITE), 0);
        assert_eq!(libc::munlock(at(12), 4 * 4096), 0);
    }
    assert_eq!(heap.migrate(part(&arena, 0..16), FAST).unwrap().pages, 8);
    assert_eq!(wrong(&arena), Vec::<usize>::new());
    assert_settled(&heap);
}

/// As when all memory is locked, or another process reads this one's memory: a slot thought empty is not, and no page
/// goes there.
#[test]
fn content_of_an_occupied_slot_is_not_taken_for_a_page() {
    // A huge page is split by this; the parts that have not gone stay.
    for (size, filled, left) in
        [(PageSize::Small, (0..512).step_by(2), [256, 0]), (PageSize::Huge, (7..8).step_by(1), [1, 504])]
    {
        if size == PageSize::Huge && lacks_huge_pages("content_of_an_occupied_slot_is_not_taken_for_a_page") {
            continue;
        }
        // The home tier has only as many slots as one batch needs.
        let Some(heap) = heap_with(|options| options.spare_bytes = 0) else { return };
        let mut arena = heap.arena(2 << 20, size).unwrap();
        number(&mut arena);
        let slot = heap.mechanism.pools.lock().unwrap().tiers[HOME.index()][size_index(size)].range().start;
        for page in filled {
            touch(slot + page * PAGE);
        }
        let moved = heap.migrate(arena.addresses(), FAST).unwrap();
        assert_eq!((wrong(&arena), heap.stats().lost), (vec![], 0), "{size:?}: {moved:?}");
        let stayed = left.iter().sum::<u64>();
        assert_eq!((moved.pages, [moved.left.failed, moved.left.gone]), (512 - stayed, left), "{size:?}: {moved:?}");
        assert_settled(&heap);
        // The slots have been emptied.
        assert_eq!(heap.migrate(arena.addresses(), FAST).unwrap().pages, stayed, "{size:?}");
        assert_eq!(heap.migrate(arena.addresses(), HOME).unwrap().pages, 512, "{size:?}");
        assert_eq!((wrong(&arena), heap.stats().lost), (vec![], 0));
        assert_settled(&heap);
    }
}

/// Free pages are overwritten, and everything is checked at the end.
#[test]
fn mapping_changes_of_pages_in_flight_are_followed() {
    if !stress::is_alone("mapping_changes_of_pages_in_flight_are_followed") {
        return;
    }
    for pages in [PageSize::Small, PageSize::Huge] {
        let Some(heap) = heap(512) else { return };
        let arenas = [0, 1].map(|_| heap.arena(4 << 20, pages).unwrap());
        let odd = heap.arena(4 << 20, PageSize::Small).unwrap();
        let ranges = arenas.each_ref().map(Arena::addresses);
        let places = match pages {
            PageSize::Small => Places::small(ranges),
            PageSize::Huge => Places::huge(ranges, &odd.addresses()),
        };
        let migrate = |range, to| _ = heap.migrate(range, TierId(to)).unwrap();
        // SAFETY: private memory without references to it; the heap outlives its use.
        let adopt = |range| _ = unsafe { heap.adopt(range) };
        let is_enough = || {
            let stats = heap.stats();
            stats.moved.pages > 1000 && stats.copied_to_children > 0 && stats.dropped > 0
        };
        stress::change_mappings(&places, &migrate, &adopt, &is_enough);
        let stats = heap.stats();
        assert!(is_enough() && stats.lost == 0 && stats.copied_back == 0, "{stats:?}");
        assert!(pages == PageSize::Small || stats.moved.huge > 0 || has_no_huge_pages(), "{stats:?}");
        assert_settled(&heap);
    }
}

/// Checks the stress above: it must notice each of these faults.
#[test]
fn the_stress_notices_changes_that_are_not_followed() {
    if !stress::is_alone("the_stress_notices_changes_that_are_not_followed") {
        return;
    }
    let faults: [fn(&Exchange); 3] = [
        |exchange| exchange.page_map().keeps_discarded = true,
        |exchange| exchange.faults.fills_what_is_out.store(true, Ordering::Relaxed),
        |exchange| exchange.faults.gives_nothing.store(true, Ordering::Relaxed),
    ];
    for (number, fault) in faults.into_iter().enumerate() {
        let Some(heap) = heap(64) else { return };
        let arenas = [0, 1].map(|_| heap.arena(2 << 20, PageSize::Small).unwrap());
        let places = Places::small(arenas.each_ref().map(Arena::addresses));
        fault(&heap.mechanism.exchange);
        let migrate = |range, to| _ = heap.migrate(range, TierId(to)).unwrap();
        // SAFETY: private memory without references to it; the heap outlives its use.
        let adopt = |range| _ = unsafe { heap.adopt(range) };
        let noticed = catch_unwind(AssertUnwindSafe(|| stress::change_mappings(&places, &migrate, &adopt, &|| false)));
        assert!(noticed.is_err(), "fault {number}: {:?}", heap.stats());
    }
}

/// The page's contents are lost, which is counted. But no thread waits for it forever, and the page that is there
/// instead moves like any other.
#[test]
fn a_page_whose_address_was_taken_is_not_out_forever() {
    let _limit = stress::Limit::new();
    let Some(heap) = heap(64) else { return };
    heap.mechanism.begin().unwrap();
    for by_trap in [false, true] {
        let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
        number(&mut arena);
        let page = |page: u64| arena.addresses().start + page * PAGE;
        let before = heap.stats();
        // The page is on the fast tier when it goes out.
        assert_eq!(heap.migrate(part(&arena, 0..16), FAST).unwrap().pages, 16);
        let take_its_place = || {
            let exchange = &heap.mechanism.exchange;
            exchange.faults.fills_what_is_out.store(true, Ordering::Relaxed);
            exchange.fill(&mut exchange.page_map(), page(5));
            exchange.faults.fills_what_is_out.store(false, Ordering::Relaxed);
        };
        if by_trap {
            assert_eq!(heap.mechanism.set(&[TrapCandidate { pages: part(&arena, 0..16), first: true }]).unwrap(), 16);
            take_its_place();
            heap.mechanism.end(&mut |_| ());
        } else {
            assert_eq!(heap.while_out(part(&arena, 0..16), HOME, take_its_place).0.pages, 15);
        }
        let stats = heap.stats();
        assert_eq!((wrong(&arena), stats.lost - before.lost, stats.dropped - before.dropped), (vec![5], 1, 1));
        number(&mut arena);
        assert_eq!(heap.residency(part(&arena, 0..16)).unwrap(), if by_trap { [15, 1] } else { [0, 16] });
        let moved = [FAST, HOME].map(|to| heap.migrate(part(&arena, 0..16), to).unwrap().pages);
        assert_eq!((moved, wrong(&arena)), ([if by_trap { 1 } else { 16 }, 16], vec![]));
        assert_settled(&heap);
    }
}

/// Starts a thread that reads a byte of a page that is out, and returns once the thread waits for the page.
fn waiting_reader(page: u64) -> JoinHandle<u8> {
    let (sends, received) = channel();
    let reader = std::thread::spawn(move || {
        sends.send(rustix::thread::gettid().as_raw_pid()).unwrap();
        // SAFETY: a page of an arena that is mapped, or was mapped: then there is a handler.
        unsafe { std::ptr::with_exposed_provenance::<u8>(usize::try_from(page).unwrap()).read_volatile() }
    });
    let stat = format!("/proc/self/task/{}/stat", received.recv().unwrap());
    // It sleeps in the kernel until the page comes; nothing else would make it sleep.
    while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
        std::thread::yield_now();
    }
    reader
}

fn pointer(address: u64) -> *mut libc::c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap())
}

#[test]
fn a_thread_waiting_for_a_discarded_page_continues() {
    let _limit = stress::Limit::new();
    for pages in [PageSize::Small, PageSize::Huge] {
        let Some(heap) = heap(512) else { return };
        let mut arena = heap.arena(2 << 20, pages).unwrap();
        number(&mut arena);
        let page = |page: u64| arena.addresses().start + page * PAGE;
        let (_, other) = heap.while_out(arena.addresses(), FAST, || {
            let [one, two, other] = [5, 7, 300].map(|at| waiting_reader(page(at)));
            // SAFETY: pages of the arena, without a reference to them meanwhile.
            assert_eq!(unsafe { libc::madvise(pointer(page(4)), 4 * 4096, libc::MADV_DONTNEED) }, 0);
            // The pages stay out until these readers have finished.
            assert_eq!([one, two].map(|reader| reader.join().unwrap()), [0, 0], "{pages:?}");
            assert!(!other.is_finished());
            other
        });
        assert_eq!(other.join().unwrap(), 301_u16.to_ne_bytes()[0]);
        assert_eq!((wrong(&arena), heap.stats().lost), ((4..8).collect(), 0), "{pages:?}");
        assert_eq!(heap.stats().dropped, 4);
        assert_settled(&heap);
    }
}

/// A kernel that reports a successful move as failed leaves threads waiting.
#[test]
fn a_thread_waiting_for_a_page_with_a_wrong_answer_continues() {
    let _limit = stress::Limit::new();
    for pages in [PageSize::Small, PageSize::Huge] {
        let Some(heap) = heap(512) else { return };
        let mut arena = heap.arena(2 << 20, pages).unwrap();
        number(&mut arena);
        heap.mechanism.exchange.faults.lies.store(1, Ordering::Relaxed);
        // Uses each wrong answer more than once.
        for to in [FAST, HOME].repeat(7) {
            let page = |page: u64| arena.addresses().start + page * PAGE;
            let readers = || [5, 300].map(|at| waiting_reader(page(at)));
            let (moved, readers) = heap.while_out(arena.addresses(), to, readers);
            assert_eq!(readers.map(|reader| reader.join().unwrap()), [6, 301_u16.to_ne_bytes()[0]], "{pages:?}");
            assert_eq!((moved.pages, wrong(&arena)), (512, vec![]), "{pages:?}: {moved:?}");
            assert_settled(&heap);
        }
    }
}

/// The address of the last read without a mapping.
static NOWHERE: AtomicU64 = AtomicU64::new(0);

/// Stores the address and does not return.
extern "C" fn nowhere(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel provides it for this call.
    NOWHERE.store(unsafe { (*info).si_addr() }.expose_provenance() as u64, Ordering::Relaxed);
    loop {
        // SAFETY: waits for a signal that does not come.
        unsafe { libc::pause() };
    }
}

#[test]
fn a_thread_waiting_for_an_unmapped_page_gets_a_signal() {
    if !stress::is_alone("a_thread_waiting_for_an_unmapped_page_gets_a_signal") {
        return;
    }
    let _limit = stress::Limit::new();
    // SAFETY: a handler that only waits, in a process that runs only this test.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nowhere as extern "C" fn(_, _, _) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()), 0);
    }
    for moves in [false, true] {
        let Some(heap) = heap(64) else { return };
        let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
        number(&mut arena);
        let page = arena.addresses().start + 5 * PAGE;
        let target = RawPages::new(4096, PageSize::Small).unwrap();
        heap.while_out(part(&arena, 0..16), FAST, || {
            // The reader stays in the handler once it finds no mapping.
            let reader = waiting_reader(page);
            // SAFETY: a page of an arena that is not used as one again, and a mapping of this test.
            unsafe {
                if moves {
                    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                    let moved = libc::mremap(pointer(page), 4096, 4096, flags, pointer(target.start()));
                    assert_eq!(moved, pointer(target.start()), "{}", std::io::Error::last_os_error());
                } else {
                    assert_eq!(libc::munmap(pointer(page), 4096), 0);
                }
            }
            // While the other pages are still out.
            while NOWHERE.load(Ordering::Relaxed) & !(PAGE - 1) != page {
                std::thread::yield_now();
            }
            assert!(!reader.is_finished());
        });
        let stats = heap.stats();
        assert_eq!((stats.lost, stats.dropped), (0, u64::from(!moves)), "{stats:?}");
        if moves {
            // SAFETY: the page, at its new address.
            let word = unsafe { pointer(target.start()).cast::<u64>().read_volatile() };
            assert_eq!(word, 6, "the page came back at its new address");
        }
        assert_settled(&heap);
        // The arena has a hole now.
        std::mem::forget(arena);
    }
}
