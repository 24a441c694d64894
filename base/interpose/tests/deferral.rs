//! The program's handlers never run in the middle of an emulation, always run after it, and see the program's own
//! context.
#![allow(unsafe_code, reason = "installs handlers and executes instructions made at run time")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "addresses and signal numbers")]

mod common;

use common::thunk::{State, Thunk, assert_same};
use common::{PORTAL, Spin, descriptor, dies, exits, start};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use telpher_interpose::signals::{self, Action};

/// A handler's call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Call {
    signal: i32,
    value: usize,
    instruction: u64,
    r15: u64,
}

static CALLS: Spin<Vec<Call>> = Spin::new(Vec::new());
/// True while the test's thread is in an emulation.
static IN_EMULATION: AtomicBool = AtomicBool::new(false);
static VIOLATIONS: AtomicU32 = AtomicU32::new(0);
/// The signals that the emulation raises.
static RAISE: Spin<Vec<i32>> = Spin::new(Vec::new());
static DEFERRED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn note(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    if IN_EMULATION.load(Ordering::Relaxed) {
        VIOLATIONS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: what the kernel gives to a handler.
    let (info, registers) = unsafe { (&*info, &(*context).uc_mcontext.gregs) };
    // SAFETY: as before; queued signals have a value.
    let value = if info.si_code == libc::SI_QUEUE { unsafe { info.si_value() }.sival_ptr.addr() } else { 0 };
    let call = Call {
        signal,
        value,
        instruction: registers[libc::REG_RIP as usize] as u64,
        r15: registers[libc::REG_R15 as usize] as u64,
    };
    // The vector has reserved capacity. Signals are blocked: an interrupting handler would wait for the lock for ever.
    with_signals_blocked(|| CALLS.with(|calls| calls.push(call)));
}

/// Runs `what` with all signals blocked.
fn with_signals_blocked<R>(what: impl FnOnce() -> R) -> R {
    // SAFETY: sets of this function; an all-zero set is empty.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: as above.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    let result = what();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    result
}

fn handle(signal: i32, mask: u64) {
    let action = Action { handler: note as *const () as usize, flags: libc::SA_SIGINFO as u64, mask };
    // SAFETY: the handler has the signature.
    unsafe { signals::action(signal, Some(action)) }.unwrap();
}

fn raise(signal: i32) {
    // SAFETY: sends a signal to this thread.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal) };
}

fn queue(signal: i32, value: usize) {
    let value = libc::sigval { sival_ptr: std::ptr::without_provenance_mut(value) };
    // SAFETY: sends a signal to this thread.
    assert_eq!(unsafe { libc::pthread_sigqueue(libc::pthread_self(), signal, value) }, 0);
}

/// Raises the requested signals within the emulation.
fn raising() {
    IN_EMULATION.store(true, Ordering::Relaxed);
    RAISE.with(|signals| {
        for (value, &signal) in signals.iter().enumerate() {
            if signal >= libc::SIGRTMIN() { queue(signal, value + 1) } else { raise(signal) }
        }
    });
    DEFERRED.store(signals::is_deferred(), Ordering::Relaxed);
    IN_EMULATION.store(false, Ordering::Relaxed);
}

fn begin(hook: fn()) {
    start(true);
    PORTAL.hook.set(hook).unwrap();
    CALLS.with(|calls| calls.reserve(1_000_000));
}

fn enqcmd() -> (Thunk, State) {
    let thunk = Thunk::new(&[0xf2, 0x0f, 0x38, 0xf8, 0x02]);
    thunk.set_near(descriptor(3));
    let before = State::new(3).with(&[(0, PORTAL.page()), (2, thunk.near())]);
    (thunk, before)
}

#[test]
fn a_signal_in_the_emulation_is_handled_right_after_the_instruction() {
    exits("a_signal_in_the_emulation_is_handled_right_after_the_instruction", 0, || {
        begin(raising);
        let realtime = libc::SIGRTMIN() + 2;
        let all = [libc::SIGUSR1, libc::SIGSEGV, libc::SIGUSR2, libc::SIGILL, realtime];
        for mask in [0, u64::MAX] {
            all.into_iter().for_each(|signal| handle(signal, mask));
            let (thunk, before) = enqcmd();
            let mask_before = signals::mask(None);
            // Trapped at first, then rewritten.
            for _ in 0..4 {
                for raised in [&all[..1], &all[1..2], &[realtime; 5], &all] {
                    RAISE.with(|signals| *signals = raised.to_vec());
                    assert_same(&before, &thunk.run(&before), before.flags);
                    let calls =
                        with_signals_blocked(|| CALLS.with(|calls| std::mem::replace(calls, Vec::with_capacity(1000))));
                    assert!(DEFERRED.load(Ordering::Relaxed));
                    assert_eq!(calls.len(), raised.len(), "{calls:?}");
                    for signal in raised {
                        assert!(calls.iter().any(|call| call.signal == *signal), "{signal} in {calls:?}");
                    }
                    // Signals of one number arrive in the order they were sent.
                    assert!(calls.iter().map(|call| call.value).filter(|&value| value != 0).is_sorted());
                    // The first handler sees the program's context; nested handlers see that of the previous one.
                    let own = |call: &&Call| call.instruction == thunk.next() && call.r15 == before.general[15];
                    let found = calls.iter().filter(own).count();
                    assert!(found >= 1 && (mask == 0 || found == raised.len()), "{found} of {calls:?}");
                    assert_eq!(signals::mask(None), mask_before);
                    assert_eq!((signals::pending(), signals::is_deferred()), (0, false));
                }
            }
            assert_ne!(thunk.code()[0], 0xf2);
        }
        i32::from(VIOLATIONS.load(Ordering::Relaxed) != 0)
    });
}

#[test]
fn a_fault_and_a_signal_at_once_are_both_handled() {
    static FAULTS: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn skip(_: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
        FAULTS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: what the kernel gives to a handler.
        unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] += 5 };
    }
    exits("a_fault_and_a_signal_at_once_are_both_handled", 0, || {
        begin(|| {});
        handle(libc::SIGALRM, 0);
        let action = Action { handler: skip as *const () as usize, flags: libc::SA_SIGINFO as u64, mask: 0 };
        // SAFETY: the handler has the signature.
        unsafe { signals::action(libc::SIGSEGV, Some(action)) }.unwrap();
        let (thunk, before) = enqcmd();
        let before = before.with(&[(2, 0x40)]);
        let every = libc::timeval { tv_sec: 0, tv_usec: 100 };
        let timer = libc::itimerval { it_interval: every, it_value: every };
        // SAFETY: valid structures.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
        for round in 1..20_000 {
            assert_same(&before, &thunk.run(&before), before.flags);
            assert_eq!(FAULTS.load(Ordering::Relaxed), round);
        }
        i32::from(with_signals_blocked(|| CALLS.with(|calls| calls.is_empty())))
    });
}

