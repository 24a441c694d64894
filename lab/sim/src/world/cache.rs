//! The last-level cache as a fluid: inserted bytes evict a part of all other contents.
//!
//! Lines are replaced at random, so each byte inserted into a cache of C bytes takes 1/C of every owner's share. Cores
//! insert the lines that their second-level caches evict. Devices that write to the cache insert into their ways only.
//! Devices' reads, and their writes to memory, insert nothing.

use super::{Event, FlowOwner, World};
use crate::machine::CacheCosts;
use crate::picos::Picos;
use crate::places::BufferPlacement;
use std::collections::BTreeMap;

/// Loads of a chase between two checks of its share of the cache.
const BURST: u64 = 256;

/// Dependent reads of single lines in random order, each address taken from the previous line, as in a latency
/// benchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chase {
    /// Node whose core reads.
    pub core: usize,
    /// Where the lines are; its `footprint` is the working set.
    pub place: BufferPlacement,
    /// Total number of reads. The second half is measured, when the caches are in steady state.
    pub loads: u64,
}

impl Chase {
    /// A million reads in a working set in near memory.
    #[must_use]
    pub const fn of(working_set: u64) -> Self {
        let mut place = BufferPlacement::on(0);
        place.footprint = working_set;
        Chase { core: 0, place, loads: 1_000_000 }
    }
}

/// The result of a chase.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChaseResult {
    /// Measured reads.
    pub loads: u64,
    /// Their total time.
    pub took: Picos,
    /// Measured reads that missed both caches.
    pub misses: u64,
}

#[derive(Debug)]
pub(super) struct Chasing {
    chase: Chase,
    left: u64,
    tenant: usize,
    seen: ChaseResult,
}

/// The owner of lines in a cache.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum CacheOwner {
    Chase(usize),
    /// The core of a thread or program: the lines that it reads, or (true) writes.
    Core(FlowOwner, bool),
    /// A device, in the cache of the given socket.
    Device(u16, usize),
}

/// One owner's lines in the cache of one socket.
#[derive(Clone, Copy, Debug)]
struct Tenant {
    socket: usize,
    load: usize,
    /// The most bytes that it may have there.
    most: u64,
    /// Bytes in the ways that only cores fill, and in those that devices fill, too.
    core_ways: u64,
    device_ways: u64,
    /// The inserted bytes of the cache at the time of these values.
    at: PutIn,
    /// Sum of its bytes over all checks, and the number of checks.
    sum: u128,
    looks: u64,
}

/// Bytes inserted into a cache: by cores into all ways, by devices into theirs.
#[derive(Clone, Copy, Debug, Default)]
struct PutIn {
    cores: u64,
    devices: u64,
}

/// The last-level caches of all sockets.
#[derive(Debug, Default)]
pub(super) struct Cache {
    put_in: Vec<PutIn>,
    tenants: Vec<Tenant>,
    numbers: BTreeMap<CacheOwner, usize>,
    chases: Vec<Chasing>,
}

/// The mean share of a load in the caches, over the times when it used them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CacheUse {
    /// Number of the load; `None` for devices and programs.
    pub load: Option<usize>,
    /// Share of one socket's cache.
    pub share: f64,
}

/// The rest of `bytes` after `new` bytes are inserted into a cache of `room` bytes full of lines.
fn left(bytes: u64, room: u64, new: u64) -> u64 {
    let left = u128::from(bytes) * u128::from(room) / (u128::from(room) + u128::from(new)).max(1);
    u64::try_from(left).unwrap_or(bytes)
}

impl Cache {
    pub(super) fn new(sockets: usize) -> Self {
        Cache { put_in: vec![PutIn::default(); sockets], ..Cache::default() }
    }

    fn tenant(&mut self, owner: CacheOwner, socket: usize, load: usize, most: u64) -> usize {
        let next = self.tenants.len();
        let number = *self.numbers.entry(owner).or_insert(next);
        if number == next {
            let at = self.put_in[socket];
            self.tenants.push(Tenant { socket, load, most, core_ways: 0, device_ways: 0, at, sum: 0, looks: 0 });
        }
        number
    }

    /// Updates a tenant's bytes and returns them.
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

