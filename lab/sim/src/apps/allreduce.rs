//! A sum over the buffers of several processes that all of them receive: a ring through shared memory, and a training
//! step around it (KUPER appendix A: MPI_AllReduce, BERT).
//!
//! ```text
//! ring of R: R - 1 times ( send a part, receive one, add it ), then R - 1 times ( send a sum, receive one )
//! ```
//!
//! Parts are transferred like messages: the sender copies into segments, the receiver out of them. The core always
//! adds; it reads the received part and its own, like a comparison of two buffers, and writes a line that it has
//! cached.

use super::messages::SharedMemory;
use super::segments::{Copier, Segments};
use super::{Report, measure};
use crate::picos::Picos;
use crate::places::{BufferPlacement, LineLocation};
use crate::workload::AccessPattern;
use crate::world::{Core, Semaphore, World};
use std::cell::RefCell;
use std::rc::Rc;
use telpher_abi::Opcode;

/// Processes that sum their buffers.
#[derive(Clone, PartialEq, Debug)]
pub struct AllReduce {
    /// Number of processes.
    pub ranks: u32,
    /// Bytes of each process's buffer.
    pub bytes: u64,
    /// Number of sums.
    pub count: u64,
    /// Milliseconds of computing before each sum.
    pub compute_ms: f64,
    /// What makes the copies.
    pub copier: Copier,
    /// Parameters of the shared memory.
    pub shared: SharedMemory,
}

impl Default for AllReduce {
    /// Two ranks, ten sums of 4 MiB, without computing.
    fn default() -> Self {
        AllReduce {
            ranks: 2,
            bytes: 4 << 20,
            count: 10,
            compute_ms: 0.0,
            copier: Copier::Core,
            shared: SharedMemory::default(),
        }
    }
}

impl AllReduce {
    /// A step of BERT's pretraining with `buckets` buckets of gradients: each is computed, then summed over the ranks.
    #[must_use]
    pub fn training(ranks: u32, buckets: u64) -> Self {
        AllReduce { ranks, bytes: 25 << 20, count: buckets, compute_ms: 80.0, ..AllReduce::default() }
    }
}

/// From one rank to the next.
#[derive(Clone)]
struct Edge {
    into: Rc<Segments>,
    out: Rc<Segments>,
    room: Semaphore,
    filled: Semaphore,
}

/// One process.
struct Rank {
    app: AllReduce,
    to: Edge,
    from: Edge,
    /// Its own buffer, and the last received part.
    own: BufferPlacement,
    came: BufferPlacement,
    tally: Rc<RefCell<Tally>>,
}

#[derive(Default)]
struct Tally {
    until: Picos,
    /// Time of the slowest rank in sums.
    summing: Picos,
}

impl Rank {
    /// Sends a part and receives one, turn by turn; adds or keeps the received part.
    async fn pass(&self, core: &Core, part: u64, add: bool) {
        let shared = &self.app.shared;
        let adder = core.with_walk(AccessPattern::Sequential);
        core.busy(shared.command()).await;
        let mut left = part;
        while left > 0 {
            let share = left.min(shared.share());
            left -= share;
            core.until(self.to.room).await;
            self.to.into.begin(core, share).await.finish(core).await;
            core.give(self.to.filled);
            core.until(self.from.filled).await;
            core.busy(shared.turn()).await;
            self.from.out.begin(core, share).await.finish(core).await;
            core.give(self.from.room);
            if add {
                adder.software(Opcode::Compare, share, self.own, self.came).await;
            }
        }
    }

    async fn run(self, core: Core) {
        let ranks = u64::from(self.app.ranks);
        let part = self.app.bytes.div_ceil(ranks);
        let mut summing = Picos::ZERO;
        for _ in 0..self.app.count {
            core.busy(Picos::from_nanos_f64(self.app.compute_ms * 1e6)).await;
            let start = core.now();
            for step in 0..2 * (ranks - 1) {
                self.pass(&core, part, step < ranks - 1).await;
            }
            summing += core.now().since(start);
        }
        let mut tally = self.tally.borrow_mut();
        tally.until = tally.until.max(core.now());
        tally.summing = tally.summing.max(summing);
    }
}

impl AllReduce {
    pub(super) fn start(&self, world: &mut World) -> Report {
        let app = AllReduce { ranks: self.ranks.clamp(1, 1024), ..self.clone() };
        let ranks = u64::from(app.ranks);
        // A peer's segments are its share of the pool.
        let segments = app.shared.segments.min(app.shared.pool / ranks).max(1);
        let app = AllReduce { shared: SharedMemory { segments, ..app.shared }, ..app };
        // The computing in between takes the cache.
        let used = ranks.saturating_mul(app.bytes);
        let used = if app.compute_ms > 0.0 { used.max(app.shared.cache_bytes.saturating_add(1)) } else { used };
        let homes: Vec<usize> = (0..ranks).map(|rank| app.shared.home(world, rank, ranks)).collect();
        let edges: Vec<Edge> = (0..homes.len())
            .map(|rank| {
                let nodes = [homes[rank], homes[(rank + 1) % homes.len()]];
                let (into, out) = app.shared.ways(world, &app.copier, app.bytes, used, nodes);
                Edge { into, out, room: world.signal(1), filled: world.signal(0) }
            })
            .collect();
        let tally = Rc::new(RefCell::new(Tally::default()));
        for (rank, to) in edges.iter().enumerate() {
            let from = edges[(rank + edges.len() - 1) % edges.len()].clone();
            let home = homes[rank];
            let came = BufferPlacement { lines: LineLocation::Llc, ..BufferPlacement::on(home) };
            let own = if used <= app.shared.cache_bytes { came } else { BufferPlacement::on(home) };
            let rank = Rank { app: app.clone(), to: to.clone(), from, own, came, tally: tally.clone() };
            world.spawn(home, |core| rank.run(core));
        }
        Box::new(move |_| {
            let tally = tally.borrow();
            #[allow(clippy::cast_precision_loss, reason = "for display")]
            let count = app.count.max(1) as f64;
            let (summing, all) = (tally.summing.as_secs_f64(), tally.until.as_secs_f64());
            vec![
                measure("time per sum", summing * 1e6 / count, "us"),
                measure("time per step", all * 1e6 / count, "us"),
                measure("share of time in sums", summing / all.max(1e-12) * 100.0, "%"),
            ]
        })
    }
}
