//! A DMA queue that completes late or never: every request of the frontend ends in bounded time, nothing is written to
//! removed memory, and no thread waits for ever.
#![allow(clippy::cast_possible_truncation, reason = "small numbers of a test")]

use crate::common::device::TestDevice;
use crate::frontend::{Frontend, Guest, HEADER, MRG, Switch, count, dirty, event, same, u32s, u64s};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use telpher_device::{ModelDevice, ModelOptions, Preset, Runner};
use telpher_mover::ManualClock;
use telpher_portal::{Portal, QueueMode};
use telpher_vhost::layout::Features;
use telpher_vhost::message::Reply;
use telpher_vhost::ring::{Broken, MockGuest};
use telpher_vhost::{CopyPolicy, DmaQueue, DropReason, Offer, PortOptions, QueueOptions, SessionError};

const LAYOUTS: [u64; 2] = [MRG, MRG | Features::RING_PACKED.bits()];
/// Longer than any request takes on any machine: the time limit is 20 ms, and twice that if it is exceeded.
const BOUND: Duration = Duration::from_secs(20);

/// A switch whose copies all go to a queue that does nothing until the test lets it.
struct SlowDevice {
    device: Arc<TestDevice>,
    dma_queue: Arc<DmaQueue>,
    clock: Arc<ManualClock>,
    switch: Switch,
}

fn held(drain_timeout: Duration) -> SlowDevice {
    let device = Arc::new(TestDevice::new(QueueMode::Shared, 64));
    device.state().manual = true;
    // It advances by rests, which only a drop makes, so that drops end.
    let clock = Arc::new(ManualClock::new(Duration::from_millis(1)));
    let portal = Arc::clone(&device) as Arc<dyn Portal>;
    let dma_queue = Arc::new(DmaQueue::with_clock(portal, 64, Arc::clone(&clock) as _).unwrap());
    let queue = QueueOptions { hybrid: CopyPolicy::Device, dma_queues: vec![Arc::clone(&dma_queue)], in_flight: 64 };
    let switch = Switch::with(PortOptions { offer: Offer::of_pairs(1), rings: vec![queue], drain_timeout });
    SlowDevice { device, dma_queue, clock, switch }
}

/// A second region of guest memory, which is added and removed.
const FAR: u64 = 1 << 40;

fn far() -> Vec<u8> {
    u64s(&[0, FAR, 1 << 20, 1 << 50, 0])
}

/// What frontends do to running rings: `GET_VRING_BASE` of both rings, `RESET_DEVICE`, removing memory, and
/// disconnecting.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Deed {
    Disable,
    Stop,
    RemoveMemory,
    NewTable,
    NoMemory,
    Reset,
    Disconnect,
}

const DEEDS: [Deed; 7] =
    [Deed::Disable, Deed::Stop, Deed::RemoveMemory, Deed::NewTable, Deed::NoMemory, Deed::Reset, Deed::Disconnect];

/// Does it to ring 0, or to all rings. Returns the frontend if the session continues.
fn does(deed: Deed, mut frontend: Frontend, guest: &Guest, more: &MockGuest) -> Result<Option<Frontend>, SessionError> {
    let region = guest.memory.region();
    let table = u64s(&[1, region.guest, region.len, region.user, region.offset]);
    match deed {
        Deed::Disable => frontend.say(18, 0, &u32s(&[0, 0]), Vec::new()),
        Deed::Stop => frontend.say(11, 0, &u32s(&[0, 0]), Vec::new()),
        Deed::RemoveMemory => frontend.say(38, 0, &far(), vec![same(more.file())]),
        Deed::NewTable => frontend.say(5, 0, &table, vec![same(guest.memory.file())]),
        Deed::NoMemory => frontend.say(5, 0, &u64s(&[0]), Vec::new()),
        Deed::Reset => frontend.say(34, 0, &[], Vec::new()),
        Deed::Disconnect => return Ok(None),
    }
    .map(|_| Some(frontend))
}

