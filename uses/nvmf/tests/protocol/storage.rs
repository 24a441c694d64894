//! A backend that answers later, in any order, or with an error.

use crate::session::{NQN, Session, io_session, namespace, options, target};
use std::sync::{Arc, Mutex};
use telpher_nvmf::command::{Submission, io};
use telpher_nvmf::connection::Context;
use telpher_nvmf::digest::Digests;
use telpher_nvmf::engine::JobId;
use telpher_nvmf::initiator::requests;
use telpher_nvmf::initiator::{HostEvent, HostOptions, Transfer};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::memory::MemoryStorage;
use telpher_nvmf::namespace::NamespaceOptions;
use telpher_nvmf::protection::Protection;
use telpher_nvmf::status::Status;
use telpher_nvmf::storage::{NullStorage, Started, Storage, StorageRequest, StorageResult};

const BLOCK: usize = 512;
pub(crate) const NSID: u32 = 2;

/// A backend whose requests wait until the test answers them.
#[derive(Debug)]
pub(crate) struct LateStorage {
    memory: MemoryStorage,
    waiting: Mutex<Vec<(JobId, StorageRequest)>>,
}

impl LateStorage {
    /// A backend of 1 MiB.
    pub(crate) fn new() -> LateStorage {
        LateStorage { memory: MemoryStorage::new(1 << 20), waiting: Mutex::default() }
    }

    pub(crate) fn take(&self) -> Vec<(JobId, StorageRequest)> {
        std::mem::take(&mut *self.waiting.lock().unwrap())
    }

    pub(crate) fn result(&self, id: JobId, request: StorageRequest) -> StorageResult {
        match self.memory.start(id, request) {
            Started::Done(result) => result,
            Started::Later => unreachable!("memory answers at once"),
        }
    }
}

impl Storage for LateStorage {
    fn start(&self, id: JobId, request: StorageRequest) -> Started {
        self.waiting.lock().unwrap().push((id, request));
        Started::Later
    }

    /// A request that the test has not taken was not begun.
    fn cancel(&self, id: JobId) -> bool {
        self.waiting.lock().unwrap().extract_if(.., |(waiting, _)| *waiting == id).count() > 0
    }

    fn capacity(&self) -> u64 {
        self.memory.capacity()
    }
}

/// An I/O queue, and a backend of 1 MiB for namespace 2.
pub(crate) fn start(digests: Digests) -> (Session, Session, Arc<LateStorage>) {
    start_with(digests, None)
}

/// As [`start`], with or without tuples.
pub(crate) fn start_with(digests: Digests, protection: Option<Protection>) -> (Session, Session, Arc<LateStorage>) {
    let target = target(Limits::default());
    let storage = Arc::new(LateStorage::new());
    let plain = namespace(NSID, 512, Arc::<LateStorage>::clone(&storage));
    target.add_namespace(NQN, NamespaceOptions { protection, ..plain }).unwrap();
    let (admin, io) = io_session(&target, options(digests));
    (admin, io, storage)
}

pub(crate) fn done(session: &mut Session, id: JobId, result: StorageResult) {
    let mut context = Context { engine: &mut *session.engine, now: session.now };
    session.connection.storage_done(id, result, &mut context);
}

/// Executes a command; the backend's answers are `failure`, if there is one.
fn execute(
    session: &mut Session,
    storage: &LateStorage,
    (command, transfer): (Submission, Transfer),
    failure: Option<Status>,
) -> (Status, Vec<u8>) {
    session.host.send(command, transfer);
    loop {
        let events = session.events();
        if let [HostEvent::Completed { completion, data, is_intact, .. }] = &events[..] {
            assert!(*is_intact && completion.cid == command.cid);
            return (completion.status(), data.clone());
        }
        assert_eq!(events, []);
        let waiting = storage.take();
        assert_eq!(waiting.len(), 1, "the command waits for one request at a time");
        for (id, request) in waiting {
            let result = failure.map_or_else(|| storage.result(id, request), Err);
            done(session, id, result);
        }
    }
}

