//! Pairwise comparison: two implementations in turns, and the median of their ratio.

use super::measure::{Implausible, Window, median, plausible, window};
use std::convert::Infallible;
use std::time::{Duration, Instant};

/// The result of a pairwise comparison.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct PairResult {
    /// Median nanoseconds of one of our operations.
    pub ours_ns: f64,
    /// Median nanoseconds of one of the alternative's operations.
    pub theirs_ns: f64,
    /// Median over the turns of the alternative's time divided by ours: above 1 ours is faster.
    pub ratio: f64,
    /// Turns taken.
    pub turns: usize,
}

/// Minimum number of turns, however slow the sides are.
const FEWEST_TURNS: usize = 5;
/// Shortest window: thousands of the smallest steps.
const SHORTEST: Duration = Duration::from_micros(200);
/// Target number of turns.
const TURNS: u32 = 15;

/// Lets both sides work on `state` in turns for about `time`, in alternating order. `bytes` is the minimum that one
/// step reads or writes.
pub(crate) fn duel<S>(
    time: Duration,
    bytes: u64,
    state: &mut S,
    mut ours: impl FnMut(&mut S),
    mut theirs: impl FnMut(&mut S),
) -> Result<PairResult, Implausible> {
    let slice = (time / (2 * TURNS)).max(SHORTEST);
    // One unmeasured run each, for pages, caches and lazily resolved symbols.
    ours(state);
    theirs(state);
    let (mut a, mut b, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let start = Instant::now();
    while ratios.len() < FEWEST_TURNS || start.elapsed() < time {
        let (x, y) = if ratios.len() % 2 == 0 {
            let x = run(slice, bytes, state, &mut ours)?;
            (x, run(slice, bytes, state, &mut theirs)?)
        } else {
            let y = run(slice, bytes, state, &mut theirs)?;
            (run(slice, bytes, state, &mut ours)?, y)
        };
        a.push(x.ns_per_op());
        b.push(y.ns_per_op());
        ratios.push(y.ns_per_op() / x.ns_per_op());
    }
    let turns = ratios.len();
    Ok(PairResult { ours_ns: median(&mut a), theirs_ns: median(&mut b), ratio: median(&mut ratios), turns })
}

/// Runs one turn of one side.
#[inline]
fn run<S>(slice: Duration, bytes: u64, state: &mut S, step: &mut impl FnMut(&mut S)) -> Result<Window, Implausible> {
    let Ok(seen) = window(slice, || -> Result<u64, Infallible> {
        step(state);
        Ok(1)
    });
    plausible(&seen, bytes, 1, 1)?;
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin(rounds: u64) {
        (0..rounds).for_each(|i| {
            std::hint::black_box(i);
        });
    }

    #[test]
    fn the_ratio_favours_the_faster_side() {
        let time = Duration::from_millis(30);
        let result = duel(time, 1, &mut (), |()| spin(1000), |()| spin(3000)).unwrap();
        // A factor of three, with bounds wide enough for a busy machine.
        assert!(result.ratio > 1.5, "{result:?}");
        assert!(result.ours_ns < result.theirs_ns, "{result:?}");
    }

    #[test]
    fn slow_sides_still_get_their_turns() {
        let result = duel(Duration::ZERO, 1, &mut (), |()| spin(100_000), |()| spin(100_000)).unwrap();
        assert_eq!(result.turns, FEWEST_TURNS);
    }

    #[test]
    fn implausible_numbers_are_refused() {
        assert!(duel(Duration::ZERO, u64::MAX, &mut (), |()| (), |()| ()).is_err());
    }
}
