//! Runs a query on threads of this machine: the environment of its workers.
//!
//! ```text
//! SCAN ── selections of two chunks, alternating ──► AGGREGATE ── partial results ──► merged
//!                                                ▲   └ checks which blocks have arrived, cancels those that have not
//! begun FETCH ── prefetch ──► Cache ──► Mover ──► tier ┘
//! ```

use super::barrier::GroupBarrier;
use super::config::{MOST, OnLate, Options, PrefetchWhen};
use super::error::{InputError, RunError};
use super::pipeline::{Chunk, Environment, Part, Role, Shape, Worker};
use super::stats::{Blocks, Report, Stage, Traffic};
use super::{Partial, Query, Selection};
use std::cell::RefCell;
use std::collections::HashMap;
use std::future::{Future as _, pending};
use std::ops::Range;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};
use telpher_cache::{Cache, Handle, Prefetch, Priority};
use telpher_mem::Region;
use telpher_os::Nodes;

/// Runs a query: filters chunk by chunk, while a cache, if there is one, prefetches the columns that only the
/// aggregation reads. The answer is the same with and without a cache, whether copies arrive, arrive late or fail.
///
/// The cache belongs to the caller. A used cache has blocks already; [`clear`](Cache::clear) it to start without any.
///
/// ```
/// use std::sync::Arc;
/// use telpher_query::{PrefetchWhen, Column, Options, Plan, Table, Value, run};
/// use telpher_cache::{Cache, Config};
/// use telpher_mem::{Pool, PoolOptions};
/// use telpher_mover::Mover;
///
/// let a: Vec<i64> = (0..10_000).map(|row| row % 100).collect();
/// let table = Table::new(vec![Column::of("a", &a)?, Column::of("b", &vec![3_i64; 10_000])?])?;
/// let query = Plan::thesis().on(&table)?; // select sum(b) where a <= 49
///
/// let fast = Pool::new(PoolOptions::new(1 << 20))?;
/// let cache = Cache::new(Mover::cpu(), Config::new([fast]))?;
/// let report = run(&query, Some(&cache), &Options { ahead: PrefetchWhen::Always, ..Options::new(2) })?;
/// assert_eq!(report.answer.rows[0].values, [Value::Integer(15_000)]);
/// assert!(report.blocks.requested <= 2); // a block of b for each group, unless it was read before its turn
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`RunError`] if the threads cannot be created as requested, or a device is found to have written wrong bytes.
/// Nothing else can fail: the query was checked when it was created, and after a failed copy the block is read from the
/// source.
///
/// # Panics
/// If one of its threads panics, which is a bug in this crate; the others end first.
pub fn run(query: &Query, cache: Option<&Cache<Arc<Region>>>, options: &Options) -> Result<Report, RunError> {
    let mut shape = Shape { rows: query.table().rows(), ..options.shape };
    if cache.is_none() || query.fetched().is_empty() {
        shape.fetchers = 0;
    }
    let spared = cache.and_then(|cache| all_spared(query, cache, options, &shape));
    if spared.is_some() {
        shape.fetchers = 0;
    }
    let asked = shape.threads();
    let threads = u32::try_from(asked).ok().filter(|&threads| threads <= MOST);
    let threads = threads.ok_or(RunError::Threads { asked, most: MOST })?;
    let common = Common {
        query,
        cache,
        options,
        start: GroupBarrier::new(threads),
        pin: options.node.map(|node| (Nodes::of_this_machine(), node)),
        groups: (0..shape.groups.max(1)).map(|_| Group::of(&shape)).collect(),
    };
    let (common, mut failed) = (&common, None);
    let tallies: Vec<(Role, Tally)> = thread::scope(|scope| {
        let mut started = Vec::new();
        for (number, worker) in (1..).zip(shape.workers()) {
            let name = thread::Builder::new().name(format!("{:?} {}", worker.role, worker.group));
            match name.spawn_scoped(scope, move || common.work(worker)) {
                Ok(thread) => started.push((worker.role, thread)),
                Err(source) => {
                    failed = Some(RunError::Start { number, of: threads, source });
                    common.give_up();
                    break;
                }
            }
        }
        let mut tallies = Vec::new();
        let mut panic = None;
        for (role, thread) in started {
            match thread.join() {
                Ok(Ok(tally)) => tallies.push((role, tally)),
                Ok(Err(error)) => failed = failed.take().or(Some(error)),
                Err(payload) => panic = Some(payload),
            }
        }
        panic.map_or(tallies, |payload| resume_unwind(payload))
    });
    match failed {
        Some(error) => Err(error),
        None => {
            let mut report = sum_up(query, tallies);
            report.traffic = report.traffic.filter(|_| options.traffic);
            report.blocks.spared += spared.unwrap_or_default();
            Ok(report)
        }
    }
}

