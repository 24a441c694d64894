//! What matches what, and how each operation ends.

use crate::common::{
    ANY_TAG, config, exact, nodes, nodes_with, pattern, receive_request, run_until, run_until_done, segments,
    send_request,
};
use telpher_fabric::{
    Completes, Copier, FabricError, Failure, Operation, PeerId, ProbeAction, ReceiveRequest, Segments, SendEnd,
    SendRequest, TagMatch,
};

/// Lengths that take each protocol: inline, eager, a slot, several slots, more than all slots.
const LENGTHS: [usize; 12] = [0, 1, 32, 33, 8191, 8192, 8193, 16384, 16385, 100_000, 1 << 20, 3 << 20];

#[test]
fn messages_of_every_protocol_arrive_before_and_after_their_receive() {
    for is_early in [false, true] {
        let mut nodes = nodes(2);
        for (number, len) in LENGTHS.into_iter().enumerate() {
            let (tag, context) = (number as u64, number as u64);
            if is_early {
                nodes[1].receive(Some(0), exact(tag), len + 7, context);
            }
            nodes[0].send(1, Some(tag), pattern(len, tag), context);
        }
        if !is_early {
            // All messages are there, as far as they get without a receive.
            run_until(&mut nodes, |nodes| nodes[1].endpoint.statistics().unexpected_messages == LENGTHS.len() as u64);
            for (number, len) in LENGTHS.into_iter().enumerate().rev() {
                nodes[1].receive(Some(0), exact(number as u64), len + 7, number as u64);
            }
        }
        run_until_done(&mut nodes, &[LENGTHS.len(), LENGTHS.len()]);
        for (number, len) in LENGTHS.into_iter().enumerate() {
            let number = number as u64;
            nodes[1].check_received(number, number, &pattern(len, number));
            let end = nodes[1].end_of(number);
            assert_eq!((end.data, end.source), (Some(number + 1000), Some(nodes[0].address())));
            let sent = nodes[0].end_of(number);
            assert_eq!((sent.operation, sent.result, sent.len), (Operation::Send, Ok(()), len as u64));
        }
        assert_eq!(nodes[1].endpoint.statistics().unexpected_bytes, 0);
    }
}

#[test]
fn wildcards_masks_and_untagged_messages_match_in_the_order_of_posting() {
    let mut nodes = nodes(3);
    nodes[2].receive(Some(1), exact(5), 8, 0);
    nodes[2].receive(None, ANY_TAG, 8, 1);
    nodes[2].receive(Some(0), exact(5), 8, 2);
    nodes[2].receive(None, Some(TagMatch { tag: 0x40, ignore: 0x0f }), 8, 3);
    nodes[2].receive(None, None, 8, 4);
    // The wildcard is the oldest that takes it, although receive 2 names it.
    nodes[0].send(2, Some(5), vec![1; 8], 0);
    run_until_done(&mut nodes, &[1, 0, 1]);
    assert_eq!(nodes[2].end_of(1).tag, 5);
    nodes[0].send(2, Some(0x4c), vec![2; 8], 1);
    nodes[0].send(2, None, vec![3; 8], 2);
    nodes[0].send(2, Some(5), vec![4; 8], 3);
    run_until_done(&mut nodes, &[4, 0, 4]);
    nodes[1].send(2, Some(5), vec![5; 8], 0);
    run_until_done(&mut nodes, &[4, 1, 5]);
    for (context, tag, byte) in [(3, 0x4c, 2), (4, 0, 3), (2, 5, 4), (0, 5, 5)] {
        nodes[2].check_received(context, tag, &[byte; 8]);
    }
    assert!(!nodes[2].end_of(4).is_tagged);
}

