use super::*;
use crate::{PAGE_BYTES, Scan};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use telpher_mem::{PageSize, RawPages};

const ALL: UserfaultFeatures = UserfaultFeatures::EVENT_REMAP
    .and(UserfaultFeatures::EVENT_REMOVE)
    .and(UserfaultFeatures::EVENT_UNMAP)
    .and(UserfaultFeatures::MOVE);

/// Serialises the tests. A fork copies the whole process, including what other tests have registered. And the thread
/// that handles events must not wait for the allocator, not even to report a failure: a thread that forks keeps it
/// locked.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Returns `None` if this user may have no userfaultfd, or the kernel is too old for these tests.
fn opened(features: UserfaultFeatures) -> Option<Userfault> {
    match Userfault::open(features) {
        Ok(userfault) => Some(userfault),
        Err(error) => {
            eprintln!("not tested: {error}");
            None
        }
    }
}

/// Registers the range and passes its events to `answer` while `f` runs.
fn with_answers(userfault: &Userfault, tract: &RawPages, answer: impl Fn(UserfaultEvent) + Sync, f: impl FnOnce()) {
    /// Ends the handling however the test ends.
    struct EndOnDrop<'a>(&'a AtomicBool, &'a Userfault, &'a RawPages);
    impl Drop for EndOnDrop<'_> {
        fn drop(&mut self) {
            self.1.unregister(self.2.range()).unwrap();
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            // Wait for this first: starting a thread allocates, and a thread that forks keeps the allocator locked
            // until its event has been read.
            begun.store(true, Ordering::Relaxed);
            while !over.load(Ordering::Relaxed) {
                userfault.read(&answer).unwrap();
                thread::yield_now();
            }
        });
        while !begun.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        // SAFETY: the thread above handles events until the range is unregistered, and does not touch it.
        let registered = unsafe {
            match userfault.features().has(UserfaultFeatures::TRACK_WRITES) {
                true => userfault.register_tracked(tract.range()),
                false => userfault.register(tract.range()),
            }
        };
        registered.unwrap();
        let _over = EndOnDrop(&over, userfault, tract);
        f();
    });
}

fn byte(address: u64) -> u8 {
    // SAFETY: the tests pass addresses in ranges that they own.
    unsafe { std::ptr::with_exposed_provenance::<u8>(usize::try_from(address).unwrap()).read_volatile() }
}

fn set(address: u64, byte: u8) {
    // SAFETY: as above; no reference to these bytes exists.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(usize::try_from(address).unwrap()).write_volatile(byte) };
}

#[test]
fn a_thread_waits_for_a_missing_page() {
    let Some(userfault) = opened(ALL) else { return };
    let tract = RawPages::new(1 << 20, PageSize::Small).unwrap();
    let start = tract.range().start;
    let answer = |event| match event {
        UserfaultEvent::Fault { page, .. } => {
            // SAFETY: the page is missing, and its owner expects zeros.
            let done = unsafe { userfault.put_zeros(page..page + PAGE_BYTES) };
            assert_eq!(done, Progress { bytes: PAGE_BYTES, error: None });
        }
        other => panic!("{other:?}"),
    };
    with_answers(&userfault, &tract, answer, || {
        assert_eq!(byte(start + 5000), 0);
        set(start + 3 * PAGE_BYTES + 7, 1);
        assert_eq!(byte(start + 3 * PAGE_BYTES + 7), 1);
    });
}

#[test]
fn moved_pages_keep_their_bytes() {
    let Some(userfault) = opened(ALL) else { return };
    for pages in [PageSize::Small, PageSize::Huge] {
        let [heap, pool] = [0, 1].map(|_| RawPages::new(2 << 20, pages).unwrap());
        heap.populate(heap.range()).unwrap();
        set(heap.start() + 9000, 7);
        with_answers(
            &userfault,
            &pool,
            |event| panic!("{event:?}"),
            || {
                // SAFETY: ranges of this test; no other thread touches them.
                let done = unsafe { userfault.take_pages(pool.start(), heap.start(), 2 << 20) };
                assert_eq!(done, Progress { bytes: 2 << 20, error: None });
                assert_eq!(byte(pool.start() + 9000), 7);
                // SAFETY: as above.
                let done = unsafe { userfault.take_pages(pool.start(), heap.start(), PAGE_BYTES) };
                assert!(matches!(done.error, Some(Errno::NOENT | Errno::EXIST)), "{done:?}");
            },
        );
        assert_eq!(byte(heap.start() + 9000), 0, "no fault is reported after unregistering");
    }
}

