//! Namespaces with protection information: inserted, checked and stripped by the CPU and by a modelled device.

use crate::session::{LateEngine, NQN, Session, io_session, namespace, options, target};
use std::sync::Arc;
use std::time::Duration;
use telpher_device::{ModelDevice, ModelOptions, OpenOptions, open};
use telpher_mover::{Channel, ChannelPolicy};
use telpher_nvmf::command::{Submission, admin, io};
use telpher_nvmf::device_engine::{DeviceEngine, DigestChannel};
use telpher_nvmf::digest::Digests;
use telpher_nvmf::engine::{CpuEngine, DigestEngine, FallbackReason, FinishedJob, Job, JobId, Segment, Work};
use telpher_nvmf::initiator::{HostOptions, Transfer, requests};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::memory::MemoryStorage;
use telpher_nvmf::namespace::NamespaceError;
use telpher_nvmf::protection::{Protection, stored_capacity};
use telpher_nvmf::status::Status;
use telpher_nvmf::storage::{Piece, Started, Storage, StorageRequest};
use telpher_os::Random;

const NSID: u32 = 2;
const SIZES: [u32; 2] = [512, 4096];
const TAG: u16 = 0x1234;
const ID: JobId = JobId { connection: 0, slot: 0, generation: 0, part: 0 };
/// Bytes of data of the namespace.
const BYTES: usize = 512 << 10;

/// An I/O queue, and a protected namespace in memory that the test may damage.
struct Protected {
    _admin: Session,
    io: Session,
    storage: Arc<MemoryStorage>,
    block: usize,
}

impl Protected {
    fn new(block: u32, limits: Limits, options: HostOptions) -> Protected {
        let target = target(limits);
        let block = block as usize;
        let storage = Arc::new(MemoryStorage::new(stored_capacity(BYTES as u64, block as u32).unwrap()));
        let protection = Some(Protection { application_tag: TAG });
        let plain = namespace(NSID, block as u32, Arc::<MemoryStorage>::clone(&storage));
        target.add_namespace(NQN, telpher_nvmf::namespace::NamespaceOptions { protection, ..plain }).unwrap();
        let (admin, io) = io_session(&target, options);
        Protected { _admin: admin, io, storage, block }
    }

    fn command(&mut self, opcode: u8, first: usize, blocks: usize) -> Submission {
        requests::blocks(opcode, self.io.cid(), NSID, first as u64, blocks as u32)
    }

    fn write(&mut self, first: usize, data: &[u8]) {
        let command = self.command(io::WRITE, first, data.len() / self.block);
        let is_short = data.len() <= 8192;
        let data = data.to_vec();
        self.io.ok(command, if is_short { Transfer::InCapsule(data) } else { Transfer::OnRequest(data) });
    }

    fn read(&mut self, first: usize, blocks: usize) -> (Status, Vec<u8>) {
        let command = self.command(io::READ, first, blocks);
        let (completion, data) = self.io.execute(command, Transfer::ToHost((blocks * self.block) as u32));
        (completion.status(), data)
    }

    /// The stored bytes of a block, with the tuple.
    fn stored(&self, block: usize) -> Vec<u8> {
        let len = self.block as u64 + 8;
        let Started::Done(result) = self.storage.start(ID, StorageRequest::Read { start: block as u64 * len, len })
        else {
            panic!("memory answers at once")
        };
        result.unwrap().iter().flat_map(|segment| segment.as_slice().to_vec()).collect()
    }

    fn store(&self, block: usize, bytes: Vec<u8>) {
        let start = block as u64 * (self.block as u64 + 8);
        let pieces = vec![Piece::Bytes(Segment::whole(bytes))];
        let started = self.storage.start(ID, StorageRequest::Write { start, pieces, force: false });
        assert!(matches!(started, Started::Done(Ok(_))));
    }
}

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}

