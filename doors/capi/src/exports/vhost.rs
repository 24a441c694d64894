//! Backends for virtual machines: packets in and out of guests, copied by a device's queues or by the CPU.

use super::{answer, change, copy_text, count, end, hand_out, look, put, text, timeout};
use crate::device::Device;
use crate::failure::{Failure, Refusal};
use crate::options::{Of, Options};
use crate::raw::Raw;
use crate::vhost::{VhostLane, VhostPool, VhostPort, VhostSocket};
use crate::words::{Packet, VhostLaneStats, VhostQueue, VhostSocketState, VhostState, VhostStats, vhost_role};
use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::{Arc, OnceLock};
use telpher_vhost::{Drop as Dropped, Hybrid, Lane, PacketPool, QueueOptions, Role};

/// A burst of packets to read.
///
/// # Safety
///
/// NULL, or valid for `count` packets that nobody writes for `'a`.
unsafe fn burst<'a>(packets: *const Packet, count: u32) -> Result<&'a [Packet], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if packets.is_null() {
        return Err(Refusal::Null("the list of packets").into());
    }
    // SAFETY: not null, and our caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(packets, count as usize) })
}

/// A place for a burst of packets.
///
/// # Safety
///
/// NULL, or valid for `count` packets that nobody else touches for `'a`.
unsafe fn place<'a>(packets: *mut Packet, count: u32) -> Result<&'a mut [MaybeUninit<Packet>], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    if packets.is_null() {
        return Err(Refusal::Null("the place for packets").into());
    }
    // SAFETY: not null, and our caller's promise; what is written needs not be there before.
    Ok(unsafe { std::slice::from_raw_parts_mut(packets.cast(), count as usize) })
}

/// How many bytes of memory a pool takes; 0 if there can be no such pool.
#[unsafe(no_mangle)]
pub extern "C" fn telpher_vhost_pool_size(buffers: u32, longest: u32) -> usize {
    VhostPool::options(buffers, longest).map_or(0, |options| options.bytes())
}

/// A pool of packets, in memory of its own or of the caller's.
///
/// # Safety
///
/// See the [module's rules](crate); and memory of the caller's is lent until `telpher_vhost_pool_free` has returned 0.
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
        // SAFETY: our caller's promise; only looked at whether it is a range.
        unsafe { Raw::new("the pool's memory", memory, size as u64) }?;
        if size < options.bytes() {
            return Err(Refusal::PoolMemory { size, need: options.bytes() }.into());
        }
        // SAFETY: so many bytes, lent until the pool is whole and ends (our caller's promise, and
        // `telpher_vhost_pool_free`).
        Ok(VhostPool::new(unsafe { PacketPool::over(memory.cast(), options) }))
    };
    // SAFETY: our caller's promise.
    answer(|| unsafe { hand_out(pool, make) })
}

/// Ends a pool that nobody else has anything of.
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
        // SAFETY: our caller's promise.
        if !unsafe { look("the pool", pool) }?.inner().is_whole() {
            let why = "packets of the pool are outside, or a port or a lane has some; free those first, then the pool";
            return Err(Failure::Not(libc::EBUSY, why));
        }
        // SAFETY: came from `telpher_vhost_pool_new` and is used no more (our caller's promise).
        drop(unsafe { Box::from_raw(pool) });
        Ok(0)
    })
}

/// How many packets a pool could lend.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_pool_available(pool: *const VhostPool) -> c_int {
    // SAFETY: our caller's promise.
    answer(|| Ok(count(unsafe { look("the pool", pool) }?.inner().free())))
}

/// Lends packets; how many.
///
/// # Safety
///
/// See the [module's rules](crate); and `packets` is valid for `wanted` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_alloc_burst(pool: *const VhostPool, packets: *mut Packet, wanted: u32) -> c_int {
    answer(|| {
        // SAFETY: our caller's promise, for both.
        let (pool, packets) = unsafe { (look("the pool", pool)?, place(packets, wanted)?) };
        Ok(count(pool.inner().lend_out(packets)))
    })
}

