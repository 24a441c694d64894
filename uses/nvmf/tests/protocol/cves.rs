//! Vulnerabilities and bugs of other targets and hosts, one test each, by name.
//!
//! | of | test |
//! |---|---|
//! | Linux nvmet-tcp | `cve_…`, `nvmet_…` |
//! | SPDK | `spdk_…`; `spdk_3842…` in `tests/server`, `spdk_fd7af4ca20_b6d806cb57…` in the tests of `nvmf-run` |
//! | the Linux host | `cve_2025_21927…`, `cve_2022_48686…`, `cve_2024_53169…`: the same for the initiator of this crate |

use crate::session::{
    HOST, LateEngine, NQN, Session, admin_session, identity, io_queue, io_session, local, options, target,
};
use crate::storage::{self, NSID, done};
use std::collections::BTreeMap;
use telpher_nvmf::command::{Submission, admin, io};
use telpher_nvmf::connection::{Connection, Context};
use telpher_nvmf::digest::{Digests, digest};
use telpher_nvmf::engine::{CpuEngine, DigestEngine};
use telpher_nvmf::initiator::requests::{self, QueueRequest};
use telpher_nvmf::initiator::{HostError, HostEvent, HostOptions, Initiator, Transfer};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::status::Status;
use zerocopy::byteorder::little_endian::{U16, U32};

const BLOCK: usize = 512;
const BOTH: Digests = Digests { header: true, data: true };

fn completed(session: &mut Session) -> BTreeMap<u16, Status> {
    let events = session.events().into_iter().map(|event| match event {
        HostEvent::Completed { completion, .. } => (completion.cid.get(), completion.status()),
        other => panic!("{other:?}"),
    });
    events.collect()
}

fn read(session: &mut Session, nsid: u32, first: u64, blocks: u32) -> Vec<u8> {
    let command = requests::blocks(io::READ, 7777, nsid, first, blocks);
    session.ok(command, Transfer::ToHost(blocks * 512)).1
}

/// An H2CData without digests.
fn h2c(cid: u16, tag: u16, offset: u32, announced: u32, is_last: bool, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![6, if is_last { 4 } else { 0 }, 24, 24];
    bytes.extend((24 + data.len() as u32).to_le_bytes());
    for field in [u32::from(cid) | u32::from(tag) << 16, offset, announced, 0] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend(data);
    bytes
}

/// The start and the length of each PDU of a stream.
fn pdus(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        let len = u32::from_le_bytes(bytes[start + 4..start + 8].try_into().unwrap()) as usize;
        found.push((start, len));
        start += len;
    }
    found
}

/// The digest of the data was wrong: nvmet used the command after it was freed.
#[test]
fn cve_2026_64535_a_wrong_data_digest_at_every_position() {
    for position in 0..=8 {
        let target = target(Limits { h2c_bytes: 4096, r2t_bytes: 8192, ..Limits::default() });
        let (_admin, mut io) = io_session(&target, HostOptions { most_r2ts: 4, ..options(BOTH) });
        io.engine = Box::new(LateEngine::new(position));
        // Position 8 is that of the capsule.
        let blocks = if position == 8 { 16 } else { 64 };
        let data = vec![1; blocks as usize * BLOCK];
        let transfer = if position == 8 { Transfer::InCapsule(data) } else { Transfer::OnRequest(data) };
        io.host.send(requests::blocks(io::WRITE, 0x4321, 1, 0, blocks), transfer);
        if position < 8 {
            io.exchange_until_data();
        }
        let mut bytes = io.host.take_output();
        let (start, len) = pdus(&bytes)[if position == 8 { 0 } else { position as usize }];
        bytes[start + len - 1] ^= 0x80;
        io.host.send_raw(&bytes);
        io.host.send(requests::blocks(io::WRITE, 0x4322, 1, 100, 1), Transfer::InCapsule(vec![2; BLOCK]));
        let expected = [(0x4321, Status::TRANSIENT_TRANSPORT_ERROR), (0x4322, Status::SUCCESS)];
        assert_eq!(completed(&mut io), BTreeMap::from(expected));
        assert_eq!((read(&mut io, 1, 0, 64), read(&mut io, 1, 100, 1)), (vec![0; 64 * BLOCK], vec![2; BLOCK]));
        assert_eq!((io.connection.open_commands(), io.connection.stats().data_digest_errors), (0, 1));
    }
}

