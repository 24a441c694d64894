//! Limits that the provider reports.

use telpher_fabric::Config;

/// The longest message. Source: chosen; a sum of segments fits in a signed number.
pub(crate) const MESSAGE_BYTES: usize = 1 << 62;

/// Operations under way in one direction, unless an application asks for more. Source: chosen.
pub(crate) const OPERATIONS: usize = 4096;

/// The most operations under way that an application may ask for. Source: the sends that an endpoint lets wait.
pub(crate) const MOST_OPERATIONS: usize = 65_536;

/// Ranges of remote memory of one access. Source: MPIs ask for one.
pub(crate) const REMOTE_RANGES: usize = 1;

/// The most bytes of an atomic operation.
pub(crate) fn atomic_bytes() -> usize {
    usize::try_from(Config::default().atomic_bytes()).expect("64-bit system")
}

/// The most queues, endpoints and counters that are reported. The provider itself has no limit. Source: chosen.
pub(crate) const OBJECTS: usize = 32_768;

/// The version of the protocol between endpoints, for applications that compare it.
pub(crate) const PROTOCOL_VERSION: u32 = 1;

/// The longest message whose buffer is free when the call that sends it returns.
pub(crate) fn inject_bytes() -> usize {
    usize::try_from(Config::default().eager_bytes).expect("64-bit system")
}
