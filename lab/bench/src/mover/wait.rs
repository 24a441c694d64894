//! What waiting costs: the CPU time of a thread that waits for a long job, and how late it notices the end.
//!
//! All ways of waiting take turns on the same queue, for a device whose engine has its own core. They are compared with
//! spinning, which notices a record earliest; their energy also with that of the CPU's own copies. One of them is the
//! descriptor of a notifier, for a program with an event loop: the CPU time of its thread counts too.

use super::Experiment;
use crate::BenchError;
use crate::devices::{self, Shape};
use crate::energy::EnergyMeter;
use crate::goal::{Goal, Row};
use crate::measure::median;
use crate::results::Runner;
use crate::waiting::{PREDICTED, WAYS, WaitMethod, descriptor_failed, rooms, turns};
use std::path::Path;
use std::time::Duration;
use telpher_device::{ModelSource, Preset};
use telpher_report::machine::Machine;
use telpher_report::units;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "wait",
    question: "How much CPU time does waiting for a long job take, and how late is its end noticed?",
    cores: 2,
    weight: 1.0,
    measure,
};

/// Upper limit of the CPU time with predicted sleep, in percent of spinning's. Source: goal of the mover.
const CPU: f64 = 30.0;
/// Upper limit of the time from submission to seeing the record, divided by spinning's. Source: goal of the mover.
const LATENCY: f64 = 1.10;

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let source = ModelSource::Preset(Preset::default());
    let device = devices::start("model:spr", &source, Shape::PLAIN, Runner::Threaded, machine)?;
    let portal = device.portals.first().expect("a plain device has a queue");
    let mut rooms = rooms(machine);
    let mut energy = EnergyMeter::open(Path::new("/sys"));
    let mut ways: Vec<WaitMethod> = WAYS.map(|way| WaitMethod::new(way, portal)).into();
    ways.push(WaitMethod::by_descriptor(portal).map_err(descriptor_failed)?);
    let waiting = ways.len();
    if energy.reason().is_none() {
        ways.push(WaitMethod::cpu());
    }
    turns(&mut ways, &mut rooms, time, &mut energy, machine)?;
    rooms.iter().try_for_each(|(src, dst)| EXPERIMENT.arrived(src, dst))?;
    let mut rows = rows(&ways[..waiting]);
    rows.extend(energy_rows(&ways, energy.reason()));
    Ok(rows)
}

/// The energy of each way. Where it is not known, one row says why.
fn energy_rows(ways: &[WaitMethod], reason: Option<&str>) -> Vec<Row> {
    let row = |name: &str, joules: f64, how: String| {
        Row::new(format!("{name}: energy of the processor packages"), joules, "J/GB", None, how)
    };
    match reason {
        Some(reason) => vec![row("all ways of waiting", f64::NAN, reason.to_owned())],
        None => ways
            .iter()
            .map(|way| {
                let how = "of all packages, with the engine's core and whatever else runs".to_owned();
                row(way.name, way.energy.joules_per_gb().unwrap_or(f64::NAN), how)
            })
            .collect(),
    }
}

fn rows(ways: &[WaitMethod]) -> Vec<Row> {
    let ratio = |of: &[f64], by: &[f64]| median(&mut of.iter().zip(by).map(|(of, by)| of / by).collect::<Vec<_>>());
    let (spin, others) = ways.split_first().expect("there is a first way");
    let time = |values: &[f64]| units::time(median(&mut values.to_vec()));
    let mut rows = Vec::new();
    for way in others {
        let (name, must) = (way.name, way.name == PREDICTED);
        let threads = match way.notifier {
            None => "the submitting thread",
            Some(_) => "the submitting thread and the notifier's",
        };
        rows.push(Row::new(
            format!("{name}: CPU time while a 4 MiB copy is under way, by spinning's"),
            100.0 * ratio(&way.cpu, &spin.cpu),
            "%",
            must.then_some(Goal::AtMost(CPU)),
            format!(
                "of {threads}, cold buffers, threaded device; {} against {} a copy",
                time(&way.cpu),
                time(&spin.cpu)
            ),
        ));
        rows.push(Row::new(
            format!("{name}: until its end is seen, by spinning's"),
            ratio(&way.wall, &spin.wall),
            "of its time",
            must.then_some(Goal::AtMost(LATENCY)),
            format!("one at a time; {} against {}", time(&way.wall), time(&spin.wall)),
        ));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_energy_is_by_way_or_has_a_reason() {
        let mut ways = [WaitMethod::cpu(), WaitMethod::cpu()];
        ways[0].energy.add(Some(2.0), 5e8);
        ways[1].energy.add(Some(1.0), 5e8);
        let rows = energy_rows(&ways, None);
        assert_eq!(rows.iter().map(|row| row.measured).collect::<Vec<_>>(), [4.0, 2.0]);
        assert!(rows[0].what.starts_with("CPU"));
        let rows = energy_rows(&ways, Some("no counters"));
        assert!(rows.len() == 1 && rows[0].measured.is_nan() && rows[0].how == "no counters");
    }

    #[test]
    fn ways_are_compared_with_spinning_turn_by_turn() {
        let way = |name, wall: f64, cpu: f64| WaitMethod {
            name,
            wall: vec![wall, 2.0 * wall],
            cpu: vec![cpu, 2.0 * cpu],
            ..WaitMethod::cpu()
        };
        let rows = rows(&[way("spinning", 100.0, 100.0), way(PREDICTED, 108.0, 25.0), way("yielding", 101.0, 100.0)]);
        assert_eq!(rows.len(), 4);
        assert!((rows[0].measured - 25.0).abs() < 1e-9 && (rows[1].measured - 1.08).abs() < 1e-9);
        assert!(rows.iter().all(Row::reached));
        assert!(rows[..2].iter().all(|row| row.goal.is_some()) && rows[2..].iter().all(|row| row.goal.is_none()));
    }
}
