//! A long copy of data in memory, by a simulated device and by a simulated core.

use super::program::LONG;
use super::runs::PROFILE;
use crate::BenchError;
use crate::goal::{Goal, Row};
use crate::questions::Experiment;
use std::time::Duration;
use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_mover::MemoryCallsPolicy;
use telpher_report::machine::Machine;
use telpher_report::units;
use telpher_sim::{DataState, Picos, ReplayCall, ReplayDevices, Wait, replay};

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "simulated",
    question: "How long does the calling thread need for 64 KiB of uncached data that a simulated device copies?",
    cores: 1,
    weight: 0.1,
    measure,
};

/// Most time of the calling thread, by that of a copy by its core. Source: goal of `telpher offload`.
const DEVICE: f64 = 0.6;

fn measure(_: &Machine, _: Duration) -> Result<Vec<Row>, BenchError> {
    let machine = telpher_sim::Machine::built_in(PROFILE).expect("the profile is built in");
    let by_core = machine.core_time(Opcode::MemoryMove, LONG as u64, DataState::InMemory);
    let with = |to_cache| -> Result<Picos, BenchError> {
        let devices = ReplayDevices {
            configs: vec![Config::single(WqMode::Shared, 128, 4)],
            retries: MemoryCallsPolicy::OFFERS - 1,
            threshold: MemoryCallsPolicy::THRESHOLD,
            to_cache,
            wait: Wait::Poll,
        };
        let call = ReplayCall {
            gap: Picos::from_nanos(1000),
            by_core,
            ..ReplayCall::by_device(Opcode::MemoryMove, LONG as u64)
        };
        let replayed = replay(&machine, &devices, vec![vec![vec![call]]]);
        let replayed = replayed.map_err(|source| BenchError::Start { name: PROFILE.into(), source })?;
        Ok(replayed.took[0])
    };
    let time = |picos: Picos| units::time(picos.as_nanos_f64());
    [(false, "into memory"), (true, "into the cache")]
        .into_iter()
        .map(|(to_cache, target)| {
            let by_device = with(to_cache)?;
            Ok(Row::new(
                format!("64 KiB of uncached data {target}, simulated on {PROFILE}: time by that of its core"),
                by_device.as_nanos_f64() / by_core.as_nanos_f64(),
                "of the time",
                Some(Goal::AtMost(DEVICE)),
                format!("{} by the device, {} by the core", time(by_device), time(by_core)),
            ))
        })
        .collect()
}