/// Takes packets back; how many.
///
/// # Safety
///
/// See the [module's rules](crate); and `packets` is valid for `given` packets, none of which another thread gives away
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_free_burst(pool: *const VhostPool, packets: *const Packet, given: u32) -> c_int {
    answer(|| {
        // SAFETY: our caller's promise, for both.
        let (pool, packets) = unsafe { (look("the pool", pool)?, burst(packets, given)?) };
        // SAFETY: our caller's promise.
        let freed = unsafe { pool.inner().free_from(packets) };
        if freed == 0 {
            pool.objection(packets)?;
        }
        Ok(count(freed))
    })
}

/// A lane over one queue of a device.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_lane_new(
    lane: *mut *mut VhostLane,
    device: *const Device,
    queue: u32,
    room: u32,
) -> c_int {
    let make = || {
        // SAFETY: our caller's promise.
        let portal = unsafe { look("the device", device) }?.claim(queue.into())?;
        Ok(VhostLane(Arc::new(Lane::new(portal, room)?)))
    };
    // SAFETY: our caller's promise.
    answer(|| unsafe { hand_out(lane, make) })
}

/// What a lane has done.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_lane_stats_of(lane: *const VhostLane, stats: *mut VhostLaneStats) -> c_int {
    // SAFETY: our caller's promise, for both.
    answer(|| unsafe { put("the place for the statistics", stats, look("the lane", lane)?.stats()) })
}

/// Ends a lane's handle. Ports made with it go on.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_lane_free(lane: *mut VhostLane) {
    // SAFETY: our caller's promise.
    unsafe { end(lane) }
}

/// A port whose packets are of a pool, with what its virtqueues do.
///
/// # Safety
///
/// See the [module's rules](crate); `queues` is valid for `queue_count` structures, and the lanes of each for their
/// number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_port_new(
    port: *mut *mut VhostPort,
    pool: *const VhostPool,
    queues: *const VhostQueue,
    queue_count: u32,
    options: *const c_char,
) -> c_int {
    let make = || {
        // SAFETY: our caller's promise.
        let pool = unsafe { look("the pool", pool) }?;
        // SAFETY: our caller's promise.
        let Options { mut port, .. } = Options::parse(Of::Port, unsafe { super::options(options) }?)?;
        if queues.is_null() && queue_count > 0 {
            return Err(Refusal::Null("the list of virtqueues").into());
        }
        if queue_count > 0 {
            port.rings.clear();
        }
        for index in 0..queue_count as usize {
            // SAFETY: `index < queue_count`, and valid for so many by our caller's promise.
            let queue = unsafe { look("the virtqueue", queues.add(index)) }?;
            // SAFETY: our caller's promise.
            port.rings.push(unsafe { queue_of(queue) }?);
        }
        Ok(VhostPort::new(pool, port))
    };
    // SAFETY: our caller's promise.
    answer(|| unsafe { hand_out(port, make) })
}

/// A virtqueue as the library has it.
///
/// # Safety
///
/// Its list of lanes is NULL or valid for their number, each NULL or a handle.
unsafe fn queue_of(queue: &VhostQueue) -> Result<QueueOptions, Failure> {
    let VhostQueue { lanes, lane_count, device_from, in_flight, reserved, reserved2 } = *queue;
    if reserved != 0 || reserved2 != [0; 3] {
        return Err(Refusal::Reserved("virtqueue").into());
    }
    if lanes.is_null() && lane_count > 0 {
        return Err(Refusal::Null("the list of lanes").into());
    }
    let hybrid = match device_from {
        0 => Hybrid::Device,
        u32::MAX => Hybrid::Cpu,
        bytes => Hybrid::From(bytes),
    };
    let mut options = QueueOptions { hybrid, ..QueueOptions::default() };
    if in_flight > 0 {
        options.in_flight = in_flight as usize;
    }
    for index in 0..lane_count as usize {
        // SAFETY: `index < lane_count`, and valid for so many by our caller's promise; each is NULL or a handle.
        let lane = unsafe { look("the lane", lanes.add(index).read()) }?;
        options.lanes.push(Arc::clone(&lane.0));
    }
    Ok(options)
}

/// Ends a port's handle. Its socket, if it has one, goes on.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_port_free(port: *mut VhostPort) {
    // SAFETY: our caller's promise.
    unsafe { end(port) }
}

