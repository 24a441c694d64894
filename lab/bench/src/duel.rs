//! Two ways of doing the same, in turns, and the median of how much faster one is.

use super::measure::{Implausible, Window, median, plausible, window};
use std::convert::Infallible;
use std::time::{Duration, Instant};

/// How a duel ended.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Duel {
    /// Nanoseconds of one of ours, median.
    pub ours_ns: f64,
    /// Nanoseconds of one of theirs, median.
    pub theirs_ns: f64,
    /// Median over the turns of theirs by ours: above 1 ours is faster.
    pub ratio: f64,
    /// Turns taken.
    pub turns: usize,
}

/// Turns a duel has at least, however slow the contestants.
const FEWEST_TURNS: usize = 5;
/// Shortest window: thousands of the smallest steps.
const SHORTEST: Duration = Duration::from_micros(200);
/// Turns aimed at.
const TURNS: u32 = 15;

/// Lets both work on `state` in turns for about `time`, the first move alternating. `bytes` is what one step at least reads
/// or writes.
pub(crate) fn duel<S>(
    time: Duration,
    bytes: u64,
    state: &mut S,
    mut ours: impl FnMut(&mut S),
    mut theirs: impl FnMut(&mut S),
) -> Result<Duel, Implausible> {
    let slice = (time / (2 * TURNS)).max(SHORTEST);
    // Once each unmeasured: pages, caches, lazily resolved symbols.
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
    Ok(Duel { ours_ns: median(&mut a), theirs_ns: median(&mut b), ratio: median(&mut ratios), turns })
}

/// One turn of one side.
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
    fn the_faster_side_has_the_ratio() {
        let time = Duration::from_millis(30);
        let result = duel(time, 1, &mut (), |()| spin(1000), |()| spin(3000)).unwrap();
        // A factor of three; bounds wide enough for a machine that does other things too.
        assert!(result.ratio > 1.5, "{result:?}");
        assert!(result.ours_ns < result.theirs_ns, "{result:?}");
    }

    #[test]
    fn slow_sides_still_get_their_turns() {
        let result = duel(Duration::ZERO, 1, &mut (), |()| spin(100_000), |()| spin(100_000)).unwrap();
        assert_eq!(result.turns, FEWEST_TURNS);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(duel(Duration::ZERO, u64::MAX, &mut (), |()| (), |()| ()).is_err());
    }
}