#[test]
fn a_message_longer_than_its_buffer_is_cut_on_every_path() {
    for (len, room) in [(20, 5), (33, 32), (8192, 100), (8193, 0), (8193, 8192), (300_000, 20_000), (3 << 20, 1 << 20)]
    {
        for is_early in [false, true] {
            let mut nodes = nodes(2);
            nodes[1].buffers.insert(99, vec![0xee; room + 16]);
            let mut bytes = nodes[1].buffers.remove(&99).unwrap();
            let request = receive_request(None, exact(1), segments(&mut bytes[..room]), 7);
            if is_early {
                nodes[1].endpoint.receive(request).unwrap();
            }
            nodes[0].send(1, Some(1), pattern(len, 3), 1);
            if !is_early {
                run_until(&mut nodes, |nodes| nodes[1].endpoint.statistics().unexpected_messages == 1);
                nodes[1].endpoint.receive(request).unwrap();
            }
            run_until_done(&mut nodes, &[1, 1]);
            let end = nodes[1].end_of(7);
            assert_eq!(end.result, Err(Failure::Truncated { excess: (len - room) as u64 }));
            assert_eq!(end.len, room as u64);
            assert!(bytes[..room] == pattern(len, 3)[..room]);
            assert!(bytes[room..].iter().all(|&byte| byte == 0xee), "nothing is written behind the buffer");
            assert_eq!(nodes[0].end_of(1).result, Ok(()));
            // The connection and all its slots work on.
            nodes[0].send(1, Some(2), pattern(2 << 20, 4), 2);
            nodes[1].receive(None, exact(2), 2 << 20, 8);
            run_until_done(&mut nodes, &[2, 2]);
            nodes[1].check_received(8, 2, &pattern(2 << 20, 4));
        }
    }
}

#[test]
fn a_canceled_receive_ends_once_and_a_matched_one_is_not_canceled() {
    let mut nodes = nodes(2);
    nodes[1].receive(None, exact(1), 8, 1);
    assert!(nodes[1].endpoint.cancel(1));
    assert!(!nodes[1].endpoint.cancel(1), "it has ended");
    nodes[1].poll();
    assert_eq!(nodes[1].end_of(1).result, Err(Failure::Canceled));
    // The message finds no receive any more.
    nodes[0].send(1, Some(1), vec![9; 8], 1);
    run_until(&mut nodes, |nodes| nodes[1].endpoint.statistics().unexpected_messages == 1);
    nodes[1].receive(None, exact(1), 8, 2);
    // A long message is matched when its announcement is there, long before its end.
    let len = 4 << 20;
    nodes[1].receive(None, exact(3), len, 3);
    nodes[0].send(1, Some(3), pattern(len, 5), 3);
    run_until(&mut nodes, |nodes| nodes[1].done.len() == 2);
    let mut canceled_late = false;
    run_until(&mut nodes, |nodes| {
        if !canceled_late && nodes[1].endpoint.statistics().pieces_by_cpu > 0 {
            assert!(!nodes[1].endpoint.cancel(3), "it is matched");
            canceled_late = true;
        }
        nodes[1].done.len() == 3
    });
    nodes[1].check_received(3, 3, &pattern(len, 5));
}

#[test]
fn a_probe_reports_claims_and_discards() {
    for len in [10, 5000, 200_000] {
        let mut nodes = nodes(2);
        assert_eq!(nodes[1].probe(None, ANY_TAG, 1, ProbeAction::Look).result, Err(Failure::NoMessage));
        for number in 0..4 {
            nodes[0].send(1, Some(number), pattern(len, number), number);
        }
        run_until(&mut nodes, |nodes| nodes[1].endpoint.statistics().unexpected_messages == 4);
        let seen = nodes[1].probe(Some(0), exact(2), 1, ProbeAction::Look);
        assert_eq!((seen.result, seen.len, seen.tag, seen.data), (Ok(()), len as u64, 2, Some(1002)));
        assert_eq!(seen.source, Some(nodes[0].address()));
        let claimed = nodes[1].probe(None, ANY_TAG, 50, ProbeAction::Claim);
        assert_eq!((claimed.result, claimed.tag), (Ok(()), 0));
        // A claimed message is invisible; its context is taken.
        assert_eq!(nodes[1].probe(None, exact(0), 1, ProbeAction::Look).result, Err(Failure::NoMessage));
        let again = telpher_fabric::ProbeRequest { from: None, tag: ANY_TAG, context: 50, action: ProbeAction::Claim };
        assert!(matches!(nodes[1].endpoint.probe(again), Err(FabricError::AlreadyClaimed { context: 50 })));
        assert_eq!(nodes[1].probe(None, exact(1), 1, ProbeAction::Discard).tag, 1);
        assert_eq!(nodes[1].probe(None, exact(1), 1, ProbeAction::Look).result, Err(Failure::NoMessage));
        assert_eq!(nodes[1].probe(None, exact(2), 51, ProbeAction::Claim).result, Ok(()));
        let completes = if len > 1000 { Completes::Always } else { Completes::OnError };
        nodes[1].endpoint.discard_claimed(51, completes).unwrap();
        nodes[1].poll();
        let discarded: Vec<_> = nodes[1].done.drain(..).map(|end| (end.context, end.operation, end.len)).collect();
        assert_eq!(discarded, if len > 1000 { vec![(51, Operation::Probe, len as u64)] } else { vec![] });
        let unknown = nodes[1].endpoint.discard_claimed(51, Completes::Always);
        assert!(matches!(unknown, Err(FabricError::NotClaimed { context: 51 })));
        // The claimed one is received by its context, whatever its tag.
        let mut bytes = vec![0; len];
        let request = receive_request(None, exact(77), segments(&mut bytes), 60);
        nodes[1].endpoint.receive_claimed(50, request).unwrap();
        nodes[1].receive(None, exact(3), len, 61);
        run_until_done(&mut nodes, &[4, 2]);
        assert_eq!((nodes[1].end_of(60).result, nodes[1].end_of(60).tag), (Ok(()), 0));
        assert!(bytes == pattern(len, 0));
        nodes[1].check_received(61, 3, &pattern(len, 3));
        assert!(nodes[0].done.iter().all(|end| end.result.is_ok()), "dropped messages were sent");
        assert_eq!(nodes[1].endpoint.statistics().unexpected_bytes, 0);
    }
}

