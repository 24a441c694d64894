use super::*;
use crate::digest::digest;
use crate::engine::{Segments, Work};
use crate::storage::Piece;
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use telpher_os::Random;

const ID: JobId = JobId { connection: 0, slot: 0, generation: 0, part: 0 };
const KIB_128: usize = 128 << 10;

/// The smallest reserve: 128 blocks for reads, 64 for placed data, 64 for writes.
const SMALL: MemoryOptions = MemoryOptions { reserve: LEAST_RESERVE, ..MemoryOptions::new(1 << 20) };

fn done(storage: &dyn Storage, request: StorageRequest) -> StorageResult {
    let Started::Done(result) = storage.start(ID, request) else { panic!("memory answers at once") };
    result
}

fn segments(storage: &dyn Storage, start: u64, len: u64) -> Segments {
    done(storage, StorageRequest::Read { start, len }).unwrap()
}

fn read(storage: &dyn Storage, start: u64, len: u64) -> Vec<u8> {
    segments(storage, start, len).iter().flat_map(|segment| segment.as_slice().to_vec()).collect()
}

fn bytes(bytes: Vec<u8>) -> Piece {
    Piece::Bytes(Segment::whole(bytes))
}

fn write(storage: &dyn Storage, start: u64, pieces: Vec<Piece>) {
    done(storage, StorageRequest::Write { start, pieces, force: false }).unwrap();
}

fn deallocate(storage: &dyn Storage, start: u64, len: u64) {
    done(storage, StorageRequest::Deallocate { ranges: vec![(start, len)] }).unwrap();
}

/// Copies data to free blocks, as an engine does. `None` if the storage places nothing.
fn placed(storage: &dyn Storage, start: u64, data: &[u8]) -> Option<Vec<BlockRun>> {
    let runs = storage.place(start, data.len())?;
    let mut work = Work::Place { source: Shared::new(data.to_vec()), runs };
    assert_eq!(work.run(), digest(data));
    let Work::Place { runs, .. } = work else { unreachable!("the work stays the same") };
    Some(runs)
}

/// A folder on tmpfs, which is removed at the end of a test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = Path::new("/dev/shm").join(format!("telpher-nvmf-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Folder(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.join("namespace")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Random requests, compared with a plain buffer.
fn exercise(storage: &MemoryStorage, plain: &mut [u8], seed: u64, rounds: u64) {
    let mut random = Random::new(seed);
    let sectors = plain.len() as u64 / 512;
    for _ in 0..rounds {
        let start = random.below(sectors) * 512;
        let len = (1 + random.below(40)) * 512;
        let len = len.min(plain.len() as u64 - start);
        let range = usize::try_from(start).unwrap()..usize::try_from(start + len).unwrap();
        let mut data = vec![0; range.len()];
        random.fill(&mut data);
        match random.below(6) {
            0 => {
                done(storage, StorageRequest::WriteZeroes { start, len, force: false }).unwrap();
                plain[range].fill(0);
            }
            1 => {
                deallocate(storage, start, len);
                plain[range].fill(0);
            }
            2 => {
                // Received bytes up to the next block, then placed blocks, then received bytes.
                let head = to_usize(start.next_multiple_of(4096).min(start + len) - start);
                let whole = (range.len() - head) / 4096 * 4096;
                let mut pieces = vec![bytes(data[..head].to_vec())];
                if let Some(runs) = placed(storage, start + head as u64, &data[head..head + whole]) {
                    pieces.push(Piece::Blocks(runs));
                } else {
                    pieces.push(bytes(data[head..head + whole].to_vec()));
                }
                pieces.push(bytes(data[head + whole..].to_vec()));
                write(storage, start, pieces);
                plain[range].copy_from_slice(&data);
            }
            3 => {
                plain[range].copy_from_slice(&data);
                let tail = data.split_off(data.len() / 3);
                write(storage, start, vec![bytes(data), bytes(tail)]);
            }
            _ => assert_eq!(read(storage, start, len), plain[range]),
        }
    }
    assert_eq!(read(storage, 0, plain.len() as u64), plain);
    assert_eq!((storage.blocks.taken_blocks(), storage.blocks.shared_blocks()), (0, 0));
    let free = storage.blocks.free_blocks();
    assert_eq!(free + storage.allocated_blocks(), *storage.used_blocks.lock().unwrap());
}

