//! Requests to a file without a connection: many at a time, odd lengths, the end of the storage, block devices.

use super::{FilePool, FileStorage, SIZE, TestFile, ways};
use crate::skip;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use telpher_nvmf::engine::{JobId, Segment, Shared};
use telpher_nvmf::file::{Access, FileError, FileOptions, PageCacheReason};
use telpher_nvmf::loops::{LoopInbox, Loops};
use telpher_nvmf::status::Status;
use telpher_nvmf::storage::{Piece, Started, Storage, StorageRequest, StorageResult};
use telpher_os::Random;

const CONNECTION: u64 = 7;

/// Collects answers by the slot of their command.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    answers: Mutex<HashMap<u32, StorageResult>>,
    came: Condvar,
}

impl LoopInbox for Inbox {
    fn answer(&self, id: JobId, result: StorageResult) {
        assert_eq!(id.connection, CONNECTION);
        let before = self.answers.lock().unwrap().insert(id.slot, result);
        assert!(before.is_none(), "command {} has two answers", id.slot);
        self.came.notify_one();
    }

    fn target_changed(&self) {}
}

/// A file with an inbox instead of a server.
pub(super) struct Fixture {
    pub(super) loops: Arc<Loops>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) storage: FileStorage,
}

impl Fixture {
    pub(super) fn new(path: &Path, options: FileOptions) -> Fixture {
        let loops = Arc::new(Loops::default());
        let inbox = Arc::new(Inbox::default());
        loops.register(CONNECTION, Arc::<Inbox>::clone(&inbox));
        let pool = FilePool::with_options(options, &loops).unwrap();
        let storage =
            if path.exists() { FileStorage::open(path, &pool) } else { FileStorage::create(path, SIZE, &pool) };
        Fixture { loops, inbox, storage: storage.unwrap() }
    }

    fn start(&self, slot: u32, request: StorageRequest) {
        let id = JobId { connection: CONNECTION, slot, generation: 0, part: 0 };
        if let Started::Done(result) = self.storage.start(id, request) {
            self.inbox.answer(id, result);
        }
    }

    fn wait(&self, slot: u32) -> StorageResult {
        let answers = self.inbox.answers.lock().unwrap();
        let mut answers = self.inbox.came.wait_while(answers, |answers| !answers.contains_key(&slot)).unwrap();
        answers.remove(&slot).unwrap()
    }

    pub(super) fn request(&self, request: StorageRequest) -> StorageResult {
        self.start(u32::MAX, request);
        self.wait(u32::MAX)
    }

    pub(super) fn read(&self, start: u64, len: u64) -> Vec<u8> {
        bytes(self.request(StorageRequest::Read { start, len }))
    }
}

fn bytes(result: StorageResult) -> Vec<u8> {
    result.unwrap().iter().flat_map(|segment| segment.as_slice().to_vec()).collect()
}

/// A write of `data` in pieces of `piece` bytes, at odd addresses.
pub(super) fn write(start: u64, data: &[u8], piece: usize) -> StorageRequest {
    let odd = |part: &[u8]| Segment::new(Shared::new([&[0xaa], part].concat()), 1..part.len() + 1);
    let pieces = data.chunks(piece).map(|part| Piece::Bytes(odd(part))).collect();
    StorageRequest::Write { start, pieces, force: start.is_multiple_of(65536) }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(&mut bytes);
    bytes
}

#[test]
fn more_requests_than_a_ring_holds_are_all_answered() {
    for options in ways() {
        let file = TestFile::new("many");
        let fixture = Fixture::new(&file.0, options);
        let block = |number: u32| pattern(u64::from(number), 4096);
        let start = |number: u32| u64::from(number) * 4096;
        for number in 0..1000 {
            fixture.start(number, write(start(number), &block(number), 1000));
        }
        for number in 0..1000 {
            assert!(fixture.wait(number).unwrap().is_empty());
        }
        for number in 0..1000 {
            fixture.start(number, StorageRequest::Read { start: start(number), len: 4096 });
        }
        for number in 0..1000 {
            assert!(bytes(fixture.wait(number)) == block(number), "{options:?}: block {number}");
        }
    }
}

