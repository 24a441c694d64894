//! Programs: threads whose work is written as ordinary code, an `async fn` for each.
//!
//! A program does one thing at a time; each `.await` is an [`Act`] that it lays on its desk, and the world polls it again when that is
//! over, at that time. So a program reads like the thread it stands for, and thousands of them cost a small allocation each.

use super::cycles::Cycles;
use super::descriptors::{descriptor, needs_record};
use super::memory::Haul;
use super::software::Task;
use super::{Event, Whose, World};
use crate::machine::Rate;
use crate::places::Place;
use crate::ps::Ps;
use crate::work::{Lane, Library, Through, Wait, Walk};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use telpher_abi::{Descriptor, Opcode};
use telpher_model::Response;

/// What a program lays before the world.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Its core works for a while.
    Busy(Ps),
    /// Its core has nothing to do for a while.
    Sleep(Ps),
    /// Its core does an operation itself.
    Software { op: Opcode, bytes: u64, places: [Place; 2], walk: Walk },
    /// It submits the work of a ticket.
    Submit { ticket: u32, patient: bool },
    /// It looks at a ticket's record.
    Look,
    /// It waits for the record of one of the tickets in the papers, or so long.
    Wait(Wait, Option<Ps>),
    /// It waits until all who are expected at a barrier are there.
    Meet(usize),
    /// It waits for one of the gifts of a signal.
    Until(usize),
    /// Its core reads, or writes, so many bytes of a node at most so fast.
    Traffic { bytes: u64, node: usize, write: bool, most: Rate, sharing: u32 },
}

/// What programs and world tell each other.
#[derive(Clone, Debug, Default)]
pub(super) struct Desk(Rc<RefCell<Papers>>);

#[derive(Debug, Default)]
struct Papers {
    now: Ps,
    /// What the program that runs lays down.
    act: Option<Act>,
    /// The tickets it waits for.
    wanted: Vec<u32>,
    tickets: Vec<Slip>,
    free: Vec<u32>,
    barriers: Vec<Meeting>,
    signals: Vec<Gifts>,
    /// Programs that got what they waited for from the one that runs.
    woken: Vec<u32>,
    /// By program.
    cycles: Vec<Cycles>,
    /// What the program that runs has done for threads.
    done: Vec<Done>,
}

/// An operation that a program did for a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) thread: usize,
    pub(super) arrived: Ps,
    pub(super) begun: Ps,
    pub(super) bytes: u64,
}

/// A piece of work that a program gave away.
#[derive(Clone, Debug)]
struct Slip {
    descriptor: Descriptor,
    /// A batch's members, until they are submitted.
    members: Vec<Descriptor>,
    /// Where a list for batches is that this number's tickets had.
    list: Option<u64>,
    lane: Lane,
    library: Library,
    through: Through,
    /// A queue had room for it.
    taken: bool,
    done: Option<Ps>,
    /// Who waits for it.
    waiter: Option<u32>,
    /// Nobody will ask any more.
    dropped: bool,
}

#[derive(Debug, Default)]
struct Meeting {
    expected: usize,
    there: Vec<u32>,
}

#[derive(Debug, Default)]
struct Gifts {
    /// Given, and not yet taken.
    left: u64,
    waiting: VecDeque<u32>,
}

/// Work in flight. Dropped, it goes on, and nobody will know.
#[derive(Debug)]
pub struct Ticket {
    number: u32,
    desk: Desk,
}

impl Ticket {
    /// Its record is written. A program that asks its core for it takes [`Core::look`].
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done_at().is_some()
    }

    /// When its record was written.
    #[must_use]
    pub fn done_at(&self) -> Option<Ps> {
        self.desk.0.borrow().tickets[self.number as usize].done
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut papers = self.desk.0.borrow_mut();
        let slip = &mut papers.tickets[self.number as usize];
        slip.dropped = true;
        if slip.done.is_some() {
            papers.free.push(self.number);
        }
    }
}

/// A point at which programs wait for each other.
#[derive(Clone, Debug)]
pub struct Barrier(usize);

/// What programs give each other: each gift lets one who waits for it go on, in the order in which they came. A lock is one with one
/// gift, a run queue one with a gift for each core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signal(usize);

