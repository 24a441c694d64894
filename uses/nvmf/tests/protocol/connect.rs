//! Connect: every check and its answer, and the life of controllers and queues.

use crate::session::{HOST, NQN, Session, admin_session, identity, io_queue, io_session, target};
use std::collections::BTreeSet;
use telpher_nvmf::command::{Submission, admin, fabrics, io};
use telpher_nvmf::connection::Ending;
use telpher_nvmf::controller::{ENABLE, ENTRY_SIZES, EndReason, property};
use telpher_nvmf::initiator::requests::{self, Identity, QueueRequest};
use telpher_nvmf::initiator::{HostOptions, Transfer};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::status::Status;
use telpher_nvmf::subsystem::DISCOVERY_NQN;

const ADMIN: QueueRequest = QueueRequest { qid: 0, entries: 32, flow_control: true, keep_alive_ms: 0 };
const IO: QueueRequest = QueueRequest { qid: 1, entries: 64, flow_control: true, keep_alive_ms: 0 };

fn session(target: &std::sync::Arc<telpher_nvmf::target::Target>) -> Session {
    let mut session = Session::new(target, HostOptions::default());
    session.initialise();
    session
}

/// Sends Connect with this data; returns the status and the result.
fn connect(session: &mut Session, queue: QueueRequest, data: Vec<u8>) -> (Status, u64) {
    let command = requests::connect(session.cid(), queue);
    let (completion, _) = session.execute(command, Transfer::InCapsule(data));
    (completion.status(), completion.result.get())
}

fn invalid(in_data: bool, offset: u64) -> (Status, u64) {
    (Status::CONNECT_PARAMETERS.do_not_retry(), offset | u64::from(in_data) << 16)
}

#[test]
fn invalid_requests_name_the_field_and_the_connection_stays_open() {
    let target = target(Limits::default());
    let (_admin, controller) = admin_session(&target, HostOptions::default());
    let changed = |offset: usize, bytes: &[u8]| {
        let mut data = identity().connect_data(0xffff);
        data[offset..offset + bytes.len()].copy_from_slice(bytes);
        data
    };
    let other = Identity { subsystem_nqn: "nqn.2026-01.org.example:other".into(), ..identity() };
    let stranger = Identity { host_nqn: "nqn.2026-01.org.example:host".into(), host_id: [9; 16], ..identity() };
    let good = |id: u16| identity().connect_data(id);
    let queue = |qid: u16, entries: u16| QueueRequest { qid, entries, ..IO };
    let cases = [
        ("unknown subsystem", ADMIN, other.connect_data(0xffff), invalid(true, 256)),
        ("empty subsystem name", ADMIN, changed(256, &[0]), invalid(true, 256)),
        ("subsystem name without NUL (CVE-2023-6121)", ADMIN, changed(256, &[b'n'; 256]), invalid(true, 256)),
        ("subsystem name of 224 bytes", ADMIN, changed(256, &[b'n'; 224]), invalid(true, 256)),
        ("host name without NUL (CVE-2023-6121)", ADMIN, changed(512, &[b'n'; 256]), invalid(true, 512)),
        ("both names without NUL", ADMIN, changed(256, &[b'n'; 768]), invalid(true, 256)),
        ("host name of 224 bytes", ADMIN, changed(512, &[b'n'; 224]), invalid(true, 512)),
        ("empty host name", ADMIN, changed(512, &[0; 40]), invalid(true, 512)),
        ("host name that is not text", ADMIN, changed(512, &[0xff]), invalid(true, 512)),
        ("queue of one entry", QueueRequest { entries: 1, ..ADMIN }, good(0xffff), invalid(false, 44)),
        ("admin queue too large", QueueRequest { entries: 129, ..ADMIN }, good(0xffff), invalid(false, 44)),
        ("I/O queue too large", queue(1, 1025), good(controller), invalid(false, 44)),
        ("a controller for an admin queue", ADMIN, good(1), invalid(true, 16)),
        ("no such controller", IO, good(controller + 1), invalid(true, 16)),
        ("controller 0", IO, good(0), invalid(true, 16)),
        ("controller FFFFh", IO, good(0xffff), invalid(true, 16)),
        ("another host's controller", IO, stranger.connect_data(controller), invalid(true, 16)),
        ("queue 65535", queue(65535, 64), good(controller), invalid(false, 42)),
        ("one queue too many", queue(128, 64), good(controller), invalid(false, 42)),
        ("1023 bytes", ADMIN, vec![0; 1023], (Status::INVALID_FIELD.do_not_retry(), 0)),
        ("1025 bytes", ADMIN, vec![0; 1025], (Status::INVALID_FIELD.do_not_retry(), 0)),
        ("8192 bytes", ADMIN, vec![0; 8192], (Status::INVALID_FIELD.do_not_retry(), 0)),
    ];
    let mut session = session(&target);
    for (name, queue, data, expected) in cases {
        assert_eq!(connect(&mut session, queue, data), expected, "{name}");
    }
    let mut command = requests::connect(session.cid(), ADMIN);
    command.set_dword(10, 1); // RECFMT
    let status = session.status(command, Transfer::InCapsule(good(0xffff)));
    assert_eq!(status, Status::INCOMPATIBLE_FORMAT.do_not_retry());
    assert_eq!(target.controllers().len(), 1, "no request has left a controller");
    assert_eq!(connect(&mut session, ADMIN, good(0xffff)).0, Status::SUCCESS);
}

