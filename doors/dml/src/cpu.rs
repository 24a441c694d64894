//! Executes a descriptor on the CPU, as the modelled device does on the memory of this process.
//!
//! Flags of the device (traffic classes, Block On Fault, fences outside batches) have no meaning here and are ignored,
//! as the original's software path ignores them.

mod direct;
#[cfg(test)]
mod tests;

use crate::memory::own_memory;
use crate::status::DmlStatus;
use crate::strict::strict;
use crate::validate::validate;
use direct::{copied, success};
use std::cell::RefCell;
use telpher_abi::{
    COMPLETION_RECORD_BYTES, CompletionRecord, DESCRIPTOR_BYTES, Descriptor, Flags, OpFlags, Opcode, SourceDifFlags,
    Status, StatusByte,
};
use telpher_mem::Space;
use telpher_model::{Action, Dif, DifKind, OperandSpaces, Scratch, execute};
use telpher_ops::dif::Checked;

thread_local! {
    /// The buffers of this thread's operations; made when the first one needs them.
    static SCRATCH: RefCell<Option<Scratch>> = const { RefCell::new(None) };
}

/// Executes a descriptor that passed [`validate`](crate::validate::validate), and returns its record.
#[inline]
pub(crate) fn run(d: &Descriptor) -> CompletionRecord {
    if d.opcode() == Opcode::Nop { success() } else { run_operation(d) }
}

#[inline(never)]
fn run_operation(d: &Descriptor) -> CompletionRecord {
    match d.opcode() {
        Opcode::MemoryMove if copied(d) => success(),
        Opcode::CrcGeneration => with_crc(direct::crc(d), d),
        Opcode::CopyCrc => with_crc(direct::copy_crc(d), d),
        Opcode::Batch => run_batch(d),
        Opcode::ComparePattern if strict() => by_words(d, run_on_memory(d)),
        Opcode::DifCheck | Opcode::DifStrip | Opcode::DifUpdate if strict() => dif_as_original(d),
        Opcode::DifCheck => dif(DifKind::Check, d),
        Opcode::DifInsert => dif(DifKind::Insert, d),
        Opcode::DifStrip => dif(DifKind::Strip, d),
        Opcode::DifUpdate => dif(DifKind::Update, d),
        _ => run_on_memory(d),
    }
}

/// Executes an operation on integrity fields directly, or else by the steps of a device. The tags behind the last block
/// are not in the record: nothing of the interface shows them.
#[inline]
fn dif(kind: DifKind, d: &Descriptor) -> CompletionRecord {
    let dif = Dif::of(kind, d);
    match direct::dif(&dif) {
        Some(Checked { error: None, .. }) => success(),
        Some(Checked { error: Some(error), blocks }) => Dif::mismatch_record(error, blocks as u64 * dif.source_block()),
        None => run_by_steps(d),
    }
}

/// Returns the record of a CRC that was computed directly, or else computes it by the steps of a device.
#[inline]
fn with_crc(value: Option<u32>, d: &Descriptor) -> CompletionRecord {
    match value {
        Some(value) => success().with_crc(value),
        None => run_by_steps(d),
    }
}

/// Returns the record of a comparison with a pattern as the original's software path writes it: it compares words, and
/// reports where the word begins. It compares bytes only behind the last whole word.
fn by_words(d: &Descriptor, record: CompletionRecord) -> CompletionRecord {
    let at = record.bytes_completed();
    let differs = record.result() == 1 && record.status() != Status::PageFault;
    if differs && at < d.size() / 8 * 8 { record.with_bytes_completed(at / 8 * 8) } else { record }
}

/// Checks integrity fields as the original's software path does: all blocks before one is written, no application tag
/// with a mask of zero, and with a mask of ones only the tag zero.
fn dif_as_original(d: &Descriptor) -> CompletionRecord {
    let d = match d.source_app_tag_mask() {
        0 => d.with_source_app_tag_mask(u16::MAX),
        u16::MAX => {
            let flags = SourceDifFlags::from_bits_retain(d.source_dif_flags()) - SourceDifFlags::APP_TAG_INCREMENTS;
            d.with_source_app_tag_mask(0).with_source_app_tag(0).with_source_dif_flags(flags.bits())
        }
        _ => *d,
    };
    let checked = run_on_memory(&d.with_opcode_code(Opcode::DifCheck.code()));
    if d.opcode() == Opcode::DifCheck || checked.status() != Status::Success { checked } else { run_on_memory(&d) }
}

