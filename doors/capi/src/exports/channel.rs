//! The poll-mode ring.

use super::{answer, change, count, hand_out, look};
use crate::channel::Channel;
use crate::device::Device;
use crate::failure::{Failure, Refusal};
use crate::options::{Of, Options};
use crate::raw::Request;
use crate::words::{Completion, Op};
use std::ffi::{c_char, c_int};
use telpher_abi::Descriptor;

/// A channel to one queue of a device.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_channel_new(
    channel: *mut *mut Channel,
    device: *const Device,
    queue: u32,
    capacity: u32,
    options: *const c_char,
) -> c_int {
    let make = || {
        // SAFETY: our caller's promise.
        let (device, options) = unsafe { (look("the device", device)?, super::options(options)?) };
        let policy = Options::parse(Of::Channel, options)?.channel;
        Ok(Channel::new(device.channel(queue.into(), capacity, policy)?, capacity, policy.linger))
    };
    // SAFETY: our caller's promise.
    answer(|| unsafe { hand_out(channel, make) })
}

/// Prepares an operation.
///
/// # Safety
///
/// See the [module's rules](crate); and the operation's ranges are lent until its completion was fetched, or, if that
/// says that the deadline passed, until nothing is quarantined.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_channel_put(channel: *mut Channel, op: *const Op, ticket: *mut u64) -> c_int {
    answer(|| {
        // SAFETY: our caller's promise.
        let (channel, op) = unsafe { (change("the channel", channel)?, look("the operation", op)?) };
        // SAFETY: lent by our caller's promise until the ring drops the request.
        let taken = channel.put(unsafe { Request::of(op) }?, op.user_data)?;
        // SAFETY: our caller's promise.
        if let Ok(ticket) = unsafe { change("the place for the ticket", ticket) } {
            *ticket = taken;
        }
        Ok(0)
    })
}

/// Prepares a descriptor as it is.
///
/// # Safety
///
/// See the [module's rules](crate); and what [`telpher_mover::Channel::raw`] asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_channel_raw(
    channel: *mut Channel,
    descriptor: *const [u8; 64],
    user_data: u64,
    ticket: *mut u64,
) -> c_int {
    answer(|| {
        // SAFETY: our caller's promise. 64 bytes of any alignment.
        let (channel, descriptor) = unsafe { (change("the channel", channel)?, look("the descriptor", descriptor)?) };
        let descriptor = Descriptor::from_bytes(descriptor);
        // SAFETY: our caller's promise is the callee's.
        let taken = unsafe { channel.inner().raw(descriptor) };
        let taken = channel.taken(taken, user_data)?;
        // SAFETY: our caller's promise.
        if let Ok(ticket) = unsafe { change("the place for the ticket", ticket) } {
            *ticket = taken;
        }
        Ok(0)
    })
}

/// Sends what was prepared and gives how many operations left.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_channel_submit(channel: *mut Channel) -> c_int {
    // SAFETY: our caller's promise.
    answer(|| Ok(count(unsafe { change("the channel", channel) }?.submit())))
}

/// Fetches operations that have ended, at most `max`, and gives how many.
///
/// # Safety
///
/// See the [module's rules](crate); and `completions` is valid for `max` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_channel_completed(
    channel: *mut Channel,
    completions: *mut Completion,
    max: u32,
) -> c_int {
    answer(|| {
        // SAFETY: our caller's promise.
        let channel = unsafe { change("the channel", channel) }?;
        if completions.is_null() && max > 0 {
            return Err(Refusal::Null("the place for completions").into());
        }
        channel.look();
        let mut fetched = 0;
        while fetched < max as usize
            && let Some(completion) = channel.next()
        {
            // SAFETY: `fetched < max`, and valid for so many by our caller's promise.
            unsafe { completions.add(fetched).write(completion) };
            fetched += 1;
        }
        Ok(count(fetched))
    })
}

/// Operations prepared whose completion was not fetched.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_channel_pending(channel: *const Channel) -> c_int {
    // SAFETY: our caller's promise.
    answer(|| Ok(count(unsafe { look("the channel", channel) }?.pending())))
}

/// Operations fetched as past their deadline whose memory the device may still use.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_channel_quarantined(channel: *const Channel) -> c_int {
    // SAFETY: our caller's promise.
    answer(|| Ok(count(unsafe { look("the channel", channel) }?.quarantined())))
}

/// Ends a channel, once no device has memory of its operations.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_channel_free(channel: *mut Channel) -> c_int {
    if channel.is_null() {
        return 0;
    }
    answer(|| {
        // SAFETY: our caller's promise.
        if !unsafe { change("the channel", channel) }?.settle() {
            let why = "operations have no completion record yet; the channel stays, free it later";
            return Err(Failure::Not(libc::EBUSY, why));
        }
        // SAFETY: came from `telpher_channel_new` and is used no more (our caller's promise).
        drop(unsafe { Box::from_raw(channel) });
        Ok(0)
    })
}
