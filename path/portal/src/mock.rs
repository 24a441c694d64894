//! A mock device: a queue that behaves as a test tells it.

use crate::{Offer, Portal, QueueInfo, QueueMode, Submission};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use telpher_abi::Descriptor;
use telpher_abi::registers::{DsaCap0, GenCap, OpCap};

/// A queue that keeps the descriptors it is offered, and returns `Retry` as often as a test asks for it.
#[derive(Debug)]
pub struct MockPortal {
    info: QueueInfo,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    retries: u64,
    taken: VecDeque<Descriptor>,
}

impl MockPortal {
    /// Creates a queue of `size` entries that accepts every operation.
    #[must_use]
    pub fn new(mode: QueueMode, size: u32) -> Self {
        let info = QueueInfo {
            name: "mock0.0".into(),
            mode,
            size,
            max_transfer: 1 << 31,
            max_batch: 1024,
            block_on_fault: true,
            gen_cap: GenCap([0x0040_915f_0107]),
            dsa_cap_0: DsaCap0([0]),
            operations: OpCap([u64::MAX; 4]),
            numa_node: None,
        };
        Self::with_info(info)
    }

    /// Creates a queue with the caller's properties.
    #[must_use]
    pub fn with_info(info: QueueInfo) -> Self {
        MockPortal { info, state: Mutex::default() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next `times` offers return `Retry`.
    pub fn retry_next(&self, times: u64) {
        self.state().retries = times;
    }

    /// Removes and returns the oldest descriptor.
    pub fn take(&self) -> Option<Descriptor> {
        self.state().taken.pop_front()
    }

    /// Returns the number of descriptors not yet removed.
    pub fn waiting(&self) -> usize {
        self.state().taken.len()
    }
}

// SAFETY: it executes nothing. A test that removes a descriptor executes it and is responsible for that.
#[allow(unsafe_code, reason = "executes nothing")]
unsafe impl Portal for MockPortal {
    fn info(&self) -> &QueueInfo {
        &self.info
    }

    fn offer(&self, submission: &Submission) -> Offer {
        let mut state = self.state();
        if state.retries > 0 {
            state.retries -= 1;
            return Offer::Retry;
        }
        if state.taken.len() >= self.info.size as usize {
            return match self.info.mode {
                QueueMode::Shared => Offer::Retry,
                // Lost, as on a real device.
                QueueMode::Dedicated => Offer::Taken,
            };
        }
        state.taken.push_back(*submission.descriptor());
        Offer::Taken
    }
}
