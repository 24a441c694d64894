//! A copy by one thread, by a mover, or by two threads with a half each: the cases with which a copy that a device and
//! the waiting thread share is compared.
//!
//! The buffers rotate over more memory than the caches hold, like those of a program that moves bulk data.

use crate::BenchError;
use crate::buffers::fill_known;
use crate::questions::Experiment;
use std::collections::VecDeque;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use telpher_mover::{Mover, Outcome};

/// Polls of the second thread for its half in one call; together they take some microseconds. The clock is read between
/// calls.
const LOOKS: u32 = 4096;

/// A source and a destination.
type Pair = (Vec<u8>, Vec<u8>);

/// How a pair is copied.
pub(crate) enum CopyBy {
    /// By one thread.
    Alone,
    /// By a device, and by the waiting thread too if the policy says so.
    By(Mover),
    /// By two threads, one half each; the side's own pairs are halves, and the other halves go to the second thread.
    Halves(Arc<Handoff>, VecDeque<Pair>),
    /// By the second thread, which receives its halves.
    Brought(Arc<Handoff>),
}

/// A pair that is handed to another thread and back.
#[derive(Default)]
pub(crate) struct Handoff {
    state: AtomicU8,
    pair: Mutex<Option<Pair>>,
}

const NOTHING: u8 = 0;
const OFFERED: u8 = 1;
const TAKEN: u8 = 2;
const BACK: u8 = 3;

impl Handoff {
    fn put(&self, pair: Pair, state: u8) {
        *self.pair.lock().unwrap_or_else(PoisonError::into_inner) = Some(pair);
        // Release: pairs with the Acquire in `take`; the lock orders the pair itself.
        self.state.store(state, Ordering::Release);
    }

    /// Returns the pair if the hand-off is in `state`, and sets `then`.
    fn take(&self, state: u8, then: u8) -> Option<Pair> {
        // Load first: a cache line that is only read stays in the caches of both cores.
        if self.state.load(Ordering::Acquire) != state {
            return None;
        }
        self.state.compare_exchange(state, then, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        self.pair.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn copied((src, mut dst): Pair) -> Pair {
    dst.copy_from_slice(&src);
    (src, dst)
}

/// How the pairs are copied, and the pairs, used in rotation.
pub(crate) struct HybridCase {
    experiment: &'static Experiment,
    copy_by: CopyBy,
    /// The last one is copied next.
    pub(crate) pairs: VecDeque<Pair>,
}

/// Returns pairs of buffers of `bytes` bytes each that together fill `room`; at least one pair.
fn pairs(bytes: usize, room: u64, seed: u64) -> VecDeque<Pair> {
    let count = (usize::try_from(room).unwrap_or(usize::MAX) / (2 * bytes)).max(1);
    let mut src = vec![0; bytes];
    fill_known(&mut src, seed);
    (0..count).map(|_| (src.clone(), vec![0; bytes])).collect()
}

impl HybridCase {
    pub(crate) fn new(experiment: &'static Experiment, copy_by: CopyBy, bytes: usize, room: u64) -> Self {
        HybridCase { experiment, copy_by, pairs: pairs(bytes, room, 1) }
    }

    /// Two threads that work on each copy together.
    pub(crate) fn halves(experiment: &'static Experiment, bytes: usize, room: u64) -> Vec<Self> {
        let handoff = Arc::new(Handoff::default());
        let others = pairs(bytes / 2, room / 2, 2);
        let leads = HybridCase::new(experiment, CopyBy::Halves(Arc::clone(&handoff), others), bytes / 2, room / 2);
        vec![leads, HybridCase { experiment, copy_by: CopyBy::Brought(handoff), pairs: VecDeque::new() }]
    }

    /// Copies one pair and returns the number of bytes.
    pub(crate) fn copy(&mut self) -> Result<u64, BenchError> {
        if let CopyBy::Brought(handoff) = &self.copy_by {
            for _ in 0..LOOKS {
                match handoff.take(OFFERED, TAKEN) {
                    Some(pair) => handoff.put(copied(pair), BACK),
                    None => spin_loop(),
                }
            }
            // The first thread counts the bytes of both halves.
            return Ok(0);
        }
        let (src, dst) = self.pairs.pop_back().expect("the buffers came back");
        let mut bytes = src.len() as u64;
        let (result, src, dst) = match &mut self.copy_by {
            CopyBy::By(mover) => mover.copy(src, dst).wait().into_parts(),
            CopyBy::Halves(handoff, others) => {
                handoff.put(others.pop_back().expect("the halves came back"), OFFERED);
                let (src, dst) = copied((src, dst));
                let other = loop {
                    // If the second thread's turn is over, this thread copies both halves.
                    match handoff.take(OFFERED, NOTHING).map(copied).or_else(|| handoff.take(BACK, NOTHING)) {
                        Some(other) => break other,
                        None => spin_loop(),
                    }
                };
                bytes += other.0.len() as u64;
                others.push_front(other);
                (Ok(Outcome::Done), src, dst)
            }
            CopyBy::Alone | CopyBy::Brought(_) => {
                let (src, dst) = copied((src, dst));
                (Ok(Outcome::Done), src, dst)
            }
        };
        self.pairs.push_front((src, dst));
        self.experiment.done(result).map(|()| bytes)
    }

    /// Compares the pairs copied last.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        let others = if let CopyBy::Halves(_, others) = &self.copy_by { others.front() } else { None };
        self.pairs.front().into_iter().chain(others).try_for_each(|(src, dst)| self.experiment.arrived(src, dst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    static EXPERIMENT: Experiment =
        Experiment { name: "halves", question: "", cores: 2, weight: 1.0, measure: |_, _| Ok(Vec::new()) };

    #[test]
    fn two_threads_copy_one_half_each_and_one_alone_copies_both() {
        let mut sides = HybridCase::halves(&EXPERIMENT, 2 << 20, 0);
        let mut other = sides.pop().unwrap();
        let mut leads = sides.pop().unwrap();
        assert_eq!(leads.copy().unwrap(), 2 << 20, "nothing takes the half that is offered");
        let others = |side: &mut HybridCase| match &mut side.copy_by {
            CopyBy::Halves(_, others) => others[0].1.clone(),
            _ => Vec::new(),
        };
        leads.check().unwrap();
        let other_half = others(&mut leads);
        assert!(leads.pairs[0].1 != other_half && other_half.len() == 1 << 20);
        thread::scope(|scope| {
            let brought = scope.spawn(move || {
                while Arc::strong_count(match &other.copy_by {
                    CopyBy::Brought(handoff) => handoff,
                    _ => unreachable!("the second of two halves"),
                }) > 1
                {
                    assert_eq!(other.copy().unwrap(), 0);
                }
            });
            (0..20).for_each(|_| assert_eq!(leads.copy().unwrap(), 2 << 20));
            leads.check().unwrap();
            drop(leads);
            brought.join().unwrap();
        });
    }
}
