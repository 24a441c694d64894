//! Sites are rewritten and restored while threads execute them.
#![allow(unsafe_code, reason = "executes instructions made at run time")]
#![allow(clippy::cast_possible_truncation, reason = "addresses have 64 bits here")]

mod common;

use common::thunk::{State, Thunk, assert_same};
use common::{PORTAL, descriptor, exits, map, start};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use telpher_interpose::registers::ARITHMETIC;
use telpher_interpose::sites::{self, Refusal};

const ENQCMD: [u8; 5] = [0xf2, 0x0f, 0x38, 0xf8, 0x02];
const MOVDIR64B: [u8; 5] = [0x66, 0x0f, 0x38, 0xf8, 0x02];

fn enqcmd(thunk: &Thunk, seed: u64) -> State {
    thunk.set_near(descriptor(seed));
    let mut before = State::new(seed).with(&[(0, PORTAL.page() + seed % 64 * 64), (2, thunk.near())]);
    before.flags |= ARITHMETIC;
    before
}

/// Rewrites and restores a site `rounds` times, at `offset` in a page, while another thread executes it.
fn race(code: [u8; 5], rounds: u64, offset: usize) -> i32 {
    start(true);
    let thunk = Thunk::place(&code, offset);
    let before = enqcmd(&thunk, 5);
    // Only ENQCMD returns its result in the flags.
    let kept = if code == ENQCMD { before.flags & !ARITHMETIC } else { before.flags };
    let (done, executed) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let runner = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let after = thunk.run(&before);
                assert_same(&before, &after, kept);
                executed.fetch_add(1, Ordering::Relaxed);
            }
        });
        // On a busy machine the runner may not run for thousands of rounds.
        let let_it_run = || {
            let seen = executed.load(Ordering::Relaxed);
            while executed.load(Ordering::Relaxed) < seen + 2 && !runner.is_finished() {
                std::thread::yield_now();
            }
        };
        for round in 0..rounds {
            // The runner's own trap may hold the lock.
            while sites::rewrite(thunk.site) == Err(Refusal::Busy) {}
            if round % 64 == 0 {
                let_it_run();
            }
            sites::undo_all();
            assert_eq!(thunk.code(), code, "round {round}");
            sites::set_rewriting(true);
            if round % 64 == 32 {
                // The original site traps.
                let_it_run();
            }
        }
        done.store(true, Ordering::Relaxed);
        runner.join().unwrap();
    });
    let counters = sites::counters();
    let executed = executed.load(Ordering::Relaxed);
    assert_eq!(PORTAL.taken.load(Ordering::Relaxed), executed);
    assert_eq!(counters.traps + counters.calls, executed);
    assert!(counters.traps > 100 && counters.calls > 100, "{counters:?}");
    println!("{rounds} rounds at {offset}: {counters:?}");
    0
}

#[test]
fn a_hundred_thousand_changes_while_another_thread_executes_the_site() {
    exits("a_hundred_thousand_changes_while_another_thread_executes_the_site", 0, || race(ENQCMD, 100_000, 64));
}

/// Regression: on a processor that has MOVDIR64B the trap is a fault on the portal page, and the site may have become a
/// jump before the handler reads it. The thread was then killed for a fault that no jump can cause.
#[test]
fn ten_thousand_changes_between_the_fault_of_a_store_and_its_handler() {
    exits("ten_thousand_changes_between_the_fault_of_a_store_and_its_handler", 0, || race(MOVDIR64B, 10_000, 64));
}

#[test]
fn a_hundred_thousand_changes_across_a_cache_line() {
    exits("a_hundred_thousand_changes_across_a_cache_line", 0, || race(ENQCMD, 100_000, 61));
}

#[test]
fn ten_thousand_changes_across_a_page() {
    exits("ten_thousand_changes_across_a_page", 0, || race(ENQCMD, 10_000, 4095));
}

#[test]
fn the_first_traps_of_many_threads_at_one_site_all_submit() {
    exits("the_first_traps_of_many_threads_at_one_site_all_submit", 0, || {
        start(true);
        let page = PORTAL.page();
        // One site, many threads, each with its own stack and descriptor: the code uses registers only.
        let code = map(4096, libc::PROT_READ | libc::PROT_WRITE);
        for site in 0..64u64 {
            // mov rax, rdi; enqcmd rax, [rsi]; setz al; ret
            let bytes = [0x48, 0x89, 0xf8, 0xf2, 0x0f, 0x38, 0xf8, 0x06, 0x0f, 0x94, 0xc0, 0xc3];
            // SAFETY: memory of this test.
            unsafe {
                std::ptr::with_exposed_provenance_mut::<[u8; 12]>((code + site * 61) as usize).write_unaligned(bytes);
            }
        }
        common::protect(code, 4096, libc::PROT_READ | libc::PROT_EXEC);
        let barrier = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for site in 0..64u64 {
                        // SAFETY: the code above.
                        let submit: extern "C" fn(u64, *const u64) -> u8 = unsafe {
                            std::mem::transmute(std::ptr::with_exposed_provenance::<()>((code + site * 61) as usize))
                        };
                        barrier.wait();
                        for _ in 0..10 {
                            assert_eq!(submit(page, descriptor(site).as_ptr()), 0);
                        }
                    }
                });
            }
        });
        assert_eq!(PORTAL.taken.load(Ordering::Relaxed), 8 * 64 * 10);
        let counters = sites::counters();
        assert_eq!((counters.traps + counters.calls, counters.sites), (8 * 64 * 10, 64));
        0
    });
}

