//! Messages that the receiver reads from the memory of their sender. Which messages these are depends on the times that
//! are measured; that there is a trial does not.

use crate::common::{Node, config, exact, nodes_with, pattern, run_until, segments, send_request};
use crate::hostile::{envelope, hostile};
use std::time::Instant;
use telpher_device::{ModelDevice, ModelOptions};
use telpher_fabric::entry::{Answer, Message, MessageId};
use telpher_fabric::{
    Buffer, Config, Copier, Failure, Offered, OfferedMemory, PeerId, ReceiveRequest, Segments, Stats,
};
use telpher_mover::{Channel, ChannelPolicy};

/// Shorter than two of the parts that decide, so that a pull that has begun goes on.
const LEN: usize = 100_000;

fn pulling() -> Config {
    config(|config| config.pull_bytes = 16 << 10)
}

/// Sends one message, and receives it before or after it has come.
fn exchange(nodes: &mut [Node], tag: u64, len: usize, room: usize, is_expected: bool) {
    if is_expected {
        nodes[1].receive(Some(0), exact(tag), room, tag);
    }
    nodes[0].send(1, Some(tag), pattern(len, tag), tag);
    if !is_expected {
        let before = nodes[1].endpoint.statistics().unexpected_messages;
        run_until(nodes, |nodes| nodes[1].endpoint.statistics().unexpected_messages > before);
        nodes[1].receive(Some(0), exact(tag), room, tag);
    }
    let has = |node: &Node| node.done.iter().any(|end| end.context == tag);
    run_until(nodes, |nodes| nodes.iter().all(has));
    assert_eq!(nodes[0].end_of(tag).result, Ok(()));
    if room < len {
        assert_eq!(nodes[1].end_of(tag).result, Err(Failure::Truncated { excess: (len - room) as u64 }));
        assert!(nodes[1].buffers[&tag] == pattern(len, tag)[..room]);
    } else {
        nodes[1].check_received(tag, tag, &pattern(len, tag));
    }
}

fn pulls(nodes: &[Node]) -> Stats {
    nodes[1].endpoint.statistics()
}

#[test]
fn bytes_are_the_same_whichever_way_they_take() {
    let mut nodes = nodes_with(2, &pulling(), Copier::cpu);
    for tag in 1..=60 {
        let room = if tag % 7 == 0 { LEN / 2 } else { LEN };
        exchange(&mut nodes, tag, LEN, room, tag % 3 != 0);
    }
    assert!(pulls(&nodes).pulls > 0 && pulls(&nodes).pulls_refused == 0, "{:?}", pulls(&nodes));
    // The part that decides, and several passes.
    for tag in 101..=130 {
        exchange(&mut nodes, tag, 3 << 20, 3 << 20, true);
    }
    assert_eq!(pulls(&nodes).pulls_refused, 0);
}

#[test]
fn an_endpoint_that_does_not_want_it_reads_nothing() {
    let mut nodes = nodes_with(2, &Config::default(), Copier::cpu);
    for tag in 1..=30 {
        exchange(&mut nodes, tag, LEN, LEN, true);
    }
    let Stats { pulls, pulls_refused, pulls_slow, .. } = pulls(&nodes);
    assert_eq!((pulls, pulls_refused, pulls_slow), (0, 0, 0));
}

#[test]
#[allow(unsafe_code, reason = "a buffer of which the end is not mapped")]
fn a_buffer_that_is_not_mapped_fails_as_without_pulls() {
    let mut nodes = nodes_with(2, &pulling(), Copier::cpu);
    for tag in 1..=40 {
        let is_bad = tag % 4 == 0;
        if is_bad {
            // SAFETY: nothing is ever mapped at page 1, since `vm.mmap_min_addr` is above it.
            let buffer = unsafe { Buffer::vouch(4096, LEN as u64) };
            let request = ReceiveRequest {
                segments: Segments::of(buffer).unwrap(),
                ..crate::common::receive_request(Some(PeerId(0)), exact(tag), Segments::default(), tag)
            };
            nodes[1].endpoint.receive(request).unwrap();
            nodes[0].send(1, Some(tag), pattern(LEN, tag), tag);
            run_until(&mut nodes, |nodes| nodes[1].done.iter().any(|end| end.context == tag));
            assert_eq!(nodes[1].end_of(tag).result, Err(Failure::BadBuffer { address: 4096 }));
        } else {
            exchange(&mut nodes, tag, LEN, LEN, true);
        }
    }
}

