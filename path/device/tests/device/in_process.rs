//! What other processes read of the modelled devices of this one is what their program submitted.
#![allow(unsafe_code, reason = "descriptors are vouched for: their buffers outlive the device's work; forks")]

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use telpher_abi::registers::{Command, CommandCode};
use telpher_abi::{Descriptor, Status};
use telpher_device::in_process::{self, ProcessDevices, PublishedSlot, subscription_of};
use telpher_device::{Config, CountsIn, LONGEST_NS, ModelDevice, ModelOptions, OpenOptions, Runner, WqMode, open};
use telpher_os::{PUBLISHED_DEVICES, PUBLISHED_FROM, monotonic_ns};
use telpher_portal::{Offer, Portal, RecordCell, Submission};

/// The regions that this process has open, as another process finds them.
fn regions() -> Vec<(PathBuf, ProcessDevices)> {
    let name = format!("/memfd:{PUBLISHED_DEVICES} (deleted)");
    let paths = (PUBLISHED_FROM..PUBLISHED_FROM + 16).map(|number| PathBuf::from(format!("/proc/self/fd/{number}")));
    let named = paths.filter(|path| std::fs::read_link(path).is_ok_and(|link| link.to_str() == Some(&name)));
    let read = |path: PathBuf| {
        let file = File::open(&path).unwrap();
        let devices = in_process::read(|at, words| {
            let mut bytes = vec![0; words.len() * 8];
            file.read_exact_at(&mut bytes, at as u64 * 8)?;
            let values = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
            words.iter_mut().zip(values).for_each(|(word, value)| *word = value);
            Ok(())
        });
        (path, devices.unwrap())
    };
    named.map(read).collect()
}

/// The slots of devices whose first queue has this size, which no other test has.
fn slots(size: u32) -> Vec<PublishedSlot> {
    let own = |region: &ProcessDevices| region.process == u64::from(std::process::id());
    let slots = regions().into_iter().filter(|(_, region)| own(region)).flat_map(|(_, region)| region.slots);
    slots.filter(|slot| slot.device.queues.first().is_some_and(|queue| queue.size == size)).collect()
}

fn start(size: u32, runner: Runner) -> ModelDevice {
    let options = ModelOptions::default().with_config(Config::single(WqMode::Shared, size, 2)).with_runner(runner);
    ModelDevice::start(options.with_counts(CountsIn::Published)).unwrap()
}

fn submit(portal: &dyn Portal, descriptor: Descriptor) -> Status {
    let record = RecordCell::new();
    // SAFETY: the buffers belong to the callers, which wait for the record here.
    let submission = unsafe { Submission::vouch(descriptor.with_record(record.address())) };
    while portal.offer(&submission) != Offer::Taken {
        portal.drive();
    }
    while record.status().is_none() {
        portal.drive();
    }
    record.status().unwrap().status()
}

fn nops(device: &ModelDevice, count: u32) {
    let portal = device.portal("wq0.0").unwrap();
    for _ in 0..count {
        assert_eq!(submit(&*portal, Descriptor::nop()), Status::Success);
    }
}

#[test]
fn totals_of_devices_that_were_closed_stay_and_the_next_one_begins_with_nothing() {
    const SIZE: u32 = 13;
    for (runner, before) in [(Runner::Inline, 0), (Runner::Threaded, 3)] {
        for closed in before..before + 3 {
            let device = start(SIZE, runner);
            let [slot] = &slots(SIZE)[..] else { panic!("{:?}", slots(SIZE)) };
            assert_eq!((slot.is_open, slot.closed), (true, closed));
            assert_eq!(slot.all.since(&slot.earlier).all().descriptors, 0);
            nops(&device, 20);
            let (src, mut dst) = (vec![7_u8; 5000], vec![0_u8; 5000]);
            let copy = Descriptor::memory_move(src.as_ptr() as u64, dst.as_mut_ptr() as u64, 5000);
            assert_eq!(submit(&*device.portal("wq0.0").unwrap(), copy), Status::Success);
            assert_eq!(slots(SIZE)[0].device.state, "enabled");
            // Ends when everything is counted.
            drop(device);
            let slot = &slots(SIZE)[0];
            assert_eq!((slot.is_open, slot.closed, slot.device.state.as_str()), (false, closed + 1, "closed"));
            for totals in [&slot.all, &slot.earlier] {
                let all = totals.queue(0);
                let expected = [21 * (closed + 1), 5000 * (closed + 1)];
                assert_eq!([all.descriptors, all.read_bytes], expected, "{runner:?}");
                assert_eq!((0..2).map(|engine| totals.engine(engine).written_bytes).sum::<u64>(), expected[1]);
            }
        }
    }
}

