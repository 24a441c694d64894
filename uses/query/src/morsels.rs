//! A query without cache and stages: every core takes the next part of the table. The baseline for measurements.

use super::partial::{Answer, Partial};
use super::prepare::Query;
use super::selection::Selection;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows that a thread takes at a time. Source: assumed; enough that taking them costs nothing, few enough that all
/// threads end together.
const MORSEL: u64 = 1 << 16;

impl Query {
    /// Computes the answer with this many threads; 0 means 1. Each thread takes the next free rows, filters and
    /// aggregates them (Leis et al., *Morsel-Driven Parallelism*, SIGMOD 2014).
    ///
    /// # Panics
    /// If the system refuses more threads.
    #[must_use]
    pub fn alone(&self, threads: usize) -> Answer {
        let next = AtomicU64::new(0);
        let mut whole = self.partial();
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(|| self.morsels(&next, self.partial()))).collect();
            let mine = self.morsels(&next, self.partial());
            let theirs = others.into_iter().map(|other| other.join().expect("a morsel's rows are in the table"));
            for partial in std::iter::once(mine).chain(theirs) {
                whole.merge(&partial).expect("the partial belongs to this query");
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
            self.scan(rows.clone(), &scanned, &mut selection).expect("the rows are in the table");
            let aggregated = self.inputs(self.aggregated(), rows.clone());
            self.aggregate(rows, &aggregated, &selection, &mut partial).expect("the rows are in the table");
        }
    }
}