#[test]
fn a_buffer_for_many_messages_is_released_once_by_its_last_message() {
    // The third message leaves fewer than 1,000 bytes free. The lengths use different protocols.
    let lengths = [4000, 20_000, 6100];
    for is_early in [false, true] {
        let mut nodes = nodes(2);
        if is_early {
            nodes[1].receive_many(ANY_TAG, 31_000, 1000, 7);
        }
        for (number, len) in lengths.into_iter().enumerate() {
            nodes[0].send(1, Some(number as u64), pattern(len, number as u64), number as u64);
        }
        nodes[0].send(1, Some(3), pattern(50, 3), 3);
        if !is_early {
            run_until(&mut nodes, |nodes| nodes[1].endpoint.statistics().unexpected_messages == 4);
            nodes[1].receive_many(ANY_TAG, 31_000, 1000, 7);
        }
        nodes[1].receive(None, ANY_TAG, 50, 8);
        // Success is not asked for, so only the release and receive 8 are reported.
        run_until(&mut nodes, |nodes| nodes[1].done.len() == 2 && nodes[0].done.len() == 4);
        let released = nodes[1].end_of(7);
        assert!(released.releases_buffer && released.result.is_ok());
        let all: Vec<u8> = (0..3).flat_map(|number| pattern(lengths[number], number as u64)).collect();
        assert!(nodes[1].buffers[&7][..all.len()] == all);
        nodes[1].check_received(8, 3, &pattern(50, 3));
    }
}

#[test]
fn a_canceled_buffer_for_many_messages_is_released_after_its_last_message() {
    let mut nodes = nodes(2);
    nodes[1].receive_many(None, 1000, 100, 1);
    assert!(nodes[1].endpoint.cancel(1));
    nodes[1].poll();
    assert_eq!((nodes[1].end_of(1).result, nodes[1].end_of(1).releases_buffer), (Err(Failure::Canceled), true));
    nodes[1].done.clear();
    // With a long message under way, the cancellation waits for it.
    let len = 2 << 20;
    nodes[1].receive_many(None, len + 1000, 100, 2);
    nodes[0].send(1, None, pattern(len, 1), 1);
    run_until(&mut nodes, |nodes| nodes[1].endpoint.statistics().pieces_by_cpu > 0);
    assert!(nodes[1].endpoint.cancel(2));
    run_until(&mut nodes, |nodes| nodes[1].done.iter().any(|end| end.releases_buffer));
    assert_eq!(nodes[1].results(), [(2, Err(Failure::Canceled))]);
    assert!(nodes[1].buffers[&2][..len] == pattern(len, 1));
}

#[test]
fn an_endpoint_sends_to_itself() {
    let mut nodes = nodes(1);
    for (number, len) in LENGTHS.into_iter().enumerate() {
        nodes[0].send(0, Some(number as u64), pattern(len, 1), number as u64);
        nodes[0].receive(Some(0), exact(number as u64), len, 100 + number as u64);
    }
    run_until_done(&mut nodes, &[2 * LENGTHS.len()]);
    for (number, len) in LENGTHS.into_iter().enumerate() {
        nodes[0].check_received(100 + number as u64, number as u64, &pattern(len, 1));
    }
}

