//! One input that changes a recorded session of NVMe/TCP: the host's PDUs for the target, or the target's for the
//! initiator. Neither crashes. With both digests, and unless the input computes them again, no change of data passes
//! unnoticed.
//!
//! An input begins with the digests, the direction and whether digests are computed again after the changes. Changes
//! follow, each a byte and its operands: change bytes of a PDU, set a field to a value at a limit, drop, repeat, swap
//! or shorten PDUs. Used by the libFuzzer target and by the bounded test `uses/nvmf/tests/fuzz_nvmf.rs`.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use telpher_nvmf::command::{Submission, io};
use telpher_nvmf::connection::{Connection, Context};
use telpher_nvmf::decoder::{Decoder, Event};
use telpher_nvmf::digest::{Digests, digest};
use telpher_nvmf::engine::{CpuEngine, DigestEngine};
use telpher_nvmf::initiator::requests::{self, Identity, QueueRequest};
use telpher_nvmf::initiator::{HostEvent, HostOptions, Initiator, Transfer};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::memory::MemoryStorage;
use telpher_nvmf::namespace::NamespaceOptions;
use telpher_nvmf::pdu::{HAS_DATA_DIGEST, HAS_HEADER_DIGEST, Kind, Receiver};
use telpher_nvmf::subsystem::SubsystemOptions;
use telpher_nvmf::target::Target;

const NQN: &str = "nqn.2026-01.org.example:disk";
const BLOCK: usize = 512;
/// Blocks of the namespace, and those that the session's commands use.
const BLOCKS: usize = 256;
const USED: u32 = 64;
/// What the session writes: in the first half by R2T, in the second half in capsules.
const FILL: u8 = 0x3c;
/// Most changes of an input: longer inputs find nothing new.
const CHANGES: usize = 40;

/// The rest of an input; zeros after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::from(self.word()) % limit.max(1)
    }
}

/// A target with a namespace of zeros.
fn target() -> Arc<Target> {
    // Two R2Ts for the write, of two H2CData each.
    let limits = Limits { h2c_bytes: 4096, r2t_bytes: 8192, ..Limits::default() };
    let target = Target::new(limits).expect("valid limits");
    let options = SubsystemOptions { nqn: NQN.into(), serial: "1".into(), model: "fuzz".into(), hosts: None };
    target.add_subsystem(options).expect("valid options");
    let storage = Arc::new(MemoryStorage::new((BLOCKS * BLOCK) as u64));
    let (uuid, nguid) = ([1; 16], [2; 16]);
    let options = NamespaceOptions {
        nsid: 1,
        block_bytes: BLOCK as u32,
        uuid,
        nguid,
        is_read_only: false,
        protection: None,
        storage,
    };
    target.add_namespace(NQN, options).expect("valid options");
    target
}

/// One queue of a host, and what the two sides sent.
struct Session {
    connection: Connection,
    host: Initiator,
    to_target: Vec<u8>,
    to_host: Vec<u8>,
}

impl Session {
    fn new(target: &Arc<Target>, digests: Digests) -> Session {
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 4420));
        let host = Initiator::new(HostOptions { digests, ..HostOptions::default() });
        let (to_target, to_host) = (Vec::new(), Vec::new());
        Session { connection: Connection::new(target, local, 0), host, to_target, to_host }
    }

    /// Moves bytes in both directions until nothing moves any more. Returns the last result.
    fn exchange(&mut self) -> u64 {
        let mut engine = CpuEngine::default();
        loop {
            let bytes = self.host.take_output();
            deliver(&mut self.connection, &bytes, bytes.len(), &mut engine);
            let reply = reply(&mut self.connection);
            self.host.receive(&reply).expect("the target follows the protocol");
            if bytes.is_empty() && reply.is_empty() {
                break;
            }
            self.to_target.extend(bytes);
            self.to_host.extend(reply);
        }
        let mut last = 0;
        while let Some(event) = self.host.take_event() {
            if let HostEvent::Completed { completion, .. } = event {
                assert!(completion.status().is_success(), "{completion:?}");
                last = completion.result.get();
            }
        }
        last
    }

    fn connect(&mut self, qid: u16, controller: u16) -> u16 {
        self.exchange();
        let host_nqn = "nqn.2026-01.org.example:host".into();
        let identity = Identity { host_id: [7; 16], host_nqn, subsystem_nqn: NQN.into() };
        let queue = QueueRequest { qid, entries: 32, flow_control: true, keep_alive_ms: 0 };
        self.host.send(requests::connect(1, queue), Transfer::InCapsule(identity.connect_data(controller)));
        (self.exchange() & 0xffff) as u16
    }
}

/// Gives a connection bytes in pieces, and finishes its jobs.
fn deliver(connection: &mut Connection, bytes: &[u8], longest: usize, engine: &mut CpuEngine) {
    for piece in bytes.chunks(longest.max(1)) {
        connection.receive(piece, &mut Context { engine: &mut *engine, now: 0 });
        let mut done = Vec::new();
        engine.completed(&mut done);
        for job in done {
            connection.digest_done(job, &mut Context { engine: &mut *engine, now: 0 });
        }
    }
}

