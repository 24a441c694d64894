//! Programs that are legal and must not hang: many sends each way before the receives.

use crate::common::{Node, config, exact, nodes, nodes_with, pattern, run_until_done};
use crate::skip::skip;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use telpher_fabric::{Copier, PeerId, ProgressBy};

/// Each node sends `count` messages to each other one, and only then posts its receives.
fn exchange(nodes: &mut [Node], count: u64, len: usize) {
    let all = nodes.len() as u64;
    for (from, node) in nodes.iter_mut().enumerate() {
        for to in (0..all).filter(|&to| to != from as u64) {
            for number in 0..count {
                let seed = from as u64 * 1000 + number;
                node.send(to, Some(number), pattern(len, seed), (to * count + number) * 2);
            }
        }
    }
    for (to, node) in nodes.iter_mut().enumerate() {
        for from in (0..all).filter(|&from| from != to as u64) {
            for number in 0..count {
                node.receive(Some(from), exact(number), len, (from * count + number) * 2 + 1);
            }
        }
    }
    let ends = usize::try_from((all - 1) * count * 2).unwrap();
    run_until_done(nodes, &vec![ends; nodes.len()]);
    for (to, node) in nodes.iter().enumerate() {
        for from in (0..all).filter(|&from| from != to as u64) {
            for number in 0..count {
                let expected = pattern(len, from * 1000 + number);
                node.check_received((from * count + number) * 2 + 1, number, &expected);
            }
        }
    }
}

#[test]
fn sends_each_way_before_the_receives_do_not_deadlock() {
    // Around each threshold: inline, eager, a slot, several slots, all slots.
    let lengths = [0, 32, 33, 8191, 8192, 8193, 16_383, 16_384, 16_385, 100_000];
    for len in lengths {
        for count in [1, 2, 64, 300] {
            exchange(&mut nodes(2), count, len);
        }
    }
    // More than all slots.
    for count in [1, 2, 16] {
        exchange(&mut nodes(2), count, (1 << 20) + 1);
    }
}

#[test]
fn small_rings_and_few_slots_do_not_deadlock() {
    let config = config(|config| {
        config.ring_entries = 64;
        config.payload_bytes = 32 << 10;
        config.long_payload_bytes = 32 << 10;
        config.slots = 2;
        config.slot_bytes = 4096;
    });
    for len in [8, 5000, 8193, 50_000] {
        exchange(&mut nodes_with(2, &config, Copier::cpu), 150, len);
    }
}

#[test]
fn seventeen_endpoints_exchange_messages_with_all_others() {
    let config = config(|config| {
        config.slots = 16;
        config.payload_bytes = 32 << 10;
        config.long_payload_bytes = 32 << 10;
    });
    for len in [100, 20_000, 300_000] {
        exchange(&mut nodes_with(17, &config, Copier::cpu), 2, len);
    }
}

/// Peers of one endpoint, more than libfabric's shm provider can have.
const MANY: u64 = 300;
/// An endpoint has three descriptors and a thread, and each of its connections up to three.
const OPEN_FILES: u64 = 32 * MANY;

#[test]
fn three_hundred_peers_exchange_messages_with_one() {
    let test = "three_hundred_peers_exchange_messages_with_one";
    let files = getrlimit(Resource::Nofile);
    if files.maximum.is_some_and(|most| most < OPEN_FILES) {
        return skip(test, "this process may not have enough open files (`ulimit -H -n`)");
    }
    if files.current.is_some_and(|current| current < OPEN_FILES) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(OPEN_FILES), ..files }).unwrap();
    }
    let config = config(|config| {
        config.ring_entries = 64;
        config.slots = 4;
        config.payload_bytes = 32 << 10;
        config.long_payload_bytes = 32 << 10;
    });
    let mut nodes: Vec<Node> =
        (0..=MANY).map(|_| Node::new(config.clone(), Copier::cpu(), ProgressBy::Caller)).collect();
    // The first one has all others as peers, and they have the first.
    for number in 1..=MANY {
        let peer = &nodes[usize::try_from(number).unwrap()];
        assert_eq!(peer.endpoint.insert_peer(&nodes[0].address()).unwrap(), PeerId(0));
        assert_eq!(nodes[0].endpoint.insert_peer(&peer.address()).unwrap(), PeerId(number - 1));
    }
    let len = 20_000;
    for number in 0..MANY {
        nodes[0].send(number, Some(number), pattern(len, number), 2 * number);
        nodes[0].receive(Some(number), exact(number), len, 2 * number + 1);
        let peer = &mut nodes[usize::try_from(number + 1).unwrap()];
        peer.receive(None, exact(number), len, 1);
        peer.send(0, Some(number), pattern(len, number + MANY), 2);
    }
    let mut ends = vec![2; nodes.len()];
    ends[0] = usize::try_from(2 * MANY).unwrap();
    run_until_done(&mut nodes, &ends);
    for number in 0..MANY {
        nodes[0].check_received(2 * number + 1, number, &pattern(len, number + MANY));
        nodes[usize::try_from(number + 1).unwrap()].check_received(1, number, &pattern(len, number));
    }
}