/// Executes an operation directly, or else by the steps of a device.
fn run_on_memory(d: &Descriptor) -> CompletionRecord {
    direct::run(d).unwrap_or_else(|| run_by_steps(d))
}

/// Executes an operation as the modelled device does: the Drain, those on delta records, moves between ranges that
/// overlap, and all that stop at a page that is not mapped.
#[cold]
fn run_by_steps(d: &Descriptor) -> CompletionRecord {
    let mut d = *d;
    // The interface has 32-bit CRCs, and puts the seed into the descriptor; only `TELPHER_DML_STRICT` lets that flag
    // pass.
    if matches!(d.opcode(), Opcode::CrcGeneration | Opcode::CopyCrc) {
        d = d.with_flags(d.flags() - OpFlags::READ_SEED - OpFlags::CRC64);
    }
    let run = |scratch: &mut Scratch| {
        execute(&Action::of(&d), &OperandSpaces::own(own_memory()), false, false, scratch).record
    };
    let shared = SCRATCH.try_with(|scratch| {
        // Borrowed already: a signal handler has interrupted an operation of this thread.
        let mut scratch = scratch.try_borrow_mut().ok()?;
        Some(run(scratch.get_or_insert_default()))
    });
    // An exiting thread has no buffers any more.
    shared.ok().flatten().unwrap_or_else(|| run(&mut Scratch::default()))
}

/// Executes the members of a batch in their order, and writes their records. As on a device, a failed member ends the
/// batch only in front of a member with a fence.
fn run_batch(d: &Descriptor) -> CompletionRecord {
    let mut failed = false;
    let mut done = 0;
    for at in 0..d.size() {
        let member = match read_member(d, at) {
            Ok(member) => member,
            Err(record) => return record.with_bytes_completed(done),
        };
        if failed && member.flags().contains(Flags::FENCE) {
            break;
        }
        let record = run_member(&member);
        failed |= record.status() != Status::Success;
        // The original ends the batch here, and does not count the member that failed.
        if failed && strict() {
            break;
        }
        done += 1;
    }
    end_of_batch(failed, done)
}

/// Returns the record of a batch.
pub(crate) fn end_of_batch(failed: bool, done: u32) -> CompletionRecord {
    let status = if failed { Status::BatchFail } else { Status::Success };
    CompletionRecord::new(StatusByte::new(status)).with_bytes_completed(done)
}

/// Reads a member of a batch.
///
/// # Errors
/// The record of the batch, if the list is not mapped.
pub(crate) fn read_member(batch: &Descriptor, at: u32) -> Result<Descriptor, CompletionRecord> {
    let mut bytes = [0; 64];
    let address = batch.src().wrapping_add(u64::from(at) * DESCRIPTOR_BYTES);
    own_memory().read(address, &mut bytes).map_err(|fault| {
        CompletionRecord::new(StatusByte::fault(Status::BatchPageFault, fault.write)).with_fault_address(fault.address)
    })?;
    Ok(Descriptor::from_bytes(&bytes))
}

/// Executes a member of a batch and writes its record.
pub(crate) fn run_member(member: &Descriptor) -> CompletionRecord {
    let is_offered = validate(member) != Err(DmlStatus::JOB_OPERATION_ERROR);
    let refused = !is_offered || matches!(member.opcode(), Opcode::Batch | Opcode::Drain);
    let record = if refused { CompletionRecord::new(StatusByte::new(Status::BadOpcode)) } else { run(member) };
    write_record(member, &record);
    record
}

/// Returns a member's record; `None` if it is not written, or there is none.
pub(crate) fn record_of(member: &Descriptor) -> Option<CompletionRecord> {
    let mut bytes = [0; 32];
    own_memory().read(record_address(member)?, &mut bytes).ok()?;
    let record = CompletionRecord::from_bytes(&bytes);
    record.status_byte().is_complete().then_some(record)
}

/// Writes a member's record, if it has a place for it.
pub(crate) fn write_record(member: &Descriptor, record: &CompletionRecord) {
    if let Some(address) = record_address(member) {
        // A place that is not mapped has no reader.
        let _ = own_memory().write_record(address, &record.0);
    }
}

fn record_address(member: &Descriptor) -> Option<u64> {
    let valid = member.flags().contains(Flags::COMPLETION_RECORD_ADDRESS_VALID);
    let address = member.completion_address();
    (valid && address.is_multiple_of(COMPLETION_RECORD_BYTES)).then_some(address)
}
