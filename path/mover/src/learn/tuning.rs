//! The costs that `telpher tune` measured on a machine, as a file that users can read and edit and that a mover starts
//! with.
//!
//! ```text
//!  telpher tune ──► Tuning ──save──► tuning.toml ──load──► Tuning ──► Policy            its decisions
//!                                   TELPHER_TUNING              └──► Mover::load_costs its cost estimates
//! ```

use crate::api::policy::Policy;
use crate::api::setting::{SIZED, SettingError, sized};
use crate::learn::messages::{MessageTuning, Section};
use crate::plan::threshold::Threshold;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;
use telpher_abi::Opcode;
use telpher_ops::{VariantError, Variants};

/// Measured costs of a machine and the settings that follow from them.
///
/// ```
/// use telpher_mover::{Opcode, Policy, Tuning};
///
/// let text = r#"
///     version = 1
///     [machine]
///     cpu = "Some CPU"
///     device = "hw:wq0.0"
///     in-flight = 1
///     [policy]
///     threshold = "16k,fill=8k"
///     wait = "spin"
///     [kernels]
///     compare = "32"
///     [measured]
///     ## bytes, nanoseconds on the CPU, nanoseconds by the device
///     memory-move = [[4096, 400, 1140], [65536, 6300, 3400]]
/// "#;
/// let policy = Tuning::parse(text)?.policy();
/// assert_eq!(policy.threshold.of(Opcode::Fill), 8 << 10);
/// assert_eq!(policy.capacity, Policy::default().capacity);
/// # Ok::<(), telpher_mover::TuningError>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Tuning {
    /// Where it was measured.
    pub machine: TunedMachine,
    /// The initial policy of a mover: [`Policy::default`] with the settings of the file.
    policy: Policy,
    /// The variants of the CPU's kernels, if they were measured.
    pub kernels: Option<Variants>,
    /// Costs, ascending by operation and size.
    pub measured: Vec<Measured>,
    /// How messages between processes travel.
    pub messages: MessageTuning,
}

/// Where a [`Tuning`] was measured.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TunedMachine {
    /// Model name of the processor.
    pub cpu: String,
    /// The device, as `--device` names it.
    pub device: String,
    /// Operations in flight at once during the measurement; 1 means that each was waited for.
    pub in_flight: u32,
    /// When, in UTC, such as `2026-11-21 20:30`.
    #[serde(default)]
    pub date: String,
    /// The version of telpher that measured it.
    #[serde(default)]
    pub telpher: String,
}

/// What an operation of one size cost its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    /// The operation.
    pub op: Opcode,
    /// Bytes of the transfer.
    pub bytes: u64,
    /// On the CPU.
    pub cpu: Duration,
    /// By the device.
    pub device: Duration,
}

/// Why a tuning file was not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuningError {
    /// The system reported an error.
    #[error("cannot {what} the tuning file {}", path.display())]
    File {
        /// `read` or `write`.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// It is not valid TOML of a tuning file; the message names the line.
    #[error("this is not a valid tuning file: {0}")]
    Syntax(String),
    /// This library does not know its version.
    #[error(
        "the tuning file has version {found}, and this telpher reads version {}; write a new file with `telpher tune`",
        Tuning::VERSION
    )]
    Version {
        /// The version in the file.
        found: i64,
    },
    /// A setting under `[policy]` is not valid.
    #[error("under [policy]")]
    Setting(#[source] SettingError),
    /// A value under `[kernels]` is not valid.
    #[error("under [kernels]")]
    Kernels(#[source] VariantError),
    /// A value under `[measured]` cannot have been measured.
    #[error("under [measured], {operation}: {what}")]
    Measured {
        /// The operation, as the file names it.
        operation: String,
        /// What is wrong.
        what: String,
    },
    /// A value under `[messages]` is not possible.
    #[error("under [messages], {name}: {what}")]
    Messages {
        /// The key.
        name: &'static str,
        /// What is wrong.
        what: String,
    },
}

/// The file's structure.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    #[serde(rename = "version")]
    _version: i64,
    machine: TunedMachine,
    #[serde(default)]
    policy: BTreeMap<String, String>,
    #[serde(default)]
    kernels: BTreeMap<String, String>,
    #[serde(default)]
    measured: BTreeMap<String, Vec<[u64; 3]>>,
    #[serde(default)]
    messages: Section,
}

/// Read first, so that a file of another version is reported as such, not by its unknown keys.
#[derive(Deserialize)]
struct Versioned {
    version: i64,
}

/// Done once this process' kernels were chosen, by a tuning file or by measuring them.
pub(crate) static KERNELS_CHOSEN: Once = Once::new();

