//! Random updates of a memory on two tiers (GUPS with a hot set). `telpher-tier`'s own heat map and policy place the
//! pages, in simulated time.
//!
//! ```text
//! threads update ─► windows see which pages are written, and when ─► HeatMap ─► Policy ─► moves, by Exchange ─►
//! residency
//! ```
//!
//! Updates are not simulated one by one. Between two changes of residency they run at the rate of the current
//! residency. The threads' time is reduced by the costs of the tracker and of pages in flight.

mod memory;

use super::page_exchange::Exchange;
use super::{Report, measure};
use crate::picos::Picos;
use crate::places::BufferPlacement;
use crate::rng::Rng;
use crate::scenario::Measure;
use crate::workload::QueueId;
use crate::world::{Core, World};
use memory::Memory;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use telpher_tier::TierId;
use telpher_tier::heat::{HeatMap, PageHeat, level};
use telpher_tier::policy::{Move, Policy, PolicyOptions};

/// Bytes of a page, and pages of a window, which has the size of a huge page.
const PAGE: u64 = 4096;
const WINDOW: usize = 512;
/// Start of the memory in the heat map.
const BASE: u64 = 1 << 32;
/// The numbers of the tiers in the policy.
const FAST: u8 = 0;
const SLOW: u8 = 1;

/// When a window is checked, as divisors of its duration. Source: `telpher-tier`'s windows.
const LOOKS: [u64; 4] = [40, 10, 3, 1];

/// Write-protecting a page of a window, and checking for written pages. Source: measured on an AMD EPYC, Linux 6.18
/// (`PAGEMAP_SCAN` with write-protection, of 512 MiB), as are the next four.
const PROTECT: Picos = Picos(34_000);
const LOOK: Picos = Picos(1_600);
/// The system call around it. Source: measured with the protection of a page.
const CALL: Picos = Picos::from_nanos(1_050);
/// The first write to a protected page.
const FAULT: Picos = Picos::from_nanos(930);
/// Additional time of a system call that flushes the TLBs of other cores while threads run there.
const FLUSH: Picos = Picos::from_nanos(11_000);
/// Time that each of those threads loses. ASSUMED: not measured.
const INTERRUPTED: Picos = Picos::from_nanos(1_000);
/// Time to decide, per page. ASSUMED: two passes over a few bytes.
const DECIDE: Picos = Picos::from_nanos(10);
/// Deciding takes at most this part of a core: one in `DECIDES`. Source: `telpher-tier`'s manager.
const DECIDES: u64 = 100;

/// Longer runs of pages are copied by a device. Source: the threshold of DSA-2LM (ATC 2025).
const ABOVE: u64 = 16;

/// What places pages in fast memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PagePlacement {
    /// `telpher-tier`'s policy, by the heat found in windows.
    Policy,
    /// Random, as often as the policy decides: runs of pages are exchanged between the tiers.
    Chance {
        /// Runs of 64 pages in each direction.
        runs: u32,
    },
    /// Nothing: pages stay.
    NotPlaced,
    /// An oracle: all hot pages, and others while there is room, from the beginning.
    Knowing,
}

/// Threads that update words at random addresses, some more often than others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gups {
    /// Threads, each on a core of its own at the fast node.
    pub threads: u32,
    /// Bytes of memory, a multiple of 2 MiB.
    pub bytes: u64,
    /// The hot part of the memory, in per cent.
    pub hot_percent: u32,
    /// Updates of the hot part only, in per cent; the others go to all addresses.
    pub to_hot_percent: u32,
    /// Length of a run of hot pages.
    pub hot_run: u32,
    /// Size of fast memory, in per cent of the memory.
    pub fast_percent: u32,
    /// Latency of slow memory, in per cent of that of fast memory.
    pub slow_percent: u32,
    /// Each update looks up its page in tables in the last-level cache; otherwise it takes only memory's latency.
    pub looks_up: bool,
    /// Fast memory is initially full of pages in address order; otherwise all pages are in slow memory.
    pub fast_first: bool,
    /// What places pages.
    pub placing: PagePlacement,
    /// Duration of a window.
    pub window: Picos,
    /// Interval of decisions; longer if they would take more than a hundredth of a core.
    pub every: Picos,
    /// Simulated duration.
    pub lasts: Picos,
    /// Memory node of the fast tier, whose channels copies use.
    pub fast: usize,
    /// Memory node of the slow tier.
    pub slow: usize,
    /// Queues that copy pages; if empty, the manager's core copies.
    pub queues: Vec<QueueId>,
    /// Seed of the random choices.
    pub seed: u64,
}

