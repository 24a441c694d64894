//! Endpoints of one process, their buffers, and the loop that moves them on.

use std::collections::HashMap;
use std::time::{Duration, Instant};
use telpher_fabric::{
    Address, Buffer, Completes, Completion, Config, Copier, Endpoint, FabricError, Failure, Operation, PeerId,
    ProbeAction, ProbeRequest, ProgressBy, ReceiveRequest, Segments, SendEnd, SendRequest, TagMatch,
};

/// A run that takes longer hangs. No test measures time.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// An endpoint and the buffers of its operations.
pub(crate) struct Node {
    pub(crate) endpoint: Endpoint,
    pub(crate) done: Vec<Completion>,
    /// The buffers by the contexts of their operations.
    pub(crate) buffers: HashMap<u64, Vec<u8>>,
}

/// Names the bytes of a buffer that a node keeps until the end of the test.
#[allow(unsafe_code, reason = "the buffers of the operations under test")]
pub(crate) fn segments(bytes: &mut [u8]) -> Segments {
    // SAFETY: the tests keep each buffer until its operation has completed, and do not touch it before.
    Segments::new(&[unsafe { Buffer::vouch(bytes.as_mut_ptr() as u64, bytes.len() as u64) }]).unwrap()
}

/// Names memory that is not mapped.
#[allow(unsafe_code, reason = "a buffer that is not mapped")]
pub(crate) fn unmapped(len: u64) -> Segments {
    // SAFETY: nothing is ever mapped at page 1, since `vm.mmap_min_addr` is above it.
    Segments::new(&[unsafe { Buffer::vouch(4096, len) }]).unwrap()
}

/// The bytes of a message; they differ between seeds and between places.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    telpher_os::Random::new(seed).fill(&mut bytes);
    bytes
}

pub(crate) const fn exact(tag: u64) -> Option<TagMatch> {
    Some(TagMatch { tag, ignore: 0 })
}

pub(crate) const ANY_TAG: Option<TagMatch> = Some(TagMatch { tag: 0, ignore: u64::MAX });

pub(crate) fn send_request(to: PeerId, segments: Segments, tag: Option<u64>, context: u64) -> SendRequest {
    SendRequest {
        to,
        segments,
        tag,
        data: Some(context + 1000),
        context,
        completes: Completes::Always,
        end: SendEnd::BufferFree,
        inject: false,
    }
}

pub(crate) fn receive_request(
    from: Option<PeerId>,
    tag: Option<TagMatch>,
    segments: Segments,
    context: u64,
) -> ReceiveRequest {
    ReceiveRequest { segments, from, tag, context, completes: Completes::Always, many: None }
}

impl Node {
    pub(crate) fn new(config: Config, copier: Copier, progress: ProgressBy) -> Node {
        let endpoint = Endpoint::open(config, copier, progress).unwrap();
        Node { endpoint, done: Vec::new(), buffers: HashMap::new() }
    }

    pub(crate) fn address(&self) -> Address {
        self.endpoint.address()
    }

    /// Sends bytes with a tag, or untagged.
    pub(crate) fn send(&mut self, to: u64, tag: Option<u64>, mut bytes: Vec<u8>, context: u64) {
        let request = send_request(PeerId(to), segments(&mut bytes), tag, context);
        assert!(self.buffers.insert(context, bytes).is_none());
        self.endpoint.send(request).unwrap();
    }

    /// Posts a receive.
    pub(crate) fn receive(&mut self, from: Option<u64>, tag: Option<TagMatch>, len: usize, context: u64) {
        let mut bytes = vec![0; len];
        let request = receive_request(from.map(PeerId), tag, segments(&mut bytes), context);
        assert!(self.buffers.insert(context, bytes).is_none());
        self.endpoint.receive(request).unwrap();
    }

    /// Posts a buffer for many messages.
    pub(crate) fn receive_many(&mut self, tag: Option<TagMatch>, len: usize, least: u64, context: u64) {
        let mut bytes = vec![0; len];
        let request = ReceiveRequest {
            many: Some(least),
            completes: Completes::OnError,
            ..receive_request(None, tag, segments(&mut bytes), context)
        };
        assert!(self.buffers.insert(context, bytes).is_none());
        self.endpoint.receive(request).unwrap();
    }

