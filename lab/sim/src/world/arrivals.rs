//! Arrival times and sizes of a thread's operations.

use crate::picos::Picos;
use crate::rng::Rng;
use crate::workload::{Arrivals, Sizes, Stream};

/// The arrivals of one thread.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Pace {
    /// When the next operation arrives; `None` for closed arrivals, which need nothing else of it.
    next: Option<Picos>,
    arrivals: Arrivals,
    sizes: Sizes,
    size: u32,
    rng: Rng,
}

impl Pace {
    pub(super) fn new(stream: &Stream, thread: usize) -> Self {
        let mut pace = Pace {
            arrivals: stream.arrivals,
            next: None,
            sizes: stream.sizes,
            size: stream.size,
            rng: Rng::new(stream.seed, thread as u64),
        };
        if stream.arrivals != Arrivals::Closed {
            pace.next = Some(Picos::ZERO);
            pace.advance();
        }
        pace
    }

    /// True if operations arrive independently of completions.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.next.is_some()
    }

    /// Returns the arrival of the next operation if it may begin now, otherwise when it will arrive.
    #[inline]
    pub(super) fn due(&self, now: Picos) -> Result<Picos, Picos> {
        match self.next {
            None => Ok(now),
            Some(at) if at <= now => Ok(at),
            Some(at) => Err(at),
        }
    }

    /// An operation has begun; determines the next arrival.
    #[inline]
    pub(super) fn advance(&mut self) {
        let Some(at) = self.next else { return };
        let mean = |per_second: u64| Picos(1_000_000_000_000 / per_second.max(1));
        self.next = Some(match self.arrivals {
            Arrivals::Closed => at,
            Arrivals::Even(per_second) => at + mean(per_second),
            Arrivals::Poisson(per_second) => at + self.rng.exponential(mean(per_second)),
        });
    }

    /// The size of the next operation.
    #[inline]
    pub(super) fn size(&mut self) -> u32 {
        self.sizes.one(&mut self.rng).unwrap_or(self.size)
    }
}
