//! Clients that do everything wrong. The server serves the next one, and the neighbours, as if nothing had happened.

use crate::Fixture;
use crate::client::{
    BAR0, BAR2, CONFIG, Client, DMA_MAP, Memory, REGION_READ, REGION_WRITE, SET_IRQS, VERSION, event, u32s, u64s,
};
use crate::driver::{Driver, RECORDS, with_interrupt};
use std::os::fd::AsFd as _;
use telpher_abi::Descriptor;

/// Does a driver's work, to show that the server is well.
fn works(fixture: &Fixture, machine: usize) {
    let mut driver = Driver::start(&fixture.socket(machine), 16);
    driver.memory.put(0x10_0000, &[7; 64]);
    assert_eq!(driver.copy(0x10_0000, 0x20_0000, 64), 1);
    assert_eq!(driver.memory.get(0x20_0000, 64), [7; 64]);
}

fn header(command: u16, size: u32) -> Vec<u8> {
    [&[1, 0][..], &command.to_le_bytes(), &u32s(&[size, 0, 0])].concat()
}

#[test]
fn broken_headers_end_the_session_only() {
    let fixture = Fixture::new(&["", ""]);
    for size in [0, 15, 1 << 21, u32::MAX] {
        let mut client = Client::new(&fixture.socket(0));
        client.send_raw(&header(REGION_READ, size), &[]).unwrap();
        assert!(client.receive().is_none());
        works(&fixture, 0);
    }
    assert!(fixture.has_told("broke the protocol"));
    works(&fixture, 1);
}

#[test]
fn a_client_may_go_in_the_middle_of_anything() {
    let fixture = Fixture::new(&[""]);
    let whole = [header(REGION_WRITE, 96), u64s(&[0x1000]), u32s(&[BAR2, 64]), vec![3; 64]].concat();
    for end in [0, 1, 15, 16, 20, 40, whole.len()] {
        let mut client = Client::new(&fixture.socket(0));
        client.send_raw(&whole[..end], &[]).unwrap();
        drop(client);
    }
    let mut driver = Driver::start(&fixture.socket(0), 128);
    for n in 0..64 {
        driver.submit(&Descriptor::memory_move(0x10_0000, 0x40_0000, 1 << 20).with_record(RECORDS + 32 * n));
    }
    let memory = driver.memory.as_fd().try_clone_to_owned().unwrap();
    drop(driver);
    works(&fixture, 0);
    // The session that followed began after the last access to this memory.
    let before = Memory::of(memory.try_clone().unwrap()).get(0x40_0000, 1 << 20);
    works(&fixture, 0);
    assert_eq!(Memory::of(memory).get(0x40_0000, 1 << 20), before);
}

#[test]
fn wrong_requests_are_refused_and_the_session_goes_on() {
    let fixture = Fixture::new(&[""]);
    let mut client = Client::connect(&fixture.socket(0));
    assert_eq!(client.call(REGION_READ, &[0; 16], &[]), Err(22), "versions come first");
    for text in [&b"\x01\0\0\0{}\0"[..], b"\0\0\0\0{", b"\0\0\0\0[]\0", b"\0"] {
        assert_eq!(client.call(VERSION, text, &[]), Err(22));
    }
    // A client that offers 0.1 is answered with 0.0.
    assert_eq!(client.call(VERSION, b"\0\0\x01\0", &[]).unwrap()[..4], [0; 4]);
    assert_eq!(client.call(VERSION, b"\0\0\0\0", &[]), Err(22), "once");
    let access = |offset: u64, region: u32, count: u32| [u64s(&[offset]), u32s(&[region, count])].concat();
    for (offset, region, count) in [
        (0x2_0000, BAR0, 1),
        (u64::MAX, BAR0, 8),
        (0x1_fffc, BAR0, 8),
        (4093, CONFIG, 4),
        (0, 1, 1),
        (0, 8, 1),
        (0, 99, 4),
        (0, BAR0, u32::MAX),
        (0, BAR2, (1 << 20) + 1),
    ] {
        assert_eq!(client.call(REGION_READ, &access(offset, region, count), &[]), Err(22), "{offset:#x} of {region}");
    }
    // A write that says more than it has.
    assert_eq!(client.call(REGION_WRITE, &access(0, BAR0, 8), &[]), Err(22));
    assert_eq!(client.call(REGION_WRITE, &access(0, BAR0, u32::MAX), &[]), Err(22));
    for command in [0, 6, 11, 12, 14, 15, 99, u16::MAX] {
        assert_eq!(client.call(command, &[0; 64], &[]), Err(95), "command {command}");
    }
    for command in [2, 3, 5, 7, 8, 9, 10] {
        assert_eq!(client.call(command, &[0; 3], &[]), Err(22), "command {command}");
    }
    assert_eq!(client.read(CONFIG, 0), [0x86, 0x80, 0x25, 0x0b]);
}

