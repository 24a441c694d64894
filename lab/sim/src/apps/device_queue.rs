//! A device's queue behind a library that copies: descriptors that the library offers to a [`Gate`] go to the simulated
//! device, and are executed when its record is written.

use crate::simulated_portal::{Gate, Offered};
use crate::workload::QueueId;
use crate::world::{Core, PendingWork, World};
use std::sync::Arc;
use telpher_abi::Descriptor;

/// One queue and its descriptors in flight.
pub(super) struct DeviceQueue {
    queue: QueueId,
    pub(super) gate: Arc<Gate>,
    /// The operation; each descriptor has its own size.
    operation: Descriptor,
    in_flight: Vec<(u64, PendingWork)>,
    /// Batches that completed before an earlier one.
    pub(super) overtaking: u64,
}

impl DeviceQueue {
    /// A queue whose descriptors are all like `operation`, except for their sizes.
    pub(super) fn new(world: &World, queue: QueueId, operation: Descriptor) -> DeviceQueue {
        let gate = Arc::new(Gate::new(world.queue_info(queue)));
        DeviceQueue { queue, gate, operation, in_flight: Vec::new(), overtaking: 0 }
    }

    /// Submits what the library has offered. Returns the number of submissions and of descriptors.
    pub(super) async fn submit(&mut self, core: &Core) -> (u64, u64) {
        let (mut submissions, mut descriptors) = (0, 0);
        for Offered { number, sizes } in self.gate.offered() {
            let members: Vec<Descriptor> = sizes.iter().map(|size| self.operation.with_size(*size)).collect();
            submissions += 1;
            descriptors += members.len() as u64;
            let work = core.submit_batch(self.queue, &members).await;
            self.in_flight.push((number, work));
        }
        (submissions, descriptors)
    }

    /// Executes the completed descriptors: their bytes and records are then written.
    pub(super) fn look(&mut self) {
        let mut before = false;
        let DeviceQueue { gate, overtaking, .. } = self;
        self.in_flight.retain(|(number, work)| {
            let done = work.is_done();
            if done {
                gate.execute(*number);
                *overtaking += u64::from(before);
            }
            before |= !done;
            !done
        });
    }
}