/// The core a program is on: what it can do, and with what software.
#[derive(Clone, Debug)]
pub struct Core {
    node: usize,
    program: usize,
    library: Library,
    through: Through,
    walk: Walk,
    desk: Desk,
}

/// An act under way: laid down at the first poll, over at the second.
struct Doing<'a> {
    desk: &'a Desk,
    act: Option<Act>,
}

impl Future for Doing<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match self.act.take() {
            None => Poll::Ready(()),
            act => {
                self.desk.0.borrow_mut().act = act;
                Poll::Pending
            }
        }
    }
}

impl Core {
    fn does(&self, act: Act) -> Doing<'_> {
        Doing { desk: &self.desk, act: Some(act) }
    }

    /// The same core with another library before its queues.
    #[must_use]
    pub fn with_library(&self, library: Library) -> Core {
        Core { library, ..self.clone() }
    }

    /// The same core with another way to its queues.
    #[must_use]
    pub fn with_way(&self, through: Through) -> Core {
        Core { through, ..self.clone() }
    }

    /// The same core whose own operations follow each other otherwise; at first each is [`Walk::Alone`].
    #[must_use]
    pub fn with_walk(&self, walk: Walk) -> Core {
        Core { walk, ..self.clone() }
    }

    /// What time it is.
    #[must_use]
    pub fn now(&self) -> Ps {
        self.desk.0.borrow().now
    }

    /// Node the core is at.
    #[must_use]
    pub fn node(&self) -> usize {
        self.node
    }

    /// What its program spent its time on so far.
    #[must_use]
    pub fn cycles(&self) -> Cycles {
        self.desk.0.borrow().cycles.get(self.program).copied().unwrap_or_default()
    }

    /// Works for a while on what needs no memory.
    pub async fn busy(&self, time: Ps) {
        self.does(Act::Busy(time)).await;
    }

    /// Does nothing for a while.
    pub async fn sleep(&self, time: Ps) {
        self.does(Act::Sleep(time)).await;
    }

    /// Does an operation itself.
    pub async fn software(&self, op: Opcode, bytes: u64, src: Place, dst: Place) {
        self.does(Act::Software { op, bytes, places: [src, dst], walk: self.walk }).await;
    }

    /// Gives an operation on two regions (see [`World::places`]) to a queue; over when the core may go on. A full queue is asked
    /// again until it has room.
    pub async fn submit(&self, lane: Lane, descriptor: Descriptor) -> Ticket {
        self.send(lane, descriptor, Vec::new(), true).await.0
    }

    /// The same for several operations as one batch; of one, that by itself.
    pub async fn submit_batch(&self, lane: Lane, members: &[Descriptor]) -> Ticket {
        self.send_batch(lane, members, true).await.0
    }

    /// Gives an operation to a queue if it has room.
    pub async fn try_submit(&self, lane: Lane, descriptor: Descriptor) -> Option<Ticket> {
        let (ticket, taken) = self.send(lane, descriptor, Vec::new(), false).await;
        taken.then_some(ticket)
    }

    /// The same for a batch.
    pub async fn try_submit_batch(&self, lane: Lane, members: &[Descriptor]) -> Option<Ticket> {
        let (ticket, taken) = self.send_batch(lane, members, false).await;
        taken.then_some(ticket)
    }

    async fn send_batch(&self, lane: Lane, members: &[Descriptor], patient: bool) -> (Ticket, bool) {
        match *members {
            [one] => self.send(lane, one, Vec::new(), patient).await,
            _ => self.send(lane, Descriptor::nop(), members.to_vec(), patient).await,
        }
    }

    async fn send(
        &self,
        lane: Lane,
        descriptor: Descriptor,
        members: Vec<Descriptor>,
        patient: bool,
    ) -> (Ticket, bool) {
        let number = self.issue(lane, descriptor, members);
        self.does(Act::Submit { ticket: number, patient }).await;
        let ticket = Ticket { number, desk: self.desk.clone() };
        let mut papers = self.desk.0.borrow_mut();
        let (now, slip) = (papers.now, number as usize);
        let taken = papers.tickets[slip].taken;
        if !taken {
            // Nobody has it; its number is free when the ticket is dropped.
            papers.tickets[slip].done = Some(now);
        }
        drop(papers);
        (ticket, taken)
    }

    /// Looks whether a record is there, which takes a moment.
    pub async fn look(&self, ticket: &Ticket) -> bool {
        self.does(Act::Look).await;
        ticket.is_done()
    }

    /// Waits for a record.
    pub async fn wait(&self, ticket: &Ticket, how: Wait) {
        self.wait_any(&[ticket], how).await;
    }

    /// Polls for a record for a while; whether it came.
    pub async fn poll(&self, ticket: &Ticket, at_most: Ps) -> bool {
        {
            let mut papers = self.desk.0.borrow_mut();
            papers.wanted.clear();
            papers.wanted.push(ticket.number);
        }
        self.does(Act::Wait(Wait::Poll, Some(at_most))).await;
        ticket.is_done()
    }

    /// An operation of a thread that somebody accounts for is done.
    pub(super) fn done(&self, done: Done) {
        self.desk.0.borrow_mut().done.push(done);
    }

    /// Waits until one of several records is there, and looks which: the first of them that is. Of none there is nothing to wait for.
    pub async fn wait_any(&self, tickets: &[&Ticket], how: Wait) -> usize {
        if tickets.is_empty() {
            return 0;
        }
        {
            let mut papers = self.desk.0.borrow_mut();
            papers.wanted.clear();
            papers.wanted.extend(tickets.iter().map(|ticket| ticket.number));
        }
        self.does(Act::Wait(how, None)).await;
        tickets.iter().position(|ticket| ticket.is_done()).unwrap_or(0)
    }

    /// Reads, or writes, so many bytes of a node, at most so fast, as one of so many hardware threads of its core.
    pub async fn traffic(&self, bytes: u64, node: usize, write: bool, most: Rate, sharing: u32) {
        self.does(Act::Traffic { bytes, node, write, most, sharing }).await;
    }

    /// Waits for a gift of a signal; takes no time where one is left.
    pub async fn until(&self, signal: Signal) {
        self.does(Act::Until(signal.0)).await;
    }

    /// Gives one.
    pub fn give(&self, signal: Signal) {
        let papers = &mut *self.desk.0.borrow_mut();
        let gifts = &mut papers.signals[signal.0];
        match gifts.waiting.pop_front() {
            Some(program) => papers.woken.push(program),
            None => gifts.left += 1,
        }
    }

    /// Programs that wait for a gift.
    #[must_use]
    pub fn waiting(&self, signal: Signal) -> usize {
        self.desk.0.borrow().signals[signal.0].waiting.len()
    }

    /// Waits for all whom a barrier expects.
    pub async fn meet(&self, barrier: &Barrier) {
        self.does(Act::Meet(barrier.0)).await;
    }

    fn issue(&self, lane: Lane, descriptor: Descriptor, members: Vec<Descriptor>) -> u32 {
        let mut papers = self.desk.0.borrow_mut();
        let number = papers.free.pop().unwrap_or_else(|| u32::try_from(papers.tickets.len()).unwrap_or(u32::MAX));
        let mut slip = Slip {
            descriptor: descriptor.with_record(record_of(number)),
            members,
            list: None,
            lane,
            library: self.library,
            through: self.through,
            taken: true,
            done: None,
            waiter: None,
            dropped: false,
        };
        match papers.tickets.get_mut(number as usize) {
            Some(old) => {
                slip.list = old.list;
                *old = slip;
            }
            None => papers.tickets.push(slip),
        }
        number
    }
}