fn device(slots: u32, policy: ChannelPolicy) -> Box<dyn DigestEngine> {
    let opened = open(&"model:spr".parse().unwrap(), OpenOptions::default()).unwrap();
    on_channel(Channel::new(Arc::clone(&opened.portals[0]), slots, policy).unwrap())
}

fn on_channel(channel: DigestChannel) -> Box<dyn DigestEngine> {
    Box::new(DeviceEngine::new(channel, 0))
}

/// CRC-16 T10-DIF, one bit at a time. Source: SBC-3 §4.22.4: polynomial 8BB7h, initial value 0.
fn guard(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| if crc >> 15 == 1 { crc << 1 ^ 0x8bb7 } else { crc << 1 })
    })
}

#[test]
fn stored_blocks_have_the_tuples_of_protection_type_1() {
    assert_eq!(guard(b"123456789"), 0xd0db, "the published check value");
    for (block, by_device) in SIZES.into_iter().flat_map(|block| [(block, false), (block, true)]) {
        let mut protected = Protected::new(block, Limits::default(), HostOptions::default());
        if by_device {
            protected.io.engine = device(16, ChannelPolicy::default());
        }
        let block = block as usize;
        let data = bytes(&mut Random::new(1), 3 * block);
        protected.write(5, &data);
        for (number, data) in data.chunks(block).enumerate() {
            let stored = protected.stored(5 + number);
            let [guard, tag] = [guard(data), TAG].map(u16::to_be_bytes);
            assert!(stored == [data, &guard, &tag, &(5 + number as u32).to_be_bytes()].concat());
        }
        let stats = protected.io.connection.stats();
        assert_eq!((stats.protections_by_device, stats.protections_by_cpu), if by_device { (1, 0) } else { (0, 1) });
    }
}

/// Each tag is damaged in each block of a 128 KiB read. The CPU and a device give the same answers.
#[test]
fn damage_of_any_tag_in_any_block_is_found_and_no_data_is_sent() {
    for (block, by_device) in SIZES.into_iter().flat_map(|block| [(block, false), (block, true)]) {
        let mut protected = Protected::new(block, Limits::default(), options(Digests { header: true, data: true }));
        if by_device {
            protected.io.engine = device(16, ChannelPolicy::default());
        }
        let block = block as usize;
        let count = (128 << 10) / block;
        let data = bytes(&mut Random::new(2), 128 << 10);
        protected.write(3, &data);
        let mut errors = 0;
        for number in 0..count {
            let good = protected.stored(3 + number);
            let damages = [
                (number * 41 % block, Status::GUARD_CHECK),
                (block + number % 2, Status::GUARD_CHECK),
                (block + 2 + number % 2, Status::APPLICATION_TAG_CHECK),
                (block + 4 + number % 4, Status::REFERENCE_TAG_CHECK),
            ];
            for (at, expected) in damages {
                let mut bad = good.clone();
                bad[at] ^= 0x80 >> (number % 8);
                protected.store(3 + number, bad);
                let sent = protected.io.connection.stats().bytes_to_host;
                assert_eq!(protected.read(3, count), (expected, Vec::new()), "block {number} byte {at}");
                assert_eq!(protected.io.connection.stats().bytes_to_host, sent, "no byte was sent");
                errors += 1;
            }
            protected.store(3 + number, good);
        }
        assert!(protected.read(3, count) == (Status::SUCCESS, data));
        let stats = protected.io.connection.stats();
        assert_eq!(stats.protection_errors, errors);
        // The device found each of them itself, in the block in which the CPU finds it.
        let protections = [stats.protections_by_device, stats.protections_by_cpu];
        assert_eq!(protections, if by_device { [errors + 2, 0] } else { [0, errors + 2] });
        assert_eq!((stats.wrong_device_checks, stats.protections_by_fallback), (0, 0));
    }
}

