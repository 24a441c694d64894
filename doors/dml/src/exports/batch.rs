//! Batches of jobs: their members' descriptors and records lie in the buffer of the batch.

use super::{address_of, answer, job_to_read, put};
use crate::describe::{self, as_member, batch_list};
use crate::job::{ALIGNMENT, DifConfig, DmlJob, MEMBER_BYTES, MIN_BATCH};
use crate::last_error;
use crate::status::DmlStatus;
use crate::strict::strict;
use crate::validate::validate;
use std::ptr::with_exposed_provenance_mut;
use telpher_abi::{COMPLETION_RECORD_BYTES, CompletionRecord, DESCRIPTOR_BYTES, Descriptor, Flags, Opcode};
use telpher_portal::RecordCell;

/// The buffer of a batch: `count` descriptors, then as many records.
#[derive(Clone, Copy)]
struct Buffer {
    list: u64,
    count: u32,
}

impl Buffer {
    fn of(job: &DmlJob) -> Result<Buffer, DmlStatus> {
        if job.destination_length == 0 || job.destination_first_ptr == 0 {
            return Err(DmlStatus::NULL_POINTER_ERROR);
        }
        Ok(Buffer { list: batch_list(job.destination_first_ptr), count: job.destination_length / MEMBER_BYTES })
    }

    fn check(self, index: u32) -> Result<Self, DmlStatus> {
        if index < self.count { Ok(self) } else { Err(DmlStatus::BATCH_TASK_INDEX_OVERFLOW) }
    }

    fn record_address(self, index: u32) -> u64 {
        self.list + u64::from(self.count) * DESCRIPTOR_BYTES + u64::from(index) * COMPLETION_RECORD_BYTES
    }

    /// # Safety
    /// The index is smaller than `count`, and the buffer is valid for its size.
    unsafe fn record<'a>(self, index: u32) -> &'a RecordCell {
        let address = address_of(self.record_address(index));
        // SAFETY: inside the buffer, aligned to 32, and made of atomics: a device may write it meanwhile.
        unsafe { &*std::ptr::with_exposed_provenance::<RecordCell>(address) }
    }

    fn descriptor(self, index: u32) -> *mut Descriptor {
        with_exposed_provenance_mut(address_of(self.list + u64::from(index) * DESCRIPTOR_BYTES))
    }
}

/// Clears the members' records in front of a submission, so that a member that is not executed has none.
///
/// # Safety
/// The job's batch buffer is valid for its size.
pub(super) unsafe fn clear_records(job: &DmlJob) {
    let Ok(buffer) = Buffer::of(job) else { return };
    for index in 0..buffer.count {
        // SAFETY: guaranteed by our caller.
        unsafe { buffer.record(index) }.complete(&CompletionRecord::default());
    }
}

/// Makes a member, checks it, and stores it. `pointers` are those that must not be NULL; they are checked in front of
/// the index.
///
/// # Safety
/// A pointer to a job with a batch buffer that is valid for its size.
unsafe fn set(
    job: *mut DmlJob,
    index: u32,
    given: u64,
    pointers: &[*const u8],
    make: impl FnOnce() -> Result<Descriptor, DmlStatus>,
) -> DmlStatus {
    let store = || {
        // SAFETY: guaranteed by our caller.
        let buffer = Buffer::of(unsafe { job_to_read(job) }?)?;
        if pointers.iter().any(|pointer| pointer.is_null()) {
            return Err(DmlStatus::NULL_POINTER_ERROR);
        }
        let buffer = buffer.check(index)?;
        let member = as_member(make()?, given);
        validate(&member)?;
        // SAFETY: inside the buffer.
        unsafe {
            buffer.record(index).complete(&CompletionRecord::default());
            buffer.descriptor(index).write(member.with_record(buffer.record_address(index)));
        }
        Ok(())
    };
    answer(store())
}

/// Reads eight bytes of a pattern.
///
/// # Safety
/// Not NULL, and valid for eight bytes.
unsafe fn pattern_at(pattern: *const u8) -> u64 {
    // SAFETY: guaranteed by our caller.
    u64::from_le_bytes(unsafe { pattern.cast::<[u8; 8]>().read_unaligned() })
}

fn number(pointer: *const u8) -> u64 {
    pointer.expose_provenance() as u64
}

/// Writes the bytes of a batch buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_get_batch_size(job: *const DmlJob, count: u32, size: *mut u32) -> DmlStatus {
    if job.is_null() || size.is_null() {
        return DmlStatus::NULL_POINTER_ERROR;
    }
    if count < MIN_BATCH {
        return DmlStatus::BATCH_SIZE_ERROR;
    }
    // A buffer of 4 GiB cannot be asked for.
    let bytes = u64::from(count) * u64::from(MEMBER_BYTES) + ALIGNMENT;
    let Ok(bytes) = u32::try_from(bytes) else { return DmlStatus::BATCH_SIZE_ERROR };
    // SAFETY: an out pointer.
    answer(unsafe { put(size, bytes) })
}