/// Begins to copy packets to the guest; how many were taken.
///
/// # Safety
///
/// See the [module's rules](crate); and `packets` is valid for `given` packets, none of which another thread gives away
/// meanwhile. Those taken are nobody's to touch until they come back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_submit_enqueue_burst(
    port: *const VhostPort,
    pair: u32,
    packets: *const Packet,
    given: u32,
) -> c_int {
    answer(|| {
        // SAFETY: our caller's promise, for both.
        let (port, packets) = unsafe { (look("the port", port)?, burst(packets, given)?) };
        // SAFETY: our caller's promise is the callee's.
        Ok(count(port.submit(pair, packets, |row, packets| unsafe { row.take_in(packets) })?))
    })
}

/// Gives packets back that the guest has got, or to their pool; how many.
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
        // SAFETY: our caller's promise.
        let port = unsafe { look("the port", port) }?;
        // SAFETY: our caller's promise.
        let packets = if packets.is_null() { None } else { Some(unsafe { place(packets, max) }?) };
        Ok(count(port.completed(pair, packets)?))
    })
}

/// Gives packets that the guest has sent; how many.
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
        // SAFETY: our caller's promise, for both.
        let (port, packets) = unsafe { (look("the port", port)?, place(packets, max)?) };
        Ok(count(port.dequeue(pair, packets)?))
    })
}

/// Waits until a driver has kicked, or a time has passed.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_wait(port: *const VhostPort, queue: u32, timeout_ns: i64) -> c_int {
    answer(|| {
        // SAFETY: our caller's promise.
        unsafe { look("the port", port) }?.wait(queue, timeout(timeout_ns)?)?;
        Ok(0)
    })
}

/// How a virtqueue stands.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_state_of(port: *const VhostPort, queue: u32, state: *mut VhostState) -> c_int {
    // SAFETY: our caller's promise, for both.
    answer(|| unsafe { put("the place for the state", state, look("the port", port)?.state(queue)?) })
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
    // SAFETY: our caller's promise, for both.
    answer(|| unsafe { copy_text(&look("the port", port)?.broken(queue)?, buffer, size) })
}

/// What a virtqueue has done.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_stats_of(port: *const VhostPort, queue: u32, stats: *mut VhostStats) -> c_int {
    // SAFETY: our caller's promise, for both.
    answer(|| unsafe { put("the place for the statistics", stats, look("the port", port)?.stats(queue)?) })
}

/// Why packets are dropped, as a sentence; NULL for what is no reason.
#[unsafe(no_mangle)]
pub extern "C" fn telpher_vhost_drop_text(reason: u32) -> *const c_char {
    static TEXTS: OnceLock<Vec<CString>> = OnceLock::new();
    let texts = TEXTS.get_or_init(|| {
        let texts = Dropped::ALL.into_iter().map(|reason| CString::new(reason.to_string()).unwrap_or_default());
        texts.collect()
    });
    texts.get(reason as usize).map_or(std::ptr::null(), |text| text.as_ptr())
}

/// The address of a guest that moved here and is to be announced: 1 if there is one, 0 if not.
///
/// # Safety
///
/// See the [module's rules](crate); and `address` is valid for 6 bytes of writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_announcement(port: *const VhostPort, address: *mut u8) -> c_int {
    answer(|| {
        // SAFETY: our caller's promise, for both; bytes need no alignment.
        let (port, place) = unsafe { (look("the port", port)?, change("the place for the address", address.cast())?) };
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
        // SAFETY: our caller's promise, for both.
        let (port, path) = unsafe { (look("the port", port)?, text("the socket's path", path)?) };
        let role = match role {
            vhost_role::TELPHER_VHOST_SERVER => Role::Server,
            vhost_role::TELPHER_VHOST_CLIENT => Role::Client,
            other => return Err(Refusal::Role(other).into()),
        };
        port.serve(path, role)
    };
    // SAFETY: our caller's promise.
    answer(|| unsafe { hand_out(socket, make) })
}

/// What has become of a socket.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_socket_state_of(
    socket: *const VhostSocket,
    state: *mut VhostSocketState,
) -> c_int {
    // SAFETY: our caller's promise, for both.
    answer(|| unsafe { put("the place for the state", state, look("the socket", socket)?.state()) })
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
    // SAFETY: our caller's promise, for both.
    answer(|| unsafe { copy_text(&look("the socket", socket)?.last(), buffer, size) })
}

/// Ends a session, if there is one, and the socket.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_vhost_socket_free(socket: *mut VhostSocket) {
    // SAFETY: our caller's promise.
    unsafe { end(socket) }
}
