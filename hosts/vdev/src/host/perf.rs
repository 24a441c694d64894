//! Events of the devices' perf PMUs, as perf_event_open(2) has them.
//!
//! ```text
//! perf_event_open ──► attributes ──► PmuConfig ──► Event ──► socket for the program
//! read ──► totals of open and closed files ──► the difference since it was enabled ──► read_format
//! ioctl ──► enable, disable, reset, of one event or of its group
//! ```
//!
//! An event counts for the whole device, as the driver's does, and also what happens in processes that are started
//! later. Each event has a counter of its own: none is ever multiplexed. Sources: Linux 6.12,
//! `drivers/dma/idxd/perfmon.c`, `kernel/events/core.c`; UAPI `linux/perf_event.h`.

use super::Host;
use super::files::lock;
use crate::tree::Errno;
use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use telpher_abi::perfmon::{self, PmuConfig};
use telpher_model::{QueueCounts, Totals, events_of};
use telpher_os::monotonic_ns;
use telpher_vdev_wire::message::{FIRST_PMU_TYPE, PERF_ATTRIBUTES, PerfOpen};
use telpher_vdev_wire::name::PerfName;

/// Marks the numbers of events among those of open files, in the host's epoll instance.
const EVENT: u64 = 1 << 63;

/// Values of read(2). Source: UAPI, `enum perf_event_read_format`.
const TOTAL_TIME_ENABLED: u64 = 1 << 0;
const TOTAL_TIME_RUNNING: u64 = 1 << 1;
const ID: u64 = 1 << 2;
const GROUP: u64 = 1 << 3;
const LOST: u64 = 1 << 4;

/// Flags of perf_event_open(). Source: UAPI, PERF_FLAG_*.
const FD_NO_GROUP: u64 = 1 << 0;
const FD_CLOEXEC: u64 = 1 << 3;

/// Requests of ioctl(2). Source: UAPI, PERF_EVENT_IOC_*.
const ENABLE: u64 = 0x2400;
const DISABLE: u64 = 0x2401;
const REFRESH: u64 = 0x2402;
const RESET: u64 = 0x2403;
const PERIOD: u64 = 0x4008_2404;
const GET_ID: u64 = 0x8008_2407;
/// The argument that addresses the whole group.
const WHOLE_GROUP: u64 = 1;

/// The number of an event whose other end has hung up; `None` for a file's.
pub(super) fn number_of(data: u64) -> Option<u64> {
    (data & EVENT != 0).then_some(data & !EVENT)
}

/// The attributes that matter to a PMU without sampling.
struct Attributes {
    device: u32,
    config: PmuConfig,
    read_format: u64,
    disabled: bool,
}

impl Attributes {
    /// Parses `struct perf_event_attr`. Source: UAPI.
    fn parse(bytes: &[u8; PERF_ATTRIBUTES]) -> Result<Attributes, Errno> {
        let words = bytes.as_chunks::<8>().0;
        let word = |at: usize| u64::from_ne_bytes(words[at / 8]);
        // The first word has the type and the size.
        let kind = u32::try_from(word(0) & 0xffff_ffff).unwrap_or_default();
        let device = kind.checked_sub(FIRST_PMU_TYPE).ok_or(Errno::NOENT)?;
        let (sample_period, read_format, flags) = (word(16), word(32), word(40));
        // exclude_user, _kernel, _hv, _idle; _host, _guest: a device has no such modes. The driver says so with
        // PERF_PMU_CAP_NO_EXCLUDE.
        const EXCLUDES: u64 = 0xf << 4 | 0x3 << 19;
        let known = TOTAL_TIME_ENABLED | TOTAL_TIME_RUNNING | ID | GROUP | LOST;
        if sample_period != 0 || read_format & !known != 0 || flags & EXCLUDES != 0 {
            return Err(Errno::INVAL);
        }
        let config = PmuConfig::decode(word(8), word(56));
        Ok(Attributes { device, config, read_format, disabled: flags & 1 != 0 })
    }
}

/// The open events.
#[derive(Debug, Default)]
pub(super) struct PerfEvents {
    open: BTreeMap<u64, Event>,
    last: u64,
}