/// The digest was wrong, and the command had failed before its data arrived.
#[test]
fn cve_2026_64534_a_wrong_digest_of_an_invalid_commands_data() {
    let target = target(Limits::default());
    let (_admin, mut io) = io_session(&target, options(BOTH));
    let invalid = [
        (requests::blocks(io::WRITE, 1, 7, 0, 8), Status::INVALID_NAMESPACE),
        (requests::blocks(io::WRITE, 1, 1, 2048, 8), Status::LBA_RANGE),
        (requests::blocks(io::WRITE, 1, 1, 0, 9), Status::DATA_LENGTH),
        (requests::blocks(0x85, 1, 1, 0, 8), Status::INVALID_OPCODE),
    ];
    for (mut command, expected) in invalid {
        command.cid = U16::new(io.cid());
        io.host.send(command, Transfer::InCapsule(vec![1; 4096]));
        let mut bytes = io.host.take_output();
        *bytes.last_mut().unwrap() ^= 0xff;
        io.host.send_raw(&bytes);
        assert_eq!(completed(&mut io), BTreeMap::from([(command.cid.get(), expected.do_not_retry())]));
    }
    assert_eq!(read(&mut io, 1, 0, 8), vec![0; 4096]);
}

/// Data for a command that has no buffers for it: its data came in the capsule.
#[test]
fn cve_2026_22998_data_for_a_command_that_asked_for_none() {
    for tag in 1..=3 {
        let (_admin, mut io, backend) = storage::start(Digests::default());
        let write = requests::blocks(io::WRITE, 9, NSID, 0, 8);
        io.host.send(write, Transfer::InCapsule(vec![1; 4096]));
        assert_eq!(io.events(), []);
        assert_eq!(backend.take().len(), 1, "the command is open");
        io.host.send_raw(&h2c(9, tag, 0, 4096, true, &[2; 4096]));
        assert!(matches!(io.events()[..], [HostEvent::Terminated { fes: 1, fei: 10, .. }]));
    }
}

/// Data of an invalid length: nvmet executed or completed the request without its data.
#[test]
fn cve_2023_6356_6535_6536_data_of_an_invalid_length() {
    for (len, announced) in [(0_usize, 0_u32), (0, 16384), (4096, 0), (4096, 16384), (4096, 0xffff_f000), (16384, 4)] {
        let target = target(Limits::default());
        let (_admin, mut io) = io_session(&target, HostOptions::default());
        io.host.send(requests::blocks(io::WRITE, 9, 1, 0, 32), Transfer::OnRequest(vec![1; 16384]));
        io.exchange_until_data();
        let _ = io.host.take_output();
        io.host.send_raw(&h2c(9, 1, 0, announced, true, &vec![2; len]));
        let events = io.events();
        assert!(matches!(events[..], [HostEvent::Terminated { .. }]), "{len} {announced}: {events:?}");
        let controller = io.connection.queue().unwrap().controller.id();
        let mut other = io_queue(&target, HostOptions::default(), controller, 2, true);
        assert_eq!(read(&mut other, 1, 0, 32), vec![0; 16384]);
    }
}

