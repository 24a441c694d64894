//! Programs: threads whose work is written as ordinary code, as an `async fn`.
//!
//! A program does one thing at a time. Each `.await` puts an [`Act`] into the state that the program shares with the
//! world, and the world polls the program again when the act is done. So a program reads like the thread that it
//! represents, and each costs only a small allocation.

use super::cycles::Cycles;
use super::descriptors::{descriptor, needs_record};
use super::memory::CoreRoute;
use super::software::Task;
use super::{Event, FlowOwner, World};
use crate::machine::Rate;
use crate::picos::Picos;
use crate::places::BufferPlacement;
use crate::workload::{AccessPattern, Library, QueueId, SubmitBy, Wait};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use telpher_abi::{Descriptor, Offer, Opcode};

/// A request from a program to the world.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Its core works for a time.
    Busy(Picos),
    /// Its core is idle for a time.
    Sleep(Picos),
    /// Its core executes an operation.
    Software { op: Opcode, bytes: u64, places: [BufferPlacement; 2], walk: AccessPattern },
    /// It submits the work of a ticket. If `patient`, it retries until the queue takes it.
    Submit { ticket: u32, patient: bool },
    /// It polls a ticket's record once.
    Look,
    /// It waits for the record of one of the `wanted` tickets, with an optional timeout.
    Wait(Wait, Option<Picos>),
    /// It waits at a barrier.
    Meet(usize),
    /// It takes a permit of a signal, or waits for one.
    Until(usize),
    /// Its core reads or writes bytes of a node, with a limited rate.
    Traffic { bytes: u64, node: usize, write: bool, most: Rate, sharing: u32 },
}

/// The state shared by programs and world.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared(Rc<RefCell<State>>);

#[derive(Debug, Default)]
struct State {
    now: Picos,
    /// The act of the running program.
    act: Option<Act>,
    /// The tickets that it waits for.
    wanted: Vec<u32>,
    tickets: Vec<TicketState>,
    free: Vec<u32>,
    barriers: Vec<BarrierState>,
    signals: Vec<SignalState>,
    /// Programs that the running program released.
    woken: Vec<u32>,
    /// By program.
    cycles: Vec<Cycles>,
    /// Operations that the running program has finished for threads.
    done: Vec<Done>,
}

/// An operation that a program executed for a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) thread: usize,
    pub(super) arrived: Picos,
    pub(super) begun: Picos,
    pub(super) bytes: u64,
}

/// The state of a ticket.
#[derive(Clone, Debug)]
struct TicketState {
    descriptor: Descriptor,
    /// A batch's members, until they are submitted.
    members: Vec<Descriptor>,
    /// Address of the batch list that this number's earlier tickets used.
    list: Option<u64>,
    queue: QueueId,
    library: Library,
    through: SubmitBy,
    /// The queue has taken it.
    taken: bool,
    done: Option<Picos>,
    /// The program that waits for it.
    waiter: Option<u32>,
    /// The ticket was dropped.
    dropped: bool,
}

#[derive(Debug, Default)]
struct BarrierState {
    expected: usize,
    there: Vec<u32>,
}

#[derive(Debug, Default)]
struct SignalState {
    /// Permits released and not yet taken.
    left: u64,
    waiting: VecDeque<u32>,
}

/// Work in flight. Dropping the ticket does not cancel it.
#[derive(Debug)]
pub struct PendingWork {
    number: u32,
    shared: Shared,
}

impl PendingWork {
    /// True if its record is written. A program whose core polls for it uses [`Core::look`].
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done_at().is_some()
    }

    /// When its record was written.
    #[must_use]
    pub fn done_at(&self) -> Option<Picos> {
        self.shared.0.borrow().tickets[self.number as usize].done
    }
}

impl Drop for PendingWork {
    fn drop(&mut self) {
        let mut state = self.shared.0.borrow_mut();
        let entry = &mut state.tickets[self.number as usize];
        entry.dropped = true;
        if entry.done.is_some() {
            state.free.push(self.number);
        }
    }
}

/// A point at which programs wait for each other.
#[derive(Clone, Debug)]
pub struct Barrier(usize);

/// A counting semaphore between programs; waiting programs are served in order of arrival. A lock is a signal with one
/// permit, a run queue a signal with one permit per core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Semaphore(usize);

