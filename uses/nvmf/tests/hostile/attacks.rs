//! What hostile hosts do.

use crate::HOSTILE;
use crate::cases::{self, BLOCK, Case};
use crate::host::{Ended, Host};
use std::net::SocketAddr;
use telpher_nvmf::Initiator;
use telpher_nvmf::command::{SGL_TRANSPORT, io};
use telpher_nvmf::controller::{ENABLE, ENTRY_SIZES, property};
use telpher_nvmf::digest::Digests;
use telpher_nvmf::initiator::requests::{self, Identity, QueueRequest};
use telpher_nvmf::initiator::{HostEvent, HostOptions, Transfer};
use telpher_nvmf::pdu::Kind;
use telpher_nvmf::status::Status;
use telpher_os::Random;
use zerocopy::byteorder::little_endian::U32;

const PLAIN: Digests = Digests { header: false, data: false };
const BOTH: Digests = Digests { header: true, data: true };

/// A hostile host with one controller.
pub(crate) struct Attacker {
    address: SocketAddr,
    admin: Host,
    controller: u16,
    next_queue: u16,
}

impl Attacker {
    pub(crate) fn new(address: SocketAddr) -> Attacker {
        let (admin, controller) = Host::admin(address, HOSTILE, PLAIN);
        Attacker { address, admin, controller, next_queue: 1 }
    }

    /// A connected I/O queue.
    fn queue(&mut self, digests: Digests) -> Host {
        self.next_queue += 1;
        Host::queue(self.address, HOSTILE, digests, self.controller, self.next_queue - 1)
    }

    /// A connection on which nothing has been sent.
    fn silent(&self) -> Host {
        let mut host = Host::silent(self.address, Initiator::new(HostOptions::default()));
        let _ = host.machine.take_output();
        host
    }

    /// All that a host sends in a session: a write by R2T, a read, and a write in a capsule.
    fn session(&mut self, digests: Digests) -> Vec<u8> {
        let mut machine = Initiator::new(HostOptions { digests, ..HostOptions::default() });
        self.next_queue += 1;
        let queue = QueueRequest { qid: self.next_queue - 1, entries: 32, flow_control: true, keep_alive_ms: 0 };
        machine.send(requests::connect(1, queue), Transfer::InCapsule(identity().connect_data(self.controller)));
        let data = vec![3; 32 * BLOCK];
        machine.send(requests::blocks(io::WRITE, 2, 1, 0, 32), Transfer::OnRequest(data.clone()));
        // The connection's first R2T has tag 1.
        machine.send_data(2, 1, 0, &data, true);
        machine.send(requests::blocks(io::READ, 3, 1, 0, 2), Transfer::ToHost(2 * BLOCK as u32));
        machine.send(requests::blocks(io::WRITE, 4, 1, 0, 2), Transfer::InCapsule(vec![4; 2 * BLOCK]));
        machine.take_output()
    }
}

fn identity() -> Identity {
    let host_nqn = "nqn.2014-08.org.nvmexpress:uuid:77777777-2222-3333-4444-555555555555".into();
    Identity { host_id: [7; 16], host_nqn, subsystem_nqn: HOSTILE.into() }
}

type Attack = fn(&mut Attacker);

/// All attacks, by name.
pub(crate) const ALL: [(&str, Attack); 11] = [
    ("violations of the protocol", violate),
    ("commands that fail", fail),
    ("wrong digests", damage),
    ("invalid requests to connect", connect_wrongly),
    ("leaving at any time", leave),
    ("pieces of any size", cut),
    ("not reading", never_read),
    ("idle connections", idle),
    ("terminations", terminate),
    ("resets under load", reset),
    ("random bytes", send_random_bytes),
];

/// The server answers with this error, and takes nothing more.
fn expect_fatal(mut host: Host, case: &Case) {
    let Case { name, before, bytes, expected } = case;
    host.machine.send_raw(before);
    host.machine.send_raw(bytes);
    match host.event() {
        Ok(HostEvent::Terminated { fes, fei, .. }) => assert_eq!((fes, fei), *expected, "{name}"),
        event => panic!("{name}: {event:?}"),
    }
}