/// One command of each kind.
fn commands(session: &mut Session) -> Vec<(Submission, Transfer)> {
    let mut blocks = |opcode, first, count| requests::blocks(opcode, session.cid(), NSID, first, count);
    let mut list = vec![
        (blocks(io::WRITE, 0, 8), Transfer::InCapsule(vec![3; 8 * BLOCK])),
        (blocks(io::WRITE, 8, 64), Transfer::OnRequest(vec![4; 64 * BLOCK])),
        (blocks(io::READ, 4, 8), Transfer::ToHost(8 * 512)),
        (blocks(io::COMPARE, 0, 8), Transfer::InCapsule(vec![3; 8 * BLOCK])),
        (blocks(io::VERIFY, 0, 72), Transfer::None),
        (blocks(io::WRITE_ZEROES, 0, 2), Transfer::None),
        (blocks(io::FLUSH, 0, 1), Transfer::None),
    ];
    let (command, data) = requests::deallocate(session.cid(), NSID, &[(2, 1), (5, 1)]);
    list.push((command, Transfer::InCapsule(data)));
    let (command, data) = requests::copy(session.cid(), NSID, 100, &[(3, 2), (8, 4), (0, 1)]);
    list.push((command, Transfer::InCapsule(data)));
    list
}

#[test]
fn commands_wait_for_a_backend_that_answers_later() {
    for digests in Digests::ALL {
        let (_admin, mut io, storage) = start(digests);
        for request in commands(&mut io) {
            let opcode = request.0.opcode;
            let (status, data) = execute(&mut io, &storage, request, None);
            assert_eq!(status, Status::SUCCESS, "{opcode:#x}");
            if opcode == io::READ {
                assert_eq!(data, [vec![3; 4 * BLOCK], vec![4; 4 * BLOCK]].concat());
            }
        }
        let block = |byte: u8, count: usize| vec![byte; count * BLOCK];
        let read = (requests::blocks(io::READ, 500, NSID, 0, 9), Transfer::ToHost(9 * 512));
        let expected = [block(0, 3), block(3, 2), block(0, 1), block(3, 2), block(4, 1)].concat();
        assert_eq!(execute(&mut io, &storage, read, None), (Status::SUCCESS, expected));
        let read = (requests::blocks(io::READ, 501, NSID, 100, 7), Transfer::ToHost(7 * 512));
        let expected = [block(3, 2), block(4, 4), block(0, 1)].concat();
        assert_eq!(execute(&mut io, &storage, read, None), (Status::SUCCESS, expected));
        assert_eq!(io.connection.open_commands(), 0);
    }
}

#[test]
fn errors_of_a_backend_reach_the_host() {
    let (_admin, mut io, storage) = start(Digests { header: true, data: true });
    for failure in [Status::WRITE_FAULT, Status::READ_ERROR, Status::CAPACITY_EXCEEDED, Status::INTERNAL_ERROR] {
        for request in commands(&mut io) {
            let opcode = request.0.opcode;
            let (status, data) = execute(&mut io, &storage, request, Some(failure));
            assert_eq!((status, data), (failure, Vec::new()), "{opcode:#x}");
        }
    }
    assert_eq!(io.connection.open_commands(), 0);
}

#[test]
fn answers_may_come_in_any_order() {
    let (_admin, mut io, storage) = start(Digests { header: false, data: true });
    for number in 0..8_u16 {
        let command = requests::blocks(io::WRITE, number, NSID, number.into(), 1);
        io.host.send(command, Transfer::InCapsule(vec![number as u8 + 1; BLOCK]));
    }
    assert_eq!(io.events(), []);
    for (id, request) in storage.take().into_iter().rev() {
        let result = storage.result(id, request);
        done(&mut io, id, result);
    }
    assert_eq!(io.events().len(), 8);
    for number in 0..8_u16 {
        io.host.send(requests::blocks(io::READ, number, NSID, number.into(), 1), Transfer::ToHost(512));
    }
    assert_eq!(io.events(), []);
    for (id, request) in storage.take().into_iter().rev() {
        let result = storage.result(id, request);
        done(&mut io, id, result);
    }
    let events = io.events();
    assert_eq!(events.len(), 8);
    for event in events {
        let HostEvent::Completed { completion, data, is_intact: true, .. } = event else { panic!("{event:?}") };
        assert_eq!(data, vec![completion.cid.get() as u8 + 1; BLOCK]);
    }
}