/// A guest with two regions and a buffer in each, and packets in flight into both.
fn start_copies(held: &SlowDevice, features: u64) -> (Guest, MockGuest, Frontend, [u64; 2]) {
    let (mut guest, more) = (Guest::new(features), MockGuest::new(1 << 20));
    let mut frontend = guest.connect(&held.switch.port);
    frontend.tell(37, &far(), vec![same(more.file())]);
    let near = guest.listen();
    guest.receive.offer(&[(FAR + 4096, 2048)]).unwrap();
    assert_eq!(held.switch.send(&[&[1; 1000], &[2; 1000]]), 2);
    assert_eq!((held.dma_queue.in_flight(), held.switch.port.in_flight(0)), (2, 2));
    (guest, more, frontend, [near, FAR + 4096])
}

fn all(guest: &MockGuest) -> Vec<u8> {
    let region = guest.region();
    guest.read(region.guest, region.len as usize)
}

#[test]
fn outstanding_copies_complete_before_a_request_does() {
    for (features, deed) in LAYOUTS.into_iter().flat_map(|features| DEEDS.map(|deed| (features, deed))) {
        // No copy is abandoned in this test.
        let held = held(Duration::from_secs(600));
        let (mut guest, more, frontend, [near, far]) = start_copies(&held, features);
        let asked = AtomicBool::new(false);
        let after = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !asked.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                // Usually the request waits by now; otherwise the copies were just early.
                (0..100).for_each(|_| std::thread::yield_now());
                held.device.state().manual = false;
                held.device.run(usize::MAX);
            });
            asked.store(true, Ordering::Release);
            let session = does(deed, frontend, &guest, &more).unwrap();
            (session, all(&guest.memory), all(&more))
        });
        let (session, after) = (after.0, (after.1, after.2));
        // Both packets are complete, and the guest sees all of them when the request is answered.
        let back = guest.receive.collect();
        assert_eq!(back.iter().map(|(_, len)| *len).collect::<Vec<_>>(), [1012; 2], "{deed:?}");
        assert_eq!(guest.memory.read(near + HEADER as u64, 1000), [1; 1000]);
        assert_eq!(more.read(more.region().guest + far - FAR + HEADER as u64, 1000), [2; 1000]);
        assert!(after == (all(&guest.memory), all(&more)));
        drop(session);
        assert_eq!(held.switch.port.stats(0).drops(DropReason::Silent), 0);
        assert_eq!(held.switch.pool.free(), 256, "{deed:?}: every buffer comes back");
    }
}

#[test]
fn a_copy_that_never_completes_ends_the_session_in_time_and_its_writes_go_nowhere() {
    for (features, deed) in LAYOUTS.into_iter().flat_map(|features| DEEDS.map(|deed| (features, deed))) {
        if deed == Deed::Disable {
            continue;
        }
        let held = held(Duration::from_millis(20));
        let (mut guest, more, frontend, _) = start_copies(&held, features);
        let start = Instant::now();
        let done = does(deed, frontend, &guest, &more);
        assert!(start.elapsed() < BOUND, "{deed:?}");
        match done {
            Err(SessionError::Late { ring: 0, source: None }) => assert_ne!(deed, Deed::Disconnect),
            Ok(None) => assert_eq!(deed, Deed::Disconnect),
            other => panic!("{deed:?}: {:?}", other.map(|_| ())),
        }
        // Now that the memory belongs to the guest alone, the queue completes its copies.
        let before = (all(&guest.memory), all(&more));
        assert_eq!(held.dma_queue.in_flight(), 2);
        held.device.run(usize::MAX);
        assert!((all(&guest.memory), all(&more)) == before, "{deed:?}: it wrote to memory that was taken away");
        assert_eq!((guest.receive.collect().len(), held.switch.port.stats(0).drops(DropReason::Silent)), (0, 2));
        assert!(!held.switch.port.is_running(0) && !held.switch.port.is_running(1));
        // The next frontend gets the same buffers, and the packets that were in flight are lost, not duplicated.
        held.device.state().manual = false;
        let mut frontend = guest.connect(&held.switch.port);
        frontend.tell(37, &far(), vec![same(more.file())]);
        assert_eq!(held.switch.send(&[b"again", b"and again"]), 2, "{deed:?}");
        while guest.receive.lent() > 0 {
            held.switch.send(&[]);
            guest.receive.collect();
        }
        drop(frontend);
        assert_eq!((guest.receive.lent(), held.switch.port.stats(0).packets), (0, 4));
    }
}