/// An open event.
#[derive(Debug)]
struct Event {
    device: u32,
    config: PmuConfig,
    counted: Vec<perfmon::Event>,
    read_format: u64,
    /// The number of the group's leader, which may be its own.
    leader: u64,
    enabled: bool,
    /// While it counts: the total at the beginning, and the time.
    since: Option<(u64, u64)>,
    /// What it counted before, and for how long, in nanoseconds.
    count: u64,
    time_ns: u64,
    /// The host's end of the socket; a hang-up means that the event was closed.
    end: OwnedFd,
}

impl Event {
    fn value(&self, total: u64) -> u64 {
        self.count.saturating_add(self.since.map_or(0, |(base, _)| total.saturating_sub(base)))
    }

    fn time(&self, now: u64) -> u64 {
        self.time_ns.saturating_add(self.since.map_or(0, |(_, since)| now.saturating_sub(since)))
    }
}

impl PerfEvents {
    fn event(&mut self, number: u64) -> Result<&mut Event, Errno> {
        self.open.get_mut(&number).ok_or(Errno::BADF)
    }

    /// The numbers of a group, its leader first.
    fn group(&self, leader: u64) -> Vec<u64> {
        let siblings = self.open.iter().filter(|(number, event)| event.leader == leader && **number != leader);
        [leader].into_iter().chain(siblings.map(|(number, _)| *number)).collect()
    }

    /// Starts and stops the events of a group: one counts while it and its leader are enabled.
    fn settle(&mut self, leader: u64, total: impl Fn(&Event) -> u64) {
        let is_led = self.open.get(&leader).is_some_and(|event| event.enabled);
        let now = monotonic_ns();
        for number in self.group(leader) {
            let Some(event) = self.open.get_mut(&number) else { continue };
            let counts = is_led && event.enabled;
            if counts && event.since.is_none() {
                event.since = Some((total(event), now));
            } else if !counts && event.since.is_some() {
                (event.count, event.time_ns) = (event.value(total(event)), event.time(now));
                event.since = None;
            }
        }
    }

