//! Damaged, delayed, swapped and missing PDUs between the crate's initiator and its server.
//!
//! With digests, each damage is noticed and nothing wrong is stored. Without them, damaged data passes: this shows that
//! the tests can fail.
#![allow(clippy::cast_possible_truncation, reason = "numbers of tests are small")]

#[path = "../common/engines.rs"]
mod engines;
#[path = "../common/host.rs"]
#[allow(dead_code, reason = "other tests use all of it")]
mod host;
#[path = "../common/proxy.rs"]
mod proxy;
#[path = "../common/serving.rs"]
#[allow(dead_code, reason = "other tests use all of it")]
mod serving;
#[path = "../../../../ci/skip.rs"]
mod skip;

use engines::{engine, with_each_engine};
use host::{Ended, Host};
use proxy::{Action, Fault, FlippedBit, Proxy, Sender};
use serving::{NQN, Serving};
use std::sync::Arc;
use std::time::Duration;
use telpher_nvmf::command::io;
use telpher_nvmf::digest::Digests;
use telpher_nvmf::initiator::{HostError, HostEvent, Transfer, requests};
use telpher_nvmf::pdu::{FatalError, Kind};
use telpher_nvmf::status::Status;
use telpher_nvmf::{Limits, MemoryStorage};

const BLOCK: u32 = 4096;
/// The blocks of a write by R2T. With this MAXH2CDATA, each block has its own H2CData.
const BLOCKS: u32 = 4;
const BOTH: Digests = Digests { header: true, data: true };

/// A server, a proxy in front of it, and an admin queue that does not use the proxy.
struct Setup {
    serving: Serving,
    proxy: Proxy,
    digests: Digests,
    _admin: Host,
    controller: u16,
    next_queue: u16,
}

impl Setup {
    fn new(digests: Digests) -> Setup {
        let limits = Limits { h2c_bytes: BLOCK, io_queues: 1000, ..Limits::default() };
        let target = serving::target(limits, &[Arc::new(MemoryStorage::new(8 << 20))]);
        let serving = Serving::with(&target, "127.0.0.1:0".parse().expect("an address"), engine());
        let proxy = Proxy::start(serving.address);
        let (admin, controller) = Host::admin(serving.address, NQN, digests);
        Setup { serving, proxy, digests, _admin: admin, controller, next_queue: 1 }
    }

    /// A new I/O queue through the proxy.
    fn queue(&mut self) -> Host {
        self.next_queue += 1;
        Host::queue(self.proxy.address, NQN, self.digests, self.controller, self.next_queue - 1)
    }

    /// What the namespace holds, read past the proxy.
    fn stored(&mut self, blocks: u32) -> Vec<u8> {
        self.next_queue += 1;
        let queue = self.next_queue - 1;
        let mut host = Host::queue(self.serving.address, NQN, self.digests, self.controller, queue);
        host.ok(requests::blocks(io::READ, 1, 1, 0, blocks), Transfer::ToHost(blocks * BLOCK)).1
    }
}

fn write(cid: u16, fill: u8) -> (telpher_nvmf::command::Submission, Transfer) {
    (requests::blocks(io::WRITE, cid, 1, 0, BLOCKS), Transfer::OnRequest(vec![fill; (BLOCKS * BLOCK) as usize]))
}

/// The number of bits in which two texts of the same length differ.
fn different_bits(one: &[u8], other: &[u8]) -> u32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(one, other)| (one ^ other).count_ones()).sum()
}

fn the_log_has_an_entry_for_each_pdu() {
    let mut setup = Setup::new(BOTH);
    let mut host = setup.queue();
    let (command, data) = write(9, 1);
    host.ok(command, data);
    let log = setup.proxy.log();
    let found: Vec<_> = log.iter().map(|entry| (entry.sender, entry.kind.unwrap(), entry.cid)).collect();
    let (host, target) = (Sender::Host, Sender::Target);
    let mut expected = vec![
        (host, Kind::IcReq, None),
        (target, Kind::IcResp, None),
        (host, Kind::CapsuleCmd, Some(1)),
        (target, Kind::CapsuleResp, Some(1)),
        (host, Kind::CapsuleCmd, Some(9)),
        (target, Kind::R2t, Some(9)),
    ];
    expected.extend([(host, Kind::H2cData, Some(9)); BLOCKS as usize]);
    expected.push((target, Kind::CapsuleResp, Some(9)));
    assert_eq!(found, expected);
    let last = log.last().unwrap();
    assert_eq!((last.status, last.len, last.has_fault), (Some(Status::SUCCESS), 28, false));
}