#[test]
fn random_requests_have_the_effect_of_a_plain_buffer() {
    let capacity = 64 << 10;
    let options = MemoryOptions { reserve: LEAST_RESERVE, ..MemoryOptions::new(capacity) };
    for pages in [BlockPages::Small, BlockPages::Transparent] {
        let storage = MemoryStorage::anonymous(MemoryOptions { pages, ..options }).unwrap();
        exercise(&storage, &mut vec![0; 64 << 10], 24, 2000);
    }
    let folder = Folder::new("random");
    for number in 0..2 {
        let (storage, _kept) = match number {
            0 => MemoryStorage::unnamed(options).map(|(storage, kept)| (storage, Some(kept))).unwrap(),
            _ => (MemoryStorage::create(&folder.file(), options).unwrap(), None),
        };
        exercise(&storage, &mut vec![0; 64 << 10], 25, 2000);
    }
}

#[test]
fn a_read_keeps_its_bytes_while_they_are_overwritten() {
    let storage = MemoryStorage::new(8192);
    write(&storage, 0, vec![bytes(vec![1; 8192])]);
    let old = segments(&storage, 0, 8192);
    write(&storage, 512, vec![bytes(vec![2; 7168])]);
    done(&storage, StorageRequest::WriteZeroes { start: 0, len: 512, force: false }).unwrap();
    assert!(old.iter().all(|segment| segment.as_slice().iter().all(|&byte| byte == 1)));
    assert_eq!(read(&storage, 0, 1024), [vec![0; 512], vec![2; 512]].concat());
    let free = storage.blocks.free_blocks();
    drop(old);
    assert_eq!(storage.blocks.free_blocks(), free + 2);
}

#[test]
fn a_request_beyond_the_end_changes_nothing() {
    let storage = MemoryStorage::new(8192);
    for (start, len) in [(8192, 512), (7680, 1024), (u64::MAX - 511, 512), (u64::MAX, u64::MAX)] {
        assert_eq!(done(&storage, StorageRequest::Read { start, len }).unwrap_err(), Status::LBA_RANGE);
        let ranges = vec![(0, 512), (start, len)];
        assert_eq!(done(&storage, StorageRequest::Deallocate { ranges }).unwrap_err(), Status::LBA_RANGE);
    }
    let pieces = vec![bytes(vec![3; 4096]), bytes(vec![4; 4608])];
    assert!(done(&storage, StorageRequest::Write { start: 0, pieces, force: false }).is_err());
    let pieces = vec![Piece::Blocks(placed(&storage, 4096, &[5; 8192]).unwrap())];
    assert!(done(&storage, StorageRequest::Write { start: 4096, pieces, force: false }).is_err());
    assert_eq!((storage.allocated_blocks(), read(&storage, 0, 8192)), (0, vec![0; 8192]));
    assert_eq!(storage.blocks.taken_blocks(), 0);
}

#[test]
fn a_namespace_that_shrinks_and_grows_has_zeroes_behind_its_old_end() {
    let storage = MemoryStorage::new(8192);
    write(&storage, 0, vec![bytes(vec![9; 8192])]);
    storage.resize(512).unwrap();
    assert_eq!((storage.capacity(), storage.allocated_blocks()), (512, 1));
    storage.resize(16384).unwrap();
    assert_eq!(read(&storage, 0, 16384), [vec![9; 512], vec![0; 15872]].concat());
    write(&storage, 0, vec![bytes(vec![7; 16384])]);
    assert_eq!(storage.resize(16384 + 1), Err(Status::CAPACITY_EXCEEDED));
    assert_eq!((storage.capacity(), read(&storage, 0, 16384)), (16384, vec![7; 16384]));
}

