//! perf_event_open(2) of the devices' PMUs, and read(2) and ioctl(2) of its events.

use super::files::lock;
use super::perf::{
    Attributes, DISABLE, ENABLE, EVENT, Event, FD_CLOEXEC, FD_NO_GROUP, GET_ID, PERIOD, REFRESH, RESET, WHOLE_GROUP,
};
use super::{Host, bind};
use crate::tree::Errno;
use rustix::event::epoll;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType};
use rustix::rand::{GetRandomFlags, getrandom};
use std::os::fd::OwnedFd;
use telpher_abi::perfmon::PmuConfig;
use telpher_model::{QueueCounts, Totals, events_of};
use telpher_vdev_wire::message::{EVENT_SECRET, PerfControl, PerfOpen};
use telpher_vdev_wire::name::PerfName;

impl Host {
    /// Opens an event. Closing the last copy of the returned descriptor closes it.
    ///
    /// # Errors
    /// The driver's: EINVAL for a process, sampling, or a group that has more events than the device has counters;
    /// ENOENT for a type that is no device's. EOPNOTSUPP for events and filters that the model does not count. EBADF
    /// for a leader that is closed, or whose secret is not named.
    pub(super) fn perf_open(&self, open: &PerfOpen) -> Result<OwnedFd, Errno> {
        let attributes = Attributes::parse(&open.attributes)?;
        let (counters, version) = lock(&self.kernel).counters(attributes.device).ok_or(Errno::NOENT)?;
        // The PMU has no context of tasks, and needs a processor.
        if open.process != -1 || open.cpu < 0 || open.flags & !(FD_NO_GROUP | FD_CLOEXEC) != 0 {
            return Err(Errno::INVAL);
        }
        let counted = events_of(&attributes.config, version).ok_or(Errno::OPNOTSUPP)?;
        let (end, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let mut secret = [0; EVENT_SECRET];
        if getrandom(&mut secret, GetRandomFlags::empty())? != secret.len() {
            return Err(Errno::AGAIN);
        }
        rustix::net::send(&end, &secret, SendFlags::NOSIGNAL)?;
        // Nothing that a process sends to the event waits here, so closing the end closes nothing else.
        rustix::net::shutdown(&end, Shutdown::Read)?;
        let mut perf = lock(&self.perf);
        let number = perf.last + 1;
        let leader = if open.leader == 0 { number } else { open.leader };
        if open.leader != 0 {
            let of = perf.named(leader, &open.leader_secret)?;
            let (of_leader, of_device) = (of.leader, of.device);
            let group = perf.group(leader);
            // A sibling cannot lead, and a group is of one device.
            if of_leader != leader || of_device != attributes.device || group.len() >= usize::from(counters) {
                return Err(Errno::INVAL);
            }
        }
        bind(&theirs, |random| PerfName(number).to_text(&self.name, random))?;
        let interest = epoll::EventFlags::HUP;
        epoll::add(&self.ends, &end, epoll::EventData::new_u64(EVENT | number), interest)?;
        let Attributes { device, config, read_format, disabled } = attributes;
        let enabled = !disabled;
        let state = Event {
            device,
            config,
            counted,
            read_format,
            leader,
            enabled,
            since: None,
            count: 0,
            time_ns: 0,
            secret,
            end,
        };
        perf.last = number;
        perf.open.insert(number, state);
        perf.settle(leader, |event| self.total(event));
        Ok(theirs)
    }

    /// What read(2) of an event returns.
    ///
    /// # Errors
    /// EBADF if it is closed, or the secret is not its own.
    pub(super) fn perf_read(&self, number: u64, secret: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut perf = lock(&self.perf);
        perf.named(number, secret)?;
        perf.read(number, |event| self.total(event))
    }

    /// Handles ioctl(2) of an event.
    ///
    /// # Errors
    /// As for [`perf_read`](Host::perf_read); ENOTTY for an unknown request, EINVAL for those that need sampling.
    pub(super) fn perf_control(&self, number: u64, request: u64, control: &PerfControl) -> Result<u64, Errno> {
        let mut perf = lock(&self.perf);
        let leader = perf.named(number, &control.secret)?.leader;
        let addressed = if control.argument & WHOLE_GROUP != 0 { perf.group(leader) } else { vec![number] };
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
