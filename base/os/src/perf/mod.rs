//! Samples the loads and stores of this process' threads with their addresses, by the processor's own sampling unit
//! (Intel's PEBS, AMD's IBS): `perf_event_open(2)`. `counter` reads counters of devices by the same call.
//!
//! **Unverified on silicon**: this code was written on machines without such a unit. Everything but the unit is
//! verified. The calls, the ring and the records are tested with an event of the kernel itself that reports addresses,
//! too (page faults). Events and formats are tested with files as two processors show them.
//!
//! Sources: UAPI linux/perf_event.h; perf_event_open(2); Linux,
//! Documentation/ABI/testing/sysfs-bus-event_source-devices-{events,format}; Intel's "64 and IA-32 Architectures
//! Software Developer's Manual" 3B (PEBS, load latency); AMD's "Processor Programming Reference", IBS.
#![allow(unsafe_code, reason = "perf_event_open, and a ring that the kernel writes to")]

mod counter;
mod events;
mod records;
mod ring;

pub use counter::{CounterEvent, CounterReading, DeviceCounter};
pub use events::Event;
pub use records::{Record, Records, Sample};

use crate::ioctl::ioctl_number;
use ring::Ring;
use rustix::process::Resource;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// The directory in which the system lists event sources.
const DEVICES: &str = "/sys/bus/event_source/devices";
/// The most threads that are sampled. Source: chosen; each needs a ring of 36 KiB, and a user without privileges may
/// have 516 KiB for each processor (`kernel.perf_event_mlock_kb`).
const MAX_THREADS: usize = 256;
/// Sampling uses at most 1/8 of the process' descriptor limit. Source: chosen; the rest is for the program.
const DESCRIPTOR_SHARE: u64 = 8;
/// The time before a thread that was refused is tried again. Source: chosen.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The fields of a sample: TID, TIME and ADDR, in this order.
const SAMPLE_TYPE: u64 = 1 << 1 | 1 << 2 | 1 << 3;
/// `PERF_ATTR_SIZE_VER5`: the size that every kernel since 4.1 reads.
const ATTRIBUTE_BYTES: usize = 112;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const PRECISE_SHIFT: u32 = 15;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOEXEC: libc::c_ulong = 1 << 3;
/// `PERF_EVENT_IOC_PERIOD`: write, 8 bytes, letter $, number 4.
const SET_PERIOD: u64 = 1 << 30 | 8 << 16 | (b'$' as u64) << 8 | 4;