#[test]
fn copies_fill_missing_pages_only() {
    let Some(userfault) = opened(ALL) else { return };
    let tract = RawPages::new(4096, PageSize::Small).unwrap();
    let bytes = vec![9_u8; 4096];
    with_answers(
        &userfault,
        &tract,
        |event| panic!("{event:?}"),
        || {
            let from = bytes.as_ptr().expose_provenance() as u64;
            for error in [None, Some(Errno::EXIST)] {
                // SAFETY: a range that no thread touches, and bytes that live on.
                let done = unsafe { userfault.put_copies(tract.start(), from, PAGE_BYTES) };
                assert_eq!(done.error, error);
            }
            assert_eq!(byte(tract.start() + 4095), 9);
        },
    );
}

#[test]
fn changes_of_a_range_are_reported() {
    let Some(userfault) = opened(ALL) else { return };
    let tract = RawPages::new(2 << 20, PageSize::Small).unwrap();
    tract.populate(tract.range()).unwrap();
    let start = tract.start();
    let events = Mutex::new(Vec::new());
    with_answers(
        &userfault,
        &tract,
        |event| events.lock().unwrap().push(event),
        || {
            tract.discard(start + 4096..start + 3 * 4096).unwrap();
            // The event has been read; the handler records it a moment later.
            while events.lock().unwrap().is_empty() {
                thread::yield_now();
            }
            let events = events.lock().unwrap();
            assert!(
                matches!(&events[..], [UserfaultEvent::Remove(range)] if *range == (start + 4096..start + 3 * 4096)),
                "{events:?}"
            );
        },
    );
}

#[test]
fn a_fork_is_reported_and_its_child_can_get_pages() {
    let Some(userfault) = opened(ALL.and(UserfaultFeatures::EVENT_FORK)) else { return };
    let tract = RawPages::new(4096, PageSize::Small).unwrap();
    let bytes = vec![9_u8; 4096];
    let from = bytes.as_ptr().expose_provenance() as u64;
    let answer = |event| match event {
        UserfaultEvent::Fork { child } => {
            // SAFETY: the page is missing, and the child expects these bytes.
            assert_eq!(unsafe { child.put_copies(tract.start(), from, PAGE_BYTES) }.error, None);
        }
        other => panic!("{other:?}"),
    };
    with_answers(&userfault, &tract, answer, || {
        // SAFETY: the child reads a byte and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child without running any code of the parent.
            unsafe { libc::_exit(i32::from(byte(tract.start() + 100))) };
        }
        let mut status = 0;
        // SAFETY: our own child, and a local variable for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 9);
        let mut there = 0;
        Scan::open().unwrap().there(tract.range(), |run| there += run.pages()).unwrap();
        assert_eq!(there, 0, "the page is missing in the parent");
    });
}