    pub(crate) fn probe(
        &mut self,
        from: Option<u64>,
        tag: Option<TagMatch>,
        context: u64,
        action: ProbeAction,
    ) -> Completion {
        self.endpoint.probe(ProbeRequest { from: from.map(PeerId), tag, context, action }).unwrap();
        let mut done = Vec::new();
        self.endpoint.completions(&mut done, usize::MAX);
        let at = done.iter().position(|end| end.operation == Operation::Probe).expect("a probe answers at once");
        let answer = done.remove(at);
        self.done.append(&mut done);
        answer
    }

    pub(crate) fn poll(&mut self) {
        self.endpoint.completions(&mut self.done, usize::MAX);
    }

    /// The completion of an operation, which is there exactly once.
    pub(crate) fn end_of(&self, context: u64) -> &Completion {
        let mut ends = self.done.iter().filter(|end| end.context == context);
        let first = ends.next().unwrap_or_else(|| panic!("operation {context} has not ended"));
        assert!(ends.next().is_none(), "operation {context} has ended twice");
        first
    }

    /// Checks a successful receive against the bytes that were sent.
    pub(crate) fn check_received(&self, context: u64, tag: u64, expected: &[u8]) {
        let end = self.end_of(context);
        assert_eq!(end.result, Ok(()), "receive {context}");
        assert_eq!((end.operation, end.tag, end.len), (Operation::Receive, tag, expected.len() as u64));
        assert!(self.buffers[&context][..expected.len()] == *expected, "bytes of receive {context}");
    }

    pub(crate) fn results(&self) -> Vec<(u64, Result<(), Failure>)> {
        self.done.iter().map(|end| (end.context, end.result)).collect()
    }
}

/// The default configuration with changes.
pub(crate) fn config(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::default();
    change(&mut config);
    config
}

/// Opens endpoints that have each other as peers; peer `i` of each is endpoint `i`, itself included.
pub(crate) fn nodes_with(count: usize, config: &Config, copier: impl Fn() -> Copier) -> Vec<Node> {
    let nodes: Vec<Node> = (0..count).map(|_| Node::new(config.clone(), copier(), ProgressBy::Caller)).collect();
    for node in &nodes {
        for (number, peer) in nodes.iter().enumerate() {
            assert_eq!(node.endpoint.insert_peer(&peer.address()).unwrap(), PeerId(number as u64));
        }
    }
    nodes
}

pub(crate) fn nodes(count: usize) -> Vec<Node> {
    nodes_with(count, &Config::default(), Copier::cpu)
}

/// Moves all endpoints on until the condition holds.
pub(crate) fn run_until(nodes: &mut [Node], mut condition: impl FnMut(&mut [Node]) -> bool) {
    let start = Instant::now();
    while !condition(nodes) {
        for node in &mut *nodes {
            node.poll();
        }
        if start.elapsed() > HANG {
            let ends: Vec<_> = nodes.iter().map(Node::results).collect();
            panic!("nothing moves any more; ended so far: {ends:?}");
        }
        std::thread::yield_now();
    }
}

/// Moves all endpoints on until each has as many completions.
pub(crate) fn run_until_done(nodes: &mut [Node], counts: &[usize]) {
    run_until(nodes, |nodes| nodes.iter().zip(counts).all(|(node, &count)| node.done.len() >= count));
    for (node, &count) in nodes.iter().zip(counts) {
        assert_eq!(node.done.len(), count, "no operation ends twice");
    }
}

/// True if the error is one of the expected variant.
pub(crate) fn is_unreachable(error: &FabricError) -> bool {
    matches!(error, FabricError::Unreachable { .. })
}

/// True if the error says that the endpoint is closed.
pub(crate) fn is_closed(error: &FabricError) -> bool {
    matches!(error, FabricError::Closed)
}
