//! vhost-user backends: packets into and out of guests, copied by a device's queues or by the CPU.

use super::{answer, change, copy_text, count, end, hand_out, look, put, text, timeout};
use crate::c_structs::{Packet, VhostDmaQueueStats, VhostQueue, VhostSocketState, VhostState, VhostStats, vhost_role};
use crate::device::Device;
use crate::failure::{Failure, Refusal};
use crate::options::{Of, Options};
use crate::raw::Raw;
use crate::vhost::{VhostDmaQueue, VhostPool, VhostPort, VhostSocket};
use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::{Arc, OnceLock};
use telpher_vhost::{CopyPolicy, DmaQueue, DropReason, PacketPool, QueueOptions, Role};

/// Converts a burst of packets for reading.
///
/// # Safety
///
/// NULL, or valid for `count` packets that no code writes for `'a`.
unsafe fn burst<'a>(packets: *const Packet, count: u32) -> Result<&'a [Packet], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if packets.is_null() {
        return Err(Refusal::Null("the list of packets").into());
    }
    // SAFETY: not null, and guaranteed by our caller.
    Ok(unsafe { std::slice::from_raw_parts(packets, count as usize) })
}

/// Converts an array for a burst of packets.
///
/// # Safety
///
/// NULL, or valid for `count` packets that no other code accesses for `'a`.
unsafe fn place<'a>(packets: *mut Packet, count: u32) -> Result<&'a mut [MaybeUninit<Packet>], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    if packets.is_null() {
        return Err(Refusal::Null("the output pointer for packets").into());
    }
    // SAFETY: not null, and guaranteed by our caller; the elements need not be initialised.
    Ok(unsafe { std::slice::from_raw_parts_mut(packets.cast(), count as usize) })
}

/// Returns the memory in bytes that a pool needs; 0 if no such pool is possible.
#[unsafe(no_mangle)]
pub extern "C" fn telpher_vhost_pool_size(buffers: u32, longest: u32) -> usize {
    VhostPool::options(buffers, longest).map_or(0, |options| options.bytes())
}

/// Creates a pool of packets, in its own or the caller's memory.
///
/// # Safety
///
/// See the [module's rules](crate); and the caller's memory is lent until `telpher_vhost_pool_free` has returned 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_pool_new(
    pool: *mut *mut VhostPool,
    buffers: u32,
    longest: u32,
    memory: *mut c_void,
    size: usize,
) -> c_int {
    let make = || {
        let options = VhostPool::options(buffers, longest)?;
        if memory.is_null() {
            return match size {
                0 => Ok(VhostPool::new(PacketPool::new(options)?)),
                _ => Err(Refusal::Null("the pool's memory").into()),
            };
        }
        // SAFETY: guaranteed by our caller; only checked for being a valid range.
        unsafe { Raw::new("the pool's memory", memory, size as u64) }?;
        if size < options.bytes() {
            return Err(Refusal::PoolMemory { size, need: options.bytes() }.into());
        }
        // SAFETY: that many bytes, lent until the pool is whole and freed (guaranteed by our caller and
        // `telpher_vhost_pool_free`).
        Ok(VhostPool::new(unsafe { PacketPool::over(memory.cast(), options) }))
    };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(pool, make) })
}

/// Frees a pool without outstanding packets.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_pool_free(pool: *mut VhostPool) -> c_int {
    if pool.is_null() {
        return 0;
    }
    answer(|| {
        // SAFETY: guaranteed by our caller.
        if !unsafe { look("the pool", pool) }?.inner().is_whole() {
            let why = "packets of the pool are outstanding, or a port or a DMA queue has some; return those first, \
                       then free the pool";
            return Err(Failure::NotYet(libc::EBUSY, why));
        }
        // SAFETY: came from `telpher_vhost_pool_new` and is not used any more (guaranteed by our caller).
        drop(unsafe { Box::from_raw(pool) });
        Ok(0)
    })
}

/// Returns the number of free packets of a pool.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_pool_available(pool: *const VhostPool) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| Ok(count(unsafe { look("the pool", pool) }?.inner().free())))
}

/// Takes packets from the pool; returns how many.
///
/// # Safety
///
/// See the [module's rules](crate); and `packets` is valid for `wanted` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_alloc_burst(pool: *const VhostPool, packets: *mut Packet, wanted: u32) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller, for both.
        let (pool, packets) = unsafe { (look("the pool", pool)?, place(packets, wanted)?) };
        Ok(count(pool.inner().lend_out(packets)))
    })
}

/// Returns packets to the pool; returns how many.
///
/// # Safety
///
/// See the [module's rules](crate); and `packets` is valid for `given` packets, none of which another thread returns
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_free_burst(pool: *const VhostPool, packets: *const Packet, given: u32) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller, for both.
        let (pool, packets) = unsafe { (look("the pool", pool)?, burst(packets, given)?) };
        // SAFETY: guaranteed by our caller.
        let freed = unsafe { pool.inner().free_from(packets) };
        if freed == 0 {
            pool.objection(packets)?;
        }
        Ok(count(freed))
    })
}

