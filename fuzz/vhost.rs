//! One input on two virtqueues: a guest that writes anything into its memory between any two calls, with copies by the
//! CPU and by a faulty device. The backend survives, writes nothing outside the guest's regions, shows the guest only
//! packets, and gets all its buffers back.
//!
//! An input is a list of steps, each a byte and its operands: make chains available (valid and invalid ones), write any
//! bytes anywhere, advance an index, submit, poll, dequeue; let the device execute some descriptors, fault, answer with
//! an error, stop; truncate the guest's file; set a ring up again. Used by the libFuzzer target and by the bounded test
//! `uses/vhost/tests/fuzz_vhost.rs`.

#[allow(dead_code, clippy::cast_possible_truncation, reason = "only a part is used; tests truncate small numbers")]
#[path = "../path/mover/tests/common/device.rs"]
mod device;
#[allow(dead_code, clippy::cast_possible_truncation, reason = "only a part is used; tests truncate small numbers")]
#[path = "../path/mover/tests/common/naive.rs"]
mod naive;

use device::TestDevice;
use rustix::fs::MemfdFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use telpher_abi::Status;
use telpher_mover::ManualClock;
use telpher_portal::{Portal, QueueMode};
use telpher_vhost::layout::Features;
use telpher_vhost::ring::{Base, Direction, Ring, RingAddresses, RingSetup};
use telpher_vhost::{
    CopyPolicy, DmaQueue, GuestMemory, PacketPool, Packets, PoolOptions, QueueOptions, Region, Virtqueue,
};

/// Guest memory: two regions that are adjacent for the guest but apart in the file, and that begin and end within
/// pages, and a small separate one.
const REGIONS: [Region; 3] = [
    Region { guest: 0x1_0010, len: 0x7ff0, user: 0x7_0001_0010, offset: 0x1010 },
    Region { guest: 0x1_8000, len: 0x4008, user: 0x7_0009_0000, offset: 0xb100 },
    Region { guest: 0xffff_ffff_ffff_f000, len: 0x123, user: 0x7_0011_0000, offset: 0x1_2020 },
];
/// Bytes of the file.
const FILE: usize = 0x1_4000;
/// The fill byte of the file outside the regions.
const CANARY: u8 = 0xc5;
/// The fill byte of buffers behind their packets; no guest writes it.
const SECRET: u8 = 0xa7;
/// Descriptors of the rings; the packed one's need not be a power of two.
const SIZES: [u16; 2] = [16, 13];
/// Offsets of the rings in their region, and the distance of the two virtqueues' rings.
const RING: u64 = 0xff0;
const APART: u64 = 0x400;
/// Buffers of the pool.
const BUFFERS: u32 = 64;
/// The longest packet.
const LONGEST: u32 = 2000;
/// Most steps of an input: longer inputs find nothing new.
const STEPS: usize = 300;

/// The rest of an input; zeros after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn below(&mut self, n: u16) -> u16 {
        self.word() % n
    }

    /// An address of a buffer: mostly in a region, sometimes near the end of one, or anywhere.
    fn address(&mut self) -> u64 {
        let region = REGIONS[usize::from(self.byte() % 3)];
        match self.byte() % 16 {
            0 => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
            1 | 2 => (region.guest + region.len).wrapping_sub(u64::from(self.byte())),
            3 => region.guest - u64::from(self.byte() % 4),
            _ => 0x1_4000 + u64::from(self.below(0x7000)),
        }
    }

    /// Bytes of a buffer.
    fn len(&mut self) -> u32 {
        match self.byte() % 16 {
            0 => u32::from_le_bytes(std::array::from_fn(|_| self.byte())),
            1 => 0,
            2 => u32::from(self.byte() % 14),
            _ => u32::from(self.below(1600)),
        }
    }
}

/// One virtqueue, with the driver's state.
struct Queue {
    queue: Option<Virtqueue>,
    setup: RingSetup,
    /// Guest addresses of its parts.
    parts: RingAddresses,
    /// The next position that the driver would write (and, of a packed ring, its wrap counter).
    next: u16,
    turn: bool,
}