#[test]
fn a_cleared_block_frees_its_memory() {
    let storage = MemoryStorage::new(1 << 20);
    assert_eq!(storage.allocated_blocks(), 0);
    write(&storage, 0, vec![bytes(vec![1; 16384])]);
    assert_eq!(storage.allocated_blocks(), 4);
    deallocate(&storage, 512, 16384 - 512);
    assert_eq!(storage.allocated_blocks(), 1);
    // Clearing a part of a block of zeroes takes no block.
    deallocate(&storage, 8192 + 512, 512);
    assert_eq!(storage.allocated_blocks(), 1);
}

#[test]
fn memory_of_many_cleared_blocks_returns_to_the_system() {
    let capacity = 16_u64 << 20;
    let (storage, kept) = MemoryStorage::unnamed(MemoryOptions::new(capacity)).unwrap();
    let file = File::from(kept);
    let empty = file.metadata().unwrap().blocks();
    for start in (0..capacity).step_by(KIB_128) {
        write(&storage, start, vec![bytes(vec![1; KIB_128])]);
    }
    let full = file.metadata().unwrap().blocks();
    assert!(full >= empty + capacity / 512, "{empty} {full}");
    deallocate(&storage, 4096, capacity - 4096);
    // One block of data and four pages of the map are left.
    assert!(file.metadata().unwrap().blocks() <= empty + 5 * 8, "{empty} {:?}", file.metadata());
    assert_eq!(storage.blocks.free_blocks_with_memory(), 0);
    assert_eq!(read(&storage, 0, 8192), [vec![1; 4096], vec![0; 4096]].concat());
    let anonymous = MemoryStorage::new(capacity);
    write(&anonymous, 0, vec![bytes(vec![1; 8 << 20])]);
    deallocate(&anonymous, 0, capacity);
    assert_eq!(anonymous.blocks.free_blocks_with_memory(), 0);
}

#[test]
fn a_long_write_to_an_empty_namespace_is_one_run() {
    for start in [0, 4096, 512 << 10] {
        let storage = MemoryStorage::new(1 << 20);
        let data: Vec<u8> = (0..KIB_128).map(|at| (at / 512).to_le_bytes()[0]).collect();
        let runs = placed(&storage, start, &data).unwrap();
        assert_eq!((runs.len(), runs[0].len()), (1, KIB_128));
        write(&storage, start, vec![Piece::Blocks(runs)]);
        let segments = segments(&storage, start, KIB_128 as u64);
        assert_eq!((segments.len(), segments[0].as_slice() == data), (1, true));
        // Received bytes, which share blocks with old data at both ends.
        write(&storage, start + 512, vec![bytes(data[..5000].to_vec()), bytes(data[5000..].to_vec())]);
        assert_eq!(self::segments(&storage, start, KIB_128 as u64 + 4096).len(), 1);
        assert_eq!(read(&storage, start + 512, KIB_128 as u64), data);
    }
}

#[test]
fn neighbouring_writes_of_one_block_are_read_as_one_segment() {
    let storage = MemoryStorage::new(1 << 20);
    for block in 0..32 {
        write(&storage, block * 4096, vec![bytes(vec![1; 4096])]);
    }
    assert_eq!(segments(&storage, 0, KIB_128 as u64).len(), 1);
    assert_eq!(segments(&storage, 512, 1024)[0].range(), 512..1536);
    // Zeroes are segments of at most ZEROES bytes.
    let lens: Vec<usize> = segments(&storage, 0, 1 << 20).iter().map(|segment| segment.len()).collect();
    assert_eq!(lens, [KIB_128; 8]);
}

