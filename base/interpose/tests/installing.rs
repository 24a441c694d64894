//! A thread may submit once its call of `install` has returned, even if another thread started the installation.
#![allow(unsafe_code, reason = "stops a thread in the middle of a function by a filter of system calls")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of registers, calls and processes"
)]

mod common;

use common::thunk::{State, Thunk};
use common::{PORTAL, descriptor, exits, map, start, write};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::thread;

/// True once a thread has reached [`stops`].
static STOPPED: AtomicBool = AtomicBool::new(false);
/// True once that thread may continue.
static GO_ON: AtomicBool = AtomicBool::new(false);
/// The id of this process.
static PROCESS: AtomicU32 = AtomicU32::new(0);

fn pause() {
    // SAFETY: changes nothing.
    unsafe { libc::sched_yield() };
}

/// Holds the thread that asked for the process id until it may continue, and returns the id.
unsafe extern "C" fn stops(_: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    STOPPED.store(true, Ordering::Release);
    while !GO_ON.load(Ordering::Acquire) {
        pause();
    }
    // SAFETY: what the kernel gives to a handler.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_RAX as usize] = PROCESS.load(Ordering::Relaxed).into() };
}

/// Makes `getpid` stop this thread from now on: it is the first system call of `install`, before any action has
/// changed.
fn stop_at_getpid() {
    let step = |code: u32, if_not: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: if_not, k };
    let mut program = [
        // The call's number is the first word of a filter's input.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_getpid as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_TRAP),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is valid and lives; both concern this thread alone.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(done, "a filter of system calls: {}", std::io::Error::last_os_error());
}

/// True if the thread is sleeping.
fn sleeps(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    // The state follows the name, which is in parentheses.
    stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S')))
}

#[test]
fn a_second_caller_of_install_returns_when_the_traps_are_there() {
    exits("a_second_caller_of_install_returns_when_the_traps_are_there", 0, || {
        static SECOND: AtomicI32 = AtomicI32::new(0);
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: all-zero is valid; the handler has the signature.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = stops as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()), 0);
        }
        let source = map(4096, libc::PROT_READ | libc::PROT_WRITE);
        write(source, descriptor(1));
        // ENQCMD of the bytes at rdx, to the portal in rax.
        let thunk = Thunk::new(&[0xf2, 0x0f, 0x38, 0xf8, 0x02]);
        let before = State::new(1).with(&[(0, PORTAL.page()), (2, source)]);

        let first = thread::spawn(|| {
            stop_at_getpid();
            start(true);
        });
        while !STOPPED.load(Ordering::Acquire) {
            assert!(!first.is_finished(), "nothing has stopped the first caller");
            pause();
        }
        let second = thread::spawn(move || {
            // SAFETY: queries only.
            SECOND.store(unsafe { libc::gettid() }, Ordering::Release);
            start(true);
            // Without a trap this kills the process.
            thunk.run(&before);
        });
        while !second.is_finished() && !sleeps(SECOND.load(Ordering::Acquire)) {
            pause();
        }
        assert!(!second.is_finished(), "the second caller did not wait for the first");
        GO_ON.store(true, Ordering::Release);
        second.join().unwrap();
        first.join().unwrap();
        assert_eq!((PORTAL.taken.load(Ordering::Relaxed), PORTAL.last().descriptor), (1, descriptor(1)));
        0
    });
}
