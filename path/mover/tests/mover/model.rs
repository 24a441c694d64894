//! The mover over the modelled device: every preset, both runners.

use crate::common::{Chance, naive};
use std::sync::Arc;
use telpher_device::{ModelDevice, ModelOptions, Preset, Residency, Runner};
use telpher_mem::{PageSize, Region, StableBuf};
use telpher_mover::{Channel, ChannelPolicy, CrcMode, Mover, Outcome, Policy, Threshold, Via};
use telpher_os::page_presence::{BATCH_PAGES, Presence};
use telpher_portal::Portal;

/// Runs a test with every device preset, and a portal to each of its queues.
fn devices(mut test: impl FnMut(&ModelDevice, Vec<Arc<dyn Portal>>)) {
    for preset in [Preset::Spr, Preset::SprFw2, Preset::Full] {
        for runner in [Runner::Inline, Runner::Threaded, Runner::Auto] {
            let device = ModelDevice::start(ModelOptions::of(preset).with_runner(runner)).unwrap();
            let portals = device.enabled_queues().into_iter().map(|n| device.portal(&format!("wq0.{n}")).unwrap());
            let portals = portals.collect();
            test(&device, portals);
        }
    }
}

/// Devices of 2.x compute it, in parts no longer than their queue allows; for others the CPU does.
#[test]
fn a_crc_of_64_bits_is_the_same_from_the_device_and_from_the_cpu() {
    let source = Chance::new(12).bytes(100_000);
    for (preset, via) in [(Preset::V2Full, Via::Device), (Preset::Srf, Via::Device), (Preset::Spr, Via::Cpu)] {
        let device = ModelDevice::start(ModelOptions::of(preset)).unwrap();
        let portals = device.enabled_queues().into_iter().map(|n| device.portal(&format!("wq0.{n}")).unwrap());
        let portals: Vec<Arc<dyn Portal>> = portals.collect();
        let mover = Mover::new(portals, Policy { threshold: Threshold::DEVICE, ..Policy::default() });
        let digits = mover.crc64(b"123456789".to_vec(), 0, CrcMode::default()).wait();
        assert_eq!((digits.result, digits.via), (Ok(Outcome::Crc64(0xae8b_1486_0a79_9888)), via), "{preset:?}");
        for mode in CrcMode::ALL {
            let expected = Ok(Outcome::Crc64(naive::crc64(7, &source, mode)));
            assert_eq!(mover.crc64(source.clone(), 7, mode).wait().result, expected, "{preset:?} {mode:?}");
            let copied = mover.copy_crc64(source.clone(), vec![0; source.len()], 7, mode).wait();
            assert_eq!((copied.result, copied.via), (expected, via), "{preset:?} {mode:?}");
            assert!(copied.buffers.1 == source);
        }
    }
}

#[test]
fn jobs_batches_and_scopes_give_the_naive_bytes_on_the_model() {
    devices(|_, portals| {
        let mover = Mover::new(portals, Policy { threshold: Threshold::DEVICE, ..Policy::default() });
        let source = Chance::new(11).bytes(100_000);
        let done = mover.copy(source.clone(), vec![0; 100_000]).wait();
        assert_eq!((done.result, done.via), (Ok(Outcome::Done), Via::Device));
        let (src, dst) = done.buffers;
        assert!(dst == source);
        let crc = naive::crc32c(0, &source, CrcMode::default());
        assert_eq!(mover.crc(src, 0, CrcMode::default()).wait().result, Ok(Outcome::Crc(crc)));

        let mut batch = mover.batch();
        let keys: Vec<_> = (0..100)
            .map(|i| {
                if i % 10 == 0 {
                    batch.fence();
                }
                batch.copy(source[i * 1000..(i + 1) * 1000].to_vec(), vec![0; 1000])
            })
            .collect();
        let mut done = batch.submit().wait();
        for key in keys {
            let (result, src, dst) = done.take(key).into_parts();
            assert_eq!(result, Ok(Outcome::Done));
            assert!(src == dst);
        }

        let mut there = vec![0; 100_000];
        mover.scope(|scope| {
            for (src, dst) in source.chunks(3000).zip(there.chunks_mut(3000)) {
                scope.copy(src, dst);
            }
        });
        assert!(there == source);
        assert_eq!(mover.drain().wait().result, Ok(Outcome::Done));
    });
}

