//! The queues that the hardware path uses, and which of them gets a descriptor.
//!
//! ```text
//! TELPHER_DML_DEVICE, or the machine ──► Found ──► open ──► Queues ──► near a node, else the others ──► offer
//! ```
//!
//! Shared queues are used if there are any. A dedicated queue belongs to one process, so only one of each device is
//! opened, and only on a machine where no shared queue can be used.

use crate::credits::{Credits, Epoch};
use crate::job::ANY_NODE;
use crate::memory::lent;
use crate::status::DmlStatus;
use crate::strict::strict;
use crate::sync::{AtomicBool, AtomicU32};
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, TryLockError};
use telpher_abi::{Descriptor, Offer, Opcode};
use telpher_device::{DeviceName, OpenOptions, PreparedDevice, prepare};
use telpher_hw::{DescribedQueue, Live, QueueType, describe, discover};
use telpher_os::{Nodes, chain};
use telpher_portal::{Health, Portal, QueueInfo, QueueMode, RecordCell};

/// Refusals in a row after which a queue is asked whether it works. Source: chosen; the question is a system call.
const REFUSALS: u32 = 1024;

thread_local! {
    /// Where this thread's search for a queue begins, so that threads spread over the queues.
    static NEXT: Cell<usize> = const { Cell::new(0) };
}

/// What there is to open, found once: a forked child opens the same.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// The device of `TELPHER_DML_DEVICE`.
    Named(PreparedDevice),
    /// The hardware queues, and the reasons why others cannot be used.
    Machine(Vec<FoundQueue>, Vec<String>),
    /// The reason why there is nothing.
    Nothing(String),
}

/// A hardware queue that may be usable.
#[derive(Clone, Debug)]
pub(crate) struct FoundQueue {
    queue: DescribedQueue,
    mode: Option<QueueMode>,
    device: u32,
}

impl Found {
    pub(crate) fn on_this_machine() -> Found {
        let Some(name) = std::env::var_os("TELPHER_DML_DEVICE") else { return Self::hardware() };
        let name = name.to_string_lossy();
        match name.parse::<DeviceName>() {
            Err(error) => Found::Nothing(format!("TELPHER_DML_DEVICE: {error}")),
            Ok(DeviceName::All) => Self::hardware(),
            Ok(DeviceName::Cpu) => Found::Nothing("TELPHER_DML_DEVICE is cpu: no queue is used".into()),
            Ok(parsed) => match prepare(&parsed) {
                Ok(device) => Found::Named(device),
                Err(error) => Found::Nothing(format!("TELPHER_DML_DEVICE={name}: {}", chain(&error))),
            },
        }
    }

    fn hardware() -> Found {
        let machine = discover(&Live::default());
        let (mut queues, mut reasons) = (Vec::new(), Vec::new());
        for (device, queue) in machine.queues() {
            // A queue that is not configured does not count.
            if queue.queue_type.is_none_or(|kind| kind == QueueType::None) {
                continue;
            }
            match describe(&queue.name) {
                Ok(found) => queues.push(FoundQueue { queue: found, mode: queue.mode, device: device.number }),
                Err(error) => reasons.push(chain(&error)),
            }
        }
        Found::Machine(queues, reasons)
    }

    /// Opens the queues.
    pub(crate) fn open(&self) -> Queues {
        match self {
            Found::Nothing(why) => Queues::new(Vec::new(), vec![why.clone()]),
            Found::Named(device) => match device.open(OpenOptions::default()) {
                Ok(opened) => Queues::new(opened.portals, opened.skipped.into_iter().map(|queue| queue.why).collect()),
                Err(error) => Queues::new(Vec::new(), vec![chain(&error)]),
            },
            Found::Machine(queues, reasons) => {
                let (mut portals, mut reasons) = (Vec::new(), reasons.clone());
                let mut open = |found: &FoundQueue| match found.queue.open() {
                    Ok(portal) => Some(portal),
                    Err(error) => {
                        reasons.push(chain(&error));
                        None
                    }
                };
                let shared = queues.iter().filter(|found| found.mode != Some(QueueMode::Dedicated));
                portals.extend(shared.filter_map(&mut open));
                if portals.is_empty() {
                    let mut served = None;
                    for found in queues.iter().filter(|found| found.mode == Some(QueueMode::Dedicated)) {
                        if served != Some(found.device)
                            && let Some(portal) = open(found)
                        {
                            served = Some(found.device);
                            portals.push(portal);
                        }
                    }
                }
                Queues::new(portals, reasons)
            }
        }
    }
}