/// The core of a program: its operations, and the software that it uses.
#[derive(Clone, Debug)]
pub struct Core {
    node: usize,
    program: usize,
    library: Library,
    through: SubmitBy,
    walk: AccessPattern,
    shared: Shared,
}

/// An act in progress: started at the first poll, done at the second.
struct ActFuture<'a> {
    shared: &'a Shared,
    act: Option<Act>,
}

impl Future for ActFuture<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match self.act.take() {
            None => Poll::Ready(()),
            act => {
                self.shared.0.borrow_mut().act = act;
                Poll::Pending
            }
        }
    }
}

impl Core {
    fn run(&self, act: Act) -> ActFuture<'_> {
        ActFuture { shared: &self.shared, act: Some(act) }
    }

    /// The same core with another library for its submissions.
    #[must_use]
    pub fn with_library(&self, library: Library) -> Core {
        Core { library, ..self.clone() }
    }

    /// The same core with another submission method.
    #[must_use]
    pub fn with_way(&self, through: SubmitBy) -> Core {
        Core { through, ..self.clone() }
    }

    /// The same core with another access pattern of its own operations; the default is [`AccessPattern::Alone`].
    #[must_use]
    pub fn with_walk(&self, walk: AccessPattern) -> Core {
        Core { walk, ..self.clone() }
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Picos {
        self.shared.0.borrow().now
    }

    /// Memory node of the core.
    #[must_use]
    pub fn node(&self) -> usize {
        self.node
    }

    /// The time of its program so far, by kind.
    #[must_use]
    pub fn cycles(&self) -> Cycles {
        self.shared.0.borrow().cycles.get(self.program).copied().unwrap_or_default()
    }

    /// Works for `time` without memory accesses.
    pub async fn busy(&self, time: Picos) {
        self.run(Act::Busy(time)).await;
    }

    /// Is idle for `time`.
    pub async fn sleep(&self, time: Picos) {
        self.run(Act::Sleep(time)).await;
    }

    /// Executes an operation on the core.
    pub async fn software(&self, op: Opcode, bytes: u64, src: BufferPlacement, dst: BufferPlacement) {
        self.run(Act::Software { op, bytes, places: [src, dst], walk: self.walk }).await;
    }

    /// Submits an operation on two regions (see [`World::places`]) to a queue; returns when the core may continue.
    /// Retries a full queue until it has room.
    pub async fn submit(&self, queue: QueueId, descriptor: Descriptor) -> PendingWork {
        self.send(queue, descriptor, Vec::new(), true).await.0
    }

    /// Like `submit`, for several operations as one batch; a single one is submitted alone.
    pub async fn submit_batch(&self, queue: QueueId, members: &[Descriptor]) -> PendingWork {
        self.send_batch(queue, members, true).await.0
    }

    /// Submits an operation to a queue if it has room.
    pub async fn try_submit(&self, queue: QueueId, descriptor: Descriptor) -> Option<PendingWork> {
        let (ticket, taken) = self.send(queue, descriptor, Vec::new(), false).await;
        taken.then_some(ticket)
    }

    /// The same for a batch.
    pub async fn try_submit_batch(&self, queue: QueueId, members: &[Descriptor]) -> Option<PendingWork> {
        let (ticket, taken) = self.send_batch(queue, members, false).await;
        taken.then_some(ticket)
    }

    async fn send_batch(&self, queue: QueueId, members: &[Descriptor], patient: bool) -> (PendingWork, bool) {
        match *members {
            [one] => self.send(queue, one, Vec::new(), patient).await,
            _ => self.send(queue, Descriptor::nop(), members.to_vec(), patient).await,
        }
    }

    async fn send(
        &self,
        queue: QueueId,
        descriptor: Descriptor,
        members: Vec<Descriptor>,
        patient: bool,
    ) -> (PendingWork, bool) {
        let number = self.issue(queue, descriptor, members);
        self.run(Act::Submit { ticket: number, patient }).await;
        let ticket = PendingWork { number, shared: self.shared.clone() };
        let mut state = self.shared.0.borrow_mut();
        let (now, index) = (state.now, number as usize);
        let taken = state.tickets[index].taken;
        if !taken {
            // The queue did not take it; its number becomes free when the ticket is dropped.
            state.tickets[index].done = Some(now);
        }
        drop(state);
        (ticket, taken)
    }

    /// Polls once for a record, which takes a short time.
    pub async fn look(&self, ticket: &PendingWork) -> bool {
        self.run(Act::Look).await;
        ticket.is_done()
    }

    /// Waits for a record.
    pub async fn wait(&self, ticket: &PendingWork, how: Wait) {
        self.wait_any(&[ticket], how).await;
    }

    /// Polls for a record for at most `at_most`; returns whether it was written.
    pub async fn poll(&self, ticket: &PendingWork, at_most: Picos) -> bool {
        {
            let mut state = self.shared.0.borrow_mut();
            state.wanted.clear();
            state.wanted.push(ticket.number);
        }
        self.run(Act::Wait(Wait::Poll, Some(at_most))).await;
        ticket.is_done()
    }

    /// Reports an operation that was executed for a thread.
    pub(super) fn done(&self, done: Done) {
        self.shared.0.borrow_mut().done.push(done);
    }

    /// Waits until one of several records is written, and returns the index of the first that is. Returns 0 at once if
    /// there are none.
    pub async fn wait_any(&self, tickets: &[&PendingWork], how: Wait) -> usize {
        if tickets.is_empty() {
            return 0;
        }
        {
            let mut state = self.shared.0.borrow_mut();
            state.wanted.clear();
            state.wanted.extend(tickets.iter().map(|ticket| ticket.number));
        }
        self.run(Act::Wait(how, None)).await;
        tickets.iter().position(|ticket| ticket.is_done()).unwrap_or(0)
    }

    /// Reads or writes `bytes` of a node, at most at the rate `most`, as one of `sharing` hardware threads of its core.
    pub async fn traffic(&self, bytes: u64, node: usize, write: bool, most: Rate, sharing: u32) {
        self.run(Act::Traffic { bytes, node, write, most, sharing }).await;
    }

    /// Waits for a permit of a signal; takes no time if one is available.
    pub async fn until(&self, signal: Semaphore) {
        self.run(Act::Until(signal.0)).await;
    }

    /// Releases a permit.
    pub fn give(&self, signal: Semaphore) {
        let state = &mut *self.shared.0.borrow_mut();
        let permits = &mut state.signals[signal.0];
        match permits.waiting.pop_front() {
            Some(program) => state.woken.push(program),
            None => permits.left += 1,
        }
    }

    /// The number of programs that wait for a permit.
    #[must_use]
    pub fn waiting(&self, signal: Semaphore) -> usize {
        self.shared.0.borrow().signals[signal.0].waiting.len()
    }

    /// Waits at a barrier for all programs that it expects.
    pub async fn meet(&self, barrier: &Barrier) {
        self.run(Act::Meet(barrier.0)).await;
    }

    fn issue(&self, queue: QueueId, descriptor: Descriptor, members: Vec<Descriptor>) -> u32 {
        let mut state = self.shared.0.borrow_mut();
        let number = state.free.pop().unwrap_or_else(|| u32::try_from(state.tickets.len()).unwrap_or(u32::MAX));
        let mut entry = TicketState {
            descriptor: descriptor.with_record(record_of(number)),
            members,
            list: None,
            queue,
            library: self.library,
            through: self.through,
            taken: true,
            done: None,
            waiter: None,
            dropped: false,
        };
        match state.tickets.get_mut(number as usize) {
            Some(old) => {
                entry.list = old.list;
                *old = entry;
            }
            None => state.tickets.push(entry),
        }
        number
    }
}

