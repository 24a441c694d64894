//! One input of a hostile host: any PDUs on an admin and an I/O queue, with right or wrong digests, while digests are
//! computed late, namespaces come, go and change their size, and queues are connected again. The target survives,
//! everything that it sends is a valid PDU, and the data of another host is unchanged.
//!
//! An input is a list of steps, each a byte and its operands. Used by the libFuzzer target and by the bounded test
//! `uses/nvmf/tests/fuzz_nvmf.rs`.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use telpher_nvmf::command::{Submission, admin, io};
use telpher_nvmf::connection::{Connection, Context};
use telpher_nvmf::controller::{ENABLE, ENTRY_SIZES, property};
use telpher_nvmf::decoder::Decoder;
use telpher_nvmf::digest::{Digests, digest};
use telpher_nvmf::engine::{CpuEngine, DigestEngine, FinishedJob, Job};
use telpher_nvmf::initiator::requests::{self, Identity, QueueRequest};
use telpher_nvmf::initiator::{HostEvent, HostOptions, Initiator, Transfer};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::memory::MemoryStorage;
use telpher_nvmf::namespace::NamespaceOptions;
use telpher_nvmf::pdu::Receiver;
use telpher_nvmf::protection::Protection;
use telpher_nvmf::subsystem::SubsystemOptions;
use telpher_nvmf::target::Target;

/// Most steps of an input: longer inputs find nothing new.
const STEPS: usize = 300;
/// Entries of the I/O queue.
const ENTRIES: u16 = 16;
/// The subsystem of the hostile host, and that of the other one.
const NQNS: [&str; 2] = ["nqn.2026-01.org.example:hostile", "nqn.2026-01.org.example:other"];
/// Bytes of a namespace.
const NAMESPACE: u64 = 256 << 10;

/// The rest of an input; zeros after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// One of a list.
    fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[usize::from(self.byte()) % list.len()]
    }
}

/// An engine that finishes the jobs that it is told to.
#[derive(Default)]
struct LateEngine {
    waiting: Vec<Job>,
    right: CpuEngine,
}

impl LateEngine {
    /// Finishes one of the waiting jobs.
    fn finish(&mut self, index: usize) {
        if !self.waiting.is_empty() {
            let job = self.waiting.swap_remove(index % self.waiting.len());
            self.right.prepare(job);
        }
    }
}

impl DigestEngine for LateEngine {
    fn prepare(&mut self, job: Job) {
        self.waiting.push(job);
    }

    fn submit(&mut self) {}

    fn completed(&mut self, done: &mut Vec<FinishedJob>) {
        self.right.completed(done);
    }

    fn pending(&self) -> usize {
        self.waiting.len() + self.right.pending()
    }
}

/// A queue of a host, after Connect.
struct Queue {
    connection: Connection,
    /// Builds PDUs.
    host: Initiator,
    /// Checks what the target sends.
    decoder: Decoder,
}

fn local() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 4420))
}

impl Queue {
    /// Connects a queue, and enables the controller of an admin queue. Returns the controller as well.
    fn connect(target: &Arc<Target>, nqn: &str, digests: Digests, qid: u16, controller: u16, now: u64) -> (Queue, u16) {
        let mut queue = Queue {
            connection: Connection::new(target, local(), now),
            host: Initiator::new(HostOptions { digests, ..HostOptions::default() }),
            decoder: Decoder::new(Receiver::Host),
        };
        queue.exchange(now);
        // Two hosts: the identifier belongs to the name.
        let number = u8::from(nqn == NQNS[1]);
        let host_nqn = format!("nqn.2026-01.org.example:host-{number}");
        let identity = Identity { host_id: [number; 16], host_nqn, subsystem_nqn: nqn.into() };
        let entries = if qid == 0 { 32 } else { ENTRIES };
        let request = QueueRequest { qid, entries, flow_control: true, keep_alive_ms: 0 };
        queue.host.send(requests::connect(1, request), Transfer::InCapsule(identity.connect_data(controller)));
        let result = queue.exchange(now);
        if qid == 0 {
            queue.host.send(requests::enable(2), Transfer::None);
            queue.exchange(now);
        }
        queue.decoder.initialise(digests, 4);
        (queue, u16::try_from(result & 0xffff).unwrap_or(0))
    }