#[test]
fn wrong_vectors_and_files_are_refused() {
    let fixture = Fixture::new(&[""]);
    let mut client = Client::new(&fixture.socket(0));
    let eventfds: Vec<_> = (0..20).map(|_| event()).collect();
    let files: Vec<_> = eventfds.iter().map(|file| file.as_fd()).collect();
    let memory = Memory::new(0x1000);
    let mut set = |flags: u32, index: u32, start: u32, count: u32, files: &[std::os::fd::BorrowedFd<'_>]| {
        client.call(SET_IRQS, &u32s(&[20, flags, index, start, count]), files)
    };
    assert_eq!(set(0x24, 2, 0, 10, &files[..10]), Err(22), "there are nine");
    assert_eq!(set(0x24, 2, u32::MAX, 1, &files[..1]), Err(22));
    assert_eq!(set(0x24, 2, 0, u32::MAX, &[]), Err(22));
    assert_eq!(set(0x24, 2, 0, 3, &files[..2]), Err(22));
    assert_eq!(set(0x24, 2, 0, 20, &files), Err(22), "more files than announced");
    assert_eq!(set(0x24, 2, 0, 1, &[memory.as_fd()]), Err(22), "not an eventfd");
    assert_eq!(set(0x24, 9, 0, 1, &files[..1]), Err(22));
    assert_eq!(set(0x24, 0, 0, 1, &files[..1]), Err(22), "there are no INTx");
    assert_eq!(set(0, 2, 0, 1, &[]), Err(22));
    assert_eq!(set(0x22, 2, 0, 9, &[]), Err(22), "no flags behind");
    assert_eq!(set(0x24, 2, 0, 9, &files[..9]), Ok(Vec::new()));
    assert_eq!(set(0x21, 2, 0, 0, &[]), Ok(Vec::new()));
    let body = [u32s(&[32, 3]), u64s(&[0, 0, 0x1000])].concat();
    assert_eq!(client.call(DMA_MAP, &body, &[memory.as_fd(), memory.as_fd()]), Err(22));
    assert_eq!(client.call(DMA_MAP, &body, &[files[0]]), Err(22), "not a file with bytes");
    assert!(fixture.has_told("refused to map"));
}

#[test]
fn torn_stores_and_storms_of_settings_do_not_stop_the_queue() {
    let fixture = Fixture::new(&[""]);
    let mut driver = Driver::start(&fixture.socket(0), 16);
    for at in 0..2000_u64 {
        driver.client.write(BAR2, at * 72 % 0x1_0000 / 8 * 8, &[0xff; 8]);
        driver.client.write(CONFIG, at % 4096 / 4 * 4, &if at % 4096 / 4 == 1 { [6, 0, 0, 0] } else { [0x5a; 4] });
    }
    // Whatever the storm has set, bus mastering included: a reset helps.
    drop(driver);
    works(&fixture, 0);
    assert!(fixture.has_told("incomplete store"));
}

#[test]
fn any_descriptors_leave_the_server_well() {
    let fixture = Fixture::new(&["", ""]);
    let mut driver = Driver::start(&fixture.socket(0), 128);
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for _ in 0..2000 {
        let mut words: [u64; 8] = std::array::from_fn(|_| random());
        if words[1] & 1 == 0 {
            // Addresses inside of the memory, so that some of them are executed.
            words[1..4].iter_mut().for_each(|word| *word %= 8 << 20);
            words[4] &= 0x3_ffff;
        }
        driver.client.write(BAR2, 0x1000, &u64s(&words));
    }
    works(&fixture, 1);
    drop(driver);
    works(&fixture, 0);
}

#[test]
fn random_messages_get_answers_or_end_the_session() {
    let fixture = Fixture::new(&[""]);
    let mut seed = 0x1234_5678_9abc_def1_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for _ in 0..20 {
        let mut client = Client::new(&fixture.socket(0));
        for _ in 0..50 {
            let body: Vec<u8> = (0..random() % 12).flat_map(|_| (random() % 0x3_0000).to_le_bytes()).collect();
            let command = (random() % 20) as u16;
            let _ = client.call(command, &body, &[]);
        }
    }
    works(&fixture, 0);
}

#[test]
fn a_full_blocking_eventfd_does_not_stop_the_engine_for_its_neighbours() {
    let fixture = Fixture::new(&["", ""]);
    let mut driver = Driver::start(&fixture.socket(0), 16);
    // The client shares the eventfd's description: a write of the server would wait from now on.
    let eventfd = driver.vectors[1].try_clone().unwrap();
    rustix::fs::fcntl_setfl(&eventfd, rustix::fs::OFlags::RDWR).unwrap();
    rustix::io::write(&eventfd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    for n in 0..3 {
        let record = RECORDS + 32 * n;
        driver.memory.put(record, &[0; 32]);
        driver.submit(&with_interrupt(Descriptor::nop().with_record(record)));
        // By the engine thread.
        let copy = Descriptor::memory_move(0x10_0000, 0x40_0000, 1 << 20).with_record(record + 0x800);
        driver.memory.put(record + 0x800, &[0; 32]);
        driver.submit(&with_interrupt(copy));
        assert_eq!((driver.memory.status(record), driver.memory.status(record + 0x800)), (1, 1));
        works(&fixture, 1);
    }
    assert_eq!(driver.end_of_drain(), 0, "its own device goes on, too");
    drop(driver);
    works(&fixture, 0);
}

#[test]
fn reconnections_do_not_fill_the_log() {
    let fixture = Fixture::new(&["", ""]);
    for _ in 0..200 {
        let mut client = Client::new(&fixture.socket(0));
        client.send_raw(&header(REGION_READ, 0), &[]).unwrap();
        assert!(client.receive().is_none());
    }
    works(&fixture, 0);
    works(&fixture, 1);
    let remarks = fixture.remarks();
    let of = |machine: &str| remarks.iter().filter(|remark| remark.starts_with(machine)).count();
    // A window of a minute may have begun again on a slow machine.
    assert!((64..400).contains(&of("machine 0")), "{}", of("machine 0"));
    assert!(fixture.has_told("machine 1: a client has connected"));
}
