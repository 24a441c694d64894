//! Digests and copies by a modelled device.

use crate::io::exercise;
use crate::session::{io_session, options, target};
use std::sync::Arc;
use std::time::Duration;
use telpher_device::{OpenOptions, open};
use telpher_mem::{BlockMemory, BlockPages};
use telpher_mover::{Channel, ChannelPolicy, ManualClock};
use telpher_nvmf::command::io;
use telpher_nvmf::device_engine::{DeviceEngine, DigestChannel};
use telpher_nvmf::digest::{Digests, digest};
use telpher_nvmf::engine::{
    CpuEngine, DigestEngine, DoneBy, FallbackReason, FinishedJob, Job, JobId, Segment, Shared, Work,
};
use telpher_nvmf::initiator::requests;
use telpher_nvmf::initiator::{HostEvent, HostOptions, Transfer};
use telpher_nvmf::limits::Limits;
use telpher_portal::QueueMode;
use telpher_portal::mock::MockPortal;

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

#[test]
fn a_long_write_and_a_long_read_are_one_operation_each() {
    let target = target(Limits::default());
    let (_admin, mut io) = io_session(&target, options(Digests { header: false, data: true }));
    // A channel of one slot takes one operation. The CPU would do a second one.
    io.engine = Box::new(DeviceEngine::new(channel(1), 8192));
    for (first, byte) in [(0, 1), (256, 2), (1024, 3), (256, 4)] {
        let data = vec![byte; 256 * 512];
        io.ok(requests::blocks(io::WRITE, 1, 1, first, 256), Transfer::OnRequest(data.clone()));
        let read = requests::blocks(io::READ, 2, 1, first, 256);
        assert!(io.ok(read, Transfer::ToHost(256 * 512)).1 == data);
    }
    let stats = io.connection.stats();
    assert_eq!((stats.digests_by_device, stats.digests_by_fallback), (8, 0));
}

#[test]
fn a_device_that_never_answers_keeps_its_blocks_and_delays_no_job() {
    let portal = Arc::new(MockPortal::new(QueueMode::Shared, 8));
    let clock = Arc::new(ManualClock::new(Duration::from_millis(100)));
    let (deadline, linger) = (Some(Duration::from_millis(1)), Duration::ZERO);
    let policy = ChannelPolicy { deadline, linger, ..ChannelPolicy::default() };
    let channel = Channel::with_clock(portal, 8, policy, Arc::<ManualClock>::clone(&clock)).unwrap();
    let mut engine = DeviceEngine::new(channel, 0);
    let memory = BlockMemory::anonymous(4, 4096, BlockPages::Small).unwrap();
    memory.add(0..4);
    let data: Vec<u8> = (0..8192_u16).map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect();
    let source = Shared::new(data.clone());
    let id = |slot| JobId { connection: 0, slot, generation: 0, part: 0 };
    let runs = memory.take(2).unwrap();
    engine.prepare(Job { id: id(1), work: Work::Place { source: Shared::clone(&source), runs } });
    let segment = Segment::new(source, 100..5000);
    engine.prepare(Job { id: id(2), work: Work::Digest(vec![segment]) });
    engine.submit();
    let mut done = Vec::new();
    engine.completed(&mut done);
    assert_eq!((done.len(), engine.pending()), (0, 2));
    clock.advance(Duration::from_millis(2));
    engine.completed(&mut done);
    assert_eq!((done.len(), engine.pending()), (2, 0));
    done.sort_by_key(|job| job.id.slot);
    for (job, range) in done.iter().zip([0..8192, 100..5000]) {
        let by = DoneBy::Fallback(FallbackReason::Deadline);
        assert_eq!((job.digest, job.by), (digest(&data[range.clone()]), by));
        let Work::Digest(segments) = &job.work else { panic!("the device has the blocks: {job:?}") };
        assert_eq!(segments[0].as_slice(), &data[range]);
    }
    // The device may still write these blocks.
    assert_eq!((memory.taken_blocks(), memory.free_blocks()), (2, 2));
}

/// A device that damages data and digests.
#[derive(Debug, Default)]
struct WrongEngine {
    right: CpuEngine,
}

impl DigestEngine for WrongEngine {
    fn prepare(&mut self, job: Job) {
        self.right.prepare(job);
    }

    fn submit(&mut self) {}

    fn completed(&mut self, done: &mut Vec<FinishedJob>) {
        let before = done.len();
        self.right.completed(done);
        for job in &mut done[before..] {
            (job.digest, job.by) = (!job.digest, DoneBy::Device);
            if let Work::Place { runs, .. } = &mut job.work {
                runs[0][0] ^= 1;
            }
        }
    }

    fn pending(&self) -> usize {
        self.right.pending()
    }
}

#[test]
fn a_device_that_is_wrong_damages_no_data() {
    let target = target(Limits { h2c_bytes: 4096, ..Limits::default() });
    let (_admin, mut io) = io_session(&target, options(Digests { header: true, data: true }));
    io.engine = Box::new(WrongEngine::default());
    // Placed blocks, and a write that is not aligned to them.
    let placed = requests::blocks(io::WRITE, 1, 1, 0, 64);
    io.ok(placed, Transfer::OnRequest(vec![1; 64 * 512]));
    let unaligned = requests::blocks(io::WRITE, 2, 1, 101, 3);
    io.ok(unaligned, Transfer::InCapsule(vec![2; 3 * 512]));
    let stats = *io.connection.stats();
    assert_eq!((stats.wrong_device_digests, stats.data_digest_errors), (9, 0));
    // A host sees a wrong digest of a read, and repeats the command.
    io.host.send(requests::blocks(io::READ, 3, 1, 0, 64), Transfer::ToHost(64 * 512));
    assert!(matches!(io.events()[..], [HostEvent::Completed { is_intact: false, .. }]));
    io.engine = Box::new(CpuEngine::default());
    let read = requests::blocks(io::READ, 4, 1, 0, 64);
    assert!(io.ok(read, Transfer::ToHost(64 * 512)).1 == vec![1; 64 * 512]);
    let read = requests::blocks(io::READ, 5, 1, 101, 3);
    assert!(io.ok(read, Transfer::ToHost(3 * 512)).1 == vec![2; 3 * 512]);
}
