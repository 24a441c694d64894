//! Scenarios: what `telpher sim run` simulates, and the basis of figures, checks and advice.
//!
//! ```text
//! Scenario { machine, devices, loads } ──simulate──► Outcome { loads, resources, bottleneck }
//!                                                    each load: throughput, latency, parts, cycles
//! ```

mod bottleneck;
mod layout;
mod legal;
mod outcome;
pub(crate) mod workload;

use crate::apps::{App, Report};
use crate::machine::Machine;
use crate::picos::Picos;
use crate::workload::{ExecutedBy, QueueId, Stream};
use crate::world::{Chase, RefusedWork, World};
pub use bottleneck::{Bottleneck, Limit};
pub use layout::{Layout, queue_ids};
pub use outcome::{LoadOutcome, Measure, Outcome, ResourceUse};
use telpher_abi::Status;
use telpher_device::{Capabilities, Config, Preset, StartError};
use telpher_model::Refusal;
pub use workload::{WorkloadError, WorkloadHeader};

/// A machine, the configuration of its devices, and the loads on it.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The machine.
    pub machine: Machine,
    /// The capabilities of its devices.
    pub capabilities: Capabilities,
    /// Configurations of its first devices, one each.
    pub devices: Vec<Config>,
    /// The loads.
    pub loads: Vec<Load>,
}

/// Threads with the same workload.
#[derive(Clone, PartialEq, Debug)]
pub struct Load {
    /// Its name in outputs.
    pub name: String,
    /// Number of threads.
    pub threads: u32,
    /// The workload of each thread.
    pub what: Workload,
    /// Queues that its threads use in turn; the stream's queue if empty. A mover uses all queues, a core none.
    pub queues: Vec<QueueId>,
    /// The expected bottleneck, if any.
    pub expect: Option<Limit>,
}

/// A workload.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Workload {
    /// One operation, repeated.
    Stream(Stream),
    /// Dependent reads of a working set on a core, as in a latency benchmark.
    Chase(Chase),
    /// An application, which determines its own number of threads.
    App(App),
}

/// Why a scenario cannot be simulated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// More devices are configured than the machine has.
    #[error("{asked} devices are configured, and the profile {profile} has {has}")]
    Devices {
        /// Number of configurations.
        asked: usize,
        /// Number of devices of the machine.
        has: usize,
        /// Name of the machine.
        profile: String,
    },
    /// The device refuses its configuration.
    #[error("dsa{device} refuses its configuration")]
    Device {
        /// Number of the device.
        device: usize,
        /// The device's error.
        source: StartError,
    },
    /// A load needs something that the machine does not have.
    #[error("load {load}: {what}")]
    Load {
        /// Name of the load.
        load: String,
        /// What is wrong.
        what: String,
    },
    /// A device refuses a load's descriptors, so they would do nothing.
    #[error("load {load}: {refusal}")]
    Refused {
        /// Name of the load.
        load: String,
        /// The answer, and why.
        refusal: RefusedOperation,
    },
    /// A simulated number exceeds what the profile allows.
    #[error(
        "the {what} was simulated as {value:.3}, and the profile allows {cap:.3}: the simulator is wrong, so no number \
         of this run is shown; report the command and the profile as an error of telpher"
    )]
    AboveCap {
        /// The number.
        what: String,
        /// Its simulated value.
        value: f64,
        /// The largest possible value.
        cap: f64,
    },
}

/// An operation that a device refuses.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{why}; the device answers: {status}")]
pub struct RefusedOperation {
    /// The status in the completion record.
    pub status: Status,
    /// Why, as the first half of a sentence.
    pub why: String,
}

impl RefusedOperation {
    /// The refusal of a stream's operation by the model's own checks.
    fn of(stream: &Stream, refused: RefusedWork) -> Self {
        let RefusedWork { size, refusal: Refusal { status, flags, check, .. } } = refused;
        let operation = format!("{} of {size} bytes", stream.op.short_name());
        let why = match check {
            Some(check) => format!("{operation} breaks the rule \"{}\"", check.rule()),
            None if flags != 0 => format!("{operation} has the flags {flags:#x}, which are not allowed"),
            None => format!("{operation} is not executed"),
        };
        RefusedOperation { status, why }
    }
}

/// What was added to the world for a load.
enum Running {
    Threads(Vec<usize>),
    Chases(Vec<usize>),
    App(Report),
}