fn damaged_reads_are_noticed_with_data_digests() {
    for digests in Digests::ALL {
        let mut setup = Setup::new(digests);
        let mut host = setup.queue();
        let (command, data) = write(1, 0x5a);
        host.ok(command, data);
        setup.proxy.inject(Some(Fault { most: 1, ..Fault::each(Kind::C2hData, Action::Flip(FlippedBit::Data(5000))) }));
        let read = requests::blocks(io::READ, 2, 1, 0, BLOCKS);
        let damaged = host.execute(read, Transfer::ToHost(BLOCKS * BLOCK)).unwrap();
        assert_eq!((damaged.completion.status(), damaged.is_intact), (Status::SUCCESS, !digests.data));
        assert_eq!(different_bits(&damaged.data, &[0x5a; (BLOCKS * BLOCK) as usize]), 1);
        assert_eq!(setup.proxy.faults(), 1);
        // The connection is kept, and the next read is right.
        assert!(host.ok(read, Transfer::ToHost(BLOCKS * BLOCK)).1.iter().all(|byte| *byte == 0x5a));
    }
}

fn damaged_writes_are_refused_with_data_digests() {
    for digests in Digests::ALL {
        let mut setup = Setup::new(digests);
        let mut host = setup.queue();
        let mut stored = vec![0; (BLOCKS * BLOCK) as usize];
        // In the capsule, and in each part of the data that an R2T asked for.
        for (kind, skip, cid) in [(Kind::CapsuleCmd, 0, 10)].into_iter().chain((0..BLOCKS).map(|skip| {
            let cid = 11 + skip as u16;
            (Kind::H2cData, skip, cid)
        })) {
            let in_capsule = kind == Kind::CapsuleCmd;
            let blocks = if in_capsule { 1 } else { BLOCKS };
            let fill = vec![cid as u8; (blocks * BLOCK) as usize];
            let command = requests::blocks(io::WRITE, cid, 1, 0, blocks);
            let data = fill.clone();
            let transfer =
                || if in_capsule { Transfer::InCapsule(data.clone()) } else { Transfer::OnRequest(data.clone()) };
            let fault = Fault::each(kind, Action::Flip(FlippedBit::Data(1234)));
            setup.proxy.inject(Some(Fault { skip, most: 1, least_data: BLOCK as usize, ..fault }));
            let status = host.execute(command, transfer()).unwrap().completion.status();
            assert_eq!(setup.proxy.faults(), 1);
            let now = setup.stored(BLOCKS);
            if digests.data {
                assert_eq!(status, Status::TRANSIENT_TRANSPORT_ERROR, "{kind:?} {skip}");
                assert!(now == stored, "{kind:?} {skip}: a refused write changes nothing");
                host.ok(command, transfer());
                stored[..fill.len()].copy_from_slice(&fill);
                assert!(setup.stored(BLOCKS) == stored, "{kind:?} {skip}: the repeated write is stored");
            } else {
                stored[..fill.len()].copy_from_slice(&fill);
                assert_eq!((status, different_bits(&now, &stored)), (Status::SUCCESS, 1), "{kind:?} {skip}");
                stored = now;
            }
        }
    }
}

fn damaged_headers_end_the_connection() {
    let mut setup = Setup::new(BOTH);
    for kind in [Kind::CapsuleCmd, Kind::H2cData, Kind::CapsuleResp, Kind::R2t, Kind::C2hData] {
        let from_host = matches!(kind, Kind::CapsuleCmd | Kind::H2cData);
        for byte in 8..usize::from(kind.header_len()) {
            let mut host = setup.queue();
            // Each PDU is damaged, not only one: the proxy may still have PDUs of the host before.
            setup.proxy.inject(Some(Fault::each(kind, Action::Flip(FlippedBit::Header(byte)))));
            if kind == Kind::C2hData {
                host.machine.send(requests::blocks(io::READ, 5, 1, 0, 1), Transfer::ToHost(BLOCK));
            } else {
                let (command, data) = write(5, 0xee);
                host.machine.send(command, data);
            }
            let event = host.event();
            setup.proxy.inject(None);
            if from_host {
                assert!(matches!(event, Ok(HostEvent::Terminated { fes: 3, .. })), "{kind:?} {byte}: {event:?}");
            } else {
                let Err(Ended::Violation(error)) = event else { panic!("{kind:?} {byte}: {event:?}") };
                assert!(matches!(error, HostError::Pdu(FatalError::HeaderDigest { .. })), "{kind:?} {byte}: {error}");
            }
        }
    }
    // A response was damaged after its write had been executed; all other writes were not executed.
    let stored = setup.stored(BLOCKS);
    assert!(stored.iter().all(|byte| *byte == stored[0]) && [0, 0xee].contains(&stored[0]));
}

