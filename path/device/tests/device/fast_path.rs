//! Short copies and CRCs without an observer take a fast path through the model. Their results must equal those of the
//! steps.
#![allow(unsafe_code, reason = "descriptors are vouched for: their addresses mean memory that is nowhere")]

use std::sync::Arc;
use telpher_abi::registers::PortalKind;
use telpher_abi::{Descriptor, Flags, Opcode, Status};
use telpher_device::{Config, ModelDevice, ModelOptions, Preset, Runner, WqMode};
use telpher_mem::{Fault, MockSpace, Protection, Space, WriteHint};
use telpher_model::{Observer, PciControl, layout};
use telpher_os::Random;
use telpher_portal::{Portal, Submission};

/// An observer that does nothing, so that everything goes by steps.
#[derive(Debug)]
struct PassiveObserver;

impl Observer for PassiveObserver {}

const PASID: u32 = 7;
const BASE: u64 = 0x10_0000;
const PAGES: u64 = 12;
/// Lists are in the first page, records in the second, data in all pages.
const LIST: u64 = BASE;
const RECORDS: u64 = BASE + 0x1000;

/// A deterministic random number generator with ranges and choices.
struct Rng(Random);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0.next()
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn address(&mut self) -> u64 {
        match self.below(30) {
            0 => self.next(),
            1 => u64::MAX - self.below(300),
            2..=5 => BASE + self.below(PAGES) * 0x1000 + 0xf00 + self.below(0x200),
            // The range of lists and records.
            6 => BASE + self.below(0x2000),
            _ => BASE + 0x2000 + self.below((PAGES - 2) * 0x1000 - 300),
        }
    }

    fn size(&mut self) -> u32 {
        let size = match self.below(40) {
            0 => 0,
            1 => self.next() & 0xffff_ffff,
            2 => (1 << 14) - 1 + self.below(3),
            3 => self.below(9000),
            _ => 1 + self.below(300),
        };
        u32::try_from(size).expect("cut to 32 bits")
    }

    /// Returns mostly a copy or a CRC that a device accepts; sometimes anything.
    fn descriptor(&mut self, place: u64) -> Descriptor {
        let src = self.address();
        // Sometimes an overlapping copy.
        let dst = if self.once_in(8) { src.wrapping_add(self.below(200)).wrapping_sub(100) } else { self.address() };
        let size = self.size();
        let d = if self.once_in(4) {
            Descriptor::crc_generation(src, size, u32::try_from(self.next() >> 32).expect("32 bits"))
        } else {
            Descriptor::memory_move(src, dst, size)
        };
        let mut d = d.with_record(RECORDS + place * 32);
        if self.once_in(3) {
            d = d.with_flags(d.flags().difference(Flags::REQUEST_COMPLETION_RECORD));
        }
        if self.once_in(2) {
            d = d.and_flags(Flags::CACHE_CONTROL_1);
        }
        match self.below(40) {
            0 => d = d.and_flags(Flags::FENCE),
            1 => d = d.and_flags(Flags::BLOCK_ON_FAULT),
            2 => d = d.and_flags(Flags::from_bits_retain(1 << self.below(24))),
            3 => d = d.with_flags(Flags::from_bits_retain(u32::try_from(self.next() & 0xff_ffff).expect("24 bits"))),
            4 => d.0[4] |= 1 << (32 + self.below(32)),
            5 => d.0[5 + usize::try_from(self.below(3)).expect("small")] |= 1 << self.below(64),
            6 => d.0[1] = self.address(),
            7 => d.0[1] = self.address() & !31,
            8 => d.0[0] = d.0[0] & !(0xff << 56) | self.below(0x22) << 56,
            9 => d = Descriptor::fill(self.next(), dst, self.size()).with_record(RECORDS + place * 32),
            10 => d = Descriptor::nop(),
            11 => d.0[0] |= self.next() & 0xffff_ffff,
            12 => d.0[1] = 0,
            _ => {}
        }
        d
    }
}

