//! From `--device` and the queue's options to portals.

use super::BenchError;
use super::machine::Machine;
use super::results::Runner;
use crate::args::{Queue, Sweep};
use crate::ffi;
use std::sync::Arc;
use std::thread;
use telpher_device::{
    Capabilities, Config, DeviceName, GroupConfig, ModelDevice, ModelOptions, ModelSource, Preset, WqConfig, WqMode,
};
use telpher_portal::Portal;

/// A running modelled device and a portal for each submitting thread.
pub(crate) struct Running {
    /// Its name, as typed.
    pub(crate) name: String,
    /// Who executes.
    pub(crate) runner: Runner,
    /// One portal a thread; on a shared queue they lead to the same one.
    pub(crate) portals: Vec<Arc<dyn Portal>>,
}

/// How the device's queue shall be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    queue: Option<Queue>,
    wq_size: Option<u32>,
    engines: Option<u32>,
    threads: u32,
}

impl Shape {
    /// One dedicated queue of the whole device and one engine.
    pub(crate) const PLAIN: Shape = Shape { queue: None, wq_size: None, engines: None, threads: 1 };

    /// What a sweep's options say.
    pub(crate) fn of(args: &Sweep) -> Self {
        Shape { queue: args.queue, wq_size: args.wq_size, engines: args.engines, threads: args.threads }
    }

    /// The configuration, if it fits the device.
    fn config(&self, capabilities: &Capabilities) -> Result<Config, BenchError> {
        let (queues, mode) = match self.queue.unwrap_or(Queue::Dedicated) {
            // A dedicated queue has one client.
            Queue::Dedicated => (self.threads, WqMode::Dedicated),
            Queue::Shared => (1, WqMode::Shared),
        };
        let most = u32::from(capabilities.wq_cap.queues());
        let entries = u32::from(capabilities.wq_cap.total_entries());
        let engines = self.engines.unwrap_or(1);
        let most_engines = u32::from(capabilities.eng_cap.engines());
        let size = self.wq_size.unwrap_or(entries / queues.clamp(1, most));
        let sentence = if queues > most {
            format!(
                "{queues} threads need a dedicated queue each and the device has {most}; give at most {most} threads, or \
                 --queue shared"
            )
        } else if queues * size > entries {
            format!("{queues} queues of {size} entries exceed the {entries} entries the device has in all")
        } else if engines > most_engines {
            format!("the device has {most_engines} engines, {engines} were asked for")
        } else {
            let mut config = Config::single(mode, size, engines);
            let members = (0..queues).map(|queue| WqConfig::new(queue, mode, size)).collect();
            let first: &mut GroupConfig = config.groups.first_mut().expect("a single group is a group");
            first.grouped_workqueues = members;
            return Ok(config);
        };
        Err(BenchError::NotHere(sentence))
    }
}

/// The devices `--device` names; none for the CPU alone.
pub(crate) fn named(text: &str) -> Result<Option<(String, ModelSource)>, BenchError> {
    match text.parse::<DeviceName>()? {
        DeviceName::Cpu => Ok(None),
        DeviceName::All => {
            let source = ModelSource::Preset(Preset::default());
            Ok(Some((DeviceName::Model(source.clone()).to_string(), source)))
        }
        DeviceName::Model(source) => Ok(Some((text.to_owned(), source))),
        DeviceName::Hardware(queue) => Err(BenchError::NotHere(format!(
            "hw:{queue} is a real device's queue, which this version of telpher does not drive yet; it takes cpu, model:spr, \
             model:spr-fw2, model:full, model:FILE and all"
        ))),
    }
}

/// The options a name stands for: capabilities, and a file's configuration.
pub(crate) fn options(source: &ModelSource) -> Result<ModelOptions, BenchError> {
    match source {
        ModelSource::Preset(preset) => Ok(ModelOptions::of(*preset)),
        ModelSource::File(path) => {
            let first = Config::load(path)?.into_iter().next().expect("a loaded file has a device");
            Ok(ModelOptions::default().with_config(first))
        }
    }
}

