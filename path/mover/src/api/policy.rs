//! Policies are values: how to retry, what to do on a fault, where results are written, and the rest in one [`Policy`].

use crate::learn::Learning;
use crate::plan::route::Route;
use crate::plan::split::Split;
use crate::plan::threshold::Threshold;
use crate::wait::Wait;
use crate::wait::stall_timer::Bounds;
use std::time::Duration;
pub use telpher_ops::Hint;

/// What to do while a queue has no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retry {
    /// Offers to one queue after the first, before the next queue is tried.
    pub attempts: u32,
    /// Time between two offers; zero means at every step.
    pub pause: Duration,
}

impl Default for Retry {
    /// Source: assumed. After 64 immediate tries, a queue that is still full lacks capacity, not a moment.
    fn default() -> Self {
        Retry { attempts: 64, pause: Duration::ZERO }
    }
}

/// What to do when a device reports a page fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnFault {
    /// The CPU does the rest.
    FinishOnCpu,
    /// The CPU touches the page, and the rest goes to the device again. If a page faults more than `limit` times, the
    /// CPU does the rest, since it could touch the page.
    TouchAndResubmit {
        /// Touches of one page.
        limit: u32,
    },
    /// The device waits for the page (Block On Fault), if the queue allows it. If the system refuses the page, the job
    /// ends with [`JobError::Fault`](crate::JobError::Fault). A queue that does not allow it is treated as with
    /// `FinishOnCpu`.
    Block,
}

impl Default for OnFault {
    /// Source: LightDSA (EuroSys 2026), raw results of the paper: 4.1 µs a page for a fault that is reported, touched
    /// and sent again, 13.8 µs for a fault that the device waits for. The latter also holds up the tasks behind it
    /// (*Data movement with DSA*, §4.1.4). The limit is assumed: four touches tell an unlucky page from a bad one.
    fn default() -> Self {
        OnFault::TouchAndResubmit { limit: 4 }
    }
}

/// What copies into and out of the windows of other processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WindowPath {
    /// A device that has inter-domain operations; without one, or below the threshold, the CPU, by the system's file of
    /// the other process' memory. The CPU needs the right to trace that process.
    #[default]
    DeviceOrCpu,
    /// A device only; without one, opening a window is an error.
    Device,
}

/// How long a record may be missing before the mover asks its queue whether it still works.
/// Source: assumed. A hundred times what 2 MiB take at 30 GB/s, so that working queues are rarely asked. Asking costs
/// some microseconds of system calls, a thousandth of this time.
pub const DEFAULT_PATIENCE: Duration = Duration::from_millis(10);

/// Time after which a queue that reports that it works and does not answer is given up.
/// Source: assumed. The longest legitimate wait is for a device whose 128 entries (Sapphire Rapids) all have 2 GiB
/// before them, nine seconds at 30 GB/s; this is about three times that.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(30);

/// All settings of a [`Mover`](crate::Mover).
///
/// ```
/// use telpher_mover::{OnFault, Policy, Threshold};
/// let policy = Policy { threshold: Threshold::all(64 << 10), on_fault: OnFault::FinishOnCpu, ..Policy::default() };
/// assert_eq!(policy.capacity, 1024);
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Policy {
    /// The sizes from which operations go to a device.
    pub threshold: Threshold,
    /// Whether the mover learns the costs of operations and decides by them instead of the threshold.
    pub learning: Learning,
    /// Which queue is asked first.
    pub route: Route,
    /// Whether copies of a [`Batch`](crate::Batch) that begin where the one before ends become one descriptor.
    /// Source: guideline G1 (Kuper et al., ASPLOS 2024, §6.1): "if the desired data for offloading is contiguous,
    /// coalescing into a larger single descriptor of the equivalent size may improve both throughput and latency".
    pub coalesce: bool,
    /// How a long operation is split over queues.
    pub split: Split,
    /// How often, and with which pause, a full queue is asked again.
    pub retry: Retry,
    /// What happens on a page fault.
    pub on_fault: OnFault,
    /// How threads wait.
    pub wait: Wait,
    /// Where results are written: [`Hint::Cache`] sets Cache Control 1 where the device supports it.
    ///
    /// The program sets this; it is not guessed from sizes. Source: guideline G3 (Kuper et al., ASPLOS 2024, §6.2):
    /// what matters is whether a core will soon read the result, "the programmer should wisely choose the data
    /// destination based on the application behavior". Cache is the default because the thread that requested a result
    /// usually reads it. The size alone does not say when the cache is harmful: a device fills only the ways of the
    /// cache that I/O may use (§4.5), so a long result ends in memory anyway. The ways overflow through the sum of what
    /// all devices write (§4.3). For bulk data that is not read soon, use [`Hint::Memory`].
    pub hint: Hint,
    /// What copies into and out of the windows of other processes.
    pub windows: WindowPath,
    /// Limit on descriptors in flight over all queues; at the limit, a queue counts as full. 128 bytes each.
    pub capacity: u32,
    /// How long a completion record may be missing before the mover asks its queue whether it still works, and then
    /// again each time. If the queue has stopped, the CPU does its operations; see [`Job`](crate::Job), *When the
    /// device does not answer*.
    pub patience: Duration,
    /// How long a queue that reports that it works may leave a descriptor unanswered before it is given up for good. So
    /// every wait ends, and no memory of a dropped job is kept for ever. A real queue's file is closed, for which the
    /// driver waits until nothing is in progress; then the CPU does the operations without a record. A modelled queue
    /// cannot be closed while it has other users; it answers by construction.
    pub limit: Duration,
    /// How long the drop of the last handle waits for dropped jobs, before their memory is leaked.
    pub linger: Duration,
}

impl Policy {
    /// Returns how long it waits for one record.
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
            windows: WindowPath::default(),
            capacity: 1024,
            patience: DEFAULT_PATIENCE,
            limit: DEFAULT_LIMIT,
            linger: Duration::from_secs(1),
        }
    }
}