/// The open queues of a process.
#[derive(Debug)]
pub(crate) struct Queues {
    queues: Vec<Queue>,
    nodes: Nodes,
    /// Why queues cannot be used.
    reasons: Vec<String>,
}

#[derive(Debug)]
struct Queue {
    portal: Arc<dyn Portal>,
    /// Of a dedicated queue.
    credits: Option<Credits>,
    drain: Mutex<Drain>,
    /// Descriptors refused since it took the last one.
    refusals: AtomicU32,
    /// It was given up, or has stopped by itself.
    stopped: AtomicBool,
}

/// The Drain that tells when credits that were not given back are free.
#[derive(Debug, Default)]
struct Drain {
    /// The epoch has begun; the Drain is in the queue, or must still be given to it.
    begun: bool,
    in_queue: bool,
    /// Never freed: the device may write it late.
    record: Option<&'static RecordCell>,
}

/// A descriptor that a queue took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) queue: u32,
    pub(crate) epoch: Option<Epoch>,
}

/// Why no queue took a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// There is no queue that works.
    NoQueue,
    /// No queue is on the node, and `TELPHER_DML_STRICT` forbids others.
    OtherNode,
    /// No queue has the operation.
    Operation,
    /// It exceeds the limits of all queues that have the operation.
    TooLong,
    /// No queue takes a batch, or not of this size; its members can be submitted one by one.
    Batch,
    /// All queues are full.
    Busy,
}

impl Refused {
    /// Returns what the C interface answers.
    pub(crate) const fn status(self) -> DmlStatus {
        match self {
            Refused::NoQueue => DmlStatus::LIBACCEL_NOT_FOUND,
            Refused::OtherNode | Refused::Busy => DmlStatus::WORK_QUEUES_NOT_AVAILABLE,
            Refused::Operation => DmlStatus::JOB_OPERATION_ERROR,
            Refused::TooLong | Refused::Batch => DmlStatus::JOB_LENGTH_ERROR,
        }
    }
}

impl Queues {
    fn new(portals: Vec<Arc<dyn Portal>>, reasons: Vec<String>) -> Queues {
        let queues = portals.into_iter().map(Queue::new).collect();
        Queues { queues, nodes: Nodes::of_this_machine(), reasons }
    }

    /// Offers a descriptor to the queues near a node, then to the others. In strict mode a named node has no others.
    pub(crate) fn offer(&self, d: &Descriptor, node: u32) -> Result<Placed, Refused> {
        self.offer_bound(d, node, node != ANY_NODE && strict())
    }

    fn offer_bound(&self, d: &Descriptor, node: u32, is_bound: bool) -> Result<Placed, Refused> {
        let wanted = match node {
            ANY_NODE => self.nodes.of_this_thread(),
            node => Some(node),
        };
        let is_near = |queue: &Queue| match (queue.portal.info().numa_node, wanted) {
            (Some(of_device), Some(wanted)) => of_device == wanted,
            // Many virtual machines name no node.
            (None, _) | (_, None) => true,
        };
        let start = NEXT.get();
        NEXT.set(start.wrapping_add(1));
        let mut refused = if self.queues.is_empty() { Refused::NoQueue } else { Refused::OtherNode };
        let count = self.queues.len();
        for near in [true, false] {
            if !near && is_bound {
                break;
            }
            for at in (0..count).map(|step| (start.wrapping_add(step)) % count) {
                let queue = &self.queues[at];
                if is_near(queue) != near {
                    continue;
                }
                match queue.offer(d) {
                    // Cannot lose bits: a machine has fewer queues.
                    Ok(epoch) => return Ok(Placed { queue: u32::try_from(at).unwrap_or(u32::MAX), epoch }),
                    Err(why) => refused = refused.or(why),
                }
            }
        }
        Err(refused)
    }

