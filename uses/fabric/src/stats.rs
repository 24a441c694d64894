//! Counters of an endpoint.

use telpher_metrics::metrics;

metrics! {
    /// Counters of an endpoint since it was opened.
    pub struct Stats {
        /// Messages that were put into a ring whole.
        pub eager_messages_sent: u64 = counter "telpher_fabric_eager_messages_sent_total",
        /// Longer messages that were announced.
        pub long_messages_sent: u64 = counter "telpher_fabric_long_messages_sent_total",
        /// Bytes of the payload that were sent.
        pub bytes_sent: u64 = counter(Bytes) "telpher_fabric_sent_bytes_total",
        /// Messages that were received.
        pub messages_received: u64 = counter "telpher_fabric_messages_received_total",
        /// Bytes of the payload that were received.
        pub bytes_received: u64 = counter(Bytes) "telpher_fabric_received_bytes_total",
        /// Messages that no receive matched when they arrived.
        pub unexpected_messages: u64 = counter "telpher_fabric_unexpected_messages_total",
        /// Bytes of memory for messages that no receive matches yet.
        pub unexpected_bytes: u64 = gauge(Bytes) "telpher_fabric_unexpected_bytes",
        /// Sends that had to wait for room in a connection.
        pub sends_that_waited: u64 = counter "telpher_fabric_sends_that_waited_total",
        /// Pieces of longer messages that the CPU copied.
        pub pieces_by_cpu: u64 = counter "telpher_fabric_pieces_by_cpu_total",
        /// Pieces of longer messages that a device copied.
        pub pieces_by_device: u64 = counter "telpher_fabric_pieces_by_device_total",
        /// Pieces that the CPU copied because the device refused or failed.
        pub pieces_by_fallback: u64 = counter "telpher_fabric_pieces_by_fallback_total",
        /// Messages that were read from the memory of their senders.
        pub pulls: u64 = counter "telpher_fabric_pulls_total" by result ["done"] => PULLS,
        /// Messages that could not be read so, and came in pieces.
        pub pulls_refused: u64 = counter "telpher_fabric_pulls_total" by result ["refused"] => PULLS,
        /// Messages whose first bytes took too long to read, so that they came in pieces.
        pub pulls_slow: u64 = counter "telpher_fabric_pulls_total" by result ["slow"] => PULLS,
        /// Reads of peers' memory.
        pub reads: u64 = counter "telpher_fabric_reads_total",
        /// Writes to peers' memory.
        pub writes: u64 = counter "telpher_fabric_writes_total",
        /// Atomic operations on peers' memory.
        pub atomics: u64 = counter "telpher_fabric_atomics_total",
        /// Accesses of peers to the memory of this process that were done; each piece of a long one counts.
        pub accesses_served: u64 = counter "telpher_fabric_served_accesses_total" by result ["done"] => SERVED,
        /// The same that were refused.
        pub accesses_refused: u64 = counter "telpher_fabric_served_accesses_total" by result ["refused"] => SERVED,
        /// Operations that failed.
        pub failed_operations: u64 = counter "telpher_fabric_failed_operations_total",
        /// Wake-ups that were sent to peers that made no progress.
        pub wakes_sent: u64 = counter "telpher_fabric_wakes_sent_total",
        /// Connections whose peer ended or closed.
        pub peers_died: u64 = counter "telpher_fabric_peers_died_total",
        /// Connections that were closed because the peer broke the protocol.
        pub peers_broken: u64 = counter "telpher_fabric_peers_broken_total",
    }
}

/// The help of pulls.
const PULLS: &str = "Messages that this process read from the memory of their senders, or tried to, by result.";

/// The help of accesses by peers.
const SERVED: &str = "Accesses of peers to the memory of this process, by result; each piece of a long one counts.";
