//! Whether a device copies the chunks of an operation, learned from the time that operations took.
//!
//! All members count the same operations, so they try in the same ones. Each tries the way that it does not prefer
//! itself, so their ways may differ. An operation takes longer when another member is late, which says nothing about
//! the copies. So the least times are compared, and each counts less with every later operation.

use crate::ways::class_of;
use std::time::Duration;

/// Shorter operations are left to the CPU. Source: assumed; they have one chunk for each rank, and nothing overlaps.
pub(super) const LEAST_BYTES: u64 = 64 << 10;
/// Operations of a class until the way that is not preferred is tried again. Source: chosen, as for stores.
const BETWEEN: u32 = 16;
/// A known time grows by one part in this many with each operation. Source: chosen; after eight late members in a row,
/// a time that was right has grown by a third.
const FORGETTING: u64 = 32;

/// The operations whose lengths have as many bits.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// Picoseconds for a byte: by the CPU, and by the device. `None` before the first operation.
    times: [Option<u64>; 2],
    /// Operations since the last trial.
    since_trial: u32,
}

impl Class {
    fn prefers_device(&self) -> bool {
        let [cpu, device] = self.times;
        // Each is tried once, the device first.
        device.is_none_or(|device| cpu.is_some_and(|cpu| device < cpu))
    }
}

/// The choice of one member for one kind of operation.
#[derive(Debug)]
pub(super) struct Choice {
    classes: [Class; 64],
}

impl Choice {
    pub(super) fn new() -> Choice {
        Choice { classes: [Class::default(); 64] }
    }

    /// Returns whether the device copies in the next operation.
    pub(super) fn next(&mut self, len: u64) -> bool {
        if len < LEAST_BYTES {
            return false;
        }
        let class = &mut self.classes[usize::from(class_of(len))];
        class.since_trial += 1;
        let is_trial = class.since_trial >= BETWEEN;
        if is_trial {
            class.since_trial = 0;
        }
        class.prefers_device() != is_trial
    }

    /// Records how long an operation took.
    pub(super) fn took(&mut self, len: u64, by_device: bool, time: Duration) {
        if len < LEAST_BYTES {
            return;
        }
        let picos = u64::try_from(time.as_nanos() * 1000 / u128::from(len)).unwrap_or(u64::MAX);
        let known = &mut self.classes[usize::from(class_of(len))].times[usize::from(by_device)];
        *known = Some(known.map_or(picos, |known| picos.min(known + known / FORGETTING + 1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 1 << 20;

    /// Runs operations that take these times. Returns how many of them the device copied.
    fn run(choice: &mut Choice, count: u64, cpu: u64, device: u64) -> u64 {
        let operation = |_| {
            let by_device = choice.next(LEN);
            choice.took(LEN, by_device, Duration::from_micros(if by_device { device } else { cpu }));
            u64::from(by_device)
        };
        (0..count).map(operation).sum()
    }

    #[test]
    fn the_faster_way_is_used_and_a_change_is_noticed() {
        let mut choice = Choice::new();
        assert!(run(&mut choice, 160, 100, 50) >= 148);
        // The known time of the device grows to the new one.
        run(&mut choice, 160, 50, 100);
        assert!(run(&mut choice, 160, 50, 100) <= 12);
        run(&mut choice, 1600, 100, 50);
        assert!(run(&mut choice, 160, 100, 50) >= 148);
    }

    #[test]
    fn late_members_change_nothing() {
        let mut choice = Choice::new();
        run(&mut choice, 100, 100, 50);
        for _ in 0..8 {
            let by_device = choice.next(LEN);
            choice.took(LEN, by_device, Duration::from_secs(1));
        }
        assert!(run(&mut choice, 160, 100, 50) >= 148);
    }

    #[test]
    fn short_operations_are_left_to_the_cpu() {
        let mut choice = Choice::new();
        assert!((0..100).all(|_| !choice.next(LEAST_BYTES - 1)));
        assert!(choice.next(LEAST_BYTES), "the first one tries the device");
        choice.took(LEAST_BYTES, true, Duration::from_micros(1));
        assert!(!choice.next(LEAST_BYTES), "the second one tries the CPU");
    }
}