/// Addresses of programs' records: bits 62 and 61, the ticket.
fn record_of(ticket: u32) -> u64 {
    3 << 61 | u64::from(ticket) << 6
}

/// A record is a program's.
pub(super) fn is_program(record: u64) -> bool {
    record >> 61 == 3
}

/// A thread whose work is code.
pub(super) struct Program {
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    node: usize,
    /// Since when it waits for records, and how; and the tickets they are of.
    waits: Option<(Ps, Wait)>,
    watched: Vec<u32>,
    /// Which of its waits that is.
    turn: u32,
    /// Since when it waits for an entry of a queue.
    blocked: Option<Ps>,
    /// The core's own work under way: since when.
    task: Option<(Task, Ps)>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program(waits {:?} for {:?})", self.waits, self.watched)
    }
}

impl World {
    /// Adds a program on a core of a node; it begins at once. Its number.
    pub fn spawn<P, F>(&mut self, node: usize, program: P) -> usize
    where
        P: FnOnce(Core) -> F,
        F: Future<Output = ()> + 'static,
    {
        let number = self.programs.len();
        let (library, through, walk) = (Library::default(), Through::default(), Walk::default());
        let core = Core { node, program: number, library, through, walk, desk: self.desk.clone() };
        self.desk.0.borrow_mut().cycles.push(Cycles::default());
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
        self.agenda.after(Ps::ZERO, Event::Program(u32::try_from(number).unwrap_or(u32::MAX)));
        number
    }

