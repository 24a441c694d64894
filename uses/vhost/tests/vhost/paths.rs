//! Packets into a guest and out of it: the guest sees the same with every copy path and every order of completions.
#![allow(clippy::cast_possible_truncation, reason = "small numbers of a test")]

use crate::common::Chance;
use crate::common::device::TestDevice;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use telpher_abi::Status;
use telpher_device::{ModelDevice, ModelOptions, Preset, Runner};
use telpher_mover::{Clock, Moment, Rest};
use telpher_portal::{Portal, QueueMode};
use telpher_vhost::layout::Features;
use telpher_vhost::ring::{Direction, MockDriver, MockGuest, Ring};
use telpher_vhost::{CopyPolicy, DmaQueue, DropReason, PacketPool, Packets, PoolOptions, QueueOptions, Virtqueue};

const HEADER: usize = 12;

/// A guest with one virtqueue, and its driver's list of the buffers in the ring.
struct Guest {
    memory: MockGuest,
    driver: MockDriver,
    /// The buffers of each identifier.
    lent: std::collections::HashMap<u16, Vec<(u64, u32)>>,
    /// The address of the next buffer; buffers are reused after one round of the ring.
    slots: VecDeque<u64>,
    merge: bool,
}

const SLOT: u64 = 4096;

impl Guest {
    fn new(size: u16, features: Features, direction: Direction) -> (Guest, Ring) {
        let mut memory = MockGuest::new(64 << 20);
        let features = features | Features::VERSION_1;
        let driver = MockDriver::new(&mut memory, size, features, direction);
        let slots = (0..4 * u64::from(size)).map(|_| memory.lend(SLOT)).collect();
        let ring = Ring::new(memory.memory(), driver.setup()).unwrap();
        let merge = features.contains(Features::MRG_RXBUF);
        (Guest { memory, driver, lent: std::collections::HashMap::new(), slots, merge }, ring)
    }

    /// Makes a chain of buffers of these lengths available.
    fn offer(&mut self, lens: &[u32]) -> bool {
        if self.slots.len() < lens.len() {
            return false;
        }
        let buffers: Vec<_> = self.slots.iter().copied().zip(lens.iter().copied()).collect();
        let Some(id) = self.driver.offer(&buffers) else { return false };
        self.slots.drain(..lens.len());
        self.lent.insert(id, buffers);
        true
    }

    /// Makes a packet available in pieces of these lengths, which hold header and packet.
    fn send(&mut self, packet: &[u8], lens: &[u32]) -> bool {
        let mut bytes = vec![0xee; HEADER];
        bytes.extend(packet);
        let mut at = 0;
        for (slot, len) in self.slots.iter().zip(lens) {
            let end = (at + *len as usize).min(bytes.len());
            self.memory.write(*slot, &bytes[at..end]);
            at = end;
        }
        assert_eq!(at, bytes.len(), "the pieces cover the packet");
        self.offer(lens)
    }

    /// The packets that the driver finds, using the number of buffers in the header as a driver does.
    fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut used: VecDeque<_> = self.driver.collect().into();
        let mut packets = Vec::new();
        while let Some((id, len)) = used.pop_front() {
            let mut bytes = self.bytes_of(id, len);
            if len == 0 {
                continue;
            }
            assert_eq!(bytes[..10], [0; 10]);
            let buffers = u16::from_le_bytes([bytes[10], bytes[11]]);
            assert!(buffers > 0 && (self.merge || buffers == 1));
            for _ in 1..buffers {
                let (id, len) = used.pop_front().expect("a packet's buffers are shown together");
                bytes.extend(self.bytes_of(id, len));
            }
            packets.push(bytes.split_off(HEADER));
        }
        packets
    }

    fn bytes_of(&mut self, id: u16, len: u32) -> Vec<u8> {
        let buffers = self.lent.remove(&id).unwrap();
        let mut left = len as usize;
        let mut bytes = Vec::new();
        for (address, room) in buffers {
            let here = left.min(room as usize);
            if here > 0 {
                bytes.extend(self.memory.read(address, here));
            }
            left -= here;
            self.slots.push_back(address);
        }
        assert_eq!(left, 0, "no more was written than there is room for");
        bytes
    }
}

