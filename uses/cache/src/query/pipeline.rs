//! What the threads of a query do, and in which order: written once, as tasks, for threads of this machine and for simulated ones.
//!
//! ```text
//! group:  SCAN       chunk 0 │ chunk 1 │ chunk 2 │           meets after each chunk: │
//!         AGGREGATE          │ chunk 0 │ chunk 1 │ chunk 2
//!         FETCH   0, 1, 2, …           relaxed: as fast as it can; strict: no chunk before its turn, and it meets, too
//! ```
//!
//! So overlapping; otherwise a group meets again after each AGGREGATE, and scans the next chunk then.

use std::future::Future;
use std::ops::Range;

/// Rows that a group scans before it sums over them, and that are fetched together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// The group whose it is.
    pub group: u32,
    /// Its number in the group.
    pub number: u64,
    /// Its rows in the table.
    pub rows: Range<u64>,
}

/// A thread's share of a chunk; may be empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Of this chunk.
    pub chunk: Chunk,
    /// Which of so many.
    pub thread: u32,
    /// Its rows in the table.
    pub rows: Range<u64>,
}

/// What a query's threads stand on: the columns in this machine's memory, or a simulated machine.
///
/// The futures need not be `Send`: each thread makes its own.
pub trait Ground {
    /// Filters rows, and keeps which of them are chosen.
    fn scan(&self, part: Part) -> impl Future<Output = ()>;

    /// Asks for the columns of a chunk that its aggregation reads; does not wait for them.
    fn fetch(&self, chunk: Chunk) -> impl Future<Output = ()>;

    /// Sums over the rows that were chosen, where their columns are by now.
    fn aggregate(&self, part: Part) -> impl Future<Output = ()>;

    /// Waits until all of the group's threads that meet are here.
    fn meet(&self, group: u32) -> impl Future<Output = ()>;
}

/// How a query's work is shared out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Rows of the table.
    pub rows: u64,
    /// Groups of threads; each has its part of the rows. 0 is 1.
    pub groups: u32,
    /// Rows of a chunk. 0 is 1.
    pub chunk: u64,
    /// Threads of a group that scan. 0 is 1.
    pub scanners: u32,
    /// Threads of a group that fetch ahead; none if nothing is.
    pub fetchers: u32,
    /// Threads of a group that aggregate. 0 is 1.
    pub aggregators: u32,
    /// Fetching does not keep step with scanning (thesis §6.1: the relaxed constraint).
    pub relaxed: bool,
    /// A group scans a chunk while it aggregates the one before. Otherwise it does one after the other, and only groups overlap.
    pub overlapping: bool,
}

/// What a thread is there for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Role {
    /// Filters: the thesis' SCAN_a.
    Scan,
    /// Fetches ahead: its SCAN_b.
    Fetch,
    /// Projects and sums: its AGGREGATE.
    Aggregate,
}

impl Shape {
    /// Threads of a group that meet after each chunk.
    #[must_use]
    pub fn meeting(&self) -> u32 {
        let fetchers = if self.relaxed { 0 } else { self.fetchers };
        self.scanners.max(1).saturating_add(self.aggregators.max(1)).saturating_add(fetchers)
    }

    /// How many threads there are in all.
    #[must_use]
    pub fn threads(&self) -> u64 {
        let of_a_group =
            [self.scanners.max(1), self.fetchers, self.aggregators.max(1)].map(u64::from).iter().sum::<u64>();
        // Three numbers of 32 bits, times another: less than 2^66.
        of_a_group.saturating_mul(self.groups.max(1).into())
    }

    /// The threads of all groups, those that fetch first: what they do is over soonest.
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

