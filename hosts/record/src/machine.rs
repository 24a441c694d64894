//! The machine, as the recordings describe it.

use std::arch::x86_64::__cpuid;
use std::path::Path;
use telpher_offload_wire::RecordedMachine;

/// Returns the machine. The frequency of the time stamp counter is measured by the [calibration](crate::calibration).
pub(crate) fn machine(tsc_hz: u64, timer_ticks: u64) -> RecordedMachine {
    RecordedMachine {
        cpu: cpu_name(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
        cpu_signature: __cpuid(1).eax,
        logical_cpus: telpher_os::allowed_cpus().map_or(0, |cpus| u32::try_from(cpus.len()).unwrap_or(u32::MAX)),
        cache_bytes: cache_bytes(Path::new("/sys/devices/system/cpu/cpu0/cache")),
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim_end().to_owned(),
        tsc_hz,
        timer_ticks,
    }
}

/// Returns the processor's name.
fn cpu_name(cpuinfo: &str) -> String {
    let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| "unknown processor".into(), |(_, name)| name.to_owned())
}

/// Returns the bytes of the data caches of level 1, 2 and 3; 0 for a level that the kernel does not list.
fn cache_bytes(folder: &Path) -> [u64; 3] {
    let mut bytes = [0; 3];
    for index in 0..16 {
        let read = |name: &str| std::fs::read_to_string(folder.join(format!("index{index}")).join(name));
        let (Ok(level), Ok(kind), Ok(size)) = (read("level"), read("type"), read("size")) else { continue };
        let level = level.trim().parse().unwrap_or(0_usize);
        if kind.trim() != "Instruction"
            && let Some(of_level) = level.checked_sub(1).and_then(|level| bytes.get_mut(level))
        {
            *of_level = parse_size(size.trim()).unwrap_or(0);
        }
    }
    bytes
}

/// Reads the kernel's sizes: `48K`, `2M`.
fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.strip_suffix('K') {
        Some(digits) => (digits, 10),
        None => text.strip_suffix('M').map_or((text, 0), |digits| (digits, 20)),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_name_a_signature_and_a_kernel() {
        let machine = machine(1, 1);
        assert!(machine.cpu_signature != 0 && machine.logical_cpus > 0 && !machine.kernel.is_empty(), "{machine:?}");
    }

    #[test]
    fn sizes_and_names_are_read_as_the_kernel_writes_them() {
        assert_eq!(["48K", "2M", "512", "x"].map(parse_size), [Some(48 << 10), Some(2 << 20), Some(512), None]);
        assert_eq!(cpu_name("vendor_id\t: A\nmodel name\t: AMD EPYC 9B45\n"), "AMD EPYC 9B45");
        assert_eq!(cpu_name(""), "unknown processor");
        assert_eq!(cache_bytes(Path::new("/nowhere")), [0; 3]);
    }
}
