//! Jobs and the library's version.

use super::{address_of, answer, job, put, state};
use crate::job::{ANY_NODE, DmlJob, JOB_BYTES, LibraryVersion, Path, aligned, flags};
use crate::status::DmlStatus;
use crate::strict::strict;
use crate::task::Task;
use crate::validate::validate;
use crate::{describe, last_error};
use std::mem::size_of;
use std::ptr::with_exposed_provenance_mut;
use telpher_abi::{CompletionRecord, Descriptor, Opcode, StatusByte};

/// The version of DML whose interface this is. The texts for processor and hardware are those of the original.
static VERSION: LibraryVersion = LibraryVersion {
    name: text(b"telpher, for Intel(R) DML"),
    minimal_cpu_isa: text(b"N/A"),
    // The build knows neither its day nor its commit.
    date: text(b""),
    version: text(b"1.2.0"),
    hw_minimal_version: text(b"DML 1.0"),
    commit: text(b""),
    major: 1,
    minor: 2,
    patch: 0,
};

/// Copies a text into zeros.
const fn text<const N: usize>(text: &[u8]) -> [u8; N] {
    assert!(text.len() < N, "a zero byte ends it");
    let mut field = [0; N];
    let mut at = 0;
    while at < text.len() {
        field[at] = text[at];
        at += 1;
    }
    field
}

/// Returns the version, which is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn dml_get_library_version() -> *const LibraryVersion {
    &raw const VERSION
}

/// Writes the bytes of a job's memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_get_job_size(path: u32, size: *mut u32) -> DmlStatus {
    if size.is_null() {
        return DmlStatus::NULL_POINTER_ERROR;
    }
    if Path::from_number(path).is_none() {
        return DmlStatus::PATH_ERROR;
    }
    // SAFETY: an out pointer.
    answer(unsafe { put(size, u32::try_from(JOB_BYTES).unwrap_or(u32::MAX)) })
}

/// Prepares a job's memory, whatever it holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_init_job(path: u32, job: *mut DmlJob) -> DmlStatus {
    if job.is_null() {
        return DmlStatus::NULL_POINTER_ERROR;
    }
    let Some(path) = Path::from_number(path) else { return DmlStatus::PATH_ERROR };
    let address = aligned(job.expose_provenance() as u64 + size_of::<DmlJob>() as u64);
    // SAFETY: 376 bytes of the caller, of which the job is the first part; the state lies behind it: at most 63 bytes
    // are between them, and 120 + 63 + 192 are not more.
    unsafe {
        job.cast::<u8>().write_bytes(0, JOB_BYTES);
        (*job).numa_id = ANY_NODE;
        (*job).internal_data_ptr = address;
        (*with_exposed_provenance_mut::<Task>(address_of(address))).init(path);
    }
    DmlStatus::OK
}

/// Ends a job. One that is running is waited for, so that no device accesses its memory any more. It can be submitted
/// again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_finalize_job(job: *mut DmlJob) -> DmlStatus {
    // SAFETY: a pointer to a job.
    let job = match unsafe { super::job(job) } {
        Ok(job) => job,
        Err(status) => return status,
    };
    // SAFETY: a job.
    if let Ok((task, _)) = unsafe { state(job) } {
        task.release();
    }
    DmlStatus::OK
}

/// Submits a job and waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_execute_job(job: *mut DmlJob, wait_mode: u32) -> DmlStatus {
    // SAFETY: a pointer to a job.
    match unsafe { submit(job) } {
        Ok((job, task)) => {
            task.wait(wait_mode != 0);
            // SAFETY: the job is finished, and its pointers are those it was submitted with.
            unsafe { write_result(job, task) }
        }
        Err(status) => status,
    }
}

/// Submits a job.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_submit_job(job: *mut DmlJob) -> DmlStatus {
    // SAFETY: a pointer to a job.
    answer(unsafe { submit(job) }.map(|_| ()))
}

/// Waits for a submitted job and writes its results.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_wait_job(job: *mut DmlJob, wait_mode: u32) -> DmlStatus {
    // SAFETY: a pointer to a job.
    match unsafe { submitted(job) } {
        Ok((job, task)) => {
            task.wait(wait_mode != 0);
            // SAFETY: as in `dml_execute_job`.
            unsafe { write_result(job, task) }
        }
        Err(status) => status,
    }
}

/// Writes the results of a submitted job if it is finished.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dml_check_job(job: *mut DmlJob) -> DmlStatus {
    // SAFETY: a pointer to a job.
    match unsafe { submitted(job) } {
        // SAFETY: as in `dml_execute_job`.
        Ok((job, task)) if task.finished() => unsafe { write_result(job, task) },
        Ok(_) => DmlStatus::BEING_PROCESSED,
        Err(status) => status,
    }
}

/// Finds a job that has been submitted.
///
/// # Safety
/// A pointer to a job.
#[inline]
unsafe fn submitted<'a>(pointer: *mut DmlJob) -> Result<(&'a mut DmlJob, &'a Task), DmlStatus> {
    // SAFETY: guaranteed by our caller.
    let job = unsafe { job(pointer) }?;
    // SAFETY: a job.
    let (task, _) = unsafe { state(job) }?;
    if task.is_submitted() { Ok((job, task)) } else { Err(DmlStatus::JOB_CORRUPTED) }
}