#[test]
fn a_storage_that_is_dropped_executes_what_it_has_accepted() {
    for options in ways() {
        let file = TestFile::new("drop");
        let Fixture { loops, inbox, storage } = Fixture::new(&file.0, options);
        let fixture = Fixture { loops: Arc::clone(&loops), inbox: Arc::clone(&inbox), storage };
        for number in 0..600 {
            let data = pattern(number, 8192);
            fixture.start(u32::try_from(number).unwrap(), write(number * 8192, &data, 8192));
        }
        drop(fixture);
        assert_eq!(inbox.answers.lock().unwrap().len(), 600, "the answers come before the end of the drop");
        assert!(inbox.answers.lock().unwrap().values().all(Result::is_ok));
        let written = std::fs::read(&file.0).unwrap();
        for (number, chunk) in (0..600).zip(written.chunks(8192)) {
            assert!(chunk == pattern(number, 8192), "{options:?}: {number}");
        }
        // The connection ends while its requests are open. Nothing waits for their answers.
        let fixture = Fixture::new(&file.0, options);
        for number in 0..600 {
            fixture.start(number, StorageRequest::Read { start: 0, len: 128 << 10 });
            if number == 300 {
                fixture.loops.forget(CONNECTION);
            }
        }
    }
}

#[test]
fn all_lengths_and_positions_read_what_was_written() {
    for options in ways() {
        let file = TestFile::new("lengths");
        let fixture = Fixture::new(&file.0, options);
        let mut expected = vec![0; usize::try_from(SIZE).unwrap()];
        let mut random = Random::new(5);
        // Multiples of 512 bytes first, which O_DIRECT may execute; then blocks of 520 bytes.
        for unit in [512_u64, 520] {
            for round in 0..100 {
                let blocks = 1 + random.below(256);
                let start = random.below(SIZE / unit - blocks) * unit;
                let range = usize::try_from(start).unwrap()..usize::try_from(start + blocks * unit).unwrap();
                let data = pattern(random.next(), range.len());
                let piece = 1 + usize::try_from(random.below(20_000)).unwrap();
                match round % 4 {
                    0 => {
                        let (len, force) = (range.len() as u64, random.below(2) == 0);
                        fixture.request(StorageRequest::WriteZeroes { start, len, force }).unwrap();
                        expected[range].fill(0);
                    }
                    _ => {
                        fixture.request(write(start, &data, piece)).unwrap();
                        expected[range].copy_from_slice(&data);
                    }
                }
                let blocks = 1 + random.below(256);
                let start = random.below(SIZE / unit - blocks) * unit;
                let range = usize::try_from(start).unwrap()..usize::try_from(start + blocks * unit).unwrap();
                assert!(fixture.read(start, blocks * unit) == expected[range], "{options:?}: {unit} {round}");
            }
        }
        fixture.request(StorageRequest::Flush).unwrap();
        drop(fixture);
        assert!(std::fs::read(&file.0).unwrap() == expected);
    }
}

#[test]
fn blocks_that_o_direct_cannot_write_end_direct_access_without_loss() {
    for options in ways() {
        let file = TestFile::new("odd-blocks");
        let fixture = Fixture::new(&file.0, options);
        let before = fixture.storage.access();
        // Blocks of 520 bytes share their pages with blocks of 4096 bytes, some of which are still being written.
        let page = |number: u64| pattern(number, 4096);
        // Writes to allocated blocks do not wait for each other in the file system.
        for start in (0..SIZE).step_by(128 << 10) {
            fixture.request(write(start, &[1; 128 << 10], 128 << 10)).unwrap();
        }
        for number in 0..250 {
            fixture.start(u32::try_from(number).unwrap(), write(number * 4096, &page(number), 4096));
        }
        fixture.wait(0).unwrap();
        // The only block of 520 bytes that begins in a page at this distance from its start.
        let odd_start = |number: u64| (number * 4096).next_multiple_of(520);
        for number in 50..250 {
            fixture.start(1000 + u32::try_from(number).unwrap(), write(odd_start(number), &pattern(number, 520), 100));
        }
        for slot in (1..250).chain(1050..1250) {
            fixture.wait(slot).unwrap();
        }
        let Access::Direct(alignment) = before else {
            assert_eq!(fixture.storage.access(), before);
            continue;
        };
        let needed = alignment.position;
        assert_eq!(fixture.storage.access(), Access::PageCache(PageCacheReason::Blocks { needed }));
        let mut expected: Vec<u8> = (0..250).flat_map(page).collect();
        for number in 50..250 {
            let start = usize::try_from(odd_start(number)).unwrap();
            expected[start..start + 520].copy_from_slice(&pattern(number, 520));
        }
        assert!(fixture.read(0, 250 * 4096) == expected, "{options:?}");
        drop(fixture);
        assert!(std::fs::read(&file.0).unwrap()[..250 * 4096] == expected);
    }
}