#[test]
fn commands_out_of_sequence_are_refused() {
    let target = target(Limits::default());
    let sequence = Status::SEQUENCE_ERROR.do_not_retry();
    let mut session = session(&target);
    // Before Connect.
    for opcode in (0..=255).filter(|&opcode| opcode != 0x7f) {
        let command = Submission::new(opcode, session.cid(), 1);
        assert_eq!(session.status(command, Transfer::None), sequence, "{opcode:#x}");
    }
    let command = requests::property_get(session.cid(), property::CAP);
    assert_eq!(session.status(command, Transfer::None), sequence);
    let controller = session.connect(&identity(), ADMIN, 0xffff);
    // A second Connect.
    assert_eq!(connect(&mut session, ADMIN, identity().connect_data(0xffff)).0, sequence);
    // Before the controller is enabled.
    for opcode in [admin::IDENTIFY, admin::GET_LOG_PAGE, admin::SET_FEATURES, admin::KEEP_ALIVE, admin::EVENT_REQUEST] {
        let command = Submission::new(opcode, session.cid(), 0);
        assert_eq!(session.status(command, Transfer::None), sequence);
    }
    let mut queue = self::session(&target);
    assert_eq!(connect(&mut queue, IO, identity().connect_data(controller)), invalid(false, 42));
    // Enabled with the wrong sizes of entries.
    let command = requests::property_set(session.cid(), property::CC, 5 << 16 | 4 << 20 | ENABLE);
    session.ok(command, Transfer::None);
    assert_eq!(connect(&mut queue, IO, identity().connect_data(controller)), invalid(false, 42));
}

#[test]
fn a_host_that_is_not_allowed_is_refused() {
    let target = target(Limits::default());
    target.set_hosts(NQN, Some(BTreeSet::from(["nqn.2026-01.org.example:other".to_string()]))).unwrap();
    let mut session = session(&target);
    let data = identity().connect_data(0xffff);
    assert_eq!(connect(&mut session, ADMIN, data.clone()), (Status::INVALID_HOST.do_not_retry(), 0));
    target.set_hosts(NQN, Some(BTreeSet::from([HOST.to_string()]))).unwrap();
    assert_eq!(connect(&mut session, ADMIN, data).0, Status::SUCCESS);
}

#[test]
fn one_host_identifier_belongs_to_one_host_name() {
    let target = target(Limits::default());
    let (_admin, _) = admin_session(&target, HostOptions::default());
    let impostor = Identity { host_nqn: "nqn.2026-01.org.example:impostor".into(), ..identity() };
    assert_eq!(connect(&mut session(&target), ADMIN, impostor.connect_data(0xffff)), invalid(true, 512));
}

