//! A host and a target in one thread, with a stream of bytes between them that is cut at random places.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use telpher_nvmf::command::{Completion, Submission};
use telpher_nvmf::connection::{Connection, Context};
use telpher_nvmf::digest::Digests;
use telpher_nvmf::engine::{CpuEngine, DigestEngine, FinishedJob, Job, JobId};
use telpher_nvmf::initiator::requests::{self, Identity, QueueRequest};
use telpher_nvmf::initiator::{HostEvent, HostOptions, Initiator, Transfer};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::loops::LoopInbox;
use telpher_nvmf::memory::MemoryStorage;
use telpher_nvmf::namespace::NamespaceOptions;
use telpher_nvmf::status::Status;
use telpher_nvmf::storage::{Storage, StorageResult};
use telpher_nvmf::subsystem::SubsystemOptions;
use telpher_nvmf::target::Target;
use telpher_os::Random;

pub(crate) const NQN: &str = "nqn.2026-01.org.example:disk";
pub(crate) const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:host-1";

pub(crate) fn local() -> SocketAddr {
    "127.0.0.1:4420".parse().unwrap()
}

pub(crate) fn identity() -> Identity {
    Identity { host_id: [7; 16], host_nqn: HOST.into(), subsystem_nqn: NQN.into() }
}

pub(crate) fn namespace(nsid: u32, block_bytes: u32, storage: Arc<dyn Storage>) -> NamespaceOptions {
    NamespaceOptions {
        nsid,
        block_bytes,
        uuid: [nsid as u8; 16],
        nguid: [0xa0; 16],
        is_read_only: false,
        protection: None,
        storage,
    }
}

/// A target with one subsystem, and namespace 1 in memory: 1 MiB, blocks of 512 bytes.
pub(crate) fn target(limits: Limits) -> Arc<Target> {
    let target = Target::new(limits).unwrap();
    let options = SubsystemOptions { nqn: NQN.into(), serial: "1".into(), model: "test".into(), hosts: None };
    target.add_subsystem(options).unwrap();
    target.add_namespace(NQN, namespace(1, 512, Arc::new(MemoryStorage::new(1 << 20)))).unwrap();
    target
}

/// An engine that finishes jobs late and in random order.
#[derive(Debug)]
pub(crate) struct LateEngine {
    random: Random,
    prepared: Vec<Job>,
    done: CpuEngine,
}

impl LateEngine {
    pub(crate) fn new(seed: u64) -> LateEngine {
        LateEngine { random: Random::new(seed), prepared: Vec::new(), done: CpuEngine::default() }
    }
}

impl DigestEngine for LateEngine {
    fn prepare(&mut self, job: Job) {
        self.prepared.push(job);
    }

    fn submit(&mut self) {}

    fn completed(&mut self, done: &mut Vec<FinishedJob>) {
        let count = self.random.below(self.prepared.len() as u64 + 1);
        for _ in 0..count.max(u64::from(!self.prepared.is_empty())) {
            let index = self.random.below(self.prepared.len() as u64) as usize;
            self.done.prepare(self.prepared.swap_remove(index));
        }
        self.done.completed(done);
    }

    fn pending(&self) -> usize {
        self.prepared.len()
    }
}

/// What other connections and backends sent to a connection.
#[derive(Debug, Default)]
struct Inbox {
    answers: Mutex<Vec<(JobId, StorageResult)>>,
}

impl LoopInbox for Inbox {
    fn answer(&self, id: JobId, result: StorageResult) {
        self.answers.lock().unwrap().push((id, result));
    }

    fn target_changed(&self) {}
}

/// One connection between a host and a target.
pub(crate) struct Session {
    pub(crate) connection: Connection,
    pub(crate) host: Initiator,
    pub(crate) engine: Box<dyn DigestEngine>,
    pub(crate) now: u64,
    /// Bytes on their way to the target.
    to_target: Vec<u8>,
    random: Random,
    /// The longest piece in which bytes arrive.
    longest: u64,
    next_cid: u16,
    inbox: Arc<Inbox>,
    target: Arc<Target>,
}

impl Session {
    pub(crate) fn new(target: &Arc<Target>, options: HostOptions) -> Session {
        let (connection, inbox) = (Connection::new(target, local(), 0), Arc::new(Inbox::default()));
        target.loops().register(connection.number(), Arc::<Inbox>::clone(&inbox));
        Session {
            connection,
            inbox,
            target: Arc::clone(target),
            host: Initiator::new(options),
            engine: Box::new(CpuEngine::default()),
            now: 0,
            to_target: Vec::new(),
            random: Random::new(1),
            longest: 1 << 20,
            next_cid: 0,
        }
    }

    /// Cuts the streams into pieces of 1 to `longest` bytes.
    pub(crate) fn cut(mut self, longest: u64, seed: u64) -> Session {
        (self.longest, self.random) = (longest, Random::new(seed));
        self
    }

    /// The target that it is connected to.
    pub(crate) fn target(&self) -> Arc<Target> {
        Arc::clone(&self.target)
    }