#[test]
fn the_first_bad_block_decides_and_its_guard_is_checked_first() {
    for by_device in [false, true] {
        let mut protected = Protected::new(512, Limits::default(), HostOptions::default());
        if by_device {
            protected.io.engine = device(16, ChannelPolicy::default());
        }
        protected.write(0, &vec![7; 64 * 512]);
        for (number, range) in [(20, 516..520), (30, 512..514)] {
            let mut bad = protected.stored(number);
            bad[range].fill(0xee);
            protected.store(number, bad);
        }
        assert_eq!(protected.read(0, 64).0, Status::REFERENCE_TAG_CHECK);
        assert_eq!(protected.read(21, 43).0, Status::GUARD_CHECK);
        assert_eq!(protected.read(0, 20), (Status::SUCCESS, vec![7; 20 * 512]));
        assert_eq!(protected.read(31, 33), (Status::SUCCESS, vec![7; 33 * 512]));
        // A block at the place of another one, and the mark that would switch off the checks.
        protected.store(40, protected.stored(41));
        assert_eq!(protected.read(40, 1).0, Status::REFERENCE_TAG_CHECK);
        let mut marked = protected.stored(42);
        marked[514..].fill(0xff);
        protected.store(42, marked);
        assert_eq!(protected.read(42, 1).0, Status::APPLICATION_TAG_CHECK);
        protected.store(43, vec![0xff; 520]);
        assert_eq!(protected.read(43, 1).0, Status::GUARD_CHECK);
    }
}

/// A block that was never written has no tags; one that was written and is zero has them.
#[test]
fn blocks_that_were_never_written_read_as_zeroes() {
    for (block, by_device) in SIZES.into_iter().flat_map(|block| [(block, false), (block, true)]) {
        let mut protected = Protected::new(block, Limits::default(), HostOptions::default());
        if by_device {
            protected.io.engine = device(16, ChannelPolicy::default());
        }
        let block = block as usize;
        assert_eq!(protected.read(0, 8), (Status::SUCCESS, vec![0; 8 * block]));
        protected.write(1, &vec![0; block]);
        protected.write(4, &vec![9; 2 * block]);
        assert_ne!(protected.stored(1), vec![0; block + 8]);
        let expected = [vec![0; 4 * block], vec![9; 2 * block], vec![0; 2 * block]].concat();
        assert!(protected.read(0, 8) == (Status::SUCCESS, expected));
        let verify = protected.command(io::VERIFY, 0, 8);
        assert_eq!(protected.io.status(verify, Transfer::None), Status::SUCCESS);
        // Damage of such a block is found, and so is damage behind one.
        for (at, expected) in [(0, Status::GUARD_CHECK), (block + 4, Status::APPLICATION_TAG_CHECK)] {
            let mut bad = vec![0; block + 8];
            bad[at] = 1;
            protected.store(7, bad);
            assert_eq!(protected.read(0, 8).0, expected);
        }
        let mut bad = protected.stored(5);
        bad[block + 7] ^= 1;
        protected.store(5, bad);
        assert_eq!(protected.read(0, 6).0, Status::REFERENCE_TAG_CHECK);
        assert_eq!(protected.io.connection.stats().wrong_device_checks, 0);
    }
}

