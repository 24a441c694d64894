//! Admin commands: the sequences of real initiators, properties, features, logs, events and keep alive.

use crate::session::{HOST, NQN, Session, admin_session, identity, io_queue, io_session, namespace, target};
use std::sync::Arc;
use telpher_nvmf::command::{Submission, admin};
use telpher_nvmf::connection::Ending;
use telpher_nvmf::controller::{ENABLE, ENTRY_SIZES, property};
use telpher_nvmf::initiator::requests::{self, Identity, QueueRequest};
use telpher_nvmf::initiator::{HostEvent, HostOptions, Transfer};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::log_pages;
use telpher_nvmf::status::Status;
use telpher_nvmf::storage::NullStorage;
use telpher_nvmf::subsystem::DISCOVERY_NQN;
use telpher_nvmf::target::Target;

fn identify(session: &mut Session, structure: u8, nsid: u32) -> Vec<u8> {
    let (command, transfer) = requests::identify(session.cid(), structure, nsid);
    session.ok(command, transfer).1
}

fn log(session: &mut Session, page: u8, offset: u64, bytes: u32) -> Vec<u8> {
    let (command, transfer) = requests::log_page(session.cid(), page, offset, bytes);
    session.ok(command, transfer).1
}

fn get_property(session: &mut Session, offset: u32) -> u64 {
    let command = requests::property_get(session.cid(), offset);
    session.ok(command, Transfer::None).0
}

fn set_configuration(session: &mut Session, value: u32) {
    let command = requests::property_set(session.cid(), property::CC, value);
    session.ok(command, Transfer::None);
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap())
}

fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(bytes[offset..offset + 2].try_into().unwrap())
}

/// The commands of Linux 6.1 with nvme-cli 2.3, in their order, from Connect to the first read.
#[test]
fn the_sequence_of_linux_works() {
    let target = target(Limits::default());
    let mut session = Session::new(&target, HostOptions::default());
    session.initialise();
    let queue = QueueRequest { qid: 0, entries: 32, flow_control: true, keep_alive_ms: 5000 };
    let id = session.connect(&identity(), queue, 0xffff);
    let capabilities = get_property(&mut session, property::CAP);
    // MQES 1023, CQR, TO 30, CSS NVM.
    assert_eq!(capabilities, 0x0000_0020_1e01_03ff);
    set_configuration(&mut session, ENTRY_SIZES);
    assert_eq!(get_property(&mut session, property::CC), u64::from(ENTRY_SIZES));
    set_configuration(&mut session, ENTRY_SIZES | ENABLE);
    assert_eq!(get_property(&mut session, property::CSTS), 1);
    assert_eq!(get_property(&mut session, property::VS), 0x0001_0400);
    let controller = identify(&mut session, 1, 0);
    assert_eq!(u16_at(&controller, 78), id, "Linux refuses another CNTLID");
    assert_eq!(u32_at(&controller, 80), 0x0001_0400);
    assert_ne!(u16_at(&controller, 320), 0, "Linux refuses KAS 0");
    assert_eq!(u32_at(&controller, 536) & 3, 1, "Linux refuses SGLS 0");
    assert_eq!((u32_at(&controller, 1792), u32_at(&controller, 1796)), ((8192 + 64) / 16, 1));
    assert_eq!(u16_at(&controller, 1800), 0, "Linux refuses ICDOFF");
    assert_eq!(controller[77], 5, "MDTS");
    assert_eq!((controller[76], controller[111]), (2, 1), "several I/O controllers");
    assert_eq!(&controller[4..24], b"1                   ");
    assert_eq!(&controller[768..768 + NQN.len() + 1], [NQN.as_bytes(), &[0]].concat());
    let effects = log(&mut session, log_pages::id::EFFECTS, 0, 4096);
    assert_eq!((u32_at(&effects, 0x06 * 4), u32_at(&effects, 1024 + 4)), (1, 3));
    let command = requests::set_feature(session.cid(), 0x07, 0x0001_0001);
    assert_eq!(session.ok(command, Transfer::None).0, 0x0001_0001);
    let mut io = io_queue(&target, HostOptions::default(), id, 1, true);
    let command = requests::set_feature(session.cid(), 0x0b, 0x900);
    session.ok(command, Transfer::None);
    session.host.send(Submission::new(admin::EVENT_REQUEST, 0x1f, 0), Transfer::None);
    assert_eq!(session.events(), []);
    identify(&mut session, 6, 0);
    let list = identify(&mut session, 2, 0);
    assert_eq!((u32_at(&list, 0), u32_at(&list, 4)), (1, 0));
    let descriptors = identify(&mut session, 3, 1);
    assert_eq!(descriptors[..4], [2, 16, 0, 0]);
    assert_eq!((descriptors[20..24].to_vec(), &descriptors[24..40]), (vec![3, 16, 0, 0], &[1; 16][..]));
    assert_eq!(descriptors[40..46], [4, 1, 0, 0, 0, 0]);
    let space = identify(&mut session, 0, 1);
    assert_eq!((u32_at(&space, 0), u32_at(&space, 8), u32_at(&space, 128)), (2048, 2048, 9 << 16));
    let command = requests::blocks(telpher_nvmf::command::io::READ, 1, 1, 0, 8);
    io.ok(command, Transfer::ToHost(4096));
    // Shutdown: CSTS has SHST 10b.
    set_configuration(&mut session, ENTRY_SIZES | ENABLE | 1 << 14);
    assert_eq!(get_property(&mut session, property::CSTS), 8);
    let command = requests::blocks(telpher_nvmf::command::io::READ, 1, 1, 0, 8);
    assert_eq!(io.status(command, Transfer::ToHost(4096)), Status::SEQUENCE_ERROR.do_not_retry());
}