    /// Moves bytes in both directions until nothing moves any more. Returns the result of the last command.
    fn exchange(&mut self, now: u64) -> u64 {
        let mut engine = CpuEngine::default();
        loop {
            let bytes = self.host.take_output();
            self.connection.receive(&bytes, &mut Context { engine: &mut engine, now });
            let mut done = Vec::new();
            engine.completed(&mut done);
            for job in done {
                self.connection.digest_done(job, &mut Context { engine: &mut engine, now });
            }
            let reply = self.connection.outgoing(usize::MAX).collect::<Vec<_>>().concat();
            self.connection.sent(reply.len());
            self.host.receive(&reply).expect("the target follows the protocol");
            if bytes.is_empty() && reply.is_empty() {
                break;
            }
        }
        let mut result = 0;
        while let Some(event) = self.host.take_event() {
            if let HostEvent::Completed { completion, .. } = event {
                result = completion.result.get();
            }
        }
        result
    }

    /// Sends bytes in pieces, and checks the replies.
    fn send(&mut self, bytes: &[u8], longest: usize, engine: &mut LateEngine, now: u64) {
        for piece in bytes.chunks(longest.max(1)) {
            self.connection.receive(piece, &mut Context { engine: &mut *engine, now });
            self.check();
        }
    }

    /// Everything that the target sends is valid.
    fn check(&mut self) {
        let reply = self.connection.outgoing(usize::MAX).collect::<Vec<_>>().concat();
        self.connection.sent(reply.len());
        let mut rest = &reply[..];
        while self.decoder.next(&mut rest).expect("a valid PDU").is_some() {}
        assert!(self.connection.open_commands() <= 32, "more commands than entries");
    }
}

/// A namespace; those with even numbers have protection information.
fn namespace(nsid: u32) -> NamespaceOptions {
    let storage = Arc::new(MemoryStorage::new(NAMESPACE));
    let protection = nsid.is_multiple_of(2).then_some(Protection { application_tag: 7 });
    NamespaceOptions { nsid, block_bytes: 512, uuid: [1; 16], nguid: [2; 16], is_read_only: false, protection, storage }
}

/// A command that is often valid.
fn command(input: &mut Input<'_>, is_admin: bool) -> (Submission, Vec<u8>) {
    let opcodes: &[u8] = if is_admin {
        &[
            admin::IDENTIFY,
            admin::GET_LOG_PAGE,
            admin::GET_FEATURES,
            admin::SET_FEATURES,
            admin::EVENT_REQUEST,
            0x18,
            8,
            0x7f,
        ]
    } else {
        &[io::WRITE, io::READ, io::COMPARE, io::WRITE_ZEROES, io::DATASET_MANAGEMENT, io::VERIFY, io::COPY, io::FLUSH]
    };
    let opcode = if input.byte() < 240 { input.one_of(opcodes) } else { input.byte() };
    let cid = u16::from(input.byte() % 24);
    let blocks = u32::from(input.byte() % 64) + 1;
    let nsid = if is_admin { u32::from(input.byte() % 2) } else { u32::from(input.byte() % 3) };
    let mut command = requests::blocks(opcode, cid, nsid, u64::from(input.word() % 600), blocks);
    if is_admin {
        command.set_dword(10, u32::from(input.byte()) | u32::from(input.word()) << 16);
    }
    command.sgl_length = if is_admin { 4096_u32.into() } else { (blocks * 512).into() };
    let mut data = Vec::new();
    if input.byte().is_multiple_of(2) && blocks <= 16 {
        command.sgl_kind = 1;
        data = vec![input.byte(); blocks as usize * 512];
        command.sgl_length = (blocks * 512).into();
    }
    (command, data)
}

/// Damages some bytes of a PDU, and makes its header digest right again most of the time.
fn damage(input: &mut Input<'_>, bytes: &mut [u8], digests: Digests) {
    if bytes.is_empty() || input.byte() < 128 {
        return;
    }
    for _ in 0..=input.byte() % 3 {
        let at = usize::from(input.word()) % bytes.len().min(100);
        bytes[at] = input.byte();
    }
    if input.byte() < 64 {
        let at = usize::from(input.word()) % bytes.len();
        bytes[at] ^= 1;
    }
    let header = usize::from(bytes[2]);
    if digests.header && input.byte() < 220 && header + 4 <= bytes.len() {
        let right = digest(&bytes[..header]).to_le_bytes();
        bytes[header..header + 4].copy_from_slice(&right);
    }
}

