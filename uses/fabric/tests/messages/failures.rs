//! Buffers that cannot be accessed, peers that end, and peers that are removed.

use crate::common::{
    ANY_TAG, Node, config, exact, is_unreachable, nodes, pattern, receive_request, run_until, run_until_done, segments,
    send_request, unmapped,
};
use telpher_fabric::{
    Config, Copier, FabricError, Failure, Operation, PeerId, ProbeAction, ProgressBy, SendEnd, SendRequest,
};
use telpher_mem::{PAGE_BYTES, Pages, Protection};

/// Pages of which one in the middle cannot be accessed, and the address of that page.
fn damaged(pages: usize, bad: usize) -> (Pages, u64) {
    let memory = Pages::new(pages).unwrap();
    memory.protect(bad..bad + 1, Protection::None).unwrap();
    let address = memory.address() + bad as u64 * PAGE_BYTES;
    (memory, address)
}

#[allow(unsafe_code, reason = "memory that is partly not accessible")]
fn segments_of(pages: &Pages) -> telpher_fabric::Segments {
    // SAFETY: the test keeps the pages until the operation has ended, and has no references to them.
    let buffer = unsafe { telpher_fabric::Buffer::vouch(pages.address(), pages.len_bytes()) };
    telpher_fabric::Segments::new(&[buffer]).unwrap()
}

#[test]
fn a_buffer_of_the_sender_that_cannot_be_read_fails_on_both_sides() {
    for is_early in [false, true] {
        let mut nodes = nodes(2);
        // Two MiB, with a hole after the first MiB: pieces were sent when it is found.
        let (pages, hole) = damaged(512, 300);
        if is_early {
            nodes[1].receive(None, exact(1), 2 << 20, 1);
        }
        nodes[0].endpoint.send(send_request(PeerId(1), segments_of(&pages), Some(1), 1)).unwrap();
        if !is_early {
            run_until(&mut nodes, |nodes| nodes[1].endpoint.statistics().unexpected_messages == 1);
            nodes[1].receive(None, exact(1), 2 << 20, 1);
        }
        run_until_done(&mut nodes, &[1, 1]);
        assert_eq!(nodes[0].end_of(1).result, Err(Failure::BadBuffer { address: hole }));
        assert_eq!(nodes[1].end_of(1).result, Err(Failure::SenderFailed));
        // An eager message from such a buffer is not sent at all.
        nodes[0].endpoint.send(send_request(PeerId(1), unmapped(8), Some(2), 2)).unwrap();
        nodes[0].endpoint.send(send_request(PeerId(1), unmapped(5000), Some(2), 3)).unwrap();
        nodes[0].send(1, Some(2), pattern(3 << 20, 1), 4);
        nodes[1].receive(None, exact(2), 3 << 20, 2);
        run_until_done(&mut nodes, &[4, 2]);
        assert_eq!(nodes[0].end_of(2).result, Err(Failure::BadBuffer { address: 4096 }));
        assert_eq!(nodes[0].end_of(3).result, Err(Failure::BadBuffer { address: 4096 }));
        nodes[1].check_received(2, 2, &pattern(3 << 20, 1));
    }
}

#[test]
fn an_unreadable_message_that_nothing_matches_fails_its_receive_later() {
    let mut nodes = nodes(2);
    nodes[0].endpoint.send(send_request(PeerId(1), unmapped(50_000), Some(1), 1)).unwrap();
    run_until(&mut nodes, |nodes| nodes[0].done.len() == 1);
    run_until(&mut nodes, |nodes| nodes[1].endpoint.statistics().unexpected_messages == 1);
    // A later message shows that the end of the first one has arrived.
    nodes[0].send(1, Some(2), vec![1], 2);
    nodes[1].receive(None, exact(2), 1, 2);
    run_until_done(&mut nodes, &[2, 1]);
    nodes[1].receive(None, exact(1), 50_000, 1);
    run_until_done(&mut nodes, &[2, 2]);
    assert_eq!(nodes[1].end_of(1).result, Err(Failure::SenderFailed));
}

