//! Every instruction, trapped and rewritten: what arrives, what is answered, and that nothing else changes.
#![allow(unsafe_code, reason = "executes instructions made at run time")]
#![allow(clippy::cast_possible_truncation, reason = "addresses have 64 bits here")]

mod common;

use common::thunk::{State, Thunk, assert_same};
use common::{descriptor, map, read, start, write};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use telpher_interpose::registers::{ARITHMETIC, CF, ZF};
use telpher_interpose::{Monitor, SubmitInstruction, sites};

/// Serialises the tests, which share one portal.
static ONE: Mutex<()> = Mutex::new(());

fn one() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Worst-case flags: all arithmetic flags set, and string operations descending.
const FLAGS: u64 = 0x202 | ARITHMETIC | 0x400;

/// Encodes 0F 38 F8 with a prefix, `[base]` with an 8-bit displacement of 0x11, any registers.
fn submission(prefix: u8, destination: u8, base: u8) -> Vec<u8> {
    let rex = 0x40 | (destination >> 3) << 2 | base >> 3;
    let mut bytes = vec![prefix, rex, 0x0f, 0x38, 0xf8, 0x40 | (destination & 7) << 3 | base & 7];
    if base & 7 == 4 {
        bytes.push(0x24);
    }
    bytes.push(0x11);
    bytes
}

#[test]
fn any_two_registers_submit_and_nothing_else_changes() {
    let _one = one();
    let portal = start(true);
    let memory = map(4096, libc::PROT_READ | libc::PROT_WRITE);
    let mut seed = 0;
    for (prefix, how) in [(0x66, SubmitInstruction::Movdir64b), (0xf2, SubmitInstruction::Enqcmd)] {
        for destination in 0..16u8 {
            for base in 0..16u8 {
                // rsp as an operand cannot be chosen freely; the stack is not a portal.
                if destination == 4 || base == 4 || destination == base {
                    continue;
                }
                let thunk = Thunk::new(&submission(prefix, destination, base));
                let original = thunk.code();
                for round in 0..3u64 {
                    seed += 1;
                    let data = descriptor(seed);
                    let source = memory + 1000 + seed % 64;
                    write(source, data);
                    let offset = seed * 64 % 4096;
                    let mut before = State::new(seed)
                        .with(&[(destination.into(), portal.page() + offset), (base.into(), source - 0x11)]);
                    before.flags = FLAGS;
                    let after = thunk.run(&before);
                    let flags = if how == SubmitInstruction::Enqcmd { FLAGS & !ARITHMETIC } else { FLAGS };
                    assert_same(&before, &after, flags);
                    let last = portal.last();
                    assert_eq!((last.how, last.offset, last.descriptor), (Some(how), offset, data));
                    // The first execution trapped, the others were calls.
                    assert_ne!(thunk.code(), original, "round {round}");
                }
            }
        }
    }
}

/// Runs it three times: a trap, and two calls if the site is rewritten; returns whether it is.
#[track_caller]
fn thrice(thunk: &Thunk, before: &State, flags: u64) -> bool {
    let original = thunk.code();
    for _ in 0..3 {
        assert_same(before, &thunk.run(before), flags);
    }
    thunk.code() != original
}

#[test]
fn the_source_may_be_relative_to_the_instruction() {
    let _one = one();
    let portal = start(true);
    // movdir64b rbx, [rip + near]: the displacement counts from the next instruction.
    let thunk = Thunk::relative(|site, near| {
        let mut bytes = vec![0x66, 0x0f, 0x38, 0xf8, 0x1d];
        bytes.extend((near.wrapping_sub(site + 9) as i32).to_le_bytes());
        bytes
    });
    thunk.set_near(descriptor(77));
    let before = State::new(1).with(&[(3, portal.page() + 192)]);
    assert!(thrice(&thunk, &before, before.flags));
    assert_eq!((portal.last().offset, portal.last().descriptor), (192, descriptor(77)));
}

thread_local! {
    static OWN: [u64; 8] = const { [1 << 32, 2, 3, 4, 5, 6, 7, 8] };
}

#[test]
fn the_source_may_be_thread_local() {
    let _one = one();
    let portal = start(true);
    let own = OWN.with(|own| own.as_ptr().expose_provenance() as u64);
    let fs: u64;
    // SAFETY: reads the thread pointer where the ABI keeps it.
    unsafe { std::arch::asm!("mov {0}, fs:[0]", out(reg) fs) };
    // enqcmd rax, fs:[rdx], with the prefixes in both orders.
    for bytes in [[0x64, 0xf2, 0x0f, 0x38, 0xf8, 0x02], [0xf2, 0x64, 0x0f, 0x38, 0xf8, 0x02]] {
        let thunk = Thunk::new(&bytes);
        let before = State::new(2).with(&[(0, portal.page()), (2, own.wrapping_sub(fs))]);
        assert!(thrice(&thunk, &before, before.flags));
        assert_eq!(portal.last().descriptor, OWN.with(|own| *own));
    }
}

