use super::*;
use crate::ring::{Direction, MockDriver, MockGuest, RingSetup};
use proptest::prelude::*;

const SIZE: u16 = 16;
const LAYOUTS: [Features; 2] = [Features::empty(), Features::RING_PACKED];

/// A frontend's guest and record, which outlive backends.
struct World {
    guest: MockGuest,
    driver: MockDriver,
    place: RecordPlace,
    file: OwnedFd,
    features: Features,
    /// Chains that the driver has offered so far.
    offered: u64,
}

/// A backend, for as long as it lives.
struct Backend {
    ring: Ring,
    record: RingRecord,
    owed: VecDeque<Used>,
}

/// Where a backend dies.
#[derive(Clone, Copy, Debug)]
enum DiesAt {
    BeforeRecording,
    Taken,
    Linked,
    Put,
    Published,
    Settled,
}

impl World {
    fn new(features: Features) -> World {
        let mut guest = MockGuest::new(1 << 20);
        let driver = MockDriver::new(&mut guest, SIZE, features, Direction::Transmit);
        let asked = RecordPlace { rings: 2, size: SIZE, ..RecordPlace::default() };
        let (place, file) = Record::make(asked, features).unwrap();
        World { guest, driver, place, file, features, offered: 0 }
    }

    /// Offers a chain; the length of its first buffer is its number.
    fn offer(&mut self, descriptors: u64) {
        let first = self.guest.region().guest;
        let len = u32::try_from(self.offered + 1).unwrap();
        let buffers: Vec<_> = (0..descriptors).map(|at| (first + at, if at == 0 { len } else { 1 << 12 })).collect();
        if self.driver.offer(&buffers).is_some() {
            self.offered += 1;
        }
    }

    fn record(&self) -> Arc<Record> {
        Arc::new(Record::open(self.place, &self.file, self.features).unwrap())
    }

    /// A backend that resumes from the record and the ring, with a base that is completely wrong.
    fn backend(&self) -> Result<Backend, InflightRecordError> {
        let setup = self.driver.setup();
        let ring = Ring::new(self.guest.memory(), setup).unwrap();
        let (record, resumed) = RingRecord::begin(&self.record(), 1, &ring)?;
        let mut ring = Ring::new(self.guest.memory(), RingSetup { base: resumed.base, ..setup }).unwrap();
        ring.resume(resumed.heads);
        Ok(Backend { ring, record, owed: VecDeque::new() })
    }
}

impl Backend {
    /// Takes chains; returns their numbers.
    fn take(&mut self, most: usize, recorded: bool) -> Vec<u32> {
        let mut burst = Burst::with_capacity(SIZE.into());
        self.ring.take(&mut burst, most).unwrap();
        if recorded {
            self.record.taken(&self.ring, &burst);
        }
        self.owed.extend(burst.chains().iter().map(|chain| Used::of(chain, 0)));
        burst.chains().iter().map(|chain| burst.pieces(chain)[0].len()).collect()
    }

