//! The last-level cache as a fluid: what is put into it drives out a part of everything else.
//!
//! Lines are replaced at random, so that each byte put into a cache of C bytes takes 1/C of what everyone has in it. Cores put in what
//! their second-level caches drop; devices that write to the cache put it into their ways only; what devices read, and what they write
//! to memory, is not put in.

use super::{Event, Whose, World};
use crate::machine::CacheCosts;
use crate::places::Place;
use crate::ps::Ps;
use std::collections::BTreeMap;

/// Loads of a chase between two looks at what is left of it in the cache.
const BURST: u64 = 256;

/// Reads of one line after the other in random order, each address from the line before: what a latency benchmark does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chase {
    /// Node whose core reads.
    pub core: usize,
    /// Where the lines are; its `footprint` is the working set.
    pub place: Place,
    /// Reads in all. The second half of them is measured: by then it is as it goes on.
    pub loads: u64,
}

impl Chase {
    /// A million reads in a working set of near memory.
    #[must_use]
    pub const fn of(working_set: u64) -> Self {
        let mut place = Place::on(0);
        place.footprint = working_set;
        Chase { core: 0, place, loads: 1_000_000 }
    }
}

/// What a chase saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chased {
    /// Reads that were measured.
    pub loads: u64,
    /// Time they took.
    pub took: Ps,
    /// Those of them that found their line in neither cache.
    pub misses: u64,
}

#[derive(Debug)]
pub(super) struct Chasing {
    chase: Chase,
    left: u64,
    tenant: usize,
    seen: Chased,
}

/// Who has lines in a cache.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Who {
    Chase(usize),
    /// What the core of a thread, or a program, reads, or writes.
    Core(Whose, bool),
    /// A device, in the cache of that socket.
    Device(u16, usize),
}

/// Somebody's lines in the cache of one socket.
#[derive(Clone, Copy, Debug)]
struct Tenant {
    socket: usize,
    load: usize,
    /// Bytes that it may have there at most.
    most: u64,
    /// Bytes that it has in the ways that only cores fill, and in those that devices fill too.
    core_ways: u64,
    device_ways: u64,
    /// What had been put in when that was so.
    at: PutIn,
    /// Bytes it had at each look, summed, and looks.
    sum: u128,
    looks: u64,
}

/// Bytes that were put into a cache: by cores to all ways, by devices to theirs.
#[derive(Clone, Copy, Debug, Default)]
struct PutIn {
    cores: u64,
    devices: u64,
}

/// All sockets' caches.
#[derive(Debug, Default)]
pub(super) struct Cache {
    put_in: Vec<PutIn>,
    tenants: Vec<Tenant>,
    numbers: BTreeMap<Who, usize>,
    chases: Vec<Chasing>,
}

/// What a load had in the caches, on average over the times when it used them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CacheUse {
    /// Number of the load; `None` for devices and programs.
    pub load: Option<usize>,
    /// Part of one socket's.
    pub share: f64,
}

/// What is left of `bytes` when `new` more are put into `room` full of lines.
fn left(bytes: u64, room: u64, new: u64) -> u64 {
    let left = u128::from(bytes) * u128::from(room) / (u128::from(room) + u128::from(new)).max(1);
    u64::try_from(left).unwrap_or(bytes)
}

impl Cache {
    pub(super) fn new(sockets: usize) -> Self {
        Cache { put_in: vec![PutIn::default(); sockets], ..Cache::default() }
    }

    fn tenant(&mut self, who: Who, socket: usize, load: usize, most: u64) -> usize {
        let next = self.tenants.len();
        let number = *self.numbers.entry(who).or_insert(next);
        if number == next {
            let at = self.put_in[socket];
            self.tenants.push(Tenant { socket, load, most, core_ways: 0, device_ways: 0, at, sum: 0, looks: 0 });
        }
        number
    }

    /// What a tenant still has.
    fn look(&mut self, costs: &CacheCosts, number: usize) -> u64 {
        let tenant = &mut self.tenants[number];
        let now = self.put_in[tenant.socket];
        let (cores, devices) = (now.cores - tenant.at.cores, now.devices - tenant.at.devices);
        tenant.core_ways = left(tenant.core_ways, costs.llc, cores);
        tenant.device_ways = left(left(tenant.device_ways, costs.llc, cores), costs.ddio(), devices);
        tenant.at = now;
        let has = tenant.core_ways + tenant.device_ways;
        tenant.sum += u128::from(has);
        tenant.looks += 1;
        has
    }

    /// A tenant on a core puts bytes in that it has not there.
    fn put(&mut self, costs: &CacheCosts, number: usize, bytes: u64) {
        let tenant = &mut self.tenants[number];
        // What it has goes like that of everyone.
        tenant.core_ways = left(tenant.core_ways, costs.llc, bytes);
        tenant.device_ways = left(tenant.device_ways, costs.llc, bytes);
        let room = tenant.most.min(costs.llc).saturating_sub(tenant.core_ways + tenant.device_ways);
        let stay = bytes.min(room);
        let device = stay * costs.ddio_ways / costs.ways;
        tenant.core_ways += stay - device;
        tenant.device_ways += device;
        let put_in = &mut self.put_in[tenant.socket].cores;
        *put_in = put_in.saturating_add(bytes);
        tenant.at.cores = self.put_in[tenant.socket].cores;
    }

