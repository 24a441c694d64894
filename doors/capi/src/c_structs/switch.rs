//! The C structures of a packet switch. `SwitchPort` is `telpher_switch_port` in the header, and so on.

use std::ffi::c_char;

/// The description of one port.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SwitchPort {
    /// The socket's path, or the interface's name.
    pub path: *const c_char,
    /// The file for a capture of its packets; NULL for none.
    pub capture: *const c_char,
    /// One of [`switch_kind`].
    pub kind: u32,
    /// The queue pairs of a socket; 0 for one.
    pub pairs: u32,
    /// Zero.
    pub reserved: [u64; 5],
}

/// The counters of one port, over all forwarding threads.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwitchStats {
    /// Packets received from it.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets sent to it that it can see.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets generated for it.
    pub generated: u64,
    /// Packets received from it and discarded by the mode.
    pub discarded: u64,
    /// Packets dropped because its guest had no buffers.
    pub no_room: u64,
    /// Packets dropped because its guest took none for the time of the option `retry`.
    pub retried: u64,
    /// Packets dropped because no receiver was connected.
    pub no_receiver: u64,
    /// Packets whose sending started and failed.
    pub refused: u64,
    /// Packets whose sending started and is not known to have ended.
    pub in_flight: u64,
    /// Packets for it that the switch held when it stopped.
    pub held: u64,
    /// How often its migrated guest was announced on the other side.
    pub announced: u64,
    /// Packets in its capture.
    pub captured: u64,
    /// Packets left out of its capture.
    pub not_captured: u64,
    /// 1 if a receiver takes packets from it.
    pub connected: u64,
    /// Zero.
    pub reserved: [u64; 8],
}

numbers! {
    /// What a port connects to.
    switch_kind:
    /// A guest; this side listens at the socket.
    TELPHER_SWITCH_SERVER = 0;
    /// A guest; its frontend listens at the socket.
    TELPHER_SWITCH_CLIENT = 1;
    /// A TAP interface of this system.
    TELPHER_SWITCH_TAP = 2;
}
