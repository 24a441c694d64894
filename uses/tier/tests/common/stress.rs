//! Programs that write while their pages are moved, and know what they have written.
#![allow(unsafe_code, reason = "does what programs do to their memory, by address")]

use std::io::{Read, Seek};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;

/// How long a soak goes on.
pub(crate) fn soak() -> Duration {
    let seconds = std::env::var("TELPHER_SOAK_SECONDS").map_or(1, |text| text.parse().expect("whole seconds"));
    Duration::from_secs(seconds)
}

/// True in a process of its own, in which this test, by a name that no other has in it, is run once more: for those that fork, which all heaps of a
/// process feel.
pub(crate) fn is_alone(test: &str) -> bool {
    /// Set there.
    const ALONE: &str = "TELPHER_TIER_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let run = command.args([test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&run.stderr));
    false
}

/// A fork by the C library.
pub(crate) fn fork() -> libc::pid_t {
    // SAFETY: the children of these tests look at their memory and exit.
    unsafe { libc::fork() }
}

/// As `fork` does, but by a bare system call: no handler of the C library's is called.
pub(crate) fn bare_fork() -> libc::pid_t {
    // SAFETY: as a fork; the child does nothing that would want the C library to know of it.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    child.try_into().expect("a process")
}

/// Whether it is so in a child, which is forked so. It allocates nothing.
pub(crate) fn is_so_in_child(fork: impl FnOnce() -> libc::pid_t, is_so: impl FnOnce() -> bool) -> bool {
    let child = fork();
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        let status = i32::from(!is_so());
        // SAFETY: ends the child without anything of the parent's being run.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: our own child, a place of our own for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}

/// An arena as a program has memory: words by address, that several threads use.
pub(crate) struct Words(u64);

impl Words {
    pub(crate) fn at(&self, word: u64) -> &AtomicU64 {
        // SAFETY: a word of an arena that lives as long as the test, which nobody has as a slice meanwhile.
        unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(usize::try_from(self.0 + word * 8).unwrap()) }
    }
}

