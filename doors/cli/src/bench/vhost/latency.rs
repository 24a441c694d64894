//! How long packets take through the switch, and how much of it the pipeline adds.
//!
//! Our own guest sends packets with the time stamp counter in them, evenly, at half the rate that the pipeline can do, and reads the counter
//! again when they have come around. The same packets at the same rate go through the switch with CPU copies, in turns; the difference of
//! the two is what the pipeline adds.

use super::super::BenchError;
use super::super::measure::{Clock, Latencies};
use super::super::row::{Goal, Row};
use super::guest::{Guest, LOOPING, now};
use super::ours::{Ours, Way, Working};
use super::point::{Cores, Distance, Drops, Seen, Watch, round};
use crate::args::VhostTraffic;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;
use telpher_vhost::{Hybrid, PacketPool};

/// Most that the pipeline may add for 99 of 100 packets, in microseconds. Source: promise of the pipeline.
const ADDED_US: f64 = 20.0;
/// Part of the rate it can do.
const LOAD: f64 = 0.5;
/// Packets' lengths. Source: the ends of an Ethernet frame's.
const SIZES: [u32; 2] = [64, 1518];
/// Until packets flow evenly.
const SETTLE: Duration = Duration::from_millis(10);

/// What is measured.
pub(super) struct About {
    /// The ring's name.
    pub(super) ring: &'static str,
    pub(super) packed: bool,
    /// From so many bytes on the hybrid pipeline's packets ride the device.
    pub(super) threshold: u32,
    pub(super) rounds: u32,
    /// Of one pass.
    pub(super) slice: Duration,
    pub(super) cores: Cores,
}

/// A row for what each pipeline adds, of each length.
pub(super) fn measure(about: &About, pool: &PacketPool, drops: &mut Drops) -> Result<Vec<Row>, BenchError> {
    let About { ring, packed, threshold, rounds, slice: time, cores } = *about;
    let clock = Clock::calibrate();
    let ways = [
        ("CPU copies", Way::Cpu),
        ("hybrid pipeline", Way::Inline(Hybrid::From(threshold))),
        ("all copies by the inline engine", Way::Inline(Hybrid::Device)),
    ];
    let mut sides = Vec::new();
    for (_, way) in ways {
        let ours = Ours::new(way, pool)?;
        let guest = Guest::connect(&ours.port, packed)?;
        sides.push((ours, Some(guest)));
    }
    let mut rows = Vec::new();
    for size in SIZES {
        // The slowest of them sets the pace for all.
        let mut most = f64::INFINITY;
        for side in &mut sides {
            let seen = pass(side, size, 0.0, time / 4, cores)?;
            most = most.min(seen.packets as f64 / (time / 4).as_secs_f64());
        }
        // Ticks from one packet to the next: those of a second, by the packets of a second.
        let gap = 1e18 / clock.ns(1_000_000_000) / (LOAD * most);
        let mut all: Vec<[Latencies; 3]> = Vec::new();
        all.resize_with(sides.len(), || [(); 3].map(|()| Latencies::new(1)));
        for number in 0..rounds {
            let mut heard: Vec<Option<Latencies>> = sides.iter().map(|_| None).collect();
            let kept = round(
                sides.len(),
                number as usize % sides.len(),
                drops,
                || cores.distance(),
                |who| {
                    let passed = pass(&mut sides[who], size, gap, time, cores)?;
                    heard[who] = Some(passed.latencies);
                    Ok::<_, BenchError>(Seen { value: 0.0, counts: passed.counts })
                },
            )?;
            for ((kept, heard), all) in kept.iter().zip(heard).zip(&mut all) {
                if let (Some((distance, _)), Some(heard)) = (kept, heard) {
                    all[*distance as usize].merge(&heard);
                }
            }
        }
        for distance in [Distance::Near, Distance::Far, Distance::Same] {
            let us = |who: usize, quantile| all[who][distance as usize].quantile(&clock, quantile) / 1e3;
            let has = |who: usize| all[who][distance as usize].count() > 0;
            for who in (1..sides.len()).filter(|&who| has(0) && has(who)) {
                let what = format!("{ring} ring, {size} B, {}, {}: added at p99", ways[who].0, distance.name());
                let how = format!(
                    "p50 {:.2} µs against {:.2}, p99 {:.2} against {:.2} with CPU copies, around; {:.2} Mpps, half of what the slowest \
                     does; {} packets",
                    us(who, 0.5),
                    us(0, 0.5),
                    us(who, 0.99),
                    us(0, 0.99),
                    LOAD * most / 1e6,
                    all[who][distance as usize].count()
                );
                rows.push(Row::new(what, us(who, 0.99) - us(0, 0.99), "µs", Some(Goal::AtMost(ADDED_US)), how));
            }
        }
    }
    Ok(rows)
}

/// What one guest saw.
struct Passed {
    packets: u64,
    latencies: Latencies,
    counts: Result<(), super::point::Dropped>,
}

/// Sends packets around for so long, one every `gap` ticks, as long as there is room for them.
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
        // Relaxed: nothing is published by it.
        while !stop.load(Ordering::Relaxed) {
            let time = now().saturating_sub(begun) as f64;
            if time - next > LOOPING as f64 * gap {
                // This thread was away, or sends as it can: nobody sends all at once what was due meanwhile.
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
        // What is on its way comes back before the next pass.
        let end = std::time::Instant::now() + SETTLE;
        while came < sent && std::time::Instant::now() < end {
            came += driver.take_in(|_, _| false);
            driver.sent();
        }
        let _ = give.send((driver, latencies, came));
    })?;
    std::thread::sleep(SETTLE);
    let watched: Vec<_> = [&working, &driving].into_iter().filter_map(|one| one.watched.clone()).collect();
    let watch = Watch::begin(&watched, cores);
    std::thread::sleep(time);
    let counts = watch.end();
    drop(driving);
    drop(working);
    let (driver, latencies, packets) = back.recv().expect("it gives back what it had");
    *guest = Some(driver);
    Ok(Passed { packets, latencies, counts })
}