    fn at(&self, placed: Placed) -> Option<&Queue> {
        self.queues.get(placed.queue as usize)
    }

    /// The record of a descriptor was seen: its entry is free.
    pub(crate) fn completed(&self, placed: Placed) {
        if let (Some(Queue { credits: Some(credits), .. }), Some(epoch)) = (self.at(placed), placed.epoch) {
            credits.give(epoch);
        }
    }

    /// Returns the portal that took a descriptor.
    pub(crate) fn portal(&self, placed: Placed) -> Option<&dyn Portal> {
        self.at(placed).map(|queue| &*queue.portal)
    }

    /// Returns true if the queue is certain not to access memory any more. `give_up` retires one that says it works.
    pub(crate) fn has_stopped(&self, placed: Placed, give_up: bool) -> bool {
        let Some(queue) = self.at(placed) else { return true };
        let health = if give_up { queue.portal.retire() } else { queue.portal.health() };
        let stopped = matches!(health, Health::Stopped(_));
        if stopped {
            // Relaxed: a thread that sees it late is answered Retry by the portal.
            queue.stopped.store(true, Ordering::Relaxed);
        }
        stopped
    }

    /// Returns why a descriptor was refused, as a sentence.
    pub(crate) fn why(&self, refused: Refused, d: &Descriptor, node: u32) -> String {
        let (op, size) = (d.opcode(), longest(d));
        match refused {
            Refused::NoQueue if !self.queues.is_empty() => "every queue has stopped working".into(),
            Refused::NoQueue if self.reasons.is_empty() => {
                "no enabled queue of a DSA device was found; enable one with accel-config, start the program with \
                 'telpher run', or set TELPHER_DML_DEVICE"
                    .into()
            }
            Refused::NoQueue => format!("no queue can be used: {}", self.reasons.join("; ")),
            Refused::OtherNode => format!("no queue is on NUMA node {node}, and TELPHER_DML_STRICT forbids others"),
            Refused::Operation => format!("no queue offers {op}"),
            Refused::TooLong => {
                let most = self.queues.iter().map(|queue| queue.portal.info().max_transfer).max().unwrap_or(0);
                format!("{op} of {size} bytes exceeds the largest transfer of all queues, {most} bytes; split it")
            }
            Refused::Batch => format!("no queue takes a batch of {size} descriptors"),
            Refused::Busy => "every queue is full; try again".into(),
        }
    }
}

impl Refused {
    /// Combines the reasons of two queues: the one that says more about what the caller can do.
    const fn or(self, other: Refused) -> Refused {
        if other.rank() > self.rank() { other } else { self }
    }

    const fn rank(self) -> u8 {
        match self {
            Refused::OtherNode => 0,
            Refused::NoQueue => 1,
            Refused::Operation => 2,
            Refused::TooLong => 3,
            Refused::Batch => 4,
            Refused::Busy => 5,
        }
    }
}

impl Queue {
    fn new(portal: Arc<dyn Portal>) -> Queue {
        let info = portal.info();
        let credits = (info.mode == QueueMode::Dedicated).then(|| {
            // One entry is for a Drain; a queue of one entry has none to spare.
            let spare = u32::from(info.size > 1);
            Credits::new(info.size.saturating_sub(spare))
        });
        Queue { portal, credits, drain: Mutex::default(), refusals: AtomicU32::new(0), stopped: AtomicBool::new(false) }
    }