/// A PDU beyond the command's memory: of all offsets and lengths, only those that continue the data are taken.
#[test]
fn nvmet_52a0a9854934_offsets_and_lengths_beyond_the_command() {
    let edges = [0, 4, 4092, 4096, 4100, 16380, 16384, 16388, 0x7fff_fffc, 0xffff_c000, 0xffff_fffc];
    let mut taken = Vec::new();
    for (offset, len) in edges.into_iter().flat_map(|offset| edges.map(|len| (offset, len))) {
        let target = target(Limits::default());
        let (_admin, mut io) = io_session(&target, HostOptions::default());
        io.host.send(requests::blocks(io::WRITE, 9, 1, 0, 32), Transfer::OnRequest(vec![1; 16384]));
        io.exchange_until_data();
        let _ = io.host.take_output();
        let data = vec![2; len.min(16388) as usize];
        io.host.send_raw(&h2c(9, 1, offset, len, offset.wrapping_add(len) >= 16384, &data));
        match io.events()[..] {
            [HostEvent::Terminated { fes, .. }] => assert!([1, 4, 5].contains(&fes)),
            _ => taken.push((offset, len)),
        }
        assert!(io.connection.stats().bytes_from_host <= 1024 + 16384);
    }
    assert_eq!(taken, [(0, 4), (0, 4092), (0, 4096), (0, 4100), (0, 16380), (0, 16384)]);
}

/// A connection that ends in its initialisation, at each byte: nvmet freed the digest's state twice.
#[test]
fn cve_2023_5178_a_connection_ends_during_its_initialisation() {
    let target = target(Limits::default());
    for digests in Digests::ALL {
        let mut host = Initiator::new(options(digests));
        let request = host.take_output();
        for end in 0..=request.len() {
            let mut connection = Connection::new(&target, local(), 0);
            connection.receive(&request[..end], &mut Context { engine: &mut CpuEngine::default(), now: 0 });
            assert_eq!(connection.outgoing_len(), if end == request.len() { 128 } else { 0 });
        }
    }
    assert!(target.controllers().is_empty());
    let _admin = admin_session(&target, options(BOTH));
}

/// NQNs without NUL: nvmet read beyond them. A name of 223 bytes is the longest.
#[test]
fn cve_2023_6121_names_without_nul() {
    let target = target(Limits::default());
    let longest = format!("nqn.2026-01.org.example:{}", "s".repeat(223 - 24));
    let disk = telpher_nvmf::subsystem::SubsystemOptions {
        nqn: longest.clone(),
        serial: "2".into(),
        model: "test".into(),
        hosts: None,
    };
    target.add_subsystem(disk).unwrap();
    let long_host = format!("nqn.2026-01.org.example:{}", "h".repeat(223 - 24));
    let mut session = Session::new(&target, HostOptions::default());
    session.initialise();
    let queue = QueueRequest { qid: 0, entries: 32, flow_control: true, keep_alive_ms: 0 };
    for (offset, ipo) in [(256, 256), (512, 512)] {
        for len in [224, 255, 256] {
            let mut data = identity().connect_data(0xffff);
            let name = if offset == 256 { NQN } else { HOST };
            data[offset..offset + len].fill(b'x');
            data[offset..offset + name.len()].copy_from_slice(name.as_bytes());
            let command = requests::connect(session.cid(), queue);
            let (completion, _) = session.execute(command, Transfer::InCapsule(data));
            assert_eq!(completion.status(), Status::CONNECT_PARAMETERS.do_not_retry(), "{offset} {len}");
            assert_eq!(completion.result.get(), ipo | 1 << 16);
        }
    }
    let names = requests::Identity { host_id: [3; 16], host_nqn: long_host, subsystem_nqn: longest };
    session.connect(&names, queue, 0xffff);
}

/// A Connect for which there is no memory: here the limit of controllers. It is answered, and can be repeated.
#[test]
fn cve_2024_46737_a_connect_without_resources() {
    let target = target(Limits { controllers: 1, ..Limits::default() });
    let (admin, _) = admin_session(&target, HostOptions::default());
    let mut session = Session::new(&target, HostOptions::default());
    session.initialise();
    let queue = QueueRequest { qid: 0, entries: 32, flow_control: true, keep_alive_ms: 0 };
    for _ in 0..3 {
        let command = requests::connect(session.cid(), queue);
        let status = session.status(command, Transfer::InCapsule(identity().connect_data(0xffff)));
        assert_eq!(status, Status::CONTROLLER_BUSY);
    }
    drop(admin);
    session.connect(&identity(), queue, 0xffff);
}