impl Default for Gups {
    /// 2 GiB, a tenth of it hot, and a fifth in fast memory with a third of the latency; windows and decisions as in
    /// `telpher-tier`'s manager.
    fn default() -> Self {
        Gups {
            threads: 8,
            bytes: 2 << 30,
            hot_percent: 10,
            to_hot_percent: 90,
            hot_run: 64,
            fast_percent: 20,
            slow_percent: 300,
            looks_up: true,
            fast_first: true,
            placing: PagePlacement::Policy,
            window: Picos::from_nanos(10_000_000),
            every: Picos::from_nanos(250_000_000),
            lasts: Picos::from_nanos(60_000_000_000),
            fast: 0,
            slow: 1,
            queues: Vec::new(),
            seed: 1,
        }
    }
}

/// Number of points of the curve.
const POINTS: u64 = 24;
/// The last points, after the warm-up.
const LAST: usize = 6;

/// The work of the manager's core.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    tracking: Picos,
    deciding: Picos,
    moving: Picos,
    promoted: u64,
    demoted: u64,
}

struct Manager {
    app: Rc<Gups>,
    memory: Rc<RefCell<Memory>>,
    tally: Rc<RefCell<Tally>>,
    heat: HeatMap,
    policy: Policy,
    rng: Rng,
    /// Regions on the fast node and on the slow one.
    regions: [u64; 2],
}

impl Gups {
    fn pages(&self) -> usize {
        // Limited to two million huge pages, more than any machine has.
        usize::try_from(self.bytes / (WINDOW as u64 * PAGE)).unwrap_or(usize::MAX).clamp(1, 1 << 21) * WINDOW
    }

    /// Pages of fast memory.
    fn room(&self) -> usize {
        self.pages() * self.fast_percent as usize / 100
    }

    /// The policy's options for a heap with this fast tier and a slow tier with room for all pages.
    fn options(&self) -> PolicyOptions {
        let tier = |name: &str, bytes| telpher_tier::TierOptions { name: name.into(), node: None, bytes };
        let heap = telpher_tier::HeapOptions::new(vec![tier("fast", self.room() as u64 * PAGE), tier("slow", 0)]);
        PolicyOptions::new(&heap)
    }

    pub(super) fn start(&self, world: &mut World) -> Report {
        let app = Rc::new(self.clone());
        let memory = Rc::new(RefCell::new(Memory::new(self, world.machine())));
        let tally = Rc::new(RefCell::new(Tally::default()));
        let curve = Rc::new(RefCell::new(Vec::new()));
        if matches!(self.placing, PagePlacement::Policy | PagePlacement::Chance { .. }) {
            let mut heat = HeatMap::of(std::slice::from_ref(&(BASE..address(app.pages()))));
            for (number, fast) in memory.borrow().fast().enumerate() {
                let page = heat.page_mut(address(number)).expect("its range is the map's");
                *page = PageHeat::on(if fast { FAST } else { SLOW });
            }
            let manager = Manager {
                memory: memory.clone(),
                tally: tally.clone(),
                heat,
                policy: Policy::new(app.options()),
                rng: Rng::new(app.seed, 1),
                regions: [app.fast, app.slow].map(|node| world.places.add(BufferPlacement::on(node))),
                app: app.clone(),
            };
            world.spawn(self.fast, |core| manager.run(core));
        }
        let (points, of, at) = (curve.clone(), memory.clone(), app.clone());
        world.spawn(self.fast, |core| async move {
            for point in 1..=POINTS {
                core.sleep(Picos(at.lasts.0 / POINTS * point).since(core.now())).await;
                let mut memory = of.borrow_mut();
                memory.pass(core.now());
                points.borrow_mut().push((core.now(), memory.updates()));
            }
        });
        Box::new(move |_| app.measures(&memory.borrow(), &tally.borrow(), &curve.borrow()))
    }

