//! Which stores fill the slots of one connection, learned from the time that they take the sender.
//!
//! ```text
//! plain        the lines come into the sender's caches first, from where the receiver has read them
//! streaming    non-temporal: the lines go to memory, and out of all caches
//! ```
//!
//! Two cores that share a cache hand lines over in it, so plain stores are faster between them. Between other cores,
//! streaming stores are, by a factor of about five. The numbers of the CPUs do not show which of both holds: virtual
//! CPUs move, and cores of one processor differ. So the sender measures its own part of the copies, which shows the
//! same difference.

use std::time::{Duration, Instant};
use telpher_mem::WriteHint;

/// The most bytes of a piece that plain stores fill. The receiver copies one piece while the sender fills the next one.
/// Source: measured; 4 and 8 KiB take as long as each other, and 16 KiB a tenth longer at 16 KiB.
const PLAIN_BYTES: u64 = 8 << 10;
/// The first trial is after this many pieces, when the pages of the first slots have been touched. Source: chosen.
const BEFORE_FIRST: u32 = 8;
/// Pieces between two trials: after a change, and at most. They double with each trial that changes nothing. Source:
/// chosen; a trial has two pieces of the slower stores, which take up to five times as long.
const BETWEEN: u32 = 64;
const MOST_BETWEEN: u32 = 1024;
/// Pieces of a trial, by each kind of stores in turn. Source: chosen; the faster one of two leaves out interruptions.
const TRIAL: u32 = 4;
/// The other stores must be faster by one part in this many. Source: chosen; so equal ones are not exchanged.
const MARGIN: u64 = 8;

/// How a piece is filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    pub(crate) hint: WriteHint,
    /// When a piece of a trial was started.
    since: Option<Instant>,
}

/// The choice for one connection.
#[derive(Debug)]
pub(crate) struct Stores {
    /// Shorter pieces are filled by plain stores.
    streaming_bytes: u64,
    streams: bool,
    /// Pieces until the next trial.
    left: u32,
    between: u32,
    /// Pieces of the trial that are to come.
    trial_left: u32,
    /// The least picoseconds for a byte in this trial: by the chosen stores, and by the others.
    chosen: u64,
    others: u64,
}

impl Stores {
    pub(crate) fn new(streaming_bytes: u64) -> Stores {
        Stores {
            streaming_bytes,
            streams: true,
            left: BEFORE_FIRST,
            between: BETWEEN,
            trial_left: 0,
            chosen: u64::MAX,
            others: u64::MAX,
        }
    }

    /// True if the next piece is filled by streaming stores, if it is long enough.
    fn next_streams(&self) -> bool {
        let tries_others = self.trial_left % 2 == 1;
        self.streams != tries_others
    }

    /// Returns the most bytes of the next piece that a core fills.
    #[inline]
    pub(crate) fn most_bytes(&self, slot_bytes: u64) -> u64 {
        if self.next_streams() { slot_bytes } else { slot_bytes.min(PLAIN_BYTES.max(self.streaming_bytes)) }
    }

    /// Chooses the stores for a piece.
    #[inline]
    pub(crate) fn fill(&self, len: u64) -> Fill {
        if len < self.streaming_bytes {
            return Fill { hint: WriteHint::Cache, since: None };
        }
        let hint = if self.next_streams() { WriteHint::Stream } else { WriteHint::Cache };
        Fill { hint, since: (self.trial_left > 0).then(Instant::now) }
    }

    /// A core has filled a piece.
    #[inline]
    pub(crate) fn filled(&mut self, fill: Fill, len: u64) {
        if len < self.streaming_bytes {
            return;
        }
        match fill.since {
            Some(since) => self.took(since.elapsed(), len),
            None => {
                self.left = self.left.saturating_sub(1);
                if self.left == 0 {
                    (self.trial_left, self.chosen, self.others) = (TRIAL, u64::MAX, u64::MAX);
                }
            }
        }
    }

    /// Records the time of a piece of a trial, and decides after the last one.
    fn took(&mut self, time: Duration, len: u64) {
        let picos = u64::try_from(time.as_nanos() * 1000 / u128::from(len.max(1))).unwrap_or(u64::MAX);
        let least = if self.trial_left % 2 == 1 { &mut self.others } else { &mut self.chosen };
        *least = picos.min(*least);
        self.trial_left = self.trial_left.saturating_sub(1);
        if self.trial_left > 0 {
            return;
        }
        if self.others < self.chosen - self.chosen / MARGIN {
            self.streams = !self.streams;
            self.between = BETWEEN;
        } else {
            self.between = (self.between * 2).min(MOST_BETWEEN);
        }
        self.left = self.between;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: u64 = 16 << 10;

    /// Fills so many pieces, which take these picoseconds a byte. Returns how many were filled by streaming stores.
    fn run(stores: &mut Stores, pieces: usize, plain: u64, streaming: u64) -> usize {
        let mut streamed = 0;
        for _ in 0..pieces {
            let len = stores.most_bytes(SLOT);
            let fill = stores.fill(len);
            let streams = fill.hint == WriteHint::Stream;
            streamed += usize::from(streams);
            match fill.since {
                None => stores.filled(fill, len),
                Some(_) => {
                    stores.took(Duration::from_nanos(if streams { streaming } else { plain } * len / 1000), len);
                }
            }
        }
        streamed
    }

    #[test]
    fn the_faster_stores_are_used_and_a_change_is_noticed() {
        let mut stores = Stores::new(8 << 10);
        assert!(run(&mut stores, 1000, 300, 60) >= 980, "far");
        assert!(run(&mut stores, 4000, 40, 60) <= 1050, "near");
        assert!(run(&mut stores, 4000, 300, 60) >= 2900, "far again");
    }

    #[test]
    fn equal_stores_are_not_exchanged() {
        let mut stores = Stores::new(8 << 10);
        assert!(run(&mut stores, 10_000, 60, 60) >= 9900);
    }

    #[test]
    fn one_interruption_changes_nothing() {
        let mut stores = Stores::new(8 << 10);
        run(&mut stores, BEFORE_FIRST as usize, 300, 60);
        stores.took(Duration::from_secs(1), SLOT);
        run(&mut stores, 3, 300, 60);
        assert!(stores.streams && stores.trial_left == 0);
    }

    #[test]
    fn short_pieces_are_plain_and_not_counted() {
        let mut stores = Stores::new(8 << 10);
        for _ in 0..1000 {
            let fill = stores.fill(4096);
            assert!(fill.hint == WriteHint::Cache && fill.since.is_none());
            stores.filled(fill, 4096);
        }
        assert_eq!(stores.left, BEFORE_FIRST);
        assert_eq!(stores.most_bytes(4096), 4096);
    }

    #[test]
    fn nothing_streams_without_a_least_length() {
        let stores = Stores::new(u64::MAX);
        assert_eq!(stores.fill(1 << 20).hint, WriteHint::Cache);
        assert_eq!(stores.most_bytes(SLOT), SLOT);
    }
}
