//! The program's handlers and masks work as without this crate. Every scenario runs once on the C library, in a child
//! that installs nothing, and once on our functions, in a child that installs everything and emulates in between. Both
//! must print the same text and end the same way.
#![allow(unsafe_code, reason = "installs handlers, makes faults")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "flags and addresses")]

mod common;

use common::{PORTAL, start};
use std::arch::asm;
use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use telpher_interpose::signals;

const SCENARIO: &str = "TELPHER_INTERPOSE_SCENARIO";

/// True in the child that runs on our functions.
static OURS: AtomicBool = AtomicBool::new(false);

fn ours() -> bool {
    OURS.load(Ordering::Relaxed)
}

fn action(signal: i32, new: Option<&libc::sigaction>) -> Result<libc::sigaction, i32> {
    // SAFETY: all-zero is valid; the handlers have the signature of their flags.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
        if ours() {
            signals::sigaction(signal, new, &raw mut old)?;
        } else if libc::sigaction(signal, new, &raw mut old) != 0 {
            return Err(*libc::__errno_location());
        }
        Ok(old)
    }
}

fn mask(how: i32, set: u64) -> u64 {
    // SAFETY: valid sets.
    unsafe {
        let (new, mut old) = (signals::from_bits(set), signals::from_bits(0));
        if ours() {
            signals::sigprocmask(how, &raw const new, &raw mut old).unwrap();
        } else {
            assert_eq!(libc::pthread_sigmask(how, &raw const new, &raw mut old), 0);
        }
        signals::to_bits(&old)
    }
}

fn blocked() -> u64 {
    mask(libc::SIG_BLOCK, 0)
}

fn pending() -> u64 {
    if ours() {
        return signals::pending();
    }
    // SAFETY: a valid set.
    unsafe {
        let mut set = signals::from_bits(0);
        libc::sigpending(&raw mut set);
        signals::to_bits(&set)
    }
}

