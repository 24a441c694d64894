//! Programs that write while their pages are moved, and check what they have written.
#![allow(unsafe_code, reason = "does what programs do to their memory, by address")]

use std::io::{Read, Seek};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use telpher_os::Random;

const PAGE: u64 = 4096;

/// Returns how long a soak lasts.
pub(crate) fn soak() -> Duration {
    let seconds = std::env::var("TELPHER_SOAK_SECONDS").map_or(1, |text| text.parse().expect("whole seconds"));
    Duration::from_secs(seconds)
}

/// Runs this test once more in a process of its own, and returns true there. For tests that fork, which affects all
/// heaps of a process. No other test's name may contain this one.
pub(crate) fn is_alone(test: &str) -> bool {
    /// Set in that process.
    const ALONE: &str = "TELPHER_TIER_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let run = command.args([test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let stdout = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && stdout.contains("1 passed"), "{stdout}{}", String::from_utf8_lossy(&run.stderr));
    false
}

/// Forks with the C library.
pub(crate) fn fork() -> libc::pid_t {
    // SAFETY: the children of these tests read their memory and exit.
    unsafe { libc::fork() }
}

/// Forks with a bare system call: the C library's fork handlers are not called.
pub(crate) fn bare_fork() -> libc::pid_t {
    // SAFETY: like a fork; the child does nothing that needs the C library to know of it.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    child.try_into().expect("a process")
}

