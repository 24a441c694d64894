//! What follows from a recording without any prediction.

use crate::operation::Operation;
use crate::recording::{Overlaps, Recording, SizeRow, Timed};
use serde::Serialize;

/// Figures that follow from a recording. A share is a number between 0 and 1, and `None` where there is nothing to
/// share.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Summary {
    /// Calls.
    pub calls: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Calls by operation; operations without calls are left out.
    pub by_operation: Vec<OperationShare>,
    /// Calls by size, of all operations; sizes without calls are left out.
    pub by_size: Vec<SizeShare>,
    /// Overlapping copies, of calls whose site is recorded.
    pub overlapping: Overlapping,
    /// Where the data of timed calls was. `None` if no call was judged, because there is no calibration or no call is
    /// long enough.
    pub temperature: Option<TemperatureShares>,
    /// The most long calls of one process in flight at once.
    pub most_in_flight: u64,
    /// The time in all calls.
    pub time: TimeEstimate,
}

/// The share of one operation.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct OperationShare {
    /// The operation.
    pub operation: Operation,
    /// Calls.
    pub calls: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Its share of all calls.
    pub share_of_calls: Option<f64>,
    /// Its share of all bytes.
    pub share_of_bytes: Option<f64>,
}

/// The share of calls between a power of two and the next one.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct SizeShare {
    /// The smallest size.
    pub from: u64,
    /// The largest size.
    pub to: u64,
    /// Calls.
    pub calls: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their share of all calls.
    pub share_of_calls: Option<f64>,
    /// Their share of all bytes.
    pub share_of_bytes: Option<f64>,
}

/// Copies whose source and destination overlap.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Overlapping {
    /// Calls.
    pub calls: u64,
    /// Bytes of copies to lower addresses.
    pub bytes_down: u64,
    /// Bytes of copies to higher addresses.
    pub bytes_up: u64,
    /// The share of these bytes in those of all calls whose site is recorded.
    pub share_of_bytes: Option<f64>,
}

/// Shares of the bytes of timed calls. A call was judged by its time for each byte, compared with the calibration
/// curve. Long calls weigh more, because each of them was timed.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct TemperatureShares {
    /// The data was in the caches.
    pub hot: f64,
    /// The data came from memory.
    pub cold: f64,
    /// The call waited for page faults.
    pub fresh: f64,
    /// The calls that were judged.
    pub timed_calls: u64,
    /// Their bytes.
    pub timed_bytes: u64,
}

/// An estimate of the time that threads spent in calls, summed over threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct TimeEstimate {
    /// Nanoseconds. Each operation and size class counts with the mean of its timed calls.
    pub ns: u64,
    /// The timed calls.
    pub timed_calls: u64,
    /// Calls of operations and size classes of which no call was timed. Their time is missing.
    pub calls_without_estimate: u64,
}

fn share(part: u64, of: u64) -> Option<f64> {
    // The precision of a double is more than a share needs.
    (of > 0).then(|| part as f64 / of as f64)
}

fn total(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

impl Recording {
    /// Returns the figures that follow from the recording.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let calls = total(self.sizes.iter().map(|row| row.calls));
        let bytes = total(self.sizes.iter().map(|row| row.bytes));
        Summary {
            calls,
            bytes,
            by_operation: self.by_operation(calls, bytes),
            by_size: self.by_size(calls, bytes),
            overlapping: self.overlapping(),
            temperature: self.temperature(),
            most_in_flight: self.threads.iter().map(|thread| thread.most_in_flight).max().unwrap_or(0),
            time: self.time(),
        }
    }

    fn by_operation(&self, all_calls: u64, all_bytes: u64) -> Vec<OperationShare> {
        let of = |operation| {
            let rows = self.sizes.iter().filter(move |row| row.operation == operation);
            let calls = total(rows.clone().map(|row| row.calls));
            let bytes = total(rows.map(|row| row.bytes));
            let (share_of_calls, share_of_bytes) = (share(calls, all_calls), share(bytes, all_bytes));
            OperationShare { operation, calls, bytes, share_of_calls, share_of_bytes }
        };
        Operation::ALL.into_iter().map(of).filter(|operation| operation.calls > 0).collect()
    }

    fn by_size(&self, all_calls: u64, all_bytes: u64) -> Vec<SizeShare> {
        // Class 0 is the size 0, class n the sizes of n bits.
        let bits = |row: &SizeRow| 64 - row.from.leading_zeros();
        let of = |class: u32| {
            let rows = self.sizes.iter().filter(move |row| bits(row) == class);
            let calls = total(rows.clone().map(|row| row.calls));
            let bytes = total(rows.map(|row| row.bytes));
            let from = class.checked_sub(1).map_or(0, |shift| 1 << shift);
            let to = 1_u64.checked_shl(class).map_or(u64::MAX, |end| end - 1);
            let (share_of_calls, share_of_bytes) = (share(calls, all_calls), share(bytes, all_bytes));
            SizeShare { from, to, calls, bytes, share_of_calls, share_of_bytes }
        };
        (0..=64).map(of).filter(|size| size.calls > 0).collect()
    }

    fn overlapping(&self) -> Overlapping {
        let (mut down, mut up) = (Overlaps::default(), Overlaps::default());
        for site in &self.sites {
            down.add(site.overlaps_down);
            up.add(site.overlaps_up);
        }
        let calls = [down, up].map(|it| total([it.below_line, it.below_page, it.page_or_more].into_iter()));
        let of = total(self.sites.iter().map(|site| site.bytes));
        Overlapping {
            calls: total(calls.into_iter()),
            bytes_down: down.bytes,
            bytes_up: up.bytes,
            share_of_bytes: share(down.bytes.saturating_add(up.bytes), of),
        }
    }

    fn temperature(&self) -> Option<TemperatureShares> {
        let [mut hot, mut cold, mut fresh] = [Timed::default(); 3];
        for site in &self.sites {
            hot.add(site.hot);
            cold.add(site.cold);
            fresh.add(site.fresh);
        }
        let all = [hot, cold, fresh];
        let timed_bytes = total(all.iter().map(|timed| timed.bytes));
        Some(TemperatureShares {
            hot: share(hot.bytes, timed_bytes)?,
            cold: share(cold.bytes, timed_bytes)?,
            fresh: share(fresh.bytes, timed_bytes)?,
            timed_calls: total(all.iter().map(|timed| timed.calls)),
            timed_bytes,
        })
    }

    fn time(&self) -> TimeEstimate {
        let mut time = TimeEstimate { ns: 0, timed_calls: 0, calls_without_estimate: 0 };
        for row in &self.sizes {
            time.timed_calls = time.timed_calls.saturating_add(row.timed_calls);
            if row.timed_calls == 0 {
                time.calls_without_estimate = time.calls_without_estimate.saturating_add(row.calls);
                continue;
            }
            // Below 2^128.
            let ns = u128::from(row.timed_ns) * u128::from(row.calls) / u128::from(row.timed_calls);
            time.ns = time.ns.saturating_add(u64::try_from(ns).unwrap_or(u64::MAX));
        }
        time
    }
}
