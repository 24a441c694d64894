//! The load generator against the server, and against targets that fail or are hostile.

use super::with_each_engine;
use crate::{NQN, Running};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use telpher_mem::BlockRun;
use telpher_nvmf::digest::Digests;
use telpher_nvmf::engine::{JobId, Segment, Segments};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::load::stamp::StampError;
use telpher_nvmf::load::{self, End, LoadError, LoadOptions, LoadResult, Pattern};
use telpher_nvmf::memory::MemoryStorage;
use telpher_nvmf::storage::{Started, Storage, StorageRequest};
use telpher_os::Random;

const DIGESTS: Digests = Digests { header: true, data: true };

fn options(address: SocketAddr, pattern: Pattern) -> LoadOptions {
    LoadOptions { end: End::Commands(200), fill: true, ..LoadOptions::new(address, NQN, pattern) }
}

fn run(options: &LoadOptions) -> LoadResult {
    let result = load::run(options).unwrap();
    assert!(result.errors.is_empty(), "{:?}", result.errors);
    result
}

fn every_pattern_verifies_its_data_with_all_digests() {
    let running = Running::start(Limits::default(), 64);
    for pattern in Pattern::ALL {
        for digests in Digests::ALL {
            for flow_control in [false, true] {
                let options = LoadOptions {
                    digests,
                    flow_control,
                    connections: 2,
                    threads: 2,
                    depth: 16,
                    ..options(running.address, pattern)
                };
                let result = run(&options);
                let counts = result.counts;
                // A write of write-verify is read back, in addition to the commands of the limit.
                let read_back = if pattern == Pattern::WriteVerify { counts.writes } else { 0 };
                assert_eq!(counts.commands(), 400 + read_back, "{pattern} {counts:?}");
                assert_eq!(counts.verified_blocks * 4096, counts.bytes_read, "{pattern} {counts:?}");
                assert_eq!((counts.unknown_blocks, counts.repeated_writes), (0, 0));
                assert_eq!(result.latencies.count(), counts.commands());
                assert!(result.latencies.quantile(0.5) <= result.latencies.quantile(1.0));
                match pattern {
                    Pattern::RandRead4k => assert_eq!((counts.reads, counts.bytes_read), (400, 400 << 12)),
                    Pattern::RandRead16k => assert_eq!((counts.reads, counts.bytes_read), (400, 400 << 14)),
                    Pattern::SeqRead128k => assert_eq!((counts.reads, counts.bytes_read), (400, 400 << 17)),
                    Pattern::WriteVerify => {
                        assert_eq!((counts.writes, counts.bytes_written), (400, counts.bytes_read));
                    }
                    Pattern::Mixed => assert!(counts.writes > 50 && counts.reads > counts.writes, "{counts:?}"),
                }
            }
        }
    }
}

fn a_write_is_sent_in_several_pdus_if_the_target_asks_for_it() {
    let limits = Limits { h2c_bytes: 4096, r2t_bytes: 12288, ..Limits::default() };
    let running = Running::start(limits, 64);
    let options = LoadOptions { digests: DIGESTS, ..options(running.address, Pattern::WriteVerify) };
    assert_eq!(run(&options).counts.writes, 200);
}

fn a_queue_of_1024_entries_has_at_most_1023_commands() {
    let running = Running::start(Limits::default(), 64);
    let options =
        LoadOptions { depth: 1024, end: End::Commands(5000), ..options(running.address, Pattern::RandRead4k) };
    let result = run(&options);
    assert_eq!((result.depth, result.counts.reads), (1023, 5000));
    let limits = Limits { queue_depth: 4, ..Limits::default() };
    let running = Running::start(limits, 64);
    let result = run(&LoadOptions { address: running.address, ..options });
    assert_eq!((result.depth, result.counts.reads), (3, 5000));
}

fn more_connections_than_a_controller_grants_use_several_controllers() {
    let limits = Limits { io_queues: 2, ..Limits::default() };
    let running = Running::start(limits, 64);
    let options = LoadOptions {
        connections: 3,
        threads: 2,
        idle_connections: 4,
        ..options(running.address, Pattern::RandRead16k)
    };
    let result = run(&options);
    assert_eq!((result.controllers, result.counts.reads), (4, 600));
    // The server removes a controller when it sees that the admin connection was closed.
    while !running.target.controllers().is_empty() {
        thread::yield_now();
    }
}

fn what_was_filled_is_verified_by_the_next_run_and_other_blocks_are_unknown() {
    let running = Running::start(Limits::default(), 64);
    let read = LoadOptions { fill: false, ..options(running.address, Pattern::RandRead4k) };
    let counts = run(&read).counts;
    assert_eq!((counts.verified_blocks, counts.unknown_blocks), (0, 200));
    run(&LoadOptions { fill: true, seed: 5, ..read.clone() });
    let counts = run(&read).counts;
    assert_eq!((counts.verified_blocks, counts.unknown_blocks), (200, 0));
}

