//! The energy that the processor packages have used, by the system's powercap files.
//!
//! Source: Linux, Documentation/power/powercap/powercap.rst: zones with `name`, `energy_uj` and `max_energy_range_uj`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why the energy is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnergyError {
    /// There are no counters.
    #[error("Linux shows no package energy in /sys/class/powercap; most virtual machines have none")]
    None,
    /// A counter cannot be read.
    #[error("cannot read {file}; Linux lets only root read it")]
    Read {
        /// The file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// A counter is no number.
    #[error("{file} has '{text}' and should have a number")]
    Number {
        /// The file.
        file: String,
        /// Its text.
        text: String,
    },
}

/// A package: its counter, the value after which it begins again, and the value that was read last.
#[derive(Debug)]
struct Zone {
    counter: PathBuf,
    range_uj: u64,
    last_uj: u64,
}

/// Counts the energy of all packages together.
#[derive(Debug)]
pub struct PackageEnergy {
    zones: Vec<Zone>,
    used_uj: u64,
}

impl PackageEnergy {
    /// Finds the packages below `sys`, which is `/sys` except in tests, and begins to count.
    ///
    /// # Errors
    /// If there are none, or this user may not read them.
    pub fn open(sys: &Path) -> Result<PackageEnergy, EnergyError> {
        let folder = sys.join("class/powercap");
        let entries = fs::read_dir(&folder).map_err(|_| EnergyError::None)?;
        let mut zones: Vec<Zone> = Vec::new();
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            // Parts of a package, such as its cores, have names of their own, as has the whole platform.
            let is_package = fs::read_to_string(path.join("name")).is_ok_and(|name| name.starts_with("package"));
            // The same packages may be listed a second time, with another interface of the processor.
            let is_second = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("intel-rapl-mmio"));
            if is_package && !is_second {
                let counter = path.join("energy_uj");
                let last_uj = number(&counter)?;
                zones.push(Zone { range_uj: number(&path.join("max_energy_range_uj"))?, counter, last_uj });
            }
        }
        if zones.is_empty() { Err(EnergyError::None) } else { Ok(PackageEnergy { zones, used_uj: 0 }) }
    }

    /// Returns the microjoules since [`open`](PackageEnergy::open). A counter may begin again once between two calls:
    /// at 200 W, with the range of published machines (262,143 J), after 20 minutes.
    ///
    /// # Errors
    /// If a counter cannot be read.
    pub fn microjoules(&mut self) -> Result<u64, EnergyError> {
        for zone in &mut self.zones {
            let now = number(&zone.counter)?;
            let grown = match now.checked_sub(zone.last_uj) {
                Some(grown) => grown,
                None => zone.range_uj.saturating_sub(zone.last_uj).saturating_add(now),
            };
            zone.last_uj = now;
            self.used_uj = self.used_uj.saturating_add(grown);
        }
        Ok(self.used_uj)
    }
}

fn number(path: &Path) -> Result<u64, EnergyError> {
    let file = || path.display().to_string();
    let text = fs::read_to_string(path).map_err(|source| EnergyError::Read { file: file(), source })?;
    text.trim().parse().map_err(|_| EnergyError::Number { file: file(), text: text.trim().into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two packages with their parts, as a server with two sockets shows them.
    struct Tree(PathBuf);

    impl Tree {
        fn new(test: &str) -> Tree {
            let tree = Tree(std::env::temp_dir().join(format!("telpher-energy-{}-{test}", std::process::id())));
            let _ = fs::remove_dir_all(&tree.0);
            let zones = [
                ("intel-rapl:0", "package-0", 1_000_u64, 262_143_328_850_u64),
                ("intel-rapl:0:0", "dram", 7, 65_712_999_613),
                ("intel-rapl:1", "package-1", 262_143_328_000, 262_143_328_850),
                ("intel-rapl:2", "psys", 5, 262_143_328_850),
                ("intel-rapl-mmio:0", "package-0", 1_000, 262_143_328_850),
            ];
            for (zone, name, energy, range) in zones {
                fs::create_dir_all(tree.zone(zone)).unwrap();
                fs::write(tree.zone(zone).join("name"), format!("{name}\n")).unwrap();
                tree.set(zone, energy);
                fs::write(tree.zone(zone).join("max_energy_range_uj"), format!("{range}\n")).unwrap();
            }
            tree
        }

        fn zone(&self, zone: &str) -> PathBuf {
            self.0.join("class/powercap").join(zone)
        }

        fn set(&self, zone: &str, energy: u64) {
            fs::write(self.zone(zone).join("energy_uj"), format!("{energy}\n")).unwrap();
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn packages_are_summed_and_a_counter_may_begin_again() {
        let tree = Tree::new("sum");
        let mut energy = PackageEnergy::open(&tree.0).unwrap();
        assert_eq!(energy.microjoules().unwrap(), 0);
        tree.set("intel-rapl:0", 1_500);
        tree.set("intel-rapl:0:0", 9_000);
        tree.set("intel-rapl:2", 9_000);
        assert_eq!(energy.microjoules().unwrap(), 500);
        // 850 up to the end of the range, and 150 after it.
        tree.set("intel-rapl:1", 150);
        assert_eq!(energy.microjoules().unwrap(), 1_500);
        assert_eq!(energy.microjoules().unwrap(), 1_500);
    }

    #[test]
    fn what_is_missing_or_no_number_has_a_reason() {
        let tree = Tree::new("reasons");
        assert!(matches!(PackageEnergy::open(Path::new("/nonexistent")), Err(EnergyError::None)));
        let mut energy = PackageEnergy::open(&tree.0).unwrap();
        fs::write(tree.zone("intel-rapl:1").join("energy_uj"), "much\n").unwrap();
        let error = energy.microjoules().unwrap_err().to_string();
        assert!(error.contains("intel-rapl:1/energy_uj has 'much'"), "{error}");
        fs::remove_file(tree.zone("intel-rapl:0").join("energy_uj")).unwrap();
        assert!(matches!(PackageEnergy::open(&tree.0), Err(EnergyError::Read { .. })));
    }
}
