//! The initiators' side: one I/O queue to each disk from each initiator. Commands are built and replies are split by
//! `telpher-nvmf`'s own code.

use super::disks::Disks;
use super::parameters::{BLOCK, DigestBy, INITIATORS, Storage};
use crate::picos::Picos;
use std::sync::Arc;
use telpher_nvmf::command::io;
use telpher_nvmf::decoder::{Decoder, Event};
use telpher_nvmf::digest::Digests;
use telpher_nvmf::initiator::requests::{self, Identity, QueueRequest};
use telpher_nvmf::initiator::{HostOptions, Transfer};
use telpher_nvmf::namespace::NamespaceOptions;
use telpher_nvmf::pdu::{Kind, Receiver};
use telpher_nvmf::subsystem::SubsystemOptions;
use telpher_nvmf::{Connection, Context, CpuEngine, Initiator, Limits, Target};

/// The name of the subsystem.
const NQN: &str = "nqn.2026-01.org.example:disks";
/// Entries of each I/O queue.
const ENTRIES: u16 = 1024;
/// Offsets of the command's identifier and of the status in CapsuleResp. Source: NVMe/TCP Transport 1.1 §3.6.2.6, NVMe
/// Base 2.0 §3.3.3.2.
const CID: usize = 20;
const STATUS: usize = 22;

/// An initiator's I/O queue.
pub(super) struct HostQueue {
    /// Builds capsules.
    initiator: Initiator,
    /// Splits replies.
    decoder: Decoder,
    nsid: u32,
    bytes: u32,
    /// The digest that each reply must have; `None` without digests.
    digest: Option<u32>,
    /// When each command in flight was requested, by its identifier; free identifiers.
    requested: Vec<Picos>,
    free: Vec<u16>,
    /// Bytes that the connection has not taken.
    to_target: Vec<u8>,
    /// The identifier of the response whose header was received last.
    response: Option<u16>,
    /// Replies whose data had a wrong digest, or none.
    wrong: u64,
}

impl HostQueue {
    fn new(initiator: Initiator, digests: Digests, nsid: u32, bytes: u32, digest: u32) -> HostQueue {
        let mut decoder = Decoder::new(Receiver::Host);
        decoder.initialise(digests, 4);
        let free = (0..ENTRIES).rev().collect();
        let requested = vec![Picos::ZERO; ENTRIES.into()];
        let digest = digests.data.then_some(digest);
        let (to_target, response) = (Vec::new(), None);
        HostQueue { initiator, decoder, nsid, bytes, digest, requested, free, to_target, response, wrong: 0 }
    }

    /// Sends the command for a read that was requested at this time.
    pub(super) fn request(&mut self, at: Picos) {
        let cid = self.free.pop().expect("fewer reads are in flight than the queue has entries");
        self.requested[usize::from(cid)] = at;
        let mut command = requests::blocks(io::READ, cid, self.nsid, 0, self.bytes / BLOCK);
        command.sgl_length = self.bytes.into();
        self.initiator.send_capsule(&command, &[]);
        self.to_target.extend(self.initiator.take_output());
    }

    /// Passes bytes to the connection, as far as it takes them.
    pub(super) fn deliver(&mut self, connection: &mut Connection, context: &mut Context<'_>) {
        let taken = connection.receive(&self.to_target, context);
        self.to_target.drain(..taken);
    }

    /// Takes bytes of replies. Returns when the reads were requested that ended with them.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Vec<Picos> {
        let mut input = bytes;
        let mut ended = Vec::new();
        while let Some(event) = self.decoder.next(&mut input).expect("the target sends valid PDUs") {
            match event {
                Event::Header(layout) if layout.kind == Kind::CapsuleResp => {
                    let word =
                        |offset| u16::from_le_bytes([self.decoder.header()[offset], self.decoder.header()[offset + 1]]);
                    assert_eq!(word(STATUS), 0, "a read of a simulated disk succeeds");
                    self.response = Some(word(CID));
                }
                Event::Header(_) => {}
                Event::Whole { layout, digest, .. } if layout.kind == Kind::C2hData => {
                    self.wrong += u64::from(digest != self.digest);
                }
                Event::Whole { .. } => {
                    let Some(cid) = self.response.take() else { continue };
                    self.free.push(cid);
                    ended.push(self.requested[usize::from(cid)]);
                }
            }
        }
        ended
    }

    /// Replies with a wrong digest since the last call.
    pub(super) fn take_wrong(&mut self) -> u64 {
        std::mem::take(&mut self.wrong)
    }
}