    /// A barrier for so many programs; it can be met again and again.
    pub fn barrier(&mut self, expected: usize) -> Barrier {
        let mut papers = self.desk.0.borrow_mut();
        papers.barriers.push(Meeting { expected, there: Vec::new() });
        Barrier(papers.barriers.len() - 1)
    }

    /// A signal with so many gifts to begin with.
    pub fn signal(&mut self, gifts: u64) -> Signal {
        let mut papers = self.desk.0.borrow_mut();
        papers.signals.push(Gifts { left: gifts, waiting: VecDeque::new() });
        Signal(papers.signals.len() - 1)
    }

    /// The descriptor of an operation on two regions of [`places`](World::places), for [`Core::submit`].
    #[must_use]
    pub fn descriptor(op: Opcode, src: u64, dst: u64, size: u32) -> Descriptor {
        descriptor(op, src, dst, size)
    }

    /// What a program spent its time on.
    #[must_use]
    pub fn cycles(&self, program: usize) -> Cycles {
        self.desk.0.borrow().cycles.get(program).copied().unwrap_or_default()
    }

    /// Accounts for what a program did.
    pub(super) fn did(&mut self, program: u32, what: impl FnOnce(&mut Cycles)) {
        what(&mut self.desk.0.borrow_mut().cycles[program as usize]);
    }

    /// A program's core works for a while; then it goes on.
    fn works(&mut self, program: u32, time: Ps) {
        self.did(program, |cycles| cycles.busy += time);
        self.agenda.after(time, Event::Program(program));
    }

    /// What a program's act is over; it says what comes next.
    pub(super) fn go_on_program(&mut self, number: u32) {
        let now = self.agenda.now();
        let program = &mut self.programs[number as usize];
        let Some(future) = program.future.as_mut() else { return };
        self.desk.0.borrow_mut().now = now;
        let over = future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        if over {
            program.future = None;
        }
        let mut papers = self.desk.0.borrow_mut();
        let act = papers.act.take();
        for other in papers.woken.drain(..) {
            self.agenda.after(Ps::ZERO, Event::Program(other));
        }
        let done = std::mem::take(&mut papers.done);
        let cycles = papers.cycles[number as usize];
        drop(papers);
        for done in done {
            self.account(done.thread, done, cycles);
        }
        if let (Some(act), false) = (act, over) {
            self.begin(number, act);
        }
    }

    fn begin(&mut self, number: u32, act: Act) {
        let now = self.agenda.now();
        match act {
            Act::Busy(time) => self.works(number, time),
            Act::Sleep(time) => {
                self.did(number, |cycles| cycles.idle += time);
                self.agenda.after(time, Event::Program(number));
            }
            Act::Software { op, bytes, places, walk } => {
                let task = self.task(self.programs[number as usize].node, op, bytes, places, walk);
                self.programs[number as usize].task = Some((task, now));
                self.begin_task(task, Whose::Program(number), Event::Program(number));
                if !task.flows() {
                    self.did(number, |cycles| cycles.busy += task.besides());
                }
            }
            Act::Traffic { bytes, node, write, most, sharing } => {
                let (core, once) = (self.programs[number as usize].node, Some((node, 1)));
                let (read, write) = if write { (None, once) } else { (once, None) };
                let task = Task::through(self.core_class(Haul { core, read, write, most, sharing }), bytes);
                self.programs[number as usize].task = Some((task, now));
                self.begin_task(task, Whose::Program(number), Event::Program(number));
            }
            Act::Until(signal) => {
                let gifts = &mut self.desk.0.borrow_mut().signals[signal];
                match gifts.left.checked_sub(1) {
                    Some(left) => {
                        gifts.left = left;
                        self.agenda.after(Ps::ZERO, Event::Program(number));
                    }
                    None => gifts.waiting.push_back(number),
                }
            }
            Act::Submit { ticket, patient } => self.send(number, ticket, patient),
            Act::Look => self.works(number, self.machine.wait.look),
            Act::Wait(how, at_most) => self.begin_wait(number, how, at_most),
            Act::Meet(barrier) => {
                let mut papers = self.desk.0.borrow_mut();
                let meeting = &mut papers.barriers[barrier];
                meeting.there.push(number);
                if meeting.there.len() >= meeting.expected {
                    for other in meeting.there.drain(..) {
                        self.agenda.after(Ps::ZERO, Event::Program(other));
                    }
                }
            }
        }
    }

