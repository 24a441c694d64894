//! The energy of the processor packages during measurements, where the system shows it.

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

    /// The remark for the reader where the energy is not known.
    pub(crate) fn remark(&self) -> Option<String> {
        self.0.as_ref().err().map(|reason| format!("Package energy: – ({reason})."))
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
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn energy_is_measured_around_work_also_where_the_counter_begins_again() {
        let sys = std::env::temp_dir().join(format!("telpher-bench-energy-{}", std::process::id()));
        let zone = sys.join("class/powercap/intel-rapl:0");
        fs::create_dir_all(&zone).unwrap();
        let set = |energy: u64| fs::write(zone.join("energy_uj"), format!("{energy}\n")).unwrap();
        fs::write(zone.join("name"), "package-0\n").unwrap();
        fs::write(zone.join("max_energy_range_uj"), "262143328850\n").unwrap();
        set(262_143_328_850 - 1_500_000);
        let mut meter = EnergyMeter::open(&sys);
        assert_eq!(meter.remark(), None);
        let ((), joules) = meter.around(|| set(500_000));
        assert_eq!(joules, Some(2.0));
        let mut sum = EnergyPerByte::default();
        sum.add(joules, 1e9);
        sum.add(Some(4.0), 2e9);
        assert_eq!(sum.joules_per_gb(), Some(2.0));
        sum.add(None, 1e9);
        assert_eq!(sum.joules_per_gb(), None);
        fs::remove_dir_all(&sys).unwrap();
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
