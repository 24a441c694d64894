//! What the threads of a query do, and in which order: written once as tasks, for threads of this machine and for
//! simulated ones.
//!
//! ```text
//! group:  SCAN       chunk 0 │ chunk 1 │ chunk 2 │           barrier after each chunk: │
//!         AGGREGATE          │ chunk 0 │ chunk 1 │ chunk 2
//!         FETCH   0, 1, 2, …           relaxed: as fast as it can; strict: with the barrier, no chunk before its turn
//! ```
//!
//! This is with overlapping. Without it, a group has another barrier after each AGGREGATE, and then scans the next
//! chunk.

use std::future::Future;
use std::ops::Range;

/// Rows that a group scans before it sums them, and that are fetched together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Its group.
    pub group: u32,
    /// Its number in the group.
    pub number: u64,
    /// Its rows in the table.
    pub rows: Range<u64>,
}

/// A thread's share of a chunk; may be empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The chunk.
    pub chunk: Chunk,
    /// The number of the thread among those with its role.
    pub thread: u32,
    /// Its rows in the table.
    pub rows: Range<u64>,
}

/// The environment of a query's threads: the columns in this machine's memory, or a simulated machine.
///
/// The futures need not be `Send`: each thread creates its own.
pub trait Environment {
    /// Filters rows, and keeps the selection.
    fn scan(&self, part: Part) -> impl Future<Output = ()>;

    /// Requests the columns of a chunk that its aggregation reads, without waiting for them.
    fn fetch(&self, chunk: Chunk) -> impl Future<Output = ()>;

    /// Sums the selected rows, reading each column where it is by then.
    fn aggregate(&self, part: Part) -> impl Future<Output = ()>;

    /// Waits until all threads of the group that use the barrier are here.
    fn meet(&self, group: u32) -> impl Future<Output = ()>;
}

/// How a query's work is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Rows of the table.
    pub rows: u64,
    /// Groups of threads; each has a part of the rows. 0 means 1.
    pub groups: u32,
    /// Rows of a chunk. 0 means 1.
    pub chunk: u64,
    /// Scanning threads of a group. 0 means 1.
    pub scanners: u32,
    /// Fetching threads of a group; 0 for no prefetching.
    pub fetchers: u32,
    /// Aggregating threads of a group. 0 means 1.
    pub aggregators: u32,
    /// Fetching does not wait for scanning (thesis §6.1: the relaxed constraint).
    pub relaxed: bool,
    /// A group scans a chunk while it aggregates the previous one. Otherwise it does one after the other, and only
    /// groups overlap.
    pub overlapping: bool,
}

/// The role of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Role {
    /// Filters: the thesis' SCAN_a.
    Scan,
    /// Prefetches: the thesis' SCAN_b.
    Fetch,
    /// Projects and sums: the thesis' AGGREGATE.
    Aggregate,
}

impl Shape {
    /// Returns the number of threads of a group at its barrier.
    #[must_use]
    pub fn meeting(&self) -> u32 {
        let fetchers = if self.relaxed { 0 } else { self.fetchers };
        self.scanners.max(1).saturating_add(self.aggregators.max(1)).saturating_add(fetchers)
    }

    /// Returns the total number of threads.
    #[must_use]
    pub fn threads(&self) -> u64 {
        let of_a_group =
            [self.scanners.max(1), self.fetchers, self.aggregators.max(1)].map(u64::from).iter().sum::<u64>();
        // The sum of three 32-bit numbers times another one: less than 2^66.
        of_a_group.saturating_mul(self.groups.max(1).into())
    }

    /// Returns the threads of all groups, fetching ones first, because they finish soonest.
    pub fn workers(&self) -> impl Iterator<Item = Worker> + use<> {
        let shape = *self;
        [
            (Role::Fetch, shape.fetchers),
            (Role::Scan, shape.scanners.max(1)),
            (Role::Aggregate, shape.aggregators.max(1)),
        ]
        .into_iter()
        .flat_map(move |(role, of)| {
            (0..shape.groups.max(1))
                .flat_map(move |group| (0..of).map(move |thread| Worker { shape, role, group, thread, of }))
        })
    }

    /// Returns the number of chunks of a group; the same for all groups, although some chunks have fewer rows.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.rows.div_ceil(self.groups.max(1).into()).div_ceil(self.chunk.max(1))
    }

    /// Returns a chunk of a group.
    #[must_use]
    pub fn chunk(&self, group: u32, number: u64) -> Chunk {
        let groups = u64::from(self.groups.max(1));
        let part = share(0..self.rows, group.into(), groups);
        // Cannot overflow where it matters: a chunk beyond the part is empty.
        let start = part.start.saturating_add(number.saturating_mul(self.chunk.max(1))).min(part.end);
        Chunk { group, number, rows: start..start.saturating_add(self.chunk.max(1)).min(part.end) }
    }
}

/// Returns the `number`th of `of` shares, as equal as whole rows permit.
fn share(rows: Range<u64>, number: u64, of: u64) -> Range<u64> {
    let len = u128::from(rows.end - rows.start);
    // At most len, which is a u64.
    let at =
        |number: u64| rows.start + u64::try_from(len * u128::from(number) / u128::from(of.max(1))).unwrap_or(u64::MAX);
    at(number)..at(number + 1)
}

