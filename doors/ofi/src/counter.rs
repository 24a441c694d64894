//! Counters of completed operations.

use crate::bound::BoundEndpoint;
use crate::domain::Domain;
use crate::failure::Errno;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use telpher_fabric::OperationCounter;

/// A counter of the operations of the endpoints that it is bound to.
#[derive(Debug)]
pub(crate) struct Counter {
    domain: Arc<Domain>,
    /// The endpoints add to both.
    counts: OperationCounter,
    endpoints: Mutex<Vec<Weak<dyn BoundEndpoint>>>,
    /// True if it counts changes of a region, which come through any endpoint of the domain.
    is_of_region: AtomicBool,
}

/// Which of a counter's two numbers a call is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counted {
    Successes,
    Failures,
}

impl Counter {
    pub(crate) fn new(domain: Arc<Domain>) -> Counter {
        Counter {
            domain,
            counts: OperationCounter::default(),
            endpoints: Mutex::default(),
            is_of_region: AtomicBool::new(false),
        }
    }

    /// Returns both numbers, for the endpoints that count their operations.
    pub(crate) fn counts(&self) -> OperationCounter {
        self.counts.clone()
    }

    /// Returns the number of successes, for what counts accesses of peers.
    pub(crate) fn successes(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.counts.successes)
    }

    /// Returns the same, for what counts changes of a region.
    pub(crate) fn changes_of_region(&self) -> Arc<AtomicU64> {
        self.is_of_region.store(true, Ordering::Relaxed);
        self.successes()
    }

    pub(crate) fn bind(&self, endpoint: &Arc<dyn BoundEndpoint>) {
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        endpoints.retain(|known| known.strong_count() > 0);
        endpoints.push(Arc::downgrade(endpoint));
    }

    fn word(&self, counted: Counted) -> &AtomicU64 {
        match counted {
            Counted::Successes => &self.counts.successes,
            Counted::Failures => &self.counts.failures,
        }
    }

    /// Moves messages, and returns the number.
    pub(crate) fn read(&self, counted: Counted) -> u64 {
        let endpoints: Vec<Arc<dyn BoundEndpoint>> = {
            let endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
            endpoints.iter().filter_map(Weak::upgrade).collect()
        };
        for endpoint in endpoints {
            endpoint.progress();
        }
        if self.is_of_region.load(Ordering::Relaxed) {
            self.domain.endpoints().iter().for_each(|endpoint| endpoint.progress());
        }
        // The bytes of a counted operation are there for this thread.
        self.word(counted).load(Ordering::Acquire)
    }

    pub(crate) fn add(&self, counted: Counted, value: u64) {
        self.word(counted).fetch_add(value, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, counted: Counted, value: u64) {
        self.word(counted).store(value, Ordering::Relaxed);
    }

    /// Waits until at least `threshold` operations have succeeded; for ever without a timeout.
    ///
    /// # Errors
    /// `EAVAIL` if an operation fails meanwhile, `ETIMEDOUT` after the timeout.
    pub(crate) fn wait(&self, threshold: u64, timeout: Option<Duration>) -> Result<(), Errno> {
        let failures = self.word(Counted::Failures).load(Ordering::Relaxed);
        let start = Instant::now();
        while self.read(Counted::Successes) < threshold {
            if self.word(Counted::Failures).load(Ordering::Relaxed) != failures {
                return Err(Errno(crate::abi::errors::EAVAIL));
            }
            if timeout.is_some_and(|timeout| start.elapsed() >= timeout) {
                return Err(Errno(libc::ETIMEDOUT));
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}
