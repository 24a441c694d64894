//! Packet switches: ports, threads and counters.

use super::{answer, end, hand_out, look, options, put, text};
use crate::c_structs::{SwitchPort, SwitchStats, VhostSocketState, VhostStats, switch_kind};
use crate::device::Device;
use crate::failure::{Failure, Refusal};
use crate::options::{Of, Options};
use crate::switch::{Description, PacketSwitch};
use std::ffi::{c_char, c_int};
use telpher_vhost::Role;

/// Creates a switch and starts its threads.
///
/// # Safety
///
/// See the [module's rules](crate); and `ports` is valid for `port_count` structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_switch_new(
    packet_switch: *mut *mut PacketSwitch,
    device: *const Device,
    ports: *const SwitchPort,
    port_count: u32,
    options: *const c_char,
) -> c_int {
    let make = || {
        // SAFETY: guaranteed by our caller.
        let words = Options::parse(Of::Switch, unsafe { self::options(options) }?)?.packet_switch;
        if ports.is_null() && port_count > 0 {
            return Err(Refusal::Null("the list of ports").into());
        }
        let mut described = Vec::new();
        for index in 0..port_count as usize {
            // SAFETY: `index < port_count`, and valid for that many as our caller guarantees.
            let port = unsafe { look("the port", ports.add(index)) }?;
            // SAFETY: guaranteed by our caller.
            described.push(unsafe { description(port) }?);
        }
        // SAFETY: guaranteed by our caller; NULL is no device.
        PacketSwitch::start(unsafe { device.as_ref() }, described, words)
    };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(packet_switch, make) })
}

/// Converts the description of a port.
///
/// # Safety
///
/// Its texts are NULL or end in a zero byte.
unsafe fn description(port: &SwitchPort) -> Result<Description, Failure> {
    let SwitchPort { path, capture, kind, pairs, reserved } = *port;
    if reserved != [0; 5] {
        return Err(Refusal::Reserved("port").into());
    }
    let role = match kind {
        switch_kind::TELPHER_SWITCH_SERVER => Some(Role::Server),
        switch_kind::TELPHER_SWITCH_CLIENT => Some(Role::Client),
        switch_kind::TELPHER_SWITCH_TAP => None,
        other => return Err(Refusal::PortKind(other).into()),
    };
    // SAFETY: guaranteed by our caller.
    let path = unsafe { text("the port's path", path) }?.to_owned();
    let capture = match capture.is_null() {
        true => None,
        // SAFETY: guaranteed by our caller.
        false => Some(unsafe { text("the capture's path", capture) }?.into()),
    };
    Ok(Description { path, role, pairs, capture })
}

/// Stops the switch's threads and completes its captures.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_switch_stop(packet_switch: *const PacketSwitch) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        unsafe { look("the switch", packet_switch) }?.stop()?;
        Ok(0)
    })
}

/// Returns the counters of a port.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_switch_stats_of(
    packet_switch: *const PacketSwitch,
    port: u32,
    stats: *mut SwitchStats,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let found = unsafe { look("the switch", packet_switch) }?.stats(port)?;
        // SAFETY: guaranteed by our caller.
        unsafe { put("the output pointer for the statistics", stats, found) }
    })
}

/// Returns the counters of a virtqueue of a port.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_switch_queue_stats_of(
    packet_switch: *const PacketSwitch,
    port: u32,
    queue: u32,
    stats: *mut VhostStats,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let found = unsafe { look("the switch", packet_switch) }?.queue_stats(port, queue)?;
        // SAFETY: guaranteed by our caller.
        unsafe { put("the output pointer for the statistics", stats, found) }
    })
}

/// Returns the state of a port's socket.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_switch_socket_state_of(
    packet_switch: *const PacketSwitch,
    port: u32,
    state: *mut VhostSocketState,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let found = unsafe { look("the switch", packet_switch) }?.socket_state(port)?;
        // SAFETY: guaranteed by our caller.
        unsafe { put("the output pointer for the state", state, found) }
    })
}

/// Stops the switch and frees it.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_switch_free(packet_switch: *mut PacketSwitch) {
    // SAFETY: guaranteed by our caller.
    unsafe { end(packet_switch) }
}
