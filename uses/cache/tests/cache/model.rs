//! Compares the cache with a naive model that keeps lists: every result, every counter and every byte, for random calls
//! in random order, with a device that the test controls.

use crate::common::device::TestDevice;
use crate::common::{Chance, mover, policy};
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use telpher_cache::{Cache, Config, Eviction, Handle, Prefetch, Priority, Stats};
use telpher_mem::{Pool, PoolOptions};
use telpher_mover::Policy;
use telpher_portal::QueueMode;

/// Ranges are multiples of this many bytes.
const UNIT: usize = 256;
/// Units of the source, and of the pool.
const SOURCE: usize = 24;
const POOL: usize = 8;
/// The mover's descriptors; at most as many as the mover checks at a time.
const LOOKS: u32 = 16;
/// The limit of copies in flight.
const MOST: usize = 2;
/// The priority of accesses, which go before prefetches.
const DEMANDED: u16 = 256;

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Wanted,
    /// With whether the device has finished it.
    InFlight(bool),
    Fast,
    Nowhere,
}

#[derive(Clone, Debug)]
struct Entry {
    range: Range<usize>,
    state: State,
    /// It is in the index.
    kept: bool,
    /// It was removed from the index, except because its block stayed in its source.
    outside: bool,
    /// The number of handles.
    users: usize,
    unread: bool,
    demanded: bool,
    stale: bool,
    priority: u8,
    used: u64,
}

impl Entry {
    fn is_alive(&self) -> bool {
        self.kept || self.users > 0
    }

    fn has_begun(&self) -> bool {
        self.state != State::Wanted
    }

    fn class(&self) -> u32 {
        (self.range.len() * UNIT).ilog2()
    }
}

/// The naive cache. Entries are identified by their number and are never deleted.
struct Naive {
    eviction: Eviction,
    entries: Vec<Entry>,
    /// The entry that owns each unit of the pool.
    units: Vec<Option<usize>>,
    flying: Vec<usize>,
    /// (priority, order, entry)
    waiting: Vec<(u16, Reverse<u64>, usize)>,
    device: VecDeque<usize>,
    victims: Vec<(u64, usize)>,
    came: u64,
    order: u64,
    stats: Stats,
}

impl Naive {
    fn new(eviction: Eviction) -> Self {
        Naive {
            eviction,
            entries: Vec::new(),
            units: vec![None; POOL],
            flying: Vec::new(),
            waiting: Vec::new(),
            device: VecDeque::new(),
            victims: Vec::new(),
            came: 0,
            order: 0,
            stats: Stats::default(),
        }
    }

    fn find(&self, range: &Range<usize>) -> Option<usize> {
        let has = |e: &Entry| e.kept && e.range.start <= range.start && range.end <= e.range.end;
        let having = (0..self.entries.len()).filter(|&n| has(&self.entries[n]));
        having.max_by_key(|&n| (Reverse(self.entries[n].class()), self.entries[n].range.start))
    }

    fn touch(&mut self, n: usize) {
        if !matches!(self.eviction, Eviction::FirstCome) {
            self.entries[n].used = self.came;
        }
        self.entries[n].unread = false;
    }

    /// Frees the memory of copies without an owner. The memory of a copy in flight is freed when the device has
    /// finished it and the mover `looks` at it.
    fn settle_memory(&mut self, looks: bool) {
        for unit in &mut self.units {
            if let Some(n) = *unit {
                let e = &self.entries[n];
                let is_needed = match e.state {
                    State::InFlight(false) => true,
                    State::InFlight(true) => e.is_alive() || !looks,
                    State::Fast => e.is_alive(),
                    State::Wanted | State::Nowhere => false,
                };
                *unit = unit.filter(|_| is_needed);
            }
        }
    }

