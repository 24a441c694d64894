//! The route of one thread's transfers: the CPU, or a channel to a queue.

use super::BenchError;
use super::measure::{Clock, Latencies, Window, group_for, to_ns, window};
use super::results::{Breakdown, Route, Runner};
use super::submitter::{BufferChannel, OperationSlots};
use crate::ffi;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use telpher_mem::PoolBuffer;
use telpher_mover::{ChannelPolicy, Finished, Hint, Opcode, Via};
use telpher_portal::Portal;

/// A route for consecutive transfers.
pub(crate) enum CopyRoute {
    /// This thread executes.
    Cpu(Hint),
    /// A device executes.
    Device(Box<DeviceRoute>),
}

/// The results of latency windows.
#[derive(Clone, Debug)]
pub(crate) struct Timings {
    /// From preparation until the completion is seen.
    pub total: Latencies,
    /// Prepare, submit and wait; only if operations run one at a time.
    pub parts: Option<[Latencies; 3]>,
}

impl Timings {
    /// Adds the timings of another window or thread.
    pub(crate) fn merge(&mut self, other: &Timings) {
        self.total.merge(&other.total);
        if let (Some(mine), Some(theirs)) = (&mut self.parts, &other.parts) {
            mine.iter_mut().zip(theirs).for_each(|(m, t)| m.merge(t));
        }
    }

    /// Returns the medians of the parts; `None` if none were measured.
    pub(crate) fn breakdown(&self, clock: &Clock) -> Option<Breakdown> {
        let [prepare, submit, wait] = self.parts.as_ref()?;
        let median = |l: &Latencies| l.percentile(clock, 0.5);
        Some(Breakdown { prepare_ns: median(prepare)?, submit_ns: median(submit)?, wait_ns: median(wait)? })
    }
}

impl CopyRoute {
    /// Returns the name for errors.
    fn name(&self) -> &'static str {
        match self {
            CopyRoute::Cpu(_) => "CPU",
            CopyRoute::Device(_) => "device",
        }
    }

    /// Returns the maximum number of transfers in flight for this work.
    pub(crate) fn in_flight(&self, work: &OperationSlots) -> u32 {
        match self {
            CopyRoute::Cpu(_) => 1,
            CopyRoute::Device(copier) => u32::try_from(copier.limit(work)).unwrap_or(u32::MAX),
        }
    }

    /// Runs each checked transfer once over overwritten destinations and compares the bytes.
    pub(crate) fn verify(&mut self, op: Opcode, work: &mut OperationSlots, label: &str) -> Result<(), BenchError> {
        work.spoil();
        let transfers = work.checked_places();
        match self {
            CopyRoute::Cpu(hint) => {
                for _ in 0..transfers {
                    let place = work.turn();
                    if !work.on_cpu(place, *hint) {
                        return Err(wrong(op, label));
                    }
                }
            }
            CopyRoute::Device(copier) => copier.run(op, work, |sent| sent < transfers as u64, |_| ())?,
        }
        work.check(label)
    }

    /// Runs transfers for `time` with no clock inside.
    pub(crate) fn throughput(
        &mut self,
        op: Opcode,
        work: &mut OperationSlots,
        time: Duration,
    ) -> Result<Window, BenchError> {
        let name = self.name();
        match self {
            CopyRoute::Cpu(hint) => window(time, || {
                let place = work.turn();
                if work.on_cpu(place, *hint) { Ok(1) } else { Err(wrong(op, name)) }
            }),
            CopyRoute::Device(copier) => copier.throughput(op, work, time),
        }
    }

    /// Runs transfers for `time` and reads the time stamp counter around each. `ns` is the expected time of one.
    pub(crate) fn latency(
        &mut self,
        op: Opcode,
        work: &mut OperationSlots,
        time: Duration,
        clock: &Clock,
        ns: f64,
    ) -> Result<Timings, BenchError> {
        let start = Instant::now();
        match self {
            CopyRoute::Cpu(hint) => {
                let group = group_for(clock, ns);
                let mut total = Latencies::new(group);
                loop {
                    for _ in 0..16 {
                        let from = telpher_os::ticks();
                        let mut right = true;
                        for _ in 0..group {
                            let place = work.turn();
                            right &= work.on_cpu(place, *hint);
                        }
                        total.record(clock.since(from));
                        if !right {
                            return Err(wrong(op, "CPU"));
                        }
                        if ns * f64::from(group) > 1e5 && start.elapsed() >= time {
                            break;
                        }
                    }
                    if start.elapsed() >= time {
                        return Ok(Timings { total, parts: None });
                    }
                }
            }
            CopyRoute::Device(copier) if copier.is_sync() => copier.sync_latency(op, work, time, clock),
            CopyRoute::Device(copier) => {
                let mut total = Latencies::new(1);
                let mut looks = 0u32;
                copier.run(
                    op,
                    work,
                    |_| {
                        looks += 1;
                        !looks.is_multiple_of(16) && ns < 1e5 || start.elapsed() < time
                    },
                    |from| total.record(clock.since(from)),
                )?;
                Ok(Timings { total, parts: None })
            }
        }
    }
}