/// Random commands of all kinds have the effect that they have on a plain buffer.
fn exercise(protected: &mut Protected, seed: u64, rounds: u64) {
    let mut random = Random::new(seed);
    let mut plain = vec![0_u8; BYTES];
    let block = protected.block;
    let total = BYTES / block;
    for _ in 0..rounds {
        let longest = if random.below(3) == 0 { (128 << 10) / block } else { 8192 / block };
        let blocks = 1 + random.below(longest as u64) as usize;
        let first = random.below((total - blocks + 1) as u64) as usize;
        let range = first * block..(first + blocks) * block;
        match random.below(8) {
            0..=2 => {
                let data = bytes(&mut random, range.len());
                plain[range].copy_from_slice(&data);
                protected.write(first, &data);
            }
            3 => {
                let command = protected.command(io::WRITE_ZEROES, first, blocks);
                protected.io.ok(command, Transfer::None);
                plain[range].fill(0);
            }
            4 => {
                let (command, list) = requests::deallocate(protected.io.cid(), NSID, &[(first as u64, blocks as u32)]);
                protected.io.ok(command, Transfer::InCapsule(list));
                plain[range].fill(0);
            }
            5 => {
                let to = random.below((total - blocks + 1) as u64) as usize;
                let (command, list) =
                    requests::copy(protected.io.cid(), NSID, to as u64, &[(first as u64, blocks as u32)]);
                protected.io.ok(command, Transfer::InCapsule(list));
                plain.copy_within(range, to * block);
            }
            6 => {
                let verify = protected.command(io::VERIFY, first, blocks);
                protected.io.ok(verify, Transfer::None);
                let mut data = plain[range].to_vec();
                let command = protected.command(io::COMPARE, first, blocks);
                protected.io.ok(command, Transfer::OnRequest(data.clone()));
                let at = random.below(data.len() as u64) as usize;
                data[at] ^= 1;
                let command = protected.command(io::COMPARE, first, blocks);
                assert_eq!(protected.io.status(command, Transfer::OnRequest(data)), Status::COMPARE_FAILURE);
            }
            _ => assert!(protected.read(first, blocks) == (Status::SUCCESS, plain[range].to_vec())),
        }
    }
    let step = (128 << 10) / block;
    for first in (0..total).step_by(step) {
        assert!(protected.read(first, step) == (Status::SUCCESS, plain[first * block..][..128 << 10].to_vec()));
    }
    assert_eq!(protected.io.connection.open_commands(), 0);
}

#[test]
fn protected_data_survives_in_all_digest_combinations_and_segmentations() {
    // Data that comes in several PDUs, also in PDUs that end within a block.
    let split = Limits { h2c_bytes: 4096, r2t_bytes: 16384, ..Limits::default() };
    let odd = Limits { h2c_bytes: 5004, ..Limits::default() };
    for (limits, seed) in [(Limits::default(), 1), (split, 2), (odd, 3)] {
        for (digests, block) in Digests::ALL.into_iter().flat_map(|digests| SIZES.map(|block| (digests, block))) {
            let host = HostOptions { most_r2ts: 2, ..options(digests) };
            exercise(&mut Protected::new(block, limits, host), seed, 60);
            let mut protected = Protected::new(block, limits, host);
            protected.io.engine = Box::new(LateEngine::new(seed));
            exercise(&mut protected, seed + 10, 40);
        }
    }
}

#[test]
fn protected_data_survives_with_a_device() {
    for (digests, block) in Digests::ALL.into_iter().flat_map(|digests| SIZES.map(|block| (digests, block))) {
        let limits = Limits { h2c_bytes: 16384, ..Limits::default() };
        let mut protected = Protected::new(block, limits, options(digests));
        protected.io.engine = device(64, ChannelPolicy::default());
        exercise(&mut protected, 5, 80);
        let stats = protected.io.connection.stats();
        assert!(stats.protections_by_device > 30, "{stats:?}");
        assert_eq!((stats.protections_by_cpu, stats.wrong_device_checks), (0, 0));
    }
}

/// A device that reports a mismatch where there is none.
#[derive(Debug, Default)]
struct WrongEngine {
    right: CpuEngine,
}

impl DigestEngine for WrongEngine {
    fn prepare(&mut self, mut job: Job) {
        if let Work::Protect(work) = &mut job.work {
            let last = work.source().len() - 520;
            assert!(!work.mismatch_at(last));
        }
        self.right.prepare(job);
    }

    fn submit(&mut self) {}

    fn completed(&mut self, done: &mut Vec<FinishedJob>) {
        self.right.completed(done);
    }