fn pool() -> PacketPool {
    PacketPool::new(PoolOptions { buffers: 512, longest: 9000 }).unwrap()
}

fn put(packets: &mut Packets, bytes: &[u8]) {
    let index = packets.len();
    packets.fetch(index + 1);
    packets.resize(index, u32::try_from(bytes.len()).unwrap());
    packets.get_mut(index).unwrap().copy_from_slice(bytes);
}

fn layouts() -> [Features; 4] {
    let packed = Features::RING_PACKED;
    [Features::empty(), packed, Features::IN_ORDER, packed | Features::IN_ORDER | Features::EVENT_IDX]
}

/// Every copy policy.
fn ways() -> Vec<(&'static str, QueueOptions)> {
    let mut ways = vec![("cpu", QueueOptions::default())];
    for (name, runner) in [("inline", Runner::Inline), ("threaded", Runner::Threaded)] {
        let device = ModelDevice::start(ModelOptions::of(Preset::Spr).with_runner(runner)).unwrap();
        let dma_queues: Vec<_> = ["wq0.0", "wq0.1"]
            .into_iter()
            .filter_map(|name| Some(Arc::new(DmaQueue::new(device.portal(name).ok()?, 64).unwrap())))
            .collect();
        assert!(!dma_queues.is_empty());
        for hybrid in [CopyPolicy::Device, CopyPolicy::From(256), CopyPolicy::Learned] {
            ways.push((name, QueueOptions { hybrid, dma_queues: dma_queues.clone(), in_flight: 64 }));
        }
    }
    ways
}

#[test]
fn the_guest_receives_packets_in_order() {
    let mut chance = Chance::new(3);
    for (way, options) in ways() {
        for features in layouts() {
            let (mut guest, ring) = Guest::new(64, features, Direction::Receive);
            let pool = pool();
            let mut queue = Virtqueue::new(ring, &pool, &options);
            let (mut row, mut done) = (pool.empty(32), pool.empty(64));
            let (mut expected, mut received) = (VecDeque::new(), 0);
            while received < 600 {
                while guest.offer(&[HEADER as u32, 2000]) {}
                while row.len() < 20 {
                    let len = 1 + chance.below(1800) as usize;
                    let bytes = chance.bytes(len);
                    put(&mut row, &bytes);
                    expected.push_back(bytes);
                }
                queue.submit_enqueue_burst(&mut row);
                queue.poll_enqueue_completed(&mut done);
                done.truncate(0);
                for packet in guest.receive() {
                    assert_eq!(Some(packet), expected.pop_front(), "{way} {features:?}");
                    received += 1;
                }
            }
            let by_device = queue.stats().by_device;
            assert_eq!(by_device > 0, way != "cpu", "{way}");
            assert_eq!(queue.stats().all_drops(), 0);
            drop((queue, row, done));
            assert_eq!(pool.free(), 512, "{way}: every buffer comes back");
        }
    }
}

#[test]
fn packets_from_the_guest_come_out_in_order() {
    let mut chance = Chance::new(4);
    for (way, options) in ways() {
        for features in layouts() {
            let (mut guest, ring) = Guest::new(64, features, Direction::Transmit);
            let pool = pool();
            let mut queue = Virtqueue::new(ring, &pool, &options);
            let (mut into, mut spare) = (pool.empty(64), pool.allocate(100));
            let (mut expected, mut received) = (VecDeque::new(), 0);
            while received < 600 {
                loop {
                    let len = 1 + chance.below(1800) as u32;
                    let bytes = chance.bytes(len as usize);
                    // The header alone, with the packet, or the packet split anywhere.
                    let cut = 1 + chance.below(u64::from(len) + 11) as u32;
                    let lens = [cut, len + 12 - cut];
                    let lens = &lens[..2 - usize::from(lens[1] == 0)];
                    if !guest.send(&bytes, lens) {
                        break;
                    }
                    expected.push_back(bytes);
                }
                queue.try_dequeue_burst(&mut into, &mut spare, 32);
                for packet in into.iter() {
                    assert_eq!(Some(packet), expected.pop_front().as_deref(), "{way} {features:?}");
                    received += 1;
                }
                let count = into.len();
                into.move_to(count, &mut spare);
                for (id, len) in guest.driver.collect() {
                    assert_eq!(len, 0);
                    guest.bytes_of(id, 0);
                }
            }
            assert_eq!(queue.stats().all_drops(), 0);
        }
    }
}

