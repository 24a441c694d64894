//! Plain stores to a portal page: a single 64-byte store arrives, every shorter store is dropped. Stores to other
//! addresses are not affected.
#![allow(unsafe_code, reason = "executes instructions made at run time")]
#![allow(clippy::cast_possible_truncation, reason = "addresses have 64 bits here")]

mod common;
#[path = "../../../ci/skip.rs"]
mod skip;

use common::thunk::{State, Thunk, assert_same};
use common::{PORTAL, dies, exits, map, start};
use std::arch::is_x86_feature_detected;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use telpher_interpose::SubmitInstruction;

static ONE: Mutex<()> = Mutex::new(());

fn one() -> MutexGuard<'static, ()> {
    start(true);
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns false and prints a skip message on a processor without 64-byte stores.
fn has_64_byte_stores(test: &str) -> bool {
    let has = is_x86_feature_detected!("avx512f");
    if !has {
        skip::skip(test, "this processor has no AVX-512");
    }
    has
}

/// Returns how many descriptors arrived during one run of `thunk`.
#[track_caller]
fn taken(thunk: &Thunk, before: &State, changed: &State) -> u64 {
    let taken = PORTAL.taken.load(Ordering::Relaxed);
    assert_same(changed, &thunk.run(before), changed.flags);
    PORTAL.taken.load(Ordering::Relaxed) - taken
}

/// Encodes EVEX, map 1: `opcode` with prefix bits `pp`, zmm register `source` to `[rdi + 64 * 2]`, mask register
/// `mask`.
fn evex(opcode: u8, pp: u8, wide: bool, source: u8, mask: u8) -> [u8; 7] {
    let p0 = 0x61 | u8::from(source & 8 == 0) << 7 | u8::from(source & 16 == 0) << 4;
    let p1 = 0x7c | pp | u8::from(wide) << 7;
    [0x62, p0, p1, 0x48 | mask, opcode, 0x47 | (source & 7) << 3, 2]
}

/// All 64-byte stores: opcode, prefix bits, W, bytes of an element if there may be a mask.
const STORES: [(u8, u8, bool, Option<u32>); 13] = [
    (0x7f, 1, false, Some(4)),
    (0x7f, 1, true, Some(8)),
    (0x7f, 2, false, Some(4)),
    (0x7f, 2, true, Some(8)),
    (0x7f, 3, false, Some(1)),
    (0x7f, 3, true, Some(2)),
    (0x29, 0, false, Some(4)),
    (0x29, 1, true, Some(8)),
    (0x11, 0, false, Some(4)),
    (0x11, 1, true, Some(8)),
    (0xe7, 1, false, None),
    (0x2b, 0, false, None),
    (0x2b, 1, true, None),
];

#[test]
fn a_64_byte_store_of_any_register_arrives_like_movdir64b() {
    if !has_64_byte_stores("a_64_byte_store_of_any_register_arrives_like_movdir64b") {
        return;
    }
    let _one = one();
    for (opcode, pp, wide, _) in STORES {
        for source in 0..32u8 {
            let thunk = Thunk::new(&evex(opcode, pp, wide, source, 0));
            let seed = u64::from(opcode) << 8 | u64::from(source);
            let before = State::new(seed).with(&[(7, PORTAL.page() + 192 - 128)]);
            assert_eq!(taken(&thunk, &before, &before), 1, "{opcode:x} zmm{source}");
            let last = PORTAL.last();
            assert_eq!((last.how, last.offset), (Some(SubmitInstruction::Store), 192));
            assert_eq!(last.descriptor, before.vectors[usize::from(source)], "{opcode:x} zmm{source}");
        }
    }
}

#[test]
fn a_mask_that_leaves_a_byte_out_drops_the_store() {
    if !has_64_byte_stores("a_mask_that_leaves_a_byte_out_drops_the_store") {
        return;
    }
    let _one = one();
    for (opcode, pp, wide, element) in STORES {
        // The thunk saves 16 bits of a mask.
        let Some(element @ (4 | 8)) = element else { continue };
        let all = (1u64 << (64 / element)) - 1;
        for mask in 1..8u8 {
            let thunk = Thunk::new(&evex(opcode, pp, wide, 3, mask));
            for (value, expected) in [(all, 1), (all & !1, 0), (all >> 1, 0), (all | 0xffff, 1)] {
                let mut before = State::new(1).with(&[(7, PORTAL.page())]);
                before.masks[usize::from(mask)] = value;
                assert_eq!(taken(&thunk, &before, &before), expected, "{opcode:x} k{mask} {value:x}");
            }
        }
    }
}

#[test]
fn a_64_byte_store_across_lines_is_dropped() {
    if !has_64_byte_stores("a_64_byte_store_across_lines_is_dropped") {
        return;
    }
    let _one = one();
    // vmovdqu64
    let thunk = Thunk::new(&evex(0x7f, 2, true, 5, 0));
    for offset in [1, 16, 32, 63] {
        let before = State::new(2).with(&[(7, PORTAL.page() + offset)]);
        assert_eq!(taken(&thunk, &before, &before), 0);
    }
}