/// Submits a job. One that is in flight is waited for first.
///
/// # Safety
/// A pointer to a job.
#[inline(always)]
unsafe fn submit<'a>(pointer: *mut DmlJob) -> Result<(&'a mut DmlJob, &'a Task), DmlStatus> {
    // SAFETY: guaranteed by our caller.
    let job = unsafe { job(pointer) }?;
    // SAFETY: a job.
    let (task, path) = unsafe { state(job) }?;
    let seed = || {
        let place = std::ptr::with_exposed_provenance::<u32>(address_of(job.crc_checksum_ptr));
        // SAFETY: not null, and the caller's CRC (dml.h: valid if DML_FLAG_CRC_READ_SEED is set).
        unsafe { place.read_unaligned() }
    };
    task.settle();
    let opcode = describe::of_job(job, &task.descriptor, seed)?;
    // SAFETY: a task's descriptor begins with the task, and nothing writes it while the reference lives.
    let d = unsafe { &*task.descriptor.place() };
    if opcode != Opcode::Nop {
        // SAFETY: a job.
        unsafe { check(job, d) }?;
    }
    if path == Path::Software {
        task.execute(d);
    } else {
        task.submit_settled(path, job.numa_id)?;
    }
    Ok((job, task))
}

/// Checks a job's descriptor, and prepares what else its submission needs.
///
/// # Safety
/// A pointer to a job.
unsafe fn check(job: &mut DmlJob, d: &Descriptor) -> Result<(), DmlStatus> {
    validate(d)?;
    if d.opcode() == Opcode::Batch {
        // SAFETY: the batch buffer of a job.
        unsafe { super::batch::clear_records(job) };
    }
    // The original clears the flag in the program's job, and everything above bit 15 with it.
    if d.opcode() == Opcode::MemoryMove && job.flags & flags::COPY_ONLY != 0 && strict() {
        job.flags = job.flags & 0xffff & !flags::COPY_ONLY;
    }
    Ok(())
}

/// Writes what an operation reports into the job, and returns its status.
///
/// # Safety
/// The job's pointers are those it was submitted with.
#[inline]
unsafe fn write_result(job: &mut DmlJob, task: &Task) -> DmlStatus {
    let Some(status) = task.record.status() else { return DmlStatus::INTERNAL_ERROR };
    let opcode = task.descriptor.opcode();
    if opcode == Opcode::Nop {
        return explained(DmlStatus::of_byte(status), opcode, status);
    }
    let record = task.record.read().unwrap_or_default();
    match opcode {
        Opcode::MemoryMove => job.result = record.result().into(),
        Opcode::CrcGeneration | Opcode::CopyCrc => {
            let place = with_exposed_provenance_mut::<u32>(address_of(job.crc_checksum_ptr));
            if !place.is_null() {
                // SAFETY: the caller's CRC.
                unsafe { place.write_unaligned(record.crc()) };
            }
        }
        Opcode::Compare | Opcode::ComparePattern | Opcode::DifCheck | Opcode::DifStrip | Opcode::DifUpdate => {
            job.offset = record.bytes_completed();
            job.result = record.result().into();
        }
        Opcode::DifInsert => job.offset = record.bytes_completed(),
        // SAFETY: guaranteed by our caller.
        Opcode::CreateDelta => unsafe { write_delta(job, &record) },
        _ => {}
    }
    explained(DmlStatus::of_record(&record), opcode, status)
}

/// Returns a status. For one that the interface has no name for, the thread's last error has the device's own.
#[inline]
fn explained(status: DmlStatus, opcode: Opcode, ended: StatusByte) -> DmlStatus {
    if status == DmlStatus::INTERNAL_ERROR {
        last_error::explain(&opcode, ended);
    }
    status
}

/// # Safety
/// As for [`write_result`].
unsafe fn write_delta(job: &mut DmlJob, record: &CompletionRecord) {
    job.destination_length = record.delta_record_size();
    job.result = record.result().into();
    let first = std::ptr::with_exposed_provenance::<u16>(address_of(job.destination_first_ptr));
    if !first.is_null() {
        // SAFETY: the caller's delta record, of at least 80 bytes.
        job.offset = unsafe { first.read_unaligned() }.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn a_status_without_a_name_is_explained() {
        let mut memory = [0_u64; JOB_BYTES / 8];
        let job = memory.as_mut_ptr().cast::<DmlJob>();
        // SAFETY: the memory of a job, which outlives it; its operation is a no-op.
        let (answers, reason) = unsafe {
            let mut answers = vec![dml_init_job(1, job), dml_execute_job(job, 0)];
            let (task, _) = state(&*job).expect("an initialised job");
            task.record.complete(&CompletionRecord::new(StatusByte(0x3a)));
            answers.push(dml_check_job(job));
            (answers, CStr::from_ptr(last_error::get()).to_string_lossy())
        };
        assert_eq!(answers, [DmlStatus::OK, DmlStatus::OK, DmlStatus::INTERNAL_ERROR]);
        assert!(reason.contains("0x3a"), "{reason}");
    }
}
