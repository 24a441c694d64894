//! Hosts that send anything, stop at any byte, do not read, or leave while digests are being computed.

use crate::session::{LateEngine, Session, admin_session, identity, io_queue, io_session, local, options, target};
use std::sync::Arc;
use telpher_nvmf::command::{Submission, io};
use telpher_nvmf::connection::{Connection, Context};
use telpher_nvmf::decoder::{Decoder, Event};
use telpher_nvmf::digest::{Digests, digest};
use telpher_nvmf::engine::{CpuEngine, DigestEngine};
use telpher_nvmf::initiator::requests::{self, QueueRequest};
use telpher_nvmf::initiator::{HostOptions, Initiator, Transfer};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::pdu::{Kind, Receiver};
use telpher_nvmf::target::Target;
use telpher_os::Random;
use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::U32;

const BLOCK: usize = 512;

/// A random command, often a valid one.
fn command(random: &mut Random) -> (Submission, Vec<u8>) {
    let opcodes = [0, 1, 1, 1, 2, 2, 5, 8, 9, 0x0c, 0x19, 6, 0x0a, 0x18, 0x7f];
    let opcode = opcodes[random.below(opcodes.len() as u64) as usize];
    let cid = random.below(40) as u16;
    let blocks = 1 + random.below(80) as u32;
    let mut command = requests::blocks(opcode, cid, 1, random.below(2048), blocks);
    command.sgl_length = U32::new(blocks * 512);
    // Halves of fused pairs, which seldom fit.
    if random.below(6) == 0 {
        command.flags |= 1 + random.below(2) as u8;
    }
    let mut data = Vec::new();
    if random.below(2) == 0 && blocks <= 16 {
        command.sgl_kind = 1;
        data = vec![0xda; blocks as usize * BLOCK];
    }
    if random.below(4) == 0 {
        let mut bytes = [0; 64];
        bytes.copy_from_slice(command.as_bytes());
        bytes[random.below(64) as usize] = random.next().to_le_bytes()[0];
        command = zerocopy::transmute!(bytes);
    }
    (command, data)
}

/// A random PDU. Its header digest is right most of the time, so that the checks behind it are reached.
fn pdu(random: &mut Random, digests: Digests) -> Vec<u8> {
    let mut host = Initiator::new(HostOptions { digests, ..HostOptions::default() });
    let _ = host.take_output();
    match random.below(4) {
        0 => {
            let tag = [0, 1, 1, 1, 2, 3, 256, 0xffff][random.below(8) as usize];
            let offset = [0, 0, 4096, 8192, 16384, 0xffff_f000][random.below(6) as usize];
            let len = [4, 512, 4096, 16384, 40960][random.below(5) as usize];
            host.send_data(random.below(40) as u16, tag, offset, &vec![1; len], random.below(2) == 0);
        }
        _ => {
            let (command, data) = command(random);
            host.send_capsule(&command, &data);
        }
    }
    let mut bytes = host.take_output();
    if random.below(3) == 0 {
        let at = random.below(bytes.len().min(80) as u64) as usize;
        bytes[at] = random.next().to_le_bytes()[0];
    }
    let header = usize::from(bytes[2]);
    if digests.header && random.below(8) != 0 && header + 4 <= bytes.len() {
        let right = digest(&bytes[..header]);
        bytes[header..header + 4].copy_from_slice(&right.to_le_bytes());
    }
    if random.below(40) == 0 {
        bytes.truncate(random.below(bytes.len() as u64) as usize);
    }
    bytes
}

/// Checks that bytes are whole, valid PDUs of a controller. Returns the identifiers in responses.
fn responses(decoder: &mut Decoder, mut bytes: &[u8]) -> Vec<u16> {
    let mut found = Vec::new();
    while let Some(event) = decoder.next(&mut bytes).expect("the target sends valid PDUs") {
        if let Event::Header(layout) = event
            && layout.kind == Kind::CapsuleResp
        {
            let header = decoder.header();
            found.push(u16::from_le_bytes([header[20], header[21]]));
        }
    }
    found
}

