//! Accesses to the memory of peers: reads and writes.

use crate::common::{
    HANG, Node, config, exact, nodes, nodes_with, pattern, receive_request, run_until, segments, send_request, unmapped,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use telpher_fabric::{
    AccessCounters, AccessError, AccessKind, AccessRequest, Buffer, Completes, Config, Copier, Endpoint, FabricError,
    Failure, Operation, OperationCounter, OperationCounters, PeerId, Permissions, ProbeAction, ProgressBy,
    ReceiveRequest, Region, Regions, RemoteAddress, Segments, SendRequest,
};

pub(crate) const BOTH: Permissions = Permissions { read: true, write: true };
/// Around the lengths from which accesses travel differently: in the entry, in the ring, in one slot, in several.
pub(crate) const LENGTHS: [usize; 16] =
    [0, 1, 8, 24, 25, 32, 33, 4096, 8192, 8193, 16_384, 16_385, 32_768, 100_001, 600_000, 1 << 20];

/// Endpoints, and the regions of each.
pub(crate) struct Nodes {
    pub(crate) nodes: Vec<Node>,
    pub(crate) regions: Vec<Arc<Regions>>,
}

/// Opens an endpoint, and returns it with its regions.
pub(crate) fn node_with(config: &Config, copier: Copier) -> (Node, Arc<Regions>) {
    let regions = Arc::<Regions>::default();
    let endpoint = Endpoint::open_with(config.clone(), copier, ProgressBy::Caller, Arc::clone(&regions)).unwrap();
    (Node { endpoint, done: Vec::new(), buffers: HashMap::new() }, regions)
}

pub(crate) fn with_regions(count: usize, config: &Config, mut copier: impl FnMut() -> Copier) -> Nodes {
    let (nodes, regions): (Vec<Node>, _) = (0..count).map(|_| node_with(config, copier())).unzip();
    for node in &nodes {
        for (number, peer) in nodes.iter().enumerate() {
            assert_eq!(node.endpoint.insert_peer(&peer.address()).unwrap(), PeerId(number as u64));
        }
    }
    Nodes { nodes, regions }
}

/// Registers bytes that the test keeps until the region is closed. Peers use offsets.
pub(crate) fn register(regions: &Regions, bytes: &mut [u8], permissions: Permissions) -> u64 {
    regions.register(Region { segments: segments(bytes), base: 0, permissions }, None).unwrap()
}

pub(crate) fn request(peer: u64, key: u64, address: u64, kind: AccessKind, context: u64) -> AccessRequest {
    AccessRequest {
        peer: PeerId(peer),
        remote: RemoteAddress { key, address },
        kind,
        context,
        completes: Completes::Always,
        inject: false,
    }
}

impl Node {
    /// Writes to the memory of a peer.
    pub(crate) fn write(&mut self, peer: u64, key: u64, address: u64, mut bytes: Vec<u8>, context: u64) {
        let kind = AccessKind::Write { from: segments(&mut bytes), data: None };
        assert!(self.buffers.insert(context, bytes).is_none());
        self.endpoint.access(request(peer, key, address, kind, context)).unwrap();
    }

    /// Reads the memory of a peer.
    pub(crate) fn read(&mut self, peer: u64, key: u64, address: u64, len: usize, context: u64) {
        let mut bytes = vec![0; len];
        let kind = AccessKind::Read { into: segments(&mut bytes) };
        assert!(self.buffers.insert(context, bytes).is_none());
        self.endpoint.access(request(peer, key, address, kind, context)).unwrap();
    }
}

/// Moves all on until an operation of the first node has ended, and returns how.
pub(crate) fn ended(nodes: &mut [Node], context: u64) -> Result<(), Failure> {
    run_until(nodes, |nodes| nodes[0].done.iter().any(|end| end.context == context));
    nodes[0].end_of(context).result
}

#[test]
fn bytes_of_every_length_are_written_and_read() {
    for target in [1, 0] {
        let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), Copier::cpu);
        let mut memory = vec![0xee; (1 << 20) + 200];
        let key = register(&regions[target], &mut memory, BOTH);
        for (number, &len) in LENGTHS.iter().enumerate() {
            let (seed, peer, at) = (number as u64, target as u64, 100 + number);
            memory.fill(0xee);
            nodes[0].write(peer, key, at as u64, pattern(len, seed), 2 * seed);
            assert_eq!(ended(&mut nodes, 2 * seed), Ok(()));
            let end = nodes[0].end_of(2 * seed);
            assert_eq!((end.operation, end.len), (Operation::Write, len as u64));
            assert!(memory[at..at + len] == pattern(len, seed), "{len} bytes");
            assert!(memory[..at].iter().chain(&memory[at + len..]).all(|&byte| byte == 0xee), "around {len} bytes");

            nodes[0].read(peer, key, at as u64, len, 2 * seed + 1);
            assert_eq!(ended(&mut nodes, 2 * seed + 1), Ok(()));
            let end = nodes[0].end_of(2 * seed + 1);
            assert_eq!((end.operation, end.len), (Operation::Read, len as u64));
            assert!(nodes[0].buffers[&(2 * seed + 1)] == pattern(len, seed), "{len} bytes");
        }
        assert_eq!(nodes[1].done.len(), 0, "the peer has no completions");
        let statistics = nodes[0].endpoint.statistics();
        assert_eq!((statistics.reads, statistics.writes), (LENGTHS.len() as u64, LENGTHS.len() as u64));
    }
}