/// Returns the number of blocks to fetch, if none needs to be fetched because all are on the same node as their copies
/// would be. Then no fetching thread is needed. Checked in advance only on a machine with one node, where it takes no
/// system call.
fn all_spared(query: &Query, cache: &Cache<Arc<Region>>, options: &Options, shape: &Shape) -> Option<u64> {
    if options.ahead != PrefetchWhen::WhereApart || shape.fetchers == 0 || cache.nodes().count() > 1 {
        return None;
    }
    let mut spared = 0;
    for group in 0..shape.groups.max(1) {
        for chunk in (0..shape.chunks()).map(|number| shape.chunk(group, number)).filter(|chunk| !chunk.rows.is_empty())
        {
            for &column in query.fetched() {
                if is_apart(query, cache, column, &chunk) != Some(false) {
                    return None;
                }
                spared += 1;
            }
        }
    }
    Some(spared)
}

/// Returns whether a chunk of a column is on another node than its copy would be.
fn is_apart(query: &Query, cache: &Cache<Arc<Region>>, column: usize, chunk: &Chunk) -> Option<bool> {
    let column = &query.table().columns()[column];
    cache.is_apart(column.source(), column.range(chunk.rows.clone())).expect("the range is inside the column")
}

/// Merges the results of all threads.
fn sum_up(query: &Query, tallies: Vec<(Role, Tally)>) -> Report {
    let begun = tallies.iter().map(|(_, tally)| tally.begun).min();
    let mut stages = [Role::Scan, Role::Fetch, Role::Aggregate].map(Stage::of);
    let (mut blocks, mut traffic, mut partial) = (Blocks::default(), Traffic::default(), query.partial());
    for (role, tally) in tallies {
        stages[role as usize].add(tally.busy, tally.waited);
        blocks.add(&tally.blocks);
        traffic.add(tally.traffic);
        partial.merge(&tally.partial).expect("the partial belongs to this query");
    }
    let time = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
    Report { answer: partial.answer(), time, stages, blocks, traffic: Some(traffic) }
}

/// The data shared by all threads of a query.
struct Common<'a> {
    query: &'a Query,
    cache: Option<&'a Cache<Arc<Region>>>,
    options: &'a Options,
    /// The barrier before any thread begins.
    start: GroupBarrier,
    pin: Option<(Nodes, u32)>,
    groups: Vec<Group>,
}

/// The data shared by the threads of a group.
struct Group {
    barrier: GroupBarrier,
    /// The selections, by chunk (two alternate) and scanning thread. While one chunk is scanned, the previous one is
    /// summed; because of the barrier between them, no thread ever waits for these locks.
    selected: [Vec<RwLock<Selection>>; 2],
    fetched: Mutex<Fetched>,
}

/// The progress of a group's fetching.
#[derive(Default)]
struct Fetched {
    /// Chunks before this one have been read, or are being read.
    read: u64,
    /// The prefetches of chunks that are not read yet.
    asked: HashMap<u64, Vec<Prefetch<Arc<Region>>>>,
}

impl Group {
    fn of(shape: &Shape) -> Self {
        let selected = || (0..shape.scanners.max(1)).map(|_| RwLock::default()).collect();
        Group {
            barrier: GroupBarrier::new(shape.meeting()),
            selected: [selected(), selected()],
            fetched: Mutex::default(),
        }
    }

    fn fetched(&self) -> MutexGuard<'_, Fetched> {
        self.fetched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn selected(&self, chunk: &Chunk) -> &[RwLock<Selection>] {
        &self.selected[usize::from(chunk.number % 2 == 1)]
    }
}

/// The results of one thread.
struct Tally {
    begun: Instant,
    busy: Duration,
    waited: Duration,
    blocks: Blocks,
    traffic: Traffic,
    partial: Partial,
    /// The input that it could not sum.
    failed: Option<InputError>,
}

