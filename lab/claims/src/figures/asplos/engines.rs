//! Engines, pages, queues and devices: Figures 7 to 10.

use crate::figures::pen::{DEPTH, Pen, SIZES, alone, axis, bytes, copy, fact, lane, over_sizes, rate, throughput};
use crate::figures::{At, Drawing, Mark, Panel, Scale, Shape};
use crate::setups;
use telpher_device::{Config, EngineConfig, GroupConfig, WqConfig, WqMode};
use telpher_sim::{Place, Scenario, ScenarioError, Stream, What};

pub(super) fn figure_7(pen: &mut Pen) -> Result<Drawing, ScenarioError> {
    let mut panels = Vec::new();
    for batch in [1, 8, 32] {
        let mut series = Vec::new();
        for size in [512, 1024, 4096, 16384, 65536] {
            let runs = pen.run([1, 2, 3, 4], |engines| alone(copy(size, DEPTH, batch), engines))?;
            series.push(runs.series(format!("TS {}", bytes(f64::from(size))), rate));
        }
        panels.push(Panel {
            title: if batch == 1 { "no batches".into() } else { format!("BS {batch}") },
            x: axis("engines", "", Scale::Linear),
            y: throughput(),
            shape: Shape::Lines,
            series,
            marks: Vec::new(),
        });
    }
    let gains: Vec<f64> = panels[2].series.iter().map(|it| it.points[3].1 / it.points[0].1).collect();
    let words: Vec<String> =
        panels[2].series.iter().zip(&gains).map(|(it, gain)| format!("{} {gain:.2}", it.name)).collect();
    let facts = vec![
        fact(
            "§4.3, §6.3 G5",
            "More engines in a group raise the throughput, most of all that of small transfers.",
            gains[0] > 1.1 && gains.windows(2).all(|pair| pair[1] <= pair[0] * 1.02),
            format!("Four engines over one, batches of 32: {}.", words.join(", ")),
        ),
        fact(
            "§4.3",
            "For larger transfers the gain levels off, because one engine reaches the peak alone.",
            gains[4] < 1.05,
            format!("64 KiB: {:.2} times.", gains[4]),
        ),
    ];
    let how = "Asynchronous copies (32 in flight) by one thread through one dedicated queue of a group with so many engines. TS is the \
               transfer size, BS the batch size.";
    Ok(Drawing { how, panels, facts })
}

pub(super) fn figure_8(pen: &mut Pen) -> Result<Drawing, ScenarioError> {
    let mut series = Vec::new();
    for (name, page) in [("4 KiB pages", 4096), ("2 MiB pages", 2 << 20), ("1 GiB pages", 1 << 30)] {
        let place = Place { page, ..Place::on(0) };
        let runs = pen.run(SIZES, |size| alone(Stream { src: place, dst: place, ..copy(size, DEPTH, 1) }, 1))?;
        series.push(runs.series(name, rate));
    }
    let spread = |size: u32| {
        let rates = series.iter().filter_map(|it| it.at(size.into()));
        let (low, high) = rates.fold((f64::MAX, 0.0f64), |(low, high), rate| (low.min(rate), high.max(rate)));
        high / low
    };
    let widest = SIZES.map(spread).into_iter().fold(1.0, f64::max);
    let facts = vec![fact(
        "§4.2",
        "The size of the pages hardly affects the throughput.",
        widest < 1.05,
        format!("The page sizes differ by at most {:.1} %, at any transfer size.", (widest - 1.0) * 100.0),
    )];
    let how = "Asynchronous copies (32 in flight) by one thread through one dedicated queue and one engine; sources and destinations in \
               pages of this size.";
    Ok(Drawing { how, panels: vec![over_sizes("", throughput(), series, Vec::new())], facts })
}

/// So many groups of one dedicated queue and one engine each.
fn pairs(count: u32) -> Scenario {
    let mut scenario = setups::asplos(1, WqMode::Dedicated, 1);
    let group = |number: u32| GroupConfig {
        dev: format!("group0.{number}"),
        grouped_workqueues: vec![WqConfig::new(number, WqMode::Dedicated, 128 / count)],
        grouped_engines: vec![EngineConfig { dev: format!("engine0.{number}") }],
        ..GroupConfig::default()
    };
    scenario.devices = vec![Config::of_groups((0..count).map(group).collect())];
    scenario
}

