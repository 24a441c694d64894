//! Which queue is asked first on a machine with several nodes.

use crate::common::device::TestDevice;
use crate::common::{clock, policy};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use telpher_mover::{Mover, Policy, Retry, Route, Split, Topology};
use telpher_portal::Portal;

/// Two sockets, nodes 0 and 1, and their high-bandwidth memory, nodes 2 and 3, with the firmware's distances.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    thread: Mutex<Option<u32>>,
    /// The node of memory ranges, by their first address; each range reaches up to the next.
    memory: Mutex<BTreeMap<u64, Option<u32>>>,
    pub(crate) asked: Mutex<usize>,
}

impl Machine {
    fn put(&self, bytes: &[u8], node: Option<u32>) {
        let first = bytes.as_ptr() as u64;
        let mut memory = self.memory.lock().unwrap();
        memory.insert(first, node);
        memory.entry(first + bytes.len() as u64).or_insert(None);
    }

    pub(crate) fn run_on(&self, node: Option<u32>) {
        *self.thread.lock().unwrap() = node;
    }
}

impl Topology for Machine {
    fn nodes(&self) -> u32 {
        4
    }

    fn distance(&self, from: u32, to: u32) -> u32 {
        [[10, 21, 13, 23], [21, 10, 23, 13], [13, 23, 10, 33], [23, 13, 33, 10]][from as usize][to as usize]
    }

    fn of_this_thread(&self) -> Option<u32> {
        *self.asked.lock().unwrap() += 1;
        *self.thread.lock().unwrap()
    }

    fn of_memory(&self, address: u64) -> Option<u32> {
        *self.asked.lock().unwrap() += 1;
        self.memory.lock().unwrap().range(..=address).next_back().and_then(|(_, node)| *node)
    }
}

struct World {
    machine: Arc<Machine>,
    devices: Vec<Arc<TestDevice>>,
    mover: Mover,
}

impl World {
    /// A world with one device on each of these nodes.
    fn new(nodes: &[Option<u32>], policy: Policy) -> Self {
        let device = |(i, &node): (usize, &Option<u32>)| {
            Arc::new(TestDevice::with(|info| {
                info.name = format!("wq{i}.0");
                info.numa_node = node;
            }))
        };
        let devices: Vec<_> = nodes.iter().enumerate().map(device).collect();
        let portals: Vec<_> = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Portal>).collect();
        let machine = Arc::new(Machine::default());
        let topology = Arc::clone(&machine) as Arc<dyn Topology>;
        World { mover: Mover::with_topology(portals, policy, clock(), topology), machine, devices }
    }

    /// Returns the descriptors that each device has taken since the last call.
    fn taken(&self) -> Vec<usize> {
        self.devices.iter().map(|device| std::mem::take(&mut device.state().taken).len()).collect()
    }

    fn copy(&self, src: Option<u32>, dst: Option<u32>, len: usize) {
        let (a, b) = (vec![7_u8; len], vec![0_u8; len]);
        self.machine.put(&a, src);
        self.machine.put(&b, dst);
        let done = self.mover.copy(a, b).wait();
        assert!(done.result.is_ok() && done.buffers.0 == done.buffers.1);
    }
}

impl World {
    /// Makes `count` copies, all in flight before the first is waited for.
    fn copies(&self, count: usize) {
        let jobs: Vec<_> = (0..count).map(|_| self.mover.copy(vec![7_u8; 100], vec![0_u8; 100])).collect();
        for job in jobs {
            let done = job.wait();
            assert!(done.result.is_ok() && done.buffers.0 == done.buffers.1);
        }
    }
}

const BOTH: [Option<u32>; 4] = [Some(0), Some(0), Some(1), Some(1)];

fn by(route: Route) -> Policy {
    Policy { route, ..policy() }
}

#[test]
fn local_spreads_what_is_in_flight_over_the_devices_of_the_threads_node() {
    let world = World::new(&BOTH, by(Route::Local));
    for (node, expected) in [(0, [2, 2, 0, 0]), (1, [0, 0, 2, 2]), (2, [2, 2, 0, 0]), (3, [0, 0, 2, 2])] {
        world.machine.run_on(Some(node));
        world.copies(4);
        assert_eq!(world.taken(), expected, "node {node}");
    }
    world.machine.run_on(None);
    world.copies(4);
    assert_eq!(world.taken(), [1; 4], "the node of the thread is unknown");
    world.machine.run_on(Some(77));
    world.copies(4);
    assert_eq!(world.taken(), [1; 4], "the node is not in the map");
}

