//! Versions of DTO, the library that intercepts `memcpy`: what each does with a full queue, and how it tunes itself.

use crate::picos::Picos;
use crate::workload::NamedValue;

/// A version of DTO, by the year of its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DtoVersion {
    /// As KUPER used it: three retries of a full queue, and a fixed threshold of 8 KiB.
    #[default]
    V2023,
    /// Of August 2025: a full queue sends the copy to the core at once, and DTO tunes threshold and core's part.
    V2025,
}

impl NamedValue for DtoVersion {
    const NAMES: &'static [(&'static str, Self)] = &[("dto-2023", DtoVersion::V2023), ("dto-2025", DtoVersion::V2025)];
}

impl DtoVersion {
    /// Smallest size of a copy that goes to a device. Source: DTO, `DTO_DEFAULT_MIN_SIZE` of each version.
    #[must_use]
    pub const fn threshold(self) -> u64 {
        match self {
            DtoVersion::V2023 => 8192,
            DtoVersion::V2025 => 65536,
        }
    }

    /// Retries of a full queue before the core copies. Source: DTO; its commit e308775 (June 2024) removed them.
    #[must_use]
    pub const fn retries(self) -> u32 {
        match self {
            DtoVersion::V2023 => 3,
            DtoVersion::V2025 => 0,
        }
    }

    /// How the version tunes itself.
    #[must_use]
    pub const fn tuning(self) -> Option<DtoTuning> {
        match self {
            DtoVersion::V2023 => None,
            DtoVersion::V2025 => Some(DtoTuning { least_waits: 5, most_waits: 20, pause_ns: 50.0 }),
        }
    }
}

/// Parameters of DTO's own tuning (`DTO_AUTO_ADJUST_KNOBS`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DtoTuning {
    /// Below this mean number of waiting rounds, the device gets more work. Source: DTO with
    /// `DTO_WAIT_METHOD=busypoll`; it is 1 if the variable is unset.
    pub least_waits: u64,
    /// Above this mean number of waiting rounds, the device gets less work. Source: the same; 2 if the variable is
    /// unset.
    pub most_waits: u64,
    /// Nanoseconds of a waiting round, one PAUSE. Source: 140 cycles (Intel, Optimization Reference Manual); the clock
    /// of 2.8 GHz is assumed.
    pub pause_ns: f64,
}

/// Of this many descriptors, the last 16 count their waiting rounds. Source: DTO, `DESCS_PER_RUN`.
const RUN: u64 = 256;
/// Counted descriptors after which the knobs change. Source: DTO, `NUM_DESCS`.
const COUNTED: u64 = 16;
/// The largest part of the core, in percent. Source: DTO, `MAX_CPU_SIZE_FRACTION`.
const MOST_PERCENT: u64 = 90;
/// Bounds and step of the threshold. Source: DTO, `MIN_DSA_MIN_SIZE`, `MAX_DSA_MIN_SIZE`, `DMS_STEP_INCREMENT`.
const THRESHOLDS: [u64; 2] = [6144, 65536];
const STEP: u64 = 1024;

/// The values that DTO tunes, for all threads of a process.
#[derive(Debug)]
pub(super) struct Knobs {
    tuning: Option<DtoTuning>,
    threshold: u64,
    /// The core's part of a long copy.
    percent: u64,
    descriptors: u64,
    /// Descriptors that counted their waiting rounds since the last change, and the rounds.
    counted: u64,
    rounds: u64,
}

impl Knobs {
    pub(super) fn new(threshold: u64, tuning: Option<DtoTuning>) -> Self {
        Knobs { tuning, threshold, percent: 0, descriptors: 0, counted: 0, rounds: 0 }
    }

    pub(super) fn threshold(&self) -> u64 {
        self.threshold
    }

    /// Bytes of a long copy that the core makes.
    pub(super) fn by_core(&self, bytes: u64) -> u64 {
        bytes * self.percent / 100
    }

    /// A thread has waited for a record, after it made its own part.
    pub(super) fn has_waited(&mut self, time: Picos) {
        let Some(tuning) = self.tuning else { return };
        self.descriptors += 1;
        if self.descriptors % RUN < RUN - COUNTED {
            return;
        }
        self.counted += 1;
        self.rounds += time.0.div_ceil(Picos::from_nanos_f64(tuning.pause_ns).0.max(1));
        if self.counted < COUNTED {
            return;
        }
        let rounds = std::mem::take(&mut self.rounds);
        let counted = std::mem::take(&mut self.counted);
        if rounds > tuning.most_waits * counted {
            if self.percent < MOST_PERCENT {
                self.percent += 1;
            } else if self.threshold < THRESHOLDS[1] {
                self.threshold += STEP;
            }
        } else if rounds < tuning.least_waits * counted {
            if self.percent > 0 {
                self.percent -= 1;
            } else if self.threshold > THRESHOLDS[0] {
                self.threshold -= STEP;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(knobs: &mut Knobs, runs: u64, waiting_ns: u64) -> (u64, u64) {
        for _ in 0..runs * RUN {
            knobs.has_waited(Picos::from_nanos(waiting_ns));
        }
        (knobs.percent, knobs.threshold)
    }

    #[test]
    fn long_waits_raise_the_core_s_part_and_then_the_threshold() {
        let mut knobs = Knobs::new(8192, DtoVersion::V2025.tuning());
        assert_eq!(after(&mut knobs, 1, 2000), (1, 8192), "40 rounds of 50 ns, once in a run");
        assert_eq!((knobs.by_core(10_000), after(&mut knobs, 89, 2000)), (100, (90, 8192)));
        assert_eq!(after(&mut knobs, 3, 2000), (90, 8192 + 3 * 1024));
        assert_eq!(after(&mut knobs, 100, 2000), (90, 65536));
    }

    #[test]
    fn short_waits_lower_the_core_s_part_and_then_the_threshold_below_the_user_s() {
        let mut knobs = Knobs::new(8192, DtoVersion::V2025.tuning());
        after(&mut knobs, 2, 2000);
        assert_eq!(after(&mut knobs, 2, 100), (0, 8192));
        assert_eq!(after(&mut knobs, 2, 100), (0, 6144));
        assert_eq!(after(&mut knobs, 9, 100), (0, 6144));
        assert_eq!(after(&mut knobs, 9, 500), (0, 6144), "10 rounds are between the bounds");
    }

    #[test]
    fn the_version_of_the_paper_changes_nothing() {
        let mut knobs = Knobs::new(8192, DtoVersion::V2023.tuning());
        assert_eq!(after(&mut knobs, 100, 5000), (0, 8192));
    }
}