#[test]
fn segments_are_joined_on_both_sides() {
    let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), Copier::cpu);
    for (number, &len) in LENGTHS.iter().enumerate() {
        let context = 10 * number as u64;
        let (mut first, mut second) = (vec![0; len / 3 + 5], vec![0; len - len / 3 + 5]);
        let parts = [segments(&mut first), segments(&mut second)].map(|part| part.as_slice()[0]);
        let segments_of = Segments::new(&parts).unwrap();
        let region = Region { segments: segments_of, base: 1 << 40, permissions: BOTH };
        regions[1].register(region, Some(77)).unwrap();
        let mut sent = pattern(len, context);
        let cut = len / 2;
        let (left, right) = sent.split_at_mut(cut);
        let from = Segments::new(&[segments(left).as_slice()[0], segments(right).as_slice()[0]]).unwrap();
        let kind = AccessKind::Write { from, data: None };
        nodes[0].endpoint.access(request(1, 77, (1 << 40) + 5, kind, context)).unwrap();
        assert_eq!(ended(&mut nodes, context), Ok(()));
        let joined = [&first[..], &second[..]].concat();
        assert!(joined[5..5 + len] == pattern(len, context), "{len} bytes");

        let mut got = vec![0; len];
        let (left, right) = got.split_at_mut(cut);
        let into = Segments::new(&[segments(left).as_slice()[0], segments(right).as_slice()[0]]).unwrap();
        let kind = AccessKind::Read { into };
        nodes[0].endpoint.access(request(1, 77, (1 << 40) + 5, kind, context + 1)).unwrap();
        assert_eq!(ended(&mut nodes, context + 1), Ok(()));
        assert!(got == pattern(len, context), "{len} bytes");
        assert!(regions[1].close(77));
    }
}

