//! Every instruction, trapped and rewritten: what arrives, what is answered, and that nothing else changes.
#![allow(unsafe_code, reason = "executes instructions made at run time")]
#![allow(clippy::cast_possible_truncation, reason = "addresses have 64 bits here")]

mod common;

use common::thunk::{State, Thunk, assert_same};
use common::{map, start};
use std::sync::Mutex;
use telpher_interpose::How;
use telpher_interpose::registers::{ARITHMETIC, CF, ZF};

/// The portal is one for all.
static ONE: Mutex<()> = Mutex::new(());

/// Flags as an adversary would leave them: all arithmetic ones set, and strings going down.
const FLAGS: u64 = 0x202 | ARITHMETIC | 0x400;

fn descriptor(seed: u64) -> [u64; 8] {
    // ENQCMD wants dword 0 to be zero.
    std::array::from_fn(|i| if i == 0 { seed << 32 } else { seed.wrapping_mul(i as u64 + 0x0101_0101_0101_0101) })
}

fn write(address: u64, data: [u64; 8]) {
    // SAFETY: memory of the test.
    unsafe { std::ptr::with_exposed_provenance_mut::<[u64; 8]>(address as usize).write_unaligned(data) };
}

fn read(address: u64) -> [u64; 8] {
    // SAFETY: memory of the test.
    unsafe { std::ptr::with_exposed_provenance::<[u64; 8]>(address as usize).read_unaligned() }
}

/// 0F 38 F8 with a prefix, `[base]` with an 8-bit displacement of 0x11, any registers.
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
    let _one = ONE.lock();
    let portal = start(true);
    let memory = map(4096, libc::PROT_READ | libc::PROT_WRITE);
    let mut seed = 0;
    for (prefix, how) in [(0x66, How::Movdir64b), (0xf2, How::Enqcmd)] {
        for destination in 0..16u8 {
            for base in 0..16u8 {
                // rsp as an operand cannot be chosen freely; the stack is no portal.
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
                    let flags = if how == How::Enqcmd { FLAGS & !ARITHMETIC } else { FLAGS };
                    assert_same(&before, &after, flags);
                    let last = portal.last();
                    assert_eq!((last.how, last.offset, last.descriptor), (Some(how), offset, data));
                    // The first trapped, the others were calls.
                    assert_ne!(thunk.code(), original, "round {round}");
                }
            }
        }
    }
}