/// Takes a while, and records whether a handler ran in between.
fn slow() {
    IN_EMULATION.store(true, Ordering::Relaxed);
    for _ in 0..200 {
        std::hint::spin_loop();
    }
    IN_EMULATION.store(false, Ordering::Relaxed);
}

#[test]
fn no_signal_is_lost_or_handled_inside_an_emulation() {
    exits("no_signal_is_lost_or_handled_inside_an_emulation", 0, || {
        begin(slow);
        let first = libc::SIGRTMIN() + 1;
        for number in 0..3 {
            handle(first + number, if number == 1 { u64::MAX } else { 0 });
        }
        handle(libc::SIGSEGV, 0);
        // SAFETY: a number.
        let target = unsafe { libc::pthread_self() };
        let done = AtomicBool::new(false);
        let sent = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for value in 0..20_000usize {
                    let signal = first + (value % 3) as i32;
                    let argument = libc::sigval { sival_ptr: std::ptr::without_provenance_mut(value + 1) };
                    // SAFETY: the thread lives longer than this one. The queue may be full.
                    while unsafe { libc::pthread_sigqueue(target, signal, argument) } != 0 {
                        std::thread::yield_now();
                    }
                    sent.fetch_add(1, Ordering::Relaxed);
                    if value % 7 == 0 {
                        // SAFETY: as before.
                        unsafe { libc::pthread_kill(target, libc::SIGSEGV) };
                    }
                }
                done.store(true, Ordering::Relaxed);
            });
            let (thunk, before) = enqcmd();
            let (tpause, pause) = (Thunk::new(&[0x66, 0x0f, 0xae, 0xf1]), State::new(4).with(&[(1, 0)]));
            while !done.load(Ordering::Relaxed) {
                assert_same(&before, &thunk.run(&before), before.flags);
                assert_same(&pause, &tpause.run(&pause), pause.flags);
            }
        });
        let calls = with_signals_blocked(|| CALLS.with(std::mem::take));
        for number in 0..3 {
            let values: Vec<usize> =
                calls.iter().filter(|call| call.signal == first + number).map(|call| call.value).collect();
            let expected: Vec<usize> = (1..=20_000).filter(|value| (value - 1) % 3 == number as usize).collect();
            let mut sorted = values.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, expected, "signal {number}");
        }
        assert!(calls.iter().any(|call| call.signal == libc::SIGSEGV));
        VIOLATIONS.load(Ordering::Relaxed).cast_signed()
    });
}