fn violate(attacker: &mut Attacker) {
    for case in cases::of_initialisation() {
        expect_fatal(attacker.silent(), &case);
    }
    for case in cases::of_common_headers().iter().chain(&cases::of_data_descriptors()) {
        expect_fatal(attacker.queue(PLAIN), case);
    }
    for case in cases::of_header_digests() {
        expect_fatal(attacker.queue(BOTH), &case);
    }
    for case in cases::of_data() {
        let mut host = attacker.queue(PLAIN);
        let mut command = requests::blocks(io::WRITE, 9, 1, 0, 64);
        (command.sgl_kind, command.sgl_length) = (SGL_TRANSPORT, U32::new(64 * BLOCK as u32));
        host.machine.send_capsule(&command, &[]);
        assert_eq!(host.pdu()[0], Kind::R2t as u8);
        expect_fatal(host, &case);
    }
    // More commands than the queue has entries.
    let mut host = attacker.queue(PLAIN);
    for cid in 0..33 {
        let mut command = requests::blocks(io::WRITE, cid, 1, 0, 64);
        (command.sgl_kind, command.sgl_length) = (SGL_TRANSPORT, U32::new(64 * BLOCK as u32));
        host.machine.send_capsule(&command, &[]);
    }
    let mut pdu = host.pdu();
    while pdu[0] == Kind::R2t as u8 {
        pdu = host.pdu();
    }
    assert_eq!(pdu[0], Kind::C2hTermReq as u8);
}

fn fail(attacker: &mut Attacker) {
    let mut host = attacker.queue(BOTH);
    let write = |first, blocks, nsid| requests::blocks(io::WRITE, 0, nsid, first, blocks);
    let in_capsule = || Transfer::InCapsule(vec![9; 8 * BLOCK]);
    let on_request = |blocks: usize| Transfer::OnRequest(vec![9; blocks * BLOCK]);
    let cases = [
        ("namespace 0", write(0, 8, 0), in_capsule(), Status::INVALID_NAMESPACE),
        ("namespace 2", write(0, 8, 2), in_capsule(), Status::INVALID_NAMESPACE),
        ("namespace FFFFFFFEh", write(0, 8, 0xffff_fffe), in_capsule(), Status::INVALID_NAMESPACE),
        ("the first block behind the end", write(8192, 8, 1), in_capsule(), Status::LBA_RANGE),
        ("beyond the end", write(8190, 8, 1), in_capsule(), Status::LBA_RANGE),
        ("SLBA + NLB overflows", write(u64::MAX - 3, 8, 1), in_capsule(), Status::LBA_RANGE),
        ("less data than blocks", write(0, 9, 1), in_capsule(), Status::DATA_LENGTH),
        ("more data than blocks", write(0, 60, 1), on_request(64), Status::DATA_LENGTH),
        ("65536 blocks", write(0, 65536, 1), on_request(64), Status::LBA_RANGE),
        ("more than MDTS", write(0, 512, 1), on_request(512), Status::INVALID_FIELD),
        ("an unknown opcode with data", requests::blocks(0x85, 0, 1, 0, 8), in_capsule(), Status::INVALID_OPCODE),
        ("an unknown opcode", requests::blocks(0x80, 0, 1, 0, 8), Transfer::None, Status::INVALID_OPCODE),
    ];
    for (name, mut command, transfer, expected) in cases {
        command.cid = host.cid().into();
        let done = host.execute(command, transfer).expect("the connection is kept");
        assert_eq!(done.completion.status().code(), expected.code(), "{name}: {:?}", done.completion.status());
        assert!(!done.completion.status().is_success());
    }
    // A data descriptor of 4 GiB gets an answer before anything is allocated.
    let mut command = requests::blocks(io::WRITE, 500, 1, 0, 8);
    host.machine.send(command, Transfer::None);
    let _ = host.machine.take_output();
    (command.sgl_kind, command.sgl_length) = (SGL_TRANSPORT, U32::new(u32::MAX));
    host.machine.send_capsule(&command, &[]);
    let event = host.event();
    let Ok(HostEvent::Completed { completion, .. }) = event else { panic!("{event:?}") };
    assert!(!completion.status().is_success());
}

