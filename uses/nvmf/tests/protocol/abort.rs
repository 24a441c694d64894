//! Abort, in each state of a command.

use crate::session::{NQN, Session, admin_session, io_queue, io_session, namespace, options, target};
use crate::storage::{self, NSID, done};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use telpher_nvmf::command::{FUSED_FIRST, FUSED_SECOND, Submission, admin, io};
use telpher_nvmf::connection::Context;
use telpher_nvmf::digest::Digests;
use telpher_nvmf::engine::{CpuEngine, DigestEngine, FinishedJob, Job};
use telpher_nvmf::initiator::{HostEvent, HostOptions, Transfer, requests};
use telpher_nvmf::limits::{Limits, MOST_DRAINING_R2TS};
use telpher_nvmf::memory::MemoryStorage;
use telpher_nvmf::namespace::NamespaceOptions;
use telpher_nvmf::protection::Protection;
use telpher_nvmf::status::Status;
use telpher_nvmf::storage::StorageRequest;
use telpher_os::Random;

const BLOCK: usize = 512;

fn statuses(session: &mut Session) -> BTreeMap<u16, Status> {
    let completed = session.events().into_iter().map(|event| match event {
        HostEvent::Completed { completion, .. } => (completion.cid.get(), completion.status()),
        other => panic!("{other:?}"),
    });
    completed.collect()
}

fn abort_command(cid: u16, qid: u16, aborted: u16) -> Submission {
    let mut command = Submission::new(admin::ABORT, cid, 0);
    command.set_dword(10, u32::from(qid) | u32::from(aborted) << 16);
    command
}