#[test]
fn a_packet_spans_several_chains_with_mergeable_buffers() {
    for features in layouts() {
        for (way, options) in ways() {
            let (mut guest, ring) = Guest::new(64, features | Features::MRG_RXBUF, Direction::Receive);
            let pool = pool();
            let mut queue = Virtqueue::new(ring, &pool, &options);
            let (mut row, mut done) = (pool.empty(4), pool.empty(4));
            let mut chance = Chance::new(5);
            for len in [1, 87, 88, 89, 188, 189, 1000, 1188] {
                let bytes = chance.bytes(len);
                put(&mut row, &bytes);
                assert_eq!(queue.submit_enqueue_burst(&mut row), 0, "no buffers yet");
                // One less than it needs.
                let chains = (len + HEADER).div_ceil(100);
                (1..chains).for_each(|_| assert!(guest.offer(&[30, 70])));
                assert_eq!(queue.submit_enqueue_burst(&mut row), 0, "not enough buffers yet");
                assert_eq!(usize::from(queue.ring().outstanding()), 0, "and those there are stay for the next look");
                assert!(guest.offer(&[100]));
                assert_eq!(queue.submit_enqueue_burst(&mut row), 1, "{way} {len}");
                while queue.poll_enqueue_completed(&mut done) == 0 {}
                assert_eq!(guest.receive(), [bytes]);
                done.truncate(0);
            }
        }
    }
}

#[test]
fn invalid_chains_never_block_a_queue() {
    for features in layouts() {
        for merge in [Features::empty(), Features::MRG_RXBUF] {
            let (mut guest, ring) = Guest::new(32, features | merge, Direction::Receive);
            let pool = pool();
            let mut queue = Virtqueue::new(ring, &pool, &QueueOptions::default());
            let (mut row, mut done) = (pool.empty(4), pool.empty(4));
            // Runts, invalid addresses, and between them chains that are too short alone.
            assert!(guest.offer(&[1, 1]));
            let id = guest.driver.offer(&[(0, 2000)]).unwrap();
            guest.lent.insert(id, Vec::new());
            if !merge.is_empty() {
                assert!(guest.offer(&[100]));
            }
            assert!(guest.offer(&[11]));
            assert!(guest.offer(&[1512]));
            assert!(guest.offer(&[1512]));
            let (one, two) = (vec![1; 1500], vec![2; 60]);
            put(&mut row, &one);
            put(&mut row, &two);
            assert_eq!(queue.submit_enqueue_burst(&mut row), 2, "{features:?}");
            assert_eq!(queue.poll_enqueue_completed(&mut done), 2);
            assert_eq!(guest.receive(), [one, two]);
            assert_eq!((queue.stats().drops(DropReason::Runt), queue.stats().all_drops()), (2, 3));
            assert_eq!(guest.driver.lent(), 0, "every chain is back");
            // Also when no packet follows them.
            assert!(guest.offer(&[5]));
            put(&mut row, &[1]);
            assert_eq!(queue.submit_enqueue_burst(&mut row), 0);
            queue.poll_enqueue_completed(&mut done);
            assert_eq!((guest.receive().len(), guest.driver.lent()), (0, 0));
        }
    }
}

#[test]
fn a_packet_too_long_for_its_buffer_is_dropped_and_the_next_uses_it() {
    let (mut guest, ring) = Guest::new(8, Features::empty(), Direction::Receive);
    let pool = pool();
    let mut queue = Virtqueue::new(ring, &pool, &QueueOptions::default());
    let (mut row, mut done) = (pool.empty(4), pool.empty(4));
    assert!(guest.offer(&[1512]));
    put(&mut row, &[1; 1501]);
    put(&mut row, &[2; 1500]);
    assert_eq!(queue.submit_enqueue_burst(&mut row), 2);
    assert_eq!(queue.poll_enqueue_completed(&mut done), 1);
    assert_eq!((guest.receive(), queue.stats().drops(DropReason::Short)), (vec![vec![2; 1500]], 1));
    assert_eq!(pool.free(), 511);
}

