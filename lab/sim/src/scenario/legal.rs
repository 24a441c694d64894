//! Checks before the simulation: what the machine lacks and what a device would refuse.

use super::{Load, RefusedOperation, Scenario, ScenarioError, Workload};
use crate::workload::{ExecutedBy, QueueId, Stream};
use crate::world::descriptors::is_simulated;
use telpher_abi::{Opcode, Status};
use telpher_device::{Config, WqConfig, WqMode};

/// Most submissions that one thread keeps in flight. Source: chosen; its descriptors and records use host memory.
const MOST_IN_FLIGHT: u32 = 1 << 16;

/// Most threads of a load. Source: chosen, for the same reason.
const MOST_THREADS: u32 = 1 << 16;

/// Most descriptors that a load keeps in flight, members of batches counted. Source: chosen, for the same reason.
const MOST_DESCRIPTORS: u64 = 1 << 24;

/// Possible page sizes in bytes.
const PAGES: [u64; 3] = [4 << 10, 2 << 20, 1 << 30];

/// Checks that each (name, number, maximum) is at least 1 and at most its maximum.
fn counts(asked: &[(&str, u32, u32)]) -> Result<(), String> {
    match asked.iter().find(|(_, count, most)| *count == 0 || count > most) {
        None => Ok(()),
        Some((what, count, most)) => Err(format!("{what} is {count}, not between 1 and {most}")),
    }
}

/// Why a load cannot be simulated.
enum Obstacle {
    /// The machine lacks something.
    Machine(String),
    /// A device refuses the load's descriptors.
    Device(RefusedOperation),
}

impl From<String> for Obstacle {
    fn from(what: String) -> Self {
        Obstacle::Machine(what)
    }
}

impl Scenario {
    /// Checks everything that can be known before the simulation.
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        if self.devices.len() > self.machine.devices.len() {
            return Err(ScenarioError::Devices {
                asked: self.devices.len(),
                has: self.machine.devices.len(),
                profile: self.machine.name.clone(),
            });
        }
        for load in &self.loads {
            let checked = match &load.what {
                Workload::Stream(stream) => self.stream(load, stream),
                Workload::Chase(chase) => self
                    .nodes(&[("its memory is", chase.place.node), ("its core is", chase.core)])
                    .and_then(|()| counts(&[("threads", load.threads, MOST_THREADS)]))
                    .map_err(Obstacle::from),
                Workload::App(app) => {
                    let mut nodes = app.nodes().into_iter();
                    nodes.try_for_each(|node| self.nodes(&[("the application runs", node)])).map_err(Obstacle::from)
                }
            };
            let load = &load.name;
            checked.map_err(|obstacle| match obstacle {
                Obstacle::Machine(what) => ScenarioError::Load { load: load.clone(), what },
                Obstacle::Device(refusal) => ScenarioError::Refused { load: load.clone(), refusal },
            })?;
        }
        Ok(())
    }

    /// Checks that the machine has these nodes.
    fn nodes(&self, asked: &[(&str, usize)]) -> Result<(), String> {
        let nodes = self.machine.nodes.len();
        match asked.iter().find(|(_, node)| *node >= nodes) {
            None => Ok(()),
            Some((role, node)) => {
                let (name, last) = (&self.machine.name, nodes.saturating_sub(1));
                Err(format!("{role} at node {node}, and the profile {name} has nodes 0 to {last}"))
            }
        }
    }

    fn stream(&self, load: &Load, stream: &Stream) -> Result<(), Obstacle> {
        let (src, dst) = (&stream.src, &stream.dst);
        self.nodes(&[("its source is", src.node), ("its destination is", dst.node), ("its core is", stream.core)])?;
        counts(&[
            ("threads", load.threads, MOST_THREADS),
            ("depth", stream.depth, MOST_IN_FLIGHT),
            ("batch", stream.batch, MOST_IN_FLIGHT),
        ])?;
        let in_flight = u64::from(load.threads) * u64::from(stream.depth) * u64::from(stream.batch);
        if in_flight > MOST_DESCRIPTORS && stream.by != ExecutedBy::Cpu {
            let what = format!("{in_flight} descriptors would be in flight, at most {MOST_DESCRIPTORS} are possible");
            return Err(what.into());
        }
        if let Some(place) = [src, dst].into_iter().find(|place| !PAGES.contains(&place.page)) {
            let sizes = PAGES.map(|page| page.to_string()).join(" or ");
            return Err(format!("a page has {} bytes, not {sizes} bytes", place.page).into());
        }
        if matches!(stream.by, ExecutedBy::Mover(_)) && stream.batch > 1 {
            let what = format!("batch is {}, but a mover's simulated threads submit single operations", stream.batch);
            return Err(what.into());
        }
        for queue in self.queues_of(load) {
            self.queue(queue, stream)?;
        }
        Ok(())
    }

    /// Checks a stream against the configuration of a queue, and names the device's answer.
    fn queue(&self, queue: QueueId, stream: &Stream) -> Result<(), Obstacle> {
        let QueueId { device, wq, shared } = queue;
        let Some(config) = self.devices.get(usize::from(device)) else {
            let configured = self.devices.len();
            return Err(format!("wq{device}.{wq} is a queue of dsa{device}, and {configured} are configured").into());
        };
        let Some(queue) = configured_queue(config, wq) else {
            let there: Vec<String> = queues(config).map(|(wq, _)| format!("wq{device}.{wq}")).collect();
            return Err(format!("wq{device}.{wq} is not configured; there are {}", there.join(", ")).into());
        };
        if shared != (queue.mode == WqMode::Shared) {
            let (is, by) = if shared { ("dedicated", "ENQCMD") } else { ("shared", "MOVDIR64B") };
            return Err(format!("wq{device}.{wq} is {is} and does not accept {by}").into());
        }
        let answer = |why: String, status: Status| Err(Obstacle::Device(RefusedOperation { status, why }));
        if !self.capabilities.op_cap.contains(stream.op) || stream.batch > 1 && stream.op == Opcode::Batch {
            return answer(format!("{} is not an operation of the device", stream.op.name()), Status::BadOpcode);
        }
        if !is_simulated(stream.op) {
            return Err(format!("{} is not simulated", stream.op.name()).into());
        }
        let (most, size) = (queue.max_transfer_size.next_power_of_two(), u64::from(stream.size));
        if size > most || size == 0 {
            let what =
                format!("a transfer of {size} bytes is not between 1 and wq{device}.{wq}'s max_transfer_size, {most}");
            return answer(what, Status::TransferSizeRange);
        }
        let most = queue.max_batch_size.next_power_of_two();
        if stream.batch > most && stream.batch > 1 {
            let what = format!("a batch of {} is beyond wq{device}.{wq}'s max_batch_size, {most}", stream.batch);
            return answer(what, Status::DescriptorCountRange);
        }
        Ok(())
    }
}

