//! Faults of the emulated instructions reach the program as the kernel delivers those of real instructions.
#![allow(unsafe_code, reason = "installs a handler and executes instructions made at run time")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "addresses have 64 bits here")]

mod common;

use common::thunk::{State, Thunk, assert_same};
use common::{Spin, descriptor, exits, map, protect, read, start, write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use telpher_interpose::signals::{self, Action};
use telpher_interpose::{SubmitInstruction, sites};

const PAGE: u64 = 4096;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const SI_KERNEL: i32 = 0x80;
const SEGV_MAPERR: i32 = 1;
const SEGV_ACCERR: i32 = 2;
const BUS_ADRERR: i32 = 2;

/// The values that the handler saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Seen {
    count: u32,
    signal: i32,
    code: i32,
    address: u64,
    trap: i64,
    instruction: u64,
    general: [i64; 3],
    stack: i64,
}

static SEEN: Spin<Seen> =
    Spin::new(Seen { count: 0, signal: 0, code: 0, address: 0, trap: 0, instruction: 0, general: [0; 3], stack: 0 });
/// The handler's action: make a page accessible, or continue after the instruction.
static REPAIR: Spin<Repair> = Spin::new(Repair::Skip(0));

#[derive(Clone, Copy, Debug)]
enum Repair {
    Skip(u64),
    Open(u64),
    Set { register: i32, value: u64 },
}

unsafe extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: what the kernel gives to a handler.
    let (info, context) = unsafe { (&*info, &mut *context) };
    let registers = &mut context.uc_mcontext.gregs;
    SEEN.with(|seen| {
        *seen = Seen {
            count: seen.count + 1,
            signal,
            code: info.si_code,
            // SAFETY: a fault has an address.
            address: unsafe { info.si_addr() }.addr() as u64,
            trap: registers[libc::REG_TRAPNO as usize],
            instruction: registers[libc::REG_RIP as usize] as u64,
            general: [libc::REG_RAX, libc::REG_RDX, libc::REG_R15].map(|register| registers[register as usize]),
            stack: registers[libc::REG_RSP as usize],
        };
    });
    match REPAIR.with(|repair| *repair) {
        Repair::Skip(bytes) => registers[libc::REG_RIP as usize] += bytes as i64,
        Repair::Open(page) => protect(page, PAGE as usize, READ_WRITE),
        Repair::Set { register, value } => registers[register as usize] = value as i64,
    }
}

static ONE: Mutex<()> = Mutex::new(());

/// Installs everything once; runs one test at a time.
fn one() -> MutexGuard<'static, ()> {
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    start(true);
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        let action = Action { handler: handle as *const () as usize, flags: libc::SA_SIGINFO as u64, mask: 0 };
        // SAFETY: the handler has the signature.
        unsafe { signals::action(signal, Some(action)) }.unwrap();
    }
    SEEN.with(|seen| *seen = Seen::default());
    one
}

/// The expected signal: number, code, address, trap number.
type Expected = (i32, i32, u64, i64);

/// Runs `thunk` trapped and rewritten, and checks what the handler sees; the handler continues after the instruction.
#[track_caller]
fn faults(thunk: &Thunk, before: &State, expected: Expected) {
    REPAIR.with(|repair| *repair = Repair::Skip(thunk.next() - thunk.site));
    for round in 0..4 {
        if round == 2 && sites::rewrite(thunk.site).is_err() {
            // Four bytes.
            break;
        }
        SEEN.with(|seen| *seen = Seen::default());
        let after = thunk.run(before);
        assert_same(before, &after, before.flags);
        let seen = SEEN.with(|seen| *seen);
        assert_eq!((seen.signal, seen.code, seen.address, seen.trap), expected, "round {round}");
        assert_eq!((seen.count, seen.instruction), (1, thunk.site), "round {round}");
        let general = [0, 2, 15].map(|register| before.general[register] as i64);
        assert_eq!((seen.general, seen.stack), (general, after.general[4] as i64), "round {round}");
    }
}

/// `movdir64b rax, [rdx]` and `enqcmd rax, [rdx]`.
const MOVDIR64B: [u8; 5] = [0x66, 0x0f, 0x38, 0xf8, 0x02];
const ENQCMD: [u8; 5] = [0xf2, 0x0f, 0x38, 0xf8, 0x02];