/// Ends the threads of a test, however the test ends.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Ends the process if somebody waits for ever.
pub(crate) struct Limit(#[expect(dead_code, reason = "its end is the thread's")] Sender<()>);

impl Limit {
    /// From now on, until it is dropped.
    pub(crate) fn new() -> Limit {
        /// Longer than any test takes but for what it soaks. Source: chosen.
        const LIMIT: Duration = Duration::from_secs(120);
        let (over, ends) = channel();
        std::thread::spawn(move || {
            if ends.recv_timeout(soak() + LIMIT) == Err(RecvTimeoutError::Timeout) {
                eprintln!("somebody waits for a page that does not come");
                std::process::abort();
            }
        });
        Limit(over)
    }
}

/// A small generator: xorshift, Marsaglia 2003.
pub(crate) fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Words of a page.
const WORDS: u64 = PAGE / 8;

/// What moves the pages of a range to this tier, of two.
pub(crate) type Migrate<'a> = &'a (dyn Fn(std::ops::Range<u64>, u8) + Sync);

/// Writers with words of their own, counters that all add to, a thread that has the kernel write, and one whose word only grows, over so many
/// pages, while `migrate` moves them. Returns how many words were not as they were left.
pub(crate) fn lost_writes(start: u64, pages: u64, migrate: Migrate) -> u64 {
    // On a machine that is busy, or emulated, too, pages move.
    lost_writes_over(400, start, pages, migrate)
}

/// The same with so many calls of `migrate`, or as many as there is time for.
pub(crate) fn lost_writes_over(least: u32, start: u64, pages: u64, migrate: Migrate) -> u64 {
    let _limit = Limit::new();
    let words = Words(start);
    let (over, lost) = (AtomicBool::new(false), AtomicU64::new(0));
    let added = AtomicU64::new(0);
    let source = Mutex::new(std::fs::File::open("/proc/self/exe").unwrap());
    let mut head = vec![0_u8; 4096];
    source.lock().unwrap().read_exact(&mut head).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..2_u64 {
            let (words, over, lost, added) = (&words, &over, &lost, &added);
            scope.spawn(move || {
                let mut own = vec![0_u64; usize::try_from(pages).unwrap()];
                let (mut state, mut number) = (writer + 1, 0);
                while !over.load(Ordering::Relaxed) {
                    let page = next(&mut state) % pages;
                    let place = usize::try_from(page).unwrap();
                    // Its own word of the page; then one that all add to.
                    let word = words.at(page * WORDS + 1 + writer);
                    lost.fetch_add(u64::from(word.load(Ordering::Relaxed) != own[place]), Ordering::Relaxed);
                    number += 1;
                    own[place] = number;
                    word.store(number, Ordering::Relaxed);
                    words.at(page * WORDS).fetch_add(1, Ordering::Relaxed);
                    added.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            // The kernel writes half a page of the last one, as the file has it.
            while !over.load(Ordering::Relaxed) {
                let mut source = source.lock().unwrap();
                source.rewind().unwrap();
                let at = start + (pages - 1) * PAGE + 2048;
                // SAFETY: the second half of the last page, which is this thread's.
                let half = unsafe {
                    std::slice::from_raw_parts_mut(
                        std::ptr::with_exposed_provenance_mut(usize::try_from(at).unwrap()),
                        2048,
                    )
                };
                half.fill(0);
                source.read_exact(half).expect("a system call waits for its page, as any touch does");
                lost.fetch_add(u64::from(half != &head[..2048]), Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            let word = words.at(3);
            let mut last = 0;
            while !over.load(Ordering::Relaxed) {
                let seen = word.fetch_add(1, Ordering::Relaxed);
                lost.fetch_add(u64::from(seen != last), Ordering::Relaxed);
                last = seen + 1;
                std::thread::yield_now();
            }
        });
        let _over = Over(&over);
        let (end, mut state) = (Instant::now() + soak(), 99);
        let mut calls = 0;
        while Instant::now() < end || calls < least {
            calls += 1;
            let (first, len) = (next(&mut state) % pages, 1 + next(&mut state) % 64);
            let range = start + first * PAGE..start + (first + len).min(pages) * PAGE;
            migrate(range, u8::try_from(next(&mut state) % 2).unwrap());
        }
    });
    // What is lost may leave anything there.
    let counters = (0..pages).map(|page| words.at(page * WORDS).load(Ordering::Relaxed));
    let sum = counters.fold(0, u64::wrapping_add);
    lost.load(Ordering::Relaxed).saturating_add(added.load(Ordering::Relaxed).abs_diff(sum))
}

/// Memory in which mappings change.
pub(crate) struct Places {
    /// Of whole blocks.
    pub(crate) ranges: Vec<std::ops::Range<u64>>,
    /// Pages that move together, so that none of these is ever of two mappings, which cannot move at once.
    pub(crate) block: u64,
}

/// Pages of a huge page.
const IN_HUGE: u64 = 512;

impl Places {
    /// Two arenas, or parts of them.
    pub(crate) fn small(arenas: [std::ops::Range<u64>; 2]) -> Places {
        Places { ranges: arenas.into(), block: 8 }
    }

    /// Arenas of huge pages, and a place for one that is not aligned as they are, in another arena of 4 MiB.
    pub(crate) fn huge(arenas: [std::ops::Range<u64>; 2], other: &std::ops::Range<u64>) -> Places {
        let [one, two] = arenas;
        let odd = other.start + 8 * PAGE;
        Places { ranges: vec![one, two, odd..odd + IN_HUGE * PAGE], block: IN_HUGE }
    }

    fn pages(&self, range: usize) -> u64 {
        (self.ranges[range].end - self.ranges[range].start) / PAGE
    }

    /// One of the ranges, and one of its pages.
    fn any(&self, state: &mut u64) -> (usize, u64) {
        let range = usize::try_from(next(state)).unwrap() % self.ranges.len();
        (range, next(state) % self.pages(range))
    }

    fn address(&self, (range, page): (usize, u64)) -> u64 {
        self.ranges[range].start + page * PAGE
    }

    /// The block that a page is of.
    fn block_of(&self, (range, page): (usize, u64)) -> (usize, u64) {
        (range, page / self.block * self.block)
    }
}

fn pointer(address: u64) -> *mut libc::c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap())
}

/// Has the mapping of a block where that of another one was; where it was is new memory.
///
/// # Safety
/// Both are whole pages of arenas, of which nobody has a reference, and keep a mapping.
unsafe fn move_block(from: u64, to: u64, pages: u64) {
    let bytes = usize::try_from(pages * PAGE).unwrap();
    // SAFETY: the caller's promise; what is mapped anew takes the place of nothing.
    unsafe {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let moved = libc::mremap(pointer(from), bytes, bytes, flags, pointer(to));
        assert_eq!(moved, pointer(to), "{}", std::io::Error::last_os_error());
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let mapped = libc::mmap(pointer(from), bytes, protection, flags, -1, 0);
        assert_eq!(mapped, pointer(from), "{}", std::io::Error::last_os_error());
        if pages == IN_HUGE {
            // A huge page, if it is aligned as one, and there are any.
            libc::madvise(pointer(from), bytes, libc::MADV_HUGEPAGE);
            assert_eq!(libc::madvise(pointer(from), bytes, libc::MADV_POPULATE_WRITE), 0);
        }
    }
}

/// Discards, mappings that move and go, and forks, while `migrate` moves pages: each says which it is, or is empty. Goes on until it is enough, too, but
/// not for ever. What it maps anew it tells `fresh`. Returns how often it has forked.
pub(crate) fn change_mappings(
    places: &Places,
    migrate: Migrate,
    fresh: &dyn Fn(std::ops::Range<u64>),
    is_enough: &dyn Fn() -> bool,
) -> u64 {
    /// What is not met then is not met at all. Source: chosen.
    const LIMIT: Duration = Duration::from_secs(60);
    let _limit = Limit::new();
    let (over, forks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = 5;
            while !over.load(Ordering::Relaxed) {
                let first = places.any(&mut state);
                let (start, end) = (places.address(first), places.ranges[first.0].end);
                let some = start..(start + (1 + next(&mut state) % 64) * PAGE).min(end);
                let block = places.address(places.block_of(first));
                // Huge pages whole most of the time, so that there are any.
                let is_whole = places.block == IN_HUGE && !next(&mut state).is_multiple_of(4);
                let range = if is_whole { block..block + places.block * PAGE } else { some };
                migrate(range, u8::from(!next(&mut state).is_multiple_of(2)));
            }
        });
        let _over = Over(&over);
        // What a page should say, by its place; nothing where it is empty.
        let mut says: Vec<Vec<u64>> =
            (0..places.ranges.len()).map(|range| vec![0; usize::try_from(places.pages(range)).unwrap()]).collect();
        let (mut state, mut number) = (77, 0);
        let (end, limit) = (Instant::now() + soak(), Instant::now() + soak() + LIMIT);
        // It says so in its first and in its last word.
        let words = |range: usize, page: u64| {
            [0, PAGE - 8].map(|at| {
                let address = usize::try_from(places.address((range, page)) + at).unwrap();
                // SAFETY: a word of an arena, whose mapping is there whenever this is called; only this thread has it.
                unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(address) }
            })
        };
        let read = |range: usize, page: u64| words(range, page).map(|word| word.load(Ordering::Relaxed));
        let is_as = |says: &[Vec<u64>]| {
            says.iter()
                .enumerate()
                .all(|(range, says)| (0..).zip(says).all(|(page, says)| read(range, page) == [*says; 2]))
        };
        let is_enough = || is_enough() && forks.load(Ordering::Relaxed) > 0;
        while Instant::now() < end || !is_enough() && Instant::now() < limit {
            let (range, page) = places.any(&mut state);
            let place = usize::try_from(page).unwrap();
            match next(&mut state) % 64 {
                0 => {
                    let mut first = (range, page);
                    let mut len = (1 + next(&mut state) % 32).min(places.pages(range) - page);
                    if places.block == IN_HUGE && next(&mut state).is_multiple_of(2) {
                        (first, len) = (places.block_of(first), places.block);
                    }
                    let bytes = usize::try_from(len * PAGE).unwrap();
                    // SAFETY: whole pages of an arena.
                    let result = unsafe { libc::madvise(pointer(places.address(first)), bytes, libc::MADV_DONTNEED) };
                    assert_eq!(result, 0);
                    says[range][usize::try_from(first.1).unwrap()..][..bytes / 4096].fill(0);
                }
                1 => {
                    let [from, to] = [(range, page), places.any(&mut state)].map(|page| places.block_of(page));
                    if from == to {
                        continue;
                    }
                    let start = places.address(from);
                    // SAFETY: as told.
                    unsafe { move_block(start, places.address(to), places.block) };
                    fresh(start..start + places.block * PAGE);
                    let block = usize::try_from(places.block).unwrap();
                    let [from, to] = [from, to].map(|(range, page)| (range, usize::try_from(page).unwrap()));
                    let moved = says[from.0][from.1..][..block].to_vec();
                    says[to.0][to.1..][..block].copy_from_slice(&moved);
                    says[from.0][from.1..][..block].fill(0);
                }
                // No more than that, but if what they are for has not been met.
                2 if forks.load(Ordering::Relaxed) < 200 || !is_enough() => {
                    let is_same = is_so_in_child(fork, || is_as(&says));
                    assert!(is_same, "a child has what its parent had, after {forks:?} forks");
                    forks.fetch_add(1, Ordering::Relaxed);
                }
                _ => {
                    number += 1;
                    let said = words(range, page).map(|word| word.swap(number, Ordering::Relaxed));
                    assert_eq!(said, [says[range][place]; 2], "page {page} of {range}");
                    says[range][place] = number;
                }
            }
        }
        assert!(is_as(&says), "at the end each page says what it should");
    });
    forks.load(Ordering::Relaxed)
}
