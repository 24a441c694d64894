//! A query whose second column devices prefetch (Fürst's thesis, §2.2, §5.2, §6): a filter over column a, then a sum
//! over column b, chunk by chunk. `telpher-cache`'s own code (`query::Worker`) schedules the threads. This module
//! implements its interface in simulated time: memory, devices and hardware threads. A summing thread polls whether its
//! chunk was copied, and reads the original if not.
//!
//! ```text
//! Shape ─► Worker ─┬ scan, aggregate ─► a hardware thread, in turns ─► bytes of a node        copied? yes: cache node
//! · no: node of b
//!                  ├ fetch ─► library ─► a device's queue: b ─► cache      ▲
//!                  └ meet ─► barrier of the group                          └ decided by the simulated copies
//! ```
//!
//! Threads share the hardware threads of the node to which they are pinned: a run queue, in turns.

use super::memory_side::{Cached, HbmCacheMode};
use super::{Report, measure};
use crate::picos::Picos;
use crate::places::BufferPlacement;
use crate::scenario::Measure;
use crate::workload::{Library, NamedValue, QueueId};
use crate::world::{Barrier, Core, PendingWork, Semaphore, World};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use telpher_abi::{Flags, Opcode};
use telpher_query::{Chunk, Environment, Part, Role, Shape};

/// Bytes of a value. The thesis does not give it; it matters only because parts consist of whole values.
const VALUE: u64 = 8;

/// A query over two columns and how it is executed. The columns may stand for several: all those that SCAN reads, and
/// all those that only AGGREGATE reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Query {
    /// Bytes of a column: the rows times 8.
    pub column: u64,
    /// The bytes that the stages of another plan read; none for two whole columns of 8 bytes.
    pub traffic: Option<PlanTraffic>,
    /// Groups of threads; each has a part of both columns.
    pub groups: u32,
    /// Bytes that a group scans before it sums over them; also the bytes of a copy.
    pub chunk: u64,
    /// Total number of threads that scan a; each group has the same number, at least one.
    pub scanners: u32,
    /// Total number of threads that sum over b; each group has the same number, at least one.
    pub summers: u32,
    /// A group scans a chunk while it sums over the one before. Otherwise the stages follow each other, and only groups
    /// overlap.
    pub overlapping: bool,
    /// Node of the threads.
    pub node: usize,
    /// Cores of that node that the threads may run on.
    pub cores: u32,
    /// Hardware threads of those cores, shared by the threads.
    pub hardware_threads: u32,
    /// Length of a turn: afterwards a thread yields its hardware thread if others wait.
    pub turn: Picos,
    /// Highest read rate of a hardware thread, in bytes per second.
    pub most: u64,
    /// Node of column a.
    pub a: usize,
    /// Node of column b.
    pub b: usize,
    /// Prefetching of column b, if any.
    pub prefetch: Option<Prefetch>,
    /// Fast memory as a hardware-managed cache of the columns' nodes, if any.
    pub memory_side: Option<HbmCacheMode>,
}

/// The bytes of a plan's stages, over all rows. The rows of a chunk have their share of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlanTraffic {
    /// Bytes that SCAN reads.
    pub scanned: u64,
    /// Bytes that AGGREGATE reads of the columns that SCAN has read.
    pub again: u64,
    /// Bytes that AGGREGATE reads of the other columns, where they lie or from their copies.
    pub fetched: u64,
    /// Bytes of these columns, all of which are copied when they are prefetched.
    pub copied: u64,
    /// The number of these columns: a chunk of each has a copy of its own.
    pub columns: u32,
}

/// What a thread reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Read {
    Scanned,
    Again,
    Fetched,
}

