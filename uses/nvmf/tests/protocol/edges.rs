//! Cases of the protocol that belong to no single command: limits of capsules, tags of other commands, long names,
//! resets and shutdowns with commands under way, devices that stop.

use crate::session::{HOST, NQN, Session, admin_session, identity, io_queue, io_session, local, options, target};
use crate::storage::{self, NSID, done};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use telpher_device::{ModelDevice, ModelOptions};
use telpher_mover::{Channel, ChannelPolicy};
use telpher_nvmf::command::{SGL_IN_CAPSULE, Submission, admin, io};
use telpher_nvmf::connection::{Connection, Context, Ending};
use telpher_nvmf::controller::{ENABLE, ENTRY_SIZES, SHUTDOWN_COMPLETE, property};
use telpher_nvmf::device_engine::DeviceEngine;
use telpher_nvmf::digest::Digests;
use telpher_nvmf::engine::{CpuEngine, DigestEngine, DoneBy};
use telpher_nvmf::initiator::requests::{self, Identity, QueueRequest};
use telpher_nvmf::initiator::{HostEvent, HostOptions, Initiator, Transfer};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::status::Status;
use telpher_nvmf::subsystem::SubsystemOptions;
use zerocopy::byteorder::little_endian::{U16, U32};

const BLOCK: usize = 512;
const ADMIN: QueueRequest = QueueRequest { qid: 0, entries: 32, flow_control: true, keep_alive_ms: 0 };
/// CC.SHN: a normal shutdown.
const SHUTDOWN: u32 = 1 << 14;

fn completed(session: &mut Session) -> BTreeMap<u16, Status> {
    let events = session.events().into_iter().map(|event| match event {
        HostEvent::Completed { completion, .. } => (completion.cid.get(), completion.status()),
        other => panic!("{other:?}"),
    });
    events.collect()
}

fn read(session: &mut Session, first: u64, blocks: u32) -> Vec<u8> {
    let command = requests::blocks(io::READ, 7777, 1, first, blocks);
    session.ok(command, Transfer::ToHost(blocks * 512)).1
}

/// Sends a write whose data waits with the host, after the target has asked for it.
fn write_by_r2t(io: &mut Session, cid: u16, first: u64, blocks: u32, byte: u8) {
    let data = vec![byte; blocks as usize * BLOCK];
    io.host.send(requests::blocks(io::WRITE, cid, 1, first, blocks), Transfer::OnRequest(data));
    io.exchange_until_data();
}

#[test]
fn capsules_have_the_limit_of_their_queue() {
    let target = target(Limits { capsule_bytes: 4096, ..Limits::default() });
    let (mut admin, mut io) = io_session(&target, HostOptions::default());
    // The admin queue takes 8192 bytes, whatever the limit of I/O queues is.
    let command = requests::set_feature(admin.cid(), 0x0b, 0x100);
    admin.ok(command, Transfer::InCapsule(vec![1; 8192]));
    io.ok(requests::blocks(io::WRITE, 1, 1, 0, 8), Transfer::InCapsule(vec![1; 4096]));
    for (session, bytes) in [(&mut admin, 8196), (&mut io, 4100)] {
        let mut command = requests::set_feature(9, 0x0b, 0x100);
        (command.sgl_kind, command.sgl_length) = (SGL_IN_CAPSULE, U32::new(bytes));
        session.host.send_capsule(&command, &vec![1; bytes as usize]);
        assert!(matches!(session.events()[..], [HostEvent::Terminated { fes: 5, fei: 0, .. }]));
    }
}

#[test]
fn the_tag_of_another_command_is_refused() {
    let target = target(Limits::default());
    for (cid, tag) in [(1, 2), (2, 1)] {
        let (_admin, mut io) = io_session(&target, HostOptions::default());
        write_by_r2t(&mut io, 1, 0, 32, 1);
        let _ = io.host.take_output();
        write_by_r2t(&mut io, 2, 0, 32, 2);
        let _ = io.host.take_output();
        io.host.send_data(cid, tag, 0, &[3; 32 * BLOCK], true);
        assert!(matches!(io.events()[..], [HostEvent::Terminated { fes: 2, fei: 0, .. }]));
        assert_eq!(read_again(&target, 0, 32), vec![0; 32 * BLOCK]);
    }
}

