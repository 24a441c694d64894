//! One input on the control plane: a frontend that sends any messages with any files, between bursts of a switch whose
//! copies use a late, faulty or stopped device. The backend survives. After the frontend has gone, the backend has no
//! file and no memory mapping of it left, and it wrote only inside the memory regions of the guest that the frontend
//! named.
//!
//! An input is a list of steps, each a byte and its operands: messages (any bytes; or valid except for an operand),
//! chains and bytes of the guest, bursts, the device, the end of a session. Used by the libFuzzer target and by the
//! bounded test `uses/vhost/tests/fuzz_control.rs`.

#[allow(dead_code, clippy::cast_possible_truncation, reason = "only a part is used; tests truncate small numbers")]
#[path = "../path/mover/tests/common/device.rs"]
mod device;
#[allow(dead_code, clippy::cast_possible_truncation, reason = "only a part is used; tests truncate small numbers")]
#[path = "../path/mover/tests/common/naive.rs"]
mod naive;

use device::TestDevice;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::MemfdFlags;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use telpher_abi::Status;
use telpher_portal::{Portal, QueueMode};
use telpher_vhost::layout::Features;
use telpher_vhost::message::{Header, Reply};
use telpher_vhost::{
    Control, CopyPolicy, DmaQueue, Offer, PacketPool, Packets, PoolOptions, Port, PortOptions, QueueOptions, Region,
};

/// The guest's memory regions, in this order; rings are in the first.
const REGIONS: [Region; 3] = [
    Region { guest: 0x1_0000, len: 0x6000, user: 0x7_0001_0000, offset: 0x1000 },
    Region { guest: 0x1_6000, len: 0x2000, user: 0x7_0009_0000, offset: 0x8000 },
    Region { guest: 0x10_0000, len: 0x3000, user: 0x7_0011_0000, offset: 0xb000 },
];
/// Bytes of the guest's file.
const FILE: usize = 0x1_0000;
/// Its name, by which a leaked mapping is found.
const NAME: &str = "telpher-fuzz-frontend";
/// The fill byte of the file outside the regions.
const CANARY: u8 = 0xc5;
/// Offsets of a ring's parts in the first region, and the distance of rings.
const DESCRIPTORS: u64 = 0x100;
const DRIVER: u64 = 0x300;
const DEVICE: u64 = 0x400;
const APART: u64 = 0x800;
/// Descriptors of a ring.
const SIZE: u16 = 16;
const RINGS: u32 = 4;
const BUFFERS: u32 = 64;
/// Most steps of an input: longer inputs find nothing new.
const STEPS: usize = 300;

/// The rest of an input; zeros after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// The intended value, or sometimes any.
    fn or_any(&mut self, meant: u64) -> u64 {
        match self.byte() {
            0..=3 => self.word(),
            4..=7 => meant.wrapping_add(u64::from(self.byte())),
            _ => meant,
        }
    }

    /// A ring number, rarely of a ring that does not exist.
    fn ring(&mut self) -> u32 {
        let ring = u32::from(self.byte());
        if ring < 250 { ring % RINGS } else { ring }
    }
}

struct Fixture {
    port: Arc<Port>,
    control: Option<Control>,
    pool: PacketPool,
    device: Arc<TestDevice>,
    file: OwnedFd,
    /// The inflight record that a backend gave away.
    record: Option<(Vec<u8>, OwnedFd)>,
    features: u64,
    /// For each ring: the next position of its driver, and its wrap counter (packed).
    next: [(u16, bool); RINGS as usize],
    rows: [Packets; 2],
    /// The frontend named regions that are not in the list above.
    made_up: bool,
}

/// Runs one input; panics if a promise is broken.
pub(crate) fn play(input: &[u8]) {
    let files = open_files();
    let mut input = Input(input);
    let mut scene = Fixture::new(&mut input);
    for _ in 0..STEPS {
        if input.0.is_empty() {
            break;
        }
        scene.step(&mut input);
    }
    scene.end();
    assert_eq!(open_files(), files, "files of a disconnected frontend are still open");
}

/// Counts open files, without the two that a process opens once and keeps: for signals, and for its statistics.
fn open_files() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").expect("a list of open files");
    let kept = |link: &std::path::Path| {
        let link = link.to_string_lossy();
        link.starts_with("/memfd:telpher-eventfd") || link.starts_with("/memfd:telpher-metrics")
    };
    files
        .filter(|file| !file.as_ref().is_ok_and(|file| std::fs::read_link(file.path()).is_ok_and(|link| kept(&link))))
        .count()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn memory_file(name: &str, len: usize) -> OwnedFd {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).expect("a file in memory");
    rustix::fs::ftruncate(&file, len as u64).expect("room for it");
    file
}

