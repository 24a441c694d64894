//! Limits and thresholds of an endpoint.

use std::time::Duration;

/// Limits and thresholds of an endpoint. The defaults suit MPI programs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Messages up to this length travel inside the ring. Source: assumed; `telpher bench fabric` shows the effect.
    pub eager_bytes: u32,
    /// Entries of a ring; a power of two. Source: chosen.
    pub ring_entries: u32,
    /// Bytes of a connection for the payload of eager messages up to a KiB; a power of two. Source: chosen.
    pub payload_bytes: u32,
    /// The same for longer eager messages. Source: measured; it is used in turn, and should have more bytes than the
    /// cache of a core: then the lines of a payload have left both cores' own caches when they are written again.
    pub long_payload_bytes: u32,
    /// Slots of a connection; a power of two up to 256. Source: measured; the slots that are used in turn should have
    /// more bytes than the caches of two cores hold, and fewer than the cache that they share.
    pub slots: u32,
    /// Bytes of a slot; a power of two. Source: 8 to 16 KiB moved fastest in a pipeline of two copies.
    pub slot_bytes: u32,
    /// Pieces of at least this length are copied into slots with non-temporal stores, unless plain stores are measured
    /// to be faster. With `u64::MAX`, plain stores fill all pieces, also between cores where they take five times as
    /// long. Source: assumed.
    pub streaming_bytes: u64,
    /// The receiver may read messages of at least this length from the sender's memory with one copy, where it has
    /// measured that this is faster and the system permits it; `u64::MAX` for none. Both sides decide. Source of the
    /// default: chosen; a caller that wants it says so.
    pub pull_bytes: u64,
    /// The receiver may read messages of at least this length from a file in memory that the sender maps and that it
    /// maps as well, where it has measured that this is faster; `u64::MAX` for none. Both sides decide. Source: chosen;
    /// the sender asks the kernel about the buffer, which takes less than a hundredth of the time of such a message.
    pub mapped_bytes: u64,
    /// The most bytes of an endpoint in all connections that it opened. Source: chosen.
    pub memory_bytes: u64,
    /// The most connections that peers may open to an endpoint. One whose peer has ended counts as long as messages in
    /// it are kept. Source: chosen.
    pub incoming_connections: usize,
    /// The most bytes of messages that no receive matches yet. Source: chosen.
    pub unexpected_bytes: u64,
    /// The most sends that wait for room in one connection. Source: chosen.
    pub waiting_sends: usize,
    /// True if writes of peers may bring words, which become completions. An endpoint whose caller does not expect
    /// such completions refuses these writes.
    pub accepts_words: bool,
    /// How long an endpoint that is closed waits for peers to make room for injected messages, and for its device.
    /// Source: chosen.
    pub linger: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            eager_bytes: 8 << 10,
            ring_entries: 512,
            payload_bytes: 128 << 10,
            long_payload_bytes: 1 << 20,
            slots: 128,
            slot_bytes: 16 << 10,
            streaming_bytes: 8 << 10,
            pull_bytes: u64::MAX,
            mapped_bytes: 256 << 10,
            memory_bytes: 192 << 20,
            incoming_connections: 1024,
            unexpected_bytes: 64 << 20,
            waiting_sends: 65_536,
            accepts_words: true,
            linger: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// Returns the most bytes of an atomic operation: its operands and as many words to compare travel in the ring, and
    /// its results in a slot.
    #[must_use]
    pub fn atomic_bytes(&self) -> u64 {
        u64::from((self.eager_bytes / 2).min(self.slot_bytes))
    }
}

/// Which thread moves messages on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ProgressBy {
    /// The callers of [`Endpoint::progress`](crate::Endpoint::progress) and
    /// [`Endpoint::completions`](crate::Endpoint::completions).
    #[default]
    Caller,
    /// The callers; and the endpoint's helper thread makes one pass when a connection opens, and when a peer waits. So
    /// a message that waits for its connection is sent although its caller does not call again.
    CallerAndEvents,
    /// Also the endpoint's helper thread, when a peer waits.
    HelperThread,
}