fn wrong(op: Opcode, route: &str) -> BenchError {
    BenchError::Wrong { op: op.short_name().into(), route: route.into() }
}

/// How long a route waits for a completion before it reports that the device does not answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Polls without a completion; only some of them read the clock.
#[derive(Default)]
struct IdlePolls {
    looks: u32,
    since: Option<Instant>,
    /// Whether the last rest was a sleep.
    slept: bool,
}

impl IdlePolls {
    #[inline]
    fn is_at_an_end(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        self.looks.is_multiple_of(1 << 12) && self.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE
    }
}

/// A channel and its transfers in flight.
pub(crate) struct DeviceRoute {
    channel: BufferChannel,
    /// The route's name, for errors.
    label: String,
    depth: u32,
    batch: u32,
    /// Slots in flight with the time of their preparation, oldest first.
    flight: VecDeque<(usize, u64)>,
    done: Vec<Finished<PoolBuffer, PoolBuffer>>,
    /// Recent nanoseconds between two completions, 0 if unknown.
    pace_ns: f64,
    /// Whether another thread or a device executes, so that sleeping makes sense.
    sleeps: bool,
    /// Whether a real device executes, which occasionally stops at a page that has moved.
    faults: bool,
    /// Completed transfers.
    ended: u64,
    /// Completed transfers that the CPU executed or finished.
    helped: u64,
}

/// The CPU may finish one in this many transfers of a real device; the numbers still count as the device's. Source:
/// chosen.
const FORGIVEN: u64 = 100;

/// A wait that is expected to be longer than this begins with a sleep. Source: chosen; several times what a sleep costs
/// a thread (measured with nanosleep on a virtual AMD EPYC of family 26: 17 µs of CPU time, and waking 23 µs late).
const WORTH_A_SLEEP_NS: f64 = 100_000.0;
/// Part of an expected wait that the thread sleeps; the rest covers a late wake-up and a device that became faster.
const SLEPT_PART: f64 = 0.75;

impl DeviceRoute {
    /// Creates a copier with `depth` batches of `batch` descriptors in flight.
    pub(crate) fn new(portal: Arc<dyn Portal>, route: &Route, hint: Hint) -> Result<Self, BenchError> {
        let (depth, batch, label) = (route.depth, route.batch, route.label());
        let policy = ChannelPolicy { hint, bursts: batch > 1, ..ChannelPolicy::default() };
        // Twice the number in flight: slots come back one poll after their results.
        let channel = BufferChannel::new(portal, 2 * depth * batch, policy)?;
        let room = (depth * batch) as usize;
        let sleeps = matches!(route.runner, Some(Runner::Threaded | Runner::Hardware));
        let faults = route.runner == Some(Runner::Hardware);
        let (flight, done) = (VecDeque::with_capacity(room), Vec::with_capacity(room));
        let (pace_ns, ended, helped) = (0.0, 0, 0);
        Ok(DeviceRoute { channel, label, depth, batch, flight, done, pace_ns, sleeps, faults, ended, helped })
    }

    fn is_sync(&self) -> bool {
        self.depth == 1 && self.batch == 1
    }

    /// Returns the maximum number of transfers in flight: limited by the slots and by the copier.
    fn limit(&self, work: &OperationSlots) -> usize {
        ((self.depth * self.batch) as usize).min(work.places())
    }

    /// Forgets the pace of earlier work.
    pub(crate) fn reset(&mut self) {
        self.pace_ns = 0.0;
    }

    #[inline]
    fn prepare(&mut self, op: Opcode, work: &mut OperationSlots) -> Result<(), BenchError> {
        let place = work.turn();
        self.flight.push_back((place, telpher_os::ticks()));
        match work.prepare(place, &mut self.channel) {
            Ok(_) => Ok(()),
            Err(rejected) => Err(BenchError::Rejected {
                op: op.short_name().into(),
                route: self.label.clone(),
                source: rejected.reason,
            }),
        }
    }

    /// Collects completed transfers; calls `ended` with the preparation time of each.
    #[inline]
    fn fetch(
        &mut self,
        op: Opcode,
        work: &mut OperationSlots,
        mut ended: impl FnMut(u64),
    ) -> Result<usize, BenchError> {
        let count = self.channel.completed(&mut self.done);
        for finished in self.done.drain(..) {
            let (place, from) = self.flight.pop_front().expect("what ends was prepared, in this order");
            ended(from);
            let name = || op.short_name().to_owned();
            let outcome =
                finished.result.map_err(|source| BenchError::Job { op: name(), route: self.label.clone(), source })?;
            self.ended += 1;
            self.helped += u64::from(finished.via != Via::Device);
            let forgiven = if self.faults { 1 + self.ended / FORGIVEN } else { 0 };
            if self.helped > forgiven {
                return Err(BenchError::NotByDevice { op: name(), route: self.label.clone() });
            }
            let buffers = finished.buffers.expect("channels without deadlines give buffers back");
            if !work.give_back(place, buffers, outcome) {
                return Err(wrong(op, &self.label));
            }
        }
        Ok(count)
    }