fn reply(connection: &mut Connection) -> Vec<u8> {
    let reply = connection.outgoing(usize::MAX).collect::<Vec<_>>().concat();
    connection.sent(reply.len());
    reply
}

/// Connects an admin queue, and enables its controller.
fn admin(target: &Arc<Target>, digests: Digests) -> (Session, u16) {
    let mut admin = Session::new(target, digests);
    let controller = admin.connect(0, 0xffff);
    admin.host.send(requests::enable(2), Transfer::None);
    admin.exchange();
    (admin, controller)
}

/// The commands of a session, with their data.
fn commands() -> Vec<(Submission, Transfer)> {
    let half = USED as usize / 2 * BLOCK;
    let mut commands = vec![
        (requests::blocks(io::WRITE, 2, 1, 0, USED / 2), Transfer::OnRequest(vec![FILL; half])),
        (requests::blocks(io::READ, 3, 1, 0, USED / 2), Transfer::ToHost(half as u32)),
    ];
    for (cid, first) in (4..).zip((USED / 2..USED).step_by(8)) {
        let write = requests::blocks(io::WRITE, cid, 1, first.into(), 8);
        commands.push((write, Transfer::InCapsule(vec![FILL; 8 * BLOCK])));
    }
    commands.push((requests::blocks(io::READ, 20, 1, 0, USED), Transfer::ToHost(USED * BLOCK as u32)));
    commands.push((requests::blocks(io::COMPARE, 21, 1, 0, 8), Transfer::InCapsule(vec![FILL; 8 * BLOCK])));
    commands.push((Submission::new(io::FLUSH, 22, 1), Transfer::None));
    commands
}

/// Plays the whole session, without changes.
fn recorded(target: &Arc<Target>, digests: Digests, controller: u16) -> Session {
    let mut session = Session::new(target, digests);
    session.connect(1, controller);
    for (command, transfer) in commands() {
        session.host.send(command, transfer);
        session.exchange();
    }
    session
}

/// Splits a recorded stream into its PDUs.
fn pdus(mut stream: &[u8]) -> Vec<Vec<u8>> {
    let mut pdus = Vec::new();
    while let Some(plen) = stream.get(4..8) {
        let len = u32::from_le_bytes([plen[0], plen[1], plen[2], plen[3]]) as usize;
        let (pdu, rest) = stream.split_at(len);
        pdus.push(pdu.to_vec());
        stream = rest;
    }
    pdus
}

/// Values at limits, for fields of two and four bytes.
const LIMITS: [u32; 10] = [0, 1, 4, 511, 4095, 4096, 8193, 0xffff, 0x7fff_ffff, 0xffff_ffff];

/// Makes one change.
fn change(input: &mut Input<'_>, pdus: &mut Vec<Vec<u8>>) {
    let index = input.below(pdus.len());
    let Some(pdu) = pdus.get_mut(index) else { return };
    match input.byte() % 8 {
        0 | 1 => {
            // A byte of the header, where there is most to break.
            let at = input.below(pdu.len().min(80));
            if let Some(byte) = pdu.get_mut(at) {
                *byte ^= input.byte();
            }
        }
        2 => {
            let at = input.below(pdu.len());
            if let Some(byte) = pdu.get_mut(at) {
                *byte ^= input.byte();
            }
        }
        3 => {
            let at = input.below(20) * 4;
            let value = LIMITS[input.below(LIMITS.len())].to_le_bytes();
            let len = if input.byte().is_multiple_of(2) { 2 } else { 4 };
            if let Some(field) = pdu.get_mut(at..at + len) {
                field.copy_from_slice(&value[..len]);
            }
        }
        4 => drop(pdus.remove(index)),
        5 => {
            let copy = pdu.clone();
            let at = input.below(pdus.len() + 1);
            pdus.insert(at, copy);
        }
        6 => {
            let other = input.below(pdus.len());
            pdus.swap(index, other);
        }
        _ => {
            // A shorter PDU, whose length says so.
            let len = input.below(pdu.len() + 1);
            pdu.truncate(len);
            let plen = (len as u32).to_le_bytes();
            if let Some(field) = pdu.get_mut(4..8) {
                field.copy_from_slice(&plen);
            }
        }
    }
}

/// Computes the digests of a PDU again, as far as its header makes sense.
fn fix_digests(pdu: &mut [u8]) {
    let &[_, flags, hlen, pdo, ..] = &*pdu else { return };
    let (hlen, pdo) = (usize::from(hlen), usize::from(pdo));
    if flags & HAS_HEADER_DIGEST != 0 && hlen + 4 <= pdu.len() {
        let right = digest(&pdu[..hlen]).to_le_bytes();
        pdu[hlen..hlen + 4].copy_from_slice(&right);
    }
    if flags & HAS_DATA_DIGEST != 0 && pdo > 0 && pdo + 4 <= pdu.len() {
        let end = pdu.len() - 4;
        let right = digest(&pdu[pdo..end]).to_le_bytes();
        pdu[end..].copy_from_slice(&right);
    }
}