/// Something arrives for a connection that has failed: data, the end of a job, the answer of a backend.
#[test]
fn cve_2025_38035_events_after_a_failure() {
    let (_admin, mut io, backend) = storage::start(BOTH);
    let mut engine = LateEngine::new(1);
    io.host.send(requests::blocks(io::READ, 1, NSID, 0, 8), Transfer::ToHost(4096));
    io.host.send(requests::blocks(io::WRITE, 2, NSID, 0, 64), Transfer::OnRequest(vec![1; 64 * BLOCK]));
    io.exchange_until_data();
    let late = io.host.take_output();
    let waiting = backend.take();
    assert_eq!(waiting.len(), 1);
    io.host.send(requests::blocks(io::WRITE, 3, NSID, 0, 1), Transfer::InCapsule(vec![1; BLOCK]));
    let mut bytes = io.host.take_output();
    bytes.extend([0x55; 8]);
    io.connection.receive(&bytes, &mut Context { engine: &mut engine, now: 0 });
    assert!(io.connection.ending().is_some());
    let before = io.connection.outgoing_len();
    io.connection.receive(&late, &mut Context { engine: &mut engine, now: 0 });
    for (id, request) in waiting {
        let result = backend.result(id, request);
        done(&mut io, id, result);
    }
    let mut jobs = Vec::new();
    engine.completed(&mut jobs);
    assert_eq!(jobs.len(), 1);
    for job in jobs {
        io.connection.digest_done(job, &mut Context { engine: &mut engine, now: 0 });
    }
    io.connection.poll(29_999);
    assert_eq!((io.connection.outgoing_len(), io.connection.open_commands()), (before, 0));
    assert_eq!(backend.take().len(), 0, "nothing was executed");
}

/// Connect's data by R2T crashed nvmet, because its queue did not exist yet.
#[test]
fn spdk_1546_connect_by_r2t() {
    for digests in Digests::ALL {
        let target = target(Limits::default());
        let mut session = Session::new(&target, options(digests));
        session.initialise();
        let queue = QueueRequest { qid: 0, entries: 32, flow_control: true, keep_alive_ms: 0 };
        let transfer = Transfer::OnRequest(identity().connect_data(0xffff));
        session.ok(requests::connect(1, queue), transfer);
        assert_eq!((target.controllers().len(), session.connection.stats().r2ts), (1, 1));
    }
}

/// A descriptor of 4 GiB made nvmet allocate as much.
#[test]
fn nvmet_bound_sgl_data_length() {
    let target = target(Limits::default());
    let (mut admin, mut io) = io_session(&target, HostOptions::default());
    let lengths = [131_073, 1 << 20, 0x7fff_ffff, 0x8000_0000, u32::MAX];
    for length in lengths {
        let mut commands = [io::WRITE, io::READ, io::COMPARE].map(|opcode| requests::blocks(opcode, 1, 1, 0, 65536));
        for command in &mut commands {
            (command.cid, command.sgl_length) = (U16::new(io.cid()), U32::new(length));
            io.host.send(*command, Transfer::None);
            let _ = io.host.take_output();
            io.host.send_capsule(command, &[]);
            let status = completed(&mut io)[&command.cid.get()];
            assert!([Status::LBA_RANGE, Status::DATA_LENGTH].contains(&Status::from_word(status.word() & 0x7fff)));
        }
        let (mut command, _) = requests::deallocate(io.cid(), 1, &[(0, 1)]);
        command.sgl_length = U32::new(length);
        io.host.send(command, Transfer::None);
        let _ = io.host.take_output();
        io.host.send_capsule(&command, &[]);
        let cid = command.cid.get();
        assert_eq!(completed(&mut io), BTreeMap::from([(cid, Status::INVALID_FIELD.do_not_retry())]));
        let (command, _) = requests::identify(admin.cid(), 1, 0);
        assert_eq!(admin.status(command, Transfer::ToHost(length)), Status::INVALID_FIELD.do_not_retry());
    }
    assert_eq!((io.connection.stats().r2ts, io.connection.stats().bytes_from_host), (0, 1024));
}

