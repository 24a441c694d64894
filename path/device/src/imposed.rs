//! Imposes the times of a device on descriptors that a modelled device executes.
//!
//! ```text
//! offer ──► the device begins it (after earlier ones) ──► due = begin + latency     kept under a ticket
//!   └─► an engine executes it at once ──► may its record be written? not before it is due
//! ```
//!
//! The ticket travels in the descriptor's first dword, which the device ignores. So a submitting thread takes no lock.

use crate::device_times::DeviceTimes;
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;
use telpher_abi::{CompletionRecord, Descriptor, Status};
use telpher_model::{Job, Observer};

/// Descriptors whose times are kept. Source: chosen; more than a device's queues and engines hold.
const TICKETS: u32 = 4096;

/// The engine has not finished.
const EXECUTING: u8 = 0;
/// The engine has finished, and the record waits until it is due.
const EXECUTED: u8 = 1;
/// The record may be written. The ticket is free.
const REPORTED: u8 = 2;
/// A thread has taken the ticket, and its time is not known yet.
const TAKEN: u8 = 3;

/// The times of one descriptor in flight.
#[derive(Debug)]
struct Ticket {
    due_ns: AtomicU64,
    state: AtomicU8,
}

/// Imposes the times of a device on modelled devices, and adds them up.
///
/// A record is written when the simulated device would have written it: later than the model's engine, which copies
/// with the CPU. If the CPU takes longer than the simulated device, the record is *late*. Then the program's elapsed
/// time is not that of the simulated device; the added times are.
///
/// Copies, fills and comparisons have times; other descriptors, and members of batches, are completed at once.
///
/// Several devices may share one value. If a thread waits for two devices at the same time, that time is added once.
#[derive(Debug)]
pub struct ImposedTimes {
    times: DeviceTimes,
    began: Instant,
    next_ticket: AtomicU32,
    tickets: Box<[Ticket]>,
    device_ns: AtomicU64,
    late: AtomicU64,
}

/// Times that were imposed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ImposedSum {
    /// Nanoseconds in which threads had a descriptor at a device, summed over the threads.
    pub device_ns: u64,
    /// Descriptors for which the CPU took longer than the simulated device.
    pub late: u64,
}

/// What a thread knows about its last descriptor.
#[derive(Clone, Copy)]
struct Last {
    /// The address of its [`ImposedTimes`].
    owner: usize,
    ticket: u32,
    arrival_ns: u64,
    due_ns: u64,
    /// The end of the time that was added for this thread.
    counted_ns: u64,
}

thread_local! {
    static LAST: Cell<Last> =
        const { Cell::new(Last { owner: 0, ticket: 0, arrival_ns: 0, due_ns: 0, counted_ns: 0 }) };
}

impl ImposedTimes {
    /// Imposes these times.
    #[must_use]
    pub fn new(times: DeviceTimes) -> Self {
        let ticket = |_| Ticket { due_ns: AtomicU64::new(0), state: AtomicU8::new(REPORTED) };
        ImposedTimes {
            times,
            began: Instant::now(),
            next_ticket: AtomicU32::new(0),
            tickets: (0..TICKETS).map(ticket).collect(),
            device_ns: AtomicU64::new(0),
            late: AtomicU64::new(0),
        }
    }

    /// Returns the times that were imposed since the last call.
    pub fn take(&self) -> ImposedSum {
        // Relaxed, as for all sums here: they publish nothing else.
        ImposedSum { device_ns: self.device_ns.swap(0, Ordering::Relaxed), late: self.late.swap(0, Ordering::Relaxed) }
    }

    fn now_ns(&self) -> u64 {
        // 2^64 nanoseconds are 584 years.
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns what the current thread knows about its last descriptor; `None` if it had none here.
    fn last(&self) -> Option<Last> {
        let last = LAST.get();
        (last.owner == std::ptr::from_ref(self).addr()).then_some(last)
    }

    /// When a descriptor of the current thread arrives. While the thread has another one at a device, it arrives
    /// together with that one: the thread has only spent time on executing that one, which a device would not take.
    fn arrival_ns(&self) -> u64 {
        let in_flight = self.last().filter(|last| {
            let ticket = &self.tickets[last.ticket as usize];
            // Acquire: pairs with the Release in `concluding`. Another descriptor may have the ticket by now.
            let is_in_flight = matches!(ticket.state.load(Ordering::Acquire), EXECUTING | EXECUTED);
            is_in_flight && ticket.due_ns.load(Ordering::Relaxed) == last.due_ns
        });
        in_flight.map_or_else(|| self.now_ns(), |last| last.arrival_ns)
    }
}

/// The schedule of one modelled device.
#[derive(Debug)]
pub(crate) struct Schedule {
    imposed: Arc<ImposedTimes>,
    /// When the device can begin another descriptor.
    free_ns: AtomicU64,
}

/// A descriptor that is about to be submitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    ticket: u32,
    arrival_ns: u64,
    due_ns: u64,
    /// How long the device is occupied.
    interval_ns: u64,
}