/// With our functions: makes a submission, which must work whatever the program has blocked or handles. Natively: does
/// nothing.
fn submit() {
    if !ours() {
        return;
    }
    let descriptor = [7u64 << 32; 8];
    let taken = PORTAL.taken.load(Ordering::Relaxed);
    let retry: u8;
    // SAFETY: reads the descriptor.
    unsafe {
        asm!(".byte 0xf2, 0x0f, 0x38, 0xf8, 0x02", "setz {retry}", retry = out(reg_byte) retry,
            in("rax") PORTAL.page(), in("rdx") &descriptor);
    }
    assert_eq!((retry, PORTAL.taken.load(Ordering::Relaxed)), (0, taken + 1));
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

fn tell(line: &str) {
    let line = format!("| {line}\n");
    // SAFETY: writes a string, bypassing the standard library's buffer, which a handler may have interrupted.
    unsafe { libc::write(1, line.as_ptr().cast(), line.len()) };
}

macro_rules! tell {
    ($($what:tt)*) => {{ let mut line = String::new(); write!(line, $($what)*).unwrap(); tell(&line); }};
}

type Info = *mut libc::siginfo_t;
type Context = *mut libc::ucontext_t;

fn install(signal: i32, handler: unsafe extern "C" fn(i32, Info, Context), flags: i32, mask: u64) {
    // SAFETY: all-zero is valid.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = handler as *const () as usize;
    new.sa_flags = flags | libc::SA_SIGINFO;
    new.sa_mask = signals::from_bits(mask);
    action(signal, Some(&new)).unwrap();
}

fn set(signal: i32, disposition: usize) {
    // SAFETY: all-zero is valid.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = disposition;
    action(signal, Some(&new)).unwrap();
}

fn raise(signal: i32) {
    // SAFETY: sends a signal to this thread, bypassing the C library's raise, which blocks signals.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal) };
}

fn queue(signal: i32, value: usize) {
    let value = libc::sigval { sival_ptr: std::ptr::without_provenance_mut(value) };
    // SAFETY: sends a signal to this thread.
    assert_eq!(unsafe { libc::pthread_sigqueue(libc::pthread_self(), signal, value) }, 0);
}

/// Executes `mov eax, [address]`, three bytes with the address in rcx.
fn fault(address: usize) {
    // SAFETY: not sound; the fault is the purpose.
    unsafe { asm!(".byte 0x8b, 0x01, 0x90", in("rcx") address, out("eax") _) };
}

/// Executes an invalid instruction of two bytes.
fn undefined() {
    // SAFETY: not sound; the fault is the purpose.
    unsafe { asm!("ud2") };
}

fn context_mask(context: Context) -> u64 {
    // SAFETY: the kernel's.
    signals::to_bits(unsafe { &(*context).uc_sigmask })
}

fn skip(context: Context, bytes: i64) {
    // SAFETY: the kernel's.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] += bytes };
}

static DEPTH: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn prints(signal: i32, info: Info, context: Context) {
    // SAFETY: the kernel's.
    let info = unsafe { &*info };
    let depth = DEPTH.fetch_add(1, Ordering::Relaxed);
    tell!(
        "{}handler of {signal}: code {}, returns to {:x}, blocked {:x}",
        " ".repeat(depth),
        info.si_code,
        context_mask(context),
        blocked()
    );
    submit();
    DEPTH.fetch_sub(1, Ordering::Relaxed);
}

unsafe extern "C" fn prints_and_skips(signal: i32, info: Info, context: Context) {
    // SAFETY: forwarded.
    unsafe { prints(signal, info, context) };
    // SAFETY: the kernel's.
    let info = unsafe { &*info };
    // SAFETY: a fault has an address.
    tell!("at {:x}", if signal == libc::SIGILL { 0 } else { unsafe { info.si_addr() }.addr() });
    skip(context, 2);
}

unsafe extern "C" fn raises_again(signal: i32, info: Info, context: Context) {
    // SAFETY: forwarded.
    unsafe { prints(signal, info, context) };
    if COUNT.fetch_add(1, Ordering::Relaxed) < 3 {
        DEPTH.fetch_add(1, Ordering::Relaxed);
        raise(signal);
        tell!("raised in depth {}", DEPTH.fetch_sub(1, Ordering::Relaxed));
    }
}

unsafe extern "C" fn blocks_after_return(signal: i32, info: Info, context: Context) {
    // SAFETY: forwarded.
    unsafe { prints(signal, info, context) };
    let set = context_mask(context) | bit(libc::SIGSEGV) | bit(libc::SIGUSR2);
    // SAFETY: the kernel's frame, whose set has eight bytes.
    unsafe { (&raw mut (*context).uc_sigmask).cast::<u64>().write(set) };
    if signal == libc::SIGSEGV {
        skip(context, 2);
    }
}

unsafe extern "C" fn changes_its_mask(signal: i32, info: Info, context: Context) {
    // SAFETY: forwarded.
    unsafe { prints(signal, info, context) };
    tell!("was {:x}", mask(libc::SIG_UNBLOCK, u64::MAX));
    tell!("is {:x}", blocked());
    tell!("was {:x}", mask(libc::SIG_SETMASK, bit(libc::SIGILL) | bit(libc::SIGUSR1)));
    tell!("is {:x}", blocked());
    submit();
    if signal == libc::SIGSEGV {
        skip(context, 2);
    }
}

unsafe extern "C" fn prints_values(signal: i32, info: Info, _: Context) {
    // SAFETY: the kernel's; it was queued with a value.
    tell!("{signal}: {}", unsafe { (*info).si_value().sival_ptr }.addr());
}

unsafe extern "C" fn prints_stack(signal: i32, _: Info, context: Context) {
    let here = 0u8;
    // SAFETY: the kernel's.
    let stack = unsafe { (*context).uc_stack };
    let inside = (&raw const here).addr().wrapping_sub(stack.ss_sp.addr()) < stack.ss_size;
    tell!("{signal} on the alternate stack: {inside}");
    submit();
    if signal == libc::SIGSEGV {
        skip(context, 2);
    }
}

thread_local! {
    static RESUME: Cell<*mut libc::ucontext_t> = const { Cell::new(std::ptr::null_mut()) };
}

unsafe extern "C" fn jumps_out(signal: i32, info: Info, context: Context) {
    // SAFETY: forwarded.
    unsafe { prints(signal, info, context) };
    // SAFETY: made by `getcontext` in a function that has not returned.
    unsafe { libc::setcontext(RESUME.get()) };
}

/// Uses `depth` times 4 KiB of stack, then faults.
fn deep(depth: usize) {
    let room = std::hint::black_box([depth as u8; 4096]);
    if depth == 0 {
        fault(0x30)
    } else {
        deep(depth - 1)
    }
    std::hint::black_box(room);
}

fn alternate_stack(bytes: usize) {
    let stack = libc::stack_t {
        ss_sp: std::ptr::with_exposed_provenance_mut(common::map(bytes, libc::PROT_READ | libc::PROT_WRITE) as usize),
        ss_flags: 0,
        ss_size: bytes,
    };
    // SAFETY: new memory that stays mapped.
    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) }, 0);
}