/// Queues of a configuration with their numbers.
pub(super) fn queues(config: &Config) -> impl Iterator<Item = (usize, &WqConfig)> {
    let all = config.groups.iter().flat_map(|group| &group.grouped_workqueues);
    all.filter_map(|wq| Some((number(&wq.dev)?, wq)))
}

/// The queue with this number.
pub(super) fn configured_queue(config: &Config, wq: usize) -> Option<&WqConfig> {
    queues(config).find(|(number, _)| *number == wq).map(|(_, queue)| queue)
}

/// The number of a queue or engine from its name: 3 for `wq0.3`.
pub(super) fn number(name: &str) -> Option<usize> {
    name.rsplit('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::places::BufferPlacement;

    fn message_of(stream: Stream, config: Config) -> String {
        let machine = Machine::built_in("spr-asplos").unwrap();
        let scenario = Scenario::on(machine, config).with("mine", 1, Workload::Stream(stream));
        scenario.simulate().unwrap_err().to_string()
    }

    #[test]
    fn an_application_needs_the_nodes_that_it_names() {
        let machine = Machine::built_in("ice-lake-cbdma").unwrap();
        let pages = crate::apps::Migration { to: 1, ..crate::apps::Migration::compacting() };
        let app = Workload::App(crate::apps::App::Migration(pages));
        let message = Scenario::on(machine, Config::single(WqMode::Dedicated, 16, 1)).with("pages", 1, app).simulate();
        let message = message.unwrap_err().to_string();
        assert_eq!(
            message,
            "load pages: the application runs at node 1, and the profile ice-lake-cbdma has nodes 0 to 0"
        );
    }

    #[test]
    fn refusals_include_the_answer_of_the_device() {
        let copy = Stream::of(Opcode::MemoryMove, 4096);
        let plain = || Config::single(WqMode::Dedicated, 16, 1);
        let mut narrow = plain();
        narrow.groups[0].grouped_workqueues[0].max_transfer_size = 2000;
        narrow.groups[0].grouped_workqueues[0].max_batch_size = 30;
        let elsewhere = |device, wq| Stream { by: ExecutedBy::Device(QueueId { device, wq, shared: false }), ..copy };
        for (stream, config, words) in [
            (
                copy,
                narrow.clone(),
                "a transfer of 4096 bytes is not between 1 and wq0.0's max_transfer_size, 2048; the device answers: \
                 transfer size is zero or too large (0x13)",
            ),
            (
                Stream { size: 64, batch: 33, ..copy },
                narrow,
                "a batch of 33 is beyond wq0.0's max_batch_size, 32; the device answers: descriptor count is out of \
                 range (0x14)",
            ),
            (Stream { size: 0, ..copy }, plain(), "a transfer of 0 bytes"),
            (Stream { by: ExecutedBy::SHARED, ..copy }, plain(), "wq0.0 is dedicated and does not accept ENQCMD"),
            (elsewhere(1, 0), plain(), "wq1.0 is a queue of dsa1, and 1 are configured"),
            (elsewhere(0, 3), plain(), "wq0.3 is not configured; there are wq0.0"),
            (
                Stream { dst: BufferPlacement::on(9), ..copy },
                plain(),
                "its destination is at node 9, and the profile spr-asplos has nodes 0 to",
            ),
            (Stream { depth: 0, ..copy }, plain(), "depth is 0"),
            (
                Stream::of(Opcode::TranslationFetch, 64),
                plain(),
                "not an operation of the device; the device answers: operation not supported",
            ),
        ] {
            let message = message_of(stream, config);
            assert!(message.starts_with("load mine: ") && message.contains(words), "{message}");
        }
    }
}