impl Common<'_> {
    /// Does all the work of a thread.
    fn work(&self, worker: Worker) -> Result<Tally, RunError> {
        let _bound = Bound(self);
        if let Some((nodes, node)) = &self.pin {
            nodes.keep_this_thread_on(*node).map_err(|source| {
                self.give_up();
                RunError::Pin { node: *node, source }
            })?;
        }
        let here = Here { common: self, tally: RefCell::new(Tally::new(self.query)) };
        if self.start.wait() {
            here.tally.borrow_mut().begun = Instant::now();
            // All waits happen inside: a pending future means that the query was abandoned.
            let (Poll::Ready(()) | Poll::Pending) =
                pin!(worker.run(&here)).poll(&mut Context::from_waker(Waker::noop()));
        }
        let mut tally = here.tally.into_inner();
        match tally.failed.take() {
            Some(source) => Err(RunError::Altered { source }),
            None => Ok(tally),
        }
    }

    /// Abandons the query: no thread passes its next barrier.
    fn give_up(&self) {
        self.start.abandon();
        for group in &self.groups {
            group.barrier.abandon();
        }
    }
}

/// Abandons the query when its thread panics, so that no thread waits for it.
struct Bound<'a>(&'a Common<'a>);

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.give_up();
        }
    }
}

impl Tally {
    fn new(query: &Query) -> Self {
        let (busy, waited) = (Duration::ZERO, Duration::ZERO);
        let (blocks, traffic) = (Blocks::default(), Traffic::default());
        Tally { begun: Instant::now(), busy, waited, blocks, traffic, partial: query.partial(), failed: None }
    }
}

/// The environment of one thread.
struct Here<'a> {
    common: &'a Common<'a>,
    tally: RefCell<Tally>,
}

