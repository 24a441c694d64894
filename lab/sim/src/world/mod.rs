//! The running machine: threads submit, devices execute, and time advances from event to event.
//!
//! ```text
//!  thread ─prepare─submit─► portal ──► queue ──► front end ──► data path ──► tail ──► record
//!    ▲                                 (the model's own)        pipes                   │
//!    └───────────────────────────── wait ◄──────────────────────────────────────────────┘
//! ```
//!
//! Queues, the arbiter, checks and batches are `telpher-model`'s code. The simulator steps an engine and charges time
//! for each operation that the engine returns, instead of executing it.

mod arrivals;
mod cache;
mod credits;
mod cycles;
pub(crate) mod descriptors;
mod device;
mod engine;
mod fault;
mod forecast;
mod memory;
mod merge;
mod mover;
mod program;
mod rejected;
mod requests;
mod software;
mod thread;
mod timeline;
mod uses;

use crate::event_queue::EventQueue;
use crate::latencies::Latencies;
use crate::machine::Machine;
use crate::picos::Picos;
use crate::pipes::Pipes;
use crate::places::SimulatedMemory;
use cache::Cache;
pub use cache::{CacheUse, Chase, ChaseResult};
use credits::Credits;
pub use cycles::Cycles;
use device::Dsa;
use memory::Memory;
use program::Program;
pub use program::{Barrier, Core, PendingWork, Semaphore};
pub use software::DataState;
use telpher_device::{Capabilities, Config, StartError};
use telpher_model::Refusal;
use thread::Thread;
pub use timeline::TimeBreakdown;
pub use uses::{EngineUse, PipeUse, Resource, Translations};

/// An engine of a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct EngineId {
    pub(crate) device: u16,
    pub(crate) engine: u16,
}

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Event {
    /// A thread continues.
    Thread(u32),
    /// A thread's core has finished an operation that it executed itself.
    Worked(u32),
    /// A program continues.
    Program(u32),
    /// A program's wait times out, if it is still the wait with this number.
    Timeout { program: u32, turn: u32 },
    /// A program's descriptor is prepared.
    Enter { program: u32, ticket: u32 },
    /// A program's descriptor reaches a portal. If `patient`, a refused submission is retried.
    Offer { program: u32, ticket: u32, patient: bool },
    /// A thread's descriptor reaches a portal.
    Portal { thread: u32, slot: u32 },
    /// The front end of an engine may take the next descriptor.
    Front(EngineId),
    /// The data path of an engine may take the next descriptor.
    Data(EngineId),
    /// The tail of a descriptor ends: its record may be written.
    Tail { at: EngineId, lane: u8 },
    /// A partially written line begins to block its device, or ends to.
    Merge { at: EngineId, begins: bool },
    /// A descriptor that missed pages is resubmitted.
    Again(u32),
    /// A chase continues to read.
    Chase(u32),
    /// The simulation ends, whatever is in progress.
    End,
}

/// The owner of a flow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum FlowOwner {
    /// The descriptor in an engine's data path.
    Engine(EngineId),
    /// A thread whose core executes an operation.
    Thread(u32),
    /// A program whose core executes an operation.
    Program(u32),
}

/// An operation of a thread that a device refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RefusedWork {
    /// Bytes of the operation.
    pub(crate) size: u32,
    /// Why the device refuses it.
    pub(crate) refusal: Refusal,
}

/// A machine, its devices and the threads on it.
#[derive(Debug)]
pub struct World {
    machine: Machine,
    events: EventQueue<Event>,
    pipes: Pipes<FlowOwner>,
    memory: Memory,
    cache: Cache,
    /// The placement of memory.
    pub places: SimulatedMemory,
    devices: Vec<Dsa>,
    threads: Vec<Thread>,
    programs: Vec<Program>,
    /// By load.
    latencies: Vec<Latencies>,
    shared: program::Shared,
    /// The movers, by the policy settings that determine their decisions.
    movers: Vec<(crate::workload::MoverSettings, std::rc::Rc<mover::MoverState>)>,
    /// By device and queue.
    credits: Vec<Vec<Credits>>,
    /// Threads and programs that retry a full queue, by device.
    retrying: Vec<rejected::DeviceRetries>,
    descriptors: u64,
    /// Descriptors that a device refused.
    refused: u64,
    /// The first of them that a thread submits, if any.
    refusal: Option<RefusedWork>,
    translations: Translations,
    repairs: fault::Repairs,
}

impl World {
    /// A machine whose first devices have these configurations, one each.
    ///
    /// # Errors
    /// The device's error about its configuration.
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
        let retrying = |dsa: &Dsa| {
            let configs = (0..queues).map(|wq| dsa.model.wq_cfg(wq));
            rejected::DeviceRetries::of(configs.map(|config| config.size().min(config.threshold()).into()))
        };
        Ok(World {
            credits: devices.iter().map(credits).collect(),
            retrying: devices.iter().map(retrying).collect(),
            events: EventQueue::default(),
            pipes,
            cache: Cache::new(memory.sockets()),
            memory,
            places: SimulatedMemory::default(),
            devices,
            threads: Vec::new(),
            programs: Vec::new(),
            latencies: Vec::new(),
            shared: program::Shared::default(),
            movers: Vec::new(),
            descriptors: 0,
            refused: 0,
            refusal: None,
            translations: Translations::default(),
            repairs: fault::Repairs::default(),
            machine,
        })
    }

    /// Ends the next run at `time`, if it lasts that long.
    pub(crate) fn end_at(&mut self, time: Picos) {
        self.events.at(time, Event::End);
    }

    /// Runs until there are no more events; returns the time of the last.
    pub fn run(&mut self) -> Picos {
        loop {
            // Flows before events at the same time: an event may depend on the end of a flow.
            if let Some(due) = self.pipes.due()
                && self.events.peek().is_none_or(|next| due <= next)
            {
                if let Some((now, owner)) = self.pipes.finish() {
                    self.events.move_on(now);
                    match owner {
                        FlowOwner::Engine(at) => self.flowed(at),
                        FlowOwner::Thread(number) => self.thread_flowed(number),
                        FlowOwner::Program(number) => self.program_flowed(number),
                    }
                }
                continue;
            }
            match self.events.next() {
                None | Some(Event::End) => return self.events.now(),
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

    /// The machine and its costs.
    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Work descriptors executed, members of batches included.
    #[must_use]
    pub fn descriptors(&self) -> u64 {
        self.descriptors
    }

    /// Descriptors that a device refused, and batches with such members.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// The first operation of a thread that its device refuses, if any; known when the thread is added, except for a
    /// mover's operations.
    pub(crate) fn refusal(&self) -> Option<RefusedWork> {
        self.refusal
    }

    /// The time that a thread's descriptors spent in each stage.
    #[must_use]
    pub fn timeline(&self, thread: usize) -> &TimeBreakdown {
        &self.threads[thread].timeline
    }

    /// Like [`timeline`](World::timeline), but `None` if there is no such thread.
    pub(crate) fn timeline_if_any(&self, thread: usize) -> Option<&TimeBreakdown> {
        self.threads.get(thread).map(|thread| &thread.timeline)
    }

    /// Events scheduled so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events.scheduled()
    }
}