/// The frontend has no reply yet, and its other rings have stopped as well: their memory was revoked too.
#[test]
fn a_session_ended_by_late_copies_has_no_running_ring() {
    let held = held(Duration::from_millis(20));
    let (_guest, _more, mut frontend, _) = start_copies(&held, MRG);
    assert!(matches!(frontend.say(11, 0, &u32s(&[0, 0]), Vec::new()), Err(SessionError::Late { ring: 0, .. })));
    assert!(!held.switch.port.is_running(0) && !held.switch.port.is_running(1));
}

#[test]
fn the_driver_is_called_for_copies_completed_while_stopping() {
    for features in LAYOUTS {
        let held = held(Duration::from_secs(600));
        let (mut guest, _more, mut frontend, _) = start_copies(&held, features);
        let call = event();
        frontend.tell(13, &u64s(&[0]), vec![same(&call)]);
        count(&call);
        held.device.state().manual = false;
        held.device.run(usize::MAX);
        frontend.stop(0);
        assert_eq!((count(&call), guest.receive.collect().len()), (1, 2));
    }
}

#[test]
fn a_log_does_not_start_while_unlogged_copies_are_in_flight() {
    for features in LAYOUTS {
        let held = held(Duration::from_millis(20));
        let mut guest = Guest::new(features);
        let mut frontend = guest.connect(&held.switch.port);
        let region = guest.memory.region();
        let pages = ((region.guest + region.len) / 4096).next_multiple_of(8);
        let log = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&log, pages / 8).unwrap();
        frontend.say(6, 0, &u64s(&[pages / 8, 0]), vec![same(&log)]).unwrap();
        let at = guest.listen();
        assert_eq!(held.switch.send(&[&[4; 1000]]), 1);
        let logging = u64s(&[features | Features::LOG_ALL.bits()]);
        assert!(!frontend.ask(2, &logging, Vec::new()));
        let why = frontend.control.refused().1.map(ToString::to_string).unwrap_or_default();
        assert!(why.starts_with("copies of ring 0 were not complete in time to start its log"), "{why}");
        // Requested again, after they have completed.
        held.device.run(usize::MAX);
        frontend.tell(2, &logging, Vec::new());
        assert_eq!((guest.receive.collect().len(), dirty(&log, pages)), (1, vec![]));
        let next = guest.listen();
        assert_eq!(held.switch.send(&[&[5; 1000]]), 1);
        held.device.run(usize::MAX);
        held.switch.send(&[]);
        assert_eq!((guest.receive.collect().len(), dirty(&log, pages)), (1, vec![next / 4096]));
        assert_ne!(at, next);
    }
}

#[test]
fn packets_completed_between_polls_come_first_up_to_the_limit() {
    for features in LAYOUTS {
        let held = held(Duration::from_secs(600));
        let mut guest = Guest::new(features);
        let mut frontend = guest.connect(&held.switch.port);
        (1..=3).for_each(|byte| {
            guest.say(&[byte; 700]);
        });
        assert!(held.switch.packets().is_empty());
        held.device.state().manual = false;
        held.device.run(usize::MAX);
        // They complete here.
        frontend.memory(&guest.memory);
        (4..=7).for_each(|byte| {
            guest.say(&[byte; 700]);
        });
        let (mut into, mut spare) = (held.switch.pool.empty(0), held.switch.pool.allocate(32));
        let start = Instant::now();
        while into.len() < 7 {
            let before = into.len();
            let got = held.switch.port.transmit(0, &mut into, &mut spare, 2);
            assert!(got <= 2 && into.len() == before + got, "{got} of 2 at {before}");
            assert!(start.elapsed() < BOUND, "{} packets came", into.len());
        }
        assert!(into.iter().zip(1..).all(|(packet, byte)| *packet == [byte; 700]));
    }
}