#[test]
fn shorter_stores_are_dropped() {
    let _one = one();
    let forms: &[&[u8]] = &[
        // mov [rdi], al; ax; eax; rax; immediates
        &[0x88, 0x07],
        &[0x66, 0x89, 0x07],
        &[0x89, 0x07],
        &[0x48, 0x89, 0x07],
        &[0xc6, 0x07, 1],
        &[0x66, 0xc7, 0x47, 8, 1, 2],
        &[0x48, 0xc7, 0x87, 0, 1, 0, 0, 1, 2, 3, 4],
        // movnti, movdiri
        &[0x48, 0x0f, 0xc3, 0x07],
        &[0x48, 0x0f, 0x38, 0xf9, 0x07],
        // movups, movaps, movdqu, movntdq, movss, movq
        &[0x0f, 0x11, 0x07],
        &[0x0f, 0x29, 0x07],
        &[0xf3, 0x0f, 0x7f, 0x07],
        &[0x66, 0x0f, 0xe7, 0x07],
        &[0xf3, 0x0f, 0x11, 0x07],
        &[0x66, 0x0f, 0xd6, 0x07],
    ];
    let avx: &[&[u8]] = &[
        // vmovups ymm, vmovdqu ymm, vmovntdq ymm, vextracti128
        &[0xc5, 0xfc, 0x11, 0x07],
        &[0xc5, 0xfe, 0x7f, 0x07],
        &[0xc5, 0xfd, 0xe7, 0x07],
        &[0xc4, 0xe3, 0x7d, 0x39, 0x07, 1],
    ];
    let has_avx2 = is_x86_feature_detected!("avx2");
    for bytes in forms.iter().chain(avx.iter().filter(|_| has_avx2)) {
        let before = State::new(3).with(&[(7, PORTAL.page() + 64)]);
        assert_eq!(taken(&Thunk::new(bytes), &before, &before), 0, "{bytes:02x?}");
    }
}

#[test]
fn string_stores_advance_their_pointers_and_are_dropped() {
    let _one = one();
    let source = map(8192, libc::PROT_READ | libc::PROT_WRITE);
    // Bytes, size, count, whether it decrements rcx, whether it advances rsi.
    let forms: [(&[u8], u64, u64, bool, bool); 6] = [
        (&[0xaa], 1, 1, false, false),
        (&[0x48, 0xab], 8, 1, false, false),
        (&[0xf3, 0xaa], 1, 64, true, false),
        (&[0xf3, 0x48, 0xab], 8, 8, true, false),
        (&[0xf3, 0xa4], 1, 64, true, true),
        (&[0xf3, 0x48, 0xa5], 8, 8, true, true),
    ];
    for (bytes, size, count, counts, moves) in forms {
        for down in [false, true] {
            let mut before = State::new(4).with(&[(7, PORTAL.page() + 1024), (6, source + 1024)]);
            let mut after = before;
            let step = if down { (size * count).wrapping_neg() } else { size * count };
            after.general[7] = before.general[7].wrapping_add(step);
            if counts {
                (before.general[1], after.general[1]) = (count, 0);
            }
            if moves {
                after.general[6] = before.general[6].wrapping_add(step);
            }
            if down {
                before.flags |= 0x400;
                after.flags = before.flags;
            }
            assert_eq!(taken(&Thunk::new(bytes), &before, &after), 0, "{bytes:02x?}");
        }
    }
}

#[test]
fn the_portal_still_reads_as_zero() {
    let _one = one();
    // SAFETY: the page is readable.
    let page = unsafe { std::ptr::with_exposed_provenance::<[u64; 512]>(PORTAL.page() as usize).read_volatile() };
    assert_eq!(page, [0; 512]);
}

#[test]
fn an_access_that_cannot_be_dropped_kills() {
    dies("an_access_that_cannot_be_dropped_kills", libc::SIGSEGV, || {
        start(true);
        // lock add [rdi], eax: it would have to read.
        let before = State::new(5).with(&[(7, PORTAL.page())]);
        Thunk::new(&[0xf0, 0x01, 0x07]).run(&before);
        0
    });
}

#[test]
fn a_faulting_store_to_another_page_still_kills() {
    dies("a_faulting_store_to_another_page_still_kills", libc::SIGSEGV, || {
        start(true);
        let before = State::new(6).with(&[(7, map(4096, libc::PROT_READ))]);
        Thunk::new(&[0x48, 0x89, 0x07]).run(&before);
        0
    });
}

/// Memory shared with a signal handler's alternate stack: the emulation of a store that traps by SIGSEGV leaves it
/// unchanged.
#[test]
fn a_store_works_while_sigsegv_runs_on_an_alternate_stack() {
    if !has_64_byte_stores("a_store_works_while_sigsegv_runs_on_an_alternate_stack") {
        return;
    }
    exits("a_store_works_while_sigsegv_runs_on_an_alternate_stack", 0, || {
        extern "C" fn nothing(_: i32) {}
        start(true);
        let stack = libc::stack_t {
            ss_sp: std::ptr::with_exposed_provenance_mut(map(12 << 10, libc::PROT_READ | libc::PROT_WRITE) as usize),
            ss_flags: 0,
            ss_size: 12 << 10,
        };
        // SAFETY: new memory that stays mapped.
        assert_eq!(unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) }, 0);
        let action = telpher_interpose::signals::Action {
            handler: nothing as *const () as usize,
            flags: u64::from(libc::SA_ONSTACK.cast_unsigned()),
            mask: 0,
        };
        // SAFETY: the handler has the signature.
        unsafe { telpher_interpose::signals::action(libc::SIGSEGV, Some(action)) }.unwrap();
        let thunk = Thunk::new(&evex(0x7f, 2, true, 5, 0));
        for seed in 0..10 {
            let before = State::new(seed).with(&[(7, PORTAL.page())]);
            assert_eq!(taken(&thunk, &before, &before), 1);
            assert_eq!(PORTAL.last().descriptor, before.vectors[5]);
        }
        0
    });
}
