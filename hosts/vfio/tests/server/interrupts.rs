//! Interrupts that must not get lost.

use crate::Fixture;
use crate::client::{event, is_signalled, wait_for};
use crate::driver::{Driver, RECORDS, with_interrupt};
use telpher_abi::Descriptor;
use telpher_abi::registers::{CommandCode, offset};
use telpher_model::layout;

#[test]
fn a_command_that_ends_while_vectors_are_set_again_is_not_lost() {
    let fixture = Fixture::new(&[""]);
    let mut driver = Driver::start(&fixture.socket(0), 16);
    for _ in 0..50 {
        driver.client.disable_vectors();
        driver.client.set_register(offset::CMD, 1 << 31 | (CommandCode::DrainAll.code() as u32) << 20);
        // As QEMU does: first without a file, then with all of them.
        driver.client.set_eventfds(0, &[]).unwrap();
        let vectors = std::mem::take(&mut driver.vectors);
        driver.client.set_eventfds(0, &vectors[..2]).unwrap();
        driver.vectors = vectors;
        assert_eq!(driver.end_of_command(), 0);
    }
}

#[test]
fn completions_while_vectors_are_set_again_are_not_lost() {
    let fixture = Fixture::new(&[""]);
    let mut driver = Driver::start(&fixture.socket(0), 16);
    for _ in 0..50 {
        driver.memory.put(RECORDS, &[0; 32]);
        driver.submit(&with_interrupt(Descriptor::nop().with_record(RECORDS)));
        driver.client.disable_vectors();
        let vectors = std::mem::take(&mut driver.vectors);
        driver.client.set_eventfds(0, &vectors).unwrap();
        driver.vectors = vectors;
        wait_for(&driver.vectors[1]);
        assert_eq!(driver.memory.get(RECORDS, 1), [1]);
    }
}

#[test]
fn the_table_of_pending_bits_shows_what_waits_for_an_eventfd() {
    let fixture = Fixture::new(&[""]);
    let mut driver = Driver::start(&fixture.socket(0), 16);
    driver.client.disable_vectors();
    driver.client.set_register(offset::CMD, 1 << 31 | (CommandCode::DrainAll.code() as u32) << 20);
    driver.client.wait_for_register(layout::MSIX_PBA, |pending| pending == 1);
    let replaced = event();
    driver.client.set_eventfds(0, std::slice::from_ref(&replaced)).unwrap();
    wait_for(&replaced);
    assert_eq!(driver.client.register(layout::MSIX_PBA), 0);
    assert!(!driver.is_interrupted(0), "the old eventfd is not used any more");
}

#[test]
fn a_cause_that_is_set_between_read_and_clear_raises_again() {
    let fixture = Fixture::new(&[""]);
    let mut driver = Driver::start(&fixture.socket(0), 1);
    driver.client.set_register(offset::CMD, 1 << 31 | (CommandCode::DrainAll.code() as u32) << 20);
    wait_for(&driver.vectors[0]);
    let cause = driver.client.register(offset::INTCAUSE);
    // Another command's end comes between.
    driver.client.set_register(offset::CMD, 1 << 31 | (CommandCode::DrainAll.code() as u32) << 20);
    wait_for(&driver.vectors[0]);
    driver.client.set_register(offset::INTCAUSE, cause);
    assert_eq!(driver.client.register(offset::INTCAUSE), 0);
}

#[test]
fn a_fault_without_a_record_raises_the_error_interrupt() {
    let fixture = Fixture::new(&[""]);
    let mut driver = Driver::start(&fixture.socket(0), 16);
    // A page fault of a descriptor without a record goes to SWERROR.
    driver.submit(&Descriptor::memory_move(1 << 40, 0x1_0000, 64));
    wait_for(&driver.vectors[0]);
    assert_eq!(driver.client.register(offset::INTCAUSE), 1);
    assert_eq!(driver.client.register(offset::SWERROR) & 1, 1);
    driver.client.set_register(offset::SWERROR, 3);
    assert_eq!(driver.client.register(offset::SWERROR) & 1, 0);
}

#[test]
fn without_bus_mastering_nothing_is_accessed_and_nothing_raised() {
    let fixture = Fixture::new(&[""]);
    let mut driver = Driver::start(&fixture.socket(0), 16);
    driver.client.write(crate::client::CONFIG, 4, &[2, 0]);
    driver.memory.put(RECORDS, &[0; 32]);
    driver.submit(&with_interrupt(Descriptor::nop().with_record(RECORDS)));
    assert_eq!(driver.client.register(offset::GENSTS) & 3, 3, "halted");
    assert_eq!(driver.memory.get(RECORDS, 32), [0; 32]);
    assert!(!driver.vectors.iter().any(is_signalled));
}
