//! Lists: one operation with several sources, and a descriptor for each of them.
//!
//! A list takes neighbouring slots. The first one has the sources and the stage, the others are [`Stage::Part`]. Its
//! descriptors are written once, go with one submission, and are never submitted again: if the device does not do one
//! of them, the CPU does the whole list.

use super::{Kind, LastRecord, Ring, Stage};
use crate::api::outcome::Outcome;
use crate::inflight::memory;
use telpher_abi::Status;
use telpher_mem::StableBuf;
use telpher_ops::crc::{CrcMode, crc32c, crc32c_join};

impl<S: StableBuf + Clone, D: Send + 'static> Ring<S, D> {
    /// Takes slots for the CRC of all sources. Gives them back if one batch of the queue cannot have their descriptors,
    /// or if there are not as many free slots side by side.
    pub(crate) fn put_list(&mut self, sources: Vec<S>) -> Result<u64, Vec<S>> {
        let (position, parts) = (self.tail, sources.len());
        let i = self.index(position);
        let has_room = self.tail - self.head + parts as u64 <= self.capacity as u64 && i + parts <= self.slots.len();
        let lens = 1..=self.queue.limits.max_transfer;
        let is_possible = has_room && (1..=self.longest_list).contains(&parts);
        if !is_possible || !sources.iter().all(|source| lens.contains(&(source.len() as u64))) {
            return Err(sources);
        }
        let slots = &mut self.slots[i..i + parts];
        for ((at, slot), source) in (i..).zip(&mut *slots).zip(&sources) {
            slot.stage = Stage::Part;
            let cell = &self.records[at].own;
            cell.clear();
            // No longer than the queue's limit, which is below 2^32.
            let len = u32::try_from(source.len()).unwrap_or(u32::MAX);
            let descriptor = self.crc_template.with_src(source.address()).with_size(len).with_record(cell.address());
            // SAFETY: in bounds, because the list has an entry for each slot. The entry is in no burst, so no device
            // reads it. By pointer, as in `write`.
            unsafe { self.list.as_mut_ptr().add(at).write(descriptor) };
        }
        let first = &mut slots[0];
        (first.stage, first.parts, first.kind) = (Stage::Waiting, parts, Kind::List);
        (first.request.device, first.request.cpu) = (false, false);
        first.sources = sources;
        self.clone_sources = Some(<[S]>::to_vec);
        self.tail += parts as u64;
        Ok(position)
    }
}

impl<S: Send + 'static, D: Send + 'static> Ring<S, D> {
    /// Ends a list whose records are all written. Returns false if one is missing.
    pub(super) fn list_arrived(&mut self, i: usize) -> bool {
        let end = i + self.slots[i].parts;
        // A device is likely to write the last one last.
        if self.records[i..end].iter().rev().any(|records| records.own.status().is_none()) {
            return false;
        }
        let Some(first) = self.records[i].own.read() else { return false };
        let (mut crc, mut is_done) = (first.crc(), first.status() == Status::Success);
        for (records, descriptor) in self.records[i + 1..end].iter().zip(&self.list[i + 1..end]) {
            let Some(record) = records.own.read() else { return false };
            is_done &= record.status() == Status::Success;
            crc = crc32c_join(crc, record.crc(), descriptor.size() as usize);
        }
        let outcome = if is_done {
            self.slots[i].request.device = true;
            Outcome::Crc(crc)
        } else {
            self.list_on_cpu(i)
        };
        self.end(i, Ok(outcome), LastRecord::None);
        true
    }

    /// Does a whole list on the CPU. No device changes its sources.
    #[cold]
    pub(super) fn list_on_cpu(&mut self, i: usize) -> Outcome {
        let end = i + self.slots[i].parts;
        let crc = self.list[i..end].iter().fold(0, |crc, part| {
            // SAFETY: the range is that of a source in the list's first slot, which only readers have.
            let bytes = unsafe { memory::bytes(part.src(), part.size().into()) };
            crc32c(crc, bytes, CrcMode::default())
        });
        self.slots[i].request.cpu_did_the_rest();
        Outcome::Crc(crc)
    }
}
