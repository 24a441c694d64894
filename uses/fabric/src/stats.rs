//! Counters of an endpoint, and what other processes can read of all endpoints of this one.

use crate::copier::FALLBACK_REASONS;
use telpher_metrics::{AtomicU64, CellsOfObject, ObjectCells, metrics};

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
        /// Pieces that the CPU copied because the device refused or failed, by reason.
        pub fallbacks: [u64; FALLBACK_REASONS.len()] =
            counter "telpher_fabric_pieces_by_fallback_total" by reason FALLBACK_REASONS,
        /// Slots that the CPU filled with plain stores, which leave the bytes in its caches.
        pub slots_by_plain_stores: u64 = counter "telpher_fabric_filled_slots_total" by stores ["plain"] => SLOTS,
        /// Slots that the CPU filled with non-temporal stores, which go to memory.
        pub slots_by_streaming: u64 = counter "telpher_fabric_filled_slots_total" by stores ["streaming"] => SLOTS,
        /// Messages that were read from the memory of their senders.
        pub pulls: u64 = counter "telpher_fabric_pulls_total" by result ["done"] => PULLS,
        /// Messages that could not be read so, and came in pieces.
        pub pulls_refused: u64 = counter "telpher_fabric_pulls_total" by result ["refused"] => PULLS,
        /// Messages whose first bytes took too long to read, so that they came in pieces.
        pub pulls_slow: u64 = counter "telpher_fabric_pulls_total" by result ["slow"] => PULLS,
        /// Messages that were read from files which both processes have mapped.
        pub pulls_mapped: u64 = counter "telpher_fabric_mapped_pulls_total",
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

/// The help of slots.
const SLOTS: &str = "Slots of connections that the CPU filled, by the kind of stores.";

/// The help of pulls.
const PULLS: &str = "Messages that this process read from the memory of their senders, or tried to, by result.";

/// The help of accesses by peers.
const SERVED: &str = "Accesses of peers to the memory of this process, by result; each piece of a long one counts.";

impl Stats {
    /// Returns the pieces that the CPU copied because the device refused or failed, for any reason.
    #[must_use]
    pub fn pieces_by_fallback(&self) -> u64 {
        self.fallbacks.iter().sum()
    }
}

/// Returns words that other processes find.
#[cfg(not(loom))]
pub(crate) fn published_words(words: usize) -> &'static [AtomicU64] {
    telpher_os::published_words_or_own(words)
}

/// The models of loom publish nothing.
#[cfg(loom)]
pub(crate) fn published_words(words: usize) -> &'static [AtomicU64] {
    Box::leak((0..words).map(|_| AtomicU64::new(0)).collect())
}

/// What all endpoints of this process have counted.
static PUBLISHED: ObjectCells<Stats> = ObjectCells::new(published_words);
/// Passes that move something until the counters are published anyway. Source: chosen; a pass takes longer than a
/// sixteenth of a publication.
const MOST_PASSES: u32 = 64;

/// Passes that move nothing, one after the other, after which the counters are published. Source: chosen; a receiver
/// that is faster than its sender has a few of them between two messages.
const IDLE_PASSES: u32 = 16;

/// When the counters of an endpoint are published, if they have changed: after some passes in a row that move nothing,
/// and now and then while passes move something. So they cost messages little time.
#[derive(Debug)]
pub(crate) struct Publication {
    cells: CellsOfObject<Stats>,
    /// Passes that have moved something since the last publication.
    passes: u32,
    /// Passes that have moved nothing, one after the other, since the last one that has moved something and since the
    /// last publication.
    idle: u32,
    /// Sends at the last publication: they move without a pass.
    sends: u64,
}

impl Publication {
    pub(crate) fn new() -> Publication {
        Publication { cells: PUBLISHED.claim(1), passes: 0, idle: 0, sends: 0 }
    }

    /// Notes a pass; true if the counters are to be published now.
    #[inline]
    pub(crate) fn is_due(&mut self, moved: bool, sends: u64) -> bool {
        let is_due = if moved {
            (self.passes, self.idle) = (self.passes + 1, 0);
            self.passes >= MOST_PASSES
        } else {
            self.idle = self.idle.saturating_add(1);
            self.idle >= IDLE_PASSES && (self.passes > 0 || self.sends != sends)
        };
        if is_due {
            // After idle passes too: sends that follow are published when as many passes have moved nothing again.
            (self.passes, self.idle, self.sends) = (0, 0, sends);
        }
        is_due
    }

    pub(crate) fn publish(&self, stats: &Stats) {
        self.cells.store(0, stats);
    }

    /// Publishes the last counters, and that nothing is present any more.
    pub(crate) fn end(self, stats: Stats) {
        self.publish(&Stats { unexpected_bytes: 0, ..stats });
        self.cells.end();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Runs passes with so many sends before each. Returns how many of them published.
    fn run(publication: &mut Publication, passes: u32, moved: bool, sends: &mut u64, sends_a_pass: u64) -> usize {
        let mut pass = || {
            *sends += sends_a_pass;
            publication.is_due(moved, *sends)
        };
        (0..passes).filter(|_| pass()).count()
    }

    #[test]
    fn counters_are_published_now_and_then_however_they_change() {
        let (mut publication, mut sends) = (Publication::new(), 0);
        assert_eq!(run(&mut publication, 1000, false, &mut sends, 0), 0, "nothing has changed");
        assert_eq!(run(&mut publication, 640, true, &mut sends, 1), 10);
        assert_eq!(run(&mut publication, 1000, false, &mut sends, 0), 0, "the last pass that moved has published");
        // Each pass after the first sixteen published.
        assert!(run(&mut publication, 160, false, &mut sends, 1) <= 11, "sends that move without a pass");
        assert_eq!(run(&mut publication, 1, true, &mut sends, 0), 0);
        assert_eq!(run(&mut publication, IDLE_PASSES - 1, false, &mut sends, 0), 0);
        assert_eq!(run(&mut publication, 1000, false, &mut sends, 0), 1, "the last changes");
    }
}