#[test]
fn retry_answers_and_the_state_of_the_device_are_seen() {
    const SIZE: u32 = 5;
    let device = start(SIZE, Runner::Inline);
    let portal = device.portal("wq0.0").unwrap();
    device.hold(true);
    let records: Vec<RecordCell> = (0..SIZE + 7).map(|_| RecordCell::new()).collect();
    let offers: Vec<Offer> = records
        .iter()
        .map(|record| {
            // SAFETY: the records outlive the device's work, which ends below.
            let nop = unsafe { Submission::vouch(Descriptor::nop().with_record(record.address())) };
            portal.offer(&nop)
        })
        .collect();
    let retries = offers.iter().filter(|offer| **offer == Offer::Retry).count() as u64;
    device.hold(false);
    let [slot] = &slots(SIZE)[..] else { panic!("{:?}", slots(SIZE)) };
    assert!(retries > 0, "{offers:?}");
    assert_eq!((slot.all.retries(0), slot.all.all().descriptors), (retries, records.len() as u64 - retries));
    assert!(slot.device.queues[0].enabled && slot.device.engines.len() == 4, "{:?}", slot.device);
    device.command(Command::new(CommandCode::DisableDevice, 0)).unwrap();
    let slot = &slots(SIZE)[0];
    assert_eq!((slot.device.state.as_str(), slot.device.queues[0].enabled), ("disabled", false));
}

#[test]
fn only_a_device_of_the_same_configuration_takes_a_used_slot() {
    const SIZES: [u32; 2] = [17, 18];
    for _ in 0..2 {
        for size in SIZES {
            nops(&start(size, Runner::Inline), 1);
        }
    }
    for size in SIZES {
        let [slot] = &slots(size)[..] else { panic!("{:?}", slots(size)) };
        assert_eq!((slot.closed, slot.all.all().descriptors), (2, 2));
    }
    // Two at a time have two slots.
    let both = [start(17, Runner::Inline), start(17, Runner::Inline)];
    assert_eq!(slots(17).iter().filter(|slot| slot.is_open).count(), 2);
    drop(both);
}

#[test]
fn threads_that_open_devices_at_the_same_time_lose_no_count() {
    const SIZE: u32 = 19;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (1..6).for_each(|count| nops(&start(SIZE, Runner::Inline), count)));
        }
    });
    let slots = slots(SIZE);
    let sum = |of: &dyn Fn(&PublishedSlot) -> u64| slots.iter().map(of).sum::<u64>();
    assert_eq!((sum(&|slot| slot.all.all().descriptors), sum(&|slot| slot.closed)), (4 * 15, 4 * 5));
    assert!(slots.len() <= 4 && slots.iter().all(|slot| !slot.is_open), "{}", slots.len());
}

#[test]
fn a_reader_has_times_recorded_by_the_word_of_the_slot() {
    const SIZE: u32 = 23;
    let device = start(SIZE, Runner::Inline);
    let has_it = |region: &ProcessDevices| {
        region.slots.iter().find(|slot| slot.device.queues.first().is_some_and(|queue| queue.size == SIZE)).cloned()
    };
    let (path, slot) = regions().into_iter().find_map(|(path, region)| Some((path, has_it(&region)?))).unwrap();
    nops(&device, 3);
    assert_eq!(slots(SIZE)[0].all.times(0), None);
    let until = monotonic_ns() + LONGEST_NS;
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(&until.to_ne_bytes(), subscription_of(slot.slot) as u64 * 8).unwrap();
    nops(&device, 3);
    let slot = &slots(SIZE)[0];
    let timed: u64 = (0..4).filter_map(|engine| slot.all.times(engine)).map(|times| times.count).sum();
    assert_eq!(timed, 3);
}

#[test]
fn a_name_that_is_opened_is_published_and_other_devices_are_not() {
    const SIZE: u32 = 29;
    let file = std::env::temp_dir().join(format!("telpher-in-process-{}.json", std::process::id()));
    let text = format!(
        r#"[{{ "dev": "dsa0", "groups": [{{ "dev": "group0.0",
            "grouped_workqueues": [{{ "dev": "wq0.0", "mode": "shared", "size": {SIZE} }}],
            "grouped_engines": [{{ "dev": "engine0.0" }}] }}] }}]"#
    );
    std::fs::write(&file, text).unwrap();
    let opened = open(&format!("model:{}", file.display()).parse().unwrap(), OpenOptions::default());
    std::fs::remove_file(&file).unwrap();
    let opened = opened.unwrap();
    assert_eq!(submit(&*opened.portals[0], Descriptor::nop()), Status::Success);
    assert_eq!(slots(SIZE).len(), 1);
    drop(opened);
    assert!(!slots(SIZE)[0].is_open && slots(SIZE)[0].all.all().descriptors == 1);
    let own = ModelOptions::default().with_config(Config::single(WqMode::Shared, 31, 1));
    let _own = ModelDevice::start(own).unwrap();
    assert_eq!(slots(31), []);
}

#[test]
fn a_forked_child_has_a_region_of_its_own_and_leaves_its_parent_s_devices_open() {
    const SIZE: u32 = 37;
    let device = start(SIZE, Runner::Inline);
    nops(&device, 2);
    // SAFETY: the child uses Rust's allocator, makes system calls, and ends without running any other code.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let own = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let own = start(SIZE, Runner::Inline);
            nops(&own, 5);
            let is_right = slots(SIZE).iter().map(|slot| slot.all.all().descriptors).eq([5]);
            drop((own, device));
            is_right && !slots(SIZE)[0].is_open
        }));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!own.unwrap_or(false))) };
    }
    let mut status = 0;
    // SAFETY: our own child, and a local variable for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    let [slot] = &slots(SIZE)[..] else { panic!("{:?}", slots(SIZE)) };
    assert_eq!((slot.is_open, slot.all.all().descriptors), (true, 2));
    drop(device);
}
