//! A program's long copies, replayed one by one from a recording: each thread works for the measured time, then its
//! core or a device makes the recorded copy while the thread waits.
//!
//! A recording is a sample of blocks of consecutive calls. Consecutive blocks are one section; sections are simulated
//! independently of each other, because the time between them is unknown.

use crate::machine::Machine;
use crate::picos::Picos;
use crate::places::{BufferPlacement, LineLocation};
use crate::scenario::queue_ids;
use crate::workload::{Library, QueueId, Wait};
use crate::world::{Core, PendingWork, World};
use std::cell::RefCell;
use std::rc::Rc;
use telpher_abi::{Descriptor, Flags, Opcode};
use telpher_device::{Capabilities, Config, Preset, StartError};

/// Bytes of a page. Source: x86-64; larger pages fault less often.
const PAGE: u64 = 4096;

/// One call of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayCall {
    /// Its index in [`Replayed::took`].
    pub index: usize,
    /// Work of the thread before it: since the thread's previous call, or since the section began.
    pub gap: Picos,
    /// The operation.
    pub op: Opcode,
    /// Bytes.
    pub bytes: u64,
    /// The time of the core if it executes the call.
    pub by_core: Picos,
    /// Time in the call that the thread spends otherwise, with any executor: the kernel runs another thread.
    pub interrupted: Picos,
    /// A device executes the call.
    pub by_device: bool,
    /// Source and destination are in the core's caches.
    pub cached: bool,
    /// The destination is a multiple of 64.
    pub aligned: bool,
    /// Source and destination overlap.
    pub overlaps: bool,
    /// Pages of the destination that are not mapped, at most all of them.
    pub missing_pages: u64,
}

impl ReplayCall {
    /// A call that a device executes: of aligned data in memory, with all pages, without work before it.
    #[must_use]
    pub fn by_device(op: Opcode, bytes: u64) -> ReplayCall {
        ReplayCall {
            index: 0,
            gap: Picos::ZERO,
            op,
            bytes,
            by_core: Picos::ZERO,
            interrupted: Picos::ZERO,
            by_device: true,
            cached: false,
            aligned: true,
            overlaps: false,
            missing_pages: 0,
        }
    }

    /// Missing pages, and bytes before the first of them, if any page is missing. They are spread evenly over the call.
    fn fault(&self) -> Option<(u64, u64)> {
        let pages = self.bytes.div_ceil(PAGE);
        let missing = self.missing_pages.min(pages);
        (missing > 0).then(|| (missing, (pages - missing) / (missing + 1) * PAGE))
    }
}

/// Calls of several threads that were recorded together, by thread.
pub type ReplaySection = Vec<Vec<ReplayCall>>;

/// How devices are used.
#[derive(Clone, PartialEq, Debug)]
pub struct ReplayDevices {
    /// Their configurations, one each. Threads use all queues in turn.
    pub configs: Vec<Config>,
    /// Retries of a full queue before the core executes the call.
    pub retries: u32,
    /// The core finishes a call after a page fault if less than twice this is left.
    pub threshold: u64,
    /// Devices write to the cache, not to memory.
    pub to_cache: bool,
    /// How a thread waits.
    pub wait: Wait,
}

/// What was simulated.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Replayed {
    /// The time of each call.
    pub took: Vec<Picos>,
    /// The time of each section, from its first call's gap to the end of its last call.
    pub sections: Vec<Picos>,
    /// Calls that devices executed, wholly or in part.
    pub by_device: u64,
    /// Calls that a core executed because the queue was full.
    pub queue_full: u64,
    /// Calls in which a device met a missing page.
    pub faults: u64,
    /// Descriptors that a device refused.
    pub refused: u64,
}

