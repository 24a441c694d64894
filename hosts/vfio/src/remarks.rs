//! A machine's remarks: how many of them are passed on, whatever its clients do.
//!
//! A client may connect, break the protocol and connect again as often as it likes. Each of these is a remark, and
//! remarks fill a log.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What takes a remark.
pub(crate) type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// Remarks of a machine that are passed on within a [`WINDOW`]. Source: chosen.
pub(crate) const MOST: u32 = 64;
/// The time after which the count begins again. Source: chosen.
const WINDOW: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct State {
    /// When the current window began.
    begun: Option<Instant>,
    passed: u32,
    left_out: u64,
}

/// The remarks of one machine's server, over all sessions. What is left out is counted, and the count is passed on.
pub(crate) struct Remarks {
    report: Report,
    state: Mutex<State>,
}

impl Remarks {
    pub(crate) fn new(report: Report) -> Remarks {
        Remarks { report, state: Mutex::default() }
    }

    /// Passes a remark on, or counts it.
    pub(crate) fn add(&self, remark: &str) {
        self.add_at(Instant::now(), remark);
    }

    fn add_at(&self, now: Instant, remark: &str) {
        let left_out = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let mut left_out = 0;
            if state.begun.is_none_or(|begun| now.duration_since(begun) >= WINDOW) {
                left_out = state.left_out;
                *state = State { begun: Some(now), ..State::default() };
            }
            if state.passed >= MOST {
                state.left_out += 1;
                return;
            }
            state.passed += 1;
            left_out
        };
        self.count(left_out);
        (self.report)(remark);
    }

    fn count(&self, left_out: u64) {
        if left_out > 0 {
            (self.report)(&format!(
                "{left_out} more remarks were left out; at most {MOST} of {} seconds are printed",
                WINDOW.as_secs()
            ));
        }
    }
}

impl Drop for Remarks {
    fn drop(&mut self) {
        let left_out = self.state.get_mut().unwrap_or_else(PoisonError::into_inner).left_out;
        self.count(left_out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_of_all_sessions_are_limited_and_the_rest_is_counted() {
        let passed: Arc<Mutex<Vec<String>>> = Arc::default();
        let report = Arc::clone(&passed);
        let remarks = Remarks::new(Arc::new(move |remark: &str| report.lock().unwrap().push(remark.to_owned())));
        let begin = Instant::now();
        (0..MOST + 5).for_each(|_| remarks.add_at(begin, "again"));
        assert_eq!(passed.lock().unwrap().len(), MOST as usize);
        remarks.add_at(begin + WINDOW, "later");
        let last = passed.lock().unwrap()[MOST as usize..].to_vec();
        assert!(last[0].starts_with("5 more remarks were left out") && last[1..] == ["later"], "{last:?}");
        (0..MOST).for_each(|_| remarks.add_at(begin + WINDOW, "again"));
        drop(remarks);
        assert!(passed.lock().unwrap().last().unwrap().starts_with("1 more remarks"));
    }
}
