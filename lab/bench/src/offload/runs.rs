//! Commands of telpher that other experiments run, and their results.

use crate::BenchError;
use crate::folder::Folder;
use serde_json::Value;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// The words that offload a program to a modelled device; call sites are learned.
pub(super) const OFFLOAD: [&str; 4] = ["offload", "--device", "model:spr", "--quiet"];

/// The words that record a program in a folder.
pub(super) fn record_into(folder: &Folder) -> Vec<OsString> {
    let mut words: Vec<OsString> = ["record", "--quiet", "--folder"].map(Into::into).into();
    words.push(folder.file("recording").into());
    words
}

/// Runs a command of telpher to its end; returns what it prints.
pub(super) fn telpher<S: AsRef<std::ffi::OsStr>>(words: &[S]) -> Result<Vec<u8>, BenchError> {
    let what = words.iter().map(|word| word.as_ref().to_string_lossy()).collect::<Vec<_>>().join(" ");
    let failed = |source| BenchError::Program { what: format!("telpher {what}"), source };
    let telpher = std::env::current_exe().map_err(failed)?;
    let output = Command::new(telpher).args(words).stdin(Stdio::null()).output().map_err(failed)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(io::Error::other(format!("{}: {}", output.status, said.trim()))))
}

/// What a recording predicts for `spr-asplos`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Predicted {
    /// Calls, bytes and nanoseconds of calls that go to devices with the best policy.
    pub(super) calls: f64,
    pub(super) bytes: f64,
    pub(super) ns: f64,
    /// The share of long calls in which a device is predicted to meet a missing page.
    pub(super) faults: f64,
    /// The deviation of the replay without devices from the recorded time of the calls.
    pub(super) replay_error: f64,
}

/// Predicts from the recording in a folder, and writes the best policy to the file `verdicts` there.
pub(super) fn predict(folder: &Folder) -> Result<Predicted, BenchError> {
    let mut words: Vec<OsString> =
        ["record", "predict", "--profile", PROFILE, "--hint", "cache", "--format", "json", "--verdicts"]
            .map(Into::into)
            .into();
    words.extend([folder.file("verdicts").into(), folder.file("recording").into()]);
    let result = parsed(&telpher(&words)?)?;
    let number = |of: &str, field: &str| result[of][field].as_f64().unwrap_or(f64::NAN);
    Ok(Predicted {
        calls: number("devices", "calls"),
        bytes: number("devices", "bytes"),
        ns: number("devices", "calls_ns"),
        faults: number("devices", "faults"),
        replay_error: number("check", "error"),
    })
}

/// The profile of the simulated device.
pub(super) const PROFILE: &str = "spr-asplos";

/// What the processes of a run under `telpher offload` did with a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Offloaded {
    pub(super) calls: f64,
    pub(super) bytes: f64,
    /// Nanoseconds at the simulated device.
    pub(super) ns: f64,
    /// Descriptors that took the CPU longer than the simulated device.
    pub(super) late: f64,
}

/// The words that offload a program as the file `verdicts` says, with simulated device times. The counters are written
/// to the file `offload.json`.
pub(super) fn offload_as_predicted(folder: &Folder) -> Vec<OsString> {
    let mut words: Vec<OsString> =
        ["offload", "--device", "model:spr", "--device-times", PROFILE, "--format", "json"].map(Into::into).into();
    words.extend(["--output".into(), folder.file("offload.json").into()]);
    words.extend(["--verdicts".into(), folder.file("verdicts").into()]);
    words
}

/// Reads the counters of a run.
pub(super) fn offloaded(counters: &Path) -> Result<Offloaded, BenchError> {
    let failed = |source| BenchError::Program { what: format!("reading {}", counters.display()), source };
    let result = parsed(&std::fs::read(counters).map_err(failed)?)?;
    let processes = result.as_array().map(Vec::as_slice).unwrap_or_default();
    let sum = |field: &str| processes.iter().map(|process| process[field].as_f64().unwrap_or(f64::NAN)).sum();
    Ok(Offloaded {
        calls: sum("device_calls"),
        bytes: sum("device_bytes"),
        ns: sum("simulated_ns"),
        late: sum("late_descriptors"),
    })
}

/// How far a predicted number is from the run's, in per cent; `NaN` if the prediction leaves all calls to the CPU.
pub(super) fn deviation(predicted: f64, done: f64) -> f64 {
    if predicted > 0.0 { 100.0 * (predicted / done - 1.0).abs() } else { f64::NAN }
}

fn parsed(json: &[u8]) -> Result<Value, BenchError> {
    let failed =
        |error| BenchError::Program { what: "reading a result of telpher".into(), source: io::Error::other(error) };
    serde_json::from_slice(json).map_err(failed)
}