/// The admin queue ends at each step of an I/O queue's Connect.
#[test]
fn cve_2024_42152_the_controller_ends_while_a_queue_connects() {
    let target = target(Limits::default());
    let queue = QueueRequest { qid: 1, entries: 8, flow_control: true, keep_alive_ms: 0 };
    for step in 0..3 {
        let (admin, controller) = admin_session(&target, HostOptions::default());
        let mut io = Session::new(&target, HostOptions::default());
        io.initialise();
        io.host.send(requests::connect(1, queue), Transfer::OnRequest(identity().connect_data(controller)));
        if step > 0 {
            io.exchange_until_data();
        }
        if step > 1 {
            assert_eq!(completed(&mut io), BTreeMap::from([(1, Status::SUCCESS)]));
        }
        drop(admin);
        assert!(target.controllers().is_empty());
        if step < 2 {
            let refused = Status::CONNECT_PARAMETERS.do_not_retry();
            assert_eq!(completed(&mut io), BTreeMap::from([(1, refused)]));
        } else {
            io.connection.poll(0);
            assert!(io.connection.is_closed());
        }
    }
}

/// All bytes of a response are defined, also those of a failed Connect.
#[test]
fn cve_2024_41079_responses_have_no_undefined_bytes() {
    let target = target(Limits::default());
    let mut session = Session::new(&target, HostOptions::default());
    session.initialise();
    let mut data = identity().connect_data(0xffff);
    data[256] = 0;
    let queue = QueueRequest { qid: 0, entries: 32, flow_control: true, keep_alive_ms: 0 };
    session.host.send(requests::connect(0x0201, queue), Transfer::InCapsule(data));
    let bytes = session.host.take_output();
    session.connection.receive(&bytes, &mut Context { engine: &mut CpuEngine::default(), now: 0 });
    let response: Vec<u8> = session.connection.outgoing(8).flatten().copied().collect();
    let status = Status::CONNECT_PARAMETERS.do_not_retry().word().to_le_bytes();
    let mut expected = vec![5, 0, 24, 0, 24, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0x02];
    expected.extend(status);
    assert_eq!(response, expected);
}

/// Reservations with more registrants than an array of SPDK had: not served, and not announced.
#[test]
fn cve_2025_57275_reservations_are_not_served() {
    let target = target(Limits::default());
    let (mut admin, mut io) = io_session(&target, HostOptions::default());
    for opcode in [0x0d, 0x0e, 0x11, 0x15] {
        let mut command = Submission::new(opcode, io.cid(), 1);
        command.set_dword(10, 0xff);
        let transfer = if opcode == 0x0e { Transfer::ToHost(4096) } else { Transfer::InCapsule(vec![0xff; 16]) };
        assert_eq!(io.status(command, transfer), Status::INVALID_OPCODE.do_not_retry(), "{opcode:#x}");
    }
    let (command, transfer) = requests::identify(admin.cid(), 1, 0);
    let (_, data) = admin.ok(command, transfer);
    assert_eq!(data[520] & 1 << 5, 0, "ONCS");
    let (command, transfer) = requests::identify(admin.cid(), 0, 1);
    assert_eq!(admin.ok(command, transfer).1[31], 0, "RESCAP");
}

/// Identify with every length of its data from 1 to 8192.
#[test]
fn spdk_f513182217_identify_of_every_length() {
    let target = target(Limits::default());
    let (mut admin, _) = admin_session(&target, HostOptions::default());
    let (command, transfer) = requests::identify(admin.cid(), 1, 0);
    let whole = [admin.ok(command, transfer).1, vec![0; 4096]].concat();
    for len in 1..=8192 {
        let (command, _) = requests::identify(5, 1, 0);
        assert!(admin.ok(command, Transfer::ToHost(len)).1 == whole[..len as usize], "{len}");
    }
}

