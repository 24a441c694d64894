//! Foreign faults go to the handler that was installed before. Each case runs in a child process: this test binary
//! again, with the case's name in an environment variable.
#![allow(unsafe_code, reason = "installs handlers, makes faults and raw mappings")]
#![allow(clippy::cast_possible_truncation, reason = "addresses have 64 bits here")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, exit};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use telpher_mem::{Fault, Local, PAGE_BYTES, Space, WriteHint};

const CASE: &str = "TELPHER_MEM_TEST_CASE";

/// True in the child that runs this case.
fn is_child(case: &str) -> bool {
    std::env::var(CASE).is_ok_and(|name| name == case)
}

/// Runs this binary's test `case` as a child.
fn child(case: &str) -> Output {
    let program = std::env::current_exe().unwrap();
    Command::new(program).args(["--exact", case, "--nocapture", "--test-threads=1"]).env(CASE, case).output().unwrap()
}

fn local() -> Local {
    // SAFETY: the cases access only their own raw mappings, and addresses that are not mapped.
    unsafe { Local::new() }
}

/// Checks that a fault of our kernels is returned as a value, in this process and on this thread.
fn own_fault_is_a_value() {
    let wild = 1 << 63;
    let got = local().fill(wild, [0; 2], 100, WriteHint::Cache);
    assert_eq!(got, Err(Fault { address: wild, write: true, done: 0 }));
}

/// Reads at `address` outside of our kernels.
fn foreign_fault(address: usize) {
    // SAFETY: not sound; the fault is the purpose, and the process is a child started for it.
    unsafe { std::ptr::with_exposed_provenance::<u8>(address).read_volatile() };
}

fn install(signal: i32, handler: usize, flags: i32) {
    // SAFETY: an all-zero action is valid; the handler has the signature that its flags require.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

#[test]
fn a_foreign_fault_still_kills_by_its_signal() {
    if is_child("a_foreign_fault_still_kills_by_its_signal") {
        own_fault_is_a_value();
        foreign_fault(8);
        exit(0);
    }
    let output = child("a_foreign_fault_still_kills_by_its_signal");
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{output:?}");
}

#[test]
fn the_default_action_is_the_default_action() {
    if is_child("the_default_action_is_the_default_action") {
        install(libc::SIGSEGV, libc::SIG_DFL, 0);
        own_fault_is_a_value();
        foreign_fault(8);
        exit(0);
    }
    let output = child("the_default_action_is_the_default_action");
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{output:?}");
}

#[test]
fn a_signal_that_is_sent_kills_by_default() {
    if is_child("a_signal_that_is_sent_kills_by_default") {
        install(libc::SIGBUS, libc::SIG_DFL, 0);
        own_fault_is_a_value();
        // SAFETY: sends a signal to this thread.
        unsafe { libc::raise(libc::SIGBUS) };
        exit(0);
    }
    let output = child("a_signal_that_is_sent_kills_by_default");
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
}

#[test]
fn an_ignored_signal_is_ignored_if_sent_and_kills_if_real() {
    if is_child("an_ignored_signal_is_ignored_if_sent_and_kills_if_real") {
        install(libc::SIGSEGV, libc::SIG_IGN, 0);
        own_fault_is_a_value();
        // SAFETY: sends a signal to this thread.
        unsafe { libc::raise(libc::SIGSEGV) };
        eprintln!("survived the sent signal");
        foreign_fault(8);
        exit(0);
    }
    let output = child("an_ignored_signal_is_ignored_if_sent_and_kills_if_real");
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("survived the sent signal"));
}

extern "C" fn leave_with_address(_: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    assert!(!context.is_null());
    // SAFETY: the kernel's siginfo of a fault.
    let address = unsafe { (*info).si_addr() }.addr();
    // SAFETY: ends the process.
    unsafe { libc::_exit(if address == 0x18 { 42 } else { 1 }) };
}

#[test]
fn a_handler_installed_before_is_called_with_its_arguments() {
    if is_child("a_handler_installed_before_is_called_with_its_arguments") {
        install(libc::SIGSEGV, leave_with_address as *const () as usize, libc::SA_SIGINFO);
        own_fault_is_a_value();
        foreign_fault(0x18);
        exit(0);
    }
    assert_eq!(child("a_handler_installed_before_is_called_with_its_arguments").status.code(), Some(42));
}

