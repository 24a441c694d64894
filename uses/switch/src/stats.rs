//! The counters of a port of a running switch.

use crate::forward::PortCounts;

/// The counters of one port, over all forwarding threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortStats {
    /// The counts of the forwarding threads.
    pub counts: PortCounts,
    /// Packets for the port whose sending started and is known to have failed.
    pub refused: u64,
    /// Packets in the capture's file.
    pub captured: u64,
    /// Packets left out of the capture because its writer was behind or could not write.
    pub not_captured: u64,
    /// Whether a receiver takes packets from the port.
    pub connected: bool,
}

impl PortStats {
    /// Returns the packets in flight to the port. After the switch has stopped, these were in flight when their guest
    /// disconnected or the switch stopped: whether they arrived is unknown.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.counts.submitted.saturating_sub(self.counts.sent + self.refused)
    }
}
