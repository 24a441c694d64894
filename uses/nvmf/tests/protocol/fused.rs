//! Fused pairs of Compare and Write.

use crate::session::{NQN, Session, admin_session, io_queue, io_session, namespace, options, target};
use crate::storage::{self, NSID, done};
use std::collections::BTreeMap;
use std::sync::Arc;
use telpher_nvmf::command::{FUSED_FIRST, FUSED_SECOND, Submission, io};
use telpher_nvmf::digest::Digests;
use telpher_nvmf::initiator::{HostEvent, HostOptions, Transfer, requests};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::memory::MemoryStorage;
use telpher_nvmf::namespace::NamespaceOptions;
use telpher_nvmf::protection::Protection;
use telpher_nvmf::status::Status;
use telpher_nvmf::storage::StorageRequest;

const BLOCK: usize = 512;

/// A command of a pair.
fn half(fused: u8, opcode: u8, cid: u16, nsid: u32, first: u64, blocks: u32) -> Submission {
    let mut command = requests::blocks(opcode, cid, nsid, first, blocks);
    command.flags |= fused;
    command
}

fn compare(cid: u16, nsid: u32, first: u64, blocks: u32) -> Submission {
    half(FUSED_FIRST, io::COMPARE, cid, nsid, first, blocks)
}

fn write(cid: u16, nsid: u32, first: u64, blocks: u32) -> Submission {
    half(FUSED_SECOND, io::WRITE, cid, nsid, first, blocks)
}

fn data(byte: u8, blocks: u32) -> Transfer {
    let data = vec![byte; blocks as usize * BLOCK];
    if data.len() <= 8192 { Transfer::InCapsule(data) } else { Transfer::OnRequest(data) }
}

/// The statuses of all commands that complete now, by their identifiers.
fn statuses(session: &mut Session) -> BTreeMap<u16, Status> {
    let completed = session.events().into_iter().map(|event| match event {
        HostEvent::Completed { completion, .. } => (completion.cid.get(), completion.status()),
        other => panic!("{other:?}"),
    });
    completed.collect()
}

fn pair(session: &mut Session, nsid: u32, first: u64, blocks: u32, bytes: (u8, u8)) -> (Status, Status) {
    let (one, two) = (session.cid(), session.cid());
    session.host.send(compare(one, nsid, first, blocks), data(bytes.0, blocks));
    session.host.send(write(two, nsid, first, blocks), data(bytes.1, blocks));
    let seen = statuses(session);
    assert_eq!((seen.len(), session.connection.open_commands()), (2, 0));
    (seen[&one], seen[&two])
}

fn read(session: &mut Session, nsid: u32, first: u64, blocks: u32) -> Vec<u8> {
    let command = requests::blocks(io::READ, session.cid(), nsid, first, blocks);
    session.ok(command, Transfer::ToHost(blocks * 512)).1
}

/// In memory, in memory with tuples; data in the capsule and by R2T; with and without digests.
#[test]
fn the_write_is_executed_only_if_the_data_is_equal() {
    for digests in Digests::ALL {
        let target = target(Limits { r2t_bytes: 4096, ..Limits::default() });
        let protection = Some(Protection::default());
        let plain = namespace(NSID, 512, Arc::new(MemoryStorage::new(1 << 20)));
        target.add_namespace(NQN, NamespaceOptions { protection, ..plain }).unwrap();
        let (_admin, mut io) = io_session(&target, options(digests));
        for (nsid, blocks) in [(1, 1), (1, 40), (NSID, 1), (NSID, 40)] {
            let bytes = blocks as usize * BLOCK;
            assert_eq!(pair(&mut io, nsid, 100, blocks, (0, 1)), (Status::SUCCESS, Status::SUCCESS));
            assert_eq!(read(&mut io, nsid, 100, blocks), vec![1; bytes]);
            let failed = (Status::COMPARE_FAILURE, Status::FAILED_FUSED);
            assert_eq!(pair(&mut io, nsid, 100, blocks, (0, 2)), failed);
            assert_eq!(read(&mut io, nsid, 100, blocks), vec![1; bytes]);
            assert_eq!(pair(&mut io, nsid, 100, blocks, (1, 0)), (Status::SUCCESS, Status::SUCCESS));
        }
    }
}

