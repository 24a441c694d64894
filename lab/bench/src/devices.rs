//! Turns `--device` and the queue options into portals.

use super::BenchError;
use super::results::{MODEL_REMARK, Runner, VIRTUAL_REMARK};
use crate::options::{QueueKind, SweepOptions};
use std::sync::Arc;
use std::thread;
use telpher_device::{
    Capabilities, Config, DeviceName, GroupConfig, ModelDevice, ModelOptions, ModelSource, OpenOptions, Opened, Preset,
    WqConfig, WqMode,
};
use telpher_portal::{Portal, QueueMode};
use telpher_report::machine::Machine;

/// A running device, with a portal for each submitting thread.
#[derive(Debug)]
pub struct Running {
    /// Its name for `--device`; several hardware queues have their names joined.
    pub name: String,
    /// The executor of its descriptors.
    pub runner: Runner,
    /// One portal per thread; those of a shared queue lead to the same queue.
    pub portals: Vec<Arc<dyn Portal>>,
}

/// The requested shape of the device's queue.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    queue: Option<QueueKind>,
    wq_size: Option<u32>,
    engines: Option<u32>,
    threads: u32,
}

impl Shape {
    /// One dedicated queue with all entries of the device, and one engine.
    pub const PLAIN: Shape = Shape { queue: None, wq_size: None, engines: None, threads: 1 };

    /// Returns the shape in a sweep's options.
    pub fn of(args: &SweepOptions) -> Self {
        Shape { queue: args.queue, wq_size: args.wq_size, engines: args.engines, threads: args.threads }
    }

