//! Copies by a modelled device, whole, refused, faulting, late, and stopped.

use crate::common::{Node, exact, nodes_with, pattern, run_until, run_until_done};
use crate::rma::{BOTH, Nodes, ended, register, with_regions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use telpher_abi::registers::{Command, CommandCode};
use telpher_abi::{CompletionRecord, Descriptor, Opcode, Status, StatusByte};
use telpher_device::{ModelDevice, ModelOptions, Residency};
use telpher_fabric::{Config, Copier, Failure, PeerId, ProgressBy};
use telpher_mem::{PAGE_BYTES, Pages};
use telpher_mover::{Channel, ChannelPolicy, ManualClock};
use telpher_portal::mock::MockPortal;
use telpher_portal::{Health, Offer, Portal, QueueInfo, QueueMode, RecordCell, Submission, Watch};

const LENGTHS: [usize; 6] = [8193, 16_384, 20_000, 100_000, 1 << 20, 3 << 20];

fn copier(portal: Arc<dyn Portal>, policy: ChannelPolicy) -> Copier {
    Copier::device(Channel::new(portal, 64, policy).unwrap(), 4096)
}

/// Sends messages of all lengths each way and checks their bytes.
fn exchange(nodes: &mut [Node], round: u64) {
    exchange_of(nodes, &LENGTHS, round);
}

fn exchange_of(nodes: &mut [Node], lengths: &[usize], round: u64) {
    for (number, &len) in lengths.iter().enumerate() {
        let context = round * 100 + number as u64;
        for side in [0, 1] {
            nodes[side].send(1 - side as u64, Some(context), pattern(len, context + side as u64), context);
        }
        for node in &mut *nodes {
            node.receive(None, exact(context), len, context + 50);
        }
    }
    let ends = nodes[0].done.len() + 2 * lengths.len();
    run_until_done(nodes, &[ends, ends]);
    for (number, &len) in lengths.iter().enumerate() {
        let context = round * 100 + number as u64;
        for side in [0, 1] {
            nodes[side].check_received(context + 50, context, &pattern(len, context + 1 - side as u64));
        }
    }
}

fn by_device(node: &Node) -> u64 {
    node.endpoint.statistics().pieces_by_device
}

fn by_fallback(node: &Node) -> u64 {
    node.endpoint.statistics().pieces_by_fallback()
}

#[test]
fn a_device_copies_the_pieces_on_both_sides() {
    let device = ModelDevice::start(ModelOptions::default()).unwrap();
    for bursts in [false, true] {
        let policy = ChannelPolicy { bursts, ..ChannelPolicy::default() };
        let mut nodes = nodes_with(2, &Config::default(), || copier(device.portal("wq0.0").unwrap(), policy));
        for round in 0..3 {
            exchange(&mut nodes, round);
        }
        for node in &nodes {
            let pieces: usize = LENGTHS.iter().map(|len| len.div_ceil(16 << 10)).sum();
            // Each piece is copied in and, by the other endpoint, out. The CPU does what the channel has no room for.
            let stats = node.endpoint.statistics();
            assert_eq!(stats.pieces_by_device + stats.pieces_by_cpu, 3 * 2 * pieces as u64);
            assert!(stats.pieces_by_device > 0, "{stats:?}");
            assert_eq!(stats.pieces_by_fallback(), 0);
        }
    }
}

/// How a descriptor is spoiled.
#[derive(Clone, Copy, Debug)]
enum Spoil {
    /// The device refuses it.
    Opcode,
    /// Its source is not mapped.
    Source,
    /// Its destination is not mapped.
    Destination,
}

/// A portal that spoils every third descriptor.
#[derive(Debug)]
struct Spoiler {
    inner: Arc<dyn Portal>,
    offers: AtomicU64,
    spoil: Spoil,
}

#[allow(unsafe_code, reason = "passes descriptors on, or spoiled ones that touch no memory but their record")]
// SAFETY: the inner portal executes what the caller vouched for. A spoiled descriptor names unmapped memory, which
// needs no promise, or a part of what the caller vouched for.
unsafe impl Portal for Spoiler {
    fn info(&self) -> &QueueInfo {
        self.inner.info()
    }

    fn offer(&self, submission: &Submission) -> Offer {
        let mut bytes = submission.descriptor().to_bytes();
        if self.offers.fetch_add(1, Ordering::Relaxed) % 3 == 1 {
            match self.spoil {
                Spoil::Opcode => bytes[7] = 0x7f,
                Spoil::Source => bytes[16..24].copy_from_slice(&4096_u64.to_le_bytes()),
                Spoil::Destination => bytes[24..32].copy_from_slice(&4096_u64.to_le_bytes()),
            }
        }
        // SAFETY: see above.
        self.inner.offer(&unsafe { Submission::vouch(Descriptor::from_bytes(&bytes)) })
    }

    fn drive(&self) {
        self.inner.drive();
    }

    fn watch(&self, record: &RecordCell, how: Watch, at_most: Duration) {
        self.inner.watch(record, how, at_most);
    }

    fn health(&self) -> Health {
        self.inner.health()
    }
}

#[test]
fn what_a_device_refuses_or_cannot_access_is_copied_by_the_cpu() {
    for spoil in [Spoil::Opcode, Spoil::Source, Spoil::Destination] {
        let device = ModelDevice::start(ModelOptions::default()).unwrap();
        let policy = ChannelPolicy { bursts: false, ..ChannelPolicy::default() };
        let mut nodes = nodes_with(2, &Config::default(), || {
            let inner = device.portal("wq0.0").unwrap();
            copier(Arc::new(Spoiler { inner, offers: AtomicU64::new(0), spoil }), policy)
        });
        exchange(&mut nodes, 0);
        for node in &nodes {
            assert!(by_fallback(node) > 0 && by_device(node) > 0, "{spoil:?}: {:?}", node.endpoint.statistics());
        }
    }
}

/// A portal that ends every third copy itself, in its middle.
#[derive(Debug)]
struct Interrupter {
    inner: Arc<dyn Portal>,
    offers: AtomicU64,
    status: StatusByte,
}

#[allow(unsafe_code, reason = "plays a device that ends copies in their middle")]
// SAFETY: the inner portal executes what the caller vouched for. `interrupt` accesses a part of that.
unsafe impl Portal for Interrupter {
    fn info(&self) -> &QueueInfo {
        self.inner.info()
    }

    fn offer(&self, submission: &Submission) -> Offer {
        if self.offers.fetch_add(1, Ordering::Relaxed) % 3 != 1 {
            return self.inner.offer(submission);
        }
        interrupt(submission.descriptor(), self.status);
        Offer::Taken
    }

    fn drive(&self) {
        self.inner.drive();
    }

    fn watch(&self, record: &RecordCell, how: Watch, at_most: Duration) {
        self.inner.watch(record, how, at_most);
    }

    fn health(&self) -> Health {
        self.inner.health()
    }
}

/// The record, the source, the destination and the length of a copy.
fn operands(descriptor: &Descriptor) -> (u64, u64, u64, u32) {
    assert_eq!(descriptor.opcode(), Opcode::MemoryMove);
    let bytes = descriptor.to_bytes();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    (word(8), word(16), word(24), u32::from_le_bytes(bytes[32..36].try_into().unwrap()))
}

/// Copies the first half and ends with the status. Only page faults say how far a copy came; with other statuses, the
/// half is wrong.
#[allow(unsafe_code, reason = "plays a device that ends copies in their middle")]
fn interrupt(descriptor: &Descriptor, status: StatusByte) {
    let (record, from, to, len) = operands(descriptor);
    let half = len / 2;
    let faults = matches!(status.status(), Status::PageFault | Status::PageFaultRefused);
    let fault_address = if status.is_write() { to } else { from } + u64::from(half);
    let written = CompletionRecord::new(status).with_bytes_completed(half).with_fault_address(fault_address);
    // SAFETY: the descriptor was vouched for, and its record is not written yet: the device owns both ranges. The
    // status is written last.
    unsafe {
        if faults {
            std::ptr::copy(from as *const u8, to as *mut u8, half as usize);
        } else {
            std::ptr::write_bytes(to as *mut u8, 0xbb, half as usize);
        }
        for (at, word) in written.0.iter().enumerate().rev() {
            std::ptr::write_volatile((record as *mut u64).add(at), *word);
        }
    }
}

#[test]
fn every_status_in_the_middle_of_a_message_leaves_its_bytes_right() {
    let faults = [Status::PageFault, Status::PageFaultRefused]
        .into_iter()
        .flat_map(|status| [false, true].map(|is_write| StatusByte::fault(status, is_write)));
    // All others but those of success. The last one is unknown.
    let others = (0x05..=0x24).chain([0x3f]).map(StatusByte);
    for status in faults.chain(others) {
        let device = ModelDevice::start(ModelOptions::default()).unwrap();
        let policy = ChannelPolicy { bursts: false, ..ChannelPolicy::default() };
        let mut nodes = nodes_with(2, &Config::default(), || {
            let inner = device.portal("wq0.0").unwrap();
            copier(Arc::new(Interrupter { inner, offers: AtomicU64::new(0), status }), policy)
        });
        exchange_of(&mut nodes, &[20_000, 100_000], 0);
        assert!(nodes.iter().all(|node| by_device(node) + by_fallback(node) > 0), "{status:?}");
    }
}

/// A portal of a device that takes descriptors, executes none, and halts.
#[derive(Debug)]
struct Halting {
    inner: MockPortal,
    has_halted: AtomicBool,
}

#[allow(unsafe_code, reason = "passes descriptors to a portal that executes none")]
// SAFETY: it executes nothing.
unsafe impl Portal for Halting {
    fn info(&self) -> &QueueInfo {
        self.inner.info()
    }

    fn offer(&self, submission: &Submission) -> Offer {
        if self.has_halted.load(Ordering::Relaxed) { Offer::Retry } else { self.inner.offer(submission) }
    }

    fn health(&self) -> Health {
        if self.has_halted.load(Ordering::Relaxed) { Health::Stopped("it has halted".into()) } else { Health::Working }
    }
}

#[test]
fn a_device_that_halts_leaves_what_it_took_to_the_cpu() {
    let inner = MockPortal::new(QueueMode::Shared, 64);
    let halting = Arc::new(Halting { inner, has_halted: AtomicBool::new(false) });
    let mut policy = ChannelPolicy { bursts: false, ..ChannelPolicy::default() };
    policy.patience = Duration::from_micros(100);
    let mut nodes = nodes_with(2, &Config::default(), || {
        let portal: Arc<dyn Portal> = Arc::<Halting>::clone(&halting);
        copier(portal, policy)
    });
    for side in [0, 1] {
        nodes[side].send(1 - side as u64, Some(1), pattern(40_000, side as u64), 1);
        nodes[side].receive(None, exact(1), 40_000, 2);
    }
    // Both sides have offered the pieces of their message.
    run_until(&mut nodes, |_| halting.inner.waiting() == 6);
    halting.has_halted.store(true, Ordering::Relaxed);
    run_until_done(&mut nodes, &[2, 2]);
    for side in [0, 1] {
        nodes[side].check_received(2, 1, &pattern(40_000, 1 - side as u64));
        assert!(by_device(&nodes[side]) == 0 && by_fallback(&nodes[side]) >= 3);
    }
}

#[test]
#[allow(unsafe_code, reason = "buffers that have no pages yet")]
fn pages_that_are_not_present_are_copied_by_the_cpu() {
    let device = ModelDevice::start(ModelOptions::default().with_residency(Residency::Strict)).unwrap();
    let policy = ChannelPolicy::default();
    let mut nodes = nodes_with(2, &Config::default(), || copier(device.portal("wq0.0").unwrap(), policy));
    let len = 2 << 20;
    // The pages of the receive buffer have never been touched, and each second of the send buffer neither.
    let (from, to) = (Pages::new(len / 4096).unwrap(), Pages::new(len / 4096).unwrap());
    for page in (0..len as u64 / PAGE_BYTES).step_by(2) {
        from.poke(page * PAGE_BYTES, &pattern(4096, page));
    }
    let lent = |pages: &Pages| {
        // SAFETY: the pages live until the end of the test, and are read only after the operations.
        let buffer = unsafe { telpher_fabric::Buffer::vouch(pages.address(), pages.len_bytes()) };
        telpher_fabric::Segments::new(&[buffer]).unwrap()
    };
    let peer = PeerId(1);
    nodes[1].endpoint.receive(crate::common::receive_request(None, exact(1), lent(&to), 1)).unwrap();
    nodes[0].endpoint.send(crate::common::send_request(peer, lent(&from), Some(1), 1)).unwrap();
    run_until_done(&mut nodes, &[1, 1]);
    assert_eq!((nodes[0].end_of(1).result, nodes[1].end_of(1).result), (Ok(()), Ok(())));
    assert!(to.peek(0, len) == from.peek(0, len));
    assert!(by_fallback(&nodes[0]) > 0 && by_fallback(&nodes[1]) > 0);
}

#[test]
fn a_device_that_is_disabled_in_the_middle_of_a_message_is_replaced_by_the_cpu() {
    let device = ModelDevice::start(ModelOptions::default()).unwrap();
    let mut policy = ChannelPolicy { bursts: false, ..ChannelPolicy::default() };
    policy.patience = Duration::from_micros(100);
    let mut nodes = nodes_with(2, &Config::default(), || copier(device.portal("wq0.0").unwrap(), policy));
    exchange(&mut nodes, 0);
    let len = 4 << 20;
    nodes[0].send(1, Some(900), pattern(len, 9), 900);
    nodes[1].receive(None, exact(900), len, 900);
    let before = by_device(&nodes[1]);
    run_until(&mut nodes, |nodes| by_device(&nodes[1]) > before);
    assert!(nodes[1].done.iter().all(|end| end.context != 900), "the message is on its way");
    device.command(Command::new(CommandCode::DisableDevice, 0)).unwrap();
    run_until(&mut nodes, |nodes| nodes[1].done.iter().any(|end| end.context == 900));
    nodes[1].check_received(900, 900, &pattern(len, 9));
    exchange(&mut nodes, 1);
}

#[test]
fn a_device_that_fails_for_one_endpoint_goes_on_for_others() {
    let devices = [0, 1].map(|_| ModelDevice::start(ModelOptions::default()).unwrap());
    let mut policy = ChannelPolicy { bursts: false, ..ChannelPolicy::default() };
    policy.patience = Duration::from_micros(100);
    let opened = AtomicUsize::new(0);
    let mut nodes = nodes_with(2, &Config::default(), || {
        let device = &devices[opened.fetch_add(1, Ordering::Relaxed)];
        copier(device.portal("wq0.0").unwrap(), policy)
    });
    exchange(&mut nodes, 0);
    devices[0].command(Command::new(CommandCode::DisableDevice, 0)).unwrap();
    let before = by_device(&nodes[1]);
    exchange(&mut nodes, 1);
    assert!(by_device(&nodes[1]) > before, "{:?}", nodes[1].endpoint.statistics());
}

#[test]
fn several_queues_take_turns() {
    let portals = [0, 1].map(|_| Arc::new(MockPortal::new(QueueMode::Shared, 64)));
    let policy = ChannelPolicy { bursts: false, ..ChannelPolicy::default() };
    let channels = portals.each_ref().map(|portal| {
        let portal: Arc<dyn Portal> = Arc::<MockPortal>::clone(portal);
        Channel::new(portal, 64, policy).unwrap()
    });
    let sender = Node::new(Config::default(), Copier::devices(channels, 4096), ProgressBy::Caller);
    let receiver = Node::new(Config::default(), Copier::cpu(), ProgressBy::Caller);
    let mut nodes = vec![sender, receiver];
    assert_eq!(nodes[0].endpoint.insert_peer(&nodes[1].address()).unwrap(), PeerId(0));
    nodes[0].send(0, Some(1), pattern(6 * (16 << 10), 1), 1);
    run_until(&mut nodes, |_| portals.iter().all(|portal| portal.waiting() == 3));
    portals.iter().for_each(|portal| let_go(portal));
    run_until_done(&mut nodes, &[1, 0]);
}

#[test]
fn a_queue_that_stops_leaves_its_pieces_to_the_others() {
    let devices = [0, 1].map(|_| ModelDevice::start(ModelOptions::default()).unwrap());
    let mut policy = ChannelPolicy { bursts: false, ..ChannelPolicy::default() };
    policy.patience = Duration::from_micros(100);
    let mut nodes = nodes_with(2, &Config::default(), || {
        let channel = |device: &ModelDevice| Channel::new(device.portal("wq0.0").unwrap(), 64, policy).unwrap();
        Copier::devices(devices.iter().map(channel), 4096)
    });
    exchange(&mut nodes, 0);
    devices[0].command(Command::new(CommandCode::DisableDevice, 0)).unwrap();
    let before = by_device(&nodes[1]);
    for round in 1..4 {
        exchange(&mut nodes, round);
    }
    assert!(by_device(&nodes[1]) > before, "{:?}", nodes[1].endpoint.statistics());
}

/// Answers all descriptors of a device that was late, after it has written its destinations.
#[allow(unsafe_code, reason = "plays a device that answers late")]
fn let_go(portal: &MockPortal) {
    while let Some(descriptor) = portal.take() {
        let (record, _, to, len) = operands(&descriptor);
        // SAFETY: the descriptor was vouched for, and its record is not written yet: the device owns both ranges.
        unsafe {
            std::ptr::write_bytes(to as *mut u8, 0xbb, len as usize);
            std::ptr::write_volatile(record as *mut u8, 1);
        }
    }
}

#[test]
fn a_late_device_delays_the_end_of_its_message_until_it_lets_go() {
    let portal = Arc::new(MockPortal::new(QueueMode::Shared, 64));
    let clock = Arc::new(ManualClock::new(Duration::from_millis(100)));
    let policy = ChannelPolicy {
        bursts: false,
        deadline: Some(Duration::from_millis(1)),
        linger: Duration::ZERO,
        ..ChannelPolicy::default()
    };
    for peer_dies in [false, true] {
        let channel = || {
            let portal: Arc<dyn Portal> = Arc::<MockPortal>::clone(&portal);
            Channel::with_clock(portal, 64, policy, Arc::<ManualClock>::clone(&clock)).unwrap()
        };
        let late = Node::new(Config::default(), Copier::device(channel(), 4096), ProgressBy::Caller);
        let other = Node::new(Config::default(), Copier::cpu(), ProgressBy::Caller);
        let mut nodes = vec![late, other];
        let addresses = [nodes[0].address(), nodes[1].address()];
        for node in &nodes {
            for address in &addresses {
                node.endpoint.insert_peer(address).unwrap();
            }
        }
        // The late side receives; then it also sends.
        nodes[0].receive(None, exact(1), 40_000, 1);
        nodes[1].send(0, Some(1), pattern(40_000, 1), 1);
        nodes[0].send(1, Some(2), pattern(40_000, 2), 2);
        nodes[1].receive(None, exact(2), 40_000, 2);
        run_until(&mut nodes, |_| portal.waiting() == 6);
        if peer_dies {
            drop(nodes.remove(1));
            run_until(&mut nodes, |nodes| nodes[0].endpoint.statistics().peers_died == 1);
        }
        clock.advance(Duration::from_millis(2));
        for _ in 0..1000 {
            nodes.iter_mut().for_each(Node::poll);
        }
        assert!(nodes[0].done.is_empty(), "the device may still access both buffers");
        let_go(&portal);
        if peer_dies {
            run_until(&mut nodes, |nodes| nodes[0].done.len() >= 2);
            // All pieces of the first message were in their slots, so it is whole.
            nodes[0].check_received(1, 1, &pattern(40_000, 1));
            assert_eq!(nodes[0].end_of(2).result, Err(Failure::PeerDied));
        } else {
            run_until_done(&mut nodes, &[2, 2]);
            nodes[0].check_received(1, 1, &pattern(40_000, 1));
            nodes[1].check_received(2, 2, &pattern(40_000, 2));
        }
        assert!(by_fallback(&nodes[0]) >= 3);
    }
}

/// Writes to a region of the second node and reads it, of each length.
fn access(nodes: &mut [Node], memory: &mut [u8], key: u64, round: u64) {
    for (number, len) in LENGTHS.into_iter().enumerate() {
        let context = round * 100 + 2 * number as u64;
        nodes[0].write(1, key, 0, pattern(len, context), context);
        assert_eq!(ended(nodes, context), Ok(()));
        assert!(memory[..len] == pattern(len, context), "{len} bytes");
        nodes[0].read(1, key, 0, len, context + 1);
        assert_eq!(ended(nodes, context + 1), Ok(()));
        assert!(nodes[0].buffers[&(context + 1)] == pattern(len, context), "{len} bytes");
    }
}

#[test]
fn a_device_copies_the_callers_half_of_accesses() {
    for spoil in [None, Some(Spoil::Opcode), Some(Spoil::Source), Some(Spoil::Destination)] {
        let device = ModelDevice::start(ModelOptions::default()).unwrap();
        let policy = ChannelPolicy { bursts: false, ..ChannelPolicy::default() };
        let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), || {
            let inner = device.portal("wq0.0").unwrap();
            let Some(spoil) = spoil else { return copier(inner, policy) };
            copier(Arc::new(Spoiler { inner, offers: AtomicU64::new(0), spoil }), policy)
        });
        let mut memory = vec![0; 3 << 20];
        let key = register(&regions[1], &mut memory, BOTH);
        access(&mut nodes, &mut memory, key, 0);
        assert!(by_device(&nodes[0]) > 0, "{spoil:?}");
        assert_eq!(by_fallback(&nodes[0]) > 0, spoil.is_some(), "{spoil:?}");
        // A region may be closed at any time, so no device copies its bytes.
        assert_eq!(by_device(&nodes[1]), 0);
    }
}

