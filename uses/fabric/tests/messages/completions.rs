//! What is true when an operation is reported as complete.

use crate::common::{
    HANG, Node, config, exact, is_closed, nodes, nodes_with, pattern, receive_request, run_until, run_until_done,
    segments, send_request,
};
use std::time::{Duration, Instant};
use telpher_fabric::{Copier, Failure, PeerId, Segments, SendEnd, SendRequest, Successes};

#[test]
fn a_message_whose_send_is_complete_arrives_although_its_endpoint_is_dropped() {
    let slot_bytes: u32 = 4096;
    let config = config(|config| {
        config.ring_entries = 8;
        config.slot_bytes = slot_bytes;
    });
    // The announcement and up to seven pieces fit in the ring. The eighth piece has a slot, but no entry.
    let mut complete = 0;
    for pieces in 3..12 {
        let mut nodes = nodes_with(2, &config, Copier::cpu);
        nodes[0].send(1, Some(1), vec![1], 1);
        nodes[1].receive(None, exact(1), 1, 1);
        run_until_done(&mut nodes, &[1, 1]);
        let len = pieces * slot_bytes as usize;
        nodes[0].send(1, Some(2), pattern(len, 2), 2);
        // The receiver takes nothing meanwhile.
        (0..10).for_each(|_| nodes[0].poll());
        if nodes[0].done.len() == 1 {
            continue;
        }
        complete += 1;
        assert_eq!(nodes[0].end_of(2).result, Ok(()));
        nodes.remove(0);
        nodes[0].receive(None, exact(2), len, 2);
        run_until(&mut nodes, |nodes| nodes[0].done.len() == 2);
        nodes[0].check_received(2, 2, &pattern(len, 2));
    }
    assert!(complete > 0, "no send was complete before the receiver took a piece");
}

#[test]
fn a_send_that_ends_when_it_is_received_waits_for_the_last_byte() {
    // A fixed choice of stores, so that every piece but the last one fills its slot.
    let config = config(|config| {
        config.slots = 64;
        config.streaming_bytes = u64::MAX;
    });
    let mut nodes = nodes_with(2, &config, Copier::cpu);
    nodes[0].send(1, Some(1), vec![1], 1);
    nodes[1].receive(None, exact(1), 1, 1);
    run_until_done(&mut nodes, &[1, 1]);
    // The bytes fit in the slots, but not in the half of them that is used before a receive matches.
    for (len, end) in [(900 << 10, SendEnd::Matched), (900 << 10, SendEnd::Received), (100, SendEnd::Received)] {
        let before = nodes[0].done.len();
        let mut bytes = pattern(len, 2);
        nodes[1].done.clear();
        nodes[1].buffers.remove(&2);
        nodes[0]
            .endpoint
            .send(SendRequest { end, ..send_request(PeerId(1), segments(&mut bytes), Some(2), 2) })
            .unwrap();
        nodes[0].poll();
        assert_eq!(nodes[0].done.len(), before);
        nodes[1].receive(None, exact(2), len, 2);
        if len > 100 {
            // The receiver tells of the match, and the sender fills the other slots.
            nodes[1].poll();
            (0..10).for_each(|_| nodes[0].poll());
            assert!(nodes[1].done.is_empty());
            assert_eq!(nodes[0].done.len() - before, usize::from(end == SendEnd::Matched), "{end:?}");
        }
        run_until(&mut nodes, |nodes| nodes[0].done.len() > before && !nodes[1].done.is_empty());
        nodes[1].check_received(2, 2, &bytes);
        nodes[0].done.clear();
    }
}

/// Injects messages with the tags from 1 to `count`.
fn inject(nodes: &[Node], count: u64, len: usize) {
    for number in 1..=count {
        let mut bytes = pattern(len, number);
        let request = send_request(PeerId(1), segments(&mut bytes), Some(number), number);
        nodes[0].endpoint.send(SendRequest { inject: true, ..request }).unwrap();
    }
}

#[test]
fn injected_messages_arrive_although_their_endpoint_is_closed_at_once() {
    // Short, eager, and announced messages, before the connection is open; more than the ring has room for.
    for (len, is_dropped) in [(8, true), (3000, false), (100_000, true)] {
        let small = config(|config| config.ring_entries = 8);
        let mut nodes = nodes_with(2, &small, Copier::cpu);
        inject(&nodes, 50, len);
        let sender = nodes.remove(0);
        (1..=50).for_each(|number| nodes[0].receive(None, exact(number), len, number));
        std::thread::scope(|scope| {
            scope.spawn(move || if is_dropped { drop(sender) } else { assert_eq!(sender.endpoint.close(), 0) });
            run_until(&mut nodes, |nodes| nodes[0].done.len() == 50);
        });
        (1..=50).for_each(|number| nodes[0].check_received(number, number, &pattern(len, number)));
    }
}

