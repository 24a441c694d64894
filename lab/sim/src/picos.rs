//! Simulated time: integer picoseconds.

use std::fmt;
use std::ops::{Add, AddAssign, Mul, Sub};

/// A point or a span of simulated time, in picoseconds. 2^64 picoseconds are 213 days.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Picos(pub u64);

impl Picos {
    /// Zero: the beginning of a simulation, or an empty span.
    pub const ZERO: Picos = Picos(0);
    /// Later than every event.
    pub const NEVER: Picos = Picos(u64::MAX);

    /// A whole number of nanoseconds.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Picos(nanos.saturating_mul(1000))
    }

    /// The nearest picosecond to `nanos`; zero for negative numbers and NaN.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float's cast saturates, NaN to 0")]
    pub fn from_nanos_f64(nanos: f64) -> Self {
        Picos((nanos * 1e3).round() as u64)
    }

    /// The time in nanoseconds, for display.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "for display")]
    pub fn as_nanos_f64(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// The time in seconds, for rates.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "for rates")]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e12
    }

    /// The span from `earlier` to this point; zero if `earlier` is not before it.
    #[must_use]
    pub const fn since(self, earlier: Picos) -> Picos {
        Picos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Picos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} ns", self.0 / 1000, self.0 % 1000)
    }
}

impl Add for Picos {
    type Output = Picos;
    fn add(self, other: Picos) -> Picos {
        Picos(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Picos {
    fn add_assign(&mut self, other: Picos) {
        *self = *self + other;
    }
}

impl Sub for Picos {
    type Output = Picos;
    fn sub(self, other: Picos) -> Picos {
        self.since(other)
    }
}

impl Mul<u64> for Picos {
    type Output = Picos;
    fn mul(self, times: u64) -> Picos {
        Picos(self.0.saturating_mul(times))
    }
}
