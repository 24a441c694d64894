//! Programs that are legal and must not hang: many sends each way before the receives.

use crate::common::{Node, config, exact, nodes, nodes_with, pattern, run_until_done};
use telpher_fabric::Copier;

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