struct Fixture {
    file: OwnedFd,
    memory: Arc<GuestMemory>,
    device: Arc<TestDevice>,
    options: QueueOptions,
    pool: PacketPool,
    sides: [Queue; 2],
    spare: Packets,
    /// The file was truncated.
    torn: bool,
}

/// Runs one input; panics if a promise is broken.
pub(crate) fn play(input: &[u8]) {
    let mut input = Input(input);
    let mut scene = Fixture::new(&mut input);
    for _ in 0..STEPS {
        if input.0.is_empty() {
            break;
        }
        scene.step(&mut input);
    }
    scene.end();
}

impl Fixture {
    fn new(input: &mut Input<'_>) -> Fixture {
        let file = rustix::fs::memfd_create("telpher-fuzz-guest", MemfdFlags::CLOEXEC).expect("a file in memory");
        let mut bytes = vec![CANARY; FILE];
        for region in REGIONS {
            bytes[at(region.offset)..at(region.offset + region.len)].fill(0);
        }
        assert_eq!(rustix::io::pwrite(&file, &bytes, 0).expect("room for the guest"), FILE);
        let table: Vec<_> = REGIONS.iter().map(|region| (*region, file.as_fd())).collect();
        let memory = Arc::new(GuestMemory::new().replaced(&table).expect("valid regions"));

        let device = Arc::new(TestDevice::new(QueueMode::Shared, 1 + u32::from(input.byte() % 16)));
        device.state().manual = true;
        // Time passes only while a thread rests, so no input depends on the machine's speed.
        let (portal, clock) =
            (Arc::clone(&device) as Arc<dyn Portal>, Arc::new(ManualClock::new(Duration::from_micros(1))));
        let dma_queue = DmaQueue::with_clock(portal, 1 + u32::from(input.byte() % 32), clock);
        let dma_queue = Arc::new(dma_queue.expect("a queue with entries"));
        let hybrid = [CopyPolicy::Cpu, CopyPolicy::Device, CopyPolicy::From(200)][usize::from(input.byte() % 3)];
        let options =
            QueueOptions { hybrid, dma_queues: vec![dma_queue], in_flight: 1 + usize::from(input.byte() % 32) };

        let pool = PacketPool::new(PoolOptions { buffers: BUFFERS, longest: LONGEST }).expect("memory for packets");
        let mut all = pool.allocate(at(BUFFERS.into()));
        for index in 0..all.len() {
            all.resize(index, LONGEST);
            all.get_mut(index).expect("the index is in range").fill(SECRET);
        }
        drop(all);

        let chosen = input.byte();
        let choices = [
            Features::MRG_RXBUF,
            Features::INDIRECT_DESC,
            Features::EVENT_IDX,
            Features::VERSION_1,
            Features::RING_PACKED,
            Features::IN_ORDER,
        ];
        let picked = (0..).zip(choices).filter(|(bit, _)| chosen >> bit & 1 == 1);
        let features = picked.fold(Features::empty(), |features, (_, feature)| features | feature);
        let packed = features.contains(Features::RING_PACKED);
        let sides = [Direction::Receive, Direction::Transmit].map(|direction| {
            let first = RING + APART * u64::from(direction == Direction::Transmit);
            // All in the first region, which the frontend maps at another distance.
            let parts = |base: u64| RingAddresses {
                descriptors: base + first,
                driver: base + first + 0x200,
                device: base + first + 0x280,
            };
            let base = if packed { Base { available: 1 << 15, used: 1 << 15 } } else { Base::default() };
            let (user, guest) = (parts(REGIONS[0].user), parts(REGIONS[0].guest));
            let setup = RingSetup { size: SIZES[usize::from(packed)], features, direction, addresses: user, base };
            Queue { queue: None, setup, parts: guest, next: 0, turn: true }
        });
        let spare = pool.empty(32);
        let mut scene = Fixture { file, memory, device, options, pool, sides, spare, torn: false };
        (0..2).for_each(|side| scene.set_up(side));
        scene
    }

