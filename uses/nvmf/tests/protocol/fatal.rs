//! Violations of the protocol: each gets C2HTermReq with the right FES and FEI at once, and harms no other connection.

use crate::cases::{self, BLOCK, Case, capsule, ic_req, pdu, write};
use crate::session::{Session, admin_session, io_queue, local, options, target};
use std::sync::Arc;
use telpher_nvmf::command::{SGL_IN_CAPSULE, io};
use telpher_nvmf::connection::{Connection, Context, Ending};
use telpher_nvmf::digest::Digests;
use telpher_nvmf::engine::CpuEngine;
use telpher_nvmf::initiator::requests;
use telpher_nvmf::initiator::{HostEvent, HostOptions, Transfer};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::target::Target;
use zerocopy::byteorder::little_endian::{U32, U64};

/// Sends bytes that violate the protocol. Checks the answer, that nothing else is answered, and that the connection
/// closes.
fn violates(session: &mut Session, bytes: &[u8], expected: (u16, u32), name: &str) {
    session.pump();
    while session.host.take_event().is_some() {}
    session.host.send_raw(bytes);
    let events = session.events();
    let [HostEvent::Terminated { fes, fei, header }] = &events[..] else { panic!("{name}: {events:?}") };
    assert_eq!((*fes, *fei), expected, "{name}");
    assert!(!header.is_empty() && bytes.starts_with(&header[..8]), "{name}: the header at fault is returned");
    assert!(matches!(session.connection.ending(), Some(Ending::Fatal(_))));
    // The rest of the stream is ignored, and after the time-out the connection is closed.
    session.host.send_raw(&[0xa5; 5000]);
    assert_eq!(session.events(), [], "{name}");
    assert_eq!(session.connection.next_deadline(), Some(session.now + 30_000));
    session.connection.poll(session.now + 29_999);
    assert!(!session.connection.is_closed());
    session.connection.poll(session.now + 30_000);
    assert!(session.connection.is_closed());
    assert_eq!(session.connection.open_commands(), 0);
}

/// A target, and a connection that must work after every case.
struct Bystander {
    target: Arc<Target>,
    _admin: Session,
    io: Session,
    controller: u16,
    next: u16,
}

impl Bystander {
    fn new(limits: Limits) -> Bystander {
        let target = target(limits);
        let (admin, controller) = admin_session(&target, HostOptions::default());
        let io = io_queue(&target, HostOptions::default(), controller, 1, true);
        Bystander { target, _admin: admin, io, controller, next: 2 }
    }

    fn io_queue(&mut self, digests: Digests) -> Session {
        let session = io_queue(&self.target, options(digests), self.controller, self.next, true);
        self.next = if self.next == 100 { 2 } else { self.next + 1 };
        session
    }

    fn works(&mut self) {
        let (write, read) = (self.io.cid(), self.io.cid());
        let fill = write as u8;
        let command = requests::blocks(io::WRITE, write, 1, 2000, 32);
        self.io.ok(command, Transfer::OnRequest(vec![fill; 32 * BLOCK]));
        let command = requests::blocks(io::READ, read, 1, 2000, 32);
        assert_eq!(self.io.ok(command, Transfer::ToHost(32 * 512)).1, vec![fill; 32 * BLOCK]);
    }
}

#[test]
fn initialisation_is_checked() {
    let mut bystander = Bystander::new(Limits::default());
    for Case { name, bytes, expected, .. } in cases::of_initialisation() {
        let mut session = Session::new(&bystander.target, HostOptions::default());
        let _ = session.host.take_output(); // its own ICReq
        violates(&mut session, &bytes, expected, &name);
    }
    bystander.works();
}

#[test]
fn reserved_bits_of_ic_req_are_ignored() {
    let target = target(Limits::default());
    let mut session = Session::new(&target, options(Digests { header: true, data: false }));
    let _ = session.host.take_output();
    let mut bytes = ic_req(0, 0, 0xfd, u32::MAX);
    bytes[16..].fill(0xff);
    session.host.send_raw(&bytes);
    session.initialise();
}

#[test]
fn common_headers_are_checked() {
    let mut bystander = Bystander::new(Limits::default());
    for Case { name, bytes, expected, .. } in cases::of_common_headers() {
        let mut session = bystander.io_queue(Digests::default());
        violates(&mut session, &bytes, expected, &name);
    }
    bystander.works();
}

#[test]
fn digests_of_headers_are_checked() {
    let mut bystander = Bystander::new(Limits::default());
    let digests = Digests { header: true, data: true };
    for Case { name, bytes, expected, .. } in cases::of_header_digests() {
        violates(&mut bystander.io_queue(digests), &bytes, expected, &name);
    }
    bystander.works();
}

#[test]
fn data_descriptors_agree_with_the_capsule() {
    let mut bystander = Bystander::new(Limits::default());
    for Case { name, bytes, expected, .. } in cases::of_data_descriptors() {
        violates(&mut bystander.io_queue(Digests::default()), &bytes, expected, &name);
    }
    // Descriptors that are not supported, while the end of the PDU is known: a status, and the connection is kept.
    let type_error = telpher_nvmf::status::Status::SGL_TYPE.do_not_retry();
    let mut session = bystander.io_queue(Digests::default());
    for kind in (0..=255).filter(|kind| ![0x01, 0x5a].contains(kind)) {
        for data in [0, 4096] {
            let mut command = write(kind, 4096);
            command.cid = session.cid().into();
            session.host.send(command, Transfer::None);
            let _ = session.host.take_output();
            session.host.send_raw(&capsule(&command, data));
            let events = session.events();
            let [HostEvent::Completed { completion, .. }] = &events[..] else { panic!("{kind:#x}: {events:?}") };
            assert_eq!((completion.status(), completion.cid), (type_error, command.cid), "{kind:#x}");
        }
    }
    // In the capsule at another offset, and on a command whose data goes to the host.
    let mut moved = write(SGL_IN_CAPSULE, 4096);
    moved.sgl_address = U64::new(8);
    let mut read = requests::blocks(io::READ, 1, 1, 0, 8);
    (read.sgl_kind, read.sgl_length) = (SGL_IN_CAPSULE, U32::new(4096));
    for mut command in [moved, read] {
        command.cid = session.cid().into();
        session.host.send(command, Transfer::None);
        let _ = session.host.take_output();
        session.host.send_raw(&capsule(&command, 4096));
        let events = session.events();
        let [HostEvent::Completed { completion, .. }] = &events[..] else { panic!("{events:?}") };
        assert_eq!(completion.status(), type_error);
    }
    bystander.works();
}