/// How a column is prefetched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prefetch {
    /// Node to which it is copied.
    pub to: usize,
    /// Total number of threads that submit copies; each group has the same number, at least one.
    pub threads: u32,
    /// Queues; each thread uses them in turn, beginning with the first.
    pub queues: Vec<QueueId>,
    /// The library of the submissions.
    pub library: Library,
    /// The cache's pages are present. Otherwise devices request them (Block On Fault).
    pub mapped: bool,
    /// Each copy is split over all of the queues.
    pub split: bool,
    /// Threads begin with different queues, not all with the first.
    pub spread: bool,
    /// The threads that submit copies do not keep step with those that scan (§6.1).
    pub relaxed: bool,
    /// What happens if a copy is in flight when its chunk is needed.
    pub late: LateCopy,
}

/// What happens if a copy is in flight when its chunk is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LateCopy {
    /// Nothing: the original chunk is read (§4.1.4: weak wait).
    #[default]
    Miss,
    /// The thread waits for it, polling.
    Poll,
    /// The thread waits for it; another thread gets the hardware thread until an interrupt.
    Interrupt,
}

impl NamedValue for LateCopy {
    const NAMES: &'static [(&'static str, Self)] =
        &[("miss", LateCopy::Miss), ("poll", LateCopy::Poll), ("interrupt", LateCopy::Interrupt)];
}

impl Query {
    /// The thesis' query (§6.1) without prefetching: two columns of 4 GiB, 64 threads, then 32, in 32 groups (from
    /// drafts of §6.1 in the history of the thesis' repository), pinned to node 0 with its twelve cores (§3.1).
    ///
    /// Derived from Table 6.1: the bytes per second that a hardware thread reads and filters or sums. Assumed: chunks
    /// of 2 MiB; one hardware thread a core, because §3.1 counts cores; turns of 3 ms, as in Linux; a group sums over a
    /// chunk while it scans the next, which those drafts did not do yet.
    #[must_use]
    pub const fn of_two_columns() -> Self {
        Query {
            column: 4 << 30,
            traffic: None,
            groups: 32,
            chunk: 2 << 20,
            scanners: 64,
            summers: 32,
            overlapping: true,
            node: 0,
            cores: 12,
            hardware_threads: 12,
            turn: Picos::from_nanos(3_000_000),
            most: 7_718_000_000,
            a: 0,
            b: 0,
            prefetch: None,
            memory_side: None,
        }
    }

    /// The same with prefetching: half of the first threads submit copies (§6.1: 64 for both), to the HBM beside node 0
    /// (§5.2), through one shared queue of each device of the socket (from a draft of §5.2), each thread's copies in
    /// turn (§5.2; that every thread begins with the first device is assumed).
    ///
    /// Derived: chunks of 16 MiB. The thesis enlarged them so that a burst of all copies does not overflow the queues
    /// (§6.1). They cannot be larger, because five runs over fewer chunks do not give the shares of hits in Table 6.2.
    #[must_use]
    pub fn prefetching(b: usize) -> Self {
        let queues = (0..4).map(|device| QueueId { device, wq: 0, shared: true }).collect();
        let prefetch = Prefetch {
            to: 8,
            threads: 32,
            queues,
            library: Library::Dml,
            mapped: true,
            split: false,
            spread: false,
            relaxed: true,
            late: LateCopy::Miss,
        };
        Query { scanners: 32, chunk: 16 << 20, b, prefetch: Some(prefetch), ..Query::of_two_columns() }
    }

    /// The thesis' query with the rows and bytes of another plan, in chunks of so many rows.
    #[must_use]
    pub fn of_plan(self, rows: u64, chunk: u64, traffic: PlanTraffic) -> Self {
        let (column, chunk) = (rows.saturating_mul(VALUE), chunk.saturating_mul(VALUE));
        Query { column, chunk, traffic: Some(traffic), ..self }
    }

    /// The bytes of its stages.
    fn traffic(&self) -> PlanTraffic {
        let column = self.column;
        let two = PlanTraffic { scanned: column, again: 0, fetched: column, copied: column, columns: 1 };
        self.traffic.unwrap_or(two)
    }

