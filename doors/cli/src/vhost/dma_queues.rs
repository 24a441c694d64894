//! The device's queues that copy, and their assignment to virtqueues.

use super::error::VhostError;
use crate::args::{MapArg, Threshold, Vhost};
use std::sync::Arc;
use telpher_device::{DeviceName, OpenOptions, Opened};
use telpher_vhost::{CopyPolicy, DmaQueue, QueueOptions};

/// The device's queues, and their assignment.
#[derive(Debug)]
pub(crate) struct DmaQueues {
    dma_queues: Vec<Arc<DmaQueue>>,
    map: Vec<MapArg>,
    hybrid: CopyPolicy,
    in_flight: usize,
}

impl DmaQueues {
    /// Opens the device. Its own threads, if any, run on processors without forwarding threads. Skipped queues are
    /// reported.
    pub(crate) fn open(args: &Vhost, tell: impl Fn(&str)) -> Result<DmaQueues, VhostError> {
        let name: DeviceName = args.device.parse()?;
        let before = telpher_os::allowed_cpus().unwrap_or_default();
        let others: Vec<usize> = before.iter().copied().filter(|cpu| !args.cpus.contains(cpu)).collect();
        if !args.cpus.is_empty() && !others.is_empty() {
            // Threads inherit the processors of the thread that starts them.
            let _ = telpher_os::run_on(&others);
        }
        let opened = telpher_device::open(&name, OpenOptions { runner: args.runner.into() });
        if !before.is_empty() {
            let _ = telpher_os::run_on(&before);
        }
        let Opened { portals, skipped } = opened?;
        skipped.iter().for_each(|skipped| tell(&format!("{} is not used: {}", skipped.queue, skipped.why)));
        let dma_queues = portals.into_iter().map(|portal| Ok(Arc::new(DmaQueue::new(portal, args.in_flight)?)));
        let dma_queues = dma_queues.collect::<Result<Vec<_>, VhostError>>()?;
        match name {
            DeviceName::All if dma_queues.is_empty() => {
                tell("this user may not use any hardware queue: the CPU copies everything");
            }
            DeviceName::Cpu
                if matches!(args.threshold, Some(Threshold::From(_) | Threshold::All | Threshold::Learned)) =>
            {
                return Err(VhostError::NoDevice);
            }
            _ => {}
        }
        let known = || dma_queues.iter().map(|dma_queue| dma_queue.name()).collect::<Vec<_>>().join(", ");
        for dma_queue in args.map.iter().flat_map(|map| &map.dma_queues) {
            if !dma_queues.iter().any(|known| known.name() == dma_queue) {
                let known = if dma_queues.is_empty() { "no queues".into() } else { known() };
                return Err(VhostError::NoDmaQueue {
                    dma_queue: dma_queue.clone(),
                    device: args.device.clone(),
                    known,
                });
            }
        }
        let hybrid = match args.threshold {
            _ if dma_queues.is_empty() => CopyPolicy::Cpu,
            None | Some(Threshold::Learned) => CopyPolicy::Learned,
            Some(Threshold::From(bytes)) => CopyPolicy::From(bytes),
            Some(Threshold::All) => CopyPolicy::Device,
            Some(Threshold::Off) => CopyPolicy::Cpu,
        };
        Ok(DmaQueues { dma_queues, map: args.map.clone(), hybrid, in_flight: args.in_flight as usize })
    }

    /// Returns all DMA queues.
    pub(crate) fn all(&self) -> &[Arc<DmaQueue>] {
        &self.dma_queues
    }

    /// Describes which packets the device copies.
    pub(crate) fn rule(&self) -> String {
        match self.hybrid {
            CopyPolicy::Cpu => "the CPU copies all packets".into(),
            CopyPolicy::Learned => "the device copies packets if that is measured to be cheaper".into(),
            CopyPolicy::Device => "the device copies all packets".into(),
            CopyPolicy::From(bytes) => format!("the device copies packets of {bytes} bytes or more"),
        }
    }

    /// Returns the settings of the rings of port `port` with `pairs` queue pairs; `first` rings of other ports come
    /// before.
    pub(crate) fn rings(&self, port: usize, pairs: usize, first: usize) -> Vec<QueueOptions> {
        let ring = |ring: usize| {
            // A guest receives on even rings: the switch sends to them (VirtIO 1.2 §5.1.2).
            let (queue, rx) = (ring / 2, !ring.is_multiple_of(2));
            let named = self.map.iter().rev().find(|map| {
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
