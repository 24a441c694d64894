//! The memory of commands whose data comes in small parts, or whose backend answers later.

use crate::session::{NQN, Session, io_session, namespace, options, target};
use crate::storage::{LateStorage, NSID, done};
use std::sync::Arc;
use telpher_nvmf::command::io;
use telpher_nvmf::digest::Digests;
use telpher_nvmf::initiator::{HostEvent, HostOptions, Transfer, requests};
use telpher_nvmf::limits::Limits;
use telpher_nvmf::namespace::NamespaceOptions;
use telpher_nvmf::protection::Protection;
use telpher_nvmf::status::Status;
use telpher_nvmf::storage::StorageRequest;

/// An I/O queue, and a backend of 1 MiB for namespace 2.
fn start(limits: Limits, options: HostOptions, protection: Option<Protection>) -> (Session, Session, Arc<LateStorage>) {
    let target = target(limits);
    let storage = Arc::new(LateStorage::new());
    let plain = namespace(NSID, 512, Arc::<LateStorage>::clone(&storage));
    target.add_namespace(NQN, NamespaceOptions { protection, ..plain }).unwrap();
    let (admin, io) = io_session(&target, options);
    (admin, io, storage)
}

/// The number of commands that have completed, each with this status.
fn completed(io: &mut Session, expected: Status) -> usize {
    let events = io.events();
    for event in &events {
        let HostEvent::Completed { completion, .. } = event else { panic!("{event:?}") };
        assert_eq!(completion.status(), expected);
    }
    events.len()
}

/// A host that sends many commands gets no more memory while the backend reads than for replies that it does not read.
#[test]
fn the_buffers_of_commands_at_a_late_backend_count_as_replies() {
    let protection = Some(Protection::default());
    // Each command uses 8 KiB, and 64 KiB may wait. Protected blocks are in a second buffer without their tuples.
    let cases = [
        (io::READ, None, 8),
        (io::VERIFY, None, 8),
        (io::COMPARE, None, 8),
        (io::COPY, None, 8),
        (io::READ, protection, 4),
        (io::VERIFY, protection, 4),
        (io::COMPARE, protection, 4),
        (io::COPY, protection, 4),
        (io::WRITE, protection, 8),
    ];
    for (opcode, protection, most) in cases {
        let limits = Limits { send_bytes: 64 << 10, ..Limits::default() };
        let (_admin, mut io, storage) = start(limits, HostOptions::default(), protection);
        for cid in 0..40 {
            let first = u64::from(cid) * 16;
            let blocks = requests::blocks(opcode, cid, NSID, first, 16);
            let (command, transfer) = match opcode {
                io::READ => (blocks, Transfer::ToHost(8192)),
                io::COMPARE | io::WRITE => (blocks, Transfer::InCapsule(vec![0; 8192])),
                io::COPY => {
                    let (copy, list) =
                        requests::copy(cid, NSID, 1000 + u64::from(cid) * 18, &[(first, 16), (first + 3, 2)]);
                    (copy, Transfer::InCapsule(list))
                }
                _ => (blocks, Transfer::None),
            };
            io.host.send(command, transfer);
        }
        let (mut ended, mut longest) = (0, 0);
        loop {
            ended += completed(&mut io, Status::SUCCESS);
            let waiting = storage.take();
            if waiting.is_empty() {
                break;
            }
            longest = longest.max(waiting.len());
            for (id, request) in waiting {
                let result = storage.result(id, request);
                done(&mut io, id, result);
            }
        }
        assert_eq!((longest, ended), (most, 40), "{opcode:#x} {protection:?}");
    }
}

/// A host may send one byte in each H2CData, and answer its R2Ts in turns. The parts are joined: in memory of their own
/// they would take many times their size.
#[test]
fn small_parts_of_the_data_of_a_write_are_joined() {
    for digests in Digests::ALL {
        let limits = Limits { r2t_bytes: 4096, ..Limits::default() };
        let (_admin, mut io, storage) = start(limits, HostOptions { most_r2ts: 2, ..options(digests) }, None);
        let data: Vec<u8> = (0..8192_u32).map(|at| (at / 3).to_le_bytes()[0]).collect();
        io.host.send(requests::blocks(io::WRITE, 1, NSID, 0, 16), Transfer::OnRequest(data.clone()));
        io.exchange_until_data();
        let _ = io.host.take_output();
        assert_eq!(io.connection.stats().r2ts, 2);
        for at in 0..4096 {
            for (tag, offset) in [(1, at), (2, 4096 + at)] {
                io.host.send_data(1, tag, offset, &data[offset..=offset], at == 4095);
            }
        }
        assert_eq!(io.events(), []);
        let mut waiting = storage.take();
        let Some((id, StorageRequest::Write { start: 0, pieces, force })) = waiting.pop() else { panic!("a write") };
        assert_eq!(pieces.len(), 2);
        let result = storage.result(id, StorageRequest::Write { start: 0, pieces, force });
        done(&mut io, id, result);
        assert_eq!(completed(&mut io, Status::SUCCESS), 1);
        let written = storage.result(id, StorageRequest::Read { start: 0, len: 8192 }).unwrap();
        assert!(written.iter().flat_map(|segment| segment.as_slice()).eq(&data));
    }
}

#[test]
fn a_wrong_digest_of_a_small_part_fails_the_write() {
    let digests = Digests { header: false, data: true };
    let (_admin, mut io, storage) = start(Limits::default(), options(digests), None);
    io.host.send(requests::blocks(io::WRITE, 1, NSID, 0, 64), Transfer::OnRequest(vec![1; 32768]));
    io.exchange_until_data();
    let _ = io.host.take_output();
    io.host.send_data(1, 1, 0, &[1; 100], false);
    let mut bytes = io.host.take_output();
    *bytes.last_mut().unwrap() ^= 1;
    io.host.send_raw(&bytes);
    io.host.send_data(1, 1, 100, &[1; 32768 - 100], true);
    assert_eq!(completed(&mut io, Status::TRANSIENT_TRANSPORT_ERROR), 1);
    assert_eq!((storage.take().len(), io.connection.stats().data_digest_errors), (0, 1));
}