#[test]
fn properties_that_do_not_exist_or_are_read_only_are_refused() {
    let target = target(Limits::default());
    let (mut session, _) = admin_session(&target, HostOptions::default());
    let refused = Status::CONNECT_PARAMETERS.do_not_retry();
    for offset in (0..0x100).step_by(4).chain([1, 0x1000, u32::MAX]) {
        let is_readable = [0, 4, 8, 0x14, 0x1c].contains(&offset);
        for is_long in [false, true] {
            let mut command = requests::property_get(session.cid(), offset);
            command.set_dword(10, is_long.into());
            let is_served = if is_long { offset == 0 } else { is_readable };
            assert_eq!(session.status(command, Transfer::None) == Status::SUCCESS, is_served, "{offset:#x} {is_long}");
            let mut command = requests::property_set(session.cid(), offset, ENTRY_SIZES | ENABLE);
            command.set_dword(10, is_long.into());
            let expected = if (offset, is_long) == (0x14, false) { Status::SUCCESS } else { refused };
            assert_eq!(session.status(command, Transfer::None), expected, "{offset:#x} {is_long}");
        }
    }
    for attributes in 2..8 {
        let mut command = requests::property_get(session.cid(), property::CSTS);
        command.set_dword(10, attributes);
        assert_eq!(session.status(command, Transfer::None), Status::INVALID_FIELD.do_not_retry());
    }
    assert_eq!(get_property(&mut session, property::CSTS), 1);
}

#[test]
fn a_configuration_that_is_not_supported_sets_the_fatal_status() {
    let target = target(Limits::default());
    let (mut session, _) = admin_session(&target, HostOptions::default());
    for field in [1 << 4, 6 << 4, 1 << 7, 1 << 11] {
        set_configuration(&mut session, 0);
        set_configuration(&mut session, ENTRY_SIZES | ENABLE | field);
        assert_eq!(get_property(&mut session, property::CSTS), 2, "{field:#x}");
    }
    set_configuration(&mut session, 0);
    set_configuration(&mut session, ENTRY_SIZES | ENABLE);
    assert_eq!(get_property(&mut session, property::CSTS), 1);
}

