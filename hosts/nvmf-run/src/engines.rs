//! The digest engines of the loops: a channel of the mover for each, or the CPU.

use crate::config::DigestsConfig;
use crate::error::NvmfRunError;
use std::sync::Arc;
use std::time::Duration;
use telpher_device::{DeviceName, OpenOptions, Opened};
use telpher_mover::{Channel, ChannelPolicy};
use telpher_nvmf::{CpuEngine, DeviceEngine, DigestEngine};
use telpher_portal::QueueMode;

/// How long an operation may take before the CPU does it again. Source: chosen; hosts wait 30 s for a command.
const DEADLINE: Duration = Duration::from_secs(1);

/// An engine for each loop.
pub(crate) struct Engines {
    pub(crate) engines: Vec<Box<dyn DigestEngine>>,
    /// What computes digests, as a sentence for the user.
    pub(crate) rule: String,
}

/// Opens the device. `all` without any queue is the CPU, with a remark; a device that was named must open.
pub(crate) fn open(
    config: &DigestsConfig,
    loops: usize,
    remark: &mut dyn FnMut(String),
) -> Result<Engines, NvmfRunError> {
    let name = &config.device.0;
    let Opened { portals, skipped } = telpher_device::open(name, OpenOptions::default())?;
    for queue in skipped {
        remark(format!("{} is not used: {}", queue.queue, queue.why));
    }
    if portals.is_empty() {
        if *name == DeviceName::All {
            remark("this user may not use any hardware queue: the CPU computes all digests".into());
        }
        let engines = (0..loops).map(|_| Box::new(CpuEngine::default()) as Box<dyn DigestEngine>).collect();
        return Ok(Engines { engines, rule: "the CPU computes all digests".into() });
    }
    // A dedicated queue has one client. Loops without a queue of their own share a shared queue, or use the CPU.
    let (dedicated, shared): (Vec<_>, Vec<_>) =
        portals.into_iter().partition(|portal| portal.info().mode == QueueMode::Dedicated);
    let mut dedicated = dedicated.into_iter();
    let mut engines: Vec<Box<dyn DigestEngine>> = Vec::with_capacity(loops);
    let mut without = 0;
    for index in 0..loops {
        let own = dedicated.next();
        let portal = own.or_else(|| shared.get(index % shared.len().max(1)).map(Arc::clone));
        let Some(portal) = portal else {
            without += 1;
            engines.push(Box::new(CpuEngine::default()));
            continue;
        };
        let policy = ChannelPolicy { deadline: Some(DEADLINE), ..ChannelPolicy::default() };
        let channel = Channel::new(portal, config.in_flight, policy)?;
        let threshold = usize::try_from(config.threshold.0).unwrap_or(usize::MAX);
        engines.push(Box::new(DeviceEngine::new(channel, threshold)));
    }
    if without > 0 {
        remark(format!("{name} has too few queues: in {without} of {loops} loops the CPU computes the digests"));
    }
    Ok(Engines { engines, rule: format!("{name} computes digests of {} bytes or more", config.threshold.0) })
}