/// Aborts a command of queue 1. Returns whether it was aborted, and what completes on queue 1 in the meantime. Bytes
/// that the host of queue 1 has for the target stay where they are.
fn abort(admin: &mut Session, io: &mut Session, aborted: u16) -> (bool, BTreeMap<u16, Status>) {
    let unsent = io.host.take_output();
    let cid = admin.cid();
    admin.host.send(abort_command(cid, 1, aborted), Transfer::None);
    assert_eq!(admin.events(), [], "the connection of the queue is asked first");
    let completed = statuses(io);
    let events = admin.events();
    let [HostEvent::Completed { completion, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((completion.cid.get(), completion.status()), (cid, Status::SUCCESS));
    assert!(completion.result.get() <= 1);
    io.host.send_raw(&unsent);
    (completion.result.get() == 0, completed)
}

fn write(cid: u16, first: u64, blocks: u32, byte: u8) -> (Submission, Transfer) {
    let data = vec![byte; blocks as usize * BLOCK];
    let transfer = if data.len() <= 8192 { Transfer::InCapsule(data) } else { Transfer::OnRequest(data) };
    (requests::blocks(io::WRITE, cid, 1, first, blocks), transfer)
}

fn read(io: &mut Session, nsid: u32, first: u64, blocks: u32) -> Vec<u8> {
    let command = requests::blocks(io::READ, 9999, nsid, first, blocks);
    io.ok(command, Transfer::ToHost(blocks * 512)).1
}

fn aborted(cid: u16) -> (bool, BTreeMap<u16, Status>) {
    (true, BTreeMap::from([(cid, Status::ABORTED)]))
}

fn not_aborted() -> (bool, BTreeMap<u16, Status>) {
    (false, BTreeMap::new())
}

/// The host sends the data although the command has ended, as it may: it is skipped. The identifier is used again.
#[test]
fn a_write_that_waits_for_data_is_aborted_and_its_late_data_is_skipped() {
    for digests in Digests::ALL {
        for (h2c_bytes, most_r2ts) in [(131_072, 1), (4096, 4)] {
            let limits = Limits { h2c_bytes, r2t_bytes: 16384, ..Limits::default() };
            let target = target(limits);
            let (mut admin, mut io) = io_session(&target, HostOptions { most_r2ts, ..options(digests) });
            let (command, transfer) = write(1, 0, 256, 7);
            io.host.send(command, transfer);
            io.exchange_until_data();
            assert_eq!(abort(&mut admin, &mut io, 1), aborted(1));
            assert_eq!(io.connection.open_commands(), 0);
            // The late data stays with the host until the target has asked for that of the new command.
            let late = io.host.take_output();
            let (command, transfer) = write(1, 0, 256, 8);
            io.host.send(command, transfer);
            io.exchange_until_data();
            let now = io.host.take_output();
            io.host.send_raw(&late);
            io.host.send_raw(&now);
            assert_eq!(statuses(&mut io), BTreeMap::from([(1, Status::SUCCESS)]));
            assert_eq!(read(&mut io, 1, 0, 256), vec![8; 256 * BLOCK]);
            // All tags are free again, and a second answer to the old R2T is an error.
            io.host.send_raw(&late);
            assert!(matches!(io.events()[..], [HostEvent::Terminated { fes: 1, fei: 10, .. }]));
        }
    }
}

#[test]
fn late_data_of_an_aborted_command_is_checked_as_any_other() {
    for (at, mask, expected) in [(8, 4, (2, 0)), (12, 4, (4, 0)), (17, 0x10, (1, 16))] {
        let target = target(Limits { h2c_bytes: 4096, ..Limits::default() });
        let (mut admin, mut io) = io_session(&target, HostOptions::default());
        let (command, transfer) = write(1, 0, 256, 7);
        io.host.send(command, transfer);
        io.exchange_until_data();
        assert_eq!(abort(&mut admin, &mut io, 1), aborted(1));
        let mut late = io.host.take_output();
        late[at] ^= mask;
        io.host.send_raw(&late);
        let events = io.events();
        let [HostEvent::Terminated { fes, fei, .. }] = events[..] else { panic!("{events:?}") };
        assert_eq!((fes, fei), expected, "{at}");
    }
}

/// A part of the data has come, and another part is on its way.
#[test]
fn a_write_is_aborted_between_its_data() {
    for digests in Digests::ALL {
        let target = target(Limits { h2c_bytes: 4096, ..Limits::default() });
        let (mut admin, mut io) = io_session(&target, options(digests));
        for cut in [1, 30, 5000, 40_000, 100_000] {
            let (command, transfer) = write(1, 0, 256, 7);
            io.host.send(command, transfer);
            io.exchange_until_data();
            let mut data = io.host.take_output();
            let rest = data.split_off(cut);
            io.host.send_raw(&data);
            assert_eq!(statuses(&mut io), BTreeMap::new());
            assert_eq!(abort(&mut admin, &mut io, 1), aborted(1), "{cut}");
            io.host.send_raw(&rest);
            assert_eq!(read(&mut io, 1, 0, 256), vec![0; 256 * BLOCK]);
        }
    }
}

#[test]
fn a_write_behind_the_receive_budget_is_aborted_and_frees_it() {
    let target = target(Limits { receive_bytes: 256 << 10, ..Limits::default() });
    let (mut admin, mut io) = io_session(&target, HostOptions::default());
    for cid in [4, 1, 2, 3] {
        let (command, transfer) = write(cid, u64::from(cid) * 256, 256, cid as u8);
        io.host.send(command, transfer);
    }
    io.exchange_until_data();
    assert_eq!(io.connection.stats().r2ts, 2);
    assert_eq!(abort(&mut admin, &mut io, 2), aborted(2));
    assert_eq!(io.connection.stats().r2ts, 2);
    // Commands 4 and 1 have the budget; the half of command 1 goes to command 3.
    let expected = BTreeMap::from([(1, Status::ABORTED), (3, Status::SUCCESS)]);
    assert_eq!(abort(&mut admin, &mut io, 1), (true, expected));
    assert_eq!(io.connection.stats().r2ts, 3);
    assert_eq!(statuses(&mut io), BTreeMap::from([(4, Status::SUCCESS)]));
    let expected = [vec![0; 512 * BLOCK], vec![3; 256 * BLOCK]].concat();
    assert_eq!([read(&mut io, 1, 256, 256), read(&mut io, 1, 512, 256), read(&mut io, 1, 768, 256)].concat(), expected);
}

/// A host that never sends the data of aborted commands gets no more aborts, and can still write.
#[test]
fn tags_whose_data_never_comes_are_limited() {
    let target = target(Limits::default());
    let (mut admin, mut io) = io_session(&target, HostOptions::default());
    for round in 0..=MOST_DRAINING_R2TS {
        let (command, transfer) = write(1, 0, 256, 7);
        io.host.send(command, transfer);
        io.exchange_until_data();
        let unsent = io.host.take_output();
        if round < MOST_DRAINING_R2TS {
            assert_eq!(abort(&mut admin, &mut io, 1), aborted(1));
        } else {
            assert_eq!(abort(&mut admin, &mut io, 1), not_aborted());
            io.host.send_raw(&unsent);
            assert_eq!(statuses(&mut io), BTreeMap::from([(1, Status::SUCCESS)]));
        }
    }
    // As many R2Ts as ever can be outstanding.
    for cid in 1..=60 {
        let (command, transfer) = write(cid, u64::from(cid) * 32, 32, 9);
        io.host.send(command, transfer);
    }
    assert_eq!(statuses(&mut io).len(), 60);
}

/// An engine that keeps its jobs until the test takes them.
#[derive(Clone, Debug, Default)]
struct HoldingEngine {
    held: Arc<Mutex<Vec<Job>>>,
}

impl DigestEngine for HoldingEngine {
    fn prepare(&mut self, job: Job) {
        self.held.lock().unwrap().push(job);
    }

    fn submit(&mut self) {}

    fn completed(&mut self, _done: &mut Vec<FinishedJob>) {}

    fn pending(&self) -> usize {
        0
    }
}

impl HoldingEngine {
    /// Does the jobs that are held. Returns how many there were.
    fn finish(&self, session: &mut Session) -> usize {
        let jobs = std::mem::take(&mut *self.held.lock().unwrap());
        let (count, mut cpu, mut done) = (jobs.len(), CpuEngine::default(), Vec::new());
        jobs.into_iter().for_each(|job| cpu.prepare(job));
        cpu.completed(&mut done);
        for job in done {
            session.connection.digest_done(job, &mut Context { engine: &mut *session.engine, now: 0 });
        }
        count
    }
}

#[test]
fn a_command_whose_digests_or_tuples_are_being_computed_is_aborted_if_it_is_a_write() {
    let target = target(Limits::default());
    let protection = Some(Protection::default());
    let plain = namespace(NSID, 512, Arc::new(MemoryStorage::new(1 << 20)));
    target.add_namespace(NQN, NamespaceOptions { protection, ..plain }).unwrap();
    let (mut admin, mut io) = io_session(&target, options(Digests { header: false, data: true }));
    let engine = HoldingEngine::default();
    io.engine = Box::new(engine.clone());
    // The digest of a write.
    let (command, transfer) = write(1, 0, 8, 7);
    io.host.send(command, transfer);
    assert_eq!(statuses(&mut io), BTreeMap::new());
    assert_eq!(abort(&mut admin, &mut io, 1), aborted(1));
    assert_eq!((engine.finish(&mut io), statuses(&mut io)), (1, BTreeMap::new()));
    // The tuples of a write.
    let command = requests::blocks(io::WRITE, 2, NSID, 0, 8);
    io.host.send(command, Transfer::InCapsule(vec![7; 8 * BLOCK]));
    assert_eq!(statuses(&mut io), BTreeMap::new());
    assert_eq!((engine.finish(&mut io), statuses(&mut io)), (1, BTreeMap::new()));
    assert_eq!(abort(&mut admin, &mut io, 2), aborted(2));
    assert_eq!((engine.finish(&mut io), statuses(&mut io)), (1, BTreeMap::new()));
    // The tuples, and the digest, of a read: it has been executed.
    io.host.send(requests::blocks(io::READ, 3, NSID, 0, 8), Transfer::ToHost(8 * 512));
    assert_eq!(statuses(&mut io), BTreeMap::new());
    assert_eq!(abort(&mut admin, &mut io, 3), not_aborted());
    assert_eq!((engine.finish(&mut io), statuses(&mut io)), (1, BTreeMap::new()));
    assert_eq!(abort(&mut admin, &mut io, 3), not_aborted());
    assert_eq!((engine.finish(&mut io), statuses(&mut io)), (1, BTreeMap::from([(3, Status::SUCCESS)])));
    assert_eq!(io.connection.open_commands(), 0);
    io.engine = Box::new(CpuEngine::default());
    for nsid in [1, NSID] {
        assert_eq!(read(&mut io, nsid, 0, 8), vec![0; 8 * BLOCK]);
    }
}

/// A backend takes back what it has not begun.
#[test]
fn a_command_in_a_backend_is_aborted_if_it_was_not_begun() {
    let (mut admin, mut io, backend) = storage::start(Digests::default());
    let commands = [
        (requests::blocks(io::WRITE, 1, NSID, 0, 8), Transfer::InCapsule(vec![7; 8 * BLOCK])),
        (requests::blocks(io::READ, 2, NSID, 0, 8), Transfer::ToHost(8 * 512)),
        (requests::blocks(io::WRITE_ZEROES, 3, NSID, 0, 8), Transfer::None),
        (Submission::new(io::FLUSH, 4, NSID), Transfer::None),
    ];
    for (command, transfer) in commands {
        let cid = command.cid.get();
        io.host.send(command, transfer.clone());
        assert_eq!(statuses(&mut io), BTreeMap::new());
        assert_eq!(abort(&mut admin, &mut io, cid), aborted(cid));
        assert_eq!(backend.take().len(), 0);
        // The same command again, and the backend has begun.
        io.host.send(command, transfer);
        assert_eq!(statuses(&mut io), BTreeMap::new());
        let begun = backend.take();
        assert_eq!(abort(&mut admin, &mut io, cid), not_aborted());
        for (id, request) in begun {
            let result = backend.result(id, request);
            done(&mut io, id, result);
        }
        assert_eq!(statuses(&mut io), BTreeMap::from([(cid, Status::SUCCESS)]));
    }
    // A Copy that has read, and waits to write: it is not aborted, and neither is one that has written a part.
    let (copy, list) = requests::copy(5, NSID, 100, &[(0, 1), (4, 1)]);
    io.host.send(copy, Transfer::InCapsule(list));
    for _ in 0..3 {
        assert_eq!(statuses(&mut io), BTreeMap::new());
        for (id, request) in backend.take() {
            let result = backend.result(id, request);
            done(&mut io, id, result);
        }
        assert_eq!(abort(&mut admin, &mut io, 5), not_aborted());
    }
}

fn half(fused: u8, opcode: u8, cid: u16, blocks: u32) -> (Submission, Transfer) {
    let mut command = requests::blocks(opcode, cid, NSID, 0, blocks);
    command.flags |= fused;
    let data = vec![0; blocks as usize * BLOCK];
    (command, if blocks <= 16 { Transfer::InCapsule(data) } else { Transfer::OnRequest(data) })
}

#[test]
fn halves_of_a_fused_pair_are_aborted_together() {
    let (mut admin, mut io, backend) = storage::start(Digests::default());
    let send = |io: &mut Session, fused, opcode, cid, blocks| {
        let (command, transfer) = half(fused, opcode, cid, blocks);
        io.host.send(command, transfer);
    };
    let failed = Status::FAILED_FUSED;
    // A first command alone, and then its second one.
    send(&mut io, FUSED_FIRST, io::COMPARE, 1, 1);
    assert_eq!(statuses(&mut io), BTreeMap::new());
    assert_eq!(abort(&mut admin, &mut io, 1), aborted(1));
    send(&mut io, FUSED_SECOND, io::WRITE, 2, 1);
    assert_eq!(statuses(&mut io), BTreeMap::from([(2, failed)]));
    // One of them waits for data: the other one ends with it.
    for (waiting, other) in [(1, 2), (2, 1)] {
        send(&mut io, FUSED_FIRST, io::COMPARE, 1, 64);
        send(&mut io, FUSED_SECOND, io::WRITE, 2, 64);
        io.exchange_until_data();
        let (is_aborted, completed) = abort(&mut admin, &mut io, waiting);
        // The other one ends when the data that it was asked for has come.
        assert_eq!((is_aborted, completed), aborted(waiting));
        assert_eq!(statuses(&mut io), BTreeMap::from([(other, failed)]));
    }
    // The pair waits in the backend, which has not begun.
    for (named, statuses_of_both) in [(1, [Status::ABORTED, failed]), (2, [failed, Status::ABORTED])] {
        send(&mut io, FUSED_FIRST, io::COMPARE, 1, 1);
        send(&mut io, FUSED_SECOND, io::WRITE, 2, 1);
        assert_eq!(statuses(&mut io), BTreeMap::new());
        let [first, second] = statuses_of_both;
        assert_eq!(abort(&mut admin, &mut io, named), (true, BTreeMap::from([(1, first), (2, second)])));
        assert_eq!(backend.take().len(), 0);
    }
    // It compares, and then writes.
    send(&mut io, FUSED_FIRST, io::COMPARE, 1, 1);
    send(&mut io, FUSED_SECOND, io::WRITE, 2, 1);
    assert_eq!(statuses(&mut io), BTreeMap::new());
    for _ in 0..2 {
        let begun = backend.take();
        for cid in [1, 2] {
            assert_eq!(abort(&mut admin, &mut io, cid), not_aborted());
        }
        for (id, request) in begun {
            let result = backend.result(id, request);
            done(&mut io, id, result);
        }
        if io.connection.open_commands() > 0 {
            assert_eq!(abort(&mut admin, &mut io, 2), not_aborted());
        }
    }
    assert_eq!(statuses(&mut io), BTreeMap::from([(1, Status::SUCCESS), (2, Status::SUCCESS)]));
    assert_eq!(io.connection.open_commands(), 0);
}

#[test]
fn a_command_that_waits_for_a_fused_pair_is_aborted() {
    let (mut admin, mut io, backend) = storage::start(Digests::default());
    for (fused, opcode, cid) in [(FUSED_FIRST, io::COMPARE, 1), (FUSED_SECOND, io::WRITE, 2)] {
        let (command, transfer) = half(fused, opcode, cid, 1);
        io.host.send(command, transfer);
    }
    io.host.send(requests::blocks(io::WRITE, 3, NSID, 0, 1), Transfer::InCapsule(vec![1; BLOCK]));
    for (fused, opcode, cid) in [(FUSED_FIRST, io::COMPARE, 4), (FUSED_SECOND, io::WRITE, 5)] {
        let (command, transfer) = half(fused, opcode, cid, 1);
        io.host.send(command, transfer);
    }
    io.host.send(requests::blocks(io::WRITE, 6, NSID, 0, 1), Transfer::InCapsule(vec![2; BLOCK]));
    assert_eq!(statuses(&mut io), BTreeMap::new());
    assert_eq!(abort(&mut admin, &mut io, 3), aborted(3));
    let both = BTreeMap::from([(4, Status::ABORTED), (5, Status::FAILED_FUSED)]);
    assert_eq!(abort(&mut admin, &mut io, 4), (true, both));
    for _ in 0..3 {
        assert_eq!(io.connection.stats().fatal_errors, 0);
        for (id, request) in backend.take() {
            let result = backend.result(id, request);
            done(&mut io, id, result);
        }
        io.pump();
    }
    let success = Status::SUCCESS;
    assert_eq!(statuses(&mut io), BTreeMap::from([(1, success), (2, success), (6, success)]));
    io.host.send(requests::blocks(io::READ, 7, NSID, 0, 1), Transfer::ToHost(512));
    assert_eq!(io.events(), []);
    for (id, request) in backend.take() {
        assert!(matches!(request, StorageRequest::Read { .. }));
        let result = backend.result(id, request);
        done(&mut io, id, result);
    }
    let events = io.events();
    assert!(matches!(&events[..], [HostEvent::Completed { data, .. }] if *data == vec![2; BLOCK]));
}

#[test]
fn an_event_request_is_aborted_and_other_admin_commands_are_not() {
    let target = target(Limits::default());
    let (mut admin, _) = admin_session(&target, HostOptions::default());
    admin.host.send(Submission::new(admin::EVENT_REQUEST, 100, 0), Transfer::None);
    admin.host.send(Submission::new(admin::EVENT_REQUEST, 101, 0), Transfer::None);
    assert_eq!(admin.events(), []);
    admin.host.send(abort_command(102, 0, 100), Transfer::None);
    let completed = admin.events().into_iter().map(|event| match event {
        HostEvent::Completed { completion, .. } => (completion.cid.get(), completion.status(), completion.result.get()),
        other => panic!("{other:?}"),
    });
    assert_eq!(completed.collect::<Vec<_>>(), [(100, Status::ABORTED, 0), (102, Status::SUCCESS, 0)]);
    // The Abort itself, a command that does not exist, a queue that does not exist, and one that has ended.
    for (cid, qid, aborted) in [(103, 0, 103), (104, 0, 100), (105, 1, 1), (106, u16::MAX, 1)] {
        assert_eq!(admin.ok(abort_command(cid, qid, aborted), Transfer::None).0, 1);
    }
    let controller = admin.connection.queue().unwrap().controller.id();
    drop(io_queue(&target, HostOptions::default(), controller, 1, true));
    assert_eq!(admin.ok(abort_command(107, 1, 1), Transfer::None).0, 1);
    let mut io = io_queue(&target, HostOptions::default(), controller, 1, true);
    assert_eq!(abort(&mut admin, &mut io, 77), not_aborted());
    admin.host.send(abort_command(108, 0, 101), Transfer::None);
    assert_eq!(admin.events().len(), 2);
}

/// The connection ends before it has looked at the Abort.
#[test]
fn an_abort_for_a_connection_that_ends_is_answered() {
    let target = target(Limits::default());
    let (mut admin, mut io) = io_session(&target, HostOptions::default());
    let (command, transfer) = write(1, 0, 256, 7);
    io.host.send(command, transfer);
    io.exchange_until_data();
    admin.host.send(abort_command(50, 1, 1), Transfer::None);
    assert_eq!(admin.events(), []);
    drop(io);
    let events = admin.events();
    let [HostEvent::Completed { completion, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((completion.cid.get(), completion.result.get()), (50, 1));
}

/// An I/O queue of the random test, and the identifiers of its open commands.
struct Queue {
    io: Session,
    open: BTreeSet<u16>,
    next: u16,
}

impl Queue {
    const FIRST: u16 = 1000;

    fn new(io: Session) -> Queue {
        Queue { io, open: BTreeSet::new(), next: Queue::FIRST }
    }

    fn send(&mut self, opcode: u8, fused: u8, first: u64, blocks: u32) {
        let transfer = match opcode {
            io::READ => Transfer::ToHost(blocks * 512),
            io::WRITE | io::COMPARE => Transfer::OnRequest(vec![0; blocks as usize * BLOCK]),
            _ => Transfer::None,
        };
        let mut command = requests::blocks(opcode, self.next, NSID, first, blocks);
        command.flags |= fused;
        self.io.host.send(command, transfer);
        self.open.insert(self.next);
        self.next += 1;
    }

    fn send_pair(&mut self, first: u64, blocks: u32) {
        self.send(io::COMPARE, FUSED_FIRST, first, blocks);
        self.send(io::WRITE, FUSED_SECOND, first, blocks);
    }

    /// Takes what has completed. Returns how many commands were aborted.
    fn completed(&mut self) -> usize {
        let events: Vec<_> = std::iter::from_fn(|| self.io.host.take_event()).collect();
        let is_aborted = |event| {
            let HostEvent::Completed { completion, .. } = event else { panic!("{event:?}") };
            assert!(self.open.remove(&completion.cid.get()), "each command completes once");
            completion.status() == Status::ABORTED
        };
        events.into_iter().map(is_aborted).filter(|&is_aborted| is_aborted).count()
    }
}

/// Random commands, fused pairs and aborts on two queues, with a backend that answers in random order: each command
/// completes once, each Abort is answered, and afterwards no block is locked.
#[test]
fn random_aborts_leave_nothing_behind() {
    let mut aborted = 0;
    for seed in 0..60 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let digests = Digests::ALL[seed as usize % 4];
        let (mut admin, one, backend) = storage::start(digests);
        let target = one.target();
        let controller = one.connection.queue().unwrap().controller.id();
        let two = io_queue(&target, options(digests), controller, 2, true);
        let mut queues = [Queue::new(one), Queue::new(two)];
        let mut held = Vec::new();
        let mut aborts = 0;
        for _ in 0..200 {
            let number = random.below(2) as usize;
            let queue = &mut queues[number];
            let (first, blocks) = (random.below(64), 1 + random.below(20) as u32);
            match random.below(8) {
                0 | 1 if queue.open.len() < 40 => {
                    let opcodes = [io::READ, io::WRITE, io::COMPARE, io::WRITE_ZEROES, io::VERIFY];
                    queue.send(opcodes[random.below(5) as usize], 0, first, blocks);
                }
                2 if queue.open.len() < 40 => queue.send_pair(first, blocks),
                3 if aborts < 20 => {
                    let cid = Queue::FIRST + random.below(u64::from(queue.next - Queue::FIRST) + 1) as u16;
                    admin.host.send(abort_command(100 + aborts, number as u16 + 1, cid), Transfer::None);
                    aborts += 1;
                    // The target has asked for data, and the Abort comes before it.
                    queue.io.exchange_until_data();
                    let unsent = queue.io.host.take_output();
                    admin.pump();
                    queue.io.pump();
                    queue.io.host.send_raw(&unsent);
                }
                4 | 5 => {
                    held.extend(backend.take());
                    if !held.is_empty() {
                        let (id, request) = held.swap_remove(random.below(held.len() as u64) as usize);
                        let fails = random.below(8) == 0;
                        let result = if fails { Err(Status::READ_ERROR) } else { backend.result(id, request) };
                        assert!(target.loops().answer(id, result));
                    }
                }
                _ => queue.io.pump(),
            }
            aborted += queues.iter_mut().map(Queue::completed).sum::<usize>();
        }
        // Everything is answered. A pair that ends on one queue may let a command of the other one begin.
        let mut idle_rounds = 0;
        while idle_rounds < 3 {
            idle_rounds += 1;
            queues.iter_mut().for_each(|queue| queue.io.pump());
            aborted += queues.iter_mut().map(Queue::completed).sum::<usize>();
            held.extend(backend.take());
            for (id, request) in held.drain(..) {
                let result = backend.result(id, request);
                assert!(target.loops().answer(id, result));
                idle_rounds = 0;
            }
        }
        assert_eq!(admin.events().len(), usize::from(aborts), "each Abort is answered");
        for queue in &mut queues {
            assert_eq!((queue.open.len(), queue.io.connection.open_commands()), (0, 0));
            queue.send_pair(0, 84);
            assert_eq!(queue.io.events(), []);
            let waiting = backend.take();
            assert_eq!(waiting.len(), 1, "the pair gets the lock");
            for (id, _) in waiting {
                done(&mut queue.io, id, Err(Status::READ_ERROR));
            }
            assert_eq!(queue.io.events().len(), 2);
        }
    }
    assert!(aborted > 100, "{aborted} commands were aborted");
}
