//! Digests and copies by a modelled device.

use crate::io::exercise;
use crate::session::{io_session, options, target};
use std::sync::Arc;
use telpher_device::{OpenOptions, open};
use telpher_mover::{Channel, ChannelPolicy};
use telpher_nvmf::device_engine::{DeviceEngine, DigestChannel};
use telpher_nvmf::digest::Digests;
use telpher_nvmf::initiator::HostOptions;
use telpher_nvmf::limits::Limits;

fn channel(slots: u32) -> DigestChannel {
    let opened = open(&"model:spr".parse().unwrap(), OpenOptions::default()).unwrap();
    Channel::new(Arc::clone(&opened.portals[0]), slots, ChannelPolicy::default()).unwrap()
}

#[test]
fn data_survives_with_digests_by_a_device() {
    for header in [false, true] {
        for h2c_bytes in [4096, 12288, 131_072] {
            let target = target(Limits { h2c_bytes, ..Limits::default() });
            let host = HostOptions { most_r2ts: 2, ..options(Digests { header, data: true }) };
            let (_admin, mut io) = io_session(&target, host);
            io.engine = Box::new(DeviceEngine::new(channel(128), 0));
            exercise(&mut io, 21, 60);
            let stats = io.connection.stats();
            assert!(stats.digests_by_device > 60, "{stats:?}");
            assert_eq!((stats.digests_by_cpu, stats.digests_by_fallback), (0, 0));
        }
    }
}

#[test]
fn short_data_and_what_a_full_channel_refuses_is_done_by_the_cpu() {
    let target = target(Limits::default());
    let (_admin, mut io) = io_session(&target, options(Digests { header: false, data: true }));
    io.engine = Box::new(DeviceEngine::new(channel(4), 8192));
    exercise(&mut io, 22, 100);
    let stats = io.connection.stats();
    assert!(stats.digests_by_cpu > 0 && stats.digests_by_fallback > 0, "{stats:?}");
}