fn damage(attacker: &mut Attacker) {
    let mut host = attacker.queue(BOTH);
    let zeros = requests::blocks(io::WRITE_ZEROES, 1, 1, 0, 64);
    host.ok(zeros, Transfer::None);
    // CVE-2026-64534: also for a command that is itself invalid.
    for (first, expected) in [(0, Status::TRANSIENT_TRANSPORT_ERROR), (8192, Status::LBA_RANGE.do_not_retry())] {
        let write = requests::blocks(io::WRITE, host.cid(), 1, first, 8);
        host.machine.send(write, Transfer::InCapsule(vec![1; 8 * BLOCK]));
        let mut bytes = host.machine.take_output();
        *bytes.last_mut().expect("a PDU") ^= 1;
        host.machine.send_raw(&bytes);
        let event = host.event();
        let Ok(HostEvent::Completed { completion, .. }) = event else { panic!("{event:?}") };
        assert_eq!((completion.status(), completion.cid), (expected, write.cid));
    }
    // Each of the two H2CData of a write, and both.
    for wrong in [[true, false], [false, true], [true, true]] {
        let mut damaged = attacker.queue(BOTH);
        let write = requests::blocks(io::WRITE, 9, 1, 0, 64);
        damaged.machine.send(write, Transfer::OnRequest(vec![1; 64 * BLOCK]));
        assert_eq!(damaged.pdu()[0], Kind::R2t as u8);
        for (part, is_wrong) in (0..).zip(wrong) {
            damaged.machine.send_data(9, 1, part * 16384, &[1; 16384], part == 1);
            let mut bytes = damaged.machine.take_output();
            *bytes.last_mut().expect("a PDU") ^= u8::from(is_wrong);
            damaged.machine.send_raw(&bytes);
        }
        let event = damaged.event();
        let Ok(HostEvent::Completed { completion, .. }) = event else { panic!("{event:?}") };
        assert_eq!((completion.status(), completion.cid.get()), (Status::TRANSIENT_TRANSPORT_ERROR, 9));
    }
    let read = requests::blocks(io::READ, 900, 1, 0, 64);
    assert!(host.ok(read, Transfer::ToHost(64 * BLOCK as u32)).1.iter().all(|byte| *byte == 0), "nothing was written");
}

fn connect_wrongly(attacker: &mut Attacker) {
    let good = QueueRequest { qid: 0, entries: 32, flow_control: true, keep_alive_ms: 0 };
    let data = || identity().connect_data(0xffff);
    let with = |range: std::ops::Range<usize>, value: u8| {
        let mut data = data();
        data[range].fill(value);
        data
    };
    // CVE-2023-6121: names without a NUL byte.
    let cases = [
        ("a subsystem's name without end", good, with(256..512, b'a'), Status::CONNECT_PARAMETERS),
        ("a host's name without end", good, with(512..768, b'a'), Status::CONNECT_PARAMETERS),
        ("no subsystem", good, with(256..512, 0), Status::CONNECT_PARAMETERS),
        ("no host", good, with(512..768, 0), Status::CONNECT_PARAMETERS),
        ("a controller for the admin queue", good, with(16..18, 1), Status::CONNECT_PARAMETERS),
        ("queue 65535", QueueRequest { qid: 65535, ..good }, data(), Status::CONNECT_PARAMETERS),
        ("one entry", QueueRequest { entries: 1, ..good }, data(), Status::CONNECT_PARAMETERS),
        ("65535 entries", QueueRequest { entries: 65535, ..good }, data(), Status::CONNECT_PARAMETERS),
        ("too little data", good, data()[..1020].to_vec(), Status::INVALID_FIELD),
    ];
    for (name, queue, data, expected) in cases {
        let mut host = Host::new(attacker.address, PLAIN);
        let command = requests::connect(1, queue);
        let done = host.execute(command, Transfer::InCapsule(data)).expect("an answer");
        let status = done.completion.status();
        assert_eq!((status.kind(), status.code()), (expected.kind(), expected.code()), "{name}");
    }
    // CVE-2024-46737 and SPDK #1546: the data comes by R2T, or never.
    for is_sent in [true, false] {
        let mut host = Host::new(attacker.address, PLAIN);
        host.machine.send(requests::connect(1, good), Transfer::OnRequest(data()));
        if is_sent {
            let event = host.event();
            let Ok(HostEvent::Completed { completion, .. }) = event else { panic!("{event:?}") };
            assert_eq!(completion.status(), Status::SUCCESS);
        } else {
            host.flush();
        }
    }
    // Commands before Connect.
    let mut host = Host::new(attacker.address, PLAIN);
    let read = requests::blocks(io::READ, 1, 1, 0, 1);
    let done = host.execute(read, Transfer::ToHost(BLOCK as u32));
    assert!(!done.expect("an answer").completion.status().is_success());
}

