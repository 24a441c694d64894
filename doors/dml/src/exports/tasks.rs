//! The functions of `dml/detail/telpher.h`, on which `dml.hpp` is built.

use crate::job::Path;
use crate::status::DmlStatus;
use crate::task::Task;
use crate::validate::validate;
use crate::{describe, last_error};
use std::ffi::{c_char, c_int, c_void};
use telpher_abi::{CompletionRecord, Descriptor, Flags, Opcode};
use telpher_portal::RecordCell;

/// Option of [`telpher_dml_validate`]: a move whose ranges must not overlap.
const COPY_ONLY: u32 = 1;

fn number(pointer: *const c_void) -> u64 {
    pointer.expose_provenance() as u64
}

/// Writes a descriptor with flags.
///
/// # Safety
/// A pointer to a descriptor.
unsafe fn write(place: *mut Descriptor, d: Descriptor, flags: u32) {
    // SAFETY: guaranteed by our caller.
    unsafe { place.write(d.with_flags(Flags::from_bits_retain(flags))) };
}

macro_rules! makers {
    ($($name:ident ($($argument:ident: $type:ty),*) $make:expr;)*) => {$(
        /// Writes a descriptor of this operation.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(descriptor: *mut Descriptor, flags: u32, $($argument: $type),*) {
            // SAFETY: a pointer to a descriptor.
            unsafe { write(descriptor, $make, flags) };
        }
    )*};
}

makers! {
    telpher_dml_make_nop() Descriptor::nop();
    telpher_dml_make_batch(list: *const Descriptor, count: u32) Descriptor::batch(number(list.cast()), count);
    telpher_dml_make_mem_move(src: *const c_void, dst: *mut c_void, size: u32)
        Descriptor::memory_move(number(src), number(dst), size);
    telpher_dml_make_fill(pattern: u64, dst: *mut c_void, size: u32) Descriptor::fill(pattern, number(dst), size);
    telpher_dml_make_compare(src1: *const c_void, src2: *const c_void, size: u32, expected: u8)
        Descriptor::compare(number(src1), number(src2), size).with_expected_result(expected);
    telpher_dml_make_compare_pattern(pattern: u64, src: *const c_void, size: u32, expected: u8)
        Descriptor::compare_pattern(number(src), pattern, size).with_expected_result(expected);
    telpher_dml_make_create_delta(src1: *const c_void, src2: *const c_void, size: u32, delta: *mut c_void,
        max_delta_size: u32, expected: u8)
        Descriptor::create_delta(number(src1), number(src2), size, number(delta), max_delta_size)
            .with_expected_result_mask(expected);
    telpher_dml_make_apply_delta(delta: *const c_void, delta_size: u32, dst: *mut c_void, size: u32)
        Descriptor::apply_delta(number(delta), delta_size, number(dst), size);
    telpher_dml_make_dualcast(src: *const c_void, dst1: *mut c_void, dst2: *mut c_void, size: u32)
        Descriptor::dualcast(number(src), number(dst1), number(dst2), size);
    telpher_dml_make_crc(src: *const c_void, size: u32, seed: u32)
        Descriptor::crc_generation(number(src), size, seed);
    telpher_dml_make_copy_crc(src: *const c_void, dst: *mut c_void, size: u32, seed: u32)
        Descriptor::copy_crc(number(src), number(dst), size, seed);
    telpher_dml_make_cache_flush(dst: *mut c_void, size: u32) Descriptor::cache_flush(number(dst), size);
}

/// Clears a record and writes its address into a descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_dml_bind(descriptor: *mut Descriptor, record: *const RecordCell) {
    // SAFETY: pointers to a descriptor and a record.
    unsafe {
        (*record).complete(&CompletionRecord::default());
        descriptor.write(descriptor.read().with_record((*record).address()));
    }
}

/// Checks a descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_dml_validate(descriptor: *const Descriptor, options: u32) -> DmlStatus {
    // SAFETY: a pointer to a descriptor.
    let d = unsafe { descriptor.read() };
    let copied = || {
        let given = if options & COPY_ONLY == 0 { 0 } else { crate::job::flags::COPY_ONLY };
        describe::memory_move(d.src(), d.dst(), d.size(), given).map(|_| ())
    };
    // A C++ program learns of a null address before an overlap.
    let checked = validate(&d).and_then(|()| if d.opcode() == Opcode::MemoryMove { copied() } else { Ok(()) });
    super::answer(checked)
}

/// Prepares the memory of a task.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_dml_init(task: *mut Task) {
    // SAFETY: a pointer to a task; all its bytes are cells.
    unsafe {
        task.write_bytes(0, 1);
        (*task).init(Path::Auto);
    }
}

/// Submits a task.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_dml_submit(task: *const Task, path: u32, numa_id: u32) -> DmlStatus {
    // SAFETY: a pointer to a task.
    let task = unsafe { &*task };
    let Some(path) = Path::from_number(path) else { return DmlStatus::PATH_ERROR };
    super::answer(task.submit(path, numa_id))
}

/// Returns 1 if a task's record is written or will never be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_dml_finished(task: *const Task) -> c_int {
    // SAFETY: a pointer to a task.
    unsafe { &*task }.finished().into()
}

/// Waits for a task.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_dml_wait(task: *const Task, umwait: c_int) {
    // SAFETY: a pointer to a task.
    unsafe { &*task }.wait(umwait != 0);
}

/// Waits for a task and ends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_dml_release(task: *const Task) {
    // SAFETY: a pointer to a task.
    unsafe { &*task }.release();
}

/// Reads a record; zeros while it is not written.
///
/// # Safety
/// A pointer to a record.
unsafe fn read(record: *const RecordCell) -> CompletionRecord {
    // SAFETY: guaranteed by our caller.
    unsafe { &*record }.read().unwrap_or_default()
}

/// Returns the device's status without the direction; 0 while the record is not written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_dml_get_status(record: *const RecordCell) -> u8 {
    // SAFETY: a pointer to a record.
    unsafe { read(record) }.status_code() & 0x3f
}

/// Returns the operation's result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_dml_get_result(record: *const RecordCell) -> u8 {
    // SAFETY: a pointer to a record.
    unsafe { read(record) }.result()
}

/// Returns the bytes or descriptors completed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_dml_get_bytes_completed(record: *const RecordCell) -> u32 {
    // SAFETY: a pointer to a record.
    unsafe { read(record) }.bytes_completed()
}

/// Returns the CRC.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_dml_get_crc_value(record: *const RecordCell) -> u32 {
    // SAFETY: a pointer to a record.
    unsafe { read(record) }.crc()
}

/// Returns the size of the delta record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_dml_get_delta_record_size(record: *const RecordCell) -> u32 {
    // SAFETY: a pointer to a record.
    unsafe { read(record) }.delta_record_size()
}

/// Converts the status of a record; 2 while it is not written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_dml_status_of(record: *const RecordCell) -> DmlStatus {
    // SAFETY: a pointer to a record.
    match unsafe { &*record }.read() {
        Some(record) => DmlStatus::of_record(&record),
        None => DmlStatus::BEING_PROCESSED,
    }
}

/// Returns the reason of this thread's last failed submission.
#[unsafe(no_mangle)]
pub extern "C" fn telpher_dml_last_error() -> *const c_char {
    last_error::get()
}