/// Stores a no-op.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_batch_set_nop_by_index(job: *mut DmlJob, index: u32, flags: u64) -> DmlStatus {
    let make = || {
        let [low, high, ..] = flags.to_le_bytes();
        Ok(Descriptor::nop().with_flags(Flags::from_bits_retain(u16::from_le_bytes([low, high]).into())))
    };
    // SAFETY: a pointer to a job with a batch buffer.
    unsafe { set(job, index, flags, &[], make) }
}

/// Stores a move.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_batch_set_mem_move_by_index(
    job: *mut DmlJob,
    index: u32,
    src: *const u8,
    dst: *mut u8,
    len: u32,
    flags: u64,
) -> DmlStatus {
    // SAFETY: a pointer to a job with a batch buffer.
    unsafe { set(job, index, flags, &[], || describe::memory_move(number(src), number(dst), len, flags)) }
}

/// Stores a dualcast.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_batch_set_dualcast_by_index(
    job: *mut DmlJob,
    index: u32,
    src: *const u8,
    dst1: *mut u8,
    dst2: *mut u8,
    len: u32,
    flags: u64,
) -> DmlStatus {
    let make = || Ok(describe::dualcast(number(src), [number(dst1), number(dst2)], len, flags));
    // SAFETY: a pointer to a job with a batch buffer.
    unsafe { set(job, index, flags, &[], make) }
}

/// Stores a comparison.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_batch_set_compare_by_index(
    job: *mut DmlJob,
    index: u32,
    src1: *const u8,
    src2: *const u8,
    len: u32,
    expected: u32,
    flags: u64,
) -> DmlStatus {
    let make = || Ok(describe::compare(number(src1), number(src2), len, expected, flags));
    // SAFETY: a pointer to a job with a batch buffer.
    unsafe { set(job, index, flags, &[], make) }
}

/// Stores a comparison with a pattern.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_batch_set_compare_pattern_by_index(
    job: *mut DmlJob,
    index: u32,
    src: *const u8,
    pattern: *const u8,
    len: u32,
    expected: u32,
    flags: u64,
) -> DmlStatus {
    // SAFETY: not NULL when it is called, and eight bytes of the caller.
    let make = || Ok(describe::compare_pattern(number(src), unsafe { pattern_at(pattern) }, len, expected, flags));
    // SAFETY: a pointer to a job with a batch buffer.
    unsafe { set(job, index, flags, &[pattern], make) }
}

/// Stores a CRC.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_batch_set_crc_by_index(
    job: *mut DmlJob,
    index: u32,
    src: *const u8,
    len: u32,
    seed: *const u32,
    flags: u64,
) -> DmlStatus {
    // SAFETY: not NULL when it is called, and the caller's seed.
    let make = || Ok(describe::crc(number(src), None, len, unsafe { seed.read_unaligned() }, flags));
    // SAFETY: a pointer to a job with a batch buffer.
    unsafe { set(job, index, flags, &[seed.cast()], make) }
}

/// Stores a copy with CRC.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_batch_set_copy_crc_by_index(
    job: *mut DmlJob,
    index: u32,
    src: *const u8,
    len: u32,
    seed: *const u32,
    dst: *mut u8,
    flags: u64,
) -> DmlStatus {
    // SAFETY: not NULL when it is called, and the caller's seed.
    let make = || Ok(describe::crc(number(src), Some(number(dst)), len, unsafe { seed.read_unaligned() }, flags));
    // SAFETY: a pointer to a job with a batch buffer.
    unsafe { set(job, index, flags, &[seed.cast()], make) }
}

/// Stores a fill.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_batch_set_fill_by_index(
    job: *mut DmlJob,
    index: u32,
    pattern: *const u8,
    dst: *mut u8,
    len: u32,
    flags: u64,
) -> DmlStatus {
    // SAFETY: not NULL when it is called, and eight bytes of the caller.
    let make = || Ok(describe::fill(unsafe { pattern_at(pattern) }, number(dst), len, flags));
    // SAFETY: a pointer to a job with a batch buffer.
    unsafe { set(job, index, flags, &[pattern], make) }
}

/// Stores a flush of caches.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_batch_set_cache_flush_by_index(
    job: *mut DmlJob,
    index: u32,
    dst: *mut u8,
    len: u32,
    flags: u64,
) -> DmlStatus {
    // SAFETY: a pointer to a job with a batch buffer.
    unsafe { set(job, index, flags, &[], || Ok(describe::cache_flush(number(dst), len, flags))) }
}

