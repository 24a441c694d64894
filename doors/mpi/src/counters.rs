//! How many calls were taken, for one line at the end of the program.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A collective operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
}

impl Operation {
    /// Returns the name of MPI's function.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Operation::AllReduce => "MPI_Allreduce",
            Operation::Reduce => "MPI_Reduce",
            Operation::Broadcast => "MPI_Bcast",
            Operation::AllGather => "MPI_Allgather",
        }
    }
}

const OPERATIONS: [Operation; 4] =
    [Operation::AllReduce, Operation::Reduce, Operation::Broadcast, Operation::AllGather];

/// The counts of this process.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    taken: [AtomicU64; OPERATIONS.len()],
    left: [AtomicU64; OPERATIONS.len()],
    copies_by_device: AtomicU64,
}

pub(crate) static COUNTERS: Counters = Counters {
    taken: [const { AtomicU64::new(0) }; OPERATIONS.len()],
    left: [const { AtomicU64::new(0) }; OPERATIONS.len()],
    copies_by_device: AtomicU64::new(0),
};

impl Counters {
    /// Counts a call.
    pub(crate) fn count(&self, operation: Operation, is_taken: bool) {
        let counts = if is_taken { &self.taken } else { &self.left };
        // Relaxed: nothing is ordered by the counts.
        counts[operation as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts copies that a device has made.
    pub(crate) fn copied(&self, by_device: u64) {
        // Relaxed: as above.
        self.copies_by_device.fetch_add(by_device, Ordering::Relaxed);
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("calls taken/left to the MPI:")?;
        for operation in OPERATIONS {
            let value = |counts: &[AtomicU64; OPERATIONS.len()]| counts[operation as usize].load(Ordering::Relaxed);
            write!(f, " {} {}/{}", operation.name(), value(&self.taken), value(&self.left))?;
        }
        match self.copies_by_device.load(Ordering::Relaxed) {
            0 => Ok(()),
            copies => write!(f, "; copies by a device: {copies}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_all_operations() {
        let counters = Counters::default();
        counters.count(Operation::AllReduce, true);
        counters.count(Operation::AllGather, false);
        let line = "calls taken/left to the MPI: MPI_Allreduce 1/0 MPI_Reduce 0/0 MPI_Bcast 0/0 MPI_Allgather 0/1";
        assert_eq!(counters.to_string(), line);
        counters.copied(7);
        assert_eq!(counters.to_string(), format!("{line}; copies by a device: 7"));
    }
}