impl Planned {
    /// Returns the value for the descriptor's PASID field.
    pub(crate) fn ticket(self) -> u32 {
        self.ticket
    }
}

impl Schedule {
    pub(crate) fn new(imposed: Arc<ImposedTimes>) -> Self {
        Schedule { imposed, free_ns: AtomicU64::new(0) }
    }

    /// Plans a descriptor that the current thread submits now; `None` if it has no times. The caller says afterwards
    /// whether the queue has [taken](Self::taken) or [refused](Self::refused) it.
    pub(crate) fn plan(&self, descriptor: &Descriptor) -> Option<Planned> {
        let imposed = &*self.imposed;
        let time = imposed.times.of(descriptor.opcode(), descriptor.size().into())?;
        let mut tickets = (0..TICKETS).map(|_| imposed.next_ticket.fetch_add(1, Ordering::Relaxed) % TICKETS);
        let ticket = tickets.find(|ticket| {
            let state = &imposed.tickets[*ticket as usize].state;
            // Acquire: pairs with the Release in `concluding` and `refused`; the last use of the ticket is over.
            state.compare_exchange(REPORTED, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })?;
        let arrival_ns = imposed.arrival_ns();
        let next_free = |free: u64| Some(free.max(arrival_ns).saturating_add(time.interval_ns));
        // Relaxed: only the sum counts.
        let free = self.free_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next_free).unwrap_or_default();
        let due_ns = free.max(arrival_ns).saturating_add(time.latency_ns);
        let Ticket { due_ns: due, state } = &imposed.tickets[ticket as usize];
        due.store(due_ns, Ordering::Relaxed);
        // Release: an engine that reads the state sees the time. The queue orders it as well.
        state.store(EXECUTING, Ordering::Release);
        Some(Planned { ticket, arrival_ns, due_ns, interval_ns: time.interval_ns })
    }

    /// Takes a plan back: the queue has refused the descriptor.
    pub(crate) fn refused(&self, Planned { ticket, interval_ns, .. }: Planned) {
        // Relaxed: only the sum counts.
        self.free_ns.fetch_sub(interval_ns, Ordering::Relaxed);
        // Release: pairs with the Acquire in `plan`.
        self.imposed.tickets[ticket as usize].state.store(REPORTED, Ordering::Release);
    }

    /// Adds the time of a descriptor that the queue has taken, as far as the thread does not wait for others meanwhile.
    pub(crate) fn taken(&self, Planned { ticket, arrival_ns, due_ns, .. }: Planned) {
        let counted_ns = self.imposed.last().map_or(0, |last| last.counted_ns);
        let more = due_ns.saturating_sub(arrival_ns.max(counted_ns));
        self.imposed.device_ns.fetch_add(more, Ordering::Relaxed);
        let owner = Arc::as_ptr(&self.imposed).addr();
        LAST.set(Last { owner, ticket, arrival_ns, due_ns, counted_ns: counted_ns.max(due_ns) });
    }
}

impl Observer for Schedule {
    fn concluding(&self, job: &Job<'_>, record: &CompletionRecord) -> bool {
        let imposed = &*self.imposed;
        if job.member.is_some() || imposed.times.of(job.descriptor.opcode(), 0).is_none() {
            return true;
        }
        let Some(ticket) = imposed.tickets.get(job.descriptor.pasid() as usize) else { return true };
        // Relaxed: one engine at a time has the descriptor.
        let was = ticket.state.load(Ordering::Relaxed);
        if was == EXECUTING && record.status() == Status::PageFault {
            // The device has stopped at an absent page, so it takes the time of the bytes before only.
            let latency_ns =
                |bytes: u32| imposed.times.of(job.descriptor.opcode(), bytes.into()).map(|time| time.latency_ns);
            let [whole, part] =
                [job.descriptor.size(), record.bytes_completed()].map(|bytes| latency_ns(bytes).unwrap_or(0));
            let saved_ns = whole.saturating_sub(part);
            let due_ns = ticket.due_ns.fetch_sub(saved_ns, Ordering::Relaxed);
            // The thread may add the whole time only after this: for a moment, the sum is below zero.
            imposed.device_ns.fetch_sub(saved_ns, Ordering::Relaxed);
            // With the inline runner, this thread has submitted the descriptor.
            if let Some(last) = imposed.last().filter(|last| last.due_ns == due_ns) {
                let is_counted = last.counted_ns == due_ns;
                let counted_ns = if is_counted { due_ns - saved_ns } else { last.counted_ns };
                LAST.set(Last { due_ns: due_ns - saved_ns, counted_ns, ..last });
            }
        }
        let is_due = imposed.now_ns() >= ticket.due_ns.load(Ordering::Relaxed);
        if is_due {
            if was == EXECUTING {
                imposed.late.fetch_add(1, Ordering::Relaxed);
            }
            // Release: pairs with the Acquire in `arrival_ns`.
            ticket.state.store(REPORTED, Ordering::Release);
        } else if was == EXECUTING {
            ticket.state.store(EXECUTED, Ordering::Relaxed);
        }
        is_due
    }
}