/// Plays one input.
pub(crate) fn play(input: &[u8]) {
    let mut input = Input(input);
    let target = Target::new(Limits { h2c_bytes: 4096, r2t_bytes: 8192, ..Limits::default() }).expect("valid limits");
    for nqn in NQNS {
        let options = SubsystemOptions { nqn: nqn.into(), serial: "1".into(), model: "fuzz".into(), hosts: None };
        target.add_subsystem(options).expect("valid options");
        target.add_namespace(nqn, namespace(1)).expect("valid options");
    }
    let plain = Digests::default();
    let (_other_admin, controller) = Queue::connect(&target, NQNS[1], plain, 0, 0xffff, 0);
    let (mut other, _) = Queue::connect(&target, NQNS[1], plain, 1, controller, 0);
    other.host.send(requests::blocks(io::WRITE, 3, 1, 0, 64), Transfer::OnRequest(vec![0x77; 64 * 512]));
    other.exchange(0);

    let digests = Digests::from_bits(input.byte());
    let mut now = 0;
    let mut engine = LateEngine::default();
    let (mut admin, mut id) = Queue::connect(&target, NQNS[0], digests, 0, 0xffff, now);
    let (mut queue, _) = Queue::connect(&target, NQNS[0], digests, 1, id, now);
    for _ in 0..STEPS {
        if input.0.is_empty() {
            break;
        }
        let step = input.byte() % 16;
        match step {
            0..=6 => {
                let is_admin = step == 0;
                let (command, data) = command(&mut input, is_admin);
                let to = if is_admin { &mut admin } else { &mut queue };
                to.host.send_capsule(&command, &data);
                let mut bytes = to.host.take_output();
                damage(&mut input, &mut bytes, digests);
                to.send(&bytes, 1 + usize::from(input.word()), &mut engine, now);
            }
            7 | 8 => {
                let (cid, tag) = (u16::from(input.byte() % 24), input.one_of(&[0, 1, 1, 1, 1, 2, 3, 256, 0xffff]));
                let offset = input.one_of(&[0, 0, 4096, 4096, 8192, 12288, 0x7fff_f000]);
                let len = input.one_of(&[4096, 4096, 4096, 512, 4, 8192]);
                let is_last = input.byte().is_multiple_of(2);
                queue.host.send_data(cid, tag, offset, &vec![input.byte(); len], is_last);
                let mut bytes = queue.host.take_output();
                damage(&mut input, &mut bytes, digests);
                queue.send(&bytes, 1 + usize::from(input.word()), &mut engine, now);
            }
            9 => {
                let bytes: Vec<u8> = (0..input.byte() % 64).map(|_| input.byte()).collect();
                queue.send(&bytes, 7, &mut engine, now);
            }
            10 | 11 => engine.finish(input.byte().into()),
            12 => now += u64::from(input.word()),
            13 => {
                // Each of these may fail, depending on what is there.
                let _ = match input.byte() % 4 {
                    0 => target.remove_namespace(NQNS[0], 1),
                    1 => target.add_namespace(NQNS[0], namespace(u32::from(input.byte() % 3))),
                    2 => target.resize_namespace(NQNS[0], 1, NAMESPACE / 2),
                    _ => target.resize_namespace(NQNS[0], 1, NAMESPACE),
                };
            }
            14 => {
                let value = input.one_of(&[ENTRY_SIZES, ENTRY_SIZES | ENABLE, 0, ENTRY_SIZES | ENABLE | 1 << 14]);
                admin.host.send_capsule(&requests::property_set(100, property::CC, value), &[]);
                let bytes = admin.host.take_output();
                admin.send(&bytes, bytes.len(), &mut engine, now);
            }
            _ => (queue, _) = Queue::connect(&target, NQNS[0], digests, 1, id, now),
        }
        let mut done = Vec::new();
        engine.completed(&mut done);
        for job in done {
            for queue in [&mut admin, &mut queue] {
                if job.id.connection == queue.connection.number() {
                    queue.connection.digest_done(job, &mut Context { engine: &mut engine, now });
                    break;
                }
            }
        }
        for queue in [&mut admin, &mut queue] {
            queue.connection.poll(now);
            queue.check();
        }
        if admin.connection.ending().is_some() {
            (admin, id) = Queue::connect(&target, NQNS[0], digests, 0, 0xffff, now);
        }
        if queue.connection.ending().is_some() {
            (queue, _) = Queue::connect(&target, NQNS[0], digests, 1, id, now);
        }
        assert!(target.controllers().len() <= 3);
    }
    drop((admin, queue));
    assert_eq!(target.controllers().len(), 1, "only the other host's controller is left");
    other.host.send(requests::blocks(io::READ, 4, 1, 0, 64), Transfer::ToHost(64 * 512));
    let bytes = other.host.take_output();
    other.connection.receive(&bytes, &mut Context { engine: &mut engine, now });
    let reply = other.connection.outgoing(usize::MAX).collect::<Vec<_>>().concat();
    other.host.receive(&reply).expect("the target follows the protocol");
    let event = other.host.take_event();
    let Some(HostEvent::Completed { data, is_intact: true, .. }) = event else { panic!("{event:?}") };
    assert!(data == vec![0x77; 64 * 512], "another host's data is unchanged");
}
