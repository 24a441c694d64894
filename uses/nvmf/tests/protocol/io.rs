//! I/O commands in all digest combinations, with streams cut at any byte.

use crate::session::{
    LateEngine, NQN, Session, admin_session, identity, io_queue, io_session, namespace, options, target,
};
use std::sync::Arc;
use telpher_nvmf::command::io;
use telpher_nvmf::digest::Digests;
use telpher_nvmf::initiator::requests::{self, QueueRequest};
use telpher_nvmf::initiator::{HostEvent, HostOptions, Transfer};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::status::Status;
use telpher_nvmf::storage::NullStorage;
use telpher_os::Random;

const BLOCK: usize = 512;

fn write(session: &mut Session, first: u64, data: Vec<u8>) -> Status {
    let blocks = u32::try_from(data.len() / BLOCK).unwrap();
    let command = requests::blocks(io::WRITE, session.cid(), 1, first, blocks);
    let transfer = if data.len() <= 8192 { Transfer::InCapsule(data) } else { Transfer::OnRequest(data) };
    session.status(command, transfer)
}

fn read(session: &mut Session, first: u64, blocks: u32) -> Vec<u8> {
    let command = requests::blocks(io::READ, session.cid(), 1, first, blocks);
    session.ok(command, Transfer::ToHost(blocks * 512)).1
}

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}

/// Random reads and writes, compared with a plain buffer.
pub(crate) fn exercise(session: &mut Session, seed: u64, rounds: u64) {
    let mut random = Random::new(seed);
    let mut plain = vec![0_u8; 1 << 20];
    for _ in 0..rounds {
        let longest = if random.below(3) == 0 { 256 } else { 16 };
        let blocks = 1 + random.below(longest);
        let first = random.below(2048 - blocks + 1);
        let range = first as usize * BLOCK..(first + blocks) as usize * BLOCK;
        if random.below(2) == 0 {
            let data = bytes(&mut random, range.len());
            plain[range].copy_from_slice(&data);
            assert_eq!(write(session, first, data), Status::SUCCESS);
        } else {
            assert_eq!(read(session, first, blocks as u32), plain[range]);
        }
    }
    for first in (0..2048).step_by(256) {
        assert_eq!(read(session, first, 256), plain[first as usize * BLOCK..][..256 * BLOCK]);
    }
}

#[test]
fn data_survives_in_all_digest_combinations_and_segmentations() {
    let split = Limits { h2c_bytes: 4096, r2t_bytes: 16384, ..Limits::default() };
    for (limits, most_r2ts) in [(Limits::default(), 1), (split, 1), (split, 4)] {
        for digests in Digests::ALL {
            for (alignment, longest) in [(0, 1 << 20), (31, 5000), (1, 700)] {
                let target = target(limits);
                let options = HostOptions { digests, alignment, most_r2ts };
                let (_admin, io) = io_session(&target, options);
                let mut io = io.cut(longest, 3);
                exercise(&mut io, longest, 60);
            }
        }
    }
}

#[test]
fn data_survives_when_each_byte_arrives_alone() {
    for digests in Digests::ALL {
        let target = target(Limits { h2c_bytes: 4096, ..Limits::default() });
        let (_admin, io) = io_session(&target, options(digests));
        let mut io = io.cut(1, 1);
        let data = bytes(&mut Random::new(9), 20 * BLOCK);
        assert_eq!(write(&mut io, 3, data.clone()), Status::SUCCESS);
        assert_eq!(write(&mut io, 40, data[..BLOCK].to_vec()), Status::SUCCESS);
        assert_eq!(read(&mut io, 3, 20), data);
    }
}

#[test]
fn digests_may_be_computed_late_and_in_any_order() {
    let limits = Limits { h2c_bytes: 4096, r2t_bytes: 8192, ..Limits::default() };
    let target = target(limits);
    let options = HostOptions { digests: Digests { header: true, data: true }, alignment: 0, most_r2ts: 3 };
    let (_admin, mut io) = io_session(&target, options);
    io.engine = Box::new(LateEngine::new(5));
    exercise(&mut io, 11, 100);
}