    fn insert(&mut self, range: Range<usize>, ahead: Option<u8>) -> usize {
        let new = Entry {
            range,
            state: State::Wanted,
            kept: true,
            outside: false,
            users: 0,
            unread: ahead.is_some(),
            demanded: ahead.is_none(),
            stale: false,
            priority: ahead.unwrap_or(0),
            used: self.came,
        };
        self.came += 1;
        // An entry with the same start and the same size class is replaced.
        for e in &mut self.entries {
            if e.kept && e.range.start == new.range.start && e.class() == new.class() {
                (e.kept, e.outside) = (false, true);
            }
        }
        self.settle_memory(false);
        self.entries.push(new);
        self.entries.len() - 1
    }

    /// Takes the smallest gap that is large enough; among equal ones, the first.
    fn obtain(&mut self, n: usize) -> bool {
        let len = self.entries[n].range.len();
        let mut best: Option<(usize, usize)> = None;
        let mut at = 0;
        while at < POOL {
            let gap = self.units[at..].iter().take_while(|unit| unit.is_none()).count();
            if gap >= len && best.is_none_or(|(least, _)| gap < least) {
                best = Some((gap, at));
            }
            at += gap.max(1);
        }
        if let Some((_, at)) = best {
            self.units[at..at + len].fill(Some(n));
        }
        best.is_some()
    }

    fn room(&mut self, n: usize, unread_too: bool) -> bool {
        if self.entries[n].range.len() > POOL {
            return false;
        }
        if self.obtain(n) {
            return true;
        }
        self.settle_memory(true);
        loop {
            if self.obtain(n) {
                return true;
            }
            if !self.evict(unread_too) {
                return false;
            }
        }
    }

    fn evict(&mut self, unread_too: bool) -> bool {
        for anew in [false, true] {
            if anew {
                let is_victim =
                    |e: &Entry| e.kept && e.users == 0 && e.state == State::Fast && (unread_too || !e.unread);
                let mut all: Vec<usize> = (0..self.entries.len()).filter(|&n| is_victim(&self.entries[n])).collect();
                all.sort_by_key(|&n| {
                    let e = &self.entries[n];
                    let worth = match self.eviction {
                        Eviction::Largest => Reverse(e.range.len() as u64),
                        _ => Reverse(self.came - e.used),
                    };
                    Reverse((e.unread, worth, e.range.start, e.range.len()))
                });
                self.victims = all.into_iter().map(|n| (self.entries[n].used, n)).collect();
            }
            while let Some((used, n)) = self.victims.pop() {
                let e = &mut self.entries[n];
                if e.kept && e.users == 0 && e.used == used && (unread_too || !e.unread) {
                    e.kept = false;
                    self.stats.evictions += 1;
                    self.settle_memory(false);
                    return true;
                }
            }
        }
        false
    }

    fn stays(&mut self, n: usize) {
        self.entries[n].state = State::Nowhere;
        self.entries[n].kept = false;
    }

    fn begin(&mut self, n: usize) {
        self.entries[n].state = State::InFlight(false);
        self.device.push_back(n);
        self.settle_memory(true);
    }

    fn turn(&mut self, n: usize) {
        let state = self.entries[n].state;
        match state {
            State::Wanted if self.room(n, true) => self.begin(n),
            State::Wanted => {
                self.stays(n);
                self.stats.no_memory += 1;
            }
            State::InFlight(true) => {
                self.entries[n].state = State::Fast;
                self.settle_memory(true);
                self.stats.copies += 1;
                self.stats.bytes_copied += (self.entries[n].range.len() * UNIT) as u64;
            }
            // Every check frees orphaned copies, as above; so does every submission.
            State::InFlight(false) => self.settle_memory(true),
            State::Fast | State::Nowhere => {}
        }
    }

    fn is_free(&mut self) -> bool {
        if self.flying.len() >= MOST {
            for n in self.flying.clone() {
                if self.entries[n].is_alive() && self.entries[n].has_begun() {
                    self.turn(n);
                }
            }
            let entries = &self.entries;
            let flies = |e: &Entry| e.is_alive() && matches!(e.state, State::Wanted | State::InFlight(_));
            self.flying.retain(|&n| flies(&entries[n]));
        }
        self.flying.len() < MOST
    }