    fn offer(&self, d: &Descriptor) -> Result<Option<Epoch>, Refused> {
        // Relaxed: see `has_stopped`.
        if self.stopped.load(Ordering::Relaxed) {
            return Err(Refused::NoQueue);
        }
        accepts(self.portal.info(), d)?;
        let Some(credits) = &self.credits else { return self.post(d).map(|()| None) };
        let taken = credits.take().or_else(|| {
            self.reclaim(credits);
            credits.take()
        });
        let epoch = taken.ok_or_else(|| self.refuse())?;
        let posted = self.post(d);
        credits.posted();
        posted.inspect_err(|_| credits.give(epoch))?;
        Ok(Some(epoch))
    }

    fn post(&self, d: &Descriptor) -> Result<(), Refused> {
        match self.portal.offer(&lent(*d)) {
            Offer::Taken => {
                // Relaxed: only a count. It is not written for each descriptor, because threads share it.
                if self.refusals.load(Ordering::Relaxed) != 0 {
                    self.refusals.store(0, Ordering::Relaxed);
                }
                Ok(())
            }
            _ => Err(self.refuse()),
        }
    }

    /// Counts a refusal and returns its reason. A queue that is disabled refuses like a full one, so a queue that
    /// only refuses is asked whether it still works.
    #[cold]
    fn refuse(&self) -> Refused {
        self.portal.drive();
        // Relaxed: only a count.
        let refusals = self.refusals.fetch_add(1, Ordering::Relaxed);
        if refusals % REFUSALS == REFUSALS - 1 && matches!(self.portal.health(), Health::Stopped(_)) {
            // Relaxed: see `has_stopped`.
            self.stopped.store(true, Ordering::Relaxed);
            return Refused::NoQueue;
        }
        Refused::Busy
    }

    /// All entries are taken. Finds out which of them have completed without their jobs' results being read.
    #[cold]
    fn reclaim(&self, credits: &Credits) {
        let info = self.portal.info();
        if info.size < 2 || !info.operations.contains(Opcode::Drain) {
            return;
        }
        let mut drain = match self.drain.try_lock() {
            Ok(drain) => drain,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread is at it.
            Err(TryLockError::WouldBlock) => return,
        };
        let record = *drain.record.get_or_insert_with(|| Box::leak(Box::new(RecordCell::new())));
        if drain.in_queue {
            self.portal.drive();
            if record.status().is_some() {
                (drain.begun, drain.in_queue) = (false, false);
                credits.end();
            }
            return;
        }
        if !drain.begun && credits.begin().is_some() {
            drain.begun = true;
            record.clear();
        }
        if drain.begun {
            drain.in_queue = self.post(&Descriptor::drain().with_record(record.address())).is_ok();
        }
    }
}

/// Returns the largest size of a descriptor: a delta record is a transfer, too. Source: SPEC §8.3.8, §8.3.9.
fn longest(d: &Descriptor) -> u32 {
    let record = match d.opcode() {
        Opcode::CreateDelta => d.max_delta_size(),
        Opcode::ApplyDelta => d.delta_record_size(),
        _ => 0,
    };
    d.size().max(record)
}

/// Checks a descriptor against a queue's limits.
fn accepts(info: &QueueInfo, d: &Descriptor) -> Result<(), Refused> {
    let size = u64::from(longest(d));
    match d.opcode() {
        Opcode::Batch => {
            let takes = info.operations.contains(Opcode::Batch) && info.max_batch > 1;
            if takes && size <= u64::from(info.max_batch) { Ok(()) } else { Err(Refused::Batch) }
        }
        operation if !info.operations.contains(operation) => Err(Refused::Operation),
        Opcode::Nop | Opcode::Drain => Ok(()),
        _ if size > info.max_transfer => Err(Refused::TooLong),
        _ => Ok(()),
    }
}