#[test]
fn accesses_of_peers_are_counted_once_when_they_have_ended() {
    let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), Copier::cpu);
    let mut memory = vec![0; 1 << 20];
    let key = register(&regions[1], &mut memory, BOTH);
    let other = register(&regions[1], &mut memory, Permissions { read: true, write: false });
    let [reads, writes, changes, none] = [(); 4].map(|()| Arc::<AtomicU64>::default());
    let counters = AccessCounters { reads: Some(Arc::clone(&reads)), writes: Some(Arc::clone(&writes)) };
    nodes[1].endpoint.count_accesses_of_peers(counters).unwrap();
    assert!(regions[1].count_changes(key, Arc::clone(&changes)) && regions[1].count_changes(other, Arc::clone(&none)));
    assert!(!regions[1].count_changes(other + 1, Arc::clone(&none)), "there is no such region");
    let numbers = || [&reads, &writes, &changes, &none].map(|counter| counter.load(Ordering::Acquire));
    let mut context = 0;
    for (number, &len) in LENGTHS.iter().enumerate() {
        let before = 3 * number as u64;
        nodes[0].write(1, key, 0, pattern(len, context), context);
        // The write is counted once, after its last byte.
        run_until(&mut nodes, |_| numbers()[1] > before);
        assert!(memory[..len] == pattern(len, context), "{len} bytes");
        assert_eq!(ended(&mut nodes, context), Ok(()));
        nodes[0].read(1, key, 0, len, context + 1);
        assert_eq!(ended(&mut nodes, context + 1), Ok(()));
        nodes[0].read(1, other, 0, len, context + 2);
        assert_eq!(ended(&mut nodes, context + 2), Ok(()));
        for data in [None, Some(7)] {
            context += 3;
            let mut bytes = pattern(len, context);
            let kind = AccessKind::Write { from: segments(&mut bytes), data };
            nodes[0].endpoint.access(request(1, key, 0, kind, context)).unwrap();
            assert_eq!(ended(&mut nodes, context), Ok(()));
        }
        let (reads, writes) = (2 * (number as u64 + 1), before + 3);
        assert_eq!(numbers(), [reads, writes, writes, 0], "{len} bytes");
        context += 3;
    }
    let before = numbers();
    for len in [8, 100_000] {
        nodes[0].write(1, other, 0, pattern(len, 1), context);
        assert_eq!(ended(&mut nodes, context), Err(Failure::Access(AccessError::NotPermitted)));
        context += 1;
    }
    assert_eq!(numbers(), before, "what fails is not counted");
    nodes[1].endpoint.count_accesses_of_peers(AccessCounters::default()).unwrap();
    nodes[0].read(1, key, 0, 100_000, context);
    assert_eq!(ended(&mut nodes, context), Ok(()));
    assert_eq!(numbers(), before, "nothing counts reads any more");
}

#[test]
fn operations_are_counted_when_they_end_also_without_a_completion() {
    let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), Copier::cpu);
    let mut memory = vec![0; 1 << 20];
    let key = register(&regions[1], &mut memory, BOTH);
    let [sends, receives, reads, writes] = [(); 4].map(|()| OperationCounter::default());
    let some = |counter: &OperationCounter| Some(counter.clone());
    let counters =
        OperationCounters { sends: some(&sends), receives: None, reads: some(&reads), writes: some(&writes) };
    nodes[0].endpoint.count_operations(counters).unwrap();
    let counters = OperationCounters { receives: some(&receives), ..OperationCounters::default() };
    nodes[1].endpoint.count_operations(counters).unwrap();
    let numbers = || {
        [&sends, &receives, &reads, &writes]
            .map(|of| [&of.successes, &of.failures].map(|counter| counter.load(Ordering::Acquire)))
    };
    let mut expected = [[0; 2]; 4];
    for len in [8, 1000, 100_000] {
        for completes in [Completes::OnError, Completes::Always] {
            let mut bytes = pattern(len, 1);
            let mut into = vec![0; len];
            let whole = segments(&mut bytes);
            let kinds = [AccessKind::Write { from: whole, data: None }, AccessKind::Read { into: segments(&mut into) }];
            for kind in kinds {
                nodes[0].endpoint.access(AccessRequest { completes, ..request(1, key, 0, kind, 1) }).unwrap();
            }
            nodes[0].endpoint.send(SendRequest { completes, ..send_request(PeerId(1), whole, Some(1), 2) }).unwrap();
            let mut got = vec![0; len];
            let receive = receive_request(None, exact(1), segments(&mut got), 3);
            nodes[1].endpoint.receive(ReceiveRequest { completes, ..receive }).unwrap();
            expected = expected.map(|[successes, failures]| [successes + 1, failures]);
            run_until(&mut nodes, |_| numbers() == expected);
            assert!(got == bytes && memory[..len] == bytes, "a number is there after the bytes");
            let wanted = usize::from(completes == Completes::Always);
            assert_eq!(
                nodes.iter().map(|node| node.done.len()).collect::<Vec<_>>(),
                [3 * wanted, wanted],
                "{len} bytes"
            );
            nodes.iter_mut().for_each(|node| node.done.clear());
        }
    }
    // What fails, and what is canceled. A probe is no receive.
    nodes[0].read(1, key + 1, 0, 8, 4);
    nodes[0].endpoint.send(send_request(PeerId(1), unmapped(8), Some(1), 5)).unwrap();
    nodes[1].receive(None, exact(9), 8, 6);
    assert!(nodes[1].endpoint.cancel(6));
    nodes[1].probe(None, exact(1), 7, ProbeAction::Look);
    expected[..3].iter_mut().for_each(|[_, failures]| *failures = 1);
    run_until(&mut nodes, |_| numbers() == expected);
    // A buffer for many messages counts each of them, and its own failure.
    nodes[1].receive_many(exact(1), 100, 10, 8);
    for context in 9..12 {
        nodes[0].send(1, Some(1), pattern(8, 1), context);
    }
    (expected[0][0], expected[1][0]) = (expected[0][0] + 3, expected[1][0] + 3);
    run_until(&mut nodes, |_| numbers() == expected);
    assert!(nodes[1].endpoint.cancel(8));
    expected[1][1] += 1;
    assert_eq!(numbers(), expected);
}