    /// The share of rows in the bytes of all rows: where it begins and where it ends.
    fn share(&self, all: u64, rows: &Range<u64>) -> Range<u64> {
        let of = u128::from((self.column / VALUE).max(1));
        // At most `all`: rows are some of the table's.
        let at = |row: u64| u64::try_from(u128::from(all) * u128::from(row) / of).unwrap_or(all);
        at(rows.start)..at(rows.end)
    }

    /// Bytes of the larger column: that of the cache's pages.
    fn longest(&self) -> u64 {
        let traffic = self.traffic();
        traffic.scanned.max(traffic.again).max(traffic.fetched)
    }

    /// How its work is divided.
    fn shape(&self) -> Shape {
        let each = |threads: u32| (threads / self.groups.max(1)).max(1);
        Shape {
            rows: self.column / VALUE,
            groups: self.groups,
            // No copy exceeds the size field of a descriptor.
            chunk: self.chunk.clamp(PIECE, u32::MAX.into()) / VALUE,
            scanners: each(self.scanners),
            fetchers: self.prefetch.as_ref().map_or(0, |prefetch| each(prefetch.threads)),
            aggregators: each(self.summers),
            relaxed: self.prefetch.as_ref().is_none_or(|prefetch| prefetch.relaxed),
            overlapping: self.overlapping,
        }
    }

    /// The contents of the cache when it begins.
    fn cached(&self, side: &HbmCacheMode) -> Cached {
        let (shape, mut cached) = (self.shape(), Cached::new(side, self.longest()));
        let traffic = self.traffic();
        let rows = |b: bool, group, number| {
            let rows = shape.chunk(group, number).rows;
            let bytes = self.share(if b { traffic.fetched } else { traffic.scanned }, &rows);
            (b, bytes.start, bytes.end - bytes.start)
        };
        // Sums follow scans, or are a chunk behind.
        let behind = u64::from(self.overlapping);
        let step = |number: u64| {
            (0..shape.groups.max(1)).flat_map(move |group| {
                let b = number.checked_sub(behind).map(|before| rows(true, group, before));
                [Some(rows(false, group, number)), b].into_iter().flatten()
            })
        };
        if side.warm {
            cached.warm((0..=shape.chunks()).flat_map(step));
        }
        cached
    }

    pub(super) fn start(&self, world: &mut World) -> Report {
        let shape = self.shape();
        let free = world.signal(self.hardware_threads.max(1).into());
        let meeting = usize::try_from(shape.meeting()).unwrap_or(usize::MAX);
        let prefetch = self.prefetch.as_ref();
        let chunks = usize::try_from(shape.chunks()).unwrap_or(usize::MAX);
        let groups = self.groups.max(1);
        let run = Rc::new(Run {
            processors: Processors {
                free,
                turn: self.turn,
                most: self.most,
                sharing: self.hardware_threads.div_ceil(self.cores.max(1)).max(1),
            },
            meetings: (0..groups).map(|_| world.barrier(meeting)).collect(),
            column: world.places.add(BufferPlacement::on(self.b)),
            cache: prefetch.map_or(0, |prefetch| {
                world.places.add(BufferPlacement { present: prefetch.mapped, ..BufferPlacement::on(prefetch.to) })
            }),
            cached: self.memory_side.map(|side| RefCell::new(self.cached(&side))),
            copies: RefCell::new((0..groups).map(|_| (0..chunks).map(|_| None).collect()).collect()),
            seen: RefCell::default(),
            query: self.clone(),
        });
        for worker in shape.workers() {
            let run = run.clone();
            let number = worker.group as usize + worker.thread as usize * groups as usize;
            world.spawn(self.node, move |core| async move {
                let (core, next) = match &run.query.prefetch {
                    Some(prefetch) => (core.with_library(prefetch.library), if prefetch.spread { number } else { 0 }),
                    None => (core, 0),
                };
                let thread = Thread {
                    core,
                    run,
                    turn: Cell::default(),
                    began: Cell::default(),
                    spent: Cell::default(),
                    next: Cell::new(next),
                };
                worker.run(&thread).await;
                thread.over(worker.role);
            });
        }
        let fetches = prefetch.is_some();
        Box::new(move |_| run.measures(fetches))
    }
}

