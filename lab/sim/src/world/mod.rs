//! A machine at work: threads submit, devices execute, time passes from event to event.
//!
//! ```text
//!  thread ─prepare─submit─► portal ──► queue ──► front end ──► data path ──► tail ──► record
//!    ▲                                 (the model's own)        pipes                   │
//!    └───────────────────────────── wait ◄──────────────────────────────────────────────┘
//! ```
//!
//! Queues, arbiter, checks and batches are `telpher-model`'s: an engine is stepped, and what it yields is accounted for instead of
//! done.

mod cache;
mod credits;
mod cycles;
mod descriptors;
mod device;
mod engine;
mod fault;
mod forecast;
mod memory;
mod merge;
mod mover;
mod pace;
mod program;
mod sent_back;
mod software;
mod thread;
mod timeline;
mod uses;

use crate::agenda::Agenda;
use crate::latencies::Latencies;
use crate::machine::Machine;
use crate::pipes::Pipes;
use crate::places::Places;
use crate::ps::Ps;
use cache::Cache;
pub use cache::{CacheUse, Chase, Chased};
use credits::Credits;
pub use cycles::Cycles;
use device::Dsa;
use memory::Memory;
use program::Program;
pub use program::{Barrier, Core, Signal, Ticket};
use telpher_device::{Capabilities, Config, StartError};
use thread::Thread;
pub use timeline::Timeline;
pub use uses::{EngineUse, PipeUse, Resource, Translations};

/// An engine of a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct EngineId {
    pub(crate) device: u16,
    pub(crate) engine: u16,
}

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Event {
    /// A thread goes on.
    Thread(u32),
    /// A thread has done an operation itself.
    Worked(u32),
    /// A program goes on.
    Program(u32),
    /// A program has waited long enough, if this is still its wait.
    Timeout { program: u32, turn: u32 },
    /// A program's descriptor is prepared.
    Enter { program: u32, ticket: u32 },
    /// 64 bytes of a program reach a portal.
    Offer { program: u32, ticket: u32, patient: bool },
    /// 64 bytes of a thread reach a portal.
    Portal { thread: u32, slot: u32 },
    /// The front end of an engine may take the next descriptor.
    Front(EngineId),
    /// The data path of an engine may take the next descriptor.
    Data(EngineId),
    /// The tail of a descriptor is over: its record may be written.
    Tail { at: EngineId, lane: u8 },
    /// A line that is written in part begins to hold up its device, or ends to.
    Merge { at: EngineId, begins: bool },
    /// What missed pages is submitted again.
    Again(u32),
    /// A chase reads on.
    Chase(u32),
}

/// Whose bytes flow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Whose {
    /// The descriptor's in an engine's data path.
    Engine(EngineId),
    /// A thread's, whose core moves them itself.
    Thread(u32),
    /// A program's, likewise.
    Program(u32),
}

/// A machine, its devices and the threads on it.
#[derive(Debug)]
pub struct World {
    machine: Machine,
    agenda: Agenda<Event>,
    pipes: Pipes<Whose>,
    memory: Memory,
    cache: Cache,
    /// Where what is read or written lies.
    pub places: Places,
    devices: Vec<Dsa>,
    threads: Vec<Thread>,
    programs: Vec<Program>,
    /// By load.
    latencies: Vec<Latencies>,
    desk: program::Desk,
    /// What movers decide, by what of their policy decides it.
    movers: Vec<(crate::work::Moves, std::rc::Rc<mover::Office>)>,
    /// By device and queue.
    credits: Vec<Vec<Credits>>,
    /// Those who ask a full queue again and again.
    sent_back: Vec<sent_back::SentBack>,
    descriptors: u64,
    /// Descriptors that a device refused.
    refused: u64,
    translations: Translations,
    repairs: fault::Repairs,
}

impl World {
    /// A machine whose first devices are configured so, one configuration each.
    ///
    /// # Errors
    /// What a device says of its configuration.
    pub fn new(machine: Machine, capabilities: Capabilities, configs: &[Config]) -> Result<Self, StartError> {
        let mut pipes = Pipes::default();
        let memory = Memory::new(&machine, &mut pipes);
        let devices = machine
            .devices
            .iter()
            .zip(configs)
            .map(|(node, config)| Dsa::new(capabilities, config, *node, &machine.device, &mut pipes))
            .collect::<Result<Vec<_>, _>>()?;
        let queues = usize::from(capabilities.wq_cap.queues());
        let credits = |dsa: &Dsa| (0..queues).map(|wq| Credits::of(dsa.model.wq_cfg(wq).size().into())).collect();
        Ok(World {
            credits: devices.iter().map(credits).collect(),
            agenda: Agenda::default(),
            pipes,
            cache: Cache::new(memory.sockets()),
            memory,
            places: Places::default(),
            devices,
            threads: Vec::new(),
            programs: Vec::new(),
            latencies: Vec::new(),
            desk: program::Desk::default(),
            movers: Vec::new(),
            sent_back: Vec::new(),
            descriptors: 0,
            refused: 0,
            translations: Translations::default(),
            repairs: fault::Repairs::default(),
            machine,
        })
    }

    /// Lets time pass until nothing happens any more; that time.
    pub fn run(&mut self) -> Ps {
        loop {
            // Bytes first where both are due: their end may be what an event waits for.
            if let Some(due) = self.pipes.due()
                && self.agenda.peek().is_none_or(|next| due <= next)
            {
                if let Some((now, whose)) = self.pipes.finish() {
                    self.agenda.move_on(now);
                    match whose {
                        Whose::Engine(at) => self.flowed(at),
                        Whose::Thread(number) => self.thread_flowed(number),
                        Whose::Program(number) => self.program_flowed(number),
                    }
                }
                continue;
            }
            match self.agenda.next() {
                None => return self.agenda.now(),
                Some(Event::Thread(thread)) => self.go_on(thread),
                Some(Event::Worked(number)) => self.worked(number),
                Some(Event::Program(number)) => self.go_on_program(number),
                Some(Event::Timeout { program, turn }) => self.timeout_of_program(program, turn),
                Some(Event::Enter { program, ticket }) => self.enter_of_program(program, ticket),
                Some(Event::Offer { program, ticket, patient }) => self.offer_of_program(program, ticket, patient),
                Some(Event::Portal { thread, slot }) => self.portal(thread, slot),
                Some(Event::Front(at)) => {
                    self.front(at);
                    self.may_have_room(at.device);
                }
                Some(Event::Data(at)) => self.data(at),
                Some(Event::Tail { at, lane }) => self.tail(at, lane),
                Some(Event::Merge { at, begins }) => self.merge(at, begins),
                Some(Event::Again(number)) => self.submit_again(number),
                Some(Event::Chase(number)) => self.go_on_chase(number),
            }
        }
    }

    /// What it is, and what everything on it costs.
    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Work descriptors that were executed, members of batches included.
    #[must_use]
    pub fn descriptors(&self) -> u64 {
        self.descriptors
    }

    /// Descriptors that a device refused, and batches with such members.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Where the descriptors of a thread spent their time.
    #[must_use]
    pub fn timeline(&self, thread: usize) -> &Timeline {
        &self.threads[thread].timeline
    }

    /// The same if there is such a thread.
    pub(crate) fn timeline_if_any(&self, thread: usize) -> Option<&Timeline> {
        self.threads.get(thread).map(|thread| &thread.timeline)
    }

    /// Events that have happened or will.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.agenda.scheduled()
    }
}