/// Returns whether a condition holds in a child forked by `fork`. It allocates nothing.
pub(crate) fn is_so_in_child(fork: impl FnOnce() -> libc::pid_t, is_so: impl FnOnce() -> bool) -> bool {
    let child = fork();
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        let status = i32::from(!is_so());
        // SAFETY: ends the child without running any code of the parent.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: our own child, and a local variable for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}

/// An arena as memory of a program: words by address, used by several threads.
pub(crate) struct Words(u64);

impl Words {
    pub(crate) fn at(&self, word: u64) -> &AtomicU64 {
        // SAFETY: a word of an arena that lives as long as the test, without a slice of it meanwhile.
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

/// Ends the process if a thread waits forever.
pub(crate) struct Limit(#[expect(dead_code, reason = "its end is the thread's")] Sender<()>);

impl Limit {
    /// Starts the time limit, which lasts until this is dropped.
    pub(crate) fn new() -> Limit {
        /// Longer than any test takes apart from its soak time. Source: chosen.
        const LIMIT: Duration = Duration::from_secs(120);
        let (over, ends) = channel();
        std::thread::spawn(move || {
            if ends.recv_timeout(soak() + LIMIT) == Err(RecvTimeoutError::Timeout) {
                eprintln!("a thread waits for a page that does not come back");
                std::process::abort();
            }
        });
        Limit(over)
    }
}

/// Words in a page.
const WORDS: u64 = PAGE / 8;

/// Moves the pages of a range to one of two tiers.
pub(crate) type Migrate<'a> = &'a (dyn Fn(std::ops::Range<u64>, u8) + Sync);

/// Runs writers with their own words, counters that all threads add to, a thread that makes the kernel write, and one
/// whose word only grows, over these pages, while `migrate` moves them. Returns how many words were not as they were
/// left.
pub(crate) fn lost_writes(start: u64, pages: u64, migrate: Migrate) -> u64 {
    // Enough calls that pages move on a busy or emulated machine, too.
    lost_writes_over(400, start, pages, migrate)
}

/// The same with at least this many calls of `migrate`.
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
                let (mut random, mut number) = (Random::new(writer), 0);
                while !over.load(Ordering::Relaxed) {
                    let page = random.below(pages);
                    let place = usize::try_from(page).unwrap();
                    // The writer's own word of the page; then one that all add to.
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
            // The kernel writes half of the last page, from a file.
            while !over.load(Ordering::Relaxed) {
                let mut source = source.lock().unwrap();
                source.rewind().unwrap();
                let at = start + (pages - 1) * PAGE + 2048;
                // SAFETY: the second half of the last page, which only this thread uses.
                let half = unsafe {
                    std::slice::from_raw_parts_mut(
                        std::ptr::with_exposed_provenance_mut(usize::try_from(at).unwrap()),
                        2048,
                    )
                };
                half.fill(0);
                source.read_exact(half).expect("a system call waits for its page like any other access");
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
        let (end, mut random) = (Instant::now() + soak(), Random::new(99));
        let mut calls = 0;
        while Instant::now() < end || calls < least {
            calls += 1;
            let (first, len) = (random.below(pages), 1 + random.below(64));
            let range = start + first * PAGE..start + (first + len).min(pages) * PAGE;
            migrate(range, u8::try_from(random.below(2)).unwrap());
        }
    });
    // A lost page may leave any values there.
    let counters = (0..pages).map(|page| words.at(page * WORDS).load(Ordering::Relaxed));
    let sum = counters.fold(0, u64::wrapping_add);
    lost.load(Ordering::Relaxed).saturating_add(added.load(Ordering::Relaxed).abs_diff(sum))
}

/// Memory in which mappings change.
pub(crate) struct Places {
    /// The ranges, in whole blocks.
    pub(crate) ranges: Vec<std::ops::Range<u64>>,
    /// The pages of a block, which moves as a whole, so that no block belongs to two mappings, which cannot move at
    /// once.
    pub(crate) block: u64,
}

/// Pages in a huge page.
const IN_HUGE: u64 = 512;

impl Places {
    /// Uses two arenas, or parts of them.
    pub(crate) fn small(arenas: [std::ops::Range<u64>; 2]) -> Places {
        Places { ranges: arenas.into(), block: 8 }
    }

    /// Uses arenas of huge pages, and an unaligned range for a huge page in another arena of 4 MiB.
    pub(crate) fn huge(arenas: [std::ops::Range<u64>; 2], other: &std::ops::Range<u64>) -> Places {
        let [one, two] = arenas;
        let odd = other.start + 8 * PAGE;
        Places { ranges: vec![one, two, odd..odd + IN_HUGE * PAGE], block: IN_HUGE }
    }

    fn pages(&self, range: usize) -> u64 {
        (self.ranges[range].end - self.ranges[range].start) / PAGE
    }

    /// Returns a random range and one of its pages.
    fn any(&self, random: &mut Random) -> (usize, u64) {
        let range = usize::try_from(random.below(self.ranges.len() as u64)).unwrap();
        (range, random.below(self.pages(range)))
    }

    fn address(&self, (range, page): (usize, u64)) -> u64 {
        self.ranges[range].start + page * PAGE
    }

    /// Returns the block of a page.
    fn block_of(&self, (range, page): (usize, u64)) -> (usize, u64) {
        (range, page / self.block * self.block)
    }
}

fn pointer(address: u64) -> *mut libc::c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap())
}

/// Moves the mapping of a block over that of another one, and maps new memory where it was.
///
/// # Safety
/// Both are whole pages of arenas without references to them, and both keep a mapping.
unsafe fn move_block(from: u64, to: u64, pages: u64) {
    let bytes = usize::try_from(pages * PAGE).unwrap();
    // SAFETY: the caller's promise; the new mapping replaces nothing.
    unsafe {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let moved = libc::mremap(pointer(from), bytes, bytes, flags, pointer(to));
        assert_eq!(moved, pointer(to), "{}", std::io::Error::last_os_error());
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let mapped = libc::mmap(pointer(from), bytes, protection, flags, -1, 0);
        assert_eq!(mapped, pointer(from), "{}", std::io::Error::last_os_error());
        if pages == IN_HUGE {
            // A huge page, if the address is aligned and there are any.
            libc::madvise(pointer(from), bytes, libc::MADV_HUGEPAGE);
            assert_eq!(libc::madvise(pointer(from), bytes, libc::MADV_POPULATE_WRITE), 0);
        }
    }
}

/// Discards, moves and unmaps mappings and forks, while `migrate` moves pages. Each page contains its number or is
/// empty. Goes on until `is_enough`, up to a limit. Passes new mappings to `fresh`. Returns the number of forks.
pub(crate) fn change_mappings(
    places: &Places,
    migrate: Migrate,
    fresh: &dyn Fn(std::ops::Range<u64>),
    is_enough: &dyn Fn() -> bool,
) -> u64 {
    /// What has not happened by then will not happen. Source: chosen.
    const LIMIT: Duration = Duration::from_secs(60);
    let _limit = Limit::new();
    let (over, forks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(5);
            while !over.load(Ordering::Relaxed) {
                let first = places.any(&mut random);
                let (start, end) = (places.address(first), places.ranges[first.0].end);
                let some = start..(start + (1 + random.below(64)) * PAGE).min(end);
                let block = places.address(places.block_of(first));
                // Whole huge pages most of the time, so that there are some.
                let is_whole = places.block == IN_HUGE && random.below(4) != 0;
                let range = if is_whole { block..block + places.block * PAGE } else { some };
                migrate(range, u8::from(random.below(2) != 0));
            }
        });
        let _over = Over(&over);
        // The expected number in each page; 0 where it is empty.
        let mut says: Vec<Vec<u64>> =
            (0..places.ranges.len()).map(|range| vec![0; usize::try_from(places.pages(range)).unwrap()]).collect();
        let (mut random, mut number) = (Random::new(77), 0);
        let (end, limit) = (Instant::now() + soak(), Instant::now() + soak() + LIMIT);
        // The number is in the first and in the last word of a page.
        let words = |range: usize, page: u64| {
            [0, PAGE - 8].map(|at| {
                let address = usize::try_from(places.address((range, page)) + at).unwrap();
                // SAFETY: a word of an arena that is mapped whenever this is called; only this thread uses it.
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
            let (range, page) = places.any(&mut random);
            let place = usize::try_from(page).unwrap();
            match random.below(64) {
                0 => {
                    let mut first = (range, page);
                    let mut len = (1 + random.below(32)).min(places.pages(range) - page);
                    if places.block == IN_HUGE && random.below(2) == 0 {
                        (first, len) = (places.block_of(first), places.block);
                    }
                    let bytes = usize::try_from(len * PAGE).unwrap();
                    // SAFETY: whole pages of an arena.
                    let result = unsafe { libc::madvise(pointer(places.address(first)), bytes, libc::MADV_DONTNEED) };
                    assert_eq!(result, 0);
                    says[range][usize::try_from(first.1).unwrap()..][..bytes / 4096].fill(0);
                }
                1 => {
                    let [from, to] = [(range, page), places.any(&mut random)].map(|page| places.block_of(page));
                    if from == to {
                        continue;
                    }
                    let start = places.address(from);
                    // SAFETY: blocks of arenas without references to them.
                    unsafe { move_block(start, places.address(to), places.block) };
                    fresh(start..start + places.block * PAGE);
                    let block = usize::try_from(places.block).unwrap();
                    let [from, to] = [from, to].map(|(range, page)| (range, usize::try_from(page).unwrap()));
                    let moved = says[from.0][from.1..][..block].to_vec();
                    says[to.0][to.1..][..block].copy_from_slice(&moved);
                    says[from.0][from.1..][..block].fill(0);
                }
                // More forks only if the interesting cases have not happened.
                2 if forks.load(Ordering::Relaxed) < 200 || !is_enough() => {
                    let is_same = is_so_in_child(fork, || is_as(&says));
                    assert!(is_same, "the child has the parent's pages, after {forks:?} forks");
                    forks.fetch_add(1, Ordering::Relaxed);
                }
                _ => {
                    number += 1;
                    let found = words(range, page).map(|word| word.swap(number, Ordering::Relaxed));
                    assert_eq!(found, [says[range][place]; 2], "page {page} of {range}");
                    says[range][place] = number;
                }
            }
        }
        assert!(is_as(&says), "at the end each page has the expected number");
    });
    forks.load(Ordering::Relaxed)
}