#[test]
fn admin_commands_that_are_invalid_get_their_status() {
    let target = target(Limits::default());
    let (mut session, _) = admin_session(&target, HostOptions::default());
    let invalid = Status::INVALID_FIELD.do_not_retry();
    let served = [0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x7f];
    for opcode in (0..=255).filter(|opcode| !served.contains(opcode)) {
        let command = Submission::new(opcode, session.cid(), 0);
        assert_eq!(session.status(command, Transfer::None), Status::INVALID_OPCODE.do_not_retry(), "{opcode:#x}");
    }
    for opcode in [admin::ABORT, admin::KEEP_ALIVE, admin::EVENT_REQUEST] {
        let command = Submission::new(opcode, session.cid(), 1);
        assert_eq!(session.status(command, Transfer::None), invalid);
    }
    for structure in (0..=255).filter(|structure| ![0, 1, 2, 3, 6, 7, 0x1c].contains(structure)) {
        let (command, transfer) = requests::identify(session.cid(), structure, 1);
        assert_eq!(session.status(command, transfer), invalid, "CNS {structure:#x}");
    }
    let no_namespace = Status::INVALID_NAMESPACE.do_not_retry();
    for (structure, nsid) in [(0, 0), (0, u32::MAX), (0, 1025), (3, 2), (3, 0), (2, u32::MAX), (2, u32::MAX - 1)] {
        let (command, transfer) = requests::identify(session.cid(), structure, nsid);
        assert_eq!(session.status(command, transfer), no_namespace, "CNS {structure:#x} {nsid}");
    }
    assert_eq!(identify(&mut session, 0, 2), vec![0; 4096], "an inactive namespace");
    for page in (0..=255).filter(|page| !(1..=5).contains(page)) {
        let (command, transfer) = requests::log_page(session.cid(), page, 0, 512);
        assert_eq!(session.status(command, transfer), Status::INVALID_LOG_PAGE.do_not_retry(), "log {page:#x}");
    }
    for offset in [513, 516, 2, u64::MAX] {
        let (command, transfer) = requests::log_page(session.cid(), log_pages::id::HEALTH, offset, 4);
        assert_eq!(session.status(command, transfer), invalid, "offset {offset}");
    }
    // A log of 16 GiB, in 4 GiB of data.
    let (mut command, _) = requests::log_page(session.cid(), log_pages::id::HEALTH, 0, 4);
    command.set_dword(10, 0xffff_0002);
    command.set_dword(11, 0xffff);
    assert_eq!(session.status(command, Transfer::ToHost(u32::MAX)), invalid);
    assert_eq!(session.connection.outgoing_len(), 0);
}

/// CVE class of SPDK f513182217 and e749fa9c27: data longer or shorter than the structure.
#[test]
fn the_host_gets_as_many_bytes_as_it_asked_for() {
    let target = target(Limits::default());
    let (mut session, _) = admin_session(&target, HostOptions::default());
    let whole = identify(&mut session, 1, 0);
    for bytes in [1, 4, 511, 4095, 4097, 8192, 131_072] {
        let (command, _) = requests::identify(session.cid(), 1, 0);
        let (_, data) = session.ok(command, Transfer::ToHost(bytes));
        let common = whole.len().min(bytes as usize);
        assert_eq!(data.len(), bytes as usize);
        assert_eq!(data[..common], whole[..common]);
        assert!(data[common..].iter().all(|&byte| byte == 0));
    }
    let (command, _) = requests::identify(session.cid(), 1, 0);
    assert_eq!(session.status(command, Transfer::ToHost(131_076)), Status::INVALID_FIELD.do_not_retry());
    assert_eq!(
        session.status(Submission::new(admin::IDENTIFY, 999, 0), Transfer::None),
        Status::INVALID_NAMESPACE.do_not_retry()
    );
}