    /// Returns the configuration, if it fits the device.
    fn config(&self, capabilities: &Capabilities) -> Result<Config, BenchError> {
        let (queues, mode) = match self.queue.unwrap_or(QueueKind::Dedicated) {
            // A dedicated queue has only one client.
            QueueKind::Dedicated => (self.threads, WqMode::Dedicated),
            QueueKind::Shared => (1, WqMode::Shared),
        };
        let most = u32::from(capabilities.wq_cap.queues());
        let entries = u32::from(capabilities.wq_cap.total_entries());
        let engines = self.engines.unwrap_or(1);
        let most_engines = u32::from(capabilities.eng_cap.engines());
        let size = self.wq_size.unwrap_or(entries / queues.clamp(1, most));
        let sentence = if queues > most {
            format!(
                "{queues} threads need a dedicated queue each and the device has {most}; give at most {most} threads, \
                 or --wq-mode shared"
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

/// Starts every device that `--device` names besides the CPU: a model with both runners, and hardware. Remarks name
/// omitted devices and what a reader of the numbers must know about the devices.
pub fn beside_the_cpu(
    text: &str,
    shape: Shape,
    machine: &Machine,
    remarks: &mut Vec<String>,
) -> Result<Vec<Running>, BenchError> {
    let name = text.parse::<DeviceName>()?;
    let mut all = Vec::new();
    let model = match &name {
        DeviceName::Cpu | DeviceName::Hardware(_) => None,
        DeviceName::All => Some(ModelSource::Preset(Preset::default())),
        DeviceName::Model(source) => Some(source.clone()),
    };
    if let Some(source) = model {
        let name = DeviceName::Model(source.clone()).to_string();
        for runner in [Runner::Inline, Runner::Threaded] {
            all.push(start(&name, &source, shape, runner, machine)?);
        }
        of_a_model(&source, remarks)?;
    }
    all.extend(hardware(&name, shape, remarks)?);
    Ok(all)
}

/// Starts the device of a benchmark with a single device: a model with engine threads, or a hardware queue.
pub fn one(text: &str, machine: &Machine, remarks: &mut Vec<String>) -> Result<Running, BenchError> {
    let none = || BenchError::Usage(format!("'{text}' is not one device; name one, such as model:spr or hw:wq0.0"));
    match text.parse::<DeviceName>()? {
        DeviceName::Cpu | DeviceName::All => Err(none()),
        DeviceName::Model(source) => {
            of_a_model(&source, remarks)?;
            start(text, &source, Shape::PLAIN, Runner::Threaded, machine)
        }
        name @ DeviceName::Hardware(_) => hardware(&name, Shape::PLAIN, remarks)?.ok_or_else(none),
    }
}

/// Opens the named hardware, with a portal for each submitting thread.
fn hardware(name: &DeviceName, shape: Shape, remarks: &mut Vec<String>) -> Result<Option<Running>, BenchError> {
    if !matches!(name, DeviceName::Hardware(_) | DeviceName::All) {
        return Ok(None);
    }
    let Opened { portals, skipped } = telpher_device::open(name, OpenOptions::default())?;
    remarks.extend(skipped.into_iter().map(|skipped| format!("hw:{} is left out: {}.", skipped.queue, skipped.why)));
    let threads = shape.threads as usize;
    let chosen = if *name == DeviceName::All {
        let asked = |portal: &Arc<dyn Portal>| match shape.queue {
            None => true,
            Some(QueueKind::Dedicated) => portal.info().mode == QueueMode::Dedicated,
            Some(QueueKind::Shared) => portal.info().mode == QueueMode::Shared,
        };
        let able: Vec<_> = portals.into_iter().filter(asked).collect();
        if able.is_empty() {
            return Ok(None);
        }
        match for_threads(&able, threads) {
            Some(chosen) => chosen,
            None => {
                let queues = able.len();
                remarks.push(format!(
                    "Hardware is left out: {threads} threads need a dedicated queue each or a shared one, and there \
                     are {queues} dedicated ones."
                ));
                return Ok(None);
            }
        }
    } else {
        if shape.queue.is_some() || shape.wq_size.is_some() || shape.engines.is_some() {
            return Err(fixed_layout(&name.to_string()));
        }
        for_threads(&portals, threads).ok_or_else(|| {
            BenchError::NotHere(format!(
                "{name} is dedicated and has one client; name a shared queue, or give --threads 1"
            ))
        })?
    };
    let mut names: Vec<&str> = chosen.iter().map(|portal| portal.info().name.as_str()).collect();
    names.dedup();
    let name = format!("hw:{}", names.join("+"));
    if std::env::var_os(telpher_hw::ANNOUNCEMENT).is_some() {
        remarks.push(VIRTUAL_REMARK.to_owned());
    }
    Ok(Some(Running { name, runner: Runner::Hardware, portals: chosen }))
}

fn fixed_layout(name: &str) -> BenchError {
    BenchError::NotHere(format!("{name} has its own queues and engines; leave out --wq-mode, --wq-size and --engines"))
}

/// Returns the options for a model's name: capabilities, and the configuration from a file.
pub fn options(source: &ModelSource) -> Result<ModelOptions, BenchError> {
    Ok(source.options()?.0)
}

/// Adds the remarks about a model's numbers.
fn of_a_model(source: &ModelSource, remarks: &mut Vec<String>) -> Result<(), BenchError> {
    remarks.push(MODEL_REMARK.to_owned());
    let (_, skipped) = source.options()?;
    remarks.extend(skipped.into_iter().map(|skipped| format!("{} is left out: {}.", skipped.queue, skipped.why)));
    Ok(())
}

/// Starts a device; engine threads run on the cores that submitting threads do not use.
pub fn start(
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
        return Err(fixed_layout(name));
    }
    let options = options.with_runner(match runner {
        Runner::Inline => telpher_device::Runner::Inline,
        // Hardware executes without a thread of this process.
        Runner::Threaded | Runner::Hardware => telpher_device::Runner::Threaded,
    });
    let submitters = shape.threads as usize;
    let device = start_beside(options, submitters, name, machine)?;
    let portals = portals(&device, name, submitters)?;
    Ok(Running { name: name.to_owned(), runner, portals })
}

/// Starts a device whose engine threads run on the cores that `submitters` submitting threads do not use.
pub fn start_beside(
    options: ModelOptions,
    submitters: usize,
    name: &str,
    machine: &Machine,
) -> Result<ModelDevice, BenchError> {
    // A thread inherits the CPU affinity of the thread that starts it.
    let started = thread::scope(|scope| {
        let starter = scope.spawn(|| {
            let _ = telpher_os::run_on(&machine.engine_cores(submitters));
            ModelDevice::start(options)
        });
        starter.join().expect("starting a device does not panic")
    });
    started.map_err(|source| BenchError::Start { name: name.to_owned(), source })
}

/// Returns portals to a model's queues for `threads` threads.
fn portals(device: &ModelDevice, name: &str, threads: usize) -> Result<Vec<Arc<dyn Portal>>, BenchError> {
    let all: Vec<Arc<dyn Portal>> =
        device.enabled_queues().iter().map(|queue| device.portal(&format!("wq0.{queue}"))).collect::<Result<_, _>>()?;
    for_threads(&all, threads).ok_or_else(|| {
        let queues = all.len();
        BenchError::NotHere(format!(
            "{name} has {queues} enabled dedicated queues and no shared one; give at most as many threads"
        ))
    })
}

/// Returns one portal per thread: one dedicated queue each, else all on the first shared queue; `None` if there is
/// neither.
fn for_threads(all: &[Arc<dyn Portal>], threads: usize) -> Option<Vec<Arc<dyn Portal>>> {
    let dedicated = all.iter().filter(|portal| portal.info().mode == QueueMode::Dedicated);
    if dedicated.clone().count() >= threads {
        return Some(dedicated.take(threads).cloned().collect());
    }
    let shared = all.iter().find(|portal| portal.info().mode == QueueMode::Shared)?;
    Some((0..threads).map(|_| Arc::clone(shared)).collect())
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
        let shared = Shape { queue: Some(QueueKind::Shared), engines: Some(4), ..shape }.config(&caps).unwrap();
        assert_eq!(shared.groups[0].grouped_workqueues.len(), 1);
        assert_eq!(shared.groups[0].grouped_engines.len(), 4);
    }

    #[test]
    fn a_shape_that_does_not_fit_the_device_is_a_clear_error() {
        let caps = Preset::default().capabilities();
        let refusal = |shape: Shape| shape.config(&caps).unwrap_err().to_string();
        assert!(refusal(Shape { threads: 9, ..Shape::PLAIN }).contains("the device has 8"));
        assert!(refusal(Shape { threads: 2, wq_size: Some(100), ..Shape::PLAIN }).contains("128 entries"));
        assert!(refusal(Shape { engines: Some(9), ..Shape::PLAIN }).contains("4 engines"));
    }

    #[test]
    fn every_device_name_yields_its_routes() {
        let machine = Machine::read();
        let running = |text: &str, shape| {
            let mut remarks = Vec::new();
            let running = beside_the_cpu(text, shape, &machine, &mut remarks);
            running.map(|all| (all.into_iter().map(|one| one.name).collect::<Vec<_>>(), remarks))
        };
        assert_eq!(running("cpu", Shape::PLAIN).unwrap(), (vec![], vec![]));
        let (names, remarks) = running("model:spr-fw2", Shape::PLAIN).unwrap();
        assert_eq!((names, remarks), (vec!["model:spr-fw2".into(); 2], vec![MODEL_REMARK.to_owned()]));
        assert_eq!(running("all", Shape::PLAIN).unwrap().0[..2], ["model:spr", "model:spr"]);
        let message = running("hw:wq99999.0", Shape::PLAIN).unwrap_err().to_string();
        assert!(message.starts_with("cannot open wq99999.0: "), "{message}");
    }

    #[test]
    fn each_thread_gets_a_dedicated_queue_or_all_share_one() {
        use telpher_portal::mock::MockPortal;
        let queue = |mode| Arc::new(MockPortal::new(mode, 8)) as Arc<dyn Portal>;
        let all = [QueueMode::Dedicated, QueueMode::Shared, QueueMode::Dedicated].map(queue);
        let modes = |all: &[Arc<dyn Portal>], threads| {
            let chosen = for_threads(all, threads)?;
            Some(chosen.iter().map(|portal| portal.info().mode).collect::<Vec<_>>())
        };
        assert_eq!(modes(&all, 2), Some(vec![QueueMode::Dedicated; 2]));
        assert_eq!(modes(&all, 3), Some(vec![QueueMode::Shared; 3]));
        assert_eq!(modes(&all[..1], 2), None);
    }

    #[test]
    fn one_starts_exactly_one_device() {
        let machine = Machine::read();
        let one = |text: &str| one(text, &machine, &mut Vec::new()).map(|running| running.name);
        assert_eq!(one("model:full").unwrap(), "model:full");
        for text in ["cpu", "all"] {
            assert!(one(text).unwrap_err().to_string().contains("not one device"));
        }
    }
}