    fn wait_in_line(&mut self, n: usize, priority: u16) {
        self.order += 1;
        self.waiting.push((priority, Reverse(self.order), n));
    }

    fn demand(&mut self, n: usize) {
        if self.is_free() {
            self.flying.push(n);
            self.turn(n);
        } else {
            self.wait_in_line(n, DEMANDED);
        }
    }

    fn drive(&mut self) {
        while !self.waiting.is_empty() && self.is_free() {
            let next = self.waiting.iter().copied().max().expect("not empty");
            self.waiting.retain(|other| *other != next);
            let (priority, _, n) = next;
            let e = &self.entries[n];
            if !e.is_alive() {
                continue;
            }
            if e.has_begun() {
                if matches!(e.state, State::InFlight(_)) && !self.flying.contains(&n) {
                    self.flying.push(n);
                    if self.flying.len() >= MOST {
                        return;
                    }
                }
            } else if priority == DEMANDED {
                self.flying.push(n);
                self.turn(n);
            } else if self.room(n, false) {
                self.flying.push(n);
                self.begin(n);
            } else if self.entries[n].range.len() > POOL {
                self.flying.push(n);
                self.stays(n);
                self.stats.no_memory += 1;
            } else {
                self.waiting.push(next);
                return;
            }
        }
    }

    fn hit(&mut self, n: usize) {
        self.stats.hits += 1;
        if !self.entries[n].demanded && !self.entries[n].has_begun() {
            self.entries[n].demanded = true;
            self.entries[n].users += 1;
            self.demand(n);
            self.entries[n].users -= 1;
        }
    }

    fn access(&mut self, range: Range<usize>) -> usize {
        let n = match self.find(&range) {
            Some(n) => {
                self.touch(n);
                // From here on it has a user.
                self.hit(n);
                n
            }
            None => {
                let n = self.insert(range, None);
                self.stats.misses += 1;
                self.demand(n);
                n
            }
        };
        self.entries[n].users += 1;
        n
    }

    fn prefetch(&mut self, range: Range<usize>, priority: u8) -> usize {
        self.stats.prefetches += 1;
        let (n, waits) = match self.find(&range) {
            Some(n) => {
                let e = &mut self.entries[n];
                let is_more = priority > e.priority;
                e.priority = e.priority.max(priority);
                (n, is_more && !e.demanded && !e.has_begun())
            }
            None => (self.insert(range, Some(priority)), true),
        };
        if waits {
            // The caller is a user of it meanwhile.
            self.entries[n].users += 1;
            self.wait_in_line(n, priority.into());
            self.drive();
            self.entries[n].users -= 1;
        }
        n
    }

    fn cancel(&mut self, n: usize) -> bool {
        let cancelled = self.entries[n].is_alive() && !self.entries[n].has_begun();
        if cancelled {
            self.stays(n);
            self.stats.cancelled += 1;
        }
        cancelled
    }

    fn invalidate(&mut self, range: &Range<usize>) -> usize {
        let mut gone = 0;
        for e in self.entries.iter_mut().filter(|e| e.range.start < range.end && range.start < e.range.end) {
            gone += usize::from(e.kept);
            e.outside |= e.kept;
            e.stale |= e.outside;
            e.kept = false;
        }
        self.stats.invalidations += gone as u64;
        gone
    }

    fn clear(&mut self, used_too: bool) -> usize {
        let mut gone = 0;
        for e in self.entries.iter_mut().filter(|e| e.kept && (used_too || e.users == 0)) {
            gone += 1;
            (e.kept, e.outside) = (false, true);
        }
        gone
    }

    fn run(&mut self, most: usize) {
        for n in self.device.drain(..most.min(self.device.len())) {
            self.entries[n].state = State::InFlight(true);
        }
    }

    fn stats(&self) -> Stats {
        let mut stats = self.stats;
        let count = |is: &dyn Fn(&Entry) -> bool| self.entries.iter().filter(|e| is(e)).count() as u64;
        stats.entries = count(&|e| e.kept);
        stats.in_flight = count(&|e| e.is_alive() && matches!(e.state, State::InFlight(_)));
        stats.waiting = count(&|e| e.is_alive() && e.state == State::Wanted);
        stats.bytes = (self.units.iter().flatten().count() * UNIT) as u64;
        stats
    }
}

