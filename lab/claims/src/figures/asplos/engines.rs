//! Engines, pages, queues and devices: Figures 7 to 10.

use crate::experiments::asplos_multi::all_at_once;
use crate::figures::sweep::{DEPTH, SIZES, axis, bytes, lines, over_sizes, rates, throughput};
use crate::figures::{Mark, Panel, Result, Scale, level_mark};
use crate::lab::Lab;
use crate::setups::{alone, asplos, in_flight, threads, through};
use telpher_abi::Opcode;
use telpher_device::{Config, EngineConfig, GroupConfig, WqConfig, WqMode};
use telpher_sim::{BufferPlacement, Scenario, Stream};

const COPY: Opcode = Opcode::MemoryMove;

pub(super) fn figure_7(lab: &Lab) -> Result<Vec<Panel>> {
    let panel = |batch: u32| {
        let series = [512, 1024, 4096, 16384, 65536].map(|size| {
            rates(lab, format!("TS {}", bytes(size)), [1, 2, 3, 4], |engines| {
                alone(asplos(1, WqMode::Dedicated, engines), in_flight(COPY, size, DEPTH, batch))
            })
        });
        let x = axis("engines", "", Scale::Linear);
        Ok(lines(format!("BS {batch}"), x, throughput(), series.into_iter().collect::<Result<_>>()?, Vec::new()))
    };
    [1, 8, 32].into_iter().map(panel).collect()
}

pub(super) fn figure_8(lab: &Lab) -> Result<Vec<Panel>> {
    let series = [4096, 2 << 20, 1 << 30].map(|page: u32| {
        let place = BufferPlacement { page: page.into(), ..BufferPlacement::on(0) };
        rates(lab, format!("pages of {}", page_size(page)), SIZES, |size| {
            let copies = Stream { src: place, dst: place, ..in_flight(COPY, size, DEPTH, 1) };
            alone(asplos(1, WqMode::Dedicated, 1), copies)
        })
    });
    Ok(vec![over_sizes("", throughput(), series.into_iter().collect::<Result<_>>()?, Vec::new())])
}

fn page_size(page: u32) -> String {
    if page == 1 << 30 { "1 GiB".into() } else { bytes(page) }
}

/// Groups of one dedicated queue and one engine each.
fn pairs(count: u32) -> Scenario {
    let group = |number: u32| GroupConfig {
        dev: format!("group0.{number}"),
        grouped_workqueues: vec![WqConfig::new(number, WqMode::Dedicated, 128 / count)],
        grouped_engines: vec![EngineConfig { dev: format!("engine0.{number}") }],
        ..GroupConfig::default()
    };
    let mut scenario = asplos(1, WqMode::Dedicated, 1);
    scenario.devices = vec![Config::of_groups((0..count).map(group).collect())];
    scenario
}

pub(super) fn figure_9(lab: &Lab) -> Result<Vec<Panel>> {
    let panel = |count: u32| {
        let copies = |size, batch| in_flight(COPY, size, DEPTH, batch);
        let batched = rates(lab, "BS: N", SIZES, |size| alone(asplos(1, WqMode::Dedicated, 1), copies(size, count)))?;
        let dedicated = rates(lab, "DWQ: N", SIZES, |size| {
            let queues = 0..count as usize;
            queues.fold(pairs(count), |it, wq| alone(it, through(0, wq, WqMode::Dedicated, copies(size, 1))))
        })?;
        let shared = rates(lab, "SWQ: N", SIZES, |size| {
            threads(asplos(1, WqMode::Shared, 1), count, through(0, 0, WqMode::Shared, copies(size, 1)))
        })?;
        let marks = vec![Mark { claim: "K-044", at: crate::figures::At::Places(1024.0, 8192.0) }];
        let marks = if count == 1 { marks } else { Vec::new() };
        Ok(over_sizes(format!("N = {count}"), throughput(), vec![batched, dedicated, shared], marks))
    };
    [1, 2, 4].into_iter().map(panel).collect()
}

pub(super) fn figure_10(lab: &Lab) -> Result<Vec<Panel>> {
    let panel = |title: &str, cache_control, marks: Vec<Mark>| {
        let series = [1u16, 2, 3, 4].map(|devices| {
            let name = if devices == 1 { "1 device".into() } else { format!("{devices} devices") };
            rates(lab, name, SIZES, |size| all_at_once(devices, size, cache_control))
        });
        Ok(over_sizes(title, throughput(), series.into_iter().collect::<Result<_>>()?, marks))
    };
    Ok(vec![
        panel("to the cache", true, ["K-047", "K-048", "K-049"].map(level_mark).into())?,
        panel("to memory", false, Vec::new())?,
    ])
}
