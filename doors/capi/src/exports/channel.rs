//! The poll-mode ring.

use super::{answer, change, count, hand_out, look};
use crate::c_structs::{Completion, Op};
use crate::channel::Channel;
use crate::device::Device;
use crate::failure::{Failure, Refusal};
use crate::options::{Of, Options};
use crate::raw::Request;
use std::ffi::{c_char, c_int};
use telpher_abi::Descriptor;

/// Creates a channel to one queue of a device.
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
        // SAFETY: guaranteed by our caller.
        let (device, options) = unsafe { (look("the device", device)?, super::options(options)?) };
        let policy = Options::parse(Of::Channel, options)?.channel;
        Ok(Channel::new(device.channel(queue.into(), capacity, policy)?, capacity, policy.linger))
    };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(channel, make) })
}

/// Prepares an operation.
///
/// # Safety
///
/// See the [module's rules](crate); and the operation's ranges are lent until its completion was fetched, or, if it
/// timed out, until no operation is quarantined.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_channel_put(channel: *mut Channel, op: *const Op, ticket: *mut u64) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let (channel, op) = unsafe { (change("the channel", channel)?, look("the operation", op)?) };
        // SAFETY: lent as our caller guarantees until the ring drops the request.
        let taken = channel.put(unsafe { Request::of(op) }?, op.user_data)?;
        // SAFETY: guaranteed by our caller.
        if let Ok(ticket) = unsafe { change("the output pointer for the ticket", ticket) } {
            *ticket = taken;
        }
        Ok(0)
    })
}

/// Prepares a raw descriptor.
///
/// # Safety
///
/// See the [module's rules](crate); and the requirements of [`telpher_mover::Channel::raw`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_channel_raw(
    channel: *mut Channel,
    descriptor: *const [u8; 64],
    user_data: u64,
    ticket: *mut u64,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller. 64 bytes of any alignment.
        let (channel, descriptor) = unsafe { (change("the channel", channel)?, look("the descriptor", descriptor)?) };
        let descriptor = Descriptor::from_bytes(descriptor);
        // SAFETY: our caller's guarantee is the callee's.
        let taken = unsafe { channel.inner().raw(descriptor) };
        let taken = channel.taken(taken, user_data)?;
        // SAFETY: guaranteed by our caller.
        if let Ok(ticket) = unsafe { change("the output pointer for the ticket", ticket) } {
            *ticket = taken;
        }
        Ok(0)
    })
}

/// Sends the prepared operations; returns how many were sent.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_channel_submit(channel: *mut Channel) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| Ok(count(unsafe { change("the channel", channel) }?.submit())))
}

/// Fetches completed operations, at most `max`; returns how many.
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
        // SAFETY: guaranteed by our caller.
        let channel = unsafe { change("the channel", channel) }?;
        if completions.is_null() && max > 0 {
            return Err(Refusal::Null("the output pointer for completions").into());
        }
        channel.look();
        let mut fetched = 0;
        while fetched < max as usize
            && let Some(completion) = channel.next()
        {
            // SAFETY: `fetched < max`, and valid for that many as our caller guarantees.
            unsafe { completions.add(fetched).write(completion) };
            fetched += 1;
        }
        Ok(count(fetched))
    })
}

/// The number of prepared operations whose completion was not fetched.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_channel_pending(channel: *const Channel) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| Ok(count(unsafe { look("the channel", channel) }?.pending())))
}

/// The number of timed-out operations whose memory the device may still use.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_channel_quarantined(channel: *const Channel) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| Ok(count(unsafe { look("the channel", channel) }?.quarantined())))
}

/// Frees a channel, after no device uses memory of its operations.
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
        // SAFETY: guaranteed by our caller.
        if !unsafe { change("the channel", channel) }?.settle() {
            let why = "operations have no completion record yet; the channel stays valid, free it later";
            return Err(Failure::NotYet(libc::EBUSY, why));
        }
        // SAFETY: came from `telpher_channel_new` and is not used any more (guaranteed by our caller).
        drop(unsafe { Box::from_raw(channel) });
        Ok(0)
    })
}