/// A device and its memory.
struct DeviceUnderTest {
    device: ModelDevice,
    space: Arc<MockSpace>,
    portal: Arc<dyn Portal>,
}

/// A space with two owners.
#[derive(Debug)]
struct Shared(Arc<MockSpace>);

impl Space for Shared {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.0.read(address, into)
    }
    fn write(&self, address: u64, from: &[u8], hint: WriteHint) -> Result<(), Fault> {
        self.0.write(address, from, hint)
    }
    fn move_forward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        self.0.move_forward(dst, src, len, hint)
    }
    fn move_backward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        self.0.move_backward(dst, src, len, hint)
    }
    fn fill(&self, dst: u64, pattern: [u64; 2], len: u64, hint: WriteHint) -> Result<(), Fault> {
        self.0.fill(dst, pattern, len, hint)
    }
    fn compare(&self, a: u64, b: u64, len: u64) -> Result<Option<u64>, Fault> {
        self.0.compare(a, b, len)
    }
    fn compare_pattern(&self, a: u64, pattern: u64, len: u64) -> Result<Option<u64>, Fault> {
        self.0.compare_pattern(a, pattern, len)
    }
    fn flush(&self, address: u64, len: u64) -> Result<(), Fault> {
        self.0.flush(address, len)
    }
    fn write_record(&self, address: u64, record: &[u64; 4]) -> Result<(), Fault> {
        self.0.write_record(address, record)
    }
    fn page_request(&self, address: u64, write: bool) -> bool {
        self.0.page_request(address, write)
    }
}

impl DeviceUnderTest {
    fn start(options: ModelOptions) -> DeviceUnderTest {
        let device = ModelDevice::start(options).unwrap();
        let space = Arc::new(MockSpace::new());
        space.map(BASE, usize::try_from(PAGES).unwrap(), Protection::ReadWrite);
        assert!(device.add_space(PASID, Box::new(Shared(Arc::clone(&space)))));
        let portal = device.portal_as(0, PortalKind::UnlimitedMsix, None, PASID);
        DeviceUnderTest { device, space, portal }
    }

    fn offer(&self, d: Descriptor) {
        // SAFETY: the portal submits for a PASID whose addresses refer to simulated memory.
        let _ = self.portal.offer(&unsafe { Submission::vouch(d) });
    }

    /// Returns the whole visible state: memory, page requests, registers.
    fn state(&self) -> (Vec<u8>, String, Vec<u64>) {
        let bytes = self.space.peek(BASE, usize::try_from(PAGES * 0x1000).unwrap());
        // SAFETY: only reads.
        let device = unsafe { self.device.device() };
        let registers = (0..layout::MSIX_PBA + 0x100).step_by(8);
        (bytes, format!("{:?}", self.space.requests()), registers.map(|at| device.read_register(at, 8)).collect())
    }
}

/// Changes the state of pages before the next burst.
fn disturb(rng: &mut Rng, sides: &[&DeviceUnderTest]) {
    let page = BASE + rng.below(PAGES) * 0x1000;
    let (what, count) = (rng.below(6), rng.below(20));
    for side in sides {
        match what {
            0 => side.space.set_present(page, false),
            1 => side.space.protect(page, Protection::Read),
            2 => side.space.vanish_after(page, count),
            3 => side.space.refuse_requests(page, count % 2 == 0),
            _ => {
                side.space.set_present(page, true);
                side.space.protect(page, Protection::ReadWrite);
                side.space.refuse_requests(page, false);
            }
        }
    }
}