/// Addresses of programs' records: bits 62 and 61, the ticket.
fn record_of(ticket: u32) -> u64 {
    3 << 61 | u64::from(ticket) << 6
}

/// True if the record is a program's.
pub(super) fn is_program(record: u64) -> bool {
    record >> 61 == 3
}

/// A thread whose work is code.
pub(super) struct Program {
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    node: usize,
    /// Since when it waits for records, and how; and their tickets.
    waits: Option<(Picos, Wait)>,
    watched: Vec<u32>,
    /// The number of that wait.
    turn: u32,
    /// Since when it waits for an entry of a queue.
    blocked: Option<Picos>,
    /// The operation that its core executes now, and since when.
    task: Option<(Task, Picos)>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program(waits {:?} for {:?})", self.waits, self.watched)
    }
}

impl World {
    /// Adds a program on a core of a node and returns its number. It begins at once.
    pub fn spawn<P, F>(&mut self, node: usize, program: P) -> usize
    where
        P: FnOnce(Core) -> F,
        F: Future<Output = ()> + 'static,
    {
        let number = self.programs.len();
        let (library, through, walk) = (Library::default(), SubmitBy::default(), AccessPattern::default());
        let core = Core { node, program: number, library, through, walk, shared: self.shared.clone() };
        self.shared.0.borrow_mut().cycles.push(Cycles::default());
        let future: Pin<Box<dyn Future<Output = ()>>> = Box::pin(program(core));
        self.programs.push(Program {
            future: Some(future),
            node,
            waits: None,
            watched: Vec::new(),
            turn: 0,
            blocked: None,
            task: None,
        });
        self.events.after(Picos::ZERO, Event::Program(u32::try_from(number).unwrap_or(u32::MAX)));
        number
    }