#[test]
fn many_commands_complete_with_their_own_data() {
    for digests in Digests::ALL {
        let target = target(Limits { receive_bytes: 256 << 10, ..Limits::default() });
        let (_admin, mut io) = io_session(&target, options(digests));
        io.engine = Box::new(LateEngine::new(6));
        // More data than the receive budget: commands wait for their turn, and all end.
        for number in 0..30_u16 {
            let command = requests::blocks(io::WRITE, number, 1, u64::from(number) * 64, 64);
            io.host.send(command, Transfer::OnRequest(vec![number as u8 + 1; 64 * BLOCK]));
        }
        let events = io.events();
        assert_eq!(events.len(), 30);
        for number in 0..30_u16 {
            let command = requests::blocks(io::READ, number, 1, u64::from(number) * 64, 64);
            io.host.send(command, Transfer::ToHost(64 * 512));
        }
        let mut seen = 0;
        for event in io.events() {
            let HostEvent::Completed { completion, data, is_intact: true, .. } = event else { panic!("{event:?}") };
            assert!(completion.status().is_success());
            assert!(data == vec![completion.cid.get() as u8 + 1; 64 * BLOCK], "{}", completion.cid);
            seen += 1;
        }
        assert_eq!((seen, io.connection.open_commands()), (30, 0));
    }
}

/// The head of the submission queue counts commands modulo the queue's entries, from Connect on.
#[test]
fn responses_have_the_head_of_the_submission_queue() {
    let target = target(Limits::default());
    let (_admin, mut io) = io_session(&target, HostOptions::default());
    for number in 2..200_u16 {
        let command = requests::blocks(io::READ, number, 1, 0, 1);
        let (completion, _) = io.execute(command, Transfer::ToHost(512));
        assert_eq!(completion.sq_head.get(), number % 64);
    }
}

#[test]
fn without_flow_control_only_connect_has_a_queue_head() {
    let target = target(Limits::default());
    for (flow_control, expected) in [(true, [1, 2, 3]), (false, [0xffff, 0, 0])] {
        let mut session = Session::new(&target, HostOptions::default());
        session.initialise();
        let queue = QueueRequest { qid: 0, entries: 32, flow_control, keep_alive_ms: 0 };
        let data = identity().connect_data(0xffff);
        let (connect, _) = session.execute(requests::connect(1, queue), Transfer::InCapsule(data));
        let (enable, _) = session.execute(requests::enable(2), Transfer::None);
        let invalid = telpher_nvmf::command::Submission::new(0xff, 3, 0);
        let (failure, _) = session.execute(invalid, Transfer::None);
        assert_eq!([connect, enable, failure].map(|completion| completion.sq_head.get()), expected);
    }
}

#[test]
fn without_flow_control_a_successful_read_needs_no_response() {
    let target = target(Limits::default());
    for digests in Digests::ALL {
        let (_admin, controller) = admin_session(&target, options(digests));
        for flow_control in [true, false] {
            let mut io = io_queue(&target, options(digests), controller, 1, flow_control);
            let command = requests::blocks(io::READ, 77, 1, 0, 8);
            io.host.send(command, Transfer::ToHost(4096));
            let events = io.events();
            let [HostEvent::Completed { has_response, is_intact: true, .. }] = events[..] else { panic!("{events:?}") };
            assert_eq!(has_response, flow_control);
            // A failure has a response in any case.
            let command = requests::blocks(io::READ, 78, 1, 1 << 40, 8);
            assert_eq!(io.status(command, Transfer::ToHost(4096)), Status::LBA_RANGE.do_not_retry());
        }
    }
}

#[test]
fn a_wrong_data_digest_changes_nothing_and_keeps_the_connection() {
    for header in [false, true] {
        let digests = Digests { header, data: true };
        // (blocks of the command, which of its data PDUs is damaged); MAXH2CDATA is 4096.
        for (blocks, damaged) in [(16, 0), (64, 0), (64, 3), (64, 7)] {
            let target = target(Limits { h2c_bytes: 4096, ..Limits::default() });
            let (_admin, mut io) = io_session(&target, options(digests));
            assert_eq!(write(&mut io, 0, vec![1; 64 * BLOCK]), Status::SUCCESS);
            let command = requests::blocks(io::WRITE, 0x1234, 1, 0, blocks);
            let len = blocks as usize * BLOCK;
            if blocks == 16 {
                io.host.send(command, Transfer::InCapsule(vec![2; len]));
                damage_last_byte(&mut io);
            } else {
                io.host.send(command, Transfer::OnRequest(vec![2; len]));
                // The R2T arrives and is answered; one of the answers is damaged on its way.
                damage_pdu(&mut io, damaged);
            }
            let events = io.events();
            let [HostEvent::Completed { completion, .. }] = &events[..] else { panic!("{events:?}") };
            assert_eq!(completion.status(), Status::TRANSIENT_TRANSPORT_ERROR);
            assert_eq!(completion.cid.get(), 0x1234);
            assert_eq!(read(&mut io, 0, 64), vec![1; 64 * BLOCK], "no block was written");
            // The host sends the command again, and it succeeds.
            assert_eq!(write(&mut io, 0, vec![2; len]), Status::SUCCESS);
            assert_eq!(read(&mut io, 0, blocks), vec![2; len]);
            assert_eq!(io.connection.stats().data_digest_errors, 1);
        }
    }
}

