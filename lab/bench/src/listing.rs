//! Lists devices, groups, queues and engines: what `telpher list` prints.

use crate::{BenchError, devices as running};
use telpher_device::{DeviceName, GroupListing, Listing, ModelDevice, ModelSource, Preset, WqListing};
use telpher_hw::Live;
use telpher_report::devices::{Device, Group, Queue};

/// Returns the devices that `--device` names, hardware first.
///
/// # Errors
/// If the name is not one of a device, the machine has no such queue, or the model cannot be started.
pub fn listings(text: &str) -> Result<Vec<(String, Listing)>, BenchError> {
    let hardware = || telpher_device::hardware(&Live::default()).into_iter().map(|listing| ("hw".to_owned(), listing));
    match text.parse::<DeviceName>()? {
        DeviceName::Cpu => Ok(Vec::new()),
        DeviceName::Model(source) => Ok(vec![(text.to_owned(), modelled(text, &source)?)]),
        DeviceName::All => {
            let source = ModelSource::Preset(Preset::default());
            let name = DeviceName::Model(source.clone()).to_string();
            let model = modelled(&name, &source)?;
            Ok(hardware().chain([(name, model)]).collect())
        }
        DeviceName::Hardware(queue) => {
            let dev = format!("dsa{}", queue.device);
            let found: Vec<_> = hardware().filter(|(_, listing)| listing.dev == dev).collect();
            let has_queue = telpher_hw::discover(&Live::default()).queue(&queue.to_string()).is_some();
            if found.is_empty() || !has_queue {
                return Err(BenchError::NotHere(format!(
                    "there is no {queue} on this machine; `telpher list` shows the queues, `telpher doctor` why a \
                     device is missing"
                )));
            }
            Ok(found)
        }
    }
}

fn modelled(name: &str, source: &ModelSource) -> Result<Listing, BenchError> {
    let device = ModelDevice::start(running::options(source)?);
    let device = device.map_err(|source| BenchError::Start { name: name.to_owned(), source })?;
    Ok(device.listing())
}

/// Returns a named listing as data for tables.
pub fn described((name, listing): &(String, Listing)) -> Device {
    let listing = listing.clone();
    Device {
        name: name.clone(),
        dev: listing.dev,
        modelled: listing.modelled,
        pci_address: listing.pci_address,
        numa_node: listing.numa_node,
        max_groups: listing.max_groups,
        max_work_queues: listing.max_work_queues,
        max_engines: listing.max_engines,
        work_queue_size: listing.work_queue_size,
        max_read_buffers: listing.max_read_buffers,
        max_batch_size: listing.max_batch_size,
        max_transfer_size: listing.max_transfer_size,
        version: listing.version,
        gen_cap: listing.gen_cap,
        op_cap: listing.op_cap,
        operations: listing.operations,
        state: listing.state,
        groups: listing.groups.into_iter().map(group).collect(),
    }
}

fn group(group: GroupListing) -> Group {
    Group {
        dev: group.dev,
        queues: group.grouped_workqueues.into_iter().map(queue).collect(),
        engines: group.grouped_engines.into_iter().map(|engine| engine.dev).collect(),
    }
}

fn queue(queue: WqListing) -> Queue {
    Queue {
        dev: queue.dev,
        mode: queue.mode,
        size: queue.size,
        threshold: queue.threshold,
        priority: queue.priority,
        max_transfer_size: queue.max_transfer_size,
        max_batch_size: queue.max_batch_size,
        block_on_fault: queue.block_on_fault,
        kind: queue.kind,
        state: queue.state,
        unusable: queue.unusable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_device::ModelOptions;

    #[test]
    fn the_default_device_is_listed_completely() {
        let listing = ModelDevice::start(ModelOptions::default()).unwrap().listing();
        let text = telpher_report::devices::text(&described(&("model:spr".to_owned(), listing)));
        for words in [
            "dsa0 (model:spr)",
            "4 of 4 groups, 8 of 8 work queues, 4 of 4 engines in use; 128 queue entries",
            "memory-move",
            "wq0.7",
            "engine0.3",
            "dedicated",
            "shared",
        ] {
            assert!(text.contains(words), "{words} is missing in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    }
}