#[test]
fn what_a_region_does_not_permit_fails_and_changes_nothing() {
    for len in [1, 24, 100, 8192, 9000, 100_000] {
        let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), Copier::cpu);
        let mut memory = vec![0xee; len + 50];
        let both = register(&regions[1], &mut memory[..len], BOTH);
        let readable = register(&regions[1], &mut memory[..len], Permissions { read: true, write: false });
        let writable = register(&regions[1], &mut memory[..len], Permissions { read: false, write: true });
        let closed = register(&regions[1], &mut memory[..len], BOTH);
        assert!(regions[1].close(closed));
        let end = u64::MAX - len as u64;
        let cases = [
            (true, both + 100, 0, AccessError::UnknownKey),
            (true, closed, 0, AccessError::UnknownKey),
            (true, both, 1, AccessError::OutOfRange),
            (true, both, len as u64, AccessError::OutOfRange),
            (true, both, end, AccessError::OutOfRange),
            (true, both, u64::MAX, AccessError::OutOfRange),
            (true, readable, 0, AccessError::NotPermitted),
            (false, closed, 0, AccessError::UnknownKey),
            (false, both, 1, AccessError::OutOfRange),
            (false, both, end, AccessError::OutOfRange),
            (false, writable, 0, AccessError::NotPermitted),
        ];
        for (number, (writes, key, address, error)) in cases.into_iter().enumerate() {
            let context = number as u64;
            if writes {
                nodes[0].write(1, key, address, pattern(len, 1), context);
            } else {
                nodes[0].read(1, key, address, len, context);
            }
            assert_eq!(ended(&mut nodes, context), Err(Failure::Access(error)), "case {number}, {len} bytes");
            assert!(memory.iter().all(|&byte| byte == 0xee), "case {number}, {len} bytes");
            assert!(writes || nodes[0].buffers[&context].iter().all(|&byte| byte == 0), "case {number}, {len} bytes");
        }
        // The connection goes on.
        nodes[0].write(1, both, 0, pattern(len, 1), 1000);
        assert_eq!(ended(&mut nodes, 1000), Ok(()));
        assert!(memory[..len] == pattern(len, 1));
    }
}

#[test]
fn a_write_with_a_word_has_a_completion_at_the_peer_after_its_bytes() {
    let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), Copier::cpu);
    let mut memory = vec![0; 1 << 20];
    let key = register(&regions[1], &mut memory, BOTH);
    for (number, &len) in LENGTHS.iter().enumerate() {
        let context = number as u64;
        let mut bytes = pattern(len, context);
        let kind = AccessKind::Write { from: segments(&mut bytes), data: Some(context + 500) };
        nodes[0].endpoint.access(request(1, key, 0, kind, context)).unwrap();
        run_until(&mut nodes, |nodes| nodes[1].done.len() > number);
        assert!(memory[..len] == bytes, "the bytes are there when the word is");
        let end = &nodes[1].done[number];
        assert_eq!((end.operation, end.data, end.result), (Operation::WrittenByPeer, Some(context + 500), Ok(())));
        assert_eq!(end.source, Some(nodes[0].address()));
        assert_eq!(ended(&mut nodes, context), Ok(()));
    }
    // A write that fails brings no word.
    let mut bytes = pattern(50_000, 1);
    let kind = AccessKind::Write { from: segments(&mut bytes), data: Some(1) };
    nodes[0].endpoint.access(request(1, key + 1, 0, kind, 100)).unwrap();
    assert_eq!(ended(&mut nodes, 100), Err(Failure::Access(AccessError::UnknownKey)));
    nodes[1].poll();
    assert_eq!(nodes[1].done.len(), LENGTHS.len());
}

