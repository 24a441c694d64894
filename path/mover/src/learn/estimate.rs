//! An estimate of a time, which many threads correct and read without a lock, and a row of estimates over sizes.
//!
//! An estimate is kept as a *correction*: the factor between the true time and the time assumed before anything was
//! measured. In logarithms a factor is a sum. So a device that is thirty times slower than the published one is no
//! further away than one that is thirty times faster, and a size within a row's step needs no estimate of its own.
//!
//! **Robust by construction.** A sample moves an estimate by a limited amount, however far away it lies. A sample that
//! includes a page fault, an interrupt or a sleeping core counts like one that was a little late (Huber's bounded
//! influence: P. J. Huber, *Robust Estimation of a Location Parameter*, Annals of Mathematical Statistics 35, 1964).
//! Only when several samples in a row lie far off on the same side has the machine changed, and then the estimate
//! follows at once.

use crate::sync::{AtomicU64, Ordering};

/// One in the logarithms used here: 2^16 is a factor of two.
pub(crate) const ONE: i32 = 1 << 16;

/// Samples until an estimate counts as settled. Source: assumed; seven halvings leave 1 % of an error of a factor of
/// two.
pub(crate) const SETTLED: u16 = 8;

/// Limit on one sample's error while the estimate is young or the machine has changed: a factor of 16. Half of the
/// error is applied, and all of it for the very first sample.
const FAR: i32 = 4 * ONE;

/// Limit on one sample's error for a settled estimate: a factor of 1.4. A sixteenth of the error is applied, so a
/// single outlier moves the estimate by 2 %.
const NEAR: i32 = ONE / 2;

/// This many samples in a row beyond [`NEAR`] on one side are a change, not outliers. Source: assumed; page faults and
/// interrupts seldom meet four operations of one size in a row, and when they do, the cost is real.
const CHANGE: u8 = 4;

/// The estimate of one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Estimate {
    /// Logarithm of the factor by which the truth exceeds the assumed time, in [`ONE`]s.
    pub(crate) correction: i32,
    /// Number of samples; stays at the largest number.
    pub(crate) samples: u16,
    /// Samples in a row that lay far above (positive) or below (negative).
    streak: i8,
}

impl Estimate {
    /// Returns true if it rests on enough samples.
    #[cfg(test)]
    pub(crate) fn is_settled(self) -> bool {
        self.samples >= SETTLED
    }

    /// Returns true if the last samples lay far off on the same side: chance, or the beginning of a change.
    pub(crate) fn is_surprised(self) -> bool {
        self.streak.unsigned_abs() >= 2
    }

    /// Returns the estimate after one more sample, given as the logarithm of measured over assumed.
    pub(crate) fn after(self, sample: i32) -> Estimate {
        let error = sample.saturating_sub(self.correction);
        // A change is followed until little of it is left, not only until the rest could be chance.
        let noise = if self.streak.unsigned_abs() >= CHANGE { NEAR / 8 } else { NEAR };
        let side = i8::from(error > noise) - i8::from(error < -noise);
        let streak = if side != 0 && self.streak.signum() == side { self.streak.saturating_add(side) } else { side };
        let step = match self.samples {
            0 => error.clamp(-FAR, FAR),
            SETTLED.. if streak.unsigned_abs() < CHANGE => error.clamp(-NEAR, NEAR) / 16,
            _ => error.clamp(-FAR, FAR) / 2,
        };
        let correction = self.correction.saturating_add(step);
        Estimate { correction, samples: self.samples.saturating_add(1), streak }
    }

    fn from_bits(bits: u64) -> Self {
        let [a, b, c, d, e, f, g, _] = bits.to_le_bytes();
        Estimate {
            correction: i32::from_le_bytes([a, b, c, d]),
            samples: u16::from_le_bytes([e, f]),
            streak: i8::from_le_bytes([g]),
        }
    }

    fn bits(self) -> u64 {
        let [a, b, c, d] = self.correction.to_le_bytes();
        let [e, f] = self.samples.to_le_bytes();
        let [g] = self.streak.to_le_bytes();
        u64::from_le_bytes([a, b, c, d, e, f, g, 0])
    }
}

/// An estimate that threads share: one word, so that a reader never sees half of an update.
#[derive(Debug)]
pub(crate) struct SharedEstimate(AtomicU64);

impl SharedEstimate {
    pub(crate) fn new() -> Self {
        SharedEstimate(AtomicU64::new(Estimate::default().bits()))
    }