#[test]
fn several_segments_are_read_in_order() {
    let mut nodes = nodes_with(2, &pulling(), Copier::cpu);
    for tag in 1..=40_u64 {
        let mut into = vec![0; LEN];
        let (first, rest) = into.split_at_mut(1000);
        let (second, third) = rest.split_at_mut(50_000);
        let parts = [first, second, third].map(|part| segments(part).as_slice()[0]);
        let mut request = crate::common::receive_request(Some(PeerId(0)), exact(tag), segments(&mut []), tag);
        request.segments = Segments::new(&parts).unwrap();
        nodes[1].endpoint.receive(request).unwrap();
        let mut bytes = pattern(LEN, tag);
        nodes[0].endpoint.send(send_request(PeerId(1), segments(&mut bytes), Some(tag), tag)).unwrap();
        let has = |node: &Node| node.done.iter().any(|end| end.context == tag);
        run_until(&mut nodes, |nodes| nodes.iter().all(has));
        assert!(into == bytes, "message {tag}");
    }
    assert!(pulls(&nodes).pulls > 0, "{:?}", pulls(&nodes));
}

/// A peer offers its memory although this endpoint never asked, and reads of files are on.
#[test]
fn memory_that_is_offered_unasked_is_not_read() {
    let len = Config::default().mapped_bytes;
    let mut nodes = nodes_with(2, &Config::default(), Copier::cpu);
    let mut peer = hostile(&mut nodes);
    let secret = vec![7_u8; usize::try_from(len).unwrap()];
    let memory = OfferedMemory::here(secret.as_ptr().expose_provenance() as u64).unwrap();
    nodes[0].receive(Some(2), exact(5), secret.len(), 10);
    let id = MessageId(0);
    let message = Message::Offer { envelope: envelope(len), id, at: Offered::Process(memory) };
    peer.outgoing.push(&message, &Segments::default()).unwrap();
    let mut answer = None;
    run_until(&mut nodes, |_| {
        answer = peer.outgoing.next_answer().unwrap();
        answer.is_some()
    });
    assert_eq!(answer, Some(Answer::Matched { id, len }));
    let Stats { pulls, pulls_refused, pulls_slow, .. } = nodes[0].endpoint.statistics();
    assert_eq!((pulls, pulls_refused, pulls_slow), (0, 0, 0));
    assert!(nodes[0].buffers[&10].iter().all(|&byte| byte == 0));
}

/// More bytes in pieces than the rest of the message that is read has, while a device copies.
#[test]
fn pieces_of_a_message_that_is_read_are_dropped() {
    let device = ModelDevice::start(ModelOptions::default()).unwrap();
    let copier =
        || Copier::device(Channel::new(device.portal("wq0.0").unwrap(), 64, ChannelPolicy::default()).unwrap(), 4096);
    let mut nodes = nodes_with(2, &pulling(), copier);
    let mut peer = hostile(&mut nodes);
    let bytes = vec![7_u8; 3 << 19];
    let memory = OfferedMemory::here(bytes.as_ptr().expose_provenance() as u64).unwrap();
    nodes[0].receive(Some(2), exact(5), bytes.len(), 10);
    let (id, envelope) = (MessageId(0), envelope(bytes.len() as u64));
    peer.outgoing.push(&Message::Offer { envelope, id, at: Offered::Process(memory) }, &Segments::default()).unwrap();
    for slot in 0..63 {
        let message = Message::Piece { id, slot, len: 16 << 10, offset: u64::from(slot) << 14 };
        peer.outgoing.push(&message, &Segments::default()).unwrap();
    }
    run_until(&mut nodes, |nodes| nodes[0].done.iter().any(|end| end.context == 10));
    assert_eq!(nodes[0].end_of(10).result, Ok(()));
    assert!(nodes[0].buffers[&10] == bytes);
    assert_eq!(nodes[0].endpoint.statistics().pulls, 1);
}

#[test]
fn memory_without_its_token_is_not_received() {
    let mut nodes = nodes_with(2, &pulling(), Copier::cpu);
    let mut peer = hostile(&mut nodes);
    let secret = vec![7_u8; LEN];
    let address = secret.as_ptr().expose_provenance() as u64;
    let good = OfferedMemory::here(address).unwrap();
    let offers = [
        OfferedMemory { token: good.token ^ 2, ..good },
        OfferedMemory { token_address: 4096, ..good },
        OfferedMemory { address: 4096, ..good },
    ];
    for (number, memory) in (0..).zip(offers) {
        let context = 10 + u64::from(number);
        nodes[0].receive(Some(2), exact(5), LEN, context);
        let id = MessageId(number);
        let message = Message::Offer { envelope: envelope(LEN as u64), id, at: Offered::Process(memory) };
        peer.outgoing.push(&message, &Segments::default()).unwrap();
        let start = Instant::now();
        let answer = loop {
            nodes[0].poll();
            if let Some(answer) = peer.outgoing.next_answer().unwrap() {
                break answer;
            }
            assert!(start.elapsed() < crate::common::HANG);
        };
        assert_eq!(answer, Answer::Matched { id, len: LEN as u64 }, "offer {number}");
        assert!(nodes[0].done.iter().all(|end| end.context != context));
    }
    assert_eq!(nodes[0].endpoint.statistics().pulls_refused, 1, "after the wrong token nothing is read");
    assert_eq!(nodes[0].endpoint.statistics().pulls, 0);
}