#[test]
fn controllers_are_bounded_and_their_identifiers_are_not_reused_at_once() {
    let target = target(Limits { controllers: 3, ..Limits::default() });
    let mut seen = BTreeSet::new();
    for _ in 0..20 {
        let (admin, id) = admin_session(&target, HostOptions::default());
        assert!(seen.insert(id), "{id} was used before");
        drop(admin);
        assert_eq!(target.controllers().len(), 0);
    }
    let _kept: Vec<_> = (0..3).map(|_| admin_session(&target, HostOptions::default())).collect();
    let busy = connect(&mut session(&target), ADMIN, identity().connect_data(0xffff));
    assert_eq!(busy, (Status::CONTROLLER_BUSY, 0));
}

#[test]
fn identifiers_are_in_the_range_of_their_server() {
    let limits = Limits { least_controller_id: 10, most_controller_id: 12, ..Limits::default() };
    let target = target(limits);
    let ids: Vec<u16> = (0..7).map(|_| admin_session(&target, HostOptions::default()).1).collect();
    assert_eq!(ids, [10, 11, 12, 10, 11, 12, 10]);
    let kept: Vec<_> = (0..3).map(|_| admin_session(&target, HostOptions::default())).collect();
    assert_eq!(kept.iter().map(|(_, id)| *id).collect::<BTreeSet<_>>(), [10, 11, 12].into());
    let busy = connect(&mut session(&target), ADMIN, identity().connect_data(0xffff));
    assert_eq!(busy, (Status::CONTROLLER_BUSY, 0));
}

#[test]
fn a_queue_in_use_is_refused_until_its_connection_ends() {
    let target = target(Limits::default());
    let (_admin, controller) = admin_session(&target, HostOptions::default());
    let first = io_queue(&target, HostOptions::default(), controller, 1, true);
    let mut second = session(&target);
    let data = identity().connect_data(controller);
    assert_eq!(connect(&mut second, IO, data.clone()), (Status::INVALID_QUEUE, 0));
    drop(first);
    assert_eq!(connect(&mut second, IO, data), (Status::SUCCESS, controller.into()));
}

#[test]
fn discovery_has_no_io_queues() {
    let target = target(Limits::default());
    let discovery = Identity { subsystem_nqn: DISCOVERY_NQN.into(), ..identity() };
    let mut admin = session(&target);
    let controller = admin.connect(&discovery, ADMIN, 0xffff);
    let command = requests::enable(admin.cid());
    admin.ok(command, Transfer::None);
    assert_eq!(connect(&mut session(&target), IO, discovery.connect_data(controller)), invalid(false, 42));
}

#[test]
fn io_queues_end_with_a_reset_and_with_the_admin_queue() {
    let target = target(Limits::default());
    let (mut admin, mut io) = io_session(&target, HostOptions::default());
    io.connection.poll(0);
    assert!(!io.connection.is_closed());
    let command = requests::property_set(admin.cid(), property::CC, ENTRY_SIZES);
    admin.ok(command, Transfer::None);
    io.connection.poll(0);
    assert_eq!((io.connection.is_closed(), io.connection.ending()), (true, Some(Ending::ControllerEnded)));
    // The same queue can be connected again after the controller was enabled; the dead one does not free it.
    let command = requests::enable(admin.cid());
    admin.ok(command, Transfer::None);
    let controller = target.controllers()[0].id();
    let mut second = io_queue(&target, HostOptions::default(), controller, 1, true);
    drop(io);
    assert_eq!(connect(&mut session(&target), IO, identity().connect_data(controller)).0, Status::INVALID_QUEUE);
    drop(admin);
    second.connection.poll(0);
    assert!(second.connection.is_closed() && target.controllers().is_empty());
}

