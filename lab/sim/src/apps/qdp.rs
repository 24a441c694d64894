//! A query whose second column is fetched ahead by devices (Fürst's thesis, §2.2, §5.2, §6): a filter over column a, then a sum over
//! column b, chunk by chunk. While threads scan a chunk of a, others sum over the one before of b, and others have had all of b copied
//! to faster memory; who sums looks whether its chunk has come, and reads it where it lay if not. Nobody waits for a copy: what is late
//! is a miss.
//!
//! ```text
//! group:  SCAN_a  chunk 0 │ chunk 1 │ chunk 2 │
//!         AGGREGATE       │ chunk 0 │ chunk 1 │ chunk 2     come? yes: cache node · no: node of b
//!         SCAN_b ─submit, submit, …     ▲
//!                   └► device: b ─► cache
//! ```
//!
//! Threads share the hardware threads of the node they are pinned to: a run queue, in turns.

use super::{Report, measure};
use crate::places::Place;
use crate::ps::Ps;
use crate::work::{Lane, Library};
use crate::world::{Barrier, Core, Signal, Ticket, World};
use std::cell::RefCell;
use std::rc::Rc;
use telpher_abi::{Flags, Opcode};

/// A query over two columns and how it is executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Query {
    /// Bytes of a column.
    pub column: u64,
    /// Groups of threads; each has its part of both columns.
    pub groups: u32,
    /// Bytes of its part that a group scans before it sums over them, and of a copy.
    pub chunk: u64,
    /// Threads that scan a, in all.
    pub scanners: u32,
    /// Threads that sum over b, in all.
    pub summers: u32,
    /// Node of the threads.
    pub node: usize,
    /// Hardware threads they share.
    pub hardware_threads: u32,
    /// Time after which one that others wait for gives its hardware thread away.
    pub turn: Ps,
    /// Bytes per second at which one of them can read.
    pub most: u64,
    /// Node of column a.
    pub a: usize,
    /// Node of column b.
    pub b: usize,
    /// Has b fetched ahead.
    pub prefetch: Option<Prefetch>,
}

/// How a column is fetched ahead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prefetch {
    /// Node it is fetched to.
    pub to: usize,
    /// Threads that ask for copies, in all.
    pub threads: u32,
    /// Queues; each thread's copies go to them in turn, the first to the first.
    pub lanes: Vec<Lane>,
    /// What a submission goes through.
    pub library: Library,
    /// The cache's pages are there. If not, devices have them brought (Block On Fault).
    pub mapped: bool,
}

impl Query {
    /// The thesis' (§6.1) without prefetching: two columns of 4 GiB, 64 threads, then 32, pinned to node 0 with its twelve cores.
    ///
    /// Derived from Table 6.1: what a hardware thread reads, and filters or sums, a second. Assumed: 32 groups; chunks of 2 MiB; two
    /// hardware threads a core; turns of 3 ms, as Linux gives them.
    #[must_use]
    pub const fn of_two_columns() -> Self {
        Query {
            column: 4 << 30,
            groups: 32,
            chunk: 2 << 20,
            scanners: 64,
            summers: 32,
            node: 0,
            hardware_threads: 24,
            turn: Ps::from_nanos(3_000_000),
            most: 3_865_000_000,
            a: 0,
            b: 0,
            prefetch: None,
        }
    }

    /// The same with prefetching: half of the first threads ask for copies (§6.1: 64 for both), to the HBM beside node 0 (§5.2), through
    /// one shared queue of each device of the socket, each thread's copies in turn (§5.2; which devices, and that every thread begins
    /// with the first, is assumed).
    ///
    /// Derived: chunks of 16 MiB. They were made larger so that a burst of all copies does not overflow the queues (§6.1), and larger
    /// than that they cannot be: shares of hits as Table 6.2 prints them do not come from five runs over fewer chunks.
    #[must_use]
    pub fn prefetching(b: usize) -> Self {
        let lanes = (0..4).map(|device| Lane { device, wq: 0, shared: true }).collect();
        let prefetch = Prefetch { to: 8, threads: 32, lanes, library: Library::Dml, mapped: true };
        Query { scanners: 32, chunk: 16 << 20, b, prefetch: Some(prefetch), ..Query::of_two_columns() }
    }

