//! Batches and queues: Figures 3, 4, 5 and 14.

use crate::figures::pen::{DEPTH, Pen, SIZES, alone, axis, bytes, copy, fact, over_sizes, rate, simulated, throughput};
use crate::figures::{At, Drawing, Mark, Panel, Scale, Series, Shape};
use crate::setups;
use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_sim::{By, LoadOutcome, Ps, ScenarioError, Stream, What};

/// What one device carries, GB/s. Source: KUPER §4.2.
const FABRIC: f64 = 30.0;

fn by_batch(pen: &mut Pen, depth: u32) -> Result<Vec<Series>, ScenarioError> {
    let mut series = Vec::new();
    for batch in [1, 2, 4, 8, 16, 32, 64, 128] {
        let runs = pen.run(SIZES, |size| alone(copy(size, depth, batch), 1))?;
        series.push(runs.series(format!("BS {batch}"), rate));
    }
    Ok(series)
}

/// Height of a series of a panel at a size.
fn at(panel: &Panel, series: &str, size: f64) -> f64 {
    let found = panel.series.iter().find(|it| it.name == series).and_then(|it| it.at(size));
    found.unwrap_or(f64::NAN)
}

pub(super) fn figure_3(pen: &mut Pen) -> Result<Drawing, ScenarioError> {
    let limit = Mark { fact: 3, at: At::Level(FABRIC) };
    let sync = over_sizes("one at a time", throughput(), by_batch(pen, 1)?, vec![limit]);
    let many = over_sizes("asynchronous, 32 in flight", throughput(), by_batch(pen, DEPTH)?, vec![limit]);
    let small = at(&sync, "BS 16", 1024.0) / at(&sync, "BS 1", 1024.0);
    let large = at(&sync, "BS 64", 262_144.0) / at(&sync, "BS 1", 262_144.0);
    let streaming = at(&many, "BS 1", 4096.0);
    let (sync_64, async_4) = (at(&sync, "BS 64", 262_144.0), at(&many, "BS 4", 4096.0));
    let facts = vec![
        fact(
            "§4.2",
            "One at a time, larger batches of small transfers raise the throughput exponentially.",
            small > 4.0,
            format!("16 copies of 1 KiB in a batch give {small:.1} times the throughput of single ones."),
        ),
        fact(
            "§4.2",
            "Above 256 KB batches help modestly.",
            large < 1.3,
            format!("64 copies of 256 KiB in a batch give {large:.2} times the throughput of single ones."),
        ),
        fact(
            "§4.2",
            "A core that streams into a dedicated queue reaches the peak without batches.",
            streaming >= 0.93 * FABRIC,
            format!("Single asynchronous copies of 4 KiB: {streaming:.1} GB/s."),
        ),
        fact(
            "§4.2",
            "Throughput saturates at 30 GB/s, the limit of the I/O fabric: 256 KB one at a time with batches of 64, 4 KB \
             asynchronously with batches of 4.",
            [sync_64, async_4].iter().all(|it| (it / FABRIC - 1.0).abs() < 0.1),
            format!("{sync_64:.1} and {async_4:.1} GB/s."),
        ),
    ];
    let how = "Copies by one thread through one dedicated queue and one engine. BS is the number of descriptors in a batch; \
               BS 1 submits each by itself.";
    Ok(Drawing { how, panels: vec![sync, many], facts })
}

pub(super) fn figure_4(pen: &mut Pen) -> Result<Drawing, ScenarioError> {
    let mut panels = Vec::new();
    for batch in [1, 4] {
        let mut series = Vec::new();
        for entries in [1, 2, 4, 8, 16, 32, 64, 128] {
            let runs = pen.run(SIZES, |size| {
                let mut scenario = setups::asplos(1, WqMode::Dedicated, 1);
                scenario.devices = vec![Config::single(WqMode::Dedicated, entries, 1)];
                scenario.with("copies", 1, What::Stream(copy(size, entries, batch)))
            })?;
            series.push(runs.series(format!("WQS {entries}"), rate));
        }
        let title = if batch == 1 { "no batches".into() } else { format!("batches of {batch}") };
        panels.push(over_sizes(&title, throughput(), series, vec![Mark { fact: 0, at: At::Level(FABRIC) }]));
    }
    let grows = |panel: &Panel| {
        let falls = |pair: &[Series]| pair[0].points.iter().zip(&pair[1].points).any(|(a, b)| b.1 < 0.98 * a.1);
        !panel.series.windows(2).any(falls)
    };
    let of_32 = |size| at(&panels[0], "WQS 32", size) / at(&panels[0], "WQS 128", size);
    let worst = SIZES.map(|size| of_32(f64::from(size))).into_iter().fold(f64::MAX, f64::min);
    let (single, batched) = (at(&panels[0], "WQS 4", 1024.0), at(&panels[1], "WQS 4", 1024.0));
    let facts = vec![
        fact(
            "§4.2",
            "More descriptors in flight, by a larger queue, raise the throughput up to the saturation point.",
            panels.iter().all(grows),
            format!(
                "At 4 KiB {:.1} GB/s with one entry, {:.1} with 128.",
                at(&panels[0], "WQS 1", 4096.0),
                at(&panels[0], "WQS 128", 4096.0)
            ),
        ),
        fact(
            "§4.2",
            "Batches and asynchrony help each other.",
            batched > single,
            format!("Four entries at 1 KiB: {single:.1} GB/s, with batches of 4 {batched:.1}."),
        ),
        fact(
            "§6.3 G6",
            "32 entries for a queue give almost the maximum.",
            worst >= 0.95,
            format!("At least {:.0} % of what 128 entries give, at every size.", worst * 100.0),
        ),
    ];
    let how =
        "Asynchronous copies by one thread that keeps a dedicated queue of so many entries (WQS) full; one engine.";
    Ok(Drawing { how, panels, facts })
}