/// Bytes after which a thread checks whether its turn is over.
const PIECE: u64 = 256 << 10;

/// Interval of polls while a thread waits for a copy. Assumed: as long as an interrupt takes (`interrupt_ns`).
const AGAIN: Picos = Picos::from_nanos(5000);

/// The hardware threads of a node.
#[derive(Clone, Copy, Debug)]
struct Processors {
    free: Semaphore,
    turn: Picos,
    most: u64,
    /// Hardware threads per core, which share the core's bytes in flight.
    sharing: u32,
}

impl Processors {
    /// Gets a hardware thread, in order of arrival.
    async fn take(self, core: &Core) -> Turn {
        core.until(self.free).await;
        Turn { since: core.now(), before: Picos::ZERO }
    }

    /// If the turn is over, yields the hardware thread to a waiting thread and gets another.
    async fn turn(self, core: &Core, turn: &mut Turn) {
        let had = core.now().since(turn.since);
        if had >= self.turn && core.waiting(self.free) > 0 {
            core.give(self.free);
            core.until(self.free).await;
            *turn = Turn { since: core.now(), before: turn.before + had };
        }
    }

    /// Returns the hardware thread; the result is the time for which it was held.
    fn done(self, core: &Core, turn: Turn) -> Picos {
        core.give(self.free);
        turn.before + core.now().since(turn.since)
    }
}

/// A thread's hold of a hardware thread.
#[derive(Clone, Copy, Debug)]
struct Turn {
    since: Picos,
    /// Time in earlier turns.
    before: Picos,
}

/// Total times of a stage's threads.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    /// Time with a hardware thread.
    had: Picos,
    /// Time by the clock: from the first hardware thread to the barrier or the end, including other threads' turns.
    took: Picos,
}

/// The results of the threads.
#[derive(Debug, Default)]
struct Seen {
    scan: Spent,
    fetch: Spent,
    sum: Spent,
    hits: u64,
    misses: u64,
    /// Submissions that a full queue refused.
    refused: u64,
    /// Bytes that SCAN read, that AGGREGATE read, and that were copied.
    bytes: [u64; 3],
    end: Picos,
}

impl Seen {
    fn of(&mut self, role: Role) -> &mut Spent {
        match role {
            Role::Scan => &mut self.scan,
            Role::Fetch => &mut self.fetch,
            Role::Aggregate => &mut self.sum,
        }
    }
}

/// A chunk's copy, in one part or more.
type Copy = Rc<Vec<PendingWork>>;

/// A running query.
#[derive(Debug)]
struct Run {
    query: Query,
    processors: Processors,
    /// By group.
    meetings: Vec<Barrier>,
    /// Address of column b.
    column: u64,
    /// Address of its copies.
    cache: u64,
    /// The pages in fast memory in cache mode.
    cached: Option<RefCell<Cached>>,
    /// Submitted copies, by group and chunk.
    copies: RefCell<Vec<Vec<Option<Copy>>>>,
    seen: RefCell<Seen>,
}

