//! A storage target: cores that read from disks for two initiators over TCP, with or without a digest of the data in
//! every reply (SPDK's NVMe/TCP target; KUPER appendix C).
//!
//! ```text
//! initiator ─► command ─► disk ─► digest: none, core or device ─► send ─► link ─► initiator: the next command
//! ```
//!
//! Connections, commands, digest jobs and replies are `telpher-nvmf`'s own code; this module simulates their
//! environment: sockets, disks, links and the time of a core. Each core has one loop over its connections, as
//! `telpher_nvmf::Server` does. It polls, and does other work while a device computes digests. Every initiator keeps a
//! constant number of reads in flight.

mod disks;
mod host_queue;
mod measurement;
mod parameters;
mod target_loop;

use super::Report;
use super::device_queue::DeviceQueue;
use crate::picos::Picos;
use crate::places::{BufferPlacement, LineLocation};
use crate::world::World;
use disks::Disks;
use host_queue::connect_initiators;
use measurement::{Link, Shared, Tally};
use parameters::{BLOCK, INITIATORS, MOST_BYTES, MOST_READS};
pub use parameters::{DigestBy, Storage, StorageCosts};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use target_loop::{QueuePair, TargetLoop};
use telpher_abi::Opcode;
use telpher_mover::{Channel, ChannelPolicy, ManualClock, Order};
use telpher_nvmf::{CpuEngine, DeviceEngine, DigestEngine};
use telpher_portal::Portal;

/// Digests of one core that its channel holds. Source: chosen; more than all reads in flight by default. With 128, a
/// single core would compute half of the digests itself: more reads are ready at once.
const CHANNEL_SLOTS: u32 = 1024;

impl Storage {
    /// The engine of one core, and the device's queue behind it.
    fn engine(&self, world: &mut World, core: u32) -> (Box<dyn DigestEngine>, Option<DeviceQueue>) {
        let queues = match &self.digest {
            DigestBy::Devices(queues) if !queues.is_empty() => queues,
            _ => return (Box::new(CpuEngine::default()), None),
        };
        let data = world.places.add(BufferPlacement { lines: LineLocation::Memory, ..BufferPlacement::on(0) });
        let digest = World::descriptor(Opcode::CrcGeneration, data, data, self.bytes);
        let device = DeviceQueue::new(world, queues[core as usize % queues.len()], digest);
        let portal = Arc::clone(&device.gate) as Arc<dyn Portal>;
        let policy = ChannelPolicy { order: Order::Arrival, ..ChannelPolicy::default() };
        // A clock that does not advance: a slow simulation makes no digest late.
        let clock = Arc::new(ManualClock::new(Duration::ZERO));
        let channel = Channel::with_clock(portal, CHANNEL_SLOTS, policy, clock).expect("it has slots");
        (Box::new(DeviceEngine::new(channel, self.threshold as usize)), Some(device))
    }

    pub(super) fn start(&self, world: &mut World) -> Report {
        let disks = self.costs.disks.clamp(1, 1024);
        let app = Rc::new(Storage {
            cores: self.cores.max(1),
            bytes: self.bytes.clamp(1, MOST_BYTES).next_multiple_of(BLOCK),
            costs: StorageCosts { disks, ..self.costs },
            ..self.clone()
        });
        let backend = Arc::new(Disks::new(app.bytes));
        let (admin, queues) = connect_initiators(&app, &backend);
        let connections = u32::try_from(queues.len()).unwrap_or(u32::MAX);
        let mut pairs: Vec<Vec<QueuePair>> = (0..app.cores).map(|_| Vec::new()).collect();
        for (number, (connection, host)) in (0..).zip(queues) {
            let reads = app.under_way / connections + u32::from(number < app.under_way % connections);
            let (link, disk) = ((number / disks) as usize, (number % disks) as usize);
            let pair = QueuePair { connection, host, disk, link, reads: reads.min(MOST_READS) };
            pairs[(number % app.cores) as usize].push(pair);
        }
        let shared = Rc::new(RefCell::new(Shared {
            disks: vec![Picos::ZERO; disks as usize],
            links: vec![Link::default(); INITIATORS as usize],
            done: 0,
            since: Picos::ZERO,
            until: Picos::ZERO,
            wrong: 0,
            tally: Tally::default(),
        }));
        for (core, pairs) in (0..).zip(pairs) {
            let (engine, device) = app.engine(world, core);
            let target = TargetLoop::new(app.clone(), shared.clone(), backend.clone(), pairs, engine, device);
            world.spawn(0, |core| target.run(core));
        }
        Box::new(move |_| {
            // A controller ends with its admin queue.
            drop(admin);
            shared.borrow().measures(&app)
        })
    }
}
