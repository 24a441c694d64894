//! Counters of the operations of the callers.

use crate::access_counters::count;
use crate::completion::Operation;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Counts operations when they end, also those without a completion. A thread that sees a number sees the bytes of the
/// operations.
#[derive(Clone, Debug, Default)]
pub struct OperationCounter {
    /// Counts those that succeed.
    pub successes: Arc<AtomicU64>,
    /// Counts those that fail.
    pub failures: Arc<AtomicU64>,
}

/// What counts the operations of an endpoint's callers. Operations without a counter are not counted.
#[derive(Clone, Debug, Default)]
pub struct OperationCounters {
    /// Counts sends.
    pub sends: Option<OperationCounter>,
    /// Counts receives. In a buffer for many messages each message counts, and so does a failure of the buffer.
    pub receives: Option<OperationCounter>,
    /// Counts reads, and atomic operations that return elements.
    pub reads: Option<OperationCounter>,
    /// Counts writes and the other atomic operations.
    pub writes: Option<OperationCounter>,
}

impl OperationCounters {
    /// Counts an operation that has ended.
    #[inline]
    pub(crate) fn ended(&self, operation: Operation, is_success: bool) {
        let counter = match operation {
            Operation::Send => &self.sends,
            Operation::Receive => &self.receives,
            Operation::Read | Operation::FetchAtomic => &self.reads,
            Operation::Write | Operation::Atomic => &self.writes,
            // A probe receives nothing.
            Operation::Probe | Operation::WrittenByPeer => return,
        };
        if let Some(counter) = counter {
            count(if is_success { &counter.successes } else { &counter.failures });
        }
    }
}