impl Run {
    /// The results after the simulation.
    #[allow(clippy::cast_precision_loss, reason = "for display")]
    fn measures(&self, fetches: bool) -> Vec<Measure> {
        let seen = self.seen.borrow();
        let threads = f64::from(self.query.hardware_threads.max(1));
        // Time in which all hardware threads together would have done the stage.
        let ms = |time: Picos| time.as_nanos_f64() / 1e6 / threads;
        let mut measures = vec![
            measure("query", seen.end.as_nanos_f64() / 1e6, "ms"),
            measure("SCAN_a", ms(seen.scan.had), "ms"),
            measure("AGGREGATE", ms(seen.sum.had), "ms"),
            measure("SCAN_a by the clock", ms(seen.scan.took), "ms"),
            measure("AGGREGATE by the clock", ms(seen.sum.took), "ms"),
        ];
        if self.query.traffic.is_some() {
            for (name, bytes) in ["SCAN bytes", "AGGREGATE bytes", "copied bytes"].into_iter().zip(seen.bytes) {
                measures.push(measure(name, bytes as f64, "bytes"));
            }
        }
        if fetches {
            let rate = seen.hits as f64 / (seen.hits + seen.misses).max(1) as f64 * 100.0;
            measures.push(measure("SCAN_b", ms(seen.fetch.had), "ms"));
            measures.push(measure("cache hits", rate, "%"));
            measures.push(measure("refused", seen.refused as f64, "submissions"));
        }
        if let Some(cached) = &self.cached {
            measures.push(measure("fast memory hits", cached.borrow().rate(), "%"));
        }
        measures
    }
}

/// A thread of a query.
#[derive(Debug)]
struct Thread {
    core: Core,
    run: Rc<Run>,
    /// Its hold of a hardware thread, between two barriers.
    turn: Cell<Option<Turn>>,
    /// When it got the first hardware thread for its present stage.
    began: Cell<Option<Picos>>,
    /// Time by the clock of its earlier stages.
    spent: Cell<Spent>,
    /// The next queue.
    next: Cell<usize>,
}

impl Thread {
    /// Gets a hardware thread, unless it has one.
    async fn work(&self) {
        if self.turn.get().is_none() {
            self.turn.set(Some(self.run.processors.take(&self.core).await));
            self.began.set(self.began.get().or(Some(self.core.now())));
        }
    }

    /// Yields the hardware thread if its turn is over.
    async fn pause(&self) {
        if let Some(mut turn) = self.turn.get() {
            self.run.processors.turn(&self.core, &mut turn).await;
            self.turn.set(Some(turn));
        }
    }

    /// Returns the hardware thread.
    fn rest(&self) {
        if let Some(turn) = self.turn.take() {
            let Spent { had, took } = self.spent.get();
            self.spent.set(Spent { had: had + self.run.processors.done(&self.core, turn), took });
        }
    }

    /// Ends its present stage and returns the hardware thread.
    fn done(&self) {
        self.rest();
        let (Spent { had, took }, now) = (self.spent.get(), self.core.now());
        self.spent.set(Spent { had, took: took + self.began.take().map_or(Picos::ZERO, |began| now.since(began)) });
    }

    /// Ends all its work.
    fn over(&self, role: Role) {
        self.done();
        let seen = &mut *self.run.seen.borrow_mut();
        if role == Role::Aggregate {
            seen.end = seen.end.max(self.core.now());
        }
        let (of, own) = (seen.of(role), self.spent.get());
        of.had += own.had;
        of.took += own.took;
    }

    /// Reads the share of rows on a node, in turns with the other threads.
    async fn read(&self, rows: &Range<u64>, what: Read, node: usize) {
        self.work().await;
        let (run, traffic, b) = (&self.run, self.run.query.traffic(), what == Read::Fetched);
        let all = match what {
            Read::Scanned => traffic.scanned,
            Read::Again => traffic.again,
            Read::Fetched => traffic.fetched,
        };
        let Range { start: mut at, end } = run.query.share(all, rows);
        run.seen.borrow_mut().bytes[usize::from(what != Read::Scanned)] += end - at;
        while at < end {
            let piece = PIECE.min(end - at);
            let near = run.cached.as_ref().map_or(0, |cached| cached.borrow_mut().read(b, at, piece));
            let side = run.query.memory_side.map_or(node, |side| if b { side.b } else { side.a });
            for (bytes, node) in [(near, side), (piece - near, node)] {
                if bytes > 0 {
                    self.core.traffic(bytes, node, false, run.processors.most, run.processors.sharing).await;
                }
            }
            at += piece;
            self.pause().await;
        }
    }