impl Scenario {
    /// A machine with one device of this configuration, without loads.
    #[must_use]
    pub fn on(machine: Machine, config: Config) -> Self {
        Scenario { machine, capabilities: Preset::Spr.capabilities(), devices: vec![config], loads: Vec::new() }
    }

    /// Adds a load.
    #[must_use]
    pub fn with(mut self, name: &str, threads: u32, what: Workload) -> Self {
        self.loads.push(Load { name: name.to_owned(), threads, what, queues: Vec::new(), expect: None });
        self
    }

    /// Adds a load whose threads use these queues in turn.
    #[must_use]
    pub fn with_lanes(mut self, name: &str, threads: u32, stream: Stream, queues: Vec<QueueId>) -> Self {
        self.loads.push(Load { name: name.to_owned(), threads, what: Workload::Stream(stream), queues, expect: None });
        self
    }

    /// The queues of a load's threads; a mover uses all queues.
    #[must_use]
    pub fn queues_of(&self, load: &Load) -> Vec<QueueId> {
        match &load.what {
            Workload::Stream(Stream { by: ExecutedBy::Mover(_), .. }) => queue_ids(&self.devices),
            Workload::Stream(Stream { by: ExecutedBy::Device(queue), .. }) if load.queues.is_empty() => vec![*queue],
            Workload::Stream(Stream { by: ExecutedBy::Device(_), .. }) => {
                load.queues.iter().take(load.threads.try_into().unwrap_or(usize::MAX)).copied().collect()
            }
            _ => Vec::new(),
        }
    }

    /// An error with the number of the device that refuses its configuration.
    fn refused(&self, source: StartError) -> ScenarioError {
        let refuses = |config: &Config| {
            let alone = std::slice::from_ref(config);
            World::new(self.machine.clone(), self.capabilities, alone).is_err()
        };
        ScenarioError::Device { device: self.devices.iter().position(refuses).unwrap_or(0), source }
    }

    /// Returns the error if a device refuses a stream's operation: what is not done has no numbers.
    fn check_refusal(load: &Load, world: &World) -> Result<(), ScenarioError> {
        match (&load.what, world.refusal()) {
            (Workload::Stream(stream), Some(refused)) if stream.by != ExecutedBy::Cpu => {
                let refusal = RefusedOperation::of(stream, refused);
                Err(ScenarioError::Refused { load: load.name.clone(), refusal })
            }
            _ => Ok(()),
        }
    }

    /// Simulates the scenario.
    ///
    /// # Errors
    /// The machine lacks something, or a device refuses something.
    pub fn simulate(&self) -> Result<Outcome, ScenarioError> {
        self.simulate_until(None)
    }

    /// Simulates the scenario until all loads are done, or until `end`. What is in progress then does not count.
    ///
    /// # Errors
    /// See [`simulate`](Scenario::simulate).
    pub(crate) fn simulate_until(&self, end: Option<Picos>) -> Result<Outcome, ScenarioError> {
        self.check()?;
        let mut world = World::new(self.machine.clone(), self.capabilities, &self.devices)
            .map_err(|source| self.refused(source))?;
        let mut running = Vec::new();
        for load in &self.loads {
            world.begin_load();
            running.push(match &load.what {
                Workload::Stream(stream) => {
                    let mut queues = load.queues.iter().cycle().map(|queue| ExecutedBy::Device(*queue));
                    let mut thread = |_| match stream.by {
                        ExecutedBy::Device(_) => {
                            world.add(Stream { by: queues.next().unwrap_or(stream.by), ..*stream })
                        }
                        ExecutedBy::Cpu | ExecutedBy::Mover(_) => world.add(*stream),
                    };
                    Running::Threads((0..load.threads).map(&mut thread).collect())
                }
                Workload::Chase(chase) => Running::Chases((0..load.threads).map(|_| world.add_chase(*chase)).collect()),
                Workload::App(app) => Running::App(app.start(&mut world)),
            });
            Scenario::check_refusal(load, &world)?;
        }
        if let Some(end) = end {
            world.end_at(end);
        }
        let took = world.run();
        // A mover's operations are known only now. What an application submits is its own, and is counted.
        if !self.loads.iter().any(|load| matches!(load.what, Workload::App(_))) {
            self.loads.iter().try_for_each(|load| Scenario::check_refusal(load, &world))?;
        }
        outcome::of(self, &world, running, took)
    }
}
