//! The measured systems as scenarios without loads, and the loads of the measurements.

use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_sim::{ExecutedBy, Machine, QueueId, Scenario, Stream, Workload};

/// Kuper et al., §4.1: Sapphire Rapids with `devices` devices; each has one queue with all 128 entries and `engines`
/// engines.
///
/// # Panics
/// Never: the profile is built in.
#[must_use]
pub fn asplos(devices: usize, mode: WqMode, engines: u32) -> Scenario {
    on("spr-asplos", devices, mode, engines)
}

/// A profile's machine with identical devices: one queue with all 128 entries, and `engines` engines.
///
/// # Panics
/// If there is no such profile.
#[must_use]
pub fn on(profile: &str, devices: usize, mode: WqMode, engines: u32) -> Scenario {
    let machine = Machine::built_in(profile).expect("a built-in profile");
    let mut scenario = Scenario::on(machine, Config::single(mode, 128, engines));
    scenario.devices = vec![scenario.devices[0].clone(); devices];
    scenario
}

/// One operation at a time: submit, wait, then the next.
#[must_use]
pub fn one_by_one(op: Opcode, size: u32, batch: u32) -> Stream {
    Stream { batch, submissions: 100, ..Stream::of(op, size) }
}

/// The same with descriptors that are flushed from the caches before each submission. Kuper et al. use it to compare
/// the device with a core, and to measure the parts of its latency (§4.1).
#[must_use]
pub fn flushed(op: Opcode, size: u32, batch: u32) -> Stream {
    Stream { cold_descriptors: true, ..one_by_one(op, size, batch) }
}

/// `depth` operations in flight, long enough that begin and end do not matter.
#[must_use]
pub fn in_flight(op: Opcode, size: u32, depth: u32, batch: u32) -> Stream {
    let submissions = (2000 / u64::from(batch.max(1))).max(10 * u64::from(depth));
    Stream { depth, batch, submissions, ..Stream::of(op, size) }
}

/// The same executed by a core.
#[must_use]
pub fn by_core(op: Opcode, size: u32) -> Stream {
    Stream { by: ExecutedBy::Cpu, submissions: 100, ..Stream::of(op, size) }
}

/// A stream through that queue of a device.
#[must_use]
pub fn through(device: u16, wq: usize, mode: WqMode, stream: Stream) -> Stream {
    Stream { by: ExecutedBy::Device(QueueId { device, wq, shared: mode == WqMode::Shared }), ..stream }
}

/// A load with one thread.
#[must_use]
pub fn alone(scenario: Scenario, stream: Stream) -> Scenario {
    threads(scenario, 1, stream)
}

/// A load with several identical threads.
#[must_use]
pub fn threads(scenario: Scenario, threads: u32, stream: Stream) -> Scenario {
    scenario.with(stream.op.name(), threads, Workload::Stream(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_has_its_own_path() {
        let rate = |devices: u16| {
            let mut scenario = asplos(devices.into(), WqMode::Dedicated, 1);
            for device in 0..devices {
                let copies = in_flight(Opcode::MemoryMove, 65536, 32, 1);
                scenario = alone(scenario, through(device, 0, WqMode::Dedicated, copies));
            }
            scenario.simulate().unwrap().loads.iter().map(|load| load.gigabytes_per_second()).sum::<f64>()
        };
        let (one, two) = (rate(1), rate(2));
        assert!((two / one - 2.0).abs() < 0.1, "{one} and {two} GB/s");
    }
}