/// Damages the digest at the end of what the host sends next.
fn damage_last_byte(io: &mut Session) {
    let mut bytes = io.host.take_output();
    *bytes.last_mut().unwrap() ^= 1;
    io.host.send_raw(&bytes);
}

/// Lets the host answer an R2T, and flips one bit of data in the PDU `number` of the answer.
fn damage_pdu(io: &mut Session, number: usize) {
    io.exchange_until_data();
    let mut bytes = io.host.take_output();
    let mut start = 0;
    for _ in 0..number {
        start += u32::from_le_bytes(bytes[start + 4..start + 8].try_into().unwrap()) as usize;
    }
    bytes[start + 100] ^= 0x10;
    io.host.send_raw(&bytes);
}

#[test]
fn commands_have_their_effect() {
    let target = target(Limits::default());
    let (_admin, mut io) = io_session(&target, options(Digests { header: true, data: true }));
    assert_eq!(write(&mut io, 0, vec![5; 64 * BLOCK]), Status::SUCCESS);
    let compare = |cid| requests::blocks(io::COMPARE, cid, 1, 0, 8);
    assert_eq!(io.status(compare(900), Transfer::InCapsule(vec![5; 8 * BLOCK])), Status::SUCCESS);
    let mut other = vec![5; 8 * BLOCK];
    other[4095] = 6;
    assert_eq!(io.status(compare(901), Transfer::InCapsule(other)), Status::COMPARE_FAILURE);
    assert_eq!(io.status(requests::blocks(io::WRITE_ZEROES, 902, 1, 1, 3), Transfer::None), Status::SUCCESS);
    assert_eq!(read(&mut io, 0, 5), [vec![5; BLOCK], vec![0; 3 * BLOCK], vec![5; BLOCK]].concat());
    assert_eq!(io.status(requests::blocks(io::VERIFY, 903, 1, 0, 64), Transfer::None), Status::SUCCESS);
    let flush = telpher_nvmf::command::Submission::new(io::FLUSH, 904, 1);
    assert_eq!(io.status(flush, Transfer::None), Status::SUCCESS);
    let (command, mut list) = requests::deallocate(905, 1, &[(8, 8), (32, 1)]);
    // Linux sends a page, whatever the number of ranges.
    list.resize(4096, 0xee);
    assert_eq!(io.status(command, Transfer::InCapsule(list)), Status::SUCCESS);
    assert_eq!(read(&mut io, 7, 10), [vec![5; BLOCK], vec![0; 8 * BLOCK], vec![5; BLOCK]].concat());
    assert_eq!(read(&mut io, 32, 1), vec![0; BLOCK]);
    assert_eq!(write(&mut io, 100, (0..2048_u32).flat_map(|n| n.to_le_bytes()).collect()), Status::SUCCESS);
    let (command, list) = requests::copy(906, 1, 300, &[(104, 4), (100, 2)]);
    assert_eq!(io.status(command, Transfer::InCapsule(list)), Status::SUCCESS);
    assert_eq!(read(&mut io, 300, 6), [read(&mut io, 104, 4), read(&mut io, 100, 2)].concat());
}