#[test]
fn with_67h_addresses_have_32_bits() {
    let _one = one();
    let portal = start(true);
    // movdir64b eax, [edx + ecx * 4 - 8]
    let thunk = Thunk::new(&[0x67, 0x66, 0x0f, 0x38, 0xf8, 0x44, 0x8a, 0xf8]);
    thunk.set_near(descriptor(5));
    let high = 0xdead_beef_0000_0000;
    let edx = high | (thunk.near() + 8).wrapping_sub(400) & 0xffff_ffff;
    let before = State::new(3).with(&[(0, high | portal.page()), (1, high | 100), (2, edx)]);
    assert!(thrice(&thunk, &before, before.flags));
    assert_eq!(portal.last().descriptor, descriptor(5));
}

#[test]
fn a_retry_is_zf_and_nothing_else() {
    let _one = one();
    let portal = start(true);
    let thunk = Thunk::new(&[0xf2, 0x0f, 0x38, 0xf8, 0x02]);
    thunk.set_near(descriptor(6));
    let mut before = State::new(4).with(&[(0, portal.page()), (2, thunk.near())]);
    portal.full.store(true, Ordering::Relaxed);
    for flags in [0x202, FLAGS] {
        before.flags = flags;
        thrice(&thunk, &before, flags & !ARITHMETIC | ZF);
    }
    portal.full.store(false, Ordering::Relaxed);
    for flags in [0x202, FLAGS] {
        before.flags = flags;
        thrice(&thunk, &before, flags & !ARITHMETIC);
    }
}

#[test]
fn movdir64b_to_memory_stores_and_enqcmd_to_memory_gets_retry() {
    let _one = one();
    let portal = start(true);
    let taken = portal.taken.load(Ordering::Relaxed);
    let memory = map(4096, libc::PROT_READ | libc::PROT_WRITE);
    for (prefix, flags, stored) in [(0x66, 0x202, true), (0xf2, 0x202 | ZF, false)] {
        let thunk = Thunk::new(&[prefix, 0x0f, 0x38, 0xf8, 0x02]);
        thunk.set_near(descriptor(8));
        write(memory, descriptor(9));
        let before = State::new(5).with(&[(0, memory), (2, thunk.near())]);
        assert_same(&before, &thunk.run(&before), flags);
        assert_eq!(read(memory), descriptor(if stored { 8 } else { 9 }));
        // A processor that has MOVDIR64B has executed it itself.
        sites::rewrite(thunk.site).unwrap();
        write(memory, descriptor(9));
        let calls = sites::counters().calls;
        assert_same(&before, &thunk.run(&before), flags);
        assert_eq!(sites::counters().calls, calls + 1);
        assert_eq!(read(memory), descriptor(if stored { 8 } else { 9 }));
    }
    assert_eq!(portal.taken.load(Ordering::Relaxed), taken);
}

#[test]
fn movdiri_stores_its_register() {
    let _one = one();
    start(true);
    let memory = map(4096, libc::PROT_READ | libc::PROT_WRITE);
    for (bytes, expected) in [
        (&[0x0f, 0x38, 0xf9, 0x47, 0x10][..], 0x1111_1111_9abc_def0),
        (&[0x48, 0x0f, 0x38, 0xf9, 0x47, 0x10][..], 0x1234_5678_9abc_def0),
    ] {
        write(memory, [0x1111_1111_1111_1111; 8]);
        let thunk = Thunk::new(bytes);
        let before = State::new(6).with(&[(0, 0x1234_5678_9abc_def0), (7, memory)]);
        assert!(!thrice(&thunk, &before, before.flags), "sites of MOVDIRI are not rewritten");
        let mut all = [0x1111_1111_1111_1111; 8];
        all[2] = expected;
        assert_eq!(read(memory), all);
    }
}

/// UMONITOR and UMWAIT with the address in rdi and the control bits in ecx, in four bytes and in five.
const WAITS: [(&[u8], &[u8]); 2] = [
    (&[0xf3, 0x0f, 0xae, 0xf7], &[0xf2, 0x0f, 0xae, 0xf1]),
    (&[0xf3, 0x48, 0x0f, 0xae, 0xf7], &[0xf2, 0x48, 0x0f, 0xae, 0xf1]),
];