#[test]
fn no_thread_waits_for_kicks_while_copies_are_in_flight() {
    let held = held(Duration::from_secs(600));
    let mut guest = Guest::new(MRG);
    let mut frontend = guest.connect(&held.switch.port);
    frontend.tell(12, &u64s(&[1]), vec![event()]);
    guest.say(&[1; 700]);
    assert!(held.switch.packets().is_empty());
    let start = Instant::now();
    held.switch.port.wait(1, 2 * BOUND);
    assert!(start.elapsed() < BOUND);
    held.device.run(usize::MAX);
}

#[test]
fn each_ring_has_its_own_copy_policy() {
    let one = held(Duration::from_secs(600));
    let device =
        QueueOptions { hybrid: CopyPolicy::Device, dma_queues: vec![Arc::clone(&one.dma_queue)], in_flight: 64 };
    let rings = vec![device, QueueOptions::default()];
    let switch = Switch::with(PortOptions { offer: Offer::of_pairs(2), rings, ..PortOptions::default() });
    let mut guest = Guest::new(MRG);
    let _frontend = guest.connect(&switch.port);
    guest.say(&[1; 700]);
    assert_eq!((switch.packets().len(), one.dma_queue.in_flight()), (1, 0));
    guest.listen();
    assert_eq!((switch.send(&[&[2; 700]]), one.dma_queue.in_flight()), (1, 1));
    one.device.run(usize::MAX);
}

/// How often this process maps a file. Source: proc(5), /proc/pid/maps.
fn mapped(file: &OwnedFd) -> usize {
    let inode = rustix::fs::fstat(file).unwrap().st_ino.to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(&inode) && line.contains("memfd:")).count()
}

#[test]
fn removed_memory_is_unmapped_after_its_last_copy() {
    for features in LAYOUTS {
        let held = held(Duration::from_secs(600));
        let (mut guest, more, mut frontend, _) = start_copies(&held, features);
        let before = mapped(more.file());
        held.device.state().manual = false;
        held.device.run(usize::MAX);
        frontend.tell(38, &far(), Vec::new());
        assert_eq!((guest.receive.collect().len(), mapped(more.file())), (2, before - 1));
    }
}

#[test]
fn a_disabled_ring_is_drained_in_time_and_keeps_completing() {
    for features in LAYOUTS {
        let held = held(Duration::from_millis(20));
        let (mut guest, more, frontend, _) = start_copies(&held, features);
        let start = Instant::now();
        let frontend = does(Deed::Disable, frontend, &guest, &more).unwrap();
        assert!(start.elapsed() < BOUND);
        assert_eq!(guest.receive.collect().len(), 0);
        held.device.run(usize::MAX);
        assert_eq!(held.switch.send(&[b"not now"]), 0);
        assert_eq!((guest.receive.collect().len(), held.dma_queue.in_flight()), (2, 0));
        drop(frontend);
    }
}