#[test]
fn invalid_commands_get_their_status_and_the_connection_is_kept() {
    let target = target(Limits::default());
    let read_only = telpher_nvmf::namespace::NamespaceOptions {
        is_read_only: true,
        ..namespace(3, 4096, Arc::new(NullStorage::new(1 << 30)))
    };
    target.add_namespace(NQN, read_only).unwrap();
    let (_admin, mut io) = io_session(&target, HostOptions::default());
    let (invalid, range) = (Status::INVALID_FIELD.do_not_retry(), Status::LBA_RANGE.do_not_retry());
    let (length, nsid) = (Status::DATA_LENGTH.do_not_retry(), Status::INVALID_NAMESPACE.do_not_retry());
    let cases = [
        // opcode, namespace, first block, blocks, bytes to the host, status
        (io::READ, 1, 2047, 2, 1024, range),
        (io::READ, 1, 2048, 1, 512, range),
        (io::READ, 1, u64::MAX, 1, 512, range),
        (io::READ, 1, u64::MAX - 1, 65536, 512, range),
        (io::READ, 1, 0, 2, 512, length),
        (io::READ, 1, 0, 1, 513, length),
        (io::READ, 1, 0, 1, u32::MAX, length),
        (io::READ, 1, 0, 257, 257 * 512, invalid),
        (io::READ, 0, 0, 1, 512, nsid),
        (io::READ, 2, 0, 1, 512, nsid),
        (io::READ, u32::MAX, 0, 1, 512, nsid),
        (io::READ, u32::MAX - 1, 0, 1, 512, nsid),
        (io::WRITE_ZEROES, 1, 2000, 49, 0, range),
        (io::WRITE_ZEROES, 3, 0, 1, 0, Status::WRITE_PROTECTED.do_not_retry()),
        (io::VERIFY, 1, 0, 65536, 0, range),
        (io::FLUSH, u32::MAX, 0, 1, 0, nsid),
    ];
    for (opcode, nsid, first, blocks, bytes, expected) in cases {
        let command = requests::blocks(opcode, io.cid(), nsid, first, blocks);
        let transfer = if bytes > 0 { Transfer::ToHost(bytes) } else { Transfer::None };
        assert_eq!(io.status(command, transfer), expected, "{opcode} {nsid} {first} {blocks} {bytes}");
    }
    // Writes that are invalid are refused before their data is asked for.
    for (nsid, first, expected) in [(1, 2000, range), (3, 0, Status::WRITE_PROTECTED.do_not_retry())] {
        let command = requests::blocks(io::WRITE, io.cid(), nsid, first, if nsid == 3 { 16 } else { 128 });
        assert_eq!(io.status(command, Transfer::OnRequest(vec![0; 65536])), expected);
    }
    assert_eq!(io.connection.stats().r2ts, 0);
    for opcode in 0..=255 {
        let is_served = [0, 1, 2, 5, 8, 9, 0x0c, 0x19, 0x7f].contains(&opcode);
        if !is_served {
            let command = requests::blocks(opcode, io.cid(), 1, 0, 1);
            assert_eq!(io.status(command, Transfer::None), Status::INVALID_OPCODE.do_not_retry(), "{opcode:#x}");
        }
    }
    for fused in 1..=3 {
        let mut command = requests::blocks(io::READ, io.cid(), 1, 0, 1);
        command.flags |= fused;
        assert_eq!(io.status(command, Transfer::ToHost(512)), invalid);
    }
    let mut command = requests::blocks(io::READ, io.cid(), 1, 0, 1);
    command.flags = 0;
    assert_eq!(io.status(command, Transfer::ToHost(512)), invalid, "PSDT 0");
    let (command, list) = requests::copy(io.cid(), 1, 0, &[(0, 1); 17]);
    assert_eq!(io.status(command, Transfer::InCapsule(list)), Status::COPY_LIMIT.do_not_retry());
    let (command, list) = requests::copy(io.cid(), 1, 0, &[(0, 257)]);
    assert_eq!(io.status(command, Transfer::InCapsule(list)), Status::COPY_LIMIT.do_not_retry());
    let (command, list) = requests::copy(io.cid(), 1, 2040, &[(0, 9)]);
    assert_eq!(io.status(command, Transfer::InCapsule(list)), range);
    assert_eq!(read(&mut io, 0, 1), vec![0; BLOCK]);
}

#[test]
fn a_namespace_may_shrink_or_go_away_between_commands() {
    let target = target(Limits::default());
    let (_admin, mut io) = io_session(&target, HostOptions::default());
    let command = requests::blocks(io::WRITE, 9, 1, 2000, 32);
    io.host.send(command, Transfer::OnRequest(vec![1; 32 * BLOCK]));
    io.exchange_until_data();
    target.resize_namespace(NQN, 1, 512 << 10).unwrap();
    let events = io.events();
    let [HostEvent::Completed { completion, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(completion.status(), Status::LBA_RANGE);
    target.remove_namespace(NQN, 1).unwrap();
    let command = requests::blocks(io::READ, 10, 1, 0, 1);
    assert_eq!(io.status(command, Transfer::ToHost(512)), Status::INVALID_NAMESPACE.do_not_retry());
}