    fn pending(&self) -> usize {
        self.right.pending()
    }
}

#[test]
fn a_mismatch_of_a_device_is_checked_by_the_cpu_before_the_backend_is_blamed() {
    let mut protected = Protected::new(512, Limits::default(), HostOptions::default());
    let data = bytes(&mut Random::new(8), 16 * 512);
    protected.write(0, &data);
    protected.io.engine = Box::new(WrongEngine::default());
    assert!(protected.read(0, 16) == (Status::SUCCESS, data));
    let stats = protected.io.connection.stats();
    assert_eq!((stats.wrong_device_checks, stats.protection_errors), (1, 0));
}

/// Writes 128 KiB with several commands at once, reads it, and reads a damaged block.
fn write_read_and_damage(protected: &mut Protected) {
    let data = bytes(&mut Random::new(4), 8 * 16384);
    for (number, data) in data.chunks(16384).enumerate() {
        let command = protected.command(io::WRITE, number * 4, 4);
        protected.io.host.send(command, Transfer::OnRequest(data.to_vec()));
    }
    assert_eq!(protected.io.events().len(), 8);
    assert!(protected.read(0, 32) == (Status::SUCCESS, data));
    let mut bad = protected.stored(31);
    bad[4100] ^= 1;
    protected.store(31, bad);
    assert_eq!(protected.read(0, 32), (Status::REFERENCE_TAG_CHECK, Vec::new()));
}

#[test]
fn the_cpu_does_what_a_device_refuses() {
    let mut protected = Protected::new(4096, Limits::default(), options(Digests { header: false, data: true }));
    // One slot: of several operations at once, all but one are refused.
    protected.io.engine = device(1, ChannelPolicy::default());
    write_read_and_damage(&mut protected);
    let stats = protected.io.connection.stats();
    assert!(stats.protections_by_fallback > 0 && stats.protections_by_device > 0, "{stats:?}");
}

#[test]
fn the_cpu_does_what_a_device_does_not_finish_in_time() {
    let model = ModelDevice::start(ModelOptions::default()).unwrap();
    let policy = ChannelPolicy { deadline: Some(Duration::from_millis(1)), ..ChannelPolicy::default() };
    let mut protected = Protected::new(4096, Limits::default(), options(Digests { header: false, data: true }));
    protected.io.engine = on_channel(Channel::new(model.portal("wq0.0").unwrap(), 128, policy).unwrap());
    model.hold(true);
    write_read_and_damage(&mut protected);
    let stats = *protected.io.connection.stats();
    assert_eq!((stats.protections_by_fallback, stats.protections_by_device), (10, 0));
    let all = stats.digests_by_fallback + stats.protections_by_fallback;
    assert_eq!(stats.fallbacks[FallbackReason::Deadline as usize], all, "each fallback has its reason: {stats:?}");
    // The device writes the memory that it still has, which is not that of any block.
    model.hold(false);
    assert_eq!(protected.read(0, 32), (Status::REFERENCE_TAG_CHECK, Vec::new()));
    assert_eq!(protected.read(0, 31).0, Status::SUCCESS);
}

#[test]
fn verify_compare_and_copy_report_damage() {
    for by_device in [false, true] {
        let mut protected = Protected::new(512, Limits::default(), HostOptions::default());
        if by_device {
            protected.io.engine = device(16, ChannelPolicy::default());
        }
        protected.write(0, &[3; 16 * 512]);
        let mut bad = protected.stored(9);
        bad[515] ^= 4;
        protected.store(9, bad);
        let verify = protected.command(io::VERIFY, 0, 16);
        assert_eq!(protected.io.status(verify, Transfer::None), Status::APPLICATION_TAG_CHECK);
        let verify = protected.command(io::VERIFY, 10, 6);
        assert_eq!(protected.io.status(verify, Transfer::None), Status::SUCCESS);
        let compare = protected.command(io::COMPARE, 0, 16);
        let status = protected.io.status(compare, Transfer::InCapsule(vec![3; 16 * 512]));
        assert_eq!(status, Status::APPLICATION_TAG_CHECK);
        let (copy, list) = requests::copy(protected.io.cid(), NSID, 100, &[(0, 4), (8, 4)]);
        assert_eq!(protected.io.status(copy, Transfer::InCapsule(list)), Status::APPLICATION_TAG_CHECK);
        // The first range was copied; no block of the second was.
        assert_eq!(protected.read(100, 8), (Status::SUCCESS, [vec![3; 4 * 512], vec![0; 4 * 512]].concat()));
        // A write replaces the bad block.
        protected.write(9, &[3; 512]);
        assert_eq!(protected.read(0, 16).0, Status::SUCCESS);
    }
}