#[test]
fn an_endpoint_that_expects_no_words_refuses_them() {
    let config = config(|config| config.accepts_words = false);
    let Nodes { mut nodes, regions } = with_regions(2, &config, Copier::cpu);
    let mut memory = vec![0; 100_000];
    let key = register(&regions[1], &mut memory, BOTH);
    for (context, len) in [0, 100, 100_000].into_iter().enumerate() {
        let mut bytes = pattern(len, 1);
        let kind = AccessKind::Write { from: segments(&mut bytes), data: Some(7) };
        nodes[0].endpoint.access(request(1, key, 0, kind, context as u64)).unwrap();
        assert_eq!(ended(&mut nodes, context as u64), Err(Failure::Access(AccessError::NotPermitted)));
    }
    nodes[1].poll();
    assert!(nodes[1].done.is_empty());
}

#[test]
fn injected_bytes_are_taken_before_the_call_returns() {
    let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), Copier::cpu);
    let mut memory = vec![0; 1 << 20];
    let key = register(&regions[1], &mut memory, BOTH);
    // In the first round, the connection is not open when the call returns.
    for round in 0..2 {
        for (number, &len) in LENGTHS.iter().enumerate() {
            let context = (round * 100 + number) as u64;
            let mut bytes = pattern(len, context);
            let kind = AccessKind::Write { from: segments(&mut bytes), data: None };
            let inject = AccessRequest { inject: true, ..request(1, key, 0, kind, context) };
            nodes[0].endpoint.access(inject).unwrap();
            bytes.fill(0);
            drop(bytes);
            if round == 1 {
                assert_eq!(ended(&mut nodes, context), Ok(()));
                assert!(memory[..len] == pattern(len, context), "{len} bytes");
            }
        }
        run_until(&mut nodes, |nodes| nodes[0].done.len() == (round + 1) * LENGTHS.len());
    }
    let inject = AccessRequest {
        inject: true,
        ..request(1, key, 0, AccessKind::Write { from: unmapped(100), data: None }, 900)
    };
    nodes[0].endpoint.access(inject).unwrap();
    assert!(matches!(ended(&mut nodes, 900), Err(Failure::BadBuffer { .. })));
}

#[test]
fn a_buffer_of_the_caller_that_is_not_mapped_fails_its_access_only() {
    let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), Copier::cpu);
    let mut memory = vec![0; 1 << 20];
    let key = register(&regions[1], &mut memory, BOTH);
    for (number, len) in [1, 24, 25, 8192, 9000, 1 << 20].into_iter().enumerate() {
        let context = 10 * number as u64;
        let kind = AccessKind::Write { from: unmapped(len), data: Some(1) };
        nodes[0].endpoint.access(request(1, key, 0, kind, context)).unwrap();
        assert_eq!(ended(&mut nodes, context), Err(Failure::BadBuffer { address: 4096 }), "{len} bytes");
        let kind = AccessKind::Read { into: unmapped(len) };
        nodes[0].endpoint.access(request(1, key, 0, kind, context + 1)).unwrap();
        let result = ended(&mut nodes, context + 1);
        assert!(matches!(result, Err(Failure::BadBuffer { .. })), "{len} bytes: {result:?}");
        nodes[0].write(1, key, 0, pattern(5000, context), context + 2);
        assert_eq!(ended(&mut nodes, context + 2), Ok(()));
    }
    assert_eq!(nodes[1].done.len(), 0, "no word arrives");
}

#[test]
fn a_region_whose_memory_is_not_mapped_fails_the_access() {
    let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), Copier::cpu);
    let region = Region { segments: unmapped(1 << 20), base: 0, permissions: BOTH };
    let key = regions[1].register(region, None).unwrap();
    for (number, len) in [1, 24, 25, 8192, 9000, 1 << 20].into_iter().enumerate() {
        let context = 10 * number as u64;
        nodes[0].write(1, key, 0, pattern(len, 1), context);
        assert_eq!(ended(&mut nodes, context), Err(Failure::Access(AccessError::NotMapped)), "{len} bytes");
        nodes[0].read(1, key, 0, len, context + 1);
        assert_eq!(ended(&mut nodes, context + 1), Err(Failure::Access(AccessError::NotMapped)), "{len} bytes");
    }
}

