//! Progress of a benchmark on standard error; no output if that is not a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// The total time of a benchmark, divided among its steps.
#[derive(Debug)]
pub(crate) struct Budget {
    bar: ProgressBar,
    start: Instant,
    total: Duration,
    weight: f64,
    done: f64,
}

/// Parts of the progress bar.
const PARTS: u64 = 100;

/// Returns the weight of a step with transfers of `bytes`; small ones weigh 1. A few of the largest transfers take
/// longer than any window.
pub(crate) fn weight(bytes: u64) -> f64 {
    1.0 + bytes as f64 / (16 << 20) as f64
}

impl Budget {
    /// Creates a budget for steps with a total weight of `weight` in `total`.
    pub(crate) fn new(total: Duration, weight: f64) -> Self {
        // `ProgressBar::new` draws to standard error and hides itself when that is not a terminal.
        let bar = ProgressBar::new(PARTS);
        let style = ProgressStyle::with_template(" {bar:36} {percent:>3} %  {elapsed}  {msg}");
        bar.set_style(style.expect("the template is legal").progress_chars("━╸─"));
        Budget { bar, start: Instant::now(), total, weight: weight.max(f64::MIN_POSITIVE), done: 0.0 }
    }

    /// Shows what is measured, and returns the time for it: the remaining time, divided among the remaining weight. So
    /// later steps make up for steps that took too long.
    pub(crate) fn step(&mut self, what: &str, weight: f64) -> Duration {
        self.bar.set_message(what.to_owned());
        let part = self.done / self.weight;
        // The bar shows the finished part.
        let position = (0..PARTS).take_while(|p| (*p as f64) < part * PARTS as f64).count();
        self.bar.set_position(position as u64);
        self.bar.tick();
        let left = self.total.saturating_sub(self.start.elapsed());
        let share = weight / (self.weight - self.done).max(weight);
        self.done += weight;
        left.mul_f64(share)
    }

    /// Removes the progress bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_gets_its_share_of_the_remaining_time() {
        // Far more than passes here.
        let mut budget = Budget::new(Duration::from_secs(10_000), 10.0);
        let first = budget.step("a", 1.0);
        assert!(first <= Duration::from_secs(1000) && first > Duration::from_secs(900), "{first:?}");
        assert!(budget.step("heavy", 8.0) > Duration::from_secs(8000));
        assert!(budget.step("last", 1.0) > Duration::from_secs(9000));
        assert!(budget.step("one too many", 1.0) <= Duration::from_secs(10_000));
    }

    #[test]
    fn no_time_is_left_after_the_deadline() {
        assert_eq!(Budget::new(Duration::ZERO, 5.0).step("a", 1.0), Duration::ZERO);
    }

    #[test]
    fn large_transfers_weigh_more() {
        assert!(weight(64) < 1.001 && weight(64 << 20) > 4.9);
    }
}