#[test]
fn a_late_answer_to_a_connection_that_has_ended_is_dropped() {
    let (_admin, mut io, storage) = start(Digests::default());
    io.host.send(requests::blocks(io::READ, 1, NSID, 0, 1), Transfer::ToHost(512));
    assert_eq!(io.events(), []);
    io.host.send_raw(&[0x55; 8]);
    assert!(matches!(io.events()[..], [HostEvent::Terminated { fes: 1, fei: 0, .. }]));
    let waiting = storage.take();
    assert_eq!(waiting.len(), 1);
    for (id, request) in waiting {
        let result = storage.result(id, request);
        done(&mut io, id, result);
    }
    assert_eq!((io.events(), io.connection.outgoing_len()), (Vec::new(), 0));
}

#[test]
fn a_null_backend_has_zeroes_and_any_size() {
    let target = target(Limits::default());
    let null = Arc::new(NullStorage::new(1 << 40));
    target.add_namespace(NQN, namespace(NSID, 4096, Arc::<NullStorage>::clone(&null))).unwrap();
    let (_admin, mut io) = io_session(&target, HostOptions::default());
    let last = (1 << 28) - 32;
    io.ok(requests::blocks(io::WRITE, 1, NSID, last, 32), Transfer::OnRequest(vec![1; 131_072]));
    let (_, data) = io.ok(requests::blocks(io::READ, 2, NSID, last, 32), Transfer::ToHost(131_072));
    assert_eq!(data, vec![0; 131_072]);
    target.resize_namespace(NQN, NSID, 1 << 39).unwrap();
    let command = requests::blocks(io::READ, 3, NSID, last, 32);
    assert_eq!(io.status(command, Transfer::ToHost(131_072)), Status::LBA_RANGE.do_not_retry());
}

/// A Deallocate of a whole namespace in memory takes turns with other commands: a command that came later overtakes it.
#[test]
fn a_long_deallocate_lets_other_commands_pass() {
    let (bytes, block) = (4_u64 << 30, 4096);
    let target = target(Limits::default());
    target.add_namespace(NQN, namespace(NSID, block, Arc::new(MemoryStorage::new(bytes)))).unwrap();
    let (_admin, mut io) = io_session(&target, options(Digests::default()));
    let last = bytes / u64::from(block) - 1;
    let write = requests::blocks(io::WRITE, io.cid(), NSID, last, 1);
    io.ok(write, Transfer::InCapsule(vec![7; 4096]));
    let (first, second) = (io.cid(), io.cid());
    let (deallocate, ranges) = requests::deallocate(first, NSID, &[(0, u32::try_from(last + 1).unwrap())]);
    io.host.send(deallocate, Transfer::InCapsule(ranges));
    io.host.send(requests::blocks(io::READ, second, NSID, last, 1), Transfer::ToHost(block));
    // The target gets both commands before the Deallocate goes on.
    let completed: Vec<_> = io
        .events()
        .into_iter()
        .map(|event| {
            let HostEvent::Completed { completion, data, .. } = event else { panic!("{event:?}") };
            (completion.cid.get(), completion.status(), data.first().copied())
        })
        .collect();
    assert_eq!(completed, [(second, Status::SUCCESS, Some(7)), (first, Status::SUCCESS, None)]);
    let read = requests::blocks(io::READ, io.cid(), NSID, last, 1);
    assert!(io.ok(read, Transfer::ToHost(block)).1 == [0; 4096]);
}