#[test]
fn long_accesses_let_short_accesses_and_messages_pass() {
    let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), Copier::cpu);
    let mut memory = vec![0; 32 << 20];
    let key = register(&regions[1], &mut memory, BOTH);
    nodes[0].write(1, key, 0, pattern(8, 1), 1);
    assert_eq!(ended(&mut nodes, 1), Ok(()));
    nodes[0].write(1, key, 0, pattern(32 << 20, 1), 2);
    nodes[0].read(1, key, 0, 32 << 20, 3);
    nodes[0].write(1, key, 0, pattern(8, 1), 4);
    nodes[0].read(1, key, 0, 8, 5);
    nodes[0].send(1, Some(1), pattern(8, 2), 6);
    nodes[0].send(1, Some(2), pattern(100_000, 2), 7);
    nodes[1].receive(None, crate::common::exact(1), 8, 1);
    nodes[1].receive(None, crate::common::exact(2), 100_000, 2);
    run_until(&mut nodes, |nodes| nodes[0].done.len() >= 5);
    let first: Vec<u64> = nodes[0].done.iter().map(|end| end.context).take(5).collect();
    assert!([1, 4, 5, 6, 7].iter().all(|context| first.contains(context)), "{first:?}");
    for context in [2, 3] {
        assert_eq!(ended(&mut nodes, context), Ok(()));
    }
}

#[test]
fn more_accesses_than_may_be_under_way_are_refused() {
    let config = config(|config| config.waiting_sends = 3);
    let Nodes { mut nodes, regions } = with_regions(2, &config, Copier::cpu);
    let mut memory = vec![0; 100];
    let key = register(&regions[1], &mut memory, BOTH);
    for context in 0..3 {
        nodes[0].write(1, key, 0, pattern(8, context), context);
    }
    let mut bytes = pattern(8, 3);
    let fourth = request(1, key, 0, AccessKind::Write { from: segments(&mut bytes), data: None }, 3);
    assert!(matches!(nodes[0].endpoint.access(fourth), Err(FabricError::Full { .. })));
    run_until(&mut nodes, |nodes| nodes[0].done.len() == 3);
    nodes[0].endpoint.access(fourth).unwrap();
    assert_eq!(ended(&mut nodes, 3), Ok(()));
}

#[test]
fn thousands_of_accesses_at_once_all_end() {
    // A small ring and few slots, so that everything waits for room.
    let config = config(|config| (config.ring_entries, config.slots) = (8, 2));
    let Nodes { mut nodes, regions } = with_regions(2, &config, Copier::cpu);
    let mut memory = vec![0; 1 << 20];
    let key = register(&regions[1], &mut memory, BOTH);
    let mut random = telpher_os::Random::new(1);
    for context in 0..3000 {
        let len = usize::try_from(random.below(if context % 10 == 0 { 60_000 } else { 200 })).unwrap();
        let address = random.below(900_000);
        match random.below(2) {
            0 => nodes[0].write(1, key, address, pattern(len, context), context),
            _ => nodes[0].read(1, key, address, len, context),
        }
    }
    run_until(&mut nodes, |nodes| nodes[0].done.len() == 3000);
    assert!(nodes[0].done.iter().all(|end| end.result.is_ok()));
}

#[test]
fn after_a_region_is_closed_no_byte_of_it_changes() {
    let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), Copier::cpu);
    let mut memory = vec![0_u8; 200_000];
    let mut target = nodes.pop().unwrap();
    let mut initiator = nodes.pop().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed: only the end of a loop.
            while !is_over.load(Ordering::Relaxed) {
                target.poll();
            }
        });
        let _ending = SetAtEnd(&is_over);
        let accesses = regions[1].clone();
        for round in 0..50 {
            let key = register(&accesses, &mut memory, BOTH);
            let start = Instant::now();
            for context in 0..3 {
                let seed = round * 10 + context;
                initiator.write(1, key, 0, pattern(200_000, seed), seed);
            }
            let mut before = Vec::new();
            while initiator.done.len() < 3 {
                initiator.poll();
                if before.is_empty() && (initiator.done.len() as u64 > round % 3 || start.elapsed() > HANG) {
                    assert!(accesses.close(key));
                    before.clone_from(&memory);
                }
            }
            assert!(before == memory, "round {round}");
            initiator.done.clear();
        }
    });
}