    /// The class of what a core of a node reads or writes at another.
    /// The last byte of a program's own operation has gone.
    pub(super) fn program_flowed(&mut self, number: u32) {
        let now = self.agenda.now();
        let Some((task, since)) = self.programs[number as usize].task.take() else { return };
        self.did(number, |cycles| cycles.busy += now.since(since) + task.besides());
        self.task_flowed(task, Event::Program(number));
    }

    /// A program prepares what a ticket is for and sends it, once there is an entry for it.
    pub(super) fn send(&mut self, number: u32, ticket: u32, patient: bool) {
        let now = self.agenda.now();
        let mut papers = self.desk.0.borrow_mut();
        let slip = &mut papers.tickets[ticket as usize];
        let (lane, library) = (slip.lane, slip.library);
        let mut members = std::mem::take(&mut slip.members);
        for member in members.iter_mut().filter(|member| needs_record(member.opcode())) {
            *member = member.with_record(record_of(ticket));
        }
        let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
        if count > 0 {
            let list = self.places.list_again(slip.list, Place::on(self.programs[number as usize].node), members);
            slip.list = Some(list);
            slip.descriptor = Descriptor::batch(list, count).with_record(record_of(ticket));
        }
        drop(papers);
        let prepare = self.machine.preparing(library, count, 1);
        self.did(number, |cycles| cycles.busy += prepare);
        self.programs[number as usize].blocked = Some(now + prepare);
        if patient {
            self.agenda.after(prepare, Event::Enter { program: number, ticket });
        } else if self.try_enter(lane) {
            self.sent(number, ticket, prepare, false);
        } else {
            // Its own count says so.
            self.desk.0.borrow_mut().tickets[ticket as usize].taken = false;
            self.programs[number as usize].blocked = None;
            self.agenda.after(prepare, Event::Program(number));
        }
    }

    /// A program's prepared descriptor gets an entry of its queue, or waits for one.
    pub(super) fn enter_of_program(&mut self, number: u32, ticket: u32) {
        let lane = self.desk.0.borrow().tickets[ticket as usize].lane;
        if self.enter(lane, Event::Enter { program: number, ticket }) {
            self.sent(number, ticket, Ps::ZERO, true);
        }
    }

    /// Its instruction begins after a while.
    fn sent(&mut self, number: u32, ticket: u32, after: Ps, patient: bool) {
        let now = self.agenda.now();
        let Slip { lane, through, .. } = self.desk.0.borrow().tickets[ticket as usize];
        if let Some(since) = self.programs[number as usize].blocked.take() {
            self.did(number, |cycles| cycles.polling += now.since(since));
        }
        let (call, instruct) = self.machine.submit.instructing(lane, through);
        self.did(number, |cycles| cycles.busy += instruct);
        let at = after + call + self.machine.submit.transit;
        self.agenda.after(at, Event::Offer { program: number, ticket, patient });
        if !lane.shared {
            self.agenda.after(after + instruct, Event::Program(number));
        }
    }