/// An I/O queue with a write of 32 KiB at the state in which one R2T, with tag 1, is outstanding.
fn waiting_for_data(bystander: &mut Bystander) -> Session {
    let mut session = bystander.io_queue(Digests::default());
    let command = requests::blocks(io::WRITE, 9, 1, 0, 64);
    session.host.send(command, Transfer::OnRequest(vec![1; 64 * BLOCK]));
    session.exchange_until_data();
    let _ = session.host.take_output();
    session
}

#[test]
fn data_that_was_not_asked_for_is_refused() {
    let mut bystander = Bystander::new(Limits { h2c_bytes: 16384, ..Limits::default() });
    for Case { name, before, bytes, expected } in cases::of_data() {
        let mut session = waiting_for_data(&mut bystander);
        session.host.send_raw(&before);
        violates(&mut session, &bytes, expected, &name);
    }
    let half = cases::part(1, 9, 0, 16384, false);
    // The tag of a command that has ended, and data before anything was asked for (CVE-2026-22998).
    let mut session = waiting_for_data(&mut bystander);
    session.host.send_raw(&[half.clone(), cases::part(1, 9, 16384, 16384, true)].concat());
    assert!(matches!(session.events()[..], [HostEvent::Completed { .. }]));
    violates(&mut session, &half, (1, 10), "TTAG of a finished command");
    violates(&mut bystander.io_queue(Digests::default()), &half, (1, 10), "TTAG of a slot that never asked");
    let mut session = bystander.io_queue(Digests::default());
    let command = requests::blocks(io::READ, 9, 1, 0, 8);
    session.ok(command, Transfer::ToHost(4096));
    violates(&mut session, &half, (1, 10), "TTAG of a read");
    bystander.works();
}

#[test]
fn a_host_with_more_commands_than_the_queue_has_entries_is_disconnected() {
    let mut bystander = Bystander::new(Limits::default());
    let mut session = bystander.io_queue(Digests::default());
    for cid in 0..64 {
        session.host.send(requests::blocks(io::WRITE, cid, 1, 0, 32), Transfer::OnRequest(vec![0; 32 * BLOCK]));
    }
    let bytes = session.host.take_output();
    let mut context = Context { engine: &mut CpuEngine::default(), now: 0 };
    session.connection.receive(&bytes, &mut context);
    assert_eq!((session.connection.open_commands(), session.connection.ending()), (64, None));
    let mut capsule = requests::blocks(io::WRITE, 64, 1, 0, 32);
    capsule.sgl_length = U32::new(32 * 512);
    session.host.send_capsule(&capsule, &[]);
    let bytes = session.host.take_output();
    session.connection.receive(&bytes, &mut context);
    assert!(matches!(session.connection.ending(), Some(Ending::Fatal(_))));
    assert_eq!(session.connection.open_commands(), 0);
    bystander.works();
}

/// CVE class of SPDK a1b2c9d635: FES was used as an index.
#[test]
fn a_termination_by_the_host_is_not_answered() {
    let target = target(Limits::default());
    for is_initialised in [false, true] {
        for fes in [0_u16, 1, 6, 7, 0xffff] {
            for plen in [0_u32, 8, 23, 24, 25, 152, 153, u32::MAX] {
                let mut connection = Connection::new(&target, local(), 0);
                let mut context = Context { engine: &mut CpuEngine::default(), now: 0 };
                if is_initialised {
                    connection.receive(&ic_req(0, 0, 0, 0), &mut context);
                    connection.sent(128);
                }
                let mut rest = vec![0; 144];
                rest[..2].copy_from_slice(&fes.to_le_bytes());
                connection.receive(&pdu(2, 0, 24, 0, plen, &rest), &mut context);
                assert_eq!(connection.outgoing_len(), 0);
                assert!(connection.is_closed(), "{is_initialised} {fes} {plen}");
                assert!(matches!(connection.ending(), Some(Ending::TerminatedByHost(_))));
            }
        }
    }
}

#[test]
fn a_host_that_does_not_connect_in_time_is_disconnected() {
    let target = target(Limits::default());
    let mut silent = Connection::new(&target, local(), 5);
    assert_eq!(silent.next_deadline(), Some(10_005));
    silent.poll(10_004);
    assert!(!silent.is_closed());
    silent.poll(10_005);
    assert_eq!((silent.is_closed(), silent.ending()), (true, Some(Ending::NoConnect)));
    let mut half = Connection::new(&target, local(), 5);
    let mut context = Context { engine: &mut CpuEngine::default(), now: 9_000 };
    half.receive(&ic_req(0, 0, 0, 0), &mut context);
    half.poll(18_999);
    assert!(!half.is_closed());
    half.poll(19_000);
    assert_eq!((half.is_closed(), half.ending()), (true, Some(Ending::NoConnect)));
}