/// Sets a flag at the end of its scope, also if a test fails there.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The other endpoint is of a process whose threads do nothing for it.
#[test]
fn accesses_end_while_the_peer_makes_no_calls() {
    let regions = Arc::<Regions>::default();
    let config = Config::default();
    let target =
        Endpoint::open_with(config.clone(), Copier::cpu(), ProgressBy::HelperThread, Arc::clone(&regions)).unwrap();
    let node = Node::new(config, Copier::cpu(), ProgressBy::Caller);
    node.endpoint.insert_peer(&target.address()).unwrap();
    let mut memory = vec![0; 1 << 20];
    let key = register(&regions, &mut memory, BOTH);
    let mut nodes = [node];
    for (number, &len) in LENGTHS.iter().enumerate() {
        let context = 2 * number as u64;
        nodes[0].write(0, key, 0, pattern(len, context), context);
        assert_eq!(ended(&mut nodes, context), Ok(()));
        nodes[0].read(0, key, 0, len, context + 1);
        assert_eq!(ended(&mut nodes, context + 1), Ok(()));
        assert!(nodes[0].buffers[&(context + 1)] == pattern(len, context), "{len} bytes");
    }
}

#[test]
fn accesses_to_a_peer_that_ends_fail_once() {
    let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), Copier::cpu);
    let mut memory = vec![0; 1 << 20];
    let key = register(&regions[1], &mut memory, BOTH);
    nodes[0].write(1, key, 0, pattern(8, 1), 0);
    assert_eq!(ended(&mut nodes, 0), Ok(()));
    for (number, &len) in LENGTHS.iter().enumerate() {
        nodes[0].write(1, key, 0, pattern(len, 1), 1 + 2 * number as u64);
        nodes[0].read(1, key, 0, len, 2 + 2 * number as u64);
    }
    // The peer has answered nothing of this.
    drop(nodes.pop());
    let count = 1 + 2 * LENGTHS.len();
    run_until(&mut nodes, |nodes| nodes[0].done.len() == count);
    for context in 1..count as u64 {
        assert_eq!(nodes[0].end_of(context).result, Err(Failure::PeerDied));
    }
    let mut bytes = [0];
    let kind = AccessKind::Write { from: segments(&mut bytes), data: None };
    let refused = nodes[0].endpoint.access(request(1, key, 0, kind, 5000));
    assert!(matches!(refused, Err(FabricError::Unreachable { .. })), "{refused:?}");
}

#[test]
fn a_removed_peer_ends_its_accesses() {
    let mut nodes = nodes_with(2, &Config::default(), Copier::cpu);
    nodes[0].write(1, 5, 0, pattern(100_000, 1), 1);
    nodes[0].read(1, 5, 0, 8, 2);
    nodes[0].endpoint.remove_peer(PeerId(1)).unwrap();
    assert_eq!(ended(&mut nodes, 1), Err(Failure::Canceled));
    assert_eq!(ended(&mut nodes, 2), Err(Failure::Canceled));
}

#[test]
#[allow(unsafe_code, reason = "names memory that is not accessed")]
fn an_endpoint_without_regions_refuses_every_access() {
    let mut nodes = nodes(2);
    nodes[0].write(1, 0, 0, pattern(8, 1), 1);
    assert_eq!(ended(&mut nodes, 1), Err(Failure::Access(AccessError::UnknownKey)));
    // An access to no bytes needs no region.
    nodes[0].write(1, 0, 0, Vec::new(), 2);
    assert_eq!(ended(&mut nodes, 2), Ok(()));
    // SAFETY: the length makes the call fail before any access.
    let buffer = unsafe { Buffer::vouch(4096, Config::default().memory_bytes + 1) };
    let kind = AccessKind::Write { from: Segments::new(&[buffer]).unwrap(), data: None };
    let inject = AccessRequest { inject: true, ..request(1, 0, 0, kind, 3) };
    assert!(matches!(nodes[0].endpoint.access(inject), Err(FabricError::Limit { .. })));
}