impl Fixture {
    fn new(input: &mut Input<'_>) -> Fixture {
        let file = memory_file(NAME, FILE);
        let mut bytes = vec![CANARY; FILE];
        for region in REGIONS {
            bytes[at(region.offset)..at(region.offset + region.len)].fill(0);
        }
        assert_eq!(rustix::io::pwrite(&file, &bytes, 0).expect("room for the guest"), FILE);
        let device = Arc::new(TestDevice::new(QueueMode::Shared, 1 + u32::from(input.byte() % 16)));
        device.state().manual = true;
        let dma_queue =
            Arc::new(DmaQueue::new(Arc::clone(&device) as Arc<dyn Portal>, 32).expect("a queue with entries"));
        let hybrid = [CopyPolicy::Cpu, CopyPolicy::Device, CopyPolicy::From(200)][usize::from(input.byte() % 3)];
        let queue = QueueOptions { hybrid, dma_queues: vec![dma_queue], in_flight: 16 };
        let pool = PacketPool::new(PoolOptions { buffers: BUFFERS, longest: 2000 }).expect("memory for packets");
        // Do not wait for late copies.
        let options = PortOptions { offer: Offer::of_pairs(2), rings: vec![queue], drain_timeout: Duration::ZERO };
        let port = Port::new(&pool, options);
        let rows = [pool.empty(32), pool.empty(32)];
        let packed = if input.byte().is_multiple_of(2) { 0 } else { Features::RING_PACKED.bits() };
        let features = (Features::VERSION_1 | Features::MRG_RXBUF | Features::PROTOCOL_FEATURES).bits() | packed;
        let control = Control::take(&port);
        let (record, next) = (None, [(0, true); RINGS as usize]);
        Fixture { port, control, pool, device, file, record, features, next, rows, made_up: false }
    }

    fn say(&mut self, request: u32, flags: u32, payload: &[u8], files: Vec<OwnedFd>) -> Option<Reply> {
        let control = self.control.as_mut()?;
        let size = u32::try_from(payload.len()).expect("a short payload");
        let header = Header { request, flags: 1 | flags, size };
        // Like the socket: a message that is too long is never read.
        let heard = header.payload().map_err(Into::into).and_then(|_| control.hear(&header, payload, files));
        heard.unwrap_or_else(|error| {
            assert!(!error.to_string().is_empty());
            self.control = None;
            None
        })
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 32 {
            0..=4 => self.set_up(input),
            5..=9 => self.offer(input),
            10..=15 => self.burst(input),
            16..=17 => drop(self.device.run(usize::from(input.byte() % 8))),
            18 => self.misbehave(input),
            19 => self.poke(input),
            20 => self.anything(input),
            21..=28 => self.request(input),
            29 => {
                // The frontend disconnects without a message, and connects again.
                self.control = None;
            }
            _ => {
                // Waits for the kick of a ring, or not at all: its kick file may never be signalled.
                self.port.wait(at(u64::from(input.ring() % RINGS)), Duration::ZERO);
            }
        }
        if self.control.is_none() {
            self.control = Control::take(&self.port);
            assert!(self.control.is_some(), "the port has no session");
        }
    }

    /// A file, mostly the guest's.
    fn file(&mut self, input: &mut Input<'_>) -> OwnedFd {
        let same = |file: &OwnedFd| file.try_clone().expect("another file descriptor");
        match input.byte() {
            0 => std::fs::File::open("/dev/null").expect("/dev/null always exists").into(),
            1 => std::io::pipe().expect("a pipe").1.into(),
            2 => memory_file("telpher-fuzz-small", usize::from(input.byte())),
            3 => self.record.as_ref().map_or_else(|| same(&self.file), |(_, file)| same(file)),
            _ => same(&self.file),
        }
    }

    /// The initial messages of a frontend: features, memory, and one ring or all.
    fn set_up(&mut self, input: &mut Input<'_>) {
        self.say(16, 0, &words(&[telpher_vhost::message::ProtocolFeatures::all().bits()]), Vec::new());
        self.say(2, 8, &words(&[input.or_any(self.features)]), Vec::new());
        if input.byte() < 200 {
            self.table(3);
        }
        for ring in 0..if input.byte() < 128 { 2 } else { RINGS } {
            self.ring(ring, input);
        }
    }

    fn table(&mut self, count: usize) {
        let mut table = vec![count as u64];
        for Region { guest, len, user, offset } in &REGIONS[..count] {
            table.extend([*guest, *len, *user, *offset]);
        }
        let files = (0..count).map(|_| self.file.try_clone().expect("another file descriptor")).collect();
        self.say(5, 8, &words(&table), files);
    }