    /// Creates a reusable barrier for `expected` programs.
    pub fn barrier(&mut self, expected: usize) -> Barrier {
        let mut state = self.shared.0.borrow_mut();
        state.barriers.push(BarrierState { expected, there: Vec::new() });
        Barrier(state.barriers.len() - 1)
    }

    /// Creates a signal with an initial number of permits.
    pub fn signal(&mut self, permits: u64) -> Semaphore {
        let mut state = self.shared.0.borrow_mut();
        state.signals.push(SignalState { left: permits, waiting: VecDeque::new() });
        Semaphore(state.signals.len() - 1)
    }

    /// The descriptor of an operation on two regions of [`places`](World::places), for [`Core::submit`].
    #[must_use]
    pub fn descriptor(op: Opcode, src: u64, dst: u64, size: u32) -> Descriptor {
        descriptor(op, src, dst, size)
    }

    /// The time of a program by kind.
    #[must_use]
    pub fn cycles(&self, program: usize) -> Cycles {
        self.shared.0.borrow().cycles.get(program).copied().unwrap_or_default()
    }

    /// Changes the times of a program.
    pub(super) fn did(&mut self, program: u32, what: impl FnOnce(&mut Cycles)) {
        what(&mut self.shared.0.borrow_mut().cycles[program as usize]);
    }

    /// A program's core works for a time; then the program continues.
    fn works(&mut self, program: u32, time: Picos) {
        self.did(program, |cycles| cycles.busy += time);
        self.events.after(time, Event::Program(program));
    }

    /// A program's act is done: polls it for the next one.
    pub(super) fn go_on_program(&mut self, number: u32) {
        let now = self.events.now();
        let program = &mut self.programs[number as usize];
        let Some(future) = program.future.as_mut() else { return };
        self.shared.0.borrow_mut().now = now;
        let over = future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        if over {
            program.future = None;
        }
        let mut state = self.shared.0.borrow_mut();
        let act = state.act.take();
        for other in state.woken.drain(..) {
            self.events.after(Picos::ZERO, Event::Program(other));
        }
        let done = std::mem::take(&mut state.done);
        let cycles = state.cycles[number as usize];
        drop(state);
        for done in done {
            self.account(done.thread, done, cycles);
        }
        if let (Some(act), false) = (act, over) {
            self.begin(number, act);
        }
    }

    fn begin(&mut self, number: u32, act: Act) {
        let now = self.events.now();
        match act {
            Act::Busy(time) => self.works(number, time),
            Act::Sleep(time) => {
                self.did(number, |cycles| cycles.idle += time);
                self.events.after(time, Event::Program(number));
            }
            Act::Software { op, bytes, places, walk } => {
                let task = self.task(self.programs[number as usize].node, op, bytes, places, walk);
                self.programs[number as usize].task = Some((task, now));
                self.begin_task(task, FlowOwner::Program(number), Event::Program(number));
                if !task.flows() {
                    self.did(number, |cycles| cycles.busy += task.besides());
                }
            }
            Act::Traffic { bytes, node, write, most, sharing } => {
                let (core, once) = (self.programs[number as usize].node, Some((node, 1)));
                let (read, write) = if write { (None, once) } else { (once, None) };
                let task = Task::through(self.core_class(CoreRoute { core, read, write, most, sharing }), bytes);
                self.programs[number as usize].task = Some((task, now));
                self.begin_task(task, FlowOwner::Program(number), Event::Program(number));
            }
            Act::Until(signal) => {
                let permits = &mut self.shared.0.borrow_mut().signals[signal];
                match permits.left.checked_sub(1) {
                    Some(left) => {
                        permits.left = left;
                        self.events.after(Picos::ZERO, Event::Program(number));
                    }
                    None => permits.waiting.push_back(number),
                }
            }
            Act::Submit { ticket, patient } => self.send(number, ticket, patient),
            Act::Look => self.works(number, self.machine.wait.look),
            Act::Wait(how, at_most) => self.begin_wait(number, how, at_most),
            Act::Meet(barrier) => {
                let mut state = self.shared.0.borrow_mut();
                let waiting = &mut state.barriers[barrier];
                waiting.there.push(number);
                if waiting.there.len() >= waiting.expected {
                    for other in waiting.there.drain(..) {
                        self.events.after(Picos::ZERO, Event::Program(other));
                    }
                }
            }
        }
    }