#[test]
fn a_source_that_cannot_be_read_is_a_page_fault_at_the_site() {
    let _one = one();
    let portal = common::PORTAL.page();
    let memory = map(3 * PAGE as usize, READ_WRITE);
    protect(memory + PAGE, PAGE as usize, libc::PROT_NONE);
    // SAFETY: memory of the test.
    unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut((memory + 2 * PAGE) as usize), PAGE as usize) };
    for bytes in [MOVDIR64B, ENQCMD] {
        let thunk = Thunk::new(&bytes);
        for (source, code, address) in [
            (memory + PAGE, SEGV_ACCERR, memory + PAGE),
            // Only half of the source can be read.
            (memory + PAGE - 32, SEGV_ACCERR, memory + PAGE),
            (memory + 2 * PAGE + 8, SEGV_MAPERR, memory + 2 * PAGE + 8),
            (0x40, SEGV_MAPERR, 0x40),
        ] {
            let before = State::new(1).with(&[(0, portal), (2, source)]);
            faults(&thunk, &before, (libc::SIGSEGV, code, address, 14));
        }
    }
}

#[test]
fn a_source_past_the_end_of_its_file_is_a_sigbus() {
    let _one = one();
    let path = std::env::temp_dir().join(format!("telpher-interpose-{}", std::process::id()));
    let file = std::fs::File::create_new(&path).unwrap();
    file.set_len(2 * PAGE).unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    // SAFETY: a new mapping.
    let memory = unsafe {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        libc::mmap(std::ptr::null_mut(), 2 * PAGE as usize, READ_WRITE, libc::MAP_SHARED, fd, 0)
    };
    let memory = memory.expose_provenance() as u64;
    file.set_len(PAGE).unwrap();
    let thunk = Thunk::new(&ENQCMD);
    let before = State::new(2).with(&[(0, common::PORTAL.page()), (2, memory + PAGE + 64)]);
    faults(&thunk, &before, (libc::SIGBUS, BUS_ADRERR, memory + PAGE + 64, 14));
}

#[test]
fn a_destination_that_is_not_aligned_is_a_general_protection_fault() {
    let _one = one();
    let portal = common::PORTAL.page();
    let source = map(PAGE as usize, READ_WRITE);
    let thunk = Thunk::new(&ENQCMD);
    for wrong in [1, 8, 32, 63] {
        let before = State::new(3).with(&[(0, portal + wrong), (2, source)]);
        faults(&thunk, &before, (libc::SIGSEGV, SI_KERNEL, 0, 13));
    }
    let thunk = Thunk::new(&MOVDIR64B);
    let before = State::new(3).with(&[(0, portal + 4), (2, source)]);
    faults(&thunk, &before, (libc::SIGSEGV, SI_KERNEL, 0, 13));
}

#[test]
fn enqcmd_needs_a_zero_first_dword_and_enqcmds_a_supervisor() {
    let _one = one();
    let portal = common::PORTAL.page();
    let source = map(PAGE as usize, READ_WRITE);
    for bit in [0, 19, 31] {
        let mut wrong = descriptor(4);
        wrong[0] |= 1 << bit;
        write(source, wrong);
        let before = State::new(4).with(&[(0, portal), (2, source)]);
        faults(&Thunk::new(&ENQCMD), &before, (libc::SIGSEGV, SI_KERNEL, 0, 13));
    }
    write(source, descriptor(4));
    let before = State::new(4).with(&[(0, portal), (2, source)]);
    faults(&Thunk::new(&[0xf3, 0x0f, 0x38, 0xf8, 0x02]), &before, (libc::SIGSEGV, SI_KERNEL, 0, 13));
}

#[test]
fn a_non_canonical_address_faults_without_address_and_by_stack_segment_as_sigbus() {
    let _one = one();
    let portal = common::PORTAL.page();
    let before = State::new(5).with(&[(0, portal), (2, 0x8000_0000_0000_0000), (5, 0x8000_0000_0000_0000)]);
    faults(&Thunk::new(&ENQCMD), &before, (libc::SIGSEGV, SI_KERNEL, 0, 13));
    // enqcmd rax, [rbp + 0]
    faults(&Thunk::new(&[0xf2, 0x0f, 0x38, 0xf8, 0x45, 0]), &before, (libc::SIGBUS, SI_KERNEL, 0, 12));
}

#[test]
fn control_bits_that_do_not_exist_are_a_general_protection_fault() {
    let _one = one();
    for bytes in [&[0xf2, 0x0f, 0xae, 0xf1][..], &[0x66, 0x48, 0x0f, 0xae, 0xf1]] {
        let before = State::new(6).with(&[(1, 2)]);
        faults(&Thunk::new(bytes), &before, (libc::SIGSEGV, SI_KERNEL, 0, 13));
    }
}

#[test]
fn umonitor_reads_a_byte() {
    let _one = one();
    let memory = map(PAGE as usize, libc::PROT_NONE);
    let before = State::new(7).with(&[(7, memory + 100)]);
    for bytes in [&[0xf3, 0x0f, 0xae, 0xf7][..], &[0xf3, 0x48, 0x0f, 0xae, 0xf7]] {
        faults(&Thunk::new(bytes), &before, (libc::SIGSEGV, SEGV_ACCERR, memory + 100, 14));
    }
}