const SEGV: i32 = libc::SIGSEGV;
const ILL: i32 = libc::SIGILL;
const BUS: i32 = libc::SIGBUS;
const USR1: i32 = libc::SIGUSR1;
const USR2: i32 = libc::SIGUSR2;

/// A scenario's name and code.
type Scenario = (&'static str, fn());

const SCENARIOS: &[Scenario] = &[
    ("a handler sees the masks it asked for", || {
        for (signal, flags) in [(USR1, 0), (USR2, libc::SA_NODEFER), (SEGV, 0), (ILL, libc::SA_NODEFER), (BUS, 0)] {
            install(signal, prints, flags, bit(USR2) | bit(SEGV) | bit(libc::SIGTERM));
            raise(signal);
            tell!("blocked {:x}", blocked());
        }
    }),
    ("faults come with code and address, again and again", || {
        install(SEGV, prints_and_skips, 0, 0);
        install(ILL, prints_and_skips, 0, bit(SEGV));
        for _ in 0..3 {
            fault(0x18);
            undefined();
            submit();
            tell!("blocked {:x}", blocked());
        }
    }),
    ("a handler of one argument is called", || {
        extern "C" fn one(signal: i32) {
            tell!("handler of {signal}");
        }
        for signal in [USR1, SEGV] {
            set(signal, one as *const () as usize);
            raise(signal);
            raise(signal);
        }
    }),
    ("handlers nest", || {
        for flags in [0, libc::SA_NODEFER] {
            for signal in [USR1, SEGV, ILL, libc::SIGRTMIN()] {
                COUNT.store(0, Ordering::Relaxed);
                install(signal, raises_again, flags, bit(BUS));
                raise(signal);
                tell!("blocked {:x}, pending {:x}", blocked(), pending());
            }
        }
    }),
    ("every blocked signal waits", || {
        for signal in [USR1, SEGV, ILL, BUS, libc::SIGRTMIN() + 3] {
            install(signal, prints, 0, 0);
            tell!("was {:x}", mask(libc::SIG_BLOCK, bit(signal)));
            raise(signal);
            raise(signal);
            submit();
            tell!("blocked {:x}, pending {:x}", blocked(), pending());
            tell!("was {:x}", mask(libc::SIG_SETMASK, bit(libc::SIGHUP)));
            tell!("blocked {:x}, pending {:x}", blocked(), pending());
        }
    }),
    ("a waiting signal is forgotten when it becomes ignored", || {
        for signal in [USR1, SEGV] {
            install(signal, prints, 0, 0);
            mask(libc::SIG_BLOCK, bit(signal));
            raise(signal);
            set(signal, libc::SIG_IGN);
            tell!("pending {:x}", pending());
            install(signal, prints, 0, 0);
            mask(libc::SIG_UNBLOCK, bit(signal));
        }
    }),
    ("submissions work with everything blocked, and in handlers that block everything", || {
        tell!("was {:x}", mask(libc::SIG_SETMASK, u64::MAX));
        tell!("is {:x}", blocked());
        submit();
        submit();
        install(USR1, prints, 0, u64::MAX);
        install(SEGV, prints_and_skips, 0, u64::MAX);
        mask(libc::SIG_SETMASK, 0);
        raise(USR1);
        fault(0x18);
        tell!("blocked {:x}", blocked());
    }),
    ("the C library's own signals cannot be blocked", || {
        tell!(
            "was {:x}",
            mask(libc::SIG_BLOCK, bit(32) | bit(33) | bit(libc::SIGKILL) | bit(libc::SIGSTOP) | bit(SEGV))
        );
        tell!("is {:x}", blocked());
        tell!("was {:x}", mask(libc::SIG_UNBLOCK, u64::MAX));
        tell!("is {:x}", blocked());
    }),
    ("a handler may change the mask it returns to", || {
        for signal in [USR1, SEGV] {
            install(signal, blocks_after_return, 0, 0);
            if signal == SEGV {
                fault(0x18)
            } else {
                raise(signal)
            }
            tell!("blocked {:x}", blocked());
            raise(USR2);
            tell!("pending {:x}", pending());
            submit();
            set(USR2, libc::SIG_IGN);
            mask(libc::SIG_SETMASK, 0);
        }
    }),
    ("a handler may change its own mask", || {
        for signal in [USR1, SEGV] {
            install(signal, changes_its_mask, 0, bit(SEGV) | bit(libc::SIGTERM));
            if signal == SEGV {
                fault(0x18)
            } else {
                raise(signal)
            }
            tell!("blocked {:x}", blocked());
        }
    }),
    ("a handler may be left by a jump that restores the mask", || {
        install(SEGV, jumps_out, 0, bit(USR1));
        install(USR1, jumps_out, 0, bit(SEGV) | bit(ILL));
        for depth in [0, 5, 1, 9, 3, 20, 0] {
            let back = Cell::new(false);
            // SAFETY: all-zero is a valid buffer; the function does not return while it is used.
            let mut here: libc::ucontext_t = unsafe { std::mem::zeroed() };
            RESUME.set(&raw mut here);
            // SAFETY: as before.
            unsafe { libc::getcontext(&raw mut here) };
            if !std::hint::black_box(&back).replace(true) {
                if depth == 3 { raise(USR1) } else { deep(depth) }
            }
            submit();
            tell!("back from depth {depth}, blocked {:x}", blocked());
        }
    }),
    ("an ignored signal is ignored if it is sent", || {
        for signal in [USR1, SEGV, ILL, BUS] {
            set(signal, libc::SIG_IGN);
            raise(signal);
            tell!("survived");
        }
    }),
    ("an ignored fault kills", || {
        set(SEGV, libc::SIG_IGN);
        fault(0x18);
    }),
    ("a blocked fault kills", || {
        install(SEGV, prints, 0, 0);
        mask(libc::SIG_BLOCK, bit(SEGV));
        fault(0x18);
    }),
    ("a fault in the handler kills", || {
        unsafe extern "C" fn faults(signal: i32, info: Info, context: Context) {
            // SAFETY: forwarded.
            unsafe { prints(signal, info, context) };
            fault(0x20);
        }
        install(SEGV, faults, 0, 0);
        fault(0x18);
    }),
    ("an undefined instruction with its signal blocked kills", || {
        install(ILL, prints, 0, 0);
        mask(libc::SIG_BLOCK, bit(ILL));
        submit();
        undefined();
    }),
    ("by default a fault kills", || fault(0x18)),
    ("by default an undefined instruction kills", undefined),
    ("by default a sent SIGSEGV kills", || raise(SEGV)),
    ("by default a sent SIGTERM kills", || raise(libc::SIGTERM)),
    ("a default set again kills", || {
        install(BUS, prints, 0, 0);
        raise(BUS);
        set(BUS, libc::SIG_DFL);
        raise(BUS);
    }),
    ("a handler for once is for once", || {
        for signal in [libc::SIGWINCH, USR1] {
            install(signal, prints, libc::SA_RESETHAND, 0);
            raise(signal);
            let left = action(signal, None).unwrap();
            tell!("left {:x}, flags {:x}", left.sa_sigaction, left.sa_flags);
            raise(signal);
        }
    }),
    ("a handler for one fault is for one fault", || {
        install(SEGV, prints_and_skips, libc::SA_RESETHAND, 0);
        fault(0x18);
        tell!("survived one");
        fault(0x18);
    }),
    ("the old action is returned", || {
        for signal in [USR1, SEGV, libc::SIGCHLD] {
            for (flags, mask) in [(libc::SA_RESTART, 0), (libc::SA_NODEFER | libc::SA_ONSTACK, u64::MAX), (0, 5)] {
                let old = action(signal, None).unwrap();
                let known = old.sa_sigaction == prints as *const () as usize;
                tell!("{known} {:x} {:x}", old.sa_flags, signals::to_bits(&old.sa_mask));
                install(signal, prints, flags, mask);
            }
            set(signal, libc::SIG_DFL);
            let old = action(signal, None).unwrap();
            tell!("{:x} {:x} {:x}", old.sa_sigaction, old.sa_flags, signals::to_bits(&old.sa_mask));
        }
    }),
    ("wrong numbers are refused", || {
        // SAFETY: all-zero is valid.
        let new: libc::sigaction = unsafe { std::mem::zeroed() };
        for signal in [-1, 0, 9, 19, 32, 33, 65, 1000] {
            tell!("{signal}: {:?} {:?}", action(signal, Some(&new)).err(), action(signal, None).err());
        }
    }),
    ("queued signals keep order and value", || {
        let first = libc::SIGRTMIN() + 1;
        install(first, prints_values, 0, 0);
        install(first + 1, prints_values, 0, 0);
        mask(libc::SIG_BLOCK, bit(first) | bit(first + 1));
        for value in 0..5 {
            queue(first + 1, value);
            queue(first, value + 100);
        }
        submit();
        mask(libc::SIG_SETMASK, 0);
    }),
    ("handlers run on the stack they asked for", || {
        alternate_stack(64 << 10);
        for flags in [0, libc::SA_ONSTACK] {
            for signal in [USR1, SEGV] {
                install(signal, prints_stack, flags, 0);
                raise(signal);
            }
        }
    }),
    ("a small alternate stack is enough for faults and submissions", || {
        alternate_stack(12 << 10);
        install(SEGV, prints_stack, libc::SA_ONSTACK, 0);
        install(USR1, prints_stack, libc::SA_ONSTACK, 0);
        for _ in 0..3 {
            fault(0x18);
            raise(USR1);
            submit();
        }
    }),
    ("a child that borrows the memory changes its own actions only", || {
        static STACK: [AtomicU64; 4096] = [const { AtomicU64::new(0) }; 4096];
        extern "C" fn child(_: *mut libc::c_void) -> i32 {
            set(USR1, libc::SIG_DFL);
            set(SEGV, libc::SIG_IGN);
            let left = action(USR1, None).unwrap();
            i32::from(left.sa_sigaction == libc::SIG_DFL)
        }
        install(USR1, prints, 0, 0);
        install(SEGV, prints, 0, 0);
        // SAFETY: the child has its own stack and this process waits for it.
        let status = unsafe {
            let top = STACK.as_ptr().add(STACK.len()).cast_mut().cast();
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            let pid = libc::clone(child, top, flags, std::ptr::null_mut());
            let mut status = 0;
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
            status
        };
        tell!("the child saw {}", libc::WEXITSTATUS(status));
        raise(USR1);
        raise(SEGV);
    }),
];

fn runs_the_same(name: &str) -> Result<(), String> {
    let run = |ours: &str| {
        let program = std::env::current_exe().unwrap();
        let mut command = std::process::Command::new(program);
        command.args(["--exact", "scenarios_run_as_on_the_c_library", "--nocapture", "--test-threads=1"]);
        let output = command.env(SCENARIO, format!("{ours}:{name}")).output().unwrap();
        let story: String = String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| line.find("| ").map(|at| line[at..].to_owned() + "\n"))
            .collect();
        (story, output.status, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (native, ours) = (run("native"), run("ours"));
    if native.0 == ours.0 && native.1 == ours.1 {
        return Ok(());
    }
    Err(format!("{name}\nnative, {}:\n{}{}ours, {}:\n{}{}", native.1, native.0, native.2, ours.1, ours.0, ours.2))
}

#[test]
fn scenarios_run_as_on_the_c_library() {
    if let Ok(scenario) = std::env::var(SCENARIO) {
        let (which, name) = scenario.split_once(':').unwrap();
        // The Rust runtime's own handlers are not part of the comparison.
        for signal in [SEGV, BUS] {
            // SAFETY: the default action is fit for any signal.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        if which == "ours" {
            start(true);
            OURS.store(true, Ordering::Relaxed);
        }
        let (_, run) = SCENARIOS.iter().find(|(known, _)| *known == name).unwrap();
        run();
        submit();
        tell("end");
        std::process::exit(17);
    }
    let different: Vec<String> = SCENARIOS.iter().filter_map(|(name, _)| runs_the_same(name).err()).collect();
    assert!(different.is_empty(), "{} of {} differ:\n{}", different.len(), SCENARIOS.len(), different.join("\n"));
}