    /// A device writes to the cache, and so many bytes of that are new in the ways of devices.
    pub(super) fn device_wrote(&mut self, costs: &CacheCosts, device: u16, socket: usize, bytes: u64) {
        let number = self.tenant(Who::Device(device, socket), socket, usize::MAX, costs.ddio());
        self.look(costs, number);
        let put_in = &mut self.put_in[socket].devices;
        *put_in = put_in.saturating_add(bytes);
        let tenant = &mut self.tenants[number];
        tenant.device_ways = left(tenant.device_ways, costs.ddio(), bytes);
        tenant.device_ways += bytes.min(tenant.most.saturating_sub(tenant.device_ways));
        tenant.at.devices = self.put_in[socket].devices;
    }
}

impl World {
    /// Adds a chase; it begins at once, with its lines in the cache as far as they fit. Its number.
    pub fn add_chase(&mut self, chase: Chase) -> usize {
        let load = self.load();
        let number = self.cache.chases.len();
        let socket = self.machine.nodes[chase.core].socket;
        let outside = chase.place.footprint.saturating_sub(self.machine.cache.l2);
        let tenant = self.cache.tenant(Who::Chase(number), socket, load, outside);
        let costs = &self.machine.cache;
        self.cache.put(costs, tenant, outside.min(costs.llc));
        self.cache.chases.push(Chasing { chase, left: chase.loads, tenant, seen: Chased::default() });
        self.agenda.after(Ps::ZERO, Event::Chase(u32::try_from(number).unwrap_or(u32::MAX)));
        number
    }

    /// A chase reads a burst of lines.
    pub(super) fn go_on_chase(&mut self, number: u32) {
        let number = number as usize;
        let Chasing { chase, left, tenant, .. } = self.cache.chases[number];
        let loads = left.min(BURST);
        if loads == 0 {
            return;
        }
        let costs = &self.machine.cache;
        let set = chase.place.footprint.max(1);
        let outside = set.saturating_sub(costs.l2);
        let has = self.cache.look(costs, tenant).min(outside);
        // In 1/2^20 of a load: those that leave the second-level cache, and those of them that leave the last.
        let whole = 1u64 << 20;
        let part = |bytes: u64| u64::try_from((u128::from(bytes) << 20) / u128::from(set)).unwrap_or(whole);
        let (far, missed) = (part(outside), part(outside - has));
        let memory = self.core_latency(chase.core, chase.place.node);
        let parts = [(costs.l2_latency, whole - far), (costs.llc_latency, far - missed), (memory, missed)];
        let time: u128 = parts.iter().map(|(time, part)| u128::from(time.0) * u128::from(*part)).sum();
        let took = Ps(u64::try_from((time * u128::from(loads)) >> 20).unwrap_or(u64::MAX));
        let misses = (loads * missed) >> 20;
        self.cache.put(costs, tenant, (loads * 64 * missed) >> 20);
        let chasing = &mut self.cache.chases[number];
        chasing.left -= loads;
        if chasing.left < chase.loads / 2 {
            chasing.seen.loads += loads;
            chasing.seen.took += took;
            chasing.seen.misses += misses;
        }
        self.agenda.after(took, Event::Chase(u32::try_from(number).unwrap_or(u32::MAX)));
    }

    /// What a chase saw.
    #[must_use]
    pub fn chased(&self, number: usize) -> Chased {
        self.cache.chases[number].seen
    }

    /// A core reads or writes bytes of a place: what of them was in no cache is put into the last when the second drops it.
    pub(super) fn through_cache(&mut self, whose: Whose, core: usize, place: Place, bytes: u64, write: bool) {
        let costs = &self.machine.cache;
        let outside = place.footprint.saturating_sub(costs.l2);
        // What was only read, and so much of it that no line is found again, is dropped.
        if outside == 0 || !write && outside > costs.llc {
            return;
        }
        let load = match whose {
            Whose::Thread(thread) => self.threads[thread as usize].load,
            _ => usize::MAX,
        };
        let socket = self.machine.nodes[core].socket;
        let number = self.cache.tenant(Who::Core(whose, write), socket, load, outside);
        let has = self.cache.look(costs, number).min(outside);
        let absent = u128::from(bytes) * u128::from(outside - has) / u128::from(place.footprint.max(1));
        self.cache.put(costs, number, u64::try_from(absent).unwrap_or(bytes));
    }

    /// What loads, and devices, had in the last-level caches.
    #[must_use]
    pub fn cache_use(&self) -> Vec<CacheUse> {
        let mut uses: BTreeMap<usize, u64> = BTreeMap::new();
        for tenant in &self.cache.tenants {
            let mean = tenant.sum / u128::from(tenant.looks.max(1));
            *uses.entry(tenant.load).or_default() += u64::try_from(mean).unwrap_or(u64::MAX);
        }
        let load = |load: usize| (load != usize::MAX).then_some(load);
        #[allow(clippy::cast_precision_loss, reason = "for people")]
        let share = |bytes: u64| bytes as f64 / self.machine.cache.llc.max(1) as f64;
        uses.into_iter().map(|(number, bytes)| CacheUse { load: load(number), share: share(bytes) }).collect()
    }
}