/// Reads through connections of another host.
fn read_again(target: &Arc<telpher_nvmf::target::Target>, first: u64, blocks: u32) -> Vec<u8> {
    let (_admin, mut io) = io_session(target, HostOptions::default());
    read(&mut io, first, blocks)
}

/// Data for a command that waits for its R2T, because other commands have the receive budget.
#[test]
fn data_before_its_r2t_is_refused() {
    let target = target(Limits { receive_bytes: 256 << 10, ..Limits::default() });
    for tag in [1, 3] {
        let (_admin, mut io) = io_session(&target, HostOptions::default());
        write_by_r2t(&mut io, 1, 0, 256, 1);
        let _ = io.host.take_output();
        write_by_r2t(&mut io, 3, 512, 256, 3);
        let _ = io.host.take_output();
        write_by_r2t(&mut io, 2, 256, 256, 2);
        assert_eq!((io.connection.stats().r2ts, io.connection.open_commands()), (2, 3));
        io.host.send_data(2, tag, 0, &[3; 4096], false);
        let events = io.events();
        let expected = if tag == 1 { (2, 0) } else { (1, 10) };
        let [HostEvent::Terminated { fes, fei, .. }] = events[..] else { panic!("{events:?}") };
        assert_eq!((fes, fei), expected);
    }
}

/// All PDUs of a session in one segment, in each combination of digests.
#[test]
fn a_whole_session_may_come_in_one_segment() {
    for digests in Digests::ALL {
        let target = target(Limits::default());
        let (_admin, controller) = admin_session(&target, options(digests));
        let mut io = io_queue(&target, options(digests), controller, 1, true);
        for cid in 0..60 {
            let first = u64::from(cid) * 2;
            io.host.send(requests::blocks(io::WRITE, cid, 1, first, 2), Transfer::InCapsule(vec![cid as u8; 1024]));
        }
        let bytes = io.host.take_output();
        let mut context = Context { engine: &mut *io.engine, now: 0 };
        assert_eq!(io.connection.receive(&bytes, &mut context), bytes.len());
        assert_eq!(completed(&mut io).len(), 60);
        let expected: Vec<u8> = (0..60).flat_map(|cid| vec![cid; 1024]).collect();
        assert_eq!(read(&mut io, 0, 120), expected);
    }
}

#[test]
fn only_data_described_by_an_sgl_is_taken() {
    let target = target(Limits::default());
    let (mut admin, mut io) = io_session(&target, HostOptions::default());
    for psdt in [0x00, 0x80, 0xc0] {
        let mut commands = [requests::identify(900, 1, 0).0, requests::blocks(io::READ, 900, 1, 0, 1)];
        for (session, command) in [&mut admin, &mut io].into_iter().zip(&mut commands) {
            command.flags = psdt;
            assert_eq!(session.status(*command, Transfer::ToHost(512)), Status::INVALID_FIELD.do_not_retry());
        }
    }
}

#[test]
fn names_of_223_bytes_connect() {
    let target = target(Limits::default());
    let name = |letter: &str| format!("nqn.2026-01.org.example:{}", letter.repeat(223 - 24));
    let disk = SubsystemOptions { nqn: name("s"), serial: "2".into(), model: "test".into(), hosts: None };
    target.add_subsystem(disk).unwrap();
    for (host_nqn, subsystem_nqn, id) in [
        (name("h"), NQN.to_string(), 1),
        (HOST.into(), name("s"), 2),
        (name("i"), name("s"), 3),
        ("nqn.2014-08".into(), NQN.into(), 4),
    ] {
        let mut session = Session::new(&target, HostOptions::default());
        session.initialise();
        let names = Identity { host_id: [id; 16], host_nqn, subsystem_nqn };
        session.connect(&names, ADMIN, 0xffff);
        let command = requests::enable(session.cid());
        session.ok(command, Transfer::None);
        let (command, transfer) = requests::identify(session.cid(), 1, 0);
        let data = session.ok(command, transfer).1;
        assert_eq!(data[768..768 + names.subsystem_nqn.len()], *names.subsystem_nqn.as_bytes());
    }
}