#[test]
fn features_are_kept_until_a_reset() {
    let target = target(Limits::default());
    let (mut session, _) = admin_session(&target, HostOptions::default());
    let get = |session: &mut Session, feature: u8| {
        let command = requests::get_feature(session.cid(), feature);
        session.ok(command, Transfer::None).0
    };
    let defaults = [
        (0x01, 0),
        (0x02, 0),
        (0x04, 0x157),
        (0x05, 0),
        (0x06, 1),
        (0x07, 0x007e_007e),
        (0x0a, 0),
        (0x0b, 0),
        (0x0f, 0),
    ];
    for (feature, expected) in defaults {
        assert_eq!(get(&mut session, feature), expected, "{feature:#x}");
    }
    let changes = [
        (0x04, 0x150, 0x150),
        (0x06, 0, 0),
        (0x07, 0x0003_0007, 0x0003_0003),
        (0x0b, 0xffff_ffff, 0x100),
        (0x0f, 1, 10_000),
    ];
    for (feature, value, expected) in changes {
        let command = requests::set_feature(session.cid(), feature, value);
        session.ok(command, Transfer::None);
        assert_eq!(get(&mut session, feature), expected, "{feature:#x}");
    }
    let invalid = Status::INVALID_FIELD.do_not_retry();
    for (feature, value) in [(0x07, 0x0000_ffff), (0x07, 0xffff_0000), (0x02, 1), (0x03, 0), (0x81, 0), (0xff, 0)] {
        let command = requests::set_feature(session.cid(), feature, value);
        assert_eq!(session.status(command, Transfer::None), invalid, "{feature:#x} {value:#x}");
    }
    let mut command = requests::set_feature(session.cid(), 0x04, 1);
    command.set_dword(10, 1 << 31 | 0x04);
    assert_eq!(session.status(command, Transfer::None), Status::NOT_SAVEABLE.do_not_retry());
    let mut command = requests::get_feature(session.cid(), 0x81);
    command.set_dword(11, 1);
    assert_eq!(session.ok(command, Transfer::ToHost(16)).1, vec![7; 16]);
    set_configuration(&mut session, ENTRY_SIZES);
    set_configuration(&mut session, ENTRY_SIZES | ENABLE);
    for (feature, expected) in defaults.into_iter().filter(|(feature, _)| *feature != 0x0f) {
        assert_eq!(get(&mut session, feature), expected, "{feature:#x} after a reset");
    }
}

#[test]
fn the_number_of_queues_is_fixed_once_queues_exist() {
    let target = target(Limits::default());
    let (mut admin, _io) = io_session(&target, HostOptions::default());
    let command = requests::set_feature(admin.cid(), 0x07, 0);
    assert_eq!(admin.status(command, Transfer::None), Status::SEQUENCE_ERROR.do_not_retry());
}

/// A parked Asynchronous Event Request.
fn wait_for_event(session: &mut Session) -> u16 {
    let cid = session.cid();
    session.host.send(Submission::new(admin::EVENT_REQUEST, cid, 0), Transfer::None);
    cid
}