    fn ring(&mut self, ring: u32, input: &mut Input<'_>) {
        let state = |number: u64| words(&[u64::from(ring) | number << 32]);
        self.say(8, 8, &state(input.or_any(SIZE.into()) & 0xffff_ffff), Vec::new());
        let packed = self.features & Features::RING_PACKED.bits() != 0;
        self.say(10, 8, &state(input.or_any(if packed { 0x8000 } else { 0 }) & 0xffff_ffff), Vec::new());
        let log = u64::from(input.byte().is_multiple_of(4));
        let base = REGIONS[0].user + APART * u64::from(ring);
        let [descriptors, device, driver] = [DESCRIPTORS, DEVICE, DRIVER].map(|part| input.or_any(base + part));
        let place = words(&[u64::from(ring) | log << 32, descriptors, device, driver, REGIONS[0].guest + DEVICE]);
        self.say(9, 8, &place, Vec::new());
        for request in [13, 12] {
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
            self.say(request, 8, &words(&[ring.into()]), vec![event]);
        }
        self.say(18, 8, &state(1), Vec::new());
    }

    /// Any bytes, any files.
    fn anything(&mut self, input: &mut Input<'_>) {
        let (request, flags) = (u32::from(input.byte() % 45), u32::from(input.byte() & 8));
        let payload: Vec<u8> = (0..input.byte()).map(|_| input.byte()).collect();
        let files = (0..input.byte() % 9).map(|_| self.file(input)).collect();
        self.made_up |= [5, 37, 6, 32].contains(&request);
        self.say(request, flags, &payload, files);
    }

    /// One request that is valid except for an operand.
    fn request(&mut self, input: &mut Input<'_>) {
        // Without the need-reply flag a refused message ends the session.
        let flags = if input.byte() < 230 { 8 } else { 0 };
        let ring = input.ring();
        let state = |number: u64| words(&[u64::from(ring) | number << 32]);
        match input.byte() % 16 {
            0 => drop(self.say([1, 3, 4, 15, 17, 36, 40][usize::from(input.byte() % 7)], 0, &[], Vec::new())),
            1 => self.table(usize::from(input.byte() % 4)),
            2 | 3 => {
                let Region { guest, len, user, offset } = REGIONS[usize::from(input.byte() % 3)];
                let region = [guest, len, user, offset].map(|word| input.or_any(word));
                self.made_up |=
                    !REGIONS.contains(&Region { guest: region[0], len: region[1], user: region[2], offset: region[3] });
                let file = self.file(input);
                let request = if input.byte() < 128 { 37 } else { 38 };
                self.say(request, flags, &words(&[0, region[0], region[1], region[2], region[3]]), vec![file]);
            }
            4 | 5 => self.ring(ring % RINGS, input),
            6 | 7 => drop(self.say(11, 0, &state(0), Vec::new())),
            8 => drop(self.say(18, flags, &state(u64::from(input.byte() & 1)), Vec::new())),
            9 => {
                let log = memory_file("telpher-fuzz-log", 64);
                self.say(6, 0, &words(&[input.or_any(64), input.or_any(0)]), vec![log]);
            }
            10 => drop(self.say(2, flags, &words(&[self.features | Features::LOG_ALL.bits()]), Vec::new())),
            11 => {
                let asked = [words(&[0, 0]), vec![4, input.byte() % 2, 16, input.byte() % 2]].concat();
                if let Some(Reply::Record { place, file }) = self.say(31, 0, &asked, Vec::new()) {
                    let sizes = [place.rings.to_le_bytes(), place.size.to_le_bytes()].concat();
                    self.record = Some(([words(&[place.len, place.offset]), sizes].concat(), file));
                }
            }
            12 | 13 => {
                let Some((place, file)) = &self.record else { return };
                let (mut place, file) = (place.clone(), file.try_clone().expect("another file descriptor"));
                if input.byte().is_multiple_of(4) {
                    // The record belongs to the frontend, which may write anything.
                    let bytes = [input.byte(), input.byte()];
                    rustix::io::pwrite(&file, &bytes, u64::from(input.byte()) * 4).expect("room in the record");
                }
                if input.byte().is_multiple_of(8) {
                    place[usize::from(input.byte() % 20)] ^= input.byte();
                }
                self.say(32, flags, &place, vec![file]);
            }
            14 => drop(self.say(34, flags, &[], Vec::new())),
            _ => drop(self.say(39, flags, &words(&[input.word()]), Vec::new())),
        }
    }