fn a_load_ends_after_its_time() {
    let running = Running::start(Limits::default(), 64);
    let end = End::After(Duration::from_millis(100));
    let result = run(&LoadOptions { end, ..options(running.address, Pattern::Mixed) });
    assert!(result.counts.commands() > 0 && result.elapsed >= Duration::from_millis(100));
    assert!(result.iops() > 0.0 && result.bytes_per_second() > 0.0 && result.cpu_per_command() > Duration::ZERO);
}

/// A backend whose reads have one wrong byte after some reads.
#[derive(Debug)]
struct WrongStorage {
    storage: MemoryStorage,
    right: AtomicUsize,
}

impl Storage for WrongStorage {
    fn start(&self, id: JobId, request: StorageRequest) -> Started {
        let is_read = matches!(request, StorageRequest::Read { .. });
        let started = self.storage.start(id, request);
        let is_right =
            self.right.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |rest| rest.checked_sub(1)).is_ok();
        match started {
            Started::Done(Ok(segments)) if is_read && !is_right => {
                let mut bytes: Vec<u8> = segments.iter().flat_map(|segment| segment.as_slice().to_vec()).collect();
                bytes[1000] ^= 4;
                Started::Done(Ok(Segments::from([Segment::whole(bytes)])))
            }
            started => started,
        }
    }

    fn capacity(&self) -> u64 {
        self.storage.capacity()
    }

    fn place(&self, start: u64, len: usize) -> Option<Vec<BlockRun>> {
        self.storage.place(start, len)
    }

    fn resize(&self, capacity: u64) -> Result<(), telpher_nvmf::status::Status> {
        self.storage.resize(capacity)
    }
}

fn wrong_data_with_a_right_digest_is_found() {
    for pattern in [Pattern::RandRead4k, Pattern::SeqRead128k, Pattern::WriteVerify] {
        let running = Running::with(Limits::default(), 64, |_| {
            Arc::new(WrongStorage { storage: MemoryStorage::new(8 << 20), right: AtomicUsize::new(5000) })
        });
        let end = End::Commands(10_000);
        let options = LoadOptions { end, digests: DIGESTS, connections: 2, ..options(running.address, pattern) };
        let result = load::run(&options).unwrap();
        assert!(!result.errors.is_empty());
        for error in &result.errors {
            assert!(error.connection.starts_with("connection "));
            let is_found = matches!(&error.source, LoadError::WrongBlock { source: StampError::Checksum, .. });
            assert!(is_found, "{error:?}");
        }
    }
}

/// What a proxy does with the bytes that the target sends on one connection.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Flips bits of the byte at this offset.
    Flip(usize, u8),
    /// Closes the connection before this offset.
    Close(usize),
    /// Sends nothing from this offset on.
    Silence(usize),
    /// Sends other bytes from this offset on.
    Garbage(usize),
}

/// A proxy in front of `target`, which applies the fault to the connection with this number, from 0.
fn proxy(target: SocketAddr, faulty: usize, fault: Fault) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (number, host) in listener.incoming().enumerate() {
            let (Ok(host), Ok(target)) = (host, TcpStream::connect(target)) else { return };
            let (from, to) = (target.try_clone().unwrap(), host.try_clone().unwrap());
            let fault = (number == faulty).then_some(fault);
            thread::spawn(move || forward(host, target, None));
            thread::spawn(move || forward(from, to, fault));
        }
    });
    address
}

