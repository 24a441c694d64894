//! A peer that breaks the rules of the protocol. It has a socket and both rings, and no endpoint.

use crate::common::{ANY_TAG, HANG, Node, exact, nodes, pattern, receive_request, run_until, segments};
use crate::rma::{BOTH, Nodes, with_regions};
use std::collections::HashMap;
use std::time::Instant;
use telpher_fabric::entry::{AccessAnswer, AccessId, AccessPiece, Answer, AtomicEntry, Envelope, Message, MessageId};
use telpher_fabric::regions::RemoteRange;
use telpher_fabric::{
    AccessError, Atomic, AtomicOp, Config, Connector, ConnectorEvent, Copier, Failure, Incoming, Number, Offered,
    OfferedFile, OfferedMemory, Outgoing, PeerId, Permissions, Region, Segments,
};
use telpher_os::Random;

pub(crate) struct Hostile {
    _connector: Connector,
    pub(crate) outgoing: Outgoing,
    incoming: Incoming,
}

/// Connects a hostile peer to the first node, where it is peer 2, and the node to it, by a send with the context 1
/// whose message the peer does not receive.
pub(crate) fn hostile(nodes: &mut [Node]) -> Hostile {
    let connector = Connector::open(&Config::default()).unwrap();
    connector.connect(&nodes[0].address()).unwrap();
    assert_eq!(nodes[0].endpoint.insert_peer(&connector.address()).unwrap(), PeerId(2));
    nodes[0].send(2, Some(1), pattern(100_000, 1), 1);
    let (mut outgoing, mut incoming) = (None, None);
    let mut events = Vec::new();
    run_until(nodes, |_| {
        connector.events(&mut events);
        for event in events.drain(..) {
            match event {
                ConnectorEvent::Connected { outgoing: end, .. } => outgoing = Some(end),
                ConnectorEvent::Accepted { incoming: end, .. } => incoming = Some(end),
                // The endpoint waits for answers.
                ConnectorEvent::PeerWaits { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        outgoing.is_some() && incoming.is_some()
    });
    Hostile { _connector: connector, outgoing: outgoing.unwrap(), incoming: incoming.unwrap() }
}

pub(crate) fn envelope(len: u64) -> Envelope {
    Envelope { is_tagged: true, tag: 5, data: None, len }
}

fn announce(id: u32, len: u64) -> Message {
    Message::Announce { envelope: envelope(len), id: MessageId(id) }
}

fn piece(id: u32, slot: u16, len: u32, offset: u64) -> Message {
    Message::Piece { id: MessageId(id), slot, len, offset }
}

fn access_piece(range: RemoteRange, slot: u16, len: u32, offset: u64) -> AccessPiece {
    AccessPiece { id: AccessId(0), range, slot, len, offset }
}

fn accessed(id: u32, slot: Option<u16>) -> Answer {
    Answer::Accessed(AccessAnswer { id: AccessId(id), slot, wants_end: false, result: Ok(()) })
}

fn free(slot: u16) -> Answer {
    let mut slots = [0; 24];
    slots[0] = slot;
    Answer::SlotsFree { count: 1, slots }
}

#[test]
fn each_broken_rule_closes_the_connection_and_ends_its_operations() {
    let id = MessageId(0);
    let range = RemoteRange { key: 1, address: 0, len: 100 };
    let messages: [&[Message]; 8] = [
        &[announce(3, 50_000), piece(3, 1, 100, 0), Message::WritePiece(access_piece(range, 1, 100, 0))],
        &[announce(3, 50_000), piece(3, 1, 100, 0), Message::ReadPiece(access_piece(range, 1, 100, 0))],
        &[announce(3, 50_000), announce(3, 50_000)],
        &[announce(1 << 16, 50_000)],
        &[announce(3, 50_000), piece(3, 1, 100, 0), piece(3, 1, 100, 100)],
        &[announce(3, 9000), piece(3, 1, 9000, 1)],
        &[announce(3, 9000), piece(3, 1, 9000, 0), piece(3, 2, 1, 0)],
        &[announce(3, 9000), piece(3, 1, 100, u64::MAX - 50)],
    ];
    for (case, messages) in messages.into_iter().enumerate() {
        let mut nodes = nodes(2);
        let mut peer = hostile(&mut nodes);
        nodes[0].receive(Some(2), exact(9), 8, 2);
        for message in messages {
            // The ring itself may find the rule broken when it is read; pushing does not.
            peer.outgoing.push(message, &Segments::default()).unwrap();
        }
        run_until(&mut nodes, |nodes| nodes[0].done.iter().any(|end| end.context == 2));
        assert_eq!(nodes[0].end_of(2).result, Err(Failure::PeerBroken), "case {case}");
        assert_eq!(nodes[0].endpoint.statistics().peers_broken, 1);
        still_works(&mut nodes);
    }
    let answers: [&[Answer]; 9] = [
        &[accessed(0, None)],
        // A slot of a message, and one that is free.
        &[accessed(0, Some(0))],
        &[accessed(0, Some(63))],
        &[Answer::Matched { id: MessageId(7), len: 1 }],
        &[Answer::Matched { id, len: 100_001 }],
        &[Answer::Matched { id, len: 100_000 }, Answer::Matched { id, len: 100_000 }],
        &[Answer::Received { id }, Answer::Received { id }],
        &[free(63)],
        &[free(0), free(0)],
    ];
    for (case, answers) in answers.into_iter().enumerate() {
        let mut nodes = nodes(2);
        let mut peer = hostile(&mut nodes);
        for answer in answers {
            peer.incoming.push_answer(answer).unwrap();
        }
        run_until(&mut nodes, |nodes| nodes[0].endpoint.statistics().peers_broken == 1);
        nodes[0].poll();
        // In some cases all bytes were in slots before the rule was broken.
        let end = nodes[0].end_of(1);
        assert!(matches!(end.result, Ok(()) | Err(Failure::PeerBroken)), "case {case}: {end:?}");
        still_works(&mut nodes);
    }
}

/// The first node exchanges messages with another peer.
fn still_works(nodes: &mut [Node]) {
    for (context, len) in [(1000, 8), (1001, 200_000)] {
        nodes[1].send(0, Some(context), pattern(len, context), context);
        nodes[0].receive(Some(1), exact(context), len, context);
        run_until(nodes, |nodes| nodes[0].done.iter().any(|end| end.context == context));
        nodes[0].check_received(context, context, &pattern(len, context));
    }
}

/// Ranges in and around a region of 5000 bytes with key 9, and elsewhere.
fn random_range(random: &mut Random) -> RemoteRange {
    let key = [9, 9, 9, 9, 0, u64::MAX][usize::try_from(random.below(6)).unwrap()];
    let address = [0, 1, 4900, 4999, 5000, 5001, u64::MAX][usize::try_from(random.below(7)).unwrap()];
    RemoteRange { key, address, len: 1 + random.below(5100) }
}

fn random_access(random: &mut Random) -> Message {
    let (range, slot) = (random_range(random), u16::try_from(random.below(64)).unwrap());
    let offset = random.below(range.len);
    let len = u32::try_from(1 + random.below(range.len - offset)).unwrap();
    let piece = access_piece(range, slot, len, offset);
    match random.below(5) {
        4 => Message::ReadEnd { id: AccessId(0) },
        3 => {
            let op = AtomicOp::ALL[usize::try_from(random.below(19)).unwrap()];
            let atomic = Atomic { op, of: Number::ALL[usize::try_from(random.below(8)).unwrap()] };
            let range = RemoteRange { len: atomic.of.bytes() * (1 + random.below(400)), ..range };
            Message::Atomic(AtomicEntry { id: AccessId(0), range, atomic, slot: Some(slot) })
        }
        0 => Message::Write { id: AccessId(0), range: RemoteRange { len: 0, ..range }, data: Some(1) },
        1 => Message::WritePiece(piece),
        _ => Message::ReadPiece(piece),
    }
}

fn random_message(random: &mut Random) -> Message {
    if random.below(2) == 0 {
        return random_access(random);
    }
    let id = u32::try_from(random.below(6)).unwrap();
    let len = [0, 9000, 40_000, 1 << 40][usize::try_from(random.below(4)).unwrap()];
    match random.below(13) {
        12 => {
            let (place, offset) = (u8::try_from(random.below(8)).unwrap(), random.next() >> 30);
            let file = OfferedFile { place, generation: u32::try_from(random.below(4)).unwrap(), offset };
            Message::Offer { envelope: envelope(len), id: MessageId(id), at: Offered::File(file) }
        }
        0 => {
            let memory = OfferedMemory { address: 4096, token_address: random.next(), token: random.next() | 1 };
            Message::Offer { envelope: envelope(len), id: MessageId(id), at: Offered::Process(memory) }
        }
        1..4 => announce(id, len),
        4 => Message::Abort { id: MessageId(id) },
        _ => {
            let slot = u16::try_from(random.below(64)).unwrap();
            let offset = [0, 100, 8000, 1 << 39][usize::try_from(random.below(4)).unwrap()];
            piece(id, slot, u32::try_from(1 + random.below(16_384)).unwrap(), offset)
        }
    }
}

fn random_answer(random: &mut Random) -> Answer {
    let id = MessageId(u32::try_from(random.below(3)).unwrap());
    match random.below(5) {
        4 => accessed(id.0, [None, Some(0), Some(1)][usize::try_from(random.below(3)).unwrap()]),
        0 => Answer::Matched { id, len: random.below(100_001) },
        1 => Answer::Received { id },
        _ => free(u16::try_from(random.below(64)).unwrap()),
    }
}

#[test]
fn random_entries_of_a_hostile_peer_hurt_its_own_messages_only() {
    let mut broken = 0;
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), Copier::cpu);
        let mut peer = hostile(&mut nodes);
        let mut memory = vec![0xee; 5128];
        let region = Region { segments: segments(&mut memory[64..5064]), base: 0, permissions: BOTH };
        regions[0].register(region, Some(9)).unwrap();
        nodes[0].write(2, 9, 0, pattern(100, 1), 2);
        nodes[0].read(2, 9, 0, 100, 3);
        let mut buffers: HashMap<u64, Vec<u8>> = HashMap::new();
        for context in 10..30 {
            let mut bytes = vec![0xee; 20_064];
            let request = receive_request(Some(PeerId(2)), ANY_TAG, segments(&mut bytes[..20_000]), context);
            nodes[0].endpoint.receive(request).unwrap();
            buffers.insert(context, bytes);
        }
        for _ in 0..400 {
            // A closed connection takes no more; the ends of all operations follow.
            let _ = match random.below(40) {
                0 => peer.incoming.push_answer(&random_answer(&mut random)),
                _ => {
                    let message = random_message(&mut random);
                    let mut payload = vec![0x77; usize::try_from(message.payload().0).unwrap()];
                    peer.outgoing.push(&message, &segments(&mut payload))
                }
            };
            nodes[0].poll();
            if nodes[0].endpoint.statistics().peers_broken > 0 {
                break;
            }
        }
        drop(peer);
        let start = Instant::now();
        while !(1..=3).chain(10..30).all(|context| nodes[0].done.iter().any(|end| end.context == context)) {
            assert!(start.elapsed() < HANG, "seed {seed}: {:?}", nodes[0].results());
            nodes[0].poll();
            std::thread::yield_now();
        }
        let around = memory[..64].iter().chain(&memory[5064..]);
        assert!(around.clone().all(|&byte| byte == 0xee), "seed {seed}: bytes around the region");
        for (context, bytes) in &buffers {
            nodes[0].end_of(*context);
            assert!(bytes[20_000..].iter().all(|&byte| byte == 0xee), "seed {seed}: bytes behind buffer {context}");
        }
        broken += nodes[0].endpoint.statistics().peers_broken;
        still_works(&mut nodes);
    }
    assert!(broken > 20, "the entries break rules in most runs: {broken}");
}

