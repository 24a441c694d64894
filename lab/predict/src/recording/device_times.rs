//! The times of a device for single descriptors, which a modelled device can impose on those of a program.

use super::options::PredictOptions;
use super::sample::TRANSFER;
use super::study::devices;
use crate::PredictError;
use telpher_abi::Opcode;
use telpher_device::{DescriptorTime, DeviceTimes};
use telpher_sim::{Picos, ReplayCall, ReplayDevices, ReplaySection, Replayed, ScenarioError, replay};

/// The smallest descriptor, as a power of two. Source: chosen; shorter calls stay with the CPU.
const SMALLEST: u32 = 10;

/// Threads that keep a device busy, and their calls. Source: chosen; more descriptors than its engines execute at a
/// time, and fewer than its queue holds.
const THREADS: usize = 32;
const CALLS: usize = 16;

/// Returns the times of one device of a machine for copies, fills and comparisons of data in memory: those that the
/// prediction for a recording would have for single calls. Only the machine and the hint of `options` matter.
///
/// # Errors
/// If the simulated device refuses its configuration.
pub fn device_times(options: &PredictOptions) -> Result<DeviceTimes, PredictError> {
    let device = devices(&PredictOptions { devices: Some(1), ..options.clone() }, 0);
    let of = |op| points(options, &device, op);
    let times = DeviceTimes::new(of(Opcode::MemoryMove)?, of(Opcode::Fill)?, of(Opcode::Compare)?);
    Ok(times.expect("the sizes ascend"))
}

/// The times for sizes from [`SMALLEST`] to the longest descriptor.
fn points(options: &PredictOptions, device: &ReplayDevices, op: Opcode) -> Result<Vec<DescriptorTime>, PredictError> {
    let simulate = |section: ReplaySection| -> Result<Replayed, PredictError> {
        let refused = |source| PredictError::Scenario(ScenarioError::Device { device: 0, source });
        replay(&options.machine, device, vec![section]).map_err(refused)
    };
    let sizes = (SMALLEST..=TRANSFER.ilog2()).map(|log| 1_u64 << log);
    let of = |bytes: u64| {
        // A microsecond before the call, so that the device is idle.
        let alone = simulate(vec![vec![call(op, bytes, 0, Picos::from_nanos(1000))]])?.took[0];
        let thread =
            |thread: usize| (0..CALLS).map(move |n| call(op, bytes, thread * CALLS + n, Picos::ZERO)).collect();
        let busy = simulate((0..THREADS).map(thread).collect())?.sections[0];
        let following = (THREADS * CALLS - 1) as u64;
        let nanos = |time: Picos, count: u64| (time.0 / count).div_ceil(1000);
        Ok(DescriptorTime { bytes, latency_ns: nanos(alone, 1), interval_ns: nanos(busy.since(alone), following) })
    };
    sizes.map(of).collect()
}

fn call(op: Opcode, bytes: u64, index: usize, gap: Picos) -> ReplayCall {
    ReplayCall { index, gap, ..ReplayCall::by_device(op, bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_sim::Machine;

    #[test]
    fn latency_and_interval_grow_with_the_size_and_a_busy_device_overlaps_descriptors() {
        let options = PredictOptions::on(Machine::built_in("spr-asplos").unwrap());
        let times = device_times(&options).unwrap();
        for op in [Opcode::MemoryMove, Opcode::Fill, Opcode::Compare] {
            let all: Vec<DescriptorTime> = (10..=21).map(|log| times.of(op, 1 << log).unwrap()).collect();
            for pair in all.windows(2) {
                assert!(pair[0].latency_ns < pair[1].latency_ns, "{op:?}: {pair:?}");
                assert!(pair[0].interval_ns <= pair[1].interval_ns, "{op:?}: {pair:?}");
            }
            assert!(all.iter().all(|time| (1..=time.latency_ns).contains(&time.interval_ns)), "{op:?}: {all:?}");
        }
        // DTO's README: 1.37 µs for 16 KiB, on a machine of that kind.
        let latency_ns = times.of(Opcode::MemoryMove, 16 << 10).unwrap().latency_ns;
        assert!((1000..2000).contains(&latency_ns), "{latency_ns}");
        // Results in memory take longer than those in the cache.
        let to_cache = device_times(&PredictOptions { to_cache: true, ..options }).unwrap();
        assert_ne!(to_cache, times);
    }
}