#[test]
fn writes_are_tracked_without_blocking() {
    let Some(userfault) = opened(ALL.and(UserfaultFeatures::TRACK_WRITES)) else { return };
    let scan = Scan::open().unwrap();
    let [tract, pool] = [0, 1].map(|_| RawPages::new(2 << 20, PageSize::Small).unwrap());
    tract.populate(tract.start()..tract.start() + 300 * PAGE_BYTES).unwrap();
    let page = |number: u64| tract.start() + number * PAGE_BYTES;
    let fill = |event| {
        // The discards below are reported, too.
        let UserfaultEvent::Fault { page, .. } = event else { return };
        // SAFETY: the page is missing, and its owner expects zeros.
        let done = unsafe { userfault.put_zeros(page..page + PAGE_BYTES) };
        assert_eq!(done.error, None, "a missing page is not protected, and so can be filled");
    };
    let numbers = |found: &mut Vec<(u64, u64)>, run: crate::PageRun| {
        found.push(((run.start - tract.start()) / PAGE_BYTES, (run.end - tract.start()) / PAGE_BYTES));
    };
    let track = || {
        let mut found = Vec::new();
        scan.track(tract.range(), |run| numbers(&mut found, run)).unwrap();
        found
    };
    let written = || {
        let mut found = Vec::new();
        scan.written(tract.range(), |run| numbers(&mut found, run)).unwrap();
        found
    };
    with_answers(&userfault, &tract, fill, || {
        assert_eq!(written(), [(0, 300)], "untracked pages count as written");
        assert_eq!((track(), written()), (vec![(0, 300)], vec![]));
        [7, 8, 299].into_iter().for_each(|number| set(page(number), 1));
        assert_eq!(byte(page(20)), 0);
        // Read first and then written: the write makes a page of its own.
        assert_eq!(byte(page(310)), 0);
        set(page(310), 3);
        assert_eq!(written(), [(7, 9), (299, 300), (310, 311)]);
        // The tracking has ended: pages that were not written by now can be written, and are no longer tracked.
        userfault.protect(tract.range(), false).unwrap();
        assert_eq!(written(), [(0, 300), (310, 311)]);
        assert_eq!(track(), [(0, 300), (310, 311)]);
        tract.discard(page(5)..page(6)).unwrap();
        assert_eq!((byte(page(5)), written()), (0, vec![]));
        set(page(5), 1);
        assert_eq!(written(), [(5, 6)]);
        // A page that is moved away and back counts as written although no thread wrote it (Linux 6.18), or keeps its
        // state.
        // SAFETY: the pool is registered for this; both ranges belong to this test.
        unsafe {
            userfault.register(pool.range()).unwrap();
            assert_eq!(userfault.take_pages(pool.start(), page(100), PAGE_BYTES).error, None);
            assert_eq!(userfault.take_pages(page(100), pool.start(), PAGE_BYTES).error, None);
        }
        userfault.unregister(pool.range()).unwrap();
        assert!(written() == [(5, 6), (100, 101)] || written() == [(5, 6)], "{:?}", written());
    });
}

#[test]
fn huge_pages_stay_whole_where_writes_are_tracked() {
    let Some(userfault) = opened(ALL.and(UserfaultFeatures::TRACK_WRITES)) else { return };
    let scan = Scan::open().unwrap();
    let tract = RawPages::new(2 << 20, PageSize::Huge).unwrap();
    tract.populate(tract.range()).unwrap();
    let huge = || {
        let mut huge = 0;
        scan.present(tract.range(), |run| huge += if run.is_huge() { run.pages() } else { 0 }).unwrap();
        huge
    };
    if huge() == 0 {
        return;
    }
    let answer = |event| panic!("{event:?}");
    with_answers(&userfault, &tract, answer, || {
        let mut tracked = 0;
        scan.track(tract.range(), |run| tracked += run.pages()).unwrap();
        set(tract.start(), 1);
        assert_eq!((tracked, huge()), (0, 512));
    });
}

#[test]
fn unregistered_pages_are_not_tracked() {
    let (Ok(scan), Some(_)) = (Scan::open(), opened(ALL.and(UserfaultFeatures::TRACK_WRITES))) else { return };
    let tract = RawPages::new(4096, PageSize::Small).unwrap();
    tract.populate(tract.range()).unwrap();
    assert!(scan.track(tract.range(), |run| panic!("{run:?}")).is_err());
}

#[test]
fn an_unknown_feature_is_reported() {
    let error = Userfault::open(UserfaultFeatures(1 << 60)).unwrap_err();
    assert!(matches!(error, UserfaultError::Lacks(_) | UserfaultError::Forbidden(_) | UserfaultError::None(_)));
}
