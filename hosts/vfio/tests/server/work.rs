//! What a driver does on a healthy device.

use crate::Fixture;
use crate::client::{BAR0, CONFIG, Client, DEVICE_INFO, IRQ_INFO, REGION_INFO, u32s, wait_for};
use crate::driver::{Driver, MEMORY, RECORDS, with_interrupt};
use telpher_abi::Descriptor;
use telpher_abi::registers::{CommandCode, offset};
use telpher_vfio::Preset;

#[test]
fn a_client_finds_the_function_of_a_pci_device() {
    let fixture = Fixture::new(&[""]);
    let mut client = Client::new(&fixture.socket(0));
    assert_eq!(client.call(DEVICE_INFO, &u32s(&[16, 0, 0, 0]), &[]), Ok(u32s(&[16, 3, 9, 5])));
    let mut sizes = Vec::new();
    for region in 0..9 {
        let info = client.call(REGION_INFO, &u32s(&[32, 0, region, 0, 0, 0, 0, 0]), &[]).unwrap();
        sizes.push(u64::from_le_bytes(info[16..24].try_into().unwrap()));
    }
    assert_eq!(sizes, [0x2_0000, 0, 0x2_0000, 0, 0, 0, 0, 4096, 0]);
    assert_eq!(client.call(REGION_INFO, &u32s(&[32, 0, 9, 0, 0, 0, 0, 0]), &[]), Err(22));
    assert_eq!(client.call(IRQ_INFO, &u32s(&[16, 0, 2, 0]), &[]), Ok(u32s(&[16, 1, 2, 9])));
    assert_eq!(client.call(IRQ_INFO, &u32s(&[16, 0, 3, 0]), &[]), Ok(u32s(&[16, 1, 3, 0])));
    assert_eq!(client.read(CONFIG, 0), [0x86, 0x80, 0x25, 0x0b]);
    assert_eq!(client.read(BAR0, offset::VERSION), 0x100_u32.to_le_bytes());
    // Interrupt message storage is not announced: its messages cannot be carried.
    let gen_cap = u64::from_le_bytes(client.read(BAR0, offset::GENCAP));
    assert_eq!((gen_cap >> 25 & 0x3f, gen_cap >> 16 & 0x1f), (0, 24));
}

#[test]
fn copies_of_any_size_arrive_with_record_and_interrupt() {
    for (preset, entries) in [(Preset::Spr, 1), (Preset::SprFw2, 16), (Preset::Spr, 128)] {
        let fixture = Fixture::with(&[""], preset, false);
        let mut driver = Driver::start(&fixture.socket(0), entries);
        for (round, size) in (0_u8..).zip([1_u32, 7, 4096, 5000, 1 << 20]) {
            let bytes: Vec<u8> = (0..=250).map(|byte: u8| byte ^ round).cycle().take(size as usize).collect();
            driver.memory.put(0x10_0003, &bytes);
            driver.memory.put(RECORDS, &[0; 32]);
            let copy = with_interrupt(Descriptor::memory_move(0x10_0003, 0x40_0001, size).with_record(RECORDS));
            if round % 2 == 0 {
                driver.submit(&copy)
            } else {
                driver.submit_in_pieces(&copy)
            }
            wait_for(&driver.vectors[1]);
            assert_eq!(driver.memory.get(RECORDS, 1), [1], "the record comes before the interrupt");
            assert_eq!(driver.memory.get(0x40_0001, bytes.len()), bytes);
        }
        assert_eq!(driver.command(CommandCode::DrainWq, 1), 0);
        assert_eq!(driver.command(CommandCode::DisableWq, 1), 0);
        assert_eq!(driver.command(CommandCode::DisableDevice, 0), 0);
        let totals = &fixture.run.totals()[0];
        assert_eq!((totals.descriptors, totals.lost, totals.faults), (5, 0, 0));
    }
}

#[test]
fn batches_and_a_full_device_with_handles_work() {
    let fixture = Fixture::with(&[""], Preset::Full, false);
    let mut driver = Driver::probe(&fixture.socket(0));
    // WQCFG has 64 bytes with this device; the first queue is at the same place.
    driver.configure(16);
    assert_eq!(driver.command(CommandCode::EnableDevice, 0), 0);
    assert_eq!(driver.command(CommandCode::EnableWq, 0), 0);
    assert_eq!(driver.command(CommandCode::RequestInterruptHandle, 1), 1 << 8, "the handle of vector 1");
    driver.memory.put(0x10_0000, &[9; 4096]);
    let members: Vec<u8> = (0..32)
        .flat_map(|n| {
            let (src, dst) = (0x10_0000, 0x20_0000 + n * 128);
            Descriptor::memory_move(src, dst, 128).with_record(0x2000 + n * 32).to_bytes()
        })
        .collect();
    driver.memory.put(0x8000, &members);
    driver.submit(&Descriptor::batch(0x8000, 32).with_record(RECORDS));
    assert_eq!(driver.memory.status(RECORDS), 1);
    assert_eq!(driver.memory.get(0x20_0000, 4096), [9; 4096]);
}

#[test]
fn a_reset_by_any_means_gives_the_device_after_power_on() {
    let fixture = Fixture::new(&[""]);
    let means: [fn(&mut Driver); 2] = [
        |driver| driver.client.call(crate::client::DEVICE_RESET, &[], &[]).map(drop).unwrap(),
        |driver| driver.client.write(CONFIG, 0x48, &0xa910_u16.to_le_bytes()),
    ];
    for reset in means {
        let mut driver = Driver::start(&fixture.socket(0), 16);
        driver.submit(&Descriptor::memory_move(0x10_0000, 0x40_0000, 1 << 20));
        reset(&mut driver);
        assert_eq!(driver.client.register(offset::GENSTS), 0);
        assert_eq!(driver.client.read(CONFIG, 4), [0, 0], "no bus master");
        // The driver may begin again, with the same memory and eventfds.
        driver.client.write(CONFIG, 4, &[6, 0]);
        driver.client.set_register(offset::GENCTRL, 3);
        driver.configure(16);
        assert_eq!(driver.command(CommandCode::EnableDevice, 0), 0);
        assert_eq!(driver.command(CommandCode::EnableWq, 0), 0);
        assert_eq!(driver.copy(0x10_0000, 0x40_0000, 4096), 1);
    }
}

#[test]
fn the_next_client_finds_a_device_without_a_trace_of_the_last_one() {
    let fixture = Fixture::new(&[""]);
    for _ in 0..3 {
        let mut driver = Driver::start(&fixture.socket(0), 16);
        driver.memory.put(0x10_0000, &[3; 64]);
        assert_eq!(driver.copy(0x10_0000, 0x20_0000, 64), 1);
        drop(driver);
    }
    let mut client = Client::new(&fixture.socket(0));
    assert_eq!((client.register(offset::GENSTS), client.register(offset::INTCAUSE)), (0, 0));
    // No memory is mapped, so all of it can be mapped again.
    let memory = crate::client::Memory::new(MEMORY);
    client.map(0, MEMORY, Some(std::os::fd::AsFd::as_fd(&memory))).unwrap();
    assert_eq!(fixture.run.totals()[0].descriptors, 3);
}

#[test]
fn migration_is_refused_with_a_sentence() {
    let fixture = Fixture::new(&[""]);
    let mut client = Client::new(&fixture.socket(0));
    for command in [16, 17, 18] {
        assert_eq!(client.call(command, &[0; 8], &[]), Err(95));
    }
    assert!(fixture.has_told("migrat"));
}
