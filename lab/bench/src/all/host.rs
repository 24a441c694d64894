//! The results of one host, and their file.

use crate::goal::{Goal, Verdict};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use telpher_report::machine::Machine;

/// The form of the file. The number rises when a reader of an older form would misread a newer file.
const SCHEMA: &str = "telpher.host-result/1";

/// The largest file that is read. Source: chosen; a file has some 100 KB.
const MOST_BYTES: u64 = 16 << 20;

/// What is known about a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Host {
    /// Model name of the processor.
    pub cpu: String,
    /// The processor's family; 0 if it is not known.
    pub family: u32,
    /// The processor's model; 0 if it is not known.
    pub model: u32,
    /// Cores that the benches could use.
    pub cores: usize,
    /// Bytes of the last-level cache, if known.
    pub llc_bytes: Option<u64>,
    /// Kernel release.
    pub kernel: String,
    /// Whether a hypervisor was found.
    pub virtual_machine: bool,
}

impl Host {
    /// Returns the kind of host: processors of one name, family and model count as equal.
    #[must_use]
    pub fn kind(&self) -> String {
        format!("{}, family {} model {}", self.cpu, self.family, self.model)
    }
}

/// A number with a goal, from one or more rounds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Quantity {
    /// The bench.
    pub bench: String,
    /// Its experiment; empty if it has none.
    pub experiment: String,
    /// The name of the quantity.
    pub what: String,
    /// Its unit.
    pub unit: String,
    /// Its goal.
    pub goal: Goal,
    /// The number of each round in which it was measured.
    pub values: Vec<f64>,
    /// Whether too little was measured to decide about the goal, in each round.
    pub open: bool,
    /// How it was measured, in the last round.
    pub how: String,
}

impl Quantity {
    /// Returns the median over the rounds; NaN without any.
    #[must_use]
    pub fn median(&self) -> f64 {
        let mut values = self.values.clone();
        values.sort_by(f64::total_cmp);
        match values.len() {
            0 => f64::NAN,
            len if len % 2 == 1 => values[len / 2],
            len => f64::midpoint(values[len / 2 - 1], values[len / 2]),
        }
    }

    /// Returns the smallest and the largest number of the rounds.
    #[must_use]
    pub fn range(&self) -> [f64; 2] {
        let fold = |start, choose: fn(f64, f64) -> f64| self.values.iter().copied().fold(start, choose);
        [fold(f64::INFINITY, f64::min), fold(f64::NEG_INFINITY, f64::max)]
    }

    /// Returns the verdict on the goal: that of the median.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let median = self.median();
        match (self.open || median.is_nan(), self.goal.is_reached(median)) {
            (true, _) => Verdict::Open,
            (false, true) => Verdict::Reached,
            (false, false) => Verdict::Short,
        }
    }

    /// Returns true if both are the same quantity.
    pub(super) fn is_same(&self, other: &Quantity) -> bool {
        (&self.bench, &self.experiment, &self.what) == (&other.bench, &other.experiment, &other.what)
    }
}

/// A bench that failed, in a round or in all.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Missing {
    /// The bench.
    pub bench: String,
    /// The reason.
    pub why: String,
}

/// The results of a host.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HostResult {
    /// The form of this file.
    pub schema: String,
    /// The host.
    pub host: Host,
    /// The version of telpher.
    pub telpher: String,
    /// When it began, in UTC.
    pub date: String,
    /// All numbers with goals, in the order of the benches.
    pub quantities: Vec<Quantity>,
    /// Benches that failed in at least one round. A bench that failed in every round has no quantities.
    pub missing: Vec<Missing>,
}

/// Why the files of a folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostFileError {
    /// The system reported an error.
    #[error("cannot {what} {}", path.display())]
    File {
        /// `read` or `write`.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The content is something else.
    #[error("{} is no result of `telpher bench all --save`: {why}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// There is no file.
    #[error("{} has no result of a host; `telpher bench all --save {}` writes one", path.display(), path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
}

