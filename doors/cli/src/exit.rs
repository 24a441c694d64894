//! Exit codes of the commands.
//!
//! | command | invalid command line | failure | otherwise |
//! |---|---|---|---|
//! | `run`, `tier run`, `offload`, `record` | 125 | 125 if telpher fails; 126 if the program cannot be executed, 127 if it does not exist | the program's own |
//! | `doctor` | 1 | 1 | 0 no findings or only notes, 2 warnings, 3 errors |
//! | all others | 2 | 1 | 0 |

use crate::nvmf::NvmfError;
use crate::qdp::QdpError;
use crate::record::ReadingError;
use crate::shell::ShellError;
use crate::sim::SimError;
use crate::tier::TopError;
use crate::trace::TraceError;
use crate::tune::TuneError;
use crate::vhost::VhostError;
use telpher_bench::BenchError;
use telpher_nvmf_run::ConfigError;
use telpher_switch_run::SwitchRunError;

/// A command's exit codes for errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Codes {
    /// The command line is invalid.
    pub(crate) usage: u8,
    /// Something failed.
    pub(crate) failure: u8,
}

/// The codes of all other commands.
const OTHERS: Codes = Codes { usage: 2, failure: 1 };

/// Commands with other codes, by their first words; the first entry that fits counts. As with env(1) and timeout(1), a
/// program's own codes stay below 125. The doctor's 2 means warnings.
const COMMANDS: [(&[&str], Codes); 12] = [
    (&["run"], Codes { usage: 125, failure: 125 }),
    (&["offload", "top"], OTHERS),
    (&["offload", "off"], OTHERS),
    (&["offload", "on"], OTHERS),
    (&["offload", "install"], OTHERS),
    (&["offload"], Codes { usage: 125, failure: 125 }),
    (&["record", "show"], OTHERS),
    (&["record", "predict"], OTHERS),
    (&["record", "merge"], OTHERS),
    (&["record"], Codes { usage: 125, failure: 125 }),
    (&["tier", "run"], Codes { usage: 125, failure: 125 }),
    (&["doctor"], Codes { usage: 1, failure: 1 }),
];

/// Returns true for `-v`, `-vv` and so on, and `--verbose`.
fn is_verbose(word: &str) -> bool {
    let repeated = |letters: &str| !letters.is_empty() && letters.chars().all(|letter| letter == 'v');
    word == "--verbose" || word.strip_prefix('-').is_some_and(repeated)
}

/// Returns the codes of the command with which `words` (the arguments) begin.
pub(crate) fn codes(words: &[String]) -> Codes {
    let is_it = |command: &&(&[&str], Codes)| {
        // Global flags may come before the command.
        let names = words.iter().map(String::as_str).filter(|word| !is_verbose(word));
        names.take(command.0.len()).eq(command.0.iter().copied())
    };
    COMMANDS.iter().find(is_it).map_or(OTHERS, |command| command.1)
}

/// An error that may be about the command line.
pub(crate) trait Usage: std::error::Error {
    /// Returns true if the command line is wrong on every machine.
    fn is_usage(&self) -> bool {
        false
    }
}

impl Usage for ReadingError {
    fn is_usage(&self) -> bool {
        matches!(self, ReadingError::Simulate(error) if error.is_usage())
    }
}

impl Usage for BenchError {
    fn is_usage(&self) -> bool {
        matches!(self, BenchError::Name(_) | BenchError::Usage(_))
    }
}

impl Usage for crate::bench::Error {
    fn is_usage(&self) -> bool {
        matches!(self, crate::bench::Error::Bench(error) if error.is_usage())
    }
}

impl Usage for SimError {
    fn is_usage(&self) -> bool {
        match self {
            SimError::NoFigure { .. } | SimError::Not(_) => true,
            SimError::Predict(error) => error.is_usage(),
            _ => false,
        }
    }
}

impl Usage for QdpError {
    fn is_usage(&self) -> bool {
        match self {
            QdpError::Name(_) | QdpError::Setting(_) => true,
            QdpError::Here(error) => error.is_usage(),
            QdpError::Sim(error) => error.is_usage(),
            _ => false,
        }
    }
}

impl Usage for TuneError {
    fn is_usage(&self) -> bool {
        match self {
            TuneError::Device(_) => true,
            TuneError::Bench(error) => error.is_usage(),
            _ => false,
        }
    }
}

impl Usage for VhostError {
    fn is_usage(&self) -> bool {
        matches!(
            self,
            VhostError::Switch(
                SwitchRunError::NoPorts
                    | SwitchRunError::TapName(_)
                    | SwitchRunError::NoPort { .. }
                    | SwitchRunError::NoDmaQueue { .. }
                    | SwitchRunError::NoDevice
                    | SwitchRunError::Threads { .. }
                    | SwitchRunError::Size { .. }
                    | SwitchRunError::Name(_)
            )
        )
    }
}

impl Usage for NvmfError {
    fn is_usage(&self) -> bool {
        matches!(self, NvmfError::Nothing | NvmfError::Config(ConfigError::Values(_)))
    }
}

impl Usage for ShellError {
    fn is_usage(&self) -> bool {
        matches!(self, ShellError::NoCommand(_))
    }
}

impl Usage for TraceError {}

impl Usage for telpher_tier_run::PauseError {}

impl Usage for crate::offload::RunError {
    fn is_usage(&self) -> bool {
        matches!(self, crate::offload::RunError::Format | crate::offload::RunError::StatisticsOfVariables)
    }
}

impl Usage for telpher_offload::SwitchError {}

impl Usage for crate::offload::TopError {}

impl Usage for TopError {}
