//! Packet switches: the device's queues for a switch, and its counters for C.

use crate::c_structs::{SwitchStats, VhostSocketState, VhostStats};
use crate::device::Device;
use crate::failure::{Failure, Refusal};
use crate::options::SwitchWords;
use crate::vhost::{socket_state, virtqueue_stats};
use std::path::PathBuf;
use std::sync::Arc;
use telpher_switch::{End, PortConfig, PortKind, Switch, SwitchPort};
use telpher_vhost::{CopyPolicy, DmaQueue, MOST_RINGS, Offer, PortOptions, QueueOptions, Role};

/// A packet switch with threads of its own. Any number of threads may use it at once.
#[derive(Debug)]
pub struct PacketSwitch(Switch);

/// A port as the caller describes it.
pub(crate) struct Description {
    pub(crate) path: String,
    /// Which side of a socket listens; `None` for an interface.
    pub(crate) role: Option<Role>,
    pub(crate) pairs: u32,
    pub(crate) capture: Option<PathBuf>,
}

impl PacketSwitch {
    /// Creates a switch and starts it. Without a device, the CPU copies all packets.
    pub(crate) fn start(
        device: Option<&Device>,
        ports: Vec<Description>,
        words: SwitchWords,
    ) -> Result<PacketSwitch, Failure> {
        let SwitchWords { mut config, queues, copies, in_flight } = words;
        // In flight are at most 32,768 packets.
        let room = u32::try_from(in_flight).unwrap_or(u32::MAX);
        let mut dma_queues = Vec::new();
        if let Some(device) = device {
            for queue in queues.unwrap_or_else(|| (0..device.queues()).collect()) {
                dma_queues.push(Arc::new(DmaQueue::new(device.claim(queue as u64)?, room)?));
            }
        }
        let mut rings = 0;
        for (port, description) in (0..).zip(ports) {
            let Description { path, role, pairs, capture } = description;
            let kind = match role {
                Some(role) => {
                    let valid = u16::try_from(pairs.max(1)).ok().filter(|pairs| *pairs <= MOST_RINGS / 2);
                    let pairs = valid.ok_or(Refusal::PortPairs { port, pairs })?;
                    let count = 2 * usize::from(pairs);
                    let ring = |ring| queue_options(&dma_queues, copies, in_flight, rings + ring);
                    let options = PortOptions {
                        offer: Offer::of_pairs(pairs),
                        rings: (0..count).map(ring).collect(),
                        ..PortOptions::default()
                    };
                    rings += count;
                    PortKind::Socket { path: path.into(), role, options }
                }
                None if pairs == 0 => PortKind::Tap { name: path },
                None => return Err(Refusal::PortPairs { port, pairs }.into()),
            };
            config.ports.push(PortConfig { kind, capture });
        }
        let mut switch = Switch::new(config)?;
        switch.start()?;
        Ok(PacketSwitch(switch))
    }

    pub(crate) fn stop(&self) -> Result<(), Failure> {
        Ok(self.0.stop()?)
    }

    fn port(&self, port: u32) -> Result<&SwitchPort, Failure> {
        let ports = self.0.ports();
        let found = ports.get(port as usize);
        Ok(found.ok_or(Refusal::Index { what: "port", index: port.into(), count: ports.len() as u64 })?)
    }

    pub(crate) fn stats(&self, port: u32) -> Result<SwitchStats, Failure> {
        self.port(port)?;
        let stats = self.0.stats(port as usize).expect("the port was found");
        let counts = stats.counts;
        Ok(SwitchStats {
            received: counts.received,
            received_bytes: counts.received_bytes,
            sent: counts.sent,
            sent_bytes: counts.sent_bytes,
            generated: counts.generated,
            discarded: counts.discarded,
            no_room: counts.no_room,
            retried: counts.retried,
            no_receiver: counts.no_receiver,
            refused: stats.refused,
            in_flight: stats.in_flight(),
            held: counts.held,
            announced: counts.announced,
            captured: stats.captured,
            not_captured: stats.not_captured,
            connected: stats.connected.into(),
            reserved: [0; 8],
        })
    }

    pub(crate) fn queue_stats(&self, port: u32, queue: u32) -> Result<VhostStats, Failure> {
        match self.port(port)?.end() {
            End::Guest(guest) if (queue as usize) < 2 * guest.pairs() => Ok(virtqueue_stats(guest, queue as usize)),
            end => {
                let count = if let End::Guest(guest) = end { 2 * guest.pairs() } else { 0 };
                Err(Refusal::Index { what: "virtqueue", index: queue.into(), count: count as u64 }.into())
            }
        }
    }

    pub(crate) fn socket_state(&self, port: u32) -> Result<VhostSocketState, Failure> {
        let socket = self.port(port)?.socket();
        socket.map(socket_state).ok_or(Failure::NotYet(libc::ENOTSOCK, "the port is an interface and has no socket"))
    }
}

/// The options of virtqueue `ring`, counted over all ports: the DMA queues take turns.
fn queue_options(dma_queues: &[Arc<DmaQueue>], copies: CopyPolicy, in_flight: usize, ring: usize) -> QueueOptions {
    match dma_queues.len() {
        0 => QueueOptions { hybrid: CopyPolicy::Cpu, dma_queues: Vec::new(), in_flight },
        count => QueueOptions { hybrid: copies, dma_queues: vec![Arc::clone(&dma_queues[ring % count])], in_flight },
    }
}