#[test]
fn success_is_reported_only_where_it_is_asked_for() {
    let mut nodes = nodes(2);
    for (context, len) in [(1, 10_usize), (2, 100_000)] {
        let mut sent = pattern(len, 1);
        let quiet = SendRequest {
            completes: Completes::OnError,
            ..send_request(PeerId(1), segments(&mut sent), Some(1), context)
        };
        nodes[0].endpoint.send(quiet).unwrap();
        let mut bytes = vec![0; len];
        let request = ReceiveRequest {
            completes: Completes::OnError,
            ..receive_request(None, exact(1), segments(&mut bytes), context)
        };
        nodes[1].endpoint.receive(request).unwrap();
        run_until(&mut nodes, |nodes| nodes[1].endpoint.statistics().messages_received == context);
        run_until(&mut nodes, |nodes| nodes[0].endpoint.statistics().bytes_sent >= len as u64);
        assert!(bytes == sent);
        assert!(nodes[0].done.is_empty() && nodes[1].done.is_empty());
    }
}

#[test]
fn an_injected_buffer_may_be_changed_at_once() {
    let config = config(|config| {
        config.ring_entries = 64;
    });
    for len in [8, 5000, 50_000] {
        let mut nodes = nodes_with(2, &config, Copier::cpu);
        // More than the ring holds, before the connection is open, so most of them wait.
        for number in 0..200 {
            let mut bytes = pattern(len, number);
            let request =
                SendRequest { inject: true, ..send_request(PeerId(1), segments(&mut bytes), Some(number), number) };
            nodes[0].endpoint.send(request).unwrap();
            bytes.fill(0xdd);
        }
        for number in 0..200 {
            nodes[1].receive(Some(0), exact(number), len, number);
        }
        run_until_done(&mut nodes, &[200, 200]);
        for number in 0..200 {
            nodes[1].check_received(number, number, &pattern(len, number));
        }
    }
}

#[test]
fn a_synchronous_send_ends_when_a_receive_matches() {
    for len in [0, 8, 8192, 30_000, 2 << 20] {
        let mut nodes = nodes(2);
        let mut bytes = pattern(len, 1);
        let request =
            SendRequest { end: SendEnd::Matched, ..send_request(PeerId(1), segments(&mut bytes), Some(1), 1) };
        nodes[0].endpoint.send(request).unwrap();
        // A later message arrives, so the first one has arrived too.
        nodes[0].send(1, Some(2), vec![1], 2);
        nodes[1].receive(None, exact(2), 1, 2);
        run_until(&mut nodes, |nodes| nodes[1].done.len() == 1 && nodes[0].done.len() == 1);
        assert_eq!(nodes[0].results(), [(2, Ok(()))], "no receive matches the synchronous send");
        nodes[1].receive(None, exact(1), len, 1);
        run_until_done(&mut nodes, &[2, 2]);
        nodes[1].check_received(1, 1, &bytes);
    }
}

#[test]
fn segments_are_gathered_and_scattered_across_slots() {
    let mut nodes = nodes(2);
    for len in [30, 4000, 70_000] {
        let mut sent = pattern(len, 2);
        let mut received = vec![0; len];
        let (a, b) = sent.split_at_mut(len / 3);
        let parts = [segments(a), segments(&mut []), segments(b)];
        let buffers: Vec<_> = parts.iter().flat_map(|part| part.as_slice().to_vec()).collect();
        nodes[0].endpoint.send(send_request(PeerId(1), Segments::new(&buffers).unwrap(), Some(1), 1)).unwrap();
        let (a, b) = received.split_at_mut(len / 2 + 1);
        let (b, c) = b.split_at_mut(3);
        let buffers: Vec<_> =
            [segments(a), segments(b), segments(c)].iter().flat_map(|part| part.as_slice().to_vec()).collect();
        let request = receive_request(None, exact(1), Segments::new(&buffers).unwrap(), 1);
        nodes[1].endpoint.receive(request).unwrap();
        run_until_done(&mut nodes, &[1, 1]);
        assert!(received == sent);
        nodes[0].done.clear();
        nodes[1].done.clear();
    }
}
