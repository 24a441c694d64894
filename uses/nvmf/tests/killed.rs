//! A server in a memory file is killed, and the next one finds what was acknowledged.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Command, Stdio, exit};
use telpher_nvmf::digest::digest;
use telpher_nvmf::engine::{JobId, Segment, Segments, Shared, Work};
use telpher_nvmf::memory::{MAP_BLOCK, MemoryOptions, MemoryStorage};
use telpher_nvmf::storage::{Piece, Started, Storage, StorageRequest};

/// The namespace of the child: the path of its file, or `new`.
const NAMESPACE: &str = "TELPHER_NVMF_TEST_NAMESPACE";
const ID: JobId = JobId { connection: 0, slot: 0, generation: 0, part: 0 };
const CAPACITY: u64 = 1 << 20;
/// Bytes of one write.
const WRITE: usize = 128 << 10;

/// The bytes of a block: its number and a generation, repeated.
fn pattern(block: u64, generation: u64) -> Vec<u8> {
    [block.to_le_bytes(), generation.to_le_bytes()].concat().repeat(MAP_BLOCK / 16)
}

fn start(storage: &MemoryStorage, request: StorageRequest) -> Segments {
    let Started::Done(result) = storage.start(ID, request) else { panic!("memory answers at once") };
    result.expect("the request is valid")
}

/// Writes one generation to all blocks: most of them placed, and the first ones as received.
fn write_generation(storage: &MemoryStorage, generation: u64) {
    for start_at in (0..CAPACITY).step_by(WRITE) {
        let first = start_at / MAP_BLOCK as u64;
        let blocks = first..first + (WRITE / MAP_BLOCK) as u64;
        let data: Vec<u8> = blocks.flat_map(|block| pattern(block, generation)).collect();
        let expected = digest(&data);
        let source = Shared::new(data);
        let piece = match storage.place(start_at, source.len()) {
            Some(runs) if start_at > 0 => {
                let mut work = Work::Place { source, runs };
                assert_eq!(work.run(), expected);
                let Work::Place { runs, .. } = work else { unreachable!("the work stays the same") };
                Piece::Blocks(runs)
            }
            _ => Piece::Bytes(Segment::all(source)),
        };
        start(storage, StorageRequest::Write { start: start_at, pieces: vec![piece], force: false });
    }
}

/// The generation of a block, whose bytes must all be of one write.
fn generation_of(storage: &MemoryStorage, block: u64) -> u64 {
    let read = StorageRequest::Read { start: block * MAP_BLOCK as u64, len: MAP_BLOCK as u64 };
    let bytes: Vec<u8> = start(storage, read).iter().flat_map(|segment| segment.as_slice().to_vec()).collect();
    let generation = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
    let expected = if bytes.iter().all(|&byte| byte == 0) { vec![0; MAP_BLOCK] } else { pattern(block, generation) };
    assert!(bytes == expected, "block {block} has bytes of several writes");
    generation
}

/// The child: writes generation after generation, and acknowledges each on standard output, until it is killed.
fn serve_until_killed(namespace: &str) -> ! {
    let mut output = std::io::stdout().lock();
    let (storage, kept) = if namespace == "new" {
        let (storage, kept) = MemoryStorage::unnamed(MemoryOptions::new(CAPACITY)).expect("a memory file");
        (storage, Some(kept))
    } else {
        (MemoryStorage::open(Path::new(namespace)).expect("the kept file"), None)
    };
    let number = kept.as_ref().map_or(-1, |kept| kept.as_raw_fd());
    let first = generation_of(&storage, CAPACITY / MAP_BLOCK as u64 - 1) + 1;
    // An error means that the parent has ended.
    let mut written = writeln!(output, "file {number}");
    for generation in first.. {
        if written.is_err() {
            break;
        }
        write_generation(&storage, generation);
        written = writeln!(output, "acknowledged {generation}");
    }
    exit(1)
}

#[test]
fn acknowledged_data_survives_the_death_of_the_server() {
    if let Ok(namespace) = std::env::var(NAMESPACE) {
        serve_until_killed(&namespace);
    }
    let mut kept: Option<File> = None;
    let mut last = 0;
    for round in 1..=4 {
        let own = |file: &File| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let mut child = Command::new(std::env::current_exe().expect("this program has a file"))
            .args(["--exact", "acknowledged_data_survives_the_death_of_the_server", "--nocapture"])
            .env(NAMESPACE, kept.as_ref().map_or("new".into(), own))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a second process");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        let number = lines.find_map(|line| line.split_once("file ").map(|(_, number)| number.to_owned()));
        let number = number.expect("the child has opened its namespace");
        let file = kept.get_or_insert_with(|| {
            let path = format!("/proc/{}/fd/{number}", child.id());
            OpenOptions::new().read(true).write(true).open(path).expect("the child's memory file")
        });
        assert!(MemoryStorage::adopt(file.as_fd()).is_err(), "the child has locked it");
        let mut acknowledged = 0;
        let target = last + 20 + round;
        while acknowledged < target {
            let line = lines.next().expect("the child runs");
            acknowledged = generation(&line).unwrap_or(acknowledged);
        }
        child.kill().expect("the child runs");
        child.wait().expect("the child has ended");
        acknowledged = lines.filter_map(|line| generation(&line)).last().unwrap_or(acknowledged);
        let storage = MemoryStorage::adopt(file.as_fd()).expect("the namespace is valid, and its lock is free");
        for block in 0..CAPACITY / MAP_BLOCK as u64 {
            let found = generation_of(&storage, block);
            assert!((acknowledged..=acknowledged + 1).contains(&found), "block {block}: {found}, not {acknowledged}");
        }
        assert_eq!(storage.allocated_blocks() as u64, CAPACITY / MAP_BLOCK as u64);
        last = acknowledged;
    }
}

/// The generation that a line of the child acknowledges.
fn generation(line: &str) -> Option<u64> {
    line.strip_prefix("acknowledged ")?.parse().ok()
}