/// Simulates sections on a machine. The gaps and calls of a thread must end before the simulated time does, after 213
/// days ([`Picos::NEVER`]).
///
/// # Errors
/// If a device refuses its configuration.
pub fn replay(
    machine: &Machine,
    devices: &ReplayDevices,
    sections: Vec<ReplaySection>,
) -> Result<Replayed, StartError> {
    let calls = sections.iter().flatten().map(Vec::len).sum();
    let seen = Rc::new(RefCell::new(Replayed { took: vec![Picos::ZERO; calls], ..Replayed::default() }));
    let capabilities = Preset::Spr.capabilities();
    for section in sections {
        let mut world = World::new(machine.clone(), capabilities, &devices.configs)?;
        begin(&mut world, devices, &capabilities, section, &seen);
        world.run();
        seen.borrow_mut().refused += world.refused();
    }
    Ok(seen.take())
}

/// Adds a program for each thread of a section.
fn begin(
    world: &mut World,
    devices: &ReplayDevices,
    capabilities: &Capabilities,
    section: ReplaySection,
    seen: &Rc<RefCell<Replayed>>,
) {
    seen.borrow_mut().sections.push(Picos::ZERO);
    let mut place = |lines, skew| {
        let place = BufferPlacement { lines, skew, ..BufferPlacement::on(0) };
        world.places.add(place)
    };
    let addresses = Addresses {
        sources: [place(LineLocation::Memory, 0), place(LineLocation::Llc, 0)],
        // Eight bytes beyond a line stand for all destinations that are not aligned.
        destinations: [place(LineLocation::Memory, 0), place(LineLocation::Memory, 8)],
    };
    let settings = Rc::new(Settings {
        queues: queue_ids(&devices.configs),
        retries: devices.retries,
        threshold: devices.threshold,
        to_cache: devices.to_cache,
        wait: devices.wait,
        overlapping: capabilities.gen_cap.overlapping_copy(),
        most: most_transfer(&devices.configs),
        report: world.machine().translation.report,
        touch: world.machine().translation.touch,
        addresses,
    });
    let next_queue = Rc::new(RefCell::new(0));
    for calls in section {
        let (settings, next_queue, seen) = (Rc::clone(&settings), Rc::clone(&next_queue), Rc::clone(seen));
        world.spawn(0, move |core| {
            // The library that intercepts the calls builds each descriptor.
            let core = core.with_library(Library::Lean);
            Thread { settings, next_queue, seen }.run(core, calls)
        });
    }
}

/// The longest transfer that all queues accept.
fn most_transfer(configs: &[Config]) -> u64 {
    let queues = configs.iter().flat_map(|config| &config.groups).flat_map(|group| &group.grouped_workqueues);
    queues.map(|queue| queue.max_transfer_size).min().unwrap_or(1 << 20).clamp(PAGE, 1 << 30)
}

/// Addresses of simulated buffers.
struct Addresses {
    /// In memory, and in the cache.
    sources: [u64; 2],
    /// Aligned, and not.
    destinations: [u64; 2],
}

struct Settings {
    queues: Vec<QueueId>,
    retries: u32,
    threshold: u64,
    to_cache: bool,
    wait: Wait,
    /// Devices copy overlapping ranges correctly.
    overlapping: bool,
    most: u64,
    report: Picos,
    touch: Picos,
    addresses: Addresses,
}

struct Thread {
    settings: Rc<Settings>,
    /// The queue that gets the next call, over all threads.
    next_queue: Rc<RefCell<usize>>,
    seen: Rc<RefCell<Replayed>>,
}

impl Thread {
    async fn run(self, core: Core, calls: Vec<ReplayCall>) {
        for call in calls {
            if call.gap > Picos::ZERO {
                core.busy(call.gap).await;
            }
            let start = core.now();
            if call.by_device && !self.settings.queues.is_empty() && (!call.overlaps || self.settings.overlapping) {
                self.offload(&core, &call).await;
            } else {
                core.busy(call.by_core).await;
            }
            if call.interrupted > Picos::ZERO {
                core.sleep(call.interrupted).await;
            }
            let now = core.now();
            let seen = &mut *self.seen.borrow_mut();
            if let Some(took) = seen.took.get_mut(call.index) {
                *took = now.since(start);
            }
            if let Some(section) = seen.sections.last_mut() {
                *section = now.max(*section);
            }
        }
    }

