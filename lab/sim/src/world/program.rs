//! Programs: threads whose work is written as ordinary code, an `async fn` for each.
//!
//! A program does one thing at a time; each `.await` is an [`Act`] that it lays on its desk, and the world polls it again when that is
//! over, at that time. So a program reads like the thread it stands for, and thousands of them cost a small allocation each.

use super::descriptors::descriptor;
use super::{Event, Whose, World};
use crate::machine::Rate;
use crate::pipes::Class;
use crate::places::Place;
use crate::ps::Ps;
use crate::work::{Lane, Wait};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use telpher_abi::{Descriptor, Opcode};
use telpher_model::Response;

/// What a program lays before the world.
#[derive(Clone, Debug)]
enum Act {
    /// Its core works for a while.
    Busy(Ps),
    /// Its core has nothing to do for a while.
    Sleep(Ps),
    /// Its core does an operation itself.
    Software { op: Opcode, bytes: u64, src: Place, dst: Place },
    /// It submits the work of a ticket.
    Submit(u32),
    /// It waits for a ticket's record.
    Wait(u32, Wait),
    /// It waits until all who are expected at a barrier are there.
    Meet(usize),
    /// It waits for one of the gifts of a signal.
    Until(usize),
    /// Its core reads, or writes, so many bytes of a node at most so fast.
    Traffic { bytes: u64, node: usize, write: bool, most: Rate },
}

/// What programs and world tell each other.
#[derive(Clone, Debug, Default)]
pub(super) struct Desk(Rc<RefCell<Papers>>);

#[derive(Debug, Default)]
struct Papers {
    now: Ps,
    /// What the program that runs lays down.
    act: Option<Act>,
    tickets: Vec<Slip>,
    free: Vec<u32>,
    barriers: Vec<Meeting>,
    signals: Vec<Gifts>,
    /// Programs that got what they waited for from the one that runs.
    woken: Vec<u32>,
}

/// A piece of work that a program gave away.
#[derive(Clone, Copy, Debug)]
struct Slip {
    descriptor: Descriptor,
    lane: Lane,
    done: Option<Ps>,
    /// Who waits for it, and how.
    waiter: Option<(u32, Wait)>,
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
    /// Its record is written.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.desk.0.borrow().tickets[self.number as usize].done.is_some()
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

/// The core a program is on: what it can do.
#[derive(Clone, Debug)]
pub struct Core {
    node: usize,
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
        self.does(Act::Software { op, bytes, src, dst }).await;
    }

    /// Gives an operation on two regions (see [`World::places`]) to a queue; over when the core may go on. A full queue is asked
    /// again until it has room.
    pub async fn submit(&self, lane: Lane, descriptor: Descriptor) -> Ticket {
        let number = self.desk.0.borrow_mut().issue(lane, descriptor);
        self.does(Act::Submit(number)).await;
        Ticket { number, desk: self.desk.clone() }
    }

    /// Waits for a record.
    pub async fn wait(&self, ticket: &Ticket, how: Wait) {
        self.does(Act::Wait(ticket.number, how)).await;
    }

    /// Reads, or writes, so many bytes of a node, at most so fast.
    pub async fn traffic(&self, bytes: u64, node: usize, write: bool, most: Rate) {
        self.does(Act::Traffic { bytes, node, write, most }).await;
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
}

impl Papers {
    fn issue(&mut self, lane: Lane, descriptor: Descriptor) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| u32::try_from(self.tickets.len()).unwrap_or(u32::MAX));
        let descriptor = descriptor.with_record(record_of(number));
        let slip = Slip { descriptor, lane, done: None, waiter: None, dropped: false };
        match self.tickets.get_mut(number as usize) {
            Some(old) => *old = slip,
            None => self.tickets.push(slip),
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
    /// Node its core is at.
    node: usize,
    /// Time in which its core worked, and in which it waited.
    pub(super) busy: Ps,
    pub(super) waiting: Ps,
    since: Ps,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program(busy {:?}, waiting {:?})", self.busy, self.waiting)
    }
}