#[test]
fn a_destination_in_memory_that_cannot_be_written_faults() {
    let _one = one();
    let memory = map(2 * PAGE as usize, libc::PROT_READ);
    let source = map(PAGE as usize, READ_WRITE);
    let before = State::new(8).with(&[(0, memory + 128), (2, source)]);
    for bytes in [MOVDIR64B, ENQCMD] {
        faults(&Thunk::new(&bytes), &before, (libc::SIGSEGV, SEGV_ACCERR, memory + 128, 14));
    }
}

#[test]
fn an_instruction_is_executed_again_when_the_handler_has_repaired_its_operand() {
    let _one = one();
    let portal = common::PORTAL.page();
    let page = map(PAGE as usize, READ_WRITE);
    write(page + 64, descriptor(9));
    let thunk = Thunk::new(&ENQCMD);
    let before = State::new(9).with(&[(0, portal), (2, page + 64)]);
    REPAIR.with(|repair| *repair = Repair::Open(page));
    for round in 1..5 {
        protect(page, PAGE as usize, libc::PROT_NONE);
        assert_same(&before, &thunk.run(&before), before.flags);
        let last = common::PORTAL.last();
        assert_eq!((last.how, last.descriptor), (Some(SubmitInstruction::Enqcmd), descriptor(9)));
        assert_eq!(SEEN.with(|seen| seen.count), round);
    }
}

#[test]
fn register_changes_by_the_handler_are_kept() {
    let _one = one();
    let memory = map(PAGE as usize, READ_WRITE);
    write(memory, descriptor(10));
    let thunk = Thunk::new(&ENQCMD);
    REPAIR.with(|repair| *repair = Repair::Set { register: libc::REG_RDX, value: memory });
    let before = State::new(10).with(&[(0, common::PORTAL.page()), (2, 0x18)]);
    for _ in 0..3 {
        let after = thunk.run(&before);
        assert_same(&before.with(&[(2, memory)]), &after, before.flags);
        assert_eq!(common::PORTAL.last().descriptor, descriptor(10));
    }
    assert_eq!(read(memory), descriptor(10));
}

/// Runs on the alternate stack, and makes submissions there that fault in the middle of the emulation.
unsafe extern "C" fn submits_badly(_: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    let here = std::hint::black_box([0x5a5a_5a5a_5a5a_5a5au64; 256]);
    // SAFETY: what the kernel gives to a handler.
    let stack = unsafe { (*context).uc_stack };
    assert!(here.as_ptr().addr().wrapping_sub(stack.ss_sp.addr()) < stack.ss_size, "not on the alternate stack");
    for (index, bytes) in [ENQCMD, MOVDIR64B].into_iter().enumerate() {
        let thunk = Thunk::new(&bytes);
        // On a processor that has MOVDIR64B the emulation would not run before the site is rewritten.
        sites::rewrite(thunk.site).unwrap();
        REPAIR.with(|repair| *repair = Repair::Skip(5));
        let before = State::new(11).with(&[(0, common::PORTAL.page()), (2, 0x40)]);
        for _ in 0..3 {
            assert_same(&before, &thunk.run(&before), before.flags);
        }
        assert_eq!(SEEN.with(|seen| seen.count), 3 * (index as u32 + 1));
    }
    assert_eq!(here, [0x5a5a_5a5a_5a5a_5a5au64; 256], "the frames of this handler were overwritten");
}

#[test]
fn a_fault_in_the_emulation_keeps_the_callers_alternate_stack() {
    exits("a_fault_in_the_emulation_keeps_the_callers_alternate_stack", 0, || {
        start(true);
        let length = 256 << 10;
        let stack = libc::stack_t {
            ss_sp: std::ptr::with_exposed_provenance_mut(map(length, READ_WRITE) as usize),
            ss_flags: 0,
            ss_size: length,
        };
        // SAFETY: new memory that stays mapped.
        assert_eq!(unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) }, 0);
        let flags = u64::from((libc::SA_SIGINFO | libc::SA_ONSTACK).cast_unsigned());
        for (signal, handler) in
            [(libc::SIGSEGV, handle as *const () as usize), (libc::SIGUSR1, submits_badly as *const () as usize)]
        {
            // SAFETY: the handlers have the signature.
            unsafe { signals::action(signal, Some(Action { handler, flags, mask: 0 })) }.unwrap();
        }
        // SAFETY: sends a signal to this thread.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), libc::SIGUSR1) };
        i32::from(SEEN.with(|seen| seen.count) != 6)
    });
}