#[test]
fn a_fragmented_namespace_takes_several_runs_and_joins_them_again() {
    let storage = MemoryStorage::anonymous(SMALL).unwrap();
    // All physical blocks are used once: those of the capacity, and the reserve.
    let all = storage.blocks.take(storage.blocks.free_blocks()).unwrap();
    drop(all);
    for block in 0..256 {
        write(&storage, block * 4096, vec![bytes(vec![1; 4096])]);
    }
    let reserve: Vec<u32> = storage.blocks.take(256).unwrap().into_iter().flat_map(BlockRun::keep).collect();
    for block in (0..256).step_by(2) {
        deallocate(&storage, block * 4096, 4096);
    }
    let runs = placed(&storage, 0, &vec![2; KIB_128]).unwrap();
    assert_eq!((runs.len(), runs.iter().map(BlockRun::blocks).sum::<usize>()), (32, 32));
    write(&storage, 0, vec![Piece::Blocks(runs)]);
    assert_eq!(segments(&storage, 0, KIB_128 as u64).len(), 32);
    assert_eq!(read(&storage, 0, KIB_128 as u64 + 8192), [vec![2; KIB_128], vec![0; 4096], vec![1; 4096]].concat());
    deallocate(&storage, 0, 1 << 20);
    assert_eq!(storage.place(0, KIB_128).unwrap().len(), 1);
    storage.blocks.release(reserve);
    assert_eq!(storage.blocks.free_blocks(), 512);
}

#[test]
fn an_exhausted_reserve_delays_no_write() {
    let storage = MemoryStorage::anonymous(SMALL).unwrap();
    let capacity = SMALL.capacity;
    write(&storage, 0, vec![bytes(vec![1; 512 << 10])]);
    write(&storage, 512 << 10, vec![bytes(vec![1; 512 << 10])]);
    // Replies that no host reads: half of the reserve in blocks, and the rest on the heap.
    let old: Vec<Segment> = (0..8).flat_map(|_| segments(&storage, 0, KIB_128 as u64 * 2)).collect();
    let is_in_blocks = |segment: &&Segment| matches!(segment.bytes(), Shared::Blocks(_));
    let in_blocks: usize = old.iter().filter(is_in_blocks).map(|segment| segment.len()).sum();
    assert_eq!(in_blocks, 512 << 10);
    // Placed data of commands that never complete: a quarter of the reserve.
    let placed: Vec<BlockRun> = std::iter::from_fn(|| storage.place(0, KIB_128)).flatten().collect();
    assert_eq!(placed.iter().map(BlockRun::blocks).sum::<usize>(), 64);
    // Every block is replaced several times.
    for generation in 2..6 {
        for start in (0..capacity).step_by(KIB_128) {
            write(&storage, start, vec![bytes(vec![generation; KIB_128])]);
        }
        assert_eq!(read(&storage, 0, capacity), vec![generation; 1 << 20]);
    }
    assert!(old.iter().all(|segment| segment.as_slice().iter().all(|&byte| byte == 1)));
    // A write that is longer than a quarter of the reserve is not waited for.
    let pieces = vec![bytes(vec![9; 768 << 10])];
    let long = StorageRequest::Write { start: 0, pieces, force: false };
    assert_eq!(done(&storage, long).unwrap_err(), Status::CAPACITY_EXCEEDED);
    assert_eq!(read(&storage, 0, capacity), vec![5; 1 << 20]);
    drop((old, placed));
    write(&storage, 0, vec![bytes(vec![9; 768 << 10])]);
    assert_eq!(storage.blocks.free_blocks(), 256);
}

#[test]
fn writes_of_many_threads_share_a_small_reserve() {
    let storage = MemoryStorage::anonymous(SMALL).unwrap();
    let held = segments(&storage, 0, 1 << 20);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let storage = &storage;
            scope.spawn(move || {
                for _ in 0..200 {
                    // 64 blocks: all that writes may use at a time.
                    let start = u64::from(thread) * (256 << 10);
                    write(storage, start, vec![bytes(vec![thread; 256 << 10])]);
                    assert_eq!(read(storage, start, 256 << 10), vec![thread; 256 << 10]);
                }
            });
        }
    });
    drop(held);
    assert_eq!(storage.blocks.free_blocks(), 256);
}