/// Every combination of key, range and permission, from a peer that asks without an endpoint.
#[test]
fn a_hostile_peer_accesses_what_regions_permit_and_nothing_else() {
    let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), Copier::cpu);
    let mut peer = hostile(&mut nodes);
    let mut memory = vec![0; 300];
    for (key, permissions) in [(1, BOTH), (2, Permissions { read: true, write: false })] {
        let region = Region { segments: segments(&mut memory[100..200]), base: 1000, permissions };
        regions[0].register(region, Some(key)).unwrap();
    }
    let mut asked = 0_u64;
    for key in [0, 1, 2, 3] {
        for address in [0, 999, 1000, 1001, 1099, 1100, u64::MAX - 50, u64::MAX] {
            for len in [1_u64, 2, 99, 100, 101, 1 << 63] {
                let range = RemoteRange { key, address, len };
                let is_inside = address >= 1000 && len <= 100 && address - 1000 <= 100 - len;
                let piece_len = u32::try_from(len.min(100)).unwrap();
                let piece = access_piece(range, 7, piece_len, 0);
                for message in [Message::WritePiece(piece), Message::ReadPiece(piece)] {
                    let expected = match key {
                        0 | 3 => Err(AccessError::UnknownKey),
                        _ if !is_inside => Err(AccessError::OutOfRange),
                        2 if matches!(message, Message::WritePiece(_)) => Err(AccessError::NotPermitted),
                        _ => Ok(()),
                    };
                    // The slot has bytes of an earlier round.
                    let fill = u8::try_from(asked % 255).unwrap();
                    memory.fill(fill);
                    peer.outgoing.push(&message, &Segments::default()).unwrap();
                    asked += 1;
                    run_until(&mut nodes, |nodes| {
                        let statistics = nodes[0].endpoint.statistics();
                        statistics.accesses_served + statistics.accesses_refused == asked
                    });
                    let answer = peer.outgoing.next_answer().unwrap().unwrap();
                    let id = AccessId(0);
                    let expected_answer = AccessAnswer { id, slot: Some(7), wants_end: false, result: expected };
                    assert_eq!(answer, Answer::Accessed(expected_answer), "{message:?}");
                    let mut around = memory[..100].iter().chain(&memory[200..]);
                    assert!(around.all(|&byte| byte == fill), "{message:?}");
                    let is_changed = memory[100..200].iter().any(|&byte| byte != fill);
                    assert_eq!(
                        is_changed,
                        expected.is_ok() && matches!(message, Message::WritePiece(_)),
                        "{message:?}"
                    );
                }
            }
        }
    }
    still_works(&mut nodes);
}
