//! A query on its own: no cache, no stages, every core takes the next piece of the table. What others are measured against.

use super::partial::{Answer, Partial};
use super::prepare::Query;
use super::selection::Selection;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows a thread takes at a time. Source: assumed; enough that taking costs nothing, few enough that all threads end together.
const MORSEL: u64 = 1 << 16;

impl Query {
    /// The answer, by so many threads; 0 is 1. Each takes the next rows that nobody has, filters and aggregates them (Leis et al.,
    /// *Morsel-Driven Parallelism*, SIGMOD 2014).
    ///
    /// # Panics
    /// If the system has no more threads.
    #[must_use]
    pub fn alone(&self, threads: usize) -> Answer {
        let next = AtomicU64::new(0);
        let mut whole = self.partial();
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(|| self.morsels(&next, self.partial()))).collect();
            let mine = self.morsels(&next, self.partial());
            let theirs =
                others.into_iter().map(|other| other.join().expect("what a morsel is made of is the table's own"));
            for partial in std::iter::once(mine).chain(theirs) {
                whole.merge(&partial).expect("it is of this query");
            }
        });
        whole.answer()
    }

    fn morsels(&self, next: &AtomicU64, mut partial: Partial) -> Partial {
        let mut selection = Selection::default();
        loop {
            // Relaxed: only the number counts.
            let start = next.fetch_add(MORSEL, Ordering::Relaxed);
            let rows = start..start.saturating_add(MORSEL).min(self.table().rows());
            if rows.is_empty() {
                return partial;
            }
            let scanned = self.inputs(self.scanned(), rows.clone());
            self.scan(rows.clone(), &scanned, &mut selection).expect("the table's own rows");
            let aggregated = self.inputs(self.aggregated(), rows.clone());
            self.aggregate(rows, &aggregated, &selection, &mut partial).expect("the table's own rows");
        }
    }
}