#[test]
fn random_pdus_never_harm_the_target_or_another_host() {
    let target = target(Limits { h2c_bytes: 16384, ..Limits::default() });
    let (_admin, mut good) = io_session(&target, HostOptions::default());
    let (_other_admin, controller) = admin_session(&target, HostOptions::default());
    let (mut executed, mut fatal) = (0, 0);
    for seed in 0..1500_u64 {
        let mut random = Random::new(seed);
        let digests = Digests::ALL[(seed % 4) as usize];
        let mut session = io_queue(&target, options(digests), controller, 1, true);
        let mut engine = LateEngine::new(seed);
        let mut decoder = Decoder::new(Receiver::Host);
        decoder.initialise(digests, 4);
        let mut answers = 0;
        let commands_before = session.connection.stats().commands;
        for _ in 0..40 {
            let bytes = pdu(&mut random, digests);
            let mut context = Context { engine: &mut engine, now: 0 };
            let longest = 1 + random.below(bytes.len() as u64 + 1) as usize;
            for piece in bytes.chunks(longest) {
                session.connection.receive(piece, &mut context);
            }
            let mut done = Vec::new();
            engine.completed(&mut done);
            for job in done {
                session.connection.digest_done(job, &mut Context { engine: &mut engine, now: 0 });
            }
            let output = session.connection.outgoing(usize::MAX).collect::<Vec<_>>().concat();
            session.connection.sent(output.len());
            answers += responses(&mut decoder, &output).len() as u64;
            assert!(session.connection.open_commands() <= 64);
        }
        let commands = session.connection.stats().commands - commands_before;
        assert!(answers <= commands, "seed {seed}: {answers} answers to {commands} commands");
        executed += answers;
        fatal += u64::from(session.connection.ending().is_some());
    }
    assert!(executed > 1000 && fatal > 300, "the streams reach the target: {executed} answers, {fatal} fatal errors");
    let fill = vec![0x77; 16 * BLOCK];
    let command = requests::blocks(io::WRITE, good.cid(), 1, 0, 16);
    good.ok(command, Transfer::OnRequest(fill.clone()));
    let command = requests::blocks(io::READ, good.cid(), 1, 0, 16);
    assert_eq!(good.ok(command, Transfer::ToHost(16 * 512)).1, fill);
}

#[test]
fn random_bytes_never_harm_the_target() {
    let target = target(Limits::default());
    for seed in 0..3000_u64 {
        let mut random = Random::new(seed);
        let mut connection = Connection::new(&target, local(), 0);
        let mut bytes = vec![0; 400];
        random.fill(&mut bytes);
        // Half of the streams get past the first checks.
        if seed % 2 == 0 {
            bytes[..8].copy_from_slice(&[0, 0, 128, 0, 128, 0, 0, 0]);
            bytes[8..11].fill(0);
        }
        connection.receive(&bytes, &mut Context { engine: &mut CpuEngine::default(), now: 0 });
        assert!(connection.outgoing_len() <= 128 + 152);
    }
    assert!(target.controllers().is_empty());
}

/// What a host sends in a whole session on one queue: a write by R2T, a read, and a write in a capsule.
fn recorded(target: &Arc<Target>, digests: Digests, controller: u16, qid: u16) -> Vec<u8> {
    let mut connection = Connection::new(target, local(), 0);
    let mut host = Initiator::new(options(digests));
    let mut engine = CpuEngine::default();
    let mut all = Vec::new();
    let mut step = 0;
    loop {
        let output = host.take_output();
        all.extend_from_slice(&output);
        connection.receive(&output, &mut Context { engine: &mut engine, now: 0 });
        let mut done = Vec::new();
        engine.completed(&mut done);
        for job in done {
            connection.digest_done(job, &mut Context { engine: &mut engine, now: 0 });
        }
        let reply = connection.outgoing(usize::MAX).collect::<Vec<_>>().concat();
        connection.sent(reply.len());
        host.receive(&reply).unwrap();
        if host.open_commands() > 0 {
            continue;
        }
        match step {
            0 => {
                let queue = QueueRequest { qid, entries: 8, flow_control: true, keep_alive_ms: 0 };
                let data = identity().connect_data(controller);
                host.send(requests::connect(1, queue), Transfer::InCapsule(data));
            }
            1 => host.send(requests::blocks(io::WRITE, 2, 1, 0, 20), Transfer::OnRequest(vec![3; 20 * BLOCK])),
            2 => host.send(requests::blocks(io::READ, 3, 1, 0, 2), Transfer::ToHost(1024)),
            3 => host.send(requests::blocks(io::WRITE, 4, 1, 0, 2), Transfer::InCapsule(vec![4; 2 * BLOCK])),
            _ => return all,
        }
        step += 1;
    }
}