    /// The last byte of a program's own operation has flowed.
    pub(super) fn program_flowed(&mut self, number: u32) {
        let now = self.events.now();
        let Some((task, since)) = self.programs[number as usize].task.take() else { return };
        self.did(number, |cycles| cycles.busy += now.since(since) + task.besides());
        self.task_flowed(task, Event::Program(number));
    }

    /// A program prepares the work of a ticket and submits it as soon as there is an entry for it.
    pub(super) fn send(&mut self, number: u32, ticket: u32, patient: bool) {
        let now = self.events.now();
        let mut state = self.shared.0.borrow_mut();
        let entry = &mut state.tickets[ticket as usize];
        let (queue, library) = (entry.queue, entry.library);
        let mut members = std::mem::take(&mut entry.members);
        for member in members.iter_mut().filter(|member| needs_record(member.opcode())) {
            *member = member.with_record(record_of(ticket));
        }
        let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
        if count > 0 {
            let list =
                self.places.list_again(entry.list, BufferPlacement::on(self.programs[number as usize].node), members);
            entry.list = Some(list);
            entry.descriptor = Descriptor::batch(list, count).with_record(record_of(ticket));
        }
        drop(state);
        let prepare = self.machine.preparing(library, count, 1);
        self.did(number, |cycles| cycles.busy += prepare);
        self.programs[number as usize].blocked = Some(now + prepare);
        if patient {
            self.events.after(prepare, Event::Enter { program: number, ticket });
        } else if self.try_enter(queue) {
            self.sent(number, ticket, prepare, false);
        } else {
            // The client's own count of entries is zero.
            self.shared.0.borrow_mut().tickets[ticket as usize].taken = false;
            self.programs[number as usize].blocked = None;
            self.events.after(prepare, Event::Program(number));
        }
    }

    /// A program's prepared descriptor gets an entry of its queue, or waits for one.
    pub(super) fn enter_of_program(&mut self, number: u32, ticket: u32) {
        let queue = self.shared.0.borrow().tickets[ticket as usize].queue;
        if self.enter(queue, Event::Enter { program: number, ticket }) {
            self.sent(number, ticket, Picos::ZERO, true);
        }
    }

    /// The instruction of a ticket begins after a delay.
    fn sent(&mut self, number: u32, ticket: u32, after: Picos, patient: bool) {
        let now = self.events.now();
        let TicketState { queue, through, .. } = self.shared.0.borrow().tickets[ticket as usize];
        if let Some(since) = self.programs[number as usize].blocked.take() {
            self.did(number, |cycles| cycles.polling += now.since(since));
        }
        let (call, instruct) = self.machine.submit.instructing(queue, through);
        self.did(number, |cycles| cycles.busy += instruct);
        let at = after + call + self.machine.submit.transit;
        self.events.after(at, Event::Offer { program: number, ticket, patient });
        if !queue.shared {
            self.events.after(after + instruct, Event::Program(number));
        }
    }

    /// A program's descriptor reaches a portal.
    pub(super) fn offer_of_program(&mut self, program: u32, ticket: u32, patient: bool) {
        let TicketState { descriptor, queue, through, .. } = self.shared.0.borrow().tickets[ticket as usize];
        let submit = self.machine.submit;
        let (call, instruct) = submit.instructing(queue, through);
        let back = instruct.since(call + submit.transit);
        let offer = self.offer(queue, descriptor);
        if offer == Offer::Taken {
            self.wake(queue.device, queue.wq);
        }
        match offer {
            Offer::Retry if patient => {
                self.did(program, |cycles| cycles.busy += instruct);
                let again = Event::Offer { program, ticket, patient };
                let period = back + call + submit.transit;
                self.reject(queue, FlowOwner::Program(program), again, instruct, period);
            }
            _ if queue.shared => {
                self.shared.0.borrow_mut().tickets[ticket as usize].taken = offer == Offer::Taken;
                self.events.after(back, Event::Program(program));
                self.admitted(queue, FlowOwner::Program(program));
            }
            _ => {}
        }
    }