/// A call for both. Numbers select among the existing handles.
#[derive(Clone, Debug)]
enum Step {
    Access(usize, usize),
    Peek(usize, usize),
    Prefetch(usize, usize, u8),
    Invalidate(usize, usize),
    Cancel(usize),
    IsThere(usize),
    Look(usize),
    Clone(usize),
    Drop(usize),
    Run(usize),
    Drive,
    Flush,
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let (start, len) = (0..SOURCE, 1_usize..6);
    let range = || (start.clone(), len.clone());
    prop_oneof![
        8 => range().prop_map(|(start, len)| Step::Access(start, len)),
        // Overlapping ranges, and more than fit in the pool.
        4 => (0_usize..4, 1_usize..3).prop_map(|(place, len)| Step::Access(place * 2, len)),
        1 => (0..SOURCE).prop_map(|start| Step::Access(start, SOURCE)),
        2 => range().prop_map(|(start, len)| Step::Peek(start, len)),
        5 => (range(), 0_u8..4).prop_map(|((start, len), priority)| Step::Prefetch(start, len, priority)),
        1 => (0..SOURCE).prop_map(|start| Step::Prefetch(start, SOURCE, 3)),
        2 => range().prop_map(|(start, len)| Step::Invalidate(start, len)),
        2 => any::<usize>().prop_map(Step::Cancel),
        2 => any::<usize>().prop_map(Step::IsThere),
        6 => any::<usize>().prop_map(Step::Look),
        1 => any::<usize>().prop_map(Step::Clone),
        8 => any::<usize>().prop_map(Step::Drop),
        6 => (1_usize..4).prop_map(Step::Run),
        2 => Just(Step::Drive),
        1 => Just(Step::Flush),
        1 => Just(Step::Clear),
    ]
}

type Source = Arc<[u8]>;

/// The cache with the handles that it returned, and the naive one.
struct Both {
    device: Arc<TestDevice>,
    cache: Cache<Source>,
    source: Source,
    handles: Vec<(usize, Range<usize>, Handle<Source>)>,
    ahead: Vec<(usize, Prefetch<Source>)>,
    naive: Naive,
}

