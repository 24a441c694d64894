//! The crate's initiator with Linux as its target.

use crate::host::{Ended, Host};
use crate::proxy::{Action, Fault, FlippedBit, Proxy};
use crate::serving::NQN;
use std::net::SocketAddr;
use telpher_nvmf::command::{Submission, admin, io};
use telpher_nvmf::digest::Digests;
use telpher_nvmf::initiator::Transfer;
use telpher_nvmf::initiator::requests::{self, QueueRequest};
use telpher_nvmf::pdu::Kind;

/// Bytes of a block of the guest's disk, and its blocks.
const BLOCK: u32 = 4096;
const BLOCKS: u64 = (1 << 30) / BLOCK as u64;

/// Data that depends on the place and on the pass.
fn pattern(first: u64, blocks: u32, pass: u8) -> Vec<u8> {
    let block = |number: u64| {
        (0..BLOCK as usize / 8).flat_map(move |word| {
            (number << 16 | word as u64).wrapping_mul(u64::from(pass) * 2 + 0x9e37_79b9_7f4a_7c15).to_le_bytes()
        })
    };
    (first..first + u64::from(blocks)).flat_map(block).collect()
}

/// Identifies, writes, reads and compares, with all digests.
pub(crate) fn uses_linux(address: SocketAddr) {
    for digests in Digests::ALL {
        let (mut admin, controller) = Host::admin(address, NQN, digests);
        identifies(&mut admin, controller);
        // Without flow control, Linux sends the flag SUCCESS in place of a response.
        for has_flow_control in [true, false] {
            let qid = if has_flow_control { 1 } else { 2 };
            let request = QueueRequest { qid, entries: 32, flow_control: has_flow_control, keep_alive_ms: 0 };
            let mut queue = Host::queue_as(address, NQN, digests, controller, request);
            moves_data(&mut queue, digests.bits() * 2 + u8::from(has_flow_control));
        }
        notices_damage(address, digests, controller);
        admin.ok(Submission::new(admin::KEEP_ALIVE, 901, 0), Transfer::None);
        if digests.data {
            refuses_damage(Host::queue(address, NQN, digests, controller, 1));
        }
    }
}

/// Writes, and reads the same data back.
fn moves_data(queue: &mut Host, pass: u8) {
    // In the capsule; by one R2T; with lengths that are not powers of two.
    let places = [(0, 1), (1, 4), (100, 32), (1000, 100), (5000, 256)];
    for (first, blocks) in places {
        let command = requests::blocks(io::WRITE, queue.cid(), 1, first, blocks);
        let data = pattern(first, blocks, pass);
        queue.ok(command, if blocks <= 4 { Transfer::InCapsule(data) } else { Transfer::OnRequest(data) });
    }
    queue.ok(Submission::new(io::FLUSH, 900, 1), Transfer::None);
    for (first, blocks) in places {
        let command = requests::blocks(io::READ, queue.cid(), 1, first, blocks);
        let data = queue.ok(command, Transfer::ToHost(blocks * BLOCK)).1;
        assert!(data == pattern(first, blocks, pass), "pass {pass}: blocks from {first} differ");
    }
}

/// The initiator notices damaged data of Linux, if there are data digests.
fn notices_damage(address: SocketAddr, digests: Digests, controller: u16) {
    let proxy = Proxy::start(address);
    let mut queue = Host::queue(proxy.address, NQN, digests, controller, 3);
    let read = requests::blocks(io::READ, queue.cid(), 1, 0, 32);
    let right = queue.ok(read, Transfer::ToHost(32 * BLOCK)).1;
    proxy.inject(Some(Fault { most: 1, ..Fault::each(Kind::C2hData, Action::Flip(FlippedBit::Data(7000))) }));
    let damaged = queue.execute(read, Transfer::ToHost(32 * BLOCK)).expect("the connection is kept");
    assert_eq!((damaged.is_intact, damaged.data == right, proxy.faults()), (!digests.data, false, 1), "{digests:?}");
}

fn identifies(admin: &mut Host, controller: u16) {
    let (command, transfer) = requests::identify(admin.cid(), 1, 0);
    let data = admin.ok(command, transfer).1;
    assert_eq!(data[78..80], controller.to_le_bytes(), "CNTLID");
    assert_eq!(data[512..514], [0x66, 0x44], "SQES and CQES");
    let (command, transfer) = requests::identify(admin.cid(), 0, 1);
    let data = admin.ok(command, transfer).1;
    assert_eq!(data[..8], BLOCKS.to_le_bytes(), "NSZE");
    let (command, transfer) = requests::identify(admin.cid(), 2, 0);
    assert_eq!(admin.ok(command, transfer).1[..8], [1, 0, 0, 0, 0, 0, 0, 0], "the only namespace");
}

/// Linux ends the connection when the digest of data is wrong.
fn refuses_damage(mut queue: Host) {
    let command = requests::blocks(io::WRITE, queue.cid(), 1, 0, 1);
    queue.machine.send(command, Transfer::InCapsule(vec![0xdd; BLOCK as usize]));
    let mut bytes = queue.machine.take_output();
    *bytes.last_mut().expect("a PDU") ^= 1;
    queue.machine.send_raw(&bytes);
    let event = queue.event();
    assert!(matches!(event, Err(Ended::Closed)), "{event:?}");
}
