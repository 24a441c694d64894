//! The device that copies the chunks of groups.

use crate::log;
use std::sync::{Mutex, OnceLock, PoisonError};
use telpher_device::{Opened, RequestError};
use telpher_fabric::Copier;
use telpher_fabric::collective::MOST_COPIES;
use telpher_fabric::copier::{DEVICE_VARIABLE, MOST_QUEUES};
use telpher_mover::{ChannelError, ChannelPolicy};
use telpher_portal::QueueMode;

/// Returns what copies the chunks of a group. If the device cannot be used, a line says why, once for the process, and
/// the CPU copies.
///
/// The first group opens the device, and all share its shared queues. Only one client may use a dedicated queue, so
/// the first group has it for good.
pub(crate) fn copier() -> Copier {
    static OPENED: OnceLock<Mutex<Opened>> = OnceLock::new();
    let name = std::env::var(DEVICE_VARIABLE).unwrap_or_default();
    let opened = OPENED.get_or_init(|| {
        Mutex::new(open(&name).unwrap_or_else(|error| {
            log::warn(format_args!("the CPU copies for collective operations, not {DEVICE_VARIABLE}={name}: {error}"));
            Opened::default()
        }))
    });
    // After a panic in another call, the queues are still usable or report that they are not.
    let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
    queues_of_group(&mut opened).unwrap_or_else(|error| {
        log::warn(format_args!("the CPU copies for a communicator, not {DEVICE_VARIABLE}={name}: {error}"));
        Copier::cpu()
    })
}

fn open(name: &str) -> Result<Opened, RequestError> {
    let opened = telpher_device::open_requested(name)?;
    for queue in &opened.skipped {
        log::info(format_args!("{queue}"));
    }
    Ok(opened)
}

/// Returns a copier with the first queues, and keeps those that further groups may use. Without any, the CPU copies.
fn queues_of_group(opened: &mut Opened) -> Result<Copier, ChannelError> {
    let mut queues = std::mem::take(&mut opened.portals);
    let further = queues.split_off(queues.len().min(MOST_QUEUES));
    opened.portals = queues.iter().filter(|queue| queue.info().mode == QueueMode::Shared).cloned().collect();
    opened.portals.extend(further);
    Copier::with_queues(queues, MOST_COPIES, ChannelPolicy::default())
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
            let mut has_queue = || queues_of_group(&mut opened).unwrap().queues() > 0;
            assert_eq!([has_queue(), has_queue()], [true, mode == WqMode::Shared], "{mode:?}");
            assert_eq!(opened.portals.len(), queues_left, "{mode:?}");
        }
    }
}
