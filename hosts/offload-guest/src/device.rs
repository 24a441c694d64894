//! The device of this process, and what is known about when it pays.
#![allow(unsafe_code, reason = "keeps the device for ever, and makes calls of its own before the program does")]

use crate::calibration::cold_boundary;
use crate::callers;
use crate::counters::{ProcessCounters, shared_words};
use crate::gates::{NEVER, cpu_compare, cpu_fill, cpu_move};
use crate::sites::{Site, Sites, Verdict};
use crate::statistics::ProcessStatistics;
use crate::traps;
use std::ffi::{c_int, c_void};
use std::io;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use telpher_device::{
    DeviceName, DeviceTimes, ImposedSum, ImposedTimes, OpenOptions, Opened, PreparedDevice, Runner, prepare,
};
use telpher_metrics::Position;
use telpher_mover::{CallResult, ColdBoundary, CpuCalls, Hint, MemoryCall, MemoryCalls, MemoryCallsPolicy, Wait};
use telpher_offload_wire::sites::{self, SiteTable};
use telpher_offload_wire::statistics::{OPERATIONS, Operation};
use telpher_offload_wire::verdicts::{self, SiteVerdict};
use telpher_offload_wire::{Counters, Functions, Settings, WaitMethod};
use telpher_os::Lineage;

/// The device; null until it is open. It is never freed, because a thread of the program may use it at any time.
static DEVICE: AtomicPtr<Device> = AtomicPtr::new(ptr::null_mut());

/// Returns the device, once it is open.
#[inline]
pub(crate) fn get() -> Option<&'static Device> {
    // Acquire: pairs with the Release in `publish`.
    let device = DEVICE.load(Ordering::Acquire);
    // SAFETY: null, or a leaked box.
    unsafe { device.as_ref() }
}

/// Makes the device available to all calls.
pub(crate) fn publish(device: Device) -> &'static Device {
    let device = Box::leak(Box::new(device));
    // Release: pairs with the Acquire in `get`.
    DEVICE.store(device, Ordering::Release);
    device
}

/// Descriptors in flight at a time, over all threads. Source: chosen; a waiting thread has one.
const SLOTS: u32 = 256;

/// Bytes of the first copy. Source: chosen; a page.
const WARM_UP_BYTES: usize = 4096;

/// What executes the long calls of one process.
pub(crate) struct Device {
    calls: MemoryCalls,
    lineage: Lineage,
    /// The length from which calls may go to the device, by [`Operation`].
    thresholds: [usize; OPERATIONS],
    counters: ProcessCounters,
    /// The call sites. A forked child goes on with a copy.
    sites: Sites,
    /// Calls by their size, if the user asks for them.
    statistics: Option<ProcessStatistics>,
    family: &'static Family,
}

/// What a process and its forked children have in common.
struct Family {
    settings: Settings,
    /// The devices, as they were found at the start.
    prepared: Vec<PreparedDevice>,
    /// The times of a simulated device, if the user imposes them.
    times: Option<Arc<ImposedTimes>>,
    /// The executors of call sites that the user has given.
    verdicts: Vec<SiteVerdict>,
    /// What separates cached data from data in memory; none if the calls of all sites go to the device, except of those
    /// that are denied.
    cold_boundary: Option<ColdBoundary>,
}

impl Device {
    /// Opens the device of these settings; none if it has no queues, so that the CPU executes everything.
    ///
    /// # Errors
    /// Why the device cannot be opened, as a sentence.
    pub(crate) fn open(settings: Settings) -> Result<Option<Device>, String> {
        let times = settings.device_times.as_deref().map(imposed).transpose()?;
        let prepared = settings.devices.iter().map(|name| {
            let name: DeviceName = name.parse().map_err(|error| telpher_os::chain(&error))?;
            let prepared = prepare(&name).map_err(|error| telpher_os::chain(&error))?;
            match &times {
                Some(times) => prepared.with_times(Arc::clone(times)).map_err(|error| telpher_os::chain(&error)),
                None => Ok(prepared),
            }
        });
        let prepared = prepared.collect::<Result<Vec<_>, String>>()?;
        let opened = open_all(&prepared)?;
        if opened.portals.is_empty() && !settings.statistics {
            return Ok(None);
        }
        let verdicts = settings.verdicts.as_deref().map(read_verdicts).transpose()?.unwrap_or_default();
        if !opened.portals.is_empty() {
            traps::take_over()?;
        }
        let counters = ProcessCounters::new(settings.folder.as_deref())
            .map_err(|error| format!("cannot create the file of its counters: {error}"))?;
        let sites = create_sites(&settings, settings.folder.as_deref())
            .map_err(|error| format!("cannot create the file of its call sites: {error}"))?;
        let cold_boundary = settings.learns.then(cold_boundary);
        let family = Box::leak(Box::new(Family { settings, prepared, times, verdicts, cold_boundary }));
        let device = Device::over(opened, family, counters, sites)?;
        device.warm_up();
        Ok(Some(device))
    }