#[test]
fn no_page_becomes_writable_and_executable() {
    exits("no_page_becomes_writable_and_executable", 0, || {
        start(true);
        for seed in 0..100 {
            let thunk = Thunk::new(&ENQCMD);
            let before = enqcmd(&thunk, seed);
            thunk.run(&before);
            assert_eq!(thunk.code()[0], 0xe9);
        }
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let both: Vec<&str> = maps.lines().filter(|line| line.contains(" rwx")).collect();
        assert!(both.is_empty(), "{both:#?}");
        0
    });
}

#[test]
fn code_that_cannot_be_changed_continues_to_trap() {
    exits("code_that_cannot_be_changed_continues_to_trap", 0, || {
        start(true);
        let path = std::env::temp_dir().join(format!("telpher-interpose-code-{}", std::process::id()));
        // enqcmd rax, [rdx]; ret
        let mut code = vec![0x90; 4096];
        code[..6].copy_from_slice(&[0xf2, 0x0f, 0x38, 0xf8, 0x02, 0xc3]);
        std::fs::write(&path, &code).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        // SAFETY: a new mapping, shared with a file that was opened for reading.
        let start = unsafe {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_EXEC, libc::MAP_SHARED, fd, 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        for round in 1..=3 {
            // SAFETY: the code above.
            unsafe {
                std::arch::asm!("call {code}", code = in(reg) start, in("rax") PORTAL.page(),
                    in("rdx") &descriptor(1), clobber_abi("C"));
            }
            assert_eq!(PORTAL.taken.load(Ordering::Relaxed), round);
        }
        assert_eq!((sites::counters().traps, sites::counters().calls), (3, 0));
        assert_eq!(sites::rewrite(start.expose_provenance() as u64), Err(Refusal::Protected));
        0
    });
}

/// Replaces the code at `site`, as a just-in-time compiler or a library loaded over another does.
fn overwrite(site: u64, bytes: &[u8]) {
    let page = site & !4095;
    common::protect(page, 4096, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: memory of this test, not executed now.
    unsafe {
        std::ptr::copy_nonoverlapping(
            bytes.as_ptr(),
            std::ptr::with_exposed_provenance_mut(site as usize),
            bytes.len(),
        );
    }
    common::protect(page, 4096, libc::PROT_READ | libc::PROT_EXEC);
}

#[test]
fn replaced_code_is_read_again_and_not_restored() {
    exits("replaced_code_is_read_again_and_not_restored", 0, || {
        start(true);
        let thunk = Thunk::place(&ENQCMD, 64);
        let before = enqcmd(&thunk, 1);
        thunk.run(&before);
        thunk.run(&before);
        // Another submission at the same address: enqcmd rcx, [rbx].
        let other = [0xf2, 0x0f, 0x38, 0xf8, 0x0b];
        overwrite(thunk.site, &other);
        let before = State::new(2).with(&[(1, PORTAL.page() + 640), (3, thunk.near())]);
        for _ in 0..3 {
            assert_same(&before, &thunk.run(&before), before.flags);
            assert_eq!(PORTAL.last().offset, 640);
        }
        assert_eq!(thunk.code()[0], 0xe9);
        // Now code that is not a site.
        overwrite(thunk.site, &[0x0f, 0x1f, 0x44, 0, 0]);
        let taken = PORTAL.taken.load(Ordering::Relaxed);
        assert_same(&before, &thunk.run(&before), before.flags);
        assert_eq!(PORTAL.taken.load(Ordering::Relaxed), taken);
        sites::undo_all();
        assert_eq!(thunk.code(), [0x0f, 0x1f, 0x44, 0, 0]);
        assert_eq!(sites::counters().sites, 0);
        0
    });
}

#[test]
fn unmapped_code_is_forgotten() {
    exits("unmapped_code_is_forgotten", 0, || {
        start(true);
        let thunk = Thunk::place(&ENQCMD, 64);
        thunk.run(&enqcmd(&thunk, 1));
        // SAFETY: no code is executed there any more.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut((thunk.site & !4095) as usize), 4096) };
        sites::undo_all();
        i32::from(sites::counters().sites != 0)
    });
}

#[test]
fn a_forked_child_keeps_the_sites_and_makes_its_own() {
    exits("a_forked_child_keeps_the_sites_and_makes_its_own", 0, || {
        start(true);
        let (first, second) = (Thunk::new(&ENQCMD), Thunk::new(&ENQCMD));
        first.run(&enqcmd(&first, 1));
        // SAFETY: the child calls functions made for it, and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            telpher_interpose::after_fork_child();
            for thunk in [&first, &second] {
                for seed in 0..3 {
                    let before = enqcmd(thunk, seed);
                    assert_same(&before, &thunk.run(&before), before.flags & !ARITHMETIC);
                    assert_eq!(PORTAL.last().descriptor, descriptor(seed));
                }
                assert_eq!(thunk.code()[0], 0xe9);
            }
            // SAFETY: ends the child.
            unsafe { libc::_exit(7) };
        }
        let mut status = 0;
        // SAFETY: waits for the child.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(libc::WEXITSTATUS(status), 7, "{status:x}");
        assert_eq!(second.code(), ENQCMD);
        0
    });
}

#[test]
fn off_is_off() {
    exits("off_is_off", 0, || {
        start(false);
        let thunk = Thunk::new(&ENQCMD);
        let before = enqcmd(&thunk, 1);
        for _ in 0..5 {
            assert_same(&before, &thunk.run(&before), before.flags & !ARITHMETIC);
        }
        assert_eq!((sites::counters().traps, sites::counters().calls), (5, 0));
        assert_eq!((thunk.code(), sites::rewrite(thunk.site)), (ENQCMD.to_vec(), Err(Refusal::Off)));
        0
    });
}