#[test]
fn the_host_sees_the_size_without_tuples() {
    for block in SIZES {
        let target = target(Limits::default());
        let storage = Arc::new(MemoryStorage::new(100 * (u64::from(block) + 8) + 7));
        let plain = namespace(NSID, block, storage);
        let protection = Some(Protection::default());
        target.add_namespace(NQN, telpher_nvmf::namespace::NamespaceOptions { protection, ..plain }).unwrap();
        let (mut admin, mut io) = io_session(&target, HostOptions::default());
        let size = |admin: &mut Session| {
            let (command, transfer) = requests::identify(admin.cid(), 0, NSID);
            assert_eq!(command.opcode, admin::IDENTIFY);
            let (_, data) = admin.ok(command, transfer);
            assert_eq!((data[29], data[128], data[129], data[130]), (0, 0, 0, block.ilog2() as u8));
            u64::from_le_bytes(data[..8].try_into().unwrap())
        };
        assert_eq!(size(&mut admin), 100);
        let fill = |io: &mut Session, first| {
            let command = requests::blocks(io::WRITE, io.cid(), NSID, first, 1);
            io.status(command, Transfer::InCapsule(vec![1; block as usize]))
        };
        assert_eq!(fill(&mut io, 99), Status::SUCCESS);
        assert_eq!(fill(&mut io, 100), Status::LBA_RANGE.do_not_retry());
        target.resize_namespace(NQN, NSID, 50 * u64::from(block)).unwrap();
        assert_eq!((size(&mut admin), fill(&mut io, 50)), (50, Status::LBA_RANGE.do_not_retry()));
        target.resize_namespace(NQN, NSID, 200 * u64::from(block)).unwrap();
        assert_eq!(size(&mut admin), 200);
        // What was behind the smaller end does not come back.
        let read = requests::blocks(io::READ, io.cid(), NSID, 99, 1);
        assert_eq!(io.ok(read, Transfer::ToHost(block)).1, vec![0; block as usize]);
        assert_eq!(fill(&mut io, 199), Status::SUCCESS);
        let too_small = target.resize_namespace(NQN, NSID, u64::from(block) - 1);
        assert!(matches!(too_small, Err(NamespaceError::Empty { .. })));
    }
}

#[test]
fn an_application_tag_with_a_special_meaning_is_refused() {
    let target = target(Limits::default());
    for application_tag in [0, u16::MAX] {
        let plain = namespace(NSID, 512, Arc::new(MemoryStorage::new(1 << 20)));
        let protection = Some(Protection { application_tag });
        let options = telpher_nvmf::namespace::NamespaceOptions { protection, ..plain };
        let refused = NamespaceError::ApplicationTag { tag: application_tag };
        assert_eq!(target.add_namespace(NQN, options), Err(refused));
    }
    let plain = namespace(NSID, 512, Arc::new(MemoryStorage::new(519)));
    let options = telpher_nvmf::namespace::NamespaceOptions { protection: Some(Protection::default()), ..plain };
    assert_eq!(target.add_namespace(NQN, options), Err(NamespaceError::Empty { bytes: 519 }));
}
