//! A process with more devices than it can publish works, and says how many are missing. In a process of its own,
//! because other tests would find no slot.
#![cfg(not(loom))]

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use telpher_device::in_process::{self, ProcessDevices};
use telpher_device::{Config, CountsIn, ModelDevice, ModelOptions, WqMode};
use telpher_os::PUBLISHED_FROM;

fn region(number: i32) -> Option<ProcessDevices> {
    let file = File::open(format!("/proc/self/fd/{number}")).ok()?;
    let read = |at: usize, words: &mut [u64]| {
        let mut bytes = vec![0; words.len() * 8];
        file.read_exact_at(&mut bytes, at as u64 * 8)?;
        let values = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        words.iter_mut().zip(values).for_each(|(word, value)| *word = value);
        Ok(())
    };
    Some(in_process::read(read).unwrap())
}

#[test]
fn devices_beyond_the_last_slot_count_for_themselves_and_are_counted() {
    let start = || {
        let options = ModelOptions::default().with_config(Config::single(WqMode::Shared, 8, 1));
        ModelDevice::start(options.with_counts(CountsIn::Published)).unwrap()
    };
    let devices: Vec<ModelDevice> = (0..70).map(|_| start()).collect();
    let regions: Vec<ProcessDevices> = (PUBLISHED_FROM..PUBLISHED_FROM + 16).filter_map(region).collect();
    assert_eq!(regions.len(), 4);
    assert_eq!(regions.iter().map(|region| region.slots.len()).sum::<usize>(), 64);
    assert_eq!(regions.iter().map(|region| region.unshown).sum::<u64>(), 6);
    assert!(devices.iter().all(|device| device.counts().is_some()));
    drop(devices);
    let _again = start();
    let regions: Vec<ProcessDevices> = (PUBLISHED_FROM..PUBLISHED_FROM + 16).filter_map(region).collect();
    let open = regions.iter().flat_map(|region| &region.slots).filter(|slot| slot.is_open).count();
    assert_eq!((regions.len(), open), (4, 1));
}