    /// Opens the device again, in a forked child of the process that opened it. It reads no directory, and what it
    /// allocates is of this library's own heap.
    ///
    /// # Errors
    /// As for [`Device::open`].
    pub(crate) fn open_in_child(&self) -> Result<Device, String> {
        let folder = self.family.settings.folder.as_deref();
        // The folder disappears with the run, and a child may live longer.
        let counters = ProcessCounters::new(folder).or_else(|_| ProcessCounters::new(None));
        let counters = counters.map_err(|error| error.to_string())?;
        let settings = &self.family.settings;
        let sites = create_sites(settings, folder).or_else(|_| create_sites(settings, None));
        let sites = sites.map_err(|error| error.to_string())?;
        sites.inherit(&self.sites);
        Device::over(open_all(&self.family.prepared)?, self.family, counters, sites)
    }

    /// The device with these queues.
    fn over(
        opened: Opened,
        family: &'static Family,
        counters: ProcessCounters,
        sites: Sites,
    ) -> Result<Device, String> {
        let portals = opened.portals;
        let settings = &family.settings;
        let statistics = settings
            .statistics
            .then(|| ProcessStatistics::begin(settings.folder.as_deref()))
            .transpose()
            .map_err(|error| format!("cannot count its calls by size: {error}"))?;
        let threshold = if portals.is_empty() { NEVER } else { usize::try_from(settings.threshold).unwrap_or(NEVER) };
        // For `warm_up`. The CPU's parts of the program's calls are done by `calls`.
        let cpu = CpuCalls { copy: cpu_copy, fill: cpu_set, compare: cpu_difference };
        let calls =
            MemoryCalls::new(portals, cpu, policy(settings), SLOTS).map_err(|error| telpher_os::chain(&error))?;
        let thresholds = thresholds(threshold, settings.functions);
        Ok(Device { calls, lineage: Lineage::current(), thresholds, counters, sites, statistics, family })
    }

    /// Executes each operation once. After that no variable on their way is set for the first time, which another
    /// thread could be doing while the process forks; a child would wait for that thread for ever.
    fn warm_up(&self) {
        let (mut to, from) = (vec![0_u8; WARM_UP_BYTES], vec![1_u8; WARM_UP_BYTES]);
        // SAFETY: both buffers have these bytes, and nothing else uses them.
        unsafe {
            self.calls.copy(to.as_mut_ptr(), from.as_ptr(), WARM_UP_BYTES);
            self.calls.compare(to.as_ptr(), from.as_ptr(), WARM_UP_BYTES);
            self.calls.fill(to.as_mut_ptr(), 2, WARM_UP_BYTES);
        }
        // The program's own calls are counted.
        self.family.times.as_ref().map(|times| times.take());
    }

    /// Returns the length from which calls of an operation may go to the device.
    #[inline]
    pub(crate) fn threshold(&self, operation: Operation) -> usize {
        self.thresholds[operation as usize]
    }

    /// Returns whether copies between overlapping ranges may go to the device.
    #[inline]
    pub(crate) fn copies_overlapping(&self) -> bool {
        self.family.settings.overlapping
    }

    /// Returns the statistics, if the user asks for them.
    #[inline]
    pub(crate) fn statistics(&self) -> Option<&ProcessStatistics> {
        self.statistics.as_ref()
    }