/// Connects both initiators to a target with one namespace for each disk. Returns the admin queues, which keep the
/// controllers, and the I/O queues, by initiator and disk. It takes no simulated time.
pub(super) fn connect_initiators(app: &Storage, disks: &Arc<Disks>) -> (Vec<Connection>, Vec<(Connection, HostQueue)>) {
    let limits = Limits {
        transfer_bytes: app.bytes.next_power_of_two().max(Limits::default().transfer_bytes),
        io_queues: u16::try_from(app.costs.disks).unwrap_or(u16::MAX),
        receive_bytes: (2 * app.bytes.next_power_of_two()).max(Limits::default().receive_bytes),
        ..Limits::default()
    };
    let target = Target::new(limits).expect("the limits fit a read");
    let options = SubsystemOptions { nqn: NQN.into(), serial: "1".into(), model: "simulated".into(), hosts: None };
    target.add_subsystem(options).expect("the target has no subsystem yet");
    for nsid in 1..=app.costs.disks {
        let id: [u8; 16] = u128::from(nsid).to_le_bytes();
        let storage = Arc::clone(disks) as Arc<dyn telpher_nvmf::Storage>;
        let options = NamespaceOptions {
            nsid,
            block_bytes: BLOCK,
            uuid: id,
            nguid: id,
            is_read_only: true,
            protection: None,
            storage,
        };
        target.add_namespace(NQN, options).expect("each disk has a number of its own");
    }
    let digests = Digests { header: false, data: app.digest != DigestBy::None };
    let (mut admin, mut queues) = (Vec::new(), Vec::new());
    for initiator in 0..INITIATORS {
        let identity = Identity {
            host_id: u128::from(initiator + 1).to_le_bytes(),
            host_nqn: format!("nqn.2014-08.org.nvmexpress:initiator-{initiator}"),
            subsystem_nqn: NQN.into(),
        };
        let connect = |qid, entries, controller| {
            let queue = QueueRequest { qid, entries, flow_control: true, keep_alive_ms: 0 };
            connect(&target, digests, queue, &identity.connect_data(controller))
        };
        let (mut connection, mut host) = connect(0, 32, u16::MAX);
        host.send(requests::enable(1), Transfer::None);
        exchange(&mut connection, &mut host);
        let controller = connection.queue().expect("the admin queue is connected").controller.id();
        admin.push(connection);
        for nsid in 1..=app.costs.disks {
            let qid = u16::try_from(nsid).unwrap_or(u16::MAX);
            let (connection, host) = connect(qid, ENTRIES, controller);
            assert!(connection.queue().is_some(), "I/O queue {qid} is connected");
            queues.push((connection, HostQueue::new(host, digests, nsid, app.bytes, disks.digest())));
        }
    }
    (admin, queues)
}

/// A connection whose host has sent Connect.
fn connect(target: &Arc<Target>, digests: Digests, queue: QueueRequest, data: &[u8]) -> (Connection, Initiator) {
    let mut connection = Connection::new(target, ([127, 0, 0, 1], 4420).into(), 0);
    let mut host = Initiator::new(HostOptions { digests, ..HostOptions::default() });
    exchange(&mut connection, &mut host);
    host.send(requests::connect(0, queue), Transfer::InCapsule(data.to_vec()));
    exchange(&mut connection, &mut host);
    (connection, host)
}

/// Moves what the host has to send to the target, and the replies back.
fn exchange(connection: &mut Connection, host: &mut Initiator) {
    let mut engine = CpuEngine::default();
    connection.receive(&host.take_output(), &mut Context { engine: &mut engine, now: 0 });
    let reply: Vec<u8> = connection.outgoing(usize::MAX).flatten().copied().collect();
    connection.sent(reply.len());
    host.receive(&reply).expect("the target sends valid PDUs");
}