    pub(crate) fn cid(&mut self) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1);
        self.next_cid
    }

    /// Moves bytes and jobs until nothing moves any more.
    pub(crate) fn pump(&mut self) {
        loop {
            self.to_target.extend(self.host.take_output());
            let mut has_moved = false;
            while !self.to_target.is_empty() && self.connection.wants_input() {
                let len = (1 + self.random.below(self.longest)).min(self.to_target.len() as u64) as usize;
                let mut context = Context { engine: &mut *self.engine, now: self.now };
                let taken = self.connection.receive(&self.to_target[..len], &mut context);
                self.to_target.drain(..taken);
                has_moved |= taken > 0;
                if taken < len {
                    break;
                }
            }
            let answers = std::mem::take(&mut *self.inbox.answers.lock().unwrap());
            for (id, result) in answers {
                has_moved = true;
                let mut context = Context { engine: &mut *self.engine, now: self.now };
                self.connection.storage_done(id, result, &mut context);
            }
            let mut done = Vec::new();
            self.engine.submit();
            self.engine.completed(&mut done);
            for job in done {
                has_moved = true;
                let mut context = Context { engine: &mut *self.engine, now: self.now };
                self.connection.digest_done(job, &mut context);
            }
            while self.connection.outgoing_len() > 0 {
                let limit = (1 + self.random.below(self.longest)) as usize;
                let first = self.connection.outgoing(1).next().unwrap();
                let piece = first[..first.len().min(limit)].to_vec();
                self.connection.sent(piece.len());
                self.host.receive(&piece).unwrap();
                has_moved = true;
            }
            if !has_moved && self.engine.pending() == 0 {
                return;
            }
        }
    }

    pub(crate) fn events(&mut self) -> Vec<HostEvent> {
        self.pump();
        std::iter::from_fn(|| self.host.take_event()).collect()
    }

    /// Sends a command and waits for its completion.
    pub(crate) fn execute(&mut self, command: Submission, transfer: Transfer) -> (Completion, Vec<u8>) {
        self.host.send(command, transfer);
        let events = self.events();
        let [HostEvent::Completed { completion, data, is_intact: true, .. }] = &events[..] else {
            panic!("one completion expected: {events:?}, {:?}", self.connection.ending());
        };
        assert_eq!(completion.cid, command.cid);
        (*completion, data.clone())
    }

    pub(crate) fn status(&mut self, command: Submission, transfer: Transfer) -> Status {
        self.execute(command, transfer).0.status()
    }

    /// Sends a command that succeeds; returns its result and its data.
    pub(crate) fn ok(&mut self, command: Submission, transfer: Transfer) -> (u64, Vec<u8>) {
        let (completion, data) = self.execute(command, transfer);
        assert_eq!(completion.status(), Status::SUCCESS, "{command:?}");
        (completion.result.get(), data)
    }

    pub(crate) fn initialise(&mut self) {
        let events = self.events();
        assert!(matches!(events[..], [HostEvent::Initialised { .. }]), "{events:?}");
    }

    /// Connects a queue; returns the controller's identifier.
    pub(crate) fn connect(&mut self, identity: &Identity, queue: QueueRequest, controller: u16) -> u16 {
        let command = requests::connect(self.cid(), queue);
        let (result, _) = self.ok(command, Transfer::InCapsule(identity.connect_data(controller)));
        u16::try_from(result).unwrap()
    }
}

/// An admin queue with an enabled controller.
pub(crate) fn admin_session(target: &Arc<Target>, options: HostOptions) -> (Session, u16) {
    let mut session = Session::new(target, options);
    session.initialise();
    let queue = QueueRequest { qid: 0, entries: 32, flow_control: true, keep_alive_ms: 0 };
    let controller = session.connect(&identity(), queue, 0xffff);
    let command = requests::enable(session.cid());
    session.ok(command, Transfer::None);
    (session, controller)
}

/// An admin queue and I/O queue 1 with 64 entries.
pub(crate) fn io_session(target: &Arc<Target>, options: HostOptions) -> (Session, Session) {
    let (admin, controller) = admin_session(target, options);
    let io = io_queue(target, options, controller, 1, true);
    (admin, io)
}

pub(crate) fn io_queue(
    target: &Arc<Target>,
    options: HostOptions,
    controller: u16,
    qid: u16,
    flow_control: bool,
) -> Session {
    let mut session = Session::new(target, options);
    session.initialise();
    let queue = QueueRequest { qid, entries: 64, flow_control, keep_alive_ms: 0 };
    session.connect(&identity(), queue, controller);
    session
}

pub(crate) fn options(digests: Digests) -> HostOptions {
    HostOptions { digests, ..HostOptions::default() }
}

impl Session {
    /// Moves bytes until the host has answered an R2T; its answer stays in the host's output.
    pub(crate) fn exchange_until_data(&mut self) {
        let bytes = self.host.take_output();
        let mut context = Context { engine: &mut *self.engine, now: self.now };
        assert_eq!(self.connection.receive(&bytes, &mut context), bytes.len());
        let reply: Vec<u8> = self.connection.outgoing(usize::MAX).flatten().copied().collect();
        self.connection.sent(reply.len());
        self.host.receive(&reply).unwrap();
    }
}