/// The queue holds packets from the guest, and the frontend removes its memory: the CPU copies them into other buffers.
#[test]
fn packets_from_the_guest_are_recopied_when_their_queue_is_late() {
    for (features, deed) in LAYOUTS.into_iter().flat_map(|features| DEEDS.map(|deed| (features, deed))) {
        let held = held(Duration::from_millis(20));
        let (mut guest, more) = (Guest::new(features), MockGuest::new(1 << 20));
        let mut frontend = guest.connect(&held.switch.port);
        frontend.tell(37, &far(), vec![same(more.file())]);
        let at: Vec<u64> = (1..=3).map(|byte| guest.say(&[byte; 1500])).collect();
        assert!(held.switch.packets().is_empty());
        assert_eq!(held.dma_queue.in_flight(), 3);
        let start = Instant::now();
        let frontend = does(if deed == Deed::Disable { Deed::Stop } else { deed }, frontend, &guest, &more).unwrap();
        assert!(start.elapsed() < BOUND, "{deed:?}");
        // `does` stops ring 0; this is the other one.
        let frontend = frontend.map(|mut frontend| {
            if deed == Deed::Stop {
                let Ok(Some(Reply::State { base, .. })) = frontend.say(11, 0, &u32s(&[1, 0]), Vec::new()) else {
                    panic!("a base")
                };
                assert_eq!(base & 0x7fff, 3);
            }
            frontend
        });
        if deed == Deed::Disable {
            // The ring was not changed, so no copy is abandoned.
            assert_eq!(guest.transmit.collect().len(), 0);
            held.device.run(usize::MAX);
        }
        let packets = held.switch.packets();
        // The guest has its buffers back and writes other data there; the queue reads that, too late.
        assert_eq!((guest.transmit.collect().len(), guest.transmit.lent()), (3, 0), "{deed:?}");
        at.iter().for_each(|at| guest.memory.write(*at, &[9; 1512]));
        held.device.run(usize::MAX);
        assert_eq!(packets, [1, 2, 3].map(|byte| vec![byte; 1500]), "{deed:?}");
        assert_eq!(held.switch.port.stats(1).all_drops(), 0);
        drop(frontend);
        if matches!(deed, Deed::RemoveMemory | Deed::NewTable) {
            // The ring ran until now; the queue has completed, and no thread polls the DMA queue any more.
            let since = Instant::now();
            while held.switch.pool.free() < 256 {
                assert!(since.elapsed() < BOUND, "{deed:?}: {} of 256 buffers are back", held.switch.pool.free());
                std::thread::yield_now();
            }
        }
    }
}

/// A log for a guest, announced by its frontend.
fn log_of(frontend: &mut Frontend, guest: &Guest, features: u64) -> (OwnedFd, u64) {
    let region = guest.memory.region();
    let pages = ((region.guest + region.len) / 4096).next_multiple_of(8);
    let log = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&log, pages / 8).unwrap();
    frontend.say(6, 0, &u64s(&[pages / 8, 0]), vec![same(&log)]).unwrap();
    frontend.tell(2, &u64s(&[features | Features::LOG_ALL.bits()]), Vec::new());
    (log, pages)
}

/// Source: vhost-user, "Migration". If a page is marked before its bytes are written, the mark is cleared and the page
/// sent without them.
#[test]
fn a_page_is_marked_only_after_its_bytes_are_written() {
    for features in LAYOUTS {
        let held = held(Duration::from_secs(600));
        let mut guest = Guest::new(features);
        let mut frontend = guest.connect(&held.switch.port);
        let (log, pages) = log_of(&mut frontend, &guest, features);
        let at = [guest.listen(), guest.listen()];
        // Not as one batch.
        assert_eq!([&[1; 1000], &[2; 1000]].map(|packet| held.switch.send(&[packet])), [1, 1]);
        // The second packet completes first; it is shown and marked after the first.
        let first = held.device.take_front();
        held.device.run(usize::MAX);
        held.switch.send(&[]);
        assert_eq!((dirty(&log, pages), guest.receive.collect().len()), (vec![], 0));
        held.device.put_back(first);
        held.device.run(usize::MAX);
        assert!(dirty(&log, pages).is_empty());
        held.switch.send(&[]);
        let mut expected = at.map(|at| at / 4096).to_vec();
        expected.sort_unstable();
        expected.dedup();
        assert_eq!((dirty(&log, pages), guest.receive.collect().len()), (expected, 2));
    }
}

/// A thread that sees a used buffer finds its page marked. Checked from another thread until it has seen a few thousand
/// buffers.
#[test]
fn a_page_is_marked_before_its_buffer_is_shown_as_used() {
    for (features, hybrid) in
        LAYOUTS.into_iter().flat_map(|it| [CopyPolicy::Cpu, CopyPolicy::Device].map(|way| (it, way)))
    {
        let device = ModelDevice::start(ModelOptions::of(Preset::Spr).with_runner(Runner::Inline)).unwrap();
        let dma_queue = Arc::new(DmaQueue::new(device.portal("wq0.0").unwrap(), 64).unwrap());
        let queue = QueueOptions { hybrid, dma_queues: vec![dma_queue], in_flight: 64 };
        let options = PortOptions { offer: Offer::of_pairs(1), rings: vec![queue], ..PortOptions::default() };
        let (switch, mut guest) = (Switch::with(options), Guest::new(features));
        let mut frontend = guest.connect(&switch.port);
        let (log, pages) = log_of(&mut frontend, &guest, features);
        // One page per buffer.
        let buffers: Vec<u64> = (0..16).map(|_| guest.memory.lend(4096)).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    switch.send(&[b"one", b"two"]);
                }
            });
            let _end = End(&stop);
            for round in 0..3000 {
                let at = buffers[round % buffers.len()];
                guest.receive.offer(&[(at, 2048)]).unwrap();
                while guest.receive.collect().is_empty() {
                    std::hint::spin_loop();
                }
                let mut byte = [0];
                rustix::io::pread(&log, &mut byte, at / 4096 / 8).unwrap();
                assert_eq!(byte[0] >> (at / 4096 % 8) & 1, 1, "round {round}: used, and not marked");
                dirty(&log, pages);
            }
        });
    }
}