    /// A tenant on a core inserts bytes that it does not have in the cache.
    fn put(&mut self, costs: &CacheCosts, number: usize, bytes: u64) {
        let tenant = &mut self.tenants[number];
        // Its own lines are evicted like all others.
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

    /// A device writes to the cache; `bytes` of that are new in the ways of devices.
    pub(super) fn device_wrote(&mut self, costs: &CacheCosts, device: u16, socket: usize, bytes: u64) {
        let number = self.tenant(CacheOwner::Device(device, socket), socket, usize::MAX, costs.ddio());
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
    /// Adds a chase and returns its number. It begins at once, with as many of its lines in the cache as fit.
    pub fn add_chase(&mut self, chase: Chase) -> usize {
        let load = self.load();
        let number = self.cache.chases.len();
        let socket = self.machine.nodes[chase.core].socket;
        let outside = chase.place.footprint.saturating_sub(self.machine.cache.l2);
        let tenant = self.cache.tenant(CacheOwner::Chase(number), socket, load, outside);
        let costs = &self.machine.cache;
        self.cache.put(costs, tenant, outside.min(costs.llc));
        self.cache.chases.push(Chasing { chase, left: chase.loads, tenant, seen: ChaseResult::default() });
        self.events.after(Picos::ZERO, Event::Chase(u32::try_from(number).unwrap_or(u32::MAX)));
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
        // In 1/2^20 of a load: those that miss the second-level cache, and those that also miss the last-level cache.
        let whole = 1u64 << 20;
        let part = |bytes: u64| u64::try_from((u128::from(bytes) << 20) / u128::from(set)).unwrap_or(whole);
        let (far, missed) = (part(outside), part(outside - has));
        let memory = self.core_latency(chase.core, chase.place.node);
        let parts = [(costs.l2_latency, whole - far), (costs.llc_latency, far - missed), (memory, missed)];
        let time: u128 = parts.iter().map(|(time, part)| u128::from(time.0) * u128::from(*part)).sum();
        let took = Picos(u64::try_from((time * u128::from(loads)) >> 20).unwrap_or(u64::MAX));
        let misses = (loads * missed) >> 20;
        self.cache.put(costs, tenant, (loads * 64 * missed) >> 20);
        let chasing = &mut self.cache.chases[number];
        chasing.left -= loads;
        if chasing.left < chase.loads / 2 {
            chasing.seen.loads += loads;
            chasing.seen.took += took;
            chasing.seen.misses += misses;
        }
        self.events.after(took, Event::Chase(u32::try_from(number).unwrap_or(u32::MAX)));
    }

    /// The result of a chase.
    #[must_use]
    pub fn chased(&self, number: usize) -> ChaseResult {
        self.cache.chases[number].seen
    }

    /// A core reads or writes bytes of a place: the second-level cache evicts bytes that were in no cache to the
    /// last-level cache.
    pub(super) fn through_cache(
        &mut self,
        owner: FlowOwner,
        core: usize,
        place: BufferPlacement,
        bytes: u64,
        write: bool,
    ) {
        let costs = &self.machine.cache;
        let outside = place.footprint.saturating_sub(costs.l2);
        // Lines that are only read are dropped if the footprint is so large that no line is found again.
        if outside == 0 || !write && outside > costs.llc {
            return;
        }
        let load = match owner {
            FlowOwner::Thread(thread) => self.threads[thread as usize].load,
            _ => usize::MAX,
        };
        let socket = self.machine.nodes[core].socket;
        let number = self.cache.tenant(CacheOwner::Core(owner, write), socket, load, outside);
        let has = self.cache.look(costs, number).min(outside);
        let absent = u128::from(bytes) * u128::from(outside - has) / u128::from(place.footprint.max(1));
        self.cache.put(costs, number, u64::try_from(absent).unwrap_or(bytes));
    }

    /// The shares of loads, and of devices, in the last-level caches.
    #[must_use]
    pub fn cache_use(&self) -> Vec<CacheUse> {
        let mut uses: BTreeMap<usize, u64> = BTreeMap::new();
        for tenant in &self.cache.tenants {
            let mean = tenant.sum / u128::from(tenant.looks.max(1));
            *uses.entry(tenant.load).or_default() += u64::try_from(mean).unwrap_or(u64::MAX);
        }
        let load = |load: usize| (load != usize::MAX).then_some(load);
        #[allow(clippy::cast_precision_loss, reason = "for display")]
        let share = |bytes: u64| bytes as f64 / self.machine.cache.llc.max(1) as f64;
        uses.into_iter().map(|(number, bytes)| CacheUse { load: load(number), share: share(bytes) }).collect()
    }
}
