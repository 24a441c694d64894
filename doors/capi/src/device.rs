//! An opened device: its queues, and the owners of the dedicated ones.

use crate::c_structs::QueueInfo;
use crate::failure::Failure;
use crate::options::Options;
use std::sync::{Arc, Mutex, PoisonError};
use telpher_device::{DeviceName, Opened, Skipped, open};
use telpher_mover::{Channel, ChannelPolicy, Mover, Policy, StableBuf, StableBufMut};
use telpher_os::chain;
use telpher_portal::{Portal, QueueMode};

/// The queues of an opened device.
///
/// A dedicated queue has one client (SPEC §3.3). This is enforced here: a portal's reference count shows whether a
/// mover, a channel or one of their jobs still has it, and the lock serializes the checks.
#[derive(Debug)]
pub struct Device {
    opened: Opened,
    /// References to each portal before any client claimed it.
    unclaimed: Vec<usize>,
    claiming: Mutex<()>,
}

impl Device {
    pub(crate) fn open(name: &str, options: &Options) -> Result<Device, Failure> {
        let name: DeviceName = name.parse().map_err(|error| Failure::Other(libc::EINVAL, chain(&error)))?;
        let opened = open(&name, options.open)?;
        let unclaimed = opened.portals.iter().map(Arc::strong_count).collect();
        Ok(Device { opened, unclaimed, claiming: Mutex::new(()) })
    }

    pub(crate) fn queues(&self) -> usize {
        self.opened.portals.len()
    }

    /// Queues that were skipped.
    pub(crate) fn skipped(&self) -> &[Skipped] {
        &self.opened.skipped
    }

    /// The properties of a queue.
    pub(crate) fn info(&self, index: usize) -> Option<QueueInfo> {
        let info = self.opened.portals.get(index)?.info();
        let mut name = [0; 32];
        // The last byte stays zero.
        name.iter_mut().zip(info.name.bytes().take(31)).for_each(|(to, from)| *to = from);
        let bit = |op: &telpher_mover::Opcode| if op.code() < 64 { 1_u64 << op.code() } else { 0 };
        let operations = telpher_mover::Opcode::ALL.iter().filter(|op| info.operations.contains(**op)).map(bit);
        Some(QueueInfo {
            name,
            dedicated: self.is_dedicated(index).into(),
            size: info.size,
            max_transfer: info.max_transfer,
            max_batch: info.max_batch,
            block_on_fault: info.block_on_fault.into(),
            numa_node: info.numa_node.and_then(|node| i32::try_from(node).ok()).unwrap_or(-1),
            reserved: 0,
            operations: operations.fold(0, |all, bit| all | bit),
            reserved2: [0; 3],
        })
    }

    fn is_dedicated(&self, index: usize) -> bool {
        self.opened.portals[index].info().mode == QueueMode::Dedicated
    }

    /// Refuses a dedicated queue in use. Call it under the lock.
    fn free(&self, index: usize) -> Result<(), Failure> {
        let portal = &self.opened.portals[index];
        if self.is_dedicated(index) && Arc::strong_count(portal) > self.unclaimed[index] {
            return Err(Failure::Other(
                libc::EBUSY,
                format!(
                    "{} is a dedicated queue and another mover, channel or DMA queue of this device has it; free that \
                     one and its jobs first, or divide the queues with the option queues=LIST",
                    portal.info().name
                ),
            ));
        }
        Ok(())
    }

    fn index(&self, index: u64) -> Result<usize, Failure> {
        let count = self.queues();
        let found = usize::try_from(index).ok().filter(|index| *index < count);
        Ok(found.ok_or(crate::failure::Refusal::Index { what: "queue", index, count: count as u64 })?)
    }

    /// A mover over these queues, all if not given.
    pub(crate) fn mover(&self, queues: Option<&[usize]>, policy: Policy) -> Result<Mover, Failure> {
        let _one = self.claiming.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<usize> = (0..self.queues()).collect();
        let queues = queues.unwrap_or(&all);
        for &queue in queues {
            self.free(self.index(queue as u64)?)?;
        }
        Ok(Mover::new(queues.iter().map(|queue| Arc::clone(&self.opened.portals[*queue])), policy))
    }

    /// A channel to one queue.
    pub(crate) fn channel<S: StableBuf, D: StableBufMut>(
        &self,
        queue: u64,
        capacity: u32,
        policy: ChannelPolicy,
    ) -> Result<Channel<S, D>, Failure> {
        Ok(Channel::new(self.claim(queue)?, capacity, policy)?)
    }

    /// One queue, claimed by its owner while the owner has it.
    pub(crate) fn claim(&self, queue: u64) -> Result<Arc<dyn Portal>, Failure> {
        let _one = self.claiming.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = self.index(queue)?;
        self.free(queue)?;
        Ok(Arc::clone(&self.opened.portals[queue]))
    }
}