/// Longest file that is read, in bytes. Source: chosen; two thousand times what `telpher tune` writes.
const MOST_BYTES: u64 = 4 << 20;

/// Longest time that is accepted, in nanoseconds. Source: chosen; an hour for one operation is a typing error.
const MOST_NANOS: u64 = 3_600_000_000_000;

/// Largest transfer that is accepted, in bytes: what a descriptor's 32-bit size can express.
const MOST_TRANSFER: u64 = 1 << 32;

impl Tuning {
    /// The version this library writes and reads.
    pub const VERSION: i64 = 1;

    /// The environment variable that names the tuning file for programs.
    pub const VARIABLE: &'static str = "TELPHER_TUNING";

    /// A tuning with these costs; the threshold is the one that would have cost least, with equal weight for all sizes.
    #[must_use]
    pub fn new(machine: TunedMachine, mut measured: Vec<Measured>) -> Self {
        measured.sort_by_key(|point| (point.op, point.bytes));
        measured.dedup_by_key(|point| (point.op, point.bytes));
        let policy = Policy { threshold: best_threshold(&measured), ..Policy::default() };
        Tuning { machine, policy, kernels: None, measured, messages: MessageTuning::default() }
    }

    /// Makes the measured variants of the CPU's kernels those of this process.
    pub(crate) fn apply_kernels(&self) {
        if let Some(variants) = self.kernels {
            // Measured ones do not replace them later.
            KERNELS_CHOSEN.call_once(|| ());
            variants.apply();
        }
    }

    /// Returns the initial policy of a mover.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Parses the text of a tuning file. Every key must be known and every value must be possible.
    ///
    /// # Errors
    ///
    /// [`TuningError`], every variant but `File`.
    pub fn parse(text: &str) -> Result<Self, TuningError> {
        let syntax = |error: toml::de::Error| TuningError::Syntax(error.to_string().trim_end().to_owned());
        let Versioned { version } = toml::from_str(text).map_err(syntax)?;
        if version != Self::VERSION {
            return Err(TuningError::Version { found: version });
        }
        let shape: Shape = toml::from_str(text).map_err(syntax)?;
        let mut policy = Policy::default();
        for (name, value) in &shape.policy {
            policy.set(name, value).map_err(TuningError::Setting)?;
        }
        let mut kernels = None;
        for (name, value) in &shape.kernels {
            let variants: &mut Variants = kernels.get_or_insert_with(Variants::current);
            variants.set(name, value).map_err(TuningError::Kernels)?;
        }
        let mut measured = Vec::new();
        for (operation, points) in shape.measured {
            let wrong = |what: String| TuningError::Measured { operation: operation.clone(), what };
            let op = sized(&operation).ok_or_else(|| {
                let known = SIZED.map(Opcode::name).join(", ");
                wrong(format!("there is no such operation; the operations are {known}"))
            })?;
            for [bytes, cpu, device] in points {
                if !(1..=MOST_TRANSFER).contains(&bytes) {
                    return Err(wrong(format!(
                        "a transfer of {bytes} bytes; a size is from 1 to {MOST_TRANSFER} bytes"
                    )));
                }
                if let Some(nanos) = [cpu, device].into_iter().find(|nanos| !(1..=MOST_NANOS).contains(nanos)) {
                    return Err(wrong(format!("{nanos} ns for {bytes} bytes; a time is from 1 to {MOST_NANOS} ns")));
                }
                let [cpu, device] = [cpu, device].map(Duration::from_nanos);
                measured.push(Measured { op, bytes, cpu, device });
            }
        }
        measured.sort_by_key(|point| (point.op, point.bytes));
        if let Some(twice) = measured.windows(2).find(|pair| (pair[0].op, pair[0].bytes) == (pair[1].op, pair[1].bytes))
        {
            let what = format!("{} bytes appears twice", twice[0].bytes);
            return Err(TuningError::Measured { operation: twice[0].op.name().into(), what });
        }
        let messages = shape.messages.check().map_err(|(name, what)| TuningError::Messages { name, what })?;
        Ok(Tuning { machine: shape.machine, policy, kernels, measured, messages })
    }

    /// Reads a tuning file.
    ///
    /// # Errors
    ///
    /// [`TuningError`].
    pub fn load(path: &Path) -> Result<Self, TuningError> {
        let refused = |source| TuningError::File { what: "read", path: path.to_owned(), source };
        let mut text = String::new();
        let file = File::open(path).map_err(refused)?;
        // One more than allowed, so that a longer file is detected and not cut.
        file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(refused)?;
        if text.len() as u64 > MOST_BYTES {
            return Err(TuningError::Syntax(format!("it is longer than {MOST_BYTES} bytes")));
        }
        Self::parse(&text)
    }

