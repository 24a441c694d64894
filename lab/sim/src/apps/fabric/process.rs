//! A process: an endpoint of `telpher-fabric`, and the core or the device that makes its copies.
//!
//! Calls to the endpoint take no simulated time. The core is busy for the copies that they start, and a peer sees a
//! piece when its copy has ended.

use super::buffers::Words;
use super::copies::{Copies, Places};
use crate::picos::Picos;
use crate::places::BufferPlacement;
use crate::workload::AccessPattern;
use crate::world::{Core, Semaphore};
use telpher_abi::Opcode;
use telpher_fabric::{
    Completes, Completion, Endpoint, Operation, PeerId, ReceiveRequest, Segments, SendEnd, SendRequest,
};

/// Longest wait for a device's record before the core looks at its rings again. Source: assumed, a pass of
/// `Endpoint::progress` over idle rings.
const PASS: Picos = Picos::from_nanos(100);

/// Costs of a process's work in addition to its copies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// A message: to announce and to match it.
    pub(super) command: Picos,
    /// Until a process that waits sees what its peer did.
    pub(super) turn: Picos,
    /// A piece: its entry, and its part of an answer.
    pub(super) entry: Picos,
}

/// One process.
pub(super) struct Process {
    /// Dropped first: it may use the buffers.
    pub(super) endpoint: Endpoint,
    pub(super) own: Words,
    pub(super) came: Words,
    pub(super) copies: Copies,
    pub(super) times: Times,
    pub(super) places: Places,
    /// Messages up to this length are copied by the calls that send and receive them.
    pub(super) eager_bytes: u64,
    /// Released when a peer did something.
    pub(super) bell: Semaphore,
    pub(super) bells_of_peers: Vec<Semaphore>,
    pub(super) peer: PeerId,
    pub(super) done: Vec<Completion>,
    /// Operations that have started and not ended.
    pub(super) under_way: usize,
    /// Pieces that the endpoint has left to the CPU so far, with their time charged.
    pub(super) charged: u64,
}

impl Process {
    /// Starts to send bytes of the own buffer.
    pub(super) async fn send(&mut self, core: &Core, offset: u64, bytes: u64) {
        core.busy(self.times.command).await;
        if bytes <= self.eager_bytes {
            self.copy(core, bytes, self.places.own, self.places.rings[0]).await;
        }
        let request = SendRequest {
            to: self.peer,
            segments: self.own.lend(offset, bytes),
            tag: None,
            data: None,
            context: 0,
            completes: Completes::Always,
            end: SendEnd::BufferFree,
            inject: false,
        };
        self.endpoint.send(request).expect("the peers live as long as the simulation");
        self.under_way += 1;
        self.ring(core);
    }

    /// Starts to receive.
    pub(super) fn receive(&mut self, core: &Core, segments: Segments) {
        let request =
            ReceiveRequest { segments, from: None, tag: None, context: 0, completes: Completes::Always, many: None };
        self.endpoint.receive(request).expect("this process has not forked");
        self.under_way += 1;
        self.ring(core);
    }

    /// Works until at most `left` operations are under way.
    pub(super) async fn finish(&mut self, core: &Core, left: usize) {
        while self.under_way > left {
            if self.advance(core).await || !self.done.is_empty() {
                self.count(core).await;
            } else if let Some(work) = self.copies.oldest() {
                core.poll(work, PASS).await;
            } else {
                core.until(self.bell).await;
                core.busy(self.times.turn).await;
            }
        }
    }

    /// One pass of the endpoint, and the copies that it starts: one by a core, all by a device. True if something
    /// moved.
    async fn advance(&mut self, core: &Core) -> bool {
        let mut moved = false;
        while self.endpoint.progress() {
            moved = true;
        }
        self.endpoint.completions(&mut self.done, usize::MAX);
        if moved {
            self.ring(core);
        }
        self.charge_rest(core).await;
        self.copies.take(&self.own);
        let copied = self.copies.advance(core, &self.places).await;
        core.busy(self.times.entry * copied).await;
        moved || copied > 0
    }

    /// Charges the pieces that the endpoint copied itself, because its channel was full.
    async fn charge_rest(&mut self, core: &Core) {
        let by_cpu = self.endpoint.statistics().pieces_by_cpu;
        for _ in self.charged..by_cpu {
            self.copy(core, self.copies.piece(), self.places.slots_in, self.places.came).await;
        }
        self.charged = by_cpu;
    }

    /// Counts the operations that have ended.
    async fn count(&mut self, core: &Core) {
        let eager = self.eager_bytes;
        for end in std::mem::take(&mut self.done) {
            end.result.expect("no peer ends and no buffer is missing");
            self.under_way -= 1;
            if end.operation == Operation::Receive && end.len <= eager {
                // No device writes the buffer of such messages: it is as cached as the own one.
                self.copy(core, end.len, self.places.rings[1], self.places.own).await;
            }
        }
    }

    async fn copy(&self, core: &Core, bytes: u64, src: BufferPlacement, dst: BufferPlacement) {
        core.with_walk(AccessPattern::Sequential).software(Opcode::MemoryMove, bytes, src, dst).await;
    }

    /// Wakes the peers that wait.
    fn ring(&self, core: &Core) {
        for bell in &self.bells_of_peers {
            if core.waiting(*bell) > 0 {
                core.give(*bell);
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The endpoint waits for its device.
        self.copies.open();
    }
}
