//! What a recorded program would gain by offloading its copies: the result of `telpher record predict`.

mod page;
mod tables;
#[cfg(test)]
mod tests;

use crate::about::About;
use serde::Serialize;

pub use page::html;
pub use tables::{csv, text};

/// A prediction, as serialised. Times are in nanoseconds; those of several threads are summed. A gain is the time
/// without devices divided by the time with them. A number is absent where the recording has nothing to compute it
/// from.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    /// Always `record predict`.
    pub kind: &'static str,
    /// The header of the result.
    #[serde(flatten)]
    pub about: About,
    /// What was recorded.
    pub recorded: Recorded,
    /// The replay without devices, compared with the recording.
    pub check: ReplayCheck,
    /// The long calls as recorded.
    pub as_recorded: CallTimes,
    /// The long calls by the CPU of the profile's machine.
    pub by_cpu: CallTimes,
    /// The long calls with the best policy for each call site, on the profile's machine.
    pub offloaded: CallTimes,
    /// Gain of the long calls with that policy.
    pub gain_of_calls: Option<f64>,
    /// Gain of the whole program with that policy, if its other work takes as long as recorded (Amdahl's law).
    pub gain_of_program: Option<f64>,
    /// The work of devices with that policy.
    pub devices: DeviceWork,
    /// The gain if all calls from a size on go to devices, by size.
    pub thresholds: Vec<ThresholdGain>,
    /// The largest of the sizes with the highest gain; absent if no size gains.
    pub best_threshold: Option<u64>,
    /// The policy for each call site, by the time that it saves.
    pub sites: Vec<SitePolicy>,
    /// The gain if another share of the data were cold.
    pub cold_shares: Vec<ColdShareGain>,
    /// What was scaled from the recorded machine to that of the profile, and how.
    pub scaled: Vec<String>,
    /// What the prediction assumes.
    pub assumptions: Vec<String>,
    /// What the recording lacks, and what was cut.
    pub remarks: Vec<String>,
    /// The prediction compared with another recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<Comparison>,
}

/// What was recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Recorded {
    /// The first program's path.
    pub program: String,
    /// Number of processes.
    pub processes: u64,
    /// The processor.
    pub cpu: String,
    /// Calls of all sizes.
    pub calls: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The time in calls of all sizes, estimated from the timed ones.
    pub calls_ns: f64,
    /// Bytes from which on a call is long.
    pub long_from: u64,
    /// Long calls.
    pub long_calls: u64,
    /// Their bytes.
    pub long_bytes: u64,
    /// The time in long calls.
    pub long_ns: f64,
    /// The part of it in which calls were interrupted, scaled from the replayed ones.
    pub interrupted_ns: f64,
    /// From the first start of a process to the last end of a long call.
    pub wall_ns: f64,
    /// Threads with long calls.
    pub threads: u64,
    /// The time of the program: the processor time of the processes with long calls. For one that was killed before it
    /// noted its time, the time from its start to its last long call, for each thread with long calls.
    pub program_ns: f64,
    /// The share of long calls in that time.
    pub long_share: Option<f64>,
    /// The share of bytes in replayed long calls whose data was in the caches.
    pub hot_share: Option<f64>,
    /// The share whose data came from memory.
    pub cold_share: Option<f64>,
    /// The share that waited for page faults.
    pub fresh_share: Option<f64>,
}

/// The replay without devices on the recorded machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ReplayCheck {
    /// Long calls that were replayed.
    pub replayed_calls: u64,
    /// Sections of consecutive calls.
    pub sections: u64,
    /// The time of the replayed calls, scaled by the number of calls to all long calls.
    pub replayed_ns: Option<f64>,
    /// The deviation of that time from the recorded time in long calls.
    pub error: Option<f64>,
    /// The time of the sections in the replay, relative to their recorded time, minus 1.
    pub section_error: Option<f64>,
    /// The deviation of the replayed calls' times by the calibration curves alone from their recorded times.
    pub curve_error: Option<f64>,
}

