//! The device's queues that copy, and their assignment to virtqueues.

use crate::{RingMap, RunOptions, SwitchRunError};
use std::sync::Arc;
use telpher_device::{DeviceName, OpenOptions, Opened};
use telpher_vhost::{CopyPolicy, DmaQueue, QueueOptions};

/// The device's queues, and their assignment.
#[derive(Debug)]
pub struct DmaQueues {
    dma_queues: Vec<Arc<DmaQueue>>,
    maps: Vec<RingMap>,
    hybrid: CopyPolicy,
    in_flight: usize,
}

impl DmaQueues {
    /// Opens the device. Its own threads, if any, run on processors without forwarding threads. Skipped queues are
    /// reported.
    pub(super) fn open(options: &RunOptions, tell: impl Fn(&str)) -> Result<DmaQueues, SwitchRunError> {
        let name: DeviceName = options.device.parse()?;
        let before = telpher_os::allowed_cpus().unwrap_or_default();
        let others: Vec<usize> = before.iter().copied().filter(|cpu| !options.cpus.contains(cpu)).collect();
        if !options.cpus.is_empty() && !others.is_empty() {
            // Threads inherit the processors of the thread that starts them.
            let _ = telpher_os::run_on(&others);
        }
        let opened = telpher_device::open(&name, OpenOptions { runner: options.runner });
        if !before.is_empty() {
            let _ = telpher_os::run_on(&before);
        }
        let Opened { portals, skipped } = opened?;
        skipped.iter().for_each(|skipped| tell(&format!("{} is not used: {}", skipped.queue, skipped.why)));
        let dma_queues = portals.into_iter().map(|portal| Ok(Arc::new(DmaQueue::new(portal, options.in_flight)?)));
        let dma_queues = dma_queues.collect::<Result<Vec<_>, SwitchRunError>>()?;
        match name {
            DeviceName::All if dma_queues.is_empty() => {
                tell("this user may not use any hardware queue: the CPU copies everything");
            }
            DeviceName::Cpu if !matches!(options.policy, None | Some(CopyPolicy::Cpu)) => {
                return Err(SwitchRunError::NoDevice);
            }
            _ => {}
        }
        let known = || dma_queues.iter().map(|dma_queue| dma_queue.name()).collect::<Vec<_>>().join(", ");
        for dma_queue in options.maps.iter().flat_map(|map| &map.dma_queues) {
            if !dma_queues.iter().any(|known| known.name() == dma_queue) {
                let known = if dma_queues.is_empty() { "no queues".into() } else { known() };
                return Err(SwitchRunError::NoDmaQueue {
                    dma_queue: dma_queue.clone(),
                    device: options.device.clone(),
                    known,
                });
            }
        }
        let hybrid =
            if dma_queues.is_empty() { CopyPolicy::Cpu } else { options.policy.unwrap_or(CopyPolicy::Learned) };
        Ok(DmaQueues { dma_queues, maps: options.maps.clone(), hybrid, in_flight: options.in_flight as usize })
    }

    /// Returns all DMA queues.
    pub fn all(&self) -> &[Arc<DmaQueue>] {
        &self.dma_queues
    }

    /// Describes which packets the device copies.
    pub fn rule(&self) -> String {
        match self.hybrid {
            CopyPolicy::Cpu => "the CPU copies all packets".into(),
            CopyPolicy::Learned => "the device copies packets if that is measured to be cheaper".into(),
            CopyPolicy::Device => "the device copies all packets".into(),
            CopyPolicy::From(bytes) => format!("the device copies packets of {bytes} bytes or more"),
        }
    }

    /// Returns the settings of the rings of port `port` with `pairs` queue pairs; `first` rings of other ports come
    /// before.
    pub(super) fn rings(&self, port: usize, pairs: usize, first: usize) -> Vec<QueueOptions> {
        let ring = |ring: usize| {
            // A guest receives on even rings: the switch sends to them (VirtIO 1.2 §5.1.2).
            let (queue, rx) = (ring / 2, !ring.is_multiple_of(2));
            let named = self.maps.iter().rev().find(|map| {
                map.rx == rx && map.port.is_none_or(|of| of == port) && map.queue.is_none_or(|of| of == queue)
            });
            let dma_queues = match named {
                Some(map) => self
                    .dma_queues
                    .iter()
                    .filter(|dma_queue| map.dma_queues.iter().any(|name| name == dma_queue.name()))
                    .cloned()
                    .collect(),
                None if self.dma_queues.is_empty() => Vec::new(),
                None => vec![Arc::clone(&self.dma_queues[(first + ring) % self.dma_queues.len()])],
            };
            QueueOptions { hybrid: self.hybrid, dma_queues, in_flight: self.in_flight }
        };
        (0..2 * pairs).map(ring).collect()
    }
}