/// Stores the creation of a delta record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_batch_set_delta_create_by_index(
    job: *mut DmlJob,
    index: u32,
    src: *const u8,
    reference: *const u8,
    len: u32,
    record: *mut u8,
    record_len: u32,
    expected: u32,
    flags: u64,
) -> DmlStatus {
    let sources = [number(src), number(reference)];
    let make = || Ok(describe::create_delta(sources, len, (number(record), record_len), expected, flags));
    // SAFETY: a pointer to a job with a batch buffer.
    unsafe { set(job, index, flags, &[], make) }
}

/// Stores the application of a delta record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_batch_set_delta_apply_by_index(
    job: *mut DmlJob,
    index: u32,
    record: *const u8,
    record_len: u32,
    dst: *mut u8,
    dst_len: u32,
    flags: u64,
) -> DmlStatus {
    let make = || Ok(describe::apply_delta((number(record), record_len), (number(dst), dst_len), flags));
    // SAFETY: a pointer to a job with a batch buffer.
    unsafe { set(job, index, flags, &[], make) }
}

/// Stores a check of integrity fields.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_batch_set_dif_check_by_index(
    job: *mut DmlJob,
    index: u32,
    src: *const u8,
    src_len: u32,
    config: *const DifConfig,
    flags: u64,
) -> DmlStatus {
    // SAFETY: not NULL when it is called, and the caller's configuration.
    let make = || Ok(describe::dif(Opcode::DifCheck, number(src), 0, src_len, unsafe { &*config }, flags));
    // SAFETY: a pointer to a job with a batch buffer.
    unsafe { set(job, index, flags, &[src, config.cast()], make) }
}

macro_rules! dif_setters {
    ($($(#[$doc:meta])* $name:ident $opcode:ident;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            job: *mut DmlJob,
            index: u32,
            src: *const u8,
            src_len: u32,
            config: *const DifConfig,
            dst: *mut u8,
            // The size of the source decides; the original ignores this too.
            _dst_len: u32,
            flags: u64,
        ) -> DmlStatus {
            // SAFETY: not NULL when it is called, and the caller's configuration.
            let config_of = || unsafe { &*config };
            let make = || Ok(describe::dif(Opcode::$opcode, number(src), number(dst), src_len, config_of(), flags));
            // SAFETY: a pointer to a job with a batch buffer.
            unsafe { set(job, index, flags, &[src, config.cast(), dst.cast_const()], make) }
        }
    )*};
}

dif_setters! {
    /// Stores an update of integrity fields.
    dml_batch_set_dif_update_by_index DifUpdate;
    /// Stores an insertion of integrity fields.
    dml_batch_set_dif_insert_by_index DifInsert;
    /// Stores a removal of integrity fields.
    dml_batch_set_dif_strip_by_index DifStrip;
}

/// Reads the record of a member.
///
/// # Safety
/// A pointer to a job with a batch buffer that is valid for its size.
unsafe fn record_of_member<T>(
    job: *const DmlJob,
    index: u32,
    out: *mut T,
    value: impl FnOnce(&CompletionRecord) -> T,
) -> DmlStatus {
    let read = || {
        // SAFETY: guaranteed by our caller.
        let job = unsafe { job_to_read(job) }?;
        if out.is_null() {
            return Err(DmlStatus::NULL_POINTER_ERROR);
        }
        // Without a buffer every index is too large.
        if job.destination_length == 0 {
            return Err(DmlStatus::BATCH_TASK_INDEX_OVERFLOW);
        }
        let buffer = Buffer::of(job)?.check(index)?;
        // SAFETY: the index has been checked.
        let record = unsafe { buffer.record(index) }.read().unwrap_or_default();
        // SAFETY: an out pointer.
        unsafe { put(out, value(&record)) }
    };
    answer(read())
}

/// Writes the result of a member; with `TELPHER_DML_STRICT` its status, as the original does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_batch_get_result(job: *const DmlJob, index: u32, result: *mut u32) -> DmlStatus {
    let value = |record: &CompletionRecord| {
        if strict() { DmlStatus::of_record(record).0 } else { record.result().into() }
    };
    // SAFETY: a pointer to a job with a batch buffer.
    unsafe { record_of_member(job, index, result, value) }
}

/// Writes the status of a member; 3 if it has not been executed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_batch_get_status(job: *const DmlJob, index: u32, status: *mut DmlStatus) -> DmlStatus {
    let value = |record: &CompletionRecord| {
        let (ended, status) = (record.status_byte(), DmlStatus::of_record(record));
        if status == DmlStatus::INTERNAL_ERROR && ended.is_complete() {
            last_error::explain(&"a member of a batch", ended);
        }
        status
    };
    // SAFETY: a pointer to a job with a batch buffer.
    unsafe { record_of_member(job, index, status, value) }
}

/// Writes the CRC of a member.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_batch_get_crc(job: *const DmlJob, index: u32, crc: *mut u32) -> DmlStatus {
    // SAFETY: a pointer to a job with a batch buffer.
    unsafe { record_of_member(job, index, crc, CompletionRecord::crc) }
}
