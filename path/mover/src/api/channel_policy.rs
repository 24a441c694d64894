//! The settings of a channel.

use crate::api::policy::{DEFAULT_LIMIT, DEFAULT_PATIENCE, Hint, OnFault};
use crate::wait::stall_timer::Bounds;
use std::time::Duration;

/// The order in which [`Channel::completed`](crate::Channel::completed) gives results.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// In the order of preparation; a late operation holds up those behind it.
    #[default]
    Submitted,
    /// In the order of completion.
    Arrival,
}

/// The settings of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelPolicy {
    /// Where results are written: cache or memory.
    pub hint: Hint,
    /// What happens on a page fault. The CPU's part is done within [`Channel::completed`](crate::Channel::completed).
    pub on_fault: OnFault,
    /// The order of the results.
    pub order: Order,
    /// Two or more waiting operations go as one Batch descriptor, if the queue takes batches.
    pub bursts: bool,
    /// How long after [`Channel::submit`](crate::Channel::submit) an operation is given up.
    pub deadline: Option<Duration>,
    /// How long no record may come before the queue is asked whether it still works, and then again each time. If it
    /// has stopped, the CPU does its operations within [`Channel::completed`](crate::Channel::completed), except for
    /// raw descriptors, which end with [`JobError::Stopped`](crate::JobError::Stopped).
    pub patience: Duration,
    /// How long no record may come from a queue that reports that it works, before the queue is given up for good; see
    /// [`Policy::limit`](crate::Policy::limit).
    pub limit: Duration,
    /// How long the channel's drop waits for operations in flight, before their memory is leaked.
    pub linger: Duration,
}

impl ChannelPolicy {
    /// Returns how long it waits for one record.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds { patience: self.patience, limit: self.limit }
    }
}

impl Default for ChannelPolicy {
    fn default() -> Self {
        ChannelPolicy {
            hint: Hint::default(),
            on_fault: OnFault::default(),
            order: Order::default(),
            bursts: true,
            deadline: None,
            patience: DEFAULT_PATIENCE,
            limit: DEFAULT_LIMIT,
            linger: Duration::from_secs(1),
        }
    }
}
