//! Scenarios: what `telpher sim run` runs, and what figures, checks and advice are made of.
//!
//! ```text
//! Scenario { machine, devices, loads } ──simulate──► Outcome { loads: throughput, latency, parts, cycles · resources · bottleneck }
//! ```

mod bottleneck;
mod layout;
mod legal;
mod outcome;
pub(crate) mod workload;

use crate::apps::{App, Report};
use crate::machine::Machine;
use crate::work::{By, Lane, Stream};
use crate::world::{Chase, World};
pub use bottleneck::{Bottleneck, Limit};
pub use layout::{Layout, lanes};
pub use outcome::{LoadOutcome, Measure, Outcome, ResourceUse};
use telpher_device::{Capabilities, Config, Preset, StartError};
pub use workload::{Preface, WorkloadError};

/// A machine, how its devices are configured, and what runs on it.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The machine.
    pub machine: Machine,
    /// What its devices can do.
    pub capabilities: Capabilities,
    /// How its first devices are configured, one each.
    pub devices: Vec<Config>,
    /// What runs.
    pub loads: Vec<Load>,
}

/// Threads that do the same.
#[derive(Clone, PartialEq, Debug)]
pub struct Load {
    /// What outputs call it.
    pub name: String,
    /// How many.
    pub threads: u32,
    /// What each does.
    pub what: What,
    /// Queues that its threads take in turn; that of the stream if there are none. A mover takes all there are, a core none.
    pub lanes: Vec<Lane>,
    /// What is thought to hold it up, if somebody thinks so.
    pub expect: Option<Limit>,
}

/// What a thread does.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum What {
    /// One operation again and again.
    Stream(Stream),
    /// Reads of a working set, one after the other, on a core: what a benchmark of latency does.
    Chase(Chase),
    /// An application; it has as many threads as it says itself.
    App(App),
}

/// Why a scenario cannot be simulated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// More devices than the machine has.
    #[error("{asked} devices are configured, and the profile {profile} has {has}")]
    Devices {
        /// Configurations.
        asked: usize,
        /// Devices of the machine.
        has: usize,
        /// Which machine.
        profile: String,
    },
    /// The device refuses its configuration.
    #[error("dsa{device} cannot be so")]
    Device {
        /// Which.
        device: usize,
        /// What it says.
        source: StartError,
    },
    /// A load asks for what is not there, or what a device refuses.
    #[error("load {load}: {what}")]
    Load {
        /// Which.
        load: String,
        /// What is wrong.
        what: String,
    },
}

/// What was put into the world for a load.
enum Running {
    Threads(Vec<usize>),
    Chases(Vec<usize>),
    App(Report),
}

impl Scenario {
    /// A machine with one device so configured, and nothing to do yet.
    #[must_use]
    pub fn on(machine: Machine, config: Config) -> Self {
        Scenario { machine, capabilities: Preset::Spr.capabilities(), devices: vec![config], loads: Vec::new() }
    }

    /// With one more load.
    #[must_use]
    pub fn with(mut self, name: &str, threads: u32, what: What) -> Self {
        self.loads.push(Load { name: name.to_owned(), threads, what, lanes: Vec::new(), expect: None });
        self
    }

    /// With one more load, whose threads take these queues in turn.
    #[must_use]
    pub fn with_lanes(mut self, name: &str, threads: u32, stream: Stream, lanes: Vec<Lane>) -> Self {
        self.loads.push(Load { name: name.to_owned(), threads, what: What::Stream(stream), lanes, expect: None });
        self
    }

    /// The queues that a load's threads use: a mover's all there are.
    #[must_use]
    pub fn queues_of(&self, load: &Load) -> Vec<Lane> {
        match &load.what {
            What::Stream(Stream { by: By::Mover(_), .. }) => lanes(&self.devices),
            What::Stream(Stream { by: By::Device(lane), .. }) if load.lanes.is_empty() => vec![*lane],
            What::Stream(Stream { by: By::Device(_), .. }) => {
                load.lanes.iter().take(load.threads.try_into().unwrap_or(usize::MAX)).copied().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Which device refuses.
    fn refused(&self, source: StartError) -> ScenarioError {
        let refuses = |config: &Config| {
            let alone = std::slice::from_ref(config);
            World::new(self.machine.clone(), self.capabilities, alone).is_err()
        };
        ScenarioError::Device { device: self.devices.iter().position(refuses).unwrap_or(0), source }
    }

    /// Lets it happen.
    ///
    /// # Errors
    /// What the machine has not, or a device refuses.
    pub fn simulate(&self) -> Result<Outcome, ScenarioError> {
        self.check()?;
        let mut world = World::new(self.machine.clone(), self.capabilities, &self.devices)
            .map_err(|source| self.refused(source))?;
        let mut running = Vec::new();
        for load in &self.loads {
            world.begin_load();
            running.push(match &load.what {
                What::Stream(stream) => {
                    let mut lanes = load.lanes.iter().cycle().map(|lane| By::Device(*lane));
                    let mut thread = |_| match stream.by {
                        By::Device(_) => world.add(Stream { by: lanes.next().unwrap_or(stream.by), ..*stream }),
                        By::Cpu | By::Mover(_) => world.add(*stream),
                    };
                    Running::Threads((0..load.threads).map(&mut thread).collect())
                }
                What::Chase(chase) => Running::Chases((0..load.threads).map(|_| world.add_chase(*chase)).collect()),
                What::App(app) => Running::App(app.start(&mut world)),
            });
        }
        let took = world.run();
        Ok(outcome::of(self, &world, running, took))
    }
}