#[test]
fn parts_of_one_block_that_threads_write_are_all_kept() {
    let storage = MemoryStorage::new(4096);
    let there = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (storage, there) = (&storage, &there);
            scope.spawn(move || {
                there.wait();
                for round in 0..=255_u8 {
                    write(storage, thread * 1024, vec![bytes(vec![round; 512])]);
                    assert_eq!(read(storage, thread * 1024, 512), vec![round; 512]);
                    deallocate(storage, thread * 1024 + 512, 512);
                }
            });
        }
    });
    assert_eq!(read(&storage, 0, 4096), [vec![255; 512], vec![0; 512]].concat().repeat(4));
    assert_eq!(storage.allocated_blocks(), 1);
}

#[test]
fn a_reader_sees_all_of_a_write_or_nothing_of_it() {
    let storage = MemoryStorage::new(1 << 20);
    write(&storage, 0, vec![bytes(vec![0; KIB_128])]);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = 0_u32;
            while !is_done.load(Ordering::Acquire) {
                let data = read(&storage, 0, KIB_128 as u64);
                assert!(data.iter().all(|&byte| byte == data[0]), "one generation");
                seen += 1;
            }
            seen
        });
        for round in 0..2000_u32 {
            let data = vec![round.to_le_bytes()[0]; KIB_128];
            let piece = match placed(&storage, 0, &data) {
                Some(runs) => Piece::Blocks(runs),
                None => bytes(data),
            };
            write(&storage, 0, vec![piece]);
        }
        is_done.store(true, Ordering::Release);
        assert!(reader.join().unwrap() > 0);
    });
}

#[test]
fn blocks_of_another_namespace_are_copied() {
    let (one, other) = (MemoryStorage::new(1 << 20), MemoryStorage::new(1 << 20));
    let runs = placed(&one, 0, &[3; 8192]).unwrap();
    write(&other, 4096, vec![Piece::Blocks(runs)]);
    let runs = placed(&one, 0, &[4; 4096]).unwrap();
    // A position to which the blocks do not fit.
    write(&one, 512, vec![Piece::Blocks(runs)]);
    assert_eq!(read(&other, 0, 12288), [vec![0; 4096], vec![3; 8192]].concat());
    assert_eq!(read(&one, 0, 8192), [vec![0; 512], vec![4; 4096], vec![0; 3584]].concat());
    assert_eq!((one.blocks.taken_blocks(), one.allocated_blocks(), other.allocated_blocks()), (0, 2, 2));
}

#[test]
fn a_kept_memory_file_has_the_namespace() {
    let capacity = 256 << 10;
    let (storage, kept) = MemoryStorage::unnamed(MemoryOptions::new(capacity)).unwrap();
    let mut plain = vec![0; 256 << 10];
    exercise(&storage, &mut plain, 26, 500);
    assert!(matches!(MemoryStorage::adopt(kept.as_fd()), Err(MemoryError::File(PrivateFileError::InUse { .. }))));
    let allocated = storage.allocated_blocks();
    drop(storage);
    let storage = MemoryStorage::adopt(kept.as_fd()).unwrap();
    assert_eq!((storage.capacity(), storage.allocated_blocks()), (capacity, allocated));
    assert_eq!(read(&storage, 0, capacity), plain);
    exercise(&storage, &mut plain, 27, 500);
    storage.resize(100 << 10).unwrap();
    storage.resize(512 << 10).unwrap();
    drop(storage);
    plain.truncate(100 << 10);
    plain.resize(512 << 10, 0);
    let storage = MemoryStorage::adopt(kept.as_fd()).unwrap();
    assert_eq!((storage.capacity(), read(&storage, 0, 512 << 10)), (512 << 10, plain.clone()));
    exercise(&storage, &mut plain, 28, 500);
}

