//! Two violations at once: the device reports the one that it checks first. The specification leaves the order open, so
//! a device without that promise may report either.

use super::{List, liberal};
use crate::arena::Arena;
use crate::case::{section, skip};
use crate::expected::{Expect, ExpectedRecord};
use crate::sample;
use crate::subject::PortalSpec;
use crate::table::OpRow;
use telpher_abi::{Descriptor, Flags};

/// A way to break a descriptor: its position in the usual order (SPEC §5.4), its status, and the edit.
struct Violation {
    rank: u8,
    status: u8,
    name: &'static str,
    edit: fn(&Descriptor, &Arena) -> Descriptor,
}

const MISALIGNED_RECORD: Violation = Violation {
    rank: 1,
    status: 0x1b,
    name: "misaligned record",
    edit: |d, _| d.with_completion_address(d.completion_address() + 8),
};
const FLAG_6: Violation =
    Violation { rank: 4, status: 0x11, name: "flag 6", edit: |d, _| d.and_flags(Flags::from_bits_retain(1 << 6)) };
const BYTE_38: Violation =
    Violation { rank: 5, status: 0x12, name: "byte 38", edit: |d, _| sample::with_byte(d, 38, 1) };
const HANDLE: Violation = Violation {
    rank: 6,
    status: 0x19,
    name: "interrupt handle",
    edit: |d, _| d.and_flags(Flags::REQUEST_COMPLETION_INTERRUPT).with_interrupt_handle(0xffff),
};
const SIZE: Violation = Violation { rank: 8, status: 0x13, name: "size 0", edit: |d, _| d.with_size(0) };
const COUNT: Violation = Violation { rank: 8, status: 0x14, name: "count 0", edit: |d, _| d.with_size(0) };
const MAX_DELTA: Violation =
    Violation { rank: 9, status: 0x15, name: "no room for deltas", edit: |d, _| d.with_max_delta_size(8) };
const DELTA_SIZE: Violation =
    Violation { rank: 9, status: 0x15, name: "short delta record", edit: |d, _| d.with_delta_record_size(9) };
const ALIGNMENT: Violation =
    Violation { rank: 10, status: 0x1c, name: "misaligned address", edit: |d, _| d.with_dst(d.dst() + 4) };
const DUALCAST: Violation =
    Violation { rank: 10, status: 0x17, name: "uneven destinations", edit: |d, _| d.with_dst2(d.dst2() ^ 0x40) };
const LIST: Violation =
    Violation { rank: 10, status: 0x18, name: "misaligned list", edit: |d, _| d.with_src(d.src() + 8) };
const SEED: Violation = Violation {
    rank: 10,
    status: 0x1c,
    name: "misaligned seed",
    edit: |d, arena| {
        let d = d.and_flags(Flags::from_bits_retain(1 << 16));
        d.with_crc64_seed(0).with_crc_seed_address(arena.at(sample::SEED) + 2)
    },
};
const OVERLAP: Violation = Violation { rank: 11, status: 0x16, name: "overlap", edit: |d, _| d.with_dst(d.src()) };
const DELTA_OVERLAP: Violation =
    Violation { rank: 11, status: 0x16, name: "overlap", edit: |d, _| d.with_delta_address(d.src()) };

const EMPTY_WINDOW: Violation =
    Violation { rank: 9, status: 0x2d, name: "an empty window", edit: |d, _| d.with_window_flags(0b111) };
const NO_ENTRY: Violation =
    Violation { rank: 12, status: 0x2c, name: "no entry", edit: |d, _| d.with_handle_2(u16::MAX) };
const NO_HANDLE_1: Violation =
    Violation { rank: 12, status: 0x29, name: "no such handle", edit: |d, _| d.with_handle_1(u16::MAX) };
const NO_HANDLE_2: Violation =
    Violation { rank: 12, status: 0x29, name: "no such handle", edit: |d, _| d.with_handle_2(u16::MAX) };

const TYPE: Violation = Violation {
    rank: 9,
    status: 0x15,
    name: "no such type",
    edit: |d, _| d.with_input_type_code(15).with_output_type_code(15),
};
const LIST_FORMAT: Violation =
    Violation { rank: 9, status: 0x15, name: "no such format", edit: |d, _| d.with_sgl_format_code(0) };
