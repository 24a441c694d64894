//! Peers in other processes, which are killed at random moments of every protocol.
//!
//! Each test runs this program once more, as the other process. Both sides exchange messages of random lengths. The tag
//! of a message is the seed of its bytes, so each side checks what it receives. Both also write to a region of the
//! other and read it.

use crate::common::{ANY_TAG, HANG, Node, exact, pattern, run_until};
use crate::rma::{BOTH, node_with, register};
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use telpher_fabric::address::ADDRESS_BYTES;
use telpher_fabric::{Address, Completion, Config, Copier, Failure, Operation, PeerId, ProgressBy};
use telpher_os::Random;

/// Set in the environment of the other process: the address of its peer.
const PEER: &str = "TELPHER_FABRIC_TEST_PEER";
/// Operations of each kind that are under way at a time.
const UNDER_WAY: u64 = 6;
const LENGTHS: [usize; 10] = [0, 8, 32, 33, 5000, 8192, 8193, 40_000, 300_000, 1 << 20];
const LONGEST: usize = 1 << 20;
/// The key of the region that each side has: the first one that a table chooses.
const REGION: u64 = 1;

fn hex(address: &Address) -> String {
    address.encode().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Address {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
    Address::decode(&(0..ADDRESS_BYTES).map(byte).collect::<Vec<u8>>()).unwrap()
}

/// Random traffic with one peer.
struct Traffic {
    random: Random,
    peer: u64,
    next: u64,
    open: HashSet<u64>,
    sends: u64,
    receives: u64,
    accesses: u64,
    received: u64,
}

impl Traffic {
    fn new(seed: u64, peer: u64) -> Traffic {
        let open = HashSet::new();
        Traffic { random: Random::new(seed), peer, next: 0, open, sends: 0, receives: 0, accesses: 0, received: 0 }
    }

    fn context(&mut self) -> u64 {
        self.next += 1;
        assert!(self.open.insert(self.next));
        self.next
    }

    /// Starts operations until enough are under way.
    fn refill(&mut self, node: &mut Node) {
        while self.receives < UNDER_WAY {
            let context = self.context();
            node.receive(Some(self.peer), ANY_TAG, LONGEST, context);
            self.receives += 1;
        }
        while self.sends < UNDER_WAY {
            let (context, tag) = (self.context(), self.random.next());
            let len = LENGTHS[usize::try_from(self.random.below(LENGTHS.len() as u64)).unwrap()];
            node.send(self.peer, Some(tag), pattern(len, tag), context);
            self.sends += 1;
        }
        while self.accesses < UNDER_WAY {
            let context = self.context();
            let len = LENGTHS[usize::try_from(self.random.below(LENGTHS.len() as u64)).unwrap()];
            let address = self.random.below((LONGEST - len) as u64 + 1);
            match self.random.below(2) {
                0 => node.write(self.peer, REGION, address, pattern(len, context), context),
                _ => node.read(self.peer, REGION, address, len, context),
            }
            self.accesses += 1;
        }
    }

    /// Takes the ends of operations, and checks what was received.
    fn ended(&mut self, node: &mut Node) -> Vec<Completion> {
        node.poll();
        let done: Vec<Completion> = node.done.drain(..).collect();
        for end in &done {
            assert!(self.open.remove(&end.context), "operation {} has ended twice", end.context);
            let bytes = node.buffers.remove(&end.context).unwrap();
            if end.operation == Operation::Send {
                self.sends -= 1;
                continue;
            }
            if end.operation != Operation::Receive {
                self.accesses -= 1;
                continue;
            }
            self.receives -= 1;
            if end.result.is_ok() {
                self.received += 1;
                let len = usize::try_from(end.len).unwrap();
                assert!(bytes[..len] == pattern(len, end.tag), "bytes of the message with tag {:#x}", end.tag);
            }
        }
        done
    }
}

/// The other process: exchanges messages until it is killed. In the test's own process this does nothing.
#[test]
fn the_other_process() {
    let Ok(peer) = std::env::var(PEER) else { return };
    let (mut node, regions) = node_with(&Config::default(), Copier::cpu());
    let mut memory = vec![0; LONGEST];
    assert_eq!(register(&regions, &mut memory, BOTH), REGION);
    node.endpoint.insert_peer(&from_hex(&peer)).unwrap();
    println!("address {}", hex(&node.address()));
    std::io::stdout().flush().unwrap();
    let mut traffic = Traffic::new(node.address().number, 0);
    let start = Instant::now();
    // If the test dies before it kills this process, the receives fail.
    while start.elapsed() < HANG {
        traffic.refill(&mut node);
        if traffic.ended(&mut node).iter().any(|end| end.result.is_err()) {
            return;
        }
        std::thread::yield_now();
    }
}

/// Starts the other process, and returns its address.
fn start(peer: &Address) -> (Child, Address) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kills::the_other_process", "--nocapture", "--test-threads=1"])
        .env(PEER, hex(peer))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines.map_while(Result::ok).find_map(|line| Some(from_hex(line.split_once("address ")?.1)));
    (child, address.expect("the other process has an endpoint"))
}

#[test]
fn a_peer_that_is_killed_at_any_moment_ends_its_operations_only() {
    kill_peers(0..20);
}

#[test]
#[ignore = "several minutes: `./soak` runs it"]
fn a_thousand_killed_peers_end_their_operations_only() {
    kill_peers(0..1000);
}

fn kill_peers(seeds: Range<u64>) {
    for seed in seeds {
        let (node, regions) = node_with(&Config::default(), Copier::cpu());
        let mut memory = vec![0; LONGEST];
        assert_eq!(register(&regions, &mut memory, BOTH), REGION);
        let mut nodes = vec![node, Node::new(Config::default(), Copier::cpu(), ProgressBy::Caller)];
        let (mut child, address) = start(&nodes[0].address());
        let witness = nodes[1].address();
        assert_eq!(nodes[0].endpoint.insert_peer(&address).unwrap(), PeerId(0));
        assert_eq!(nodes[0].endpoint.insert_peer(&witness).unwrap(), PeerId(1));
        let own = nodes[0].address();
        nodes[1].endpoint.insert_peer(&own).unwrap();
        let mut random = Random::new(seed);
        let mut traffic = Traffic::new(seed, 0);
        // The kill comes after a number of messages, and then after a number of passes.
        let (messages, mut passes) = (random.below(30), random.below(300));
        let begin = Instant::now();
        while traffic.received < messages || passes > 0 {
            assert!(begin.elapsed() < HANG, "seed {seed}: {} of {messages} messages arrived", traffic.received);
            passes = passes.saturating_sub(u64::from(traffic.received >= messages));
            traffic.refill(&mut nodes[0]);
            for end in traffic.ended(&mut nodes[0]) {
                assert_eq!(end.result, Ok(()), "seed {seed}: the other process lives");
            }
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let begin = Instant::now();
        while !traffic.open.is_empty() {
            assert!(begin.elapsed() < HANG, "seed {seed}: operations {:?} do not end", traffic.open);
            for end in traffic.ended(&mut nodes[0]) {
                assert!(matches!(end.result, Ok(()) | Err(Failure::PeerDied)), "seed {seed}: {end:?}");
            }
            std::thread::yield_now();
        }
        // Other peers are not affected.
        nodes[1].send(0, Some(1), pattern(300_000, 1), 1);
        nodes[0].receive(Some(1), exact(1), 300_000, 1_000_000);
        run_until(&mut nodes, |nodes| nodes[0].done.len() == 1);
        nodes[0].check_received(1_000_000, 1, &pattern(300_000, 1));
    }
}