static CALLS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_call(signal: i32) {
    assert_eq!(signal, libc::SIGSEGV);
    // Relaxed: a single thread.
    CALLS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_handler_of_one_argument_is_called_and_returned_from() {
    if is_child("a_handler_of_one_argument_is_called_and_returned_from") {
        install(libc::SIGSEGV, count_call as *const () as usize, 0);
        own_fault_is_a_value();
        for _ in 0..3 {
            // SAFETY: sends a signal to this thread.
            unsafe { libc::raise(libc::SIGSEGV) };
            own_fault_is_a_value();
        }
        exit(if CALLS.load(Ordering::Relaxed) == 3 { 42 } else { 1 });
    }
    assert_eq!(child("a_handler_of_one_argument_is_called_and_returned_from").status.code(), Some(42));
}

#[test]
fn a_one_shot_handler_is_called_once() {
    if is_child("a_one_shot_handler_is_called_once") {
        install(libc::SIGSEGV, count_call as *const () as usize, libc::SA_RESETHAND);
        own_fault_is_a_value();
        // SAFETY: sends signals to this thread.
        unsafe { libc::raise(libc::SIGSEGV) };
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
        eprintln!("survived the first signal");
        // SAFETY: as above.
        unsafe { libc::raise(libc::SIGSEGV) };
        exit(0);
    }
    let output = child("a_one_shot_handler_is_called_once");
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("survived the first signal"));
}

/// A sent signal that interrupts our kernels is not their fault.
#[test]
fn signals_sent_into_running_operations_are_not_faults() {
    if is_child("signals_sent_into_running_operations_are_not_faults") {
        install(libc::SIGSEGV, count_call as *const () as usize, libc::SA_RESTART);
        let (local, bytes) = (local(), 1 << 20);
        let pages = raw_pages(bytes / PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: identifies this thread, which outlives the scope below.
        let target = unsafe { libc::pthread_self() };
        let rounds = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for sent in 1..=200 {
                    let before = rounds.load(Ordering::Relaxed);
                    // SAFETY: the thread lives; it waits for this one at the end of the scope.
                    unsafe { libc::pthread_kill(target, libc::SIGSEGV) };
                    // Relaxed: counters. One signal at a time, because pending signals merge.
                    while CALLS.load(Ordering::Relaxed) < sent {
                        // Some 100 ms of work of that thread; its waiting for a processor does not count.
                        if rounds.load(Ordering::Relaxed) - before > 1000 {
                            eprintln!("signal {sent} did not arrive");
                            exit(1);
                        }
                        std::thread::yield_now();
                    }
                }
            });
            while CALLS.load(Ordering::Relaxed) < 200 {
                assert_eq!(local.fill(pages, [1, 2], bytes, WriteHint::Cache), Ok(()));
                assert_eq!(local.compare(pages, pages + 16, bytes - 16), Ok(None));
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        exit(42);
    }
    let output = child("signals_sent_into_running_operations_are_not_faults");
    assert_eq!(output.status.code(), Some(42), "{output:?}");
}

static DEPTH: AtomicU64 = AtomicU64::new(0);

extern "C" fn raise_again(signal: i32) {
    if DEPTH.fetch_add(1, Ordering::Relaxed) == 0 {
        // SAFETY: sends a signal to this thread; with SA_NODEFER it arrives at once.
        unsafe { libc::raise(signal) };
        // SAFETY: ends the process.
        unsafe { libc::_exit(if DEPTH.load(Ordering::Relaxed) == 2 { 42 } else { 1 }) };
    }
}

#[test]
fn a_handler_with_nodefer_may_interrupt_itself() {
    if is_child("a_handler_with_nodefer_may_interrupt_itself") {
        install(libc::SIGSEGV, raise_again as *const () as usize, libc::SA_NODEFER);
        own_fault_is_a_value();
        // SAFETY: sends a signal to this thread.
        unsafe { libc::raise(libc::SIGSEGV) };
        exit(0);
    }
    assert_eq!(child("a_handler_with_nodefer_may_interrupt_itself").status.code(), Some(42));
}

extern "C" fn repair_page(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's siginfo of a fault in the child's own mapping, whose page becomes accessible.
    unsafe {
        let page = (*info).si_addr().addr() & !0xfff;
        let flags = libc::PROT_READ | libc::PROT_WRITE;
        libc::mprotect(std::ptr::with_exposed_provenance_mut(page), 4096, flags);
    }
}

#[test]
fn a_handler_that_repairs_foreign_faults_keeps_working() {
    if is_child("a_handler_that_repairs_foreign_faults_keeps_working") {
        install(libc::SIGSEGV, repair_page as *const () as usize, libc::SA_SIGINFO);
        let pages = raw_pages(4, libc::PROT_NONE);
        // Faults of our kernels are returned, not repaired.
        assert_eq!(
            local().fill(pages, [0; 2], 10, WriteHint::Cache),
            Err(Fault { address: pages, write: true, done: 0 })
        );
        for page in 0..4 {
            foreign_fault((pages + page * PAGE_BYTES) as usize);
        }
        exit(42);
    }
    let output = child("a_handler_that_repairs_foreign_faults_keeps_working");
    assert_eq!(output.status.code(), Some(42), "{output:?}");
}

/// Overflows the stack.
#[allow(unconditional_recursion, reason = "that is its purpose")]
fn descend(depth: u64) -> u64 {
    let here = std::hint::black_box([depth; 64]);
    descend(depth + 1) + here[7]
}

#[test]
fn rust_still_reports_a_stack_overflow() {
    if is_child("rust_still_reports_a_stack_overflow") {
        own_fault_is_a_value();
        std::thread::spawn(|| {
            own_fault_is_a_value();
            descend(0)
        })
        .join()
        .unwrap();
    }
    let output = child("rust_still_reports_a_stack_overflow");
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("has overflowed its stack"), "{output:?}");
}