/// Plays one input.
pub(crate) fn play(input: &[u8]) {
    let mut input = Input(input);
    let first = input.byte();
    // Both digests half of the time: then changes must be noticed.
    let digests = if first & 8 != 0 { Digests { header: true, data: true } } else { Digests::from_bits(first & 3) };
    let (to_target, fixes) = (first & 16 != 0, first & 32 != 0);
    let target = target();
    let (_admin, controller) = admin(&target, digests);
    let session = recorded(&target, digests, controller);
    let stream = if to_target { &session.to_target } else { &session.to_host };
    let mut pdus = pdus(stream);
    let longest = 1 + usize::from(input.word());
    for _ in 0..CHANGES {
        if input.0.is_empty() || pdus.is_empty() {
            break;
        }
        change(&mut input, &mut pdus);
    }
    if fixes {
        pdus.iter_mut().for_each(|pdu| fix_digests(pdu));
    }
    let is_noticed = digests.header && digests.data && !fixes;
    drop(session);
    if to_target {
        changed_host(digests, &pdus.concat(), longest, is_noticed);
    } else {
        changed_target(digests, &pdus.concat(), longest, is_noticed);
    }
}

/// The target reads what a host sent.
fn changed_host(digests: Digests, stream: &[u8], longest: usize, is_noticed: bool) {
    let target = target();
    let (admin, controller) = admin(&target, digests);
    let mut session = Session::new(&target, digests);
    let _ = session.host.take_output(); // the stream has its own ICReq
    let mut decoder = Decoder::new(Receiver::Host);
    let mut agreed = Digests::default();
    let mut engine = CpuEngine::default();
    for piece in stream.chunks(longest) {
        deliver(&mut session.connection, piece, piece.len(), &mut engine);
        let reply = reply(&mut session.connection);
        let mut rest = &reply[..];
        while let Some(event) = decoder.next(&mut rest).expect("the target sends valid PDUs") {
            if let Event::Whole { layout, .. } = event
                && layout.kind == Kind::IcResp
            {
                // It has the digests that the changed ICReq, the first PDU, asked for.
                decoder.initialise(agreed, (usize::from(stream[10]) + 1) * 4);
            } else if let Event::Header(layout) = event
                && layout.kind == Kind::IcResp
            {
                agreed = Digests::from_bits(decoder.header()[11]);
            }
        }
        assert!(session.connection.open_commands() <= 32, "more commands than entries");
    }
    drop(session);
    // Each block is as it was before, or as the session wrote it.
    let mut reader = Session::new(&target, digests);
    reader.connect(2, controller);
    reader.host.send(requests::blocks(io::READ, 1, 1, 0, BLOCKS as u32), Transfer::ToHost((BLOCKS * BLOCK) as u32));
    let bytes = reader.host.take_output();
    deliver(&mut reader.connection, &bytes, bytes.len(), &mut engine);
    let reply = reply(&mut reader.connection);
    reader.host.receive(&reply).expect("the target follows the protocol");
    let event = reader.host.take_event();
    let Some(HostEvent::Completed { data, is_intact: true, .. }) = event else { panic!("{event:?}") };
    if is_noticed {
        for (number, block) in data.chunks(BLOCK).enumerate() {
            let value = block[0];
            let is_whole = block.iter().all(|byte| *byte == value);
            assert!(is_whole && (value == 0 || (value == FILL && number < USED as usize)), "block {number} is damaged");
        }
    }
    drop((admin, reader));
    assert!(target.controllers().is_empty(), "no controller outlives its admin queue");
}

/// The initiator reads what a target sent.
fn changed_target(digests: Digests, stream: &[u8], longest: usize, is_noticed: bool) {
    let mut host = Initiator::new(HostOptions { digests, ..HostOptions::default() });
    let queue = QueueRequest { qid: 1, entries: 32, flow_control: true, keep_alive_ms: 0 };
    host.send(requests::connect(1, queue), Transfer::InCapsule(vec![0; 1024]));
    let mut expected = 0;
    for (command, transfer) in commands() {
        if let Transfer::ToHost(bytes) = transfer {
            expected += bytes as usize;
        }
        host.send(command, transfer);
    }
    let mut received = 0;
    for piece in stream.chunks(longest) {
        let result = host.receive(piece);
        while let Some(event) = host.take_event() {
            let HostEvent::Completed { completion, data, is_intact, .. } = event else { continue };
            received += data.len();
            if is_noticed && is_intact && completion.status().is_success() {
                assert!(data.iter().all(|byte| *byte == FILL), "command {} got damaged data", completion.cid);
            }
        }
        // It sends data only for commands that it sent, so its output is bounded too.
        assert!(received <= expected && host.take_output().len() <= 16 << 20);
        if result.is_err() {
            return;
        }
    }
}