    /// True (a hit) if a chunk's copy is done, or is awaited until it is done. Otherwise it is a miss, whether the copy
    /// was submitted or not.
    async fn has_come(&self, chunk: &Chunk, late: LateCopy) -> bool {
        let copy = self.run.copies.borrow()[chunk.group as usize][index(chunk)].clone();
        let come = || copy.as_ref().is_some_and(|copy| copy.iter().all(PendingWork::is_done));
        if late == LateCopy::Interrupt && copy.is_some() && !come() {
            self.rest();
            while !come() {
                self.core.sleep(AGAIN).await;
            }
            self.work().await;
        }
        while late == LateCopy::Poll && copy.is_some() && !come() {
            self.core.busy(AGAIN).await;
            self.pause().await;
        }
        let (come, seen) = (come(), &mut *self.run.seen.borrow_mut());
        *(if come { &mut seen.hits } else { &mut seen.misses }) += 1;
        come
    }

    /// Submits a copy of bytes of column b; a full queue is retried through all of the library.
    async fn ask(&self, prefetch: &Prefetch, at: u64, bytes: u64) -> Option<PendingWork> {
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let queue = *prefetch.queues.get(number.checked_rem(prefetch.queues.len())?)?;
        // Cannot fail: the chunk size is limited where it is chosen.
        let size = u32::try_from(bytes).unwrap_or(u32::MAX);
        let copy = World::descriptor(Opcode::MemoryMove, self.run.column + at, self.run.cache + at, size);
        let flags = if prefetch.mapped { Flags::empty() } else { Flags::BLOCK_ON_FAULT };
        let copy = copy.with_flags(copy.flags() | flags);
        loop {
            if let Some(ticket) = self.core.try_submit(queue, copy).await {
                return Some(ticket);
            }
            self.run.seen.borrow_mut().refused += 1;
            self.pause().await;
        }
    }
}

/// The index of a chunk within its group.
fn index(chunk: &Chunk) -> usize {
    usize::try_from(chunk.number).unwrap_or(usize::MAX)
}

impl Environment for Thread {
    async fn scan(&self, part: Part) {
        self.read(&part.rows, Read::Scanned, self.run.query.a).await;
    }

    async fn fetch(&self, chunk: Chunk) {
        let Some(prefetch) = &self.run.query.prefetch else { return };
        self.work().await;
        let traffic = self.run.query.traffic();
        let parts = if prefetch.split { prefetch.queues.len().max(1) as u64 } else { 1 };
        let parts = parts * u64::from(traffic.columns);
        let Range { start, end } = self.run.query.share(traffic.copied, &chunk.rows);
        let len = end - start;
        self.run.seen.borrow_mut().bytes[2] += len;
        let mut tickets = Vec::new();
        for part in 0..parts {
            let (from, to) = (len * part / parts, len * (part + 1) / parts);
            if from < to {
                tickets.extend(self.ask(prefetch, start + from, to - from).await);
            }
        }
        if !tickets.is_empty() {
            self.run.copies.borrow_mut()[chunk.group as usize][index(&chunk)] = Some(Rc::new(tickets));
        }
    }

    async fn aggregate(&self, part: Part) {
        self.work().await;
        let query = &self.run.query;
        let from = match &query.prefetch {
            Some(prefetch) if self.has_come(&part.chunk, prefetch.late).await => prefetch.to,
            _ => query.b,
        };
        self.read(&part.rows, Read::Again, query.a).await;
        self.read(&part.rows, Read::Fetched, from).await;
    }

    async fn meet(&self, group: u32) {
        self.done();
        self.core.meet(&self.run.meetings[group as usize]).await;
    }
}
