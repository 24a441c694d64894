//! Who steps the model's engines.

mod combiner;
mod inline;
mod sleeper;
mod threaded;
mod unheard;

pub(crate) use inline::Inline;
pub(crate) use threaded::Threaded;

use crate::spaces::SpaceTable;
use std::sync::Arc;
use telpher_model::{Device, Engine, Observer, Progress, Scratch, Unobserved, run};

/// How a modelled device gets its work done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Runner {
    /// The submitting thread executes, within `offer`, when other threads that do so have finished: deterministic, and
    /// the default where there is one core.
    #[default]
    Inline,
    /// Engines run on threads of their own, which spin for a while and then sleep.
    Threaded,
}

/// Steps an engine is taken before the next one gets its turn: a batch of 32 fits.
const STEPS: u32 = 128;

/// What stepping a crew came to.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Round {
    /// Nothing waited.
    Idle,
    /// Everything that waited was done.
    Done,
    /// Something was done, and more may be.
    More,
    /// What is in hand waits for software or for another crew.
    Blocked,
}

/// A device, the memory it reaches, and who looks on.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) device: Box<Device>,
    pub(crate) spaces: SpaceTable,
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

/// Some of a device's engines, stepped by one thread at a time.
#[derive(Debug)]
pub(crate) struct Crew {
    engines: Vec<Engine>,
    scratch: Scratch,
}

impl Crew {
    /// Each engine with so many lanes.
    pub(crate) fn new(engines: impl Iterator<Item = usize>, lanes: usize) -> Self {
        let engines = engines.flat_map(|index| (0..lanes).map(move |lane| Engine::new(index, lane))).collect();
        Crew { engines, scratch: Scratch::default() }
    }

    /// Steps each engine (of one group, or of all) as long as it makes progress, within a bound that lets others in.
    #[inline]
    pub(crate) fn step(&mut self, core: &Core, group: Option<usize>) -> Round {
        match &core.observer {
            None => self.step_observed(core, group, &Unobserved),
            Some(observer) => self.step_observed(core, group, &**observer),
        }
    }

    #[inline]
    fn step_observed<O: Observer + ?Sized>(&mut self, core: &Core, group: Option<usize>, observer: &O) -> Round {
        let (mut worked, mut blocked, mut cut) = (false, false, false);
        for engine in &mut self.engines {
            if group.is_some() && core.device.group_of_engine(engine.index()) != group {
                continue;
            }
            let mut steps = 0;
            loop {
                match run(engine, &core.device, &core.spaces, &mut self.scratch, observer, |_| ()) {
                    Progress::Worked => worked = true,
                    Progress::Idle => break,
                    Progress::Blocked => {
                        blocked = true;
                        break;
                    }
                }
                steps += 1;
                if steps == STEPS {
                    cut = true;
                    break;
                }
            }
        }
        match (worked, blocked) {
            // Cut off at the bound, or somebody may have waited for what another did: there is more.
            (true, _) if cut || blocked => Round::More,
            (true, _) => Round::Done,
            (false, true) => Round::Blocked,
            (false, false) => Round::Idle,
        }
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
        let Some(engine) = self.engines.iter_mut().find(|engine| engine.index() == index) else {
            return Progress::Idle;
        };
        let (device, spaces, scratch) = (&core.device, &core.spaces, &mut self.scratch);
        match &core.observer {
            None => run(engine, device, spaces, scratch, &Unobserved, |_| ()),
            Some(observer) => run(engine, device, spaces, scratch, &**observer, |_| ()),
        }
    }
}
