//! What Linux says about the processor and about itself.

use std::path::Path;

/// Returns the processor's model name; `None` if the system does not report it.
#[must_use]
pub fn cpu_name() -> Option<String> {
    name_in(&std::fs::read_to_string("/proc/cpuinfo").ok()?)
}

fn name_in(cpuinfo: &str) -> Option<String> {
    let (_, name) = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'))?;
    Some(name.trim().to_owned())
}

/// Returns the bytes of the data or unified caches of levels 1 to 4 that CPU 0 uses; 0 for a level that the kernel
/// does not list.
#[must_use]
pub fn cache_bytes() -> [u64; 4] {
    caches_in(Path::new("/sys/devices/system/cpu/cpu0/cache"))
}

fn caches_in(folder: &Path) -> [u64; 4] {
    let mut bytes = [0; 4];
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

/// Returns the kernel's release, such as `6.1.0-18-amd64`; `None` if the system does not report it.
#[must_use]
pub fn kernel_release() -> Option<String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(release.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_kernel_and_a_first_cache_or_says_so() {
        assert!(kernel_release().is_some_and(|release| !release.is_empty()));
        assert!(cache_bytes()[0] < 1 << 30);
    }

    #[test]
    fn sizes_and_names_are_read_as_the_kernel_writes_them() {
        assert_eq!(["48K", "2M", "512", "x"].map(parse_size), [Some(48 << 10), Some(2 << 20), Some(512), None]);
        assert_eq!(name_in("vendor_id\t: A\nmodel name\t: AMD EPYC 9B45\n").as_deref(), Some("AMD EPYC 9B45"));
        assert_eq!(name_in(""), None);
        assert_eq!(caches_in(Path::new("/nowhere")), [0; 4]);
    }

    #[test]
    fn data_caches_are_told_from_instruction_caches() {
        let folder = std::env::temp_dir().join(format!("telpher-caches-{}", std::process::id()));
        let caches =
            [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K"), ("9", "Unified", "1K")];
        for (index, (level, kind, size)) in caches.into_iter().enumerate() {
            let here = folder.join(format!("index{index}"));
            std::fs::create_dir_all(&here).unwrap();
            for (name, text) in [("level", level), ("type", kind), ("size", size)] {
                std::fs::write(here.join(name), format!("{text}\n")).unwrap();
            }
        }
        let found = caches_in(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, [48 << 10, 2 << 20, 0, 0]);
    }
}