#[test]
fn a_channel_gives_the_naive_bytes_on_the_model() {
    devices(|_, portals| {
        let portal = portals.into_iter().next().expect("a device has a queue");
        let mut channel: Channel<Vec<u8>, Vec<u8>> = Channel::new(portal, 64, ChannelPolicy::default()).unwrap();
        let mut chance = Chance::new(12);
        let (mut sent, mut got, mut out) = (0, 0, Vec::with_capacity(64));
        while got < 2000 {
            for _ in 0..chance.below(40) {
                let src = chance.bytes(64);
                sent += u64::from(sent < 2000 && channel.copy(src, vec![0; 64]).is_ok());
            }
            channel.submit();
            channel.completed(&mut out);
            for finished in out.drain(..) {
                let buffers = finished.buffers.unwrap();
                assert_eq!((finished.result, finished.ticket.number()), (Ok(Outcome::Done), got));
                assert!(buffers.src == buffers.dst);
                got += 1;
            }
        }
    });
}

/// Regression: a record that was written between two checks of one `completed` was taken for its burst's record only,
/// and its operation never ended. Seen as a benchmark that hung on the threaded runner.
#[test]
fn a_record_written_during_completed_ends_its_operation() {
    let device = ModelDevice::start(ModelOptions::default().with_runner(Runner::Threaded)).unwrap();
    let mut channel: Channel<Vec<u8>, Vec<u8>> =
        Channel::new(device.portal("wq0.0").unwrap(), 2, ChannelPolicy::default()).unwrap();
    let (mut done, mut buffers) = (Vec::with_capacity(1), Some((vec![1; 64], vec![0; 64])));
    for round in 0..20_000 {
        let (src, dst) = buffers.take().unwrap();
        channel.copy(src, dst).unwrap();
        assert_eq!(channel.submit(), 1);
        let begin = std::time::Instant::now();
        while channel.completed(&mut done) == 0 {
            // Only a hang takes this long, also on a busy machine.
            assert!(begin.elapsed().as_secs() < 60, "round {round} has not ended");
        }
        let back = done.pop().unwrap().buffers.unwrap();
        buffers = back.src.zip(back.dst);
    }
}

/// Devices of 2.x fetch the translations, however long the buffer is; the CPU touches the pages for others, and after a
/// fault of the device.
#[test]
fn pages_are_present_after_they_were_prefetched() {
    const LEN: usize = 5 << 20;
    for (preset, residency, via) in [
        (Preset::V2Full, Residency::Lenient, Via::Device),
        (Preset::V2Full, Residency::Strict, Via::Cpu),
        (Preset::Spr, Residency::Lenient, Via::Cpu),
    ] {
        let device = ModelDevice::start(ModelOptions::of(preset).with_residency(residency)).unwrap();
        let portals = device.enabled_queues().into_iter().map(|n| device.portal(&format!("wq0.{n}")).unwrap());
        let mover = Mover::new(portals.collect::<Vec<_>>(), Policy::default());
        let pages = Region::new(LEN, PageSize::Small).unwrap();
        let first = pages.address() / 4096;
        let done = mover.prefetch_pages(pages).wait();
        assert_eq!((done.result, done.via), (Ok(Outcome::Done), via), "{preset:?} {residency:?}");
        let mut present = [false; LEN / 4096];
        let presence = Presence::open();
        for (at, present) in (first..).step_by(BATCH_PAGES).zip(present.chunks_mut(BATCH_PAGES)) {
            presence.ask(at, false, present);
        }
        assert!(present.iter().all(|present| *present), "{preset:?} {residency:?}");
        // Present pages are found without a fault.
        let again = mover.prefetch_pages(done.buffers.0).wait();
        let expected = if preset == Preset::V2Full { Via::Device } else { Via::Cpu };
        assert_eq!((again.result, again.via), (Ok(Outcome::Done), expected), "{preset:?} {residency:?}");
    }
}