/// Creates a DMA queue over one queue of a device.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_dma_queue_new(
    dma_queue: *mut *mut VhostDmaQueue,
    device: *const Device,
    queue: u32,
    room: u32,
) -> c_int {
    let make = || {
        // SAFETY: guaranteed by our caller.
        let portal = unsafe { look("the device", device) }?.claim(queue.into())?;
        Ok(VhostDmaQueue(Arc::new(DmaQueue::new(portal, room)?)))
    };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(dma_queue, make) })
}

/// Returns a DMA queue's counters.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_dma_queue_stats_of(
    dma_queue: *const VhostDmaQueue,
    stats: *mut VhostDmaQueueStats,
) -> c_int {
    // SAFETY: guaranteed by our caller, for both.
    answer(|| unsafe { put("the output pointer for the statistics", stats, look("the DMA queue", dma_queue)?.stats()) })
}

/// Frees a DMA queue's handle. Ports created with it stay valid.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_dma_queue_free(dma_queue: *mut VhostDmaQueue) {
    // SAFETY: guaranteed by our caller.
    unsafe { end(dma_queue) }
}

/// Creates a port with packets of a pool, and the options of its virtqueues.
///
/// # Safety
///
/// See the [module's rules](crate); `queues` is valid for `queue_count` structures, and the DMA queues of each for
/// their number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_port_new(
    port: *mut *mut VhostPort,
    pool: *const VhostPool,
    queues: *const VhostQueue,
    queue_count: u32,
    options: *const c_char,
) -> c_int {
    let make = || {
        // SAFETY: guaranteed by our caller.
        let pool = unsafe { look("the pool", pool) }?;
        // SAFETY: guaranteed by our caller.
        let Options { mut port, .. } = Options::parse(Of::Port, unsafe { super::options(options) }?)?;
        if queues.is_null() && queue_count > 0 {
            return Err(Refusal::Null("the list of virtqueues").into());
        }
        if queue_count > 0 {
            port.rings.clear();
        }
        for index in 0..queue_count as usize {
            // SAFETY: `index < queue_count`, and valid for that many as our caller guarantees.
            let queue = unsafe { look("the virtqueue", queues.add(index)) }?;
            // SAFETY: guaranteed by our caller.
            port.rings.push(unsafe { queue_of(queue) }?);
        }
        Ok(VhostPort::new(pool, port))
    };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(port, make) })
}

/// Converts a virtqueue's options.
///
/// # Safety
///
/// Its list of DMA queues is NULL or valid for their number, each NULL or a handle.
unsafe fn queue_of(queue: &VhostQueue) -> Result<QueueOptions, Failure> {
    let VhostQueue { dma_queues, dma_queue_count, device_from, in_flight, reserved, reserved2 } = *queue;
    if reserved != 0 || reserved2 != [0; 3] {
        return Err(Refusal::Reserved("virtqueue").into());
    }
    if dma_queues.is_null() && dma_queue_count > 0 {
        return Err(Refusal::Null("the list of DMA queues").into());
    }
    let hybrid = match device_from {
        0 => CopyPolicy::Device,
        u32::MAX => CopyPolicy::Cpu,
        bytes => CopyPolicy::From(bytes),
    };
    let mut options = QueueOptions { hybrid, ..QueueOptions::default() };
    if in_flight > 0 {
        options.in_flight = in_flight as usize;
    }
    for index in 0..dma_queue_count as usize {
        // SAFETY: `index < dma_queue_count`, and valid for that many as our caller guarantees; each is NULL or a
        // handle.
        let dma_queue = unsafe { look("the DMA queue", dma_queues.add(index).read()) }?;
        options.dma_queues.push(Arc::clone(&dma_queue.0));
    }
    Ok(options)
}

/// Frees a port's handle. Its socket, if it has one, stays valid.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_port_free(port: *mut VhostPort) {
    // SAFETY: guaranteed by our caller.
    unsafe { end(port) }
}

/// Starts to copy packets to the guest; returns how many were taken.
///
/// # Safety
///
/// See the [module's rules](crate); and `packets` is valid for `given` packets, none of which another thread returns
/// meanwhile. No code accesses the taken packets until they come back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_submit_enqueue_burst(
    port: *const VhostPort,
    pair: u32,
    packets: *const Packet,
    given: u32,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller, for both.
        let (port, packets) = unsafe { (look("the port", port)?, burst(packets, given)?) };
        // SAFETY: our caller's guarantee is the callee's.
        Ok(count(port.submit(pair, packets, |row, packets| unsafe { row.take_in(packets) })?))
    })
}