pub(super) fn figure_9(pen: &mut Pen) -> Result<Drawing, ScenarioError> {
    let mut panels = Vec::new();
    for count in [1u32, 2, 4] {
        let batched = pen.run(SIZES, |size| alone(copy(size, DEPTH, count), 1))?;
        let dedicated = pen.run(SIZES, |size| {
            (0..count).fold(pairs(count), |scenario, number| {
                let by = lane(0, number as usize, false);
                scenario.with("copies", 1, What::Stream(Stream { by, ..copy(size, DEPTH.min(128 / count), 1) }))
            })
        })?;
        let shared = pen.run(SIZES, |size| {
            let stream = Stream { by: lane(0, 0, true), ..copy(size, DEPTH, 1) };
            setups::asplos(1, WqMode::Shared, 1).with("copies", count, What::Stream(stream))
        })?;
        let series = vec![
            batched.series(format!("BS: {count}"), rate),
            dedicated.series(format!("DWQ: {count}"), rate),
            shared.series(format!("SWQ: {count}"), rate),
        ];
        panels.push(over_sizes(
            &format!("{count} of each"),
            throughput(),
            series,
            vec![Mark { fact: 1, at: At::Places(1024.0, 8192.0) }],
        ));
    }
    let ratio = |panel: usize, over: usize, under: usize, size: u32| {
        let of = |series: usize| panels[panel].series[series].at(size.into()).unwrap_or(f64::NAN);
        of(over) / of(under)
    };
    let large = SIZES.into_iter().filter(|size| *size >= 4096);
    let apart = large
        .flat_map(|size| [ratio(1, 1, 0, size), ratio(2, 1, 0, size)])
        .map(|it| (it - 1.0).abs())
        .fold(0.0, f64::max);
    let shared: Vec<String> = [1024, 2048, 4096, 8192].map(|size| format!("{:.2}", ratio(0, 2, 1, size))).to_vec();
    let low = [1024, 2048, 4096, 8192].iter().filter(|size| ratio(0, 2, 1, **size) < 0.95).count();
    let crowd = ratio(2, 2, 1, 4096);
    let facts = vec![
        fact(
            "§4.3",
            "Several dedicated queues and batches through one give nearly the same throughput.",
            apart < 0.15,
            format!("From 4 KiB on, two and four: they differ by at most {:.0} %.", apart * 100.0),
        ),
        fact(
            "§4.3",
            "A shared queue gives less between 1 and 8 KB.",
            low == 4,
            format!("Over a dedicated queue's, one thread, at 1, 2, 4, 8 KiB: {}.", shared.join(", ")),
        ),
        fact(
            "§4.3",
            "With many threads, a shared queue gives what the others do.",
            crowd >= 0.95,
            format!("Four threads at 4 KiB: {crowd:.2} times what four dedicated queues give."),
        ),
    ];
    let how = "BS: one thread, one dedicated queue, one engine, batches of so many. DWQ: so many threads, each with a dedicated queue and \
               an engine of its own. SWQ: so many threads, one shared queue, one engine. Asynchronous, 32 in flight each.";
    Ok(Drawing { how, panels, facts })
}

pub(super) fn figure_10(pen: &mut Pen) -> Result<Drawing, ScenarioError> {
    let mut series = Vec::new();
    for devices in 1..=4u16 {
        let runs = pen.run(SIZES, |size| {
            (0..devices).fold(setups::asplos(devices.into(), WqMode::Dedicated, 1), |scenario, device| {
                scenario.with("copies", 1, What::Stream(Stream { by: lane(device, 0, false), ..copy(size, DEPTH, 1) }))
            })
        })?;
        series.push(runs.series(if devices == 1 { "1 device".into() } else { format!("{devices} devices") }, rate));
    }
    let of = |devices: usize, size: u32| series[devices - 1].at(size.into()).unwrap_or(f64::NAN);
    let linear = [8192, 16384, 32768, 65536].iter().flat_map(|size| {
        [2.0, 3.0, 4.0]
            .into_iter()
            .zip(2..)
            .map(|(count, devices)| (of(devices, *size) / (count * of(1, *size)) - 1.0).abs())
    });
    let off = linear.fold(0.0, f64::max);
    let (three, four) = (of(3, 1 << 20), of(4, 1 << 20));
    let facts = vec![
        fact(
            "§4.3",
            "Throughput grows linearly with the number of devices.",
            off < 0.05,
            format!("From 8 to 64 KiB it is off a straight line by at most {:.1} %.", off * 100.0),
        ),
        fact(
            "§4.3",
            "Beyond 64 KB three devices fall to 70 GB/s: what they write no longer fits into the DDIO ways of the last-level cache.",
            (three / 70.0 - 1.0).abs() < 0.1,
            format!("1 MiB: {three:.1} GB/s."),
        ),
        fact(
            "§4.3",
            "Beyond 64 KB four devices fall to 90 GB/s.",
            (four / 90.0 - 1.0).abs() < 0.1,
            format!("1 MiB: {four:.1} GB/s."),
        ),
    ];
    let marks = vec![Mark { fact: 1, at: At::Level(70.0) }, Mark { fact: 2, at: At::Level(90.0) }];
    let how = "One thread for each device, each with a dedicated queue and one engine, 32 asynchronous copies in flight each.";
    Ok(Drawing { how, panels: vec![over_sizes("", throughput(), series, marks)], facts })
}