    /// Reads the file that the environment variable [`Tuning::VARIABLE`] names; `None` if it names no file. If the file
    /// was measured on another processor, a message on standard error says so.
    ///
    /// # Errors
    ///
    /// [`TuningError`].
    pub fn from_environment() -> Result<Option<Self>, TuningError> {
        let Some(path) = std::env::var_os(Self::VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from) else {
            return Ok(None);
        };
        let tuning = Self::load(&path)?;
        if let Some(here) = telpher_os::cpu_name().filter(|here| *here != tuning.machine.cpu) {
            crate::report::say(format_args!(
                "the tuning file {} was measured on '{}', but this processor is '{here}'; write a new file here \
                 with `telpher tune`",
                path.display(),
                tuning.machine.cpu
            ));
        }
        Ok(Some(tuning))
    }

    /// Writes it to a file. The file is replaced as a whole or not at all.
    ///
    /// # Errors
    ///
    /// [`TuningError::File`].
    pub fn save(&self, path: &Path) -> Result<(), TuningError> {
        let refused = |source| TuningError::File { what: "write", path: path.to_owned(), source };
        telpher_os::write_file(path, self.to_toml().as_bytes()).map_err(refused)
    }

    /// Returns the file's text: TOML, with comments that explain the numbers.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let TunedMachine { cpu, device, in_flight, date, telpher } = &self.machine;
        let mut text = format!(
            "# Costs of operations on this machine, measured by `telpher tune`, and settings that follow from them.\n\
             # Programs that use telpher start with it if the environment has {}=<path of this file>.\n\
             version = {}\n\n\
             [machine]\n\
             cpu = {}\n\
             device = {}\n\
             # Operations in flight at once; 1 means that each was waited for.\n\
             in-flight = {in_flight}\n\
             date = {}\n\
             telpher = {}\n\n\
             # Settings that a mover starts with. Settings that are not here keep their defaults:\n",
            Self::VARIABLE,
            Self::VERSION,
            quoted(cpu),
            quoted(device),
            quoted(date),
            quoted(telpher),
        );
        let defaults = Policy::default();
        let value = |policy: &Policy, name| policy.get(name).unwrap_or_default();
        for setting in Policy::SETTINGS {
            // Writing to a string does not fail (here and below).
            let _ = writeln!(
                text,
                "#   {} = {}: {}.",
                setting.name,
                quoted(&value(&defaults, setting.name)),
                setting.about
            );
        }
        text.push_str("[policy]\n");
        for setting in Policy::SETTINGS {
            let own = value(&self.policy, setting.name);
            if setting.name == "threshold" || own != value(&defaults, setting.name) {
                let _ = writeln!(text, "{} = {}", setting.name, quoted(&own));
            }
        }
        if let Some(variants) = self.kernels {
            text.push_str("\n# Variants of the CPU's kernels that were fastest on data outside of the caches:\n");
            for (name, values) in Variants::CHOICES {
                let _ = writeln!(text, "#   {name}: {values}.");
            }
            text.push_str("[kernels]\n");
            for (name, value) in variants.values() {
                let _ = writeln!(text, "{name} = {}", quoted(&value));
            }
        }
        text.push_str(
            "\n# Medians, each point: [bytes, nanoseconds on the CPU, nanoseconds by the device].\n[measured]\n",
        );
        for points in self.measured.chunk_by(|a, b| a.op == b.op) {
            let _ = writeln!(text, "{} = [", points[0].op.name());
            for Measured { bytes, cpu, device, .. } in points {
                let _ = writeln!(text, "    [{bytes}, {}, {}],", cpu.as_nanos(), device.as_nanos());
            }
            text.push_str("]\n");
        }
        self.messages.write(&mut text);
        text
    }
}

/// Returns for each measured operation the limit under which its points would have cost least, with equal weight for
/// each point. The cost is the product of their times, so that neither the largest sizes nor one unlucky point decides.
/// An operation that was not measured keeps the default.
fn best_threshold(measured: &[Measured]) -> Threshold {
    let log = |time: Duration| time.as_secs_f64().max(1e-9).log2();
    measured.chunk_by(|a, b| a.op == b.op).fold(Threshold::default(), |threshold, points| {
        // At first nothing goes to the device; then, from the largest size down, one more point does.
        let (mut best, mut cost, mut least) = (u64::MAX, 0.0, 0.0);
        for point in points.iter().rev() {
            cost += log(point.device) - log(point.cpu);
            if cost < least {
                (best, least) = (point.bytes, cost);
            }
        }
        threshold.with(points[0].op, best)
    })
}

/// Returns a TOML basic string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(control));
            }
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(all(test, not(loom)))]
mod tests;