#[test]
fn packets_longer_than_pool_buffers_are_dropped_and_counted() {
    for features in layouts() {
        let (mut guest, ring) = Guest::new(16, features, Direction::Transmit);
        let pool = PacketPool::new(PoolOptions { buffers: 8, longest: 1000 }).unwrap();
        let mut queue = Virtqueue::new(ring, &pool, &QueueOptions::default());
        let (mut into, mut spare) = (pool.empty(8), pool.allocate(8));
        assert!(guest.offer(&[11]) && guest.offer(&[12]) && guest.offer(&[12, 1001]));
        let id = guest.driver.offer(&[(u64::MAX - 5, 100)]).unwrap();
        guest.lent.insert(id, Vec::new());
        assert!(guest.send(&[7; 1000], &[1012]));
        assert_eq!(queue.try_dequeue_burst(&mut into, &mut spare, 32), 1);
        assert_eq!(into.get(0), Some(&[7; 1000][..]));
        let stats = queue.stats();
        assert_eq!((stats.drops(DropReason::Runt), stats.drops(DropReason::Long), stats.all_drops()), (2, 1, 4));
        assert_eq!((guest.driver.collect().len(), guest.driver.lent(), spare.len()), (5, 0, 7));
    }
}

/// A queue over devices that do nothing until the test lets them.
struct Adversary {
    devices: Vec<Arc<TestDevice>>,
    options: QueueOptions,
}

fn adversary(dma_queues: usize, hybrid: CopyPolicy) -> Adversary {
    let devices: Vec<_> = (0..dma_queues).map(|_| Arc::new(TestDevice::new(QueueMode::Shared, 16))).collect();
    devices.iter().for_each(|device| device.state().manual = true);
    let dma_queue =
        |device: &Arc<TestDevice>| Arc::new(DmaQueue::new(Arc::clone(device) as Arc<dyn Portal>, 32).unwrap());
    let dma_queues = devices.iter().map(dma_queue).collect();
    Adversary { devices, options: QueueOptions { hybrid, dma_queues, in_flight: 32 } }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Devices complete in any order, in part, with faults, or stop: the guest sees each packet once, intact, in order.
    #[test]
    fn the_order_of_completions_is_not_visible(
        layout in 0_usize..4,
        merge: bool,
        dma_queues in 1_usize..4,
        threshold in 0_u32..700,
        seed: u64,
        steps in prop::collection::vec((0_u8..7, any::<u16>()), 1..120),
    ) {
        let features = layouts()[layout] | if merge { Features::MRG_RXBUF } else { Features::empty() };
        let adversary = adversary(dma_queues, CopyPolicy::From(threshold));
        let (mut guest, ring) = Guest::new(32, features, Direction::Receive);
        let pool = pool();
        let mut queue = Virtqueue::new(ring, &pool, &adversary.options);
        let (mut row, mut done) = (pool.empty(32), pool.empty(32));
        let mut chance = Chance::new(seed);
        let mut expected = VecDeque::new();
        let check = |guest: &mut Guest, expected: &mut VecDeque<Vec<u8>>| {
            for packet in guest.receive() {
                prop_assert_eq!(Some(packet), expected.pop_front());
            }
            Ok(())
        };
        for (step, number) in steps {
            let device = &adversary.devices[usize::from(number) % dma_queues];
            match step {
                0 => while guest.offer(if merge { &[300, 200] } else { &[800, 400] }) {},
                1 | 2 => {
                    for _ in 0..number % 9 {
                        let len = 1 + chance.below(1100) as usize;
                        let bytes = chance.bytes(len);
                        put(&mut row, &bytes);
                        expected.push_back(bytes);
                    }
                    queue.submit_enqueue_burst(&mut row);
                }
                3 => drop(device.run(usize::from(number % 5))),
                4 => {
                    // The queue's next descriptors end with an error, without moving any byte.
                    let failing = [Status::PageFault, Status::from_code(0x10), Status::from_code(0x1f)];
                    device.state().answers.push_back(failing[usize::from(number) % 3]);
                }
                5 if number % 16 == 0 => device.stop("as the test wants it"),
                _ => {
                    queue.poll_enqueue_completed(&mut done);
                    done.truncate(0);
                    check(&mut guest, &mut expected)?;
                }
            }
        }
        // Finally all packets have arrived.
        adversary.devices.iter().for_each(|device| device.state().manual = false);
        let mut looks = 0;
        while !expected.is_empty() {
            while guest.offer(&[1500]) {}
            queue.submit_enqueue_burst(&mut row);
            queue.poll_enqueue_completed(&mut done);
            done.truncate(0);
            check(&mut guest, &mut expected)?;
            looks += 1;
            prop_assert!(looks < 5_000_000, "{} packets are still out", expected.len());
        }
        prop_assert_eq!((queue.in_flight(), queue.stats().all_drops()), (0, 0));
        drop((queue, row, done));
        prop_assert_eq!(pool.free(), 512);
    }
}