/// The reason why sampling is not possible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// The system reports no sampling unit.
    #[error(
        "this machine shows no unit that samples addresses (neither mem-loads of a CPU nor ibs_op in \
         /sys/bus/event_source/devices); most virtual machines have none; choose another source"
    )]
    None,
    /// The system refuses to open the event.
    #[error(
        "cannot sample {event}: lower /proc/sys/kernel/perf_event_paranoid to 2 (1 for ibs_op), give the process \
         CAP_PERFMON, or choose another source"
    )]
    Open {
        /// The name of the event.
        event: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// No ring could be mapped for its samples.
    #[error("cannot map a ring for samples of {event}; raise kernel.perf_event_mlock_kb, or choose another source")]
    Ring {
        /// The name of the event.
        event: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// Counts of all samples so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PerfCounts {
    /// Samples that were read.
    pub samples: u64,
    /// Samples that the kernel dropped because a ring was full.
    pub lost: u64,
    /// Times the kernel lowered the sample rate because sampling took too much time
    /// (`kernel.perf_cpu_time_max_percent`).
    pub throttled: u64,
    /// Malformed records; the rest of their ring was dropped with each.
    pub garbage: u64,
    /// Threads that are not sampled: over the limit, or refused.
    pub without: u64,
}

/// An open event of one thread.
#[derive(Debug)]
struct ThreadEvent {
    ring: Ring,
    fd: OwnedFd,
    /// The group's leader; some events need it to stay open.
    _leader: Option<OwnedFd>,
}

/// Samples the loads and stores of this process' threads.
#[derive(Debug)]
pub struct Perf {
    events: Vec<Event>,
    period: u64,
    /// The open events of each thread.
    threads: BTreeMap<i32, Vec<ThreadEvent>>,
    /// Threads that were refused, and the time of the refusal.
    refused: BTreeMap<i32, Instant>,
    /// The most threads that are sampled.
    most: usize,
    counts: PerfCounts,
    bytes: Vec<u8>,
}

impl Perf {
    /// Samples one in `period` accesses of all present threads.
    ///
    /// # Errors
    /// [`PerfError`]: there is no sampling unit, or this user may not use it.
    pub fn open(period: u64) -> Result<Perf, PerfError> {
        let events = events::find_events(Path::new(DEVICES));
        if events.is_empty() { Err(PerfError::None) } else { Perf::of(events, period) }
    }

    /// Samples these events.
    ///
    /// # Errors
    /// As [`open`](Perf::open).
    pub fn of(events: Vec<Event>, period: u64) -> Result<Perf, PerfError> {
        let most = most_threads(&events, rustix::process::getrlimit(Resource::Nofile).current);
        let (threads, refused) = (BTreeMap::new(), BTreeMap::new());
        let mut perf =
            Perf { events, period, threads, refused, most, counts: PerfCounts::default(), bytes: Vec::new() };
        // If this thread is refused, all are.
        let own = rustix::thread::gettid().as_raw_pid();
        let sampled = perf.open_thread(own)?;
        perf.threads.insert(own, sampled);
        perf.follow();
        Ok(perf)
    }

    fn open_thread(&self, thread: i32) -> Result<Vec<ThreadEvent>, PerfError> {
        self.events.iter().map(|event| open_event(event, self.period, thread)).collect()
    }

    /// Starts to sample new threads, and closes the events of threads that have ended.
    pub fn follow(&mut self) {
        let Ok(listed) = std::fs::read_dir("/proc/self/task") else { return };
        let names = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let there: Vec<i32> = names.collect();
        self.threads.retain(|thread, _| there.contains(thread));
        self.refused.retain(|thread, since| there.contains(thread) && since.elapsed() < RETRY_AFTER);
        self.counts.without = 0;
        for thread in there {
            if self.threads.contains_key(&thread) {
                continue;
            }
            if self.threads.len() >= self.most || self.refused.contains_key(&thread) {
                self.counts.without += 1;
                continue;
            }
            match self.open_thread(thread) {
                Ok(sampled) => drop(self.threads.insert(thread, sampled)),
                // Covers also a thread that has ended meanwhile.
                Err(_) => {
                    self.refused.insert(thread, Instant::now());
                    self.counts.without += 1;
                }
            }
        }
    }

    /// Passes each sample taken since the last call to `each`, and frees its space in the ring.
    pub fn read(&mut self, mut each: impl FnMut(Sample)) {
        for sampled in self.threads.values_mut().flatten() {
            self.bytes.clear();
            self.counts.garbage += u64::from(!sampled.ring.take(&mut self.bytes));
            for record in Records::new(&self.bytes) {
                match record {
                    Record::Sample(sample) => {
                        self.counts.samples += 1;
                        each(sample);
                    }
                    Record::Lost(samples) => self.counts.lost = self.counts.lost.saturating_add(samples),
                    Record::Throttle => self.counts.throttled += 1,
                    Record::Garbage => self.counts.garbage += 1,
                    Record::Other(_) => (),
                }
            }
        }
    }

    /// Returns the period: one in this many accesses is sampled.
    #[must_use]
    pub fn period(&self) -> u64 {
        self.period
    }

    /// Samples one in `period` accesses from now on. Where the system refuses the change, the old period stays.
    pub fn set_period(&mut self, period: u64) {
        for (event, sampled) in self.threads.values().flat_map(|sampled| self.events.iter().cycle().zip(sampled)) {
            let period = event.period(period);
            // SAFETY: the kernel reads one argument, which lives for the call.
            unsafe { libc::ioctl(sampled.fd.as_raw_fd(), ioctl_number(SET_PERIOD), &raw const period) };
        }
        self.period = period;
    }

    /// Returns the counts of samples so far.
    #[must_use]
    pub fn counts(&self) -> PerfCounts {
        self.counts
    }

    /// Returns the names of the sampled events, for messages.
    #[must_use]
    pub fn events(&self) -> String {
        self.events.iter().map(Event::name).collect::<Vec<_>>().join(", ")
    }
}

/// Returns how many threads may be sampled so that the program keeps enough of its `descriptors`. Without a descriptor
/// limit only [`MAX_THREADS`] applies.
fn most_threads(events: &[Event], descriptors: Option<u64>) -> usize {
    let each: u64 = events.iter().map(|event| 1 + u64::from(event.leader().is_some())).sum();
    let most = descriptors.map_or(u64::MAX, |descriptors| descriptors / DESCRIPTOR_SHARE / each.max(1));
    // The thread that opens the sampling is sampled in any case.
    usize::try_from(most).unwrap_or(usize::MAX).clamp(1, MAX_THREADS)
}

fn open_event(event: &Event, period: u64, thread: i32) -> Result<ThreadEvent, PerfError> {
    let opened = match open_group(event, period, EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR, thread) {
        // A unit that cannot exclude the kernel (IBS) samples it, if this user may see it.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open_group(event, period, 0, thread),
        opened => opened,
    };
    let (leader, fd) = opened.map_err(|source| PerfError::Open { event: event.name().to_string(), source })?;
    let ring = Ring::map(&fd).map_err(|source| PerfError::Ring { event: event.name().to_string(), source })?;
    Ok(ThreadEvent { ring, fd, _leader: leader })
}

/// Opens an event after the leader that it needs.
fn open_group(event: &Event, period: u64, exclude: u64, thread: i32) -> io::Result<(Option<OwnedFd>, OwnedFd)> {
    let (leader, event) = attributes(event, period, exclude);
    let leader = leader.map(|leader| open(&leader, thread, None)).transpose()?;
    let fd = open(&event, thread, leader.as_ref())?;
    Ok((leader, fd))
}

type Attribute = [u64; ATTRIBUTE_BYTES / 8];

/// Returns the attributes of the leader, which only counts, and of the event. Both exclude the same: a user who may not
/// see the kernel is refused if either does not exclude it.
fn attributes(event: &Event, period: u64, exclude: u64) -> (Option<Attribute>, Attribute) {
    (event.leader().map(|leader| attribute(leader, 0, exclude)), attribute(event, period, exclude))
}

/// Builds a `struct perf_event_attr`, in words of 8 bytes. Without a period the event only counts.
fn attribute(event: &Event, period: u64, exclude: u64) -> Attribute {
    let mut words = [0; ATTRIBUTE_BYTES / 8];
    words[0] = u64::from(event.kind) | (ATTRIBUTE_BYTES as u64) << 32;
    words[1] = event.config[0];
    if period > 0 {
        words[2] = event.period(period);
        words[3] = SAMPLE_TYPE;
    }
    words[5] = exclude | u64::from(event.precise) << PRECISE_SHIFT;
    (words[7], words[8]) = (event.config[1], event.config[2]);
    words
}

fn open(attribute: &[u64], thread: i32, leader: Option<&OwnedFd>) -> io::Result<OwnedFd> {
    open_on(attribute, thread, -1, leader)
}

/// Opens an event of a thread, or with -1 of a processor.
fn open_on(attribute: &[u64], thread: i32, cpu: i32, leader: Option<&OwnedFd>) -> io::Result<OwnedFd> {
    let group = leader.map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: the kernel reads as many bytes of the attribute as its size field says; it returns a new descriptor or
    // none.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attribute.as_ptr(), thread, cpu, group, CLOEXEC) };
    match i32::try_from(fd) {
        // SAFETY: the descriptor is new, so no other code owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
    use telpher_mem::Pages;

    /// Opens the page-fault event. Prints a skip message and returns `None` if this user may not.
    fn faults(test: &str) -> Option<Perf> {
        match Perf::of(vec![Event::page_faults()], 1) {
            Ok(perf) => Some(perf),
            Err(PerfError::Open { source, .. })
                if matches!(source.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::ENOSYS | libc::ENOENT)) =>
            {
                let _ = std::io::Write::write_all(
                    &mut std::io::stderr(),
                    format!("SKIPPED: {test}: no perf events for this user: {source}\n").as_bytes(),
                );
                None
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn sampled(perf: &mut Perf, pages: &Pages, count: u64) -> Vec<u64> {
        let (mut found, first) = (Vec::new(), pages.address());
        perf.read(|sample| {
            assert_eq!(sample.pid, std::process::id());
            if (first..first + count * 4096).contains(&sample.address) {
                found.push((sample.address - first) / 4096);
            }
        });
        found
    }

    #[test]
    fn page_fault_samples_are_read_as_written() {
        let Some(mut perf) = faults("page_fault_samples_are_read_as_written") else { return };
        // More samples than a ring holds. The ring is read now and then, so it wraps around.
        let pages = Pages::new(4000).unwrap();
        let mut found = Vec::new();
        for page in 0..4000 {
            pages.poke(page * 4096, &[1]);
            if page % 300 == 299 {
                found.extend(sampled(&mut perf, &pages, 4000));
            }
        }
        found.extend(sampled(&mut perf, &pages, 4000));
        let counts = perf.counts();
        // A fault that is retried is reported again. The kernel may lower the sample rate, and reports that.
        found.dedup();
        assert!(found.is_sorted() && found.len() > 300, "{found:?}");
        assert!(found.len() == 4000 || counts.throttled > 0, "{} of 4000: {counts:?}", found.len());
        // Samples lost on other tests' threads are counted, too.
        assert_eq!(counts.garbage, 0, "{counts:?}");
    }

    #[test]
    fn samples_without_room_are_counted_as_lost() {
        let Some(mut perf) = faults("samples_without_room_are_counted_as_lost") else { return };
        let pages = Pages::new(4001).unwrap();
        (0..4000).for_each(|page| pages.poke(page * 4096, &[1]));
        let before = sampled(&mut perf, &pages, 4001);
        // The ring keeps the first samples in order, as many as it holds.
        assert!(before.is_sorted() && (300..=1024).contains(&before.len()), "{before:?}");
        // The kernel reports the loss with the next sample.
        pages.poke(4000 * 4096, &[1]);
        let last = sampled(&mut perf, &pages, 4001);
        assert!(last.iter().all(|&page| page == 4000), "{last:?}");
        let counts = perf.counts();
        let lost = counts.lost + before.len() as u64 >= 4000;
        assert!(lost || counts.throttled > 0, "{} before: {counts:?}", before.len());
    }

    #[test]
    fn new_threads_are_sampled_and_ended_threads_dropped() {
        let Some(mut perf) = faults("new_threads_are_sampled_and_ended_threads_dropped") else { return };
        let pages = Pages::new(64).unwrap();
        let (go, done, thread) = (AtomicBool::new(false), AtomicBool::new(false), AtomicI32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SeqCst for all: each store allows one step of the other thread.
                thread.store(rustix::thread::gettid().as_raw_pid(), Ordering::SeqCst);
                while !go.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                (0..64).for_each(|page| pages.poke(page * 4096, &[1]));
                done.store(true, Ordering::SeqCst);
                while go.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
            });
            while !perf.threads.contains_key(&thread.load(Ordering::SeqCst)) {
                perf.follow();
            }
            go.store(true, Ordering::SeqCst);
            while !done.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            assert_eq!(sampled(&mut perf, &pages, 64), (0..64).collect::<Vec<_>>());
            go.store(false, Ordering::SeqCst);
        });
        // A joined thread stays in the list for a moment.
        while perf.threads.contains_key(&thread.load(Ordering::SeqCst)) {
            perf.follow();
        }
        assert!(perf.threads.contains_key(&rustix::thread::gettid().as_raw_pid()));
    }

    /// Runs `run` while another thread exists.
    fn with_other_thread(run: impl FnOnce(i32)) {
        let (thread, over) = (AtomicI32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SeqCst for all: each store allows one step of the other thread.
                thread.store(rustix::thread::gettid().as_raw_pid(), Ordering::SeqCst);
                while !over.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
            });
            while thread.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(thread.load(Ordering::SeqCst))));
            over.store(true, Ordering::SeqCst);
            ran.unwrap();
        });
    }

    /// An event that the kernel refuses for every thread.
    fn none() -> Event {
        let mut event = Event::page_faults();
        event.kind = 0x7fff;
        event
    }

    #[test]
    fn a_refused_thread_is_not_retried_for_a_while() {
        let Some(mut perf) = faults("a_refused_thread_is_not_retried_for_a_while") else { return };
        with_other_thread(|thread| {
            perf.events = vec![none()];
            perf.follow();
            assert!(perf.refused.contains_key(&thread) && perf.counts().without >= 1);
            perf.events = vec![Event::page_faults()];
            perf.follow();
            assert!(!perf.threads.contains_key(&thread) && perf.counts().without >= 1);
            let since = Instant::now().checked_sub(RETRY_AFTER).expect("a machine that has run for so long");
            perf.refused.insert(thread, since);
            perf.follow();
            assert!(perf.threads.contains_key(&thread) && !perf.refused.contains_key(&thread));
        });
    }

    #[test]
    fn threads_beyond_the_bound_are_not_opened() {
        let Some(mut perf) = faults("threads_beyond_the_bound_are_not_opened") else { return };
        with_other_thread(|thread| {
            perf.threads.retain(|&thread, _| thread == rustix::thread::gettid().as_raw_pid());
            perf.most = 1;
            // If a further thread were opened, it would be refused and recorded.
            perf.events = vec![none()];
            perf.follow();
            assert!(!perf.refused.contains_key(&thread) && perf.threads.len() == 1 && perf.counts().without >= 1);
            perf.most = usize::MAX;
            perf.follow();
            assert!(perf.refused.contains_key(&thread));
        });
    }

    #[test]
    fn sampling_leaves_the_program_enough_descriptors() {
        let event = Event::page_faults;
        let two = [event(), Event::with_leader(event(), event())];
        let one = |limit| most_threads(&two[..1], limit);
        assert_eq!([Some(1024), Some(256), Some(0), None].map(one), [128, 32, 1, 256]);
        assert_eq!([Some(1024), Some(16), Some(u64::MAX)].map(|limit| most_threads(&two, limit)), [42, 1, 256]);
    }

    #[test]
    fn a_leader_excludes_the_same_and_only_counts() {
        let mut event = Event::with_leader(Event::page_faults(), Event::page_faults());
        event.precise = 2;
        let (leader, event) = attributes(&event, 1000, EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR);
        let leader = leader.unwrap();
        assert_eq!((leader[2], leader[3], leader[5]), (0, 0, EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR));
        let precise = 2 << PRECISE_SHIFT;
        assert_eq!((event[2], event[3], event[5]), (1000, SAMPLE_TYPE, leader[5] | precise));
        assert!(attributes(&Event::page_faults(), 1000, 0).0.is_none());
    }

    /// A forked child does not inherit the mapping. What it maps at that address must stay.
    #[test]
    fn a_forked_child_neither_reads_a_ring_nor_unmaps_it() {
        let Some(mut perf) = faults("a_forked_child_neither_reads_a_ring_nor_unmaps_it") else { return };
        let pages = Pages::new(8).unwrap();
        (0..8).for_each(|page| pages.poke(page * 4096, &[1]));
        let own = rustix::thread::gettid().as_raw_pid();
        let [sampled] = &mut perf.threads.get_mut(&own).unwrap()[..] else { panic!("one event") };
        let mut bytes = Vec::with_capacity(ring::DATA_BYTES);
        // SAFETY: the child maps a page, reads from a ring that does nothing in a child, into memory allocated
        // beforehand, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_well = sampled.ring.is_left_alone(&mut bytes);
            // SAFETY: ends the child without running any code of the parent.
            unsafe { libc::_exit(i32::from(!is_well)) };
        }
        assert!(child > 0, "fork: {}", io::Error::last_os_error());
        let mut status = 0;
        // SAFETY: our own child, and a local variable for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
        assert!(sampled.ring.take(&mut bytes) && !bytes.is_empty(), "the parent's ring is unchanged");
    }

    #[test]
    fn a_longer_period_takes_fewer_samples() {
        let Some(mut perf) = faults("a_longer_period_takes_fewer_samples") else { return };
        perf.set_period(10);
        let pages = Pages::new(400).unwrap();
        (0..400).for_each(|page| pages.poke(page * 4096, &[1]));
        let found = sampled(&mut perf, &pages, 400).len();
        assert!((30..=60).contains(&found), "{found}");
    }

    #[test]
    fn a_missing_unit_is_reported_with_advice() {
        let mut event = Event::page_faults();
        event.kind = 0x7fff;
        let none = Perf::of(vec![event], 1).unwrap_err();
        assert!(matches!(&none, PerfError::Open { source, .. } if source.raw_os_error().is_some()));
        assert!(none.to_string().contains("perf_event_paranoid"));
        if events::find_events(Path::new(DEVICES)).is_empty() {
            let message = Perf::open(1000).unwrap_err().to_string();
            assert!(message.contains("no unit") && message.contains("another source"), "{message}");
        }
    }
}
