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

use crate::tree::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use telpher_abi::perfmon::{self, PmuConfig};
use telpher_os::monotonic_ns;
use telpher_vdev_wire::message::{EVENT_SECRET, FIRST_PMU_TYPE, PERF_ATTRIBUTES};

/// Marks the numbers of events among those of open files, in the host's epoll instance.
pub(super) const EVENT: u64 = 1 << 63;

/// Values of read(2). Source: UAPI, `enum perf_event_read_format`.
const TOTAL_TIME_ENABLED: u64 = 1 << 0;
const TOTAL_TIME_RUNNING: u64 = 1 << 1;
const ID: u64 = 1 << 2;
const GROUP: u64 = 1 << 3;
const LOST: u64 = 1 << 4;

/// Flags of perf_event_open(). Source: UAPI, PERF_FLAG_*.
pub(super) const FD_NO_GROUP: u64 = 1 << 0;
pub(super) const FD_CLOEXEC: u64 = 1 << 3;

/// Requests of ioctl(2). Source: UAPI, PERF_EVENT_IOC_*.
pub(super) const ENABLE: u64 = 0x2400;
pub(super) const DISABLE: u64 = 0x2401;
pub(super) const REFRESH: u64 = 0x2402;
pub(super) const RESET: u64 = 0x2403;
pub(super) const PERIOD: u64 = 0x4008_2404;
pub(super) const GET_ID: u64 = 0x8008_2407;
/// The argument that addresses the whole group.
pub(super) const WHOLE_GROUP: u64 = 1;

/// The number of an event whose other end has hung up; `None` for a file's.
pub(super) fn number_of(data: u64) -> Option<u64> {
    (data & EVENT != 0).then_some(data & !EVENT)
}

/// The attributes that matter to a PMU without sampling.
pub(super) struct Attributes {
    pub(super) device: u32,
    pub(super) config: PmuConfig,
    pub(super) read_format: u64,
    pub(super) disabled: bool,
}

impl Attributes {
    /// Parses `struct perf_event_attr`. Source: UAPI.
    pub(super) fn parse(bytes: &[u8; PERF_ATTRIBUTES]) -> Result<Attributes, Errno> {
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
    pub(super) open: BTreeMap<u64, Event>,
    /// The number of the latest event.
    pub(super) last: u64,
}

/// An open event.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) device: u32,
    pub(super) config: PmuConfig,
    pub(super) counted: Vec<perfmon::Event>,
    pub(super) read_format: u64,
    /// The number of the group's leader, which may be its own.
    pub(super) leader: u64,
    pub(super) enabled: bool,
    /// While it counts: the total at the beginning, and the time.
    pub(super) since: Option<(u64, u64)>,
    /// What it counted before, and for how long, in nanoseconds.
    pub(super) count: u64,
    pub(super) time_ns: u64,
    /// What processes that hold the event's descriptor know.
    pub(super) secret: [u8; EVENT_SECRET],
    /// The host's end of the socket; a hang-up means that the event was closed.
    pub(super) end: OwnedFd,
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
    pub(super) fn event(&mut self, number: u64) -> Result<&mut Event, Errno> {
        self.open.get_mut(&number).ok_or(Errno::BADF)
    }

    /// The event that a process names with its secret. A number alone is easily guessed.
    ///
    /// # Errors
    /// EBADF if it is closed, or has another secret.
    pub(super) fn named(&mut self, number: u64, secret: &[u8]) -> Result<&mut Event, Errno> {
        self.event(number).and_then(|event| if event.secret == secret { Ok(event) } else { Err(Errno::BADF) })
    }

    /// The numbers of a group, its leader first.
    pub(super) fn group(&self, leader: u64) -> Vec<u64> {
        let siblings = self.open.iter().filter(|(number, event)| event.leader == leader && **number != leader);
        [leader].into_iter().chain(siblings.map(|(number, _)| *number)).collect()
    }

    /// Starts and stops the events of a group: one counts while it and its leader are enabled.
    pub(super) fn settle(&mut self, leader: u64, total: impl Fn(&Event) -> u64) {
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
    pub(super) fn read(&self, number: u64, total: impl Fn(&Event) -> u64) -> Result<Vec<u8>, Errno> {
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