/// One of a query's threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Worker {
    shape: Shape,
    /// Its role.
    pub role: Role,
    /// Its group.
    pub group: u32,
    /// Its number among the group's threads with that role.
    pub thread: u32,
    of: u32,
}

impl Worker {
    /// Does all the work of this thread.
    pub async fn run(self, ground: &impl Environment) {
        let Worker { shape, role, group, thread, of } = self;
        for number in 0..shape.chunks() {
            let chunk = shape.chunk(group, number);
            let rows = share(chunk.rows.clone(), thread.into(), of.into());
            match role {
                Role::Scan => {
                    ground.scan(Part { chunk, thread, rows }).await;
                    ground.meet(group).await;
                }
                Role::Aggregate => {
                    ground.meet(group).await;
                    ground.aggregate(Part { chunk, thread, rows }).await;
                }
                Role::Fetch => {
                    // In turns, so that each chunk is requested once, early ones first.
                    if number % u64::from(of) == u64::from(thread) {
                        ground.fetch(chunk).await;
                    }
                    if !shape.relaxed {
                        ground.meet(group).await;
                    }
                }
            }
            let meets = role != Role::Fetch || !shape.relaxed;
            if meets && !shape.overlapping {
                // The chunk has been aggregated.
                ground.meet(group).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::collections::HashMap;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    /// Records what is done; its barrier works for tasks of one thread.
    #[derive(Default)]
    struct Diary {
        meeting: u32,
        done: RefCell<Vec<(Role, Chunk, Range<u64>)>>,
        /// The number of arrivals so far, by group.
        came: RefCell<HashMap<u32, u32>>,
    }

    /// Ready after this many arrivals.
    struct Until<'a>(&'a Diary, u32, u32);
    impl Future for Until<'_> {
        type Output = ();
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            if self.0.came.borrow()[&self.1] >= self.2 { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    impl Environment for Diary {
        async fn scan(&self, part: Part) {
            self.done.borrow_mut().push((Role::Scan, part.chunk, part.rows));
        }
        async fn fetch(&self, chunk: Chunk) {
            self.done.borrow_mut().push((Role::Fetch, chunk.clone(), chunk.rows));
        }
        async fn aggregate(&self, part: Part) {
            self.done.borrow_mut().push((Role::Aggregate, part.chunk, part.rows));
        }
        async fn meet(&self, group: u32) {
            let round = {
                let mut came = self.came.borrow_mut();
                let came = came.entry(group).or_default();
                *came += 1;
                came.div_ceil(self.meeting) * self.meeting
            };
            Until(self, group, round).await;
        }
    }

    proptest! {
        #[test]
        fn every_row_is_scanned_then_aggregated_and_prefetched_once(
            rows in 0_u64..500, groups in 0_u32..4, chunk in 0_u64..70, scanners in 0_u32..4, fetchers in 0_u32..4, aggregators in 0_u32..4,
            relaxed in any::<bool>(), overlapping in any::<bool>(), order in any::<u64>(),
        ) {
            let shape = Shape { rows, groups, chunk, scanners, fetchers, aggregators, relaxed, overlapping };
            let diary = Diary { meeting: shape.meeting(), ..Diary::default() };
            prop_assert_eq!(shape.workers().count() as u64, shape.threads());
            let mut tasks: Vec<_> = shape.workers().map(|worker| Some(Box::pin(worker.run(&diary)))).collect();
            let mut context = Context::from_waker(Waker::noop());
            let mut random = telpher_os::Random::new(order);
            while tasks.iter().any(Option::is_some) {
                let before = (diary.done.borrow().len(), diary.came.borrow().values().sum::<u32>(), tasks.iter().flatten().count());
                for _ in 0..tasks.len() {
                    let at = usize::try_from(random.below(tasks.len() as u64)).unwrap();
                    if let Some(task) = &mut tasks[at] && pin!(task).poll(&mut context).is_ready() {
                        tasks[at] = None;
                    }
                }
                // Each remaining task gets another poll.
                for task in &mut tasks {
                    if task.as_mut().is_some_and(|task| pin!(task).poll(&mut context).is_ready()) {
                        *task = None;
                    }
                }
                let after = (diary.done.borrow().len(), diary.came.borrow().values().sum::<u32>(), tasks.iter().flatten().count());
                prop_assert_ne!(before, after, "no thread can go on");
            }
            let done = diary.done.borrow();
            for role in [Role::Scan, Role::Fetch, Role::Aggregate] {
                let mut seen: Vec<u64> = done.iter().filter(|(what, ..)| *what == role).flat_map(|(.., rows)| rows.clone()).collect();
                seen.sort_unstable();
                let expected: Vec<u64> = if role == Role::Fetch && fetchers == 0 { Vec::new() } else { (0..rows).collect() };
                prop_assert_eq!(seen, expected, "{:?}", role);
            }
            // No chunk is summed before it was scanned completely.
            for (at, (role, chunk, _)) in done.iter().enumerate() {
                if *role == Role::Aggregate {
                    let scanned = done[..at].iter().filter(|(what, other, _)| *what == Role::Scan && other == chunk).count();
                    prop_assert_eq!(scanned, scanners.max(1) as usize);
                }
            }
        }
    }
}
