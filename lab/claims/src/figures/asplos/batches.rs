//! Batches and queues: Figures 3, 4, 5 and 14.

use crate::experiments::measure::{core_alone, one_by_one_gigabytes};
use crate::figures::sweep::{
    DEPTH, SIZES, axis, bytes, lines, measured, over_sizes, rate, rates, simulated, throughput,
};
use crate::figures::{Panel, Result, Scale, Shape, level_mark, place_mark};
use crate::lab::Lab;
use crate::setups::{alone, asplos, in_flight, one_by_one};
use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_sim::{BufferPlacement, Scenario};

const COPY: Opcode = Opcode::MemoryMove;

fn dedicated() -> Scenario {
    asplos(1, WqMode::Dedicated, 1)
}

/// Gigabytes a second of batches: one at a time without their preparation, or `depth` in flight.
fn gigabytes(lab: &Lab, op: Opcode, size: u32, depth: u32, batch: u32) -> Result<f64> {
    match depth {
        1 => one_by_one_gigabytes(lab, dedicated(), one_by_one(op, size, batch)),
        depth => Ok(rate(&*lab.run(&alone(dedicated(), in_flight(op, size, depth, batch)))?)),
    }
}

pub(super) fn figure_3(lab: &Lab) -> Result<Vec<Panel>> {
    let panel = |title, depth, claim| {
        let series = [1, 2, 4, 8, 16, 32, 64, 128]
            .map(|batch| measured(format!("BS {batch}"), SIZES, |size| gigabytes(lab, COPY, size, depth, batch)));
        let mut series = series.into_iter().collect::<Result<Vec<_>>>()?;
        if depth > 1 {
            let four = |size| alone(asplos(1, WqMode::Dedicated, 4), in_flight(COPY, size, depth, 1));
            series.push(rates(lab, "BS 1, four engines", SIZES, four)?);
        }
        Ok(over_sizes(title, throughput(), series, vec![level_mark(claim)]))
    };
    Ok(vec![panel("one at a time", 1, "K-027")?, panel("asynchronous, 32 in flight", DEPTH, "K-028")?])
}

pub(super) fn figure_4(lab: &Lab) -> Result<Vec<Panel>> {
    let panel = |batch: u32| {
        let series = [1, 2, 4, 8, 16, 32, 64, 128].map(|entries| {
            rates(lab, format!("WQS {entries}"), SIZES, |size| {
                let mut scenario = dedicated();
                scenario.devices = vec![Config::single(WqMode::Dedicated, entries, 1)];
                alone(scenario, in_flight(COPY, size, entries, batch))
            })
        });
        let title = if batch == 1 { "no batches".into() } else { format!("batches of {batch}") };
        Ok(over_sizes(title, throughput(), series.into_iter().collect::<Result<_>>()?, vec![level_mark("K-029")]))
    };
    Ok(vec![panel(1)?, panel(4)?])
}

pub(super) fn figure_5(lab: &Lab) -> Result<Vec<Panel>> {
    const SIZE: u32 = 4096;
    const BATCHES: [u32; 6] = [1, 2, 4, 8, 16, 32];
    const PARTS: [&str; 6] =
        ["the core copies", "prepare", "submit", "wait: in the queue", "wait: processing", "wait: record"];
    let mut parts = PARTS.map(|_| Vec::new());
    let core = core_alone(lab, dedicated(), COPY, SIZE, BufferPlacement::on(0), BufferPlacement::on(0))?;
    parts[0].push((0.0, core / 1e3));
    for (number, batch) in (1u8..).zip(BATCHES) {
        let outcome = lab.run(&alone(dedicated(), one_by_one(COPY, SIZE, batch)))?;
        let line = &outcome.loads[0].timeline;
        let times = [line.prepare, line.submit, line.queue, line.process, line.complete + line.notice];
        #[allow(clippy::cast_precision_loss, reason = "for people")]
        let copies = line.completed.max(1) as f64 * f64::from(batch);
        for (points, time) in parts[1..].iter_mut().zip(times) {
            points.push((number.into(), time.as_nanos_f64() / 1e3 / copies));
        }
    }
    let names = std::iter::once("core".into()).chain(BATCHES.map(|batch| format!("BS {batch}"))).collect();
    Ok(vec![Panel {
        title: String::new(),
        x: axis("copied by a core, or by the device in batches", "", Scale::Names(names)),
        y: axis("time of one copy", "µs", Scale::Linear),
        shape: Shape::Stacks,
        series: PARTS.iter().zip(parts).map(|(name, points)| simulated(*name, points)).collect(),
        marks: Vec::new(),
    }])
}

pub(super) fn figure_14(lab: &Lab) -> Result<Vec<Panel>> {
    const BATCHES: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
    let panel = |title: &str, op, depth| {
        let series = [4096, 16384, 65536, 262_144, 1 << 20].map(|total| {
            let batches = BATCHES.into_iter().filter(|batch| total / batch >= 256);
            measured(bytes(total), batches, |batch| gigabytes(lab, op, total / batch, depth, batch))
        });
        let marks = if depth == 1 { vec![place_mark("K-061")] } else { Vec::new() };
        let x = axis("descriptors that share the bytes", "", Scale::Binary);
        Ok(lines(title, x, throughput(), series.into_iter().collect::<Result<_>>()?, marks))
    };
    Ok(vec![
        panel("copies, one batch at a time", COPY, 1)?,
        panel("copies, 32 in flight", COPY, DEPTH)?,
        panel("fills, one batch at a time", Opcode::Fill, 1)?,
        panel("fills, 32 in flight", Opcode::Fill, DEPTH)?,
    ])
}
