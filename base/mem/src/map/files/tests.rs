//! Tests of windows and of files as memory.

use super::*;

#[path = "../../../../../ci/skip.rs"]
mod skip;

fn byte(address: u64) -> *mut u8 {
    ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap())
}

#[test]
fn a_window_shows_a_file_that_keeps_the_writes() {
    let files = [0, 1].map(|_| MemoryFile::new(2 * HUGE_BYTES).unwrap());
    let window = Window::new(HUGE_BYTES).unwrap();
    let (all, huge) = (window.range(), HUGE_BYTES as u64);
    assert_eq!((all.start % huge, all.end - all.start), (0, huge));
    // SAFETY: addresses of the test's own memory; no reference to it exists.
    unsafe {
        window.show(all.clone(), &files[0], huge).unwrap();
        byte(all.start + 5000).write_volatile(7);
        assert_eq!(byte(files[0].range().start + huge + 5000).read_volatile(), 7);
        window.show(all.start + 4096..all.start + 8192, &files[1], 0).unwrap();
        assert_eq!(byte(all.start + 5000).read_volatile(), 0);
        byte(all.start + 5000).write_volatile(9);
        assert_eq!(byte(files[1].range().start + 904).read_volatile(), 9);
        assert_eq!(byte(files[0].range().start + huge + 5000).read_volatile(), 7);
        files[0].discard(HUGE_BYTES, HUGE_BYTES).unwrap();
        assert_eq!(byte(files[0].range().start + huge + 5000).read_volatile(), 0);
    }
}

#[test]
#[should_panic(expected = "lie in the file")]
fn a_window_shows_no_more_than_a_file_has() {
    let (file, window) = (MemoryFile::new(4096).unwrap(), Window::new(HUGE_BYTES).unwrap());
    // SAFETY: no reference to the window exists, and the call is refused.
    let _ = unsafe { window.show(window.range(), &file, 0) };
}

#[test]
fn a_thread_that_touches_a_hidden_part_waits_until_it_is_shown() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let test = "a_thread_that_touches_a_hidden_part_waits_until_it_is_shown";
    let Ok(veils) = Userfault::open(telpher_os::UserfaultFeatures::EVENT_REMAP) else {
        return skip::skip(test, "this user may have no userfaultfd");
    };
    let files = [0, 1].map(|_| MemoryFile::new(HUGE_BYTES).unwrap());
    let window = Window::new(HUGE_BYTES).unwrap();
    let (over, touched) = (AtomicBool::new(false), AtomicBool::new(false));
    // SAFETY: addresses of the test's own memory; no reference to it exists.
    unsafe {
        window.show(window.range(), &files[0], 0).unwrap();
        byte(window.range().start + 7).write_volatile(1);
        byte(files[1].range().start + 7).write_volatile(1);
    }
    let at = window.range().start + 7;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                veils.read(drop).unwrap();
                std::thread::yield_now();
            }
        });
        // SAFETY: the thread above reads the events; the same bytes are shown again below.
        unsafe { window.hide(window.range(), &veils).unwrap() };
        let toucher = scope.spawn(|| {
            // SAFETY: as above.
            let was = unsafe { byte(at).read_volatile() };
            touched.store(true, Ordering::Relaxed);
            // SAFETY: as above.
            unsafe { byte(at).write_volatile(2) };
            was
        });
        // This does not prove that the thread waits, but a thread that does not wait would have finished by now.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let waited = !touched.load(Ordering::Relaxed);
        // SAFETY: the same byte is shown; the waiting thread writes to it once it is mapped.
        unsafe { window.show(window.range(), &files[1], 0).unwrap() };
        veils.wake(window.range());
        let was = toucher.join().unwrap();
        over.store(true, Ordering::Relaxed);
        assert!(waited, "the thread read the hidden part");
        assert_eq!(was, 1);
    });
    // SAFETY: as above.
    unsafe {
        assert_eq!(byte(files[1].range().start + 7).read_volatile(), 2);
        assert_eq!(byte(files[0].range().start + 7).read_volatile(), 1);
    }
}

#[test]
fn a_file_is_mapped_as_far_as_it_goes_and_by_one_user_at_a_time() {
    let path = std::env::temp_dir().join(format!("telpher-mem-file-{}", std::process::id()));
    let file = File::create(&path).unwrap();
    file.set_len(3 * HUGE_BYTES as u64 + 4096).unwrap();
    let had = MemoryFile::of(&path, 2 * HUGE_BYTES);
    let again = MemoryFile::of(&path, usize::MAX);
    let length = |file: &MemoryFile| file.range().end - file.range().start;
    let first = had.as_ref().map_or(0, length);
    let refused = again.as_ref().map_or_else(ToString::to_string, |_| String::new());
    if let Ok(had) = &had {
        // SAFETY: the test's own memory; no reference to it exists.
        unsafe { byte(had.range().start).write_volatile(7) };
        had.clear();
    }
    // A descriptor as a forked child would have it.
    let copy = had.as_ref().ok().and_then(|had| had.file.try_clone().ok());
    drop((had, again));
    let whole = MemoryFile::of(&path, usize::MAX).map(|file| length(&file));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(copy.is_some());
    assert_eq!((first, whole.unwrap()), (2 << 21, 3 << 21));
    assert!(refused.ends_with("another process uses it already"), "{refused}");
    assert_eq!((bytes[0], bytes.len()), (0, 3 * HUGE_BYTES + 4096));
}