/// Admin commands whose data is longer or shorter than their structure.
#[test]
fn spdk_e749fa9c27_admin_data_of_other_lengths() {
    let target = target(Limits::default());
    let (mut admin, _) = admin_session(&target, HostOptions::default());
    for page in 1..=5 {
        for (announced, len) in
            [(512, 4), (512, 4096), (4, 512), (4096, 131_072), (65536, 4), (512, 512), (131_072, 131_072)]
        {
            let (command, _) = requests::log_page(admin.cid(), page, 0, announced);
            let (completion, data) = admin.execute(command, Transfer::ToHost(len));
            let expected = if announced != len {
                (Status::DATA_LENGTH.do_not_retry(), 0)
            } else {
                (Status::SUCCESS, len as usize)
            };
            assert_eq!((completion.status(), data.len()), expected, "log {page}: {announced} {len}");
        }
    }
    for len in [1, 4, 4096, 131_072] {
        let mut command = requests::get_feature(admin.cid(), 0x81);
        command.set_dword(11, 1);
        admin.ok(command, Transfer::ToHost(len));
    }
    // Data in the capsule of commands that take none, or less.
    for len in [1, 4, 8, 16, 4096, 8192] {
        let command = requests::set_feature(admin.cid(), 0x0b, 0x100);
        admin.ok(command, Transfer::InCapsule(vec![0xee; len]));
    }
}

/// The host leaves at each step, and the subsystem is removed while an event request waits: SPDK freed things twice.
#[test]
fn spdk_414f91a0c7_e1602892a1_369865e14b_70f7d5ea70_cc2f6634b7_08be9c66ee_ends_at_each_step() {
    for (step, is_removed) in (0..6).flat_map(|step| [(step, false), (step, true)]) {
        let target = target(Limits::default());
        let (mut admin, controller) = admin_session(&target, HostOptions::default());
        admin.host.send(Submission::new(admin::EVENT_REQUEST, 40, 0), Transfer::None);
        assert_eq!(admin.events(), []);
        let mut io = Session::new(&target, HostOptions::default());
        if step > 0 {
            io.initialise();
        }
        let queue = QueueRequest { qid: 1, entries: 8, flow_control: true, keep_alive_ms: 0 };
        if step > 1 {
            io.host.send(requests::connect(1, queue), Transfer::OnRequest(identity().connect_data(controller)));
            io.exchange_until_data();
        }
        if step > 2 {
            assert_eq!(completed(&mut io), BTreeMap::from([(1, Status::SUCCESS)]));
        }
        if step > 3 {
            io.host.send(requests::blocks(io::WRITE, 2, 1, 0, 64), Transfer::OnRequest(vec![1; 64 * BLOCK]));
            io.exchange_until_data();
        }
        if step > 4 {
            assert_eq!(completed(&mut io), BTreeMap::from([(2, Status::SUCCESS)]));
        }
        if is_removed {
            assert!(target.remove_subsystem(NQN));
            io.connection.poll(0);
            admin.connection.poll(0);
            assert_eq!((admin.connection.is_closed(), io.connection.is_closed()), (true, step > 2));
        } else {
            drop(admin);
        }
        drop(io);
        assert!(is_removed || target.controllers().is_empty());
    }
}