/// Starts a device; engine threads run on the cores that the submitting threads leave.
pub(crate) fn start(
    name: &str,
    source: &ModelSource,
    shape: Shape,
    runner: Runner,
    machine: &Machine,
) -> Result<Running, BenchError> {
    let mut options = options(source)?;
    if options.config.is_none() {
        options.config = Some(shape.config(&options.capabilities)?);
    } else if shape.queue.is_some() || shape.wq_size.is_some() || shape.engines.is_some() {
        return Err(BenchError::NotHere(format!(
            "{name} says itself what queues and engines there are; leave out --queue, --wq-size and --engines"
        )));
    }
    let options = options.with_runner(match runner {
        Runner::Inline => telpher_device::Runner::Inline,
        Runner::Threaded => telpher_device::Runner::Threaded,
    });
    let submitters = shape.threads as usize;
    // Threads inherit where they may run from who starts them.
    let started = thread::scope(|scope| {
        let starter = scope.spawn(|| {
            let _ = ffi::pin(&machine.engine_cores(submitters));
            ModelDevice::start(options)
        });
        starter.join().expect("starting a device does not panic")
    });
    let device = started.map_err(|source| BenchError::Start { name: name.to_owned(), source })?;
    let portals = portals(&device, name, submitters)?;
    Ok(Running { name: name.to_owned(), runner, portals })
}

/// A portal a thread: dedicated queues one each, else all on the first shared queue.
fn portals(device: &ModelDevice, name: &str, threads: usize) -> Result<Vec<Arc<dyn Portal>>, BenchError> {
    use telpher_portal::QueueMode;
    let all: Vec<Arc<dyn Portal>> =
        device.enabled_queues().iter().map(|queue| device.portal(&format!("wq0.{queue}"))).collect::<Result<_, _>>()?;
    let dedicated: Vec<_> = all.iter().filter(|p| p.info().mode == QueueMode::Dedicated).cloned().collect();
    if dedicated.len() >= threads {
        return Ok(dedicated.into_iter().take(threads).collect());
    }
    match all.iter().find(|p| p.info().mode == QueueMode::Shared) {
        Some(shared) => Ok((0..threads).map(|_| Arc::clone(shared)).collect()),
        None => Err(BenchError::NotHere(format!(
            "{name} has {} enabled dedicated queues and no shared one; give at most as many threads",
            dedicated.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dedicated_queue_is_made_for_each_thread() {
        let caps = Preset::default().capabilities();
        let shape = Shape { threads: 4, ..Shape::PLAIN };
        let config = shape.config(&caps).unwrap();
        let sizes: Vec<u32> = config.groups[0].grouped_workqueues.iter().map(|q| q.size).collect();
        assert_eq!(sizes, [32; 4]);
        let shared = Shape { queue: Some(Queue::Shared), engines: Some(4), ..shape }.config(&caps).unwrap();
        assert_eq!(shared.groups[0].grouped_workqueues.len(), 1);
        assert_eq!(shared.groups[0].grouped_engines.len(), 4);
    }

    #[test]
    fn what_does_not_fit_the_device_is_told_in_a_sentence() {
        let caps = Preset::default().capabilities();
        let said = |shape: Shape| shape.config(&caps).unwrap_err().to_string();
        assert!(said(Shape { threads: 9, ..Shape::PLAIN }).contains("the device has 8"));
        assert!(said(Shape { threads: 2, wq_size: Some(100), ..Shape::PLAIN }).contains("128 entries"));
        assert!(said(Shape { engines: Some(9), ..Shape::PLAIN }).contains("4 engines"));
    }

    #[test]
    fn hardware_is_answered_with_what_there_is() {
        let said = named("hw:wq0.1").unwrap_err().to_string();
        assert!(said.contains("does not drive yet") && said.contains("model:spr"), "{said}");
        assert!(named("cpu").unwrap().is_none());
        assert_eq!(named("all").unwrap().unwrap().0, "model:spr");
    }
}