    pub(super) fn start(&self, world: &mut World) -> Report {
        let query = self;
        let seen = Rc::new(RefCell::new(Seen::default()));
        let free = world.signal(query.hardware_threads.max(1).into());
        let processors = Processors { free, turn: query.turn, most: query.most };
        let (_, slice) = part(query.column, query.groups, 0);
        // No copy is longer than a descriptor can tell.
        let chunk = query.chunk.clamp(PIECE, u32::MAX.into());
        let chunks = usize::try_from(slice.div_ceil(chunk)).unwrap_or(usize::MAX);
        let of = |threads: u32, group| part(threads.into(), query.groups, group).1;
        let group = |group: u32, world: &mut World| {
            seen.borrow_mut().copies.push((0..chunks).map(|_| None).collect());
            let meet = of(query.scanners, group) + of(query.summers, group);
            let scanned = world.barrier(usize::try_from(meet).unwrap_or(usize::MAX));
            Group { group, slice, chunk, processors, scanned, seen: seen.clone() }
        };
        let groups: Vec<Group> = (0..query.groups).map(|number| group(number, world)).collect();
        // Their threads come first: they are over soonest.
        if let Some(prefetch) = &query.prefetch {
            for all in &groups {
                let threads = u32::try_from(of(prefetch.threads, all.group)).unwrap_or(u32::MAX);
                all.fetch(world, query, prefetch, threads);
            }
        }
        for all in groups {
            let (scanners, summers) = (of(query.scanners, all.group), of(query.summers, all.group));
            let (node, a) = (query.node, query.a);
            for _ in 0..scanners {
                let all = all.clone();
                world.spawn(node, move |core| async move {
                    let mut time = Ps::ZERO;
                    for chunk in 0..chunks {
                        time += all.processors.read(&core, all.bytes(chunk) / scanners, a).await;
                        core.meet(&all.scanned).await;
                    }
                    all.seen.borrow_mut().scan += time;
                });
            }
            let (b, to) = (query.b, query.prefetch.as_ref().map_or(query.b, |prefetch| prefetch.to));
            for _ in 0..summers {
                let all = all.clone();
                world.spawn(node, move |core| async move {
                    let mut time = Ps::ZERO;
                    for chunk in 0..chunks {
                        core.meet(&all.scanned).await;
                        let from = if all.has_come(chunk) { to } else { b };
                        time += all.processors.read(&core, all.bytes(chunk) / summers, from).await;
                    }
                    let mut seen = all.seen.borrow_mut();
                    seen.sum += time;
                    seen.end = seen.end.max(core.now());
                });
            }
        }
        let (fetches, threads) = (query.prefetch.is_some(), f64::from(query.hardware_threads.max(1)));
        #[allow(clippy::cast_precision_loss, reason = "for people")]
        Box::new(move |_| {
            let seen = seen.borrow();
            // As if it had all of them: so long all hardware threads were at it.
            let ms = |time: Ps| time.as_nanos_f64() / 1e6 / threads;
            let mut measures = vec![
                measure("query", seen.end.as_nanos_f64() / 1e6, "ms"),
                measure("SCAN_a", ms(seen.scan), "ms"),
                measure("AGGREGATE", ms(seen.sum), "ms"),
            ];
            if fetches {
                let rate = seen.hits as f64 / (seen.hits + seen.misses).max(1) as f64 * 100.0;
                measures.push(measure("SCAN_b", ms(seen.fetch), "ms"));
                measures.push(measure("cache hits", rate, "%"));
                measures.push(measure("sent back", seen.refused as f64, "submissions"));
            }
            measures
        })
    }
}

/// Bytes after which a thread looks at the clock.
const PIECE: u64 = 256 << 10;

/// The hardware threads of a node.
#[derive(Clone, Copy, Debug)]
struct Processors {
    free: Signal,
    turn: Ps,
    most: u64,
}

impl Processors {
    /// Gets one of them, after those who came before.
    async fn take(self, core: &Core) -> Turn {
        core.until(self.free).await;
        Turn { since: core.now(), before: Ps::ZERO }
    }

    /// Gives it to who waits, if its turn is over, and gets another.
    async fn turn(self, core: &Core, turn: &mut Turn) {
        let had = core.now().since(turn.since);
        if had >= self.turn && core.waiting(self.free) > 0 {
            core.give(self.free);
            core.until(self.free).await;
            *turn = Turn { since: core.now(), before: turn.before + had };
        }
    }