/// SPDK answered a wrong digest with identifier 0. Every error has its command's identifier, type, code and head.
#[test]
fn spdk_bd407444be_errors_name_their_command() {
    let target = target(Limits::default());
    let (_admin, mut io) = io_session(&target, options(BOTH));
    let mut fused = requests::blocks(io::WRITE, 0, 1, 0, 1);
    fused.flags |= 2;
    let mut no_sgl = requests::blocks(io::READ, 0, 1, 0, 1);
    no_sgl.flags = 0;
    let in_capsule = || Transfer::InCapsule(vec![1; BLOCK]);
    let cases = [
        (requests::blocks(io::WRITE, 0, 1, 0, 1), in_capsule(), 0x22, true),
        (requests::blocks(io::WRITE, 0, 1, 2048, 1), in_capsule(), 0x80, false),
        (requests::blocks(io::WRITE, 0, 9, 0, 1), in_capsule(), 0x0b, true),
        (requests::blocks(io::WRITE, 0, 1, 0, 2), in_capsule(), 0x0f, false),
        (requests::blocks(0x7e, 0, 1, 0, 2), Transfer::None, 0x01, false),
        (fused, in_capsule(), 0x0a, false),
        (no_sgl, Transfer::ToHost(512), 0x02, false),
        (requests::blocks(io::READ, 0, 1, 2040, 9), Transfer::ToHost(9 * 512), 0x80, false),
    ];
    // Connect was the first command of the queue.
    for (head, (mut command, transfer, code, is_damaged)) in (2_u16..).zip(cases) {
        command.cid = U16::new(0xff00 + head);
        io.host.send(command, transfer);
        let mut bytes = io.host.take_output();
        if is_damaged {
            *bytes.last_mut().unwrap() ^= 1;
        }
        io.host.send_raw(&bytes);
        let events = io.events();
        let [HostEvent::Completed { completion, .. }] = &events[..] else { panic!("{events:?}") };
        let status = completion.status();
        assert_eq!((completion.cid, status.kind(), status.code()), (command.cid, 0, code));
        assert_eq!((completion.sq_head.get(), completion.sq_id.get(), completion.result.get()), (head, 0, 0));
    }
}

/// More large admin capsules at once than SPDK had buffers for.
#[test]
fn spdk_8cd4cc63d4_959f6b46cd_358e8720a5_many_large_admin_capsules() {
    let target = target(Limits::default());
    let mut admin = Session::new(&target, options(BOTH));
    admin.initialise();
    let queue = QueueRequest { qid: 0, entries: 128, flow_control: true, keep_alive_ms: 0 };
    admin.connect(&identity(), queue, 0xffff);
    let command = requests::enable(admin.cid());
    admin.ok(command, Transfer::None);
    for cid in 100..220 {
        admin.host.send(requests::set_feature(cid, 0x0b, 0x100), Transfer::InCapsule(vec![cid as u8; 8192]));
    }
    let seen = completed(&mut admin);
    assert!(seen.len() == 120 && seen.values().all(|status| status.is_success()));
}

/// A host with one command open: a read of 512 bytes with identifier 1.
fn host_with_a_read(digests: Digests) -> Initiator {
    let mut host = Initiator::new(options(digests));
    let _ = host.take_output();
    let mut response = vec![1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, digests.bits()];
    response.extend(131_072_u32.to_le_bytes());
    response.resize(128, 0);
    host.receive(&response).unwrap();
    let _ = host.take_event();
    host.send(requests::blocks(io::READ, 1, 1, 0, 1), Transfer::ToHost(512));
    let _ = host.take_output();
    host
}

/// A PDU of a controller, with the digests that it needs.
fn from_controller(kind: u8, hlen: u8, fields: &[u8], data: &[u8], digests: Digests) -> Vec<u8> {
    let has_data = !data.is_empty();
    let header_digest = if digests.header { 4 } else { 0 };
    let data_digest = if digests.data && has_data { 4 } else { 0 };
    let pdo = if has_data { 24 + header_digest } else { 0 };
    let flags = u8::from(digests.header) | u8::from(data_digest > 0) << 1 | if has_data { 4 } else { 0 };
    let plen = 24 + u32::from(header_digest) + data.len() as u32 + data_digest;
    let mut bytes = vec![kind, flags, hlen, pdo];
    bytes.extend(plen.to_le_bytes());
    bytes.extend(fields);
    if digests.header {
        bytes.extend(digest(&bytes).to_le_bytes());
    }
    bytes.extend(data);
    if data_digest > 0 {
        bytes.extend(digest(data).to_le_bytes());
    }
    bytes
}