    fn put(&mut self, count: usize, death: DiesAt) {
        let back: Vec<_> = self.owed.drain(..count.min(self.owed.len())).collect();
        if back.is_empty() || matches!(death, DiesAt::BeforeRecording | DiesAt::Taken) {
            return;
        }
        self.record.goes_back(&back, self.ring.base());
        if matches!(death, DiesAt::Linked) {
            return;
        }
        self.ring.put(&back);
        if matches!(death, DiesAt::Put) {
            return;
        }
        let _ = self.ring.publish();
        if matches!(death, DiesAt::Published) {
            return;
        }
        self.record.went_back(&back, self.ring.base());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Offer(u64),
    Take(usize),
    Put(usize),
    Die(usize, usize, DiesAt),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let death = prop_oneof![
        Just(DiesAt::BeforeRecording),
        Just(DiesAt::Taken),
        Just(DiesAt::Linked),
        Just(DiesAt::Put),
        Just(DiesAt::Published),
        Just(DiesAt::Settled),
    ];
    let step = prop_oneof![
        4 => (1_u64..4).prop_map(Step::Offer),
        2 => (0_usize..9).prop_map(Step::Take),
        2 => (0_usize..9).prop_map(Step::Put),
        1 => (0_usize..9, 0_usize..9, death).prop_map(|(take, put, death)| Step::Die(take, put, death)),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    /// The mock driver panics if a chain is used twice.
    #[test]
    fn wherever_a_backend_dies_its_successor_retakes_unreturned_chains_in_order(steps in steps(), packed in any::<bool>()) {
        let mut world = World::new(LAYOUTS[usize::from(packed)]);
        let mut backend = world.backend().unwrap();
        // The number of the next chain that a backend takes for the first time, or again.
        let mut next = 1;
        let mut back = 0;
        for step in steps {
            match step {
                Step::Offer(descriptors) => world.offer(descriptors),
                Step::Take(most) => {
                    let taken = backend.take(most, true);
                    prop_assert_eq!(&taken, &(next..).take(taken.len()).collect::<Vec<_>>());
                    next += u32::try_from(taken.len()).unwrap();
                }
                Step::Put(count) => backend.put(count, DiesAt::Settled),
                Step::Die(take, put, death) => {
                    backend.take(take, !matches!(death, DiesAt::BeforeRecording));
                    backend.put(put, death);
                    back += world.driver.collect().len();
                    backend = world.backend().unwrap();
                    next = u32::try_from(back).unwrap() + 1;
                }
            }
            back += world.driver.collect().len();
        }
        loop {
            let taken = backend.take(4, true);
            backend.put(SIZE.into(), DiesAt::Settled);
            if taken.is_empty() {
                break;
            }
        }
        back += world.driver.collect().len();
        prop_assert_eq!((back as u64, world.driver.lent()), (world.offered, 0));
    }

    /// CVE-2026-86565, CVE-2020-10726: a record is untrusted: whatever it contains, a ring is resumed or refused.
    #[test]
    fn a_record_with_random_contents_is_resumed_or_refused(
        words in prop::collection::vec(prop_oneof![any::<u64>(), 0_u64..70_000, Just(1 | 16 << 16)], 200),
        valid in any::<bool>(),
        packed in any::<bool>(),
    ) {
        let mut world = World::new(LAYOUTS[usize::from(packed)]);
        (0..5).for_each(|_| world.offer(2));
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(usize::try_from(world.place.len).unwrap(), 7);
        if valid {
            let part = stride(SIZE, packed) * 8;
            bytes[part + 8..part + 12].copy_from_slice(&[1, 0, 16, 0]);
        }
        rustix::io::pwrite(&world.file, &bytes, 0).unwrap();
        if let Ok(mut backend) = world.backend() {
            let mut burst = Burst::with_capacity(16);
            if backend.ring.take(&mut burst, 16).is_ok() {
                backend.record.taken(&backend.ring, &burst);
                backend.owed.extend(burst.chains().iter().map(|chain| Used::of(chain, 0)));
                rustix::io::pwrite(&world.file, &bytes, 0).unwrap();
                backend.put(16, DiesAt::Settled);
            }
        }
    }
}

/// Source: vhost-user, "Inflight I/O tracking": the layout of a split ring's part, after three chains were taken and
/// one was returned.
#[test]
fn a_split_rings_record_has_the_protocols_layout() {
    let mut world = World::new(LAYOUTS[0]);
    let mut backend = world.backend().unwrap();
    (0..3).for_each(|_| world.offer(1));
    backend.take(3, true);
    let heads: Vec<u16> = backend.owed.iter().map(|used| used.id).collect();
    backend.put(1, DiesAt::Settled);
    let mut bytes = vec![0; usize::try_from(world.place.len).unwrap()];
    rustix::io::pread(&world.file, &mut bytes, 0).unwrap();
    let part = &bytes[(16 + 16 * usize::from(SIZE)).next_multiple_of(64)..];
    // Features, version, descriptors, last head, used index.
    assert_eq!(part[..16], [&[0; 8][..], &[1, 0, 16, 0], &heads[0].to_le_bytes(), &[1, 0]].concat());
    for (index, &head) in heads.iter().enumerate() {
        let entry = &part[16 + 16 * usize::from(head)..][..16];
        let counter = (index as u64 + 1).to_le_bytes();
        assert_eq!((entry[0], &entry[8..]), (u8::from(index > 0), &counter[..]));
    }
}

/// Another backend returns chains out of order: then only the record has the heads, and they come first, oldest first.
#[test]
fn chains_returned_out_of_order_are_retaken_in_order() {
    let mut world = World::new(LAYOUTS[0]);
    let mut backend = world.backend().unwrap();
    (0..4).for_each(|_| world.offer(1));
    backend.take(4, true);
    // The second and third chain are returned first, and the driver offers others in their slots.
    let (second, third) = (backend.owed.remove(1).unwrap(), backend.owed.remove(1).unwrap());
    let kept = std::mem::replace(&mut backend.owed, VecDeque::from([third, second]));
    backend.put(2, DiesAt::Settled);
    assert_eq!(world.driver.collect().len(), 2);
    drop((backend, kept));
    world.offer(1);
    let mut backend = world.backend().unwrap();
    assert_eq!(backend.take(16, true), [1, 4, 5]);
    backend.put(3, DiesAt::Settled);
    assert_eq!((world.driver.collect().len(), world.driver.lent()), (3, 0));
}

#[test]
fn a_packed_ring_used_out_of_order_is_refused() {
    let mut world = World::new(LAYOUTS[1]);
    let mut backend = world.backend().unwrap();
    (0..3).for_each(|_| world.offer(1));
    backend.take(3, true);
    let second = backend.owed.remove(1).unwrap();
    backend.owed = VecDeque::from([second]);
    // What another backend does: the second chain's entry is the free one now.
    backend.record.entries.swap(0, 1);
    backend.put(1, DiesAt::Settled);
    assert!(matches!(world.backend(), Err(InflightRecordError::Damaged { .. })));
}

/// CVE-2026-86565 and similar, word by word: values in an untrusted record are checked before they are used.
#[test]
fn inconsistent_records_are_refused() {
    let refused = |features: Features, at: usize, halves: [u16; 4]| {
        let mut world = World::new(features);
        let mut backend = world.backend().unwrap();
        (0..3).for_each(|_| world.offer(1));
        backend.take(3, true);
        backend.put(2, DiesAt::Settled);
        world.driver.collect();
        let part = stride(SIZE, features == LAYOUTS[1]) * 8;
        let place = (part + 8 * at) as u64;
        let mut sane = [0; 8];
        rustix::io::pread(&world.file, &mut sane, place).unwrap();
        assert!(world.backend().is_ok());
        rustix::io::pwrite(&world.file, &word(halves).to_le_bytes(), place).unwrap();
        let refused = matches!(world.backend(), Err(InflightRecordError::Damaged { ring: 1, .. }));
        rustix::io::pwrite(&world.file, &sane, place).unwrap();
        assert!(world.backend().is_ok());
        refused
    };
    let [split, packed] = LAYOUTS;
    // Version, descriptors, last head, used index: the ring has used two.
    for halves in [
        [2, SIZE, 0, 2],
        [1, SIZE + 1, 0, 2],
        [1, SIZE, 0, 3],
        [1, SIZE, 0, 2_u16.wrapping_sub(SIZE + 1)],
        [1, SIZE, SIZE, 0],
        [1, SIZE, u16::MAX, 1],
    ] {
        assert!(refused(split, 1, halves), "{halves:?}");
    }
    // The same with the current and the previous free list.
    for halves in [[2, SIZE, 0, 0], [1, SIZE - 1, 0, 0], [1, SIZE, SIZE + 1, 0], [1, SIZE, 0, SIZE + 1]] {
        assert!(refused(packed, 1, halves), "{halves:?}");
    }
    // The current and the previous used index.
    for halves in [[SIZE, 2, 0x101, 0], [2, SIZE, 0x101, 0], [2 | 1 << 15, 2, 0x101, 0]] {
        assert!(refused(packed, 2, halves), "{halves:?}");
    }
}

#[test]
fn invalid_record_files_are_refused() {
    for features in LAYOUTS {
        let world = World::new(features);
        let open = |place| Record::open(place, &world.file, features).map(|_| ());
        let place = world.place;
        assert!(open(place).is_ok());
        assert!(matches!(open(RecordPlace { len: place.len - 1, ..place }), Err(InflightRecordError::Short { .. })));
        assert!(matches!(open(RecordPlace { rings: 3, ..place }), Err(InflightRecordError::Short { .. })));
        assert!(matches!(open(RecordPlace { size: 32, ..place }), Err(InflightRecordError::Short { .. })));
        assert!(matches!(open(RecordPlace { offset: 8, ..place }), Err(InflightRecordError::Map(_))));
        assert!(matches!(open(RecordPlace { offset: u64::MAX - 8, ..place }), Err(InflightRecordError::Map(_))));
        assert!(matches!(open(RecordPlace { len: u64::MAX, ..place }), Err(InflightRecordError::Map(_))));
        rustix::fs::ftruncate(&world.file, 3 * place.len).unwrap();
        assert!(matches!(open(RecordPlace { offset: 3, ..place }), Err(InflightRecordError::Unaligned { offset: 3 })));
        assert!(open(RecordPlace { offset: 8, ..place }).is_ok());
        // A ring without a part in the record, or a smaller one.
        let part = |number, size| {
            let mut guest = MockGuest::new(1 << 20);
            let driver = MockDriver::new(&mut guest, size, features, Direction::Transmit);
            let ring = Ring::new(guest.memory(), driver.setup()).unwrap();
            RingRecord::begin(&world.record(), number, &ring).map(|_| ())
        };
        assert!(matches!(part(2, SIZE), Err(InflightRecordError::Damaged { ring: 2, .. })));
        assert!(matches!(part(0, 2 * SIZE), Err(InflightRecordError::Damaged { ring: 0, .. })));
        assert!(part(0, SIZE).is_ok());
        assert!(matches!(part(0, SIZE / 2), Err(InflightRecordError::Damaged { ring: 0, .. })));
    }
}
