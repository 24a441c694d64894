//! What was used, and for how long: engines, pipes, and the latencies of loads.

use super::{World, engine};
use crate::latencies::Latencies;
use crate::pipes::Pipe;
use crate::ps::Ps;
use std::fmt;

/// For how long an engine was busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineUse {
    /// Number of the device.
    pub device: usize,
    /// Number of the engine in it.
    pub engine: usize,
    /// Its front end: taking and checking descriptors.
    pub front: Ps,
    /// Its data path: bytes on their way.
    pub data: Ps,
}

/// How engines learnt where the pages of operands are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Translations {
    /// Operands in the page of the one before, which engines remember.
    pub remembered: u64,
    /// Pages that the IOMMU was asked for.
    pub asked: u64,
    /// Those of them for which it walked through the page tables.
    pub walked: u64,
}

/// Something that can be busy, or full.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Resource {
    /// The cores of a load, by its number.
    Cores(usize),
    /// The entries of a queue.
    Queue {
        /// Number of the device.
        device: usize,
        /// Number of the queue in it.
        wq: usize,
    },
    /// What takes and checks an engine's descriptors.
    FrontEnd {
        /// Number of the device.
        device: usize,
        /// Number of the engine in it.
        engine: usize,
    },
    /// What moves an engine's bytes.
    DataPath {
        /// Number of the device.
        device: usize,
        /// Number of the engine in it.
        engine: usize,
    },
    /// What a device reads.
    DeviceReads(usize),
    /// What it writes.
    DeviceWrites(usize),
    /// What goes from its reads to its writes.
    DeviceThrough(usize),
    /// The channels of a memory node, for what is read and what is written.
    Node(usize),
    /// The way of a tile's nodes to the mesh, by the tile's number.
    Tile(usize),
    /// The part of a last-level cache that a load's cores, or devices, fill.
    Cache {
        /// Number of the load; none for devices and programs.
        load: Option<usize>,
    },
    /// What leaves a socket for others.
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
            Resource::DeviceThrough(device) => write!(f, "reads to writes of dsa{device}"),
            Resource::Node(node) => write!(f, "memory of node {node}"),
            Resource::Tile(tile) => write!(f, "mesh of tile {tile}"),
            Resource::Cache { load: Some(load) } => write!(f, "last-level cache of load {load}"),
            Resource::Cache { load: None } => write!(f, "last-level cache of devices and programs"),
            Resource::Link(socket) => write!(f, "link from socket {socket}"),
        }
    }
}

/// What a pipe carried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PipeUse {
    /// Which it is.
    pub what: Resource,
    /// Bytes that went through it.
    pub bytes: u128,
    /// Bytes per second that it can carry.
    pub rate: u64,
}

impl PipeUse {
    /// The part of some time for which it was full, on average.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    pub fn share(&self, of: Ps) -> f64 {
        self.bytes as f64 / (self.rate as f64 * of.as_secs_f64()).max(1.0)
    }
}

impl World {
    /// Threads that are added from here on belong to one load more.
    pub fn begin_load(&mut self) {
        self.latencies.push(Latencies::default());
    }

    /// The load that a thread which is added now belongs to.
    pub(super) fn load(&mut self) -> usize {
        if self.latencies.is_empty() {
            self.begin_load();
        }
        self.latencies.len() - 1
    }

    /// Latencies of a load's submissions, if it had any.
    #[must_use]
    pub fn latencies(&self, load: usize) -> Option<&Latencies> {
        self.latencies.get(load)
    }

    /// For how long each engine was busy.
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

    /// How the engines of all devices learnt where pages are.
    #[must_use]
    pub fn translations(&self) -> Translations {
        self.translations
    }

    /// What every pipe of the machine carried.
    #[must_use]
    pub fn pipes(&self) -> Vec<PipeUse> {
        let of = |what: Resource, pipe: Pipe, rate: u64| PipeUse { what, bytes: self.pipes.carried(pipe), rate };
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