#[test]
fn an_endpoint_that_is_closed_says_how_many_injected_messages_are_lost() {
    let small = config(|config| {
        config.ring_entries = 8;
        config.linger = Duration::from_millis(20);
    });
    let mut nodes = nodes_with(2, &small, Copier::cpu);
    inject(&nodes, 20, 8);
    // The peer opens the connection and takes nothing.
    run_until(&mut nodes[..1], |nodes| nodes[0].endpoint.statistics().eager_messages_sent == 8);
    assert_eq!(nodes[0].endpoint.close(), 12);
    assert_eq!(nodes[0].endpoint.close(), 0);
}

#[test]
fn a_closed_endpoint_uses_no_buffer_and_refuses_all_calls() {
    let mut nodes = nodes(2);
    nodes[0].send(1, Some(1), vec![1], 1);
    nodes[1].receive(None, exact(1), 1, 1);
    run_until_done(&mut nodes, &[1, 1]);
    nodes[1].receive(None, exact(2), 100, 2);
    nodes[0].send(1, Some(2), vec![7; 100], 2);
    // Another owner keeps the endpoint, as a thread does that fetches completions meanwhile.
    assert_eq!(nodes[1].endpoint.close(), 0);
    nodes[1].poll();
    nodes[0].send(1, Some(2), vec![8; 100], 3);
    (0..10).for_each(|_| nodes.iter_mut().for_each(Node::poll));
    assert_eq!((nodes[1].done.len(), &nodes[1].buffers[&2]), (1, &vec![0; 100]));
    let mut bytes = [0];
    let segments = segments(&mut bytes);
    let endpoint = &nodes[1].endpoint;
    assert!(is_closed(&endpoint.send(send_request(PeerId(0), segments, Some(1), 9)).unwrap_err()));
    assert!(is_closed(&endpoint.receive(receive_request(None, exact(1), segments, 9)).unwrap_err()));
    assert!(is_closed(&endpoint.insert_peer(&endpoint.address()).unwrap_err()));
    assert!(!endpoint.cancel(2));
}

#[test]
fn successes_are_passed_on_up_to_the_first_failure() {
    let mut nodes = nodes(2);
    for tag in 1..=4 {
        nodes[1].receive(None, exact(tag), if tag == 3 { 1 } else { 8 }, tag);
        nodes[0].send(1, Some(tag), vec![1; 8], tag);
    }
    run_until(&mut nodes[..1], |nodes| nodes[0].done.len() == 4);
    let start = Instant::now();
    let (mut contexts, mut failed) = (Vec::new(), false);
    while !failed {
        assert!(start.elapsed() < HANG);
        let taken = nodes[1].endpoint.take_successes(1, |completion| contexts.push(completion.context));
        assert!(taken.count <= 1);
        nodes[0].poll();
        failed = taken.is_failure_next && taken.count == 0;
    }
    assert_eq!(contexts, [1, 2]);
    // The failure stays in front until it is taken.
    let again = nodes[1].endpoint.take_successes(usize::MAX, |_| unreachable!("a failure is the next"));
    assert_eq!(again, Successes { count: 0, is_failure_next: true });
    run_until_done(&mut nodes, &[4, 2]);
    nodes[1].end_of(3).result.unwrap_err();
    nodes[1].check_received(4, 4, &[1; 8]);
}

#[test]
fn peers_notice_an_endpoint_that_is_closed_and_kept() {
    let mut nodes = nodes(2);
    nodes[0].send(1, Some(1), vec![1], 1);
    nodes[1].receive(None, exact(1), 1, 1);
    run_until_done(&mut nodes, &[1, 1]);
    nodes[0].receive(Some(1), exact(2), 1, 2);
    nodes[1].send(0, Some(1), vec![1], 2);
    nodes[0].receive(Some(1), exact(1), 1, 3);
    run_until_done(&mut nodes, &[2, 2]);
    let closed = nodes.remove(1);
    assert_eq!(closed.endpoint.close(), 0);
    assert!(is_closed(&closed.endpoint.receive(receive_request(None, None, Segments::default(), 9)).unwrap_err()));
    run_until(&mut nodes, |nodes| nodes[0].done.len() == 3);
    assert_eq!(nodes[0].end_of(2).result, Err(Failure::PeerDied));
    assert_eq!(closed.endpoint.close(), 0);
}
