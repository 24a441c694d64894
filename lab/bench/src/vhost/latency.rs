//! The latency of packets through the switch, and the part that the pipeline adds.
//!
//! Our own guest sends packets that carry the time stamp counter, evenly, at half of the pipeline's maximum rate. It
//! reads the counter again when they have gone around. The same packets at the same rate go through the switch with CPU
//! copies, in turns; the difference of the two is the latency that the pipeline adds. There is one difference per
//! round, so a moment without a core affects one round only.

use super::super::BenchError;
use super::super::goal::{Goal, Row};
use super::super::measure::{Clock, Latencies, median};
use super::guest::{Guest, LOOPING, now};
use super::ours::{CopyBy, Ours, Working};
use super::rates::{none_of, pairs};
use crate::options::VhostTraffic;
use crate::point::{Cores, Drops, Seen, Watch, round};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;
use telpher_os::Distance;
use telpher_vhost::{CopyPolicy, PacketPool};

/// Upper limit of the added latency for 99 of 100 packets, in microseconds. Source: goal of the pipeline.
const ADDED_US: f64 = 20.0;
/// The load, as a part of the pipeline's maximum rate.
const LOAD: f64 = 0.5;
/// Lengths of packets. Source: the smallest and the largest Ethernet frame.
const SIZES: [u32; 2] = [64, 1518];
/// Time until packets flow evenly.
const SETTLE: Duration = Duration::from_millis(10);

/// Parameters of the measurement.
pub(super) struct About {
    /// The ring's name.
    pub(super) ring: &'static str,
    pub(super) packed: bool,
    /// The packets that the hybrid pipeline gives to the device.
    pub(super) hybrid: CopyPolicy,
    pub(super) rounds: u32,
    /// Duration of a pass.
    pub(super) slice: Duration,
    pub(super) cores: Cores,
}

/// Returns rows with the latency that each pipeline adds, for each length.
pub(super) fn measure(about: &About, pool: &PacketPool, drops: &mut Drops) -> Result<Vec<Row>, BenchError> {
    let About { ring, packed, hybrid, rounds, slice: time, cores } = *about;
    let clock = Clock::calibrate();
    let mut cpu = side(CopyBy::Cpu, packed, pool)?;
    let pipelines = [
        ("hybrid pipeline, inline engine", CopyBy::Inline(hybrid)),
        ("inline engine, all copies", CopyBy::Inline(CopyPolicy::Device)),
    ];
    let mut rows = Vec::new();
    for (name, way) in pipelines {
        let mut pipeline = side(way, packed, pool)?;
        for size in SIZES {
            let most = pass(&mut pipeline, size, 0.0, time, cores)?.packets as f64 / time.as_secs_f64();
            // Ticks between two packets: ticks per second divided by packets per second.
            let gap = 1e18 / clock.ns(1_000_000_000) / (LOAD * most);
            let mut seen: Vec<(Distance, [f64; 4])> = Vec::new();
            for number in 0..rounds {
                let mut heard = [[0.0; 2]; 2];
                let first = number as usize % 2;
                let measure = |backend: usize| {
                    let passed = pass(if backend == 0 { &mut cpu } else { &mut pipeline }, size, gap, time, cores)?;
                    let at = |part| passed.latencies.percentile(&clock, part).map_or(f64::NAN, |ns| ns / 1e3);
                    heard[backend] = [0.5, 0.99].map(at);
                    Ok::<_, BenchError>(Seen { value: 0.0, share: None, counts: passed.counts })
                };
                if let [Some(one), Some(other)] = round(2, first, drops, || cores.distance(), measure)?[..]
                    && one.distance == other.distance
                    && heard.as_flattened().iter().all(|us| us.is_finite())
                {
                    let [without, with] = heard;
                    seen.push((one.distance, [without[0], with[0], without[1], with[1]]));
                }
            }
            let what = format!("{ring} ring, {size} B, {name}");
            rows.extend(rows_of(&what, &seen, LOAD * most / 1e6, rounds));
        }
    }
    Ok(rows)
}

/// Returns a row for each observed distance, with medians over the rounds at it; or a row without a value if there was
/// none.
fn rows_of(what: &str, seen: &[(Distance, [f64; 4])], mpps: f64, rounds: u32) -> Vec<Row> {
    let goal = Some(Goal::AtMost(ADDED_US));
    if seen.is_empty() {
        return vec![Row::new(format!("{what}: added at p99"), f64::NAN, "µs", goal, none_of(rounds))];
    }
    let mut rows = Vec::new();
    for distance in [Distance::Near, Distance::Far, Distance::Same] {
        let here: Vec<&[f64; 4]> = seen.iter().filter(|seen| seen.0 == distance).map(|seen| &seen.1).collect();
        if here.is_empty() {
            continue;
        }
        let of = |value: fn(&[f64; 4]) -> f64| median(&mut here.iter().map(|seen| value(seen)).collect::<Vec<_>>());
        let added = of(|[.., without, with]| with - without);
        let how = format!(
            "around: p50 {:.2} µs against {:.2} with CPU copies, p99 {:.2} against {:.2}, at {mpps:.2} Mpps, \
             half of what it does; medians of {}",
            of(|seen| seen[1]),
            of(|seen| seen[0]),
            of(|seen| seen[3]),
            of(|seen| seen[2]),
            pairs(here.len())
        );
        let what = format!("{what}, {}: added at p99", distance.name());
        rows.push(Row::new(what, added, "µs", goal, how));
    }
    rows
}