/// Returns the number of copies and of CRCs.
fn compare(seed: u64) -> [usize; 2] {
    let mut rng = Rng(Random::new(seed));
    let preset = Preset::ALL[usize::try_from(rng.below(3)).unwrap()];
    let mut config = Config::single(WqMode::Shared, 16, 1);
    let mut options = ModelOptions::of(preset);
    if rng.once_in(4) {
        config.groups[0].grouped_workqueues[0].block_on_fault = 0;
        options.pci = PciControl { prs: false, page_requests: 0, ..options.pci };
    }
    let options = options.with_config(config);
    let steps = DeviceUnderTest::start(options.clone().with_observer(Arc::new(PassiveObserver)));
    let plain = DeviceUnderTest::start(options);
    let mut counts = [0; 2];
    for burst in 0..12 {
        if rng.once_in(3) {
            disturb(&mut rng, &[&steps, &plain]);
        }
        let data: Vec<u8> = (0..256).map(|_| rng.next().to_le_bytes()[0]).collect();
        let at = BASE + 0x2000 + rng.below((PAGES - 2) * 0x1000 - 256);
        let members: Vec<_> = (0..rng.below(50)).map(|place| rng.descriptor(place)).collect();
        let single = rng.descriptor(100);
        for side in [&steps, &plain] {
            side.space.poke(RECORDS, &[0; 0x1000]);
            side.space.poke(at, &data);
            for (place, member) in (0..).zip(&members) {
                side.space.poke(LIST + place * 64, &member.to_bytes());
            }
            let count = u32::try_from(members.len()).unwrap();
            side.offer(Descriptor::batch(LIST, count).with_record(RECORDS + 101 * 32));
            side.offer(single);
        }
        let qualifying = [Opcode::MemoryMove, Opcode::CrcGeneration];
        for (count, opcode) in counts.iter_mut().zip(qualifying) {
            *count += members.iter().filter(|d| d.opcode() == opcode).count();
        }
        let (by_steps, by_plain) = (steps.state(), plain.state());
        if by_steps != by_plain {
            let byte = by_steps.0.iter().zip(&by_plain.0).position(|(a, b)| a != b);
            let register = by_steps.2.iter().zip(&by_plain.2).position(|(a, b)| a != b);
            panic!(
                "seed {seed} burst {burst} {preset:?}: the first byte that differs is {byte:x?}, the first register \
                 {register:x?}, page requests {}\n{members:#x?}",
                by_steps.1 == by_plain.1,
            );
        }
    }
    counts
}

#[test]
fn the_fast_path_gives_the_bytes_records_and_registers_of_the_steps() {
    let counts: Vec<[usize; 2]> = (0..300).map(compare).collect();
    let [copies, crcs] = [0, 1].map(|at| counts.iter().map(|counts| counts[at]).sum::<usize>());
    assert!(copies > 50_000 && crcs > 15_000, "{copies} {crcs}");
}

/// The threaded engine uses the fast path, too, and the members of many bursts arrive complete.
#[test]
fn a_threaded_engine_copies_batches_longer_than_one_burst() {
    let device = ModelDevice::start(ModelOptions::of(Preset::Spr).with_runner(Runner::Threaded)).unwrap();
    let portal = device.portal("wq0.0").unwrap();
    let cell = telpher_portal::RecordCell::new();
    for len in [64_u32, 1518, 16 << 10, (16 << 10) + 1] {
        let src: Vec<u8> = (0..len).map(|i| i.to_le_bytes()[0]).collect();
        let mut dst = vec![vec![0; src.len()]; 100];
        let list: Vec<_> = dst
            .iter_mut()
            .map(|dst| Descriptor::memory_move(src.as_ptr() as u64, dst.as_mut_ptr() as u64, len))
            .collect();
        cell.clear();
        let batch = Descriptor::batch(list.as_ptr() as u64, 100).with_record(cell.address());
        // SAFETY: sources and destinations live until the record is written, and no other code accesses them.
        let batch = unsafe { Submission::vouch(batch) };
        while portal.offer(&batch) == telpher_portal::Offer::Retry {}
        while cell.status().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(cell.status().map(|byte| byte.status()), Some(Status::Success));
        assert!(dst.iter().all(|dst| *dst == src), "{len}");
    }
}