/// Times of long calls, without interruptions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CallTimes {
    /// Sum of all long calls, scaled from the replayed ones.
    pub total_ns: Option<f64>,
    /// Mean.
    pub mean_ns: Option<f64>,
    /// Median.
    pub p50_ns: Option<f64>,
    /// 99th percentile; absent below 100 calls.
    pub p99_ns: Option<f64>,
    /// 99.999th percentile; absent below 1,000,000 calls.
    pub p99_999_ns: Option<f64>,
}

/// The work of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DeviceWork {
    /// Number of devices.
    pub devices: u64,
    /// Long calls that devices execute, at least in part.
    pub calls: Option<f64>,
    /// Bytes of the calls that the policy leaves to devices.
    pub bytes: Option<f64>,
    /// Time of these calls in nanoseconds.
    pub calls_ns: Option<f64>,
    /// The share of long calls that devices execute.
    pub share_of_calls: Option<f64>,
    /// The share of their bytes.
    pub share_of_bytes: Option<f64>,
    /// The share of long calls that the CPU executes because a queue is full.
    pub queue_full: Option<f64>,
    /// The share of long calls in which a device meets a missing page.
    pub faults: Option<f64>,
}

/// The gain with one threshold for all call sites.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ThresholdGain {
    /// Bytes from which on calls go to devices.
    pub bytes: u64,
    /// Gain of all calls of 2 KiB or more.
    pub gain_of_calls: Option<f64>,
    /// Gain of the program.
    pub gain_of_program: Option<f64>,
    /// Calls below the size of long calls are not in the trace; their part of this gain was computed from their number.
    pub partly_estimated: bool,
}

/// The better of CPU and device for one call site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SitePolicy {
    /// The module's path; absent for code outside of modules.
    pub module: Option<String>,
    /// The module's build-id; empty if it has none.
    pub build_id: String,
    /// The return address, relative to the module.
    pub offset: u64,
    /// The function's name, if the command knows it.
    pub function: Option<String>,
    /// Recorded calls from the size of sites on.
    pub calls: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Replayed long calls; with none, the CPU executes the site's calls.
    pub replayed_calls: u64,
    /// The share of cold bytes in replayed calls.
    pub cold_share: Option<f64>,
    /// Mean time of a replayed call by the CPU.
    pub cpu_ns: Option<f64>,
    /// Mean time of a replayed call by a device: with the best policy, or for a site that stays on the CPU, without
    /// other calls on the devices.
    pub device_ns: Option<f64>,
    /// `device` or `cpu`.
    pub by: &'static str,
    /// Gain of the site's long calls on a device; below 1 it loses. A site with a gain stays on the CPU if many of its
    /// calls are fresh, or if other sites keep the devices busy.
    pub gain: Option<f64>,
    /// The time that the policy saves, of all long calls.
    pub saved_ns: f64,
}

/// The gain with another share of cold data, with the best policy for each call site at that share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ColdShareGain {
    /// Percentage points that were added to the recorded share, or taken from it.
    pub points: i32,
    /// The share of cold bytes that was simulated. Only hot and cold calls can change, so it may change by less.
    pub cold_share: f64,
    /// The time of all long calls by the CPU.
    pub by_cpu_ns: f64,
    /// Their time with the best policy.
    pub offloaded_ns: f64,
    /// The difference.
    pub saved_ns: f64,
    /// Gain of the long calls.
    pub gain_of_calls: Option<f64>,
    /// Gain of the program.
    pub gain_of_program: Option<f64>,
}

/// The prediction compared with another recording, for example of another input.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The other recording's first program.
    pub program: String,
    /// The compared quantities.
    pub rows: Vec<ComparedValue>,
    /// Call sites of the other recording that the predicted policy does not know; the CPU executes their calls.
    pub unknown_sites: u64,
    /// How the other recording was used.
    pub how: String,
}

/// One quantity of both recordings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedValue {
    /// Its name.
    pub name: &'static str,
    /// Its unit: `B`, `ns`, `%`, or empty for a ratio.
    pub unit: &'static str,
    /// The value of the prediction.
    pub predicted: Option<f64>,
    /// The value of the other recording.
    pub other: Option<f64>,
    /// The deviation of the prediction from the other recording; for shares in percentage points, otherwise relative.
    pub deviation: Option<f64>,
}