    /// Returns whether this process opened the device: a forked child has not.
    #[inline]
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.lineage.is_current()
    }

    /// Returns whether the user has switched this process to the CPU.
    #[inline]
    pub(crate) fn is_switched_off(&self) -> bool {
        self.counters.is_switched_off()
    }

    /// Adds to a counter.
    #[inline]
    pub(crate) fn count(&self, position: Position<Counters>, more: u64) {
        self.counters.add(position, more);
    }

    /// Returns the site of a return address if one of its calls was here before.
    #[inline]
    pub(crate) fn known_site(&self, caller: usize) -> Option<Site> {
        self.sites.known(caller)
    }

    /// Returns the site of a return address. At its first call this finds out what is known about it. Sites beyond the
    /// table have none, and stay with the CPU.
    pub(crate) fn site(&self, caller: usize) -> Option<Site> {
        let Family { settings, verdicts, .. } = self.family;
        self.sites.site(caller, || callers::judge(caller, &settings.deny, verdicts, &self.sites))
    }

    /// Counts a call of a site, and returns what to do with it.
    #[inline]
    pub(crate) fn verdict(&self, site: Site) -> Verdict {
        site.verdict(self.family.cold_boundary.is_some())
    }

    /// Lets a site learn from a call that the CPU executed in so many ticks.
    #[inline]
    pub(crate) fn learn(&self, site: Site, len: usize, ticks: u64) {
        if let Some(boundary) = &self.family.cold_boundary {
            site.learn(boundary.is_cold(len, ticks as f64));
        }
    }

    /// Begins `memmove`.
    pub(crate) fn begin_copy(&self, to: *mut c_void, from: *const c_void, len: usize) -> MemoryCall<'_> {
        self.calls.begin_copy(to.cast(), from.cast(), len)
    }

    /// Begins `memset`.
    pub(crate) fn begin_fill(&self, to: *mut c_void, byte: c_int, len: usize) -> MemoryCall<'_> {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "memset uses the lowest byte")]
        let byte = byte as u8;
        self.calls.begin_fill(to.cast(), byte, len)
    }

    /// Begins `memcmp`.
    pub(crate) fn begin_compare(&self, a: *const c_void, b: *const c_void, len: usize) -> MemoryCall<'_> {
        self.calls.begin_compare(a.cast(), b.cast(), len)
    }

    /// Counts the result of a call.
    pub(crate) fn note(&self, result: CallResult) {
        let CallResult { device_bytes, cpu_bytes, retries, faults } = result;
        self.count(Counters::AT.device_bytes, device_bytes);
        self.count(Counters::AT.cpu_bytes, cpu_bytes);
        if retries > 0 {
            self.count(Counters::AT.retries, retries.into());
        }
        if faults > 0 {
            self.count(Counters::AT.faults, faults.into());
        }
        if let Some(times) = &self.family.times {
            let ImposedSum { device_ns, late } = times.take();
            self.count(Counters::AT.simulated_ns, device_ns);
            self.count(Counters::AT.late, late);
        }
    }
}

/// Returns the length from which calls may go to the device, by [`Operation`].
fn thresholds(threshold: usize, functions: Functions) -> [usize; OPERATIONS] {
    let Functions { memcpy, memmove, memset, memcmp } = functions;
    let mut thresholds = [NEVER; OPERATIONS];
    for (operation, is_selected) in
        [(Operation::Set, memset), (Operation::Copy, memcpy), (Operation::Move, memmove), (Operation::Compare, memcmp)]
    {
        if is_selected {
            thresholds[operation as usize] = threshold;
        }
    }
    thresholds
}

/// Opens the queues of all devices.
fn open_all(prepared: &[PreparedDevice]) -> Result<Opened, String> {
    let mut all = Opened::default();
    for device in prepared {
        // The program must not get further threads, which its own forks would lose.
        let options = OpenOptions { runner: Runner::Inline };
        all.portals.extend(device.open(options).map_err(|error| telpher_os::chain(&error))?.portals);
    }
    Ok(all)
}

/// Creates the table of call sites, in the file `PID.sites` of a folder if there is one.
fn create_sites(settings: &Settings, folder: Option<&Path>) -> io::Result<Sites> {
    let words = shared_words(folder, "sites", sites::WORDS)?;
    SiteTable::begin(words, settings.learns).map(Sites::new).ok_or_else(|| io::Error::other("the file is too short"))
}