extern "C" fn on_bare_thread(_: *mut libc::c_void) -> *mut libc::c_void {
    own_fault_is_a_value();
    std::ptr::null_mut()
}

#[test]
fn faults_are_values_on_threads_without_an_alternate_stack() {
    // SAFETY: a plain thread with a valid entry; it is joined before its id goes away.
    unsafe {
        let mut thread = std::mem::zeroed();
        assert_eq!(libc::pthread_create(&mut thread, std::ptr::null(), on_bare_thread, std::ptr::null_mut()), 0);
        assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
    }
}

#[test]
fn many_threads_fault_at_once() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..5_000).for_each(|_| own_fault_is_a_value()));
        }
    });
}

/// Maps private pages without references to them; the children may unmap them.
fn raw_pages(count: u64, protection: i32) -> u64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: without MAP_FIXED the system picks an unused range.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), (count * PAGE_BYTES) as usize, protection, flags, -1, 0) };
    assert_ne!(base, libc::MAP_FAILED);
    base.expose_provenance() as u64
}

/// Runs in a child of its own, so that no other mapping can land in the hole and be damaged.
#[test]
fn memory_unmapped_under_running_operations_is_a_fault() {
    if is_child("memory_unmapped_under_running_operations_is_a_fault") {
        const COUNT: u64 = 64;
        let len = COUNT * PAGE_BYTES;
        let write = libc::PROT_READ | libc::PROT_WRITE;
        let (kept, goes) = (raw_pages(COUNT, write), raw_pages(COUNT, write));
        let (local, over, seen) = (local(), AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Relaxed: a counter. Each kind of operation should meet the hole several times.
                for round in (0_u64..).take_while(|_| seen.load(Ordering::Relaxed) < 100) {
                    let hole = goes + (round * 7 % COUNT) * PAGE_BYTES;
                    let hole = std::ptr::with_exposed_provenance_mut::<libc::c_void>(hole as usize);
                    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                    // SAFETY: the page lies in our raw mapping, which is accessed by address only.
                    unsafe {
                        libc::munmap(hole, PAGE_BYTES as usize);
                        std::thread::yield_now();
                        assert_ne!(libc::mmap(hole, PAGE_BYTES as usize, write, flags, -1, 0), libc::MAP_FAILED);
                    }
                    std::thread::yield_now();
                }
                // Release: pairs with the Acquire below.
                over.store(true, Ordering::Release);
            });
            let see = |result: Result<(), Fault>, write: bool| {
                if let Err(fault) = result {
                    seen.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(fault.write, write);
                    // The fault may be anywhere in a page: the page disappears during the operation.
                    assert_eq!(fault.address, goes + fault.done);
                    assert!(fault.done < len);
                }
            };
            // Acquire: pairs with the Release above.
            while !over.load(Ordering::Acquire) {
                see(local.move_forward(goes, kept, len, WriteHint::Memory), true);
                see(local.move_forward(kept, goes, len, WriteHint::Cache), false);
                see(local.fill(goes, [0; 2], len, WriteHint::Memory), true);
                see(local.compare_pattern(goes, 0, len).map(drop), false);
                see(local.flush(goes, len), false);
            }
        });
        exit(42);
    }
    let output = child("memory_unmapped_under_running_operations_is_a_fault");
    assert_eq!(output.status.code(), Some(42), "{output:?}");
}

/// Represents a foreign process-wide handler.
extern "C" fn continue_at_landing(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid ucontext, which we may edit until we return.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize].cast_unsigned();
    let Some(landing) = telpher_mem::hook::landing(at) else { exit(3) };
    registers[libc::REG_RIP as usize] = landing.instruction.cast_signed();
    registers[libc::REG_R11 as usize] = landing.r11.cast_signed();
    HANDLED.store(true, Ordering::SeqCst);
}

static HANDLED: AtomicBool = AtomicBool::new(false);

#[test]
fn an_adopted_fault_goes_to_the_adopter_only() {
    if is_child("an_adopted_fault_goes_to_the_adopter_only") {
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            install(signal, continue_at_landing as *const () as usize, libc::SA_SIGINFO);
        }
        // SAFETY: `continue_at_landing` handles every landing.
        unsafe { telpher_mem::hook::adopt() };
        own_fault_is_a_value();
        assert!(HANDLED.load(Ordering::SeqCst));
        assert_eq!(telpher_mem::hook::landing(continue_at_landing as *const () as u64), None);
        // SAFETY: an all-zero action is valid; it only receives the current one.
        let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: `now` is a valid action.
        assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, std::ptr::null(), &mut now) }, 0);
        assert_eq!(
            now.sa_sigaction, continue_at_landing as *const () as usize,
            "another handler replaced the adopter's"
        );
        exit(0);
    }
    let output = child("an_adopted_fault_goes_to_the_adopter_only");
    assert!(output.status.success(), "{output:?}");
}
