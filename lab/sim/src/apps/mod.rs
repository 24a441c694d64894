//! Applications that use the device, as programs in simulated time.

mod allreduce;
mod cache_load;
mod cachebench;
mod core_cache;
mod device_queue;
mod dto;
mod fabric;
mod gups;
mod memory_side;
mod messages;
mod migration;
mod page_exchange;
mod qdp;
mod replay;
mod segments;
mod storage;
mod vhost;
mod workload_file;

use crate::scenario::Measure;
use crate::world::World;
pub use allreduce::AllReduce;
pub use cache_load::CacheLoad;
pub use cachebench::CacheBench;
pub use dto::{DtoTuning, DtoVersion};
pub use fabric::{Fabric, FabricPattern};
pub use gups::{Gups, PagePlacement};
pub use memory_side::{HbmCacheMode, Pages};
pub use messages::{MessagePattern, Messages, SharedMemory};
pub use migration::{Migration, MigrationOffload, Promotion};
pub use page_exchange::Exchange;
pub use qdp::{LateCopy, PlanTraffic, Prefetch, Query};
pub use replay::{ReplayCall, ReplayDevices, ReplaySection, Replayed, replay};
pub use segments::Copier;
pub use storage::{DigestBy, Storage, StorageCosts};
pub use vhost::{CopyBy, Vhost, VhostCosts};
pub(crate) use workload_file::parse;

/// An application and its parameters.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum App {
    /// The kernel moves pages.
    Migration(Migration),
    /// A program whose pages move to fast memory while it runs.
    Promotion(Promotion),
    /// A program that moves its own pages without the kernel's migration.
    Exchange(Exchange),
    /// Random updates of a memory on two tiers.
    Gups(Gups),
    /// A query over two columns; the second may be prefetched.
    Query(Query),
    /// A sum over buffers of several processes.
    AllReduce(AllReduce),
    /// A cache under load.
    CacheBench(CacheBench),
    /// Messages between two processes by libfabric's provider.
    Messages(Messages),
    /// Messages between processes by `telpher-fabric`.
    Fabric(Fabric),
    /// A storage target.
    Storage(Storage),
    /// A switch's core that copies packets to and from a virtual machine.
    Vhost(Vhost),
}

impl App {
    /// Memory nodes that the application names.
    pub(crate) fn nodes(&self) -> Vec<usize> {
        match self {
            App::Migration(app) | App::Promotion(Promotion { migration: app, .. }) => vec![app.core, app.from, app.to],
            App::Exchange(app) => vec![app.core, app.from, app.to],
            App::Gups(app) => vec![app.fast, app.slow],
            App::Query(app) => {
                let fetched = app.prefetch.iter().map(|fetch| fetch.to);
                let cached = app.memory_side.iter().flat_map(|side| [side.a, side.b]);
                [app.node, app.a, app.b].into_iter().chain(fetched).chain(cached).collect()
            }
            App::AllReduce(_)
            | App::CacheBench(_)
            | App::Fabric(_)
            | App::Messages(_)
            | App::Storage(_)
            | App::Vhost(_) => Vec::new(),
        }
    }
}

/// Returns an application's results after the simulation.
pub(crate) type Report = Box<dyn FnOnce(&World) -> Vec<Measure>>;

impl App {
    /// Adds the application's programs to the world.
    pub(crate) fn start(&self, world: &mut World) -> Report {
        match self {
            App::Migration(app) => app.start(world),
            App::Promotion(app) => app.start(world),
            App::Exchange(app) => app.start(world),
            App::Gups(app) => app.start(world),
            App::Query(app) => app.start(world),
            App::AllReduce(app) => app.start(world),
            App::CacheBench(app) => app.start(world),
            App::Fabric(app) => app.start(world),
            App::Messages(app) => app.start(world),
            App::Storage(app) => app.start(world),
            App::Vhost(app) => app.start(world),
        }
    }
}

fn measure(name: &str, value: f64, unit: &'static str) -> Measure {
    Measure { name: name.to_owned(), value, unit }
}
