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
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(failed(io::Error::other(format!("{}: {}", output.status, stderr.trim()))))
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
    /// The deviation of the sections' time in a replay without devices from their recorded time, as a part of 1.
    pub(super) section_error: f64,
    /// The deviation of the calls' times by the calibration curves from their recorded times, likewise. `None` if no
    /// call has a curve.
    pub(super) curve_error: Option<f64>,
}

/// Predicts from the recording in a folder, and writes the best policy to the file `verdicts` there.
pub(super) fn predict(folder: &Folder) -> Result<Predicted, BenchError> {
    let mut words: Vec<OsString> =
        ["record", "predict", "--profile", PROFILE, "--hint", "cache", "--format", "json", "--verdicts"]
            .map(Into::into)
            .into();
    words.extend([folder.file("verdicts").into(), folder.file("recording").into()]);
    predicted(&parsed(&telpher(&words)?)?)
}

/// Reads a prediction.
fn predicted(result: &Value) -> Result<Predicted, BenchError> {
    let (devices, check) = (&result["devices"], &result["check"]);
    let curve_error = match check.get("curve_error") {
        Some(Value::Null) => None,
        _ => Some(number(check, "curve_error")?),
    };
    Ok(Predicted {
        calls: number(devices, "calls")?,
        bytes: number(devices, "bytes")?,
        ns: number(devices, "calls_ns")?,
        faults: number(devices, "faults")?,
        section_error: number(check, "section_error")?,
        curve_error,
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
    summed(&parsed(&std::fs::read(counters).map_err(failed)?)?)
}

/// Sums the counters of all processes.
fn summed(result: &Value) -> Result<Offloaded, BenchError> {
    let processes = result["processes"].as_array().filter(|processes| !processes.is_empty());
    let processes = processes.ok_or_else(|| wrong_result("it has no process".into()))?;
    let sum = |field: &str| processes.iter().map(|process| number(process, field)).sum::<Result<f64, _>>();
    Ok(Offloaded {
        calls: sum("device_calls")?,
        bytes: sum("device_bytes")?,
        ns: sum("simulated_ns")?,
        late: sum("late_descriptors")?,
    })
}

/// Reads a field that must be a number.
fn number(of: &Value, field: &str) -> Result<f64, BenchError> {
    of[field].as_f64().ok_or_else(|| wrong_result(format!("{field} is {}, not a number", of[field])))
}

/// Returns the largest number; `NaN` if one of them is, or if there is none.
pub(super) fn largest(numbers: impl Iterator<Item = f64>) -> f64 {
    // `f64::max` would leave out `NaN`.
    numbers.reduce(|most, next| if most.is_nan() || most > next { most } else { next }).unwrap_or(f64::NAN)
}

/// How far a predicted number is from the run's, in per cent; `NaN` if the prediction leaves all calls to the CPU.
pub(super) fn deviation(predicted: f64, done: f64) -> f64 {
    if predicted > 0.0 { 100.0 * (predicted / done - 1.0).abs() } else { f64::NAN }
}

fn parsed(json: &[u8]) -> Result<Value, BenchError> {
    serde_json::from_slice(json).map_err(|error| wrong_result(error.to_string()))
}

fn wrong_result(problem: String) -> BenchError {
    BenchError::Program { what: "reading a result of telpher".into(), source: io::Error::other(problem) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_missing_field_of_a_prediction_is_an_error() {
        let devices = json!({ "calls": 10, "bytes": 640, "calls_ns": 5.5, "faults": 0 });
        let check = json!({ "section_error": -0.01, "curve_error": null });
        let read = predicted(&json!({ "devices": devices, "check": check })).unwrap();
        assert_eq!((read.calls, read.ns, read.section_error, read.curve_error), (10.0, 5.5, -0.01, None));
        for (object, fields) in [("devices", &devices), ("check", &check)] {
            for field in fields.as_object().unwrap().keys() {
                let mut result = json!({ "devices": devices, "check": check });
                result[object].as_object_mut().unwrap().remove(field);
                let error = telpher_os::chain(&predicted(&result).unwrap_err());
                assert!(error.contains(&format!("{field} is null, not a number")), "{field}: {error}");
            }
        }
    }

    #[test]
    fn counters_are_summed_and_a_missing_one_is_an_error() {
        let process = json!({ "device_calls": 2, "device_bytes": 128, "simulated_ns": 9, "late_descriptors": 1 });
        let done = summed(&json!({ "processes": [process, process] })).unwrap();
        assert_eq!(done, Offloaded { calls: 4.0, bytes: 256.0, ns: 18.0, late: 2.0 });
        assert!(summed(&json!({ "processes": [process, { "device_calls": 2 }] })).is_err());
        assert!(summed(&json!({ "processes": [] })).is_err() && summed(&json!({})).is_err());
    }

    #[test]
    fn the_largest_of_numbers_with_nan_is_nan() {
        assert_eq!(largest([1.0, 3.0, 2.0].into_iter()), 3.0);
        for numbers in [&[f64::NAN, 1.0][..], &[1.0, f64::NAN], &[1.0, f64::NAN, 2.0], &[]] {
            assert!(largest(numbers.iter().copied()).is_nan(), "{numbers:?}");
        }
    }
}