impl HostResult {
    /// Creates a result without numbers.
    #[must_use]
    pub fn new(machine: &Machine) -> HostResult {
        let [family, model] = family_and_model(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
        HostResult {
            schema: SCHEMA.into(),
            host: Host {
                cpu: machine.cpu.clone(),
                family,
                model,
                cores: machine.cores.len(),
                llc_bytes: machine.llc_bytes,
                kernel: machine.kernel.clone(),
                virtual_machine: machine.virtual_machine,
            },
            telpher: machine.version.into(),
            date: machine.date.clone(),
            quantities: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// Adds the numbers of a round.
    pub(super) fn add(&mut self, round: Vec<Quantity>) {
        for new in round {
            match self.quantities.iter_mut().find(|known| known.is_same(&new)) {
                Some(known) => {
                    known.values.extend(new.values);
                    known.open &= new.open;
                    (known.goal, known.how) = (new.goal, new.how);
                }
                None => self.quantities.push(new),
            }
        }
    }

    /// Notes a bench that failed in a round; of several, the last reason stays.
    pub(crate) fn miss(&mut self, bench: &str, why: String) {
        self.missing.retain(|missing| missing.bench != bench);
        self.missing.push(Missing { bench: bench.into(), why });
    }

    /// Returns the name of its file: one for each kind of host and version.
    #[must_use]
    pub fn file_name(&self) -> String {
        let Host { cpu, family, model, .. } = &self.host;
        let words = cpu.to_lowercase();
        let words = words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let name: Vec<&str> = words.collect();
        let version: String =
            self.telpher.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-')).collect();
        format!("{}-{family}-{model}-{version}.json", name.join("-"))
    }

    /// Writes its file into a folder, in place of an earlier one; creates the folder.
    ///
    /// # Errors
    /// If the system reports an error.
    pub fn save(&self, folder: &Path) -> Result<PathBuf, HostFileError> {
        let path = folder.join(self.file_name());
        let failed = |source| HostFileError::File { what: "write", path: path.clone(), source };
        std::fs::create_dir_all(folder).map_err(failed)?;
        let text = serde_json::to_string_pretty(self).expect("plain data with string keys") + "\n";
        telpher_os::write_file(&path, text.as_bytes()).map_err(failed)?;
        Ok(path)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If the system reports an error, or the file has another form.
    pub fn load(path: &Path) -> Result<HostResult, HostFileError> {
        let failed = |source| HostFileError::File { what: "read", path: path.into(), source };
        let form = |why: String| HostFileError::Form { path: path.into(), why };
        let len = std::fs::metadata(path).map_err(failed)?.len();
        if len > MOST_BYTES {
            return Err(form(format!("it has {len} bytes, and such a file has at most {MOST_BYTES}")));
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let result: HostResult = serde_json::from_str(&text).map_err(|error| form(error.to_string()))?;
        if result.schema != SCHEMA {
            return Err(form(format!("its form is '{}', and this telpher reads '{SCHEMA}'", result.schema)));
        }
        Ok(result)
    }
}

/// Creates a folder for results if it does not exist, and checks that a file can be written there.
///
/// # Errors
/// If the system reports an error.
pub fn check_folder(folder: &Path) -> Result<(), HostFileError> {
    let failed = |source| HostFileError::File { what: "write", path: folder.into(), source };
    std::fs::create_dir_all(folder).map_err(failed)?;
    telpher_os::check_writable(&folder.join("host.json")).map_err(failed)
}

/// Reads all results in a folder, ordered by kind of host and then by date.
///
/// # Errors
/// If the folder or a file cannot be read, a file has another form, or there is none.
pub fn read_folder(folder: &Path) -> Result<Vec<HostResult>, HostFileError> {
    let failed = |source| HostFileError::File { what: "read", path: folder.into(), source };
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            all.push(HostResult::load(&path)?);
        }
    }
    if all.is_empty() {
        return Err(HostFileError::Empty { path: folder.into() });
    }
    all.sort_by_key(|result| (result.host.kind(), result.date.clone()));
    Ok(all)
}

/// Returns the numbers behind `cpu family` and `model` in `/proc/cpuinfo`.
fn family_and_model(cpuinfo: &str) -> [u32; 2] {
    ["cpu family", "model"].map(|name| {
        let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(key, _)| key.trim() == name).and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A result of a host with one quantity.
    pub(crate) fn sample(cpu: &str, date: &str, what: &str, goal: Goal, values: &[f64]) -> HostResult {
        let mut result = HostResult::new(&Machine::read());
        (result.host.cpu, result.host.family, result.host.model, result.date) = (cpu.into(), 25, 17, date.into());
        result.add(vec![Quantity {
            bench: "ops".into(),
            experiment: String::new(),
            what: what.into(),
            unit: "of its speed".into(),
            goal,
            values: values.to_vec(),
            open: false,
            how: "in turns".into(),
        }]);
        result
    }

    #[test]
    fn rounds_are_joined_and_the_median_decides() {
        let mut result = sample("A", "", "crc", Goal::AtLeast(1.0), &[1.2]);
        let more = |value| sample("A", "", "crc", Goal::AtLeast(1.0), &[value]).quantities;
        result.add(more(0.9));
        assert_eq!(result.quantities[0].verdict(), Verdict::Reached, "1.05 is the median of two");
        result.add(more(0.8));
        let [only] = &result.quantities.clone()[..] else { panic!() };
        assert_eq!((only.median(), only.range(), only.verdict()), (0.9, [0.8, 1.2], Verdict::Short));
        result.miss("dml", "exit status: 1: no cc".into());
        result.miss("dml", "exit status: 1: no pkg-config".into());
        assert_eq!(result.missing.len(), 1);
        let none = Quantity { values: Vec::new(), ..only.clone() };
        assert_eq!(none.verdict(), Verdict::Open);
    }

    #[test]
    fn a_saved_result_is_read_back_and_replaces_the_one_of_its_host() {
        let folder = std::env::temp_dir().join(format!("telpher-hosts-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        assert!(matches!(read_folder(&folder), Err(HostFileError::File { .. })));
        let first = sample("AMD EPYC (7.0)", "2026-01-01", "crc", Goal::AtLeast(1.0), &[1.5]);
        let path = first.save(&folder).unwrap();
        assert!(path.ends_with(format!("amd-epyc-7-0-25-17-{}.json", first.telpher)), "{}", path.display());
        let second = HostResult { date: "2026-02-02".into(), ..first };
        assert_eq!(second.save(&folder).unwrap(), path);
        assert_eq!(read_folder(&folder).unwrap(), std::slice::from_ref(&second));
        let other = HostResult { schema: "telpher.host-result/99".into(), ..second };
        other.save(&folder).unwrap();
        let refused = read_folder(&folder).unwrap_err().to_string();
        assert!(refused.contains("'telpher.host-result/99'"), "{refused}");
        std::fs::write(&path, "{}").unwrap();
        assert!(matches!(read_folder(&folder), Err(HostFileError::Form { .. })));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(read_folder(&folder), Err(HostFileError::Empty { .. })));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn family_and_model_are_those_of_the_first_processor() {
        let cpuinfo =
            "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nprocessor\t: 1\nmodel\t: 3\n";
        assert_eq!(family_and_model(cpuinfo), [25, 17]);
        assert_eq!(family_and_model("Hardware : other"), [0, 0]);
    }
}