    /// A program waits for one of the `wanted` tickets.
    fn begin_wait(&mut self, number: u32, how: Wait, at_most: Option<Picos>) {
        let now = self.events.now();
        let mut state = self.shared.0.borrow_mut();
        let State { wanted, tickets, .. } = &mut *state;
        if let Some(there) = wanted.iter().find(|ticket| tickets[**ticket as usize].done.is_some()).copied() {
            drop(state);
            self.see_record(number, there, how, now);
            return;
        }
        let program = &mut self.programs[number as usize];
        for ticket in &*wanted {
            tickets[*ticket as usize].waiter = Some(number);
        }
        program.watched.clear();
        program.watched.append(wanted);
        program.waits = Some((now, how));
        program.turn = program.turn.wrapping_add(1);
        if let Some(at_most) = at_most {
            let turn = program.turn;
            self.events.after(at_most, Event::Timeout { program: number, turn });
        }
    }

    /// A program's wait times out, if it is still the wait with this number.
    pub(super) fn timeout_of_program(&mut self, number: u32, turn: u32) {
        let now = self.events.now();
        let program = &mut self.programs[number as usize];
        let Some((since, _)) = program.waits.filter(|_| program.turn == turn) else { return };
        program.waits = None;
        let mut state = self.shared.0.borrow_mut();
        for watched in program.watched.drain(..) {
            state.tickets[watched as usize].waiter = None;
        }
        drop(state);
        self.did(number, |cycles| cycles.polling += now.since(since));
        if since > now {
            // It still touches pages.
            self.events.at(since, Event::Program(number));
        } else {
            self.go_on_program(number);
        }
    }

    /// A program that has waited since `since` sees a ticket's record.
    fn see_record(&mut self, number: u32, ticket: u32, how: Wait, since: Picos) {
        let state = self.shared.0.borrow();
        let entry = &state.tickets[ticket as usize];
        let (written, library) = (entry.done.unwrap_or(since), entry.library);
        drop(state);
        let (costs, complete) = (self.machine.wait, self.machine.library.of(library).complete);
        let mut seen = since;
        self.did(number, |cycles| {
            seen = cycles.wait(&costs, how, since, written);
            cycles.busy += complete;
        });
        self.events.at(seen + complete, Event::Program(number));
    }

    /// A program touches pages for `time`, during which it does not wait. Returns the queue of the record's work.
    pub(super) fn program_touches(&mut self, record: u64, time: Picos) -> Option<QueueId> {
        let number = usize::try_from(record >> 6 & u64::from(u32::MAX)).ok()?;
        let (queue, waiter) = self.shared.0.borrow().tickets.get(number).map(|entry| (entry.queue, entry.waiter))?;
        if let Some(waiter) = waiter
            && let Some((since, _)) = &mut self.programs[waiter as usize].waits
        {
            *since += time;
            self.did(waiter, |cycles| cycles.busy += time);
        }
        Some(queue)
    }

    /// A completion record of a program was written.
    pub(super) fn program_recorded(&mut self, record: u64) {
        let now = self.events.now();
        let mut state = self.shared.0.borrow_mut();
        // Cannot lose bits: the address was made from such a number.
        let number = u32::try_from(record >> 6 & u64::from(u32::MAX)).unwrap_or(0);
        let entry = &mut state.tickets[number as usize];
        entry.done = Some(now);
        let (queue, waiter, dropped) = (entry.queue, entry.waiter, entry.dropped);
        if dropped {
            state.free.push(number);
        }
        let program = waiter.map(|waiter| &mut self.programs[waiter as usize]);
        let waits = program.and_then(|program| {
            for watched in program.watched.drain(..) {
                state.tickets[watched as usize].waiter = None;
            }
            program.waits.take()
        });
        drop(state);
        if let (Some(waiter), Some((since, how))) = (waiter, waits) {
            self.see_record(waiter, number, how, since);
        }
        self.leave(queue);
    }
}
