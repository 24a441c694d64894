//! A namespace in a file, by each engine, with and without O_DIRECT.

mod crash;
pub(crate) mod refused;
mod requests;

use super::with_each_engine;
use crate::{Client, Running, admin, skip};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use telpher_nvmf::command::{Submission, io};
use telpher_nvmf::digest::Digests;
use telpher_nvmf::file::{FileEngine, FileError, FileOptions, FilePool, FileStorage};
use telpher_nvmf::initiator::requests as commands;
use telpher_nvmf::initiator::{HostEvent, Transfer};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::loops::Loops;
use telpher_nvmf::protection::Protection;
use telpher_nvmf::status::Status;

const BLOCK: usize = 4096;
const SIZE: u64 = 8 << 20;

/// A file that is removed at the end of the test.
struct TestFile(PathBuf);

impl TestFile {
    fn new(name: &str) -> TestFile {
        // A test may run with several engines of sockets at the same time.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("telpher-nvmf-{process}-{number}-{name}"));
        let _ = std::fs::remove_file(&path);
        TestFile(path)
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const fn options(engine: FileEngine, direct: bool) -> FileOptions {
    FileOptions { engine, threads: 2, direct }
}

const THREADS: [FileOptions; 2] = [options(FileEngine::Threads, true), options(FileEngine::Threads, false)];
const URING: [FileOptions; 2] = [options(FileEngine::Uring, true), options(FileEngine::Uring, false)];

/// All ways to read and write a file that this machine has.
fn ways() -> Vec<FileOptions> {
    static REFUSED: OnceLock<bool> = OnceLock::new();
    let is_refused = REFUSED.get_or_init(|| match FilePool::with_options(URING[0], &Arc::new(Loops::default())) {
        Ok(_) => false,
        Err(error) => {
            skip::skip("files_by_io_uring", &format!("io_uring is refused: {error}"));
            true
        }
    });
    if *is_refused { THREADS.to_vec() } else { [URING, THREADS].concat() }
}

/// A server with the file as namespace 1; the file is created if it does not exist.
fn serve(path: &Path, options: FileOptions) -> Running {
    Running::with(Limits::default(), 64, |target| {
        let pool = FilePool::with_options(options, target.loops()).unwrap();
        let storage =
            if path.exists() { FileStorage::open(path, &pool) } else { FileStorage::create(path, SIZE, &pool) };
        Arc::new(storage.unwrap())
    })
}

fn connect(running: &Running) -> (Client, Client) {
    let digests = Digests { header: true, data: true };
    let (admin, controller) = admin(running, digests);
    let mut client = Client::new(running.address, digests);
    client.connect(1, controller);
    (admin, client)
}

fn status(client: &mut Client, command: Submission, transfer: Transfer) -> Status {
    client.host.send(command, transfer);
    let event = client.wait();
    let HostEvent::Completed { completion, .. } = event else { panic!("{event:?}") };
    completion.status()
}

fn read(client: &mut Client, first: u64, blocks: u32) -> Vec<u8> {
    client.ok(commands::blocks(io::READ, 900, 1, first, blocks), Transfer::ToHost(blocks * 4096)).1
}

fn a_file_keeps_its_data_over_a_restart() {
    for options in ways() {
        let file = TestFile::new("restart");
        let data: Vec<u8> = (0..32 * 4096_u32).map(|at| (at / 5).to_le_bytes()[0]).collect();
        let running = serve(&file.0, options);
        let (_admin, mut client) = connect(&running);
        client.ok(commands::blocks(io::WRITE, 1, 1, 7, 32), Transfer::OnRequest(data.clone()));
        let mut forced = commands::blocks(io::WRITE, 2, 1, 100, 2);
        forced.set_dword(12, forced.dword(12) | 1 << 30);
        client.ok(forced, Transfer::InCapsule(data[..2 * BLOCK].to_vec()));
        client.ok(Submission::new(io::FLUSH, 3, 1), Transfer::None);
        drop(running);
        let bytes = std::fs::read(&file.0).unwrap();
        assert_eq!(bytes.len() as u64, SIZE);
        assert!(bytes[7 * BLOCK..39 * BLOCK] == data && bytes[100 * BLOCK..102 * BLOCK] == data[..2 * BLOCK]);
        let running = serve(&file.0, options);
        let (_admin, mut client) = connect(&running);
        assert!(read(&mut client, 7, 32) == data);
        assert!(read(&mut client, 100, 2) == data[..2 * BLOCK]);
    }
}

fn commands_have_their_effect_on_a_file() {
    for options in ways() {
        let file = TestFile::new("commands");
        let running = serve(&file.0, options);
        let (_admin, mut client) = connect(&running);
        let block = |byte: u8, count: usize| vec![byte; count * BLOCK];
        client.ok(commands::blocks(io::WRITE, 1, 1, 0, 32), Transfer::OnRequest(block(5, 32)));
        let compare = |cid| commands::blocks(io::COMPARE, cid, 1, 0, 2);
        assert_eq!(status(&mut client, compare(2), Transfer::InCapsule(block(5, 2))), Status::SUCCESS);
        assert_eq!(status(&mut client, compare(3), Transfer::InCapsule(block(6, 2))), Status::COMPARE_FAILURE);
        client.ok(commands::blocks(io::WRITE_ZEROES, 4, 1, 1, 2), Transfer::None);
        let (command, list) = commands::deallocate(5, 1, &[(4, 1), (6, 0)]);
        client.ok(command, Transfer::InCapsule(list));
        let (command, list) = commands::copy(6, 1, 200, &[(0, 2), (5, 1)]);
        client.ok(command, Transfer::InCapsule(list));
        client.ok(commands::blocks(io::VERIFY, 7, 1, 0, 32), Transfer::None);
        let head = read(&mut client, 0, 4);
        assert!(head == [block(5, 1), block(0, 2), block(5, 1)].concat());
        // A file system without holes keeps deallocated blocks.
        let deallocated = read(&mut client, 4, 1);
        assert!(deallocated == block(0, 1) || deallocated == block(5, 1));
        assert!(read(&mut client, 200, 3) == [block(5, 1), block(0, 1), block(5, 1)].concat());
    }
}

fn a_file_that_was_cut_is_a_read_error_and_a_new_size_is_used() {
    for options in ways() {
        let file = TestFile::new("cut");
        let running = serve(&file.0, options);
        let (_admin, mut client) = connect(&running);
        let last = SIZE / 4096 - 1;
        let command = |cid| commands::blocks(io::READ, cid, 1, last, 1);
        assert_eq!(status(&mut client, command(1), Transfer::ToHost(4096)), Status::SUCCESS);
        std::fs::OpenOptions::new().write(true).open(&file.0).unwrap().set_len(SIZE / 2).unwrap();
        assert_eq!(status(&mut client, command(2), Transfer::ToHost(4096)), Status::READ_ERROR);
        running.target.resize_namespace(crate::NQN, 1, 2 * SIZE).unwrap();
        assert_eq!(read(&mut client, 2 * last + 1, 1), vec![0; 4096]);
        running.target.resize_namespace(crate::NQN, 1, SIZE / 2).unwrap();
        assert_eq!(status(&mut client, command(3), Transfer::ToHost(4096)), Status::LBA_RANGE.do_not_retry());
        assert_eq!(std::fs::metadata(&file.0).unwrap().len(), SIZE / 2);
    }
}

fn a_file_has_one_server_at_a_time() {
    for options in ways() {
        let file = TestFile::new("lock");
        let running = serve(&file.0, options);
        let pool = FilePool::with_options(options, running.target.loops()).unwrap();
        assert!(matches!(FileStorage::open(&file.0, &pool), Err(FileError::InUse { .. })));
        assert!(matches!(FileStorage::create(&file.0, SIZE, &pool), Err(FileError::Call { .. })));
        drop(running);
        assert!(FileStorage::open(&file.0, &pool).is_ok());
    }
}

/// A file with tuples: new blocks read as zeroes, and damage of the file is answered with its status.
fn a_protected_file_keeps_its_tags_and_reports_damage() {
    let file = TestFile::new("protected");
    let running = Running::protected(Limits::default(), 64, Some(Protection { application_tag: 0x55 }), |target| {
        let pool = FilePool::start(2, target.loops()).unwrap();
        Arc::new(FileStorage::create(&file.0, 512 * 4104, &pool).unwrap())
    });
    let (_admin, mut client) = connect(&running);
    let data: Vec<u8> = (0..32 * 4096_u32).map(|at| (at / 7).to_le_bytes()[0]).collect();
    client.ok(commands::blocks(io::WRITE, 1, 1, 3, 32), Transfer::OnRequest(data.clone()));
    assert!(read(&mut client, 3, 32) == data);
    assert_eq!(read(&mut client, 480, 32), vec![0; 32 * BLOCK]);
    client.ok(commands::blocks(io::WRITE_ZEROES, 2, 1, 4, 2), Transfer::None);
    let (command, list) = commands::copy(3, 1, 100, &[(3, 4)]);
    client.ok(command, Transfer::InCapsule(list));
    assert!(read(&mut client, 100, 4) == [&data[..BLOCK], &vec![0; 2 * BLOCK], &data[3 * BLOCK..4 * BLOCK]].concat());
    client.ok(commands::blocks(io::VERIFY, 4, 1, 0, 32), Transfer::None);
    let damages = [
        (4095, Status::GUARD_CHECK),
        (4096, Status::GUARD_CHECK),
        (4099, Status::APPLICATION_TAG_CHECK),
        (4102, Status::REFERENCE_TAG_CHECK),
    ];
    for (cid, (at, expected)) in (10..).zip(damages) {
        let on_disk = std::fs::OpenOptions::new().read(true).write(true).open(&file.0).unwrap();
        let (mut byte, position) = ([0], 20 * 4104 + at);
        on_disk.read_exact_at(&mut byte, position).unwrap();
        on_disk.write_all_at(&[byte[0] ^ 1], position).unwrap();
        let command = commands::blocks(io::READ, cid, 1, 3, 32);
        assert_eq!(status(&mut client, command, Transfer::ToHost(32 * 4096)), expected);
        on_disk.write_all_at(&byte, position).unwrap();
    }
    assert!(read(&mut client, 20, 15) == data[17 * BLOCK..]);
}

fn pairs_of_hosts_on_two_loops_are_atomic_in_a_file() {
    for options in ways() {
        let file = TestFile::new("pairs");
        crate::count_with_pairs(&serve(&file.0, options));
    }
}

with_each_engine! {
    a_file_keeps_its_data_over_a_restart
    commands_have_their_effect_on_a_file
    a_file_that_was_cut_is_a_read_error_and_a_new_size_is_used
    a_file_has_one_server_at_a_time
    a_protected_file_keeps_its_tags_and_reports_damage
    pairs_of_hosts_on_two_loops_are_atomic_in_a_file
}
