//! The device that copies the chunks of groups.

use crate::log;
use std::error::Error;
use std::sync::{Mutex, OnceLock, PoisonError};
use telpher_device::{DeviceName, OpenOptions, Opened};
use telpher_fabric::Copier;
use telpher_fabric::collective::MOST_COPIES;
use telpher_fabric::copier::DEFAULT_SHORTEST;
use telpher_mover::{Channel, ChannelPolicy};
use telpher_portal::QueueMode;

/// The variable with the device. Without it, the CPU copies. The provider for libfabric has the same one.
const DEVICE: &str = "TELPHER_FABRIC_DEVICE";

/// The most queues of a group, one of each of four devices. Source: as for the provider.
const MOST_QUEUES: usize = 4;

/// Returns what copies the chunks of a group. If the device cannot be used, a line says why, once for the process, and
/// the CPU copies.
///
/// The first group opens the device, and all share its shared queues. Only one client may use a dedicated queue, so
/// the first group has it for good.
pub(crate) fn copier() -> Copier {
    static OPENED: OnceLock<Mutex<Opened>> = OnceLock::new();
    let name = std::env::var(DEVICE).unwrap_or_default();
    if name.is_empty() || name == "cpu" {
        return Copier::cpu();
    }
    let opened = OPENED.get_or_init(|| {
        Mutex::new(open(&name).unwrap_or_else(|error| {
            log::warn(format_args!("the CPU copies for collective operations, not {DEVICE}={name}: {error}"));
            Opened::default()
        }))
    });
    // After a panic in another call, the queues are still usable or report that they are not.
    let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
    queues_of_group(&mut opened).unwrap_or_else(|error| {
        log::warn(format_args!("the CPU copies for a communicator, not {DEVICE}={name}: {error}"));
        Copier::cpu()
    })
}

fn open(name: &str) -> Result<Opened, Box<dyn Error>> {
    let name: DeviceName = name.parse()?;
    let opened = telpher_device::open(&name, OpenOptions::default())?;
    for queue in &opened.skipped {
        log::info(format_args!("{} is not used: {}", queue.queue, queue.why));
    }
    if opened.portals.is_empty() {
        return Err("it has no queue that this user may use".into());
    }
    Ok(opened)
}

/// Returns a copier with the first queues, and keeps those that further groups may use. Without any, the CPU copies.
fn queues_of_group(opened: &mut Opened) -> Result<Copier, Box<dyn Error>> {
    let count = opened.portals.len().min(MOST_QUEUES);
    let mut channels = Vec::with_capacity(count);
    let mut further = Vec::with_capacity(opened.portals.len());
    let mut portals = std::mem::take(&mut opened.portals).into_iter();
    for portal in portals.by_ref().take(count) {
        if portal.info().mode == QueueMode::Shared {
            further.push(portal.clone());
        }
        channels.push(Channel::new(portal, MOST_COPIES, ChannelPolicy::default())?);
    }
    further.extend(portals);
    opened.portals = further;
    Ok(if channels.is_empty() { Copier::cpu() } else { Copier::devices(channels, DEFAULT_SHORTEST) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_device::{Config, ModelDevice, ModelOptions, WqMode};

    #[test]
    fn groups_share_shared_queues_and_the_first_one_keeps_a_dedicated_queue() {
        for (mode, queues_left) in [(WqMode::Shared, 1), (WqMode::Dedicated, 0)] {
            let config = Some(Config::single(mode, 16, 1));
            let device = ModelDevice::start(ModelOptions { config, ..ModelOptions::default() }).unwrap();
            let mut opened = Opened { portals: vec![device.portal("wq0.0").unwrap()], skipped: Vec::new() };
            let mut has_queue = || !format!("{:?}", queues_of_group(&mut opened).unwrap()).contains("queues: []");
            assert_eq!([has_queue(), has_queue()], [true, mode == WqMode::Shared], "{mode:?}");
            assert_eq!(opened.portals.len(), queues_left, "{mode:?}");
        }
    }
}
