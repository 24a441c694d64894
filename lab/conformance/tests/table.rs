//! The legality table against itself and against masks typed a second time, grouped by bit instead of by operation.

use telpher_conformance::table::{Gate, LATER_OPERATIONS, OPERATIONS, row};

fn with_bit(bit: u32) -> Vec<u8> {
    OPERATIONS.iter().filter(|row| row.mask >> bit & 1 == 1).map(|row| row.code).collect()
}

/// Every operation.
const EVERY: &[u8] = &[
    0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x17, 0x20,
    0x21, 0x23, 0x24, 0x25, 0x26,
];
/// Those that may be fenced: all members of a batch.
const FENCED: &[u8] = &[
    0x00, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x17, 0x20, 0x23, 0x24,
    0x25, 0x26,
];
/// Those that access buffers.
const BLOCKING: &[u8] = &[
    0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x17, 0x20, 0x23, 0x24, 0x25,
    0x26,
];
/// Those that read.
const READING: &[u8] =
    &[0x01, 0x02, 0x03, 0x05, 0x06, 0x07, 0x08, 0x09, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x17, 0x23, 0x25, 0x26];
/// Those that write memory, or remove it from caches.
const WRITING: &[u8] = &[0x03, 0x04, 0x07, 0x08, 0x09, 0x11, 0x13, 0x14, 0x15, 0x17, 0x20, 0x23, 0x24];

/// Flag bit and the operations that have it, read down the columns of SPEC Table 5-5.
const COLUMNS: [(u32, &[u8]); 20] = [
    (0, FENCED),
    (1, BLOCKING),
    (2, EVERY),
    (3, EVERY),
    (4, EVERY),
    (5, &[]),
    (6, &[]),
    (7, &[0x05, 0x06, 0x07, 0x25, 0x26]),
    (8, &[0x03, 0x04, 0x07, 0x08, 0x09, 0x11, 0x13, 0x14, 0x15, 0x17, 0x23, 0x24]),
    (9, READING),
    (10, &[0x02, 0x03, 0x04, 0x05, 0x07, 0x08, 0x09, 0x11, 0x13, 0x14, 0x15, 0x17, 0x20, 0x23, 0x24, 0x25]),
    (11, &[0x07, 0x09, 0x10, 0x11]),
    (12, EVERY),
    (13, WRITING),
    (14, WRITING),
    (15, &[]),
    (16, &[0x01, 0x02, 0x0a, 0x10, 0x11, 0x21, 0x23, 0x25, 0x26]),
    (17, &[0x02, 0x10, 0x11, 0x23, 0x24, 0x25]),
    (18, &[0x02, 0x04, 0x10, 0x11, 0x24]),
    (19, &[0x02, 0x10, 0x11]),
];

#[test]
fn the_table_read_by_rows_and_by_columns_agrees() {
    for (bit, operations) in COLUMNS {
        assert_eq!(with_bit(bit), operations, "flag bit {bit}");
    }
}

#[test]
fn gates_stand_on_bits_of_the_mask() {
    for row in &OPERATIONS {
        for (bit, gate) in row.gates {
            assert_eq!(row.mask & bit, *bit, "{}: {bit:#x}", row.name);
            if let Gate::Flag(condition) = gate {
                assert_eq!(row.mask & condition, *condition, "{}: {condition:#x}", row.name);
            }
        }
    }
}

#[test]
fn reserved_bytes_never_hold_an_operations_own_fields() {
    // Bytes used by each operation, typed in from the layouts of SPEC §8.3, with all optional fields.
    let used: [(u8, &[u8]); 6] = [
        (0x03, &[16, 24, 32]),
        (0x07, &[16, 24, 32, 40, 48, 56]),
        (0x09, &[16, 24, 32, 40, 47]),
        (0x13, &[16, 24, 32, 41, 42, 56, 63]),
        (0x15, &[40, 41, 42, 48, 55, 56, 63]),
        (0x20, &[24, 32]),
    ];
    for (code, bytes) in used {
        let reserved: Vec<u8> = row(code).reserved_bytes(0).collect();
        for byte in bytes {
            assert!(!reserved.contains(byte), "{}: byte {byte}", row(code).name);
        }
    }
}

#[test]
fn operations_are_listed_once_and_later_ones_are_not_among_them() {
    assert!(OPERATIONS.windows(2).all(|pair| pair[0].code < pair[1].code));
    assert!(LATER_OPERATIONS.iter().all(|code| OPERATIONS.iter().all(|row| row.code != *code)));
    assert_eq!(OPERATIONS.len() + LATER_OPERATIONS.len(), 31);
}