/// Returns packets that the guest has received to the caller, or to their pool; returns how many.
///
/// # Safety
///
/// See the [module's rules](crate); and `packets` is NULL or valid for `max` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_poll_enqueue_completed(
    port: *const VhostPort,
    pair: u32,
    packets: *mut Packet,
    max: u32,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let port = unsafe { look("the port", port) }?;
        // SAFETY: guaranteed by our caller.
        let packets = if packets.is_null() { None } else { Some(unsafe { place(packets, max) }?) };
        Ok(count(port.completed(pair, packets)?))
    })
}

/// Returns packets that the guest has sent; returns how many.
///
/// # Safety
///
/// See the [module's rules](crate); and `packets` is valid for `max` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_try_dequeue_burst(
    port: *const VhostPort,
    pair: u32,
    packets: *mut Packet,
    max: u32,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller, for both.
        let (port, packets) = unsafe { (look("the port", port)?, place(packets, max)?) };
        Ok(count(port.dequeue(pair, packets)?))
    })
}

/// Waits until a driver kicks, or a time has passed.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_wait(port: *const VhostPort, queue: u32, timeout_ns: i64) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        unsafe { look("the port", port) }?.wait(queue, timeout(timeout_ns)?)?;
        Ok(0)
    })
}

/// Returns the state of a virtqueue.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_state_of(port: *const VhostPort, queue: u32, state: *mut VhostState) -> c_int {
    // SAFETY: guaranteed by our caller, for both.
    answer(|| unsafe { put("the output pointer for the state", state, look("the port", port)?.state(queue)?) })
}

/// Why a virtqueue is broken, as a sentence.
///
/// # Safety
///
/// See the [module's rules](crate); and `buffer` is valid for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_broken(
    port: *const VhostPort,
    queue: u32,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: guaranteed by our caller, for both.
    answer(|| unsafe { copy_text(&look("the port", port)?.broken(queue)?, buffer, size) })
}

/// Returns the counters of a virtqueue.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_stats_of(port: *const VhostPort, queue: u32, stats: *mut VhostStats) -> c_int {
    // SAFETY: guaranteed by our caller, for both.
    answer(|| unsafe { put("the output pointer for the statistics", stats, look("the port", port)?.stats(queue)?) })
}

/// Returns the text of a drop reason; NULL for an unknown number.
#[unsafe(no_mangle)]
pub extern "C" fn telpher_vhost_drop_text(reason: u32) -> *const c_char {
    static TEXTS: OnceLock<Vec<CString>> = OnceLock::new();
    let texts = TEXTS.get_or_init(|| {
        let texts = DropReason::ALL.into_iter().map(|reason| CString::new(reason.to_string()).unwrap_or_default());
        texts.collect()
    });
    texts.get(reason as usize).map_or(std::ptr::null(), |text| text.as_ptr())
}

/// Writes the MAC address of a migrated guest that is to be announced: returns 1 if there is one, 0 if not.
///
/// # Safety
///
/// See the [module's rules](crate); and `address` is valid for 6 bytes of writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_announcement(port: *const VhostPort, address: *mut u8) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller, for both; bytes need no alignment.
        let (port, place) =
            unsafe { (look("the port", port)?, change("the output pointer for the address", address.cast())?) };
        let Some(announced) = port.announcement() else { return Ok(0) };
        *place = announced;
        Ok(1)
    })
}

/// Serves a port through a socket.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_socket_new(
    socket: *mut *mut VhostSocket,
    port: *const VhostPort,
    path: *const c_char,
    role: u32,
) -> c_int {
    let make = || {
        // SAFETY: guaranteed by our caller, for both.
        let (port, path) = unsafe { (look("the port", port)?, text("the socket's path", path)?) };
        let role = match role {
            vhost_role::TELPHER_VHOST_SERVER => Role::Server,
            vhost_role::TELPHER_VHOST_CLIENT => Role::Client,
            other => return Err(Refusal::Role(other).into()),
        };
        port.serve(path, role)
    };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(socket, make) })
}

/// Returns the state of a socket.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_socket_state_of(
    socket: *const VhostSocket,
    state: *mut VhostSocketState,
) -> c_int {
    // SAFETY: guaranteed by our caller, for both.
    answer(|| unsafe { put("the output pointer for the state", state, look("the socket", socket)?.state()) })
}

/// Why the last session ended, or the last request was refused.
///
/// # Safety
///
/// See the [module's rules](crate); and `buffer` is valid for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_socket_last(
    socket: *const VhostSocket,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: guaranteed by our caller, for both.
    answer(|| unsafe { copy_text(&look("the socket", socket)?.last(), buffer, size) })
}

/// Ends the session, if there is one, and frees the socket.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_socket_free(socket: *mut VhostSocket) {
    // SAFETY: guaranteed by our caller.
    unsafe { end(socket) }
}