/// A queue of a device that never completes, with four packets in flight.
fn four_in_flight(pool: &PacketPool) -> (Adversary, Guest, Virtqueue) {
    let adversary = adversary(1, CopyPolicy::Device);
    let (mut guest, ring) = Guest::new(8, Features::empty(), Direction::Receive);
    let mut queue = Virtqueue::new(ring, pool, &adversary.options);
    let mut row = pool.empty(4);
    for byte in 0..4 {
        assert!(guest.offer(&[1000]));
        put(&mut row, &[byte; 900]);
    }
    assert_eq!(queue.submit_enqueue_burst(&mut row), 4);
    (adversary, guest, queue)
}

#[test]
fn packets_return_to_the_pool_when_a_late_device_completes() {
    let pool = pool();
    let (mut adversary, guest, queue) = four_in_flight(&pool);
    drop(queue);
    assert_eq!(pool.free(), 508, "buffers that the device may still read are not reused");
    let counts = Arc::strong_count(guest.memory.memory());
    adversary.devices.iter().for_each(|device| device.state().manual = false);
    adversary.options.dma_queues.clear();
    assert_eq!(pool.free(), 512);
    assert!(Arc::strong_count(guest.memory.memory()) < counts, "a DMA queue let the memory go");
}

#[test]
fn memory_of_a_device_that_never_completes_is_kept() {
    let pool = pool();
    let (mut adversary, guest, queue) = four_in_flight(&pool);
    let base = guest.memory.memory().host(guest.memory.region().guest, 1).unwrap();
    let memory = Arc::downgrade(guest.memory.memory());
    drop((queue, guest));
    adversary.options.dma_queues.clear();
    assert_eq!((pool.free(), memory.upgrade().and_then(|memory| memory.host(0x10_0000, 1))), (508, Some(base)));
}

/// A clock that advances only while a thread rests, by this long at every rest.
#[derive(Debug)]
struct RestClock {
    nanos: AtomicU64,
    step: Duration,
}

impl Clock for RestClock {
    fn now(&self) -> Moment {
        Moment { nanos: self.nanos.load(Ordering::Relaxed) }
    }

    fn rest(&self, _: Rest) {
        self.nanos.fetch_add(self.step.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// Once, a drop read the system's clock and left finding out that the queue had stopped to its 128th poll. On a busy
/// machine it gave up before that.
#[test]
fn a_drop_gets_buffers_back_from_a_stopped_queue_however_rarely_it_polls() {
    for step in [Duration::from_micros(1), Duration::from_millis(1), Duration::from_secs(60)] {
        let device = Arc::new(TestDevice::new(QueueMode::Shared, 64));
        device.state().manual = true;
        let clock = Arc::new(RestClock { nanos: AtomicU64::new(0), step });
        let dma_queue = Arc::new(DmaQueue::with_clock(Arc::clone(&device) as Arc<dyn Portal>, 64, clock).unwrap());
        let options = QueueOptions { hybrid: CopyPolicy::Device, dma_queues: vec![dma_queue], in_flight: 64 };
        let pool = pool();
        let (mut guest, ring) = Guest::new(8, Features::empty(), Direction::Receive);
        let mut queue = Virtqueue::new(ring, &pool, &options);
        assert!(guest.offer(&[1000]));
        let mut row = pool.empty(1);
        put(&mut row, &[7; 900]);
        assert_eq!(queue.submit_enqueue_burst(&mut row), 1);
        device.stop("as the test wants it");
        drop(queue);
        assert_eq!((pool.free(), options.dma_queues[0].in_flight()), (512, 0), "{step:?}");
    }
}
