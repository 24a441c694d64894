//! A device that takes descriptors and does nothing, so that only the submitting thread's work is measured.

use telpher_abi::registers::{DsaCap0, GenCap, OpCap};
use telpher_abi::{CompletionRecord, Descriptor, Opcode, Status};
use telpher_portal::{Offer, Portal, QueueInfo, QueueMode, RecordCell, Submission};

/// The CRC of everything. It is not 0, because some work can be skipped for 0.
const CRC: u32 = 0x1234_5678;

/// A dedicated queue without a device. The submission instruction is replaced by a write of the completion record,
/// which real hardware would do: success, and a CRC that is always the same. It reads and writes no data.
#[derive(Debug)]
pub(crate) struct FreeDevice(QueueInfo);

impl FreeDevice {
    /// A queue of `size` entries that takes CRC Generation, in batches of at most `batch` descriptors.
    pub(crate) fn new(size: u32, batch: u32) -> FreeDevice {
        FreeDevice(QueueInfo {
            name: "free".into(),
            mode: QueueMode::Dedicated,
            size,
            max_transfer: 1 << 21,
            max_batch: batch,
            block_on_fault: false,
            gen_cap: GenCap::default(),
            dsa_cap_0: DsaCap0::default(),
            operations: OpCap::default().with(Opcode::CrcGeneration, true).with(Opcode::Batch, true),
            numa_node: None,
        })
    }
}

/// Writes the record of a descriptor that was successful.
fn complete(descriptor: &Descriptor) {
    let record = CompletionRecord::default()
        .with_status_code(Status::Success.code())
        .with_bytes_completed(descriptor.size())
        .with_crc(CRC);
    let address = descriptor.completion_address() as *const RecordCell;
    // SAFETY: the submission's promise covers the record, which is accessed only through its atomics, and all
    // descriptors of a channel have one.
    unsafe { &*address }.complete(&record);
}

// SAFETY: it executes a submission within `offer`, by writing records only, and keeps nothing of it.
unsafe impl Portal for FreeDevice {
    fn info(&self) -> &QueueInfo {
        &self.0
    }

    #[inline]
    fn offer(&self, submission: &Submission) -> Offer {
        let descriptor = submission.descriptor();
        if descriptor.opcode() == Opcode::Batch {
            let list = descriptor.src() as *const Descriptor;
            for index in 0..descriptor.size() as usize {
                // SAFETY: the submission's promise covers its list of `size` descriptors, which nothing changes before
                // the batch's record is written.
                complete(&unsafe { list.add(index).read() });
            }
        }
        complete(descriptor);
        Offer::Taken
    }
}