#[test]
fn a_buffer_of_the_receiver_that_cannot_be_written_fails_there_only() {
    for is_early in [false, true] {
        for (len, pages, bad) in [(2_usize << 20, 512, 300), (8192, 2, 1), (32, 1, 0)] {
            let mut nodes = nodes(2);
            let (memory, hole) = damaged(pages, bad);
            let request = receive_request(None, exact(1), segments_of(&memory), 1);
            if is_early {
                nodes[1].endpoint.receive(request).unwrap();
            }
            nodes[0].send(1, Some(1), pattern(len, 1), 1);
            if !is_early {
                run_until(&mut nodes, |nodes| nodes[1].endpoint.statistics().unexpected_messages == 1);
                nodes[1].endpoint.receive(request).unwrap();
            }
            run_until_done(&mut nodes, &[1, 1]);
            assert_eq!(nodes[0].end_of(1).result, Ok(()));
            assert_eq!(nodes[1].end_of(1).result, Err(Failure::BadBuffer { address: hole }));
            nodes[0].send(1, Some(2), pattern(3 << 20, 1), 2);
            nodes[1].receive(None, exact(2), 3 << 20, 2);
            run_until_done(&mut nodes, &[2, 2]);
            nodes[1].check_received(2, 2, &pattern(3 << 20, 1));
        }
    }
}

/// The states in which a peer ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ends {
    BeforeTheConnection,
    WithUnmatchedMessages,
    WithMatchedMessages,
    WithFullRings,
}

#[test]
fn operations_with_a_peer_that_ends_fail_once_and_others_continue() {
    use Ends::{BeforeTheConnection, WithFullRings, WithMatchedMessages, WithUnmatchedMessages};
    for state in [BeforeTheConnection, WithUnmatchedMessages, WithMatchedMessages, WithFullRings] {
        let mut nodes = nodes(3);
        let long = 4 << 20;
        if state == BeforeTheConnection {
            drop(nodes.remove(1));
        }
        let last = nodes.len() - 1;
        // To the peer: a long message, a synchronous one, and with full rings more than fits.
        nodes[0].send(1, Some(1), pattern(long, 1), 1);
        let mut short = vec![1; 8];
        let synchronous =
            SendRequest { end: SendEnd::Matched, ..send_request(PeerId(1), segments(&mut short), Some(2), 2) };
        nodes[0].endpoint.send(synchronous).unwrap();
        let extra = if state == WithFullRings { 2000 } else { 0 };
        for number in 0..extra {
            nodes[0].send(1, Some(3), pattern(1000, 1), 100 + number);
        }
        // From the peer: a receive that stays open.
        nodes[0].receive(Some(1), exact(9), 8, 3);
        nodes[0].receive(None, exact(8), 8, 4);
        if state != BeforeTheConnection {
            // A long message from the peer.
            nodes[1].send(0, Some(5), pattern(long, 2), 1);
            run_until(&mut nodes, |nodes| nodes[1].endpoint.statistics().unexpected_messages >= 2);
            run_until(&mut nodes, |nodes| nodes[0].endpoint.statistics().unexpected_messages == 1);
            if state == WithMatchedMessages {
                nodes[1].receive(Some(0), exact(1), long, 2);
                nodes[0].receive(Some(1), exact(5), long, 5);
                // The peer moves a part of both.
                nodes[1].poll();
                nodes[0].poll();
                assert!(nodes[0].done.is_empty());
            }
            drop(nodes.remove(1));
        }
        let last = last.min(nodes.len() - 1);
        let fails = [Some(1), Some(2), Some(3), (state == WithMatchedMessages).then_some(5)];
        let count = fails.iter().flatten().count() + usize::try_from(extra).unwrap();
        run_until(&mut nodes, |nodes| nodes[0].done.len() >= count);
        for context in fails.into_iter().flatten() {
            assert_eq!(nodes[0].end_of(context).result, Err(Failure::PeerDied), "{state:?}: operation {context}");
        }
        let sent = nodes[0].done.iter().filter(|end| end.context >= 100 && end.operation == Operation::Send);
        assert!(sent.clone().all(|end| matches!(end.result, Ok(()) | Err(Failure::PeerDied))));
        assert_eq!(sent.count(), usize::try_from(extra).unwrap());
        // What the peer had announced and not sent is gone.
        assert_eq!(nodes[0].probe(None, exact(5), 6, ProbeAction::Look).result, Err(Failure::NoMessage));
        // New operations with it are refused or fail, and those with others work.
        let refused = nodes[0].endpoint.send(send_request(PeerId(1), segments(&mut short), Some(1), 50));
        assert!(is_unreachable(&refused.unwrap_err()));
        nodes[0].done.clear();
        nodes[0].receive(Some(1), exact(9), 8, 51);
        nodes[0].poll();
        assert_eq!(nodes[0].end_of(51).result, Err(Failure::PeerDied));
        nodes[last].send(0, Some(8), vec![8; 8], 10);
        run_until(&mut nodes, |nodes| nodes[0].done.len() == 2);
        nodes[0].check_received(4, 8, &[8; 8]);
    }
}

