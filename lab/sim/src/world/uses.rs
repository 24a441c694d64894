//! Usage: busy times of engines, bytes of pipes, and latencies of loads.

use super::{World, engine};
use crate::latencies::Latencies;
use crate::picos::Picos;
use crate::pipes::Pipe;
use std::fmt;

/// Busy times of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineUse {
    /// Number of the device.
    pub device: usize,
    /// Number of the engine within the device.
    pub engine: usize,
    /// Busy time of the front end, which takes and checks descriptors.
    pub front: Picos,
    /// Busy time of the data path, which moves bytes.
    pub data: Picos,
}

/// Address translations of engines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Translations {
    /// Operands in the page of the previous operand, which engines cache.
    pub remembered: u64,
    /// Pages requested from the IOMMU.
    pub requested: u64,
    /// Requests for which the IOMMU walked the page tables.
    pub walked: u64,
}

/// A resource that can be busy or full.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Resource {
    /// The cores of a load, by its number.
    Cores(usize),
    /// The entries of a queue.
    Queue {
        /// Number of the device.
        device: usize,
        /// Number of the queue within the device.
        wq: usize,
    },
    /// The front end of an engine, which takes and checks descriptors.
    FrontEnd {
        /// Number of the device.
        device: usize,
        /// Number of the engine within the device.
        engine: usize,
    },
    /// The data path of an engine, which moves bytes.
    DataPath {
        /// Number of the device.
        device: usize,
        /// Number of the engine within the device.
        engine: usize,
    },
    /// The reads of a device, by its number.
    DeviceReads(usize),
    /// The writes of a device, by its number.
    DeviceWrites(usize),
    /// The path from a device's reads to its writes, by the device's number.
    DeviceThrough(usize),
    /// The channels of a memory node, for reads and writes.
    Node(usize),
    /// The path of a tile's nodes to the mesh, by the tile's number.
    Tile(usize),
    /// The part of a last-level cache that a load's cores, or devices, fill.
    Cache {
        /// Number of the load; `None` for devices and programs.
        load: Option<usize>,
    },
    /// The link from a socket to others, by the socket's number.
    Link(usize),
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::Cores(load) => write!(f, "cores of load {load}"),
            Resource::Queue { device, wq } => write!(f, "entries of wq{device}.{wq}"),
            Resource::FrontEnd { device, engine } => write!(f, "front end of engine{device}.{engine}"),
            Resource::DataPath { device, engine } => write!(f, "data path of engine{device}.{engine}"),
            Resource::DeviceReads(device) => write!(f, "reads of dsa{device}"),
            Resource::DeviceWrites(device) => write!(f, "writes of dsa{device}"),
            Resource::DeviceThrough(device) => write!(f, "throughput of dsa{device}"),
            Resource::Node(node) => write!(f, "memory of node {node}"),
            Resource::Tile(tile) => write!(f, "mesh of tile {tile}"),
            Resource::Cache { load: Some(load) } => write!(f, "last-level cache of load {load}"),
            Resource::Cache { load: None } => write!(f, "last-level cache of devices and programs"),
            Resource::Link(socket) => write!(f, "link from socket {socket}"),
        }
    }
}

/// The bytes that a pipe carried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PipeUse {
    /// The resource.
    pub what: Resource,
    /// Bytes carried.
    pub bytes: u128,
    /// Its rate in bytes per second.
    pub rate: u64,
}

impl PipeUse {
    /// The mean utilization over a span of time, as a share of 1.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "for display")]
    pub fn share(&self, of: Picos) -> f64 {
        self.bytes as f64 / (self.rate as f64 * of.as_secs_f64()).max(1.0)
    }
}

impl World {
    /// Threads added from here on belong to a new load.
    pub fn begin_load(&mut self) {
        self.latencies.push(Latencies::default());
    }

    /// The load of a thread that is added now.
    pub(super) fn load(&mut self) -> usize {
        if self.latencies.is_empty() {
            self.begin_load();
        }
        self.latencies.len() - 1
    }

    /// Latencies of a load's submissions, if there is such a load.
    #[must_use]
    pub fn latencies(&self, load: usize) -> Option<&Latencies> {
        self.latencies.get(load)
    }

    /// Busy times of each engine.
    pub fn engines(&self) -> impl Iterator<Item = EngineUse> + '_ {
        let of = |(device, dsa): (usize, &'_ super::device::Dsa)| -> Vec<EngineUse> {
            let of = |(engine, pe): (usize, &engine::Pe)| EngineUse {
                device,
                engine,
                front: pe.front_busy,
                data: pe.data_busy,
            };
            dsa.pes.iter().enumerate().map(of).collect()
        };
        self.devices.iter().enumerate().flat_map(of)
    }

    /// Address translations of the engines of all devices.
    #[must_use]
    pub fn translations(&self) -> Translations {
        self.translations
    }

    /// The bytes that every pipe of the machine has carried.
    #[must_use]
    pub fn pipes(&self) -> Vec<PipeUse> {
        let now = self.events.now();
        let of = |what: Resource, pipe: Pipe, rate: u64| PipeUse { what, bytes: self.pipes.carried(pipe, now), rate };
        let costs = &self.machine.device;
        let mut uses = Vec::new();
        for (number, dsa) in self.devices.iter().enumerate() {
            uses.push(of(Resource::DeviceReads(number), dsa.read, costs.read));
            uses.push(of(Resource::DeviceWrites(number), dsa.write, costs.write));
            uses.push(of(Resource::DeviceThrough(number), dsa.through, costs.through));
        }
        for (number, (node, pipe)) in self.machine.nodes.iter().zip(&self.memory.nodes).enumerate() {
            uses.push(of(Resource::Node(number), *pipe, node.read));
        }
        for (tile, pipe) in &self.memory.tiles {
            uses.push(of(Resource::Tile(*tile), *pipe, self.machine.memory.tile.unwrap_or(1)));
        }
        for (socket, link) in self.memory.links.iter().enumerate() {
            uses.push(of(Resource::Link(socket), *link, self.machine.link.unwrap_or(1)));
        }
        uses
    }
}
