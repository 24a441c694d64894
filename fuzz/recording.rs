//! One input for the reader of recordings: a small recording with changed bytes, or any bytes. The reader answers or
//! refuses. What it returns is not larger than the file allows, its indices are valid, and it can be summed up and
//! merged.
//!
//! The first byte of an input chooses the base, a recording with all tables in use or nothing, and whether the file is
//! cut. The rest is a list of changes of four bytes each: an offset, modulo the length of the file or of its header,
//! and a value. Used by the libFuzzer target and by the bounded test `base/recording/tests/fuzz_recording.rs`.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use telpher_recording::{
    Call, CurvePoint, Curves, Limits, ModuleMapping, Operation, Recording, Start, Writer, bytes_needed,
};

const LIMITS: Limits = Limits { threads: 2, sites: 8, modules: 2, trace_blocks: 2 };
/// Bytes of the longest header; changes there find more than elsewhere.
const HEADER: usize = 5304;

/// A recording in which every table has entries.
static RECORDING: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let bytes = usize::try_from(bytes_needed(LIMITS).expect("small limits")).expect("a small file");
    let words: Vec<AtomicU64> = (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
    let copy = &[CurvePoint { len: 4096, hot_ps: 10, cold_ps: 100, fresh_ps: 1000 }];
    let curves = Curves { copy, ..Curves::default() };
    let start = Start { limits: LIMITS, tsc_hz: 2_000_000_000, arguments: b"program\0-x", curves, ..Start::default() };
    let writer = Writer::over(&words, &start).expect("memory of the right size");
    writer.add_module(&ModuleMapping { path: b"/bin/program", build_id: &[1, 2], addresses: 0x1000..0x9000 });
    for thread in 1..=3 {
        let thread = writer.thread(thread);
        for number in 0..40_usize {
            let operation = Operation::ALL[number % Operation::ALL.len()];
            let _ = thread.count(operation, number);
            let call = Call {
                operation,
                destination: 0x8000,
                source: 0x8000 + number,
                len: 4000 * number,
                return_address: 0x1000 + number,
            };
            let begun = thread.begin(&call, || 100 * number as u64);
            thread.end(&call, begun, || 150 * number as u64, Some(number as u64 % 2));
        }
    }
    words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
});

/// Runs one input; panics if a promise is broken.
pub(crate) fn play(input: &[u8]) {
    let Some((base, changes)) = input.split_first() else { return };
    let mut file = if base % 8 == 0 { changes.to_vec() } else { RECORDING.clone() };
    if base % 8 != 0 {
        // Half of the inputs change the header only.
        let part = if base % 2 == 0 { HEADER } else { file.len() };
        for change in changes.chunks_exact(4) {
            let offset = u32::from_le_bytes([change[0], change[1], change[2], 0]) as usize % part;
            file[offset] = change[3];
        }
        if base / 8 % 8 == 0 {
            file.truncate(file.len() * usize::from(*base) / 256);
        }
    }
    let Ok(recording) = Recording::read(&file) else { return };
    let compacted = telpher_recording::compact(&file).expect("the reader accepts it");
    assert!(compacted.len() <= file.len() && Recording::read(&compacted).is_ok());
    assert!(recording.events.len() * 32 <= file.len(), "more events than the file has room for");
    assert!(recording.events.iter().all(|event| event.thread < recording.threads.len()));
    assert!(recording.events.iter().filter_map(|event| event.site).all(|site| site < recording.sites.len()));
    assert!(recording.sites.iter().filter_map(|site| site.module).all(|module| module < recording.modules.len()));
    assert!(recording.events.is_sorted_by_key(|event| event.start_ns));
    let summary = recording.summary();
    let shares = summary.by_size.iter().flat_map(|size| [size.share_of_calls, size.share_of_bytes]).flatten();
    assert!(shares.into_iter().all(|share| (0.0..=1.0).contains(&share)), "{summary:?}");
    let merged = Recording::merge(vec![recording.clone(), recording.clone()]).expect("the same machine");
    assert_eq!(merged.events.len(), 2 * recording.events.len());
    assert!(merged.events.iter().filter_map(|event| event.site).all(|site| site < merged.sites.len()));
}