#[test]
fn push_pull_takes_turns_between_source_and_destination() {
    let world = World::new(&BOTH, by(Route::PushPull));
    world.machine.run_on(Some(1));
    for (src, dst, expected) in [
        (Some(0), Some(1), [1, 1, 1, 1]),
        (Some(1), Some(0), [1, 1, 1, 1]),
        (Some(0), Some(0), [2, 2, 0, 0]),
        (Some(3), Some(1), [0, 0, 2, 2]),
        (Some(2), Some(3), [1, 1, 1, 1]),
        // Missing memory is allocated on the thread's node.
        (Some(1), None, [0, 0, 2, 2]),
        (None, Some(0), [1, 1, 1, 1]),
    ] {
        (0..4).for_each(|_| world.copy(src, dst, 100));
        assert_eq!(world.taken(), expected, "from {src:?} to {dst:?}");
    }
}

#[test]
fn an_operation_with_one_side_goes_to_that_node() {
    let world = World::new(&BOTH, by(Route::PushPull));
    world.machine.run_on(Some(0));
    let bytes = vec![0_u8; 100];
    world.machine.put(&bytes, Some(1));
    let done = world.mover.fill(bytes, 7).wait();
    let done = world.mover.crc(done.buffers.0, 0, telpher_mover::CrcMode::default()).wait();
    assert!(done.result.is_ok());
    let taken = world.taken();
    assert_eq!((taken[0] + taken[1], taken[2] + taken[3]), (0, 2));
}

#[test]
fn a_split_copy_uses_both_nodes_and_no_third_one() {
    let split = Split { above: 64 << 10, ways: 2, ..Split::default() };
    let nodes = [Some(0), Some(0), Some(1), Some(1), Some(2)];
    let world = World::new(&nodes, Policy { split, ..by(Route::PushPull) });
    world.machine.run_on(Some(2));
    world.copy(Some(0), Some(1), 1 << 20);
    let taken = world.taken();
    assert!(taken[0] + taken[1] > 0 && taken[2] + taken[3] > 0 && taken[4] == 0, "{taken:?}");
    assert_eq!(taken.iter().filter(|&&taken| taken > 0).count(), 2, "{taken:?}");
    // Near one node there are only two queues, however many the policy allows.
    let split = Split { ways: 9, ..split };
    for route in [Route::Local, Route::PushPull] {
        let world = World::new(&nodes, Policy { split, ..by(route) });
        world.machine.run_on(Some(1));
        world.copy(Some(1), Some(1), 1 << 20);
        let taken = world.taken();
        assert!(taken[2] > 0 && taken[3] > 0 && [taken[0], taken[1], taken[4]] == [0; 3], "{route:?}: {taken:?}");
    }
}

#[test]
fn a_batch_goes_to_the_node_of_its_first_member_with_buffers() {
    let world = World::new(&BOTH, by(Route::PushPull));
    let (src, dst) = (vec![1_u8; 100], vec![0_u8; 100]);
    world.machine.put(&src, Some(1));
    world.machine.put(&dst, Some(1));
    let mut batch = world.mover.batch();
    let _ = batch.nop();
    let _ = batch.copy(src, dst);
    assert!(batch.submit().wait().results().all(|(_, result)| result.is_ok()));
    let taken = world.taken();
    assert_eq!((taken[0] + taken[1], taken[2] + taken[3]), (0, 1), "one list");
}

#[test]
fn a_thread_that_waits_for_each_copy_uses_one_near_queue() {
    let world = World::new(&BOTH, by(Route::Local));
    world.machine.run_on(Some(1));
    for _ in 0..8 {
        std::thread::scope(|scope| {
            scope.spawn(|| (0..4).for_each(|_| world.copy(None, None, 100)));
        });
        let taken = world.taken();
        assert!(taken == [0, 0, 4, 0] || taken == [0, 0, 0, 4], "{taken:?}");
    }
}

#[test]
fn far_queues_are_used_when_a_near_one_is_full() {
    let retry = Retry { attempts: 3, ..Retry::default() };
    let world = World::new(&[Some(0), Some(1)], Policy { retry, ..by(Route::Local) });
    world.machine.run_on(Some(0));
    world.devices[0].state().retries = u64::MAX;
    world.copy(None, None, 100);
    assert_eq!(world.taken(), [0, 1]);
}

#[test]
fn the_topology_is_not_used_if_nearness_decides_nothing() {
    for nodes in [[None; 3], [Some(1); 3], [Some(1), None, Some(1)]] {
        for route in [Route::Local, Route::PushPull, Route::RoundRobin] {
            let world = World::new(&nodes, by(route));
            world.copies(6);
            assert_eq!(world.taken(), [2; 3], "{nodes:?}, {route:?}");
            assert_eq!(*world.machine.asked.lock().unwrap(), 0);
        }
    }
    let world = World::new(&BOTH, by(Route::RoundRobin));
    world.copy(Some(0), Some(1), 100);
    assert_eq!(*world.machine.asked.lock().unwrap(), 0);
}
