//! Runners: the threads that step the model's engines.

mod combiner;
mod inline;
mod signal_mask;
mod sleeper;
mod threaded;
mod waiter_help;

pub(crate) use inline::Inline;
pub(crate) use threaded::Threaded;

use crate::counting::Counts;
use crate::spaces::SpaceTable;
use std::sync::Arc;
use telpher_model::{Clocks, Counting, Device, DeviceCounts, Engine, NoObserver, Observer, Progress, Scratch, run};
use telpher_os::{monotonic_ns, ns_between, prepare_stamps, stamp};

/// The runner of a modelled device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Runner {
    /// The submitting thread executes, within `offer`, after other such threads have finished. Deterministic.
    #[default]
    Inline,
    /// Engines run on threads of their own, which spin for a while and then sleep. While such a thread does not get a
    /// core, a thread that waits for a record executes the next descriptors itself.
    Threaded,
    /// Chooses for each descriptor: short ones as by `Inline`, others as by `Threaded`. On a single core, or if the
    /// system refuses a thread, it is `Inline`.
    Auto,
}

/// The clocks of recorded times.
static CLOCKS: Clocks = Clocks { now_ns: monotonic_ns, stamp, ns_between };

/// The most steps of an engine before the next one is stepped: a batch of 32 fits.
const STEPS: u32 = 128;

/// The result of stepping a set of engines.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StepResult {
    /// No descriptor waited.
    Idle,
    /// All waiting descriptors were executed.
    Done,
    /// Some were executed, and more may wait.
    More,
    /// The current descriptors wait for software or for another set of engines.
    Blocked,
}

/// A device, the memory it accesses, its observer, and where it counts.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) device: Box<Device>,
    pub(crate) spaces: SpaceTable,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) counts: Counts,
}

impl Core {
    /// Returns the observer that counts, and calls the device's observer.
    #[inline]
    fn counting<'a, O: Observer + ?Sized>(counts: &'a DeviceCounts, observer: &'a O) -> Counting<'a, O> {
        Counting { counts, clocks: &CLOCKS, observer }
    }
}

/// Some of a device's engines, stepped by one thread at a time.
#[derive(Debug)]
pub(crate) struct EngineSet {
    engines: Vec<Engine>,
    scratch: Scratch,
}

impl EngineSet {
    /// Creates the engines with these indices, each with `lanes` lanes.
    pub(crate) fn new(engines: impl Iterator<Item = usize>, lanes: usize) -> Self {
        prepare_stamps();
        let engines = engines.flat_map(|index| (0..lanes).map(move |lane| Engine::new(index, lane))).collect();
        EngineSet { engines, scratch: Scratch::default() }
    }

    /// Returns the indices of the engines.
    pub(crate) fn indices(&self) -> Vec<usize> {
        self.engines.iter().map(Engine::index).collect()
    }

    /// Steps each engine (of one group, or of all) as long as it makes progress, up to a bound so that others get their
    /// turn.
    #[inline]
    pub(crate) fn step(&mut self, core: &Core, group: Option<usize>) -> StepResult {
        match (core.counts.words(), core.observer.as_deref()) {
            (None, None) => self.step_observed(core, group, &NoObserver),
            (None, Some(observer)) => self.step_observed(core, group, observer),
            (Some(counts), None) => self.step_observed(core, group, &Core::counting(counts, &NoObserver)),
            (Some(counts), Some(observer)) => self.step_observed(core, group, &Core::counting(counts, observer)),
        }
    }

    #[inline]
    fn step_observed<O: Observer + ?Sized>(&mut self, core: &Core, group: Option<usize>, observer: &O) -> StepResult {
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
            // Stopped at the bound, or an engine may have waited for what another one did: there may be more.
            (true, _) if cut || blocked => StepResult::More,
            (true, _) => StepResult::Done,
            (false, true) => StepResult::Blocked,
            (false, false) => StepResult::Idle,
        }
    }

    /// True if an engine of the set has a current or waiting descriptor; ordered against submissions.
    pub(crate) fn has_work(&self, device: &Device) -> bool {
        self.engines.iter().any(|engine| {
            !engine.is_idle()
                || device.group_of_engine(engine.index()).is_some_and(|group| device.group_has_work(group))
        })
    }

    /// Steps one engine of the set.
    pub(crate) fn step_one(&mut self, core: &Core, index: usize) -> Progress {
        let Some(engine) = self.engines.iter_mut().find(|engine| engine.index() == index) else {
            return Progress::Idle;
        };
        let (device, spaces, scratch) = (&core.device, &core.spaces, &mut self.scratch);
        match (core.counts.words(), core.observer.as_deref()) {
            (None, None) => run(engine, device, spaces, scratch, &NoObserver, |_| ()),
            (None, Some(observer)) => run(engine, device, spaces, scratch, observer, |_| ()),
            (Some(counts), None) => run(engine, device, spaces, scratch, &Core::counting(counts, &NoObserver), |_| ()),
            (Some(counts), Some(observer)) => {
                run(engine, device, spaces, scratch, &Core::counting(counts, observer), |_| ())
            }
        }
    }
}