#[test]
fn messages_that_a_peer_sent_before_its_end_are_received() {
    let mut nodes = nodes(2);
    // The last one fits into the slots that a message without a match may use.
    let lengths = [0, 8, 5000, 100_000];
    for (number, len) in lengths.into_iter().enumerate() {
        nodes[0].send(1, Some(number as u64), pattern(len, 1), number as u64);
    }
    run_until(&mut nodes, |nodes| nodes[0].done.len() == lengths.len());
    drop(nodes.remove(0));
    for (number, len) in lengths.into_iter().enumerate() {
        nodes[0].receive(Some(0), exact(number as u64), len, number as u64);
    }
    nodes[0].receive(Some(0), ANY_TAG, 8, 9);
    run_until_done(&mut nodes, &[lengths.len() + 1]);
    for (number, len) in lengths.into_iter().enumerate() {
        nodes[0].check_received(number as u64, number as u64, &pattern(len, 1));
    }
    assert_eq!(nodes[0].end_of(9).result, Err(Failure::PeerDied));
}

/// Regression: a message of several pieces was given to a later receive without its last pieces.
#[test]
fn kept_messages_of_an_ended_peer_are_received_whole() {
    let mut nodes = nodes(2);
    let lengths = [5000, 100_000];
    for (number, len) in lengths.into_iter().enumerate() {
        nodes[0].send(1, Some(number as u64), pattern(len, 1), number as u64);
    }
    run_until(&mut nodes, |nodes| nodes[0].done.len() == lengths.len());
    drop(nodes.remove(0));
    // This side knows that the peer has ended, before a receive matches.
    nodes[0].receive(Some(0), exact(77), 8, 9);
    run_until_done(&mut nodes, &[1]);
    for (number, len) in lengths.into_iter().enumerate() {
        nodes[0].receive(Some(0), exact(number as u64), len, number as u64);
    }
    run_until_done(&mut nodes, &[1 + lengths.len()]);
    for (number, len) in lengths.into_iter().enumerate() {
        nodes[0].check_received(number as u64, number as u64, &pattern(len, 1));
    }
    assert_eq!(nodes[0].end_of(9).result, Err(Failure::PeerDied));
}

#[test]
fn a_removed_peer_ends_its_operations_and_may_come_back() {
    let mut nodes = nodes(2);
    let address = nodes[1].address();
    nodes[0].send(1, Some(1), pattern(4 << 20, 1), 1);
    nodes[0].receive(Some(1), exact(1), 8, 2);
    nodes[0].receive(None, exact(2), 8, 3);
    run_until(&mut nodes, |nodes| nodes[1].endpoint.statistics().unexpected_messages == 1);
    nodes[0].endpoint.remove_peer(PeerId(1)).unwrap();
    assert!(nodes[0].endpoint.remove_peer(PeerId(1)).is_err());
    assert_eq!((nodes[0].endpoint.peer_of(&address), nodes[0].endpoint.peer_address(PeerId(1))), (None, None));
    nodes[0].poll();
    assert_eq!(nodes[0].results(), [(1, Err(Failure::Canceled)), (2, Err(Failure::Canceled))]);
    // Its own messages still match receives from any sender.
    nodes[1].send(0, Some(2), vec![2; 8], 3);
    run_until(&mut nodes, |nodes| nodes[0].done.len() == 3);
    nodes[0].check_received(3, 2, &[2; 8]);
    // It comes back under a new number, with a new connection.
    let again = nodes[0].endpoint.insert_peer(&address).unwrap();
    assert_eq!((again, nodes[0].endpoint.peer_of(&address)), (PeerId(2), Some(again)));
    nodes[0].send(2, Some(4), pattern(1 << 20, 4), 4);
    nodes[1].receive(None, exact(4), 1 << 20, 4);
    run_until(&mut nodes, |nodes| nodes[0].done.len() == 4 && nodes[1].done.len() == 2);
    nodes[1].check_received(4, 4, &pattern(1 << 20, 4));
}