    /// What read(2) of an event returns. Source: perf_event_open(2), "Reading results".
    fn read(&self, number: u64, total: impl Fn(&Event) -> u64) -> Result<Vec<u8>, Errno> {
        let event = self.open.get(&number).ok_or(Errno::BADF)?;
        let format = event.read_format;
        let time = event.time(monotonic_ns());
        let mut words = Vec::new();
        let mut add = |wanted: u64, word: u64| {
            if wanted == 0 || format & wanted != 0 {
                words.push(word);
            }
        };
        let group = if format & GROUP != 0 { self.group(number) } else { vec![number] };
        let values = group.iter().filter_map(|number| Some((*number, self.open.get(number)?)));
        let values: Vec<(u64, u64)> = values.map(|(number, event)| (number, event.value(total(event)))).collect();
        if format & GROUP != 0 {
            add(0, values.len() as u64);
            add(TOTAL_TIME_ENABLED, time);
            add(TOTAL_TIME_RUNNING, time);
            for (number, value) in values {
                add(0, value);
                add(ID, number);
                add(LOST, 0);
            }
        } else {
            for (number, value) in values {
                add(0, value);
                add(TOTAL_TIME_ENABLED, time);
                add(TOTAL_TIME_RUNNING, time);
                add(ID, number);
                add(LOST, 0);
            }
        }
        Ok(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }
}

impl Host {
    /// Opens an event. Closing the last copy of the returned descriptor closes it.
    ///
    /// # Errors
    /// The driver's: EINVAL for a process, sampling, or a group that has more events than the device has counters;
    /// ENOENT for a type that is no device's. EOPNOTSUPP for events and filters that the model does not count.
    pub(super) fn perf_open(&self, open: &PerfOpen) -> Result<OwnedFd, Errno> {
        let attributes = Attributes::parse(&open.attributes)?;
        let counters = lock(&self.kernel).counters(attributes.device).ok_or(Errno::NOENT)?;
        // The PMU has no context of tasks, and needs a processor.
        if open.process != -1 || open.cpu < 0 || open.flags & !(FD_NO_GROUP | FD_CLOEXEC) != 0 {
            return Err(Errno::INVAL);
        }
        let counted = events_of(&attributes.config).ok_or(Errno::OPNOTSUPP)?;
        let (end, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let mut perf = lock(&self.perf);
        let number = perf.last + 1;
        let leader = if open.leader == 0 { number } else { open.leader };
        if leader != number {
            let group = perf.group(leader);
            let of = perf.event(leader)?;
            // A sibling cannot lead, and a group is of one device.
            if of.leader != leader || of.device != attributes.device || group.len() >= usize::from(counters) {
                return Err(Errno::INVAL);
            }
        }
        let name = SocketAddrUnix::new_abstract_name(PerfName(number).to_text(&self.name).as_bytes())?;
        rustix::net::bind(&theirs, &name)?;
        let interest = epoll::EventFlags::HUP;
        epoll::add(&self.ends, &end, epoll::EventData::new_u64(EVENT | number), interest)?;
        let Attributes { device, config, read_format, disabled } = attributes;
        let enabled = !disabled;
        let event =
            Event { device, config, counted, read_format, leader, enabled, since: None, count: 0, time_ns: 0, end };
        perf.last = number;
        perf.open.insert(number, event);
        perf.settle(leader, |event| self.total(event));
        Ok(theirs)
    }

    /// What read(2) of an event returns.
    ///
    /// # Errors
    /// EBADF if it is closed.
    pub(super) fn perf_read(&self, number: u64) -> Result<Vec<u8>, Errno> {
        lock(&self.perf).read(number, |event| self.total(event))
    }

    /// Handles ioctl(2) of an event.
    ///
    /// # Errors
    /// ENOTTY for an unknown request, EINVAL for those that need sampling.
    pub(super) fn perf_control(&self, number: u64, request: u64, argument: u64) -> Result<u64, Errno> {
        let mut perf = lock(&self.perf);
        let leader = perf.event(number)?.leader;
        let addressed = if argument & WHOLE_GROUP != 0 { perf.group(leader) } else { vec![number] };
        match request {
            ENABLE | DISABLE => {
                for number in addressed {
                    perf.event(number)?.enabled = request == ENABLE;
                }
                perf.settle(leader, |event| self.total(event));
                Ok(0)
            }
            RESET => {
                for number in addressed {
                    let event = perf.event(number)?;
                    let total = self.total(event);
                    event.count = 0;
                    // The times go on.
                    event.since = event.since.map(|(_, since)| (total, since));
                }
                Ok(0)
            }
            GET_ID => Ok(number),
            REFRESH | PERIOD => Err(Errno::INVAL),
            _ => Err(Errno::NOTTY),
        }
    }

    /// Closes an event. The siblings of a leader go on, each for itself.
    pub(super) fn perf_release(&self, number: u64) {
        let mut perf = lock(&self.perf);
        let siblings = perf.group(number);
        let Some(closed) = perf.open.remove(&number) else { return };
        let _ = epoll::delete(&self.ends, &closed.end);
        if closed.leader == number {
            for sibling in siblings.into_iter().skip(1) {
                if let Some(event) = perf.open.get_mut(&sibling) {
                    event.leader = sibling;
                    // What the leader had stopped stays so.
                    event.enabled &= closed.enabled;
                }
            }
        }
    }

    /// How often the events that an event counts have happened since the start.
    fn total(&self, event: &Event) -> u64 {
        let PmuConfig { queues, engines, .. } = event.config;
        let is_counted = |device: u32, wq: u32| {
            let passes = queues == 0 || queues.checked_shr(wq).is_some_and(|queues| queues & 1 == 1);
            device == event.device && passes
        };
        let of = |totals: &Totals, wq: u32, dedicated: bool| {
            let counts = QueueCounts { totals, wq, dedicated };
            event.counted.iter().fold(0, |sum: u64, counted| sum.saturating_add(counts.event(*counted, engines)))
        };
        let files = lock(&self.files);
        let open: u64 =
            files.open.values().filter(|file| is_counted(file.info.device, file.info.wq)).fold(0, |sum: u64, file| {
                sum.saturating_add(of(&file.lease.counts.totals(), file.info.wq, file.info.dedicated))
            });
        let closed = files.closed.iter().filter(|((device, wq, _), _)| is_counted(*device, *wq));
        closed.fold(open, |sum, ((_, wq, dedicated), totals)| sum.saturating_add(of(totals, *wq, *dedicated)))
    }
}
