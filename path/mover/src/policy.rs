//! Policies are values: how to retry, what to do on a fault, where results go, and the rest in one [`Policy`].

use crate::learn::Learning;
use crate::route::Route;
use crate::split::Split;
use crate::threshold::Threshold;
use crate::vigil::Bounds;
use crate::wait::Wait;
use std::time::Duration;
pub use telpher_ops::Hint;

/// What to do while a queue has no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retry {
    /// Offers to one queue after the first, before the next queue is tried.
    pub attempts: u32,
    /// Time between two offers; zero means at every look.
    pub pause: Duration,
}

impl Default for Retry {
    /// Source: assumed. 64 looks at once: a queue that is still full then is not short of a moment but of capacity.
    fn default() -> Self {
        Retry { attempts: 64, pause: Duration::ZERO }
    }
}

/// What to do when a device reports a page fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnFault {
    /// The CPU does what is left.
    FinishOnCpu,
    /// The CPU touches the page, and the rest goes to the device again. If a page faults more than `limit` times, the CPU,
    /// which could touch it, does what is left.
    TouchAndResubmit {
        /// Touches of one page.
        limit: u32,
    },
    /// The device waits for the page (Block On Fault), if the queue allows it. What the system refuses ends the job with
    /// [`JobError::Fault`](crate::JobError::Fault); a queue that does not allow it is treated as by `FinishOnCpu`.
    Block,
}

impl Default for OnFault {
    /// Source: LightDSA (EuroSys 2026), raw results of the paper: 4.1 µs a page for a fault that is reported, touched and sent again,
    /// 13.8 µs for one that the device has served; and that holds up the tasks behind it (*Data movement with DSA*, §4.1.4). The limit
    /// is assumed: four touches tell an unlucky page from a bad one.
    fn default() -> Self {
        OnFault::TouchAndResubmit { limit: 4 }
    }
}

/// Time a record may be out before its queue is asked how it does.
/// Source: assumed. A hundred times what 2 MiB take at 30 GB/s, so that queues which work are rarely asked; and asking, some
/// microseconds of system calls, costs a thousandth of it.
pub const DEFAULT_PATIENCE: Duration = Duration::from_millis(10);

/// Time after which a queue that says it works and does not answer is given up.
/// Source: assumed. The longest honest wait is for a device whose 128 entries (Sapphire Rapids) all have 2 GiB before them, nine seconds
/// at 30 GB/s; thrice that.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(30);

/// Everything a [`Mover`](crate::Mover) decides by.
///
/// ```
/// use telpher_mover::{OnFault, Policy, Threshold};
/// let policy = Policy { threshold: Threshold::all(64 << 10), on_fault: OnFault::FinishOnCpu, ..Policy::default() };
/// assert_eq!(policy.capacity, 1024);
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Policy {
    /// Whether an operation goes to a device.
    pub threshold: Threshold,
    /// Whether what operations cost is learned meanwhile and decides instead.
    pub learning: Learning,
    /// Which queue is asked first.
    pub route: Route,
    /// Copies of a [`Batch`](crate::Batch) that go on where the one before ends become one descriptor.
    /// Source: guideline G1 (Kuper et al., ASPLOS 2024, §6.1): "if the desired data for offloading is contiguous, coalescing into
    /// a larger single descriptor of the equivalent size may improve both throughput and latency".
    pub coalesce: bool,
    /// How a long operation is shared out over queues.
    pub split: Split,
    /// How long a full queue is asked again.
    pub retry: Retry,
    /// What happens on a page fault.
    pub on_fault: OnFault,
    /// How threads wait.
    pub wait: Wait,
    /// Where results land: [`Hint::Cache`] sets Cache Control 1 where the device has it.
    ///
    /// This is the program's word and not guessed from sizes. Source: guideline G3 (Kuper et al., ASPLOS 2024, §6.2): what matters
    /// is whether a core will soon read the result, "the programmer should wisely choose the data destination based on the
    /// application behavior". Cache is the default because most results are read by who asked for them. A size alone would
    /// not tell when to stop: a device fills only the ways of the cache that I/O may use (§4.5), so a long result ends in memory
    /// anyway, and it is the sum of what all devices write that overfills them (§4.3). Bulk that nobody reads soon wants
    /// [`Hint::Memory`].
    pub hint: Hint,
    /// Descriptors in flight at most over all queues; one more counts as a full queue. 128 bytes each.
    pub capacity: u32,
    /// How long a completion record may be out before its queue is asked whether it still works, and then again each time. What a
    /// queue has that stopped is done by the CPU; see [`Job`](crate::Job), *When the device does not answer*.
    pub patience: Duration,
    /// How long a queue that says it works may leave a descriptor unanswered before it is given up for good, so that no wait is
    /// without an end, nor memory of a job that was dropped kept for ever: a real queue's file is closed, for which the driver waits
    /// until nothing is in progress, and what has no record then is done by the CPU. A modelled queue cannot be closed under its
    /// other users, and answers by construction.
    pub limit: Duration,
    /// How long the last handle's drop waits for jobs nobody waits for, before their memory is given up for good.
    pub linger: Duration,
}

impl Policy {
    /// How long it waits for one record.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds { patience: self.patience, limit: self.limit }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            threshold: Threshold::default(),
            learning: Learning::default(),
            route: Route::default(),
            coalesce: true,
            split: Split::default(),
            retry: Retry::default(),
            on_fault: OnFault::default(),
            wait: Wait::default(),
            hint: Hint::default(),
            capacity: 1024,
            patience: DEFAULT_PATIENCE,
            limit: DEFAULT_LIMIT,
            linger: Duration::from_secs(1),
        }
    }
}