#[test]
fn a_late_device_delays_the_end_of_accesses_until_it_lets_go() {
    let portal = Arc::new(MockPortal::new(QueueMode::Shared, 64));
    let clock = Arc::new(ManualClock::new(Duration::from_millis(100)));
    let policy = ChannelPolicy {
        bursts: false,
        deadline: Some(Duration::from_millis(1)),
        linger: Duration::ZERO,
        ..ChannelPolicy::default()
    };
    for peer_dies in [false, true] {
        let inner: Arc<dyn Portal> = Arc::<MockPortal>::clone(&portal);
        let late = Channel::with_clock(inner, 64, policy, Arc::<ManualClock>::clone(&clock)).unwrap();
        let mut late = Some(Copier::device(late, 4096));
        let of_side = || late.take().unwrap_or_else(Copier::cpu);
        let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), of_side);
        let mut memory = vec![0; 80_000];
        let key = register(&regions[1], &mut memory, BOTH);
        memory[40_000..].copy_from_slice(&pattern(40_000, 2));
        nodes[0].write(1, key, 0, pattern(40_000, 1), 1);
        nodes[0].read(1, key, 40_000, 40_000, 2);
        run_until(&mut nodes, |_| portal.waiting() == 6);
        if peer_dies {
            drop(nodes.remove(1));
            run_until(&mut nodes, |nodes| nodes[0].endpoint.statistics().peers_died == 1);
        }
        clock.advance(Duration::from_millis(2));
        for _ in 0..1000 {
            nodes.iter_mut().for_each(Node::poll);
        }
        assert!(nodes[0].done.is_empty(), "the device may still access both buffers");
        let_go(&portal);
        let expected = if peer_dies { Err(Failure::PeerDied) } else { Ok(()) };
        assert_eq!((ended(&mut nodes, 1), ended(&mut nodes, 2)), (expected, expected));
        if !peer_dies {
            assert!(memory[..40_000] == pattern(40_000, 1) && nodes[0].buffers[&2] == pattern(40_000, 2));
        }
    }
}