    /// 64 bytes of a program reach a portal.
    pub(super) fn offer_of_program(&mut self, program: u32, ticket: u32, patient: bool) {
        let Slip { descriptor, lane, through, .. } = self.desk.0.borrow().tickets[ticket as usize];
        let submit = self.machine.submit;
        let (call, instruct) = submit.instructing(lane, through);
        let back = instruct.since(call + submit.transit);
        let response = self.offer(lane, descriptor);
        if response == Response::Accepted {
            self.wake(lane.device, lane.wq);
        }
        match response {
            Response::Retry if patient => {
                self.did(program, |cycles| cycles.busy += instruct);
                let again = Event::Offer { program, ticket, patient };
                let period = back + call + submit.transit;
                self.send_back(lane.device, Whose::Program(program), again, instruct, period);
            }
            _ if lane.shared => {
                self.desk.0.borrow_mut().tickets[ticket as usize].taken = response == Response::Accepted;
                self.agenda.after(back, Event::Program(program));
            }
            _ => {}
        }
    }

    /// A program waits for one of the tickets in the papers.
    fn begin_wait(&mut self, number: u32, how: Wait, at_most: Option<Ps>) {
        let now = self.agenda.now();
        let mut papers = self.desk.0.borrow_mut();
        let Papers { wanted, tickets, .. } = &mut *papers;
        if let Some(there) = wanted.iter().find(|ticket| tickets[**ticket as usize].done.is_some()).copied() {
            drop(papers);
            self.saw(number, there, how, now);
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
            self.agenda.after(at_most, Event::Timeout { program: number, turn });
        }
    }

    /// A program has waited long enough, if this is still its wait.
    pub(super) fn timeout_of_program(&mut self, number: u32, turn: u32) {
        let now = self.agenda.now();
        let program = &mut self.programs[number as usize];
        let Some((since, _)) = program.waits.filter(|_| program.turn == turn) else { return };
        program.waits = None;
        let mut papers = self.desk.0.borrow_mut();
        for watched in program.watched.drain(..) {
            papers.tickets[watched as usize].waiter = None;
        }
        drop(papers);
        self.did(number, |cycles| cycles.polling += now.since(since));
        if since > now {
            // It still touches pages.
            self.agenda.at(since, Event::Program(number));
        } else {
            self.go_on_program(number);
        }
    }

    /// A program that waits since then sees a ticket's record.
    fn saw(&mut self, number: u32, ticket: u32, how: Wait, since: Ps) {
        let papers = self.desk.0.borrow();
        let slip = &papers.tickets[ticket as usize];
        let (written, library) = (slip.done.unwrap_or(since), slip.library);
        drop(papers);
        let (costs, complete) = (self.machine.wait, self.machine.library.of(library).complete);
        let mut seen = since;
        self.did(number, |cycles| {
            seen = cycles.wait(&costs, how, since, written);
            cycles.busy += complete;
        });
        self.agenda.at(seen + complete, Event::Program(number));
    }

    /// A program touches pages for a while, which it does not wait then; where the work of the record was submitted.
    pub(super) fn program_touches(&mut self, record: u64, time: Ps) -> Option<Lane> {
        let number = usize::try_from(record >> 6 & u64::from(u32::MAX)).ok()?;
        let (lane, waiter) = self.desk.0.borrow().tickets.get(number).map(|slip| (slip.lane, slip.waiter))?;
        if let Some(waiter) = waiter
            && let Some((since, _)) = &mut self.programs[waiter as usize].waits
        {
            *since += time;
            self.did(waiter, |cycles| cycles.busy += time);
        }
        Some(lane)
    }

    /// A completion record of a program was written.
    pub(super) fn program_recorded(&mut self, record: u64) {
        let now = self.agenda.now();
        let mut papers = self.desk.0.borrow_mut();
        // Cannot lose bits: made of such a number.
        let number = u32::try_from(record >> 6 & u64::from(u32::MAX)).unwrap_or(0);
        let slip = &mut papers.tickets[number as usize];
        slip.done = Some(now);
        let (lane, waiter, dropped) = (slip.lane, slip.waiter, slip.dropped);
        if dropped {
            papers.free.push(number);
        }
        let program = waiter.map(|waiter| &mut self.programs[waiter as usize]);
        let waits = program.and_then(|program| {
            for watched in program.watched.drain(..) {
                papers.tickets[watched as usize].waiter = None;
            }
            program.waits.take()
        });
        drop(papers);
        if let (Some(waiter), Some((since, how))) = (waiter, waits) {
            self.saw(waiter, number, how, since);
        }
        self.leave(lane);
    }
}
