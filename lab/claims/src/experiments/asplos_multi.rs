//! Kuper et al., §4.3 (Figure 10): several devices of one socket.
//!
//! Each device has its own queue and its own thread with 32 copies in flight. Destinations go to the cache (Cache
//! Control 1): §4.3 names the overflow of the devices' ways as the cause of the drop, although §4.1 says that the flag
//! was off.

use super::measure::{gigabytes, listed, never_falls};
use super::{Experiment, Found};
use crate::lab::Lab;
use crate::setups::{alone, asplos, in_flight, through};
use telpher_abi::Opcode;
use telpher_device::WqMode;
use telpher_sim::{Scenario, ScenarioError, Stream};

type Result<T = Found> = std::result::Result<T, ScenarioError>;

pub(super) const ALL: &[(&str, Experiment)] = &[
    ("K-046", linear_in_devices),
    ("K-047", three_devices),
    ("K-048", four_devices),
    ("K-049", four_devices_up_to_64_kb),
    ("K-050", more_ways),
];

/// "Beyond 64 KB": the drop is complete at the largest size.
const LARGE: u32 = 1 << 20;

/// Each device with its thread; destinations in the cache, or in memory.
pub(crate) fn all_at_once(devices: u16, size: u32, cache_control: bool) -> Scenario {
    let mut scenario = asplos(devices.into(), WqMode::Dedicated, 1);
    for device in 0..devices {
        let copies = Stream { cache_control, ..in_flight(Opcode::MemoryMove, size, 32, 1) };
        scenario = alone(scenario, through(device, 0, WqMode::Dedicated, copies));
    }
    scenario
}

fn rate(lab: &Lab, devices: u16, size: u32) -> Result<f64> {
    gigabytes(lab, &all_at_once(devices, size, true))
}

/// The devices write to the cache, or to memory: §4.3 and §4.1 disagree.
const WRITES: [(&str, bool); 2] = [("to the cache", true), ("to memory", false)];

fn linear_in_devices(lab: &Lab) -> Result {
    let mut ratios = Vec::new();
    for size in [4096, 16384, 65536] {
        for (name, cached) in WRITES {
            let rate = |devices| gigabytes(lab, &all_at_once(devices, size, cached));
            for devices in [2, 3, 4] {
                let ratio = rate(devices)? / (f64::from(devices) * rate(1)?);
                ratios.push((format!("{devices} × {} KB {name}", size >> 10), ratio));
            }
        }
    }
    Ok(Found::Numbers(ratios))
}

fn three_devices(lab: &Lab) -> Result {
    Ok(Found::Number(rate(lab, 3, LARGE)?))
}

fn four_devices(lab: &Lab) -> Result {
    Ok(Found::Number(rate(lab, 4, LARGE)?))
}

fn four_devices_up_to_64_kb(lab: &Lab) -> Result {
    let of = |(name, cached): (&str, bool)| Ok((name.to_owned(), gigabytes(lab, &all_at_once(4, 65536, cached))?));
    Ok(Found::Numbers(WRITES.into_iter().map(of).collect::<Result<_>>()?))
}

fn more_ways(lab: &Lab) -> Result {
    let mut rates = Vec::new();
    for ways in [1, 2, 4, 8, 15] {
        let mut scenario = all_at_once(4, 256 << 10, true);
        scenario.machine.cache.ddio_ways = ways;
        rates.push(gigabytes(lab, &scenario)?);
    }
    Ok(Found::shape(
        never_falls(&rates, 0.01) && rates[4] > rates[1] * 1.05,
        format!("256 KB, 1, 2, 4, 8, 15 ways: {} GB/s", listed(&rates)),
    ))
}