#[test]
fn the_helper_thread_moves_messages_while_the_caller_is_away() {
    // The receiver posts its receive and never calls again. Only its helper thread can move the message.
    let new = |progress| Node::new(Config::default(), Copier::cpu(), progress);
    let mut nodes = vec![new(ProgressBy::Caller), new(ProgressBy::HelperThread)];
    let addresses = [nodes[0].address(), nodes[1].address()];
    for node in &nodes {
        for address in &addresses {
            node.endpoint.insert_peer(address).unwrap();
        }
    }
    let len = 8 << 20;
    nodes[1].receive(Some(0), exact(1), len, 1);
    nodes[0].send(1, Some(1), pattern(len, 1), 1);
    let (sender, receiver) = nodes.split_at_mut(1);
    run_until(sender, |nodes| nodes[0].done.len() == 1);
    // The sender is away too now; the rest of the message is in the slots.
    run_until(sender, |_| receiver[0].endpoint.statistics().messages_received > 0);
    receiver[0].poll();
    receiver[0].check_received(1, 1, &pattern(len, 1));
}

#[test]
#[allow(unsafe_code, reason = "forks")]
fn a_forked_child_cannot_use_the_endpoint_of_its_parent() {
    let mut nodes = nodes(2);
    // SAFETY: the child calls functions that find out at once that they are in a child, and then ends without running
    // anything else of this program.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut byte = [1];
        let sent = nodes[0].endpoint.send(send_request(PeerId(1), segments(&mut byte), Some(1), 1));
        let received = nodes[0].endpoint.receive(receive_request(None, exact(1), segments(&mut byte), 1));
        let is_refused = |result: &Result<(), FabricError>| matches!(result, Err(FabricError::Forked));
        let is_right = is_refused(&sent) && is_refused(&received) && !nodes[0].endpoint.cancel(1);
        nodes[0].endpoint.progress();
        // SAFETY: ends the child without handlers of this program.
        unsafe { libc::_exit(if is_right { 7 } else { 1 }) }
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 7));
    nodes[0].send(1, Some(1), vec![1], 1);
    nodes[1].receive(None, exact(1), 1, 1);
    run_until_done(&mut nodes, &[1, 1]);
}

#[test]
fn connections_of_peers_that_have_ended_count_while_messages_are_kept() {
    let few = config(|config| config.incoming_connections = 2);
    let receiver = Node::new(few, Copier::cpu(), ProgressBy::Caller);
    let mut receivers = vec![receiver];
    // All bytes of a message are in slots, and its sender ends. Afterwards `unexpected` messages have come.
    let send = |receivers: &mut Vec<Node>, number: u64, result, unexpected: u64| {
        let mut sender = Node::new(Config::default(), Copier::cpu(), ProgressBy::Caller);
        sender.endpoint.insert_peer(&receivers[0].address()).unwrap();
        sender.send(0, Some(number), pattern(100_000, number), number);
        receivers.push(sender);
        run_until(receivers, |nodes| !nodes[1].done.is_empty());
        assert_eq!(receivers[1].end_of(number).result, result);
        drop(receivers.remove(1));
        run_until(receivers, |nodes| nodes[0].endpoint.statistics().unexpected_messages == unexpected);
    };
    send(&mut receivers, 1, Ok(()), 1);
    send(&mut receivers, 2, Ok(()), 2);
    send(&mut receivers, 3, Err(Failure::Refused), 2);
    receivers[0].receive(None, exact(1), 100_000, 1);
    run_until(&mut receivers, |nodes| nodes[0].done.len() == 1);
    receivers[0].check_received(1, 1, &pattern(100_000, 1));
    // The memory of the first connection is not needed any more.
    send(&mut receivers, 4, Ok(()), 3);
}
