//! Random messages among 2 to 8 endpoints, every byte of which is checked. The lengths are around the limits of all
//! protocols; the buffers are private or shared. Some endpoints have a device, and some read from their peers' memory.

use crate::common::{HANG, Node, config, exact, pattern, segments, send_request};
use crate::mapped::{Bytes, MAPPED, file};
use std::collections::HashMap;
use std::ptr;
use std::sync::Arc;
use std::time::Instant;
use telpher_device::{ModelDevice, ModelOptions};
use telpher_fabric::{Copier, PeerId, ProgressBy};
use telpher_mover::{Channel, ChannelPolicy};
use telpher_os::Random;
use telpher_portal::Portal;

const LENGTHS: [u64; 12] = [0, 1, 32, 33, 1024, 1025, 8192, 8193, 16_384, 100_000, 262_144, 300_000];
/// Messages of an endpoint that are under way, on average.
const UNDER_WAY: usize = 6;

/// A message under way.
struct Message {
    from: usize,
    to: usize,
    len: usize,
    is_shared: bool,
    /// Operations that have not ended.
    open: u8,
}

struct Ranks {
    random: Random,
    nodes: Vec<Node>,
    /// A shared mapping of each, and whether a message uses it.
    shared: Vec<(Bytes, bool)>,
    messages: HashMap<u64, Message>,
    next_tag: u64,
    longest: u64,
}

impl Ranks {
    fn new(ranks: usize, seed: u64, longest: u64, portal: &Arc<dyn Portal>) -> Ranks {
        let open = |rank: usize| {
            let config = config(|config| {
                config.mapped_bytes = 16 << 10;
                config.pull_bytes = if rank % 3 == 2 { 64 << 10 } else { u64::MAX };
            });
            let channel = || Channel::new(Arc::clone(portal), 16, ChannelPolicy::default()).unwrap();
            let copier = if rank % 2 == 1 { Copier::device(channel(), 4096) } else { Copier::cpu() };
            Node::new(config, copier, ProgressBy::Caller)
        };
        let nodes: Vec<Node> = (0..ranks).map(open).collect();
        for node in &nodes {
            for peer in &nodes {
                node.endpoint.insert_peer(&peer.address()).unwrap();
            }
        }
        let shared = |_| (Bytes::shared(&file("telpher-fabric-soak"), ptr::null_mut()), false);
        let shared = (0..ranks).map(shared).collect();
        Ranks { random: Random::new(seed), nodes, shared, messages: HashMap::new(), next_tag: 0, longest }
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.random.below(limit as u64)).unwrap()
    }

    /// Starts a message between two endpoints, which may be the same.
    fn start(&mut self) {
        let (from, to) = (self.below(self.nodes.len()), self.below(self.nodes.len()));
        let chosen = self.below(LENGTHS.len() + 4);
        let len = LENGTHS.get(chosen).copied().unwrap_or_else(|| self.random.below(self.longest));
        let len = usize::try_from(len).unwrap();
        self.next_tag += 1;
        let tag = self.next_tag;
        let is_shared = len <= MAPPED && !self.shared[from].1 && self.random.below(2) == 0;
        let source = (self.random.below(2) == 0).then_some(from as u64);
        let is_posted_first = self.random.below(2) == 0;
        if is_posted_first {
            self.nodes[to].receive(source, exact(tag), len, 2 * tag + 1);
        }
        if is_shared {
            let (bytes, is_used) = &mut self.shared[from];
            *is_used = true;
            bytes.part(MAPPED - len, len).copy_from_slice(&pattern(len, tag));
            let request = send_request(PeerId(to as u64), segments(bytes.part(MAPPED - len, len)), Some(tag), 2 * tag);
            self.nodes[from].endpoint.send(request).unwrap();
        } else {
            self.nodes[from].send(to as u64, Some(tag), pattern(len, tag), 2 * tag);
        }
        if !is_posted_first {
            self.nodes[to].receive(source, exact(tag), len, 2 * tag + 1);
        }
        self.messages.insert(tag, Message { from, to, len, is_shared, open: 2 });
    }

    /// Moves all messages on, and checks those that have ended. Returns how many operations have.
    fn advance(&mut self) -> usize {
        let mut count = 0;
        for (rank, node) in self.nodes.iter_mut().enumerate() {
            node.poll();
            for end in std::mem::take(&mut node.done) {
                count += 1;
                let tag = end.context / 2;
                let message = self.messages.get_mut(&tag).unwrap();
                assert_eq!(end.result, Ok(()), "message {tag} of {} bytes", message.len);
                let bytes = node.buffers.remove(&end.context);
                if end.context.is_multiple_of(2) {
                    assert_eq!(message.from, rank);
                    if message.is_shared {
                        self.shared[rank].1 = false;
                    }
                } else {
                    assert_eq!((message.to, end.len), (rank, message.len as u64));
                    assert!(bytes.unwrap() == pattern(message.len, tag), "bytes of message {tag}: {}", message.len);
                }
                message.open -= 1;
                if message.open == 0 {
                    self.messages.remove(&tag);
                }
            }
        }
        count
    }

    fn exchange(&mut self, count: u64) {
        let mut last = Instant::now();
        while self.next_tag < count || !self.messages.is_empty() {
            while self.next_tag < count && self.messages.len() < UNDER_WAY * self.nodes.len() {
                self.start();
            }
            if self.advance() > 0 {
                last = Instant::now();
            } else {
                assert!(last.elapsed() < HANG, "{} messages do not move", self.messages.len());
                std::thread::yield_now();
            }
        }
        let stats: Vec<_> = self.nodes.iter().map(|node| node.endpoint.statistics()).collect();
        assert_eq!(stats.iter().map(|stats| stats.messages_received).sum::<u64>(), count);
        assert!(stats.iter().all(|stats| stats.unexpected_bytes == 0 && stats.peers_broken == 0), "{stats:?}");
    }
}

fn soak(ranks: impl IntoIterator<Item = usize>, messages: u64, longest: u64) {
    let device = ModelDevice::start(ModelOptions::default()).unwrap();
    let portal = device.portal("wq0.0").unwrap();
    for ranks in ranks {
        Ranks::new(ranks, ranks as u64, longest, &portal).exchange(messages);
    }
}

#[test]
fn messages_of_two_to_eight_ranks_keep_their_bytes() {
    soak([2, 3, 5, 8], 150, 500_000);
}

#[test]
#[ignore = "several minutes: `./soak` runs it"]
fn long_messages_of_two_to_eight_ranks_keep_their_bytes_for_long() {
    soak(2..=8, 4_000, 16 << 20);
}