/// Each sector names itself and the write that it is from.
fn marked(start: u64, len: u64, generation: u64) -> Vec<u8> {
    let sector = |at: u64| [(start / 512 + at).to_le_bytes(), generation.to_le_bytes()].concat().repeat(32);
    (0..len / 512).flat_map(sector).collect()
}

#[test]
fn overlapping_writes_leave_whole_sectors_of_one_of_them() {
    for options in ways() {
        let file = TestFile::new("overlap");
        let fixture = Fixture::new(&file.0, options);
        let mut random = Random::new(11);
        let mut writes = Vec::new();
        for generation in 0..400_u32 {
            let len = (1 + random.below(32)) * 4096;
            let start = random.below(16) * 4096;
            writes.push(start..start + len);
            fixture.start(generation, write(start, &marked(start, len, generation.into()), 9000));
        }
        for generation in 0..400 {
            fixture.wait(generation).unwrap();
        }
        for (sector, found) in (0..).zip(fixture.read(0, 47 * 4096).chunks(512)) {
            let generation = u64::from_le_bytes(found[8..16].try_into().unwrap());
            assert!(found == marked(sector * 512, 512, generation), "{options:?}: sector {sector} is torn");
            assert!(writes[usize::try_from(generation).unwrap()].contains(&(sector * 512)));
        }
    }
}

#[test]
fn a_size_that_no_file_system_has_is_capacity_exceeded() {
    for options in ways() {
        let file = TestFile::new("size");
        let fixture = Fixture::new(&file.0, options);
        assert_eq!(fixture.storage.resize(i64::MAX.cast_unsigned()), Err(Status::CAPACITY_EXCEEDED));
        assert_eq!(fixture.storage.capacity(), SIZE);
        let beyond = StorageRequest::Read { start: u64::MAX - 511, len: 4096 };
        assert_eq!(fixture.request(beyond).unwrap_err(), Status::LBA_RANGE);
    }
}

#[test]
fn a_file_that_shrinks_under_writes_stays_as_short_as_it_was_made() {
    for options in ways() {
        let file = TestFile::new("shrink");
        let fixture = Fixture::new(&file.0, options);
        for round in 0..20 {
            fixture.storage.resize(SIZE).unwrap();
            for number in 0..100 {
                fixture.start(number, write(SIZE - 4096 * (u64::from(number) + 1), &[1; 4096], 4096));
            }
            fixture.storage.resize(SIZE / 2).unwrap();
            assert_eq!(std::fs::metadata(&file.0).unwrap().len(), SIZE / 2);
            for number in 0..100 {
                fixture.wait(number).unwrap();
            }
            assert_eq!(std::fs::metadata(&file.0).unwrap().len(), SIZE / 2, "{options:?}: {round}");
        }
    }
}

/// Holds the last storage of a pool, and drops it with its first answer, on the thread of the pool.
#[derive(Debug)]
struct LastUser {
    storage: Mutex<Option<FileStorage>>,
    has_dropped: Mutex<mpsc::Sender<()>>,
}

impl LoopInbox for LastUser {
    fn answer(&self, _id: JobId, _result: StorageResult) {
        drop(self.storage.lock().unwrap().take());
        self.has_dropped.lock().unwrap().send(()).unwrap();
    }