/// Returns the mover's policy for these settings.
fn policy(settings: &Settings) -> MemoryCallsPolicy {
    let wait = settings.wait.map_or_else(Wait::default, |method| match method {
        WaitMethod::Poll => Wait::Pause,
        WaitMethod::Yield => Wait::Yield { pauses: 0 },
        WaitMethod::Timed(interval) => Wait::Timed { interval },
        WaitMethod::Monitor(at_most) => Wait::Monitor { at_most },
    });
    MemoryCallsPolicy {
        hint: if settings.results_in_cache { Hint::Cache } else { Hint::Memory },
        nearest: settings.nearest,
        wait,
        threshold: settings.threshold,
        populate,
        ..MemoryCallsPolicy::default()
    }
}

/// Reads the times of a simulated device.
fn imposed(text: &str) -> Result<Arc<ImposedTimes>, String> {
    let times: DeviceTimes = text.parse().map_err(|error| telpher_os::chain(&error))?;
    Ok(Arc::new(ImposedTimes::new(times)))
}

/// Reads the user's verdicts.
fn read_verdicts(path: &Path) -> Result<Vec<SiteVerdict>, String> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    verdicts::parse(&text).map_err(|error| format!("{name} has no verdicts: {error}"))
}

/// The C library's `memmove`.
unsafe fn cpu_copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { cpu_move(to.cast(), from.cast(), len) };
}

/// The C library's `memset`.
unsafe fn cpu_set(to: *mut u8, byte: u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { cpu_fill(to.cast(), byte.into(), len) };
}

/// Finds the first difference with the C library's `memcmp`, which returns its sign only.
unsafe fn cpu_difference(a: *const u8, b: *const u8, len: usize) -> Option<usize> {
    let differ = |start: usize, len: usize| {
        // SAFETY: the caller's promise, for every part of the ranges.
        unsafe { cpu_compare(a.add(start).cast(), b.add(start).cast(), len) != 0 }
    };
    if !differ(0, len) {
        return None;
    }
    // The first difference lies in the first `len` bytes from `start` on; the part is halved.
    let (mut start, mut len) = (0, len);
    while len > 1 {
        let half = len / 2;
        if differ(start, half) {
            len = half;
        } else {
            (start, len) = (start + half, len - half);
        }
    }
    Some(start)
}

/// Makes pages present as the program's own access would, with the memory policy of their mapping.
fn populate(address: *mut u8, len: usize, write: bool) -> bool {
    const PAGE: usize = 4096;
    let (start, end) = (address.addr() / PAGE * PAGE, (address.addr() + len).next_multiple_of(PAGE));
    let advice = if write { rustix::mm::Advice::LinuxPopulateWrite } else { rustix::mm::Advice::LinuxPopulateRead };
    // SAFETY: changes no byte. The kernel refuses ranges that are not mapped so.
    unsafe { rustix::mm::madvise(address.with_addr(start).cast(), end - start, advice) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
    use telpher_os::page_presence::ask_pagemap;

    /// Populating is done for the thread that calls, as its own access would be; a fault of the device is not.
    #[test]
    fn pages_are_populated_with_the_memory_policy_of_their_mapping() {
        const PAGES: usize = 8;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of eight pages; the two of the middle lose their access.
        let start = unsafe {
            let start = mmap_anonymous(ptr::null_mut(), PAGES * 4096, access, MapFlags::PRIVATE).unwrap();
            mprotect(start.wrapping_byte_add(3 * 4096), 2 * 4096, MprotectFlags::empty()).unwrap();
            start.cast::<u8>()
        };
        let file = std::fs::File::open("/proc/self/pagemap").unwrap();
        let present = || {
            let mut present = [false; PAGES];
            ask_pagemap(&file, (start.addr() / 4096) as u64, true, &mut present).expect("a readable pagemap");
            present
        };
        assert_eq!(present(), [false; PAGES]);
        // Not whole pages: from the middle of the first to the middle of the third.
        assert!(populate(start.wrapping_add(2000), 2 * 4096, true));
        assert_eq!(present(), [true, true, true, false, false, false, false, false]);
        // SAFETY: a page of the mapping, which is accessible.
        unsafe { start.wrapping_add(5).write(7) };
        assert!(!populate(start, PAGES * 4096, true), "two pages have no access");
        // SAFETY: as above.
        assert_eq!(unsafe { start.wrapping_add(5).read() }, 7);
    }
}
