//! The time of a core by kind, and the times of waits.

use crate::machine::WaitCosts;
use crate::picos::Picos;
use crate::workload::Wait;

/// The time of cores by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cycles {
    /// Preparing, submitting, copying, computing.
    pub busy: Picos,
    /// Polling.
    pub polling: Picos,
    /// In UMWAIT: from its begin until the next instruction, so with the time to enter it and to leave it.
    pub umwait: Picos,
    /// The part of `umwait` in which the core enters it and leaves it, and is not free for others.
    pub umwait_edges: Picos,
    /// Yielded to the system.
    pub idle: Picos,
}

impl Cycles {
    /// The total time.
    #[must_use]
    pub fn total(&self) -> Picos {
        self.busy + self.polling + self.umwait + self.idle
    }

    /// The time in which a core is not free for other work.
    #[must_use]
    pub fn taken(&self) -> Picos {
        self.busy + self.polling + self.umwait_edges
    }

    /// Adds another core's times.
    pub fn add(&mut self, other: &Cycles) {
        self.busy += other.busy;
        self.polling += other.polling;
        self.umwait += other.umwait;
        self.umwait_edges += other.umwait_edges;
        self.idle += other.idle;
    }

    /// Adds a wait from `since` for a record that is written at `written`. Returns when the thread sees the record.
    pub(super) fn wait(&mut self, costs: &WaitCosts, how: Wait, since: Picos, written: Picos) -> Picos {
        let there = written <= since;
        let seen = match how {
            Wait::Interrupt if !there => {
                self.idle += written.since(since);
                self.busy += costs.interrupt;
                return written + costs.interrupt;
            }
            // The record is written while the monitor is armed: UMWAIT returns at once.
            Wait::Umwait if !there && written.since(since) <= costs.umwait_entry => {
                self.umwait += costs.umwait_entry;
                self.umwait_edges += costs.umwait_entry;
                self.polling += costs.poll;
                return since + costs.umwait_entry + costs.poll;
            }
            Wait::Umwait if !there => {
                self.umwait += written.since(since) + costs.umwait_exit;
                self.umwait_edges += costs.umwait_entry + costs.umwait_exit;
                self.polling += costs.poll;
                return written + costs.umwait_exit + costs.poll;
            }
            _ => written.max(since),
        };
        let seen = seen + costs.poll;
        self.polling += seen.since(since);
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: WaitCosts = WaitCosts {
        poll: Picos::from_nanos(50),
        look: Picos::from_nanos(2),
        umwait_entry: Picos::from_nanos(200),
        umwait_exit: Picos::from_nanos(300),
        interrupt: Picos::from_nanos(5000),
        wake_up: Picos::from_nanos(20_000),
    };

    #[test]
    fn the_times_of_a_wait_add_up() {
        for how in [Wait::Poll, Wait::Umwait, Wait::Interrupt, Wait::Sleep] {
            for written in [0, 900, 1000, 1001, 1200, 1201, 9000] {
                let (since, mut cycles) = (Picos::from_nanos(1000), Cycles::default());
                let seen = cycles.wait(&COSTS, how, since, Picos::from_nanos(written));
                assert!(seen > since && seen > Picos::from_nanos(written), "{how:?} {written}");
                assert_eq!(cycles.total(), seen.since(since), "{how:?} {written}: {cycles:?}");
            }
        }
    }

    #[test]
    fn umwait_lasts_from_its_begin_until_the_core_has_left_it() {
        let of = |written| {
            let mut cycles = Cycles::default();
            let seen = cycles.wait(&COSTS, Wait::Umwait, Picos::ZERO, Picos::from_nanos(written));
            [seen, cycles.umwait, cycles.umwait_edges, cycles.taken()].map(|time| time.as_nanos_f64())
        };
        assert_eq!(of(1000), [1350.0, 1300.0, 500.0, 550.0]);
        // Written while the core enters UMWAIT, or before it begins to.
        assert_eq!(of(200), [250.0, 200.0, 200.0, 250.0]);
        assert_eq!(of(0), [50.0, 0.0, 0.0, 50.0]);
    }
}
