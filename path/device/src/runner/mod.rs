//! Who steps the model's engines.

mod combiner;
mod inline;
mod sleeper;
mod threaded;

pub(crate) use inline::Inline;
pub(crate) use threaded::Threaded;

use crate::spaces::SpaceTable;
use telpher_model::{Device, Engine, Progress, Scratch, run};

/// How a modelled device gets its work done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Runner {
    /// The submitting thread executes, within `offer`: deterministic, and the default where there is one core.
    #[default]
    Inline,
    /// Engines run on threads of their own, which spin for a while and then sleep.
    Threaded,
}

/// Steps an engine is taken before the next one gets its turn: a batch of 32 fits.
const STEPS: u32 = 128;

/// A device and the memory it reaches.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) device: Box<Device>,
    pub(crate) spaces: SpaceTable,
}

/// Some of a device's engines, stepped by one thread at a time.
#[derive(Debug)]
pub(crate) struct Crew {
    engines: Vec<Engine>,
    scratch: Scratch,
}

impl Crew {
    pub(crate) fn new(engines: impl Iterator<Item = usize>) -> Self {
        Crew { engines: engines.map(|index| Engine::new(index, 0)).collect(), scratch: Scratch::default() }
    }

    /// Steps each engine (of one group, or of all) as long as it makes progress, within a bound that lets others in.
    #[inline]
    pub(crate) fn step(&mut self, core: &Core, group: Option<usize>) -> Progress {
        let mut all = Progress::Idle;
        for engine in &mut self.engines {
            if group.is_some() && core.device.group_of_engine(engine.index()) != group {
                continue;
            }
            for _ in 0..STEPS {
                match run(engine, &core.device, &core.spaces, &mut self.scratch, |_| ()) {
                    Progress::Worked => all = Progress::Worked,
                    Progress::Idle => break,
                    Progress::Blocked => {
                        if all == Progress::Idle {
                            all = Progress::Blocked;
                        }
                        break;
                    }
                }
            }
        }
        all
    }

    /// True if an engine of the crew has a descriptor in hand or waiting, ordered against submission.
    pub(crate) fn has_work(&self, device: &Device) -> bool {
        self.engines.iter().any(|engine| {
            !engine.is_idle()
                || device.group_of_engine(engine.index()).is_some_and(|group| device.group_has_work(group))
        })
    }

    /// Steps one engine of the crew.
    pub(crate) fn step_one(&mut self, core: &Core, index: usize) -> Progress {
        match self.engines.iter_mut().find(|engine| engine.index() == index) {
            Some(engine) => run(engine, &core.device, &core.spaces, &mut self.scratch, |_| ()),
            None => Progress::Idle,
        }
    }
}