    /// A device executes a call. Where pages are missing, the core maps them after the fault and submits the rest, or
    /// executes a short rest itself.
    async fn offload(&self, core: &Core, call: &ReplayCall) {
        let mut done = 0;
        if let Some((missing, before)) = call.fault() {
            // A descriptor without any bytes does not exist; a line stands for a fault at the first byte.
            let Some(moved) = self.transfer(core, call, 0, before.max(64).min(call.bytes)).await else {
                return self.queue_is_full(core, call, 0).await;
            };
            core.busy(self.settings.report).await;
            self.seen.borrow_mut().faults += 1;
            done = moved.min(before);
            if call.bytes - done < self.settings.threshold.saturating_mul(2) {
                self.seen.borrow_mut().by_device += u64::from(done > 0);
                return self.rest_by_core(core, call, done).await;
            }
            core.busy(self.settings.touch * missing).await;
        }
        let moved = self.transfer(core, call, done, call.bytes - done).await.unwrap_or(0);
        if done + moved < call.bytes {
            return self.queue_is_full(core, call, done + moved).await;
        }
        self.seen.borrow_mut().by_device += 1;
    }

    /// The queue was full: the core executes the rest of a call.
    async fn queue_is_full(&self, core: &Core, call: &ReplayCall, done: u64) {
        {
            let seen = &mut *self.seen.borrow_mut();
            seen.queue_full += 1;
            seen.by_device += u64::from(done > 0);
        }
        self.rest_by_core(core, call, done).await;
    }

    async fn rest_by_core(&self, core: &Core, call: &ReplayCall, done: u64) {
        core.busy(part(call.by_core, call.bytes - done, call.bytes)).await;
    }

    /// A device executes a part of a call, piece by piece. Returns the bytes that are done, or `None` if the first
    /// piece found the queue full. Pieces of overlapping ranges follow each other; others are in flight together.
    async fn transfer(&self, core: &Core, call: &ReplayCall, from: u64, bytes: u64) -> Option<u64> {
        let mut in_flight: Vec<PendingWork> = Vec::new();
        let mut done = 0;
        while done < bytes {
            let piece = (bytes - done).min(self.settings.most);
            let Some(work) = self.submit(core, call, from + done, piece).await else { break };
            done += piece;
            if call.overlaps {
                core.wait(&work, self.settings.wait).await;
            } else {
                in_flight.push(work);
            }
        }
        for work in &in_flight {
            core.wait(work, self.settings.wait).await;
        }
        (done > 0).then_some(done)
    }

    async fn submit(&self, core: &Core, call: &ReplayCall, offset: u64, bytes: u64) -> Option<PendingWork> {
        let Addresses { sources, destinations } = &self.settings.addresses;
        let source = sources[usize::from(call.cached)] + offset;
        let destination = destinations[usize::from(!call.aligned)] + offset;
        // At most 2^30 bytes.
        let size = u32::try_from(bytes).unwrap_or(u32::MAX);
        let mut work: Descriptor = World::descriptor(call.op, source, destination, size);
        let mut flags = work.flags();
        flags.set(Flags::CACHE_CONTROL_1, self.settings.to_cache && call.op != Opcode::Compare);
        work = work.with_flags(flags);
        let queue = {
            let next = &mut *self.next_queue.borrow_mut();
            *next = (*next + 1) % self.settings.queues.len();
            self.settings.queues[*next]
        };
        for _ in 0..=self.settings.retries {
            let given = core.try_submit(queue, work).await;
            if given.is_some() {
                return given;
            }
        }
        None
    }
}

/// `time * bytes / of`.
fn part(time: Picos, bytes: u64, of: u64) -> Picos {
    // Not more than `time`, because `bytes` is at most `of`.
    Picos(u64::try_from(u128::from(time.0) * u128::from(bytes) / u128::from(of.max(1))).unwrap_or(u64::MAX))
}