#[test]
fn a_named_file_is_created_once_and_opened_again() {
    let folder = Folder::new("named");
    let path = folder.file();
    let storage = MemoryStorage::create(&path, MemoryOptions::fixed((1 << 20) - 512)).unwrap();
    write(&storage, 4096, vec![bytes(vec![5; 8192])]);
    storage.resize(1 << 20).unwrap();
    assert_eq!(storage.resize((1 << 20) + 512), Err(Status::CAPACITY_EXCEEDED));
    drop(storage);
    assert!(MemoryStorage::create(&path, MemoryOptions::new(1 << 20)).is_err());
    let storage = MemoryStorage::open(&path).unwrap();
    assert_eq!(read(&storage, 0, 12288), [vec![0; 4096], vec![5; 8192]].concat());
    // The memory of the file is reserved.
    let before = path.metadata().unwrap().blocks();
    deallocate(&storage, 0, 1 << 20);
    assert_eq!(path.metadata().unwrap().blocks(), before);
}

/// Changes a word of a file.
fn change(file: &File, word: usize, change: impl FnOnce(u32) -> u32) {
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, word as u64 * 4).unwrap();
    file.write_all_at(&change(u32::from_le_bytes(bytes)).to_le_bytes(), word as u64 * 4).unwrap();
}