    /// A chain of one buffer, as a driver makes it.
    fn offer(&mut self, input: &mut Input<'_>) {
        let ring = usize::from(input.byte()) % RINGS as usize;
        let (next, turn) = self.next[ring];
        let base = DESCRIPTORS + APART * ring as u64;
        let driver = DRIVER + APART * ring as u64;
        let region = REGIONS[usize::from(input.byte() % 3)];
        // Behind the rings, if they are in the region.
        let buffer = region.guest + 0x2100 % region.len + u64::from(input.byte());
        let (len, flags) = (40 + u32::from(input.byte()) * 4, u16::from(ring.is_multiple_of(2)) << 1);
        let packed = self.features & Features::RING_PACKED.bits() != 0;
        let words = if packed { [next, flags | if turn { 1 << 7 } else { 1 << 15 }] } else { [flags, 0] };
        let mut bytes = buffer.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        let place = next % SIZE;
        self.write(base + 16 * u64::from(place), &bytes);
        self.next[ring] = if packed {
            if place + 1 == SIZE { (0, !turn) } else { (place + 1, turn) }
        } else {
            self.write(driver + 4 + 2 * u64::from(place), &place.to_le_bytes());
            self.write(driver + 2, &next.wrapping_add(1).to_le_bytes());
            (next.wrapping_add(1), turn)
        };
    }

    /// Writes at an offset of the first region.
    fn write(&self, offset: u64, bytes: &[u8]) {
        rustix::io::pwrite(&self.file, bytes, REGIONS[0].offset + offset).expect("the file exists");
    }

    fn poke(&mut self, input: &mut Input<'_>) {
        let bytes = [input.byte(), input.byte()];
        self.write(u64::from(input.byte()) * 32, &bytes.map(|byte| if byte == CANARY { 0 } else { byte }));
    }

    fn burst(&mut self, input: &mut Input<'_>) {
        let pair = usize::from(input.byte() % 2);
        let [row, spare] = &mut self.rows;
        if input.byte() < 128 {
            spare.fetch(usize::from(input.byte() % 16));
            let most = usize::from(input.byte() % 33);
            let before = row.len();
            assert_eq!(self.port.transmit(pair, row, spare, most), row.len() - before);
            row.truncate(16);
        } else {
            let before = row.len();
            row.fetch(usize::from(input.byte() % 8));
            for index in before..row.len() {
                row.resize(index, 1 + u32::from(input.byte()) * 4);
                row.get_mut(index).expect("the index is in range").fill(input.byte() & 0x7f);
            }
            self.port.receive(pair, row, spare);
            spare.truncate(16);
        }
        // The received packets contain no bytes from outside the regions.
        let beyond = |packet: &[u8]| packet.windows(4).any(|bytes| bytes == [CANARY; 4]);
        assert!(self.made_up || !row.iter().any(beyond), "a packet has bytes from outside the regions");
    }

    fn misbehave(&mut self, input: &mut Input<'_>) {
        let errors = [Status::PageFault, Status::BadOpcode, Status::HardwareWriteError, Status::TranslationFailure];
        match input.byte() % 8 {
            0..=3 => self.device.state().answers.extend([errors[usize::from(input.byte() % 4)]]),
            4 => self.device.state().retries = u64::from(input.byte() % 16),
            // Permanent.
            5 if input.byte().is_multiple_of(8) => self.device.stop("as the input wants it"),
            _ => {}
        }
    }

    fn end(self) {
        let Fixture { port, control, pool, device, file, record, rows, made_up, .. } = self;
        drop(control);
        for ring in 0..RINGS as usize {
            assert!(!port.is_running(ring), "ring {ring} runs without a session");
        }
        drop((rows, record));
        // Late copies complete, and then everything is returned, by threads that a stop left behind.
        device.state().manual = false;
        let pairs = port.pairs();
        for pair in 0..pairs {
            let (mut into, mut spare) = (pool.empty(0), pool.empty(0));
            while port.transmit(pair, &mut into, &mut spare, 64) > 0 {}
        }
        drop(port);
        let since = Instant::now();
        let mapped = || std::fs::read_to_string("/proc/self/maps").expect("a list of mappings").contains(NAME);
        while pool.free() < at(BUFFERS.into()) || mapped() {
            assert!(since.elapsed() < Duration::from_secs(60), "{} buffers, mapped: {}", pool.free(), mapped());
            std::thread::yield_now();
        }
        let mut bytes = vec![0; FILE];
        let len = rustix::io::pread(&file, &mut *bytes, 0).expect("the file exists");
        let inside = |index: u64| REGIONS.iter().any(|it| (it.offset..it.offset + it.len).contains(&index));
        let outside = bytes[..len].iter().enumerate().filter(|(index, _)| !inside(*index as u64));
        assert!(made_up || outside.clone().all(|(_, byte)| *byte == CANARY), "bytes outside the regions were written");
    }
}

fn at(number: u64) -> usize {
    usize::try_from(number).expect("a small number")
}