/// Creates a port with copies made by `way`, and its guest.
fn side(way: CopyBy, packed: bool, pool: &PacketPool) -> Result<(Ours, Option<Guest>), BenchError> {
    let ours = Ours::new(way, pool)?;
    let guest = Guest::connect(&ours.port, packed)?;
    Ok((ours, Some(guest)))
}

/// The packets and latencies that the guest saw in a pass.
struct Passed {
    packets: u64,
    latencies: Latencies,
    counts: Result<(), crate::point::Dropped>,
}

/// Sends packets around for `time`, one every `gap` ticks, while there is room for them.
fn pass(
    (ours, guest): &mut (Ours, Option<Guest>),
    size: u32,
    gap: f64,
    time: Duration,
    cores: Cores,
) -> Result<Passed, BenchError> {
    let working = ours.work(VhostTraffic::Loop, size, cores.backend)?;
    let mut driver = guest.take().expect("given back after every pass");
    let (give, back) = mpsc::channel();
    let driving = Working::start("bench-guest", cores.guest, move |stop| {
        let mut latencies = Latencies::new(1);
        driver.begin(VhostTraffic::B2f, 0);
        let (begun, mut next, mut sent, mut came) = (now(), 0.0, 0_u64, 0_u64);
        // Relaxed: the flag publishes nothing.
        while !stop.load(Ordering::Relaxed) {
            let time = now().saturating_sub(begun) as f64;
            if time - next > LOOPING as f64 * gap {
                // The thread was preempted, or sends at the maximum rate. Missed packets are not sent all at once.
                next = time;
            }
            while next <= time && sent - came < LOOPING as u64 && driver.send(size, Some(now())) {
                sent += 1;
                next += gap;
            }
            came += driver.take_in(|guest, (buffer, _)| {
                latencies.record(now().saturating_sub(guest.stamp_of(buffer)));
                false
            });
            driver.sent();
        }
        // Collects the packets in flight before the next pass.
        let end = std::time::Instant::now() + SETTLE;
        while came < sent && std::time::Instant::now() < end {
            came += driver.take_in(|_, _| false);
            driver.sent();
        }
        let _ = give.send((driver, latencies, came));
    })?;
    std::thread::sleep(SETTLE);
    let watched: Vec<_> = [&working, &driving].into_iter().filter_map(|one| one.watched.clone()).collect();
    let watch = Watch::begin(&watched, cores.all());
    std::thread::sleep(time);
    let counts = watch.end();
    drop(driving);
    drop(working);
    let (driver, latencies, packets) = back.recv().expect("it gives back what it had");
    *guest = Some(driver);
    Ok(Passed { packets, latencies, counts })
}

#[cfg(test)]
mod tests {
    use super::super::super::goal::Verdict;
    use super::*;

    #[test]
    fn added_latency_is_the_median_difference_per_distance_and_the_limit_is_inclusive() {
        let seen = [
            (Distance::Far, [1.0, 2.0, 5.0, 25.0]),
            (Distance::Far, [1.0, 2.0, 5.0, 500.0]),
            (Distance::Far, [1.0, 2.0, 9.0, 9.0]),
            (Distance::Near, [1.0, 2.0, 5.0, 25.1]),
        ];
        let rows = rows_of("a", &seen, 1.0, 5);
        let found: Vec<_> = rows.iter().map(|row| (row.what.as_ref(), row.reached())).collect();
        assert_eq!(found, [("a, near: added at p99", false), ("a, far: added at p99", true)]);
        assert_eq!(rows[1].measured, 20.0);
        assert!(rows[1].how.contains("p99 25.00 against 5.00") && rows[1].how.ends_with("medians of 3 pairs"));
        assert!(rows[0].how.ends_with("medians of 1 pair, which is few"));
    }

    #[test]
    fn without_a_pair_the_row_is_open() {
        let [row] = &rows_of("a", &[], 1.0, 5)[..] else { panic!("one row") };
        assert_eq!((row.what.as_ref(), row.verdict()), ("a: added at p99", Verdict::Open));
        assert_eq!((row.measured.is_nan(), row.how.as_str()), (true, "no pair of points counts, of 5 rounds"));
    }
}
