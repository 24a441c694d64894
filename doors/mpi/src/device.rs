//! The device that copies the chunks of groups.

use crate::log;
use std::error::Error;
use telpher_device::{DeviceName, OpenOptions};
use telpher_fabric::Copier;
use telpher_fabric::collective::MOST_COPIES;
use telpher_fabric::copier::DEFAULT_SHORTEST;
use telpher_mover::{Channel, ChannelPolicy};

/// The variable with the device. Without it, the CPU copies. The provider for libfabric has the same one.
const DEVICE: &str = "TELPHER_FABRIC_DEVICE";

/// The most queues of a group, one of each of four devices. Source: as for the provider.
const MOST_QUEUES: usize = 4;

/// Returns what copies the chunks of a group. If the device cannot be used, a line says why, and the CPU copies.
///
/// Each group opens the device by itself: only one client may use a dedicated queue.
pub(crate) fn copier() -> Copier {
    let name = std::env::var(DEVICE).unwrap_or_default();
    if name.is_empty() || name == "cpu" {
        return Copier::cpu();
    }
    open(&name).unwrap_or_else(|error| {
        log::warn(format_args!("the CPU copies for collective operations, not {DEVICE}={name}: {error}"));
        Copier::cpu()
    })
}

fn open(name: &str) -> Result<Copier, Box<dyn Error>> {
    let name: DeviceName = name.parse()?;
    let opened = telpher_device::open(&name, OpenOptions::default())?;
    for queue in opened.skipped {
        log::info(format_args!("{} is not used: {}", queue.queue, queue.why));
    }
    let queues = opened.portals.into_iter().take(MOST_QUEUES);
    let channels = queues.map(|portal| Channel::new(portal, MOST_COPIES, ChannelPolicy::default()));
    let channels = channels.collect::<Result<Vec<_>, _>>()?;
    if channels.is_empty() {
        return Err("it has no queue that this user may use".into());
    }
    Ok(Copier::devices(channels, DEFAULT_SHORTEST))
}