fn why(kept: &File) -> HeaderError {
    match MemoryStorage::adopt(kept.as_fd()) {
        Err(MemoryError::Contents { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

fn prepared() -> File {
    let (storage, kept) = MemoryStorage::unnamed(MemoryOptions::new(1 << 20)).unwrap();
    write(&storage, 0, vec![bytes(vec![5; 8192])]);
    File::from(kept)
}

#[test]
fn one_damaged_copy_of_the_header_is_survived_and_two_are_refused() {
    for word in 0..16 {
        for copies in [&[0][..], &[128], &[0, 128]] {
            let kept = prepared();
            for copy in copies {
                change(&kept, copy + word, |value| value ^ 0x10);
            }
            if copies.len() == 1 {
                let storage = MemoryStorage::adopt(kept.as_fd()).unwrap();
                assert_eq!(read(&storage, 0, 8192), vec![5; 8192]);
                continue;
            }
            let expected = match word {
                0 | 1 => HeaderError::Foreign,
                2 => HeaderError::Version { version: 17 },
                _ => HeaderError::Checksum,
            };
            assert_eq!(why(&kept), expected, "word {word}");
        }
    }
}

#[test]
fn the_newer_header_counts_when_a_server_ended_between_the_copies() {
    let kept = prepared();
    let mut old = [0; 64];
    kept.read_exact_at(&mut old, 512).unwrap();
    let storage = MemoryStorage::adopt(kept.as_fd()).unwrap();
    storage.resize(4096 + 512).unwrap();
    drop(storage);
    kept.write_all_at(&old, 512).unwrap();
    let storage = MemoryStorage::adopt(kept.as_fd()).unwrap();
    assert_eq!(storage.capacity(), 4096 + 512);
}

#[test]
fn impossible_contents_are_refused() {
    let kept = prepared();
    change(&kept, 1024 + 1, |_| 1);
    assert_eq!(why(&kept), HeaderError::Entry { block: 1, physical: 0 });
    for physical in [1 << 20, u32::MAX - 1] {
        let kept = prepared();
        change(&kept, 1024 + 7, |_| physical + 1);
        assert_eq!(why(&kept), HeaderError::Entry { block: 7, physical });
    }
    let fields = [
        (Geometry { capacity: 2, most_capacity: 1, physical: 1000 }, "the capacity"),
        (Geometry { capacity: 0, most_capacity: 1 << 20, physical: 511 }, "the number of physical blocks"),
        (Geometry { capacity: 0, most_capacity: u64::MAX, physical: 1 << 30 }, "the number of physical blocks"),
        (Geometry { capacity: 0, most_capacity: 1, physical: u64::MAX }, "the number of physical blocks"),
    ];
    for (geometry, name) in fields {
        let kept = prepared();
        for copy in [0, 512] {
            kept.write_all_at(&file_layout::header_bytes(&geometry, 9), copy).unwrap();
        }
        assert!(matches!(why(&kept), HeaderError::Field { name: seen, .. } if seen == name), "{geometry:?}");
    }
    let folder = Folder::new("impossible");
    let options = MemoryOptions::fixed(1 << 20);
    drop(MemoryStorage::create(&folder.file(), options).unwrap());
    let file = OpenOptions::new().write(true).open(folder.file()).unwrap();
    let needed = geometry(&options).unwrap().file_bytes();
    for len in [needed - 4096, 8192, 4096] {
        file.set_len(len).unwrap();
        assert_eq!(why(&File::open(folder.file()).unwrap()), HeaderError::Short { has: len, needed });
    }
    for len in [100, 0] {
        file.set_len(len).unwrap();
        assert_eq!(why(&File::open(folder.file()).unwrap()), HeaderError::Foreign);
    }
}

#[test]
fn a_truncated_file_ends_no_server() {
    let folder = Folder::new("truncated");
    let storage = MemoryStorage::create(&folder.file(), MemoryOptions::fixed(1 << 20)).unwrap();
    write(&storage, 0, vec![bytes(vec![5; 1 << 19])]);
    let reply = segments(&storage, 0, KIB_128 as u64);
    let file = OpenOptions::new().write(true).open(folder.file()).unwrap();
    file.set_len(4096).unwrap();
    // The bytes are lost. A read that is not the first one to touch them learns it as well.
    let request = || StorageRequest::Read { start: 0, len: 4096 };
    assert_eq!(done(&storage, request()).unwrap_err(), Status::READ_ERROR);
    assert_eq!(done(&storage, request()).unwrap_err(), Status::READ_ERROR);
    // A reply that was under way can be read, and says that its bytes are not to be trusted.
    assert_eq!(digest(reply[0].as_slice()), digest(&vec![0; KIB_128]));
    assert!(!reply[0].has_all_pages());
    let request = StorageRequest::Write { start: 0, pieces: vec![bytes(vec![1; 4096])], force: false };
    assert_eq!(done(&storage, request).unwrap_err(), Status::WRITE_FAULT);
}

/// The map begins at byte 4096. The requests clear whole blocks, so they access the map and no data.
#[test]
fn a_truncated_map_fails_the_requests_that_change_it() {
    let clear = |start, len| StorageRequest::Deallocate { ranges: vec![(start, len)] };
    for number in 0..3 {
        let folder = Folder::new("truncated-map");
        let storage = MemoryStorage::create(&folder.file(), MemoryOptions::fixed(1 << 20)).unwrap();
        write(&storage, 0, vec![bytes(vec![5; 8192])]);
        OpenOptions::new().write(true).open(folder.file()).unwrap().set_len(4096).unwrap();
        match number {
            0 => assert_eq!(done(&storage, clear(0, 4096)).unwrap_err(), Status::WRITE_FAULT),
            1 => assert_eq!(storage.resize(4096), Err(Status::WRITE_FAULT)),
            _ => {
                let zeroes = StorageRequest::WriteZeroes { start: 4096, len: 4096, force: false };
                assert_eq!(done(&storage, zeroes).unwrap_err(), Status::WRITE_FAULT);
            }
        }
        // Blocks without memory need no page of the file.
        let read = StorageRequest::Read { start: 1 << 19, len: 4096 };
        let expected = if number == 1 { Status::LBA_RANGE } else { Status::READ_ERROR };
        assert_eq!(done(&storage, read).unwrap_err(), expected);
    }
}

#[test]
fn a_map_that_is_truncated_while_it_is_opened_is_refused() {
    let folder = Folder::new("truncated-opening");
    drop(MemoryStorage::create(&folder.file(), MemoryOptions::fixed(1 << 20)).unwrap());
    let file = Arc::new(PrivateFile::open(&folder.file()).unwrap());
    let (map, geometry) = MapFile::load(&file).unwrap().unwrap();
    OpenOptions::new().write(true).open(folder.file()).unwrap().set_len(4096).unwrap();
    assert_eq!(BlockMap::load(&geometry, map, |_| true).unwrap_err(), HeaderError::Truncated);
}

#[test]
fn overlapping_ranges_are_deallocated_together() {
    let storage = MemoryStorage::new(1 << 20);
    write(&storage, 0, vec![bytes(vec![5; 1 << 20])]);
    let mut ranges = vec![(8192, 512), (0, 512), (4096, 8192), (256, 512), (1 << 19, 0)];
    done(&storage, StorageRequest::Deallocate { ranges: ranges.clone() }).unwrap();
    let expected = [vec![0; 768], vec![5; 4096 - 768], vec![0; 8192], vec![5; (1 << 20) - 12288]].concat();
    assert_eq!((read(&storage, 0, 1 << 20), storage.allocated_blocks()), (expected.clone(), 254));
    // One range that is not in the namespace: no block is changed.
    ranges.push((1 << 20, 512));
    ranges.push((0, 1 << 20));
    assert_eq!(done(&storage, StorageRequest::Deallocate { ranges }).unwrap_err(), Status::LBA_RANGE);
    assert_eq!(read(&storage, 0, 1 << 20), expected);
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let options = MemoryOptions::new(1 << 20);
    assert_eq!(options.reserve, 32 << 20);
    assert_eq!(MemoryOptions::new(1 << 30).reserve, 128 << 20);
    assert_eq!(MemoryOptions::new(u64::MAX).reserve, 256 << 20);
    let refused = |options| MemoryStorage::anonymous(options).unwrap_err();
    let little = MemoryOptions { reserve: LEAST_RESERVE - 1, ..options };
    assert!(matches!(refused(little), MemoryError::Reserve { .. }));
    let most_capacity = (1 << 20) - 1;
    assert!(matches!(refused(MemoryOptions { most_capacity, ..options }), MemoryError::Capacity { .. }));
    assert!(matches!(refused(MemoryOptions::new(u64::MAX)), MemoryError::Blocks(_)));
    assert!(matches!(refused(MemoryOptions::new(1 << 52)), MemoryError::Blocks(_)));
    // More huge pages than any system has reserved.
    let huge = MemoryOptions { pages: BlockPages::Reserved, ..MemoryOptions::fixed(1 << 42) };
    let error = refused(huge).to_string();
    assert!(error.contains("vm.nr_hugepages"), "{error}");
}

#[test]
fn a_remark_says_that_huge_pages_are_off() {
    assert_eq!(remark_on(Ok("always [madvise] never\n")), None);
    assert!(remark_on(Ok("always madvise [never]\n")).unwrap().contains("switched off"));
    let absent = io::Error::from(io::ErrorKind::NotFound);
    assert!(remark_on(Err(&absent)).unwrap().contains("no transparent huge pages"));
    assert_eq!(MemoryStorage::new(4096).remark(), None);
}

#[test]
fn a_resize_during_writes_leaves_a_valid_map() {
    let storage = MemoryStorage::anonymous(SMALL).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut random = Random::new(5);
            let (mut written, mut refused) = (0, 0);
            while written < 500 || refused < 50 {
                let start = random.below(2040) * 512;
                let pieces = vec![bytes(vec![1; 4096])];
                match done(&storage, StorageRequest::Write { start, pieces, force: false }) {
                    Ok(_) => written += 1,
                    Err(status) => {
                        assert_eq!(status, Status::LBA_RANGE);
                        refused += 1;
                    }
                }
            }
        });
        while !writer.is_finished() {
            for capacity in [64 << 10, (64 << 10) + 512, 1 << 20] {
                storage.resize(capacity).unwrap();
            }
        }
    });
    deallocate(&storage, 0, storage.capacity());
    assert_eq!((storage.allocated_blocks(), storage.blocks.taken_blocks()), (0, 0));
    assert_eq!(storage.blocks.free_blocks(), *storage.used_blocks.lock().unwrap());
}