    /// Returns the present estimate.
    ///
    /// **Staleness**: other threads learn meanwhile; any of their estimates is a good one.
    pub(crate) fn read(&self) -> Estimate {
        // Relaxed: no other memory depends on the word.
        Estimate::from_bits(self.0.load(Ordering::Relaxed))
    }

    /// Adds one sample; if it is the first, the estimate starts from the correction `from`. If another thread's sample
    /// comes in between, this one is dropped. Among many samples that is no loss, and no thread ever loops here.
    fn learn(&self, sample: i32, from: impl FnOnce() -> i32) {
        // Relaxed (all): as in `read`.
        let bits = self.0.load(Ordering::Relaxed);
        let mut before = Estimate::from_bits(bits);
        if before.samples == 0 {
            before.correction = from();
        }
        let _ = self.0.compare_exchange(bits, before.after(sample).bits(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Replaces the estimate by a carefully measured result: settled, but still open to change.
    pub(crate) fn set(&self, correction: i32) {
        let estimate = Estimate { correction, samples: SETTLED, streak: 0 };
        // Relaxed: as in `read`.
        self.0.store(estimate.bits(), Ordering::Relaxed);
    }
}

/// Steps of a row: two for each doubling from 64 bytes to 1 GiB. The first step takes all smaller sizes, the last all
/// larger ones.
pub(crate) const STEPS: usize = 48;

/// Returns the step that a size belongs to.
#[inline]
pub(crate) fn step(bytes: u64) -> usize {
    let bytes = bytes.max(64);
    let doublings = bytes.ilog2();
    // The bit below the highest tells the halves apart. The numbers are below 128.
    let half = (bytes >> (doublings - 1)) & 1;
    (2 * (doublings as usize - 6) + usize::from(half == 1)).min(STEPS - 1)
}

/// Returns the smallest size of a step, in bytes; 0 for the first step.
pub(crate) fn smallest(step: usize) -> u64 {
    match step {
        0 => 0,
        _ => (2 + step as u64 % 2) << (5 + step.min(STEPS - 1) / 2),
    }
}

/// Estimates over sizes.
#[derive(Debug)]
pub(crate) struct Row([SharedEstimate; STEPS]);

impl Row {
    pub(crate) fn new() -> Self {
        Row(std::array::from_fn(|_| SharedEstimate::new()))
    }

    /// Adds one sample to a step. The first sample starts from the estimate of the nearest step: a machine that is a
    /// thousand times slower than assumed is found out once, not at every size again.
    pub(crate) fn learn(&self, step: usize, sample: i32) {
        self.0[step].learn(sample, || self.correction(step));
    }

    /// Returns the estimate of one step alone.
    #[inline]
    pub(crate) fn at(&self, step: usize) -> &SharedEstimate {
        &self.0[step]
    }

    /// Returns the correction for a step: its own if the step was ever measured, otherwise that of the nearest measured
    /// step, otherwise 0. A machine that is slower than assumed at one size is expected to be so at the sizes around
    /// it.
    pub(crate) fn correction(&self, step: usize) -> i32 {
        (0..STEPS)
            .flat_map(|away| [step.checked_sub(away), step.checked_add(away).filter(|&at| at < STEPS)])
            .flatten()
            .map(|at| self.0[at].read())
            .find(|estimate| estimate.samples > 0)
            .map_or(0, |estimate| estimate.correction)
    }
}

impl Row {
    /// Returns the correction of the first measured step at or above `step`, otherwise of the last one before it; 0 if
    /// none was measured.
    pub(crate) fn correction_from(&self, step: usize) -> i32 {
        let (before, from) = self.0.split_at(step.min(STEPS));
        let mut nearest = from.iter().chain(before.iter().rev()).map(SharedEstimate::read);
        nearest.find(|estimate| estimate.samples > 0).map_or(0, |estimate| estimate.correction)
    }
}

/// Returns the logarithm of a time in nanoseconds, in [`ONE`]s; zero counts as one.
#[allow(clippy::cast_possible_truncation, reason = "at most 64 times 2^16")]
pub(crate) fn log(nanos: u64) -> i32 {
    // Exactness beyond 53 bits (104 days) does not matter to a logarithm.
    #[allow(clippy::cast_precision_loss, reason = "see above")]
    let nanos = nanos.max(1) as f64;
    (nanos.log2() * f64::from(ONE)) as i32
}

/// Returns `nanos` times the factor whose logarithm is `correction`; saturates at the largest number.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a float that is positive or zero saturates at the largest number; an estimate needs no 64 bits"
)]
pub(crate) fn scaled(nanos: u64, correction: i32) -> u64 {
    (nanos as f64 * (f64::from(correction) / f64::from(ONE)).exp2()) as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn learned(estimate: Estimate, samples: impl IntoIterator<Item = i32>) -> Estimate {
        samples.into_iter().fold(estimate, Estimate::after)
    }

    /// True if the estimate is within `percent` of a factor whose logarithm is `truth`.
    fn close(estimate: Estimate, truth: i32, percent: i32) -> bool {
        (estimate.correction - truth).abs() <= ONE * percent / 69
    }

    #[test]
    fn eight_samples_find_a_value_far_from_the_assumed_one() {
        for truth in [-6 * ONE, -ONE, 0, ONE / 3, 6 * ONE] {
            let estimate = learned(Estimate::default(), [truth; 8]);
            assert!(estimate.is_settled() && close(estimate, truth, 10), "{truth}: {estimate:?}");
        }
    }

    #[test]
    fn a_lone_outlier_moves_a_settled_estimate_by_two_per_cent_at_most() {
        let settled = learned(Estimate::default(), [ONE; 50]);
        for outlier in [-20 * ONE, 20 * ONE, i32::MAX, i32::MIN] {
            let after = settled.after(outlier);
            assert!(close(after, settled.correction, 3), "{outlier}: {after:?}");
        }
    }

    #[test]
    fn outliers_in_a_tenth_of_the_samples_do_not_mislead() {
        let samples = (0..500).map(|i| if i % 10 == 3 { 11 * ONE } else { ONE });
        let estimate = learned(Estimate::default(), samples);
        assert!(close(estimate, ONE, 8), "{estimate:?}");
    }

    #[test]
    fn the_first_sample_may_be_an_outlier() {
        let estimate = learned(Estimate::default(), std::iter::once(12 * ONE).chain([0; 10]));
        assert!(close(estimate, 0, 8), "{estimate:?}");
    }

    #[test]
    fn a_change_is_followed_within_twelve_samples() {
        let settled = learned(Estimate::default(), [0; 1000]);
        let changed = learned(settled, [3 * ONE; 12]);
        assert!(close(changed, 3 * ONE, 10), "{changed:?}");
    }

    #[test]
    fn an_endless_drift_is_followed() {
        let drift = (1..2000).map(|i| -i * ONE / 4);
        let estimate = learned(learned(Estimate::default(), [0; 20]), drift);
        assert!(estimate.streak < 0 && (estimate.correction + 2000 * ONE / 4).abs() < ONE, "{estimate:?}");
    }

    #[test]
    fn an_estimate_survives_its_encoding() {
        for estimate in [
            Estimate::default(),
            Estimate { correction: -1, samples: u16::MAX, streak: -128 },
            Estimate { correction: i32::MIN, samples: 1, streak: 127 },
        ] {
            assert_eq!(Estimate::from_bits(estimate.bits()), estimate);
        }
    }

    #[test]
    fn every_size_belongs_to_the_last_step_that_starts_at_or_below_it() {
        for at in 0..STEPS {
            assert_eq!(step(smallest(at)), at);
            assert_eq!(step(smallest(at).saturating_sub(1)), at.saturating_sub(1));
        }
        assert_eq!((step(0), step(u64::MAX)), (0, STEPS - 1));
    }

    #[test]
    fn a_step_never_measured_borrows_from_its_nearest_neighbour() {
        let row = Row::new();
        assert_eq!(row.correction(5), 0);
        row.at(3).set(ONE);
        row.at(10).set(-ONE);
        assert_eq!([0, 3, 5, 8, 23].map(|at| row.correction(at)), [ONE, ONE, ONE, -ONE, -ONE]);
    }

    #[test]
    fn the_first_sample_of_a_step_starts_from_the_nearest_estimate() {
        let row = Row::new();
        row.at(3).set(9 * ONE);
        row.learn(4, 10 * ONE);
        assert_eq!(row.at(4).read().correction, 10 * ONE, "one sample moves it in full");
        row.learn(20, 30 * ONE);
        assert_eq!(row.at(20).read().correction, 14 * ONE, "from the nearest, four doublings at most");
    }

    #[test]
    fn logarithms_and_factors_are_inverse() {
        for nanos in [1, 7, 1000, 123_456_789] {
            let back = scaled(1000, log(nanos) - log(1000));
            assert!(back.abs_diff(nanos) <= nanos / 1000 + 1, "{nanos} {back}");
        }
        assert_eq!((log(0), scaled(u64::MAX, 60 * ONE)), (0, u64::MAX));
    }
}