#[test]
fn a_queue_from_before_a_reset_serves_no_commands() {
    let target = target(Limits::default());
    let (mut admin, mut io) = io_session(&target, HostOptions::default());
    let command = requests::property_set(admin.cid(), property::CC, ENTRY_SIZES);
    admin.ok(command, Transfer::None);
    let command = requests::enable(admin.cid());
    admin.ok(command, Transfer::None);
    let command = requests::blocks(io::READ, io.cid(), 1, 0, 1);
    assert_eq!(io.status(command, Transfer::ToHost(512)), Status::SEQUENCE_ERROR.do_not_retry());
}

#[test]
fn a_controller_that_stays_disabled_ends() {
    let target = target(Limits::default());
    let mut session = session(&target);
    session.connect(&identity(), ADMIN, 0xffff);
    assert_eq!(session.connection.next_deadline(), Some(120_000));
    session.now = 60_000;
    let command = requests::enable(session.cid());
    session.ok(command, Transfer::None);
    assert_eq!(session.connection.next_deadline(), None);
    session.now = 200_000;
    let command = requests::property_set(session.cid(), property::CC, ENTRY_SIZES);
    session.ok(command, Transfer::None);
    session.connection.poll(319_999);
    assert!(!session.connection.is_closed());
    session.connection.poll(320_000);
    assert!(session.connection.is_closed());
    assert_eq!(target.controllers()[0].ended(), Some(EndReason::Disabled));
}

#[test]
fn a_removed_subsystem_ends_its_connections() {
    let target = target(Limits::default());
    let (mut admin, mut io) = io_session(&target, HostOptions::default());
    let command = Submission::new(admin::EVENT_REQUEST, admin.cid(), 0);
    admin.host.send(command, Transfer::None);
    assert_eq!(admin.events(), []);
    assert!(target.remove_subsystem(NQN) && !target.remove_subsystem(NQN));
    admin.connection.poll(0);
    io.connection.poll(0);
    assert!(admin.connection.is_closed() && io.connection.is_closed());
    assert_eq!(connect(&mut session(&target), ADMIN, identity().connect_data(0xffff)), invalid(true, 256));
}

#[test]
fn fabrics_commands_that_are_not_served_are_refused() {
    let target = target(Limits::default());
    let (mut admin, mut io) = io_session(&target, HostOptions::default());
    for kind in 0..=255 {
        if ![fabrics::CONNECT, fabrics::PROPERTY_GET, fabrics::PROPERTY_SET].contains(&kind) {
            for session in [&mut admin, &mut io] {
                let command = Submission::fabrics(kind, session.cid());
                assert_eq!(session.status(command, Transfer::None), Status::INVALID_OPCODE.do_not_retry(), "{kind}");
            }
        }
    }
    let command = requests::property_get(io.cid(), property::CSTS);
    assert_eq!(io.status(command, Transfer::None), Status::INVALID_OPCODE.do_not_retry());
}

#[test]
fn an_identifier_in_use_is_a_conflict() {
    let target = target(Limits::default());
    let (_admin, mut io) = io_session(&target, HostOptions::default());
    let command = requests::blocks(io::WRITE, 5, 1, 0, 64);
    io.host.send(command, Transfer::OnRequest(vec![1; 32768]));
    io.exchange_until_data();
    // The same identifier again, before the data of the first arrives.
    let answer = io.host.take_output();
    io.host.send_capsule(&requests::blocks(io::WRITE_ZEROES, 5, 1, 0, 1), &[]);
    let events = io.events();
    let [telpher_nvmf::initiator::HostEvent::Completed { completion, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(completion.status(), Status::ID_CONFLICT.do_not_retry());
    assert_eq!(io.connection.open_commands(), 1);
    // The first command still owns its slot. The host has forgotten it, so its completion is read from the bytes.
    io.host.send(command, Transfer::None);
    let _ = io.host.take_output();
    io.host.send_raw(&answer);
    assert!(matches!(io.events()[..], [telpher_nvmf::initiator::HostEvent::Completed { .. }]));
    assert_eq!(io.connection.open_commands(), 0);
}
