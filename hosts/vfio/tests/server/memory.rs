//! Maps that come and go while descriptors work.

use crate::Fixture;
use crate::client::{DMA_READ, DMA_UNMAP, LIMIT, Memory, u32s, u64s};
use crate::driver::{Driver, MEMORY, RECORDS};
use std::os::fd::AsFd as _;
use std::time::Instant;
use telpher_abi::Descriptor;
use telpher_vfio::Preset;

/// Page fault on a read, and on a write, in a completion record's status.
const FAULTS: [u8; 2] = [0x03, 0x83];

#[test]
fn nothing_touches_memory_after_its_unmap_was_answered() {
    let fixture = Fixture::new(&[""]);
    let mut driver = Driver::start(&fixture.socket(0), 64);
    let other = Memory::new(2 << 20);
    let at = 1 << 32;
    for round in 0..20 {
        driver.client.map(at, 2 << 20, Some(other.as_fd())).unwrap();
        driver.memory.put(RECORDS, &[0; 64 * 32]);
        for n in 0..8 {
            let copy = Descriptor::fill(u64::MAX, at, 2 << 20).with_record(RECORDS + n * 32);
            driver.submit(&copy);
        }
        driver.client.unmap(at, 2 << 20).unwrap();
        let bytes = [round; 4096];
        other.put(0, &bytes);
        // All descriptors have ended: those behind the unmap with a fault.
        let statuses: Vec<u8> = (0..8).map(|n| driver.memory.status(RECORDS + n * 32)).collect();
        assert!(statuses.iter().all(|status| *status == 1 || FAULTS.contains(status)), "{statuses:x?}");
        assert_eq!(other.get(0, 4096), bytes);
    }
}

#[test]
fn memory_above_4_gib_and_ranges_across_maps_are_reached() {
    let fixture = Fixture::new(&[""]);
    let mut driver = Driver::start(&fixture.socket(0), 16);
    let (first, second) = (Memory::new(0x1000), Memory::new(0x1000));
    driver.client.map(1 << 40, 0x1000, Some(first.as_fd())).unwrap();
    driver.client.map((1 << 40) + 0x1000, 0x1000, Some(second.as_fd())).unwrap();
    driver.memory.put(0x10_0000, &[8; 0x1000]);
    assert_eq!(driver.copy(0x10_0000, (1 << 40) + 0x800, 0x1000), 1);
    assert_eq!((first.get(0x7ff, 2), second.get(0x7ff, 2)), (vec![0, 8], vec![8, 0]));
    assert!(FAULTS.contains(&driver.copy(0x10_0000, (1 << 40) + 0x1800, 0x1000)), "a gap behind");
}

#[test]
fn the_firmware_may_replace_all_memory_while_the_device_waits() {
    let fixture = Fixture::new(&[""]);
    let mut driver = Driver::start(&fixture.socket(0), 16);
    for _ in 0..5 {
        driver.client.unmap(0, MEMORY).unwrap();
        let low = 0xa_0000;
        let body = |address: u64, len: u64| [u32s(&[32, 3]), u64s(&[address, address, len])].concat();
        for (from, to) in [(0, low), (0xc_0000, 0x10_0000), (0x10_0000, MEMORY)] {
            driver.client.call(crate::client::DMA_MAP, &body(from, to - from), &[driver.memory.as_fd()]).unwrap();
        }
        assert_eq!(driver.copy(0x10_0000, 0x20_0000, 4096), 1);
        assert!(FAULTS.contains(&driver.copy(0xa_0000, 0x20_0000, 64)));
        // All pieces at once.
        driver.client.unmap(0, MEMORY).unwrap();
        driver.client.map(0, MEMORY, Some(driver.memory.as_fd())).unwrap();
        assert_eq!(driver.copy(0xa_0000, 0x20_0000, 64), 1);
    }
    let all = [u32s(&[24, 2]), u64s(&[0, 0])].concat();
    driver.client.call(DMA_UNMAP, &all, &[]).unwrap();
    assert_eq!(driver.client.unmap(0, MEMORY), Err(2), "nothing is left");
}

/// A client that answers the server's commands from its own memory.
fn answer(driver: &mut Driver, memory: &Memory, base: u64) {
    let message = driver.client.command();
    let word = |at: usize| u64::from_le_bytes(message.body[at..at + 8].try_into().unwrap());
    let (at, count) = (word(0) - base, usize::try_from(word(8)).unwrap());
    let mut body = message.body[..16].to_vec();
    if message.command == DMA_READ {
        body.extend(memory.get(at, count));
    } else {
        memory.put(at, &message.body[16..]);
    }
    driver.client.send(message.id, message.command, 1, &body, &[]);
}

#[test]
fn memory_without_a_file_is_reached_by_messages() {
    let fixture = Fixture::with(&[""], Preset::Spr, true);
    let mut driver = Driver::start(&fixture.socket(0), 16);
    let (base, memory) = (1 << 33, Memory::new(0x10_0000));
    driver.client.map(base, 0x10_0000, None).unwrap();
    let bytes: Vec<u8> = (0..100_000_u32).map(|at| (at % 253) as u8).collect();
    memory.put(5, &bytes);
    driver.submit(&Descriptor::memory_move(base + 5, 0x20_0000, 100_000).with_record(base + 0x8_0000));
    let started = Instant::now();
    while memory.get(0x8_0000, 1) == [0] {
        answer(&mut driver, &memory, base);
        assert!(started.elapsed() < LIMIT);
    }
    assert_eq!(driver.memory.get(0x20_0000, bytes.len()), bytes);
    driver.submit(&Descriptor::memory_move(0x20_0000, base, 70_000).with_record(base + 0x9_0000));
    while memory.get(0x9_0000, 1) == [0] {
        answer(&mut driver, &memory, base);
        assert!(started.elapsed() < LIMIT);
    }
    assert_eq!(memory.get(0, 70_000), bytes[..70_000]);
}

#[test]
fn a_client_that_does_not_answer_may_still_unmap_reset_and_go() {
    let fixture = Fixture::with(&["", ""], Preset::Spr, true);
    for round in 0..3 {
        let mut driver = Driver::start(&fixture.socket(0), 16);
        driver.client.map(1 << 33, 0x1000, None).unwrap();
        driver.memory.put(RECORDS, &[0; 32]);
        driver.submit(&Descriptor::memory_move(1 << 33, 0x20_0000, 64).with_record(RECORDS));
        assert_eq!(driver.client.command().command, DMA_READ);
        // Another machine's engine is the same thread's place; it is not held meanwhile.
        let mut neighbour = Driver::start(&fixture.socket(1), 16);
        assert_eq!(neighbour.copy(0x10_0000, 0x20_0000, 64), 1);
        match round {
            0 => {
                driver.client.unmap(1 << 33, 0x1000).unwrap();
                assert!(FAULTS.contains(&driver.memory.status(RECORDS)));
            }
            1 => drop(driver.client.call(crate::client::DEVICE_RESET, &[], &[])),
            _ => {}
        }
    }
}

#[test]
fn without_messages_such_memory_faults() {
    let fixture = Fixture::new(&[""]);
    let mut driver = Driver::start(&fixture.socket(0), 16);
    driver.client.map(1 << 33, 0x1000, None).unwrap();
    assert!(FAULTS.contains(&driver.copy(1 << 33, 0x20_0000, 64)));
}
