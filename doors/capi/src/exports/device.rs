//! Devices: from a name to queues.

use super::{answer, copy_text, count, end, hand_out, look, text};
use crate::device::Device;
use crate::failure::Refusal;
use crate::options::{Of, Options};
use crate::words::QueueInfo;
use std::ffi::{c_char, c_int};

/// Opens what a name names.
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
        // SAFETY: our caller's promise.
        let (name, options) = unsafe { (text("the device's name", name)?, super::options(options)?) };
        Device::open(name, &Options::parse(Of::Device, options)?)
    };
    // SAFETY: our caller's promise.
    answer(|| unsafe { hand_out(device, open) })
}

/// Ends a device's handle. Movers and channels made of it go on.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_device_close(device: *mut Device) {
    // SAFETY: our caller's promise.
    unsafe { end(device) }
}

/// How many queues it has.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_device_queues(device: *const Device) -> c_int {
    // SAFETY: our caller's promise.
    answer(|| Ok(count(unsafe { look("the device", device) }?.queues())))
}

/// What one of its queues accepts.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_device_queue(device: *const Device, index: u32, info: *mut QueueInfo) -> c_int {
    answer(|| {
        // SAFETY: our caller's promise.
        let device = unsafe { look("the device", device) }?;
        if info.is_null() {
            return Err(Refusal::Null("the place for the queue's description").into());
        }
        let count = device.queues() as u64;
        let found = device.info(index as usize);
        let found = found.ok_or(Refusal::Index { what: "queue", index: index.into(), count })?;
        // SAFETY: not null, valid for a write by our caller's promise.
        unsafe { info.write(found) };
        Ok(0)
    })
}

/// Which queue was passed by when the device was opened, and why, as a text.
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
        // SAFETY: our caller's promise.
        let skipped = unsafe { look("the device", device) }?.skipped();
        let count = skipped.len() as u64;
        let found = skipped.get(index as usize);
        let found = found.ok_or(Refusal::Index { what: "skipped queue", index: index.into(), count })?;
        // SAFETY: our caller's promise.
        unsafe { copy_text(&format!("{}: {}", found.queue, found.why), buffer, size) }
    })
}