#[test]
fn a_deferred_handler_may_submit() {
    static INNER: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn submits(_: i32, _: *mut libc::siginfo_t, _: *mut libc::ucontext_t) {
        INNER.fetch_add(1, Ordering::Relaxed);
        RAISE.with(Vec::clear);
        let (thunk, before) = enqcmd();
        assert_same(&before, &thunk.run(&before), before.flags);
        assert_same(&before, &thunk.run(&before), before.flags);
    }
    exits("a_deferred_handler_may_submit", 0, || {
        begin(raising);
        let action = Action { handler: submits as *const () as usize, flags: libc::SA_SIGINFO as u64, mask: 0 };
        // SAFETY: the handler has the signature.
        unsafe { signals::action(libc::SIGUSR1, Some(action)) }.unwrap();
        let (thunk, before) = enqcmd();
        for round in 1..10 {
            RAISE.with(|signals| *signals = vec![libc::SIGUSR1]);
            assert_same(&before, &thunk.run(&before), before.flags);
            assert_eq!(INNER.load(Ordering::Relaxed), round);
        }
        0
    });
}

#[test]
fn a_signal_without_handler_kills_in_the_emulation() {
    dies("a_signal_without_handler_kills_in_the_emulation", libc::SIGTERM, || {
        begin(|| raise(libc::SIGTERM));
        let (thunk, before) = enqcmd();
        thunk.run(&before);
        0
    });
}

#[test]
fn a_deferral_lasts_until_the_outermost_ends() {
    exits("a_deferral_lasts_until_the_outermost_ends", 0, || {
        begin(|| {});
        for signal in [libc::SIGUSR1, libc::SIGSEGV] {
            handle(signal, 0);
            let count = || with_signals_blocked(|| CALLS.with(|calls| calls.len()));
            let (before, mask) = (count(), signals::mask(None));
            {
                let _outer = signals::defer();
                {
                    let _inner = signals::defer();
                    raise(signal);
                    assert_eq!((count(), signals::is_deferred()), (before, true));
                    assert_eq!(signals::mask(None), mask);
                }
                assert_eq!(count(), before);
            }
            assert_eq!((count(), signals::is_deferred()), (before + 1, false));
            assert_eq!(signals::mask(None), mask);
        }
        // The mask set in between is the mask afterwards.
        {
            let _deferral = signals::defer();
            raise(libc::SIGUSR1);
            let set = 1 << (libc::SIGHUP - 1) | signals::PROTECTED;
            signals::mask(Some((signals::Change::Set, set)));
            assert_eq!(signals::mask(None), set);
        }
        let set = 1 << (libc::SIGHUP - 1) | signals::PROTECTED;
        i32::from(signals::mask(None) != set)
    });
}

#[test]
fn an_action_may_change_while_its_signal_waits() {
    exits("an_action_may_change_while_its_signal_waits", 0, || {
        begin(|| {});
        handle(libc::SIGUSR1, 0);
        {
            let _deferral = signals::defer();
            raise(libc::SIGUSR1);
            // SAFETY: nothing is called.
            unsafe { signals::action(libc::SIGUSR1, Some(Action { handler: libc::SIG_IGN, flags: 0, mask: 0 })) }
                .unwrap();
        }
        with_signals_blocked(|| CALLS.with(|calls| calls.len())) as i32
    });
}