    /// Gives it back; how long it was had.
    fn done(self, core: &Core, turn: Turn) -> Ps {
        core.give(self.free);
        turn.before + core.now().since(turn.since)
    }

    /// Reads memory, in turns with the other threads; how long it had a hardware thread.
    async fn read(self, core: &Core, mut bytes: u64, node: usize) -> Ps {
        let mut turn = self.take(core).await;
        while bytes > 0 {
            let piece = bytes.min(PIECE);
            core.traffic(piece, node, false, self.most).await;
            bytes -= piece;
            self.turn(core, &mut turn).await;
        }
        self.done(core, turn)
    }
}

/// A thread has a hardware thread.
#[derive(Clone, Copy, Debug)]
struct Turn {
    since: Ps,
    /// In turns before this one.
    before: Ps,
}

/// What the threads tell.
#[derive(Debug, Default)]
struct Seen {
    /// Time that threads of a stage had a hardware thread, summed.
    scan: Ps,
    fetch: Ps,
    sum: Ps,
    hits: u64,
    misses: u64,
    /// Submissions that a full queue sent back.
    refused: u64,
    end: Ps,
    /// Copies that were asked for, by group and chunk.
    copies: Vec<Vec<Option<Ticket>>>,
}

/// `total` in `parts`: where a part begins, and how much it is.
fn part(total: u64, parts: u32, number: u32) -> (u64, u64) {
    let at = |number: u32| total * u64::from(number) / u64::from(parts.max(1));
    (at(number), at(number + 1) - at(number))
}

/// A group of threads, as each of them knows it.
#[derive(Clone, Debug)]
struct Group {
    group: u32,
    /// Its bytes of each column.
    slice: u64,
    chunk: u64,
    processors: Processors,
    /// Met when column a is scanned.
    scanned: Barrier,
    seen: Rc<RefCell<Seen>>,
}

impl Group {
    /// Bytes of a chunk.
    fn bytes(&self, chunk: usize) -> u64 {
        self.chunk.min(self.slice.saturating_sub(self.chunk * chunk as u64))
    }

    /// A chunk's copy is done: it is a hit. Otherwise it is a miss, whether it was asked for or not.
    fn has_come(&self, chunk: usize) -> bool {
        let seen = &mut *self.seen.borrow_mut();
        let come = seen.copies[self.group as usize][chunk].as_ref().is_some_and(Ticket::is_done);
        *(if come { &mut seen.hits } else { &mut seen.misses }) += 1;
        come
    }

    /// Threads that ask for copies of the group's part of b, all of them at once.
    fn fetch(&self, world: &mut World, query: &Query, prefetch: &Prefetch, threads: u32) {
        let column = world.places.add(Place::on(query.b));
        let cache = world.places.add(Place { present: prefetch.mapped, ..Place::on(prefetch.to) });
        let chunks = self.slice.div_ceil(self.chunk);
        let flags = if prefetch.mapped { Flags::empty() } else { Flags::BLOCK_ON_FAULT };
        for number in 0..threads {
            let all = self.clone();
            let lanes = prefetch.lanes.clone();
            let (first, count) = part(chunks, threads, number);
            let library = prefetch.library;
            world.spawn(query.node, move |core| async move {
                let core = core.with_library(library);
                let mut turn = all.processors.take(&core).await;
                for (chunk, lane) in (first..first + count).zip(lanes.iter().cycle()) {
                    let at = chunk * all.chunk;
                    let chunk = usize::try_from(chunk).unwrap_or(usize::MAX);
                    // Cannot fail: see where it is chosen.
                    let size = u32::try_from(all.bytes(chunk)).unwrap_or(u32::MAX);
                    let copy = World::descriptor(Opcode::MemoryMove, column + at, cache + at, size);
                    let copy = copy.with_flags(copy.flags() | flags);
                    let ticket = loop {
                        // A queue that is full is asked again, through all of the library.
                        match core.try_submit(*lane, copy).await {
                            Some(ticket) => break ticket,
                            None => all.seen.borrow_mut().refused += 1,
                        }
                        all.processors.turn(&core, &mut turn).await;
                    };
                    all.seen.borrow_mut().copies[all.group as usize][chunk] = Some(ticket);
                }
                let time = all.processors.done(&core, turn);
                all.seen.borrow_mut().fetch += time;
            });
        }
    }
}
