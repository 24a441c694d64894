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
mod descriptors;
mod device;
mod engine;
mod memory;
mod program;
mod thread;
mod uses;

use crate::agenda::Agenda;
use crate::latencies::Latencies;
use crate::machine::Machine;
use crate::pipes::Pipes;
use crate::places::Places;
use crate::ps::Ps;
use crate::work::{By, Stream};
use cache::Cache;
pub use cache::{CacheUse, Chase, Chased};
use device::Dsa;
use memory::Memory;
use program::Program;
pub use program::{Barrier, Core, Signal, Ticket};
use std::collections::BTreeMap;
use telpher_device::{Capabilities, Config, StartError};
use thread::Thread;
pub use thread::Timeline;
pub use uses::{EngineUse, PipeUse, Resource};

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
    /// A program goes on.
    Program(u32),
    /// 64 bytes of a program reach a portal.
    Offer { program: u32, ticket: u32 },
    /// 64 bytes of a thread reach a portal.
    Portal { thread: u32, slot: u32 },
    /// The front end of an engine may take the next descriptor.
    Front(EngineId),
    /// The data path of an engine may take the next descriptor.
    Data(EngineId),
    /// The tail of a descriptor is over: its record may be written.
    Tail { at: EngineId, lane: u8 },
    /// A chase reads on.
    Chase(u32),
}

/// Whose bytes flow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Whose {
    /// The descriptor's in an engine's data path.
    Engine(EngineId),
    /// A program's, whose core moves them itself.
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
    /// Of cores' own traffic: the core's node, the memory's, whether it writes, and the most it can.
    traffic: BTreeMap<(usize, usize, bool, u64), crate::pipes::Class>,
    descriptors: u64,
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
            .collect::<Result<_, _>>()?;
        Ok(World {
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
            traffic: BTreeMap::new(),
            descriptors: 0,
            machine,
        })
    }

    /// Adds a thread; it begins at once. What [`timeline`](World::timeline) knows it by, if a device does its work.
    pub fn add(&mut self, stream: Stream) -> usize {
        match stream.by {
            By::Device(lane) => self.add_submitter(stream, lane),
            By::Cpu => {
                self.spawn(stream.core, move |core| async move {
                    for _ in 0..stream.submissions {
                        core.software(stream.op, stream.size.into(), stream.src, stream.dst).await;
                    }
                });
                usize::MAX
            }
        }
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
                        Whose::Program(number) => self.go_on_program(number),
                    }
                }
                continue;
            }
            match self.agenda.next() {
                None => return self.agenda.now(),
                Some(Event::Thread(thread)) => self.go_on(thread),
                Some(Event::Program(number)) => self.go_on_program(number),
                Some(Event::Offer { program, ticket }) => self.offer_of_program(program, ticket),
                Some(Event::Portal { thread, slot }) => self.portal(thread, slot),
                Some(Event::Front(at)) => self.front(at),
                Some(Event::Data(at)) => self.data(at),
                Some(Event::Tail { at, lane }) => self.tail(at, lane),
                Some(Event::Chase(number)) => self.go_on_chase(number),
            }
        }
    }

    /// Work descriptors that were executed, members of batches included.
    #[must_use]
    pub fn descriptors(&self) -> u64 {
        self.descriptors
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