/// The identifiers of controllers come round, and none is left behind.
#[test]
fn a_target_takes_65536_connects() {
    let target = target(Limits::default());
    let mut host = Initiator::new(HostOptions::default());
    host.send(requests::connect(1, ADMIN), Transfer::InCapsule(identity().connect_data(0xffff)));
    let bytes = host.take_output();
    let mut engine = CpuEngine::default();
    for number in 0..65536_u32 {
        let mut connection = Connection::new(&target, local(), 0);
        connection.receive(&bytes, &mut Context { engine: &mut engine, now: 0 });
        let id = connection.queue().unwrap().controller.id();
        assert_eq!(u32::from(id), number % 0xffef + 1);
    }
    assert!(target.controllers().is_empty());
}

#[test]
fn an_io_queue_of_a_controller_that_has_ended_is_refused() {
    let target = target(Limits::default());
    let (admin, controller) = admin_session(&target, HostOptions::default());
    let mut io = Session::new(&target, HostOptions::default());
    io.initialise();
    drop(admin);
    let command = requests::connect(1, QueueRequest { qid: 1, ..ADMIN });
    let (completion, _) = io.execute(command, Transfer::InCapsule(identity().connect_data(controller)));
    assert_eq!(completion.status(), Status::CONNECT_PARAMETERS.do_not_retry());
    assert_eq!(completion.result.get(), 16 | 1 << 16);
}

/// Commands wait for data and for the backend when the host shuts down or resets the controller.
#[test]
fn a_controller_is_shut_down_or_reset_under_io() {
    for is_reset in [false, true] {
        let (mut admin, mut io, backend) = storage::start(Digests::default());
        let command = requests::blocks(io::WRITE, 1, NSID, 0, 64);
        io.host.send(command, Transfer::OnRequest(vec![1; 64 * BLOCK]));
        io.exchange_until_data();
        let late = io.host.take_output();
        io.host.send(requests::blocks(io::WRITE, 2, NSID, 100, 1), Transfer::InCapsule(vec![2; BLOCK]));
        assert_eq!(io.events(), []);
        let waiting = backend.take();
        let value = if is_reset { ENTRY_SIZES } else { ENTRY_SIZES | ENABLE | SHUTDOWN };
        let command = requests::property_set(admin.cid(), property::CC, value);
        admin.ok(command, Transfer::None);
        let command = requests::property_get(admin.cid(), property::CSTS);
        let expected = if is_reset { 0 } else { SHUTDOWN_COMPLETE };
        assert_eq!(admin.ok(command, Transfer::None).0, u64::from(expected));
        io.connection.poll(0);
        assert_eq!(io.connection.is_closed(), is_reset);
        for (id, request) in waiting {
            let result = backend.result(id, request);
            done(&mut io, id, result);
        }
        io.host.send_raw(&late);
        if is_reset {
            assert_eq!((io.events(), io.connection.ending()), (vec![], Some(Ending::ControllerEnded)));
            assert_eq!(backend.take().len(), 0, "the write without data is dropped");
            continue;
        }
        // What was accepted before the shutdown completes; what comes later is refused.
        assert_eq!(completed(&mut io), BTreeMap::from([(2, Status::SUCCESS)]));
        for (id, request) in backend.take() {
            let result = backend.result(id, request);
            done(&mut io, id, result);
        }
        assert_eq!(completed(&mut io), BTreeMap::from([(1, Status::SUCCESS)]));
        io.host.send(requests::blocks(io::WRITE, 3, NSID, 0, 1), Transfer::InCapsule(vec![3; BLOCK]));
        assert_eq!(completed(&mut io), BTreeMap::from([(3, Status::SEQUENCE_ERROR.do_not_retry())]));
        let command = Submission::new(admin::KEEP_ALIVE, admin.cid(), 0);
        assert_eq!(admin.status(command, Transfer::None), Status::SEQUENCE_ERROR.do_not_retry());
        assert_eq!(io.connection.open_commands(), 0);
    }
}