/// Packets of 1000 bytes, with their number at the start and in the last byte.
fn numbered(number: u32) -> Vec<u8> {
    let mut packet = vec![number.to_le_bytes()[0]; 1000];
    packet[..4].copy_from_slice(&number.to_le_bytes());
    packet
}

/// Sets the flag when it is dropped.
struct End<'a>(&'a AtomicBool);

impl std::ops::Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn frequent_memory_table_changes_lose_no_packet() {
    for features in LAYOUTS {
        let device = ModelDevice::start(ModelOptions::of(Preset::Spr).with_runner(Runner::Threaded)).unwrap();
        let dma_queue = Arc::new(DmaQueue::new(device.portal("wq0.0").unwrap(), 64).unwrap());
        let queue =
            QueueOptions { hybrid: CopyPolicy::Device, dma_queues: vec![Arc::clone(&dma_queue)], in_flight: 64 };
        let drain_timeout = Duration::from_secs(600);
        let switch = Switch::with(PortOptions { offer: Offer::of_pairs(1), rings: vec![queue], drain_timeout });
        let (mut guest, more) = (Guest::new(features), MockGuest::new(1 << 20));
        let mut frontend = guest.connect(&switch.port);
        let mut free: Vec<u64> = (0..48).map(|_| guest.memory.lend(1012)).collect();
        let mut lent = HashMap::new();
        let stop = AtomicBool::new(false);
        let (mut storms, mut received) = (0, 0);
        let mut hear = |guest: &mut Guest, free: &mut Vec<u64>, lent: &mut HashMap<u16, u64>| {
            for (id, len) in guest.receive.collect() {
                let at = lent.remove(&id).unwrap();
                assert_eq!((len, guest.memory.read(at + HEADER as u64, 1000)), (1012, numbered(received)));
                received += 1;
                free.push(at);
            }
            received
        };
        let sent = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut next = 0;
                while !stop.load(Ordering::Acquire) {
                    let packets: Vec<Vec<u8>> = (next..next + 8).map(numbered).collect();
                    let packets: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
                    next += u32::try_from(switch.send(&packets)).unwrap();
                }
                next
            });
            // Also when this thread fails.
            let ended = End(&stop);
            while storms < 300 || hear(&mut guest, &mut free, &mut lent) < 500 {
                while let Some(at) = free.pop() {
                    lent.insert(guest.receive.offer(&[(at, 1012)]).unwrap(), at);
                }
                match storms % 3 {
                    0 => frontend.memory(&guest.memory),
                    1 => frontend.tell(37, &far(), vec![same(more.file())]),
                    _ => frontend.tell(38, &far(), Vec::new()),
                }
                storms += 1;
            }
            drop(ended);
            sender.join().unwrap()
        });
        // Finally all packets that left the switch have arrived.
        while hear(&mut guest, &mut free, &mut lent) < sent {
            switch.send(&[]);
        }
        assert!(dma_queue.stats().copies > 0);
        assert_eq!(switch.port.stats(0).all_drops(), 0);
    }
}

/// Polls until the DMA queue's clock says that the queue was silent for too long.
fn poll_until_silent(held: &SlowDevice, mut look: impl FnMut()) {
    for _ in 0..64 * 20 {
        held.clock.advance(Duration::from_millis(5));
        look();
    }
}