    #[allow(clippy::cast_precision_loss, reason = "for display")]
    fn measures(&self, memory: &Memory, tally: &Tally, curve: &[(Picos, f64)]) -> Vec<Measure> {
        // Updates between two points, relative to those with all pages in fast memory.
        let best = memory.best();
        let mut before = (Picos::ZERO, 0.0);
        let mut shares = Vec::new();
        for &(now, updates) in curve {
            let time = now.since(before.0).as_secs_f64();
            shares.push((now, (updates - before.1) / time.max(1e-12) / best));
            before = (now, updates);
        }
        let last = &shares[shares.len().saturating_sub(LAST)..];
        let after = last.iter().map(|point| point.1).sum::<f64>() / last.len().max(1) as f64;
        let reached = shares.iter().find(|point| point.1 >= 0.9).map(|point| point.0.as_secs_f64());
        let of_core = |time: Picos| time.as_secs_f64() / self.lasts.as_secs_f64().max(1e-12) * 100.0;
        let of_threads = |time: Picos| of_core(time) / f64::from(self.threads.max(1));
        let mut measures = vec![
            measure("of all in fast memory", after * 100.0, "%"),
            measure("updates after the warm-up", after * best / 1e6, "M/s"),
            measure("hot pages in fast memory", memory.hot_in_fast() * 100.0, "%"),
            measure("promoted", tally.promoted as f64, "pages"),
            measure("demoted", tally.demoted as f64, "pages"),
            measure("tracking", of_core(tally.tracking), "% of a core"),
            measure("deciding", of_core(tally.deciding), "% of a core"),
            measure("moving", of_core(tally.moving), "% of a core"),
            measure("taken by tracking", of_threads(memory.taken_by_tracking), "% of the threads"),
            measure("taken by moving", of_threads(memory.taken_by_moving), "% of the threads"),
        ];
        measures.extend(reached.map(|seconds| measure("90 % first", seconds, "s")));
        measures.extend(shares.iter().map(|(now, share)| {
            measure(&format!("{} ms", now.0 / 1_000_000_000), share * 100.0, "% of all in fast memory")
        }));
        measures
    }
}

fn address(page: usize) -> u64 {
    BASE + page as u64 * PAGE
}

fn pages_of(range: &Range<u64>) -> Range<usize> {
    let number = |address: u64| usize::try_from((address - BASE) / PAGE).unwrap_or(usize::MAX);
    number(range.start)..number(range.end)
}

/// Converts a point in time to the policy's type.
fn moment(time: Picos) -> Duration {
    Duration::from_nanos(time.0 / 1000)
}

impl Manager {
    async fn run(mut self, core: Core) {
        let (mut window, mut decided) = (0, Picos::ZERO);
        let every = self.app.every.max(self.deciding() * DECIDES);
        while core.now() < self.app.lasts {
            if self.app.placing == PagePlacement::Policy {
                self.watch(&core, window..window + WINDOW).await;
                window = (window + WINDOW) % self.app.pages();
            } else {
                core.sleep(every).await;
            }
            if core.now().since(decided) >= every {
                decided = core.now();
                let moves = self.decide(&core).await;
                for what in moves {
                    if core.now() >= self.app.lasts {
                        break;
                    }
                    self.migrate(&core, &what).await;
                }
            }
        }
    }

