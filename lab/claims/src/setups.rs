//! The systems on which numbers were measured, as scenarios without work.

use telpher_device::{Config, WqMode};
use telpher_sim::{Machine, Scenario};

/// Kuper et al., §4.1: Sapphire Rapids, so many devices, one queue each with all 128 entries, so many engines behind it.
///
/// # Panics
/// Never: the profile is built in.
#[must_use]
pub fn asplos(devices: usize, mode: WqMode, engines: u32) -> Scenario {
    let machine = Machine::built_in("spr-asplos").expect("built in");
    let mut scenario = Scenario::on(machine, Config::single(mode, 128, engines));
    scenario.devices = vec![scenario.devices[0].clone(); devices];
    scenario
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_abi::Opcode;
    use telpher_sim::{By, Lane, Stream, What};

    #[test]
    fn each_device_has_its_own_path() {
        let rate = |devices: u16| {
            let mut scenario = asplos(devices.into(), WqMode::Dedicated, 1);
            for device in 0..devices {
                let by = By::Device(Lane { device, wq: 0, shared: false });
                let copies = Stream { by, depth: 32, ..Stream::of(Opcode::MemoryMove, 65536) };
                scenario = scenario.with("copies", 1, What::Stream(copies));
            }
            scenario.simulate().unwrap().loads.iter().map(|load| load.gigabytes_per_second()).sum::<f64>()
        };
        let (one, two) = (rate(1), rate(2));
        assert!((two / one - 2.0).abs() < 0.1, "{one} and {two} GB/s");
    }
}