impl Here<'_> {
    fn group(&self, chunk: &Chunk) -> &Group {
        // Cannot be out of range: workers belong to the shape for which the groups were created.
        &self.common.groups[chunk.group as usize]
    }

    fn scan_rows(&self, part: &Part) {
        let query = self.common.query;
        let mut selection = self.group(&part.chunk).selected(&part.chunk)[part.thread as usize]
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let inputs = query.inputs(query.scanned(), part.rows.clone());
        query.scan(part.rows.clone(), &inputs, &mut selection).expect("the inputs are the query's own columns");
        self.tally.borrow_mut().traffic.scanned += selection.read;
    }

    fn ask_for(&self, chunk: &Chunk) {
        let Some(cache) = self.common.cache.filter(|_| !chunk.rows.is_empty()) else { return };
        let group = self.group(chunk);
        let blocks = &mut self.tally.borrow_mut().blocks;
        // Blocks needed soonest go first, in all groups.
        let priority = Priority(u8::MAX - u8::try_from(chunk.number).unwrap_or(u8::MAX));
        let query = self.common.query;
        for &column in query.fetched() {
            let where_apart = self.common.options.ahead == PrefetchWhen::WhereApart;
            if where_apart && is_apart(query, cache, column, chunk) == Some(false) {
                blocks.spared += 1;
                continue;
            }
            if group.fetched().read > chunk.number {
                blocks.passed += 1;
                continue;
            }
            let column = &query.table().columns()[column];
            let ahead = cache.prefetch(column.source(), column.range(chunk.rows.clone()), priority);
            let ahead = ahead.expect("the range is inside the column");
            blocks.requested += 1;
            let mut fetched = group.fetched();
            if fetched.read > chunk.number {
                drop(fetched);
                blocks.called_off += u64::from(ahead.cancel());
            } else {
                fetched.asked.entry(chunk.number).or_default().push(ahead);
            }
        }
    }

    /// Notes that a chunk is read from now on, and cancels prefetches that have not begun.
    fn begin_reading(&self, chunk: &Chunk) {
        let asked = {
            let mut fetched = self.group(chunk).fetched();
            fetched.read = fetched.read.max(chunk.number + 1);
            fetched.asked.remove(&chunk.number).unwrap_or_default()
        };
        let called_off = asked.into_iter().filter_map(|ahead| ahead.cancel().then_some(())).count();
        self.tally.borrow_mut().blocks.called_off += called_off as u64;
    }

    /// Returns the copy of a block, if it is complete.
    fn copy_of(&self, column: usize, rows: &Range<u64>) -> Option<Handle<Arc<Region>>> {
        let column = &self.common.query.table().columns()[column];
        let range = column.range(rows.clone());
        let len = range.len() as u64;
        let block = self
            .common
            .cache
            .and_then(|cache| cache.peek(column.source(), range).expect("the range is inside the column"));
        let blocks = &mut self.tally.borrow_mut().blocks;
        let Some(block) = block else {
            blocks.absent += 1;
            blocks.bytes_source += len;
            return None;
        };
        if self.common.options.late == OnLate::Wait {
            block.wait_copy();
        }
        let has_ended = block.copy_has_ended();
        // Memory of a foreign allocator may be unaligned; values must be aligned.
        if block.is_fast() && block.address().is_multiple_of(column.kind().width() as u64) {
            blocks.hits += 1;
            blocks.bytes_fast += len;
            return Some(block);
        }
        *(if has_ended { &mut blocks.absent } else { &mut blocks.late }) += 1;
        blocks.bytes_source += len;
        None
    }

    fn sum_rows(&self, part: &Part) -> Result<(), InputError> {
        let query = self.common.query;
        self.begin_reading(&part.chunk);
        if part.rows.is_empty() {
            return Ok(());
        }
        let fetched = if self.common.cache.is_some() { query.fetched() } else { &[] };
        let copies: Vec<_> = query
            .aggregated()
            .iter()
            .map(|column| if fetched.contains(column) { self.copy_of(*column, &part.rows) } else { None })
            .collect();
        let mut inputs = query.inputs(query.aggregated(), part.rows.clone());
        for (input, copy) in inputs.iter_mut().zip(&copies) {
            if let Some(copy) = copy {
                *input = copy.location().bytes();
            }
        }
        let mut tally = self.tally.borrow_mut();
        for selection in self.group(&part.chunk).selected(&part.chunk) {
            let selection = selection.read().unwrap_or_else(PoisonError::into_inner);
            // Chunks have no rows in common. If this chunk has no rows for a thread, its old selection does not overlap
            // this part.
            let rows = overlap(&part.rows, &selection.rows());
            if rows.is_empty() {
                continue;
            }
            let cut: Vec<&[u8]> = query
                .aggregated()
                .iter()
                .zip(&inputs)
                .map(|(column, input)| {
                    let width = query.table().columns()[*column].kind().width();
                    // Cannot be out of range: a part of the rows whose bytes these are.
                    let byte =
                        |row: u64| usize::try_from(row - part.rows.start).unwrap_or(usize::MAX).saturating_mul(width);
                    &input[byte(rows.start)..byte(rows.end)]
                })
                .collect();
            if self.common.options.traffic {
                tally.traffic.add(touched(query, &rows, &selection));
            }
            query.aggregate(rows, &cut, &selection, &mut tally.partial)?;
        }
        Ok(())
    }

    fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        self.tally.borrow_mut().busy += start.elapsed();
        done
    }
}

impl Environment for Here<'_> {
    async fn scan(&self, part: Part) {
        self.timed(|| self.scan_rows(&part));
    }

    async fn fetch(&self, chunk: Chunk) {
        self.timed(|| self.ask_for(&chunk));
    }

    async fn aggregate(&self, part: Part) {
        if let Err(error) = self.timed(|| self.sum_rows(&part)) {
            self.tally.borrow_mut().failed = Some(error);
            self.common.give_up();
            pending::<()>().await;
        }
    }

    async fn meet(&self, group: u32) {
        let start = Instant::now();
        // Starts copies that could not begin earlier; no other thread does so while all work.
        if let Some(cache) = self.common.cache {
            cache.drive();
        }
        let all_are_here = self.common.groups[group as usize].barrier.wait();
        self.tally.borrow_mut().waited += start.elapsed();
        if !all_are_here {
            pending::<()>().await;
        }
    }
}

/// Returns what an aggregation of rows reads.
fn touched(query: &Query, rows: &Range<u64>, selection: &Selection) -> Traffic {
    // The rows are in a table in memory, and in the selection.
    let number = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let (at, len) = (number(rows.start - selection.rows().start), number(rows.end - rows.start));
    let mut traffic = Traffic::default();
    for column in query.aggregated() {
        let bytes = selection.touched(at, len, query.table().columns()[*column].kind().width());
        *(if query.fetched().contains(column) { &mut traffic.fetched } else { &mut traffic.again }) += bytes;
    }
    traffic
}

/// Returns the rows in both ranges.
fn overlap(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    a.start.max(b.start)..a.end.min(b.end)
}