    fn target_changed(&self) {}
}

/// Regression: the thread waited for its own end, and panicked.
#[test]
fn a_pool_ends_by_an_answer_of_its_own_thread() {
    for options in ways() {
        let file = TestFile::new("last-user");
        let loops = Arc::new(Loops::default());
        let pool = FilePool::with_options(options, &loops).unwrap();
        let storage = FileStorage::create(&file.0, SIZE, &pool).unwrap();
        drop(pool);
        let (has_dropped, dropped) = mpsc::channel();
        let inbox = Arc::new(LastUser { storage: Mutex::new(Some(storage)), has_dropped: Mutex::new(has_dropped) });
        loops.register(CONNECTION, Arc::<LastUser>::clone(&inbox));
        let id = JobId { connection: CONNECTION, slot: 0, generation: 0, part: 0 };
        let started = inbox.storage.lock().unwrap().as_ref().unwrap().start(id, StorageRequest::Flush);
        assert!(matches!(started, Started::Later));
        drop(loops);
        drop(inbox);
        assert_eq!(dropped.recv(), Ok(()), "the thread panicked");
        // All threads have ended when no sender is left.
        assert!(dropped.recv().is_err());
    }
}

/// A loop device on a file.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn new(file: &Path) -> Result<LoopDevice, String> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        let output = output.map_err(|error| format!("losetup does not start: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().into());
        }
        Ok(LoopDevice(String::from_utf8(output.stdout).unwrap().trim().into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let status = Command::new("losetup").arg("--detach").arg(&self.0).status();
        assert!(std::thread::panicking() || status.unwrap().success());
    }
}

#[test]
fn a_block_device_is_a_namespace() {
    for options in ways() {
        let file = TestFile::new("device");
        std::fs::File::create(&file.0).unwrap().set_len(SIZE).unwrap();
        let device = match LoopDevice::new(&file.0) {
            Ok(device) => device,
            Err(error) => return skip::skip("a_block_device_is_a_namespace", &format!("no loop device: {error}")),
        };
        let fixture = Fixture::new(&device.0, options);
        assert_eq!(fixture.storage.capacity(), SIZE);
        assert_eq!(matches!(fixture.storage.access(), Access::Direct(_)), options.direct);
        let pool = FilePool::with_options(options, &fixture.loops).unwrap();
        assert!(matches!(FileStorage::open(&device.0, &pool), Err(FileError::InUse { .. })));
        let data = pattern(3, 128 << 10);
        fixture.request(write(SIZE - (128 << 10), &data, 5000)).unwrap();
        let zeroes = StorageRequest::WriteZeroes { start: SIZE - (64 << 10), len: 4096, force: true };
        fixture.request(zeroes).unwrap();
        let ranges = vec![(SIZE - (128 << 10), 4096), (0, 65536), (4096, 0)];
        fixture.request(StorageRequest::Deallocate { ranges }).unwrap();
        fixture.request(StorageRequest::Flush).unwrap();
        let read = fixture.read(SIZE - (128 << 10), 128 << 10);
        assert!(read[4096..64 << 10] == data[4096..64 << 10] && read[68 << 10..] == data[68 << 10..]);
        assert!(read[64 << 10..68 << 10].iter().all(|&byte| byte == 0));
        assert_eq!(fixture.storage.resize(SIZE + 4096), Err(Status::CAPACITY_EXCEEDED));
        fixture.storage.resize(SIZE / 2).unwrap();
        assert_eq!(
            fixture.request(StorageRequest::Read { start: SIZE / 2, len: 4096 }).unwrap_err(),
            Status::LBA_RANGE
        );
        fixture.storage.resize(SIZE).unwrap();
        assert!(fixture.read(SIZE - 4096, 4096) == data[124 << 10..]);
        drop(fixture);
        drop(device);
        assert!(std::fs::read(&file.0).unwrap()[usize::try_from(SIZE).unwrap() - 4096..] == data[124 << 10..]);
    }
}