fn leave(attacker: &mut Attacker) {
    for digests in [PLAIN, BOTH] {
        let len = attacker.session(digests).len();
        // At each byte of ICReq and Connect, then at some of the data.
        for end in (0..1300).chain((1300..len).step_by(31)) {
            let bytes = attacker.session(digests);
            let mut host = attacker.silent();
            host.machine.send_raw(&bytes[..end]);
            host.flush();
            // Some wait for ICResp: the kernel delays connections that come faster than the server accepts them.
            if end >= 128 && end % 4 < 2 {
                assert_eq!(host.pdu()[0], Kind::IcResp as u8);
            }
            if end % 2 == 0 {
                host.reset();
            }
        }
    }
}

fn cut(attacker: &mut Attacker) {
    for (digests, piece) in [(PLAIN, 1), (BOTH, 1), (BOTH, 7), (BOTH, 4093), (BOTH, usize::MAX)] {
        let bytes = attacker.session(digests);
        let mut host = attacker.silent();
        for piece in bytes.chunks(piece) {
            host.machine.send_raw(piece);
            host.flush();
        }
        let mut completed = 0;
        while completed < 4 {
            let pdu = host.pdu();
            assert_ne!(pdu[0], Kind::C2hTermReq as u8, "{digests:?}, pieces of {piece}: {pdu:?}");
            if pdu[0] == Kind::CapsuleResp as u8 {
                assert_eq!(pdu[22..24], [0, 0], "{digests:?}, pieces of {piece}: the status in {pdu:?}");
                completed += 1;
            }
        }
    }
}

fn never_read(attacker: &mut Attacker) {
    for digests in [PLAIN, BOTH] {
        for is_reset in [false, true] {
            let mut host = attacker.queue(digests);
            for cid in 0..31 {
                host.machine.send(requests::blocks(io::READ, cid, 1, 0, 256), Transfer::ToHost(256 * BLOCK as u32));
            }
            host.flush();
            if is_reset {
                host.reset();
            }
        }
    }
}

fn idle(attacker: &mut Attacker) {
    let mut hosts: Vec<Host> = (0..50).map(|_| attacker.silent()).collect();
    for (len, host) in (0..).zip(&mut hosts) {
        // From nothing to most of an ICReq.
        host.machine.send_raw(&cases::ic_req(0, 0, 3, 0)[..len]);
        host.flush();
    }
    // Others are served meanwhile.
    let mut queue = attacker.queue(BOTH);
    queue.ok(requests::blocks(io::READ, 5, 1, 0, 8), Transfer::ToHost(8 * BLOCK as u32));
}

/// SPDK a1b2c9d635: FES was used as an index of a table.
fn terminate(attacker: &mut Attacker) {
    for fes in [0_u16, 1, 6, 7, 0xffff] {
        for plen in [0_u32, 23, 24, 25, 152, 153, u32::MAX] {
            let mut host = attacker.queue(PLAIN);
            let mut rest = vec![0; 144];
            rest[..2].copy_from_slice(&fes.to_le_bytes());
            host.machine.send_raw(&cases::pdu(2, 0, 24, 0, plen, &rest));
            let event = host.event();
            assert!(matches!(event, Err(Ended::Closed)), "FES {fes}, PLEN {plen}: {event:?}");
        }
    }
}

/// CVE-2024-42152: the controller ends while its queues have commands and others connect.
fn reset(attacker: &mut Attacker) {
    for _ in 0..20 {
        let mut queues: Vec<Host> = (0..4).map(|_| attacker.queue(BOTH)).collect();
        for host in &mut queues {
            for cid in 0..8 {
                let write = requests::blocks(io::WRITE, cid, 1, 64, 64);
                host.machine.send(write, Transfer::OnRequest(vec![5; 64 * BLOCK]));
            }
            host.flush();
        }
        let cid = attacker.admin.cid();
        attacker.admin.ok(requests::property_set(cid, property::CC, ENTRY_SIZES), Transfer::None);
        for mut host in queues {
            while host.event().is_ok() {}
        }
        attacker.admin.ok(requests::property_set(cid, property::CC, ENTRY_SIZES | ENABLE), Transfer::None);
    }
}

fn send_random_bytes(attacker: &mut Attacker) {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut host = if seed % 4 == 0 { attacker.silent() } else { attacker.queue(PLAIN) };
        let mut bytes = vec![0; 1 + random.below(20_000) as usize];
        random.fill(&mut bytes);
        if seed % 4 == 1 {
            // The start of a valid capsule, so that the rest is taken for its entry.
            bytes.splice(..0, cases::pdu(4, 0, 72, 0, 72, &[]));
        }
        host.machine.send_raw(&bytes);
        host.flush();
        host.end_output();
        host.wait_for_close();
    }
}