#[cfg(all(test, not(loom)))]
mod stub_portal;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::stub_portal::StubPortal;
    use super::*;
    use telpher_abi::registers::{DsaCap0, GenCap, OpCap};
    use telpher_abi::{CompletionRecord, Status, StatusByte};

    fn portal(mode: QueueMode, size: u32, numa_node: Option<u32>) -> Arc<StubPortal> {
        let info = QueueInfo {
            name: "wq0.0".into(),
            mode,
            size,
            max_transfer: 1 << 31,
            max_batch: 1024,
            block_on_fault: true,
            gen_cap: GenCap([0]),
            dsa_cap_0: DsaCap0([0]),
            operations: OpCap([u64::MAX; 4]),
            numa_node,
        };
        let (refuses, has_stopped) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(StubPortal { info, refuses, has_stopped, taken: AtomicU32::new(0) })
    }

    fn queue(mode: QueueMode, size: u32) -> (Arc<StubPortal>, Queue) {
        let portal = portal(mode, size, None);
        (Arc::clone(&portal), Queue::new(portal))
    }

    #[test]
    fn a_named_node_without_a_queue_gets_another_one_and_in_strict_mode_none() {
        let of = |node| Queues::new(vec![portal(QueueMode::Shared, 3, node)], Vec::new());
        let taken = |queues: &Queues, node, is_bound| {
            queues.offer_bound(&Descriptor::nop(), node, is_bound).map(|placed| placed.queue)
        };
        let queues = of(Some(1));
        assert_eq!([0, 1].map(|node| taken(&queues, node, false)), [Ok(0), Ok(0)]);
        assert_eq!([0, 1].map(|node| taken(&queues, node, true)), [Err(Refused::OtherNode), Ok(0)]);
        assert_eq!(Refused::OtherNode.status(), DmlStatus::WORK_QUEUES_NOT_AVAILABLE);
        assert_eq!(taken(&of(None), 0, true), Ok(0), "a device without a node is near every node");
    }

    #[test]
    fn a_queue_that_only_refuses_is_left_out_once_it_has_stopped() {
        for mode in [QueueMode::Shared, QueueMode::Dedicated] {
            let (portal, queue) = queue(mode, 3);
            // A dedicated queue takes what is written to it, so its credits run out.
            let credits = if mode == QueueMode::Dedicated { 2 } else { 0 };
            assert!((0..credits).all(|_| queue.offer(&Descriptor::nop()).is_ok()));
            portal.refuses.store(mode == QueueMode::Shared, Ordering::Relaxed);
            let mut refused = (0..2 * REFUSALS).map(|_| queue.offer(&Descriptor::nop()));
            assert!(refused.all(|answer| answer == Err(Refused::Busy)), "a full queue works");
            portal.has_stopped.store(true, Ordering::Relaxed);
            let mut refused = (0..REFUSALS).map(|_| queue.offer(&Descriptor::nop()));
            assert!(refused.any(|answer| answer == Err(Refused::NoQueue)));
            portal.refuses.store(false, Ordering::Relaxed);
            assert_eq!(queue.offer(&Descriptor::nop()), Err(Refused::NoQueue));
        }
    }

    #[test]
    fn a_drain_that_is_refused_is_given_to_the_queue_again() {
        let (portal, queue) = queue(QueueMode::Dedicated, 3);
        let offer = || queue.offer(&Descriptor::nop()).map(|_| ());
        assert_eq!((offer(), offer()), (Ok(()), Ok(())));
        portal.refuses.store(true, Ordering::Relaxed);
        assert_eq!((offer(), offer()), (Err(Refused::Busy), Err(Refused::Busy)));
        portal.refuses.store(false, Ordering::Relaxed);
        assert_eq!((offer(), offer()), (Err(Refused::Busy), Err(Refused::Busy)), "the Drain has not completed");
        assert_eq!(portal.taken.load(Ordering::Relaxed), 3, "two descriptors and one Drain");
        let record = queue.drain.lock().unwrap().record.unwrap();
        record.complete(&CompletionRecord::new(StatusByte::new(Status::Success)));
        assert_eq!((offer(), offer()), (Ok(()), Ok(())), "the credits that never came back are free");
    }

    #[test]
    fn a_full_queue_is_reported_before_one_that_cannot_take_the_operation() {
        for (one, other) in [(Refused::Busy, Refused::Operation), (Refused::TooLong, Refused::NoQueue)] {
            assert_eq!((one.or(other), other.or(one)), (one, one));
        }
    }
}
