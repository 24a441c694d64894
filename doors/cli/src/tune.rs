//! `telpher tune`: measures what operations cost on this machine, by CPU and device, and writes the file with which
//! programs start.
//!
//! ```text
//! options ──► telpher-bench's tune ──► Tuning ──► the file; a table of the thresholds
//! ```

use crate::args::{Format, Tune};
use crate::{log, version};
use std::path::Path;
use telpher_bench::options::TuneOptions;
use telpher_bench::report::tune as report;
use telpher_bench::{BenchError, tune};
use telpher_device::DeviceName;
use telpher_mover::TuningError;
use telpher_report::deliver::DeliverError;
use telpher_report::machine::Machine;
use telpher_report::terminal;

/// Why a machine was not tuned.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TuneError {
    /// The measurement failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The file could not be written.
    #[error(transparent)]
    Tuning(#[from] TuningError),
    /// The device ran no operation, so there is nothing to compare with the CPU.
    #[error(
        "{device} ran none of the requested operations, so there is nothing to tune; `telpher list` shows what it \
         supports"
    )]
    Nothing {
        /// The device, as typed.
        device: String,
    },
    /// The name is not a device that can be tuned for.
    #[error("--device {0} is not a device to tune for; name a model or a queue, such as model:spr or hw:wq0.0")]
    Device(String),
    /// The result cannot be written.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
}

/// Measures, writes the file, and prints the result.
pub(crate) fn run(args: &Tune) -> Result<(), TuneError> {
    let device = device(args.device.as_deref())?;
    log::info(|| format!("tunes for {device}; kernels: {}", version::kernels()));
    writable(&args.tuning)?;
    args.printed.check()?;
    args.printed.begin();
    let result = tune::run(&options(args, &device), Machine::read())?;
    if result.tuning.measured.is_empty() {
        return Err(TuneError::Nothing { device });
    }
    result.tuning.save(&args.tuning)?;
    let text = match args.printed.format {
        Format::Table => terminal::folded(&report::text(&result, &args.tuning), terminal::columns()),
        Format::Json => report::json(&result, &args.tuning),
        Format::Csv => report::csv(&result),
    };
    Ok(args.printed.write(text)?)
}

/// Returns the device to tune for: the named one, otherwise the first usable hardware queue, otherwise the model.
fn device(named: Option<&str>) -> Result<String, TuneError> {
    if let Some(name) = named {
        return match name.parse::<DeviceName>().map_err(BenchError::from)? {
            DeviceName::Cpu | DeviceName::All => Err(TuneError::Device(name.into())),
            _ => Ok(name.into()),
        };
    }
    Ok(tune::default_device())
}

/// Checks before measuring that the file can be written, without changing it.
fn writable(path: &Path) -> Result<(), TuneError> {
    let refused = |source| TuningError::File { what: "write", path: path.to_owned(), source };
    Ok(telpher_os::check_writable(path).map_err(refused)?)
}

/// Returns what is measured.
fn options(args: &Tune, device: &str) -> TuneOptions {
    TuneOptions {
        ops: args.op.0.clone(),
        sizes: args.size.0.clone(),
        in_flight: args.in_flight,
        device: device.into(),
        runner: args.runner.into(),
        seconds: args.seconds,
    }
}
