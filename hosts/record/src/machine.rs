//! The machine, as the recordings describe it.

use std::arch::x86_64::__cpuid;
use telpher_recording::Machine;

/// Returns the machine. The frequency of the time stamp counter is measured by the [calibration](crate::calibration).
pub(crate) fn machine(tsc_hz: u64) -> Machine {
    let [l1, l2, l3, _] = telpher_os::cache_bytes();
    Machine {
        cpu: telpher_os::cpu_name().unwrap_or_else(|| "unknown processor".into()),
        cpu_signature: __cpuid(1).eax,
        logical_cpus: telpher_os::allowed_cpus().map_or(0, |cpus| u32::try_from(cpus.len()).unwrap_or(u32::MAX)),
        cache_bytes: [l1, l2, l3],
        kernel: telpher_os::kernel_release().unwrap_or_default(),
        tsc_hz,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_name_a_signature_and_a_kernel() {
        let machine = machine(1);
        assert!(machine.cpu_signature != 0 && machine.logical_cpus > 0 && !machine.kernel.is_empty(), "{machine:?}");
    }
}