/// The budget of a connection is as small as it may be, and the first command waits with its data for the second one.
#[test]
fn a_pair_of_whole_transfers_fits_into_the_smallest_receive_budget() {
    let target = target(Limits { receive_bytes: 256 << 10, ..Limits::default() });
    let (_admin, mut io) = io_session(&target, HostOptions::default());
    assert_eq!(pair(&mut io, 1, 0, 256, (0, 1)), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(read(&mut io, 1, 0, 256), vec![1; 256 * BLOCK]);
}

#[test]
fn identify_announces_compare_and_write() {
    let target = target(Limits::default());
    let (mut admin, _) = admin_session(&target, HostOptions::default());
    let (command, transfer) = requests::identify(admin.cid(), 1, 0);
    let (_, data) = admin.ok(command, transfer);
    // FUSES, and ACWU: 128 KiB in blocks of 4096 bytes, less one.
    assert_eq!((&data[522..524], &data[532..534]), (&[1, 0][..], &[31, 0][..]));
}

#[test]
fn a_half_without_the_other_is_aborted() {
    let target = target(Limits::default());
    let (_admin, mut io) = io_session(&target, options(Digests { header: true, data: true }));
    let (missing, success) = (Status::MISSING_FUSED, Status::SUCCESS);
    // A second command alone.
    io.host.send(write(1, 1, 0, 1), data(1, 1));
    assert_eq!(statuses(&mut io), BTreeMap::from([(1, missing)]));
    // A first command alone waits for the next command, which is executed.
    io.host.send(compare(2, 1, 0, 1), data(0, 1));
    assert_eq!(statuses(&mut io), BTreeMap::new());
    io.host.send(requests::blocks(io::READ, 3, 1, 0, 1), Transfer::ToHost(512));
    assert_eq!(statuses(&mut io), BTreeMap::from([(2, missing), (3, success)]));
    // The second half is not the next command.
    io.host.send(compare(4, 1, 0, 1), data(0, 1));
    io.host.send(Submission::new(io::FLUSH, 5, 1), Transfer::None);
    io.host.send(write(6, 1, 0, 1), data(9, 1));
    assert_eq!(statuses(&mut io), BTreeMap::from([(4, missing), (5, success), (6, missing)]));
    // Two first commands: the later one has the second one. Crossed: the second one comes before the first.
    io.host.send(write(7, 1, 0, 1), data(9, 1));
    io.host.send(compare(8, 1, 0, 1), data(9, 1));
    io.host.send(compare(9, 1, 0, 32), data(0, 32));
    io.host.send(write(10, 1, 0, 32), data(3, 32));
    let expected = BTreeMap::from([(7, missing), (8, missing), (9, success), (10, success)]);
    assert_eq!(statuses(&mut io), expected);
    assert_eq!(read(&mut io, 1, 0, 32), vec![3; 32 * BLOCK]);
    // A pair that is split over two queues.
    let controller = io.connection.queue().unwrap().controller.id();
    let mut other = io_queue(&target, HostOptions::default(), controller, 2, true);
    io.host.send(compare(11, 1, 0, 1), data(3, 1));
    assert_eq!(statuses(&mut io), BTreeMap::new());
    other.host.send(write(12, 1, 0, 1), data(9, 1));
    assert_eq!(statuses(&mut other), BTreeMap::from([(12, missing)]));
    assert_eq!(read(&mut other, 1, 0, 1), vec![3; BLOCK]);
}

#[test]
fn halves_for_different_blocks_are_invalid() {
    let target = target(Limits::default());
    target.add_namespace(NQN, namespace(NSID, 512, Arc::new(MemoryStorage::new(1 << 20)))).unwrap();
    let (_admin, mut io) = io_session(&target, HostOptions::default());
    let invalid = Status::INVALID_FIELD.do_not_retry();
    for second in [write(2, 1, 1, 1), write(2, 1, 0, 2), write(2, NSID, 0, 1)] {
        let blocks = second.sgl_length.get().max(second.dword(12) + 1);
        io.host.send(compare(1, 1, 0, 1), data(0, 1));
        io.host.send(second, data(7, blocks));
        assert_eq!(statuses(&mut io), BTreeMap::from([(1, invalid), (2, invalid)]), "{second:?}");
    }
    // The first command asked for data by R2T: it ends when that has come.
    io.host.send(compare(1, 1, 0, 64), data(0, 64));
    io.host.send(write(2, 1, 1, 64), data(7, 64));
    assert_eq!(statuses(&mut io), BTreeMap::from([(1, invalid), (2, invalid)]));
    assert_eq!((read(&mut io, 1, 0, 65), read(&mut io, NSID, 0, 1)), (vec![0; 65 * BLOCK], vec![0; BLOCK]));
}

#[test]
fn only_compare_and_write_are_a_pair_and_a_failed_half_fails_the_other() {
    let target = target(Limits::default());
    let (_admin, mut io) = io_session(&target, HostOptions::default());
    let (invalid, range) = (Status::INVALID_FIELD.do_not_retry(), Status::LBA_RANGE.do_not_retry());
    // The first command is refused.
    io.host.send(half(FUSED_FIRST, io::READ, 1, 1, 0, 1), Transfer::ToHost(512));
    io.host.send(write(2, 1, 0, 1), data(7, 1));
    assert_eq!(statuses(&mut io), BTreeMap::from([(1, invalid), (2, Status::FAILED_FUSED)]));
    io.host.send(compare(1, 1, 2047, 2), data(0, 2));
    io.host.send(write(2, 1, 2047, 2), data(7, 2));
    assert_eq!(statuses(&mut io), BTreeMap::from([(1, range), (2, range)]));
    // The second command is refused.
    io.host.send(compare(1, 1, 0, 1), data(0, 1));
    io.host.send(write(2, 1, 2048, 1), data(7, 1));
    assert_eq!(statuses(&mut io), BTreeMap::from([(1, Status::FAILED_FUSED), (2, range)]));
    io.host.send(compare(1, 1, 0, 1), data(0, 1));
    io.host.send(half(FUSED_SECOND, io::WRITE_ZEROES, 2, 1, 0, 1), Transfer::None);
    assert_eq!(statuses(&mut io), BTreeMap::from([(1, Status::FAILED_FUSED), (2, invalid)]));
    io.host.send(half(3, io::COMPARE, 1, 1, 0, 1), data(0, 1));
    assert_eq!(statuses(&mut io), BTreeMap::from([(1, invalid)]));
    assert_eq!(read(&mut io, 1, 0, 1), vec![0; BLOCK]);
    assert_eq!(pair(&mut io, 1, 0, 1, (0, 5)), (Status::SUCCESS, Status::SUCCESS));
}

/// Data of either half is damaged on its way: both end, and nothing is executed.
#[test]
fn a_half_with_a_wrong_digest_fails_the_other() {
    for (damaged, blocks) in [(1, 1), (2, 1), (1, 64), (2, 64)] {
        let target = target(Limits::default());
        let (_admin, mut io) = io_session(&target, options(Digests { header: false, data: true }));
        io.host.send(compare(1, 1, 0, blocks), data(0, blocks));
        io.host.send(write(2, 1, 0, blocks), data(7, blocks));
        if blocks > 1 {
            io.exchange_until_data();
        }
        let mut bytes = io.host.take_output();
        // The last byte of one of the two equal halves of the stream is a byte of a data digest.
        let at = bytes.len() / 2 * damaged - 1;
        bytes[at] ^= 1;
        io.host.send_raw(&bytes);
        let (transport, failed) = (Status::TRANSIENT_TRANSPORT_ERROR, Status::FAILED_FUSED);
        let expected = if damaged == 1 { [(1, transport), (2, failed)] } else { [(1, failed), (2, transport)] };
        assert_eq!(statuses(&mut io), BTreeMap::from(expected));
        assert_eq!(io.connection.open_commands(), 0);
        assert_eq!(read(&mut io, 1, 0, 64), vec![0; 64 * BLOCK]);
    }
}

/// While a pair is executed, commands of other connections on its blocks wait, and others do not.
#[test]
fn a_pair_excludes_the_commands_of_all_connections() {
    let (_admin, mut one, backend) = storage::start(Digests::default());
    let controller = one.connection.queue().unwrap().controller.id();
    let mut two = {
        let target = one.target();
        io_queue(&target, HostOptions::default(), controller, 2, true)
    };
    // A write that began before the pair.
    two.host.send(requests::blocks(io::WRITE, 1, NSID, 4, 1), data(4, 1));
    assert_eq!(statuses(&mut two), BTreeMap::new());
    one.host.send(compare(1, NSID, 4, 2), data(0, 2));
    one.host.send(write(2, NSID, 4, 2), data(9, 2));
    assert_eq!(statuses(&mut one), BTreeMap::new());
    let waiting = backend.take();
    assert!(matches!(waiting[..], [(_, StorageRequest::Write { .. })]), "the pair waits for the write");
    // Commands that come later: one beside the pair, and one of each kind on its blocks.
    let (copy, list) = requests::copy(7, NSID, 200, &[(5, 1)]);
    let (deallocate, ranges) = requests::deallocate(8, NSID, &[(0, 1), (4, 1)]);
    let on_its_blocks = [
        (requests::blocks(io::READ, 3, NSID, 0, 5), Transfer::ToHost(5 * 512)),
        (requests::blocks(io::WRITE, 4, NSID, 5, 1), data(5, 1)),
        (requests::blocks(io::COMPARE, 5, NSID, 5, 1), data(5, 1)),
        (requests::blocks(io::WRITE_ZEROES, 6, NSID, 5, 9), Transfer::None),
        (copy, Transfer::InCapsule(list)),
        (deallocate, Transfer::InCapsule(ranges)),
        (requests::blocks(io::VERIFY, 9, NSID, 4, 1), Transfer::None),
        (compare(10, NSID, 5, 1), data(9, 1)),
        (write(11, NSID, 5, 1), data(10, 1)),
    ];
    for (command, transfer) in on_its_blocks {
        two.host.send(command, transfer);
    }
    two.host.send(requests::blocks(io::WRITE, 12, NSID, 6, 1), data(6, 1));
    assert_eq!(statuses(&mut two), BTreeMap::new());
    let beside = backend.take();
    assert!(matches!(beside[..], [(_, StorageRequest::Write { start: 3072, .. })]), "{beside:?}");
    for (id, request) in beside.into_iter().chain(waiting) {
        let result = backend.result(id, request);
        done(&mut two, id, result);
    }
    let expected = BTreeMap::from([(1, Status::SUCCESS), (12, Status::SUCCESS)]);
    assert_eq!(statuses(&mut two), expected);
    // The pair compares now, and the write that was before it makes it fail.
    assert_eq!(statuses(&mut one), BTreeMap::new());
    let compares = backend.take();
    assert!(matches!(compares[..], [(_, StorageRequest::Read { start: 2048, len: 1024 })]), "{compares:?}");
    assert_eq!(statuses(&mut two), BTreeMap::new());
    assert_eq!(backend.take().len(), 0);
    for (id, request) in compares {
        let result = backend.result(id, request);
        done(&mut one, id, result);
    }
    let expected = BTreeMap::from([(1, Status::COMPARE_FAILURE), (2, Status::FAILED_FUSED)]);
    assert_eq!(statuses(&mut one), expected);
    // The others go on in their order; the second pair waits for those before it.
    let mut seen = BTreeMap::new();
    let mut rounds = 0;
    loop {
        seen.extend(statuses(&mut two));
        let waiting = backend.take();
        if waiting.is_empty() {
            break;
        }
        rounds += 1;
        for (id, request) in waiting {
            let result = backend.result(id, request);
            done(&mut two, id, result);
        }
    }
    assert!(rounds > 2 && seen.len() == 9, "{rounds} {seen:?}");
    assert_eq!((two.connection.open_commands(), one.connection.open_commands()), (0, 0));
}

/// A pair whose connection ends while the backend writes keeps its blocks until the backend has answered: otherwise
/// another pair could compare first and be overwritten afterwards.
#[test]
fn the_write_of_a_pair_is_not_overtaken_after_its_connection_has_ended() {
    for is_dropped in [false, true] {
        let (_admin, mut one, backend) = storage::start(Digests::default());
        let target = one.target();
        let controller = one.connection.queue().unwrap().controller.id();
        let mut two = io_queue(&target, HostOptions::default(), controller, 2, true);
        one.host.send(compare(1, NSID, 0, 1), data(0, 1));
        one.host.send(write(2, NSID, 0, 1), data(1, 1));
        assert_eq!(statuses(&mut one), BTreeMap::new());
        for (id, request) in backend.take() {
            let result = backend.result(id, request);
            done(&mut one, id, result);
        }
        let writes = backend.take();
        assert!(matches!(writes[..], [(_, StorageRequest::Write { .. })]));
        let mut ended = None;
        if is_dropped {
            drop(one);
        } else {
            one.host.send_raw(&[0x55; 8]);
            assert!(matches!(one.events()[..], [HostEvent::Terminated { .. }]));
            ended = Some(one);
        }
        two.host.send(compare(1, NSID, 0, 1), data(0, 1));
        two.host.send(write(2, NSID, 0, 1), data(2, 1));
        assert_eq!(statuses(&mut two), BTreeMap::new());
        assert_eq!(backend.take().len(), 0);
        for (id, request) in writes {
            let result = backend.result(id, request);
            match &mut ended {
                Some(one) => done(one, id, result),
                None => assert!(!target.loops().answer(id, result), "no loop has the connection"),
            }
        }
        assert_eq!(statuses(&mut two), BTreeMap::new());
        for (id, request) in backend.take() {
            let result = backend.result(id, request);
            done(&mut two, id, result);
        }
        let expected = BTreeMap::from([(1, Status::COMPARE_FAILURE), (2, Status::FAILED_FUSED)]);
        assert_eq!(statuses(&mut two), expected);
    }
}

/// Errors of the backend reach the half that they belong to.
#[test]
fn a_failing_backend_fails_the_half_that_it_executes() {
    let (_admin, mut io, backend) = storage::start(Digests { header: false, data: true });
    for (failing, expected) in [
        (1, [Status::READ_ERROR, Status::FAILED_FUSED]),
        (2, [Status::SUCCESS, Status::READ_ERROR]),
        (3, [Status::SUCCESS, Status::SUCCESS]),
    ] {
        io.host.send(compare(1, NSID, 0, 1), data(0, 1));
        io.host.send(write(2, NSID, 0, 1), data(3, 1));
        for request in 1..=2 {
            assert_eq!(statuses(&mut io), BTreeMap::new());
            for (id, waiting) in backend.take() {
                let failed = if request == failing { Some(Status::READ_ERROR) } else { None };
                let result = failed.map_or_else(|| backend.result(id, waiting), Err);
                done(&mut io, id, result);
            }
            if request == failing {
                break;
            }
        }
        assert_eq!(statuses(&mut io), BTreeMap::from([(1, expected[0]), (2, expected[1])]));
    }
}

/// A server that stops takes no more commands, so it does not wait for the second command of a pair.
#[test]
fn a_connection_finishes_without_the_second_half() {
    let target = target(Limits::default());
    let (_admin, mut io) = io_session(&target, HostOptions::default());
    io.host.send(compare(1, 1, 0, 1), data(0, 1));
    assert_eq!(statuses(&mut io), BTreeMap::new());
    io.connection.finish();
    assert_eq!((io.connection.is_finished(), io.connection.open_commands()), (true, 1));
    io.host.send(write(2, 1, 0, 1), data(7, 1));
    assert_eq!(statuses(&mut io), BTreeMap::new());
    // A pair that was accepted completes.
    let (_other_admin, mut io) = io_session(&target, HostOptions::default());
    io.host.send(compare(1, 1, 0, 64), data(0, 64));
    io.host.send(write(2, 1, 0, 64), data(7, 64));
    io.exchange_until_data();
    io.connection.finish();
    assert!(!io.connection.is_finished());
    let success = Status::SUCCESS;
    assert_eq!(statuses(&mut io), BTreeMap::from([(1, success), (2, success)]));
    assert!(io.connection.is_finished());
}