/// Microseconds of one copy, of a submission with so many.
fn part(load: &LoadOutcome, time: Ps, batch: u32) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let copies = load.timeline.completed.max(1) as f64 * f64::from(batch);
    time.as_nanos_f64() / 1e3 / copies
}

pub(super) fn figure_5(pen: &mut Pen) -> Result<Drawing, ScenarioError> {
    const SIZE: u32 = 4096;
    const BATCHES: [u32; 6] = [1, 2, 4, 8, 16, 32];
    const PARTS: [&str; 5] = ["copying, core", "prepare", "submit", "wait: queue and engine", "wait: record"];
    let mut parts = PARTS.map(|_| Vec::new());
    let mut names = Vec::new();
    let core = pen.one(&alone(Stream { by: By::Cpu, submissions: 50, ..Stream::of(Opcode::MemoryMove, SIZE) }, 1))?;
    for batch in BATCHES {
        let device = pen.one(&alone(copy(SIZE, 1, batch), 1))?;
        let load = &device.loads[0];
        let line = &load.timeline;
        let times = [line.prepare, line.submit, line.queue + line.process, line.complete + line.notice];
        let place = f64::from(u32::try_from(names.len()).unwrap_or(0));
        names.extend([format!("core, {batch}"), format!("BS {batch}")]);
        parts[0].push((place, f64::from(SIZE) / rate(&core) / 1e3));
        for (points, time) in parts[1..].iter_mut().zip(times) {
            points.push((place + 1.0, part(load, time, batch)));
        }
    }
    let alone = |part: usize| parts[part][0].1;
    let (prepare, submit, wait) = (alone(1), alone(2), alone(3) + alone(4));
    let facts = vec![
        fact(
            "§4.2",
            "Allocating descriptors takes the most time, but they can be allocated ahead of use. (The same paragraph says that \
             queueing or processing takes the majority.)",
            None,
            "Allocation is not simulated: descriptors are there already.".into(),
        ),
        fact(
            "§4.2",
            "Then come waiting and submitting; preparing takes the least.",
            prepare < submit && submit < wait,
            format!("One 4 KiB copy: prepare {prepare:.2}, submit {submit:.2}, wait {wait:.2} µs."),
        ),
        fact(
            "§4.2",
            "While the device works, the core is idle and could do something else; larger batches use that best.",
            None,
            format!("Of {:.2} µs the core is busy for {:.2}.", prepare + submit + wait, prepare + submit),
        ),
    ];
    let series = PARTS.iter().zip(parts).map(|(name, points)| simulated(*name, points)).collect();
    let panel = Panel {
        title: String::new(),
        x: axis("copied by a core, or by the device in batches of BS", "", Scale::Names(names)),
        y: axis("time of one copy", "µs", Scale::Linear),
        shape: Shape::Stacks,
        series,
        marks: Vec::new(),
    };
    let how = "One batch at a time through one dedicated queue and one engine; the time of a batch is divided by its copies, so that \
               all bars compare with a core's copy of 4 KiB.";
    Ok(Drawing { how, panels: vec![panel], facts })
}

pub(super) fn figure_14(pen: &mut Pen) -> Result<Drawing, ScenarioError> {
    const BATCHES: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
    let mut panels = Vec::new();
    for (title, depth) in [("one at a time", 1), ("asynchronous, 32 in flight", DEPTH)] {
        let mut series = Vec::new();
        for total in [4096, 16384, 65536, 262_144, 1 << 20] {
            let batches = BATCHES.into_iter().filter(|batch| total / batch >= 256);
            let runs = pen.run(batches, |batch| alone(copy(total / batch, depth, batch), 1))?;
            series.push(runs.series(format!("{} in all", bytes(f64::from(total))), rate));
        }
        panels.push(Panel {
            title: title.into(),
            x: axis("descriptors that share the bytes", "", Scale::Binary),
            y: throughput(),
            shape: Shape::Lines,
            series,
            marks: if depth == 1 { vec![Mark { fact: 1, at: At::Places(4.0, 8.0) }] } else { Vec::new() },
        });
    }
    let best = |series: &Series| {
        let best =
            series.points.iter().fold((f64::NAN, 0.0), |best, point| if point.1 > best.1 { *point } else { best });
        best.0
    };
    let last = |panel: &Panel| {
        panel.series.iter().all(|it| it.points.last().map(|point| point.1) < it.points.first().map(|point| point.1))
    };
    let best_of: Vec<f64> = panels[0].series.iter().map(best).collect();
    let words: Vec<String> =
        panels[0].series.iter().zip(&best_of).map(|(it, best)| format!("{}: {best}", it.name)).collect();
    let facts = vec![
        fact(
            "§6.1 G1",
            "The same bytes in more descriptors tend to give a lower throughput.",
            panels.iter().all(last),
            panels
                .iter()
                .map(|panel| {
                    let it = &panel.series[2];
                    format!(
                        "{}, {}: {:.1} GB/s in one, {:.1} in {}.",
                        panel.title, it.name, it.points[0].1, it.points[7].1, BATCHES[7]
                    )
                })
                .collect::<Vec<_>>()
                .join(" "),
        ),
        fact(
            "§6.1 G1",
            "One at a time there is a weak optimum at modest batches of 4 to 8 descriptors.",
            best_of.iter().filter(|best| (4.0..=8.0).contains(*best)).count() * 2 > best_of.len(),
            format!("Best number of descriptors, {}.", words.join(", ")),
        ),
    ];
    let how = "Copies of the same bytes altogether, as one descriptor or as a batch of so many, each of an equal part; one thread, one \
               dedicated queue, one engine.";
    Ok(Drawing { how, panels, facts })
}