/// The length of a header was not checked by the Linux host.
#[test]
fn cve_2025_21927_the_initiator_checks_the_length_of_headers() {
    for digests in Digests::ALL {
        let fields = [&[1, 0, 0, 0, 0, 0, 0, 0][..], &512_u32.to_le_bytes(), &[0; 4]].concat();
        for kind in [5, 7, 9] {
            for hlen in (0..=255).filter(|&hlen| hlen != 24) {
                let bytes = from_controller(kind, hlen, &fields, &[], digests);
                let mut host = host_with_a_read(digests);
                assert!(matches!(host.receive(&bytes), Err(HostError::Pdu(_))), "type {kind} HLEN {hlen}");
            }
        }
        // The same header with the right length is taken.
        let bytes = from_controller(7, 24, &fields, &[3; 512], digests);
        assert_eq!(host_with_a_read(digests).receive(&bytes), Ok(()));
    }
}

/// After a wrong digest, the Linux host used a command that was freed.
#[test]
fn cve_2022_48686_the_initiator_survives_wrong_digests() {
    let fields = [&[1, 0, 0, 0, 0, 0, 0, 0][..], &512_u32.to_le_bytes(), &[0; 4]].concat();
    let good = from_controller(7, 24, &fields, &[3; 512], BOTH);
    let response = {
        let fields = [0_u8, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0];
        from_controller(5, 24, &fields, &[], BOTH)
    };
    let mut damaged_header = good.clone();
    damaged_header[24] ^= 1;
    assert!(matches!(host_with_a_read(BOTH).receive(&damaged_header), Err(HostError::Pdu(_))));
    let mut damaged_data = good.clone();
    damaged_data[100] ^= 1;
    for (bytes, intact) in [(good, true), (damaged_data, false)] {
        let mut host = host_with_a_read(BOTH);
        host.receive(&bytes).unwrap();
        host.receive(&response).unwrap();
        let Some(HostEvent::Completed { is_intact, .. }) = host.take_event() else { panic!("the read completes") };
        assert_eq!(is_intact, intact);
        // The command has ended: anything more for it is an error.
        assert_eq!(host.receive(&bytes), Err(HostError::UnknownCommand { cid: 1 }));
    }
}

/// A completion of a command that is not open any more, as of the Linux host's keep alive during its shutdown.
#[test]
fn cve_2024_53169_the_initiator_takes_no_late_completions() {
    let response = {
        let fields = [0_u8, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0];
        from_controller(5, 24, &fields, &[], Digests::default())
    };
    let mut host = host_with_a_read(Digests::default());
    assert_eq!(host.receive(&response), Err(HostError::UnknownCommand { cid: 9 }));
    assert_eq!(host.take_event(), None);
}

/// Digests that a device computes while the connection ends.
#[test]
fn spdk_9e9da4675f_2279_the_engine_is_late_and_the_connection_ends() {
    let target = target(Limits::default());
    let (_admin, controller) = admin_session(&target, options(BOTH));
    for seed in 0..20 {
        let mut io = io_queue(&target, options(BOTH), controller, 1, true);
        let mut engine = LateEngine::new(seed);
        for cid in 0..8 {
            let command = requests::blocks(io::WRITE, cid, 1, 0, 8);
            io.host.send(command, Transfer::InCapsule(vec![9; 8 * BLOCK]));
            io.host.send(requests::blocks(io::READ, 100 + cid, 1, 100, 8), Transfer::ToHost(4096));
        }
        let bytes = io.host.take_output();
        io.connection.receive(&bytes, &mut Context { engine: &mut engine, now: 0 });
        let mut done = Vec::new();
        engine.completed(&mut done);
        let connection = io.connection.number();
        drop(io);
        while engine.pending() > 0 {
            engine.completed(&mut done);
        }
        assert!(done.len() == 16 && done.iter().all(|job| job.id.connection == connection));
    }
    let mut io = io_queue(&target, options(BOTH), controller, 1, true);
    assert_eq!(read(&mut io, 1, 0, 8), vec![0; 4096]);
}