    /// Chunks of a group; as many of each, some with fewer rows.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.rows.div_ceil(self.groups.max(1).into()).div_ceil(self.chunk.max(1))
    }

    /// A group's chunk.
    #[must_use]
    pub fn chunk(&self, group: u32, number: u64) -> Chunk {
        let groups = u64::from(self.groups.max(1));
        let part = share(0..self.rows, group.into(), groups);
        // Cannot overflow where it counts: a chunk beyond the part is empty.
        let start = part.start.saturating_add(number.saturating_mul(self.chunk.max(1))).min(part.end);
        Chunk { group, number, rows: start..start.saturating_add(self.chunk.max(1)).min(part.end) }
    }
}

/// The `number`th of `of` shares, as equal as whole rows allow.
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
    /// What it is there for.
    pub role: Role,
    /// Its group.
    pub group: u32,
    /// Which of the group's threads with that role.
    pub thread: u32,
    of: u32,
}

impl Worker {
    /// All it has to do.
    pub async fn run(self, ground: &impl Ground) {
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
                    // In turns, so that each chunk is asked for once, and early ones first.
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

    /// Writes down what is done, and lets those who meet wait for each other.
    #[derive(Default)]
    struct Diary {
        meeting: u32,
        done: RefCell<Vec<(Role, Chunk, Range<u64>)>>,
        /// By group: how many have come, ever.
        came: RefCell<HashMap<u32, u32>>,
    }

    /// Ready when so many have come.
    struct Until<'a>(&'a Diary, u32, u32);
    impl Future for Until<'_> {
        type Output = ();
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            if self.0.came.borrow()[&self.1] >= self.2 { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    impl Ground for Diary {
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
        fn every_row_is_scanned_then_summed_and_asked_for_once(
            rows in 0_u64..500, groups in 0_u32..4, chunk in 0_u64..70, scanners in 0_u32..4, fetchers in 0_u32..4, aggregators in 0_u32..4,
            relaxed in any::<bool>(), overlapping in any::<bool>(), order in any::<u64>(),
        ) {
            let shape = Shape { rows, groups, chunk, scanners, fetchers, aggregators, relaxed, overlapping };
            let diary = Diary { meeting: shape.meeting(), ..Diary::default() };
            prop_assert_eq!(shape.workers().count() as u64, shape.threads());
            let mut tasks: Vec<_> = shape.workers().map(|worker| Some(Box::pin(worker.run(&diary)))).collect();
            let mut context = Context::from_waker(Waker::noop());
            let mut state = order | 1;
            while tasks.iter().any(Option::is_some) {
                let before = (diary.done.borrow().len(), diary.came.borrow().values().sum::<u32>(), tasks.iter().flatten().count());
                for _ in 0..tasks.len() {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let at = usize::try_from(state >> 33).unwrap() % tasks.len();
                    if let Some(task) = &mut tasks[at] && pin!(task).poll(&mut context).is_ready() {
                        tasks[at] = None;
                    }
                }
                // Each that is left has had a chance.
                for task in &mut tasks {
                    if task.as_mut().is_some_and(|task| pin!(task).poll(&mut context).is_ready()) {
                        *task = None;
                    }
                }
                let after = (diary.done.borrow().len(), diary.came.borrow().values().sum::<u32>(), tasks.iter().flatten().count());
                prop_assert_ne!(before, after, "nobody can go on");
            }
            let done = diary.done.borrow();
            for role in [Role::Scan, Role::Fetch, Role::Aggregate] {
                let mut seen: Vec<u64> = done.iter().filter(|(what, ..)| *what == role).flat_map(|(.., rows)| rows.clone()).collect();
                seen.sort_unstable();
                let expected: Vec<u64> = if role == Role::Fetch && fetchers == 0 { Vec::new() } else { (0..rows).collect() };
                prop_assert_eq!(seen, expected, "{:?}", role);
            }
            // Nothing is summed over before all of its chunk was scanned.
            for (at, (role, chunk, _)) in done.iter().enumerate() {
                if *role == Role::Aggregate {
                    let scanned = done[..at].iter().filter(|(what, other, _)| *what == Role::Scan && other == chunk).count();
                    prop_assert_eq!(scanned, scanners.max(1) as usize);
                }
            }
        }
    }
}