fn event(session: &mut Session) -> Option<(u16, u64)> {
    session.connection.poll(session.now);
    match &session.events()[..] {
        [] => None,
        [HostEvent::Completed { completion, .. }] => Some((completion.cid.get(), completion.result.get())),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_changed_namespace_is_reported_once_until_its_log_is_read() {
    let target = target(Limits::default());
    let (mut session, _) = admin_session(&target, HostOptions::default());
    let command = requests::set_feature(session.cid(), 0x0b, 0x100);
    session.ok(command, Transfer::None);
    let first = wait_for_event(&mut session);
    let second = wait_for_event(&mut session);
    assert_eq!(event(&mut session), None);
    target.add_namespace(NQN, namespace(5, 4096, Arc::new(NullStorage::new(1 << 20)))).unwrap();
    target.resize_namespace(NQN, 1, 2 << 20).unwrap();
    assert_eq!(event(&mut session), Some((first, 0x0004_0002)));
    assert_eq!(event(&mut session), None, "masked until the log is read");
    let list = identify(&mut session, 2, 0);
    assert_eq!((u32_at(&list, 0), u32_at(&list, 4), u32_at(&list, 8)), (1, 5, 0));
    assert_eq!(u32_at(&identify(&mut session, 0, 1), 0), 4096, "the new size");
    // RAE keeps the event masked, and the log as it is.
    let (mut command, transfer) = requests::log_page(session.cid(), log_pages::id::CHANGED_NAMESPACES, 0, 4096);
    command.set_dword(10, command.dword(10) | 1 << 15);
    let (_, page) = session.ok(command, transfer);
    assert_eq!((u32_at(&page, 0), u32_at(&page, 4), u32_at(&page, 8)), (1, 5, 0));
    target.remove_namespace(NQN, 5).unwrap();
    assert_eq!(event(&mut session), None);
    let (command, transfer) = requests::log_page(session.cid(), log_pages::id::CHANGED_NAMESPACES, 0, 4096);
    session.host.send(command, transfer);
    let events = session.events();
    assert_eq!(events.len(), 2, "the log, and the event that was masked: {events:?}");
    assert!(
        events.iter().any(|event| matches!(event, HostEvent::Completed { completion, .. } if completion.cid == second))
    );
}

#[test]
fn event_requests_are_limited_and_dropped_by_a_reset() {
    let target = target(Limits::default());
    let (mut session, _) = admin_session(&target, HostOptions::default());
    for _ in 0..4 {
        wait_for_event(&mut session);
    }
    assert_eq!(session.events(), []);
    assert_eq!(session.connection.open_commands(), 0, "waiting requests take no entries");
    let command = Submission::new(admin::EVENT_REQUEST, session.cid(), 0);
    assert_eq!(session.status(command, Transfer::None), Status::EVENT_LIMIT.do_not_retry());
    set_configuration(&mut session, ENTRY_SIZES);
    set_configuration(&mut session, ENTRY_SIZES | ENABLE);
    wait_for_event(&mut session);
    assert_eq!(session.events(), [], "there is room again");
}

fn discovery(target: &Arc<Target>) -> Session {
    let mut session = Session::new(target, HostOptions::default());
    session.initialise();
    let identity = Identity { subsystem_nqn: DISCOVERY_NQN.into(), ..identity() };
    let queue = QueueRequest { qid: 0, entries: 32, flow_control: true, keep_alive_ms: 0 };
    session.connect(&identity, queue, 0xffff);
    let command = requests::enable(session.cid());
    session.ok(command, Transfer::None);
    session
}

#[test]
fn discovery_lists_what_the_host_may_use() {
    let target = target(Limits::default());
    target.set_listeners(vec!["0.0.0.0:4420".parse().unwrap(), "[::1]:8009".parse().unwrap()]);
    let mut session = discovery(&target);
    let page = log(&mut session, log_pages::id::DISCOVERY, 0, 1024 * 5);
    assert_eq!(page[8..16], 4_u64.to_le_bytes());
    let text = |offset: usize, len: usize| {
        String::from_utf8(page[offset..offset + len].to_vec()).unwrap().trim_end_matches('\0').to_string()
    };
    let expected = [
        (3, 1, DISCOVERY_NQN, "127.0.0.1", "4420"),
        (2, 1, NQN, "127.0.0.1", "4420"),
        (3, 2, DISCOVERY_NQN, "::1", "8009"),
        (2, 2, NQN, "::1", "8009"),
    ];
    for (index, (kind, family, nqn, address, port)) in expected.into_iter().enumerate() {
        let start = 1024 * (index + 1);
        assert_eq!(page[start..start + 4], [3, family, kind, 4]);
        assert_eq!((u16_at(&page, start + 6), u16_at(&page, start + 8)), (0xffff, 128));
        let texts = (text(start + 256, 256), text(start + 512, 256), text(start + 32, 32));
        assert_eq!(texts, (nqn.into(), address.into(), port.into()));
    }
    // In parts of 1020 bytes, over one snapshot.
    let mut parts = log(&mut session, log_pages::id::DISCOVERY, 0, 1020);
    target.set_hosts(NQN, Some([].into())).unwrap();
    while parts.len() < page.len() {
        let rest = u32::try_from((page.len() - parts.len()).min(1020)).unwrap();
        let offset = parts.len() as u64;
        parts.extend(log(&mut session, log_pages::id::DISCOVERY, offset, rest));
    }
    assert!(parts == page);
    // The next read from the start shows the change: the host may use no subsystem.
    let changed = log(&mut session, log_pages::id::DISCOVERY, 0, 1024);
    assert_eq!(changed[8..16], 2_u64.to_le_bytes());
    assert_ne!(changed[..8], page[..8], "GENCTR");
    let allowed = [HOST.to_string()].into();
    target.set_hosts(NQN, Some(allowed)).unwrap();
}

#[test]
fn discovery_reports_changes_and_serves_few_commands() {
    let target = target(Limits::default());
    let mut session = discovery(&target);
    let command = requests::set_feature(session.cid(), 0x0b, 1 << 31);
    session.ok(command, Transfer::None);
    let waiting = wait_for_event(&mut session);
    assert_eq!(event(&mut session), None);
    target.set_listeners(vec!["127.0.0.1:4420".parse().unwrap()]);
    assert_eq!(event(&mut session), Some((waiting, 0x0070_f002)));
    assert_eq!(identify(&mut session, 1, 0)[111], 2, "CNTRLTYPE");
    let (command, transfer) = requests::identify(session.cid(), 0, 1);
    assert_eq!(session.status(command, transfer), Status::INVALID_FIELD.do_not_retry());
    let command = Submission::new(admin::ABORT, session.cid(), 0);
    assert_eq!(session.status(command, Transfer::None), Status::INVALID_OPCODE.do_not_retry());
    let command = Submission::new(admin::KEEP_ALIVE, session.cid(), 0);
    session.ok(command, Transfer::None);
}

#[test]
fn a_silent_host_loses_its_controller_and_no_other_does() {
    let target = target(Limits::default());
    let start = |keep_alive_ms| {
        let mut session = Session::new(&target, HostOptions::default());
        session.initialise();
        let queue = QueueRequest { qid: 0, entries: 32, flow_control: true, keep_alive_ms };
        let id = session.connect(&identity(), queue, 0xffff);
        let command = requests::enable(session.cid());
        session.ok(command, Transfer::None);
        (session, id)
    };
    let (mut silent, id) = start(15_000);
    let (mut talking, _) = start(15_000);
    let (mut without, _) = start(0);
    let (mut short, _) = start(1);
    let (mut long, _) = start(u32::MAX);
    let mut io = io_queue(&target, HostOptions::default(), id, 1, true);
    assert_eq!(short.connection.next_deadline(), Some(10_000), "raised to the smallest time-out");
    assert_eq!((without.connection.next_deadline(), long.connection.next_deadline()), (None, Some(u32::MAX.into())));
    talking.now = 14_999;
    let command = Submission::new(admin::KEEP_ALIVE, talking.cid(), 0);
    talking.ok(command, Transfer::None);
    let mut closed_at = |now| {
        [&mut silent, &mut talking, &mut without, &mut short, &mut long, &mut io].map(|session| {
            session.connection.poll(now);
            session.connection.is_closed()
        })
    };
    assert_eq!(closed_at(9_999), [false; 6]);
    assert_eq!(closed_at(14_999), [false, false, false, true, false, false]);
    // Without a poll of the admin queue first: each of the controller's queues notices.
    assert_eq!(closed_at(15_000), [true, false, false, true, false, true]);
    assert_eq!(closed_at(29_999), [true, true, false, true, false, true]);
    assert_eq!(silent.connection.ending(), Some(Ending::ControllerEnded));
}

#[test]
fn commands_on_io_queues_keep_the_controller_alive() {
    let target = target(Limits::default());
    let (mut admin, mut io) = io_session(&target, HostOptions::default());
    let command = requests::set_feature(admin.cid(), 0x0f, 20_000);
    admin.ok(command, Transfer::None);
    io.now = 15_000;
    let command = requests::blocks(telpher_nvmf::command::io::READ, 1, 1, 0, 1);
    io.ok(command, Transfer::ToHost(512));
    admin.connection.poll(34_999);
    assert!(!admin.connection.is_closed());
    admin.connection.poll(35_000);
    assert!(admin.connection.is_closed());
}
