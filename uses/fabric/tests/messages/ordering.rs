//! Order between messages that travel in different ways.

use crate::common::{ANY_TAG, config, exact, nodes, nodes_with, pattern, run_until, run_until_done};
use telpher_fabric::{Copier, PeerId, ProbeAction};

#[test]
fn messages_with_one_tag_match_in_the_order_of_their_sends() {
    // Short messages overtake the bytes of long ones, but not their matching.
    let lengths = [8, 100_000, 0, 8193, 33, 1 << 20, 8192, 2, 16_385, 40];
    for is_early in [false, true] {
        let mut nodes = nodes(2);
        for round in 0..6_u64 {
            let context = |number: usize| round * 100 + number as u64;
            if is_early {
                (0..lengths.len()).for_each(|number| nodes[1].receive(Some(0), exact(9), 1 << 20, context(number)));
            }
            for (number, len) in lengths.into_iter().enumerate() {
                nodes[0].send(1, Some(9), pattern(len, context(number)), context(number));
            }
            if !is_early {
                (0..lengths.len()).for_each(|number| nodes[1].receive(None, ANY_TAG, 1 << 20, context(number)));
            }
        }
        run_until_done(&mut nodes, &[60, 60]);
        for round in 0..6 {
            for (number, len) in lengths.into_iter().enumerate() {
                let context = round * 100 + number as u64;
                nodes[1].check_received(context, 9, &pattern(len, context));
            }
        }
    }
}

#[test]
fn matched_messages_pass_unmatched_ones_that_hold_slots() {
    // Each of the first messages alone fills all slots that messages without a match may use.
    let mut nodes = nodes(2);
    let len = 2 << 20;
    for number in 0..6 {
        nodes[0].send(1, Some(number), pattern(len, number), number);
    }
    run_until(&mut nodes, |nodes| nodes[1].endpoint.statistics().unexpected_messages == 6);
    // The last message first.
    for number in (0..6).rev() {
        nodes[1].receive(Some(0), exact(number), len, number);
        run_until(&mut nodes, |nodes| nodes[1].done.len() == 6 - usize::try_from(number).unwrap());
        nodes[1].check_received(number, number, &pattern(len, number));
    }
}

#[test]
fn a_long_message_without_a_receive_blocks_no_short_one() {
    let mut nodes = nodes(2);
    nodes[0].send(1, Some(1), pattern(8 << 20, 1), 1);
    for number in 2..1000 {
        nodes[0].send(1, Some(number), pattern(64, number), number);
        nodes[1].receive(None, exact(number), 64, number);
    }
    run_until_done(&mut nodes, &[998, 998]);
    assert!(nodes[1].probe(None, exact(1), 5000, ProbeAction::Look).result.is_ok());
    nodes[1].receive(None, exact(1), 8 << 20, 1);
    run_until_done(&mut nodes, &[999, 999]);
    nodes[1].check_received(1, 1, &pattern(8 << 20, 1));
}

#[test]
fn unexpected_messages_are_limited_and_wait_in_the_ring_of_their_sender() {
    let config = config(|config| {
        config.unexpected_bytes = 100_000;
        config.ring_entries = 64;
    });
    let mut nodes = nodes_with(3, &config, Copier::cpu);
    for number in 0..500 {
        nodes[0].send(2, Some(number), pattern(4000, number), number);
    }
    run_until(&mut nodes, |nodes| nodes[2].endpoint.statistics().unexpected_bytes > 100_000);
    for _ in 0..1000 {
        nodes.iter_mut().for_each(super::common::Node::poll);
    }
    let kept = nodes[2].endpoint.statistics().unexpected_bytes;
    assert!(kept <= 100_000 + 4000 + 256, "{kept} bytes are kept");
    assert!(nodes[0].done.len() < 500, "the sender has to wait");
    // Another peer is not held up.
    nodes[2].receive(Some(1), exact(7), 8, 1000);
    nodes[1].send(2, Some(7), vec![7; 8], 1000);
    run_until(&mut nodes, |nodes| nodes[2].done.len() == 1);
    nodes[2].check_received(1000, 7, &[7; 8]);
    for number in 0..500 {
        nodes[2].receive(Some(0), exact(number), 4000, number);
    }
    run_until_done(&mut nodes, &[500, 1, 501]);
    for number in 0..500 {
        nodes[2].check_received(number, number, &pattern(4000, number));
    }
}

#[test]
fn ten_thousand_unexpected_messages_are_received_in_reverse() {
    let mut nodes = nodes(2);
    let count = 10_000_u64;
    for number in 0..count {
        nodes[0].send(1, Some(number), number.to_le_bytes().to_vec(), number);
    }
    run_until(&mut nodes, |nodes| nodes[1].endpoint.statistics().unexpected_messages == count);
    for number in (0..count).rev() {
        nodes[1].receive(Some(0), exact(number), 8, number);
    }
    let all = usize::try_from(count).unwrap();
    run_until(&mut nodes, |nodes| nodes.iter().all(|node| node.done.len() == all));
    for (end, number) in nodes[1].done.iter().zip((0..count).rev()) {
        assert_eq!((end.context, end.tag, end.result), (number, number, Ok(())));
        assert_eq!(nodes[1].buffers[&number], number.to_le_bytes());
    }
}

#[test]
fn messages_before_and_after_a_removal_of_the_peer_match_in_order() {
    let mut nodes = nodes(2);
    nodes[0].send(1, Some(1), vec![1], 1);
    nodes[1].receive(None, exact(1), 1, 1);
    run_until_done(&mut nodes, &[1, 1]);
    // More messages than the receiver takes from a connection in one pass, while it takes none.
    let count = 300;
    (0..count).for_each(|number| nodes[0].send(1, Some(9), pattern(8, number), 100 + number));
    let address = nodes[1].address();
    nodes[0].endpoint.remove_peer(PeerId(1)).unwrap();
    let again = nodes[0].endpoint.insert_peer(&address).unwrap();
    (count..2 * count).for_each(|number| nodes[0].send(again.0, Some(9), pattern(8, number), 100 + number));
    run_until(&mut nodes[..1], |nodes| nodes[0].done.len() > 2 * usize::try_from(count).unwrap());
    (0..2 * count).for_each(|number| nodes[1].receive(None, exact(9), 8, 100 + number));
    run_until(&mut nodes, |nodes| nodes[1].done.len() > 2 * usize::try_from(count).unwrap());
    (0..2 * count).for_each(|number| nodes[1].check_received(100 + number, 9, &pattern(8, number)));
}