impl World {
    /// Adds a program on a core of a node; it begins at once. Its number.
    pub fn spawn<P, F>(&mut self, node: usize, program: P) -> usize
    where
        P: FnOnce(Core) -> F,
        F: Future<Output = ()> + 'static,
    {
        let core = Core { node, desk: self.desk.clone() };
        let future: Pin<Box<dyn Future<Output = ()>>> = Box::pin(program(core));
        let number = self.programs.len();
        self.programs.push(Program { future: Some(future), node, busy: Ps::ZERO, waiting: Ps::ZERO, since: Ps::ZERO });
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
        drop(papers);
        program.since = now;
        if let (Some(act), false) = (act, over) {
            self.begin(number, act);
        }
    }

    fn begin(&mut self, number: u32, act: Act) {
        let now = self.agenda.now();
        match act {
            Act::Busy(time) => {
                self.programs[number as usize].busy += time;
                self.agenda.after(time, Event::Program(number));
            }
            Act::Sleep(time) => self.agenda.after(time, Event::Program(number)),
            Act::Software { op, bytes, src, dst } => {
                let core = self.programs[number as usize].node;
                let ranges = [(src, false), (dst, true)];
                let ranges = if op == Opcode::Fill { &ranges[1..] } else { &ranges[..] };
                for (place, write) in ranges {
                    self.through_cache(number, core, *place, bytes, *write);
                }
                let path = self.core_path(core, ranges);
                let class = self.pipes.class(&path.pipes, Some(path.most));
                self.pipes.weigh(class, path.weight);
                self.pipes.start(now, class, bytes, Whose::Program(number));
            }
            Act::Submit(ticket) => {
                let prepare = self.machine.library.prepare;
                self.programs[number as usize].busy += prepare;
                let at = prepare + self.machine.submit.transit;
                self.agenda.after(at, Event::Offer { program: number, ticket });
            }
            Act::Wait(ticket, how) => {
                let mut papers = self.desk.0.borrow_mut();
                let slip = &mut papers.tickets[ticket as usize];
                if slip.done.is_some() {
                    self.agenda.after(self.machine.wait.poll, Event::Program(number));
                } else {
                    slip.waiter = Some((number, how));
                }
            }
            Act::Traffic { bytes, node, write, most } => {
                let class = self.traffic_class(self.programs[number as usize].node, node, write, most);
                self.pipes.start(now, class, bytes, Whose::Program(number));
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
    fn traffic_class(&mut self, core: usize, node: usize, write: bool, most: Rate) -> Class {
        let key = (core, node, write, most);
        if let Some(class) = self.traffic.get(&key) {
            return *class;
        }
        let path = self.core_path(core, &[(Place::on(node), write)]);
        let class = self.pipes.class(&path.pipes, Some(most.min(path.most)));
        self.pipes.weigh(class, path.weight);
        self.traffic.insert(key, class);
        class
    }

    /// 64 bytes of a program reach a portal.
    pub(super) fn offer_of_program(&mut self, program: u32, ticket: u32) {
        let Slip { descriptor, lane, .. } = self.desk.0.borrow().tickets[ticket as usize];
        let submit = self.machine.submit;
        let back = if lane.shared { submit.enqcmd } else { submit.movdir }.since(submit.transit);
        match self.offer(lane, descriptor) {
            Response::Retry => self.agenda.after(back + submit.transit, Event::Offer { program, ticket }),
            response => {
                self.agenda.after(back, Event::Program(program));
                if response == Response::Accepted {
                    self.wake(lane.device, lane.wq);
                }
            }
        }
    }

    /// A completion record of a program was written.
    pub(super) fn program_recorded(&mut self, record: u64) {
        let now = self.agenda.now();
        let mut papers = self.desk.0.borrow_mut();
        // Cannot lose bits: made of such a number.
        let number = u32::try_from(record >> 6 & u64::from(u32::MAX)).unwrap_or(0);
        let slip = &mut papers.tickets[number as usize];
        slip.done = Some(now);
        if let Some((program, how)) = slip.waiter.take() {
            let wait = &self.machine.wait;
            let notice = match how {
                Wait::Poll => wait.poll,
                Wait::Umwait | Wait::Sleep => wait.poll + wait.umwait,
                Wait::Interrupt => wait.interrupt,
            };
            self.agenda.after(notice, Event::Program(program));
        }
        if slip.dropped {
            papers.free.push(number);
        }
    }
}