#[test]
fn a_host_may_leave_after_any_byte() {
    for digests in [Digests::default(), Digests { header: true, data: true }] {
        let target = target(Limits::default());
        let (_admin, controller) = admin_session(&target, HostOptions::default());
        let bytes = recorded(&target, digests, controller, 1);
        assert!(bytes.len() > 12_000);
        for end in 0..bytes.len() {
            let mut connection = Connection::new(&target, local(), 0);
            let mut engine = LateEngine::new(end as u64);
            connection.receive(&bytes[..end], &mut Context { engine: &mut engine, now: 0 });
            assert_eq!(connection.ending(), None);
            // The jobs that are under way outlive the connection, with their buffers.
            drop(connection);
            let mut done = Vec::new();
            while engine.pending() > 0 {
                engine.completed(&mut done);
            }
        }
        // The queue is free, and the data is as the last whole write left it.
        let mut io = io_queue(&target, options(digests), controller, 1, true);
        let command = requests::blocks(io::READ, 9, 1, 0, 20);
        let data = io.ok(command, Transfer::ToHost(20 * 512)).1;
        assert!(data.iter().all(|byte| [3, 4].contains(byte)));
    }
}

#[test]
fn a_host_that_does_not_read_is_not_served_without_bound() {
    for data in [false, true] {
        let limits = Limits { send_bytes: 1 << 20, ..Limits::default() };
        let target = target(limits);
        let (_admin, mut io) = io_session(&target, options(Digests { header: false, data }));
        for cid in 0..60 {
            io.host.send(requests::blocks(io::READ, cid, 1, 0, 256), Transfer::ToHost(256 * 512));
        }
        let bytes = io.host.take_output();
        let mut engine = LateEngine::new(1);
        let mut context = Context { engine: &mut engine, now: 0 };
        let taken = io.connection.receive(&bytes, &mut context);
        assert!(taken < bytes.len() && !io.connection.wants_input());
        let waiting = io.connection.outgoing_len() + io.connection.open_commands() as usize * 131_072;
        assert!(((1 << 20)..(1 << 20) + 140_000).contains(&waiting), "{waiting}");
        assert_eq!(io.connection.receive(&bytes[taken..], &mut context), 0, "nothing is taken");
        // The host reads again, and everything completes.
        io.engine = Box::new(engine);
        io.host.send_raw(&bytes[taken..]);
        assert_eq!(io.events().len(), 60);
    }
}

#[test]
fn data_is_asked_for_within_the_receive_budget_and_the_tags() {
    // (budget, blocks of each write, R2Ts that may be outstanding)
    for (receive_bytes, blocks, expected) in [(1 << 20, 256, 8), (1 << 30, 32, 256)] {
        let target = target(Limits { receive_bytes, queue_depth: 1024, ..Limits::default() });
        let (_admin, controller) = admin_session(&target, HostOptions::default());
        let mut io = Session::new(&target, HostOptions::default());
        io.initialise();
        let queue = QueueRequest { qid: 1, entries: 1024, flow_control: true, keep_alive_ms: 0 };
        io.connect(&identity(), queue, controller);
        let transfer = || Transfer::OnRequest(vec![1; blocks as usize * BLOCK]);
        for cid in 100..500 {
            io.host.send(requests::blocks(io::WRITE, cid, 1, 0, blocks), transfer());
        }
        let bytes = io.host.take_output();
        io.connection.receive(&bytes, &mut Context { engine: &mut CpuEngine::default(), now: 0 });
        assert_eq!((io.connection.stats().r2ts, io.connection.open_commands()), (expected, 400));
        assert_eq!(io.events().len(), 400);
        assert_eq!((io.connection.stats().r2ts, io.connection.open_commands()), (400, 0));
    }
}

#[test]
fn a_late_digest_is_not_taken_for_that_of_a_later_command() {
    let target = target(Limits::default());
    let (_admin, controller) = admin_session(&target, HostOptions::default());
    let digests = Digests { header: false, data: true };
    let mut io = io_queue(&target, options(digests), controller, 1, true);
    let mut engine = LateEngine::new(3);
    // A write whose digest is under way when the host violates the protocol.
    io.host.send(requests::blocks(io::WRITE, 1, 1, 0, 8), Transfer::InCapsule(vec![9; 8 * BLOCK]));
    let mut bytes = io.host.take_output();
    bytes.extend([0x55; 8]);
    io.connection.receive(&bytes, &mut Context { engine: &mut engine, now: 0 });
    assert!(io.connection.ending().is_some());
    let before = io.connection.outgoing_len();
    let mut done = Vec::new();
    engine.completed(&mut done);
    assert_eq!(done.len(), 1);
    for job in done {
        io.connection.digest_done(job, &mut Context { engine: &mut engine, now: 0 });
    }
    assert_eq!(io.connection.outgoing_len(), before);
    let mut other = io_queue(&target, options(digests), controller, 2, true);
    let command = requests::blocks(io::READ, 1, 1, 0, 8);
    assert_eq!(other.ok(command, Transfer::ToHost(4096)).1, vec![0; 4096], "the write was not executed");
}