    /// Resets the ring to its beginning. Copies in flight complete first: the device works here.
    fn set_up(&mut self, side: usize) {
        self.device.state().manual = false;
        self.sides[side].queue = None;
        self.device.state().manual = true;
        let setup = self.sides[side].setup;
        if let Ok(ring) = Ring::new(&self.memory, setup) {
            let side = &mut self.sides[side];
            (side.next, side.turn) = (ring.base().available & 0x7fff, true);
            side.queue = Some(Virtqueue::new(ring, &self.pool, &self.options));
        }
    }

    fn poke(&self, guest: u64, bytes: &[u8]) {
        // The guest writes only its own memory, and never the secret byte.
        let known = |&byte: &u8| if [SECRET, CANARY].contains(&byte) { 0 } else { byte };
        let bytes: Vec<u8> = bytes.iter().map(known).collect();
        let region = REGIONS.iter().find(|region| guest.checked_sub(region.guest).is_some_and(|at| at < region.len));
        let Some(region) = region else { return };
        let from = guest - region.guest;
        let room = at(region.len - from).min(bytes.len());
        if !self.torn {
            rustix::io::pwrite(&self.file, &bytes[..room], region.offset + from).expect("the file exists");
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let side = usize::from(input.byte() % 2);
        match input.byte() % 24 {
            0..=6 => self.offer(side, input),
            7 => {
                let bytes: Vec<u8> = (0..input.byte() % 64).map(|_| input.byte()).collect();
                self.poke(input.address(), &bytes);
            }
            8 => {
                // Anywhere in the ring.
                let offset = u64::from(input.below(0x300));
                self.poke(self.sides[side].parts.descriptors + offset, &[input.byte(), input.byte()]);
            }
            9 => {
                let index = input.word();
                self.poke(self.sides[side].parts.driver + 2, &index.to_le_bytes());
            }
            10..=13 => self.submit(input),
            14 | 15 => self.poll(),
            16 | 17 => self.dequeue(input),
            18 | 19 => drop(self.device.run(usize::from(input.byte() % 8))),
            20 | 21 => self.misbehave(input),
            22 => {
                if let Some(queue) = &mut self.sides[side].queue {
                    let _ = (queue.wants_call(), queue.broken(), queue.ring().available());
                }
            }
            _ => match input.byte() {
                // Only once: truncating again at a larger size would extend the file with zeros.
                0..=3 if !self.torn => {
                    // From now on the guest has memory of its own that the test does not see.
                    self.torn = true;
                    rustix::fs::ftruncate(&self.file, u64::from(input.below(0x6000))).expect("files may shrink");
                }
                4..=90 => self.set_up(side),
                _ => {}
            },
        }
    }

    /// Chains as a driver makes them, sometimes with invalid links.
    fn offer(&mut self, side: usize, input: &mut Input<'_>) {
        let packed = self.sides[side].setup.features.contains(Features::RING_PACKED);
        let size = self.sides[side].setup.size;
        for _ in 0..1 + input.byte() % 4 {
            let links = 1 + u16::from(input.byte() % 3);
            let head = self.sides[side].next;
            for link in 0..links {
                let more = link + 1 < links;
                let mut flags = u16::from(more) | u16::from(side == 0) << 1;
                match input.byte() {
                    odd @ 0..=7 => flags ^= 1 << (odd % 3),
                    8..=15 => flags |= 4,
                    _ => {}
                }
                let (address, len) = (input.address(), input.len());
                let len = if flags & 4 != 0 { len % 20 * 16 } else { len };
                // Chains of a split ring are three descriptors apart.
                let place = if packed { self.sides[side].next } else { (head % size * 3 + link) % size };
                let words = if packed {
                    [head, flags | if self.sides[side].turn { 1 << 7 } else { 1 << 15 }]
                } else {
                    [flags, (place + 1) % size]
                };
                let mut bytes = address.to_le_bytes().to_vec();
                bytes.extend(len.to_le_bytes());
                words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
                self.poke(self.sides[side].parts.descriptors + 16 * u64::from(place), &bytes);
                if packed {
                    let side = &mut self.sides[side];
                    let around = side.next + 1 == size;
                    (side.next, side.turn) = (if around { 0 } else { side.next + 1 }, side.turn != around);
                }
            }
            if !packed {
                let driver = self.sides[side].parts.driver;
                self.poke(driver + 4 + 2 * u64::from(head % size), &(head % size * 3 % size).to_le_bytes());
                self.sides[side].next = head.wrapping_add(1);
                self.poke(driver + 2, &head.wrapping_add(1).to_le_bytes());
            }
        }
    }

    fn submit(&mut self, input: &mut Input<'_>) {
        let Some(queue) = &mut self.sides[0].queue else { return };
        let mut row = self.pool.allocate(usize::from(input.byte() % 8));
        for index in 0..row.len() {
            let longest = if input.byte().is_multiple_of(8) { LONGEST } else { 300 };
            let len = 1 + u32::from(input.word()) % longest;
            row.resize(index, len);
            row.get_mut(index).expect("the index is in range").fill(input.byte() & 0x7f);
        }
        let before = row.len();
        assert_eq!(queue.submit_enqueue_burst(&mut row), before - row.len());
    }

    fn poll(&mut self) {
        let Some(queue) = &mut self.sides[0].queue else { return };
        let mut done = self.pool.empty(32);
        queue.poll_enqueue_completed(&mut done);
        hide(&mut done);
    }

    fn dequeue(&mut self, input: &mut Input<'_>) {
        let Some(queue) = &mut self.sides[1].queue else { return };
        self.spare.fetch(usize::from(input.byte() % 16));
        let mut into = self.pool.empty(32);
        let most = usize::from(input.byte() % 33);
        let came = queue.try_dequeue_burst(&mut into, &mut self.spare, most);
        assert_eq!((came, came <= most), (into.len(), true));
        let beyond = |packet: &[u8]| packet.windows(4).any(|bytes| bytes == [CANARY; 4]);
        assert!(!into.iter().any(beyond), "a packet has bytes from outside the regions");
        hide(&mut into);
    }

    fn misbehave(&mut self, input: &mut Input<'_>) {
        let errors = [Status::PageFault, Status::BadOpcode, Status::HardwareWriteError, Status::TranslationFailure];
        let (what, operand) = (input.byte() % 8, input.byte());
        match what {
            0 | 1 => {
                let host = self.memory.host(REGIONS[0].guest + (u64::from(operand) << 7), 1);
                self.device.fault(host.expect("the address is in the region"), 1 + u32::from(operand % 4));
            }
            2 | 3 => self.device.state().answers.extend([errors[usize::from(operand) % errors.len()]]),
            4 => self.device.state().retries = u64::from(operand % 16),
            // Permanent.
            5 if operand % 8 == 0 => self.device.stop("as the input wants it"),
            _ => self.device.state().faults.clear(),
        }
    }

    fn end(mut self) {
        self.device.state().manual = false;
        self.sides.iter_mut().for_each(|side| side.queue = None);
        self.spare.truncate(0);
        assert_eq!(self.pool.free(), at(BUFFERS.into()), "all buffers are returned");
        let mut bytes = vec![0; FILE];
        let len = rustix::io::pread(&self.file, &mut *bytes, 0).expect("the file exists");
        for (index, byte) in bytes[..len].iter().enumerate() {
            let inside =
                REGIONS.iter().any(|region| (region.offset..region.offset + region.len).contains(&(index as u64)));
            assert!(inside || *byte == CANARY, "byte {index:#x} of the file, outside the regions, is {byte:#x}");
        }
        let secrets = bytes[..len].windows(4).filter(|bytes| *bytes == [SECRET; 4]).count();
        assert_eq!(secrets, 0, "the guest sees bytes behind a packet");
    }
}

/// Fills the packets' buffers as in the beginning.
fn hide(packets: &mut Packets) {
    for index in 0..packets.len() {
        packets.resize(index, LONGEST);
        packets.get_mut(index).expect("the index is in range").fill(SECRET);
    }
}

fn at(number: u64) -> usize {
    usize::try_from(number).expect("a small number")
}