#[test]
fn a_queue_that_never_completes_breaks_the_waiting_ring() {
    for features in LAYOUTS {
        let held = held(Duration::from_millis(20));
        let (mut guest, _more, _frontend, _) = start_copies(&held, features);
        poll_until_silent(&held, || assert_eq!(held.switch.send(&[]), 0));
        assert_eq!((held.switch.port.broken(0), held.dma_queue.stats().silent), (Some(Broken::Silent), true));
        guest.listen();
        assert_eq!(held.switch.send(&[b"not taken"]), 0);
        assert_eq!(guest.receive.collect().len(), 0);
        // The other ring of the port keeps running, with copies by the CPU.
        guest.say(b"alive");
        assert_eq!(held.switch.packets(), [b"alive"]);
        assert_eq!(held.dma_queue.in_flight(), 2);
    }
}

#[test]
fn a_queue_that_completes_occasionally_is_waited_for() {
    let held = held(Duration::from_millis(20));
    let (mut guest, _more, _frontend, _) = start_copies(&held, MRG);
    for _ in 0..20 {
        guest.listen();
        assert_eq!(held.switch.send(&[b"one more"]), 1);
        // Three seconds, and then one completion.
        for _ in 0..64 * 10 {
            held.clock.advance(Duration::from_millis(5));
            held.switch.send(&[]);
        }
        held.device.run(1);
    }
    held.device.run(usize::MAX);
    held.switch.send(&[]);
    assert_eq!((held.switch.port.broken(0), held.dma_queue.stats().silent), (None, false));
    assert_eq!(guest.receive.collect().len(), 22);
}

#[test]
fn an_abandonable_queue_is_abandoned_and_the_cpu_redoes_its_copies() {
    for features in LAYOUTS {
        let held = held(Duration::from_millis(20));
        held.device.state().retirable = true;
        let (mut guest, _more, _frontend, [near, _]) = start_copies(&held, features);
        poll_until_silent(&held, || assert_eq!(held.switch.send(&[]), 0));
        assert_eq!(
            (held.switch.port.broken(0), held.dma_queue.stats().silent, held.dma_queue.stats().redone),
            (None, false, 2)
        );
        assert_eq!(guest.receive.collect().len(), 2);
        assert_eq!(guest.memory.read(near + HEADER as u64, 1000), [1; 1000]);
    }
}

#[test]
fn packets_from_the_guest_do_not_wait_for_a_stalled_queue() {
    for features in LAYOUTS {
        let held = held(Duration::from_millis(20));
        let mut guest = Guest::new(features);
        let _frontend = guest.connect(&held.switch.port);
        let at: Vec<u64> = (1..=3).map(|byte| guest.say(&[byte; 700])).collect();
        // All buffers of the pool are in use: nothing can be redone yet.
        let most = held.switch.pool.allocate(256);
        let mut packets = Vec::new();
        let mut spare = held.switch.pool.empty(0);
        drop(most);
        spare.fetch(256);
        let mut into = held.switch.pool.empty(0);
        poll_until_silent(&held, || assert_eq!(held.switch.port.transmit(0, &mut into, &mut spare, 32), 0));
        assert!(held.dma_queue.stats().silent);
        // Now there are free buffers, and all packets arrive in order; the CPU copies the later ones.
        drop(spare);
        guest.say(&[4; 700]);
        for _ in 0..3 {
            packets.extend(held.switch.packets());
        }
        assert_eq!(packets, [1, 2, 3, 4].map(|byte| vec![byte; 700]));
        assert_eq!((guest.transmit.collect().len(), held.switch.port.broken(1)), (4, None));
        at.iter().for_each(|at| guest.memory.write(*at, &[9; 712]));
        // Buffers that the queue may still write are not reused.
        assert_eq!(held.switch.pool.free(), 253);
        let lent = held.switch.pool.allocate(253);
        held.device.run(usize::MAX);
        guest.say(&[5; 700]);
        drop(lent);
        assert_eq!(held.switch.packets(), [[5; 700]]);
    }
}
