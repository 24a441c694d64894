//! The cost of ring work alone: chains are taken, translated and put back in bursts of 32, on one thread with all
//! caches warm.
//!
//! The driver fills the whole ring before the clock starts and collects it after the clock has stopped, so that all
//! chains of a ring share one reading of the clock.

use super::super::goal::{Goal, Row};
use super::super::measure::{Clock, median};
use std::time::{Duration, Instant};
use telpher_vhost::layout::Features;
use telpher_vhost::ring::{Burst, Direction, MockDriver, MockGuest, Ring, Used};

const SIZE: u16 = 1024;
const BURST: usize = 32;
/// Full rings of chains in one round.
const RINGS: usize = 40;
/// Minimum number of rounds.
const FEWEST: usize = 5;
/// Upper limit in nanoseconds of a chain of one descriptor: split, packed. Source: goal of the rings.
const MOST_NS: [f64; 2] = [5.0, 8.0];

/// Returns a row for each layout and chain length, measured in about `time`.
pub(super) fn measure(time: Duration) -> Vec<Row> {
    let clock = Clock::calibrate();
    let layouts = [("split", Features::empty(), MOST_NS[0]), ("packed", Features::RING_PACKED, MOST_NS[1])];
    let mut rows = Vec::new();
    for (layout, features, most) in layouts {
        for (descriptors, goal) in [(1, Some(Goal::AtMost(most))), (2, None)] {
            let (ns, rounds) = chain(features, descriptors, &clock, time / 4);
            let what = match descriptors {
                1 => format!("{layout} ring, one descriptor a chain"),
                _ => format!("{layout} ring, {descriptors} descriptors a chain"),
            };
            let how = format!("bursts of {BURST}, ring of {SIZE}, one thread, caches warm; median of {rounds} rounds");
            rows.push(Row::new(what, ns, "ns a chain", goal, how));
        }
    }
    rows
}

fn chain(features: Features, descriptors: usize, clock: &Clock, time: Duration) -> (f64, usize) {
    let mut guest = MockGuest::new(16 << 20);
    let agreed = features | Features::VERSION_1;
    let mut driver = MockDriver::new(&mut guest, SIZE, agreed, Direction::Receive);
    let mut ring = Ring::new(guest.memory(), driver.setup()).expect("the ring lies in the guest");
    let buffers: Vec<_> = (0..descriptors).map(|_| (guest.lend(2048), 1024)).collect();
    let (mut burst, mut used) = (Burst::with_capacity(BURST), Vec::with_capacity(BURST));
    let mut back = Vec::with_capacity(SIZE.into());
    let (mut rounds, begun) = (Vec::new(), Instant::now());
    while rounds.len() < FEWEST || begun.elapsed() < time {
        let (mut ticks, mut chains) = (0, 0);
        for _ in 0..RINGS {
            let mut offered = 0;
            while driver.offer(&buffers).is_some() {
                offered += 1;
            }
            let start = telpher_os::ticks();
            for _ in 0..offered / BURST {
                burst.clear();
                ring.take(&mut burst, BURST).expect("the driver keeps to the rules");
                used.clear();
                used.extend(burst.chains().iter().map(|chain| Used::of(chain, chain.len)));
                ring.put(&used);
                std::hint::black_box(ring.publish());
            }
            ticks += clock.since(start);
            back.clear();
            driver.collect_into(&mut back);
            assert_eq!((back.len(), driver.lent()), (offered, 0), "every chain came back");
            chains += offered;
        }
        rounds.push(clock.ns(ticks) / chains as f64);
    }
    (median(&mut rounds), rounds.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_layout_has_a_goal_for_chains_of_one_descriptor() {
        let rows = measure(Duration::ZERO);
        let goals: Vec<Option<Goal>> = rows.iter().map(|row| row.goal).collect();
        assert_eq!(goals, [Some(Goal::AtMost(5.0)), None, Some(Goal::AtMost(8.0)), None]);
        assert!(rows.iter().all(|row| row.measured > 0.1), "{rows:?}");
    }
}