impl Both {
    fn new(eviction: &Eviction) -> Self {
        let device = Arc::new(TestDevice::new(QueueMode::Shared, 64));
        device.state().manual = true;
        let mut config = Config::new([Pool::new(PoolOptions::new(POOL * UNIT)).unwrap()]);
        (config.in_flight, config.eviction) = (MOST, eviction.clone());
        // The mover checks all orphaned copies at a time: at most as many copies are in flight as the pool has units.
        let policy = Policy { capacity: LOOKS, ..policy() };
        let cache = Cache::new(mover(&device, policy), config).unwrap();
        let source: Source = Chance::new(3).bytes(SOURCE * UNIT).into();
        Both { device, cache, source, handles: Vec::new(), ahead: Vec::new(), naive: Naive::new(eviction.clone()) }
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        let units = |start: usize, len: usize| start..(start + len).min(SOURCE);
        let bytes = |range: &Range<usize>| range.start * UNIT..range.end * UNIT;
        let (cache, source, naive) = (&self.cache, &self.source, &mut self.naive);
        match step {
            Step::Access(start, len) => {
                let range = units(start, len);
                let handle = cache.access(source, bytes(&range)).unwrap();
                self.handles.push((naive.access(range.clone()), range, handle));
            }
            Step::Peek(start, len) => {
                let range = units(start, len);
                let (handle, n) = (cache.peek(source, bytes(&range)).unwrap(), naive.find(&range));
                prop_assert_eq!(handle.is_some(), n.is_some());
                if let Some((handle, n)) = handle.zip(n) {
                    naive.stats.hits += 1;
                    naive.touch(n);
                    naive.entries[n].users += 1;
                    self.handles.push((n, range, handle));
                } else {
                    naive.stats.misses += 1;
                    naive.stats.weak_misses += 1;
                }
            }
            Step::Prefetch(start, len, priority) => {
                let range = units(start, len);
                let ahead = cache.prefetch(source, bytes(&range), Priority(priority)).unwrap();
                self.ahead.push((naive.prefetch(range, priority), ahead));
            }
            Step::Invalidate(start, len) => {
                let range = units(start, len);
                prop_assert_eq!(cache.invalidate(source, bytes(&range)).unwrap(), naive.invalidate(&range));
            }
            Step::Cancel(which) if !self.ahead.is_empty() => {
                let (n, ahead) = self.ahead.swap_remove(which % self.ahead.len());
                prop_assert_eq!(ahead.cancel(), naive.cancel(n));
            }
            Step::IsThere(which) if !self.ahead.is_empty() => {
                let (n, ahead) = &self.ahead[which % self.ahead.len()];
                let is_there = ahead.is_there();
                naive.drive();
                if naive.entries[*n].is_alive() && naive.entries[*n].has_begun() {
                    naive.turn(*n);
                }
                let e = &naive.entries[*n];
                prop_assert_eq!(is_there, e.is_alive() && e.state == State::Fast);
            }
            Step::Look(which) if !self.handles.is_empty() => {
                let (n, _, handle) = &self.handles[which % self.handles.len()];
                let has_ended = handle.copy_has_ended();
                naive.turn(*n);
                prop_assert_eq!(has_ended, matches!(naive.entries[*n].state, State::Fast | State::Nowhere));
            }
            Step::Clone(which) if !self.handles.is_empty() => {
                let (n, range, handle) = &self.handles[which % self.handles.len()];
                let another = (*n, range.clone(), handle.clone());
                naive.entries[*n].users += 1;
                self.handles.push(another);
            }
            Step::Drop(which) if !self.handles.is_empty() => {
                let (n, ..) = self.handles.swap_remove(which % self.handles.len());
                naive.entries[n].users -= 1;
            }
            Step::Run(most) => {
                self.device.run(most);
                naive.run(most);
            }
            Step::Drive => {
                cache.drive();
                naive.drive();
            }
            Step::Flush => prop_assert_eq!(cache.flush(), naive.clear(false)),
            Step::Clear => prop_assert_eq!(cache.clear(), naive.clear(true)),
            Step::Cancel(_) | Step::IsThere(_) | Step::Look(_) | Step::Clone(_) | Step::Drop(_) => {}
        }
        self.cache.mover().reclaim();
        self.naive.settle_memory(true);
        self.compare()
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.cache.stats(), self.naive.stats());
        for (n, range, handle) in &self.handles {
            let entry = &self.naive.entries[*n];
            let bytes = &self.source[range.start * UNIT..range.end * UNIT];
            prop_assert_eq!(handle.is_fast(), entry.state == State::Fast);
            prop_assert_eq!(handle.is_stale(), entry.stale);
            prop_assert_eq!(handle.location().is_fast(), handle.is_fast());
            prop_assert_eq!(handle.location().as_ptr() == bytes.as_ptr(), !handle.is_fast());
            prop_assert_eq!(handle.location().bytes(), bytes);
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn the_cache_equals_a_list_based_model(
        steps in prop::collection::vec(step(), 1..120),
        eviction in prop_oneof![Just(Eviction::LeastRecentlyUsed), Just(Eviction::FirstCome), Just(Eviction::Largest)],
    ) {
        let mut both = Both::new(&eviction);
        for step in steps {
            both.step(step)?;
        }
        // When everything is dropped, nothing is kept.
        let Both { device, cache, source, handles, ahead, .. } = both;
        drop((handles, ahead));
        cache.clear();
        device.run(usize::MAX);
        cache.mover().reclaim();
        prop_assert_eq!((cache.mover().orphaned(), cache.stats().bytes, Arc::strong_count(&source)), (0, 0, 1));
    }
}
