//! Data that changes or disappears while a command uses it: the host gets an error or valid data.

use crate::session::{NQN, Session, io_queue, io_session, namespace, options, target};
use crate::storage::{self, LateStorage, NSID, done};
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::Arc;
use telpher_nvmf::command::{Submission, io};
use telpher_nvmf::digest::Digests;
use telpher_nvmf::engine::{CpuEngine, DigestEngine, FinishedJob, Job, Segment, Work};
use telpher_nvmf::initiator::{HostEvent, HostOptions, Transfer, requests};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::memory::{MemoryOptions, MemoryStorage};
use telpher_nvmf::namespace::{NamespaceError, NamespaceOptions};
use telpher_nvmf::protection::{Protection, stored_capacity};
use telpher_nvmf::status::Status;
use telpher_nvmf::storage::StorageRequest;

/// Answers the requests of a backend until it has none.
fn answer_all(session: &mut Session, backend: &LateStorage) -> Vec<HostEvent> {
    let mut events = session.events();
    loop {
        let waiting = backend.take();
        if waiting.is_empty() {
            return events;
        }
        for (id, request) in waiting {
            let result = backend.result(id, request);
            done(session, id, result);
        }
        events.extend(session.events());
    }
}

fn statuses(events: &[HostEvent]) -> Vec<Status> {
    let status = |event: &HostEvent| match event {
        HostEvent::Completed { completion, .. } => completion.status(),
        other => panic!("{other:?}"),
    };
    events.iter().map(status).collect()
}

/// The commands that write block 5, each as the command of this number.
fn changes(cid: u16) -> [(Submission, Transfer); 4] {
    let (copy, copy_list) = requests::copy(cid, NSID, 5, &[(9, 1)]);
    let (deallocate, list) = requests::deallocate(cid, NSID, &[(2, 1), (5, 1)]);
    [
        (requests::blocks(io::WRITE, cid, NSID, 5, 1), Transfer::InCapsule(vec![cid.to_le_bytes()[0]; 512])),
        (copy, Transfer::InCapsule(copy_list)),
        (requests::blocks(io::WRITE_ZEROES, cid, NSID, 4, 9), Transfer::None),
        (deallocate, Transfer::InCapsule(list)),
    ]
}

/// A stored block of 520 bytes may be on two pages of a file, of which a read could find one old and one new.
#[test]
fn a_protected_block_has_one_writer_or_readers_if_writes_are_not_atomic() {
    let success = Status::SUCCESS;
    for (number, (change, transfer)) in changes(1).into_iter().enumerate() {
        let (_admin, mut one, backend) = storage::start_with(Digests::default(), Some(Protection::default()));
        let controller = one.connection.queue().unwrap().controller.id();
        let target = one.target();
        let mut two = io_queue(&target, HostOptions::default(), controller, 2, true);
        one.host.send(change, transfer);
        assert_eq!(one.events(), []);
        let executed = backend.take();
        assert_eq!(executed.len(), 1);
        // Another writer and a reader of the same block, and a reader of another block.
        let (other, transfer) = changes(1).into_iter().nth(number).unwrap();
        two.host.send(other, transfer);
        two.host.send(requests::blocks(io::READ, 2, NSID, 5, 1), Transfer::ToHost(512));
        two.host.send(requests::blocks(io::READ, 3, NSID, 100, 1), Transfer::ToHost(512));
        assert_eq!(two.events(), []);
        let beside = backend.take();
        assert!(matches!(beside[..], [(_, StorageRequest::Read { start: 52_000, .. })]), "{number}: {beside:?}");
        for (id, request) in beside {
            let result = backend.result(id, request);
            done(&mut two, id, result);
        }
        assert_eq!(statuses(&two.events()), [success]);
        for (id, request) in executed {
            let result = backend.result(id, request);
            done(&mut one, id, result);
        }
        assert_eq!(statuses(&answer_all(&mut one, &backend)), [success]);
        assert_eq!(statuses(&answer_all(&mut two, &backend)), [success; 2]);
    }
}