const LIST_EMPTY: Violation =
    Violation { rank: 8, status: 0x14, name: "an empty list", edit: |d, _| d.with_sgl_size(0) };
const ODD: Violation =
    Violation { rank: 10, status: 0x1c, name: "misaligned source", edit: |d, _| d.with_src(d.src() + 1) };
const ODD_RESULT: Violation =
    Violation { rank: 10, status: 0x1c, name: "misaligned destination", edit: |d, _| d.with_dst(d.dst() + 1) };

fn violations(row: &OpRow) -> Vec<&'static Violation> {
    let mut all: Vec<&Violation> = vec![&MISALIGNED_RECORD, &FLAG_6, &BYTE_38, &HANDLE];
    all.extend::<&[&Violation]>(match row.code {
        0x00 | 0x02 => &[],
        0x17 => &[&SIZE, &ALIGNMENT, &OVERLAP],
        0x18 => &[&SIZE, &TYPE, &ODD, &OVERLAP],
        0x19 | 0x1a => &[&SIZE, &TYPE, &ODD],
        0x1b => &[&SIZE, &LIST_FORMAT, &ODD_RESULT, &OVERLAP],
        0x1c => &[&LIST_EMPTY, &LIST_FORMAT, &OVERLAP],
        0x1d | 0x1e => &[&LIST_EMPTY, &LIST_FORMAT],
        0x21 => &[&EMPTY_WINDOW, &NO_ENTRY],
        0x23 | 0x24 => &[&SIZE, &NO_HANDLE_2],
        0x25 | 0x26 => &[&SIZE, &NO_HANDLE_1],
        0x01 => &[&COUNT, &LIST],
        0x07 => &[&SIZE, &MAX_DELTA, &ALIGNMENT, &DELTA_OVERLAP],
        0x08 => &[&SIZE, &DELTA_SIZE, &ALIGNMENT, &OVERLAP],
        0x09 => &[&SIZE, &DUALCAST, &OVERLAP],
        0x10 => &[&SIZE, &SEED],
        0x11 => &[&SIZE, &SEED, &OVERLAP],
        0x13..=0x15 => &[&SIZE, &OVERLAP],
        _ => &[&SIZE],
    });
    all
}

fn expect(first: &Violation, other: Option<&Violation>) -> Expect {
    let others = other.map(|v| vec![v.status]).unwrap_or_default();
    match first.status {
        0x1b => Expect::Logged(0x1b, None),
        0x11 => Expect::Record(ExpectedRecord::invalid_flags(1 << 6, 0), others),
        0x19 => Expect::RecordAndLog(ExpectedRecord::status(0x19)),
        // These name the handle.
        status @ (0x29 | 0x2c) => Expect::Record(ExpectedRecord::status(status).any_specific(), others),
        status => Expect::Record(ExpectedRecord::status(status), others),
    }
}

pub(super) fn add(list: &mut List) {
    let spec = liberal(&list.capabilities);
    for row in list.operations() {
        let base = sample::of(row, list.arena);
        let violations = violations(row);
        for (i, a) in violations.iter().enumerate() {
            let single = (a.edit)(&base, list.arena);
            let name = format!("{}, {}, gives {:#04x}", row.name, a.name, a.status);
            list.one(section::ORDER, name, &spec, single, false, expect(a, None));
            for b in violations[i + 1..].iter().filter(|b| b.rank > a.rank) {
                // From the last check to the first, so that an edit that moves a range keeps the earlier violation.
                let d = (a.edit)(&(b.edit)(&base, list.arena), list.arena);
                let name = format!("{}, {} before {}, gives {:#04x}", row.name, a.name, b.name, a.status);
                // Codes that go to SWERROR are not alternatives; they are tested if the order is promised.
                let strict = [a, b].iter().any(|v| matches!(v.status, 0x1b | 0x19));
                let expected_record = expect(a, Some(b));
                list.script(section::ORDER, name, &spec, move |fixture| {
                    if strict && !fixture.promises.check_order {
                        return skip("the order of checks is not promised");
                    }
                    fixture.one(PortalSpec::of(0), &d, false, &expected_record)
                });
            }
        }
    }
}
