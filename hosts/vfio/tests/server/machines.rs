//! Several machines on one server: none reaches another's memory, counters or errors.

use crate::Fixture;
use crate::driver::{Driver, RECORDS};
use telpher_abi::Descriptor;
use telpher_abi::registers::{CommandCode, offset};

#[test]
fn the_same_addresses_are_different_memory() {
    let fixture = Fixture::new(&["", ",weight=3", ",own-engines"]);
    let mut drivers: Vec<Driver> = (0..3).map(|machine| Driver::start(&fixture.socket(machine), 16)).collect();
    for (number, driver) in (1_u8..).zip(&mut drivers) {
        driver.memory.put(0x10_0000, &[number; 4096]);
    }
    for driver in &mut drivers {
        assert_eq!(driver.copy(0x10_0000, 0x20_0000, 4096), 1);
    }
    for (number, driver) in (1_u8..).zip(&drivers) {
        assert_eq!(driver.memory.get(0x20_0000, 4096), [number; 4096]);
    }
    // A descriptor is counted after its record is written.
    let descriptors = || fixture.run.totals().iter().map(|totals| totals.descriptors).collect::<Vec<u64>>();
    let begin = std::time::Instant::now();
    while descriptors() != [1, 1, 1] && begin.elapsed() < crate::client::LIMIT {
        std::thread::yield_now();
    }
    assert_eq!(descriptors(), [1, 1, 1]);
}

#[test]
fn errors_and_halts_stay_with_their_machine() {
    let fixture = Fixture::new(&["", ""]);
    let mut bad = Driver::start(&fixture.socket(0), 1);
    let mut good = Driver::start(&fixture.socket(1), 16);
    bad.submit(&Descriptor::memory_move(1 << 40, 1 << 41, 64));
    crate::client::wait_for(&bad.vectors[0]);
    bad.client.write(crate::client::CONFIG, 4, &[2, 0]);
    assert_eq!(bad.client.register(offset::GENSTS) & 3, 3);
    assert_eq!(good.client.register(offset::SWERROR) & 1, 0);
    assert_eq!(good.client.register(offset::INTCAUSE), 0);
    assert!(!good.is_interrupted(0));
    assert_eq!(good.copy(0x10_0000, 0x20_0000, 64), 1);
}

#[test]
fn a_drain_waits_for_its_own_machine_only() {
    let fixture = Fixture::new(&["", ""]);
    let mut busy = Driver::start(&fixture.socket(0), 128);
    let mut idle = Driver::start(&fixture.socket(1), 16);
    for n in 0..64 {
        busy.submit(&Descriptor::memory_move(0x10_0000, 0x40_0000, 1 << 20).with_record(RECORDS + 32 * n));
    }
    assert_eq!(idle.command(CommandCode::DrainAll, 0), 0);
    assert_eq!(busy.command(CommandCode::DrainAll, 0), 0);
    for n in 0..64 {
        assert_eq!(busy.memory.get(RECORDS + 32 * n, 1), [1], "a drain ends after its descriptors");
    }
}