#[test]
fn umwait_waits_for_the_line_that_umonitor_armed_once() {
    let _one = one();
    let portal = start(true);
    let memory = map(4096, libc::PROT_READ | libc::PROT_WRITE);
    write(memory + 64, descriptor(11));
    for (umonitor, umwait) in WAITS {
        let (umonitor, umwait) = (Thunk::new(umonitor), Thunk::new(umwait));
        for round in 0..3u64 {
            let mut before = State::new(7).with(&[
                (0, 0xaaaa_aaaa_5555_0000 + round),
                (1, 0xffff_ffff_0000_0001),
                (2, 0xbbbb_bbbb_1234_5678),
                (7, memory + 64 + 17),
            ]);
            before.flags = FLAGS;
            assert_same(&before, &umonitor.run(&before), FLAGS);
            let waits = portal.waits[1].load(Ordering::Relaxed);
            portal.limited.store(round == 1, Ordering::Relaxed);
            let cf = if round == 1 { CF } else { 0 };
            assert_same(&before, &umwait.run(&before), FLAGS & !ARITHMETIC | cf);
            let last = portal.last();
            assert_eq!(last.monitor, Some(Monitor { address: memory + 64, line: descriptor(11) }));
            assert_eq!(last.deadline, 0x1234_5678_5555_0000 + round);
            // No longer armed.
            assert_same(&before, &umwait.run(&before), FLAGS & !ARITHMETIC);
            assert_eq!(portal.waits[1].load(Ordering::Relaxed), waits + 1);
        }
    }
    portal.limited.store(false, Ordering::Relaxed);
}

#[test]
fn tpause_waits_without_a_line() {
    let _one = one();
    let portal = start(true);
    for (bytes, control) in [(&[0x66, 0x0f, 0xae, 0xf1][..], 0), (&[0x66, 0x41, 0x0f, 0xae, 0xf1][..], 1)] {
        let thunk = Thunk::new(bytes);
        let waits = portal.waits[control as usize].load(Ordering::Relaxed);
        let before = State::new(8).with(&[(1, control), (9, control), (0, 7), (2, 1)]);
        thrice(&thunk, &before, before.flags);
        assert_eq!(portal.waits[control as usize].load(Ordering::Relaxed), waits + 3);
        assert_eq!((portal.last().monitor, portal.last().deadline), (None, 0x1_0000_0007));
    }
}

#[test]
fn sites_of_four_bytes_keep_trapping_and_longer_ones_do_not() {
    let _one = one();
    let portal = start(true);
    let forms: [(&[u8], bool); 9] = [
        (&[0xf3, 0x0f, 0xae, 0xf7], false),
        (&[0xf2, 0x0f, 0xae, 0xf1], false),
        (&[0x66, 0x0f, 0xae, 0xf1], false),
        (&[0xf3, 0x48, 0x0f, 0xae, 0xf7], true),
        (&[0xf2, 0x48, 0x0f, 0xae, 0xf1], true),
        (&[0x66, 0x48, 0x0f, 0xae, 0xf1], true),
        (&[0x66, 0x0f, 0x38, 0xf8, 0x02], true),
        (&[0xf2, 0x0f, 0x38, 0xf8, 0x02], true),
        (&[0x2e, 0x66, 0x0f, 0x38, 0xf8, 0x84, 0x22, 0, 0, 0, 0], true),
    ];
    for (bytes, rewritten) in forms {
        let thunk = Thunk::new(bytes);
        thunk.set_near(descriptor(12));
        let before = State::new(9).with(&[(0, portal.page()), (1, 0), (2, thunk.near()), (7, thunk.near())]);
        let counted = sites::counters();
        for _ in 0..10 {
            thunk.run(&before);
        }
        let now = sites::counters();
        let (traps, calls) = (now.traps - counted.traps, now.calls - counted.calls);
        assert_eq!((traps, calls), if rewritten { (1, 9) } else { (10, 0) }, "{bytes:02x?}");
    }
}

#[test]
fn a_site_may_lie_across_lines_and_pages() {
    let _one = one();
    let portal = start(true);
    for offset in [59, 60, 61, 62, 63, 64, 4092, 4093, 4094, 4095] {
        let thunk = Thunk::place(&[0xf2, 0x0f, 0x38, 0xf8, 0x02], offset);
        thunk.set_near(descriptor(offset as u64));
        let before = State::new(10).with(&[(0, portal.page()), (2, thunk.near())]);
        assert!(thrice(&thunk, &before, before.flags & !ARITHMETIC), "offset {offset}");
        assert_eq!(portal.last().descriptor, descriptor(offset as u64));
        sites::undo_all();
        sites::set_rewriting(true);
        assert_eq!(thunk.code(), [0xf2, 0x0f, 0x38, 0xf8, 0x02]);
        assert!(thrice(&thunk, &before, before.flags & !ARITHMETIC), "again, offset {offset}");
    }
}
