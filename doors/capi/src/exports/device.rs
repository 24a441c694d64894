//! Devices: opened by name; their queues.

use super::{answer, copy_text, count, end, hand_out, look, text};
use crate::c_structs::QueueInfo;
use crate::device::Device;
use crate::failure::Refusal;
use crate::options::{Of, Options};
use std::ffi::{c_char, c_int};

/// Opens a device by name.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_device_open(
    device: *mut *mut Device,
    name: *const c_char,
    options: *const c_char,
) -> c_int {
    let open = || {
        // SAFETY: guaranteed by our caller.
        let (name, options) = unsafe { (text("the device's name", name)?, super::options(options)?) };
        Device::open(name, &Options::parse(Of::Device, options)?)
    };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(device, open) })
}

/// Frees a device's handle. Movers and channels created from it stay valid.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_device_close(device: *mut Device) {
    // SAFETY: guaranteed by our caller.
    unsafe { end(device) }
}

/// Returns the number of queues.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_device_queues(device: *const Device) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| Ok(count(unsafe { look("the device", device) }?.queues())))
}

/// Returns the properties of one of its queues.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_device_queue(device: *const Device, index: u32, info: *mut QueueInfo) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let device = unsafe { look("the device", device) }?;
        if info.is_null() {
            return Err(Refusal::Null("the output pointer for the queue's description").into());
        }
        let count = device.queues() as u64;
        let found = device.info(index as usize);
        let found = found.ok_or(Refusal::Index { what: "queue", index: index.into(), count })?;
        // SAFETY: not null, valid for a write as our caller guarantees.
        unsafe { info.write(found) };
        Ok(0)
    })
}

/// Returns, as a text, which queue was skipped when the device was opened, and why.
///
/// # Safety
///
/// See the [module's rules](crate); and `buffer` is valid for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_device_skipped(
    device: *const Device,
    index: u32,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let skipped = unsafe { look("the device", device) }?.skipped();
        let count = skipped.len() as u64;
        let found = skipped.get(index as usize);
        let found = found.ok_or(Refusal::Index { what: "skipped queue", index: index.into(), count })?;
        // SAFETY: guaranteed by our caller.
        unsafe { copy_text(&format!("{}: {}", found.queue, found.why), buffer, size) }
    })
}