/// A device that never completes: its deadline passes, and the CPU computes the digests of both directions.
#[test]
fn digests_survive_a_device_that_stops() {
    let model = ModelDevice::start(ModelOptions::default()).unwrap();
    let policy = ChannelPolicy { deadline: Some(Duration::from_millis(1)), ..ChannelPolicy::default() };
    let target = target(Limits { h2c_bytes: 16384, ..Limits::default() });
    let (_admin, mut io) = io_session(&target, options(Digests { header: false, data: true }));
    let channel = Channel::new(model.portal("wq0.0").unwrap(), 256, policy).unwrap();
    io.engine = Box::new(DeviceEngine::new(channel, 0));
    let write = |cid, byte| (requests::blocks(io::WRITE, cid, 1, 0, 64), Transfer::OnRequest(vec![byte; 64 * BLOCK]));
    let (command, transfer) = write(1, 1);
    io.ok(command, transfer);
    assert_eq!(io.connection.stats().digests_by_device, 2);
    model.hold(true);
    let (command, transfer) = write(2, 2);
    io.ok(command, transfer);
    assert_eq!(read(&mut io, 0, 64), vec![2; 64 * BLOCK]);
    let stats = io.connection.stats();
    assert_eq!((stats.digests_by_device, stats.digests_by_fallback), (2, 3));
    assert_eq!(stats.fallbacks.iter().sum::<u64>(), 3, "each fallback has a reason: {stats:?}");
    // The device goes on, and writes the memory of jobs that have ended: no block is changed.
    model.hold(false);
    assert_eq!(read(&mut io, 0, 64), vec![2; 64 * BLOCK]);
    assert_eq!(io.connection.stats().digests_by_device, 3);
}

/// The connection ends while the device has its buffers: the engine keeps them.
#[test]
fn a_connection_may_end_while_a_device_has_its_buffers() {
    let model = ModelDevice::start(ModelOptions::default()).unwrap();
    let target = target(Limits::default());
    let (_admin, mut io) = io_session(&target, options(Digests { header: false, data: true }));
    let channel = Channel::new(model.portal("wq0.0").unwrap(), 64, ChannelPolicy::default()).unwrap();
    let mut engine = DeviceEngine::new(channel, 0);
    model.hold(true);
    let write = requests::blocks(io::WRITE, 1, 1, 0, 16);
    io.host.send(write, Transfer::InCapsule(vec![7; 16 * BLOCK]));
    let bytes = io.host.take_output();
    io.connection.receive(&bytes, &mut Context { engine: &mut engine, now: 0 });
    engine.submit();
    drop(io);
    let mut finished = Vec::new();
    engine.completed(&mut finished);
    assert_eq!((finished.len(), engine.pending()), (0, 1));
    model.hold(false);
    while engine.pending() > 0 {
        engine.completed(&mut finished);
    }
    assert!(finished.len() == 1 && finished[0].by == DoneBy::Device);
    assert_eq!(read_again(&target, 0, 16), vec![0; 16 * BLOCK]);
}

/// Identifiers of commands are used again as soon as they are free, in all states of another command.
#[test]
fn a_conflicting_identifier_harms_no_command() {
    let target = target(Limits::default());
    let (_admin, mut io) = io_session(&target, HostOptions::default());
    write_by_r2t(&mut io, 5, 0, 64, 1);
    let data = io.host.take_output();
    for opcode in [io::READ, io::WRITE_ZEROES, io::FLUSH, io::WRITE] {
        let mut command = requests::blocks(opcode, 5, 1, 0, 1);
        command.cid = U16::new(5);
        io.host.send_capsule(&command, &[]);
    }
    let bytes = io.host.take_output();
    io.connection.receive(&bytes, &mut Context { engine: &mut *io.engine, now: 0 });
    let answers: Vec<u8> = io.connection.outgoing(usize::MAX).flatten().copied().collect();
    io.connection.sent(answers.len());
    let conflict = Status::ID_CONFLICT.do_not_retry().word().to_le_bytes();
    assert!(answers.len() == 4 * 24 && answers.chunks(24).all(|answer| answer[22..24] == conflict));
    io.host.send_raw(&data);
    assert_eq!(completed(&mut io), BTreeMap::from([(5, Status::SUCCESS)]));
    assert_eq!(read(&mut io, 0, 64), vec![1; 64 * BLOCK]);
}