    /// Opens a window for its duration: determines which of its pages are written, and when first.
    async fn watch(&mut self, core: &Core, window: Range<usize>) {
        let start = core.now();
        core.busy(PROTECT * WINDOW as u64 + CALL + FLUSH).await;
        self.memory.borrow_mut().interrupt(core.now(), false);
        let since = core.now();
        let first: Vec<Picos> = {
            let memory = self.memory.borrow();
            window.clone().map(|page| self.rng.exponential(memory.between_updates(page))).collect()
        };
        let mut levels = [0; WINDOW];
        let (mut before, mut slept) = (Picos::ZERO, Picos::ZERO);
        for part in LOOKS {
            let (due, now) = (since + Picos(self.app.window.0 / part), core.now());
            core.sleep(due.since(now)).await;
            slept += due.since(now);
            let seen = core.now().since(since);
            core.busy(LOOK * WINDOW as u64 + CALL).await;
            for (level_of, first) in levels.iter_mut().zip(&first) {
                if *first > before && *first <= seen {
                    *level_of = level(moment(seen));
                }
            }
            before = seen;
        }
        core.busy(CALL + FLUSH).await;
        let mut memory = self.memory.borrow_mut();
        memory.interrupt(core.now(), false);
        let written = first.iter().filter(|first| **first <= before).count() as u64;
        memory.faults(core.now(), FAULT * written);
        drop(memory);
        for (page, level) in window.zip(levels) {
            self.heat.page_mut(address(page)).expect("its range is the map's").observe(level);
        }
        self.tally.borrow_mut().tracking += core.now().since(start).since(slept);
    }

    /// Time of one decision.
    fn deciding(&self) -> Picos {
        DECIDE * self.app.pages() as u64
    }

    async fn decide(&mut self, core: &Core) -> Vec<Move> {
        match self.app.placing {
            PagePlacement::Policy => {
                let time = self.deciding();
                core.busy(time).await;
                self.tally.borrow_mut().deciding += time;
                self.policy.decide(moment(core.now()), &self.heat.strips())
            }
            PagePlacement::Chance { runs } => self.random_moves(runs),
            PagePlacement::NotPlaced | PagePlacement::Knowing => Vec::new(),
        }
    }

    /// Random runs that are on one tier as a whole.
    fn random_moves(&mut self, runs: u32) -> Vec<Move> {
        const RUN: usize = 64;
        let fast: Vec<bool> = self.memory.borrow().fast().collect();
        let whole = |side| {
            let runs = fast.chunks_exact(RUN).enumerate().filter(|(_, run)| run.iter().all(|page| *page == side));
            runs.map(|(run, _)| run).collect::<Vec<_>>()
        };
        let mut sides = [whole(true), whole(false)];
        let mut moves = Vec::new();
        for _ in 0..runs {
            for (from, to) in [(FAST, SLOW), (SLOW, FAST)] {
                let side = &mut sides[usize::from(from)];
                if side.is_empty() {
                    continue;
                }
                let at = usize::try_from(self.rng.below(side.len() as u64)).unwrap_or(0);
                let run = side.swap_remove(at) * RUN;
                let range = address(run)..address(run + RUN);
                moves.push(Move { range, from: TierId(from), to: TierId(to) });
            }
        }
        moves
    }

    /// Moves adjacent pages to the other tier; an update of one of them waits meanwhile.
    async fn migrate(&mut self, core: &Core, what: &Move) {
        let (pages, begun) = (pages_of(&what.range), core.now());
        let number = pages.len() as u64;
        let node = |tier: TierId| if tier.0 == FAST { self.app.fast } else { self.app.slow };
        let app = Exchange {
            from: node(what.from),
            to: node(what.to),
            core: self.app.fast,
            queues: if number > ABOVE { self.app.queues.clone() } else { Vec::new() },
            // One call, so the parameter `together` has no effect.
            ..Exchange::promoting(1)
        };
        let region = |tier: TierId| self.regions[usize::from(tier.0)];
        let besides = app.besides(number);
        let out = Picos(besides.0 / 2);
        core.busy(out + FLUSH).await;
        app.copy(core, number, region(what.from), region(what.to)).await;
        core.busy(besides - out + FLUSH).await;
        let (mut memory, now) = (self.memory.borrow_mut(), core.now());
        memory.interrupt(now, true);
        memory.interrupt(now, true);
        memory.waited(now, now.since(begun), pages.clone(), &mut self.rng);
        memory.moved(now, pages.clone(), what.to.0 == FAST);
        let tier = what.to.0;
        self.heat.each_page(&what.range, |page| page.tier = tier);
        let mut tally = self.tally.borrow_mut();
        tally.moving += now.since(begun);
        *if tier == FAST { &mut tally.promoted } else { &mut tally.demoted } += number;
    }
}
