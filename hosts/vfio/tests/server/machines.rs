//! Several machines on one server: none reaches another's memory, counters or errors.

use crate::Fixture;
use crate::client::BAR0;
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

#[test]
fn limits_of_work_in_progress_are_those_of_the_device_that_a_guest_sees() {
    let fixture = Fixture::new(&[",in-progress=8,transfer=64k", ""]);
    let mut limited = Driver::probe(&fixture.socket(0));
    let mut free = Driver::probe(&fixture.socket(1));
    let seen = |driver: &mut Driver| {
        let queues = u64::from_le_bytes(driver.client.read(BAR0, offset::WQCAP));
        let general = u64::from_le_bytes(driver.client.read(BAR0, offset::GENCAP));
        (queues & 0xffff, general >> 16 & 0x1f)
    };
    assert_eq!((seen(&mut limited), seen(&mut free)), ((8, 16), (128, 24)));
    // More entries, and longer transfers, than there are: the device, or the queue, is not enabled.
    for (entries, shift, is_enabled) in [(16, 16, false), (8, 17, false), (8, 16, true)] {
        limited.configure_with(entries, shift);
        let device = limited.command(CommandCode::EnableDevice, 0) == 0;
        let queue = device && limited.command(CommandCode::EnableWq, 0) == 0;
        assert_eq!(queue, is_enabled, "{entries} entries, transfers of 2^{shift} bytes");
        if device && !queue {
            assert_eq!(limited.command(CommandCode::DisableDevice, 0), 0);
        }
    }
    limited.memory.put(0x10_0000, &[5; 0x1_0000]);
    assert_eq!(limited.copy(0x10_0000, 0x20_0000, 0x1_0000), 1);
    assert_eq!(limited.memory.get(0x20_0000, 0x1_0000), [5; 0x1_0000]);
    assert_ne!(limited.copy(0x10_0000, 0x20_0000, 0x1_0001), 1, "longer than allowed");
}

#[test]
fn a_limit_of_bandwidth_holds_for_its_machine_only() {
    const COPIES: u64 = 16;
    let fixture = Fixture::new(&[",bandwidth=64m", ",own-engines,bandwidth=64m", ""]);
    let mut drivers: Vec<Driver> = (0..3).map(|machine| Driver::start(&fixture.socket(machine), 64)).collect();
    for (number, driver) in (1_u8..).zip(&mut drivers) {
        driver.memory.put(0x10_0000, &vec![number; 1 << 20]);
    }
    let started = std::time::Instant::now();
    for driver in &mut drivers {
        for n in 0..COPIES {
            driver.submit(&Descriptor::memory_move(0x10_0000, 0x40_0000, 1 << 20).with_record(RECORDS + 32 * n));
        }
    }
    // The unlimited machine first: it does not wait for the others' limits, or this test would wait for it, too.
    for machine in [2, 1, 0] {
        let (number, driver) = (machine as u8 + 1, &drivers[machine]);
        for n in 0..COPIES {
            assert_eq!(driver.memory.status(RECORDS + 32 * n), 1);
        }
        assert_eq!(driver.memory.get(0x40_0000, 1 << 20), vec![number; 1 << 20]);
        if machine < 2 {
            // All but the last copy, and what may be made up for, take their time: 1 MiB in 1/64 second.
            assert!(started.elapsed().as_millis() >= (COPIES as u128 - 2) * 1000 / 64, "machine {machine}");
        }
    }
}

#[test]
fn a_limited_machine_can_be_reset_and_stopped_while_it_waits() {
    let fixture = Fixture::new(&[",bandwidth=1m"]);
    let mut driver = Driver::start(&fixture.socket(0), 64);
    // A minute and more of work.
    for n in 0..64 {
        driver.submit(&Descriptor::memory_move(0x10_0000, 0x40_0000, 2 << 20).with_record(RECORDS + 32 * n));
    }
    drop(driver);
    let started = std::time::Instant::now();
    let mut next = Driver::start(&fixture.socket(0), 16);
    next.client.set_register(offset::CMD, (CommandCode::ResetDevice.code() as u32) << 20);
    next.client.wait_for_register(offset::CMDSTATUS, |status| status >> 31 == 0);
    drop((next, fixture));
    assert!(started.elapsed() < crate::client::LIMIT, "{:?}", started.elapsed());
}
