//! Automatic progress: messages arrive while the callers of their endpoints do not call.
//!
//! The tests wait for numbers that the endpoints count, since asking for them moves no message.

use crate::common::{HANG, Node, config, exact, pattern, segments, send_request};
use std::time::{Duration, Instant};
use telpher_fabric::{Config, Copier, PeerId, ProgressBy, SendRequest};

/// Two endpoints that have each other as peer 0; both progress automatically, or only the first one.
fn pair(config: &Config, other: ProgressBy) -> [Node; 2] {
    pair_by(config, [ProgressBy::HelperThread, other])
}

/// Two endpoints that have each other as peer 0.
fn pair_by(config: &Config, by: [ProgressBy; 2]) -> [Node; 2] {
    let nodes = by.map(|by| Node::new(config.clone(), Copier::cpu(), by));
    assert_eq!(nodes[0].endpoint.insert_peer(&nodes[1].address()).unwrap(), PeerId(0));
    assert_eq!(nodes[1].endpoint.insert_peer(&nodes[0].address()).unwrap(), PeerId(0));
    nodes
}

/// Waits without making progress.
fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < HANG, "hangs: {what}");
        std::thread::yield_now();
    }
}

fn inject(from: &Node, count: u64, len: usize) {
    for number in 0..count {
        let mut bytes = pattern(len, number);
        let request = send_request(PeerId(0), segments(&mut bytes), Some(number), number);
        from.endpoint.send(SendRequest { inject: true, ..request }).unwrap();
    }
}

#[test]
fn a_message_that_is_sent_before_the_connection_is_open_arrives() {
    let [sender, receiver] = pair(&Config::default(), ProgressBy::HelperThread);
    inject(&sender, 1, 8);
    wait_for("the message is sent when the connection opens", || sender.endpoint.statistics().eager_messages_sent == 1);
    drop((sender, receiver));
}

#[test]
fn a_first_message_of_a_caller_that_does_not_call_again_arrives() {
    let [sender, mut receiver] = pair_by(&Config::default(), [ProgressBy::CallerAndEvents, ProgressBy::Caller]);
    receiver.receive(None, exact(0), 8, 0);
    inject(&sender, 1, 8);
    wait_for("the connection opens", || {
        receiver.poll();
        receiver.endpoint.statistics().messages_received == 1
    });
    receiver.check_received(0, 0, &pattern(8, 0));
    drop(sender);
}

#[test]
fn messages_that_wait_for_room_in_the_ring_go_on_when_it_returns() {
    let small = config(|config| config.ring_entries = 16);
    // The receiver's caller takes the messages, or its helper thread does.
    for by in [ProgressBy::Caller, ProgressBy::HelperThread] {
        let [sender, mut receiver] = pair(&small, by);
        (0..500).for_each(|number| receiver.receive(None, exact(number), 8, number));
        inject(&sender, 500, 8);
        wait_for("the ring has room again", || {
            if by == ProgressBy::Caller {
                receiver.poll();
            }
            receiver.endpoint.statistics().messages_received == 500
        });
    }
}

#[test]
fn a_receive_that_comes_after_the_wake_of_the_sender_moves_the_message() {
    let len = 2 << 20;
    let [mut sender, mut receiver] = pair(&Config::default(), ProgressBy::HelperThread);
    // Later messages find an open connection, so no event makes the helper threads progress. They may still be at work
    // for the message before; each pause makes it likelier that they sleep.
    for round in 1..=20 {
        std::thread::sleep(Duration::from_millis(round));
        sender.send(0, Some(round), pattern(len, round), round);
        wait_for("the message is announced", || receiver.endpoint.statistics().unexpected_messages == round);
        // Wakes that came before this found no receive.
        receiver.receive(None, exact(round), len, round);
        wait_for("the message is received", || receiver.endpoint.statistics().messages_received == round);
        wait_for("the send ends", || sender.endpoint.statistics().bytes_sent == len as u64 * round);
    }
    receiver.poll();
    (1..=20).for_each(|round| receiver.check_received(round, round, &pattern(len, round)));
}

#[test]
fn messages_behind_the_limit_of_kept_ones_arrive_when_others_are_received() {
    let small = config(|config| config.unexpected_bytes = 10_000);
    let [sender, mut receiver] = pair(&small, ProgressBy::HelperThread);
    inject(&sender, 100, 1000);
    wait_for("the limit is reached", || receiver.endpoint.statistics().unexpected_bytes > 10_000);
    // Each receive makes room for the next message. The sender does not call.
    for number in 0..100 {
        receiver.receive(None, exact(number), 1000, number);
        wait_for("a message takes the room of another", || {
            receiver.endpoint.statistics().messages_received == number + 1
        });
    }
}
