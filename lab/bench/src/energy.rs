//! The energy of the processor packages during measurements, where the system shows it.

use crate::measure::Window;
use std::path::Path;
use telpher_os::{PackageEnergy, chain};

/// Measures the energy of parts of a run, or knows why it cannot.
#[derive(Debug)]
pub(crate) struct EnergyMeter(Result<PackageEnergy, String>);

impl EnergyMeter {
    /// Finds the packages below `sys`, which is `/sys` except in tests.
    pub(crate) fn open(sys: &Path) -> EnergyMeter {
        EnergyMeter(PackageEnergy::open(sys).map_err(|error| chain(&error)))
    }

    /// Why the energy is not known.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.0.as_ref().err().map(String::as_str)
    }

    /// The remark for the reader where the energy is not known.
    pub(crate) fn remark(&self) -> Option<String> {
        self.reason().map(|reason| format!("Package energy: – ({reason})."))
    }

    /// Runs `work`, and returns the joules that the packages have used meanwhile, if they are known.
    pub(crate) fn around<T>(&mut self, work: impl FnOnce() -> T) -> (T, Option<f64>) {
        let before = self.read();
        let done = work();
        let after = self.read();
        (done, before.zip(after).map(|(before, after)| after.saturating_sub(before) as f64 / 1e6))
    }

    fn read(&mut self) -> Option<u64> {
        let read = self.0.as_mut().ok()?.microjoules();
        match read {
            Ok(energy) => Some(energy),
            Err(error) => {
                self.0 = Err(chain(&error));
                None
            }
        }
    }
}

/// The energy of several windows, and the bytes that they copied.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EnergyPerByte {
    joules: Option<f64>,
    bytes: f64,
}

impl EnergyPerByte {
    /// Runs a window of operations of some bytes each, and adds it.
    pub(crate) fn around<E>(
        &mut self,
        meter: &mut EnergyMeter,
        bytes: f64,
        work: impl FnOnce() -> Result<Window, E>,
    ) -> Result<Window, E> {
        let (seen, joules) = meter.around(work);
        let seen = seen?;
        self.add(joules, seen.ops as f64 * bytes);
        Ok(seen)
    }

    /// Adds a window. The sum is not known without the energy of each.
    pub(crate) fn add(&mut self, joules: Option<f64>, bytes: f64) {
        let so_far = if self.bytes == 0.0 { Some(0.0) } else { self.joules };
        self.joules = so_far.zip(joules).map(|(sum, more)| sum + more);
        self.bytes += bytes;
    }

    /// Joules per GB (10⁹ bytes).
    pub(crate) fn joules_per_gb(&self) -> Option<f64> {
        Some(self.joules? / (self.bytes / 1e9)).filter(|joules| joules.is_finite())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    /// The files of one package, as Linux shows them on a server with an Intel processor.
    pub(crate) struct Tree(PathBuf);

    impl Tree {
        pub(crate) fn new(test: &str) -> Tree {
            let tree = Tree(std::env::temp_dir().join(format!("telpher-bench-energy-{test}-{}", std::process::id())));
            let _ = fs::remove_dir_all(&tree.0);
            fs::create_dir_all(tree.zone()).unwrap();
            fs::write(tree.zone().join("name"), "package-0\n").unwrap();
            fs::write(tree.zone().join("max_energy_range_uj"), format!("{}\n", tree.range_uj())).unwrap();
            tree.set(0);
            tree
        }

        pub(crate) fn sys(&self) -> &Path {
            &self.0
        }

        fn zone(&self) -> PathBuf {
            self.0.join("class/powercap/intel-rapl:0")
        }

        /// The microjoules after which the counter begins again.
        pub(crate) fn range_uj(&self) -> u64 {
            262_143_328_850
        }

        pub(crate) fn set(&self, energy: u64) {
            fs::write(self.zone().join("energy_uj"), format!("{energy}\n")).unwrap();
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn energy_is_measured_around_work_also_where_the_counter_begins_again() {
        let tree = Tree::new("around");
        tree.set(tree.range_uj() - 1_500_000);
        let mut meter = EnergyMeter::open(tree.sys());
        assert_eq!(meter.remark(), None);
        let ((), joules) = meter.around(|| tree.set(500_000));
        assert_eq!(joules, Some(2.0));
        let mut sum = EnergyPerByte::default();
        sum.add(joules, 1e9);
        sum.add(Some(4.0), 2e9);
        assert_eq!(sum.joules_per_gb(), Some(2.0));
        sum.add(None, 1e9);
        assert_eq!(sum.joules_per_gb(), None);
        drop(tree);
        let ((), joules) = meter.around(|| ());
        assert_eq!(joules, None);
        assert!(meter.remark().unwrap().contains("cannot read"), "{meter:?}");
    }

    #[test]
    fn a_machine_without_counters_has_a_remark() {
        let meter = EnergyMeter::open(Path::new("/nonexistent"));
        assert!(meter.remark().unwrap().starts_with("Package energy: – (Linux shows no package energy"));
        assert_eq!(EnergyPerByte::default().joules_per_gb(), None);
    }
}