fn a_connection_may_be_cut_before_any_pdu() {
    let mut setup = Setup::new(BOTH);
    let mut fill = 0;
    for (kind, count) in [(Kind::CapsuleCmd, 2), (Kind::R2t, 1), (Kind::H2cData, BLOCKS), (Kind::CapsuleResp, 2)] {
        for skip in 0..count {
            let mut host = setup.queue();
            setup.proxy.inject(Some(Fault { skip, most: 1, ..Fault::each(kind, Action::Cut) }));
            fill += 1;
            let mut events = Vec::new();
            for cid in [1, 2] {
                let (command, data) = write(cid, fill);
                host.machine.send(command, data);
                events.push(host.event());
                if events[events.len() - 1].is_err() {
                    break;
                }
            }
            assert!(matches!(events.last(), Some(Err(Ended::Closed))), "{kind:?} {skip}: {events:?}");
            setup.proxy.inject(None);
            // A write is stored as a whole or not at all.
            let stored = setup.stored(BLOCKS);
            assert!(stored.iter().all(|byte| *byte == stored[0]), "{kind:?} {skip}");
        }
    }
}

fn pdus_of_different_commands_may_be_swapped() {
    for digests in [Digests::default(), BOTH] {
        let mut setup = Setup::new(digests);
        let mut host = setup.queue();
        // Of reads, the response of a command is swapped with the data of the next command.
        for kind in [Kind::CapsuleCmd, Kind::R2t, Kind::H2cData, Kind::CapsuleResp] {
            setup.proxy.inject(Some(Fault::each(kind, Action::Swap)));
            // PDUs can be swapped if they arrive at the proxy together.
            for turn in 0..1000_u32 {
                for is_read in [false, true] {
                    for number in 0..24_u16 {
                        let opcode = if is_read { io::READ } else { io::WRITE };
                        let command = requests::blocks(opcode, number, 1, u64::from(number) * 4, BLOCKS);
                        let bytes = BLOCKS * BLOCK;
                        let data = vec![number as u8 ^ turn as u8; bytes as usize];
                        let transfer = if is_read { Transfer::ToHost(bytes) } else { Transfer::OnRequest(data) };
                        host.machine.send(command, transfer);
                    }
                    for _ in 0..24 {
                        let event = host.event();
                        let Ok(HostEvent::Completed { completion, data, is_intact: true, .. }) = event else {
                            panic!("{kind:?}: {event:?}")
                        };
                        assert_eq!(completion.status(), Status::SUCCESS);
                        let fill = completion.cid.get() as u8 ^ turn as u8;
                        assert!(data.iter().all(|byte| *byte == fill), "{kind:?}");
                    }
                }
                if setup.proxy.faults() > 0 {
                    break;
                }
            }
            assert!(setup.proxy.faults() > 0, "{kind:?} were never swapped");
        }
    }
}

fn late_pdus_do_no_harm() {
    let mut setup = Setup::new(BOTH);
    let mut host = setup.queue();
    for kind in [Kind::CapsuleCmd, Kind::R2t, Kind::H2cData, Kind::CapsuleResp, Kind::C2hData] {
        let fault = Fault::each(kind, Action::Delay(Duration::from_millis(20)));
        setup.proxy.inject(Some(Fault { most: 2, ..fault }));
        for fill in [1, 2] {
            let (command, data) = write(1, fill);
            host.ok(command, data);
            let read = requests::blocks(io::READ, 2, 1, 0, BLOCKS);
            assert!(host.ok(read, Transfer::ToHost(BLOCKS * BLOCK)).1.iter().all(|byte| *byte == fill));
        }
        assert_eq!(setup.proxy.faults(), 2);
    }
}

with_each_engine! {
    the_log_has_an_entry_for_each_pdu
    damaged_reads_are_noticed_with_data_digests
    damaged_writes_are_refused_with_data_digests
    damaged_headers_end_the_connection
    a_connection_may_be_cut_before_any_pdu
    pdus_of_different_commands_may_be_swapped
    late_pdus_do_no_harm
}