/// Without tuples, commands on the same blocks do not wait for each other.
#[test]
fn a_plain_block_may_be_read_while_it_is_written() {
    let (_admin, mut io, backend) = storage::start(Digests::default());
    for (change, transfer) in changes(1) {
        io.host.send(change, transfer);
        io.host.send(requests::blocks(io::READ, 2, NSID, 5, 1), Transfer::ToHost(512));
        assert_eq!(io.events(), []);
        let waiting = backend.take();
        assert_eq!(waiting.len(), 2);
        for (id, request) in waiting {
            let result = backend.result(id, request);
            done(&mut io, id, result);
        }
        assert_eq!(statuses(&answer_all(&mut io, &backend)), [Status::SUCCESS; 2]);
    }
}

/// A file on tmpfs that is removed at the end.
struct MemoryFile(PathBuf);

impl Drop for MemoryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// An engine before whose first job on data for the host another program truncates the namespace's file.
struct Truncating {
    cpu: CpuEngine,
    file: Option<PathBuf>,
    /// Digests of reads are computed when the capsule comes.
    is_immediate: bool,
}

impl Truncating {
    fn truncate(&mut self) {
        if let Some(path) = self.file.take() {
            OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap();
        }
    }
}

impl DigestEngine for Truncating {
    fn prepare(&mut self, job: Job) {
        if matches!(job.work, Work::Digest(_) | Work::Protect(_)) {
            self.truncate();
        }
        self.cpu.prepare(job);
    }

    fn is_immediate(&self, _bytes: usize) -> bool {
        self.is_immediate
    }

    fn digest_now(&mut self, segments: &[Segment]) -> u32 {
        self.truncate();
        self.cpu.digest_now(segments)
    }

    fn submit(&mut self) {}

    fn completed(&mut self, done: &mut Vec<FinishedJob>) {
        self.cpu.completed(done);
    }

    fn pending(&self) -> usize {
        self.cpu.pending()
    }
}

/// The read has found all pages, and then its digest or its tuples are computed of zeroes.
#[test]
fn a_file_that_is_truncated_during_a_read_gives_no_zeroes() {
    let cases = [(None, false), (None, true), (Some(Protection::default()), false)];
    for (number, (protection, is_immediate)) in cases.into_iter().enumerate() {
        let name = format!("telpher-nvmf-torn-{number}-{}", std::process::id());
        let file = MemoryFile(PathBuf::from("/dev/shm").join(name));
        let storage = Arc::new(MemoryStorage::create(&file.0, MemoryOptions::fixed(1 << 20)).unwrap());
        let target = target(Limits::default());
        target.add_namespace(NQN, NamespaceOptions { protection, ..namespace(NSID, 512, storage) }).unwrap();
        let (_admin, mut io) = io_session(&target, options(Digests { header: true, data: true }));
        let write = requests::blocks(io::WRITE, io.cid(), NSID, 0, 8);
        io.ok(write, Transfer::InCapsule(vec![7; 4096]));
        io.engine = Box::new(Truncating { cpu: CpuEngine::default(), file: Some(file.0.clone()), is_immediate });
        for _ in 0..2 {
            let read = requests::blocks(io::READ, io.cid(), NSID, 0, 8);
            assert_eq!(io.status(read, Transfer::ToHost(4096)), Status::READ_ERROR);
        }
        assert_eq!(io.connection.open_commands(), 0);
    }
}

#[test]
fn a_capacity_that_does_not_fit_64_bits_with_tuples_is_refused() {
    assert_eq!(stored_capacity(1 << 20, 512), Some(2048 * 520));
    assert_eq!([512, 4096].map(|block| stored_capacity(u64::MAX, block)), [None; 2]);
    let target = target(Limits::default());
    let plain = namespace(NSID, 512, Arc::new(MemoryStorage::new(1 << 20)));
    target.add_namespace(NQN, NamespaceOptions { protection: Some(Protection::default()), ..plain }).unwrap();
    let refused = target.resize_namespace(NQN, NSID, u64::MAX);
    let (bytes, status) = (u64::MAX, Status::CAPACITY_EXCEEDED);
    assert_eq!(refused, Err(NamespaceError::Resize { bytes, status }));
}