    /// Waits after a poll without completions: sleeps through most of a long wait, returns at once in a short one.
    #[inline]
    fn rest(&self, op: Opcode, patience: &mut IdlePolls) -> Result<(), BenchError> {
        let expected = self.pace_ns * self.flight.len() as f64;
        if self.sleeps && expected > WORTH_A_SLEEP_NS {
            thread::sleep(Duration::from_secs_f64(SLEPT_PART * expected / 1e9));
            patience.slept = true;
        } else {
            patience.slept = false;
            std::hint::spin_loop();
        }
        if patience.is_at_an_end() {
            Err(BenchError::NoAnswer { op: op.short_name().into(), route: self.label.clone() })
        } else {
            Ok(())
        }
    }

    /// Updates the pace after completions. If everything had completed and the last rest was a sleep, the sleep was too
    /// long.
    #[inline]
    fn woke(&mut self, patience: &IdlePolls) {
        if patience.slept && self.flight.is_empty() {
            self.pace_ns /= 2.0;
        }
    }

    /// Keeps the copier full while `more` (called with the number of sent transfers) returns true; then lets it drain.
    fn run(
        &mut self,
        op: Opcode,
        work: &mut OperationSlots,
        mut more: impl FnMut(u64) -> bool,
        mut ended: impl FnMut(u64),
    ) -> Result<(), BenchError> {
        let limit = self.limit(work);
        let burst = (self.batch as usize).min(limit);
        let (mut sent, mut going, mut patience) = (0u64, true, IdlePolls::default());
        loop {
            while going && self.flight.len() + burst <= limit {
                going = more(sent);
                if !going {
                    break;
                }
                for _ in 0..burst {
                    self.prepare(op, work)?;
                }
                sent += burst as u64;
                self.channel.submit();
            }
            if self.flight.is_empty() {
                return Ok(());
            }
            if self.fetch(op, work, &mut ended)? == 0 {
                // Offers again what a full queue did not take.
                self.channel.submit();
                self.rest(op, &mut patience)?;
            } else {
                self.woke(&patience);
                patience = IdlePolls::default();
            }
        }
    }

    fn throughput(&mut self, op: Opcode, work: &mut OperationSlots, time: Duration) -> Result<Window, BenchError> {
        let cpu = ffi::thread_cpu();
        let start = Instant::now();
        let (mut ops, mut stride, mut next) = (0, 1, 1);
        self.run(
            op,
            work,
            |sent| {
                ops = sent;
                if sent < next {
                    return true;
                }
                let elapsed = start.elapsed();
                if elapsed * 50 < time {
                    stride *= 2;
                }
                next = sent + stride;
                elapsed < time
            },
            |_| (),
        )?;
        let wall = start.elapsed();
        let pace_ns = to_ns(wall) / ops.max(1) as f64;
        // The pace grows slowly: a window that overslept must not make the next one sleep longer.
        self.pace_ns = if self.pace_ns > 0.0 { pace_ns.min(1.5 * self.pace_ns) } else { pace_ns };
        Ok(Window { ops, wall, cpu: ffi::thread_cpu().saturating_sub(cpu) })
    }

    fn sync_latency(
        &mut self,
        op: Opcode,
        work: &mut OperationSlots,
        time: Duration,
        clock: &Clock,
    ) -> Result<Timings, BenchError> {
        let mut total = Latencies::new(1);
        let mut parts = [1; 3].map(Latencies::new);
        let start = Instant::now();
        let mut looks = 0u32;
        loop {
            let from = telpher_os::ticks();
            self.prepare(op, work)?;
            let prepared = clock.since(from);
            let from_submit = telpher_os::ticks();
            self.channel.submit();
            let submitted = clock.since(from_submit);
            let from_wait = telpher_os::ticks();
            let mut patience = IdlePolls::default();
            while self.fetch(op, work, |_| ())? == 0 {
                self.rest(op, &mut patience)?;
            }
            let waited = clock.since(from_wait);
            self.woke(&patience);
            total.record(prepared + submitted + waited);
            parts.iter_mut().zip([prepared, submitted, waited]).for_each(|(l, t)| l.record(t));
            looks += 1;
            if (self.pace_ns > 1e5 || looks.is_multiple_of(16)) && start.elapsed() >= time {
                return Ok(Timings { total, parts: Some(parts) });
            }
        }
    }
}
