//! What the tests have in common: memory for a recording, and calls with given times.

use std::sync::atomic::{AtomicU64, Ordering};
use telpher_recording::{Call, CurvePoint, Curves, Limits, Operation, Start, ThreadWriter, bytes_needed};

/// 10, 100 and 1000 picoseconds per byte.
pub(crate) const POINTS: [CurvePoint; 1] = [CurvePoint { len: 4096, hot_ps: 10, cold_ps: 100, fresh_ps: 1000 }];

/// A copy that moves its data to lower addresses by 44 bytes.
pub(crate) const DOWN: Call = Call {
    operation: Operation::Memmove,
    destination: 0x10_0004,
    source: 0x10_0030,
    len: 65_538,
    return_address: 0x99,
};

/// Words for a recording, all zero.
pub(crate) fn memory(limits: Limits) -> Vec<AtomicU64> {
    let bytes = usize::try_from(bytes_needed(limits).unwrap()).unwrap();
    (0..bytes / 8).map(|_| AtomicU64::new(0)).collect()
}

/// What the file has now.
pub(crate) fn bytes_of(words: &[AtomicU64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
}

/// A start at 0, with a tick of a nanosecond and a measurement that takes no time.
pub(crate) fn start(limits: Limits) -> Start<'static> {
    Start { limits, tsc_hz: 1_000_000_000, curves: Curves { copy: &POINTS, ..Curves::default() }, ..Start::default() }
}

/// A call between two pages, from a site.
pub(crate) fn call(operation: Operation, len: usize, return_address: usize) -> Call {
    Call { operation, destination: 0x4000_0000, source: 0x7000_0040, len, return_address }
}

/// Records a call with its begin and end in ticks.
pub(crate) fn record(thread: &ThreadWriter<'_>, call: &Call, [begin, end]: [u64; 2]) {
    let begun = thread.begin(call, || begin);
    thread.end(call, begun, || end, None);
}