fn forward(mut from: TcpStream, mut to: TcpStream, fault: Option<Fault>) {
    let mut buffer = vec![0; 64 << 10];
    let mut position = 0;
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut end = count;
        match fault {
            Some(Fault::Flip(at, bits)) if (position..position + count).contains(&at) => buffer[at - position] ^= bits,
            Some(Fault::Close(at)) if at < position + count => break,
            Some(Fault::Silence(at)) if at < position + count => end = at.saturating_sub(position),
            Some(Fault::Garbage(at)) if at < position + count => {
                Random::new(at as u64).fill(&mut buffer[at.saturating_sub(position)..count]);
            }
            _ => {}
        }
        position += count;
        if to.write_all(&buffer[..end]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Bytes that the target sends on an I/O queue, with header digests, before the first data: ICResp, and the response
/// to Connect.
const BEFORE_DATA: usize = 128 + 28;

fn a_damaged_data_byte_is_found_by_the_digest_and_else_by_the_stamp() {
    let running = Running::start(Limits::default(), 64);
    run(&options(running.address, Pattern::RandRead4k));
    for digests in [DIGESTS, Digests { header: true, data: false }] {
        let address = proxy(running.address, 1, Fault::Flip(BEFORE_DATA + 28 + 1000, 1));
        let options = LoadOptions { fill: false, digests, ..options(address, Pattern::RandRead4k) };
        let result = load::run(&options).unwrap();
        let [error] = &result.errors[..] else { panic!("{:?}", result.errors) };
        match (&error.source, digests.data) {
            (LoadError::Damaged { blocks: 1, .. }, true) => {}
            (LoadError::WrongBlock { source: StampError::Checksum, .. }, false) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn a_target_that_ends_a_connection_early_is_reported() {
    let running = Running::start(Limits::default(), 64);
    let patience = Duration::from_millis(300);
    let start = |faulty, fault| {
        let address = proxy(running.address, faulty, fault);
        load::run(&LoadOptions { patience, digests: DIGESTS, ..options(address, Pattern::Mixed) })
    };
    // On the admin queue, before and after ICResp; then on the I/O queue.
    for at in [0, 100, 128, 156] {
        assert!(matches!(start(0, Fault::Close(at)), Err(LoadError::Closed)), "{at}");
        assert!(matches!(start(0, Fault::Silence(at)), Err(LoadError::Late { .. })), "{at}");
        // Every connection of a load ends with an error, and the load with a result.
        let error = start(0, Fault::Garbage(at)).unwrap_err();
        assert!(matches!(error, LoadError::Protocol(_)), "{at}: {error:?}");
    }
    for at in [BEFORE_DATA, BEFORE_DATA + 1, 100_000] {
        let only = |fault| {
            let mut result = start(1, fault).unwrap();
            assert_eq!(result.errors.len(), 1, "{:?}", result.errors);
            result.errors.pop().unwrap().source
        };
        assert!(matches!(only(Fault::Close(at)), LoadError::Closed));
        assert!(matches!(only(Fault::Silence(at)), LoadError::Late { .. }));
        let error = only(Fault::Garbage(at));
        assert!(matches!(error, LoadError::Protocol(_) | LoadError::Damaged { .. }), "{error:?}");
    }
}

fn a_byte_that_is_flipped_anywhere_ends_a_load_or_changes_nothing() {
    let running = Running::start(Limits::default(), 64);
    let mut random = Random::new(24);
    let mut failed = 0;
    for case in 0..24 {
        let faulty = case % 2;
        // The first bytes of the admin queue are all control; on the I/O queue, most are data.
        let at = usize::try_from(random.below(if faulty == 0 { 600 } else { 20_000 })).unwrap();
        let address = proxy(running.address, faulty, Fault::Flip(at, 1 << random.below(8)));
        let patience = Duration::from_millis(250);
        let end = End::Commands(50);
        let options = LoadOptions { patience, end, digests: DIGESTS, ..options(address, Pattern::RandRead16k) };
        match load::run(&options) {
            Ok(result) => failed += usize::from(!result.errors.is_empty()),
            Err(error) => {
                // Every error says what happened, with its causes.
                let mut text = error.to_string();
                let mut source = error.source();
                while let Some(cause) = source {
                    text += &format!(": {cause}");
                    source = cause.source();
                }
                assert!(text.len() > 20, "{text}");
                failed += 1;
            }
        }
    }
    // Only reserved fields of ICResp, and padding, have no digest and no meaning.
    assert!(failed > 12, "{failed}");
}

fn options_that_the_target_cannot_serve_are_refused_with_the_reason() {
    let running = Running::start(Limits { transfer_bytes: 8192, ..Limits::default() }, 64);
    let refused = |options: LoadOptions| load::run(&options).unwrap_err().to_string();
    let good = options(running.address, Pattern::RandRead4k);
    let cases = [
        (LoadOptions { pattern: Pattern::SeqRead128k, ..good.clone() }, "the controller allows 8192 (MDTS)"),
        (LoadOptions { nsid: 2, ..good.clone() }, "the subsystem has no namespace 2"),
        (LoadOptions { depth: 1025, ..good.clone() }, "not between 1 and 1024"),
        (LoadOptions { threads: 0, ..good.clone() }, "at least one connection and one thread"),
        (LoadOptions { span_bytes: 4096, connections: 2, ..good.clone() }, "are too few"),
    ];
    for (options, expected) in cases {
        let text = refused(options);
        assert!(text.contains(expected), "{text}");
    }
    let mut unknown = good.clone();
    unknown.identity.subsystem_nqn = "nqn.2026-01.org.example:other".into();
    assert!(matches!(load::run(&unknown), Err(LoadError::Status { what: "Connect", .. })));
    unknown.identity.subsystem_nqn = "short".into();
    assert!(refused(unknown).contains("NVMe names have 11 to 223"));
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(matches!(load::run(&LoadOptions { address: free, ..good }), Err(LoadError::Connect { .. })));
}

with_each_engine! {
    every_pattern_verifies_its_data_with_all_digests
    a_write_is_sent_in_several_pdus_if_the_target_asks_for_it
    a_queue_of_1024_entries_has_at_most_1023_commands
    more_connections_than_a_controller_grants_use_several_controllers
    what_was_filled_is_verified_by_the_next_run_and_other_blocks_are_unknown
    a_load_ends_after_its_time
    wrong_data_with_a_right_digest_is_found
    a_damaged_data_byte_is_found_by_the_digest_and_else_by_the_stamp
    a_target_that_ends_a_connection_early_is_reported
    a_byte_that_is_flipped_anywhere_ends_a_load_or_changes_nothing
    options_that_the_target_cannot_serve_are_refused_with_the_reason
}
